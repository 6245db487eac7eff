"""Work on a constraint rests while others decode, in turns, and never with what these may need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from decodekit.constraints import JsonSchema
from decodekit.constraints import priority as turns
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.language import ir


class Clock:
    """Time that passes by itself at every look, and by sleeping; of all threads together."""

    def __init__(self, tick: float = 0.0001) -> None:
        self.now, self.tick = 0.0, tick
        self.rests: list[float] = []

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    made_time = SimpleNamespace(monotonic=made.monotonic, thread_time=made.monotonic, sleep=made.sleep)
    monkeypatch.setattr(turns, "time", made_time)
    monkeypatch.setattr(turns, "_next_turn", 0.0)
    monkeypatch.setattr(turns, "_thread", turns._Thread())
    return made


@contextmanager
def somebody_decodes() -> Iterator[None]:
    """A thread is in a step."""
    begun, end = threading.Event(), threading.Event()

    def step() -> None:
        with turns.decoding():
            begun.set()
            end.wait()

    thread = threading.Thread(target=step)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def work(num_places: int) -> None:
    for _ in range(num_places):
        turns.give_way()


def test_nobody_rests_where_nobody_decodes(clock: Clock) -> None:
    work(1000)
    assert clock.rests == [] and clock.now == 0
    with somebody_decodes():
        work(1000)
    num_rests = len(clock.rests)
    assert num_rests > 0
    work(1000)
    assert len(clock.rests) == num_rests


def test_turns_and_rests(clock: Clock) -> None:
    with somebody_decodes():
        work(1000)
    worked = clock.now - sum(clock.rests)
    assert worked <= (len(clock.rests) + 1) * (turns.TURN_S + 3 * clock.tick)
    assert min(clock.rests) > 0 and sum(clock.rests) >= (len(clock.rests) - 1) * turns.REST_S


def test_who_decodes_does_not_rest_for_others(clock: Clock) -> None:
    with somebody_decodes(), turns.decoding():
        work(1000)
    assert clock.rests == []


def test_nobody_rests_who_holds_what_the_engine_needs(clock: Clock) -> None:
    automaton = shared_automaton()
    with somebody_decodes():
        with turns.lock:
            work(1000)
        assert clock.rests == []
        with automaton.lock:  # it is that one
            work(1000)
        assert clock.rests == []
        work(1000)
    assert clock.rests


def test_threads_that_compile_have_their_turns_one_after_the_other(clock: Clock) -> None:
    begins: list[float] = []
    with somebody_decodes():
        for _ in range(5):
            thread = threading.Thread(target=lambda: (turns.give_way(), begins.append(turns._thread.ends)))
            thread.start()
            thread.join()
            clock.now = 0.0  # as if they had come at once
    distances = [later - earlier for earlier, later in pairwise(begins)]
    assert min(distances) >= turns.TURN_S + turns.REST_S - 2 * clock.tick


def test_work_that_cannot_be_cut_has_its_share(clock: Clock) -> None:
    """Of the time beside those who decode; alone it rests for nobody."""

    def read() -> None:
        clock.now += 0.1

    for _ in range(3):
        turns.uncut(read)
    assert clock.rests == []
    began = clock.now
    with somebody_decodes():
        for _ in range(5):
            turns.uncut(read)
        assert clock.now - began >= 0.1 * (1 + 4 * turns.SHARE)
        with pytest.raises(ZeroDivisionError):
            turns.uncut(lambda: (read(), 1 // 0))
        before = clock.now
        work(10)  # those that compile rest behind it as well
        assert clock.now - before >= 0.1 * (turns.SHARE - 1)
        turns.uncut(lambda: None)
        before = sum(clock.rests)
        turns.uncut(lambda: None)  # of what is short several have one turn
        assert sum(clock.rests) == before


def test_num_steps_tells_whether_somebody_decoded() -> None:
    before = turns.num_steps()
    assert turns.num_steps() == before
    with turns.decoding():
        inside = turns.num_steps()
    assert before < inside < turns.num_steps()


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        f"property-{n}": {"anyOf": [{"type": "string", "maxLength": n + 1}, {"type": "array", "items": {"minimum": n}}]}
        for n in range(60)
    },
    "required": [f"property-{n}" for n in range(0, 60, 2)],
}


def test_a_schema_gives_way_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[bool] = []
    monkeypatch.setattr(turns, "_rest", lambda: places.append(turns.lock._is_owned()))  # type: ignore[attr-defined]
    schema = JsonSchema(SCHEMA | {"title": "not met before"})
    with turns.decoding():
        schema.root()
        schema.guard()
    assert len(places) > 60 and not any(places)
    with turns.decoding():
        Recogniser(schema.root(), shared_automaton())
    assert any(places)


def test_a_sweep_gives_way_between_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [ir.literal(f"held {n}".encode()) for n in range(300)]
    for n in range(3000):
        ir.literal(f"not held {n}".encode())
    found: list[ir.Node] = []

    pauses: list[None] = []

    def derive_meanwhile() -> None:
        pauses.append(None)
        if len(pauses) == 1:
            found.extend(ir.concat(one, ir.accept("meanwhile")) for one in held)
            found.append(ir.literal(b"not held 7"))

    monkeypatch.setattr(ir, "_SWEPT_AT_ONCE", 100)
    monkeypatch.setattr(ir, "give_way", derive_meanwhile)
    num_nodes = len(ir._interned)
    ir.sweep()
    assert len(ir._interned) <= num_nodes - 3000 + len(found) + 1
    assert all(ir.literal(f"held {n}".encode()) is one for n, one in enumerate(held))
    assert all(ir.concat(one, ir.accept("meanwhile")) is two for one, two in zip(held, found, strict=False))
    assert ir.literal(b"not held 7") is found[-1]
