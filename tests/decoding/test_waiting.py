"""Rows that wait for their constraint: the texts are those of rows that never wait, and the other rows go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from decodekit.constraints import Constraint, Guarded, Regex, compile, work_budget
from decodekit.constraints.engine import automaton
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.decoding.lazy_masks import deferral as waiting
from decodekit.decoding.loop import host_pass
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request, TextRow
from decodekit.decoding.request.updates import Result, Update
from decodekit.speculation import GrammarDraft, PromptLookup, Proposer
from decodekit.strategy import Greedy, Sample, Strategy
from tests.decoding.test_asking import even_letters, texts_of
from tests.decoding.test_scheduler import VOCABULARY, V, settings_of
from tests.reference.generation import ToyLM, hashed_law
from tests.sizes import few

CASES: list[tuple[Strategy, Constraint, Proposer | None]] = [
    (Greedy(), Regex(r"[abc]{2,9}"), None),
    (Sample(temperature=0.9, top_p=0.7), Regex(r"(ab|ba)*c\n?"), None),
    (Sample(top_k=3), Regex(r"a(b|c+)é?[a-c]*"), PromptLookup(max_ngram=2, num_tokens=4)),
    (Greedy(), Regex(r"(?!.*aa)[ab]{0,8}"), GrammarDraft()),
    (Sample(typical_p=0.7), Guarded(Regex(r"[abc]{1,6}"), even_letters), None),
]
prepare = GrammarMatcher.prepare


def hesitating(counts: Counter[str], most: int) -> object:
    """`prepare` that is not done before it was asked a few times about the same place."""
    asked: Counter[tuple[object, ...]] = Counter()

    def hesitate(self: GrammarMatcher, num_things: int, token: int | None = None) -> bool:
        place = id(self), tuple(self._tokens), token
        asked[place] += 1
        if asked[place] <= hash((self.num_tokens, -1 if token is None else token)) % (most + 1):
            counts["waits"] += 1
            return False
        return prepare(self, num_things, token)

    return hesitate


def outcome(results: list[Result]) -> list[tuple[object, ...]]:
    return [(one.token_ids, one.finish_reason, one.logprobs) for one in results]


@pytest.mark.parametrize("masks", ["asked", "always"])
@pytest.mark.parametrize(("strategy", "constraint", "proposer"), CASES)
def test_texts_are_those_of_rows_that_never_wait(
    strategy: Strategy, constraint: Constraint, proposer: Proposer | None, masks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outcome(texts_of(strategy, constraint, masks, proposer=proposer))
    counts: Counter[str] = Counter()
    monkeypatch.setattr(GrammarMatcher, "prepare", hesitating(counts, 3))
    assert outcome(texts_of(strategy, constraint, masks, proposer=proposer)) == expected
    assert counts["waits"] > 5


def short_or_even(text: str) -> bool | str:
    return text.count("a") % 3 != 1 or "a letter is alone"


GUARDED: list[tuple[Strategy, Constraint, Proposer | None]] = [
    (Greedy(), Guarded(Regex(r"[abc]{1,6}"), even_letters), PromptLookup(max_ngram=2, num_tokens=4)),
    (Sample(), Guarded(Regex(r"[abc]{2,6}(c|b?)"), short_or_even), PromptLookup(max_ngram=1, num_tokens=3)),
    (Sample(temperature=1.4), Guarded(Regex(r"(a|bc|cab){1,4}"), short_or_even), GrammarDraft()),
    (Greedy(), Guarded(Regex(r"[abc]{0,5}"), short_or_even), None),
]


@few(8)
@pytest.mark.parametrize("masks", ["asked", "always"])
@pytest.mark.parametrize("salt", range(3))
@pytest.mark.parametrize(("strategy", "constraint", "proposer"), [*CASES, *GUARDED])
def test_a_row_of_an_engine_waits_wherever_it_asks(
    strategy: Strategy,
    constraint: Constraint,
    proposer: Proposer | None,
    salt: int,
    masks: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also before it takes a token, and where another token is drawn in place of one that the guard refuses."""
    expected = outcome(texts_of(strategy, constraint, masks, proposer=proposer, salt=salt))
    counts: Counter[str] = Counter()

    def held(*arguments: Any) -> None:
        counts["held"] += 1
        waiting.hold(*arguments)

    monkeypatch.setattr(TextRow, "is_served", property(lambda row: row.matcher is not None))
    monkeypatch.setattr(host_pass, "hold", held)
    monkeypatch.setattr(GrammarMatcher, "prepare", hesitating(counts, 3))
    assert outcome(texts_of(strategy, constraint, masks, proposer=proposer, salt=salt)) == expected
    assert counts["waits"] > 5
    num_refusals = sum(one.stats.num_guard_refusals for one in texts_of(strategy, constraint, masks, salt=salt))
    assert counts["held"] > 0 or num_refusals < 4  # after some of them the text goes back, or nothing is left to draw


def test_negative_control_logits_of_another_time_change_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outcome(texts_of(Sample(), Regex(r"[abc]{2,9}"), "asked"))
    held = waiting.Held
    monkeypatch.setattr(GrammarMatcher, "prepare", hesitating(Counter(), 3))
    monkeypatch.setattr(waiting, "Held", lambda guess, logits: held(guess, torch.flip(logits, [-1])))
    assert outcome(texts_of(Sample(), Regex(r"[abc]{2,9}"), "asked")) != expected


def test_a_batch_of_one_row_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(GrammarMatcher, "prepare", hesitating(counts, 3))
    texts_of(Greedy(), Regex(r"[abc]{2,9}"), "asked", num_rows=1)
    assert not counts


def decoded(constraints: list[Constraint], masks: str = "asked") -> Iterator[Update]:
    model = ToyLM(hashed_law(V), V)
    requests = [
        Request((index, 3), compile(rule, VOCABULARY).matcher(), seed=index) for index, rule in enumerate(constraints)
    ]
    return iter(decode_texts(model, settings_of(Greedy(), masks=masks), len(requests), requests))


@pytest.mark.parametrize("masks", ["asked", "always"])
def test_the_other_rows_go_on(masks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late, others = Regex(r"[abc]{6,7}"), Regex(r"[abc]{6}")
    slow = compile(late, VOCABULARY)
    calls: Counter[bool] = Counter()

    def wait_long(self: GrammarMatcher, num_things: int, token: int | None = None) -> bool:
        is_late = self.recogniser is slow.matcher().recogniser and self.num_tokens == 2
        calls[is_late] += 1
        return not (is_late and calls[True] < 40) and prepare(self, num_things, token)

    rules: list[Constraint] = [late, others, others]
    alone = {update.index: update.result for update in decoded(rules, masks) if update.result is not None}
    monkeypatch.setattr(GrammarMatcher, "prepare", wait_long)
    order = [(update.index, update.result) for update in decoded(rules, masks) if update.result is not None]
    assert [index for index, _ in order][-1] == 0  # the one that waited
    assert calls[True] >= 40
    for index, result in order:
        assert result.token_ids == alone[index].token_ids
        assert result.stats.num_forwards == alone[index].stats.num_forwards  # nothing was read twice


def test_slices_of_one_thing_give_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new is new in both runs: each begins without states."""
    rule = Regex(r"[a-c]*(ab|bc){2,4}(?!aa)[^b]+c")

    def texts() -> list[tuple[object, ...]]:
        compile(rule, VOCABULARY).release()
        automaton.begin_epoch()
        return outcome(texts_of(Sample(), rule, "always"))

    expected = texts()
    num_slices = 0
    finished = work_budget.finished

    def counted(*arguments: object) -> bool:
        nonlocal num_slices
        is_finished = finished(*arguments)  # type: ignore[arg-type]
        num_slices += not is_finished
        return is_finished

    monkeypatch.setattr("decodekit.constraints.work_budget.SLICE", 1)
    monkeypatch.setattr("decodekit.constraints.work_budget.PATIENCE", 3)
    monkeypatch.setattr("decodekit.constraints.matching.matcher.finished", counted)
    monkeypatch.setattr("decodekit.constraints.engine.token_masks.finished", counted)
    assert texts() == expected
    assert num_slices > 20
