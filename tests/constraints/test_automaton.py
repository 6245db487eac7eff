"""The table of lexical states: it is not copied while an epoch lasts, and only what is used of it counts as memory."""

import numpy as np
import pytest

from decodekit.constraints.engine import automaton as module
from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.language import ir


def with_words(automaton: Automaton, num_words: int) -> list[int]:
    """The states of some languages of one word each."""
    return [automaton.state(ir.literal(f"{number:05d}".encode())) for number in range(num_words)]


def test_more_states_move_no_table_within_an_epoch() -> None:
    assert module.ROOM_STATES > module.EPOCH_STATES
    automaton = Automaton()
    table, empty = automaton.next, automaton.num_bytes
    with_words(automaton, 2000)
    assert automaton.num_states > 2000
    assert automaton.next is table  # a kernel or a mask never waits for a copy of it
    assert automaton.num_bytes == automaton.num_states * empty
    assert automaton.num_bytes < automaton.next.nbytes // 50


def test_a_table_that_is_full_grows_and_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_STATES", 64)
    small, large = Automaton(), Automaton()
    monkeypatch.undo()
    large.next = np.zeros((module.ROOM_STATES, 256), np.int32)
    table = small.next
    for states, automaton in ((with_words(small, 60), small), (with_words(large, 60), large)):
        assert [automaton.step(state, ord("0")) != 0 for state in states] == [True] * 60
    assert small.next is not table and len(small.next) >= small.num_states > 64
    assert small.num_bytes == large.num_bytes
