"""The law of sampling with the usual truncations, written out over numbers of Python."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decodekit.strategy import Sample


def law_of(strategy: Sample, logits: Tensor) -> Tensor:
    """The probabilities [V] of the next token: temperature, top-k, top-p, min-p of what the mask left above -inf."""
    z = [float(x) / strategy.temperature for x in logits]
    kept = {t for t, x in enumerate(z) if x > -math.inf}
    if strategy.top_k is not None:
        kept = set(sorted(kept, key=lambda t: -z[t])[: strategy.top_k])

    def normalised() -> dict[int, float]:
        total = sum(math.exp(z[t]) for t in kept)
        return {t: math.exp(z[t]) / total for t in kept}

    if strategy.top_p is not None:
        mass, nucleus = 0.0, set()
        for token, p in sorted(normalised().items(), key=lambda item: -item[1]):
            if mass < strategy.top_p:
                nucleus.add(token)
            mass += p
        kept = nucleus
    if strategy.min_p is not None:
        p = normalised()
        kept = {t for t in kept if p[t] >= strategy.min_p * max(p.values())}
    return torch.tensor([normalised().get(t, 0.0) for t in range(len(z))], dtype=torch.float64)
