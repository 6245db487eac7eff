"""The inputs of a pass on a GPU: one launch for two groups of layers with pages of their own; see `step_inputs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import triton.language as tl
from torch import Tensor

from decodekit.gpu.triton_programs import next_power_of_2, on, program, program_for_any

_BLOCK: Final = 1024


@program
def _copy_pages(
    table: tl.tensor, pages: tl.tensor, num_slots: tl.tensor, block: tl.tensor, row: tl.tensor, text: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """A block of the pages of a row."""
    slots = block * BLOCK + tl.arange(0, BLOCK)
    is_slot = slots < num_slots
    found = tl.load(table + row * num_slots + slots, mask=is_slot, other=0)
    tl.store(pages + text.to(tl.int64) * num_slots + slots, found, mask=is_slot)


@program_for_any("rows", "starts", "counts", "given", "num_slots", "other_slots")
def gather(
    rows: tl.tensor, starts: tl.tensor, counts: tl.tensor, given: tl.tensor, taken: tl.tensor, table: tl.tensor,
    other_table: tl.tensor, tokens: tl.tensor, positions: tl.tensor, own_starts: tl.tensor, own_counts: tl.tensor,
    pages: tl.tensor, other_pages: tl.tensor, num_slots: tl.tensor, other_slots: tl.tensor,
    WIDTH: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, IS_FIRST: tl.constexpr, HAS_OTHER: tl.constexpr,
) -> None:  # fmt: skip
    """A block of pages of a row, of one group or the other, and once the other inputs; grid (blocks, B)."""
    block, text = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + text).to(tl.int64)
    num_blocks = tl.cdiv(num_slots, BLOCK)
    if block < num_blocks:
        _copy_pages(table, pages, num_slots, block, row, text, BLOCK)
    elif HAS_OTHER:
        _copy_pages(other_table, other_pages, other_slots, block - num_blocks, row, text, BLOCK)
    if IS_FIRST and block == 0:
        start, count = tl.load(starts + text), tl.load(counts + text)
        tl.store(own_starts + text, start)
        tl.store(own_counts + text, count)
        columns = tl.arange(0, PAD)
        place, is_there = text.to(tl.int64) * WIDTH + columns, columns < WIDTH
        token = tl.load(given + place, mask=is_there, other=0).to(tl.int64)
        tl.store(tokens + place, tl.where(token >= 0, token, tl.load(taken + row)), mask=is_there)
        position = start + tl.minimum(columns, tl.maximum(count - 1, 0))
        tl.store(positions + place, position.to(tl.int64), mask=is_there)


def launches(
    rows: Tensor, starts: Tensor, counts: Tensor, given: Tensor, taken: Tensor, tables: Sequence[Tensor],
    out: tuple[Any, ...],
) -> list[tuple[tuple[int, int], tuple[Any, ...], dict[str, Any]]]:  # fmt: skip
    """Grid, arguments and constants of each launch, one for two groups; `out` as of `step_inputs`."""
    chain: list[Any] = []
    width = given.shape[1]
    for first in range(0, len(tables), 2):
        two, pages = [*tables[first : first + 2]], [*out[4][first : first + 2]]
        has_other = len(two) == 2
        sizes = [table.shape[1] for table in two]
        arguments = (
            rows, starts, counts, given, taken, two[0], two[-1], *out[:4], pages[0], pages[-1], sizes[0], sizes[-1],
        )  # fmt: skip
        constants = {"WIDTH": width, "PAD": next_power_of_2(width), "BLOCK": _BLOCK, "IS_FIRST": first == 0}
        blocks = sum(-(-size // _BLOCK) for size in sizes)
        chain.append(((blocks, rows.shape[0]), arguments, constants | {"HAS_OTHER": has_other}))
    return chain


def launched(
    rows: Tensor, starts: Tensor, counts: Tensor, given: Tensor, taken: Tensor, tables: Sequence[Tensor], *,
    out: tuple[Any, ...],
) -> None:  # fmt: skip
    """The operation by its kernel into `out`; arguments as of `step_inputs`."""
    tensors = (rows.contiguous(), starts.contiguous(), counts.contiguous(), given.contiguous(), taken)
    for grid, arguments, constants in launches(*tensors, tables, out):
        with on(rows.device):
            gather[grid](*arguments, **constants, num_warps=4)
