"""Dynamic temperature, smoothing and XTC against slow twins; XTC's law against its coin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling import (
    XTC,
    Candidates,
    DynamicTemperature,
    LogitsProcessor,
    Pipeline,
    Quadratic,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    sample,
)
from tests.reference import sampling as slow

INF = math.inf
TIED_ROWS = st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(-INF)), min_size=2, max_size=40)
ROWS = st.one_of(TIED_ROWS, st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40)).filter(
    lambda row: max(row) > -INF
)


def same(got: Tensor, expected: list[float], tolerance: float = 1e-5) -> bool:
    return bool(torch.allclose(got.squeeze(0), torch.tensor(expected), rtol=tolerance, atol=tolerance))


def law(logits: Tensor) -> list[float]:
    return logits.double().softmax(dim=-1).squeeze(0).tolist()


@given(ROWS, st.floats(0.1, 1), st.floats(0, 2), st.floats(0.2, 3))
@settings(deadline=None, max_examples=100)
def test_dynamic_temperature(row: list[float], low: float, extra: float, exponent: float) -> None:
    got = DynamicTemperature(low, low + extra, exponent)(torch.tensor([row]))
    assert same(got, slow.dynamic_temperature(row, low, low + extra, exponent), 1e-4)


def test_dynamic_temperature_of_a_sure_and_of_a_flat_law() -> None:
    logits = torch.tensor([[0.0, -200.0, -200.0], [1.0, 1.0, 1.0], [-INF, 7.0, -INF]])
    got = DynamicTemperature(0.5, 2.0)(logits)
    assert got[0].tolist() == [0.0, -400.0, -400.0]
    assert got[1].tolist() == [0.5, 0.5, 0.5]
    assert got[2].tolist() == [-INF, 7.0, -INF]


@given(ROWS, st.floats(0.01, 3), st.floats(1, 3))
@settings(deadline=None, max_examples=100)
def test_quadratic(row: list[float], factor: float, curve: float) -> None:
    got = Quadratic(factor, curve)(torch.tensor([row]))
    assert same(got, slow.quadratic(row, factor, curve), 1e-4)
    before, after = torch.tensor(row).argsort(stable=True), got[0]
    assert (after[before].diff().nan_to_num(nan=0.0) >= -1e-4 * after.abs().clamp(max=1e30).max()).all()  # the order


@pytest.mark.parametrize("shape", [DynamicTemperature(0.5, 1.5), Quadratic(0.2), Quadratic(0.1, 2.5)], ids=repr)
def test_a_shape_acts_on_candidates_as_on_rows(shape: LogitsProcessor) -> None:
    logits = torch.randn(20, 1300, generator=torch.Generator().manual_seed(4)) * 3
    pipeline = TopK(12) | shape | TopP(0.8)
    rows = pipeline.narrow(logits)
    assert isinstance(rows, Candidates)
    expected = TopP(0.8)(shape(TopK(12)(logits), None))
    assert torch.allclose(rows.dense(), expected, rtol=1e-6, atol=1e-6)


# --- XTC -------------------------------------------------------------------------------------------------------------


def xtc_margin(row: list[float], threshold: float) -> float:
    return min(abs(p - threshold) for p in slow.softmax(row))


@example([0.0, 9.999999717180685e-10], 1.0, 0.25, ())  # found: logits that differ and have one float32 probability
@example([0.0, 5.425082847237028e-30], 1.0, 0.25, ())  # found: and one float64 probability
@given(ROWS, st.floats(0, 1), st.floats(0.01, 0.5), st.sampled_from([(), (0,), (1, 0)]))
@settings(deadline=None, max_examples=150)
def test_xtc_is_the_law_over_both_outcomes(
    row: list[float], probability: float, threshold: float, spared: tuple[int, ...]
) -> None:
    assume(xtc_margin(row, threshold) > 1e-5)
    got = law(XTC(probability, threshold, spared)(torch.tensor([row])))
    assert got == pytest.approx(slow.xtc_law(row, probability, threshold, spared), abs=2e-6)


def test_xtc_by_hand() -> None:
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    # 0.4 and 0.3 go when the coin says so; of what is left, 0.2 and 0.1 share the mass 0.3.
    half = XTC(0.5, 0.15)(p.log()).softmax(-1)[0].tolist()
    assert half == pytest.approx([0.2, 0.15, 0.5 * 0.2 + 0.5 * 2 / 3, 0.5 * 0.1 + 0.5 * 1 / 3])
    assert XTC(1.0, 0.15)(p.log())[0, :2].tolist() == [-INF, -INF]
    assert torch.equal(XTC(1.0, 0.35)(p.log()), p.log())  # one token is that likely: it is the least of them
    assert XTC(1.0, 0.15, spared=(0,))(p.log()).softmax(-1)[0].tolist() == pytest.approx([4 / 7, 0, 2 / 7, 1 / 7])
    with pytest.raises(OptionError, match="then must be processors in a list or tuple, got 5"):
        XTC(0.5, then=5)  # type: ignore[arg-type]
    tied = torch.tensor([[0.4, 0.2, 0.2, 0.2]])
    assert XTC(1.0, 0.15)(tied.log()).softmax(-1)[0].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


@example([0.0, 5.425082847237028e-30], 0.5, 0.25, 0.4)  # found, as above
@given(ROWS, st.floats(0.01, 0.99), st.floats(0.02, 0.5), st.sampled_from([0.4, 1.7]))
@settings(deadline=None, max_examples=60)
def test_what_follows_xtc_acts_on_both_outcomes(row: list[float], rho: float, threshold: float, t: float) -> None:
    assume(xtc_margin(row, threshold) > 1e-5)
    got = law(XTC(rho, threshold, then=(Temperature(t),))(torch.tensor([row])))
    whole = slow.softmax(slow.temperature(row, t))
    cut = slow.softmax(slow.temperature(slow.xtc_cut(row, threshold), t))
    assert got == pytest.approx([(1 - rho) * p + rho * q for p, q in zip(whole, cut, strict=True)], abs=5e-6)


LOGITS = torch.tensor([[1.0, 0.5, -0.5, 2.0, -INF, -4.0, 0.0, 0.25]])
NUM_DRAWS = 30_000


def coin_draws(then: Pipeline) -> np.ndarray:
    """XTC as other libraries do it: for each draw a coin, then a draw."""
    coin = np.random.default_rng(5).random(NUM_DRAWS) < 0.4
    cut = torch.tensor([slow.xtc_cut(LOGITS[0].tolist(), 0.12)])
    rows = torch.where(torch.from_numpy(coin)[:, None], then(cut), then(LOGITS))
    return np.bincount(sample(rows, [1] * NUM_DRAWS, [0] * NUM_DRAWS, range(NUM_DRAWS)).numpy(), minlength=8)


def p_value(counts: np.ndarray, expected: list[float]) -> float:
    weights = np.array(expected) * counts.sum()
    if counts[weights == 0].any():
        return 0.0
    return float(stats.chisquare(counts[weights > 0], weights[weights > 0]).pvalue)


def test_draws_with_a_coin_follow_the_marginal() -> None:
    """A right law fails with probability 1e-4 each; the keys are fixed, so it is decided once."""
    assert p_value(coin_draws(Pipeline()), law(XTC(0.4, 0.12)(LOGITS))) > 1e-4
    followed = XTC(0.4, 0.12, then=(Temperature(0.5),))(LOGITS)
    assert p_value(coin_draws(Pipeline([Temperature(0.5)])), law(followed)) > 1e-4


def test_a_wrong_marginal_is_rejected() -> None:
    """Negative controls: always or never cut; the removed mass spread by hand; temperature on the mixture."""
    counts = coin_draws(Pipeline())
    assert p_value(counts, law(LOGITS)) < 1e-8
    assert p_value(counts, law(XTC(1.0, 0.12)(LOGITS))) == 0
    p = np.array(law(LOGITS))
    removed = np.array(slow.xtc_cut(LOGITS[0].tolist(), 0.12)) == -INF
    wrong = np.where(removed, 0.6 * p, p)  # scaled down, without what the others gain relative to each other
    assert p_value(counts, list(wrong / wrong.sum())) < 1e-8
    colder = coin_draws(Pipeline([Temperature(0.5)]))
    assert p_value(colder, law(Temperature(0.5)(XTC(0.4, 0.12)(LOGITS)))) < 1e-8


def test_settings_of_xtc_are_checked() -> None:
    for make, message in (
        (lambda: XTC(1.5), "xtc_probability must be a number from 0 to 1"),
        (lambda: XTC(0.5, 0.6), "leaving XTC out"),
        (lambda: XTC(0.5, 0.0), "xtc_threshold must be"),
        (lambda: XTC(0.5, spared=(-1,)), "spared must be token ids"),
        (lambda: XTC(0.5, then=(RepetitionPenalty(1.1),)), r"RepetitionPenalty(1.1) cannot follow XTC"),
        (lambda: DynamicTemperature(0.0, 1.0), "low must be a finite number above 0"),
        (lambda: DynamicTemperature(1.0, 0.5), "high must be a finite number, at least low"),
        (lambda: Quadratic(0.0), "smoothing_factor"),
        (lambda: Quadratic(0.1, 4.0), "smoothing_curve must be a number from 1 to 3"),
    ):
        with pytest.raises(OptionError) as caught:
            make()
        assert message in str(caught.value)
    assert XTC(0.5) == XTC(0.5, 0.1) and repr(XTC(0.5, spared=(3, 1))) == "XTC(0.5, spared=(1, 3))"
