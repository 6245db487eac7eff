"""A few rows times a weight matrix on a GPU: one launch that reads every weight once.

    out[16, N] = x[16, K] weight[N, K]'       rows beyond those that there are count as zeros

Tensor cores multiply 16 rows whether there is one or eight, in the time that the weights take to arrive. A program has
32 or 64 outputs; where these programs are fewer than two for each multiprocessor, the width is split, too. Of 4,096
outputs of a width of 14,336 on 132 multiprocessors:

    128 blocks of 32 outputs     264 places: two splits, each of 56 steps of 128 numbers

The splits leave their sums, and the one that comes last adds them up, in the order of the splits and not of their
coming. Blocks, steps and splits follow from the shape of the weights alone, and a row of a product of matrices is made
of its own numbers: so a row is bit for bit the same whatever rows stand beside it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton.language as tl
from torch import Tensor

from decodekit.gpu.triton_programs import (
    NUM_COUNTERS,
    card_of,
    counters,
    is_interpreted,
    on,
    program_for_any,
    splits_of,
)

_ROWS = tl.constexpr(16)
_STEP_BYTES: Final = 256  # of a row of weights, in one step
_WIDE: Final = 64  # outputs of a program where there are very many
_MOST_SPLITS: Final = 16
_LEAST: Final = 4  # steps of a split
_IS_INTERPRETED: Final = is_interpreted()
_TYPES: Final = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@program_for_any("num_rows", "num_splits")
def multiply(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, parts: tl.tensor, arrived: tl.tensor,
    num_rows: tl.tensor, num_outs: tl.tensor, width: tl.tensor, num_splits: tl.tensor,
    HAS_BIAS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, DOT: tl.constexpr,
) -> None:  # fmt: skip
    """A block of outputs, a split of the width; grid (blocks, splits)."""
    block, split = tl.program_id(0), tl.program_id(1)
    rows, outs = tl.arange(0, _ROWS), block * N + tl.arange(0, N)
    is_row, is_out = rows < num_rows, outs < num_outs
    each = tl.cdiv(tl.cdiv(width, K), num_splits) * K
    end = tl.minimum(split * each + each, width)
    sums = tl.zeros([_ROWS, N], tl.float32)
    weights = weight + outs.to(tl.int64)[None, :] * width
    for begin in tl.range(split * each, end, K, num_stages=STAGES):
        places = begin + tl.arange(0, K)
        is_place = places < end
        own = tl.load(x + rows[:, None] * width + places[None, :], mask=is_row[:, None] & is_place[None, :], other=0.0)
        loaded = tl.load(weights + places[:, None], mask=is_place[:, None] & is_out[None, :], other=0.0)
        sums = tl.dot(own.to(DOT), loaded.to(DOT), sums, input_precision="ieee")
    is_there = is_row[:, None] & is_out[None, :]
    place = rows[:, None] * num_outs + outs[None, :]
    is_last = True
    if num_splits > 1:
        size = num_rows * num_outs
        tl.store(parts + split * size + place, sums, mask=is_there)
        tl.debug_barrier()  # what every thread stored is before the count
        is_last = tl.atomic_add(arrived + block, 1, sem="acq_rel", scope="gpu") == num_splits - 1
        tl.debug_barrier()
        if is_last:
            tl.store(arrived + block, 0)
            sums = tl.zeros([_ROWS, N], tl.float32)
            for number in tl.range(0, num_splits):
                # Other programs stored these: not from a cache of this multiprocessor.
                sums += tl.load(parts + number * size + place, mask=is_there, other=0.0, cache_modifier=".cg")
    if is_last:
        if HAS_BIAS:
            sums += tl.load(bias + outs, mask=is_out, other=0.0).to(tl.float32)[None, :]
        tl.store(out + place, sums.to(out.dtype.element_ty), mask=is_there)


def launch_of(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[tuple[int, int], tuple[Any, ...], dict[str, Any], int, Tensor]:
    """Grid, arguments, constants, warps and output [R, N] of the program, for x [R, K]."""
    (num_rows, width), num_outs = x.shape, len(weight)
    num_places = 2 * card_of(x.device).num_processors
    step = _STEP_BYTES // x.element_size()
    is_wide = num_outs >= 4 * _WIDE * num_places and x.dtype != torch.float32  # whose sums would leave the registers
    n = _WIDE if is_wide else _WIDE // 2
    blocks = -(-num_outs // n)
    most = max(1, min(_MOST_SPLITS, -(-width // step) // _LEAST))
    splits = splits_of(blocks, num_places, most) if blocks <= NUM_COUNTERS else 1
    out = x.new_empty(num_rows, num_outs)
    parts = x.new_empty((splits, num_rows, num_outs), dtype=torch.float32) if splits > 1 else out
    arguments = (
        x, weight, weight if bias is None else bias, out, parts, counters(x.device),
        num_rows, num_outs, width, splits,
    )  # fmt: skip
    # Triton's interpreter multiplies bfloat16 as if the bits were integers.
    dot = tl.float32 if _IS_INTERPRETED else _TYPES[x.dtype]
    constants = {"HAS_BIAS": bias is not None, "N": n, "K": step, "STAGES": 3 if splits == 1 else 4, "DOT": dot}
    return (blocks, splits), arguments, constants, 4 if is_wide else 2, out


def launched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] times weight [N, K], and a bias [N]; up to 16 rows."""
    grid, arguments, constants, num_warps, out = launch_of(x.reshape(-1, x.shape[-1]).contiguous(), weight, bias)
    with on(x.device):
        multiply[grid](*arguments, **constants, num_warps=num_warps)
    return out.view(*x.shape[:-1], -1)
