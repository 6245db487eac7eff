"""Verification by rejection: its law in closed form (E1), its noise, and what a text depends on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import decodekit as dk
from decodekit.constraints import Guarded, Regex, compile
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.errors import OptionError, ResourceLimitError, UselessOptionError
from decodekit.sampling.noise import Stream, host_keys, uniforms
from decodekit.speculation import Adaptive, Chain, Draft, DraftModel, PromptLookup, Suffix, SuffixCorpus, coupled_match
from decodekit.speculation.verification import is_accepted, residual
from decodekit.strategy import Greedy, Mirostat, Sample, Strategy, can_redraw, resolve_strategy
from tests.decoding.pairs import THRESHOLD, p_value
from tests.decoding.pairs import VOCABULARY as LETTERS
from tests.decoding.test_scheduler import EOS, VOCABULARY, V, settings_of
from tests.reference.generation import TableLM, TextsMatcher, ToyLM, hashed_law
from tests.sizes import few, sized
from tests.speculation.test_extraction import documents, schema_of
from tests.speculation.test_same_text import CONSTRAINTS, STRATEGIES, Texts, decode

# E1: the law of what comes out, in closed form

weights = st.lists(st.sampled_from([0.0, 0.0, 1e-9, 0.1, 0.3, 0.3, 1.0, 2.5]), min_size=6, max_size=6).filter(any)


def law_of(weights: Sequence[float]) -> Tensor:
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def emitted(p: Tensor, q: Tensor) -> Tensor:
    """What the rejection test gives: every token of the draft, kept or replaced; [V]."""
    kept = torch.where(q > 0, (p / q.clamp(min=1e-300)).clamp(max=1), 0)  # the odds that u q < p
    return q * kept + (q * (1 - kept)).sum() * residual(p[None], q[None])[0]


@settings(max_examples=300, deadline=None)
@given(weights, weights)
def test_the_law_in_closed_form(p_weights: list[float], q_weights: list[float]) -> None:
    """Zeros, ties, disjoint supports, equal laws."""
    p, q = law_of(p_weights), law_of(q_weights)
    assert float((emitted(p, q) - p).abs().max()) < 1e-12
    assert float((emitted(p, p) - p).abs().max()) < 1e-12
    for token in range(6):  # chosen and not drawn
        certain = torch.nn.functional.one_hot(torch.tensor(token), 6).double()
        assert float((emitted(p, certain) - p).abs().max()) < 1e-12


@given(weights)
def test_coupled_match_has_the_law_of_the_target(p_weights: list[float]) -> None:
    """For every draft, and every choice of the target with its probability: what comes out is that choice."""
    p = law_of(p_weights)
    for draft in range(6):
        law = torch.zeros(6, dtype=torch.float64)
        for choice in range(6):
            law[coupled_match([draft], [choice, 0])[0]] += p[choice]
        assert torch.equal(law, p)


def test_a_token_that_was_chosen_has_one_law_under_both_rules() -> None:
    """Kept with probability p(x), else p without x: for q = 1 the rejection test is coupled match."""
    p = law_of([0.1, 0.3, 2.5, 1.0, 0.0, 0.3])
    for token in range(6):
        certain = torch.nn.functional.one_hot(torch.tensor(token), 6).double()
        rest = residual(p[None], certain[None])[0]
        without = p * (1 - certain)
        assert torch.allclose(rest, without / without.sum(), atol=1e-15)


@pytest.mark.parametrize(("p", "q"), [(0.2, 0.5), (0.5, 0.2), (0.3, 0.3), (1.0, 1.0), (1e-3, 1.0)])
def test_odds_of_being_kept(p: float, q: float) -> None:
    """min(1, p / q), counted over 10,000 evenly spaced uniforms."""
    uniform = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    one = torch.ones_like(uniform)
    assert float(is_accepted(p * one, q * one, uniform).double().mean()) == pytest.approx(min(1, p / q), abs=1e-4)


def test_what_is_impossible_is_never_kept() -> None:
    tiny = torch.tensor([2.0**-53, 0.5], dtype=torch.float64)
    assert not is_accepted(torch.zeros(2, dtype=torch.float64), torch.tensor([1e-30, 1.0]), tiny).any()


def test_laws_that_are_equal_but_for_rounding() -> None:
    p = law_of([1.0, 2.0, 0.0, 3.0, 1.0, 1.0])
    assert torch.equal(residual(p[None], p[None])[0], p)
    assert torch.equal(residual(p[None], (p + 1e-17)[None])[0], p)


# Noise


def test_uniforms() -> None:
    """N = 20,000; the Kolmogorov-Smirnov figure falls below 1e-4 with odds of 1 in 10,000."""
    found = uniforms(range(20_000), [3] * 20_000, [7] * 20_000)
    assert found.min() > 0 and found.max() < 1 and found.dtype == np.float64
    assert stats.kstest(found, "uniform").pvalue > 1e-4
    assert uniforms([5], [0], [2])[0] == uniforms([4, 5], [0, 0], [2, 2])[1]


def test_no_two_streams_share_a_key() -> None:
    keys = [
        int(host_keys([seed], stream.of([sequence]), [position])[0])
        for seed in (0, 1, 2**62)
        for stream in Stream
        for sequence in (0, 1, 2, 1000)
        for position in range(20)
    ]
    assert len(set(keys)) == len(keys) == 3 * len(Stream) * 4 * 20
    assert Stream.TARGET.of([0, 5]) == [0, 5]


# The loop


def toy(salt: int, vocab_size: int = V) -> ToyLM:
    return ToyLM(hashed_law(vocab_size, salt=salt), vocab_size)


def run(strategy: Strategy, num_rows: int, draft: Any, texts: Sequence[bytes] | None = None, **options: Any) -> Texts:
    matcher = None if texts is None else TextsMatcher(texts, VOCABULARY)
    prompts = [[3, 1, 2], [0], [5, 5, 1, 4], [2, 7], [1], [6, 6]]
    requests = [Request(prompt, matcher, seed=index) for index, prompt in enumerate(prompts)]
    given = settings_of(strategy, 12, proposer=draft, verify="rejection", mirostat=strategy.mirostat, **options)
    return decode(toy(0), requests, given, num_rows)[0]


@few(5)
@pytest.mark.parametrize(
    "strategy", [*(one for one in STRATEGIES if not isinstance(one, Greedy)), Mirostat(tau=1.5, eta=0.4)], ids=repr
)
@pytest.mark.parametrize("texts", [None, CONSTRAINTS[2]], ids=["free", "constrained"])
def test_a_text_does_not_depend_on_its_neighbours(strategy: Strategy, texts: Any) -> None:
    def draft() -> Chain:
        return Chain((PromptLookup(min_ngram=2), DraftModel(toy(1), 4)))

    expected = run(strategy, 1, draft(), texts)
    assert run(strategy, 6, draft(), texts) == expected
    assert run(strategy, 3, draft(), texts) == expected


def test_texts_differ_from_coupled_ones_where_a_draft_is_drawn() -> None:
    strategy = Sample()
    plain = decode(toy(0), [Request([3, 1, 2], seed=seed) for seed in range(20)], settings_of(strategy), 4)[0]

    def texts(proposer: Any) -> Texts:
        requests = [Request([3, 1, 2], seed=seed) for seed in range(20)]
        return decode(toy(0), requests, settings_of(strategy, proposer=proposer, verify="rejection"), 4)[0]

    assert texts(Chain((PromptLookup(), Suffix()))) == plain  # chosen and not drawn: nothing to test
    assert texts(DraftModel(toy(1))) != plain


def test_stops_and_limits_cut_a_draft() -> None:
    """A text is the beginning of the text that knows no stop, up to its stop string; limits are kept."""
    requests = [Request([3, 1, 2], seed=seed) for seed in range(30)]
    for max_new_tokens in (1, 2, 3, 7):
        given = settings_of(Sample(), max_new_tokens, proposer=DraftModel(toy(1), 4), verify="rejection")
        for _, tokens, reason in decode(toy(0), requests, given, 7)[0].values():
            assert len(tokens) <= max_new_tokens
            assert (reason == "length") == (len(tokens) == max_new_tokens and tokens[-1] not in EOS)
            assert not EOS & {*tokens[:-1]}
    whole = decode(toy(0), requests, settings_of(Sample(), proposer=DraftModel(toy(1)), verify="rejection"), 7)[0]
    cut = settings_of(Sample(), stop=["ab", "a"], proposer=DraftModel(toy(1)), verify="rejection")
    num_stopped = 0
    for index, (text, tokens, _) in decode(toy(0), requests, cut, 7)[0].items():
        assert whole[index][1][: len(tokens)] == tokens
        is_stopped = "a" in whole[index][0]
        num_stopped += is_stopped
        assert text == whole[index][0].split("a")[0]
    assert num_stopped > 5


def acceptance(results: Sequence[Result]) -> float:
    offered = sum(result.stats.num_draft_tokens for result in results)
    return sum(sum(result.stats.acceptance_histogram) for result in results) / offered


@pytest.mark.slow
def test_the_share_that_is_kept_is_the_largest_there_is() -> None:
    """The first token of a draft is kept with the sum of min(p, q); N = 4,000, 4.5 standard errors."""
    size, num_samples = 8, 4000
    generator = torch.Generator().manual_seed(1)
    target, other = torch.randn(2, size, size, generator=generator) * 1.5
    share = float(torch.minimum(target[7].softmax(-1), other[7].softmax(-1)).sum())
    requests = [Request([7], seed=seed) for seed in range(num_samples)]
    kept = {}
    for verify in ("coupled", "rejection"):
        draft = DraftModel(TableLM(other), 1)
        given = Settings(LETTERS, Sample().pipeline, Sample().select, 2, proposer=draft, verify=verify)
        results = [update.result for update in decode_texts(TableLM(target), given, 500, requests) if update.result]
        kept[verify] = acceptance(results)
    error = (share * (1 - share) / num_samples) ** 0.5
    assert abs(kept["rejection"] - share) < 4.5 * error
    assert kept["coupled"] < share + 4.5 * error


def test_a_draft_model_that_is_the_target_is_always_right() -> None:
    for strategy in (Sample(), Sample(top_k=3), Sample(top_p=0.7, repetition_penalty=1.3)):
        given = settings_of(strategy, proposer=DraftModel(toy(0), 3), verify="rejection")
        _, results = decode(toy(0), [Request([1, seed % 8], seed=seed) for seed in range(10)], given, 4)
        assert acceptance(results) == 1.0
        assert all(result.stats.num_forwards <= -(-len(result.token_ids) // 3) for result in results)


@sized("num_samples", 1000, slow=4000)
def test_a_guard_leaves_the_exact_conditional_law(num_samples: int) -> None:
    """What the guard refuses is cleared and drawn again."""
    constraint = Guarded(Regex("[a-d]{2}"), lambda text: text not in ("ab", "cc", "dd", "da"))
    matcher = compile(constraint, LETTERS).matcher()
    strategy, size = Sample(), 8
    target, other = torch.randn(2, size, size, generator=torch.Generator().manual_seed(3))
    first = target[7, :4].double().softmax(-1)
    law = first[:, None] * target[:4, :4].double().softmax(-1)
    for text in ("ab", "cc", "dd", "da"):
        a, b = ("abcd".index(letter) for letter in text)
        law[a, b] = 0
    law = law / law.sum(dim=1, keepdim=True) * first[:, None]  # given the first token: it was taken before
    for draft in (DraftModel(TableLM(other), 2), DraftModel(TableLM(target), 1)):
        given = Settings(
            LETTERS,
            strategy.pipeline,
            strategy.select,
            3,
            can_redraw=can_redraw(strategy),
            proposer=draft,
            verify="rejection",
        )
        found = torch.zeros(4, 4, dtype=torch.float64)
        num_refusals = 0
        requests = (Request([7], matcher, seed=seed) for seed in range(num_samples))
        for update in decode_texts(TableLM(target), given, 500, requests):
            if update.result is not None:
                found[update.result.token_ids] += 1
                num_refusals += update.result.stats.num_guard_refusals
        assert num_refusals > 100
        assert p_value(found.numpy(), law.numpy()) > THRESHOLD


@sized("num_samples", 1000, slow=4000)
def test_a_text_that_goes_back_has_the_law_without_what_is_banned_there(num_samples: int) -> None:
    """No text with an "a" in front passes, so that the first token is drawn again among the others.

    The control tests the draft's token once more, which is known to be banned: what replaces it is no draw of the law.
    """
    matcher = compile(Guarded(Regex("[a-d]{2}"), lambda text: text[0] != "a"), LETTERS).matcher()
    strategy, size = Sample(), 8
    target, other = torch.randn(2, size, size, generator=torch.Generator().manual_seed(4))
    target[7, :4], other[7, :4] = torch.tensor([1.0, 0, 0, 0]), torch.tensor([1.0, 1, 0, -1])
    first = target[7, :4].double()
    first[0] = -torch.inf
    law = (first.softmax(-1)[:, None] * target[:4, :4].double().softmax(-1)).numpy()

    def p_of_texts() -> float:
        draft = DraftModel(TableLM(other), 2)
        given = Settings(
            LETTERS, strategy.pipeline, strategy.select, 3, can_redraw=True, proposer=draft, verify="rejection"
        )
        found, num_rollbacks = np.zeros((4, 4)), 0
        requests = (Request([7], matcher, seed=seed) for seed in range(num_samples))
        for update in decode_texts(TableLM(target), given, 500, requests):
            if update.result is not None:
                found[update.result.token_ids] += 1
                num_rollbacks += update.result.stats.num_rollbacks
        assert num_rollbacks > 100
        return p_value(found, law)

    assert p_of_texts() > THRESHOLD
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decodekit.decoding.draws.guesses.may_test", lambda sequence, settings: True)
        assert p_of_texts() < THRESHOLD


class Outgrown(TextsMatcher):
    """A constraint that outgrows its bounds where "b" comes second."""

    def accept(self, token: int) -> bool:
        if len(self.tokens) == 1 and token == 1:
            raise ResourceLimitError("too many states")
        return super().accept(token)

    def fork(self) -> TextsMatcher:
        return Outgrown(self.texts, self.vocabulary, self.tokens)


@pytest.mark.slow
@sized("num_samples", 500, slow=1500)
def test_a_constraint_that_fails_inside_a_draft_moves_no_law(num_samples: int) -> None:
    """The row fails as often as it would come there."""
    letters = [bytes((byte,)) for byte in b"abc"]
    matcher = Outgrown([x + y + z for x in letters for y in letters for z in letters], LETTERS)
    size = 8
    target, other = torch.randn(2, size, size, generator=torch.Generator().manual_seed(5)) * 1.5
    p = target[:, :3].double().softmax(-1).numpy()
    law = p[7][:, None, None] * p[:3, :, None] * p[None, :3, :]  # the failed texts, whose second token is "b", are one
    law[:, 1, 0], law[:, 1, 1:] = law[:, 1].sum(-1), 0
    for draft in (DraftModel(TableLM(other), 2), DraftModel(TableLM(target), 1)):
        given = Settings(LETTERS, Sample().pipeline, Sample().select, 3, proposer=draft, verify="rejection")
        found, num_accepted = np.zeros((3, 3, 3)), 0
        requests = (Request([7], matcher, seed=seed) for seed in range(num_samples))
        for update in decode_texts(TableLM(target), given, 500, requests):
            if update.result is not None:
                tokens = update.result.token_ids
                assert (len(tokens) == 1) == isinstance(update.result.error, ResourceLimitError)
                found[tokens if len(tokens) == 3 else (tokens[0], 1, 0)] += 1
                num_accepted += sum(update.result.stats.acceptance_histogram)
        assert num_accepted > num_samples / 6 and p_value(found, law) > THRESHOLD


def test_probabilities_of_another_shape() -> None:
    class Narrow:
        def propose(self, contexts: Sequence[Any], limits: Sequence[int]) -> list[Draft]:
            return [Draft([1][:limit], torch.ones(1, 3)) for limit in limits]

    given = settings_of(Sample(), 12, proposer=Narrow(), verify="rejection")
    updates = decode_texts(toy(0), given, 2, [Request([3, 1, 2]), Request([0])])
    errors = [update.result.error for update in updates if update.result is not None]
    assert [type(one) for one in errors] == [OptionError] * 2
    assert all("shape [1, 3], not [1, 16]" in str(one) for one in errors)


# Options


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Sample(verify="rejection"), UselessOptionError, "no effect without speculate"),
        (lambda: Mirostat(verify="rejection"), UselessOptionError, "no effect without speculate"),
        (lambda: Sample(verify="exact", speculate="suffix"), OptionError, '"coupled" or "rejection", got'),
        (
            lambda: Sample(verify="rejection", speculate=Adaptive(DraftModel("tiny-draft"))),
            OptionError,
            "Adaptive.* cannot be combined: where its drafts end depends on other rows",
        ),
        (
            lambda: Sample(verify="rejection", speculate=["suffix", DraftModel("tiny-draft")]),
            OptionError,
            r'(?s)cannot be combined.*Suffix\(\) for "suffix"',
        ),
        (
            lambda: Sample(verify="rejection", speculate=[Suffix(corpus=SuffixCorpus()), DraftModel("tiny-draft")]),
            OptionError,
            "Suffix.* cannot be combined",
        ),
        (
            lambda: resolve_strategy("greedy", {"verify": "rejection", "speculate": "suffix"}),
            UselessOptionError,
            "no effect with greedy",
        ),
    ],
)
def test_options_that_cannot_be(make: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_drafts_that_nobody_draws_may_end_where_they_like() -> None:
    """Nothing of them is tested, so that other rows may say how long they are."""
    for speculate in ("suffix", Adaptive(PromptLookup()), Suffix(corpus=SuffixCorpus())):
        assert Sample(verify="rejection", speculate=speculate).proposer is not None


@functools.cache
def llm() -> Any:
    return dk.LLM.load("tiny")


@pytest.mark.slow
def test_extraction_with_the_bundled_draft_model() -> None:
    given = {"constraint": schema_of("ticket"), "max_new_tokens": 120, "seed": [3, 4], "on_length": "return"}
    strategy = Sample(temperature=0.7, speculate=DraftModel("tiny-draft"), verify="rejection")
    together = llm().generate(documents("ticket"), strategy=strategy, **given)
    alone = llm().generate(documents("ticket"), strategy=strategy, batch_size=1, **given)
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.error is None and one.value is not None
        assert one.stats.num_forwards < 0.6 * len(one.token_ids)
