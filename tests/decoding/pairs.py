"""Pairs of tokens of a small law over eight letters, and the odds of what was counted."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import chisquare

from decodekit.strategy import Sample
from decodekit.vocabulary import Vocabulary
from tests.reference.law_of_sampling import law_of

V = 8
THRESHOLD = 1e-4
START = 7
TABLE = torch.randn(V, V, generator=torch.Generator().manual_seed(5)) * 1.5
VOCABULARY = Vocabulary([bytes([c]) for c in b"abcdefgh"], ())


def law(strategy: Sample, last: int, allowed: list[int] | None) -> np.ndarray:
    """The probabilities of the next token after one, of those that a mask leaves."""
    kept = range(V) if allowed is None else allowed
    masked = torch.full([V], -torch.inf).index_copy(0, torch.tensor(kept), TABLE[last][torch.tensor(kept)])
    return law_of(strategy, masked).numpy()


def joint_law(strategy: Sample, texts: list[str] | None) -> np.ndarray:
    """The probabilities of the first two tokens, [V, V]."""
    pairs = None if texts is None else [("abcdefgh".index(t[0]), "abcdefgh".index(t[1])) for t in texts]
    first = law(strategy, START, None if pairs is None else sorted({a for a, _ in pairs}))
    second = [
        law(strategy, a, None if pairs is None else [y for x, y in pairs if x == a]) if first[a] > 0 else np.zeros(V)
        for a in range(V)
    ]
    return first[:, None] * np.stack(second)


def p_value(found: np.ndarray, expected: np.ndarray) -> float:
    """χ² of the pairs; 0 if an impossible one came. Cells with fewer than five expected are joined."""
    if found[expected == 0].any():
        return 0.0
    num_samples = found.sum()
    small = (expected * num_samples < 5) & (expected > 0)
    f = [*found[(expected > 0) & ~small], *([found[small].sum()] if small.any() else [])]
    e = [*expected[(expected > 0) & ~small], *([expected[small].sum()] if small.any() else [])]
    return float(chisquare(f, np.array(e) * num_samples).pvalue)
