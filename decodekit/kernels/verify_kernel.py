"""Coupled match on a GPU: one program for each row, one launch; see `verify`."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from decodekit.kernels.programs import next_power_of_2, on, program


@program
def match(
    tokens: tl.tensor, drafts: tl.tensor, draft_lengths: tl.tensor, status: tl.tensor, lengths: tl.tensor,
    num_taken: tl.tensor, pending: tl.tensor, new_lengths: tl.tensor, new_status: tl.tensor, out: tl.tensor,
    WIDTH: tl.constexpr, PAD: tl.constexpr,
) -> None:  # fmt: skip
    """One row; grid (N,)."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, PAD)
    is_there = places < WIDTH
    own = tl.load(tokens + row * WIDTH + places, mask=is_there, other=0)
    states = tl.load(status + row * WIDTH + places, mask=is_there, other=0)
    is_draft = places < tl.minimum(tl.load(draft_lengths + row), WIDTH - 1)
    draft = tl.load(drafts + row * (WIDTH - 1) + places, mask=is_draft, other=-1)
    agrees = ((own == draft) & (states == 0)).to(tl.int32) * is_draft.to(tl.int32)
    last = tl.min(tl.where(agrees == 0, places, PAD), axis=0)  # the last position that is reached
    fault = tl.sum(tl.where(places == last, states, 0), axis=0)
    count = last + (fault == 0).to(tl.int32)
    token = tl.sum(tl.where(places == tl.maximum(count - 1, 0), own, 0), axis=0)
    tl.store(num_taken + row, count)
    tl.store(pending + row, token)
    tl.store(new_lengths + row, tl.load(lengths + row) + count)
    tl.store(new_status + row, fault)
    tl.store(out + row * WIDTH + places, tl.where(places < count, own, -1), mask=is_there)


def launch_of(*given: Tensor) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any], tuple[Tensor, ...]]:
    """Grid, arguments, constants and outputs of the program."""
    given = tuple(one.contiguous() for one in given)
    tokens = given[0]
    num_rows, width = tokens.shape
    small = [tokens.new_empty(num_rows, dtype=torch.int32) for _ in range(3)]
    out = (small[0], tokens.new_empty(num_rows), small[1], small[2], torch.empty_like(tokens))
    constants = {"WIDTH": width, "PAD": next_power_of_2(width)}
    return (num_rows,), (*given, *out), constants, out


def launched(*given: Tensor) -> tuple[Tensor, ...]:
    """The operation by its kernel; arguments as of `verify.advance`."""
    grid, arguments, constants, out = launch_of(*given)
    if grid[0]:
        with on(out[0].device):
            match[grid](*arguments, **constants, num_warps=1)
    return out
