"""Particles beside their slow twin, and beside laws that are enumerated.

The seeds are fixed, so a run gives the same figure every time. Under the right law a χ² figure below 1e-4 would have
been drawn with odds of 1 in 10,000 per case, and a mean five standard errors away with odds of 1 in 1,700,000.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from scipy.stats import chisquare

import decodekit as dk
from decodekit.constraints import Choices, Guarded, compile
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.prompt import encode
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.decoding.search.weighted_draws import ancestors, effective_sample_size, log_mean, rejection_draw, settled
from decodekit.errors import (
    ConstraintError,
    DeadEndError,
    LengthError,
    NonFiniteLogitsError,
    OptionError,
    UselessOptionError,
)
from decodekit.llm import LLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.strategy import Particles, Sample, resolve_strategy
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.generation import TableLM, TextsMatcher, ToyLM, hashed_law
from tests.reference.particles import legal_texts, log, orders, population, rejection
from tests.reference.sampling import gumbel, repetition_penalty, softmax, temperature, top_k
from tests.sizes import few, sized

THRESHOLD = 1e-4
SPELLINGS: list[bytes | None] = [*(bytes([c]) for c in b"abcd"), b"ab", b"cda", b"dd", None]
V, EOS = len(SPELLINGS), frozenset({7})
VOCABULARY = Vocabulary(SPELLINGS, EOS)
TEXTS = [b"abcd", b"abdd", b"cda", b"cdaab", b"dda", b"b", b"bcab"]


def settings_of(strategy: Particles, vocabulary: Vocabulary = VOCABULARY, **kw: Any) -> Settings:
    return Settings(vocabulary, strategy.pipeline, strategy.select, **{"max_new_tokens": 9, **kw})


def run(
    model: Any, strategy: Particles, requests: Sequence[Any], num_prompts: int = 3, **kw: Any
) -> list[tuple[Result, dict[str, float]]]:
    """The result of each request, and the share of each of its texts, in the order of the answers."""
    done: dict[int, tuple[Result, dict[str, float]]] = {}
    for update in strategy.decode(model, settings_of(strategy, **kw), num_prompts, requests):
        assert update.result is not None and update.index not in done
        every = [update, *update.result.others]
        found = {one.text: one.result.score for one in every if one.result is not None and one.result.score is not None}
        assert len(found) == len(every) or update.result.score is None
        done[update.index] = update.result, found
    return [done[index] for index in range(len(requests))]


# Weights and who is drawn anew


def test_sizes_and_means_by_hand() -> None:
    assert effective_sample_size([0.0] * 4) == 4
    assert effective_sample_size([math.log(3), math.log(1), -math.inf]) == pytest.approx(16 / 10)
    assert effective_sample_size([-math.inf, -2000.0]) == 1
    assert effective_sample_size([-math.inf] * 3) == 0
    assert log_mean([math.log(3), math.log(1), -math.inf, -math.inf]) == pytest.approx(0)
    assert log_mean([-math.inf] * 2) == -math.inf


weight_lists = st.lists(
    st.sampled_from([0.0, 1e-9, 0.1, 0.5, 1.0, 3.0]) | st.floats(0.01, 1), min_size=1, max_size=9
).filter(lambda weights: sum(weights) > 0.05)
kinds = st.sampled_from(["systematic", "stratified", "multinomial"])


@given(weight_lists, kinds, st.integers(0, 999))
def test_who_is_drawn_anew(weights: list[float], resample: Any, seed: int) -> None:
    """Never one without weight; systematic ones N w times, rounded; who is drawn stays in place."""
    share = np.array(weights) / sum(weights)
    drawn = ancestors(share, np.random.default_rng(seed).random(len(weights)), resample)
    counts = Counter(drawn)
    assert len(drawn) == len(weights) and all(share[i] > 0 for i in drawn)
    if resample == "systematic":
        for i, expected in enumerate(share * len(weights)):
            assert math.floor(expected - 1e-6) <= counts[i] <= math.ceil(expected + 1e-6)
    places = settled(drawn)
    assert Counter(places) == counts
    assert all(places[i] == i for i in counts)


@pytest.mark.parametrize("resample", ["systematic", "stratified", "multinomial"])
def test_particles_are_drawn_in_proportion(resample: Any) -> None:
    """Over a grid of 8,000 points (systematic) or as many draws, within 0.03 of N w (standard errors below 0.01)."""
    share = np.array([0.05, 0.5, 0.0, 0.25, 0.2])
    rng, num_runs = np.random.default_rng(1), 8000
    total = np.zeros(5)
    for i in range(num_runs):
        uniforms = np.full(5, (i + 0.5) / num_runs) if resample == "systematic" else rng.random(5)
        total += np.bincount(ancestors(share, uniforms, resample), minlength=5)
    assert total / num_runs == pytest.approx(5 * share, abs=0.03)


def test_a_point_that_rounds_to_one_finds_a_particle() -> None:
    share = np.array([0.3, 0.7, 0.0])
    assert ancestors(share, np.array([1.0, 1.0, 1.0]), "multinomial") == [1, 1, 1]


# Rejection

LAWS = [[0.4, 0.3, 0.2, 0.1], [0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25], [0.5, 0.0, 0.3, 0.2]]


def drawn_in(order: Sequence[int], p: Sequence[float], legal: set[int]) -> tuple[int, float] | None:
    """`rejection_draw` with noise under which the tokens come in this order."""
    scores = torch.tensor([log(x) for x in p], dtype=torch.float64)
    noise = torch.zeros(len(p), dtype=torch.float64)
    for place, token in enumerate(order):
        noise[token] = -100.0 * place - (scores[token] if p[token] > 0 else 0)
    asked: list[int] = []

    def is_legal(token: int) -> bool:
        asked.append(token)
        return token in legal

    draw = rejection_draw(scores, noise, is_legal)
    assert len(asked) == len(set(asked)) and all(p[token] > 0 for token in asked)
    return None if draw.token is None else (draw.token, math.exp(draw.log_weight))


@pytest.mark.parametrize("p", LAWS)
@pytest.mark.parametrize("legal", [{0}, {3}, {1, 2}, {0, 3}, {0, 1, 2, 3}, set()])
def test_rejection_is_unbiased(p: list[float], legal: set[int]) -> None:
    """Over every order with its probability: E[w; the token is x] = p(x) for each legal x, so that E[w] = Z."""
    expected, alone = np.zeros(4), 0.0
    for order, chance in orders(p):
        found = drawn_in(order, p, legal)
        slow = rejection(p, [token for token in order if p[token] > 0], legal)
        assert found == (None if slow is None else pytest.approx(slow, abs=1e-12))
        if found is not None:
            expected[found[0]] += chance * found[1]
            alone += chance * p[found[0]]
    mass = np.array([x if token in legal else 0.0 for token, x in enumerate(p)])
    assert expected == pytest.approx(mass, abs=1e-12)
    # The control: without the second question the mass of the other legal tokens is missing.
    assert (alone < mass.sum() - 1e-3) is (np.count_nonzero(mass) > 1)


@sized("num_seeds", 4, slow=12)
def test_rejection_takes_the_token_of_a_masked_draw(num_seeds: int) -> None:
    """With the same noise, over a vocabulary that is wider than the first look, for rare legal tokens too."""
    generator = torch.Generator().manual_seed(3)
    for seed in range(num_seeds):
        scores = torch.randn(3000, generator=generator) * 4
        legal = set(range(seed % 7, 3000, 1 + 200 * seed))
        noise = torch.tensor([gumbel(seed, 0, 0, token) for token in range(3000)])
        draw = rejection_draw(scores, noise, legal.__contains__)
        assert draw.token == max(legal, key=lambda token: float(scores[token] + noise[token]))
        law = softmax(scores.tolist())
        assert math.log(law[draw.token]) - 1e-5 <= draw.log_weight <= 0


# The batch beside the slow twin

SAMPLES = [
    (Sample(), lambda row: row),
    (Sample(temperature=0.6), lambda row: temperature(row, 0.6)),
    (Sample(temperature=1.5, top_k=5), lambda row: top_k(temperature(row, 1.5), 5)),
]


@example([[0], [2, 7]], SAMPLES[1], "awrs", "systematic", 1.0, 4, 3, 1, 2)  # found: weights that are nearly equal
@budget(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=9), min_size=1, max_size=3),
    st.sampled_from(SAMPLES),
    st.sampled_from(["smc", "awrs"]),
    kinds,
    st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    st.integers(2, 6),
    st.integers(2, 9),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_equals_the_slow_population(
    prompts: list[list[int]],
    sample: Any,
    method: Any,
    resample: Any,
    threshold: float,
    num_particles: int,
    max_tokens: int,
    num_prompts: int,
    salt: int,
) -> None:
    """Texts, shares and the estimate of Z, whatever else is in the batch."""
    strategy, process = sample
    resample = resample if threshold else "systematic"
    options = Particles(num_particles, method, resample, threshold, strategy=strategy)
    law, matcher = hashed_law(V, salt=salt), TextsMatcher(TEXTS, VOCABULARY)
    requests = [Request(prompt, matcher, seed=index) for index, prompt in enumerate(prompts)]
    found = run(ToyLM(law, V), options, requests, num_prompts, max_new_tokens=max_tokens)
    for index, prompt in enumerate(prompts):
        texts, weights, evidence, num_resamplings = population(
            law,
            prompt,
            matcher,
            process,
            EOS,
            num_particles=num_particles,
            method=method,
            resample=resample,
            threshold=threshold,
            seed=index,
            max_tokens=max_tokens,
        )
        result, shares = found[index]
        assert result.stats.particles is not None
        assert result.stats.particles.num_resamplings == num_resamplings
        assert result.stats.particles.log_evidence == pytest.approx(log(evidence), abs=1e-4)
        if evidence == 0:
            assert not shares and result.finish_reason in ("dead_end", "length")
            continue
        expected: dict[str, float] = {}
        for text, weight in zip(texts, weights, strict=True):
            if weight > 0:
                spelled = VOCABULARY.decode(text).decode()
                expected[spelled] = expected.get(spelled, 0.0) + weight / sum(weights)
        assert shares == pytest.approx(expected, abs=1e-4)


def test_processors_that_look_back_see_the_text_of_the_ancestor() -> None:
    """A penalty on repeats, with particles that are drawn anew at every step."""
    law, matcher, num_resamplings = hashed_law(V), TextsMatcher(TEXTS, VOCABULARY), 0
    options = Particles(5, threshold=1.0, strategy=Sample(repetition_penalty=1.8))

    def penalized(prefix: Sequence[int]) -> torch.Tensor:
        return torch.tensor(repetition_penalty(law(prefix).tolist(), prefix, 1.8))

    requests = [Request([seed % V, 3], matcher, seed) for seed in range(20)]
    for request, (result, shares) in zip(requests, run(ToyLM(law, V), options, requests), strict=True):
        texts, weights, evidence, _ = population(
            penalized,
            request.prompt,
            matcher,
            lambda row: row,
            EOS,
            num_particles=5,
            method="smc",
            resample="systematic",
            threshold=1.0,
            seed=request.seed,
            max_tokens=9,
        )
        assert result.stats.particles is not None
        num_resamplings += result.stats.particles.num_resamplings
        assert result.stats.particles.log_evidence == pytest.approx(log(evidence), abs=1e-4)
        alive = [text for text, weight in zip(texts, weights, strict=True) if weight > 0]
        assert set(shares) == {VOCABULARY.decode(text).decode() for text in alive}
    assert num_resamplings > 20


@few(1)
@pytest.mark.parametrize("method", ["smc", "awrs"])
@pytest.mark.parametrize(
    ("strategy", "process"),
    [
        (Sample(temperature=2.0), lambda row: temperature(row, 2.0)),
        (Sample(temperature=2.0, top_k=900), lambda row: top_k(temperature(row, 2.0), 900)),
    ],
    ids=["temperature", "top-k"],
)
def test_wide_rows(method: Any, strategy: Sample, process: Any) -> None:
    """A vocabulary for which sampling has ways of its own, and of which few tokens are legal."""
    width = 1500
    spelled: list[bytes | None] = [f"{number:04}".encode() for number in range(width)]
    vocabulary = Vocabulary(spelled, ())
    rng = np.random.default_rng(2)
    legal = [f"{a:04}{b:04}".encode() for a in rng.integers(0, width, 40) for b in rng.integers(0, width, 4)]
    matcher, law = (
        compile(Choices([text.decode() for text in dict.fromkeys(legal)]), vocabulary).matcher(),
        hashed_law(width),
    )
    options = Particles(4, method, threshold=1.0, strategy=strategy)
    for result, shares in run(ToyLM(law, width), options, [Request([7], matcher, 5)], vocabulary=vocabulary):
        texts, weights, evidence, num_resamplings = population(
            law,
            [7],
            matcher,
            process,
            frozenset(),
            num_particles=4,
            method=method,
            resample="systematic",
            threshold=1.0,
            seed=5,
            max_tokens=9,
        )
        assert result.stats.particles is not None
        assert result.stats.particles.num_resamplings == num_resamplings
        assert result.stats.particles.log_evidence == pytest.approx(log(evidence), abs=1e-3)
        assert set(shares) == {vocabulary.decode(t).decode() for t, w in zip(texts, weights, strict=True) if w > 0}


@few(1)
@pytest.mark.parametrize("method", ["smc", "awrs"])
def test_neighbours_change_nothing(method: Any) -> None:
    """Real caches: unequal prompts in a batch, whose particles are drawn anew at different times, and each alone."""
    grammar = compile(dk.Regex("[!-_]{1,3}(ab|[c-z]{4})?"), Vocabulary([bytes([i]) for i in range(VOCAB_SIZE)], EOS))
    vocabulary = Vocabulary([bytes([i]) for i in range(VOCAB_SIZE)], EOS)
    options = Particles(4, method, threshold=0.9)
    for name in ("llama", "mamba"):
        model = HuggingFaceLM(architectures.build(name))
        requests = [Request(tokens(i, length), grammar.matcher(), seed=i) for i, length in enumerate((9, 1, 30, 5))]
        together = run(model, options, requests, 3, vocabulary=vocabulary)
        assert sum(one.stats.particles.num_resamplings for one, _ in together if one.stats.particles) > 2
        for request, (result, shares) in zip(requests, together, strict=True):
            [(alone, its_shares)] = run(model, options, [request], 1, vocabulary=vocabulary)
            assert alone.token_ids == result.token_ids
            assert its_shares == pytest.approx(shares, abs=1e-3)


@pytest.mark.parametrize("method", ["smc", "awrs"])
def test_log_probabilities_tell_what_masks_leave(method: Any) -> None:
    """Without resampling and with no processor, the weight of a particle is the product of what its masks left."""
    options = Particles(2, method, threshold=0.0)
    requests, num_weighed = [Request([seed % V], TextsMatcher(TEXTS, VOCABULARY), seed) for seed in range(10)], 0
    for result, shares in run(ToyLM(hashed_law(V), V), options, requests, num_alternatives=0):
        assert result.stats.particles is not None and result.stats.log_z is not None
        assert [entry.token_id for entry in result.logprobs] == list(result.token_ids)
        assert result.stats.log_z == pytest.approx(sum(entry.log_z for entry in result.logprobs))
        if method == "smc" and len(shares) == 2:
            weight = math.log(2 * next(iter(shares.values()))) + result.stats.particles.log_evidence
            assert result.stats.log_z == pytest.approx(weight, abs=1e-4)
            num_weighed += 1
    assert (num_weighed > 0) is (method == "smc")


def test_a_prompt_is_read_once_and_copied() -> None:
    model = ToyLM(hashed_law(V), V)
    run(model, Particles(6, threshold=0.0), [Request([1] * 40, TextsMatcher([b"abcd", b"abda"], VOCABULARY))])
    assert model.calls[:2] == [[39], [1] * 6]
    assert model.caches[0].num_reorders == 1


# Laws

SMALL = Vocabulary([bytes([c]) for c in b"abcdefgh"], ())
TABLE = torch.randn(8, 8, generator=torch.Generator().manual_seed(5))
LEGAL = ["ca", "cbc", "ce", "g", "ebh", "ec", "chb", "ac", "ab", "ba", "bc"]
START = 7


def legal_law() -> tuple[dict[str, float], float]:
    """The law of a text given that it is legal, and the probability that it is."""
    matcher = compile(Choices(LEGAL), SMALL).matcher()
    every = dict(legal_texts(lambda prefix: TABLE[prefix[-1]], [START], matcher, lambda row: row, frozenset()))
    total = sum(every.values())
    return {SMALL.decode(text).decode(): p / total for text, p in every.items()}, total


def drawn_texts(strategy: Particles, num_runs: int) -> list[tuple[Result, dict[str, float]]]:
    grammar = compile(Choices(LEGAL), SMALL)
    requests = [Request([START], grammar.matcher(), seed=i) for i in range(num_runs)]
    return run(TableLM(TABLE), strategy, requests, 100, vocabulary=SMALL, max_new_tokens=3)


@few(1)
@pytest.mark.parametrize(
    "strategy",
    [
        Particles(8, threshold=0.8),
        Particles(8, threshold=1.0, resample="multinomial"),
        Particles(8, "awrs", threshold=0.8, resample="stratified"),
    ],
)
@sized("num_runs", 500, slow=2000)
def test_the_mean_weight_is_the_probability_of_the_constraint(strategy: Particles, num_runs: int) -> None:
    """E[weight] = Z within 2 % in 2,000 runs; E[weight times share of y] = P(y) within five standard errors, text y."""
    law, total = legal_law()
    assert 0.1 < total < 0.5
    found = drawn_texts(strategy, num_runs)
    stats = [result.stats.particles for result, _ in found]
    evidence = np.array([math.exp(one.log_evidence) for one in stats if one is not None])
    assert sum(one.num_resamplings for one in stats if one is not None) > 0.075 * num_runs
    assert evidence.mean() == pytest.approx(total, rel=0.02 * math.sqrt(2000 / num_runs))
    for text, p in law.items():
        values = evidence * np.array([shares.get(text, 0.0) for _, shares in found])
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - p * total) < 5 * error


def p_value(drawn: Counter[str], law: dict[str, float]) -> float:
    """χ² of the drawn texts; cells with fewer than five expected are joined."""
    total = sum(drawn.values())
    large = [text for text, p in law.items() if p * total >= 5]
    expected = [law[text] * total for text in large]
    found = [drawn[text] for text in large]
    if len(large) < len(law):
        expected.append(total - sum(expected))
        found.append(total - sum(found))
    return float(chisquare(found, expected).pvalue)


@few(1)
@sized("num_draws", 250, slow=700)
@pytest.mark.parametrize("method", ["smc", "awrs"])
def test_the_returned_text_follows_the_conditional_law(method: Any, num_draws: int) -> None:
    """The bias of order 1/N is far below the noise of 700 draws."""
    law, _ = legal_law()
    drawn = Counter(next(iter(shares)) for _, shares in drawn_texts(Particles(24, method), num_draws))
    assert set(drawn) <= set(law)
    assert p_value(drawn, law) > THRESHOLD


def test_masked_sampling_is_rejected() -> None:
    """The control: the same draws without weights follow another law."""
    law, _ = legal_law()
    grammar = compile(Choices(LEGAL), SMALL)
    settings = Settings(SMALL, Sample().pipeline, Sample().select, max_new_tokens=3)
    requests = [Request([START], grammar.matcher(), seed=i) for i in range(700)]
    updates = decode_texts(TableLM(TABLE), settings, 500, requests)
    drawn = Counter(SMALL.decode(one.result.token_ids).decode() for one in updates if one.result is not None)
    assert set(drawn) <= set(law)
    assert p_value(drawn, law) < THRESHOLD


@pytest.mark.slow
def test_two_particles_are_not_enough_for_the_law() -> None:
    """Another control: the bias is there, and the test sees it where particles are few."""
    law, _ = legal_law()
    drawn = Counter(next(iter(shares)) for _, shares in drawn_texts(Particles(2), 4000))
    assert p_value(drawn, law) < THRESHOLD


def test_where_nothing_is_masked_particles_are_samples() -> None:
    """The constraint allows all that is likely: weights stay equal, and particle i is the sample i."""
    everything = compile(dk.Regex("[a-h]{4}"), SMALL)
    [(result, shares)] = run(
        TableLM(TABLE), Particles(6, threshold=1.0), [Request([3], everything.matcher(), 8)], vocabulary=SMALL
    )
    settings = Settings(SMALL, Sample().pipeline, Sample().select, max_new_tokens=4)
    [update] = [one for one in decode_texts(TableLM(TABLE), settings, 1, [Request([3], None, 8)], 6) if one.result]
    assert update.result is not None
    updates = [replace(update, result=replace(update.result, others=())), *update.result.others]
    drawn = Counter(SMALL.decode(one.result.token_ids).decode() for one in updates if one.result is not None)
    assert shares == pytest.approx({text: count / 6 for text, count in drawn.items()})
    assert result.stats.particles is not None
    assert result.stats.particles.log_evidence == 0 and result.stats.particles.effective_sample_size == 6
    assert result.stats.particles.num_resamplings == 0


def test_a_text_has_the_weight_of_all_its_divisions() -> None:
    """ "ab" in one token or in two is one answer."""
    matcher = TextsMatcher([b"ab", b"dd"], VOCABULARY)
    ways = list(legal_texts(hashed_law(V), [1], matcher, lambda row: row, EOS))
    assert len(ways) == 4
    [(_, shares)] = run(ToyLM(hashed_law(V), V), Particles(64, threshold=0.0), [Request([1], matcher, 3)])
    assert sorted(shares) == ["ab", "dd"] and sum(shares.values()) == pytest.approx(1)


def test_the_best_has_most_weight() -> None:
    for result, shares in drawn_texts(Particles(8, returns="best"), 50):
        assert result.score == max(shares.values())
    draws = [result.score == max(shares.values()) for result, shares in drawn_texts(Particles(8), 50)]
    assert not all(draws)


# What has no weight


@sized("num_runs", 300, slow=800)
@pytest.mark.parametrize("method", ["smc", "awrs"])
def test_refused_texts_have_no_weight(method: Any, num_runs: int) -> None:
    """A guard is no mask: E[weight] is the probability of the texts that it accepts, and none other comes out."""
    accepted = [text for text in LEGAL if text[-1] in "bag"]
    grammar = compile(Guarded(Choices(LEGAL), lambda text: text[-1] in "bag"), SMALL)
    requests = [Request([START], grammar.matcher(), seed=i) for i in range(num_runs)]
    strategy = Particles(8, method)
    found = run(TableLM(TABLE), strategy, requests, 50, vocabulary=SMALL, max_new_tokens=3)
    law, total = legal_law()
    legal = sum(p for text, p in law.items() if text in accepted) * total
    evidence = [math.exp(result.stats.particles.log_evidence) for result, _ in found if result.stats.particles]
    assert np.mean(evidence) == pytest.approx(legal, abs=5 * np.std(evidence) / math.sqrt(num_runs))
    assert all(set(shares) <= set(accepted) for _, shares in found)
    dead = [result for result, shares in found if not shares]
    assert all(isinstance(result.error, DeadEndError) for result in dead)


def test_truncation_comes_before_the_mask() -> None:
    """Of the law that is conditioned: with top_k=1 only the likeliest text has weight, legal or not."""
    likeliest = int(TABLE[START].argmax())
    others = [c for c in "abcdefgh" if c != "abcdefgh"[likeliest]]
    strategy = Particles(4, strategy=Sample(top_k=1))
    for texts, is_dead in ((["abcdefgh"[likeliest], *others[:3]], False), (others, True)):
        grammar = compile(Choices(texts), SMALL)
        [(result, shares)] = run(TableLM(TABLE), strategy, [Request([START], grammar.matcher())], vocabulary=SMALL)
        assert (result.finish_reason == "dead_end") is is_dead
        assert is_dead or shares == {"abcdefgh"[likeliest]: 1.0}
        assert not is_dead or "no mask" in str(result.error)


@pytest.mark.parametrize("method", ["smc", "awrs"])
@pytest.mark.parametrize("banned", [range(4), range(V)], ids=["all legal ones", "all"])
def test_where_biases_forbid_all_particles_die(method: Any, banned: range) -> None:
    options = Particles(3, method, strategy=Sample(logit_bias=dict.fromkeys(banned, -math.inf)))
    matcher = TextsMatcher([b"bc", b"cb", b"ad"], VOCABULARY)
    [(result, shares)] = run(ToyLM(hashed_law(V), V), options, [Request([1], matcher)])
    assert isinstance(result.error, DeadEndError) and result.finish_reason == "dead_end" and not shares
    assert result.stats.particles is not None and result.stats.particles.log_evidence == -math.inf


def test_nan_and_broken_predicates_are_errors_of_their_prompt() -> None:
    def law(prefix: Sequence[int]) -> torch.Tensor:
        return torch.full((V,), math.nan) if prefix[0] == 2 and len(prefix) > 2 else hashed_law(V)(prefix)

    matcher = TextsMatcher(TEXTS, VOCABULARY)
    found = run(ToyLM(law, V), Particles(3), [Request([2], matcher), Request([1], matcher), Request([], matcher)])
    assert isinstance(found[0][0].error, NonFiniteLogitsError) and found[1][0].error is None
    assert isinstance(found[2][0].error, OptionError)
    broken = Particles(3, "awrs", predicate=lambda text, is_whole: 1 // 0 > 0)
    [(result, _)] = run(ToyLM(hashed_law(V), V), broken, [Request([1])])
    assert isinstance(result.error, ConstraintError) and "the predicate failed: ZeroDivisionError" in str(result.error)


def test_a_predicate_is_a_constraint() -> None:
    """The same texts by a predicate on bytes and by a matcher, which is never complete: the same draws and weights."""
    law = hashed_law(V)

    def is_legal(text: bytes, is_whole: bool) -> bool:
        left = text.replace(b"ab", b"").replace(b"c", b"")
        return left == b"" or (left == b"a" and text.endswith(b"a") and not is_whole)

    grammar = compile(dk.Regex("(ab|c)*"), VOCABULARY)
    by_matcher, by_predicate = Particles(6, "awrs"), Particles(6, "awrs", predicate=is_legal)
    expected = run(
        ToyLM(law, V), by_matcher, [Request([1], grammar.matcher(), i) for i in range(12)], max_new_tokens=60
    )
    found = run(ToyLM(law, V), by_predicate, [Request([1], None, i) for i in range(12)], max_new_tokens=60)
    assert [shares for _, shares in found] == [pytest.approx(shares) for _, shares in expected]
    assert len({text for _, shares in found for text in shares}) > 8
    requests = [Request([1], TextsMatcher(TEXTS, VOCABULARY), seed) for seed in range(12)]
    both = run(ToyLM(law, V), Particles(6, "awrs", predicate=lambda text, _: b"cd" not in text), requests)
    assert all("cd" not in text for _, shares in both for text in shares)


# The front door


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM.load("tiny")


PROMPT = "Invoice A-17, total 40.20 EUR."


def test_front_door(llm: LLM) -> None:
    constraint = dk.Regex(r'\{"number":"[A-Z]-[0-9]{1,4}"\}')
    options: dict[str, Any] = {"num_particles": 6, "temperature": 2.0, "seed": 4}
    found = llm.generate([PROMPT, "Paid: 7"], constraint=constraint, strategy="particles", logprobs=True, **options)
    for one in found:
        assert one.error is None and one.stats.particles is not None and one.stats.ttft_s is None
        scores = [sample.score for sample in (one, *one.others)]
        assert sum(score for score in scores if score is not None) == pytest.approx(1)
        assert one.logprobs is not None and [entry.token_id for entry in one.logprobs] == list(one.token_ids)
    [chunk] = llm.stream(PROMPT, constraint=constraint, strategy="particles", **options)
    assert chunk.completion is not None and chunk.text == chunk.completion.text == found[0].text


@pytest.mark.slow
def test_the_law_of_the_bundled_model(llm: LLM) -> None:
    """Every way to write three numbers in tokens, against the shares of 40 populations, weighted by their evidence.

    Under the mask alone "B-17" has 20 %; the tolerance is five standard errors.
    """
    prompt, seeds = encode(llm.tokenizer, PROMPT, "test"), range(40)
    choices = dk.Choices(["A-17", "A-18", "B-17"])

    @functools.cache
    def law(prefix: tuple[int, ...]) -> torch.Tensor:
        return llm.model.forward(torch.tensor([prefix]), [len(prefix)], llm.model.new_cache(1, len(prefix)))[0]

    exact: dict[str, float] = {}
    matcher = compile(choices, llm.vocabulary).matcher()
    every = legal_texts(
        lambda prefix: law(tuple(prefix)), prompt, matcher, lambda row: temperature(row, 3.0), frozenset()
    )
    for text, p in every:
        exact[llm.vocabulary.decode(text).decode()] = exact.get(llm.vocabulary.decode(text).decode(), 0.0) + p
    total = sum(exact.values())
    assert exact["B-17"] / total < 0.05
    strategy = Particles(16, strategy=Sample(temperature=3.0))
    found = llm.generate([PROMPT] * len(seeds), constraint=choices, strategy=strategy, seed=list(seeds))
    evidence = np.array([one.stats.particles.log_evidence for one in found if one.stats.particles is not None])
    relative = np.exp(evidence - math.log(total))
    assert relative.mean() == pytest.approx(1, abs=5 * relative.std() / math.sqrt(len(seeds)))
    for text, p in exact.items():
        shares = [sum(one.score or 0 for one in (first, *first.others) if one.text == text) for first in found]
        values = relative * np.array(shares)
        assert values.mean() == pytest.approx(p / total, abs=5 * values.std() / math.sqrt(len(seeds)))


def test_texts_that_were_cut_have_no_weight(llm: LLM) -> None:
    strategy = Particles(12, strategy=Sample(temperature=2.5, seed=1))
    choices = dk.Choices(["yes", "no", "maybe"])
    found = llm.generate("Paid: 7", constraint=choices, strategy=strategy, max_new_tokens=3)
    assert found.error is None and {one.text for one in (found, *found.others)} <= {"yes", "no"}
    cut = llm.generate("Paid: 7", constraint=dk.Regex("[a-z]{60}"), strategy=strategy, max_new_tokens=2)
    assert isinstance(cut.error, LengthError) and cut.score is None and len(cut.token_ids) == 2


def test_a_predicate_on_free_text(llm: LLM) -> None:
    strategy = Particles(
        4, "awrs", predicate=lambda text, _: b"0" not in text, strategy=Sample(temperature=1.5, seed=1)
    )
    found = llm.generate(PROMPT, strategy=strategy, max_new_tokens=24)
    assert found.error is None and "0" not in found.text and found.stats.particles is not None
    assert found.stats.particles.num_asked > 24


def test_stop_strings_under_a_predicate(llm: LLM) -> None:
    """A text ends before its stop string, in a particle that was copied, too."""
    strategy = Particles(6, "awrs", threshold=1.0, predicate=lambda text, _: b"a" not in text, strategy=Sample(2.5))
    found = llm.generate([PROMPT] * 4, strategy=strategy, max_new_tokens=60, stop=["e", "o"], seed=[1, 2, 3, 4])
    assert sum(one.stats.particles.num_resamplings for one in found if one.stats.particles is not None) > 0
    for one in (sample for first in found for sample in (first, *first.others)):
        assert one.finish_reason == "stop" and not set("eoa") & set(one.text)


def test_names_and_faults(llm: LLM) -> None:
    assert resolve_strategy("particles", {"num_particles": 4, "temperature": 0.7}) == Particles(4, strategy=Sample(0.7))
    with pytest.raises(OptionError, match="5 options cannot be used") as caught:
        Particles(1, "pmcmc", "residual", 2, "mean")  # type: ignore[arg-type]
    assert [fault.at for fault in caught.value.faults] == [
        "num_particles",
        "method",
        "resample",
        "threshold",
        "returns",
    ]
    for refused, message in (
        ({"predicate": len}, 'method="awrs"'),
        ({"predicate": 3, "method": "awrs"}, "a function of bytes"),
        ({"threshold": 0, "resample": "multinomial"}, "never draws anew"),
        ({"strategy": dk.Mirostat()}, "may take others"),
        ({"strategy": dk.Greedy()}, "greedy decoding are the same"),
        ({"strategy": Sample(speculate="prompt-lookup")}, "cannot speculate"),
        ({"strategy": Sample(num_return_sequences=2)}, "beside num_particles"),
    ):
        with pytest.raises(OptionError, match=message):
            Particles(**refused)  # type: ignore[arg-type]
    for options in ({"on_length": "close"}, {"fast_forward": "canonical"}, {"max_rollbacks": 3}):
        with pytest.raises(OptionError, match=next(iter(options))):
            llm.generate("x", constraint=dk.Regex("[a-z]+"), strategy=Particles(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["particles", Particles(3), Particles(3, "awrs")])
def test_particles_without_a_constraint_are_one_fault_of_the_call(llm: LLM, strategy: Any) -> None:
    """It is known from the options alone, and is told with their other faults before anything is decoded."""
    with pytest.raises(OptionError) as caught:
        llm.stream(["x", "y"], strategy=strategy, max_new_tokens=0)
    assert [fault.at for fault in caught.value.faults] == ["max_new_tokens", "strategy"]
    assert isinstance(caught.value.faults[1], UselessOptionError)
    free = llm.generate("x", strategy=Particles(3, "awrs", predicate=lambda text, is_whole: True), max_new_tokens=2)
    assert free.error is None
