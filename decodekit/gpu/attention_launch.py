"""How the kernel of attention over pages is started: tiles that fit the card, and into how many parts tokens are split.

Four rows of up to 2,048 tokens, one new token each, 32 heads of queries for 8 of keys, 128 numbers each, bfloat16, on
an H100 (132 multiprocessors, 227 KiB of shared memory for a program):

    M = 16              packed queries of a program: 4 heads share a key, and a product has at least 16 rows
    N = 64, STAGES = 2  64 KiB of keys and values on their way: 2 blocks of 64 tokens, 512 bytes each
    num_parts = 32      4 rows * 8 heads are 32 programs for 264 places: 8 parts for each row, if they are equally long
    grid = (8, 35)      see `attention_kernel`

On a card with 99 KiB N is 32. All of it follows from shapes, the lengths are looked at on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from decodekit.gpu.kernels import attention_kernel as kernel
from decodekit.gpu.triton_programs import NUM_COUNTERS, Card, card_of, counters, next_power_of_2, on, splits_of

_TYPES: Final = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_MOST_QUERIES: Final = 64  # of a program
_MOST_TOKENS: Final = 64  # of a block
_MOST_SHARED: Final = 76 << 10  # bytes of a program: three fit on an H100's multiprocessor
_OTHER_SHARED: Final = 2 << 10  # bytes beside queries, weights, keys and values
_EXCHANGED: Final = 8  # bytes for each number of the sums, while threads exchange them at the end
_MOST_AT_ONCE: Final = 256  # numbers of a key or value that are multiplied at once, and with all queries of a program
_MOST_PARTS: Final = 64  # of a row
_FEW_ROWS: Final = 16  # whose lengths a program of 16 queries adds up at once, where there are no more
_ROWS: Final = 256  # the same elsewhere
_LEAST: Final = 2  # blocks of a part, while programs are fewer than their places
_LEAST_OF_MANY: Final = 8  # blocks of a part, where it is there for balance alone
_ROUNDS: Final = 4  # programs for each place, from which on the rest of a last round no longer counts


class Launch(NamedTuple):
    """A program with all that it is started with."""

    grid: tuple[int, int]  # numbers of programs
    arguments: tuple[Any, ...]  # tensors and numbers
    constants: dict[str, Any]  # what is compiled into it
    num_warps: int  # threads of a program, by 32


class Tiles(NamedTuple):
    """The tiles of a program: what it works on at once."""

    queries: int  # packed queries, M
    tokens: int  # of a block, N
    stages: int  # blocks on their way to the multiprocessor
    num_warps: int  # threads of a program, by 32


def launch_of(
    query: Tensor, key: Tensor, value: Tensor, pages: Tensor, starts: Tensor, counts: Tensor, arenas: Tensor,
    geometry: Sequence[int], offsets: Sequence[int], stored: int, scale: float, window: int, softcap: float,
    sinks: Tensor | None, out: Tensor,
) -> Launch:  # fmt: skip
    """How `attend` is started; depends on shapes, numbers and the card alone.

    What `attend` is given beside the arguments of `paged_attention`:

    - out: [B, T, Hq, Dv], contiguous; parts: float32 [heads * blocks, B + num_parts - 1, R, VALUE_PAD], R the packed
      queries that there are, and totals: float32 [heads * blocks, B + num_parts - 1, 2, R], their peaks and totals;
    - counters: int32 [B * heads * blocks], zeros, and zeros again afterwards;
    - the strides of query, key and value in numbers, num_rows: B, width: T;
    - num_parts: how many parts all rows together are split into, least: blocks that are worth a part;
    - M, N, STAGES: `Tiles`;
    - KEY_PAD, VALUE_PAD: powers of two that the dims fit in; or a key's first numbers, and KEY_REST those behind them;
    - KIND, DOT: the types of the numbers in the pages, and of those that are multiplied;
    - KEY_ALIGN, VALUE_ALIGN: powers of two that divide a vector's bytes;
    - MANY: a power of two, new tokens that M packed queries may stand for;
    - ROWS: rows whose lengths a program adds up at once, MOST_PARTS: of one row.
    """
    query, key, value = (one if one.stride(-1) == 1 else one.contiguous() for one in (query, key, value))
    num_rows, width, num_heads, key_dim = query.shape
    heads, value_dim = value.shape[2:]
    group = num_heads // heads
    page_size, pages_per_arena, page_bytes = geometry
    kind = (query.dtype, torch.int8)[stored]
    card = card_of(query.device)
    tiles = tiles_of(width * group, key_dim, value_dim, query.dtype, kind, card)
    (key_pad, key_rest), value_pad = _parts(key_dim), _pad(value_dim)
    blocks = heads * -(-width * group // tiles.queries)
    held = -(-pages.shape[1] * page_size // tiles.tokens)
    num_parts, least = parts_of(num_rows, blocks, width, held, card)
    size = (blocks, num_rows + num_parts - 1, min(tiles.queries, width * group))
    parts = query.new_empty((*size, value_pad) if num_parts > 1 else 1, dtype=torch.float32)
    totals = query.new_empty((*size, 2) if num_parts > 1 else 1, dtype=torch.float32)
    arguments = (
        query, key, value, pages.contiguous(), starts, counts, arenas,
        out if sinks is None else sinks.contiguous(), out,
        parts, totals, counters(query.device),
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        num_rows, width, pages.shape[1], pages_per_arena, page_bytes, *offsets, scale, softcap, window,
        num_parts, least,
    )  # fmt: skip
    constants = {
        "HEADS": heads, "GROUP": group, "KEY_DIM": key_dim, "VALUE_DIM": value_dim,
        "PAGE_SIZE": page_size, "STORED": int(stored), "HAS_WINDOW": window > 0, "HAS_SOFTCAP": softcap != 0,
        "HAS_SINKS": sinks is not None, "M": tiles.queries, "N": tiles.tokens, "STAGES": tiles.stages,
        "KEY_PAD": key_pad, "KEY_REST": key_rest, "VALUE_PAD": value_pad,
        "KIND": (_TYPES[query.dtype], tl.int8)[stored],
        # Triton's interpreter multiplies bfloat16 as if the bits were integers.
        "DOT": tl.float32 if kernel.IS_INTERPRETED else _TYPES[query.dtype],
        "KEY_ALIGN": _aligned(key_dim * kind.itemsize), "VALUE_ALIGN": _aligned(value_dim * kind.itemsize),
        "MANY": next_power_of_2(-(-tiles.queries // group)), "MOST_PARTS": _MOST_PARTS,
        "ROWS": _FEW_ROWS if num_rows <= _FEW_ROWS and tiles.queries == 16 else _ROWS,
    }  # fmt: skip
    return Launch(size[:2], arguments, constants, tiles.num_warps)


def tiles_of(
    num_queries: int, key_dim: int, value_dim: int, dtype: torch.dtype, kind: torch.dtype, card: Card
) -> Tiles:
    """The tiles for the packed queries of one row and head of keys, so that two programs fit on a multiprocessor.

    `dtype` is that of queries and products, `kind` that of the numbers in the pages.
    """
    stored = kind != dtype
    keys = sum(_parts(key_dim))
    pad = keys + _pad(value_dim)
    is_wide = dtype == torch.float32  # multiplied without tensor cores, from registers
    is_big = max(key_dim, value_dim) > _MOST_AT_ONCE
    # What the registers hold: queries and sums, beside them a block and, of quantised pages, what it becomes.
    if is_big or (is_wide and pad > 256):
        most, most_tokens = 16, 16 if is_wide else 32
    elif is_wide:
        most, most_tokens = 32, 16 if pad > 128 else 32
    elif stored:
        most, most_tokens = (64 if card.has_wide_products else 32) if pad <= 256 else 32, 32 if pad <= 256 else 16
    else:
        most, most_tokens = _MOST_QUERIES if card.has_wide_products or pad <= 256 else 32, _MOST_TOKENS
    while most > 16 and most * _pad(value_dim) * _EXCHANGED > card.shared_bytes - _OTHER_SHARED:
        most //= 2
    queries = min(most, max(16, next_power_of_2(num_queries)))
    if queries * pad > 1 << 13 and not card.has_wide_products:
        most_tokens = min(32, most_tokens)
    # Programs of big vectors or many queries have most registers of a multiprocessor, of others two or three fit on it.
    shared = card.shared_bytes if is_big or queries > 16 else min(_MOST_SHARED, card.shared_bytes // 2)
    beside = queries * (keys + most_tokens) * dtype.itemsize + _OTHER_SHARED  # queries and weights
    room = (shared - beside) // (pad * kind.itemsize)  # tokens on their way
    ahead = 1 if queries == _MOST_QUERIES else 0  # a block that is multiplied while the products of the next one begin
    tokens = next_power_of_2(room // (2 + ahead) + 1) // 2
    tokens = max(32 if is_big and not is_wide else 16, min(most_tokens, _MOST_TOKENS, tokens))
    stages = max(1, min(3 if pad <= 128 else 2, room // tokens - ahead))
    in_registers = queries * pad
    is_shared_out = not is_wide and (in_registers > 1 << 13 if stored else in_registers >= 1 << 14)
    # Where little is multiplied, fewer threads have less to exchange: two warps take 0.69 of the time of four for 256
    # rows of 1,024 tokens, 0.82 for one, on an H200.
    is_small = queries == 16 and not (stored or is_wide) and pad <= 256
    return Tiles(queries, tokens, stages, 8 if is_big or is_shared_out else 2 if is_small else 4)


def shared_bytes(tiles: Tiles, key_dim: int, value_dim: int, dtype: torch.dtype, kind: torch.dtype) -> int:
    """Shared memory of a program at most: queries, weights, keys and values on their way; then the sums."""
    keys, values = sum(_parts(key_dim)), _pad(value_dim)
    ahead = 1 if tiles.queries == _MOST_QUERIES else 0
    blocks = (tiles.stages + ahead) * tiles.tokens * (keys + values) * kind.itemsize
    walking = tiles.queries * (keys + tiles.tokens) * dtype.itemsize + blocks
    return max(walking, tiles.queries * values * _EXCHANGED) + _OTHER_SHARED


def why_not_here(
    key_dim: int, value_dim: int, dtype: torch.dtype, kind: torch.dtype, device: torch.device
) -> str | None:
    """Why a card cannot run what others can: vectors whose least tiles do not fit; None if it can."""
    card = card_of(device)
    tiles = (tiles_of(number, key_dim, value_dim, dtype, kind, card) for number in (1, 32, 64))
    needed = max(shared_bytes(one, key_dim, value_dim, dtype, kind) for one in tiles)
    if needed <= card.shared_bytes:
        return None
    return (
        f"no kernel for keys of {key_dim} and values of {value_dim} numbers in {str(dtype).removeprefix('torch.')} "
        f"on a GPU with {card.shared_bytes >> 10} KiB of shared memory for a program: {-(-needed >> 10)} are needed"
    )


def parts_of(num_rows: int, blocks: int, width: int, held: int, card: Card) -> tuple[int, int]:
    """Into how many parts the tokens of all rows are split, and the blocks that are worth a part.

    Where rows alone have programs for every place, parts are there for balance: `_ROUNDS` for a place, so that the
    longest part is at most a quarter of the whole time; and where they have many more, it is left to their number in
    long prompts, whose blocks of queries are many and unequal anyway. `blocks` are the programs of a row that is not
    split, `width` its new tokens, `held` the blocks of tokens that it can have.
    """
    places = 2 * card.num_processors
    programs = num_rows * blocks
    if width > 16 or programs >= _ROUNDS * places:  # the rounds of a prompt are long and unequal anyway
        splits = max(1, places // programs)
    else:
        splits = splits_of(programs, places, places)
    splits = min(splits, max(1, held // _LEAST), _MOST_PARTS)
    if programs > NUM_COUNTERS or (splits == 1 and (width > 16 or num_rows == 1)):
        return 1, _LEAST
    if splits > 1:
        return num_rows * splits, _LEAST
    return min(num_rows, -(-_ROUNDS * places // blocks)), _LEAST_OF_MANY


def _parts(dim: int) -> tuple[int, int]:
    """Powers of two that a key's numbers fit in, one or two: 192 in (256, 0), 576 in (512, 64)."""
    if dim <= _MOST_AT_ONCE or dim == next_power_of_2(dim):
        return _pad(dim), 0
    first = next_power_of_2(dim) // 2
    return first, _pad(dim - first)


def _pad(dim: int) -> int:
    """The power of two that numbers of a vector are padded to."""
    return max(16, next_power_of_2(dim))


def _aligned(num_bytes: int) -> int:
    """The largest power of two up to 16 that divides it."""
    return min(16, num_bytes & -num_bytes)


def launched(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    """The operation by its kernel; arguments as of `paged_attention`."""
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    if out.numel():
        arguments: tuple[Any, ...] = (query, key, value, *others, out)
        launch = launch_of(*arguments)
        with on(query.device):
            kernel.attend[launch.grid](
                *launch.arguments, **launch.constants, num_warps=launch.num_warps, enable_fp_fusion=True
            )
    return out
