"""Sequential Monte Carlo over texts: weights that make up for what masking locally does wrong.

A mask makes every text legal and changes the law: a token that the constraint forces costs nothing, however unlikely
the model holds it, so that texts with likely beginnings and unlikely ends come too often. The law that is meant is that
of the model given that the constraint holds,

    target(y) = P(y) / Z  for the legal texts y,    P(y) = product of P_t(y_t | y_<t),    Z = sum of P(y) over them.

P_t is the processed law of one position *without* the mask: biases and penalties, temperature, truncations. It has to
be a law that does not know the constraint, or the mass that a mask leaves of it would not be a probability of the
model. So here, and only here, a truncation comes before the mask: what top-k leaves may be all illegal, and then the
prefix has no legal continuation under P. A text ends with an end-of-sequence token, whose probability counts, or where
the constraint leaves nothing else, which costs nothing.

N particles each draw their tokens from the masked law, and are weighted by what the mask leaves, w *= Z_t (Lew et al.
2023, "Sequential Monte Carlo steering of large language models using probabilistic programs"; Loula et al. 2025,
"Syntactic and semantic control of large language models via sequential Monte Carlo"). When the weights become uneven,
the particles are drawn anew, with replacement, in proportion to them. Then the mean weight, times those of the times
before, is an unbiased estimate of Z, and for every function f of a text the weighted mean of f times that estimate is
one of Z E[f(y)] (Del Moral 2004; also where the weights say when to draw anew). The law of one text that is drawn from
the particles tends to the target as N grows; its bias is of order 1/N.

Adaptive weighted rejection sampling needs no mask: `rejection_draw` asks about one token after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch

from decodekit.errors import DecodekitError, OptionError, UselessOptionError
from decodekit.sampling.checks import is_number

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Method: TypeAlias = Literal["smc", "awrs"]
Resample: TypeAlias = Literal["systematic", "stratified", "multinomial"]
Returns: TypeAlias = Literal["draw", "best"]
Predicate: TypeAlias = Callable[[bytes, bool], bool]
"""Whether a text is legal so far, or (second argument) as a whole."""


@dataclass(frozen=True)
class ParticleOptions:
    """How particles are drawn and weighted; see `strategy.Particles`."""

    num_particles: int = 8
    method: Method = "smc"
    resample: Resample = "systematic"
    threshold: float = 0.5
    returns: Returns = "draw"
    predicate: Predicate | None = None

    def _option_faults(self) -> Iterator[DecodekitError]:
        for name, kinds in (("method", Method), ("resample", Resample), ("returns", Returns)):
            value = getattr(self, name)
            if value not in get_args(kinds):
                names = ", ".join(f'"{one}"' for one in get_args(kinds))
                yield OptionError(f"{name}={value!r} is none of {names}", at=name)
        if not is_number(self.threshold) or not 0 <= self.threshold <= 1:
            yield OptionError(f"threshold={self.threshold!r} is no number from 0 to 1", at="threshold")
        elif self.threshold == 0 and self.resample != "systematic":
            cause = f"resample={self.resample!r} has no effect with threshold=0, which never draws anew"
            yield UselessOptionError(cause, at="resample")
        predicate: object = self.predicate
        if predicate is not None and not callable(predicate):
            yield OptionError(f"predicate={predicate!r:.60} is no function of bytes and a bool", at="predicate")
        elif predicate is not None and self.method == "smc":
            yield OptionError(
                "a predicate has no mask: it would have to be asked about every token of the vocabulary",
                at="predicate",
                hint='method="awrs", which asks about the tokens that are drawn',
            )


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


class Draw(NamedTuple):
    """A token, and by what its particle is weighted; no token if none is legal."""

    token: int | None
    log_weight: float


NO_DRAW = Draw(None, -math.inf)


def rejection_draw(scores: Tensor, noise: Tensor, is_legal: Callable[[int], bool]) -> Draw:
    """A legal token and an unbiased estimate of the mass of all legal ones, by asking about few tokens.

    This is adaptive weighted rejection sampling in its recursive form (Lipkin et al. 2025, "Fast controlled generation
    from language models with adaptive weighted rejection sampling"). Tokens come in the order of p without replacement:
    x_1 from p, x_2 from p without x_1, ... The first legal one, x_k, is taken. One more is asked about, and the weight
    is

        w = p(x_k) + (1 - p(x_1) - ... - p(x_k)) [x_(k+1) is legal].

    The rejected tokens have no legal mass, so that the law of x_k is p given that the token is legal, exactly. And
    given x_1, ..., x_k, the token x_(k+1) comes from the rest R of the vocabulary, in proportion to p: it is legal with
    probability Z(R) / p(R), so that E[w | x_1, ..., x_k] = p(x_k) + Z(R) = Z, whatever x_k is. (It is the estimate of
    Des Raj 1956 for sampling without replacement.) So w is an unbiased estimate of Z given the token, which is all that
    a particle needs, and it is never 0.

    The order is that of log p + Gumbel noise (Kool et al. 2019): its first legal token is the one that a draw from the
    masked law takes with the same noise.

    Args:
        scores: [V], processed logits, -inf for what has no probability.
        noise: [V], standard Gumbel.
        is_legal: asked about each token once at most.
    """
    law = torch.log_softmax(scores.double(), dim=-1)
    order = _descending(law + noise)
    rest = law.exp()
    for token in order:
        rest[token] = 0.0
        if is_legal(token):
            log_p = float(law[token])
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
