"""Mirostat: a truncation that keeps the surprise of the text near a target (Basu et al. 2020); its state is a value.

Version 2 with tau = 3 bits and eta = 0.5, from mu = 6:

    mu     kept: surprise up to    the token taken has    new mu = mu - eta (surprise - tau)
    6.0    6 bits, p >= 1/64       5 bits                 6.0 - 0.5 (5 - 3) = 5.0: fewer tokens next time
    5.0    5 bits, p >= 1/32       1 bit                  5.0 - 0.5 (1 - 3) = 6.0: more tokens again

The surprise of a token is -log2 of its probability, in bits. Before each token, tokens more surprising than mu are
removed (version 2), or all but the k likeliest are, with k from mu by a fit of Zipf's law (version 1); after it,
mu <- mu - eta (surprise - tau). So mu after a prefix is a function of the prefix, of the logits along it and of the
settings, and of nothing else: `advance` gives a new array and changes nothing. A loop keeps the mu before each token of
a sequence; a rejected draft, or a text that is taken back, is forgotten by taking the older mu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from decodekit.errors import raise_faults
from decodekit.sampling.checks import POSITIVE, Domain, is_count, one_of
from decodekit.sampling.options.declared import faults_of_fields, within
from decodekit.sampling.processors.pointwise import TopK
from decodekit.sampling.tolerances import log_total, lowest_kept, precise, widened

_BITS = math.log2(math.e)


def surprise(logits: Tensor) -> Tensor:
    """-log2 p in bits, float32 [N, V]; +inf where the logit is -inf."""
    return torch.where(logits == -math.inf, math.inf, -_BITS * logits.log_softmax(dim=-1))


def apply_mirostat(logits: Tensor, mu: Tensor) -> Tensor:
    """Version 2: keep the tokens with a surprise of at most mu bits, float32 [N], and the likeliest one."""
    distance = widened(precise(mu).unsqueeze(-1) * math.log(2) - log_total(logits))
    return logits.masked_fill(logits < lowest_kept(logits, distance), -math.inf)


def mirostat_k(logits: Tensor, mu: Tensor, num_likeliest: int = 100) -> Tensor:
    """Version 1: how many tokens to keep for mu [N] and logits [N, V], int64 [N].

    The exponent s of Zipf's law is fitted by least squares through the origin to the logarithms of ratios of
    neighbouring probabilities among the m >= 2 likeliest tokens; then k = (e 2^mu / (1 - V^-e))^(1/s) with e = s - 1,
    rounded down, at least 1, as in llama.cpp.
    """
    vocab_size = logits.shape[-1]
    values = torch.topk(logits, min(num_likeliest, vocab_size), dim=-1, sorted=True).values.to(torch.float64)
    ranks = torch.arange(1, values.shape[-1], dtype=torch.float64, device=logits.device)
    t = ((ranks + 1) / ranks).log()
    # The logarithm of p_i / p_(i+1) is a difference of logits. Where few tokens are left, few ratios count.
    is_pair = values[..., 1:] > -math.inf
    b = torch.where(is_pair, values[..., :-1] - values[..., 1:], 0.0)
    s = (t * b).sum(dim=-1) / torch.where(is_pair, t * t, 0.0).sum(dim=-1)
    e = s - 1
    near = e.abs() < 1e-9  # e / (1 - V^-e) has the limit 1 / ln V
    factor = torch.where(near, 1 / math.log(max(vocab_size, 2)), e / -torch.expm1(-e * math.log(max(vocab_size, 2))))
    log_k = (factor.log() + mu.to(torch.float64) * math.log(2)) / s
    # One token left: s = 0 / 0. All equal: s = 0, and k is without bound.
    return widened(log_k).nan_to_num(nan=math.inf).exp().clamp(min=1, max=vocab_size).to(torch.int64)


@dataclass(frozen=True)
class MirostatTruncation:
    """Mirostat as a value: its settings, and pure functions that process logits and give the next state.

    It comes after the rest of a pipeline, in place of truncation (transformers has none; llama.cpp: after temperature).

    Args:
        tau: the target surprise in bits.
        eta: the learning rate.
        version: 1 or 2.
        distribution: that under which the surprise of a token is taken: ``"whole"`` before the truncation (the
            authors' code), or ``"kept"`` after it (llama.cpp).
    """

    tau: float = field(default=5.0, metadata=within(POSITIVE))
    eta: float = field(default=0.1, metadata=within(POSITIVE))
    version: int = field(default=2, metadata=within(Domain("1 or 2", lambda value: is_count(value) and value <= 2)))
    distribution: Literal["whole", "kept"] = field(default="whole", metadata=within(one_of("whole", "kept")))

    def __post_init__(self) -> None:
        raise_faults([*faults_of_fields(self)])

    def start(self, num_rows: int, device: torch.device | str | None = None) -> Tensor:
        """mu before the first token: 2 tau, float32 [num_rows]."""
        return torch.full((num_rows,), 2 * self.tau, device=device)

    def process(self, logits: Tensor, mu: Tensor) -> Tensor:
        """The truncated rows, float32 [N, V], for mu [N] and logits that what comes before has processed."""
        if self.version == 2:
            return apply_mirostat(logits, mu)
        counts = mirostat_k(logits, mu).tolist()
        rows = [TopK(count, exact=True)(logits[row : row + 1]) for row, count in enumerate(counts)]
        return torch.cat(rows) if rows else logits

    def advance(self, mu: Tensor, logits: Tensor, kept: Tensor, tokens: Tensor) -> Tensor:
        """mu after one more token of each row, float32 [N], from the logits that `process` was given and what it kept.

        A token that the truncation removes (the only one a constraint allows, or a token of a draft) has the
        surprise that it has in the whole distribution; one that is impossible there leaves mu as it was.
        """
        places = tokens.unsqueeze(-1)
        observed = surprise(logits).gather(-1, places).squeeze(-1)
        if self.distribution == "kept":
            within = surprise(kept).gather(-1, places).squeeze(-1)
            observed = torch.where(within < math.inf, within, observed)
        return self.moved(mu, observed)

    def moved(self, mu: Tensor, observed: Tensor) -> Tensor:
        """mu after a token with this surprise in bits; unchanged where the surprise is +inf or NaN."""
        return torch.where(observed < math.inf, mu - self.eta * (observed - self.tau), mu)
