"""Compiled draws from wide rows: the few tokens that can have the largest noisy logit.

block   largest logit   best noisy logit so far   noise needed   what is done
0       2.0             (none)                    any            opened first: it has the largest logit of the row
1       -3.0            5.1                       above 8.1      a random word compared with one limit for the block
2       -40.0           5.1                       above 45.1     not opened: no noise is above 36.8
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decodekit.records.compiled_code import compiled
from decodekit.sampling.fast.logit_blocks import BLOCK
from decodekit.sampling.noise import FACTOR1, FACTOR2, GOLDEN
from decodekit.sampling.tolerances import NEAR

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

MAX_CONTENDERS = 32

_G, _F1, _F2 = np.uint64(GOLDEN), np.uint64(FACTOR1), np.uint64(FACTOR2)
_STEPS = np.arange(BLOCK, dtype=np.uint64) * _G
_NUM_BITS = np.uint64(1 << 52)


@compiled
def _bits(key: np.uint64, token: int) -> np.uint64:
    """The 52 random bits of a token's noise; see ``noise``."""
    x = key + (np.uint64(token) + np.uint64(1)) * _G
    x ^= x >> np.uint64(30)
    x *= _F1
    x ^= x >> np.uint64(27)
    x *= _F2
    x ^= x >> np.uint64(31)
    return x >> np.uint64(12)


@compiled
def _largest_bits(key: np.uint64, start: int, size: int) -> np.uint64:
    """The largest random bits of the tokens of a block; several are computed at once."""
    first, largest = key + (np.uint64(start) + np.uint64(1)) * _G, np.uint64(0)
    for place in range(size):
        x = first + _STEPS[place]
        x ^= x >> np.uint64(30)
        x *= _F1
        x ^= x >> np.uint64(27)
        x *= _F2
        x ^= x >> np.uint64(31)
        largest = max(largest, x)
    return largest >> np.uint64(12)


@compiled
def _contenders_of_block(
    logits: Floats, temperature: np.float32, start: int, end: int, key: np.uint64, peak: np.float32,
    least: np.uint64, best: float, ids: Ids, scores: NDArray[np.float64], count: int,
) -> tuple[float, int]:  # fmt: skip
    """Add the tokens of a block whose bits are at least ``least`` and that can win; the best score and their number."""
    for token in range(start, end):
        bits = _bits(key, token)
        if bits < least:
            continue
        score = (logits[token] / temperature - peak) - np.log(-np.log((np.float64(bits) + 0.5) * 2.0**-52))
        if score < best - NEAR:
            continue
        if score > best:
            best = score
            kept = 0
            for index in range(min(count, ids.size)):
                if scores[index] >= best - NEAR:
                    ids[kept], scores[kept] = ids[index], scores[index]
                    kept += 1
            count = kept
        if count < ids.size:
            ids[count], scores[count] = token, score
        count += 1
    return best, count


@compiled
def find_contenders(
    logits: Floats, peaks: Floats, temperature: np.float32, floors: Floats, keys: NDArray[np.uint64],
    ids: Ids, counts: Ids,
) -> None:  # fmt: skip
    """The tokens of each row that have the largest noisy logit, or one so near that float32 must decide.

    Noise is -ln(-ln u) <= -ln(1 - u). A token can beat the best score so far, whose distance from the largest logit of
    the token's block is d, only if 1 - u <= e^-d: its bits are compared with one number per block, and logarithms are
    taken for the few that pass. A block from which even the largest noise does not suffice is not opened, nor one whose
    y = z / T are all below the row's floor.

    Of logits [N, V], finite or -inf, a finite one in each row; written are `ids` [N, MAX_CONTENDERS] and `counts` [N],
    which is larger where some did not fit.
    """
    num_rows, vocab_size = logits.shape
    scores = np.empty(MAX_CONTENDERS, np.float64)
    for row in range(num_rows):
        first, key = 0, keys[row]
        for block in range(peaks.shape[1]):
            if peaks[row, block] > peaks[row, first]:
                first = block
        peak = peaks[row, first] / temperature
        start = first * BLOCK
        end = min(start + BLOCK, vocab_size)
        best, count = _contenders_of_block(
            logits[row], temperature, start, end, key, peak, np.uint64(0), -np.inf, ids[row], scores, 0
        )
        num_blocks = peaks.shape[1]
        for block in range(num_blocks):
            largest = peaks[row, block] / temperature
            if block == first or largest < floors[row]:
                continue
            d = best - np.float64(largest - peak) - NEAR
            if d > 37:  # the largest noise is 36.8
                continue
            least = np.uint64(0)
            n = min(int(d * 1.4426950408889634), 51)
            if n > 0:  # 2^-n >= e^-d, and one more for the half in u
                least = _NUM_BITS - (np.uint64(1) << np.uint64(52 - n)) - np.uint64(1)
            start = block * BLOCK
            end = min(start + BLOCK, vocab_size)
            if _largest_bits(key, start, end - start) >= least:
                best, count = _contenders_of_block(
                    logits[row], temperature, start, end, key, peak, least, best, ids[row], scores, count
                )
        counts[row] = count
