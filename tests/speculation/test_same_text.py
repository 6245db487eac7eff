"""Speed options never change the text: every draft, every proposer and forced tokens against the plain loop.

The controls at the end break one rule each; the same functions must notice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.constraints import Constraint, Guarded, Regex, compile
from decodekit.decoding.draws import row_draws as drawing
from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.lazy_masks.positions import Position
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.decoding.request.updates import Result
from decodekit.sampling import Pipeline, Watermark, apply_bitmask
from decodekit.speculation import Chain, Context, Draft, PromptLookup, Proposer
from decodekit.strategy import Greedy, Sample, Strategy, can_redraw
from tests.decoding.pairs import START, THRESHOLD, joint_law, p_value
from tests.decoding.pairs import TABLE as LAW_TABLE
from tests.decoding.pairs import VOCABULARY as LETTERS
from tests.decoding.test_scheduler import EOS, TOKENS, VOCABULARY, V, choose_by, settings_of
from tests.reference.generation import TableLM, TextsMatcher, ToyLM, hashed_law, reference_decode
from tests.sizes import few, thinned

Texts = dict[int, tuple[str, tuple[int, ...], str]]


@dataclass(frozen=True, eq=False)
class Prophet:
    """Knows the texts and errs now and then: drafts of all lengths that are right for a while.

    Args:
        texts: by prompt.
        error_rate: how often a token is another one.
        num_tokens: of a draft.
    """

    texts: dict[tuple[int, ...], Sequence[int]]
    error_rate: float
    num_tokens: int
    vocab_size: int = V

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [
            self._draft(context, min(limit, self.num_tokens)) for context, limit in zip(contexts, limits, strict=True)
        ]

    def _draft(self, context: Context, limit: int) -> Draft:
        known = self.texts.get(tuple(context.prompt), ())
        rng = np.random.default_rng([len(context.text), *context.prompt, *context.text])
        tokens = [*known[len(context.text) : len(context.text) + limit]]
        tokens += rng.integers(0, self.vocab_size, max(0, limit - len(tokens))).tolist()
        return Draft([int(rng.integers(self.vocab_size)) if rng.random() < self.error_rate else t for t in tokens])


def decode(model: ToyLM, requests: Sequence[Request], given: Settings, num_rows: int) -> tuple[Texts, list[Result]]:
    texts: dict[int, str] = {}
    results: dict[int, Result] = {}
    for update in decode_texts(model, given, num_rows, requests):
        texts[update.index] = texts.get(update.index, "") + update.text
        if update.result is not None:
            results[update.index] = update.result
    ordered = [results[index] for index in sorted(results)]
    return {i: (texts[i], r.token_ids, r.finish_reason) for i, r in results.items()}, ordered


def assert_equals_the_plain_loop(
    strategy: Strategy,
    *,
    proposer: Callable[[dict[tuple[int, ...], Sequence[int]]], Proposer | None] = lambda texts: None,
    prompts: Sequence[Sequence[int]] = ([3, 1, 2], [0], [5, 5, 1, 4], [2, 7]),
    texts: Sequence[bytes] | None = None,
    stop: Sequence[str] = (),
    max_new_tokens: int = 12,
    num_rows: int = 3,
    salt: int = 0,
    **options: Any,
) -> list[Result]:
    """Tokens, text and finish reason of every prompt are those of a loop that knows no drafts."""
    law = hashed_law(V, salt=salt)
    matcher = None if texts is None else TextsMatcher(texts, VOCABULARY)
    expected = [
        reference_decode(
            law,
            prompt,
            choose_by(strategy, index),
            TOKENS,
            eos_token_ids=EOS,
            stop=stop,
            max_new_tokens=max_new_tokens,
            matcher=None if matcher is None else matcher.fork(),
        )
        for index, prompt in enumerate(prompts)
    ]
    guesses = {tuple(prompt): tokens for prompt, (tokens, _, _) in zip(prompts, expected, strict=True)}
    requests = [Request(prompt, matcher, seed=index) for index, prompt in enumerate(prompts)]
    given = settings_of(strategy, max_new_tokens, stop, proposer=proposer(guesses), **options)
    done, results = decode(ToyLM(law, V), requests, given, num_rows)
    for index, (tokens, text, reason) in enumerate(expected):
        assert done[index] == (text, tuple(tokens), reason)
    for prompt, result in zip(prompts, results, strict=True):
        if given.num_alternatives is not None:
            assert [entry.token_id for entry in result.logprobs] == list(result.token_ids)
            for position, entry in enumerate(result.logprobs):
                row = law([*prompt, *result.token_ids[:position]]).log_softmax(-1)
                assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-5)
    return results


STRATEGIES = [
    Greedy(),
    Greedy(repetition_penalty=1.4),
    Sample(),
    Sample(temperature=0.7, top_k=5),
    Sample(top_p=0.8, min_p=0.05, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    Sample(logit_bias={0: -math.inf, 1: 2.0}),
    Sample(dry_multiplier=0.8, dry_allowed_length=1, xtc_probability=0.5, xtc_threshold=0.05, typical_p=0.9),
    Sample(no_repeat_ngram_size=3, dynamic_temperature=(0.5, 1.5), top_n_sigma=1.5, watermark=Watermark(2.0, 0.5, 7)),
    Sample(temperature=0.8, top_k=7, min_p=0.02, penalty_window=4, frequency_penalty=0.5, order="llamacpp"),
]
CONSTRAINTS = [None, [b"abcabc", b"abbb\nc"], [b"bca\n\n", b"bcabca", b"ca"], ["éaé".encode(), b"cab"], [b"aX", b"ab"]]


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    texts=st.sampled_from(CONSTRAINTS),
    stop=st.sampled_from([(), ("a",), ("ab", "bca\n"), ("é", "\n\n")]),
    num_tokens=st.sampled_from([1, 2, 4, 8, 16]),
    error_rate=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    max_new_tokens=st.integers(1, 12),
    num_rows=st.integers(1, 4),
    salt=st.integers(0, 5),
    fast_forward=st.sampled_from(["off", "exact"]),
    num_alternatives=st.sampled_from([None, None, 2]),
)
def test_any_draft(num_tokens: int, error_rate: float, **options: Any) -> None:
    """Drafts that are right, nearly right and wrong, of every length, with stops and limits inside of them."""
    assert_equals_the_plain_loop(proposer=lambda texts: Prophet(texts, error_rate, num_tokens), **options)


@few(3)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=range(len(STRATEGIES)))
def test_prompt_lookup_and_chains(strategy: Strategy) -> None:
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [4, 4, 4, 4], [0]]
    for proposer in (PromptLookup(), PromptLookup(max_ngram=1, num_tokens=4)):
        assert_equals_the_plain_loop(strategy, proposer=lambda _, p=proposer: p, prompts=prompts, max_new_tokens=24)
    assert_equals_the_plain_loop(
        strategy, proposer=lambda texts: Chain((PromptLookup(min_ngram=3), Prophet(texts, 0.3, 4))), prompts=prompts
    )


def test_good_drafts_save_forward_passes() -> None:
    """n tokens whose drafts of k are all right cost n / (k + 1) passes; the counts say so."""
    for k, num_forwards in ((1, 6), (2, 4), (3, 3), (5, 2), (11, 1)):
        results = assert_equals_the_plain_loop(Greedy(), proposer=lambda texts, k=k: Prophet(texts, 0.0, k), salt=3)
        whole = [result.stats for result in results if len(result.token_ids) == 12]
        assert whole
        for stats in whole:
            assert stats.num_forwards == num_forwards
            assert stats.draft_acceptance_rate == 1.0 and stats.num_drafts == num_forwards
            assert stats.mean_acceptance_length == pytest.approx(12 / num_forwards)
            assert sum(stats.acceptance_histogram) == stats.num_draft_tokens == 12 - num_forwards
            assert stats.num_generated_tokens == 12


def test_wrong_drafts_cost_no_more_passes() -> None:
    for result in assert_equals_the_plain_loop(Greedy(), proposer=lambda texts: Prophet({}, 0.0, 4), salt=3):
        assert result.stats.num_forwards <= len(result.token_ids)
        assert result.stats.draft_acceptance_rate is None or result.stats.draft_acceptance_rate < 0.5


def test_forced_tokens_cost_no_passes() -> None:
    """With them unseen (finite biases too), along as a draft (log-probabilities, bans), and off."""
    texts = [b"abc\nabc", b"cb\n\nab"]
    cost = {}
    for name, strategy, options in [
        ("off", Greedy(), {"fast_forward": "off"}),
        ("unseen", Greedy(), {}),
        ("measured", Greedy(), {"num_alternatives": 0}),
        ("penalized", Greedy(repetition_penalty=1.1), {}),
        ("banned", Greedy(bad_words=[[8]]), {}),  # a token that the constraint never allows
    ]:
        results = assert_equals_the_plain_loop(strategy, texts=texts, **options)
        cost[name] = sum(result.stats.num_forwards for result in results)
        forced = sum(result.stats.num_forced_tokens for result in results)
        assert (forced > 0) == (name != "off")
        assert all(result.stats.num_drafts == 0 for result in results)
    assert cost["unseen"] < cost["off"] and cost["penalized"] < cost["off"]
    assert max(cost["measured"], cost["banned"]) < cost["off"]


def test_a_text_that_is_all_forced_needs_no_model() -> None:
    matcher = compile(Regex("abc"), LETTERS).matcher()
    model = TableLM(LAW_TABLE)
    given = Settings(LETTERS, Greedy().pipeline, Greedy().select, 8)
    _, [result] = decode(model, [Request([START], matcher)], given, 1)
    assert (result.token_ids, result.finish_reason, model.calls) == ((0, 1, 2), "complete", [])
    assert result.stats.num_forwards == 0 and result.stats.ttft_s is not None
    given = Settings(LETTERS, Greedy().pipeline, Greedy().select, 2)
    assert decode(model, [Request([START], matcher)], given, 1)[0][0] == ("ab", (0, 1), "length")


def all_differ(text: str) -> bool:
    parts = text.split("d")
    return len(set(parts)) == len(parts)


GUARDED: list[tuple[Constraint, dict[str, Any]]] = [
    (Guarded(Regex("[abc]{2,4}(d[abc]{2,4}){1,3}"), all_differ), {}),
    (Guarded(Regex("[ab]{6}c"), lambda text: text.count("a") == 3), {}),
    (Regex("a(bc|d)*e"), {"must_close": True}),
]


@few(2)
@pytest.mark.parametrize("strategy", [Greedy(), Sample(temperature=1.5), Sample(temperature=1.5, top_k=4)])
@pytest.mark.parametrize("number", range(len(GUARDED)))
def test_guards_and_budgets(number: int, strategy: Strategy) -> None:
    """Refused tokens inside a draft, texts that go back, and texts that must close: as without drafts."""
    constraint, options = GUARDED[number]
    options = {"can_redraw": can_redraw(strategy), **options}
    matcher = compile(constraint, LETTERS).matcher()
    requests = [Request([index % 8, index // 8], matcher, seed=index) for index in range(12)]

    def run(num_rows: int, **more: Any) -> tuple[Texts, list[Result]]:
        chosen = Settings(LETTERS, strategy.pipeline, strategy.select, 16, **{**options, **more})
        return decode(ToyLM(hashed_law(8, salt=2), 8), requests, chosen, num_rows)

    expected, results = run(4, fast_forward="off")
    known = {tuple(request.prompt): expected[index][1] for index, request in enumerate(requests)}
    for error_rate in (0.0, 0.3):
        for num_rows, num_alternatives in ((1, None), (5, None), (4, 0)):
            proposer = Prophet(known, error_rate, 5, 8)
            done, with_drafts = run(num_rows, proposer=proposer, num_alternatives=num_alternatives)
            assert done == expected
            for one, other in zip(with_drafts, results, strict=True):
                assert one.stats.num_rollbacks == other.stats.num_rollbacks
                assert one.stats.num_guard_refusals == other.stats.num_guard_refusals
                assert type(one.error) is type(other.error)


def test_what_the_cache_holds() -> None:
    """After every step the cache holds exactly prompt and text but for what is pending."""
    law = hashed_law(V, salt=1)
    texts, _ = decode(ToyLM(law, V), [Request([1, 2])], settings_of(max_new_tokens=20), 1)

    class Watched(ToyLM):
        def forward(self, tokens: Any, num_tokens: Any, cache: Any, rows: Any = None, *, logits: Any = "last") -> Any:
            held = cache.tokens[0]
            assert held == [1, 2, *texts[0][1]][: len(held)]
            return super().forward(tokens, num_tokens, cache, rows, logits=logits)

    given = settings_of(max_new_tokens=20, proposer=Prophet({(1, 2): texts[0][1]}, 0.4, 6))
    model = Watched(law, V)
    assert decode(model, [Request([1, 2])], given, 1)[0] == texts
    assert len(model.calls) < len(texts[0][1])


# The law of sampled texts, with forced tokens and drafts

SOME_FORCED = ["cb", "gd", "ga", "ge", "eb"]  # after "c" and "e" only one token may come


def counts(strategy: Strategy, num_samples: int, **options: Any) -> np.ndarray:
    grammar = compile(Regex("|".join(SOME_FORCED)), LETTERS)
    given = Settings(LETTERS, strategy.pipeline, strategy.select, max_new_tokens=2, **options)
    requests = (Request([START], grammar.matcher(), seed=i) for i in range(num_samples))
    found = np.zeros((8, 8))
    for update in decode_texts(TableLM(LAW_TABLE), given, 1000, requests):
        if update.result is not None:
            found[update.result.token_ids] += 1
    return found


LAWS = [Sample(), Sample(temperature=1.2, top_k=2), Sample(logit_bias={5: -math.inf})]  # a ban: forced ones as a draft
SPEEDS: list[dict[str, Any]] = [{"fast_forward": "off"}, {}, {"proposer": Prophet({}, 0.0, 1, 8)}]


@few(1)
@thinned("strategy", LAWS, keep=LAWS[1:])
@pytest.mark.parametrize("options", SPEEDS, ids=["plain", "forced", "drafts"])
def test_pairs_follow_the_exact_law(strategy: Sample, options: dict[str, Any]) -> None:
    """N = 4,000; odds of 1 in 10,000 per case to fail by chance."""
    assert p_value(counts(strategy, 4000, **options), joint_law(strategy, SOME_FORCED)) > THRESHOLD


# Negative controls: one rule broken, the functions above must notice


def blind_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    own = TokenTable.history
    monkeypatch.setattr(
        TokenTable, "history", lambda self, rows, drafts, device: own(self, rows, [()] * len(drafts), device)
    )
    strategy = Sample(repetition_penalty=2.0, frequency_penalty=1.0)
    for salt in range(4):
        assert_equals_the_plain_loop(strategy, proposer=lambda texts: Prophet(texts, 0.0, 4), salt=salt)


def one_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of the first position for the whole draft."""

    def keys(positions: Sequence[Position]) -> NoiseKeys:
        requests = [position.sequence.request for position in positions]
        firsts = [len(position.sequence.token_ids) for position in positions]
        return NoiseKeys([one.seed for one in requests], [one.sequence for one in requests], firsts)

    monkeypatch.setattr(drawing, "noise_keys", keys)
    for salt in range(4):
        assert_equals_the_plain_loop(Sample(), proposer=lambda texts: Prophet(texts, 0.0, 4), salt=salt)


def late_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constraint after top-k: nothing may be left, or another law."""
    own = Pipeline.narrow

    def narrow(self: Pipeline, logits: Any, history: Any = None, mask: Any = None) -> Any:
        rows = own(self, logits, history, None)
        rows = rows if isinstance(rows, torch.Tensor) else rows.dense()
        return rows if mask is None else apply_bitmask(rows, mask)

    monkeypatch.setattr(Pipeline, "narrow", narrow)
    for salt in range(4):
        assert_equals_the_plain_loop(
            Sample(top_k=3), texts=CONSTRAINTS[2], proposer=lambda texts: Prophet(texts, 0.0, 4), salt=salt
        )


def unmasked_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask of the first position along the whole draft."""
    own = drawing.Outputs.choose

    def choose(self: drawing.Outputs) -> Any:
        if self.bitmask is None:
            return own(self)
        positions = self.positions
        firsts = [max(j for j in range(i + 1) if not positions[j].draft) for i in range(len(positions))]
        return own(replace(self, bitmask=self.bitmask[firsts]))

    monkeypatch.setattr(drawing.Outputs, "choose", choose)
    for salt in range(4):
        assert_equals_the_plain_loop(
            Greedy(), texts=CONSTRAINTS[2], proposer=lambda texts: Prophet(texts, 0.0, 4), salt=salt
        )


def kept_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected drafts stay in the cache."""
    monkeypatch.setattr("decodekit.decoding.loop.decoder.CacheRows.cut", lambda rows: None)
    assert_equals_the_plain_loop(Greedy(), proposer=lambda texts: Prophet(texts, 0.5, 4))


@pytest.mark.parametrize("control", [blind_penalties, one_noise, late_mask, unmasked_bonus, kept_cache])
def test_a_broken_rule_is_noticed(
    control: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        control(monkeypatch)


def test_noise_that_is_used_twice_has_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """E11: the χ² test rejects it, too."""
    monkeypatch.setattr(
        drawing,
        "noise_keys",
        lambda places: NoiseKeys(
            [place.sequence.request.seed for place in places], [0] * len(places), [0] * len(places)
        ),
    )
    assert p_value(counts(Sample(), 4000, fast_forward="off"), joint_law(Sample(), SOME_FORCED)) < THRESHOLD
