"""Particles: legal tokens, each with an unbiased estimate of the mass of all legal tokens as its weight; and which
particles are continued when they are drawn anew.

Of the tokens a 0.5, b 0.3, c 0.2 let b and c be legal. `masked_draws` knows the mask: it takes b with probability 0.6
or c with 0.4, and the weight is 0.5. `rejection_draw` asks about single tokens, drawn without replacement. Say a comes
first and is refused, then b, which is taken; one more is asked about, c, which is legal: the weight is 0.3 + 0.2.

With the weights 0.5, 0.3, 0.2, 0 the effective sample size is 1 / (0.25 + 0.09 + 0.04) = 2.6 of 4. Four systematic
points with the offset 0.4 lie at 0.1, 0.35, 0.6, 0.85: the first particle is continued twice, the second and the third
once, the fourth not at all. `settled` puts the second copy of the first into the fourth's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.decoding.request.settings import NoiseKeys
from decodekit.sampling import sample
from decodekit.sampling.pipeline import apply_bitmask

Resample: TypeAlias = Literal["systematic", "stratified", "multinomial"]


class Draw(NamedTuple):
    """A token, and by what its particle is weighted; no token if none is legal."""

    token: int | None
    log_weight: float


NO_DRAW = Draw(None, -math.inf)


def masked_draws(rows: Tensor, bitmask: Tensor, keys: NoiseKeys) -> list[Draw]:
    """A token of each processed row [L, V] from its masked distribution, weighted by the mass that the mask leaves."""
    masked = apply_bitmask(rows, bitmask)
    log_mass = (masked.logsumexp(dim=-1) - rows.logsumexp(dim=-1)).tolist()  # 0 exactly where all is allowed
    legal = [row for row, mass in enumerate(log_mass) if mass > -math.inf]  # a row of -inf has NaN
    draws = [NO_DRAW] * len(log_mass)
    if legal:
        tokens = sample(masked[torch.tensor(legal, device=rows.device)], *keys.of(legal))
        for row, token in zip(legal, tokens.tolist(), strict=True):
            draws[row] = Draw(token, log_mass[row])
    return draws


def rejection_draw(scores: Tensor, noise: Tensor, is_legal: Callable[[int], bool]) -> Draw:
    """A legal token and an unbiased estimate of the mass of all legal ones, by asking about few tokens.

    This is adaptive weighted rejection sampling in its recursive form (Lipkin et al. 2025, "Fast controlled generation
    from language models with adaptive weighted rejection sampling"). Tokens come in the order of p without replacement:
    x_1 from p, x_2 from p without x_1, ... The first legal one, x_k, is taken. One more is asked about, and the weight
    is

        w = p(x_k) + (1 - p(x_1) - ... - p(x_k)) [x_(k+1) is legal].

    The rejected tokens have no legal mass, so that the distribution of x_k is p given that the token is legal, exactly.
    And given x_1, ..., x_k, the token x_(k+1) comes from the rest R of the vocabulary, in proportion to p: it is legal
    with probability Z(R) / p(R), so that E[w | x_1, ..., x_k] = p(x_k) + Z(R) = Z, whatever x_k is. (It is the estimate
    of Des Raj 1956 for sampling without replacement.) So w is an unbiased estimate of Z given the token, which is all
    that a particle needs, and it is never 0.

    The order is that of log p + Gumbel noise (Kool et al. 2019): its first legal token is the one that a draw from the
    masked distribution takes with the same noise.

    Args:
        scores, noise: [V], processed logits, -inf for what has no probability; standard Gumbel.
        is_legal: asked about each token once at most.
    """
    log_probs = torch.log_softmax(scores.double(), dim=-1)
    order = _descending(log_probs + noise)
    rest = log_probs.exp()
    for token in order:
        rest[token] = 0.0
        if is_legal(token):
            log_p = float(log_probs[token])
            following = next(order, None)
            if following is None or not is_legal(following):
                return Draw(token, log_p)
            # What has not come yet, summed anew: 1 minus what has come would lose a small rest.
            return Draw(token, min(0.0, float(np.logaddexp(log_p, rest.sum().log().item()))))
    return NO_DRAW


def _descending(keys: Tensor) -> Iterator[int]:
    """Indices of the keys above -inf, largest first; few are wanted as a rule."""
    num_known, num_wanted = 0, 32
    while num_known < len(keys):
        top = keys.topk(min(num_wanted, len(keys)))
        for key, index in zip(top.values[num_known:].tolist(), top.indices[num_known:].tolist(), strict=True):
            if not key > -math.inf:  # a row without any probability has NaN
                return
            yield index
        num_known, num_wanted = num_wanted, 8 * num_wanted


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
    """The particle that each of N new ones continues: particle i is drawn N weights[i] times on average.

    Points of [0, 1) are looked up in the cumulated weights. ``"multinomial"`` takes N independent ones (Gordon, Salmond
    and Smith 1993); ``"stratified"`` one in each N-th (Kitagawa 1996); ``"systematic"`` the same place of each N-th, so
    that particle i is drawn N weights[i] times, rounded down or up (Carpenter, Clifford and Fearnhead 1999).

    Args:
        weights: [N], with the sum 1.
        uniforms: [N], between 0 and 1; systematic points use the first alone.
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
