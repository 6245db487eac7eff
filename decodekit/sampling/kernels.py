"""Compiled loops over wide rows of logits: where a truncation cuts, what it leaves, and which tokens a draw can give.

A row is taken in blocks of 64 tokens. The largest logit of each block is found in one pass at the speed of memory; from
then on most blocks are never opened, because nothing in them can be among the likeliest tokens, or win a draw. Nothing
is sorted and no row is copied.

y = z / T is computed where it is looked at, in float32, as a whole row would be divided; a division by T > 0 keeps the
order, so the largest y of a block is that of its largest z.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from decodekit.sampling.noise import FACTOR1, FACTOR2, GOLDEN

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

BLOCK = 64
MAX_CONTENDERS = 32

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    """The function, compiled on its first call for the types of its arguments, and kept on disk where one can write."""
    kernel: _Function
    try:
        kernel = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder can be written: each process compiles for itself
        kernel = numba.njit(nogil=True, error_model="numpy")(function)
    return kernel


# A float32 as an int32 with the same order; the other direction is the same. NaN lies beyond the infinities.
_ABS = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)
_LEAST = np.int32(np.float32(-np.inf).view(np.int32) ^ 0x7FFFFFFF)
_LARGEST = np.int32(np.float32(np.inf).view(np.int32))


@_compiled
def _extremes(bits: NDArray[np.int32], size: int) -> tuple[Any, Any]:
    """The least and the largest of ``size`` floats, as integers with the same order."""
    low, high = np.int32(2147483647), np.int32(-2147483648)
    for place in range(size):  # a constant where it matters
        value = bits[place]
        value = np.int32(value ^ ((value >> _SIGN) & _ABS))
        low, high = min(low, value), max(high, value)
    return low, high


@_compiled
def find_block_peaks(bits: NDArray[np.int32], peaks: NDArray[np.int32]) -> bool:
    """Write the largest logit of each block; whether all logits are below +inf, none is NaN, and no row is empty.

    Integers, because a maximum of floats is not computed on several at once: it would have to keep NaN.

    Args:
        bits: [N, V], float32 logits seen as integers.
        peaks: [N, ceil(V / 64)], written; float32 seen as integers.
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


@_compiled
def weight(x: np.float32) -> Any:
    """e^x for x <= 0, within 2 units in the last place; below -87 it is e^-87, 10^-38.

    Cephes' expf: x = k ln 2 + r, a polynomial for e^r, and k added to the exponent. In plain float32 operations, which
    are done on several numbers at once and give the same wherever a token stands.
    """
    x = max(x, np.float32(-87.0))
    k = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - k * np.float32(0.693359375) + k * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * (r * r) + r + np.float32(1)
    power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * power


@_compiled
def _kth_largest(values: Floats, count: int, k: int) -> Any:
    """The k-th largest, k >= 1, of the first ``count`` values, which it reorders (Hoare's quickselect)."""
    low, high, place = 0, count - 1, k - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return values[place]


@_compiled
def _collect(logits: Floats, peaks: Floats, temperature: np.float32, least: np.float32, found: Floats) -> int:
    """Write all finite y >= least of a row into ``found``, in order of token id; their number."""
    count = 0
    for block in range(peaks.size):
        if peaks[block] / temperature >= least:
            start = block * BLOCK
            for token in range(start, min(start + BLOCK, logits.size)):
                y = logits[token] / temperature
                if y >= least and y > np.float32(-np.inf):
                    found[count] = y
                    count += 1
    return count


@_compiled
def cut_top_k(
    logits: Floats, peaks: Floats, temperature: np.float32, k: int, cuts: Floats, lasts: Ids, counts: Ids
) -> None:
    """Where top-k cuts each row, ties with the k-th token kept.

    A token stays if y > cut, or y = cut and its id <= last.

    Args:
        logits: [N, V], finite or -inf.
        peaks: [N, blocks].
        temperature: T.
        k: at least 1.
        cuts, lasts, counts: [N], written; how many tokens stay.
    """
    num_rows, vocab_size = logits.shape
    num_blocks = peaks.shape[1]
    found = np.empty(vocab_size, np.float32)
    for row in range(num_rows):
        least = np.float32(-np.inf)
        if k <= num_blocks:  # k blocks have a token as large as the k-th largest peak
            for block in range(num_blocks):
                found[block] = peaks[row, block]
            least = _kth_largest(found, num_blocks, k) / temperature
        count = _collect(logits[row], peaks[row], temperature, least, found)
        cut = np.float32(-np.inf)  # a row with fewer tokens keeps them all
        if count >= k:
            cut = _kth_largest(found, count, k)
        kept = 0
        for index in range(count):
            kept += found[index] >= cut
        cuts[row], lasts[row], counts[row] = cut, vocab_size, kept


@_compiled
def cut_top_p(
    logits: Floats, peaks: Floats, temperature: np.float32, p: float, cuts: Floats, lasts: Ids, counts: Ids
) -> None:
    """Where top-p cuts each row: a token stays if the tokens before it have less than a share p of the mass.

    The mass is summed up by the distance of y from the largest, in steps of 1/8; then only the tokens of the step in
    which the share is reached are collected, and the token at which it is reached is found by partitions among them.
    Arguments as in `cut_top_k`, p instead of k.
    """
    num_rows, vocab_size = logits.shape
    found = np.empty(vocab_size, np.float32)
    masses, numbers = np.empty(_STEPS + 1, np.float64), np.empty(_STEPS + 1, np.int64)
    for row in range(num_rows):
        peak = _largest(peaks[row]) / temperature
        wanted = 0.0
        masses[:] = 0.0
        numbers[:] = 0
        step, mass_above, num_above, is_found = 0, 0.0, 0, False
        for near, far in ((0, _NEAR), (_NEAR, _STEPS + 1)):
            if is_found:
                break
            wanted = p * _add_masses(logits[row], peaks[row], temperature, near, far, masses, numbers)
            for index in range(near, far):
                if numbers[index] == 0:
                    continue
                step = index
                if mass_above + masses[index] >= wanted:
                    is_found = True
                    break
                mass_above += masses[index]
                num_above += numbers[index]
        if not is_found:  # by rounding: the last token is needed
            mass_above -= masses[step]
            num_above -= numbers[step]
        count = 0
        for block in range(peaks.shape[1]):
            if _step(peak - peaks[row, block] / temperature) <= step:
                start = block * BLOCK
                for token in range(start, min(start + BLOCK, vocab_size)):
                    y = logits[row, token] / temperature
                    if y > np.float32(-np.inf) and _step(peak - y) == step:
                        found[count] = y
                        count += 1
        cut, num_larger, num_equal, num_tied = _reach_mass(found, count, peak, wanted - mass_above)
        last = vocab_size
        if num_equal < num_tied:
            seen = 0
            for token in range(vocab_size):
                if logits[row, token] / temperature == cut:
                    seen += 1
                    if seen == num_equal:
                        last = token
                        break
        cuts[row], lasts[row], counts[row] = cut, last, num_above + num_larger + num_equal


_STEPS = 512
_NEAR = 96  # within 12 of the largest most nuclei end, and further steps need not be told apart


@_compiled
def _step(distance: np.float32) -> int:
    """In which step of 1/8 a distance lies; from 64 on in the last."""
    return int(min(distance * np.float32(8), np.float32(_STEPS)))


@_compiled
def _largest(values: Floats) -> Any:
    largest = values[0]
    for value in values:
        largest = max(largest, value)
    return largest


@_compiled
def _add_masses(
    logits: Floats, peaks: Floats, temperature: np.float32, near: int, far: int,
    masses: NDArray[np.float64], numbers: Ids,
) -> float:  # fmt: skip
    """Add the mass and the number of the tokens of a row whose step is at least ``near`` and below ``far``.

    Returns:
        The mass of all tokens of the row: the sum of e^(y - max y), in float64.
    """
    peak = _largest(peaks) / temperature
    weights, steps = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.int32)
    lanes = np.zeros(8, np.float64)
    for block in range(peaks.size):
        start = block * BLOCK
        size = min(BLOCK, logits.size - start)
        if size < BLOCK:
            weights[:] = np.float32(0)
        for place in range(size):
            weights[place] = weight(logits[start + place] / temperature - peak)
        for place in range(0, BLOCK, 8):
            for lane in range(8):
                lanes[lane] += float(weights[place + lane])
        if _step(peak - peaks[block] / temperature) < far:
            for place in range(size):
                steps[place] = _step(peak - logits[start + place] / temperature)
            for place in range(size):
                step = steps[place]
                if near <= step < far and logits[start + place] > np.float32(-np.inf):
                    masses[step] += float(weights[place])
                    numbers[step] += 1
    total = 0.0
    for lane in range(8):
        total += lanes[lane]
    return total


@_compiled
def _reach_mass(values: Floats, count: int, peak: np.float32, wanted: float) -> tuple[np.float32, int, int, int]:
    """The value at which the largest of the first ``count`` values have the wanted mass; reorders them.

    Returns:
        The value, how many are larger, how many equal ones are needed, how many there are.
    """
    low, high = 0, count  # the value is in this part; what is larger than all of it has this mass and number
    mass_above, num_above = 0.0, 0
    while True:
        pivot = values[(low + high) // 2]
        a, b = values[low], values[high - 1]
        pivot = max(min(a, b), min(max(a, b), pivot))
        # Larger ones to the front, smaller ones to the end.
        front, place, back = low, low, high
        mass_larger = 0.0
        while place < back:
            value = values[place]
            if value > pivot:
                mass_larger += float(weight(value - peak))
                values[place], values[front] = values[front], value
                front += 1
                place += 1
            elif value < pivot:
                back -= 1
                values[place], values[back] = values[back], value
            else:
                place += 1
        num_tied = back - front
        each = np.float64(weight(pivot - peak))
        if front > low and mass_above + mass_larger >= wanted:
            high = front
            continue
        reached = mass_above + mass_larger
        num_above += front - low
        if reached + num_tied * each >= wanted or back == high:
            needed = num_tied
            if reached + num_tied * each >= wanted and each > 0:
                needed = min(num_tied, max(1, int(np.ceil((wanted - reached) / each))))
                while needed > 1 and reached + (needed - 1) * each >= wanted:
                    needed -= 1
                while needed < num_tied and reached + needed * each < wanted:
                    needed += 1
            return pivot, num_above, needed, num_tied
        mass_above = reached + num_tied * each
        num_above += num_tied
        low = back


@_compiled
def count_at_least(logits: Floats, peaks: Floats, temperature: np.float32, cuts: Floats, counts: Ids) -> None:
    """Write how many y >= cut each row has, [N]."""
    for row in range(logits.shape[0]):
        count = 0
        for block in range(peaks.shape[1]):
            if peaks[row, block] / temperature >= cuts[row]:
                start = block * BLOCK
                for token in range(start, min(start + BLOCK, logits.shape[1])):
                    count += logits[row, token] / temperature >= cuts[row]
        counts[row] = count


@_compiled
def gather(
    logits: Floats, peaks: Floats, temperature: np.float32, cuts: Floats, lasts: Ids, values: Floats, ids: Ids
) -> None:
    """Write what each row keeps, in order of token id; then other tokens as -inf.

    Args:
        logits, peaks, temperature, cuts, lasts: as in `cut_top_k`.
        values, ids: [N, width], written.
    """
    num_rows, vocab_size = logits.shape
    for row in range(num_rows):
        cut, last, count = cuts[row], lasts[row], 0
        for block in range(peaks.shape[1]):
            if peaks[row, block] / temperature >= cut:
                start = block * BLOCK
                for token in range(start, min(start + BLOCK, vocab_size)):
                    y = logits[row, token] / temperature
                    if y > cut or (y == cut and token <= last and y > np.float32(-np.inf)):
                        values[row, count], ids[row, count] = y, token
                        count += 1
        kept, token = 0, 0
        for place in range(count, values.shape[1]):  # ids that are not among the kept ones
            while kept < count and ids[row, kept] == token:
                kept += 1
                token += 1
            values[row, place], ids[row, place] = np.float32(-np.inf), token
            token += 1


_G, _F1, _F2 = np.uint64(GOLDEN), np.uint64(FACTOR1), np.uint64(FACTOR2)
_NUM_BITS = np.uint64(1 << 52)
_MARGIN = 1e-4  # far above the rounding of a float32 sum of a noise below 37 and a logit that can win


@_compiled
def _bits(key: np.uint64, token: int) -> np.uint64:
    """The 52 random bits of a token's noise; see ``noise``."""
    x = key + (np.uint64(token) + np.uint64(1)) * _G
    x ^= x >> np.uint64(30)
    x *= _F1
    x ^= x >> np.uint64(27)
    x *= _F2
    x ^= x >> np.uint64(31)
    return x >> np.uint64(12)


@_compiled
def _contenders_of_block(
    logits: Floats, start: int, end: int, key: np.uint64, peak: np.float32, least: np.uint64,
    best: float, ids: Ids, scores: NDArray[np.float64], count: int,
) -> tuple[float, int]:  # fmt: skip
    """Add the tokens of a block whose bits are at least ``least`` and that can win; the best score and their number."""
    for token in range(start, end):
        bits = _bits(key, token)
        if bits < least:
            continue
        score = (logits[token] - peak) - np.log(-np.log((np.float64(bits) + 0.5) * 2.0**-52))
        if score < best - _MARGIN:
            continue
        if score > best:
            best = score
            kept = 0
            for index in range(min(count, ids.size)):
                if scores[index] >= best - _MARGIN:
                    ids[kept], scores[kept] = ids[index], scores[index]
                    kept += 1
            count = kept
        if count < ids.size:
            ids[count], scores[count] = token, score
        count += 1
    return best, count


@_compiled
def find_contenders(logits: Floats, peaks: Floats, keys: NDArray[np.uint64], ids: Ids, counts: Ids) -> None:
    """The tokens of each row that have the largest noisy logit, or one so near that float32 must decide.

    Noise is -ln(-ln u) <= -ln(1 - u). A token can beat the best score so far, whose distance from the largest logit of
    the token's block is d, only if 1 - u <= e^-d: its bits are compared with one number per block, and logarithms are
    taken for the few that pass. A block from which even the largest noise does not suffice is not opened.

    Args:
        logits: [N, V], finite or -inf, a finite one in each row.
        peaks: [N, blocks].
        keys: [N], of the rows' noise.
        ids: [N, MAX_CONTENDERS], written.
        counts: [N], written; a larger number than MAX_CONTENDERS says that some did not fit.
    """
    num_rows, vocab_size = logits.shape
    scores = np.empty(MAX_CONTENDERS, np.float64)
    for row in range(num_rows):
        first, key = 0, keys[row]
        for block in range(peaks.shape[1]):
            if peaks[row, block] > peaks[row, first]:
                first = block
        peak = peaks[row, first]
        start = first * BLOCK
        best, count = _contenders_of_block(
            logits[row], start, min(start + BLOCK, vocab_size), key, peak, np.uint64(0), -np.inf, ids[row], scores, 0
        )
        num_blocks = peaks.shape[1]
        for block in range(num_blocks):
            d = best - np.float64(peaks[row, block] - peak) - _MARGIN
            if block == first or d > 37:  # the largest noise is 36.8
                continue
            least = np.uint64(0)
            n = min(int(d * 1.4426950408889634), 51)
            if n > 0:  # 2^-n >= e^-d, and one more for the half in u
                least = _NUM_BITS - (np.uint64(1) << np.uint64(52 - n)) - np.uint64(1)
            start = block * BLOCK
            end = min(start + BLOCK, vocab_size)
            num_passed = 0
            for token in range(start, end):
                num_passed += int(_bits(key, token) >= least)
            if num_passed:
                best, count = _contenders_of_block(
                    logits[row], start, end, key, peak, least, best, ids[row], scores, count
                )
        counts[row] = count
