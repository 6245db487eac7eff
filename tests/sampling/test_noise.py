"""Noise is a pure function of its four keys, and looks random along each of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from decodekit.sampling import noise
from tests.reference import sampling as slow
from tests.sizes import few

CPU = torch.device("cpu")
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, st.integers(0, 2**31), st.integers(0, 2**31), st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_equals_the_formula(seed: int, sequence: int, position: int, vocab_size: int) -> None:
    got = noise.gumbel([seed], [sequence], [position], vocab_size)
    expected = [slow.gumbel(seed, sequence, position, token) for token in range(vocab_size)]
    assert got.dtype == torch.float32
    assert torch.equal(got, torch.tensor([expected], dtype=torch.float64).to(torch.float32))


@given(st.lists(INT64, min_size=1, max_size=6))
@settings(deadline=None, max_examples=50)
def test_device_integers_equal_host_integers(values: list[int]) -> None:
    host = noise.mix_uint64(np.array(values, dtype=np.int64).view(np.uint64))
    assert noise.mix_int64(torch.tensor(values)).tolist() == host.view(np.int64).tolist()
    keys = torch.tensor(values), torch.arange(len(values)), torch.arange(len(values)) * 7
    on_host = noise.host_keys(*keys)
    assert noise.device_keys(*keys, CPU).flatten().tolist() == on_host.view(np.int64).tolist()
    assert noise.device_keys(*(key.tolist() for key in keys), CPU).flatten().tolist() == on_host.view(np.int64).tolist()
    # What a GPU computes, here on the CPU.
    on_device = noise._device_gumbel(noise.device_keys(*keys, CPU) + noise._device_counters(9, CPU))
    host_noise = noise.gumbel(*keys, 9)
    assert torch.allclose(on_device, host_noise, rtol=2e-7, atol=0)
    assert torch.equal(on_device, host_noise)  # but for one number in 10^8


@pytest.mark.gpu
def test_a_gpu_computes_the_same_noise() -> None:
    keys = torch.arange(64), torch.arange(64) % 3, torch.arange(64) * 11
    host = noise.gumbel(*keys, 50_000)
    device = noise.gumbel(*(key.cuda() for key in keys), 50_000)
    assert device.is_cuda
    assert torch.allclose(device.cpu(), host, rtol=2e-7, atol=0)
    assert (device.cpu() != host).float().mean() < 1e-6
    ids = torch.arange(0, 50_000, 17)
    assert np.array_equal(noise.gumbel_at(noise.host_keys(*keys)[:, None], ids.numpy()), host[:, ::17].numpy())


def test_does_not_depend_on_batch_width_or_selection() -> None:
    seeds, sequences, positions = [5, 5, 7, 5], [0, 1, 0, 0], [3, 3, 3, 4]
    whole = noise.gumbel(seeds, sequences, positions, 1000)
    for n in range(4):
        alone = noise.gumbel(seeds[n : n + 1], sequences[n : n + 1], positions[n : n + 1], 1000)
        assert torch.equal(alone[0], whole[n])
    assert torch.equal(noise.gumbel(seeds, sequences, positions, 17), whole[:, :17])
    ids = torch.tensor([[999, 0, 5], [5, 999, 0], [1, 2, 3], [3, 2, 1]])
    keys = noise.host_keys(seeds, sequences, positions)
    assert np.array_equal(noise.gumbel_at(keys[:, None], ids.numpy()), whole.gather(1, ids).numpy())
    tensors = torch.tensor(seeds), torch.tensor(sequences), torch.tensor(positions)
    assert torch.equal(noise.gumbel(*tensors, 1000), whole)


def test_calls_do_not_disturb_each_other() -> None:
    first = noise.gumbel([1], [0], [0], 50)
    first.fill_(0)
    torch.rand(3)
    assert torch.equal(noise.gumbel([1], [0], [0], 50), noise.gumbel([1], [0], [0], 50))
    assert noise.gumbel([1], [0], [0], 50).abs().max() > 0


def test_extreme_bits_give_finite_noise() -> None:
    lowest, highest = noise._gumbel_of_bits(np.array([0, 2**52 - 1], dtype=np.uint64)).tolist()
    assert lowest == pytest.approx(-math.log(53 * math.log(2)), abs=1e-6)
    assert highest == pytest.approx(53 * math.log(2), abs=1e-5)


def uniforms(values: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The uniforms behind Gumbel noise, flat."""
    return np.exp(-np.exp(-values.flatten().numpy().astype(np.float64)))


# Each of the tests below rejects a perfect generator with probability 1e-4 per case (about 20 cases). The keys are
# fixed, so each either always passes or always fails.
CHANCE = 1e-4


def along(axis: str, start: int, count: int, vocab_size: int = 1) -> Tensor:
    """Noise with one key counting up from ``start`` and the others fixed."""
    keys = {"seed": [12345] * count, "sequence": [0] * count, "position": [0] * count}
    if axis == "token":
        return noise.gumbel([12345], [0], [0], start + count)[:, start:]
    keys[axis] = list(range(start, start + count))
    return noise.gumbel(keys["seed"], keys["sequence"], keys["position"], vocab_size)


AXES = ["seed", "sequence", "position", "token"]


@pytest.mark.parametrize("axis", AXES)
def test_standard_gumbel_along_each_key(axis: str) -> None:
    values = along(axis, 0, 50_000).flatten().numpy().astype(np.float64)
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > CHANCE
    # Mean 0.5772, variance pi^2 / 6; standard errors 0.0057 and 0.0154 at n = 50,000 (excess kurtosis 12/5); 4 of them.
    assert values.mean() == pytest.approx(np.euler_gamma, abs=4 * math.sqrt(math.pi**2 / 6 / 50_000))
    assert values.var() == pytest.approx(math.pi**2 / 6, abs=4 * (math.pi**2 / 6) * math.sqrt(4.4 / 50_000))


@few(3)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("lag", [1, 2, 64])
def test_neighbours_along_each_key_are_independent(axis: str, lag: int) -> None:
    values = uniforms(along(axis, 0, 40_000))
    cells = np.histogram2d(values[:-lag], values[lag:], bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.flatten()).pvalue > CHANCE


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(["seed", "sequence", "position"], 2)))
def test_two_keys_cannot_be_exchanged(one: str, other: str) -> None:
    """A linear key would give (seed 3, position 5) the noise of (seed 5, position 3), or of the same sum."""
    grid = [(i, j) for i in range(100) for j in range(100)]
    keys = {"seed": [0] * 10_000, "sequence": [0] * 10_000, "position": [0] * 10_000}
    keys[one], keys[other] = [i for i, _ in grid], [j for _, j in grid]
    words = noise.host_keys(keys["seed"], keys["sequence"], keys["position"])
    assert len(set(words.tolist())) == 10_000
    values = uniforms(noise.gumbel(keys["seed"], keys["sequence"], keys["position"], 1)).reshape(100, 100)
    above = np.triu_indices(100, 1)
    cells = np.histogram2d(values[above], values.T[above], bins=8, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.flatten()).pvalue > CHANCE


def test_rows_are_independent_of_each_other() -> None:
    values = noise.gumbel([0] * 500, [0] * 500, list(range(500)), 500).numpy().astype(np.float64)
    for matrix in (values, values.T):
        correlations = np.corrcoef(matrix)[np.triu_indices(500, 1)]
        # 124,750 correlations of 500 pairs, each about normal with deviation 0.0447; the largest is below 5.5 of them.
        assert np.abs(correlations).max() < 5.5 / math.sqrt(500)
        assert correlations.std() == pytest.approx(1 / math.sqrt(500), rel=0.02)


def test_the_upper_tail_has_the_right_mass() -> None:
    """P(G > g) is about exp(-g); float32 uniforms would end at g = 16.6 and be coarse from 10 on."""
    values = noise.gumbel([0] * 40, [0] * 40, list(range(40)), 50_000)
    for threshold in (4.0, 8.0, 11.0):
        expected = -math.expm1(-math.exp(-threshold)) * values.numel()
        found = int((values > threshold).sum())
        assert stats.poisson.sf(found - 1, expected) > CHANCE and stats.poisson.cdf(found, expected) > CHANCE


def test_a_weak_hash_is_rejected() -> None:
    """Negative control: the tests above see a generator without mixing."""
    counters = (torch.arange(1, 40_001) * noise.SIGNED_GOLDEN).to(torch.int64)
    values = ((counters >> 12) & ((1 << 52) - 1)).numpy() / 2.0**52
    cells = np.histogram2d(values[:-1], values[1:], bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.flatten()).pvalue < 1e-12
