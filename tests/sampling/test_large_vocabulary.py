"""Wide rows: what compiled code cuts and draws is what whole rows give, token for token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from decodekit.errors import DeadEndError, NonFiniteLogitsError
from decodekit.sampling import (
    Candidates,
    DynamicTemperature,
    LogitBias,
    MinP,
    Pipeline,
    Temperature,
    TopK,
    TopP,
    sample,
    selectors,
)
from decodekit.sampling.fast import cuts, large_vocabulary
from decodekit.sampling.fast import noisy_draws as draws
from decodekit.sampling.noise import gumbel, host_keys, mix_uint64
from tests.sizes import few

INF = math.inf
V = 4700  # no multiple of a block


def rows_of(kind: str, num_rows: int = 6, vocab_size: int = V, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator)
    if kind == "peaked":  # like a language model: a few likely tokens and a long tail
        return logits * 2 - torch.arange(vocab_size).add(1).log() * 2
    if kind == "tied":
        return (logits * 3).round()
    if kind == "masked":
        return (logits * 3).masked_fill(torch.rand(num_rows, vocab_size, generator=generator) < 0.99, -INF)
    if kind == "extreme":
        return logits * torch.tensor([1e-6, 1e-3, 1.0, 30.0, 1e4, 1e30])[:num_rows, None]
    if kind == "constant":
        return torch.full((num_rows, vocab_size), -3.5)
    if kind == "one":
        return torch.full((num_rows, vocab_size), -INF).index_fill_(1, torch.tensor([vocab_size - 1]), 2.0)
    return logits * 3


KINDS = ["normal", "peaked", "tied", "masked", "extreme", "constant", "one"]

PIPELINES: list[Pipeline] = [
    Temperature(0.8) | TopK(50) | TopP(0.95) | MinP(0.05),
    Temperature(0.8) | TopP(0.95) | MinP(0.05),
    Temperature(1.3) | MinP(0.02),
    MinP(0.1) | TopK(7) | TopP(0.8),
    TopP(0.9) | MinP(0.05) | TopK(20, exact=True) | Temperature(0.6),
    TopK(30, exact=True) | TopP(0.7) | Temperature(1.5),
    Pipeline([TopP(0.5)]),
    Pipeline([TopP(0.9999)]),
    Pipeline([TopP(1e-9)]),
    Pipeline([TopP(1.0), MinP(0.5)]),
    Pipeline([TopK(1)]),
    Pipeline([TopK(V)]),
    Pipeline([TopK(1100)]),
    Pipeline([TopK(2000)]),
    Pipeline([MinP(0.0)]),
    Pipeline([MinP(1.0)]),
    TopK(40) | DynamicTemperature(0.5, 1.5) | TopP(0.9),
    LogitBias({3: 2.0}) | Temperature(0.5) | TopK(5),
    Pipeline([Temperature(0.9)]),
    Pipeline(),
]


def nucleus_by_sorting(logits: Tensor, p: float) -> Tensor:
    """Top-p of whole rows in float64; of equals the lower id first. The slow twin of `cuts.cut_top_p`."""
    ordered, ids = logits.double().sort(dim=-1, descending=True, stable=True)
    weights = (ordered - ordered[:, :1]).exp()
    before = weights.cumsum(dim=-1) - weights
    removed = before >= p * weights.sum(dim=-1, keepdim=True)
    removed[:, 0] = False
    return logits.masked_fill(torch.empty_like(removed).scatter_(1, ids, removed), -INF)


def one_by_one(pipeline: Pipeline, logits: Tensor) -> Tensor:
    for processor in pipeline:
        logits = processor(logits, None)
    return logits


def narrow_draw(logits: Tensor, seed: int) -> Tensor:
    """The draw with noise for every token."""
    count = len(logits)
    noise = gumbel([seed] * count, [0] * count, range(count), logits.shape[-1])
    return (noise + (logits - logits.amax(dim=-1, keepdim=True))).argmax(dim=-1)


# --- truncation ------------------------------------------------------------------------------------------------------


@few(18)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pipeline", PIPELINES, ids=repr)
def test_a_narrowed_row_is_the_whole_row(pipeline: Pipeline, kind: str) -> None:
    logits = rows_of(kind)
    expected = one_by_one(pipeline, logits)
    if any(isinstance(processor, DynamicTemperature) for processor in pipeline):
        assert torch.allclose(pipeline(logits), expected, rtol=1e-6)
    else:
        assert torch.equal(pipeline(logits), expected)
    keys = [4] * 6, [0] * 6, range(6)
    assert torch.equal(sample(pipeline.narrow(logits), *keys), narrow_draw(pipeline(logits), 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999, 0.9999999])
def test_a_nucleus_is_that_of_a_sorted_row(kind: str, p: float) -> None:
    """A prefix whose mass is within 1e-6 of p may be taken or not."""
    logits = rows_of(kind, seed=3)
    got, expected = TopP(p)(logits) > -INF, nucleus_by_sorting(logits, p) > -INF
    law = logits.double().softmax(dim=-1)
    differs = (torch.where(got ^ expected, law, 0.0)).sum(dim=-1)
    assert (differs <= 2e-6).all()
    if kind in ("tied", "constant", "one"):  # weights that a float32 rounds alike: exact, and ties by id
        assert torch.equal(got, expected) or p > 0.99


def test_ties_enter_a_wide_nucleus_in_order_of_id() -> None:
    kept = TopP(0.25)(torch.zeros(2, 8192)) > -INF
    assert kept.sum(dim=-1).tolist() == [2048, 2048] and kept[:, :2048].all()
    logits = torch.zeros(1, 8192)
    logits[0, 5000] = 1.0  # of mass e in e + 8191
    assert (TopP(0.5)(logits) > -INF)[0].nonzero().flatten().tolist() == [
        *range(4095),
        5000,
    ]  # e + 4094 < (e + 8191) / 2


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("k", [1, 5, 64, 500])
def test_top_k_keeps_ties_that_the_temperature_makes(k: int, temperature: float) -> None:
    """Neighbouring floats become equal when they are divided; what counts is the quotient."""
    steps = torch.arange(V, dtype=torch.float32) // 3
    logits = torch.stack([1.9 - steps * 2**-23, (1.9 - steps * 2**-23).flip(0)])
    pipeline = Temperature(temperature) | TopK(k)
    assert isinstance(pipeline.narrow(logits), Candidates)
    assert torch.equal(pipeline(logits), one_by_one(pipeline, logits))


def test_wide_rows_become_candidates() -> None:
    logits = rows_of("peaked")
    for pipeline in (Pipeline([MinP(0.1)]), Temperature(0.5) | TopP(0.9), TopK(5) | TopP(0.9)):
        rows = pipeline.narrow(logits)
        assert isinstance(rows, Candidates)
        assert (np.diff(rows.logits.clip(-1e9), axis=1) <= 0).all()
        assert all(len(set(ids)) == len(ids) for ids in rows.token_ids.tolist())
    assert isinstance(Pipeline([TopP(0.99)]).narrow(rows_of("constant")), Tensor)  # nothing is gained
    assert isinstance((TopK(5) | LogitBias({1: 1.0})).narrow(logits), Tensor)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.cat([rows_of(kind, 2, seed=5) for kind in KINDS])
    for pipeline in PIPELINES:
        count = len(logits)
        whole = sample(pipeline.narrow(logits), [7] * count, [0] * count, range(count))
        alone = [int(sample(pipeline.narrow(logits[n : n + 1]), [7], [0], [n])) for n in range(count)]
        assert whole.tolist() == alone, pipeline


@pytest.mark.parametrize("temperature", [0.1, 0.7, 3.0])
def test_many_rows_are_divided_as_by_torch(temperature: float) -> None:
    logits = rows_of("masked", 40, 1 << 15, seed=1)
    before = logits.clone()
    assert logits.numel() >= large_vocabulary.MANY
    assert torch.equal(Temperature(temperature)(logits), logits / temperature)
    assert torch.equal(Temperature(temperature)(logits[:, ::2]), logits[:, ::2] / temperature)
    assert torch.equal(logits, before)


def test_rows_that_are_not_contiguous_and_half_precision() -> None:
    logits = rows_of("normal", 12)[::2]
    pipeline = PIPELINES[0]
    assert torch.equal(pipeline(logits), one_by_one(pipeline, logits.contiguous()))
    half = logits.to(torch.bfloat16)
    assert torch.equal(pipeline(half), one_by_one(pipeline, half.float()))
    assert pipeline.narrow(logits[:0]) is not None and len(sample(logits[:0], [], [], [])) == 0


@pytest.mark.parametrize("pipeline", [Pipeline(), PIPELINES[0], PIPELINES[1], PIPELINES[2]], ids=repr)
@pytest.mark.parametrize("value", [math.nan, -math.nan, INF, -INF])
def test_faults(pipeline: Pipeline, value: float) -> None:
    logits = rows_of("normal", 3)
    negative_nan = torch.tensor([-4194304], dtype=torch.int32).view(torch.float32)  # what 0 / 0 gives on x86
    if value == -INF:
        logits[1] = -INF
    else:
        logits[1, 4000] = negative_nan[0] if math.isnan(value) and math.copysign(1, value) < 0 else value
    error = DeadEndError if value == -INF else NonFiniteLogitsError
    with pytest.raises(error, match="row 1 of the batch"):
        sample(pipeline.narrow(logits), [0] * 3, [0] * 3, [0] * 3)


# --- selection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_lazy_draw_is_the_whole_draw(kind: str) -> None:
    for seed in range(20):
        logits = rows_of(kind, seed=seed)
        expected = narrow_draw(logits, seed)
        assert torch.equal(sample(logits, [seed] * 6, [0] * 6, range(6)), expected)


def test_the_lazy_draw_opens_few_tokens() -> None:
    logits = rows_of("normal", 64, 8192)
    keys = host_keys([1] * 64, [0] * 64, range(64))
    found = large_vocabulary.block_peaks(logits)
    assert found is not None
    ids, counts = np.zeros((64, draws.MAX_CONTENDERS), np.int64), np.empty(64, np.int64)
    draws.find_contenders(*found, np.float32(1), np.full(64, -INF, np.float32), keys, ids, counts)
    assert (counts == 1).all()


def test_many_equal_scores_are_decided_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more than 32 tokens are within 1e-4 of the best, every token gets its noise."""
    monkeypatch.setattr(large_vocabulary, "sample_wide", lambda logits, keys: None)
    monkeypatch.setattr(selectors, "sample_wide", lambda logits, keys: None)
    logits = rows_of("normal")
    assert torch.equal(sample(logits, [1] * 6, [0] * 6, range(6)), narrow_draw(logits, 1))


NUM_DRAWS = 30_000


def p_value(tokens: Tensor, law: Tensor) -> float:
    """Chi-squared test over 8 tokens that have all the mass; 0 if another token was drawn."""
    counts = np.bincount(tokens.numpy(), minlength=len(law))
    expected = law.numpy() * len(tokens)
    if counts[expected == 0].any():
        return 0.0
    return float(stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue)


@pytest.mark.parametrize(
    "pipeline",
    [Pipeline(), Temperature(0.7) | TopP(0.9), Temperature(1.5) | TopK(6) | TopP(0.9) | MinP(0.05)],
    ids=repr,
)
def test_draws_follow_the_law(pipeline: Pipeline) -> None:
    """8 tokens spread over 1,024 places, 30,000 draws. A right sampler fails each with probability 1e-4."""
    logits = torch.full((1, large_vocabulary.WIDE), -INF)
    places = torch.tensor([0, 63, 64, 65, 300, 700, 1000, large_vocabulary.WIDE - 1])
    logits[0, places] = torch.tensor([1.0, 0.5, -0.5, 2.0, 1.9, -4.0, 0.0, 0.25])
    law = one_by_one(pipeline, logits)[0].double().softmax(dim=-1)
    drawn = []
    for start in range(0, NUM_DRAWS, 2000):
        rows = pipeline.narrow(logits.expand(2000, -1))
        drawn.append(sample(rows, [3] * 2000, [0] * 2000, range(start, start + 2000)))
    tokens = torch.cat(drawn)
    assert p_value(tokens, law) > 1e-4
    # Negative controls: another temperature, and a law with more or fewer tokens.
    assert p_value(tokens, one_by_one(Temperature(1.2) | pipeline, logits)[0].double().softmax(dim=-1)) < 1e-8
    truncated = one_by_one(pipeline | TopK(3), logits)[0].double().softmax(dim=-1)
    assert p_value(tokens, truncated) == 0


# --- compiled code against numpy --------------------------------------------------------------------------------------


def test_weights_are_exponentials() -> None:
    x = np.concatenate([-np.geomspace(1e-9, 87, 5000), [0.0]]).astype(np.float32)
    got = np.array([cuts.weight(value) for value in x])
    assert np.abs(got / np.exp(x.astype(np.float64)) - 1).max() < 3e-7
    assert cuts.weight(np.float32(0)) == 1.0
    assert cuts.weight(np.float32(-INF)) < 1e-37 and cuts.weight(np.float32(-1e30)) < 1e-37


@pytest.mark.parametrize("kind", KINDS)
def test_block_peaks(kind: str) -> None:
    logits = rows_of(kind)
    found = large_vocabulary.block_peaks(logits)
    assert found is not None
    padded = torch.nn.functional.pad(logits, (0, -V % 64), value=-INF)
    assert np.array_equal(found[1], padded.view(6, -1, 64).amax(dim=-1).numpy())


def test_bits_are_those_of_the_noise() -> None:
    keys = host_keys([5], [1], [9])
    tokens = np.arange(100, dtype=np.uint64)
    expected = mix_uint64(keys + (tokens + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(12)
    assert [int(draws._bits(keys[0], token)) for token in range(100)] == expected.tolist()


def test_kth_largest() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 100, 1000):
        for values in (rng.normal(size=size), rng.integers(0, 3, size), np.zeros(size), np.arange(size)):
            for k in {1, 2, size // 2, size} - {0}:
                if k <= size:
                    got = cuts._kth_largest(values.astype(np.float32), size, k)
                    assert got == np.float32(np.sort(values)[size - k])


def test_threads_take_parts_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.cat([rows_of(kind, 3, seed=6) for kind in KINDS])
    keys = [1] * 21, [0] * 21, range(21)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = [sample(pipeline.narrow(logits), *keys) for pipeline in PIPELINES]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert all(
        torch.equal(sample(pipeline.narrow(logits), *keys), one) for pipeline, one in zip(PIPELINES, alone, strict=True)
    )
    logits[20, 7] = math.nan  # a fault in the last part is seen
    with pytest.raises(NonFiniteLogitsError, match="row 20 of the batch"):
        sample(logits, *keys)
