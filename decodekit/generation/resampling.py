"""Weights of particles: how even they are, and which particles are continued when they are drawn anew.

With the weights 0.5, 0.3, 0.2, 0 the effective sample size is 1 / (0.25 + 0.09 + 0.04) = 2.6 of 4. Four systematic
points with the offset 0.4 lie at 0.1, 0.35, 0.6, 0.85: the first particle is continued twice, the second and the third
once, the fourth not at all. `settled` puts the second copy of the first into the fourth's place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Resample: TypeAlias = Literal["systematic", "stratified", "multinomial"]


def effective_sample_size(log_weights: Sequence[float]) -> float:
    """(sum of w)^2 / sum of w^2, from 1 for one particle with all weight to N for equal weights; 0 without any (Kong,
    Liu and Wong 1994)."""
    peak = max(log_weights)
    if peak == -math.inf:
        return 0.0
    weights = [math.exp(one - peak) for one in log_weights]
    return math.fsum(weights) ** 2 / math.fsum(weight * weight for weight in weights)


def log_mean(log_weights: Sequence[float]) -> float:
    """The logarithm of the mean weight; -inf without any weight."""
    peak = max(log_weights)
    if peak == -math.inf:
        return -math.inf
    return peak + math.log(math.fsum(math.exp(one - peak) for one in log_weights) / len(log_weights))


def shares(log_weights: Sequence[float]) -> NDArray[np.float64]:
    """Weights that sum to 1, float64 [N]; some weight must be above 0."""
    weights = np.exp(np.array(log_weights) - max(log_weights))
    total: NDArray[np.float64] = weights / weights.sum()
    return total


def ancestors(weights: NDArray[np.float64], uniforms: NDArray[np.float64], resample: Resample) -> list[int]:
    """Which particle each of N new ones continues: particle i is drawn N weights[i] times on average.

    Points of [0, 1) are looked up in the cumulated weights. ``"multinomial"`` takes N independent ones (Gordon, Salmond
    and Smith 1993); ``"stratified"`` one in each N-th (Kitagawa 1996); ``"systematic"`` the same place of each N-th, so
    that particle i is drawn N weights[i] times, rounded down or up (Carpenter, Clifford and Fearnhead 1999).

    Args:
        weights: [N], with the sum 1.
        uniforms: [N], between 0 and 1; systematic points use the first alone.
        resample: how points are placed.
    """
    num_particles = len(weights)
    cumulated = np.cumsum(weights)
    cumulated /= cumulated[-1]
    steps = np.arange(num_particles)
    points = {
        "multinomial": uniforms,
        "stratified": (steps + uniforms) / num_particles,
        "systematic": (steps + uniforms[0]) / num_particles,
    }[resample]
    found = np.searchsorted(cumulated, points, side="right")  # never one without weight
    last = int(np.flatnonzero(weights)[-1])  # a point may round to 1
    return [*np.minimum(found, last).tolist()]


def settled(ancestors: Sequence[int]) -> list[int]:
    """The same ancestors in an order in which every particle that is continued stays where it is, one time at least."""
    places, surplus = list(range(len(ancestors))), list[int]()
    kept: set[int] = set()
    for ancestor in sorted(ancestors):
        if ancestor in kept:
            surplus.append(ancestor)
        kept.add(ancestor)
    for place in range(len(ancestors)):
        if place not in kept:
            places[place] = surplus.pop()
    return places
