from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from scipy import stats

from decodekit.evaluation.intervals import IntervalEstimate, mean_interval, median_ratio, paired_difference, student_t
from tests.reference.evaluation import plain_bootstrap


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10, 30, 101, 1000])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_quantiles_of_student_are_those_of_scipy(degrees: int, confidence: float) -> None:
    assert student_t(degrees, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)


def test_mean_interval_by_hand() -> None:
    # mean 2, s = 1, t(2) = 4.302653, half width t / √3
    found = mean_interval([1.0, 2.0, 3.0])
    assert found is not None and found.low is not None and found.high is not None
    assert (found.value, found.num_samples) == (2.0, 3)
    assert found.high - found.value == pytest.approx(4.302652729749462 / math.sqrt(3))
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_an_interval_ends_at_the_least_possible_value() -> None:
    values = [1.0, 1.0, 9.0]  # mean ± t s / √3 goes far below 0
    whole, cut = mean_interval(values), mean_interval(values, least=0.0)
    assert whole is not None and cut is not None and whole.low is not None and whole.low < 0
    assert (cut.low, cut.high, cut.value) == (0.0, whole.high, whole.value)
    assert cut.text(digits=1).startswith("3.7 [0.0, ")
    assert mean_interval([5.0, 6.0, 7.0], least=0.0) == mean_interval([5.0, 6.0, 7.0])


def test_too_few_values_have_no_interval() -> None:
    assert mean_interval([]) is None
    assert mean_interval([1.0, 2.0]) == IntervalEstimate(1.5, None, None, 2)


def test_intervals_cover_the_mean_as_often_as_they_say() -> None:
    """1,000 normal samples of 4: the count is binomial(1000, 0.95), outside 920..980 with odds of 1e-4."""
    rng = np.random.default_rng(7)
    found = [mean_interval(list(rng.normal(5.0, 2.0, 4))) for _ in range(1000)]
    covered = sum(
        one is not None and one.low is not None and one.high is not None and one.low <= 5 <= one.high for one in found
    )
    assert 920 <= covered <= 980


def test_paired_difference_takes_examples_as_samples_and_seeds_as_repetition() -> None:
    ours = {("a", 0): 0.9, ("a", 1): 0.7, ("b", 0): 0.5, ("c", 0): 0.4, ("d", 0): 1.0}
    theirs = {("a", 0): 0.5, ("a", 1): 0.5, ("b", 0): 0.3, ("c", 0): 0.4, ("e", 0): 0.0}
    found = paired_difference(ours, theirs)
    expected = mean_interval([0.3, 0.2, 0.0])  # a: (0.4 + 0.2) / 2; d and e have no partner
    assert found is not None and expected is not None
    assert found.value == pytest.approx(expected.value)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_equal_seeds_do_not_make_a_difference_surer() -> None:
    once = paired_difference({(e, 0): v for e, v in zip("abc", (1, 2, 4), strict=True)}, {(e, 0): 0 for e in "abc"})
    often = paired_difference(
        {(e, s): v for e, v in zip("abc", (1, 2, 4), strict=True) for s in range(9)},
        {(e, s): 0 for e in "abc" for s in range(9)},
    )
    assert once == often


def test_pairing_takes_out_what_examples_share() -> None:
    """Negative control: the same values unpaired have an interval fifty times as wide."""
    rng = random.Random(3)
    hardness = {f"e{i}": rng.gauss(0, 1) for i in range(20)}
    base = {(e, 0): h for e, h in hardness.items()}
    ours = {(e, 0): h + 0.1 + rng.gauss(0, 0.01) for e, h in hardness.items()}
    paired = paired_difference(ours, base)
    alone = mean_interval(list(ours.values()))
    assert paired is not None and paired.low is not None and alone is not None and alone.low is not None
    assert paired.low > 0.08
    assert alone.value - alone.low > 50 * (paired.value - paired.low)


def test_ratio_of_medians_agrees_with_plain_resampling() -> None:
    rng = random.Random(5)
    tops = {f"e{i}": [rng.uniform(2, 3) for _ in range(rng.randint(1, 3))] for i in range(6)}
    bottoms = {name: [value / rng.uniform(1.8, 2.2) for value in values] for name, values in tops.items()}
    found = median_ratio(tops, bottoms)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(plain_bootstrap(tops, bottoms))
    top, bottom = (statistics.median([value for one in side.values() for value in one]) for side in (tops, bottoms))
    assert found.value == pytest.approx(top / bottom)


def test_a_constant_ratio_of_constant_times_is_certain() -> None:
    found = median_ratio({name: [2.0, 2.0] for name in "abcd"}, {name: [1.0, 1.0] for name in "abcd"})
    assert found == IntervalEstimate(2.0, 2.0, 2.0, 4)


def test_ratios_need_pairs() -> None:
    assert median_ratio({"a": [1.0]}, {"b": [1.0]}) is None
    assert median_ratio({"a": [3.0]}, {"a": [2.0]}) == IntervalEstimate(1.5, None, None, 1)
    with pytest.raises(ValueError, match="2 measurements are paired with 1"):
        median_ratio({"a": [1.0, 2.0]}, {"a": [1.0]})


def test_estimates_as_text() -> None:
    assert IntervalEstimate(0.97, 0.95, 0.99, 3).text() == "0.970 ±0.020"
    assert IntervalEstimate(0.97, None, None, 2).text() == "0.970"
    assert IntervalEstimate(1.8, 1.7, 2.2, 9).text(digits=1) == "1.8 [1.7, 2.2]"
    assert IntervalEstimate(0.0021, 0.0020, 0.0022, 3).text(1e3, 2) == "2.10 ±0.10"
