"""Attention over pages on a GPU: one launch that writes new tokens and attends (flash-decoding, Dao et al. 2023).

A program has one row, one head of keys, a block of its queries, packed with the heads that share it, and a part of the
tokens. Two rows, one of 300 tokens and a new one, one of 60 and a new one, four heads of queries for one of keys,
blocks of 64 tokens:

    row 0, old  | 0 | 1 | 2 | 3 | 4 |  new | 5 |      six blocks; the old ones are walked page by page, the new one
    row 1, old  | 0 |                  new | 1 |      is read from the inputs; two blocks

The grid has one program for each row and `num_parts - 1` more; num_parts is 4, say. Together the rows have 8 blocks, so
a part has 8 / 4 = 2, row 0 has three parts and row 1 has one:

    program       0           1           2           3           4
    has           row 0: 0,1  row 0: 2,3  row 0: 4,5  row 1: 0,1  nothing

Rows of n blocks have ceil(n / each) <= 1 + (n - 1) / each parts, and each >= (sum of n) / num_parts, so the grid always
suffices. It follows from shapes; who has which part from the lengths, on the device, where every program finds its own:
a captured launch serves any lengths, and a long row among short ones is read by many programs.

No program reads what another one writes: nobody looks into the pages from `starts` on, and appending needs no launch of
its own. Programs that share a query leave their parts, (peak, total, sum), in a workspace; the one that comes last
merges them.

Who is last is counted in `counters`, one for each row and block of queries. All parts of one read the same lengths, so
they agree how many they are, `used`, and each counts once. A part is stored before its count: the barrier orders the
stores of all threads before the atomic of one, which releases them to the GPU; the program that counts `used - 1`
acquires them, and the barrier behind it hands that on to its threads, which read past their L1 cache. It sets the
counter back to zero, which nobody of this launch looks at any more, and the next launch of the stream starts behind its
end. Launches that may overlap need counters of their own: those of `programs.counters` belong to one stream.

The peaks are logarithms to base 2. Sums are float32; products of float32 are not rounded to TF32.
"""

from __future__ import annotations

from typing import Final

import triton.language as tl

from decodekit.gpu.triton_programs import is_interpreted, program, program_for_any

IS_INTERPRETED: Final = is_interpreted()  # what is decorated below knows it from then on

_LOG2E = tl.constexpr(1.4426950408889634)
_SMALLEST = tl.constexpr(2.0**-126)
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: added and subtracted, it rounds to the nearest even integer


@program_for_any("num_rows", "width", "pages_width", "pages_per_arena", "num_parts", "least", "window")
def attend(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, pages: tl.tensor, starts: tl.tensor, counts: tl.tensor,
    arenas: tl.tensor, sinks: tl.tensor, out: tl.tensor, parts: tl.tensor, totals: tl.tensor, counters: tl.tensor,
    query_row: tl.tensor, query_token: tl.tensor, query_head: tl.tensor, key_row: tl.tensor, key_token: tl.tensor,
    key_head: tl.tensor, value_row: tl.tensor, value_token: tl.tensor, value_head: tl.tensor, num_rows: tl.tensor,
    width: tl.tensor, pages_width: tl.tensor, pages_per_arena: tl.tensor, page_bytes: tl.tensor, key_offset: tl.tensor,
    value_offset: tl.tensor, key_scale_offset: tl.tensor, value_scale_offset: tl.tensor, scale: tl.tensor,
    softcap: tl.tensor, window: tl.tensor, num_parts: tl.tensor, least: tl.tensor, HEADS: tl.constexpr,
    GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, STORED: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    KEY_PAD: tl.constexpr, KEY_REST: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr, KIND: tl.constexpr,
    DOT: tl.constexpr, KEY_ALIGN: tl.constexpr, VALUE_ALIGN: tl.constexpr, MANY: tl.constexpr, ROWS: tl.constexpr,
    MOST_PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """One row, one head of keys, M rows of packed queries, one part; grid (heads * blocks, B + num_parts - 1).

    The arguments are those of `paged_attention`; see `attention_launch.launch_of` for the others.
    """
    row, first_of, each = _share(starts, counts, num_rows, num_parts, least, window, HAS_WINDOW, N, ROWS, MOST_PARTS)
    if row >= num_rows:
        return
    split = tl.program_id(1) - first_of
    head, block = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
    start, count = tl.load(starts + row), tl.load(counts + row)
    # Packed queries: number r is of new token r // GROUP and head r % GROUP of those that share this head of keys.
    packed = block * M + tl.arange(0, M)
    tokens, heads = packed // GROUP, head * GROUP + packed % GROUP
    is_real = tokens < count
    first, last = (block * M) // GROUP, tl.minimum((block * M + M - 1) // GROUP, count - 1)
    lanes = tl.arange(0, VALUE_PAD)
    row64, head64 = row.to(tl.int64), head.to(tl.int64)  # a long prompt of many heads has more than 2^31 numbers
    outs = out + (row64 * width + tokens[:, None]) * (HEADS * GROUP * VALUE_DIM) + heads[:, None] * VALUE_DIM + lanes
    is_out = (tokens < width)[:, None] & (lanes < VALUE_DIM)
    if first >= count:
        if split == 0:
            tl.store(outs, tl.zeros([M, VALUE_PAD], tl.float32).to(out.dtype.element_ty), mask=is_out)
        return
    begin, old_begin, num_old, new_begin, num_new = _seen(start, first, last, window, HAS_WINDOW, N)
    used = tl.cdiv(num_old + num_new, each)
    if split >= used:
        return
    low, high = split * each, tl.minimum(split * each + each, num_old + num_new)
    key_at, value_at = key + row64 * key_row + head64 * key_head, value + row64 * value_row + head64 * value_head
    if split == 0:
        _append(
            key_at, value_at, pages + row64 * pages_width, arenas, out, start, count, block, key_token, value_token,
            pages_per_arena, page_bytes, key_offset, value_offset, key_scale_offset, value_scale_offset, head,
            HEADS, GROUP, KEY_DIM, VALUE_DIM, PAGE_SIZE, STORED, M, 2 * KEY_PAD if KEY_REST > 0 else KEY_PAD,
            VALUE_PAD, KIND, KEY_ALIGN, VALUE_ALIGN, MANY,
        )  # fmt: skip
    query_at = query + row64 * query_row + tokens.to(tl.int64) * query_token + heads.to(tl.int64) * query_head
    queries = _numbers(query_at, is_real, 0, KEY_PAD, KEY_DIM).to(DOT)
    rests = queries  # of keys of 576: queries has the first 512, rests the other 64
    if KEY_REST > 0:
        rests = _numbers(query_at, is_real, KEY_PAD, KEY_REST, KEY_DIM).to(DOT)
    peak, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
    sums = tl.zeros([M, VALUE_PAD], tl.float32)
    peak, total, sums = _walk_pages(
        peak, total, sums, queries, rests, start + tokens, pages + row64 * pages_width, arenas, out, begin, start,
        old_begin + tl.minimum(low, num_old), old_begin + tl.minimum(high, num_old),
        pages_per_arena, page_bytes, key_offset, value_offset, key_scale_offset, value_scale_offset,
        head, scale, softcap, window,
        HEADS, KEY_DIM, VALUE_DIM, PAGE_SIZE, STORED, HAS_WINDOW, HAS_SOFTCAP, N, KEY_PAD, KEY_REST, VALUE_PAD,
        STAGES, KIND, KEY_ALIGN, VALUE_ALIGN,
    )  # fmt: skip
    peak, total, sums = _walk_new(
        peak, total, sums, queries, rests, tokens, key_at, value_at, count,
        new_begin + tl.maximum(low - num_old, 0), new_begin + tl.maximum(high - num_old, 0),
        key_token, value_token, scale, softcap, window,
        KEY_DIM, VALUE_DIM, STORED, HAS_WINDOW, HAS_SOFTCAP, N, KEY_PAD, KEY_REST, VALUE_PAD, STAGES,
    )  # fmt: skip
    is_last = True
    if used > 1:
        is_last, peak, total, sums = _joined(
            parts, totals, counters, row64, first_of, split, used, tl.minimum(M, width * GROUP), peak, total, sums,
            MOST_PARTS, M, VALUE_PAD,
        )  # fmt: skip
    if is_last:
        means = _means(peak, total, sums, sinks + heads, HAS_SINKS)
        tl.store(outs, tl.where(is_real[:, None], means, 0.0).to(out.dtype.element_ty), mask=is_out)


@program
def _numbers(
    rows: tl.tensor, is_there: tl.tensor, BEGIN: tl.constexpr, PAD: tl.constexpr, DIM: tl.constexpr
) -> tl.tensor:
    """PAD numbers of each vector from one on; 0 behind the last one of DIM."""
    lanes = BEGIN + tl.arange(0, PAD)
    return tl.load(rows[:, None] + lanes, mask=is_there[:, None] & (lanes < DIM), other=0.0)


@program
def _means(
    peak: tl.tensor, total: tl.tensor, sums: tl.tensor, sinks: tl.tensor, HAS_SINKS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sums by the totals, to which the sinks add; 0 where nothing is seen."""
    if HAS_SINKS:
        sink = tl.load(sinks).to(tl.float32) * _LOG2E
        top = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - top)
        total = total * shrink + tl.exp2(sink - top)
        sums *= shrink[:, None]
    return sums / tl.where(total == 0.0, 1.0, total)[:, None]


@program
def _share(
    starts: tl.tensor, counts: tl.tensor, num_rows: tl.tensor, num_parts: tl.tensor, least: tl.tensor,
    window: tl.tensor, HAS_WINDOW: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, MOST_PARTS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The row of this program, the program with its first part, and blocks of a part; row `num_rows`: none.

    Where one row, or one part of each, makes it plain, nobody has to add up what all rows have.
    """
    number = tl.program_id(1)
    row, first_of = number, number
    if (num_rows == 1) | (num_parts == 1):
        if num_rows == 1:
            row, first_of = number * 0, number * 0
        total = _blocks(starts, counts, row, num_rows, window, HAS_WINDOW, N)
        each = tl.maximum(tl.maximum(tl.cdiv(total, num_parts), tl.cdiv(total, MOST_PARTS)), least)
    else:
        total, longest = number * 0, number * 0
        for begin in range(0, num_rows, ROWS):
            blocks = _blocks(starts, counts, begin + tl.arange(0, ROWS), num_rows, window, HAS_WINDOW, N)
            total, longest = total + tl.sum(blocks), tl.maximum(longest, tl.max(blocks))
        each = tl.maximum(tl.maximum(tl.cdiv(total, num_parts), tl.cdiv(longest, MOST_PARTS)), least)
        row, first_of, end = number * 0, number * 0, number * 0
        for begin in range(0, num_rows, ROWS):
            rows = begin + tl.arange(0, ROWS)
            blocks = _blocks(starts, counts, rows, num_rows, window, HAS_WINDOW, N)
            own = tl.where(
                rows < num_rows, tl.maximum(tl.cdiv(blocks, each), 1), 0
            )  # a dead row has its zeros to write
            ends = end + tl.cumsum(own)
            is_before = (rows < num_rows) & (ends <= number)
            row += tl.sum(is_before.to(tl.int32))
            first_of = tl.maximum(first_of, tl.max(tl.where(is_before, ends, 0)))
            end += tl.sum(own)
    return row, first_of, each


@program
def _blocks(
    starts: tl.tensor, counts: tl.tensor, rows: tl.tensor, num_rows: tl.tensor, window: tl.tensor,
    HAS_WINDOW: tl.constexpr, N: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Blocks that a row's new tokens see together; 0 without new tokens, and where there is no such row."""
    start = tl.load(starts + rows, mask=rows < num_rows, other=0)
    count = tl.load(counts + rows, mask=rows < num_rows, other=0)
    _, _, num_old, _, num_new = _seen(start, 0, count - 1, window, HAS_WINDOW, N)
    return tl.where(count > 0, num_old + num_new, 0)


@program
def _seen(
    start: tl.tensor, first: tl.tensor, last: tl.tensor, window: tl.tensor,
    HAS_WINDOW: tl.constexpr, N: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The tokens that new ones from first to last see: the first old one, then blocks of old ones and of new ones."""
    begin = 0
    new_begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(start + first - window + 1, 0)
        new_begin = tl.maximum(first - window + 1, 0) // N
    old_begin = tl.minimum(begin, start) // N
    return begin, old_begin, tl.cdiv(start, N) - old_begin, new_begin, tl.cdiv(last + 1, N) - new_begin


@program
def _joined(
    parts: tl.tensor, totals: tl.tensor, counters: tl.tensor, row: tl.tensor, first_of: tl.tensor, split: tl.tensor,
    used: tl.tensor, packed_rows: tl.tensor, peak: tl.tensor, total: tl.tensor, sums: tl.tensor,
    MOST_PARTS: tl.constexpr, M: tl.constexpr, VALUE_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Leave a part in the workspace; whether it is the last one of `used`, and then what all parts found."""
    first = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + first_of
    own, place = first + split, row * tl.num_programs(0) + tl.program_id(0)
    rows = tl.arange(0, M)
    is_there = rows < packed_rows
    at = (own * packed_rows + rows) * VALUE_PAD
    tl.store(parts + at[:, None] + tl.arange(0, VALUE_PAD), sums, mask=is_there[:, None])
    tl.store(totals + own * (2 * packed_rows) + rows, peak, mask=is_there)
    tl.store(totals + own * (2 * packed_rows) + packed_rows + rows, total, mask=is_there)
    tl.debug_barrier()  # what every thread stored is before the count
    is_last = tl.atomic_add(counters + place, 1, sem="acq_rel", scope="gpu") == used - 1
    tl.debug_barrier()
    if is_last:
        tl.store(counters + place, 0)
        peak, total, sums = _merged(parts, totals, first, used, packed_rows, MOST_PARTS, M, VALUE_PAD)
    return is_last, peak, total, sums


@program
def _plane_at(
    arenas: tl.tensor,
    page: tl.tensor,
    slot: tl.tensor,
    pages_per_arena: tl.tensor,
    page_bytes: tl.tensor,
    offset: tl.tensor,
    width: tl.tensor,
) -> tl.tensor:
    """The addresses of slots in a plane whose tokens have `width` bytes each,
    int64."""
    arena = tl.load(arenas + 1 + page // pages_per_arena)
    return arena + (page % pages_per_arena).to(tl.int64) * page_bytes + offset + slot.to(tl.int64) * width


@program
def _pointers(anchor: tl.tensor, addresses: tl.tensor, KIND: tl.constexpr, ALIGN: tl.constexpr) -> tl.tensor:
    """Addresses, multiples of `ALIGN` bytes, as pointers to numbers: distances from an aligned tensor.

    A cast to pointers would forget the alignment, and a hint is lost where an expression is simplified; then each
    number is loaded by itself. A product with a constant stays.
    """
    chunks = (addresses - anchor.to(tl.int64)) // ALIGN
    return anchor.to(tl.pointer_type(KIND)) + chunks * (ALIGN // (KIND.primitive_bitwidth // 8))


@program
def _scales(peaks: tl.tensor) -> tl.tensor:
    """The scales of vectors whose largest numbers are given, [N], as `quantised` makes them."""
    return tl.maximum(tl.div_rn(peaks, tl.full([peaks.shape[0]], 127.0, tl.float32)), _SMALLEST)


@program
def _kept(values: tl.tensor, scales: tl.tensor) -> tl.tensor:
    """Vectors [N, D] of float32 as they are kept with scales [N], still float32; as `quantised` does it.

    They are rounded here, so that a conversion changes nothing: how conversions round differs.
    """
    ratios = tl.div_rn(values, tl.broadcast_to(scales[:, None], values.shape))
    return (tl.minimum(tl.maximum(ratios, -127.0), 127.0) + _ROUNDER) - _ROUNDER


@program
def _append(
    key_at: tl.tensor, value_at: tl.tensor, pages: tl.tensor, arenas: tl.tensor, anchor: tl.tensor, start: tl.tensor,
    count: tl.tensor, block: tl.tensor, key_token: tl.tensor, value_token: tl.tensor, pages_per_arena: tl.tensor,
    page_bytes: tl.tensor, key_offset: tl.tensor, value_offset: tl.tensor, key_scale_offset: tl.tensor,
    value_scale_offset: tl.tensor, head: tl.tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    STORED: tl.constexpr, M: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, KIND: tl.constexpr,
    KEY_ALIGN: tl.constexpr, VALUE_ALIGN: tl.constexpr, MANY: tl.constexpr,
) -> None:  # fmt: skip
    """Write the new tokens whose first packed query is in this block."""
    first = tl.cdiv(block * M, GROUP)
    tokens = first + tl.arange(0, MANY)
    is_own = (tokens < count) & (tokens < tl.cdiv((block + 1) * M, GROUP))
    positions = start + tokens
    page = tl.load(pages + positions // PAGE_SIZE, mask=is_own, other=0)
    slot = positions % PAGE_SIZE
    rows = tokens.to(tl.int64)
    _write_plane(
        key_at + rows * key_token, is_own, arenas, anchor, page, slot, pages_per_arena, page_bytes,
        key_offset, key_scale_offset, head, HEADS, KEY_DIM, STORED, KEY_PAD, KIND, KEY_ALIGN,
    )  # fmt: skip
    _write_plane(
        value_at + rows * value_token, is_own, arenas, anchor, page, slot, pages_per_arena, page_bytes,
        value_offset, value_scale_offset, head, HEADS, VALUE_DIM, STORED, VALUE_PAD, KIND, VALUE_ALIGN,
    )  # fmt: skip


@program
def _write_plane(
    rows: tl.tensor, is_own: tl.tensor, arenas: tl.tensor, anchor: tl.tensor, page: tl.tensor, slot: tl.tensor,
    pages_per_arena: tl.tensor, page_bytes: tl.tensor, offset: tl.tensor, scale_offset: tl.tensor, head: tl.tensor,
    HEADS: tl.constexpr, DIM: tl.constexpr, STORED: tl.constexpr, PAD: tl.constexpr, KIND: tl.constexpr,
    ALIGN: tl.constexpr,
) -> None:  # fmt: skip
    """Write vectors, of which `rows` are the pointers, into their slots."""
    lanes = tl.arange(0, PAD)
    mask = is_own[:, None] & (lanes < DIM)
    new = tl.load(rows[:, None] + lanes, mask=mask, other=0.0)
    width: tl.constexpr = KIND.primitive_bitwidth // 8 * DIM
    if STORED > 0:
        new = new.to(tl.float32)
        scales = _scales(tl.max(tl.abs(new), axis=1))
        new = _kept(new, scales)
        at = _plane_at(arenas, page, slot, pages_per_arena, page_bytes, scale_offset + head * 4, HEADS * 4)
        tl.store(at.to(tl.pointer_type(tl.float32)), scales, mask=is_own)
    at = _plane_at(arenas, page, slot, pages_per_arena, page_bytes, offset + head * width, HEADS * width)
    tl.store(_pointers(anchor, at, KIND, ALIGN)[:, None] + lanes, new.to(KIND), mask=mask)


@program
def _walk_pages(
    peak: tl.tensor, total: tl.tensor, sums: tl.tensor, queries: tl.tensor, rests: tl.tensor, positions: tl.tensor,
    pages: tl.tensor, arenas: tl.tensor, anchor: tl.tensor, begin: tl.tensor, start: tl.tensor, low: tl.tensor,
    high: tl.tensor, pages_per_arena: tl.tensor, page_bytes: tl.tensor, key_offset: tl.tensor, value_offset: tl.tensor,
    key_scale_offset: tl.tensor, value_scale_offset: tl.tensor, head: tl.tensor, scale: tl.tensor, softcap: tl.tensor,
    window: tl.tensor,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, STORED: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, N: tl.constexpr, KEY_PAD: tl.constexpr,
    KEY_REST: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr, KIND: tl.constexpr, KEY_ALIGN: tl.constexpr,
    VALUE_ALIGN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Attend to the old tokens of the blocks low ... high - 1, those from `begin` to `start`."""
    key_width: tl.constexpr = KIND.primitive_bitwidth // 8 * KEY_DIM
    value_width: tl.constexpr = KIND.primitive_bitwidth // 8 * VALUE_DIM
    key_lanes = tl.arange(0, KEY_PAD)
    value_lanes = tl.arange(0, VALUE_PAD)
    for block in tl.range(low, high, num_stages=3 * STAGES + 1):  # of a chain of three loads, STAGES blocks
        slots = block * N + tl.arange(0, N)
        is_held = (slots >= begin) & (slots < start)
        page = tl.load(pages + slots // PAGE_SIZE, mask=is_held, other=0)
        arena = tl.load(arenas + 1 + page // pages_per_arena)
        place = arena + (page % pages_per_arena).to(tl.int64) * page_bytes
        slot = slots % PAGE_SIZE * HEADS + head
        key_at = _pointers(anchor, place + key_offset + slot * key_width, KIND, KEY_ALIGN)
        value_at = _pointers(anchor, place + value_offset + slot * value_width, KIND, VALUE_ALIGN)
        keys = tl.load(key_at[:, None] + key_lanes, mask=_mask(is_held, key_lanes, KEY_DIM), other=0.0)
        values = tl.load(
            value_at[:, None] + value_lanes,
            mask=_mask(is_held, value_lanes, VALUE_DIM), other=0.0,
        )  # fmt: skip
        is_visible = is_held[None, :]
        if HAS_WINDOW:
            is_visible = is_visible & (slots[None, :] > positions[:, None] - window)
        scores = tl.dot(queries, tl.trans(keys.to(queries.dtype)), input_precision="ieee")
        if KEY_REST > 0:
            rest_lanes = KEY_PAD + tl.arange(0, KEY_REST)
            others = tl.load(key_at[:, None] + rest_lanes, mask=is_held[:, None] & (rest_lanes < KEY_DIM), other=0.0)
            scores = tl.dot(rests, tl.trans(others.to(queries.dtype)), scores, input_precision="ieee")
        scores *= scale
        shares = tl.full([N], 1.0, tl.float32)
        if STORED > 0:
            key_scales = (place + key_scale_offset + slot * 4).to(tl.pointer_type(tl.float32))
            scores *= tl.load(key_scales, mask=is_held, other=0.0)[None, :]
            value_scales = (place + value_scale_offset + slot * 4).to(tl.pointer_type(tl.float32))
            shares = tl.load(value_scales, mask=is_held, other=0.0)
        peak, total, sums = _added(
            peak, total, sums, scores, is_visible, values.to(queries.dtype), shares, softcap, HAS_SOFTCAP, STORED
        )
    return peak, total, sums


@program
def _walk_new(
    peak: tl.tensor, total: tl.tensor, sums: tl.tensor, queries: tl.tensor, rests: tl.tensor, tokens: tl.tensor,
    key_at: tl.tensor, value_at: tl.tensor, count: tl.tensor, low: tl.tensor, high: tl.tensor, key_token: tl.tensor,
    value_token: tl.tensor, scale: tl.tensor, softcap: tl.tensor, window: tl.tensor,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, STORED: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, N: tl.constexpr, KEY_PAD: tl.constexpr, KEY_REST: tl.constexpr,
    VALUE_PAD: tl.constexpr, STAGES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Attend to the new tokens of the blocks low ... high - 1, as they will be read later."""
    key_lanes = tl.arange(0, KEY_PAD)
    value_lanes = tl.arange(0, VALUE_PAD)
    for block in tl.range(low, high, num_stages=STAGES + 1 if STORED == 0 else 2):
        others = block * N + tl.arange(0, N)
        is_new = others < count
        rows = others.to(tl.int64)[:, None]
        keys = tl.load(key_at + rows * key_token + key_lanes, mask=_mask(is_new, key_lanes, KEY_DIM), other=0.0)
        values = tl.load(
            value_at + rows * value_token + value_lanes, mask=_mask(is_new, value_lanes, VALUE_DIM), other=0.0
        )
        shares = tl.full([N], 1.0, tl.float32)
        key_scales = shares
        if KEY_REST > 0:
            rest_lanes = KEY_PAD + tl.arange(0, KEY_REST)
            key_rests = tl.load(
                key_at + rows * key_token + rest_lanes, mask=is_new[:, None] & (rest_lanes < KEY_DIM), other=0.0
            )
        if STORED > 0:
            keys = keys.to(tl.float32)
            peaks = tl.max(tl.abs(keys), axis=1)
            if KEY_REST > 0:
                key_rests = key_rests.to(tl.float32)
                peaks = tl.maximum(peaks, tl.max(tl.abs(key_rests), axis=1))
            key_scales = _scales(peaks)
            keys = _kept(keys, key_scales)
            if KEY_REST > 0:
                key_rests = _kept(key_rests, key_scales)
        scores = tl.dot(queries, tl.trans(keys.to(queries.dtype)), input_precision="ieee")
        if KEY_REST > 0:
            scores = tl.dot(rests, tl.trans(key_rests.to(queries.dtype)), scores, input_precision="ieee")
        scores *= scale
        if STORED > 0:
            scores *= key_scales[None, :]
            values = values.to(tl.float32)
            shares = _scales(tl.max(tl.abs(values), axis=1))
            values = _kept(values, shares)
        is_visible = is_new[None, :] & (others[None, :] <= tokens[:, None])
        if HAS_WINDOW:
            is_visible = is_visible & (others[None, :] > tokens[:, None] - window)
        peak, total, sums = _added(
            peak, total, sums, scores, is_visible, values.to(queries.dtype), shares, softcap, HAS_SOFTCAP, STORED
        )
    return peak, total, sums


@program
def _added(
    peak: tl.tensor, total: tl.tensor, sums: tl.tensor, scores: tl.tensor, is_visible: tl.tensor, values: tl.tensor,
    shares: tl.tensor, softcap: tl.tensor,
    HAS_SOFTCAP: tl.constexpr, STORED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A block more in the running softmax; scores [M, N], values [N, D], `shares` [N] are the values' scales."""
    if HAS_SOFTCAP:
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)  # tanh
    scores = tl.where(is_visible, scores * _LOG2E, float("-inf"))
    top = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(top == float("-inf"), 0.0, top)  # nothing is visible yet
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(peak - base)
    total = total * shrink + tl.sum(weights, axis=1)
    if STORED > 0:
        weights *= shares[None, :]
    sums = sums * shrink[:, None]
    sums = tl.dot(weights.to(values.dtype), values, sums, input_precision="ieee")
    return top, total, sums


@program
def _merged(
    parts: tl.tensor, totals: tl.tensor, first: tl.tensor, used: tl.tensor, packed_rows: tl.tensor,
    MOST_PARTS: tl.constexpr, M: tl.constexpr, VALUE_PAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The merged result of the parts of one block of queries, in their order, whoever came last."""
    rows = tl.arange(0, M)
    lanes = tl.arange(0, VALUE_PAD)
    splits = tl.arange(0, MOST_PARTS)
    is_there = rows < packed_rows
    at = totals + (first + splits[:, None]) * (2 * packed_rows) + rows
    is_used = (splits[:, None] < used) & is_there
    peaks = tl.load(at, mask=is_used, other=float("-inf"), cache_modifier=".cg")
    peak = tl.max(peaks, axis=0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    own = tl.load(at + packed_rows, mask=is_used, other=0.0, cache_modifier=".cg")
    total = tl.sum(own * tl.exp2(peaks - base), axis=0)
    sums = tl.zeros([M, VALUE_PAD], tl.float32)
    for split in tl.range(0, used, num_stages=3):
        of_peak = totals + (first + split) * (2 * packed_rows) + rows
        share = tl.exp2(tl.load(of_peak, mask=is_there, other=float("-inf"), cache_modifier=".cg") - base)
        part = parts + (((first + split) * packed_rows + rows) * VALUE_PAD)[:, None] + lanes
        sums += share[:, None] * tl.load(part, mask=is_there[:, None], other=0.0, cache_modifier=".cg")
    return peak, total, sums


@program
def _mask(rows: tl.tensor, lanes: tl.tensor, DIM: tl.constexpr) -> tl.tensor:
    """Which numbers of vectors there are, [N, D]."""
    if lanes.shape[0] == DIM:
        return tl.broadcast_to(rows[:, None], [rows.shape[0], DIM])
    else:
        return rows[:, None] & (lanes < DIM)
