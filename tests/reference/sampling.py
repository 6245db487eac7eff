"""Slow, obviously right twins of the sampling functions: Python floats, one row and one token at a time."""

from __future__ import annotations

import itertools
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


def entropy(row: Row) -> float:
    """In nats."""
    return -math.fsum(p * math.log(p) for p in softmax(row) if p > 0)


def logsumexp(row: Row) -> float:
    return max(row) + math.log(math.fsum(math.exp(z - max(row)) for z in row if z > -math.inf))


def keep(row: Row, kept: Sequence[bool]) -> list[float]:
    return [z if k else -math.inf for z, k in zip(row, kept, strict=True)]


def dynamic_temperature(row: Row, low: float, high: float, exponent: float) -> list[float]:
    count = sum(z > -math.inf for z in row)
    if count <= 1:
        return list(row)
    t = low + (high - low) * (entropy(row) / math.log(count)) ** exponent
    return [z / t for z in row]


def quadratic(row: Row, factor: float, curve: float) -> list[float]:
    peak, k, s = max(row), (3 - curve) / 2, (curve - 1) / 2
    return [
        peak - factor * (k * (z - peak) ** 2 - s * (z - peak) ** 3) if z > -math.inf else z for z in row
    ]  # fmt: skip


def xtc_cut(row: Row, threshold: float, spared: Sequence[int] = ()) -> list[float]:
    """What is left when XTC's coin says so: of the tokens with p >= threshold the least likely one, and its equals."""
    law = softmax(row)
    top = [z for z, p in zip(row, law, strict=True) if p >= threshold]  # of two logits one may be less, and p the same
    return [
        -math.inf if p >= threshold and z > min(top) and token not in spared else z
        for token, (z, p) in enumerate(zip(row, law, strict=True))
    ]


def xtc_law(row: Row, probability: float, threshold: float, spared: Sequence[int] = ()) -> list[float]:
    """The law over both outcomes of the coin."""
    whole, cut = softmax(row), softmax(xtc_cut(row, threshold, spared))
    return [(1 - probability) * p + probability * q for p, q in zip(whole, cut, strict=True)]


def typical(row: Row, mass: float) -> list[float]:
    """Take tokens from the most typical on until they have the mass, and what deviates no more than the last."""
    law, h = softmax(row), entropy(row)
    deviations = [abs(-math.log(p) - h) if p > 0 else math.inf for p in law]
    total, limit = 0.0, math.inf
    for token in sorted(range(len(row)), key=lambda i: deviations[i]):
        total += law[token]
        limit = deviations[token]
        if total >= mass:
            break
    return keep(row, [d <= limit + 1e-9 for d in deviations])


def typical_margin(row: Row, mass: float) -> float:
    """How far the mass is from that of any prefix, and how near two different deviations are to each other."""
    law, h = softmax(row), entropy(row)
    pairs = sorted((abs(-math.log(p) - h), p) for p in law if p > 0)
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(pairs) if b[1] != a[1]]
    return min([abs(math.fsum(p for _, p in pairs[:n]) - mass) for n in range(1, len(pairs) + 1)] + gaps)


def floor_cut(row: Row, floor: float) -> list[float]:
    """p >= floor, and the likeliest."""
    return keep(row, [p >= floor or z == max(row) for z, p in zip(row, softmax(row), strict=True)])


def collision(row: Row) -> float:
    """The probability that two draws are the same token."""
    return math.fsum(p * p for p in softmax(row))


def p_less(row: Row) -> list[float]:
    """What is at least as likely as that, token by token; of all pairs of draws those that agree."""
    law = softmax(row)
    same = math.fsum(p * q for i, p in enumerate(law) for j, q in enumerate(law) if i == j)
    return keep(row, [p >= same for p in law])


def eta_floor(row: Row, epsilon: float) -> float:
    return min(epsilon, math.sqrt(epsilon) * math.exp(-entropy(row)))


def floor_margin(row: Row, floor: float) -> float:
    return min(abs(math.log(p / floor)) for p in softmax(row) if p > 0)


def top_n_sigma_floor(row: Row, n: float) -> float:
    left = [z for z in row if z > -math.inf]
    mean = math.fsum(left) / len(left)
    return max(left) - n * math.sqrt(math.fsum((z - mean) ** 2 for z in left) / len(left))


def top_h(row: Row, h: float, num_candidates: int) -> tuple[list[float], float]:
    """The row, and how near a decision was."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:num_candidates]
    law = softmax([row[i] for i in order])
    terms = [-p * math.log(p) if p > 0 else 0.0 for p in law]
    limit, kept, margin = h * math.fsum(terms), 1, math.inf
    for n in range(1, len(terms) + 1):
        margin = min(margin, abs(math.fsum(terms[:n]) - limit)) if terms[n - 1] > 0 else margin
        if n > kept and math.fsum(terms[:n]) <= limit:
            kept = n
    return keep(row, [z >= row[order[kept - 1]] for z in row]), margin


def dry_lengths(prefix: Sequence[int], breakers: Sequence[Sequence[int]] = ()) -> dict[int, int]:
    """For each token the length of the longest repeat that it would extend, by comparing lists."""
    reach = len(prefix)
    for begin in reversed(range(len(prefix))):
        ends = [begin + len(b) for b in breakers if list(prefix[begin : begin + len(b)]) == list(b)]
        if ends:
            reach = len(prefix) - max(ends)
            break
    longest: dict[int, int] = {}
    for place in range(1, len(prefix)):
        n = 0
        while n < min(place, reach) and prefix[place - 1 - n] == prefix[len(prefix) - 1 - n]:
            n += 1
        longest[prefix[place]] = max(longest.get(prefix[place], 0), n)
    return longest


def dry(
    row: Row, prefix: Sequence[int], multiplier: float, base: float, allowed: int, breakers: Sequence[Sequence[int]]
) -> list[float]:
    out = list(row)
    for token, n in dry_lengths(prefix, breakers).items():
        if n >= allowed and token < len(row) and [token] not in [list(b) for b in breakers]:
            out[token] -= multiplier * base ** (n - allowed)
    return out


def repeated_ngram_ends(prefix: Sequence[int], size: int) -> set[int]:
    """The tokens that would complete an n-gram which the prefix has."""
    ngrams = {tuple(prefix[i : i + size]) for i in range(len(prefix) - size + 1)}
    start = tuple(prefix[len(prefix) - size + 1 :]) if size > 1 else ()
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == start and len(start) == size - 1}


def sequence_bias(row: Row, prefix: Sequence[int], biases: Mapping[tuple[int, ...], float]) -> list[float]:
    out = list(row)
    for sequence, bias in biases.items():
        start = sequence[:-1]
        if len(start) <= len(prefix) and tuple(prefix[len(prefix) - len(start) :]) == start:
            out[sequence[-1]] += bias
    return out


def surprise(row: Row) -> list[float]:
    """-log2 p in bits."""
    return [-math.log2(p) if p > 0 else math.inf for p in softmax(row)]


def mirostat_k(row: Row, mu: float, num_likeliest: int) -> int:
    """llama.cpp's k, from probabilities as it computes them."""
    law = sorted(softmax(row), reverse=True)
    law = [p for p in law if p > 0][:num_likeliest]
    top = bottom = 0.0
    for i in range(len(law) - 1):
        t, b = math.log((i + 2) / (i + 1)), math.log(law[i] / law[i + 1])
        top, bottom = top + t * b, bottom + t * t
    s = top / bottom
    e = s - 1
    return max(1, min(len(row), int(((e * 2**mu) / (1 - len(row) ** -e)) ** (1 / s))))
