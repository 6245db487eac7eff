"""A trace reads exactly what the engine reads, and knows where each lexeme began."""

from __future__ import annotations

import random

import pytest

from decodekit.constraints.author.members import sample_text
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.explain import trace
from decodekit.constraints.explain.trace import Trace
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.network import Read
from decodekit.errors import ResourceLimitError
from tests.constraints.test_members import ALL
from tests.sizes import few

GRAMMARS: list[Constraint] = [Grammar(name) for name in ("arithmetic", "json", "sql", "toml", "semver")]


def engine(constraint: Constraint, data: bytes) -> tuple[int, bool]:
    """How far the engine reads, and whether the text may end there."""
    recogniser = Recogniser(constraint.root(), shared_automaton())
    state, count = recogniser.root, 0
    for byte in data:
        following = recogniser.step(state, byte)
        if following is None:
            break
        state, count = following, count + 1
    return count, recogniser.states.is_accepting(state)


@few(16)
@pytest.mark.parametrize("constraint", [*ALL, *GRAMMARS])
def test_a_trace_agrees_with_the_engine(constraint: Constraint) -> None:
    """On members, their beginnings, and members with one byte changed."""
    rng = random.Random(0)
    for seed in range(3):
        member = sample_text(constraint, seed=seed, size=50).encode()
        place = rng.randrange(len(member) + 1)
        other = bytes((rng.choice(member + b'"}],x0'),))
        for data in (member, member[:place], member[:place] + other + member[place + 1 :], member + other):
            trace = Trace(constraint.root())
            count = trace.read(data)
            assert (count, trace.is_accepting) == engine(constraint, data), data
            assert trace.position == count
            assert all(0 <= thread.origin.start <= count for thread in trace.threads)
            for thread in trace.threads:
                assert isinstance(thread.origin.path[-1][1], Read)


def test_where_a_lexeme_began() -> None:
    trace = Trace(JsonSchema({"type": "object"}).root())
    assert trace.read(b'{"ab": 12') == 9
    starts = {thread.origin.start for thread in trace.threads}
    assert starts == {7, 9}  # the number may go on, or something comes after it
    assert {origin.start for origin in trace.ended} == {7}
    assert trace.read(b"x,") == 0 and trace.position == 9  # nothing changes
    assert trace.read(b"}") == 1 and trace.is_accepting and not trace.threads


def test_the_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_STEPS", 100)
    traced = Trace(Grammar('start: start start | "a"\n').root())
    with pytest.raises(ResourceLimitError, match="too many ways"):
        traced.read(b"a" * 50)
