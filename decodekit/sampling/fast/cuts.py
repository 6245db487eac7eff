"""Compiled truncation of wide rows: where top-k and top-p cut, and what is left. Nothing is sorted, no row is copied.

Top-3 of 1,024 logits in 16 blocks of 64, whose peaks are 9.1, 7.5, 6.8, 6.0, ...: three tokens are at least 6.8, so
only blocks with a peak of 6.8 or more are opened, here three of 16. Their tokens from 6.8 on are collected, and the
third largest of these is the cut.

y = z / T is computed where it is looked at, in float32, as a whole row would be divided; a division by T > 0 keeps the
order, so the largest y of a block is that of its largest z.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodekit.records.compiled_code import compiled
from decodekit.sampling.fast.logit_blocks import BLOCK

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@compiled
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


@compiled
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


@compiled
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


@compiled
def cut_top_k(
    logits: Floats, peaks: Floats, temperature: np.float32, k: int, cuts: Floats, lasts: Ids, counts: Ids
) -> None:
    """The cut of top-k in each row, ties with the k-th token kept.

    Of logits [N, V], finite or -inf, and peaks [N, blocks]. Written are, [N] each, `cuts` and `lasts` (a token stays if
    y > cut, or y = cut and its id <= last), and `counts`, how many stay.
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


@compiled
def _largest(values: Floats) -> Any:
    largest = values[0]
    for value in values:
        largest = max(largest, value)
    return largest


@compiled
def cut_top_p(
    logits: Floats, peaks: Floats, temperature: np.float32, p: float, cuts: Floats, lasts: Ids, counts: Ids
) -> None:
    """The cut of top-p in each row: a token stays if the tokens before it have less than a share p of the mass.

    The mass is summed up by the distance of y from the largest, in steps of 1/8; then only the tokens of the step in
    which the share is reached are collected, and the token at which it is reached is found by partitions among them.
    Arguments as in `cut_top_k`, p instead of k.
    """
    num_rows, vocab_size = logits.shape
    found = np.empty(vocab_size, np.float32)
    masses, numbers = np.empty(_STEPS + 1, np.float64), np.empty(_STEPS + 1, np.int64)
    for row in range(num_rows):
        masses[:] = 0.0
        numbers[:] = 0
        step, wanted, num_above = _step_of_share(logits[row], peaks[row], temperature, p, masses, numbers)
        count = _collect_step(logits[row], peaks[row], temperature, step, found)
        peak = _largest(peaks[row]) / temperature
        cut, num_larger, num_equal, num_tied = _reach_mass(found, count, peak, wanted)
        last = vocab_size
        if num_equal < num_tied:
            last = _nth_equal(logits[row], temperature, cut, num_equal)
        cuts[row], lasts[row], counts[row] = cut, last, num_above + num_larger + num_equal


_STEPS = 512
_NEAR = 96  # within 12 of the largest most nuclei end, and further steps need not be told apart


@compiled
def _step(distance: np.float32) -> int:
    """In which step of 1/8 a distance lies; from 64 on in the last."""
    return int(min(distance * np.float32(8), np.float32(_STEPS)))


@compiled
def _step_of_share(
    logits: Floats, peaks: Floats, temperature: np.float32, p: float, masses: NDArray[np.float64], numbers: Ids
) -> tuple[int, float, int]:
    """The step in which the share p is reached, the mass that is wanted of it, the number of tokens in steps before.

    One row; `masses` and `numbers`, [_STEPS + 1], are zeros and are written.
    """
    step, mass_above, num_above, wanted = 0, 0.0, 0, 0.0
    for near, far in ((0, _NEAR), (_NEAR, _STEPS + 1)):
        wanted = p * _add_masses(logits, peaks, temperature, near, far, masses, numbers)
        for index in range(near, far):
            if numbers[index] == 0:
                continue
            step = index
            if mass_above + masses[index] >= wanted:
                return step, wanted - mass_above, num_above
            mass_above += masses[index]
            num_above += numbers[index]
    # By rounding the whole mass is less than a share p of it: the last token is needed.
    return step, wanted - (mass_above - masses[step]), num_above - numbers[step]


@compiled
def _add_masses(
    logits: Floats, peaks: Floats, temperature: np.float32, near: int, far: int,
    masses: NDArray[np.float64], numbers: Ids,
) -> float:  # fmt: skip
    """Add mass and number of the tokens with a step in near ... far - 1; the mass of all, the sum of e^(y - max y)."""
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


@compiled
def _collect_step(logits: Floats, peaks: Floats, temperature: np.float32, step: int, found: Floats) -> int:
    """Write the finite y of a row that lie in a step into ``found``; their number."""
    peak = _largest(peaks) / temperature
    count = 0
    for block in range(peaks.size):
        if _step(peak - peaks[block] / temperature) <= step:
            start = block * BLOCK
            for token in range(start, min(start + BLOCK, logits.size)):
                y = logits[token] / temperature
                if y > np.float32(-np.inf) and _step(peak - y) == step:
                    found[count] = y
                    count += 1
    return count


@compiled
def _nth_equal(logits: Floats, temperature: np.float32, value: np.float32, n: int) -> int:
    """The id of the n-th token, n >= 1, with that y."""
    seen = 0
    for token in range(logits.size):
        if logits[token] / temperature == value:
            seen += 1
            if seen == n:
                return token
    return logits.size


@compiled
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


@compiled
def count_at_least(logits: Floats, peaks: Floats, temperature: np.float32, cuts: Floats, counts: Ids) -> None:
    """Write how many y >= cut, which is finite, each row has, [N]."""
    found = np.empty(logits.shape[1], np.float32)
    for row in range(logits.shape[0]):
        counts[row] = _collect(logits[row], peaks[row], temperature, cuts[row], found)


@compiled
def find_above(
    logits: Floats, peaks: Floats, temperature: np.float32, tokens: Ids, found: NDArray[np.float64], counts: Ids
) -> None:
    """The distances from the y of a token of each row to those of the others with y >= it, in order of token id.

    `found`, [N, M], is written as far as they fit, +inf alone for a token that is -inf; `counts` may be more than M.
    """
    num_rows, vocab_size = logits.shape
    for row in range(num_rows):
        own = logits[row, tokens[row]] / temperature
        if own == np.float32(-np.inf):
            found[row, 0], counts[row] = np.inf, 1
            continue
        count = 0
        for block in range(peaks.shape[1]):
            if peaks[row, block] / temperature >= own:
                start = block * BLOCK
                for token in range(start, min(start + BLOCK, vocab_size)):
                    y = logits[row, token] / temperature
                    if y >= own and token != tokens[row]:
                        if count < found.shape[1]:
                            found[row, count] = np.float64(y) - np.float64(own)
                        count += 1
        counts[row] = count


@compiled
def gather(
    logits: Floats, peaks: Floats, temperature: np.float32, cuts: Floats, lasts: Ids, values: Floats, ids: Ids
) -> None:
    """Write what each row keeps, in order of token id, into [N, width]; then other tokens as -inf. See `cut_top_k`."""
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
