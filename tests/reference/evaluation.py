"""Slow twins of the evaluation room: everything counted anew, draw by draw and n-gram by n-gram."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from decodekit.evaluation.intervals import NUM_RESAMPLES


def grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words)) if i + n <= len(words)]


def plain_bleu(hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """BLEU with all counts counted anew, order by order."""
    if not hypothesis:
        return 0.0
    precisions = []
    for n in range(1, min(4, len(hypothesis)) + 1):
        matched = 0
        for gram, count in Counter(grams(hypothesis, n)).items():
            matched += min(count, max(grams(reference, n).count(gram) for reference in references))
        total = len(hypothesis) - n + 1
        precisions.append(matched / total if n == 1 else (matched + 1) / (total + 1))
    nearest = sorted(references, key=lambda one: (abs(len(one) - len(hypothesis)), len(one)))[0]
    brevity = 1.0 if len(hypothesis) >= len(nearest) else math.exp(1 - len(nearest) / len(hypothesis))
    return brevity * math.prod(precisions) ** (1 / len(precisions))


def plain_bootstrap(tops: Mapping[str, Sequence[float]], bottoms: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The interval drawn example by example, with lists."""
    names = sorted(tops)
    draws = np.random.default_rng(0).integers(len(names), size=(NUM_RESAMPLES, len(names)))
    ratios = []
    for draw in draws:
        chosen = [names[i] for i in draw]
        top = statistics.median([value for name in chosen for value in tops[name]])
        bottom = statistics.median([value for name in chosen for value in bottoms[name]])
        ratios.append(top / bottom)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
