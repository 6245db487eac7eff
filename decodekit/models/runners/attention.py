"""Attention over a ragged KV cache: causal by position, without a padding mask.

One function, registered as a transformers attention implementation. Its name is unknown to transformers' mask
functions, so the models make no masks; which slots a query sees follows from the `Step` of the forward pass. The
cases that need no mask at all are taken first: queries that see the same slots, and a prompt into an empty cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from decodekit.gpu.paged_attention import paged_attention
from decodekit.models.caches.kv_cache import LayerShape, Step
from decodekit.models.runners.paged_step import LayerProbe, PagedStep

ATTENTION_NAME = "decodekit"
STEP_ARGUMENT = "decodekit_step"

# Queries that need a mask go in blocks of about this many scores: a long prompt under a sliding window would otherwise
# need a mask of its length squared.
_MAX_SCORES = 1 << 26

# Keyword arguments that models hand to their attention function and that do not change what it computes here.
_KNOWN_ARGUMENTS = frozenset(
    {"position_ids", "use_cache", "cache_position", "is_causal", "layer_idx", "logits_to_keep"}
)


class UnsupportedAttentionError(Exception):
    """The model asks its attention for something that `ragged_attention` does not compute; never leaves this room."""


class StepNotHandedOnError(UnsupportedAttentionError):
    """The model does not hand keyword arguments on to its attention."""


current_step: ContextVar[Step | None] = ContextVar("current_step", default=None)
"""The step of the pass that this thread is in, for models that do not hand keyword arguments on to their attention."""


@contextmanager
def in_pass(step: Step) -> Iterator[None]:
    """The time of a forward pass of a model that does not hand its step on."""
    token = current_step.set(step)
    try:
        yield
    finally:
        current_step.reset(token)


_in_passes, _had_cudnn = 0, True
_lock = threading.Lock()


@contextmanager
def without_cudnn() -> Iterator[None]:
    """The time of passes over a rectangle on CUDA: attention by any backend but cuDNN's.

    Its plans are made for one shape, in about 0.4 s each, and every step of a rectangle has another one; PyTorch
    prefers it on some GPUs (`sdp_utils` of PyTorch). The others keep their order. As `torch.nn.attention.sdpa_kernel`
    it sets a flag of the process, but threads may overlap: the last one out restores it.
    """
    global _in_passes, _had_cudnn
    backends: Any = torch.backends.cuda
    with _lock:
        if not _in_passes:
            _had_cudnn = backends.cudnn_sdp_enabled()
            backends.enable_cudnn_sdp(False)
        _in_passes += 1
    try:
        yield
    finally:
        with _lock:
            _in_passes -= 1
            if not _in_passes:
                backends.enable_cudnn_sdp(_had_cudnn)


def register() -> None:
    """Make `ragged_attention` known to transformers under `ATTENTION_NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, ragged_attention)


def ragged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    decodekit_step: Step | PagedStep | LayerProbe | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of the new tokens to the slots of their own row, in the form that transformers' modules call.

    Args:
        module: the attention module that calls.
        query: [R, Hq, T, D].
        key: [R, Hkv, S, D]; slot s holds the token at position s.
        value: [R, Hkv, S, Dv].
        attention_mask: must be None.
        dropout: must be 0; the models run in evaluation mode.
        scaling: factor of the scores, default 1 / sqrt(D).
        sliding_window: a query at position p sees the slots p - window + 1 .. p.
        softcap: scores become `softcap * tanh(score / softcap)` (Gemma 2).
        s_aux: [Hq] logits of attention sinks, in the softmax but without a value (gpt-oss).
        decodekit_step: the step of the forward pass; by default that of `current_step`.
        **kwargs: what else the models hand on.

    Returns:
        [R, T, Hq, Dv], and None for the weights, which are not kept.

    Raises:
        UnsupportedAttentionError: the model asks for something else.
    """
    step = decodekit_step or current_step.get()
    if step is None:
        raise StepNotHandedOnError("the model calls its attention outside of a forward pass of decodekit")
    if step.is_strict:
        _refuse_unknown(attention_mask, dropout, kwargs)

    window = sliding_window or None
    if not isinstance(step, Step):
        return _over_pages(module, query, key, value, step, scaling, window, softcap, s_aux), None
    is_plain = softcap is None and s_aux is None
    num_rows, num_heads, num_new, _ = query.shape
    num_skipped = step.num_new - num_new  # layers that read an earlier layer's keys may run for the last tokens alone
    if step.recording is not None:
        return step.recording.attend(query, key, value, scaling, window, softcap, s_aux, num_skipped), None
    if step.is_uniform:
        if window is not None and step.end > window:
            key, value = key[:, :, -window:], value[:, :, -window:]
        return _attend(query, key, value, None, scaling, softcap, s_aux), None
    if is_plain and step.is_fresh and not num_skipped and (window is None or num_new <= window):
        is_grouped = bool(num_heads > key.shape[1])
        out = scaled_dot_product_attention(query, key, value, scale=scaling, is_causal=True, enable_gqa=is_grouped)
        return out.transpose(1, 2), None
    repeats = num_heads // key.shape[1] if is_plain else 1
    block = max(1, _MAX_SCORES // (num_rows * num_heads * step.end))
    if block >= step.num_new and not num_skipped:
        first, last, mask = step.mask(window, repeats, query.dtype, query.device)
        key, value = key[:, :, first:last], value[:, :, first:last]
        return _attend(query, key, value, mask, scaling, softcap, s_aux), None
    blocks = []
    for begin in range(num_skipped, step.num_new, block):
        stop = min(begin + block, step.num_new)
        first, last, mask = step.mask(window, repeats, query.dtype, query.device, (begin, stop))
        part = key[:, :, first:last], value[:, :, first:last]
        own = query[:, :, begin - num_skipped : stop - num_skipped]
        blocks.append(_attend(own, *part, mask, scaling, softcap, s_aux))
    return torch.cat(blocks, dim=1), None


def _over_pages(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: PagedStep | LayerProbe,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """[R, T, Hq, Dv]; keys and values are those of the new tokens, which go into the pages of their layer.

    A layer that reads an earlier layer's keys has that layer's place: it writes what is there already.
    """
    if isinstance(step, LayerProbe):
        if not step.reads(module, key, LayerShape.of(key, value), window) or key.shape[2] < query.shape[2]:
            raise UnsupportedAttentionError("a layer attends to keys that no layer has shown to the cache")
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    place: Any = module
    group = step.rows.groups[place.paged_group]
    starts, counts = step.starts_and_counts
    num_skipped = key.shape[2] - query.shape[2]
    if num_skipped:  # layers that read an earlier layer's keys may run for the last tokens alone (Gemma 4)
        key, value = key[:, :, num_skipped:], value[:, :, num_skipped:]
        starts, counts = starts + num_skipped, (counts - num_skipped).clamp_min(0)
    out: Tensor = paged_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        step.pages[place.paged_group],
        starts,
        counts,
        group.store.table,
        list(group.store.geometry),
        [place.paged_keys, place.paged_values, place.paged_key_scales, place.paged_value_scales],
        int(step.rows.stored),
        query.shape[3] ** -0.5 if scaling is None else scaling,
        window or 0,
        softcap or 0.0,
        s_aux,
    )
    return out


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """[R, T, Hq, Dv]; the mask is repeated for the heads of a group, unless the scores are made explicitly."""
    if softcap is not None or s_aux is not None:
        return _explicit(query, key, value, mask, scaling, softcap, s_aux)
    num_rows, num_heads, num_new, _ = query.shape
    # Query heads that share a key head become more queries of that head, so that the keys need not be repeated.
    packed = query.reshape(num_rows, key.shape[1], num_heads // key.shape[1] * num_new, -1)
    out = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(num_rows, num_heads, num_new, -1).transpose(1, 2)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """Attention with soft-capped scores or sinks, which the fused kernels lack; [R, T, Hq, Dv]."""
    num_rows, num_heads, num_new, head_dim = query.shape
    num_key_heads = key.shape[1]
    # [R, Hkv, G, T, D] x [R, Hkv, 1, D, S] -> [R, Hkv, G, T, S]
    grouped = query.reshape(num_rows, num_key_heads, -1, num_new, head_dim)
    scores = grouped @ key.unsqueeze(2).transpose(3, 4) * (head_dim**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask.unsqueeze(2)
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype).view(1, num_key_heads, -1, 1, 1)
        scores = torch.cat([scores, sinks.expand(num_rows, -1, -1, num_new, -1)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    if s_aux is not None:
        weights = weights[..., :-1]
    out = weights @ value.unsqueeze(2)
    return out.reshape(num_rows, num_heads, num_new, -1).transpose(1, 2)


def _refuse_unknown(attention_mask: Tensor | None, dropout: float, kwargs: dict[str, Any]) -> None:
    if attention_mask is not None:
        raise UnsupportedAttentionError("the model makes its own attention mask")
    if dropout:
        raise UnsupportedAttentionError("attention dropout is on")
    if kwargs.get("is_causal") is False:
        raise UnsupportedAttentionError("the model's attention is not causal")
    for name, given in kwargs.items():
        if given is not None and given is not False and name not in _KNOWN_ARGUMENTS:
            raise UnsupportedAttentionError(f"the model hands the argument {name!r} to its attention")
