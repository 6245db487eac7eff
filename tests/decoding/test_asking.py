"""Asking: the same texts as with masks, from fewer masks.

The tests of the loop, of drafts, guards and closing in time run with questions, beside slow loops that know none. Here
the two ways are compared with each other, what they cost is counted, and what makes them equal is broken.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit.constraints import Constraint, Guarded, Regex, compile
from decodekit.decoding.lazy_masks import probes as asking
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.sampling import Epsilon, Eta, MinP, Temperature, TopA, TopK, TopP, Watermark
from decodekit.sampling.certificates import Scores
from decodekit.sampling.fast import large_vocabulary
from decodekit.speculation import GrammarDraft, PromptLookup, Proposer
from decodekit.strategy import Greedy, Mirostat, Sample, Strategy, can_redraw
from decodekit.vocabulary import Vocabulary
from tests.decoding.test_scheduler import TOKENS, VOCABULARY, V, settings_of
from tests.reference.generation import Law, ToyLM, hashed_law
from tests.sizes import few
from tests.speculation.test_same_text import Prophet

CERTIFIED: list[Strategy] = [
    Greedy(),
    Greedy(repetition_penalty=1.4),
    Sample(),
    Sample(temperature=0.7, top_k=4),
    Sample(top_p=0.6),
    Sample(temperature=1.5, top_k=5, top_p=0.8, min_p=0.1),
    Sample(epsilon_cutoff=0.1),
    Sample(eta_cutoff=0.2, top_a=0.3),
    Sample(temperature=0.8, watermark=Watermark(2.0, 0.5, 7), min_p=0.2),
    Sample(logit_bias={0: -math.inf, 1: 2.0}, top_k=3),
    Sample(top_p=0.7, temperature=0.6, order="mlx"),
]
OTHERS: list[Strategy] = [
    Sample(typical_p=0.7),
    Sample(top_n_sigma=1.0),
    Sample(xtc_probability=0.5, xtc_threshold=0.05),
    Sample(dynamic_temperature=(0.5, 1.5)),
    Mirostat(),
]


def even_letters(text: str) -> bool | str:
    return len(text) % 2 == 0 or f"{len(text)} letters are odd"


CONSTRAINTS: list[Constraint] = [
    Regex(r"[abc]{2,9}"),
    Regex(r"(ab|ba)*c\n?"),
    Regex(r"a(b|c+)é?[a-c]*"),
    Regex(r"(?!.*aa)[ab]{0,8}"),
    Guarded(Regex(r"[abc]{1,6}"), even_letters),
]


PROPOSERS = [None, PromptLookup(max_ngram=2, num_tokens=4), Prophet({}, 0.5, 3), GrammarDraft()]


SPACE = large_vocabulary.WIDE // V
WIDE_TOKENS: list[bytes | None] = [None] * large_vocabulary.WIDE
WIDE_TOKENS[::SPACE] = TOKENS
WIDE_VOCABULARY = Vocabulary(WIDE_TOKENS, {SPACE * token for token in VOCABULARY.eos_token_ids})


def spread_law(salt: int = 0, law: Law | None = None) -> Law:
    """The law of the small vocabulary, for that where each of its tokens stands in a block of its own."""
    law = law or hashed_law(V, salt=salt)

    def spread(prefix: Sequence[int]) -> Tensor:
        row = torch.full((large_vocabulary.WIDE,), -30.0)
        row[::SPACE] = law([token // SPACE for token in prefix])
        return row

    return spread


def texts_of(
    strategy: Strategy,
    constraint: Constraint,
    masks: str,
    *,
    salt: int = 0,
    num_rows: int = 3,
    proposer: Proposer | None = None,
    num_prompts: int = 6,
    is_wide: bool = False,
    **options: Any,
) -> list[Result]:
    grammar = compile(constraint, WIDE_VOCABULARY if is_wide else VOCABULARY)
    model = ToyLM(spread_law(salt), large_vocabulary.WIDE) if is_wide else ToyLM(hashed_law(V, salt=salt), V)
    space = SPACE if is_wide else 1
    requests = [
        Request((index % V * space, 3 * space), grammar.matcher(), seed=salt + index) for index in range(num_prompts)
    ]
    own = {"mirostat": strategy.mirostat, "can_redraw": can_redraw(strategy), "proposer": proposer}
    given: Settings = settings_of(strategy, masks=masks, **own, **options)
    if is_wide:
        given = replace(given, vocabulary=WIDE_VOCABULARY)
    updates = decode_texts(model, given, num_rows, requests)
    found = {update.index: update.result for update in updates if update.result is not None}
    return [found[index] for index in range(num_prompts)]


def differences(asked: Sequence[Result], masked: Sequence[Result]) -> list[int]:
    return [
        number
        for number, (one, other) in enumerate(zip(asked, masked, strict=True))
        if (one.token_ids, one.finish_reason, str(one.error))
        != (other.token_ids, other.finish_reason, str(other.error))
    ]


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from([*CERTIFIED, *OTHERS]),
    constraint=st.sampled_from(CONSTRAINTS),
    proposer=st.sampled_from(PROPOSERS),
    num_rows=st.integers(1, 5),
    salt=st.integers(0, 1000),
    fast_forward=st.sampled_from(["off", "exact"]),
    stop=st.sampled_from([(), ("ca",)]),
    must_close=st.booleans(),
    num_alternatives=st.sampled_from([None, None, 0]),
    is_wide=st.sampled_from([False, False, False, True]),
)
def test_the_same_texts_as_with_masks(strategy: Strategy, constraint: Constraint, **options: Any) -> None:
    asked = texts_of(strategy, constraint, "asked", **options)
    masked = texts_of(strategy, constraint, "always", **options)
    assert not differences(asked, masked)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_texts_as_with_masks_at_length() -> None:
    """Two hundred combinations, 100,000 texts."""
    rng, num_texts = random.Random(5), 0
    for salt in range(200):
        options: dict[str, Any] = {
            "salt": salt,
            "num_rows": rng.randint(1, 8),
            "proposer": rng.choice(
                [None, PromptLookup(max_ngram=2, num_tokens=4), Prophet({}, 0.5, 3), GrammarDraft()]
            ),
            "fast_forward": rng.choice(["off", "exact"]),
            "must_close": rng.random() < 0.3,
            "num_alternatives": rng.choice([None, None, 0]),
            "num_prompts": 500,
            "is_wide": salt % 8 == 7,
        }
        strategy, constraint = rng.choice(CERTIFIED), rng.choice(CONSTRAINTS)
        asked, masked = (texts_of(strategy, constraint, masks, **options) for masks in ("asked", "always"))
        assert not differences(asked, masked), (strategy, constraint, options)
        num_texts += len(asked)
    assert num_texts == 100_000


def shares(strategy: Strategy, **options: Any) -> tuple[int, int, int]:
    """Tokens, masks and questions of some texts."""
    stats = [
        one.stats for salt in range(20) for one in texts_of(strategy, CONSTRAINTS[0], "asked", salt=salt, **options)
    ]
    return (
        sum(one.num_generated_tokens for one in stats),
        sum(one.num_masks for one in stats),
        sum(one.num_questions for one in stats),
    )


@few(1)
@pytest.mark.parametrize("strategy", CERTIFIED, ids=repr)
def test_tokens_are_taken_without_masks(strategy: Strategy) -> None:
    num_tokens, num_masks, num_questions = shares(strategy, fast_forward="off")
    assert num_masks < num_tokens  # of a model that knows nothing of the constraint
    assert 0 < num_questions <= asking.MAX_QUESTIONS * num_tokens


@few(2)
@pytest.mark.parametrize("strategy", OTHERS, ids=repr)
def test_what_has_no_certificate_asks_nothing(strategy: Strategy) -> None:
    num_tokens, num_masks, num_questions = shares(strategy, fast_forward="off")
    assert num_questions == 0 and num_masks == num_tokens


def test_the_mass_of_the_masks_is_recorded_where_all_are_made() -> None:
    asked, masked = (
        texts_of(Greedy(), CONSTRAINTS[0], masks, fast_forward="off", num_alternatives=0)
        for masks in ("asked", "always")
    )
    assert not differences(asked, masked)
    for one, other in zip(asked, masked, strict=True):
        assert [entry.logprob for entry in one.logprobs] == [entry.logprob for entry in other.logprobs]
        assert one.stats.log_z is None and other.stats.log_z is not None
        assert other.stats.num_masks == other.stats.num_generated_tokens and other.stats.num_questions == 0
        assert one.stats.num_masks < other.stats.num_masks


def decoded(law: Any, given: Settings, constraint: Constraint) -> Result:
    """The text of one prompt."""
    request = Request((3,), compile(constraint, VOCABULARY).matcher())
    [result] = [one.result for one in decode_texts(ToyLM(law, V), given, 1, [request]) if one.result]
    return result


def text_of(result: Result) -> bytes:
    return b"".join(TOKENS[token] or b"" for token in result.token_ids)


class Knowing:
    """A law that likes the letters of a text, one after the other."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __call__(self, prefix: Sequence[int]) -> Any:
        row = hashed_law(V)(prefix)
        place = len(prefix) - 1
        wanted = self.text[place : place + 1]
        row[TOKENS.index(wanted) if wanted else max(VOCABULARY.eos_token_ids)] = 30.0
        return row


@pytest.mark.parametrize("strategy", CERTIFIED[:9], ids=repr)
def test_a_model_that_knows_its_text_needs_no_mask(strategy: Strategy) -> None:
    result = decoded(Knowing(b"abcabc"), settings_of(strategy, fast_forward="off"), Regex("[abc]{3,9}"))
    assert text_of(result) == b"abcabc"
    assert (result.stats.num_masks, result.stats.num_questions) == (0, 7)


def test_a_row_whose_questions_settle_nothing_is_left_alone() -> None:
    """The model insists on a letter that may not come: questions at steps 1, 3, 7, 15, ..., three each."""

    def insisting(prefix: Sequence[int]) -> Any:
        row = hashed_law(V)(prefix)
        for number, token in enumerate(TOKENS):
            if token not in (b"a", b"b"):
                row[number] = 20.0 + number
        return row

    result = decoded(insisting, settings_of(Greedy(), 80, fast_forward="off"), Regex("[ab]{120}"))
    assert len(text_of(result)) == 120 and result.stats.num_masks == len(result.token_ids) == 60
    assert result.stats.num_questions == asking.MAX_QUESTIONS * len([1, 3, 7, 15, 31])


BROKEN: list[tuple[Strategy, Any, str]] = [
    (Sample(top_k=2), TopK, "keeps"),
    (Sample(top_p=0.5), TopP, "keeps"),
    (Sample(min_p=0.5), MinP, "keeps"),
    (Sample(epsilon_cutoff=0.3), Epsilon, "keeps"),
    (Sample(eta_cutoff=0.4), Eta, "keeps"),
    (Sample(top_a=0.9), TopA, "keeps"),
]


@pytest.mark.parametrize(("strategy", "kind", "name"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_without_its_line_of_the_table_texts_differ(
    monkeypatch: pytest.MonkeyPatch, strategy: Strategy, kind: type, name: str
) -> None:
    monkeypatch.setattr(kind, name, lambda self, standing: np.ones(len(standing.tokens), np.bool_))
    assert any(_differs(strategy, salt) for salt in range(60))


def _differs(strategy: Strategy, salt: int, constraint: Constraint = CONSTRAINTS[0], **options: Any) -> bool:
    found = [texts_of(strategy, constraint, masks, salt=salt, **options) for masks in ("asked", "always")]
    return bool(differences(*found))


def test_a_leader_of_what_a_truncation_leaves_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the two likeliest tokens one leads; a mask that forbids the other one lets a third token in."""

    def leaders(self: Any, logits: Any, history: Any, lead: Any) -> Any:
        return lead(Scores(self(logits, history)), None)

    assert not any(_differs(Sample(temperature=3.0, top_k=2), salt) for salt in range(20))
    monkeypatch.setattr("decodekit.sampling.pipeline.Pipeline.leaders", leaders)
    assert any(_differs(Sample(temperature=3.0, top_k=2), salt) for salt in range(60))


def test_a_temperature_that_looks_around_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Sample(dynamic_temperature=(0.2, 3.0))
    kind = type(next(one for one in strategy.pipeline if not isinstance(one, Temperature)))
    monkeypatch.setattr(kind, "is_tokenwise", True)
    assert any(_differs(strategy, salt) for salt in range(60))


def test_a_token_that_a_guard_refused_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a guard refuses may take more back than a token: the mask's way decides, not the next question."""
    guarded = CONSTRAINTS[-1]
    assert not any(_differs(Sample(temperature=2.0), salt, guarded) for salt in range(10))
    counted = [one for salt in range(4) for one in texts_of(Sample(temperature=2.0), guarded, "asked", salt=salt)]
    assert sum(one.stats.num_guard_refusals for one in counted) > 0


def test_along_a_draft_nothing_is_asked_behind_a_token_that_differs() -> None:
    """A draft of three that is wrong at once: one position is looked at, whatever stands behind it."""
    wrong = Prophet({(3,): [TOKENS.index(b"c")] * 12}, 0.0, 3)
    given = replace(settings_of(Greedy(), fast_forward="off"), proposer=wrong)
    result = decoded(Knowing(b"abcabc"), given, Regex("[abc]{3,9}"))
    assert text_of(result) == b"abcabc" and result.stats.num_masks == 0
    assert result.stats.num_questions == 7


CLOSING: list[Strategy] = [
    Sample(temperature=2.0, top_k=3),
    Sample(top_p=0.7),
    Sample(temperature=2.5, min_p=0.3),
    Sample(temperature=1.5, top_k=5, top_p=0.8, min_p=0.1),
]


@few(1)
@pytest.mark.parametrize("strategy", CLOSING, ids=repr)
@pytest.mark.parametrize("is_wide", [False, True])
def test_closing_in_time_asks_beside_a_truncation(strategy: Strategy, is_wide: bool) -> None:
    num_masks = [0, 0]
    for budget in (4, 6, 10):
        options: dict[str, Any] = {"must_close": True, "max_new_tokens": budget, "salt": budget, "is_wide": is_wide}
        for constraint in (CONSTRAINTS[0], CONSTRAINTS[2], CONSTRAINTS[4], Regex("a{1,9}b{3}|[bc]{2}")):
            asked, masked = (texts_of(strategy, constraint, masks, **options) for masks in ("asked", "always"))
            assert not differences(asked, masked)
            for way, found in enumerate((asked, masked)):
                num_masks[way] += sum(one.stats.num_masks for one in found)
    assert num_masks[0] < 0.9 * num_masks[1]


def test_what_a_leader_relies_on_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """a is the likeliest, and nothing below 0.3 times a need be looked at; but after a four tokens would be missing."""

    def law(prefix: Sequence[int]) -> Tensor:
        return torch.tensor([4.0, 3.3, 2.5, *[-9.0] * (V - 3)])

    def texts(masks: str) -> list[tuple[int, ...]]:
        strategy, grammar = Sample(min_p=0.3), compile(Regex("ab{4}|[bc]{2}"), WIDE_VOCABULARY)
        given = settings_of(strategy, 2, must_close=True, masks=masks)
        requests = [Request((3 * SPACE,), grammar.matcher(), seed=seed) for seed in range(40)]
        model = ToyLM(spread_law(law=law), large_vocabulary.WIDE)
        updates = decode_texts(model, replace(given, vocabulary=WIDE_VOCABULARY), 4, requests)
        found = {update.index: update.result for update in updates if update.result is not None}
        return [found[index].token_ids for index in range(40)]

    assert texts("asked") == texts("always")
    monkeypatch.setattr(asking, "_may_be_given", lambda *given: True)
    assert texts("asked") != texts("always")
