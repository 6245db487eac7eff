"""Mirostat against slow twins; its state is a function of the prefix, so drafts and rollbacks change nothing."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decodekit.errors import OptionError
from decodekit.sampling import MirostatTruncation, apply_mirostat, sample
from decodekit.sampling.mirostat import mirostat_k, surprise
from tests.reference import sampling as slow

INF = math.inf
TIED_ROWS = st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(-INF)), min_size=2, max_size=40)
ROWS = st.one_of(TIED_ROWS, st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40)).filter(
    lambda row: max(row) > -INF
)


@given(ROWS, st.floats(0.0, 12.0))
@settings(deadline=None, max_examples=100)
def test_version_2_removes_what_is_too_surprising(row: list[float], mu: float) -> None:
    bits = slow.surprise(row)
    assume(min(abs(s - mu) for s in bits) > 1e-4)
    got = apply_mirostat(torch.tensor([row]), torch.tensor([mu]))
    expected = [s <= mu or z == max(row) for s, z in zip(bits, row, strict=True)]
    assert (got[0] > -INF).tolist() == [keep and z > -INF for keep, z in zip(expected, row, strict=True)]


@given(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=60, unique=True), st.floats(1, 8), st.integers(2, 100))
@settings(deadline=None, max_examples=100)
def test_version_1_equals_the_formula(row: list[float], mu: float, num_likeliest: int) -> None:
    ordered = sorted(row, reverse=True)
    assume(all(a - b > 1e-3 for a, b in itertools.pairwise(ordered)))
    got = int(mirostat_k(torch.tensor([row]), torch.tensor([mu]), num_likeliest))
    low, high = (slow.mirostat_k(row, mu + d, num_likeliest) for d in (-1e-4, 1e-4))
    assert low <= got <= high


def test_version_1_of_special_rows() -> None:
    rows = torch.tensor([[1.0] * 6, [-INF, 0.0, -INF, -INF, -INF, -INF], [3.0, 2.0, -INF, -INF, -INF, -INF]])
    counts = mirostat_k(rows, torch.full((3,), 5.0))
    assert counts[0] == 6  # all equal: a flat law has no exponent
    kept = MirostatTruncation(version=1).process(rows, torch.full((3,), 5.0))
    assert (kept > -INF).any(dim=-1).all() and not kept.isnan().any()
    uneven = MirostatTruncation(tau=1.0, version=1).process(
        torch.randn(4, 30) * torch.tensor([[0.1], [1], [3], [9]]), torch.full((4,), 2.0)
    )
    assert (uneven > -INF).sum(dim=-1).min() >= 1


def test_mu_moves_against_the_surprise() -> None:
    logits = torch.tensor([[0.0, -1.0, -2.0]]).expand(2, -1)
    model = MirostatTruncation(tau=1.0, eta=0.5)
    mu = model.start(2)
    assert mu.tolist() == [2.0, 2.0]
    mu = mu + 0.5  # above the surprise of the second token, 2.03 bits
    kept = model.process(logits, mu)
    bits = slow.surprise([0.0, -1.0, -2.0])
    after = model.advance(mu, logits, kept, torch.tensor([0, 1]))
    assert after.tolist() == pytest.approx([2.5 - 0.5 * (bits[0] - 1), 2.5 - 0.5 * (bits[1] - 1)])
    # llama.cpp measures the surprise after the cut: here both tokens are all that is left of the law.
    assert (kept[0] > -INF).tolist() == [True, True, False]
    within = slow.surprise([0.0, -1.0])
    theirs = MirostatTruncation(tau=1.0, eta=0.5, distribution="kept").advance(mu, logits, kept, torch.tensor([0, 1]))
    assert theirs.tolist() == pytest.approx([2.5 - 0.5 * (within[0] - 1), 2.5 - 0.5 * (within[1] - 1)])
    impossible = torch.tensor([[0.0, -INF]])
    assert model.advance(mu[:1], impossible, impossible, torch.tensor([1])).tolist() == [2.5]


def test_the_surprise_of_a_text_comes_near_its_target() -> None:
    """2,000 tokens from a flat model of 8.6 bits: the mean surprise is within 0.2 bits of the target."""
    model = MirostatTruncation(tau=6.0, eta=0.1)
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(1)) * 1.5
    mu, total = model.start(1), 0.0
    bits = surprise(logits)
    for position in range(2000):
        kept = model.process(logits, mu)
        token = sample(kept, [2], [0], [position])
        mu = model.advance(mu, logits, kept, token)
        total += float(bits[0, token])
    assert abs(total / 2000 - 6.0) < 0.2
    assert float((bits * logits.softmax(-1)).sum()) > 7


def test_settings_are_checked() -> None:
    for make in (
        lambda: MirostatTruncation(tau=0.0),
        lambda: MirostatTruncation(eta=-1.0),
        lambda: MirostatTruncation(version=3),
    ):
        with pytest.raises(OptionError):
            make()
    with pytest.raises(OptionError, match='"whole" or "kept"'):
        MirostatTruncation(distribution="none")  # type: ignore[arg-type]
    assert hash(MirostatTruncation()) == hash(MirostatTruncation(tau=5.0))
