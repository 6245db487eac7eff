"""Truncations that look at the whole distribution of a row, such as typical, eta, top-n-sigma and p-less sampling.

Each keeps the likeliest token, or the most typical one, whatever its setting. Tokens equal in what decides are kept or
removed together, so that none of these depends on the order of a sort; what is at a limit but for rounding is kept
(see `tolerances`).

Notation: the logits z are float32 [N, V], p = softmax(z), H = -sum(p ln p) in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodekit.sampling.certificates import Flags, RankStatistics, within_min_p
from decodekit.sampling.checks import COUNT, FLAG, INSIDE, MASS, POSITIVE, SHARE
from decodekit.sampling.options.declared import Option, option, within
from decodekit.sampling.pipeline import LogitsProcessor, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.tolerances import MARGIN, log_total, lowest_kept, precise, reached, stretched, widened


def entropy(logits: Tensor) -> Tensor:
    """H of each row [..., V] in nats, float64 [..., 1], in which places of -inf do not change it.

    A row without tokens, or with NaN, has the entropy NaN.
    """
    log_p = precise(logits).log_softmax(dim=-1)
    total = -_p_log_p(log_p).sum(dim=-1, keepdim=True)
    return torch.where(log_p.isnan().any(dim=-1, keepdim=True), math.nan, total)


def _p_log_p(log_p: Tensor) -> Tensor:
    return torch.where(log_p > -math.inf, log_p.exp() * log_p, 0.0)


def _at_least(logits: Tensor, floor: Tensor | float) -> Tensor:
    """Keep ln p >= floor [..., 1], and the likeliest tokens. Comparisons with NaN are false and remove nothing."""
    distance = widened(-log_total(logits) - floor)
    return logits.masked_fill(logits < lowest_kept(logits, distance), -math.inf)


@dataclass(frozen=True, repr=False)
class Typical(LogitsProcessor):
    """Keep the tokens whose surprise is nearest to the entropy, with this mass (Meister et al. 2022).

    Locally typical sampling. Ordered by abs(-ln p - H): the shortest prefix with this mass, and what deviates as little
    as its last token, as in transformers. llama.cpp wants a mass *above* the setting and breaks ties by its sort.
    """

    mass: float = field(metadata=option("typical_p", MASS, off=(1,)))
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The locally typical tokens."""
        if self.mass == 1.0:
            return logits
        relative = logits - logits.amax(dim=-1, keepdim=True)
        # -ln p - H = -relative + ln sum e^relative - H, where the last two are about as large.
        centre = (log_total(logits) - entropy(logits)).to(torch.float32)
        deviations, ids = (centre - relative).abs().sort(dim=-1)
        masses = precise(relative.exp().gather(-1, ids)).cumsum(dim=-1)
        before = (masses < reached(self.mass) * masses[..., -1:]).sum(dim=-1, keepdim=True)
        limit = deviations.gather(-1, before.clamp(max=logits.shape[-1] - 1))
        removed = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, ids, deviations > widened(limit))
        return logits.masked_fill(removed, -math.inf)


@dataclass(frozen=True, repr=False)
class Epsilon(LogitsProcessor):
    """Keep tokens of at least this probability (Hewitt et al. 2022)."""

    epsilon: float = field(metadata=option("epsilon_cutoff", INSIDE, off=(0,)))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """Its probability is at least epsilon, which the limit never exceeds."""
        flags: Flags = (standing.log_probabilities >= math.log(self.epsilon) + MARGIN) | (standing.largest == 0)
        return flags

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= epsilon."""
        return _at_least(logits, math.log(self.epsilon))


@dataclass(frozen=True, repr=False)
class Eta(Epsilon):
    """As `epsilon_cutoff`, with a limit that falls where the distribution is flat (Hewitt et al. 2022).

    It is min(epsilon, sqrt(epsilon) e^-H).
    """

    epsilon: float = field(metadata=option("eta_cutoff", INSIDE, off=(0,)))

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= min(epsilon, sqrt(epsilon) e^-H)."""
        log_epsilon = math.log(self.epsilon)
        return _at_least(logits, (0.5 * log_epsilon - entropy(logits)).clamp(max=log_epsilon))


@dataclass(frozen=True, repr=False)
class TopNSigma(LogitsProcessor):
    """Keep logits within this many standard deviations of the largest (Tang et al. 2024).

    Of the finite ones. The standard deviation is that of the population, as in llama.cpp; the authors' code divides by
    the number less one. A temperature before or after changes nothing of what is kept. Of two tokens the second is
    exactly two deviations below the first, whatever the logits, so that n = 2 keeps both.
    """

    n: float = field(metadata=option("top_n_sigma", POSITIVE))
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with z >= max z - n std(z)."""
        is_left = logits > -math.inf
        count = is_left.sum(dim=-1, keepdim=True).clamp(min=1)
        values = precise(torch.where(is_left, logits, 0.0))
        mean = values.sum(dim=-1, keepdim=True) / count
        variance = torch.where(is_left, (values - mean).square(), 0.0).sum(dim=-1, keepdim=True) / count
        return logits.masked_fill(logits < lowest_kept(logits, stretched(self.n * variance.sqrt())), -math.inf)


@dataclass(frozen=True, repr=False)
class TopA(LogitsProcessor):
    """Keep tokens of at least this times the square of the largest probability. (RWKV-LM, KoboldAI)"""

    a: float = field(metadata=option("top_a", SHARE))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """Its probability is at least a times the largest: see `certificates`."""
        return within_min_p(standing, self.a)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= a max(p)^2."""
        if self.a == 0.0:
            return logits
        return _at_least(logits, math.log(self.a) - 2 * log_total(logits))  # ln max p = -ln sum e^(z - max z)


@dataclass(frozen=True, repr=False)
class TopH(LogitsProcessor):
    """Keep the likeliest tokens with this share of the entropy (Potraghloo et al. 2025).

    Of the distribution of the `num_candidates` likeliest tokens: the longest prefix of the sorted distribution with
    -sum(p ln p) <= h H, at least one token; as in transformers, which takes 100 candidates.
    """

    h: float = field(metadata=option("top_h", SHARE))
    num_candidates: int = field(default=100, metadata=within(COUNT))
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The likeliest tokens, until their entropy is h H."""
        values = torch.topk(logits, min(self.num_candidates, logits.shape[-1]), dim=-1, sorted=True).values
        sums = -_p_log_p(precise(values).log_softmax(dim=-1)).cumsum(dim=-1)
        is_kept = sums <= stretched(self.h) * sums[..., -1:]
        limit = values.gather(-1, is_kept.sum(dim=-1, keepdim=True).sub(1).clamp(min=0))
        return logits.masked_fill(logits < limit, -math.inf)


@dataclass(frozen=True, repr=False)
class PLess(LogitsProcessor):
    """Keep tokens at least as likely as two draws are the same token (Tan et al. 2025).

    p-less sampling has no setting: of 0.5, 0.25, 0.15 and 0.1, whose sum of squares is 0.345, 0.5 is kept. A sure row
    keeps its likeliest token alone, a uniform one all; the largest p never is below the sum.
    """

    stage = Stage.TRUNCATION
    whole = Option("p_less", FLAG, type="bool", idle=False)

    def keeps(self, standing: RankStatistics) -> Flags:
        """It is the likeliest: beside one that is likelier, and nothing else, it would go."""
        flags: Flags = standing.largest == 0
        return flags

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= sum p^2."""
        # ln sum p^2 = ln sum e^(2 z) - 2 ln sum e^z, each sum over e^(z - max z)
        return _at_least(logits, log_total(2 * logits) - 2 * log_total(logits))
