"""The best length against the formula, what is learned from texts, and that an idle proposer costs next to nothing."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodekit.errors import OptionError
from decodekit.speculation import Adaptive, Chain, Context, Draft, GrammarDraft, PromptLookup, Suffix, measured_costs
from decodekit.speculation.draft_length import DEFAULT_COSTS, MAX_REST, PROBE_CALLS, best_length
from decodekit.speculation.proposer import each_proposer
from tests.decoding.test_scheduler import V
from tests.reference.generation import ToyLM, hashed_law
from tests.sizes import few
from tests.speculation.test_same_text import CONSTRAINTS, STRATEGIES, Prophet, assert_equals_the_plain_loop


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 3)), max_size=8), st.floats(0.1, 3))
def test_the_best_length_equals_the_formula(pairs: list[tuple[float, float]], first: float) -> None:
    acceptance, costs = [a for a, _ in pairs], [first, *(cost for _, cost in pairs)]
    rates = []
    for k in range(len(costs)):
        rates.append((1 + sum(math.prod(acceptance[:i]) for i in range(1, k + 1))) / costs[k])
    assert rates[best_length(acceptance, costs)] == pytest.approx(max(rates))


def test_lengths_by_hand() -> None:
    linear = [1 + 0.1 * k for k in range(9)]
    assert best_length([0.05] * 8, linear) == 0
    assert best_length([1.0] * 8, linear) == 8
    assert best_length([0.5] * 8, linear) == 2  # 1.5 / 1.1 = 1.36, 1.75 / 1.2 = 1.46, 1.875 / 1.3 = 1.44
    assert best_length([0.0, 1.0], [1, 1, 1]) == 0


class Guesser:
    """Is right about a text of zeros with the given odds, token by token."""

    def __init__(self, odds: float) -> None:
        self.odds = odds
        self.random = random.Random(5)
        self.offered: list[int] = []

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        self.offered += limits
        return [Draft([int(self.random.random() >= self.odds) for _ in range(limit)]) for limit in limits]


def run(adaptive: Adaptive, num_steps: int, num_rows: int = 2) -> None:
    contexts = [Context([1], []) for _ in range(num_rows)]
    for _ in range(num_steps):
        for context, draft in zip(contexts, adaptive.propose(contexts, [100] * num_rows), strict=True):
            num_accepted = next((i for i, token in enumerate(draft.tokens) if token), len(draft))
            context.text.extend([0] * (num_accepted + 1))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("odds", "least", "most"), [(0.0, 0, 0), (0.5, 1, 8), (0.9, 7, 16), (1.0, 16, 16)])
def test_the_length_is_learned(odds: float, least: int, most: int) -> None:
    adaptive = Adaptive(Guesser(odds), decay=0.98)
    run(adaptive, 400)
    assert least <= adaptive.num_tokens() <= most
    assert adaptive.acceptance()[0] == pytest.approx(odds, abs=0.25)


def test_what_does_not_pay_is_left_alone_and_tried_again() -> None:
    guesser = Guesser(0.0)
    adaptive = Adaptive(guesser, probe_every=16)
    run(adaptive, 1000)
    assert adaptive.num_tokens() == 0
    guesser.offered.clear()
    run(adaptive, 10 * (16 * MAX_REST + PROBE_CALLS))  # long rests, each followed by some calls in which it is asked
    assert len(guesser.offered) == 2 * 10 * PROBE_CALLS
    guesser.odds = 1.0
    run(adaptive, 4000)
    assert adaptive.num_tokens() == 16


def test_guesses_are_told_apart_by_their_match() -> None:
    adaptive = Adaptive(Matched())
    contexts = [Context([1], [], row=row) for row in range(2)]
    for _ in range(60):
        drafts = adaptive.propose(contexts, [100, 100])
        for context, draft in zip(contexts, drafts, strict=True):
            context.text.extend([0] * (len(draft) + 1 if context.row else 1))  # type: ignore[attr-defined]
    assert adaptive.num_tokens(match=1) == 0 and adaptive.num_tokens(match=9) == adaptive.num_tokens(match=8) == 16
    assert [len(draft) for draft in adaptive.propose(contexts, [100, 100])] == [0, 16]


class Matched:
    """Wrong after a match of one token, right after one of nine."""

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [
            Draft([1 - one.row] * limit, match=1 + 8 * one.row) for one, limit in zip(contexts, limits, strict=True)
        ]


def test_a_guess_behind_a_wrong_one_tells_nothing() -> None:
    adaptive = Adaptive(Guesser(1.0))
    before = adaptive.acceptance()
    for guess, is_told in ((5, False), (7, True)):
        context = Context([1], [7])
        ahead = context.ahead([guess])
        assert ahead is not None
        [draft] = adaptive.propose([ahead], [2])
        assert draft.tokens == [0, 0]
        context.text.extend([7, 1])  # type: ignore[attr-defined]
        adaptive.propose([context], [0])
        assert (adaptive.acceptance() != before) == is_told


def test_texts_that_were_taken_back_tell_nothing() -> None:
    adaptive = Adaptive(Guesser(1.0))
    before = adaptive.acceptance()
    context = Context([1], [0, 0, 0])
    adaptive.propose([context], [2])
    del context.text[2:]  # type: ignore[attr-defined]
    adaptive.propose([context], [0])
    assert adaptive.acceptance() == before
    adaptive.propose([context], [2])
    context.text.append(0)  # type: ignore[attr-defined]
    adaptive.propose([context], [0])  # the second token of the draft was never compared
    assert adaptive.acceptance()[0] > before[0]
    assert adaptive._kind(0)._tried[:2] == [pytest.approx(0.95 + 1), 0.0]


@few(2)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=range(len(STRATEGIES)))
def test_the_text_stays_the_same(strategy: Any) -> None:
    for costs in (DEFAULT_COSTS, (1.0, 1.9, 2.8), (1.0, 1.0)):
        for texts in (None, CONSTRAINTS[2]):
            assert_equals_the_plain_loop(
                strategy,
                proposer=lambda known, c=costs: Chain(
                    (Adaptive(Prophet(known, 0.4, 6), c, probe_every=2), Adaptive(Suffix(), c))
                ),
                texts=texts,
            )


def test_copies_remember() -> None:
    adaptive = Adaptive(PromptLookup())
    context = Context([1, 2, 1, 2], [])
    adaptive.propose([context], [4])
    context.text.append(7)  # type: ignore[attr-defined]
    adaptive.propose([context], [0])
    copy = pickle.loads(pickle.dumps(adaptive))
    assert copy == adaptive and copy.acceptance(2) == adaptive.acceptance(2) != Adaptive(PromptLookup()).acceptance(2)
    assert each_proposer(Chain((Adaptive(GrammarDraft()), Suffix()))) == (GrammarDraft(), Suffix())


def test_measured_costs() -> None:
    model, draft = ToyLM(hashed_law(V), V), ToyLM(hashed_law(V), V)
    costs = measured_costs(model, 6, num_rows=2, num_read=3, num_times=2)
    assert len(costs) == 7 and all(0 < one <= other for one, other in itertools.pairwise(costs))
    assert {count for call in model.calls for count in call} == {3, 1, 2, 5, 7}
    with_draft = measured_costs(model, 6, draft=draft, num_read=0, num_times=1)
    assert draft.calls == [[1]] and with_draft[6] > with_draft[0]
    Adaptive(PromptLookup(), costs)


@pytest.mark.parametrize(
    "wrong",
    [{"proposer": 5}, {"proposer": Suffix}, {"costs": [1.0]}, {"costs": [1, -1]}, {"decay": 1.0}, {"probe_every": 0}],
)
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Adaptive(**{"proposer": PromptLookup(), **wrong})
