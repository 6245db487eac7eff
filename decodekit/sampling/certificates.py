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

To find a leader and to certify it, a few numbers of a row are looked at. With z = 2.4, 2.0, -9.1, ... and T = 0.8 only
the block of 64 tokens with 2.4 is opened, and only its numbers are divided: dividing all 131,072 takes 20 us a row, or
80 where many rows make the system hand out new memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.sampling.fast.candidates import Floats, Ids
from decodekit.sampling.fast.large_vocabulary import block_peaks, distances_above, divided, is_wide, survivors
from decodekit.sampling.noise import Keys, gumbel, host_keys
from decodekit.sampling.selectors import likeliest
from decodekit.sampling.tolerances import MARGIN, NEAR, log_total

Flags: TypeAlias = NDArray[np.bool_]
Floor: TypeAlias = Callable[[Floats], Floats | None]
"""From the largest logit of each row, [N], the least one that counts, [N]; None if all do."""

SEARCHED: Final = 256
"""How many of the likeliest tokens of a row are looked at; of a row on the host all where these are not enough."""


class Blocks(NamedTuple):
    """Wide rows z on the host, float32 [N, V]; the largest z of each block of 64, and the largest z / T of each row."""

    rows: Floats
    peaks: Floats
    largest: Floats


@dataclass(frozen=True, eq=False)
class Scores:
    """Rows z / T: logits z, float32 [N, V], and a temperature T above 0."""

    logits: Tensor
    temperature: float = 1.0

    @cached_property
    def rows(self) -> Tensor:
        """All numbers, float32 [N, V]."""
        return divided(self.logits, self.temperature)

    @cached_property
    def blocks(self) -> Blocks | None:
        """`block_peaks`; None, too, where rows are not wide, there is none, or a largest z / T overflows."""
        found = block_peaks(self.logits) if is_wide(self.logits) and len(self.logits) else None
        if found is None:
            return None
        with np.errstate(over="ignore"):
            largest = found[1].max(axis=1) / np.float32(self.temperature)
        return Blocks(*found, largest) if np.isfinite(largest).all() else None

    def divided_by(self, temperature: float) -> Scores:
        """The scores at another temperature. One division follows the other: T1 T2 would be rounded otherwise."""
        return Scores(self.rows, temperature)


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
        """The distances to the logits of the likelier and the equally likely tokens, [N, M], padded with -inf.

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


def within_min_p(standing: RankStatistics, share: float) -> Flags:
    """It has at least this share of the largest probability."""
    if share == 0.0:
        return np.ones(len(standing.tokens), np.bool_)
    flags: Flags = (standing.largest <= -math.log(share) - MARGIN) | (standing.largest == 0)
    return flags


class Leaders(NamedTuple):
    """A token of each row: the one that `selectors` would take of every part of the row that holds it.

    So it is where no other token comes so near that rounding could decide between them.

    Args:
        tokens: int64 [N], on the host; of a row that is not clear any token.
        are_certified: bool [N].
        given: int64 [N], on the host: tokens that have to be allowed, too, since they keep others from coming; mostly
            the tokens themselves.
    """

    tokens: Tensor
    are_certified: Flags
    given: Tensor


Lead: TypeAlias = Callable[[Scores, Keys, Keys, Keys, Floor | None], Leaders]
"""Finds the leaders of rows from seeds, sequences and positions, int64 [N], as for `selectors.sample`.

With a floor, tokens below it need not be looked at if the likeliest token is allowed, which is `given` then.
"""


def lead_greedy(
    scores: Scores, seeds: Keys = (), sequences: Keys = (), positions: Keys = (), floor: Floor | None = None
) -> Leaders:
    """The largest logit, as `selectors.greedy` takes it; clear where it is finite."""
    peaks, found = likeliest(scores.rows)
    tokens = found.cpu()
    return Leaders(tokens, np.isfinite(peaks.numpy(force=True)), tokens)


def lead_noisy(scores: Scores, seeds: Keys, sequences: Keys, positions: Keys, floor: Floor | None = None) -> Leaders:
    """The largest logit with its noise, as `selectors.sample` takes it."""
    blocks = scores.blocks
    if blocks is not None:
        floors = None if floor is None else floor(blocks.largest)
        keys = host_keys(seeds, sequences, positions)
        ids, counts = survivors(blocks.rows, blocks.peaks, keys, scores.temperature, floors)
        own = ids[:, 0].copy()
        given = own if floor is None else _likeliest_unless(own, scores.temperature, blocks)
        return Leaders(torch.from_numpy(own), counts == 1, torch.from_numpy(given))
    rows = scores.rows
    relative = rows - rows.amax(dim=-1, keepdim=True)  # NaN where there is no finite token, or NaN, or +inf
    noisy = gumbel(seeds, sequences, positions, rows.shape[-1], rows.device).add_(relative)
    best = noisy.topk(min(2, noisy.shape[-1]), dim=-1)
    values = best.values.double().numpy(force=True)
    with np.errstate(invalid="ignore"):
        are_certified = np.isfinite(values[:, 0]) & (values[:, 0] - values[:, -1] > NEAR)
    tokens = best.indices[:, 0].cpu()
    return Leaders(tokens, are_certified, tokens)


def _likeliest_unless(tokens: Ids, temperature: float, blocks: Blocks) -> Ids:
    """The tokens [N], but where one is not as likely as the likeliest of its row, that."""
    found = tokens.copy()
    own = blocks.rows[np.arange(len(tokens)), tokens] / np.float32(temperature)
    for row in np.flatnonzero(own < blocks.largest):
        found[row] = blocks.rows[row].argmax()
    return found
