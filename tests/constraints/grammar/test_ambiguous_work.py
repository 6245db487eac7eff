"""Ambiguous grammars: a text has as many readings as it likes, and few places; work grows with the places."""

from __future__ import annotations

import numpy as np
import pytest

from decodekit.constraints import Grammar, allocate_bitmask, compile
from decodekit.constraints.engine.bitmask import ids_from_bitmask
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.matching.wrapped_matcher import BudgetedMatcher
from decodekit.constraints.work_budget import MAX_SLICE, SLICE, STEPS, WorkBudget, next_slice
from decodekit.errors import ResourceLimitError
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

GRAMMARS = {
    "left through another": 'start: a\na: a a | b | ""\nb: b a | "x" | ""\n',
    "without empty words": 'start: a\na: a a | b\nb: b a | "x"\n',
    "pairs": 'start: s\ns: s s | "x"\n',
    "pairs and nothing": 'start: s\ns: s s | "x" | ""\n',
    "triples": 'start: s\ns: s s s | s s | "x"\n',
    "triples and nothing": 'start: s\ns: s s s | "x" | ""\n',
    "palindromes": 'start: p\np: "x" p "x" | "x" | ""\n',
    "two of itself": 'start: s\ns: "x" s s | "x" | ""\n',
    "one through the other": 'start: a\na: b c | "x"\nb: a | a b | ""\nc: b a | "x" | ""\n',
    "right through another": 'start: a\na: b a | b | ""\nb: a b | "x" | ""\n',
    "in the middle": 'start: s\ns: s t s | "x" | ""\nt: t s t | "x" | ""\n',
    "optional parts": 'start: s\ns: (s s?)+ | "x"\n',
}
VOCABULARY = byte_vocabulary([b"x" * size for size in (2, 3, 5, 8)])
PLENTY = 10**12


def matcher_of(name: str) -> Matcher:
    grammar = compile(Grammar(GRAMMARS[name]), VOCABULARY)
    grammar.release()
    return compile(Grammar(GRAMMARS[name]), VOCABULARY).matcher()


def mask_of(matcher: Matcher) -> bytes:
    out = allocate_bitmask(1, VOCABULARY.size)
    matcher.fill_bitmask(out)
    return out.tobytes()


def steps_of(name: str, size: int) -> int:
    """Steps of all masks of a text of so many letters."""
    budget = WorkBudget(PLENTY, PLENTY)
    matcher = BudgetedMatcher(matcher_of(name), budget)
    for _ in range(size):
        mask_of(matcher)
        assert matcher.accept(ord("x"))
    return PLENTY - budget.left


@few(6)
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_work_of_a_text_is_at_most_cubic(name: str) -> None:
    few, more = steps_of(name, 20), steps_of(name, 40)
    assert 0 < more <= 8 * few


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_are_those_of_each_token_tried(name: str) -> None:
    matcher = matcher_of(name)
    for _ in range(12):
        out = np.frombuffer(mask_of(matcher), np.int32)
        allowed = set(ids_from_bitmask(out).tolist())
        assert allowed == {token for token in range(VOCABULARY.size) if matcher.validate([token])}
        assert matcher.accept(ord("x"))


@few(1)
@pytest.mark.parametrize("name", ["left through another", "in the middle"])
def test_masks_made_in_slices_are_those_made_at_once(name: str) -> None:
    """And no slice takes more than it may, but for the last thing in it."""
    vocabulary = byte_vocabulary([b"x" * size for size in range(2, 24)])

    def masks(is_sliced: bool) -> tuple[list[bytes], int]:
        compile(Grammar(GRAMMARS[name]), vocabulary).release()
        budget = WorkBudget(PLENTY, PLENTY)
        matcher = BudgetedMatcher(compile(Grammar(GRAMMARS[name]), vocabulary).matcher(), budget)
        found, most = [], 0
        for _ in range(6):
            before, is_made = budget.left, not is_sliced
            while not is_made:
                before = budget.left
                is_made = matcher.prepare(SLICE)
                most = max(most, before - budget.left)
            out = allocate_bitmask(1, vocabulary.size)
            matcher.fill_bitmask(out)
            found.append(out.tobytes())
            assert matcher.accept(256 + 22 - 8)
        return found, most

    (sliced, most), (whole, _) = masks(True), masks(False)
    assert sliced == whole
    assert 0 < most <= 8 * SLICE * STEPS


def test_slices_grow_to_a_bound() -> None:
    assert next_slice(0) == SLICE
    assert max(map(next_slice, range(100_000))) == MAX_SLICE


@pytest.mark.parametrize(("most", "most_at_once"), [(500, PLENTY), (PLENTY, 500)])
def test_a_budget_that_is_used_up_is_an_error_and_the_text_stands(most: int, most_at_once: int) -> None:
    budget = WorkBudget(most, most_at_once)
    inner = matcher_of("in the middle")
    matcher = BudgetedMatcher(inner, budget)
    num_accepted = []

    def write() -> None:
        for number in range(80):
            mask_of(matcher)
            assert matcher.accept(ord("x"))
            num_accepted.append(number)

    with pytest.raises(ResourceLimitError, match="too much work"):
        write()
    assert matcher.num_tokens == inner.num_tokens == len(num_accepted)
    assert inner.validate([ord("x")]) == 1  # without the budget it goes on
