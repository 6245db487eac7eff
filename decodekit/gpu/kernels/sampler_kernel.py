"""The sampler on a GPU: a chain of programs over blocks of 1,024 tokens, each of which opens the blocks that matter.

    choose       every block     its largest logit, whether it has NaN, its best noisy logit in float32
                 a block or two  the last program of a row: exact noise in float64 where float32 cannot decide; the
                                 token; its certificate
                 no block        the last program of a text: coupled match, and the text moves on (see `verify`)

That is one launch. A batch with top-k or top-p needs some before it:

    peaks        every block     its largest logit, whether it has NaN; tokens by the first 11 bits of y: see below
    bins         up to 4 passes  tokens, and their mass, by the next 11 and the last 10 bits

A row of float32 is ordered as the integers of its bits are, once negative numbers are turned round. Top-k 3 of y = 2.5,
2.25, 2.0, 1.0, -1.0, with 2 bits at a time instead of 11 (bits 11 is positive, and so on):

    bits of y        11 00 ..   four tokens, 1 token with 01 ..      the third is among those with 11
    next bits        of those: 3 tokens with 00 01, 1 with 00 00     the third is among those with 00 01

After 32 bits the cut is known exactly. Top-p is found among what top-k leaves by masses instead of numbers. Blocks
whose peak lies below what is looked for are not opened: beyond the first of three passes few are.

    pass 1    by all programs of `peaks_of`: tokens by first bits
    pass 2    tokens of the first bits where top-k ends, by next bits; masses by first bits above, there by next bits
    pass 3    tokens of these and the next bits where top-k ends, by last bits; their masses, too. So the mass of what
              top-k leaves is known, and by which first bits the nucleus ends
    pass 4    masses of the first bits where the nucleus ends, by next bits
    pass 5    masses of these and the next bits where it ends, by last bits

So top-k needs four launches (passes 1 to 3, choose), top-p five (1, 2, 4 and 5), both six: a pass needs what all
programs of the one before have found, and it takes 2 to 3 us to start a program behind another one. Every grid follows
from shapes. The programs that leave something for the last of them count themselves in `arrived`, which is zeros again
afterwards.

The weights of masses must not be contracted to multiply-adds: programs are compiled without (`enable_fp_fusion`).

Screening. With t = 1 - u, exact to 2^-24, and E = -ln u, g = -ln E: for t < 1/16 E is summed up as t + t^2/2 + ... to
the sixth power, 10^-8 of it; otherwise E > 0.064 comes from a logarithm with an error below 2^-20: 1.5 10^-5 of it. The
logarithm of E is off by that and by its own error at numbers up to 37, 10^-5. Two such errors and the rounding of three
sums stay below `NEAR` = 10^-4. Sums are of numbers relative to the peak of a block, then to that of the row: what can
win lies at most 42 below both, so that rounding takes 3 10^-6. A block's best may be a token that a cut removes. So
blocks are opened from the best one on, until none is left that can reach what has been found.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton.language as tl
from torch import Tensor

from decodekit.gpu import draw_settings
from decodekit.gpu.triton_programs import NUM_COUNTERS, counters, next_power_of_2, on, program, program_for_any
from decodekit.sampling.noise import FACTOR1, FACTOR2, GOLDEN
from decodekit.sampling.tolerances import MARGIN, NEAR

_GOLDEN = tl.constexpr(GOLDEN)
_FACTOR1 = tl.constexpr(FACTOR1)
_FACTOR2 = tl.constexpr(FACTOR2)
_NEAR = tl.constexpr(NEAR)
_MARGIN = tl.constexpr(MARGIN)
_BINS = tl.constexpr(2048)
_TOP_P = tl.constexpr(draw_settings.TOP_P)
_DISTANCE = tl.constexpr(draw_settings.DISTANCE)
_SEQUENCE = tl.constexpr(draw_settings.SEQUENCE)
_INDEX = tl.constexpr(draw_settings.INDEX)
_TEMPERATURE = tl.constexpr(draw_settings.TEMPERATURE)
_TOP_K = tl.constexpr(draw_settings.TOP_K)
_FLAGS = tl.constexpr(draw_settings.FLAGS)
_DRAFT = tl.constexpr(draw_settings.DRAFT)
_MASKS = tl.constexpr(draw_settings.MASKS)
_GREEDY = tl.constexpr(draw_settings.GREEDY)
_ASKED = tl.constexpr(draw_settings.ASKED)
_ANY: Final = ("values", "num_words", "num_blocks", "num_texts")
"""Views of one upload, read number by number, and counts: no program is compiled for how they are aligned."""

BLOCK: Final = 1024
_OPTIONS: Final[dict[str, Any]] = {"num_warps": 4, "enable_fp_fusion": False}


@program
def _setting(
    values: tl.tensor, row: tl.tensor, num_texts: tl.tensor, WIDTH: tl.constexpr, PLACE: tl.constexpr
) -> tl.tensor:
    """A number of 32 bits of a row's settings; see `draw_settings.LAYOUT`. A text has WIDTH rows."""
    return tl.load(values + PLACE * num_texts + row // WIDTH)


@program
def _wide_setting(
    values: tl.tensor, row: tl.tensor, num_texts: tl.tensor, WIDTH: tl.constexpr, PLACE: tl.constexpr
) -> tl.tensor:
    """One of 64 bits."""
    low = _setting(values, row, num_texts, WIDTH, PLACE).to(tl.int64) & 0xFFFFFFFF
    return low | (_setting(values, row, num_texts, WIDTH, PLACE + 1).to(tl.int64) << 32)


@program
def _real_setting(
    values: tl.tensor, row: tl.tensor, num_texts: tl.tensor, WIDTH: tl.constexpr, PLACE: tl.constexpr
) -> tl.tensor:
    """One of float64."""
    return _wide_setting(values, row, num_texts, WIDTH, PLACE).to(tl.float64, bitcast=True)


@program
def _has_flag(
    values: tl.tensor, row: tl.tensor, num_texts: tl.tensor, WIDTH: tl.constexpr, FLAG: tl.constexpr
) -> tl.tensor:
    return (_setting(values, row, num_texts, WIDTH, _FLAGS) & FLAG) != 0


@program
def _load(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, row: tl.tensor, tokens: tl.tensor, vocab_size: tl.tensor,
    num_words: tl.tensor, num_texts: tl.tensor, HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Allowed logits, float32; -inf for the others."""
    is_there = tokens < vocab_size
    if HAS_MASKS:
        mask = tl.load(values + (_MASKS + row % WIDTH) * num_texts + row // WIDTH).to(tl.int64)
        num_masked = tl.where(mask >= 0, vocab_size, 0)
        words = tl.load(masks + mask * num_words + tokens // 32, mask=tokens < num_masked, other=-1)
        is_there = is_there & (((words >> (tokens % 32)) & 1) != 0)
    # Of a forbidden token nothing is read: it may be NaN.
    return tl.load(logits + row.to(tl.int64) * vocab_size + tokens, mask=is_there, other=float("-inf")).to(tl.float32)


@program
def _divided(
    numbers: tl.tensor, values: tl.tensor, row: tl.tensor, num_texts: tl.tensor, WIDTH: tl.constexpr
) -> tl.tensor:
    """y = z / T, with one zero only."""
    is_greedy = _has_flag(values, row, num_texts, WIDTH, _GREEDY)
    given = _setting(values, row, num_texts, WIDTH, _TEMPERATURE).to(tl.float32, bitcast=True)
    temperature = tl.where(is_greedy, 1.0, given)
    y = tl.div_rn(numbers, tl.full(numbers.shape, 1.0, tl.float32) * temperature)
    return tl.where(y == 0.0, 0.0, y)


@program
def _key(y: tl.tensor) -> tl.tensor:
    """Integers in the order of float32 numbers, as int64 from 0 to 2^32 - 1."""
    bits = y.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)


@program
def _units(x: tl.tensor) -> tl.tensor:
    """`sampler.weights_of`, operation by operation."""
    x = tl.maximum(x, -87.0)
    k = tl.floor(x * 1.44269504 + 0.5)
    r = x - k * 0.693359375 + k * 2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * (r * r) + r + 1.0
    power = ((k.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return (p * power * 17592186044416.0).to(tl.int64)


@program
def _mix(x: tl.tensor) -> tl.tensor:
    """The finalizer of SplitMix64."""
    x = (x ^ (x >> 30)) * _FACTOR1
    x = (x ^ (x >> 27)) * _FACTOR2
    return x ^ (x >> 31)


@program
def _bits(values: tl.tensor, row: tl.tensor, tokens: tl.tensor, num_texts: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """The 52 random bits of tokens, int64; see `sampling.noise`."""
    one = tl.full([1], 1, tl.uint64)
    golden = one * _GOLDEN
    seed = one * _wide_setting(values, row, num_texts, WIDTH, 0).to(tl.uint64, bitcast=True)
    sequence = one * _wide_setting(values, row, num_texts, WIDTH, _SEQUENCE).to(tl.uint64, bitcast=True)
    index = (_setting(values, row, num_texts, WIDTH, _INDEX) + row % WIDTH).to(tl.int64)
    position = one * index.to(tl.uint64, bitcast=True)
    key = _mix(_mix(_mix(seed + golden) + (sequence + one) * golden) + (position + one) * golden)
    words = key + (tokens.to(tl.uint64) + one) * golden
    return (_mix(words) >> 12).to(tl.int64)


@program
def _rough_noise(bits: tl.tensor) -> tl.tensor:
    """Gumbel noise in float32; see the module for its error."""
    t = (4503599627370495 - bits).to(tl.float32) * 2.220446049250313e-16 + 1.1102230246251565e-16
    few = t * (1.0 + t * (0.5 + t * (0.33333334 + t * (0.25 + t * (0.2 + t * 0.16666667)))))
    # No constant below 2^-126: Triton 3.6 takes it for float64, and refuses the program.
    many = -tl.log(tl.maximum((bits.to(tl.float32) + 0.5) * 2.220446049250313e-16, 1e-37))
    return -tl.log(tl.where(t < 0.0625, few, many))


@program
def _exact_noise(bits: tl.tensor) -> tl.tensor:
    """Gumbel noise in float64, as the host has it before rounding."""
    u = (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(u))


@program
def _peak_of(numbers: tl.tensor) -> tl.tensor:
    """The largest of numbers, and whether one is NaN."""
    is_nan = tl.max((numbers != numbers).to(tl.int32), axis=0) != 0
    return tl.max(tl.where(numbers != numbers, float("-inf"), numbers), axis=0), is_nan


@program_for_any(*_ANY)
def peaks_of(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, peaks: tl.tensor, bins: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, USES_TOP_K: tl.constexpr,
    ROW_BINS: tl.constexpr,
) -> None:  # fmt: skip
    """The largest logit of each block, NaN if it has one, float32 [N, blocks]; pass 1 of top-k; grid (blocks, N)."""
    block, row = tl.program_id(0), tl.program_id(1)
    row64 = row.to(tl.int64)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    numbers = _load(logits, masks, values, row, tokens, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
    peak, is_nan = _peak_of(numbers)
    tl.store(peaks + row64 * num_blocks + block, tl.where(is_nan, float("nan"), peak))
    if USES_TOP_K:
        has_k = _setting(values, row, num_texts, WIDTH, _TOP_K) > 0
        if has_k & (_has_flag(values, row, num_texts, WIDTH, _GREEDY) == 0):
            y = _divided(numbers, values, row, num_texts, WIDTH)
            ones = tl.full([BLOCK], 1, tl.int64)
            tl.atomic_add(bins + row64 * ROW_BINS + (_key(y) >> 21), ones, mask=y > float("-inf"), sem="relaxed")


@program
def _peak(
    peaks: tl.tensor, values: tl.tensor, row: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor,
    WIDTH: tl.constexpr, BLOCKS_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The largest y of each block, the largest of the row, and its status."""
    blocks = tl.arange(0, BLOCKS_PAD)
    place = peaks + row.to(tl.int64) * num_blocks + blocks
    # Other programs of the same launch may have stored these: not from a cache of this multiprocessor.
    numbers = tl.load(place, mask=blocks < num_blocks, other=float("-inf"), cache_modifier=".cg")
    is_nan = tl.max((numbers != numbers).to(tl.int32), axis=0)
    highest = _divided(tl.where(numbers != numbers, float("-inf"), numbers), values, row, num_texts, WIDTH)
    largest = tl.max(highest, axis=0)
    status = tl.where(
        is_nan + (largest == float("inf")).to(tl.int32) > 0, 1, (largest == float("-inf")).to(tl.int32) * 2
    )
    return highest, largest, status


@program
def _measures(bins: tl.tensor) -> tl.tensor:
    """The contents of 2,048 bins, from the last one on."""
    return tl.load(bins + 2047 - tl.arange(0, _BINS))


@program
def _selected(measures: tl.tensor, wanted: tl.tensor) -> tl.tensor:
    """The bin, from the top, in which what is wanted is reached; what is still wanted of it; what it holds.

    Without a bin that reaches it, -1 for the bin.
    """
    places = tl.arange(0, _BINS)
    sums = tl.cumsum(measures, axis=0)
    place = tl.min(tl.where(sums >= wanted, places, 2048), axis=0)
    above = tl.sum(tl.where(places < place, measures, 0), axis=0)
    return 2047 - place, wanted - above, tl.sum(tl.where(places == place, measures, 0), axis=0)


@program
def _cut(bins: tl.tensor, state: tl.tensor, uses: tl.tensor) -> tl.tensor:
    """The key of a cut after its last pass, what is wanted of it, what it holds; 0: no cut.

    bins: by last bits; state: int64 [2], the bits before them, or -1, and what is wanted of the tokens that begin so.
    """
    prefix = tl.load(state)
    place, wanted, held = _selected(_measures(bins), tl.load(state + 1))
    return tl.where(uses & (prefix >= 0), (prefix << 10) | place, 0), wanted, held


@program
def _kept_masses(bins: tl.tensor, cut: tl.tensor, FIRST: tl.constexpr) -> tl.tensor:
    """Masses of what top-k leaves by first bits, from the last bin on; `cut` is the key of top-k or 0.

    Pass 2 has those above the first bits of the cut. With its first bits are kept: all with larger next bits, and with
    the same next bits those with last bits from its own on.
    """
    places = 2047 - tl.arange(0, _BINS)
    masses = _measures(bins + FIRST * 2048)
    if FIRST > 0:
        next_masses = tl.where(places > ((cut >> 10) & 2047), _measures(bins + 6 * 2048), 0)
        last_masses = tl.where(places >= (cut & 1023), _measures(bins + 7 * 2048), 0)
        own = tl.sum(next_masses + last_masses, axis=0)
        masses = tl.where((places == (cut >> 21)) & (cut > 0), own, masses)
    return masses


@program
def _nucleus(bins: tl.tensor, cut: tl.tensor, top_p: tl.tensor, FIRST: tl.constexpr) -> tl.tensor:
    """The first bits where a nucleus ends, and the units that are wanted of the tokens that begin so."""
    held = _kept_masses(bins, cut, FIRST)
    share = top_p - _MARGIN * tl.minimum(top_p, 1.0 - top_p)
    total = tl.ceil(share * tl.sum(held, axis=0).to(tl.float64)).to(tl.int64)
    place, wanted, _held = _selected(held, total)
    return place, wanted


@program_for_any("each", *_ANY)
def bins_of(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, peaks: tl.tensor, bins: tl.tensor, states: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor, each: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr,
    ROW_BINS: tl.constexpr, USES_TOP_K: tl.constexpr, USES_TOP_P: tl.constexpr, PASS: tl.constexpr,
) -> None:  # fmt: skip
    """A pass: tokens or their units by the next bits; grid (blocks / each, N).

    bins: int64 [N, ROW_BINS / 2048, 2048]: tokens by first, next and last bits (with a top-k); masses by first bits
    (pass 2), next (pass 4), last (pass 5); with both, masses of pass 2 by next bits and of pass 3 by last bits.
    states: int64 [N, 2, 2, 2], for each cut before its second and its third pass; see `_cut`.
    """
    row = tl.program_id(1)
    row64 = row.to(tl.int64)
    top_k = _setting(values, row, num_texts, WIDTH, _TOP_K)
    top_p = _real_setting(values, row, num_texts, WIDTH, _TOP_P)
    has_k, has_p = USES_TOP_K and top_k > 0, USES_TOP_P and top_p < 1.0
    _highest, peak, status = _peak(peaks, values, row, num_blocks, num_texts, WIDTH, BLOCKS_PAD)
    if (status != 0) | _has_flag(values, row, num_texts, WIDTH, _GREEDY):
        return
    bins += row64 * ROW_BINS
    states += row64 * 8
    masses: tl.constexpr = 3 if USES_TOP_K else 0
    shift: tl.constexpr = 10 if PASS % 2 == 0 else 0
    prefix = tl.full([], -1, tl.int64)
    least = tl.full([], 0, tl.int64)
    if PASS <= 3:
        if has_k:
            if PASS == 2:
                place, wanted, _held = _selected(_measures(bins), top_k.to(tl.int64))
                prefix = place.to(tl.int64)
            else:
                before = tl.load(states)
                place, wanted, _held = _selected(_measures(bins + 2048), tl.load(states + 1))
                prefix = tl.where(before < 0, -1, (before << 11) | place)
            tl.store(states + (PASS - 2) * 2, prefix)
            tl.store(states + (PASS - 2) * 2 + 1, wanted)
        if (prefix < 0) & (PASS == 3 or not has_p):
            return
    else:
        if not has_p:
            return
        if USES_TOP_K:
            least, _wanted, _held = _cut(bins + 2 * 2048, states + 2, has_k)
        if PASS == 4:
            place, wanted = _nucleus(bins, least, top_p, masses)
            prefix = place.to(tl.int64)
        else:
            before = tl.load(states + 4)
            place, wanted, _held = _selected(_measures(bins + (masses + 1) * 2048), tl.load(states + 5))
            prefix = tl.where((before < 0) | (place < 0), -1, (before << 11) | place)
        tl.store(states + PASS * 2 - 4, prefix)
        tl.store(states + PASS * 2 - 3, wanted)
        if prefix < 0:
            return
    # Tokens that begin with `prefix` go into bins by the bits behind it.
    behind: tl.constexpr = 21 if PASS % 2 == 0 else 10
    least = tl.maximum(least, tl.maximum(prefix, 0) << behind)
    for block in tl.range(tl.program_id(0) * each, tl.minimum(tl.program_id(0) * each + each, num_blocks)):
        highest = tl.load(peaks + row64 * num_blocks + block + tl.arange(0, 1))
        if tl.max(_key(_divided(highest, values, row, num_texts, WIDTH)), axis=0) >= least:
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            numbers = _load(logits, masks, values, row, tokens, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
            y = _divided(numbers, values, row, num_texts, WIDTH)
            key = _key(y)
            is_in = (key >= least) & (y > float("-inf"))
            is_own = is_in & ((key >> behind) == prefix)
            bits = (key >> shift) & (2047 if PASS % 2 == 0 else 1023)
            if USES_TOP_K and PASS <= 3:
                ones = tl.full([BLOCK], 1, tl.int64)
                tl.atomic_add(bins + (PASS - 1) * 2048 + bits, ones, mask=is_own, sem="relaxed")
            if has_p:
                units = _units(y - peak)
                if PASS == 2:
                    at = tl.where(is_own, 6 * 2048 + bits, masses * 2048 + (key >> 21))
                    tl.atomic_add(bins + at, units, mask=is_in & (units > 0), sem="relaxed")
                else:
                    place_of: tl.constexpr = 7 if PASS == 3 else masses + PASS - 3
                    at = bins + place_of * 2048 + bits
                    tl.atomic_add(at, units, mask=is_own & (units > 0), sem="relaxed")


@program
def _limits(
    values: tl.tensor, bins: tl.tensor, states: tl.tensor, row: tl.tensor, peak: tl.tensor, num_texts: tl.tensor,
    WIDTH: tl.constexpr, USES_TOP_K: tl.constexpr, USES_TOP_P: tl.constexpr, ROW_BINS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The limits of a row: keys from `least` on, and of a `tied` one only so many; and the floor of min-p, a number."""
    is_drawn = _has_flag(values, row, num_texts, WIDTH, _GREEDY) == 0
    floor = _floor(peak, _real_setting(values, row, num_texts, WIDTH, _DISTANCE))
    floor = tl.where(is_drawn, floor, float("-inf"))
    least = tl.max(_key(tl.full([1], 0.0, tl.float32) + floor), axis=0)
    tied = tl.full([], -1, tl.int64)
    needed = tl.full([], 0, tl.int64)
    bins += row.to(tl.int64) * ROW_BINS
    states += row.to(tl.int64) * 8
    if USES_TOP_K:
        has_k = is_drawn & (_setting(values, row, num_texts, WIDTH, _TOP_K) > 0)
        cut, _wanted, _held = _cut(bins + 2 * 2048, states + 2, has_k)
        least = tl.maximum(least, cut)
    if USES_TOP_P:
        last: tl.constexpr = 5 if USES_TOP_K else 2
        has_p = is_drawn & (_real_setting(values, row, num_texts, WIDTH, _TOP_P) < 1.0)
        cut, wanted, held = _cut(bins + last * 2048, states + 6, has_p)
        each = tl.max(_units(_number(tl.full([1], 0, tl.int64) + cut) - peak), axis=0)
        each = tl.maximum(each, 1)
        needed = (wanted + each - 1) // each
        is_partial = (cut > 0) & (needed * each < held) & (cut >= least)
        tied = tl.where(is_partial, cut, -1)
        least = tl.maximum(least, cut)
    return least, tied, needed, floor


@program
def _number(key: tl.tensor) -> tl.tensor:
    """The float32 number of a key."""
    bits = tl.where(key >= 0x80000000, key - 0x80000000, 0xFFFFFFFF - key)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@program
def _floor(peak: tl.tensor, distance: tl.tensor) -> tl.tensor:
    """The least number that min-p keeps, as `tolerances.lowest_kept`."""
    limit = peak.to(tl.float64) - (distance + _MARGIN)
    rounded = limit.to(tl.float32)
    bits = rounded.to(tl.int32, bitcast=True)
    up = tl.where(rounded == 0.0, 1, tl.where(rounded > 0.0, bits + 1, bits - 1)).to(tl.float32, bitcast=True)
    return tl.where((rounded.to(tl.float64) < limit) & (rounded > float("-inf")), up, rounded)


@program
def _screen(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, peaks: tl.tensor, bests: tl.tensor, num_tied: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor, each: tl.tensor,
    peak: tl.tensor, least: tl.tensor, tied: tl.tensor, floor: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The best rough noisy logit of each block of a program, behind the passes of top-k and top-p.

    bests: float32 [3, N, blocks]: of what is kept, of what ties with the last that is kept if not all ties are, and of
    what a leader may be; num_tied: int32 [N, blocks].
    """
    row = tl.program_id(1)
    row64 = row.to(tl.int64)
    stride = tl.num_programs(1).to(tl.int64) * num_blocks
    is_asked = _has_flag(values, row, num_texts, WIDTH, _ASKED)
    for block in tl.range(tl.program_id(0) * each, tl.minimum(tl.program_id(0) * each + each, num_blocks)):
        place = row64 * num_blocks + block
        highest = _divided(tl.load(peaks + place + tl.arange(0, 1)), values, row, num_texts, WIDTH)
        kept, ties, leader, count = float("-inf"), float("-inf"), float("-inf"), 0
        is_open = (tl.max(_key(highest), axis=0) >= least) | (is_asked & (tl.max(highest, axis=0) >= floor))
        if is_open & (tl.max(highest, axis=0) > float("-inf")):
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            numbers = _load(logits, masks, values, row, tokens, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
            y = _divided(numbers, values, row, num_texts, WIDTH)
            noisy = (y - peak) + _rough_noise(_bits(values, row, tokens, num_texts, WIDTH))
            key, is_finite = _key(y), y > float("-inf")
            is_tied = (key == tied) & is_finite
            is_kept = (key >= least) & is_finite & (key != tied)
            kept = tl.max(tl.where(is_kept, noisy, float("-inf")), axis=0)
            ties = tl.max(tl.where(is_tied, noisy, float("-inf")), axis=0)
            count = tl.sum(is_tied.to(tl.int32), axis=0)
            leader = tl.max(tl.where((y >= floor) & is_finite, noisy, float("-inf")), axis=0)
        tl.store(bests + place, kept)
        tl.store(bests + stride + place, ties)
        tl.store(bests + 2 * stride + place, leader)
        tl.store(num_tied + place, count)


@program
def _look(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, peaks: tl.tensor, bests: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor, each: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The largest logit of each block of a program, NaN if it has one, and its best rough noisy logit.

    The latter is relative to the former, float32 [N, blocks]: that of the row is not known yet, nor what min-p keeps.
    """
    row = tl.program_id(1)
    is_drawn = _has_flag(values, row, num_texts, WIDTH, _GREEDY) == 0
    for block in tl.range(tl.program_id(0) * each, tl.minimum(tl.program_id(0) * each + each, num_blocks)):
        place = row.to(tl.int64) * num_blocks + block
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        numbers = _load(logits, masks, values, row, tokens, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
        peak, is_nan = _peak_of(numbers)
        tl.store(peaks + place, tl.where(is_nan, float("nan"), peak))
        if is_drawn & (peak > float("-inf")):
            y = _divided(numbers, values, row, num_texts, WIDTH)
            top = _divided(tl.full([BLOCK], 0.0, tl.float32) + peak, values, row, num_texts, WIDTH)
            noisy = (y - top) + _rough_noise(_bits(values, row, tokens, num_texts, WIDTH))
            tl.store(bests + place, tl.max(tl.where(y > float("-inf"), noisy, float("-inf")), axis=0))
        else:
            tl.store(bests + place, float("-inf"))


@program
def _best_of(
    uppers: tl.tensor, before: tl.tensor, least: tl.tensor, tied: tl.tensor, needed: tl.tensor, peak: tl.tensor,
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, row: tl.tensor, vocab_size: tl.tensor,
    num_words: tl.tensor, num_texts: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The token with the largest exact noisy logit, the lowest of equals, its logit, and the second largest one.

    Opens blocks from the one with the largest of `uppers` on, as long as these reach the best that was found: no block
    has a rough noisy logit above its own, of what is kept or more. `before`: ties in the blocks before each block.
    """
    blocks = tl.arange(0, BLOCKS_PAD)
    best, second = tl.full([], float("-inf"), tl.float32), tl.full([], float("-inf"), tl.float32)
    token = tl.full([], 0, tl.int32)
    top = tl.max(uppers, axis=0)
    while (top >= best - 3 * _NEAR) & (top > float("-inf")):
        block = tl.min(tl.where(uppers == top, blocks, BLOCKS_PAD), axis=0)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        numbers = _load(logits, masks, values, row, tokens, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
        y = _divided(numbers, values, row, num_texts, WIDTH)
        noise = _exact_noise(_bits(values, row, tokens, num_texts, WIDTH)).to(tl.float32)
        key = _key(y)
        is_tied = key == tied
        rank = tl.cumsum(is_tied.to(tl.int64), axis=0) + tl.sum(tl.where(blocks == block, before, 0), axis=0)
        is_kept = (key >= least) & (y > float("-inf")) & ((rank <= needed) | (key != tied))
        noisy = tl.where(is_kept, (y - peak) + noise, float("-inf"))
        largest = tl.max(noisy, axis=0)
        place = tl.min(tl.where((noisy == largest) & is_kept, tokens, 2147483647), axis=0)
        rest = tl.max(tl.where(tokens == place, float("-inf"), noisy), axis=0)
        second = tl.maximum(tl.maximum(second, rest), tl.minimum(best, largest))
        is_better = (largest > best) | ((largest == best) & (place < token))
        token = tl.where(is_better, place, token)
        best = tl.maximum(best, largest)
        uppers = tl.where(blocks == block, float("-inf"), uppers)
        top = tl.max(uppers, axis=0)
    return token, best, second


@program
def _is_certain(
    token: tl.tensor, highest: tl.tensor, peak: tl.tensor, logits: tl.tensor, masks: tl.tensor, values: tl.tensor,
    row: tl.tensor, vocab_size: tl.tensor, num_words: tl.tensor, num_texts: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Whether every truncation keeps a leader under every mask (see `sampling.certificates`), and it is the likeliest.

    Looks through the blocks that have likelier tokens, and stops when these are too many.
    """
    blocks = tl.arange(0, BLOCKS_PAD)
    its = token + tl.arange(0, 1)
    own_number = _load(logits, masks, values, row, its, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
    own = tl.max(_divided(own_number, values, row, num_texts, WIDTH), axis=0)
    k = _setting(values, row, num_texts, WIDTH, _TOP_K)
    p = _real_setting(values, row, num_texts, WIDTH, _TOP_P)
    number, mass = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float64)
    is_kept = True
    top = tl.max(highest, axis=0)
    while (top >= own) & is_kept & ((k > 0) | (p < 1.0)):
        block = tl.min(tl.where(highest == top, blocks, BLOCKS_PAD), axis=0)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        numbers = _load(logits, masks, values, row, tokens, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
        y = _divided(numbers, values, row, num_texts, WIDTH)
        is_before = (y >= own) & (tokens != token)
        number += tl.sum((is_before & (y > own)).to(tl.int32), axis=0)
        weights = tl.exp(tl.where(is_before, y.to(tl.float64) - own.to(tl.float64), 0.0))
        mass += tl.sum(tl.where(is_before, weights, 0.0), axis=0)
        is_kept = ((k <= 0) | (number < k)) & ((p == 1.0) | (mass * (1.0 - p + _MARGIN) < p * (1.0 - _MARGIN)))
        highest = tl.where(blocks == block, float("-inf"), highest)
        top = tl.max(highest, axis=0)
    largest = peak.to(tl.float64) - own.to(tl.float64)
    distance = _real_setting(values, row, num_texts, WIDTH, _DISTANCE)
    return is_kept & ((largest <= distance - _MARGIN) | (largest == 0.0)), own == peak


@program
def _has_arrived(arrived: tl.tensor, number: tl.tensor) -> tl.tensor:
    """Whether this program is the last one of a number; what the others stored is there then."""
    tl.debug_barrier()  # what every thread stored is before the count
    is_last = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == number - 1
    tl.debug_barrier()
    if is_last:
        tl.store(arrived, 0)
    return is_last


@program_for_any("each", "rows", "starts", "counts", "tokens", *_ANY)
def choose(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, peaks: tl.tensor, bins: tl.tensor, states: tl.tensor,
    bests: tl.tensor, num_tied: tl.tensor, arrived: tl.tensor, drawn: tl.tensor,
    rows: tl.tensor, starts: tl.tensor, counts: tl.tensor, tokens: tl.tensor, taken: tl.tensor, out: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor, each: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr,
    ROW_BINS: tl.constexpr, USES_TOP_K: tl.constexpr, USES_TOP_P: tl.constexpr,
    NUM_TOKENS: tl.constexpr, PAD: tl.constexpr,
) -> None:  # fmt: skip
    """The result of each row, and with NUM_TOKENS, the columns of a step, of each text; grid (blocks / each, N).

    Every program looks at its blocks; the one that comes last in a row decides, the one that comes last in a text, of
    WIDTH rows, matches. arrived: int32 [N + N / WIDTH].
    """
    row = tl.program_id(1)
    if USES_TOP_K or USES_TOP_P:
        highest, peak, status = _peak(peaks, values, row, num_blocks, num_texts, WIDTH, BLOCKS_PAD)
        least, tied, needed, floor = _limits(
            values, bins, states, row, peak, num_texts, WIDTH, USES_TOP_K, USES_TOP_P, ROW_BINS
        )
        if (status == 0) & (_has_flag(values, row, num_texts, WIDTH, _GREEDY) == 0):
            _screen(
                logits, masks, values, peaks, bests, num_tied, vocab_size, num_words, num_blocks, num_texts, each,
                peak, least, tied, floor, HAS_MASKS, WIDTH, BLOCK,
            )  # fmt: skip
    else:
        _look(
            logits, masks, values, peaks, bests, vocab_size, num_words, num_blocks, num_texts, each,
            HAS_MASKS, WIDTH, BLOCK,
        )  # fmt: skip
    if _has_arrived(arrived + row, tl.num_programs(0)):
        if not (USES_TOP_K or USES_TOP_P):
            highest, peak, status = _peak(peaks, values, row, num_blocks, num_texts, WIDTH, BLOCKS_PAD)
            least, tied, needed, floor = _limits(
                values, bins, states, row, peak, num_texts, WIDTH, USES_TOP_K, USES_TOP_P, ROW_BINS
            )
        _decide(
            logits, masks, values, bests, num_tied, drawn, vocab_size, num_words, num_blocks, num_texts, row,
            highest, peak, status, least, tied, needed, floor,
            HAS_MASKS, WIDTH, BLOCK, BLOCKS_PAD, USES_TOP_K or USES_TOP_P,
        )  # fmt: skip
        if NUM_TOKENS > 0:  # noqa: SIM102  a condition that is compiled away, and one that counts
            if _has_arrived(arrived + tl.num_programs(1) + row // WIDTH, WIDTH):
                _match(
                    drawn, values, rows, starts, counts, tokens, taken, out, row // WIDTH, num_texts,
                    WIDTH, NUM_TOKENS, PAD,
                )  # fmt: skip


@program
def _decide(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, bests: tl.tensor, num_tied: tl.tensor, drawn: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor, row: tl.tensor,
    highest: tl.tensor, peak: tl.tensor, status: tl.tensor, least: tl.tensor, tied: tl.tensor, needed: tl.tensor,
    floor: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr, HAS_CUT: tl.constexpr,
) -> None:  # fmt: skip
    """The result of a row whose blocks have been looked at, int32 [N, 4]: see `sampler.sample_rows`."""
    blocks = tl.arange(0, BLOCKS_PAD)
    place = row.to(tl.int64) * num_blocks + blocks
    is_block = blocks < num_blocks
    stride = tl.num_programs(1).to(tl.int64) * num_blocks
    is_greedy = _has_flag(values, row, num_texts, WIDTH, _GREEDY)
    is_asked = _has_flag(values, row, num_texts, WIDTH, _ASKED)
    token, given, is_certified = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    if status == 0:
        if is_greedy | is_asked:
            # The block by its largest y: what is divided may be equal where the logits are not.
            block = tl.min(tl.where(highest == peak, blocks, BLOCKS_PAD), axis=0)
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            numbers = _load(logits, masks, values, row, tokens, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
            y = _divided(numbers, values, row, num_texts, WIDTH)
            given = tl.min(tl.where(y == peak, tokens, 2147483647), axis=0)
        if is_greedy:
            token, is_certified = given, is_asked.to(tl.int32)
        else:
            # Other programs stored these: not from a cache of this multiprocessor.
            uppers = tl.load(bests + place, mask=is_block, other=float("-inf"), cache_modifier=".cg")
            before = tl.full([BLOCKS_PAD], 0, tl.int64)
            if HAS_CUT:
                ties = tl.load(bests + stride + place, mask=is_block, other=float("-inf"), cache_modifier=".cg")
                numbers_tied = tl.load(num_tied + place, mask=is_block, other=0, cache_modifier=".cg").to(tl.int64)
                before = tl.cumsum(numbers_tied, axis=0) - numbers_tied
                uppers = tl.maximum(uppers, tl.where(before < needed, ties, float("-inf")))
            else:
                is_open = (highest >= floor) & (highest > float("-inf"))
                uppers = tl.where(is_open, (highest - peak) + uppers, float("-inf"))
            token, best, second = _best_of(
                uppers, before, least, tied, needed, peak, logits, masks, values, row, vocab_size, num_words,
                num_texts, HAS_MASKS, WIDTH, BLOCK, BLOCKS_PAD,
            )  # fmt: skip
            if is_asked:
                leader = token
                if HAS_CUT:
                    leads = bests + 2 * stride + place
                    uppers = tl.load(leads, mask=is_block, other=float("-inf"), cache_modifier=".cg")
                    floor_key = tl.max(_key(tl.full([1], 0.0, tl.float32) + floor), axis=0)
                    leader, best, second = _best_of(
                        uppers, before, floor_key, tl.full([], -1, tl.int64), needed, peak, logits, masks, values, row,
                        vocab_size, num_words, num_texts, HAS_MASKS, WIDTH, BLOCK, BLOCKS_PAD,
                    )  # fmt: skip
                is_certain, is_likeliest = _is_certain(
                    token, highest, peak, logits, masks, values, row, vocab_size, num_words, num_texts,
                    HAS_MASKS, WIDTH, BLOCK, BLOCKS_PAD,
                )  # fmt: skip
                is_alone = best.to(tl.float64) - second.to(tl.float64) > _NEAR
                is_certified = (is_certain & is_alone & (leader == token)).to(tl.int32)
                has_floor = _real_setting(values, row, num_texts, WIDTH, _DISTANCE) < float("inf")
                given = tl.where(has_floor & (is_likeliest == 0), given, token)
            else:
                given = token
    drawn += row.to(tl.int64) * 4
    tl.store(drawn, token)
    tl.store(drawn + 1, given)
    tl.store(drawn + 2, is_certified)
    tl.store(drawn + 3, status)


@program
def _match(
    drawn: tl.tensor, values: tl.tensor, rows: tl.tensor, starts: tl.tensor, counts: tl.tensor, tokens: tl.tensor,
    taken: tl.tensor, out: tl.tensor, text: tl.tensor, num_texts: tl.tensor,
    WIDTH: tl.constexpr, NUM_TOKENS: tl.constexpr, PAD: tl.constexpr,
) -> None:  # fmt: skip
    """The result of a text, which moves on: `draft_match.take_tokens` of a row."""
    places = tl.arange(0, PAD)
    is_there = places < WIDTH
    found = drawn + (text * WIDTH + places) * 4
    own = tl.load(found, mask=is_there, other=0, cache_modifier=".cg")
    given = tl.load(found + 1, mask=is_there, other=0, cache_modifier=".cg")
    are_certified = tl.load(found + 2, mask=is_there, other=0, cache_modifier=".cg")
    states = tl.load(found + 3, mask=is_there, other=0, cache_modifier=".cg")
    index = values + _INDEX * num_texts + text
    number, start, num_new = tl.load(index), tl.load(starts + text), tl.load(counts + text)
    draft_length = tl.load(values + _DRAFT * num_texts + text)
    num_pending = num_new - draft_length
    is_draft = places < tl.minimum(draft_length, WIDTH - 1)
    columns = tl.minimum(tl.maximum(num_pending + places, 0), NUM_TOKENS - 1)
    draft = tl.load(tokens + text * NUM_TOKENS + columns, mask=is_draft, other=-1)
    agrees = ((own == draft) & (states == 0)).to(tl.int32) * is_draft.to(tl.int32)
    last = tl.min(tl.where(agrees == 0, places, PAD), axis=0)  # the last position that is reached
    fault = tl.sum(tl.where(places == last, states, 0), axis=0)
    count = last + (fault == 0).to(tl.int32)
    token = tl.sum(tl.where(places == tl.maximum(count - 1, 0), own, 0), axis=0)
    tl.debug_barrier()  # all of it is read before anything of it is written
    out += text * (3 * WIDTH + 1)
    tl.store(out + places, tl.where(places < count, own, -1), mask=is_there)
    tl.store(out + WIDTH + places, given, mask=is_there)
    tl.store(out + 2 * WIDTH + places, are_certified, mask=is_there)
    tl.store(out + 3 * WIDTH, fault)
    tl.store(taken + tl.load(rows + text), token.to(tl.int64))
    tl.store(starts + text, tl.where(num_new > 0, start + num_pending - 1 + count, start))
    tl.store(counts + text, tl.minimum(num_new, 1))
    tl.store(index, number + count)
    for column in tl.range(0, NUM_TOKENS):
        tl.store(tokens + text * NUM_TOKENS + column, -1)


def launched(logits: Tensor, *others: Any) -> Tensor:
    """The operation by its kernels; arguments as of `launches`."""
    num_rows = logits.shape[0]
    drawn = logits.new_empty(num_rows, 4, dtype=torch.int32)
    for kernel, grid, arguments, constants in launches(logits, *others, drawn=drawn) if num_rows else ():
        with on(logits.device):
            kernel[grid](*arguments, **constants, **_OPTIONS)
    return drawn


def launches(
    logits: Tensor, values: Tensor, masks: Tensor | None, num_positions: int, uses_top_k: bool, uses_top_p: bool,
    step: tuple[Tensor, ...] | None = None, *, drawn: Tensor,
) -> list[tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:  # fmt: skip
    """The chain of programs, each with grid, arguments and constants; depends on shapes alone.

    Args:
        logits, values, masks, num_positions, uses_top_k, uses_top_p: see `sampler.sample_rows`.
        step: `rows`, `starts`, `counts`, `tokens`, `taken` and `out` of `verify.take_tokens`; None to draw alone.
        drawn: int32 [N, 4], what comes of the rows.
    """
    logits = logits.contiguous()
    num_rows, vocab_size = logits.shape
    num_texts = num_rows // num_positions
    blocks = -(-vocab_size // BLOCK)
    each = max(1, min(8, blocks * num_rows // 512))  # blocks of one program: what is known of a row is read for each
    grid = (-(-blocks // each), num_rows)

    def made(*shape: int, kind: torch.dtype) -> Tensor:
        return logits.new_empty(shape, dtype=kind)

    num_bins = 8 if uses_top_k and uses_top_p else 3 if uses_top_k or uses_top_p else 0
    bins = logits.new_zeros((num_rows, num_bins, 2048), dtype=torch.int64) if num_bins else drawn
    states = made(num_rows, 2, 2, 2, kind=torch.int64) if num_bins else drawn
    peaks = made(num_rows, blocks, kind=torch.float32)
    bests = made(3 if num_bins else 1, num_rows, blocks, kind=torch.float32)
    num_tied = made(num_rows, blocks, kind=torch.int32) if num_bins else drawn
    num_counted = num_rows + num_texts
    is_counted = num_counted <= NUM_COUNTERS
    arrived = counters(logits.device) if is_counted else logits.new_zeros(num_counted, dtype=torch.int32)
    source = (logits, logits if masks is None else masks.contiguous(), values.contiguous())
    sizes = (vocab_size, 0 if masks is None else masks.shape[1], blocks, num_texts)
    constants: dict[str, Any] = {"HAS_MASKS": masks is not None, "WIDTH": num_positions, "BLOCK": BLOCK}
    constants |= {"USES_TOP_K": uses_top_k, "ROW_BINS": num_bins * 2048}
    chain: list[Any] = []
    if num_bins:
        chain.append((peaks_of, (blocks, num_rows), (*source, peaks, bins, *sizes), constants))
    constants = constants | {"BLOCKS_PAD": next_power_of_2(blocks), "USES_TOP_P": uses_top_p}
    passes = {(True, True): (2, 3, 4, 5), (True, False): (2, 3), (False, True): (2, 4, 5)}
    for number in passes.get((uses_top_k, uses_top_p), ()):
        given = (*source, peaks, bins, states, *sizes, each)
        chain.append((bins_of, grid, given, constants | {"PASS": number}))
    given = (*source, peaks, bins, states, bests, num_tied, arrived, drawn, *(step or [drawn] * 6), *sizes, each)
    ends = {"NUM_TOKENS": 0 if step is None else step[3].shape[1], "PAD": next_power_of_2(num_positions)}
    chain.append((choose, grid, given, constants | ends))
    return chain
