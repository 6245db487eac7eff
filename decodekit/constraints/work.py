"""Work that can be left off and gone on with: a generator that yields how many steps it has made since the last time.

    work = is_found(pattern, text)   nothing is done yet
    next(work)                       1024   so many steps were made, and there are more
    next(work)                       StopIteration, with the answer

Judgements of whole values are made of such work, since a value may be as long as a text: whoever asks goes on with it a
slice at a time, counts its steps against what a text may cost, or wants the answer at once (`done`). A step is about a
microsecond. The number of steps is a function of what is judged, the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

_Answer = TypeVar("_Answer")

Work: TypeAlias = Generator[int, None, _Answer]
"""Yields the steps since it was left off, and returns the answer. Several hundred steps lie between two of them."""


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
