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

A part may need parts of its own that are kept only with it, so the numbers have to grow in the end for all work to
end: see `next_slice`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

SLICE: Final = 16
"""New things in a slice: 1 to 3 ms, where a thing takes 50 to 200 microseconds."""
STEPS: Final = 100
"""So many steps are one thing. A step is some microsecond."""
PATIENCE: Final = 64
"""After so many slices they become larger."""


class Unfinished(Exception):  # noqa: N818  (no error: the work goes on in the next slice)
    """Raised where the work of a slice is done and more is needed."""


class _Allowance(threading.local):
    """How many steps the thread may still make; None for any number."""

    left: int | None = None
    has_spent: bool = False  # a slice makes one thing at least, whatever was charged before it, so that work goes on


_allowance = _Allowance()


def spend() -> None:
    """Something new is about to be made, which will be kept.

    Raises:
        Unfinished: the slice has no room for it.
    """
    left = _allowance.left
    if left is None:
        return
    if left <= 0 and _allowance.has_spent:
        raise Unfinished
    _allowance.left, _allowance.has_spent = left - STEPS, True


def charge(num_steps: int) -> None:
    """So many steps were made, of something that is kept; the rest of the slice is shorter by them."""
    left = _allowance.left
    if left is not None:
        _allowance.left = left - num_steps


def finished(work: Callable[[], object], num_things: int) -> bool:
    """Do some work in which at most so many new things are made; whether it came to its end. Slices do not nest.

    A thing of more than `STEPS` steps counts as several, so that fewer are made.
    """
    _allowance.left, _allowance.has_spent = num_things * STEPS, num_things <= 0
    try:
        work()
    except Unfinished:
        return False
    finally:
        _allowance.left = None
    return True


def next_slice(num_slices: int) -> int:
    """The things of a slice after some others: more of them in the end, so that all work ends."""
    return SLICE * (1 + num_slices // PATIENCE)
