"""The inputs of a pass on a GPU: one launch for each group of layers with pages of their own; see `step_inputs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import triton.language as tl
from torch import Tensor

from decodekit.gpu.triton_programs import next_power_of_2, on, program_for_any

_BLOCK: Final = 1024


@program_for_any("rows", "starts", "counts", "given", "num_slots")
def gather(
    rows: tl.tensor, starts: tl.tensor, counts: tl.tensor, given: tl.tensor, taken: tl.tensor, table: tl.tensor,
    tokens: tl.tensor, positions: tl.tensor, own_starts: tl.tensor, own_counts: tl.tensor, pages: tl.tensor,
    num_slots: tl.tensor, WIDTH: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, IS_FIRST: tl.constexpr,
) -> None:  # fmt: skip
    """A block of the pages of a row, and with the first group, the other inputs; grid (blocks, B)."""
    block, text = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + text).to(tl.int64)
    slots = block * BLOCK + tl.arange(0, BLOCK)
    is_slot = slots < num_slots
    found = tl.load(table + row * num_slots + slots, mask=is_slot, other=0)
    tl.store(pages + text.to(tl.int64) * num_slots + slots, found, mask=is_slot)
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
    """Grid, arguments and constants of each launch; `out` as of `step_inputs`."""
    chain: list[Any] = []
    for group, (table, pages) in enumerate(zip(tables, out[4], strict=True)):
        num_slots, width = table.shape[1], given.shape[1]
        arguments = (rows, starts, counts, given, taken, table, *out[:4], pages, num_slots)
        constants = {"WIDTH": width, "PAD": next_power_of_2(width), "BLOCK": _BLOCK, "IS_FIRST": group == 0}
        chain.append(((-(-num_slots // _BLOCK), rows.shape[0]), arguments, constants))
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
