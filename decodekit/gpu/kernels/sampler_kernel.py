"""The sampler on a GPU: one launch, with top-k or top-p two, over blocks of 1,024 tokens.

    look      every block      its largest logit, whether it has NaN, its best noisy logit in float32; the largest logit
                               of each part of 32 tokens
    choose    every block      its tokens, and their mass, go into bins by their distance from the largest logit of the
                               row
              a few parts      the last program of a row: where top-k and top-p end
              a block or two   exact noise in float64 where float32 cannot decide; the token; its certificate
              no block         the last program of a text: coupled match, and the text moves on (`draft_match`)

Without top-k and top-p there are no bins and no parts: `choose` looks itself. Every grid follows from shapes.

Cuts. There are 128 bins for each power of two from 2^-10 to 32, so that their width is one percent of the distance.
With one bin for each power of two, top-k 3 and top-p 0.8 of y = 2.5, 2.25, 1.25, 1.0, -1.0:

    y          2.5    2.25   1.25   1.0   -1.0        bin of distances   below 1/4   1/4 to 1/2   1/2 to 1   1 to 2
    distance   0      0.25   1.25   1.5    3.5        tokens             1           1            0          2
    mass       1.00   0.78   0.29   0.22   0.03       from the top       1           2            2          4

The third token is in the bin from 1 to 2. The last program of the row lists the four tokens down to this bin. The third
of them has y = 1.25: there top-k ends. It leaves the mass 2.07, of which top-p wants 1.65; 1.00 and 0.78 reach that, so
top-p ends at y = 2.25. Both are found on the list by bisection.

    parts       only those with a largest logit in one of these bins are opened
    the list    has 2,048 places. Where the tokens down to a bin are more, it has those of this bin alone; where these
                are more, too, those of an interval, which is halved until they fit
    far tokens  are not counted where neither top-k nor top-p can end (`_stop`), nor from a distance of 32 on, where a
                mass is below one unit. Top-k may end there: then the list is made of all parts
    the draw    the best noisy logit of all is mostly kept, and then it is the best one of what is kept: a list is made
                only if the bin of its token does not tell that. Otherwise the list is drawn from if it has all that is
                kept, and if not, the best one down to the last bin is asked about in its turn

Keys. A row of float32 is ordered as the integers of its bits are, once negative numbers are turned round. A key has
these 32 bits and then 31 of the token, lower tokens first: no two keys are equal. Top-p ends at the key of the last
token that it keeps. Top-k and min-p end at a number, since they keep all that are equal: the key without a token. What
is kept has keys from the largest of the three on.

Programs count themselves in `arrived`, so that one is the last; afterwards it is zeros again. The weights of masses
must not be contracted to multiply-adds: programs are compiled without (`enable_fp_fusion`).

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
from decodekit.gpu.triton_programs import NUM_COUNTERS, card_of, counters, next_power_of_2, on, program, program_for_any
from decodekit.sampling.noise import FACTOR1, FACTOR2, GOLDEN
from decodekit.sampling.tolerances import MARGIN, NEAR

_GOLDEN = tl.constexpr(GOLDEN)
_FACTOR1 = tl.constexpr(FACTOR1)
_FACTOR2 = tl.constexpr(FACTOR2)
_NEAR = tl.constexpr(NEAR)
_MARGIN = tl.constexpr(MARGIN)
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
_BINS = tl.constexpr(2048)
_LAST = tl.constexpr(15 * 128 + 1)
"""The bin of distances from 32 on."""
_LIST = tl.constexpr(2048)
"""Places of a list."""
_PARTS = tl.constexpr(32)
"""Parts of a block."""
_BLOCKS = tl.constexpr(4)
"""Blocks that are counted together: so much work hides the way to memory."""
_NOTHING = tl.constexpr((1 << 54) - 1)
"""The key of -inf with the lowest token: that of a finite number is larger."""
_TOKEN = tl.constexpr((1 << 31) - 1)
"""The bits of the token in a key."""
_ANY: Final = ("values", "num_words", "num_blocks", "num_texts", "each")
"""Views of one upload, read number by number, and counts: no program is compiled for how they are aligned."""

BLOCK: Final = 1024
_OPTIONS: Final[dict[str, Any]] = {"enable_fp_fusion": False}

# Tuples of parts of programs. `source` is a row of logits with its settings: logits, masks, values, row, vocab_size,
# num_words, num_texts, HAS_MASKS, WIDTH; a text has WIDTH rows. `scratch` is what cuts are found with:
# bins, int64 [2, 2048], tokens and their units; parts, float32 [num_parts], their largest logits; opened, int32
# [num_parts], the numbers of some; listed, int64 [_LIST], keys; num_parts.


@program
def _setting(source: tl.tuple, PLACE: tl.constexpr) -> tl.tensor:
    """A number of 32 bits of a row's settings; see `draw_settings.LAYOUT`."""
    _, _, values, row, _, _, num_texts, _, WIDTH = source
    return tl.load(values + PLACE * num_texts + row // WIDTH)


@program
def _wide_setting(source: tl.tuple, PLACE: tl.constexpr) -> tl.tensor:
    """One of 64 bits."""
    low = _setting(source, PLACE).to(tl.int64) & 0xFFFFFFFF
    return low | (_setting(source, PLACE + 1).to(tl.int64) << 32)


@program
def _real_setting(source: tl.tuple, PLACE: tl.constexpr) -> tl.tensor:
    """One of float64."""
    return _wide_setting(source, PLACE).to(tl.float64, bitcast=True)


@program
def _has_flag(source: tl.tuple, FLAG: tl.constexpr) -> tl.tensor:
    return (_setting(source, _FLAGS) & FLAG) != 0


@program
def _logits_of(source: tl.tuple, tokens: tl.tensor) -> tl.tensor:
    """Allowed logits, float32; -inf for the others."""
    logits, masks, values, row, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH = source
    is_there = tokens < vocab_size
    if HAS_MASKS:
        mask = tl.load(values + (_MASKS + row % WIDTH) * num_texts + row // WIDTH).to(tl.int64)
        num_masked = tl.where(mask >= 0, vocab_size, 0)
        words = tl.load(masks + mask * num_words + tokens // 32, mask=tokens < num_masked, other=-1)
        is_there = is_there & (((words >> (tokens % 32)) & 1) != 0)
    # Of a forbidden token nothing is read: it may be NaN.
    return tl.load(logits + row.to(tl.int64) * vocab_size + tokens, mask=is_there, other=float("-inf")).to(tl.float32)


@program
def _divided(source: tl.tuple, numbers: tl.tensor) -> tl.tensor:
    """y = z / T, with one zero only."""
    given = _setting(source, _TEMPERATURE).to(tl.float32, bitcast=True)
    temperature = tl.where(_has_flag(source, _GREEDY), 1.0, given)
    y = tl.div_rn(numbers, tl.full(numbers.shape, 1.0, tl.float32) * temperature)
    return tl.where(y == 0.0, 0.0, y)


@program
def _y_of(source: tl.tuple, tokens: tl.tensor) -> tl.tensor:
    """The numbers y of tokens, float32."""
    return _divided(source, _logits_of(source, tokens))


@program
def _key(y: tl.tensor) -> tl.tensor:
    """Keys of numbers, int64, without tokens: see the module."""
    bits = y.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    ordered = tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)
    return ordered << 31


@program
def _y_of_key(key: tl.tensor) -> tl.tensor:
    """The float32 number of a key."""
    ordered = key >> 31
    bits = tl.where(ordered >= 0x80000000, ordered - 0x80000000, 0xFFFFFFFF - ordered)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@program
def _bin(distance: tl.tensor) -> tl.tensor:
    """The bin of a distance from the peak: the exponent and 7 bits behind it, 0 below 2^-10."""
    place = (distance.to(tl.int32, bitcast=True) >> 16) - (117 * 128 - 1)
    return tl.minimum(tl.maximum(place, 0), _LAST)


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
def _bits(source: tl.tuple, tokens: tl.tensor) -> tl.tensor:
    """The 52 random bits of tokens, int64; see `sampling.noise`."""
    _, _, _, row, _, _, _, _, WIDTH = source
    one = tl.full([1], 1, tl.uint64)
    golden = one * _GOLDEN
    seed = one * _wide_setting(source, 0).to(tl.uint64, bitcast=True)
    sequence = one * _wide_setting(source, _SEQUENCE).to(tl.uint64, bitcast=True)
    index = (_setting(source, _INDEX) + row % WIDTH).to(tl.int64)
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
def _floor(peak: tl.tensor, distance: tl.tensor) -> tl.tensor:
    """The least number that min-p keeps, as `tolerances.lowest_kept`."""
    limit = peak.to(tl.float64) - (distance + _MARGIN)
    rounded = limit.to(tl.float32)
    bits = rounded.to(tl.int32, bitcast=True)
    up = tl.where(rounded == 0.0, 1, tl.where(rounded > 0.0, bits + 1, bits - 1)).to(tl.float32, bitcast=True)
    return tl.where((rounded.to(tl.float64) < limit) & (rounded > float("-inf")), up, rounded)


@program
def _peak(source: tl.tuple, peaks: tl.tensor, num_blocks: tl.tensor, BLOCKS_PAD: tl.constexpr) -> tl.tensor:
    """The largest y of each block of a row, the largest of the row, and its status."""
    blocks = tl.arange(0, BLOCKS_PAD)
    # Other programs of the same launch may have stored these: not from a cache of this multiprocessor.
    numbers = tl.load(peaks + blocks, mask=blocks < num_blocks, other=float("-inf"), cache_modifier=".cg")
    is_nan = tl.max((numbers != numbers).to(tl.int32), axis=0)
    highest = _divided(source, tl.where(numbers != numbers, float("-inf"), numbers))
    largest = tl.max(highest, axis=0)
    status = tl.where(
        is_nan + (largest == float("inf")).to(tl.int32) > 0, 1, (largest == float("-inf")).to(tl.int32) * 2
    )
    return highest, largest, status


@program
def _look(
    source: tl.tuple, peaks: tl.tensor, bests: tl.tensor, parts: tl.tensor, num_blocks: tl.tensor, each: tl.tensor,
    BLOCK: tl.constexpr, HAS_CUT: tl.constexpr,
) -> None:  # fmt: skip
    """The largest logit of each block of a program, NaN if it has one, and its best rough noisy logit.

    The latter is relative to the former, float32 [blocks]: that of the row is not known yet, nor what min-p keeps.
    parts: float32 [blocks, 32], the largest logit of each part, for cuts.
    """
    is_drawn = _has_flag(source, _GREEDY) == 0
    for block in tl.range(tl.program_id(0) * each, tl.minimum(tl.program_id(0) * each + each, num_blocks)):
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        found = _logits_of(source, tokens)
        is_nan = tl.max((found != found).to(tl.int32), axis=0) != 0
        numbers = tl.where(found != found, float("-inf"), found)
        peak = tl.max(numbers, axis=0)
        tl.store(peaks + block, tl.where(is_nan, float("nan"), peak))
        if HAS_CUT:
            largest = tl.max(tl.reshape(numbers, [_PARTS, BLOCK // _PARTS]), axis=1)
            tl.store(parts + block * _PARTS + tl.arange(0, _PARTS), largest)
        if is_drawn & (peak > float("-inf")):
            y = _divided(source, numbers)
            top = _divided(source, tl.full([1], 0.0, tl.float32) + peak)
            noisy = (y - top) + _rough_noise(_bits(source, tokens))
            tl.store(bests + block, tl.max(tl.where(y > float("-inf"), noisy, float("-inf")), axis=0))
        else:
            tl.store(bests + block, float("-inf"))


@program_for_any(*_ANY)
def look(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, peaks: tl.tensor, bests: tl.tensor, parts: tl.tensor,
    bins: tl.tensor, vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor,
    each: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The first of two launches: what `_look` finds, and empty bins; grid (blocks / each, N)."""
    row = tl.program_id(1)
    row64 = row.to(tl.int64)
    source = (logits, masks, values, row, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
    peaks, bests, parts = peaks + row64 * num_blocks, bests + row64 * num_blocks, parts + row64 * num_blocks * _PARTS
    _look(source, peaks, bests, parts, num_blocks, each, BLOCK, True)
    for start in tl.range(tl.program_id(0) * BLOCK, 2 * _BINS, tl.num_programs(0) * BLOCK):
        tl.store(bins + row64 * (2 * _BINS) + start + tl.arange(0, BLOCK), tl.full([BLOCK], 0, tl.int64))


@program
def _reached(keys: tl.tensor, weights: tl.tensor, wanted: tl.tensor) -> tl.tensor:
    """The largest key so that the tokens from it on weigh what is wanted; all of them together do."""
    low = tl.min(tl.where(weights > 0, keys, 0x7FFFFFFFFFFFFFFF), axis=0)
    high = tl.max(tl.where(weights > 0, keys, 0), axis=0)
    while low < high:
        is_above = keys >= low + ((high - low + 1) >> 1)
        if tl.sum(tl.where(is_above, weights, 0), axis=0) >= wanted:
            low = tl.min(tl.where(is_above, keys, high), axis=0)
        else:
            high = tl.max(tl.where(is_above, low, keys), axis=0)
    return low


@program
def _stop(source: tl.tuple, highest: tl.tensor, peak: tl.tensor) -> tl.tensor:
    """The bin from which on tokens are not counted: top-k, or without it top-p, ends before it.

    As many blocks as top-k wants each have a token that is not below the last of their peaks. Tokens farther from the
    peak than ln(V / (1 - p)) have less than 1 - p of all the mass.
    """
    vocab_size, top_k, top_p = source[4], _setting(source, _TOP_K), _real_setting(source, _TOP_P)
    farthest = tl.full([], 32.0, tl.float32)
    if (top_k > 0) & (top_k < vocab_size):
        is_block = (highest > float("-inf")).to(tl.int64)
        if tl.sum(is_block, axis=0) >= top_k:
            farthest = peak - _y_of_key(_reached(_key(highest), is_block, top_k.to(tl.int64)))
    elif top_p < 1.0:
        farthest = (tl.log(vocab_size.to(tl.float64) / (1.0 - top_p)) + 1.0).to(tl.float32)
    return tl.minimum(_bin(farthest), _LAST - 1) + 1


@program
def _count(
    source: tl.tuple, scratch: tl.tuple, peaks: tl.tensor, highest: tl.tensor, peak: tl.tensor, num_blocks: tl.tensor,
    each: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The tokens of a program's blocks go into bins, and with top-p their units; all units behind go into the last."""
    bins, _, _, _, _ = scratch
    stop = _stop(source, highest, peak)
    has_p = _real_setting(source, _TOP_P) < 1.0
    end = tl.minimum(tl.program_id(0) * each + each, num_blocks)
    for block in tl.range(tl.program_id(0) * each, end, _BLOCKS):
        blocks = block + tl.arange(0, _BLOCKS)
        largest = _divided(source, tl.load(peaks + blocks, mask=blocks < end, other=float("-inf")))
        nearest = tl.min(_bin(peak - largest), axis=0)
        if (nearest < stop) | (has_p & (nearest < _LAST)):
            y = _y_of(source, block * BLOCK + tl.arange(0, _BLOCKS * BLOCK))
            places = _bin(peak - y)
            at, is_counted = bins + places, places < stop
            tl.atomic_add(at, tl.full(places.shape, 1, tl.int64), mask=is_counted, sem="relaxed")
            if has_p:
                units = _units(y - peak)
                tl.atomic_add(at + _BINS, units, mask=is_counted, sem="relaxed")
                rest = tl.sum(tl.where(is_counted, 0, units), axis=0)
                tl.atomic_add(bins + _BINS + _LAST, rest, sem="relaxed")


@program
def _open(
    source: tl.tuple, scratch: tl.tuple, peak: tl.tensor, last: tl.tensor, low: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """The number of parts that may have tokens of bins up to `last` and of keys from `low` on; `opened` lists them."""
    _, parts, opened, _, num_parts = scratch
    number = tl.full([], 0, tl.int32)
    for start in tl.range(0, num_parts, 2 * BLOCK):
        places = start + tl.arange(0, 2 * BLOCK)
        highest = _divided(source, tl.load(parts + places, mask=places < num_parts, other=float("-inf")))
        is_open = ((_bin(peak - highest) <= last) & (highest >= _y_of_key(low))).to(tl.int32)
        tl.store(opened + number + tl.cumsum(is_open, axis=0) - 1, places, mask=is_open != 0)
        number += tl.sum(is_open, axis=0)
    return number


@program
def _walk(
    source: tl.tuple, scratch: tl.tuple, peak: tl.tensor, first: tl.tensor, last: tl.tensor, low: tl.tensor,
    high: tl.tensor, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The number of tokens in bins from `first` to `last`, of keys from `low` on and below `high`, and their units.

    Their keys are listed, as many as there is room for.
    """
    _, _, opened, listed, num_parts = scratch
    part_size: tl.constexpr = BLOCK // _PARTS
    tl.debug_barrier()  # what is overwritten here has been read
    num_open = _open(source, scratch, peak, last, low, BLOCK)
    tl.debug_barrier()
    number, mass = tl.full([], 0, tl.int32), tl.full([], 0, tl.int64)
    spots = tl.arange(0, BLOCK)
    for start in tl.range(0, num_open, _PARTS):
        which = start + spots // part_size
        part = tl.load(opened + which, mask=which < num_open, other=num_parts)
        tokens = part * part_size + spots % part_size
        y = _y_of(source, tokens)
        key, place = _key(y) | (tokens ^ _TOKEN), _bin(peak - y)
        is_in = (place >= first) & (place <= last) & (key >= low) & (key < high)
        slots = number + tl.cumsum(is_in.to(tl.int32), axis=0) - 1
        tl.store(listed + slots, key, mask=is_in & (slots < _LIST))
        number += tl.sum(is_in.to(tl.int32), axis=0)
        mass += tl.sum(tl.where(is_in, _units(y - peak), 0), axis=0)
    tl.debug_barrier()
    return number, mass


@program
def _middle(listed: tl.tensor, vocab_size: tl.tensor, lower: tl.tensor, shift: tl.tensor) -> tl.tensor:
    """A key that halves an interval from `lower` on, by tokens in it; not among equal numbers if the shift is 31.

    Of equal numbers the list has the first tokens: those behind them may go to the end of the row.
    """
    some = tl.load(listed + tl.arange(0, _LIST))
    least = tl.maximum((tl.min(some, axis=0) >> 31 << 31) | ((vocab_size - 1) ^ _TOKEN), lower) >> shift
    middle = least + (((tl.max(some, axis=0) >> shift) - least + 1) >> 1)
    return tl.where(middle << shift > lower, middle, middle + 1) << shift


@program
def _search(
    source: tl.tuple, scratch: tl.tuple, peak: tl.tensor, first: tl.tensor, last: tl.tensor, low: tl.tensor,
    above: tl.tensor, mass_above: tl.tensor, wanted: tl.tensor, shift: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A list of tokens, of keys from `low` on in bins from `first` to `last`, among which what is wanted is reached.

    Returns their number; what the tokens above them have of it, and their mass; whether the list has all from the top.
    Equal numbers may be more than there are places: then their key and their mass come last, otherwise 0 and a mass.
    All tokens may be more, too, if they do not reach what is wanted.
    """
    lower, high = low, tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64)  # listed are keys from `lower` on, below `high`
    number, mass, equal = tl.full([], 0, tl.int32), tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
    is_whole = first == 0
    is_searched = True
    while is_searched:
        number, mass = _walk(source, scratch, peak, first, last, lower, high, BLOCK)
        found = tl.where(shift > 0, number.to(tl.int64), mass)
        is_searched = (above + found < wanted) & (lower > low)
        if is_searched:
            above, mass_above, is_whole = above + found, mass_above + mass, False
            lower, high = low, lower
        elif (above + found >= wanted) & (number > _LIST):
            low = lower
            lower = _middle(scratch[3], source[4], low, shift)
            is_searched = lower < high
            equal = tl.where(is_searched, 0, low)
    return number, above, mass_above, is_whole & (number <= _LIST), equal, mass


@program
def _cut(source: tl.tuple, scratch: tl.tuple, own: tl.tensor, peak: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The key where top-k and top-p end; how many tokens are listed, if these are all from there on, otherwise 0; -1.

    It is not looked for if the bin `own` tells whether a token is kept, and no list is needed. Then the bin where it is
    comes instead of -1, and the key is that of top-k alone, or that of all tokens.
    """
    bins, _, _, listed, _ = scratch
    places, spots = tl.arange(0, _BINS), tl.arange(0, _LIST)
    vocab_size, top_k, top_p = source[4], _setting(source, _TOP_K), _real_setting(source, _TOP_P)
    share = tl.where(top_p < 1.0, top_p - _MARGIN * tl.minimum(top_p, 1.0 - top_p), 0.0)
    least, zero = tl.full([], _NOTHING + 1, tl.int64), tl.full([], 0, tl.int64)
    end, left = tl.full([], _LAST + 1, tl.int32), zero  # the bin where top-k ends, and the units that it leaves there
    number, is_whole, reach = tl.full([], 0, tl.int32), tl.full([], 0, tl.int1), tl.full([], -1, tl.int32)
    for goal in tl.range(0, 2):  # top-k by numbers, then top-p by units
        is_k = goal == 0
        shift = tl.where(is_k, 31, 0).to(tl.int64)
        numbers = tl.load(bins + places, cache_modifier=".cg")
        units = tl.load(bins + _BINS + places, cache_modifier=".cg")
        units = tl.where(places < end, units, tl.where(places == end, left, 0))
        units_wanted = tl.ceil(share * tl.sum(units, axis=0).to(tl.float64)).to(tl.int64)
        wanted = tl.where(is_k, tl.where(top_k < vocab_size, top_k, 0).to(tl.int64), units_wanted)
        if wanted > 0:
            measures = tl.where(is_k, numbers, units)
            place = tl.min(tl.where(tl.cumsum(measures, axis=0) >= wanted, places, _LAST), axis=0)
            mass_before = tl.sum(tl.where(places < place, units, 0), axis=0)
            first = tl.where(tl.sum(tl.where(places <= place, numbers, 0), axis=0) <= _LIST, 0, place)
            is_told = (own < place) | ((own > place) & (first > 0))
            if is_told & (is_whole == 0) & ((goal > 0) | (top_p == 1.0)):
                reach = place
            else:
                above, mass_above, cut, kept = zero, zero, zero, zero
                if is_whole == 0:
                    above = tl.sum(tl.where(places < first, measures, 0), axis=0)
                    mass_above = tl.where(first > 0, mass_before, 0)
                    number, above, mass_above, is_whole, cut, kept = _search(
                        source, scratch, peak, first, place, least, above, mass_above, wanted, shift, BLOCK
                    )
                keys = tl.load(listed + spots, mask=spots < number, other=_NOTHING)
                weights = tl.where(keys >= least, _units(_y_of_key(keys) - peak), 0)
                measured = tl.where(is_k, (keys >= least).to(tl.int64), weights)
                if (cut == 0) & (above + tl.sum(measured, axis=0) >= wanted):
                    cut = _reached(keys >> shift, measured, wanted - above) << shift
                    kept = tl.sum(tl.where(keys >= cut, weights, 0), axis=0)
                if cut > 0:
                    least, end, left = cut, place, mass_above + kept - mass_before
    return least, tl.where(is_whole, number, 0), reach


@program
def _best_listed(
    source: tl.tuple, listed: tl.tensor, number: tl.tensor, least: tl.tensor, peak: tl.tensor
) -> tl.tensor:
    """The token of a list with the largest exact noisy logit, the lowest of equals."""
    spots = tl.arange(0, _LIST)
    keys = tl.load(listed + spots, mask=spots < number, other=_NOTHING)
    tokens = ((keys & _TOKEN) ^ _TOKEN).to(tl.int32)
    noise = _exact_noise(_bits(source, tokens)).to(tl.float32)
    noisy = tl.where(keys >= least, (_y_of_key(keys) - peak) + noise, float("-inf"))
    return tl.min(tl.where((noisy == tl.max(noisy, axis=0)) & (keys >= least), tokens, _TOKEN), axis=0)


@program
def _best_of(
    source: tl.tuple, highest: tl.tensor, bests: tl.tensor, least: tl.tensor, last: tl.tensor, peak: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The lowest token with the largest exact noisy logit, of keys from `least` on in bins up to `last`.

    Its key, its noisy logit, and the second largest one, too. Opens blocks from the best one on, as long as these reach
    what was found: no block has a rough noisy logit above its own.
    """
    blocks = tl.arange(0, highest.shape[0])
    best, second = tl.full([], float("-inf"), tl.float32), tl.full([], float("-inf"), tl.float32)
    token, own = tl.full([], 0, tl.int32), tl.full([], 0, tl.int64)
    is_open = ((_key(highest) | _TOKEN) >= least) & (_bin(peak - highest) <= last)
    uppers = tl.where(is_open, (highest - peak) + bests, float("-inf"))
    top = tl.max(uppers, axis=0)
    while (top >= best - 3 * _NEAR) & (top > float("-inf")):
        block = tl.argmax(uppers, axis=0)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        y = _y_of(source, tokens)
        keys = _key(y) | (tokens ^ _TOKEN)
        is_in = (keys >= least) & (_bin(peak - y) <= last)
        noise = _exact_noise(_bits(source, tokens)).to(tl.float32)
        noisy = tl.where(is_in, (y - peak) + noise, float("-inf"))
        largest = tl.max(noisy, axis=0)
        place = tl.min(tl.where((noisy == largest) & is_in, tokens, _TOKEN), axis=0)
        rest = tl.max(tl.where(tokens == place, float("-inf"), noisy), axis=0)
        second = tl.maximum(tl.maximum(second, rest), tl.minimum(best, largest))
        is_better = (largest > best) | ((largest == best) & (place < token))
        token = tl.where(is_better, place, token)
        own = tl.where(is_better, tl.max(tl.where(tokens == place, keys, 0), axis=0), own)
        best = tl.maximum(best, largest)
        uppers = tl.where(blocks == block, float("-inf"), uppers)
        top = tl.max(uppers, axis=0)
    return token, own, best, second


@program
def _is_certain(
    source: tl.tuple, own: tl.tensor, token: tl.tensor, highest: tl.tensor, peak: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """Whether every truncation keeps a leader, of y = `own`, under every mask: see `sampling.certificates`.

    Looks through the blocks that have likelier tokens, and stops when these are too many.
    """
    blocks = tl.arange(0, highest.shape[0])
    k, p = _setting(source, _TOP_K), _real_setting(source, _TOP_P)
    number, mass = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float64)
    is_kept = True
    top = tl.max(highest, axis=0)
    while (top >= own) & is_kept & ((k > 0) | (p < 1.0)):
        block = tl.argmax(highest, axis=0)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        y = _y_of(source, tokens)
        is_before = (y >= own) & (tokens != token)
        number += tl.sum((is_before & (y > own)).to(tl.int32), axis=0)
        weights = tl.exp(tl.where(is_before, y.to(tl.float64) - own.to(tl.float64), 0.0))
        mass += tl.sum(tl.where(is_before, weights, 0.0), axis=0)
        is_kept = ((k <= 0) | (number < k)) & ((p == 1.0) | (mass * (1.0 - p + _MARGIN) < p * (1.0 - _MARGIN)))
        highest = tl.where(blocks == block, float("-inf"), highest)
        top = tl.max(highest, axis=0)
    largest = peak.to(tl.float64) - own.to(tl.float64)
    return is_kept & ((largest <= _real_setting(source, _DISTANCE) - _MARGIN) | (largest == 0.0))


@program
def _has_arrived(arrived: tl.tensor, number: tl.tensor) -> tl.tensor:
    """Whether this program is the last one of a number; what the others stored is there then."""
    tl.debug_barrier()  # what every thread stored is before the count
    is_last = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == number - 1
    tl.debug_barrier()
    if is_last:
        tl.store(arrived, 0)
    return is_last


@program_for_any("rows", "starts", "counts", "tokens", *_ANY)
def choose(
    logits: tl.tensor, masks: tl.tensor, values: tl.tensor, peaks: tl.tensor, bests: tl.tensor, parts: tl.tensor,
    bins: tl.tensor, opened: tl.tensor, listed: tl.tensor, arrived: tl.tensor, drawn: tl.tensor,
    rows: tl.tensor, starts: tl.tensor, counts: tl.tensor, tokens: tl.tensor, taken: tl.tensor, out: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, num_texts: tl.tensor, each: tl.tensor,
    HAS_MASKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr,
    HAS_CUT: tl.constexpr, NUM_TOKENS: tl.constexpr, PAD: tl.constexpr,
) -> None:  # fmt: skip
    """The result of each row, and with NUM_TOKENS, the columns of a step, of each text; grid (blocks / each, N).

    Every program looks at its blocks, or counts their tokens; the one that comes last in a row decides, the one that
    comes last in a text, of WIDTH rows, matches. arrived: int32 [N + N / WIDTH].
    """
    row = tl.program_id(1)
    row64 = row.to(tl.int64)
    source = (logits, masks, values, row, vocab_size, num_words, num_texts, HAS_MASKS, WIDTH)
    peaks, bests = peaks + row64 * num_blocks, bests + row64 * num_blocks
    num_parts = num_blocks * _PARTS
    bins, parts, opened = bins + row64 * 2 * _BINS, parts + row64 * num_parts, opened + row64 * num_parts
    scratch = (bins, parts, opened, listed + row64 * _LIST, num_parts)
    if HAS_CUT:
        highest, peak, status = _peak(source, peaks, num_blocks, BLOCKS_PAD)
        has_cut = (_setting(source, _TOP_K) > 0) | (_real_setting(source, _TOP_P) < 1.0)
        if (status == 0) & has_cut & (_has_flag(source, _GREEDY) == 0):
            _count(source, scratch, peaks, highest, peak, num_blocks, each, BLOCK)
    else:
        _look(source, peaks, bests, parts, num_blocks, each, BLOCK, False)
    if _has_arrived(arrived + row, tl.num_programs(0)):
        highest, peak, status = _peak(source, peaks, num_blocks, BLOCKS_PAD)
        token, given, is_certified = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
        if status == 0:
            if _has_flag(source, _GREEDY):
                token = _likeliest(source, highest, peak, BLOCK)
                given, is_certified = token, _has_flag(source, _ASKED).to(tl.int32)
            else:
                token, given, is_certified = _decided(source, scratch, bests, num_blocks, highest, peak, BLOCK, HAS_CUT)
        drawn_here = drawn + row64 * 4
        tl.store(drawn_here, token)
        tl.store(drawn_here + 1, given)
        tl.store(drawn_here + 2, is_certified)
        tl.store(drawn_here + 3, status)
        if NUM_TOKENS > 0:  # noqa: SIM102  a condition that is compiled away, and one that counts
            if _has_arrived(arrived + tl.num_programs(1) + row // WIDTH, WIDTH):
                _match(
                    drawn, values, rows, starts, counts, tokens, taken, out, row // WIDTH, num_texts,
                    WIDTH, NUM_TOKENS, PAD,
                )  # fmt: skip


@program
def _likeliest(source: tl.tuple, highest: tl.tensor, peak: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The lowest of the tokens with the largest y: what is divided may be equal where the logits are not."""
    tokens = tl.argmax(highest, axis=0) * BLOCK + tl.arange(0, BLOCK)
    return tl.min(tl.where(_y_of(source, tokens) == peak, tokens, _TOKEN), axis=0)


@program
def _decided(
    source: tl.tuple, scratch: tl.tuple, bests: tl.tensor, num_blocks: tl.tensor, highest: tl.tensor, peak: tl.tensor,
    BLOCK: tl.constexpr, HAS_CUT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The token of a row that is drawn, what is given, and whether it is certified; see `sampler.sample_rows`."""
    blocks = tl.arange(0, highest.shape[0])
    distance = _real_setting(source, _DISTANCE)
    # Other programs stored these: not from a cache of this multiprocessor.
    best_of_blocks = tl.load(bests + blocks, mask=blocks < num_blocks, other=float("-inf"), cache_modifier=".cg")
    floor = _key(tl.full([1], 0.0, tl.float32) + _floor(peak, distance))
    least = tl.maximum(tl.max(floor, axis=0), _NOTHING + 1)
    token, leader, last = tl.full([], 0, tl.int32), tl.full([], -1, tl.int32), tl.full([], _LAST, tl.int32)
    gap = tl.full([], 0.0, tl.float64)  # between the noisy logits of the leader, the best token of all, and the second
    is_cut, is_open = HAS_CUT == 0, True
    while is_open:
        token, own, best, second = _best_of(source, highest, best_of_blocks, least, last, peak, BLOCK)
        gap = tl.where(leader < 0, best.to(tl.float64) - second.to(tl.float64), gap)
        leader = tl.where(leader < 0, token, leader)
        is_open = False
        if HAS_CUT:  # noqa: SIM102
            if is_cut == 0:
                place = _bin(peak - _y_of_key(own))
                cut, number, reach = _cut(source, scratch, place, peak, BLOCK)
                least = tl.maximum(least, cut)
                is_cut = reach < 0
                if is_cut & (own < least) & (number > 0):
                    token = _best_listed(source, scratch[3], number, least, peak)
                else:
                    is_open = tl.where(is_cut, own < least, place > reach)
                    last = tl.where(is_cut, last, reach)
    given, is_certified = token, tl.full([], 0, tl.int32)
    if _has_flag(source, _ASKED):
        y = tl.max(_y_of(source, token + tl.arange(0, 1)), axis=0)
        if (token == leader) & (gap > _NEAR):
            is_certified = _is_certain(source, y, token, highest, peak, BLOCK).to(tl.int32)
        if (distance < float("inf")) & (y < peak):
            given = _likeliest(source, highest, peak, BLOCK)
    return token, given, is_certified


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
    for kernel, grid, arguments, constants, num_warps in launches(logits, *others, drawn=drawn) if num_rows else ():
        with on(logits.device):
            kernel[grid](*arguments, **constants, num_warps=num_warps, **_OPTIONS)
    return drawn


def launches(
    logits: Tensor, values: Tensor, masks: Tensor | None, num_positions: int, has_cut: bool,
    step: tuple[Tensor, ...] | None = None, *, drawn: Tensor,
) -> list[tuple[Any, tuple[int, int], tuple[Any, ...], dict[str, Any], int]]:  # fmt: skip
    """The one or two programs, each with grid, arguments, constants and warps; depends on shapes and card alone.

    Args:
        logits, values, masks, num_positions, has_cut: see `sampler.sample_rows`.
        step: `rows`, `starts`, `counts`, `tokens`, `taken` and `out` of `draft_match.take_tokens`; None to draw alone.
        drawn: int32 [N, 4], what comes of the rows.
    """
    logits = logits.contiguous()
    num_rows, vocab_size = logits.shape
    num_texts = num_rows // num_positions
    blocks = -(-vocab_size // BLOCK)

    def made(*shape: int, kind: torch.dtype = torch.float32, is_used: bool = True) -> Tensor:
        return logits.new_empty((num_rows, *shape), dtype=kind) if is_used else drawn

    peaks, bests, parts = made(blocks), made(blocks), made(blocks, _PARTS.value, is_used=has_cut)
    bins = made(2, _BINS.value, kind=torch.int64, is_used=has_cut)
    opened = made(blocks, _PARTS.value, kind=torch.int32, is_used=has_cut)
    listed = made(_LIST.value, kind=torch.int64, is_used=has_cut)
    num_counted = num_rows + num_texts
    is_counted = num_counted <= NUM_COUNTERS
    arrived = counters(logits.device) if is_counted else logits.new_zeros(num_counted, dtype=torch.int32)
    values = values.contiguous()
    source = (logits, values if masks is None else masks.contiguous(), values)  # of the same type, and not read
    sizes = (vocab_size, 0 if masks is None else masks.shape[1], blocks, num_texts)
    constants: dict[str, Any] = {"HAS_MASKS": masks is not None, "WIDTH": num_positions, "BLOCK": BLOCK}
    chain: list[Any] = []
    each = max(1, min(8, blocks * num_rows // 512))  # blocks of one program: what is known of a row is read for each
    if has_cut:
        given = (*source, peaks, bests, parts, bins, *sizes, each)
        chain.append((look, (-(-blocks // each), num_rows), given, constants, 4))
        # `choose` has so many registers that one program is on a multiprocessor at a time: all start together.
        each = _BLOCKS.value
        most = max(1, card_of(logits.device).num_processors // num_rows)
        each *= -(-blocks // (each * most))
    given = (*source, peaks, bests, parts, bins, opened, listed, arrived, drawn, *(step or [drawn] * 6), *sizes, each)
    constants = constants | {"BLOCKS_PAD": next_power_of_2(blocks), "HAS_CUT": has_cut}
    constants |= {"NUM_TOKENS": 0 if step is None else step[3].shape[1], "PAD": next_power_of_2(num_positions)}
    chain.append((choose, (-(-blocks // each), num_rows), given, constants, 8 if has_cut else 4))
    return chain
