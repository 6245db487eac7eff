"""The inputs of a pass over pages, made of what the host uploaded: tokens, positions and pages, by one program on a
GPU.

Two texts in a pass of T = 4 columns; the second goes on with the token that the device has taken for it:

    rows    3  0      given   812  5 44  .  |  -1  .  .  .         taken of row 0 is 97
    starts 17  9      tokens  812  5 44  .  |  97  .  .  .
    counts  3  1      positions 17 18 19 19 |   9  9  9  9         what is not a token stands where the last one does

`tables` have the pages of all rows, one for each group of layers; a pass is given those of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decodekit.gpu.triton_programs import missing


class StepInputs(NamedTuple):
    """The inputs of a pass."""

    tokens: Tensor  # int64 [B, T]
    positions: Tensor  # int64 [B, T]
    starts: Tensor  # int32 [B], a copy: a compiled layer is compiled for the place of a tensor in its memory
    counts: Tensor  # the same
    pages: list[Tensor]  # int32 [B, slots] of each group


def inputs_of(
    rows: Tensor, starts: Tensor, counts: Tensor, given: Tensor, taken: Tensor, tables: Sequence[Tensor]
) -> StepInputs:
    """The operation in torch; arguments as of `step_inputs`."""
    index = rows.long()
    tokens = torch.where(given >= 0, given.long(), taken.index_select(0, index)[:, None])
    columns = torch.arange(given.shape[1], device=rows.device)
    last = (counts.long() - 1).clamp_min(0)
    positions = starts.long()[:, None] + torch.minimum(columns, last[:, None])
    return StepInputs(
        tokens, positions, starts.clone(), counts.clone(), [table.index_select(0, index) for table in tables]
    )


@torch.library.custom_op(
    "decodekit::step_inputs",
    mutates_args=(),
    schema=(
        "(Tensor rows, Tensor starts, Tensor counts, Tensor given, Tensor taken, Tensor[] tables) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor[])"
    ),
)
def step_inputs(
    rows: Tensor, starts: Tensor, counts: Tensor, given: Tensor, taken: Tensor, tables: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """The inputs of a pass; see the module.

    Args:
        rows, starts, counts: int32 [B]: rows of the tables, tokens that they hold, new tokens.
        given: int32 [B, T], new tokens; -1 where the row's is in `taken`.
        taken: int64 [R].
        tables: int32 [R, slots] each.

    Returns:
        As of `StepInputs`.
    """
    return inputs_of(rows, starts, counts, given, taken, tables)


@step_inputs.register_kernel("cuda")
def _on_cuda(*arguments: Any) -> StepInputs:
    if missing() is not None or not arguments[-1]:  # the program goes with the pages of a row
        return inputs_of(*arguments)
    from decodekit.gpu.kernels.step_inputs_kernel import launched

    out: StepInputs = _empty(*arguments)
    launched(*arguments, out=out)
    return out


@step_inputs.register_fake
def _empty(
    rows: Tensor, starts: Tensor, counts: Tensor, given: Tensor, taken: Tensor, tables: Sequence[Tensor]
) -> StepInputs:
    """The place of what comes of `step_inputs`."""
    wide = [given.new_empty(given.shape, dtype=torch.int64) for _ in range(2)]
    small = [starts.new_empty(starts.shape) for _ in range(2)]
    pages = [table.new_empty((rows.shape[0], table.shape[1])) for table in tables]
    return StepInputs(wide[0], wide[1], small[0], small[1], pages)
