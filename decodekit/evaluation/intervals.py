"""Intervals of figures: means with Student's t, paired differences, ratios of paired medians.

Everything here is a function of numbers. Fewer than `MIN_SAMPLES` values give a figure without an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import numpy as np

CONFIDENCE = 0.95
MIN_SAMPLES = 3
"""Fewest independent values from which an interval is told."""

NUM_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A figure with its 95 % interval.

    Args:
        value: the figure.
        low, high: ends of the interval; None where there are too few values to tell.
        num_samples: how many independent values it comes from.
    """

    value: float
    low: float | None
    high: float | None
    num_samples: int

    def text(self, scale: float = 1.0, digits: int = 3) -> str:
        """``0.971 ±0.012``, or the ends where they are not equally far; without an interval the figure alone."""
        shown = f"{self.value * scale:,.{digits}f}"
        if self.low is None or self.high is None:
            return shown
        below, above = (self.value - self.low) * scale, (self.high - self.value) * scale
        if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-12):
            return f"{shown} ±{above:.{digits}f}"
        return f"{shown} [{self.low * scale:,.{digits}f}, {self.high * scale:,.{digits}f}]"


def mean_interval(values: Sequence[float], least: float = -math.inf) -> IntervalEstimate | None:
    """The mean of independent values, and mean ± t s / √n, as far as it is not below the `least` possible value.

    s is the sample standard deviation (n - 1 below), t the 97.5 % quantile of Student's distribution with n - 1 degrees
    of freedom (Student 1908). None without values.
    """
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n < MIN_SAMPLES:
        return IntervalEstimate(mean, None, None, n)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = student_t(n - 1) * deviation / math.sqrt(n)
    return IntervalEstimate(mean, max(mean - half, least), mean + half, n)


def paired_difference(
    ours: Mapping[tuple[str, int], float], baseline: Mapping[tuple[str, int], float]
) -> IntervalEstimate | None:
    """The mean of ours - baseline over the pairs that both have, with its interval over examples.

    Differences of pairs take out what examples have in common, such as being hard. Those of one example at several
    seeds are not independent values (with greedy decoding they are equal), so they are averaged first, and Student's t
    is over examples: a clustered, paired interval (Miller 2024, "Adding Error Bars to Evals", sections 2.2 and 4).

    Args:
        ours, baseline: values by (example, seed).
    """
    by_example: dict[str, list[float]] = {}
    for pair in ours.keys() & baseline.keys():
        by_example.setdefault(pair[0], []).append(ours[pair] - baseline[pair])
    return mean_interval([math.fsum(values) / len(values) for _, values in sorted(by_example.items())])


def median_ratio(
    numerators: Mapping[str, Sequence[float]], denominators: Mapping[str, Sequence[float]]
) -> IntervalEstimate | None:
    """The ratio of two medians of paired measurements, with a bootstrap interval over examples.

    Pairs stay together when resampling, and so do the measurements of one example: examples are drawn with replacement,
    `NUM_RESAMPLES` times, and the ends are the 2.5 % and 97.5 % quantiles of the ratios (percentile bootstrap of
    clusters; Efron and Tibshirani 1993, chapters 8 and 13). The draws are the same at every call.

    Args:
        numerators: times by example, several to an example, in the order of their measurement.
        denominators: the same for the other side; both have the same number of measurements of an example.

    Raises:
        ValueError: an example has unequal numbers of measurements.
    """
    names = sorted(name for name in numerators.keys() & denominators.keys() if len(numerators[name]))
    for name in names:
        if len(numerators[name]) != len(denominators[name]):
            raise ValueError(f"{name}: {len(numerators[name])} measurements are paired with {len(denominators[name])}")
    if not names:
        return None
    # [examples, measurements], NaN after the shorter rows
    tops, bottoms = (
        np.array([*zip_longest(*(side[name] for name in names), fillvalue=np.nan)]).T
        for side in (numerators, denominators)
    )
    ratio = float(np.nanmedian(tops) / np.nanmedian(bottoms))
    if len(names) < MIN_SAMPLES:
        return IntervalEstimate(ratio, None, None, len(names))
    draws = np.random.default_rng(0).integers(len(names), size=(NUM_RESAMPLES, len(names)))
    flat = (NUM_RESAMPLES, -1)
    ratios = np.nanmedian(tops[draws].reshape(flat), axis=1) / np.nanmedian(bottoms[draws].reshape(flat), axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return IntervalEstimate(ratio, float(low), float(high), len(names))


@lru_cache(maxsize=256)
def student_t(degrees: int, confidence: float = CONFIDENCE) -> float:
    """t such that a Student variable lies in [-t, t] with this probability.

    With theta = atan(t / √degrees) the probability is a finite sum of powers of cos theta (Abramowitz and Stegun 1964,
    26.7.3 and 26.7.4), which grows with theta; theta is found by halving.

    Args:
        degrees: degrees of freedom, from 1 on.
        confidence: the probability, between 0 and 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_probability(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _central_probability(theta: float, degrees: int) -> float:
    sine, cosine = math.sin(theta), math.cos(theta)
    is_odd = degrees % 2
    total = 0.0
    term = cosine if is_odd else 1.0
    for power in range(is_odd, degrees - 1, 2):  # the exponents of the cosine: ..., degrees - 2
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    if is_odd:
        return 2 / math.pi * (theta + sine * total)
    return sine * total
