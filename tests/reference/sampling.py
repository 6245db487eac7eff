"""Slow, obviously right twins of the sampling functions: Python floats, one row and one token at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Row = Sequence[float]


def softmax(row: Row) -> list[float]:
    peak = max(row)
    weights = [math.exp(z - peak) if z > -math.inf else 0.0 for z in row]
    return [w / math.fsum(weights) for w in weights]


def temperature(row: Row, t: float) -> list[float]:
    return [z / t for z in row]


def top_k(row: Row, k: int) -> list[float]:
    """Everything at least as large as the k-th largest logit."""
    threshold = sorted(row, reverse=True)[min(k, len(row)) - 1]
    return [z if z >= threshold else -math.inf for z in row]


def top_p(row: Row, p: float) -> list[float]:
    """Take tokens from the likeliest on, of equals the lowest id first, until they have mass p."""
    law, kept, mass = softmax(row), set(), 0.0
    for token in sorted(range(len(row)), key=lambda i: (-row[i], i)):
        if kept and mass >= p:
            break
        kept.add(token)
        mass += law[token]
    return [z if i in kept else -math.inf for i, z in enumerate(row)]


def top_p_margin(row: Row, p: float) -> float:
    """How far p is from the mass of any prefix of the sorted law: within rounding, either prefix may be taken."""
    law = sorted(softmax(row), reverse=True)
    return min(abs(math.fsum(law[:n]) - p) for n in range(1, len(law) + 1))


def min_p(row: Row, m: float) -> list[float]:
    """Everything at least m times as likely as the likeliest."""
    law = softmax(row)
    return [z if q >= m * max(law) else -math.inf for z, q in zip(row, law, strict=True)]


def min_p_margin(row: Row, m: float) -> float:
    """How far the logit of any token is from the threshold."""
    return min(abs(z - max(row) - math.log(m)) for z in row) if m > 0 else math.inf


def repetition_penalty(row: Row, prefix: Sequence[int], penalty: float) -> list[float]:
    out = list(row)
    for token in set(prefix):
        if 0 <= token < len(row):
            out[token] = row[token] * penalty if row[token] < 0 else row[token] / penalty
    return out


def openai_penalties(row: Row, output: Sequence[int], presence: float, frequency: float) -> list[float]:
    """mu[j] -> mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c[j] the uses of token j in the output."""
    return [z - output.count(j) * frequency - (j in output) * presence for j, z in enumerate(row)]


def logit_bias(row: Row, biases: Mapping[int, float]) -> list[float]:
    return [z + biases.get(j, 0.0) for j, z in enumerate(row)]


def bitmask(row: Row, words: Sequence[int]) -> list[float]:
    """Bit t % 32 of word t // 32, words as signed 32-bit integers."""
    return [z if (words[t // 32] & 0xFFFFFFFF) >> (t % 32) & 1 else -math.inf for t, z in enumerate(row)]


def mix64(value: int) -> int:
    """SplitMix64's finalizer on Python integers."""
    value %= 1 << 64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % (1 << 64)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % (1 << 64)
    return value ^ (value >> 31)


def uniform(seed: int, sequence: int, position: int, token: int) -> float:
    golden = 0x9E3779B97F4A7C15
    key = mix64(seed + golden)
    key = mix64(key + (sequence + 1) * golden)
    key = mix64(key + (position + 1) * golden)
    return ((mix64(key + (token + 1) * golden) >> 12) + 0.5) * 2.0**-52


def gumbel(seed: int, sequence: int, position: int, token: int) -> float:
    return -math.log(-math.log(uniform(seed, sequence, position, token)))


def sample(row: Row, seed: int, sequence: int, position: int) -> int:
    """Gumbel-max: the token with the largest noisy logit, the lowest id among equals."""
    noisy = [z + gumbel(seed, sequence, position, t) for t, z in enumerate(row)]
    return max(range(len(row)), key=lambda t: (noisy[t], -t))
