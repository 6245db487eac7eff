"""The sampler on a GPU: a chain of programs over blocks of 1,024 tokens, each of which opens the blocks that matter.

    peaks        every block     its largest logit, whether it has NaN; tokens by the first 11 bits of y: see below
    bins         up to 4 passes  tokens, and their mass, by the next 11 and the last 10 bits
    choose       kept blocks     the best noisy logit of each block in float32, and how many tokens tie with the cut;
                 a block or two  the last program of a row: exact noise in float64 where float32 cannot decide; the
                                 token; its certificate

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

A batch without top-k and top-p needs two launches (peaks, choose), with top-k four (passes 1 to 3), with top-p five
(2, 4 and 5), with both six; every grid follows from shapes. The programs of a row that leave something for the last of
them count themselves in `arrived`, which is zeros again afterwards.

The weights of masses must not be contracted to multiply-adds: programs are compiled without (`enable_fp_fusion`).

Screening. With t = 1 - u, exact to 2^-24, and E = -ln u, g = -ln E: for t < 1/16 E is summed up as t + t^2/2 + ... to
the sixth power, 10^-8 of it; otherwise E > 0.064 comes from a logarithm with an error below 2^-20: 1.5 10^-5 of it. The
logarithm of E is off by that and by its own error at numbers up to 37, 10^-5. Two such errors and the rounding of two
sums stay below `NEAR` = 10^-4, by which blocks are opened.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton.language as tl
from torch import Tensor

from decodekit.kernels.programs import NUM_COUNTERS, counters, next_power_of_2, on, program, program_for_any
from decodekit.sampling.margins import MARGIN, NEAR
from decodekit.sampling.noise import FACTOR1, FACTOR2, GOLDEN

_GOLDEN = tl.constexpr(GOLDEN)
_FACTOR1 = tl.constexpr(FACTOR1)
_FACTOR2 = tl.constexpr(FACTOR2)
_NEAR = tl.constexpr(NEAR)
_MARGIN = tl.constexpr(MARGIN)
_BINS = tl.constexpr(2048)
_OF_ROWS: Final = (
    "mask_ids", "temperatures", "top_ks", "top_ps", "distances", "are_greedy", "seeds", "sequences", "positions",
)  # fmt: skip
"""Read one by one, and views of one upload: no program is compiled for how they are aligned."""

BLOCK: Final = 1024
_OPTIONS: Final[dict[str, Any]] = {"num_warps": 4, "enable_fp_fusion": False}


@program
def _load(
    logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor, row: tl.tensor, tokens: tl.tensor, vocab_size: tl.tensor,
    num_words: tl.tensor, HAS_MASKS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Allowed logits, float32; -inf for the others."""
    is_there = tokens < vocab_size
    if HAS_MASKS:
        mask = tl.load(mask_ids + row).to(tl.int64)
        num_masked = tl.where(mask >= 0, vocab_size, 0)
        words = tl.load(masks + mask * num_words + tokens // 32, mask=tokens < num_masked, other=-1)
        is_there = is_there & (((words >> (tokens % 32)) & 1) != 0)
    # Of a forbidden token nothing is read: it may be NaN.
    return tl.load(logits + row.to(tl.int64) * vocab_size + tokens, mask=is_there, other=float("-inf")).to(tl.float32)


@program
def _divided(values: tl.tensor, temperatures: tl.tensor, are_greedy: tl.tensor, row: tl.tensor) -> tl.tensor:
    """y = z / T, with one zero only."""
    temperature = tl.where(tl.load(are_greedy + row) != 0, 1.0, tl.load(temperatures + row))
    y = tl.div_rn(values, tl.full(values.shape, 1.0, tl.float32) * temperature)
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
def _bits(seeds: tl.tensor, sequences: tl.tensor, positions: tl.tensor, row: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """The 52 random bits of tokens, int64; see `sampling.noise`."""
    one = tl.full([1], 1, tl.uint64)
    golden = one * _GOLDEN
    seed = one * tl.load(seeds + row).to(tl.uint64, bitcast=True)
    sequence = one * tl.load(sequences + row).to(tl.uint64, bitcast=True)
    position = one * tl.load(positions + row).to(tl.uint64, bitcast=True)
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


@program_for_any("num_words", "num_blocks", *_OF_ROWS)
def peaks_of(
    logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor, peaks: tl.tensor, bins: tl.tensor,
    temperatures: tl.tensor, top_ks: tl.tensor, are_greedy: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor,
    HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr, USES_TOP_K: tl.constexpr, ROW_BINS: tl.constexpr,
) -> None:  # fmt: skip
    """The largest logit of each block, NaN if it has one, float32 [N, blocks]; pass 1 of top-k; grid (blocks, N)."""
    block, row = tl.program_id(0), tl.program_id(1)
    row64 = row.to(tl.int64)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    values = _load(logits, masks, mask_ids, row, tokens, vocab_size, num_words, HAS_MASKS)
    is_nan = tl.max((values != values).to(tl.int32), axis=0)
    peak = tl.max(tl.where(values != values, float("-inf"), values), axis=0)
    tl.store(peaks + row64 * num_blocks + block, tl.where(is_nan != 0, float("nan"), peak))
    if USES_TOP_K:
        is_used = (tl.load(top_ks + row) > 0) & (tl.load(are_greedy + row) == 0)
        if is_used:
            y = _divided(values, temperatures, are_greedy, row)
            ones = tl.full([BLOCK], 1, tl.int64)
            tl.atomic_add(bins + row64 * ROW_BINS + (_key(y) >> 21), ones, mask=y > float("-inf"), sem="relaxed")


@program
def _peak(
    peaks: tl.tensor, temperatures: tl.tensor, are_greedy: tl.tensor, row: tl.tensor, num_blocks: tl.tensor,
    BLOCKS_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The largest y of a row, and its status."""
    blocks = tl.arange(0, BLOCKS_PAD)
    values = tl.load(peaks + row.to(tl.int64) * num_blocks + blocks, mask=blocks < num_blocks, other=float("-inf"))
    is_nan = tl.max((values != values).to(tl.int32), axis=0)
    largest = tl.max(_divided(tl.where(values != values, float("-inf"), values), temperatures, are_greedy, row), axis=0)
    status = tl.where(
        is_nan + (largest == float("inf")).to(tl.int32) > 0, 1, (largest == float("-inf")).to(tl.int32) * 2
    )
    return largest, status


@program
def _measures(bins: tl.tensor) -> tl.tensor:
    """What 2,048 bins hold, from the last one on."""
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


@program_for_any("num_words", "num_blocks", "each", *_OF_ROWS)
def bins_of(
    logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor, peaks: tl.tensor, bins: tl.tensor, states: tl.tensor,
    temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, are_greedy: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, each: tl.tensor,
    HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr, ROW_BINS: tl.constexpr,
    USES_TOP_K: tl.constexpr, USES_TOP_P: tl.constexpr, PASS: tl.constexpr,
) -> None:  # fmt: skip
    """A pass: tokens or their units by the next bits; grid (blocks / each, N).

    bins: int64 [N, ROW_BINS / 2048, 2048]: tokens by first, next and last bits (with a top-k); masses by first bits
    (pass 2), next (pass 4), last (pass 5); with both, masses of pass 2 by next bits and of pass 3 by last bits.
    states: int64 [N, 2, 2, 2], for each cut before its second and its third pass; see `_cut`.
    """
    row = tl.program_id(1)
    row64 = row.to(tl.int64)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    has_k, has_p = USES_TOP_K and top_k > 0, USES_TOP_P and top_p < 1.0
    peak, status = _peak(peaks, temperatures, are_greedy, row, num_blocks, BLOCKS_PAD)
    if (status != 0) | (tl.load(are_greedy + row) != 0):
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
        highest = _divided(tl.load(peaks + row64 * num_blocks + block + tl.arange(0, 1)), temperatures, are_greedy, row)
        if tl.max(_key(highest), axis=0) >= least:
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            values = _load(logits, masks, mask_ids, row, tokens, vocab_size, num_words, HAS_MASKS)
            y = _divided(values, temperatures, are_greedy, row)
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
    bins: tl.tensor, states: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, distances: tl.tensor,
    are_greedy: tl.tensor, row: tl.tensor, peak: tl.tensor,
    USES_TOP_K: tl.constexpr, USES_TOP_P: tl.constexpr, ROW_BINS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """What a row keeps: keys from `least` on, and of a `tied` one only so many; and the floor of min-p, a number."""
    is_drawn = tl.load(are_greedy + row) == 0
    floor = _floor(peak, tl.load(distances + row))
    floor = tl.where(is_drawn, floor, float("-inf"))
    floor_key = tl.max(_key(tl.full([1], 0.0, tl.float32) + floor), axis=0)
    least = floor_key
    tied = tl.full([], -1, tl.int64)
    needed = tl.full([], 0, tl.int64)
    bins += row.to(tl.int64) * ROW_BINS
    states += row.to(tl.int64) * 8
    if USES_TOP_K:
        cut, _wanted, _held = _cut(bins + 2 * 2048, states + 2, is_drawn & (tl.load(top_ks + row) > 0))
        least = tl.maximum(least, cut)
    if USES_TOP_P:
        last: tl.constexpr = 5 if USES_TOP_K else 2
        cut, wanted, held = _cut(bins + last * 2048, states + 6, is_drawn & (tl.load(top_ps + row) < 1.0))
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
    """The least number that min-p keeps, as `margins.lowest_kept`."""
    limit = peak.to(tl.float64) - (distance + _MARGIN)
    rounded = limit.to(tl.float32)
    bits = rounded.to(tl.int32, bitcast=True)
    up = tl.where(rounded == 0.0, 1, tl.where(rounded > 0.0, bits + 1, bits - 1)).to(tl.float32, bitcast=True)
    return tl.where((rounded.to(tl.float64) < limit) & (rounded > float("-inf")), up, rounded)


@program
def _screen(
    logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor, peaks: tl.tensor, bests: tl.tensor, num_tied: tl.tensor,
    temperatures: tl.tensor, are_greedy: tl.tensor, seeds: tl.tensor, sequences: tl.tensor, positions: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, each: tl.tensor,
    peak: tl.tensor, least: tl.tensor, tied: tl.tensor, floor: tl.tensor,
    HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr, CERTIFIES: tl.constexpr,
) -> None:  # fmt: skip
    """The best rough noisy logit of each block of a program.

    bests: float32 [3, N, blocks]: of what is kept, of what ties with the last that is kept if not all ties are, and of
    what a leader may be; num_tied: int32 [N, blocks].
    """
    row = tl.program_id(1)
    row64 = row.to(tl.int64)
    stride = tl.num_programs(1).to(tl.int64) * num_blocks
    for block in tl.range(tl.program_id(0) * each, tl.minimum(tl.program_id(0) * each + each, num_blocks)):
        place = row64 * num_blocks + block
        highest = _divided(tl.load(peaks + place + tl.arange(0, 1)), temperatures, are_greedy, row)
        kept, ties, leader, count = float("-inf"), float("-inf"), float("-inf"), 0
        is_open = tl.max(_key(highest), axis=0) >= least
        if CERTIFIES:
            is_open = is_open | (tl.max(highest, axis=0) >= floor)
        if is_open & (tl.max(highest, axis=0) > float("-inf")):
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            values = _load(logits, masks, mask_ids, row, tokens, vocab_size, num_words, HAS_MASKS)
            y = _divided(values, temperatures, are_greedy, row)
            noisy = (y - peak) + _rough_noise(_bits(seeds, sequences, positions, row, tokens))
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
def _best_of(
    uppers: tl.tensor, limit: tl.tensor, before: tl.tensor, least: tl.tensor, tied: tl.tensor, needed: tl.tensor,
    peak: tl.tensor, logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor,
    temperatures: tl.tensor, are_greedy: tl.tensor, seeds: tl.tensor, sequences: tl.tensor, positions: tl.tensor,
    row: tl.tensor, vocab_size: tl.tensor, num_words: tl.tensor,
    HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The token with the largest exact noisy logit, the lowest of equals, its logit, and the second largest one.

    Opens the blocks of which `uppers` reaches the limit. `before`: ties in the blocks before each block.
    """
    blocks = tl.arange(0, BLOCKS_PAD)
    best, second = tl.full([], float("-inf"), tl.float32), tl.full([], float("-inf"), tl.float32)
    token = tl.full([], 0, tl.int32)
    top = tl.max(uppers, axis=0)
    while (top >= limit) & (top > float("-inf")):
        block = tl.min(tl.where(uppers == top, blocks, BLOCKS_PAD), axis=0)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        values = _load(logits, masks, mask_ids, row, tokens, vocab_size, num_words, HAS_MASKS)
        y = _divided(values, temperatures, are_greedy, row)
        noise = _exact_noise(_bits(seeds, sequences, positions, row, tokens)).to(tl.float32)
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
    token: tl.tensor, peaks: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, distances: tl.tensor,
    logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor, temperatures: tl.tensor, are_greedy: tl.tensor,
    row: tl.tensor, vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, peak: tl.tensor,
    HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Whether every truncation keeps a leader under every mask (see `sampling.certificates`), and it is the likeliest.

    Looks through the blocks that have likelier tokens, and stops when these are too many.
    """
    blocks = tl.arange(0, BLOCKS_PAD)
    own_value = _load(logits, masks, mask_ids, row, token + tl.arange(0, 1), vocab_size, num_words, HAS_MASKS)
    own = tl.max(_divided(own_value, temperatures, are_greedy, row), axis=0)
    k, p = tl.load(top_ks + row), tl.load(top_ps + row)
    highest = tl.load(peaks + row.to(tl.int64) * num_blocks + blocks, mask=blocks < num_blocks, other=float("-inf"))
    highest = _divided(highest, temperatures, are_greedy, row)
    number, mass = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float64)
    is_kept = True
    top = tl.max(highest, axis=0)
    while (top >= own) & is_kept & ((k > 0) | (p < 1.0)):
        block = tl.min(tl.where(highest == top, blocks, BLOCKS_PAD), axis=0)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        values = _load(logits, masks, mask_ids, row, tokens, vocab_size, num_words, HAS_MASKS)
        y = _divided(values, temperatures, are_greedy, row)
        is_before = (y >= own) & (tokens != token)
        number += tl.sum((is_before & (y > own)).to(tl.int32), axis=0)
        weights = tl.exp(tl.where(is_before, y.to(tl.float64) - own.to(tl.float64), 0.0))
        mass += tl.sum(tl.where(is_before, weights, 0.0), axis=0)
        is_kept = ((k <= 0) | (number < k)) & ((p == 1.0) | (mass * (1.0 - p + _MARGIN) < p * (1.0 - _MARGIN)))
        highest = tl.where(blocks == block, float("-inf"), highest)
        top = tl.max(highest, axis=0)
    largest = peak.to(tl.float64) - own.to(tl.float64)
    is_near = (largest <= tl.load(distances + row) - _MARGIN) | (largest == 0.0)
    return is_kept & is_near, own == peak


@program
def _has_arrived(arrived: tl.tensor, number: tl.tensor) -> tl.tensor:
    """Whether this program is the last one of a number; what the others stored is there then."""
    tl.debug_barrier()  # what every thread stored is before the count
    is_last = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == number - 1
    tl.debug_barrier()
    if is_last:
        tl.store(arrived, 0)
    return is_last


@program_for_any("num_words", "num_blocks", "each", *_OF_ROWS)
def choose(
    logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor, peaks: tl.tensor, bins: tl.tensor, states: tl.tensor,
    bests: tl.tensor, num_tied: tl.tensor, arrived: tl.tensor,
    temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, distances: tl.tensor, are_greedy: tl.tensor,
    seeds: tl.tensor, sequences: tl.tensor, positions: tl.tensor,
    out_tokens: tl.tensor, out_clear: tl.tensor, out_given: tl.tensor, out_status: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, each: tl.tensor,
    HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr, ROW_BINS: tl.constexpr,
    USES_TOP_K: tl.constexpr, USES_TOP_P: tl.constexpr, CERTIFIES: tl.constexpr,
) -> None:  # fmt: skip
    """The token of each row, its certificate and status; grid (blocks / each, N).

    Every program screens its blocks; the one that comes last in a row decides.
    """
    row = tl.program_id(1)
    peak, status = _peak(peaks, temperatures, are_greedy, row, num_blocks, BLOCKS_PAD)
    is_greedy = tl.load(are_greedy + row) != 0
    is_last = tl.program_id(0) == 0
    least, tied, needed, floor = _limits(
        bins, states, top_ks, top_ps, distances, are_greedy, row, peak, USES_TOP_K, USES_TOP_P, ROW_BINS
    )
    if (status == 0) & (not is_greedy):
        _screen(
            logits, masks, mask_ids, peaks, bests, num_tied, temperatures, are_greedy, seeds, sequences, positions,
            vocab_size, num_words, num_blocks, each, peak, least, tied, floor, HAS_MASKS, BLOCK, CERTIFIES,
        )  # fmt: skip
        is_last = _has_arrived(arrived + row, tl.num_programs(0))
    if is_last:
        _decide(
            logits, masks, mask_ids, peaks, bests, num_tied, temperatures, top_ks, top_ps, distances, are_greedy,
            seeds, sequences, positions, out_tokens, out_clear, out_given, out_status, vocab_size, num_words,
            num_blocks, row, peak, status, least, tied, needed, floor, HAS_MASKS, BLOCK, BLOCKS_PAD, CERTIFIES,
        )  # fmt: skip


@program
def _decide(
    logits: tl.tensor, masks: tl.tensor, mask_ids: tl.tensor, peaks: tl.tensor, bests: tl.tensor, num_tied: tl.tensor,
    temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, distances: tl.tensor, are_greedy: tl.tensor,
    seeds: tl.tensor, sequences: tl.tensor, positions: tl.tensor,
    out_tokens: tl.tensor, out_clear: tl.tensor, out_given: tl.tensor, out_status: tl.tensor,
    vocab_size: tl.tensor, num_words: tl.tensor, num_blocks: tl.tensor, row: tl.tensor, peak: tl.tensor,
    status: tl.tensor, least: tl.tensor, tied: tl.tensor, needed: tl.tensor, floor: tl.tensor,
    HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr, CERTIFIES: tl.constexpr,
) -> None:  # fmt: skip
    """The token of a row whose blocks are screened."""
    blocks = tl.arange(0, BLOCKS_PAD)
    place = row.to(tl.int64) * num_blocks + blocks
    is_block = blocks < num_blocks
    stride = tl.num_programs(1).to(tl.int64) * num_blocks
    tl.store(out_status + row, status)
    is_greedy = tl.load(are_greedy + row) != 0
    token, given, is_clear = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), False
    if status == 0:
        if is_greedy | CERTIFIES:
            highest = tl.load(peaks + place, mask=is_block, other=float("-inf"))
            block = tl.min(tl.where(highest == tl.max(highest, axis=0), blocks, BLOCKS_PAD), axis=0)
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            values = _load(logits, masks, mask_ids, row, tokens, vocab_size, num_words, HAS_MASKS)
            values = tl.where(values == tl.max(values, axis=0), tokens, 2147483647)
            given = tl.min(values, axis=0)
        if is_greedy:
            token, is_clear = given, CERTIFIES
        else:
            # Other programs stored these: not from a cache of this multiprocessor.
            kept = tl.load(bests + place, mask=is_block, other=float("-inf"), cache_modifier=".cg")
            ties = tl.load(bests + stride + place, mask=is_block, other=float("-inf"), cache_modifier=".cg")
            numbers = tl.load(num_tied + place, mask=is_block, other=0, cache_modifier=".cg").to(tl.int64)
            before = tl.cumsum(numbers, axis=0) - numbers
            sure = tl.maximum(kept, tl.where(before + numbers <= needed, ties, float("-inf")))
            uppers = tl.maximum(kept, tl.where(before < needed, ties, float("-inf")))
            token, _best, _second = _best_of(
                uppers, tl.max(sure, axis=0) - 3 * _NEAR, before, least, tied, needed, peak,
                logits, masks, mask_ids, temperatures, are_greedy, seeds, sequences, positions, row, vocab_size,
                num_words, HAS_MASKS, BLOCK, BLOCKS_PAD,
            )  # fmt: skip
            if CERTIFIES:
                leads = bests + 2 * stride + place
                uppers = tl.load(leads, mask=is_block, other=float("-inf"), cache_modifier=".cg")
                floor_key = tl.max(_key(tl.full([1], 0.0, tl.float32) + floor), axis=0)
                leader, best, second = _best_of(
                    uppers, tl.max(uppers, axis=0) - 3 * _NEAR, before, floor_key, -1, needed, peak,
                    logits, masks, mask_ids, temperatures, are_greedy, seeds, sequences, positions, row, vocab_size,
                    num_words, HAS_MASKS, BLOCK, BLOCKS_PAD,
                )  # fmt: skip
                is_certain, is_likeliest = _is_certain(
                    token, peaks, top_ks, top_ps, distances, logits, masks, mask_ids, temperatures, are_greedy,
                    row, vocab_size, num_words, num_blocks, peak, HAS_MASKS, BLOCK, BLOCKS_PAD,
                )  # fmt: skip
                is_alone = best.to(tl.float64) - second.to(tl.float64) > _NEAR
                is_clear = is_certain & is_alone & (leader == token)
                has_floor = tl.load(distances + row) < float("inf")
                given = tl.where(has_floor & (is_likeliest == 0), given, token)
            else:
                given = token
    tl.store(out_tokens + row, token.to(tl.int64))
    tl.store(out_given + row, given.to(tl.int64))
    tl.store(out_clear + row, is_clear)


def launched(
    logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, distances: Tensor, are_greedy: Tensor,
    seeds: Tensor, sequences: Tensor, positions: Tensor, masks: Tensor | None, mask_ids: Tensor | None,
    uses_top_k: bool, uses_top_p: bool, certifies: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The operation by its kernels; see `sampler.sample_rows`."""
    num_rows = logits.shape[0]
    out = tuple(logits.new_empty(num_rows, dtype=kind) for kind in (torch.int64, torch.bool, torch.int64, torch.int32))
    if num_rows:
        for kernel, grid, arguments, constants in launches(
            logits, temperatures, top_ks, top_ps, distances, are_greedy, seeds, sequences, positions, masks, mask_ids,
            uses_top_k, uses_top_p, certifies, out,
        ):  # fmt: skip
            with on(logits.device):
                kernel[grid](*arguments, **constants, **_OPTIONS)
    return out  # type: ignore[return-value]


def launches(
    logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, distances: Tensor, are_greedy: Tensor,
    seeds: Tensor, sequences: Tensor, positions: Tensor, masks: Tensor | None, mask_ids: Tensor | None,
    uses_top_k: bool, uses_top_p: bool, certifies: bool, out: tuple[Tensor, ...],
) -> list[tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:  # fmt: skip
    """The chain of programs, each with grid, arguments and constants; depends on shapes alone."""
    logits = logits.contiguous()
    num_rows, vocab_size = logits.shape
    blocks = -(-vocab_size // BLOCK)
    each = max(1, min(8, blocks * num_rows // 512))  # blocks of one program: what is known of a row is read for each
    grid = (-(-blocks // each), num_rows)

    def made(*shape: int, kind: torch.dtype) -> Tensor:
        return logits.new_empty(shape, dtype=kind)

    num_bins = 8 if uses_top_k and uses_top_p else 3 if uses_top_k or uses_top_p else 0
    bins = logits.new_zeros((num_rows, num_bins, 2048) if num_bins else 1, dtype=torch.int64)
    states = made(num_rows, 2, 2, 2, kind=torch.int64)
    peaks = made(num_rows, blocks, kind=torch.float32)
    bests = made(3, num_rows, blocks, kind=torch.float32)
    num_tied = made(num_rows, blocks, kind=torch.int32)
    arrived = counters(logits.device) if num_rows <= NUM_COUNTERS else logits.new_zeros(num_rows, dtype=torch.int32)
    source = (
        logits,
        logits if masks is None else masks.contiguous(),
        logits if mask_ids is None else mask_ids.contiguous(),
    )
    sizes = (vocab_size, 0 if masks is None else masks.shape[1], blocks)
    constants: dict[str, Any] = {"HAS_MASKS": masks is not None and mask_ids is not None, "BLOCK": BLOCK}
    constants |= {"USES_TOP_K": uses_top_k, "ROW_BINS": num_bins * 2048}
    rule = tuple(
        one.contiguous() for one in (temperatures, top_ks, top_ps, distances, are_greedy, seeds, sequences, positions)
    )
    given = (*source, peaks, bins, *rule[:2], rule[4], *sizes)
    chain: list[Any] = [(peaks_of, (blocks, num_rows), given, constants)]
    constants = constants | {"BLOCKS_PAD": next_power_of_2(blocks), "USES_TOP_P": uses_top_p}
    passes = {(True, True): (2, 3, 4, 5), (True, False): (2, 3), (False, True): (2, 4, 5)}
    for number in passes.get((uses_top_k, uses_top_p), ()):
        given = (*source, peaks, bins, states, *rule[:3], rule[4], *sizes, each)
        chain.append((bins_of, grid, given, constants | {"PASS": number}))
    given = (*source, peaks, bins, states, bests, num_tied, arrived, *rule, *out, *sizes, each)
    chain.append((choose, grid, given, constants | {"CERTIFIES": certifies}))
    return chain
