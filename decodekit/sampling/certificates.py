"""Certificates: the token that a row would take is the one that it takes under every mask that allows it.

A constraint need not be asked about 131,072 tokens where one is wanted. Say the model likes ``}`` best, and top-p with
p = 0.9 follows:

    token              }      ,      ]      "     ...
    probability        0.62   0.21   0.08   0.03  0.06 together
    the leader         ,      it has the largest logit with its noise, of the whole row
    the certificate    0.62 (1 - 0.9) < 0.9 * 0.21: even if } is allowed and all behind , is forbidden, the tokens
                       before , have less than 0.9 of the mass that is left, so that top-p keeps ,
    the question       may , come? yes: it is the draw under the mask, whatever the mask is

The leader of all tokens is the leader of those that a mask leaves, if it is among them and no truncation removes it
there. To forbid tokens only improves the rank and the probability of the others, hence a token with probability P is
kept under every mask that allows it

============  =======================================================================================================
top-k         if fewer than k tokens are likelier
top-p         if A (1 - p) < p P, where A is the probability of the tokens that are likelier or as likely
min-p         if P >= min_p times the largest probability: that of the allowed tokens is no larger
epsilon, eta  if P >= epsilon, which is never below eta's limit
top-a         if P >= a times the largest probability m: among tokens of mass Z, a m^2 / Z is less than a m, as m < Z
============  =======================================================================================================

Temperatures, biases and a watermark give each token a logit of its own and need none. Every other processor has no
certificate unless it says so (`LogitsProcessor.keeps`). Where rounding could decide, there is no certificate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.sampling.fast.large_vocabulary import distances_above
from decodekit.sampling.scores import Scores
from decodekit.sampling.tolerances import MARGIN, log_total

Flags: TypeAlias = NDArray[np.bool_]

SEARCHED: Final = 256
"""How many of the likeliest tokens of a row are looked at; of a row on the host all where these are not enough."""


@dataclass(frozen=True, eq=False)
class RankStatistics:
    """The standing of one token of each row among the others.

    Args:
        scores: of N rows; or the rows, float32 [N, V].
        tokens: int64 [N], with finite logits.
    """

    scores: Scores | Tensor
    tokens: Tensor

    @cached_property
    def logits(self) -> Tensor:
        """The rows, float32 [N, V]."""
        return self.scores.rows if isinstance(self.scores, Scores) else self.scores

    @cached_property
    def distances(self) -> NDArray[np.float64]:
        """The distances to the logits of the likelier and the equally likely tokens, [N, M]; padded with -inf.

        +inf is among them where tokens may be missing.
        """
        if isinstance(self.scores, Scores) and self.scores.blocks is not None:
            rows, peaks, _ = self.scores.blocks
            few = distances_above(rows, peaks, self.tokens.numpy(), self.scores.temperature, SEARCHED)
            if few is not None:
                return few
        own = self.logits.gather(-1, self.tokens[:, None])
        if self.logits.device.type == "cpu":
            values = self.logits.numpy(force=True)
            own_values = own.numpy(force=True)
            others = [row[np.flatnonzero(row >= one)] for row, one in zip(values, own_values, strict=True)]
            found = np.full((len(values), max(map(len, others), default=0) or 1), -np.inf)
            with np.errstate(invalid="ignore"):  # rows without a token
                for row, (above, one) in enumerate(zip(others, own_values, strict=True)):
                    found[row, : len(above)] = above.astype(np.float64) - one
            return _without_itself(found)
        num_searched = min(SEARCHED, self.logits.shape[-1])
        top = self.logits.topk(num_searched, dim=-1).values
        above = torch.where(top >= own, top.double() - own.double(), -math.inf)
        found = _without_itself(above.numpy(force=True))
        if num_searched < self.logits.shape[-1]:
            found[(top[:, -1:] >= own).numpy(force=True)[:, 0], 0] = np.inf
        return found

    @cached_property
    def largest(self) -> NDArray[np.float64]:
        """The distance to the logit of the likeliest token, [N]; 0 if none is above."""
        largest: NDArray[np.float64] = self.distances.max(axis=1, initial=0.0)
        return largest

    @cached_property
    def log_probabilities(self) -> NDArray[np.float64]:
        """ln P, [N]."""
        total: NDArray[np.float64] = log_total(self.logits)[:, 0].double().numpy(force=True)
        return -total - self.largest


def _without_itself(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove one 0 of each row: the token's own."""
    distances[np.arange(len(distances)), (distances == 0).argmax(axis=1)] = -np.inf
    return distances


def within_top_k(standing: RankStatistics, k: int, *, exact: bool = False) -> Flags:
    """Fewer than k tokens are likelier; with `exact`, or as likely."""
    is_before = standing.distances >= 0 if exact else standing.distances > 0
    flags: Flags = np.count_nonzero(is_before, axis=1) < k
    return flags


def within_top_p(standing: RankStatistics, p: float) -> Flags:
    """The tokens before it cannot reach a share p of what is left without it: A (1 - p) < p P."""
    if p == 1.0:
        return np.ones(len(standing.tokens), np.bool_)
    with np.errstate(over="ignore"):
        before = np.exp(standing.distances).sum(axis=1)  # A / P
    flags: Flags = before * (1.0 - p + MARGIN) < p * (1.0 - MARGIN)
    return flags


def within_min_p(standing: RankStatistics, share: float) -> Flags:
    """It has at least this share of the largest probability."""
    if share == 0.0:
        return np.ones(len(standing.tokens), np.bool_)
    flags: Flags = (standing.largest <= -math.log(share) - MARGIN) | (standing.largest == 0)
    return flags


def within_epsilon(standing: RankStatistics, epsilon: float) -> Flags:
    """Its probability is at least epsilon."""
    flags: Flags = (standing.log_probabilities >= math.log(epsilon) + MARGIN) | (standing.largest == 0)
    return flags
