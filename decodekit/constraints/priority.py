"""Turns: work on a constraint gives way to threads that decode.

Reading a schema and making its states is Python, and a forward pass gives the interpreter away at every operation on a
tensor. A thread that compiles keeps it for 5 ms each time (`sys.getswitchinterval`), so that a step of two hundred
operations, 4 ms alone, took a second beside it. So compilation comes in turns, and rests between them:

    decodes     |step|step|st  ep|step|step|st  ep|
    compiles                 ####            ####           `give_way`, every few microseconds of its work

Work that is one call of C, such as the reading of a large text of JSON, cannot be cut: it has its turn as a whole, and
a rest of several times its length behind it (`uncut`).

Where nobody decodes, nothing rests. No result depends on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from decodekit.constraints.work_budget import finished, next_slice

T = TypeVar("T")

TURN_S: Final = 0.002
"""So long at most a thread works at a time, as far as it comes to a `give_way`."""
REST_S: Final = 0.004
"""So long at least those who decode are left alone after it, by all threads that work on constraints together."""

SHARE: Final = 4
"""Work that cannot be cut has one part of so many of the time, beside those who decode."""

lock: Final = threading.RLock()
"""Held by who makes states of the engine. Nobody rests who holds it, for those who decode may need it."""


class _Thread(threading.local):
    num_decoding = 0  # how deep it is in `decoding`
    ends = 0.0  # its turn


_thread = _Thread()
_counts = threading.Lock()
_num_decoding = _num_steps = 0
_next_turn = 0.0


@contextmanager
def decoding() -> Iterator[None]:
    """The calling thread decodes: others that work on constraints give way to it. May be entered again inside."""
    global _num_decoding, _num_steps
    with _counts:
        _num_decoding += 1
        _num_steps += 1
    _thread.num_decoding += 1
    try:
        yield
    finally:
        _thread.num_decoding -= 1
        with _counts:
            _num_decoding -= 1
            _num_steps += 1


def num_steps() -> int:
    """The number of steps that were begun or ended; the same number twice is a time in which nobody decoded."""
    return _num_steps


def give_way() -> None:
    """A place at which work on a constraint may rest: no lock is held that who decodes may need, other than `lock`."""
    if _num_decoding:
        _rest()


def in_turns(work: Callable[[], T]) -> T:
    """Do some work that holds `lock`, a slice at a time where others decode (see `work_budget`): they may need it."""
    if not _num_decoding or _thread.num_decoding or lock._is_owned():  # type: ignore[attr-defined]
        return work()
    done: list[T] = []
    num_slices = 0
    while not finished(lambda: done.append(work()), next_slice(num_slices)):
        num_slices += 1
        give_way()
    return done[0]


def uncut(work: Callable[[], T]) -> T:
    """Do some work without a `give_way` in it when it is its turn; the next turn of anybody is so much later."""
    global _next_turn
    give_way()
    begin = time.thread_time()
    try:
        return work()
    finally:
        worked = time.thread_time() - begin
        if worked > TURN_S:
            _thread.ends = 0.0
            with _counts:
                _next_turn = max(_next_turn, time.monotonic() + (SHARE - 1) * worked)


def _rest() -> None:
    global _next_turn
    now = time.monotonic()
    if now < _thread.ends or _thread.num_decoding or lock._is_owned():  # type: ignore[attr-defined]
        return
    with _counts:
        begins = max(now + REST_S, _next_turn)
        _next_turn = begins + TURN_S + REST_S
    while _num_decoding and now < begins:
        time.sleep(min(REST_S, begins - now))
        now = time.monotonic()
    _thread.ends = now + TURN_S
