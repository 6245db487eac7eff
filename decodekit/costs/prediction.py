"""The function `estimate`: what a model takes, and how long a decoding step is expected to be on a GPU.

    print(dk.estimate("tiny", batch=8, context=512, device="h200"))

Bytes and kernels come from the modules of the model, which need no weights for it; times from the constants of a kind
of GPU (`step_time`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from decodekit.costs.estimate_report import Estimate
from decodekit.costs.step_time import DEVICES, DeviceSpeed, StepWork, device_speed
from decodekit.decoding.loop.batch import PREFILL_TOKENS
from decodekit.decoding.prefixes.row_memory import LOGITS_COPIES, free_memory
from decodekit.errors import ModelError, OptionError
from decodekit.models import sizes
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.loading import load_config
from decodekit.models.modules.shared_copy import context_length_of
from decodekit.sampling.checks import COUNT, at_least, is_number, require

_CONTEXT: Final = 1024
LOOP_KERNELS: Final = 3
"""Of a step beside the modules: its inputs, and two for the draw with the match of drafts, since a captured step may
have top-k or top-p."""
FUSED: Final = 1.4
"""Kernels that a compiler makes of a stretch of small ones: one for each product that is not next to a reduction."""


class _Location(NamedTuple):
    name: str
    speed: DeviceSpeed | None
    free: int | None


@dataclass(frozen=True, slots=True)
class _Subject:
    """The sizes of a model, loaded or not."""

    name: str
    dtype: torch.dtype
    device: _Location  # where it lies, or would, its speed if that is known, and the memory that is free there
    weights: sizes.WeightSizes
    cache: sizes.CacheSizes
    bare: nn.Module  # its modules on the device ``meta``
    vocab_size: int
    context_length: int | None
    lm: HuggingFaceLM | None
    notes: tuple[str, ...]


def estimate(
    model: Any,
    batch: int = 1,
    context: int | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    memory: int | None = None,
    drafts: int = 0,
    compile_layers: bool | None = None,
) -> Estimate:
    """Memory of a model with `batch` rows of `context` tokens, and the expected time of their step on a GPU.

    Args:
        model: an `LLM`, a model of transformers, its configuration; or a name as `LLM.load` takes it, or a
            ``config.json``, of which the configuration alone is read.
        batch: rows that are decoded together.
        context: tokens of each; by default 1,024, or the context of the model if that is less.
        dtype: of the weights of a model that is not loaded; by default that of its configuration.
        device: a kind of GPU, which need not be there: a key of `costs.step_time.DEVICES`, such as "h200" or "4090"; or
            "cpu" or "cuda". By default where a loaded model lies, or a GPU, if there is one.
        memory: bytes that are free for the cache, and for the weights if they are not loaded; by default those of the
            device.
        drafts: tokens of a guess that a step verifies for each row, beside the row's own.
        compile_layers: whether layers are compiled; by default as a loaded model on a GPU has it, and True otherwise.

    Raises:
        OptionError: an option is out of range, or has no effect.
        ModelError: there is no such model, or its modules cannot be run without numbers.
    """
    COUNT.require("batch", batch)
    at_least(0).require("drafts", drafts)
    if context is not None:
        COUNT.require("context", context)
    require("memory", memory, memory is None or (is_number(memory) and memory > 0), "a number above 0")
    subject = _subject(model, dtype, device)
    speed = subject.device.speed
    if speed is None and (drafts or compile_layers is not None):
        name = "drafts" if drafts else "compile_layers"
        raise OptionError(
            f"{name}= is for the time of a step, which is predicted for known GPUs alone", at=name, hint='device="h200"'
        )
    limit = subject.context_length
    context = context or min(_CONTEXT, limit or _CONTEXT)
    if limit is not None and context > limit:
        raise OptionError(f"context={context:,} is more than the model's {limit:,}", at="context", hint=f"{limit}")
    weights, cache = subject.weights, subject.cache
    logits = 4 * subject.vocab_size * LOGITS_COPIES
    passing = 3 * min(PREFILL_TOKENS, batch * context) * weights.widest * subject.dtype.itemsize
    free = subject.device.free if memory is None else memory
    max_batch = None
    if free is not None:
        left = free - (weights.num_bytes if subject.lm is None else 0) - passing
        max_batch = max(0, int(left // max(1, cache.num_bytes(1, context) + logits)))
    work = least = seconds = None
    if speed is not None:
        work = _work(subject, batch, context, drafts, compile_layers)
        least, is_ahead = work.least_seconds(speed), cache.tier != "recurrent"
        seconds = work.seconds(speed, not is_ahead or cache.tier in ("paged", "ragged"), is_ahead=is_ahead)
    return Estimate(
        name=subject.name,
        batch=batch,
        context=context,
        device=subject.device.name,
        dtype=str(subject.dtype).removeprefix("torch."),
        num_parameters=weights.num_parameters,
        weight_bytes=weights.num_bytes,
        bytes_read_per_step=round(weights.read_by(batch * (1 + drafts))),
        num_experts_per_step=sizes.expected_experts(weights.experts, batch * (1 + drafts)),
        kv_bytes_per_token=cache.bytes_per_token,
        state_bytes_per_row=cache.state_bytes,
        cache_bytes=cache.num_bytes(batch, context),
        window_bytes=cache.bytes_seen(batch, context),
        activation_bytes=batch * logits + passing,
        max_batch=max_batch,
        num_kernels=None if work is None else round(work.kernels),
        least_seconds_per_step=least,
        seconds_per_step=seconds,
        notes=subject.notes,
    )


def _work(subject: _Subject, batch: int, context: int, drafts: int, compile_layers: bool | None) -> StepWork:
    """The work of a step."""
    weights, found, lm = subject.weights, sizes.kernels(subject.bare), subject.lm
    if compile_layers is None:
        compile_layers = lm.compile_layers if lm is not None and lm.device.type == "cuda" else True
    num_tokens = batch * (1 + drafts)
    compile_layers &= subject.cache.tier != "recurrent"  # whose steps are captured with the modules as they are
    small, products = (FUSED * found.stretches, found.inputs) if compile_layers else (found.small, found.products)
    return StepWork(
        kernels=small + products + found.attention + LOOP_KERNELS,
        weight_bytes=weights.read_by(num_tokens),
        cache_bytes=subject.cache.bytes_seen(batch, context),
        operations=2 * num_tokens * weights.num_parameters * weights.read_by(1) / max(1, weights.num_bytes),
        rows=batch,
    )


def _placed(device: Any) -> _Location:
    """Where a model is: a device that is there, or a kind of GPU that is only named."""
    speed = device_speed(device) if isinstance(device, str) else None
    if speed is not None:
        return _Location(device, speed, speed.memory)
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError) as problem:
        hint = f'"cpu", "cuda", or a kind of GPU: {", ".join(DEVICES)}'
        raise OptionError(f"there is no device {device!r:.60}", at="device", hint=hint) from problem
    is_there = place.type == "cuda" and torch.cuda.is_available()
    return _Location(
        str(place), device_speed(torch.cuda.get_device_name(place)) if is_there else None, free_memory(place)
    )


def _subject(model: Any, dtype: Any, device: Any) -> _Subject:
    """The sizes of what was given."""
    inner = getattr(model, "model", model) if hasattr(model, "tokenizer") else model  # an `LLM` has both
    if isinstance(inner, nn.Module) and not isinstance(inner, HuggingFaceLM) and hasattr(inner, "config"):
        inner = HuggingFaceLM(inner)
    if isinstance(inner, HuggingFaceLM):
        return _loaded(inner, dtype, device)
    if isinstance(inner, str | os.PathLike):
        return _planned(load_config(inner), os.fspath(inner), dtype, device)
    if hasattr(inner, "get_text_config") and hasattr(inner, "model_type"):
        return _planned(inner, getattr(inner, "_name_or_path", "") or type(inner).__name__, dtype, device)
    raise ModelError(
        f"{type(inner).__name__} is neither a model of transformers nor a configuration",
        at="model",
        hint="an LLM, AutoModelForCausalLM, AutoConfig, a folder or a name",
    )


def _loaded(lm: HuggingFaceLM, dtype: Any, device: Any) -> _Subject:
    """Of a model that is there, on its device or as if it was on a GPU of another kind."""
    if dtype is not None:
        raise OptionError("dtype= has no effect on a model that is loaded", at="dtype", hint="leave it out")
    place = _placed(lm.device if device is None else device)
    if device is not None and place.speed is None:
        raise OptionError(
            f"a model that is loaded is on {lm.device}",
            at="device",
            hint=f"leave it out, or one of {', '.join(DEVICES)}",
        )
    cache = sizes.cache_sizes(lm)
    return _Subject(
        lm.name,
        lm.dtype,
        place,
        sizes.weight_sizes(lm.model),
        cache,
        sizes.on_meta(lm.model.config, type(lm.model), lm.dtype),
        lm.vocab_size,
        lm.context_length,
        lm,
        _notes(lm.model.config, cache),
    )


def _planned(config: Any, name: str, dtype: Any, device: Any) -> _Subject:
    """Of a configuration without weights."""
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise OptionError(f"{dtype!r:.60} is not a type of weights", at="dtype", hint='"bfloat16"')
    place = _placed(device)
    model: Any = sizes.on_meta(config, dtype=kind)
    weights = sizes.weight_sizes(model, sizes.quantised_bytes(config, model))
    cache = sizes.cache_sizes_on_meta(model)
    notes = ["from the configuration alone: which tier runs the model is known when it is loaded"]
    if getattr(config, "quantization_config", None) is not None:
        notes.append("bytes of quantised weights are those of their bits and scales, within a few percent")
    return _Subject(
        name,
        model.dtype,
        place,
        weights,
        cache,
        model,
        int(model.get_output_embeddings().weight.shape[0]),
        context_length_of(config.get_text_config()),
        None,
        (*notes, *_notes(config, cache)),
    )


def _notes(config: Any, cache: sizes.CacheSizes) -> tuple[str, ...]:
    """Notes on the cache that a reader would not guess."""
    notes = []
    text = config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        width = int(text.kv_lora_rank) + int(getattr(text, "qk_rope_head_dim", 0))
        stored = cache.layers[0].bytes_per_token // max(1, width) if cache.layers else 0
        is_latent = stored in (1, 2, 4, 8)
        what = "the latent vector, and expands it in every step" if is_latent else "the decompressed heads"
        notes.append(f"multi-head latent attention: this version of transformers stores {what}")
    if cache.tier == "ragged" and any(one.most_tokens is not None for one in cache.seen):
        notes.append("the rectangular cache keeps tokens outside of sliding windows, too")
    if cache.tier == "rowwise":
        notes.append("each row has a cache of its own that grows by its tokens (tier rowwise)")
    if cache.tier == "recompute":
        notes.append("no cache: every step computes all tokens again (tier recompute), which predicted times leave out")
    return tuple(notes)
