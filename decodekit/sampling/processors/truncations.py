"""Truncations that look at the whole distribution of a row: typical, epsilon, eta, top-n-sigma, top-h and top-a.

Each keeps the likeliest token, or the most typical one, whatever its setting. Tokens equal in what decides are kept or
removed together, so that none of these depends on the order of a sort; what is at a limit but for rounding is kept
(see `margins`).

Notation: the logits z are float32 [N, V], p = softmax(z), H = -sum(p ln p) in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from decodekit.sampling.certificates import Flags, Standing, within_epsilon, within_min_p
from decodekit.sampling.checks import is_count, is_number, require
from decodekit.sampling.margins import log_total, lowest_kept, precise, reached, stretched, widened
from decodekit.sampling.pipeline import LogitsProcessor, Stage
from decodekit.sampling.processors.history import History


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
    return _at_least(logits, math.log(epsilon))


def apply_eta(logits: Tensor, epsilon: float) -> Tensor:
    """Keep p >= min(epsilon, sqrt(epsilon) e^-H), 0 < epsilon < 1, and the likeliest token (Hewitt et al. 2022)."""
    return _at_least(logits, (0.5 * math.log(epsilon) - _entropy(logits)).clamp(max=math.log(epsilon)))


def apply_top_a(logits: Tensor, a: float) -> Tensor:
    """Keep p >= a max(p)^2, 0 <= a <= 1, and the likeliest token (top-a; RWKV-LM, KoboldAI)."""
    if a == 0.0:
        return logits
    return _at_least(logits, math.log(a) - 2 * log_total(logits))  # ln max p = -ln sum e^(z - max z)


def _at_least(logits: Tensor, floor: Tensor | float) -> Tensor:
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


def _check_cutoff(name: str, value: float) -> None:
    require(name, value, is_number(value) and 0 < value < 1, "a number above 0 and below 1")


@dataclass(frozen=True, repr=False)
class Typical(LogitsProcessor):
    """Keep the tokens whose surprise is nearest to the entropy, with mass ``mass``; see ``apply_typical``.

    Raises:
        OptionError: the mass is not above 0 and at most 1.
    """

    mass: float
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        require("typical_p", self.mass, is_number(self.mass) and 0 < self.mass <= 1, "a number above 0 and at most 1")

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The locally typical tokens."""
        return apply_typical(logits, self.mass)


@dataclass(frozen=True, repr=False)
class Epsilon(LogitsProcessor):
    """Keep the tokens with a probability of at least epsilon; see ``apply_epsilon``.

    Raises:
        OptionError: epsilon is not above 0 and below 1.
    """

    epsilon: float
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        _check_cutoff("epsilon_cutoff", self.epsilon)

    def keeps(self, standing: Standing) -> Flags:
        """Its probability is at least epsilon."""
        return within_epsilon(standing, self.epsilon)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= epsilon."""
        return apply_epsilon(logits, self.epsilon)


@dataclass(frozen=True, repr=False)
class Eta(LogitsProcessor):
    """Epsilon sampling with a limit that falls where the distribution is flat; see ``apply_eta``.

    Raises:
        OptionError: epsilon is not above 0 and below 1.
    """

    epsilon: float
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        _check_cutoff("eta_cutoff", self.epsilon)

    def keeps(self, standing: Standing) -> Flags:
        """Its probability is at least epsilon, which the limit never exceeds."""
        return within_epsilon(standing, self.epsilon)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= min(epsilon, sqrt(epsilon) e^-H)."""
        return apply_eta(logits, self.epsilon)


@dataclass(frozen=True, repr=False)
class TopNSigma(LogitsProcessor):
    """Keep the logits within n standard deviations of the largest; see ``apply_top_n_sigma``.

    Raises:
        OptionError: n is not a finite number above 0.
    """

    n: float
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        require("top_n_sigma", self.n, is_number(self.n) and self.n > 0, "a finite number above 0")

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with z >= max z - n std(z)."""
        return apply_top_n_sigma(logits, self.n)


@dataclass(frozen=True, repr=False)
class TopA(LogitsProcessor):
    """Keep the tokens with p >= a max(p)^2; see ``apply_top_a``.

    Raises:
        OptionError: a is not between 0 and 1.
    """

    a: float
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        require("top_a", self.a, is_number(self.a) and 0 <= self.a <= 1, "a number from 0 to 1")

    def keeps(self, standing: Standing) -> Flags:
        """Its probability is at least a times the largest: see `certificates`."""
        return within_min_p(standing, self.a)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= a max(p)^2."""
        return apply_top_a(logits, self.a)


@dataclass(frozen=True, repr=False)
class TopH(LogitsProcessor):
    """Keep the likeliest tokens with a share h of the entropy; see ``apply_top_h``.

    Raises:
        OptionError: h is not between 0 and 1, or the number of candidates no integer of at least 1.
    """

    h: float
    num_candidates: int = 100
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        require("top_h", self.h, is_number(self.h) and 0 <= self.h <= 1, "a number from 0 to 1")
        require("num_candidates", self.num_candidates, is_count(self.num_candidates), "an integer of at least 1")

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The likeliest tokens, until their entropy is h H."""
        return apply_top_h(logits, self.h, self.num_candidates)
