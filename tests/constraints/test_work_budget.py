"""Slices of work: masks and questions made a part at a time are those made at once, and a slice makes no more."""

from __future__ import annotations

import numpy as np
import pytest

from decodekit.constraints import Constraint, Grammar, JsonSchema, Regex, allocate_bitmask, compile
from decodekit.constraints.engine.automaton import begin_epoch
from decodekit.constraints.json_schema import schema as schemas
from decodekit.constraints.json_schema.strings import character_search
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.work_budget import (
    MAX_SLICE,
    PATIENCE,
    SLICE,
    STEPS,
    Unfinished,
    charge,
    finished,
    next_slice,
    spend,
)
from decodekit.errors import ResourceLimitError
from tests.reference.vocabularies import ACROSS_BOUNDARIES, byte_vocabulary

VOCABULARY = byte_vocabulary([*ACROSS_BOUNDARIES, b"ab", b"abab", b'","'])
OBJECT = {
    "type": "object",
    "properties": {
        "ab": {"type": "string", "pattern": "^(a|b)+b$", "maxLength": 7},
        "b": {"allOf": [{"pattern": "ab"}, {"not": {"pattern": "ba"}}, {"maxLength": 9}], "type": "string"},
        "c": {"anyOf": [{"type": "integer", "multipleOf": 3}, {"$ref": "#"}]},
    },
    "patternProperties": {"^a": {"type": ["string", "null"]}, "b$": {"minLength": 2}},
    "additionalProperties": {"enum": [1, "ab", None]},
    "minProperties": 1,
    "not": {"required": ["b"], "properties": {"c": {"type": "integer"}}},
}
CASES: list[tuple[Constraint, bytes]] = [
    (JsonSchema(OBJECT, whitespace="compact", order="any"), b'{"ab":"abab","c":{"xb":"ab"},"b":"aab"}'),
    (Regex(r"(?!.*aab)(ab|ba|[^c]){2,9}c(ab){1,3}"), b"ababbacabab"),
    (Grammar('start: "a" (x | "b")* "c"\nx: "(" (start | x)+ ")"'), b"ab((abc)((abc)))bc"),
]


def fresh_matcher(constraint: Constraint) -> Matcher:
    """A matcher of which nothing is known, of what a process shares neither."""
    schemas._network.cache_clear()
    compile(constraint, VOCABULARY).release()
    begin_epoch()
    return compile(constraint, VOCABULARY).matcher()


def masks_along(matcher: Matcher, data: bytes) -> list[bytes]:
    found = []
    for byte in data:
        out = allocate_bitmask(1, VOCABULARY.size)
        matcher.fill_bitmask(out)
        found.append(out.tobytes())
        assert matcher.accept(byte)
    return found


@pytest.mark.parametrize(("constraint", "data"), CASES, ids=["schema", "regex", "grammar"])
def test_masks_and_questions_are_those_made_at_once(constraint: Constraint, data: bytes) -> None:
    expected = masks_along(fresh_matcher(constraint), data)
    matcher = fresh_matcher(constraint)
    num_slices = 0
    for number, byte in enumerate(data):
        for token in (None, byte):
            before = num_slices
            while not matcher.prepare(1 + (num_slices - before) // 8, token):
                num_slices += 1
                assert matcher.num_tokens == number
        assert matcher.prepare(0) and matcher.prepare(0, byte)  # nothing new is needed
        out = allocate_bitmask(1, VOCABULARY.size)
        matcher.fill_bitmask(out)
        assert out.tobytes() == expected[number]
        assert matcher.accept(byte)
    assert num_slices > 5


def test_a_slice_makes_no_more_than_it_may() -> None:
    made: list[int] = []

    def work() -> None:
        while len(made) < 10:
            spend()
            made.append(len(made))

    assert not finished(work, 4) and made == [0, 1, 2, 3]
    assert not finished(work, 4) and len(made) == 8
    assert finished(work, 4) and len(made) == 10
    spend()  # outside of a slice nothing is counted
    with pytest.raises(ZeroDivisionError):
        finished(lambda: 1 // 0, 1)
    spend()


def test_a_thing_of_many_steps_counts_as_several() -> None:
    made: list[int] = []

    def work() -> None:
        charge(10 * STEPS)  # of what is made again in each slice: one new thing is made all the same
        while len(made) < 4:
            spend()
            made.append(len(made))
            charge(STEPS)

    assert not finished(work, 14) and made == [0, 1]
    assert not finished(work, 4) and made == [0, 1, 2]
    assert not finished(work, 0) and made == [0, 1, 2]
    assert finished(work, 14) and len(made) == 4
    charge(STEPS)  # outside of a slice nothing is counted


def test_wide_intersections_make_shorter_slices() -> None:
    """The same text in the same number of states, with one pattern and with eight: more slices."""

    def num_slices(num_patterns: int) -> int:
        patterns = [f"[a-h{number}]{{4}}$" for number in range(num_patterns)]
        matcher = fresh_matcher(JsonSchema({"type": "string", "allOf": [{"pattern": one} for one in patterns]}))
        found = 0
        while not matcher.prepare(SLICE):
            found += 1
        return found

    assert num_slices(8) > 3 * (num_slices(1) + 1)


def test_slices_grow_when_they_are_many() -> None:
    assert [next_slice(number) for number in (0, PATIENCE - 1)] == [SLICE, SLICE]
    assert next_slice(PATIENCE) == 2 * SLICE and next_slice(6 * PATIENCE) == 7 * SLICE
    assert next_slice(10 * PATIENCE) == next_slice(10**9) == MAX_SLICE


def test_work_that_fails_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = fresh_matcher(CASES[1][0])

    def fail(*_: object) -> None:
        raise ResourceLimitError("too much")

    monkeypatch.setattr("decodekit.constraints.engine.token_masks.Masks.mask", fail)
    assert matcher.prepare(1)
    with pytest.raises(ResourceLimitError):
        matcher.fill_bitmask(np.zeros((1, 20), np.int32))


def test_an_answer_that_a_slice_left_open_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    semantics = JsonSchema({"type": "integer"}).network().semantics
    goal = frozenset({2, 4})
    answers = iter([Unfinished(), True])

    def find(*_: object) -> bool:
        answer = next(answers)
        if isinstance(answer, Unfinished):
            raise answer
        return answer

    monkeypatch.setattr(semantics, "_find_plainly_empty", find)
    with pytest.raises(Unfinished):
        semantics._is_plainly_empty(goal)
    assert semantics._is_plainly_empty(goal) is True  # not what whoever asks on the way is told


def test_a_search_goes_on_where_a_slice_left_it() -> None:
    rule = JsonSchema({"allOf": [{"pattern": letter} for letter in "abcdef"], "type": "string", "maxLength": 6})
    network = rule.network()
    body = network.semantics.shape(network.root_goal).strings
    character_search.forget()
    answers: list[bool | None] = []
    num_slices = 0
    while not finished(lambda: answers.append(character_search.is_empty(body)), 1):
        assert len(character_search._begun) == 1
        num_slices += 1
    assert answers == [False] and num_slices >= 6 and not character_search._begun
