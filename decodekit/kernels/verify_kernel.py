"""Coupled match on a GPU: one program for each row, one launch; see `verify`."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from decodekit.kernels.programs import next_power_of_2, on, program


@program
def match(
    tokens: tl.tensor, drafts: tl.tensor, draft_lengths: tl.tensor, status: tl.tensor, pending: tl.tensor,
    lengths: tl.tensor, room: tl.tensor, is_end: tl.tensor,
    num_accepted: tl.tensor, num_taken: tl.tensor, new_pending: tl.tensor, new_lengths: tl.tensor, new_room: tl.tensor,
    out: tl.tensor, vocab_size: tl.tensor,
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
    ends = tl.load(is_end + tl.minimum(tl.maximum(own, 0), vocab_size - 1), mask=is_there, other=0).to(tl.int32)
    agrees = ((own == draft) & (states == 0)).to(tl.int32) * is_draft.to(tl.int32)
    # The first position behind which nothing comes: it differs, ends the text, or is the last one.
    last = tl.min(tl.where((agrees == 0) | (ends != 0), places, PAD), axis=0)
    first_fault = tl.min(tl.where((states != 0) & is_there, places, PAD), axis=0)
    left = tl.load(room + row)
    count = tl.minimum(tl.minimum(last + 1, first_fault), left)
    at_last = places == count - 1
    token = tl.sum(tl.where(at_last, own, 0), axis=0)
    has_ended = tl.sum(tl.where(at_last, ends, 0), axis=0)
    is_faulty = (first_fault <= last) & (first_fault < left)
    tl.store(num_accepted + row, tl.sum(tl.where(places < count, agrees, 0), axis=0))
    tl.store(num_taken + row, count)
    tl.store(new_pending + row, tl.where(count > 0, token, tl.load(pending + row)))
    tl.store(new_lengths + row, tl.load(lengths + row) + count)
    tl.store(new_room + row, tl.where((has_ended != 0) | is_faulty, 0, left - count))
    tl.store(out + row * WIDTH + places, tl.where(places < count, own, -1), mask=is_there)


def launch_of(*given: Tensor) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any], tuple[Tensor, ...]]:
    """Grid, arguments, constants and outputs of the program."""
    given = tuple(one.contiguous() for one in given)
    tokens, is_end = given[0], given[-1]
    num_rows, width = tokens.shape
    small = [tokens.new_empty(num_rows, dtype=torch.int32) for _ in range(4)]
    out = (small[0], small[1], tokens.new_empty(num_rows), small[2], small[3], torch.empty_like(tokens))
    constants = {"WIDTH": width, "PAD": next_power_of_2(width)}
    return (num_rows,), (*given, *out, is_end.shape[0]), constants, out


def launched(*given: Tensor) -> tuple[Tensor, ...]:
    """The operation by its kernel; arguments as of `verify.advance`."""
    grid, arguments, constants, out = launch_of(*given)
    if grid[0]:
        with on(out[0].device):
            match[grid](*arguments, **constants, num_warps=1)
    return out
