"""Which token is taken: the law of the draws, ties, and rows from which nothing can be taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from decodekit.errors import DeadEndError, NonFiniteLogitsError
from decodekit.sampling import Candidates, MinP, Pipeline, Temperature, TopK, TopP, faults, greedy, sample, selectors
from decodekit.sampling.fast import large_vocabulary
from tests.reference import sampling as slow
from tests.sizes import few

INF = math.inf
LOGITS = [1.0, 0.5, -0.5, 2.0, -INF, -4.0, 0.0, 0.25]
NUM_DRAWS = 30_000


def draws(pipeline: Pipeline, axis: str) -> Tensor:
    """30,000 tokens of the same row, with one key counting."""
    keys = {name: [0] * NUM_DRAWS for name in ("seed", "sequence", "position")}
    keys[axis] = list(range(NUM_DRAWS))
    rows = pipeline.narrow(torch.tensor([LOGITS]))
    if isinstance(rows, Candidates):
        logits, ids = rows.logits.repeat(NUM_DRAWS, axis=0), rows.token_ids.repeat(NUM_DRAWS, axis=0)
        rows = Candidates(logits, ids, rows.vocab_size, rows.device)
    else:
        rows = rows.expand(NUM_DRAWS, -1)
    return sample(rows, keys["seed"], keys["sequence"], keys["position"])


def p_value(tokens: Tensor, law: list[float]) -> float:
    """Chi-squared test of the draws against a law; 0 if a token of probability 0 was drawn."""
    counts = np.bincount(tokens.numpy(), minlength=len(law))
    expected = np.array(law) * len(tokens)
    if counts[expected == 0].any():
        return 0.0
    return float(stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue)


# A right sampler fails each of these with probability 1e-4; the keys are fixed, so it is decided once.
@few(3)
@pytest.mark.parametrize("axis", ["seed", "sequence", "position"])
@pytest.mark.parametrize(
    "pipeline",
    [Pipeline(), Temperature(0.7) | TopP(0.9), Temperature(1.5) | TopK(3) | TopP(0.9) | MinP(0.05)],
    ids=["plain", "dense", "candidates"],
)
def test_draws_follow_the_law_of_the_row(pipeline: Pipeline, axis: str) -> None:
    law = slow.softmax(pipeline(torch.tensor([LOGITS]))[0].tolist())
    assert p_value(draws(pipeline, axis), law) > 1e-4


def test_a_wrong_law_is_rejected() -> None:
    """Negative controls: another temperature; truncation left out; uniform noise in place of Gumbel's; reused noise."""
    law = slow.softmax(LOGITS)
    assert p_value(draws(Pipeline([Temperature(1.1)]), "position"), law) < 1e-8
    truncated = slow.softmax(Pipeline([TopP(0.9)])(torch.tensor([LOGITS]))[0].tolist())
    assert p_value(draws(Pipeline(), "position"), truncated) == 0
    rng = np.random.default_rng(0)
    uniform = (np.array(LOGITS) + rng.random((NUM_DRAWS, 8)) * 4).argmax(axis=1)
    assert p_value(torch.from_numpy(uniform), law) < 1e-8
    reused = sample(torch.tensor([LOGITS]).expand(NUM_DRAWS, -1), [0] * NUM_DRAWS, [0] * NUM_DRAWS, [0] * NUM_DRAWS)
    assert p_value(reused, law) < 1e-8


def test_unlikely_tokens_are_drawn_as_often_as_they_should() -> None:
    """100,000 draws of a row where 100 tokens share a mass of 2e-3; uniforms of 24 bits would be off in the tail."""
    logits = torch.full((1, 101), math.log(2e-3 / 100))
    logits[0, 0] = math.log(1 - 2e-3)
    unlikely = 0
    for start in range(0, 100_000, 10_000):
        count = range(start, start + 10_000)
        unlikely += int((sample(logits.expand(10_000, -1), [7] * 10_000, [0] * 10_000, count) > 0).sum())
    assert stats.poisson.cdf(unlikely, 200) > 1e-4 and stats.poisson.sf(unlikely - 1, 200) > 1e-4


def test_equals_the_slow_twin() -> None:
    rows = torch.from_numpy(np.random.default_rng(3).normal(0, 2, (200, 12)).astype(np.float32))
    tokens = sample(rows, [9] * 200, [1] * 200, range(200))
    assert tokens.tolist() == [slow.sample(rows[n].tolist(), 9, 1, n) for n in range(200)]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    seeds, sequences, positions = [3, 4, 3, 3, 9], [0, 0, 1, 0, 0], [5, 5, 5, 6, 0]
    whole = sample(rows, seeds, sequences, positions).tolist()
    for n in range(5):
        assert sample(rows[n : n + 1], seeds[n : n + 1], sequences[n : n + 1], positions[n : n + 1]).tolist() == [
            whole[n]
        ]


def test_wide_rows_with_few_tokens_give_the_same_token(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    rows = torch.from_numpy(rng.normal(0, 3, (40, 3000)).astype(np.float32))
    rows[torch.from_numpy(rng.random((40, 3000)) < 0.9)] = -INF
    rows[0] = -INF
    rows[0, 2999] = -8.0
    keys = [6] * 40, [0] * 40, list(range(40))
    sparse = sample(rows, *keys)
    monkeypatch.setattr(selectors, "is_wide", lambda rows: False)
    assert torch.equal(sparse, sample(rows, *keys))
    assert sparse[0] == 2999


def test_the_draw_is_exact_at_a_very_low_temperature() -> None:
    """Logits of 10^5 have gaps of 0.008 in float32; the noise is added to the distance from the largest."""
    row = torch.tensor([[1e5, 1e5, 1e5 - 1]])
    counts = np.bincount(sample(row.expand(20_000, -1), [0] * 20_000, [0] * 20_000, range(20_000)).numpy(), minlength=3)
    law = np.array(slow.softmax([0.0, 0.0, -1.0]))
    assert stats.chisquare(counts, law * 20_000).pvalue > 1e-4


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert greedy(torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0], [-INF, -INF, -5.0]])).tolist() == [1, 0, 2]


def test_equal_candidates_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_vocabulary, "gumbel_at", lambda keys, ids: np.zeros(ids.shape, dtype=np.float32))
    logits = np.array([[1.0, 1.0, 0.0]], dtype=np.float32)
    rows = Candidates(logits, np.array([[7, 4, 2]]), 10, torch.device("cpu"))
    assert sample(rows, [0], [0], [0]).tolist() == [4]


@pytest.mark.parametrize(
    "pipeline", [Pipeline(), TopK(2) | TopP(0.9), Temperature(0.5) | TopP(0.9) | MinP(0.1)], ids=repr
)
class TestFaults:
    def test_no_token_left(self, pipeline: Pipeline) -> None:
        rows = torch.zeros(3, 8)
        rows[1] = -INF
        with pytest.raises(DeadEndError, match="row 1 of the batch"):
            sample(pipeline.narrow(rows), [0] * 3, [0] * 3, [0] * 3)
        with pytest.raises(DeadEndError, match="row 1 of the batch"):
            greedy(pipeline(rows))

    @pytest.mark.parametrize("value", [math.nan, INF])
    def test_not_finite(self, pipeline: Pipeline, value: float) -> None:
        rows = torch.arange(24.0).reshape(3, 8)
        rows[2, 4] = value
        with pytest.raises(NonFiniteLogitsError, match="row 2 of the batch"):
            sample(pipeline.narrow(rows), [0] * 3, [0] * 3, [0] * 3)
        with pytest.raises(NonFiniteLogitsError, match="row 2 of the batch"):
            greedy(pipeline(rows))


def test_faults_tells_all_rows() -> None:
    found = faults(torch.tensor([1.0, -INF, math.nan, INF, 0.0]))
    assert {row: type(error) for row, error in found.items()} == {
        1: DeadEndError, 2: NonFiniteLogitsError, 3: NonFiniteLogitsError,
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("pipeline", [Pipeline(), TopK(50) | TopP(0.9) | MinP(0.01), Pipeline([TopP(0.8)])], ids=repr)
def test_a_gpu_draws_the_same_tokens(pipeline: Pipeline) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(64, 20_000, generator=generator) * 4
    mask = torch.randint(-(2**31), 2**31, (64, 625), generator=generator).to(torch.int32)
    keys = [5] * 64, [0] * 64, list(range(64))
    expected = sample(pipeline.narrow(logits, mask=mask), *keys)
    rows = pipeline.narrow(logits.cuda(), mask=mask.cuda())
    assert torch.equal(sample(rows, *keys).cpu(), expected)
    dense = pipeline(logits.cuda(), mask=mask.cuda())
    assert dense.is_cuda
    assert torch.equal(dense.cpu(), pipeline(logits, mask=mask))
    assert torch.equal(sample(dense, *keys).cpu(), expected)
    on_device = [torch.tensor(key).cuda() for key in keys]
    assert torch.equal(sample(dense, *on_device).cpu(), expected)
    assert torch.equal(greedy(dense).cpu(), greedy(pipeline(logits, mask=mask)))
