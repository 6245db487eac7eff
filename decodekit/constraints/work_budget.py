"""Slices of work: what a mask or a question needs for the first time can be made a part at a time.

A state that is met for the first time may need hundreds of derivatives, plans of objects and searches for a word. They
are kept as soon as they are made, so nothing is lost when the work stops between two of them and begins again:

    finished(make_the_mask, 16)   False   16 new things were made, the mask needs more
    finished(make_the_mask, 16)   False   the first 16 are found, 16 more are made
    finished(make_the_mask, 16)   True    the mask is there, the same as if it had been made at once

Whoever makes something that is kept calls `spend` right before. Things differ: the derivative of an intersection of
forty patterns takes as long as those of a thousand literals. So who does the work also counts its steps by `charge`,
which never stops it, and the next `spend` sees what is left. Steps are counts of what is worked on, the same in every
run; no clock is asked.

A part may need parts of its own that are kept only with it, so the numbers have to grow for all work to end: see
`next_slice`. They grow to `MAX_SLICE`, since the others of a batch wait for a slice.

Nor may a text take what it likes in all, or in the calls that are not sliced, where its constraint comes from a
stranger: see `WorkBudget`.

Judgements of whole values, which may be as long as a text, are `Work`: a generator that yields how many steps it has
made since the last time. Whoever asks goes on with it a slice at a time, counts its steps against what a text may cost,
or wants the answer at once (`done`). The number of steps is a function of what is judged, the same in every run.

    work = is_found(pattern, text)   nothing is done yet
    next(work)                       1024   so many steps were made, and there are more
    next(work)                       StopIteration, with the answer
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from decodekit.errors import ResourceLimitError

_Answer = TypeVar("_Answer")
SLICE: Final = 16
"""New things in a slice: 1 to 3 ms, where a thing takes 50 to 200 microseconds."""
STEPS: Final = 100
"""So many steps are one thing. A step is some microseconds, two to ten."""
PATIENCE: Final = 64
"""After so many slices they become larger."""


MAX_SLICE: Final = 128
"""So many new things are in a slice at most, some 50 ms."""
MAX_STEPS_AT_ONCE: Final = 50_000
"""So many steps at most a constraint with a budget may take in a call: a stranger's may hold others up no longer."""
LEAST_STEPS_AT_ONCE: Final = 5_000
"""So many steps it may take in a call whatever its calls before have taken."""
MAX_STEPS_OF_TEXT: Final = 10_000_000
"""So many steps at most, 10 to 60 s, a constraint with a budget may take for a text and the forks of it."""


Work: TypeAlias = Generator[int, None, _Answer]
"""Yields the steps since it was left off, and returns the answer. Several hundred steps lie between two of them."""


class Unfinished(Exception):  # noqa: N818  (no error: the work goes on in the next slice)
    """Raised where the work of a slice is done and more is needed."""


class Overspent(Unfinished):
    """Raised where a `WorkBudget` is used up."""


class WorkBudget:
    """The work that the constraint of a text may still take. What is called inside of ``with budget:`` is on it.

    There are so many steps in all, and at once: from an entry to its exit.

    Raises (on exit):
        ResourceLimitError: one of both was used up.
    """

    __slots__ = ("_most_at_once", "left", "left_at_once")

    def __init__(self, most: int = MAX_STEPS_OF_TEXT, most_at_once: int = MAX_STEPS_AT_ONCE) -> None:
        self.left = most
        self.left_at_once = self._most_at_once = most_at_once

    def __enter__(self) -> None:
        self.left_at_once = self._most_at_once
        _allowance.budget = self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _allowance.budget = None
        if isinstance(error, Overspent):
            where = "this text" if self.left <= 0 else "one token"
            self._most_at_once = max(LEAST_STEPS_AT_ONCE, self._most_at_once // 2)  # who asks again waits less long
            raise ResourceLimitError(
                f"the constraint takes too much work for {where}",
                hint="smaller bounds, fewer alternatives, or rules that are less ambiguous",
            ) from None


class _Allowance(threading.local):
    """The steps that the thread may still make in its slice; None for any number."""

    left: int | None = None
    has_spent: bool = False  # a slice makes one thing at least, whatever was charged before it, so that work goes on
    budget: WorkBudget | None = None


_allowance = _Allowance()


def spend() -> None:
    """Something new is about to be made, which will be kept.

    Raises:
        Unfinished: the slice has no room for it.
        Overspent: the budget has none.
    """
    check()
    charge(STEPS)


def check() -> None:
    """As `spend`, for something that may be small: who makes it charges its steps."""
    budget = _allowance.budget
    if budget is not None and (budget.left <= 0 or budget.left_at_once <= 0):
        raise Overspent
    if _allowance.left is not None:
        if _allowance.left <= 0 and _allowance.has_spent:
            raise Unfinished
        _allowance.has_spent = True


def charge(num_steps: int) -> None:
    """So many steps were made, of something that is kept; what is left of the slice and the budget is less by them."""
    left, budget = _allowance.left, _allowance.budget
    if left is not None:
        _allowance.left = left - num_steps
    if budget is not None:
        budget.left -= num_steps
        budget.left_at_once -= num_steps


def is_sliced() -> bool:
    """Whether the thread is in a slice, so that what it does may be stopped and begun again."""
    return _allowance.left is not None


def finished(work: Callable[[], object], num_things: int) -> bool:
    """Do some work in which at most so many new things are made; whether it came to its end. Slices do not nest.

    A thing of more than `STEPS` steps counts as several, so that fewer are made.
    """
    _allowance.left, _allowance.has_spent = num_things * STEPS, num_things <= 0
    try:
        work()
    except Overspent:
        raise
    except Unfinished:
        return False
    finally:
        _allowance.left = None
    return True


def next_slice(num_slices: int) -> int:
    """The things of a slice after some others: more of them in the end, so that all work ends."""
    return min(MAX_SLICE, SLICE * (1 + num_slices // PATIENCE))


def done(work: Work[_Answer]) -> _Answer:
    """The answer, at once."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def noted(work: Work[_Answer], note: Callable[[int], object]) -> Work[_Answer]:
    """The same work; `note` is told the steps of each part before they are yielded, and may raise."""
    while True:
        try:
            num_steps = next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        note(num_steps)
        yield num_steps
