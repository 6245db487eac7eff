"""Attention over pages: one operation writes the new keys and values of rows into their pages and attends to them.

A row of 37 tokens, pages of 32, and two new tokens, of three that the batch is wide, of which the last is padding:

    pages  = [[4, 9, -1]]      positions 0..31 are in page 4, 32..63 in page 9
    starts = [37]              the new tokens stand at positions 37 and 38,
    counts = [2]               slots 5 and 6 of page 9; the third is not written
    torch.ops.decodekit.paged_attention(query, key, value, pages, starts, counts, store.table,
                                        store.geometry, planes.offsets[layer], 0, scale, 0, 0.0, None)

Token 37 sees positions 0..37, token 38 sees 0..38. Nothing of it reads a value on the host, so the same call serves
other lengths, pages and rows when a captured graph or a compiled layer is run again.

    scores[t, s] = softcap * tanh(scale * q_t k_s / softcap)       # with a softcap; else scale * q_t k_s
    visible      = s <= p, s > p - window                          # p = starts + t
    out[t]       = sum_s exp(scores[t, s]) v_s / (sum_s exp(scores[t, s]) + exp(sink))

On a CPU it is the twin in torch (`attended`), on CUDA the kernel of `attention_kernel`; where Triton is missing or
does not know the shape (`why_no_kernel`) the twin runs there, too, slower.

Quantised planes: a token's key of one head is kept as round(x / scale), scale = amax / 127, and read as that times
scale; new tokens are read as they are kept, so that a token does not depend on when it was written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.gpu.pages import Geometry, Offsets, PageError, Stored, store_of
from decodekit.gpu.triton_programs import missing

_MOST_SCORES: Final = 1 << 24
"""Scores that the twin computes at once."""

_SMALLEST: Final = 2.0**-126
"""The least scale: a vector of zeros is kept as zeros."""


MOST_DIMS: Final = (576, 512)
"""Numbers of a key and of a value that a kernel takes: those of multi-head latent attention over its latent."""

MOST_QUANTISED_DIMS: Final = 256
"""The same of quantised pages: with more, what is rounded on the way leaves the registers."""

PROMPT_TOKENS: Final = 64
"""New tokens of a row with which a kernel has the tiles of any longer prompt: what a check of prompts has to read."""

_CPU: Final = torch.device("cpu")
_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


def why_no_kernel(
    dtype: torch.dtype, key_dim: int, value_dim: int, stored: int = Stored.AS_GIVEN, device: torch.device | None = None
) -> str | None:
    """Why keys and values of these dims run the slow twin on CUDA; None if they have a kernel.

    So 192 and 128 (multi-head latent attention, expanded), 576 and 512 (the same over its latent), 512 and 512 (the
    wide heads of Gemma 4) have one, in float32 where the card has shared memory for a block of them.

    Args:
        dtype: of queries, keys and values.
        key_dim, value_dim: numbers of one key, of one value.
        stored: `Stored`.
        device: on which; by default the card has the shared memory of an H100.
    """
    if (reason := missing()) is not None:
        return reason
    if dtype not in _TYPES:
        return f"no kernel for attention in {str(dtype).removeprefix('torch.')}"
    most = (MOST_QUANTISED_DIMS, MOST_QUANTISED_DIMS) if stored else MOST_DIMS
    if key_dim > most[0] or value_dim > most[1]:
        kind = " in eight bits" if stored else ""
        return (
            f"no kernel for keys of {key_dim} and values of {value_dim} numbers{kind}: {most[0]} and {most[1]} at most"
        )
    if stored and dtype == torch.float32:
        return "no kernel for float32 with keys and values in eight bits"
    from decodekit.gpu import attention_launch

    return attention_launch.why_not_here(key_dim, value_dim, dtype, Stored(stored).dtype(dtype), device or _CPU)


def quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors [..., D] as they are kept in eight bits, and their scales, float32 [...]."""
    exact = values.float()
    peaks = exact.abs().amax(dim=-1)
    # By a tensor: for a number CUDA multiplies by its reciprocal, which is not the same scale.
    scales = (peaks / torch.full_like(peaks, 127.0)).clamp(min=_SMALLEST)
    return (exact / scales[..., None]).clamp(-127.0, 127.0).round().to(torch.int8), scales


def attended(
    query: Tensor, key: Tensor, value: Tensor, pages: Tensor, starts: Tensor, counts: Tensor,
    arenas: Sequence[Tensor], geometry: Geometry, offsets: Offsets, stored: Stored,
    scale: float, window: int, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """The operation in torch, with the arenas themselves instead of their addresses; see the module."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    new = [key, value]
    if stored is not Stored.AS_GIVEN:
        (key, key_scales), (value, value_scales) = quantised(key), quantised(value)
        new = [key, value, key_scales, value_scales]
    planes = [plane.to(dtype) for plane in _written_and_read(new, offsets, pages, starts, counts, arenas, geometry)]
    if stored is not Stored.AS_GIVEN:
        planes = [planes[0] * planes[2][..., None], planes[1] * planes[3][..., None]]
    num_rows, width = query.shape[:2]
    ends = starts + counts
    positions = starts[:, None] + torch.arange(width, device=query.device)
    is_real = positions < ends[:, None]  # [B, T]
    slots = torch.arange(planes[0].shape[1], device=query.device)
    is_needed = slots < ends[:, None]  # [B, S]
    if window:
        is_needed &= slots > starts[:, None] - window
    # What nobody wrote, and what a window left and somebody else may have now, may be NaN.
    keys, values = (torch.where(is_needed[:, :, None, None], plane, 0.0) for plane in planes)
    queries = torch.where(is_real[:, :, None, None], query.to(dtype), 0.0)
    parts = []
    step = max(1, _MOST_SCORES // max(1, num_rows * query.shape[2] * slots.shape[0]))
    for part in range(0, width, step):
        at = positions[:, part : part + step, None]
        is_visible = (slots <= at) & (slots < ends[:, None, None])  # [B, T, S]
        if window:
            is_visible &= slots > at - window
        parts.append(_attend(queries[:, part : part + step], keys, values, is_visible, scale, softcap, sinks))
    out = torch.cat(parts, dim=1)
    return torch.where(is_real[:, :, None, None], out, 0.0).to(query.dtype).contiguous()


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    is_visible: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """[B, T, Hq, Dv] from queries [B, T, Hq, D], keys [B, S, Hkv, D], values [B, S, Hkv, Dv], bool [B, T, S]."""
    num_rows, width, num_heads, dim = queries.shape
    num_pairs = keys.shape[2]
    grouped = queries.view(num_rows, width, num_pairs, num_heads // num_pairs, dim).permute(0, 2, 3, 1, 4)
    scores = grouped.flatten(2, 3) @ keys.permute(0, 2, 3, 1) * scale  # [B, Hkv, group * T, S]
    scores = scores.view(num_rows, num_pairs, -1, width, keys.shape[1])
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~is_visible[:, None, None], -torch.inf)
    peaks = scores.amax(dim=-1, keepdim=True)
    if sinks is not None:
        sinks = sinks.to(scores.dtype).view(num_pairs, -1, 1, 1)
        peaks = torch.maximum(peaks, sinks)
    peaks = torch.where(peaks == -torch.inf, 0.0, peaks)  # nothing is visible: the output is 0
    weights = (scores - peaks).exp()
    totals = weights.sum(dim=-1, keepdim=True)
    if sinks is not None:
        totals = totals + (sinks - peaks).exp()
    weights = weights / torch.where(totals == 0, 1.0, totals)
    out = weights.flatten(2, 3) @ values.transpose(1, 2)
    return out.view(num_rows, num_heads, width, -1).transpose(1, 2)


def _written_and_read(
    new: Sequence[Tensor], offsets: Sequence[int], pages: Tensor, starts: Tensor, counts: Tensor,
    arenas: Sequence[Tensor], geometry: Geometry,
) -> list[Tensor]:  # fmt: skip
    """Write the new tokens of planes, [B, T, ...] each, and read all slots of the tables: [B, P * page_size, ...]."""
    page_size, pages_per_arena, page_bytes = geometry
    num_rows, width = new[0].shape[:2]
    steps = torch.arange(width, device=pages.device)
    positions = starts[:, None] + steps
    is_real = (steps < counts[:, None]).reshape(-1)
    where = pages.gather(1, (positions // page_size).clamp(0, pages.shape[1] - 1).long()).reshape(-1)
    slots = (positions % page_size).reshape(-1)
    found: list[Tensor] = []
    for number, arena in enumerate(arenas):
        own, inside = (ids.reshape(-1) - number * pages_per_arena for ids in (where, pages))
        is_own = is_real & (own >= 0) & (own < pages_per_arena)
        source, at_pages, at_slots, is_any = _places(own, slots, is_own)
        is_here = (inside >= 0) & (inside < pages_per_arena)
        inside = inside.clamp(0, pages_per_arena - 1)
        for index, (tokens, begin) in enumerate(zip(new, offsets, strict=False)):
            # A plane of all pages of an arena, [pages_per_arena, page_size, ...].
            size = (page_size, *tokens.shape[2:])
            in_pages = arena.view(pages_per_arena, page_bytes)[:, begin:].view(tokens.dtype)
            plane = in_pages[:, : math.prod(size)].view(pages_per_arena, *size)
            plane[at_pages, at_slots] = torch.where(is_any, tokens.flatten(0, 1)[source], plane[0, 0])
            here = plane.index_select(0, inside)  # [B * P, page_size, ...]
            if number == 0:
                found.append(here)
            else:
                found[index] = torch.where(is_here.view(-1, *[1] * (here.dim() - 1)), here, found[index])
    if not found:
        raise PageError("there is no arena yet", at="`paged_attention`", hint="take the pages of a row first")
    return [one.view(num_rows, -1, *one.shape[2:]) for one in found]


def _places(pages: Tensor, slots: Tensor, is_real: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where N tokens are written, of which some are not, without asking how many: source, page, slot, if any is.

    The others write what the first real one writes, to its place; where none is, all write again what is in one place.
    """
    is_any = is_real.any()
    first = is_real.to(torch.int8).argmax()
    source = torch.where(is_real, torch.arange(is_real.shape[0], device=is_real.device), first)
    return source, torch.where(is_any, pages[source], 0).long(), torch.where(is_any, slots[source], 0).long(), is_any


@torch.library.custom_op(
    "decodekit::paged_attention",
    mutates_args=(),
    schema=(
        "(Tensor query, Tensor key, Tensor value, Tensor pages, Tensor starts, Tensor counts, Tensor arenas, "
        "SymInt[] geometry, SymInt[] offsets, int stored, float scale, int window, float softcap, Tensor? sinks) "
        "-> Tensor"
    ),
)
def paged_attention(
    query: Tensor, key: Tensor, value: Tensor, pages: Tensor, starts: Tensor, counts: Tensor, arenas: Tensor,
    geometry: Sequence[int], offsets: Sequence[int], stored: int,
    scale: float, window: int, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Write new keys and values into their pages, then attend to all that the rows hold; see the module.

    Args:
        query: [B, T, Hq, D].
        key: [B, T, Hkv, D].
        value: [B, T, Hkv, Dv].
        pages: int32 [B, P], the pages of the rows' positions 0.., anything where no visible position needs one.
        starts: int32 [B], tokens that a row holds before; new token t stands at position starts + t.
        counts: int32 [B], real new tokens, 0..T; the others are not written, and their output is 0.
        arenas: int64 [1 + A], `PageStore.table`.
        geometry: `Geometry`.
        offsets: `Offsets` of the layer.
        stored: `Stored`.
        scale: of the scores.
        window: a query at p sees s with p - window < s <= p; 0 for no window.
        softcap: 0 for none.
        sinks: [Hq], or None.

    Returns:
        [B, T, Hq, Dv], of the dtype of the query.
    """
    others = scale, window, softcap, sinks
    return _twin(query, key, value, pages, starts, counts, arenas, geometry, offsets, stored, *others)


def _twin(
    query: Tensor, key: Tensor, value: Tensor, pages: Tensor, starts: Tensor, counts: Tensor, arenas: Tensor,
    geometry: Sequence[int], offsets: Sequence[int], stored: int, *others: Any,
) -> Tensor:  # fmt: skip
    return attended(
        query, key, value, pages, starts, counts, store_of(arenas).arenas,
        Geometry(*geometry), Offsets(*offsets), Stored(stored), *others,
    )  # fmt: skip


@paged_attention.register_kernel("cuda")
def _on_cuda(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    if query.dtype == key.dtype == value.dtype and _has_kernel(
        query.dtype, query.shape[-1], value.shape[-1], others[6], query.device
    ):
        from decodekit.gpu import attention_launch

        return attention_launch.launched(query, key, value, *others)
    return _twin(query, key, value, *others)


@functools.cache
def _has_kernel(*shape: Any) -> bool:
    """`why_no_kernel` of every call, asked once."""
    return why_no_kernel(*shape) is None


@paged_attention.register_fake
def _shape_of(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))
