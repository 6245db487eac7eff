"""Compiled code for wide rows of logits, and the largest logit of each block of 64 tokens.

The peaks of blocks are found in one pass at the speed of memory. From then on most blocks are never opened, because
nothing in them can be among the likeliest tokens (``cuts``), or win a draw (``draws``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodekit.records.compiled_code import compiled

BLOCK = 64

# A float32 as an int32 with the same order; the other direction is the same. NaN lies beyond the infinities.
_ABS = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)
_LEAST = np.int32(np.float32(-np.inf).view(np.int32) ^ 0x7FFFFFFF)
_LARGEST = np.int32(np.float32(np.inf).view(np.int32))


@compiled
def _extremes(bits: NDArray[np.int32], size: int) -> tuple[Any, Any]:
    """The least and the largest of ``size`` floats, as integers with the same order."""
    low, high = np.int32(2147483647), np.int32(-2147483648)
    for place in range(size):  # a constant where it matters
        value = bits[place]
        value = np.int32(value ^ ((value >> _SIGN) & _ABS))
        low, high = min(low, value), max(high, value)
    return low, high


@compiled
def find_block_peaks(bits: NDArray[np.int32], peaks: NDArray[np.int32]) -> bool:
    """Write the largest logit of each block; whether all logits are below +inf, none is NaN, and no row is empty.

    Both arrays are float32 seen as int32, because a maximum of floats is not computed on several at once: it would
    have to keep NaN.
    """
    is_sound = True
    num_rows, vocab_size = bits.shape
    for row in range(num_rows):
        lowest, highest = _LARGEST, _LEAST
        for block in range(vocab_size // BLOCK):
            low, high = _extremes(bits[row, block * BLOCK : block * BLOCK + BLOCK], BLOCK)
            peaks[row, block] = high ^ ((high >> _SIGN) & _ABS)
            lowest, highest = min(lowest, low), max(highest, high)
        rest = vocab_size % BLOCK
        if rest:
            low, high = _extremes(bits[row, vocab_size - rest :], rest)
            peaks[row, -1] = high ^ ((high >> _SIGN) & _ABS)
            lowest, highest = min(lowest, low), max(highest, high)
        if lowest < _LEAST or highest >= _LARGEST or highest == _LEAST:
            is_sound = False
    return is_sound
