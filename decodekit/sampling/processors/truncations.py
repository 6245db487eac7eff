"""Truncations that look at the whole distribution of a row: typical, epsilon, eta, top-n-sigma, top-h and top-a.

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

from decodekit.sampling.certificates import Flags, RankStatistics, within_epsilon, within_min_p
from decodekit.sampling.checks import COUNT, INSIDE, MASS, POSITIVE, SHARE
from decodekit.sampling.options.declared import option, within
from decodekit.sampling.pipeline import LogitsProcessor, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.tolerances import log_total, lowest_kept, precise, reached, stretched, widened


def entropy(logits: Tensor) -> Tensor:
    """H of each row [..., V] in nats, float32 [..., 1]; computed in float64, so that places of -inf do not change it.

    A row without tokens, or with NaN, has the entropy NaN.
    """
    return _entropy(logits).to(torch.float32)


def _entropy(logits: Tensor) -> Tensor:
    """H before it is rounded."""
    log_p = precise(logits).log_softmax(dim=-1)
    total = -_p_log_p(log_p).sum(dim=-1, keepdim=True)
    return torch.where(log_p.isnan().any(dim=-1, keepdim=True), math.nan, total)


def _p_log_p(log_p: Tensor) -> Tensor:
    return torch.where(log_p > -math.inf, log_p.exp() * log_p, 0.0)


def apply_typical(logits: Tensor, mass: float) -> Tensor:
    """Keep the tokens whose surprise is nearest to the entropy (locally typical sampling, Meister et al. 2022).

    Ordered by abs(-ln p - H): the shortest prefix with mass >= ``mass``, and what deviates as little as its last token,
    as in transformers. llama.cpp wants a mass *above* the setting and breaks ties by its sort. 0 < mass <= 1.
    """
    if mass == 1.0:
        return logits
    relative = logits - logits.amax(dim=-1, keepdim=True)
    # -ln p - H = -relative + ln sum e^relative - H, where the last two are about as large.
    centre = (log_total(logits) - _entropy(logits)).to(torch.float32)
    deviations, ids = (centre - relative).abs().sort(dim=-1)
    masses = precise(relative.exp().gather(-1, ids)).cumsum(dim=-1)
    before = (masses < reached(mass) * masses[..., -1:]).sum(dim=-1, keepdim=True)
    limit = deviations.gather(-1, before.clamp(max=logits.shape[-1] - 1))
    removed = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, ids, deviations > widened(limit))
    return logits.masked_fill(removed, -math.inf)


def apply_epsilon(logits: Tensor, epsilon: float) -> Tensor:
    """Keep p >= epsilon, 0 < epsilon < 1, and the likeliest token (epsilon sampling, Hewitt et al. 2022)."""
    return at_least(logits, math.log(epsilon))


def apply_eta(logits: Tensor, epsilon: float) -> Tensor:
    """Keep p >= min(epsilon, sqrt(epsilon) e^-H), 0 < epsilon < 1, and the likeliest token (Hewitt et al. 2022)."""
    return at_least(logits, (0.5 * math.log(epsilon) - _entropy(logits)).clamp(max=math.log(epsilon)))


def apply_top_a(logits: Tensor, a: float) -> Tensor:
    """Keep p >= a max(p)^2, 0 <= a <= 1, and the likeliest token (top-a; RWKV-LM, KoboldAI)."""
    if a == 0.0:
        return logits
    return at_least(logits, math.log(a) - 2 * log_total(logits))  # ln max p = -ln sum e^(z - max z)


def at_least(logits: Tensor, floor: Tensor | float) -> Tensor:
    """Keep ln p >= floor [..., 1], and the likeliest tokens. Comparisons with NaN are false and remove nothing."""
    distance = widened(-log_total(logits) - floor)
    return logits.masked_fill(logits < lowest_kept(logits, distance), -math.inf)


def apply_top_n_sigma(logits: Tensor, n: float) -> Tensor:
    """Keep z >= max z - n std(z), n > 0, over the finite z (Tang et al. 2024).

    The standard deviation is that of the population, as in llama.cpp; the authors' code divides by the number less one.
    A temperature before or after changes nothing of what is kept. Of two tokens the second is exactly two deviations
    below the first, whatever the logits, so that n = 2 keeps both.
    """
    is_left = logits > -math.inf
    count = is_left.sum(dim=-1, keepdim=True).clamp(min=1)
    values = precise(torch.where(is_left, logits, 0.0))
    mean = values.sum(dim=-1, keepdim=True) / count
    variance = torch.where(is_left, (values - mean).square(), 0.0).sum(dim=-1, keepdim=True) / count
    return logits.masked_fill(logits < lowest_kept(logits, stretched(n * variance.sqrt())), -math.inf)


def apply_top_h(logits: Tensor, h: float, num_candidates: int = 100) -> Tensor:
    """Keep the likeliest tokens whose terms of the entropy sum up to at most h H, 0 <= h <= 1 (Potraghloo et al. 2025).

    Of the distribution of the ``num_candidates`` likeliest tokens: the longest prefix of the sorted distribution with
    -sum(p ln p) <= h H, at least one token; as in transformers, which takes 100 candidates.
    """
    values = torch.topk(logits, min(num_candidates, logits.shape[-1]), dim=-1, sorted=True).values
    sums = -_p_log_p(precise(values).log_softmax(dim=-1)).cumsum(dim=-1)
    is_kept = sums <= stretched(h) * sums[..., -1:]
    limit = values.gather(-1, is_kept.sum(dim=-1, keepdim=True).sub(1).clamp(min=0))
    return logits.masked_fill(logits < limit, -math.inf)


@dataclass(frozen=True, repr=False)
class Typical(LogitsProcessor):
    """Keep the tokens whose surprise is nearest to the entropy, with this mass (Meister et al. 2022).

    See ``apply_typical``.
    """

    mass: float = field(metadata=option("typical_p", MASS, off=(1,)))
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The locally typical tokens."""
        return apply_typical(logits, self.mass)


@dataclass(frozen=True, repr=False)
class Epsilon(LogitsProcessor):
    """Keep tokens of at least this probability (Hewitt et al. 2022); see ``apply_epsilon``."""

    epsilon: float = field(metadata=option("epsilon_cutoff", INSIDE, off=(0,)))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """Its probability is at least epsilon."""
        return within_epsilon(standing, self.epsilon)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= epsilon."""
        return apply_epsilon(logits, self.epsilon)


@dataclass(frozen=True, repr=False)
class Eta(LogitsProcessor):
    """As `epsilon_cutoff`, with a limit that falls where the distribution is flat (Hewitt et al. 2022).

    See ``apply_eta``.
    """

    epsilon: float = field(metadata=option("eta_cutoff", INSIDE, off=(0,)))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """Its probability is at least epsilon, which the limit never exceeds."""
        return within_epsilon(standing, self.epsilon)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= min(epsilon, sqrt(epsilon) e^-H)."""
        return apply_eta(logits, self.epsilon)


@dataclass(frozen=True, repr=False)
class TopNSigma(LogitsProcessor):
    """Keep logits within this many standard deviations of the largest (Tang et al. 2024); see ``apply_top_n_sigma``."""

    n: float = field(metadata=option("top_n_sigma", POSITIVE))
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with z >= max z - n std(z)."""
        return apply_top_n_sigma(logits, self.n)


@dataclass(frozen=True, repr=False)
class TopA(LogitsProcessor):
    """Keep tokens of at least this times the square of the largest probability; see ``apply_top_a``."""

    a: float = field(metadata=option("top_a", SHARE))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """Its probability is at least a times the largest: see `certificates`."""
        return within_min_p(standing, self.a)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= a max(p)^2."""
        return apply_top_a(logits, self.a)


@dataclass(frozen=True, repr=False)
class TopH(LogitsProcessor):
    """Keep the likeliest tokens with this share of the entropy (Potraghloo et al. 2025); see ``apply_top_h``."""

    h: float = field(metadata=option("top_h", SHARE))
    num_candidates: int = field(default=100, metadata=within(COUNT))
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The likeliest tokens, until their entropy is h H."""
        return apply_top_h(logits, self.h, self.num_candidates)
