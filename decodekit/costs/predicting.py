"""The function `estimate`: what a model takes and how fast it can be, from its modules and the speed of a device.

    print(dk.estimate("tiny", batch=8, context=512))

A step that gives a token to each of `batch` rows reads every weight once and the keys and values of all rows, so its
least time is these bytes over the bandwidth; a prompt is bounded by its operations. No program reaches the bound. The
share that is reached says how much there is to gain.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from decodekit.costs.device_speed import DeviceSpeed, device_speed
from decodekit.costs.report import Estimate
from decodekit.costs.steps import measured_step
from decodekit.errors import ModelError, OptionError
from decodekit.generation.lane import PREFILL_TOKENS
from decodekit.generation.memory import LOGITS_COPIES, free_memory
from decodekit.models import sizes
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.loading import load_config
from decodekit.models.modules.context_length import context_length_of
from decodekit.sampling.checks import is_number, require, require_integer

_CONTEXT: Final = 1024


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is estimated: the sizes of a model, loaded or not."""

    name: str
    dtype: torch.dtype
    device: torch.device
    weights: sizes.WeightSizes
    cache: sizes.CacheSizes
    operations: sizes.Operations
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
    bandwidth: float | None = None,
    flops: float | None = None,
    memory: int | None = None,
    measured: float | None = None,
    measure: bool = False,
) -> Estimate:
    """What a model takes for `batch` rows of `context` tokens, and the least times of a device for it.

    Args:
        model: an `LLM`, a model of transformers, its configuration; or a name as `LLM.load` takes it, or a
            ``config.json``, of which the configuration alone is read.
        batch: rows that are decoded together.
        context: tokens of each; by default 1,024, or the context of the model if that is less.
        dtype: of the weights of a model that is not loaded; by default that of its configuration.
        device: of a model that is not loaded; by default a GPU, if there is one.
        bandwidth: bytes a second that the device reads; by default measured, in less than a second for a process.
        flops: operations a second that it does; by default measured.
        memory: bytes that are free for the cache, and for the weights if they are not loaded; by default those of the
            device.
        measured: seconds of a step as they were seen, for the share of the limit that was reached.
        measure: run some steps of a loaded model for it.

    Raises:
        OptionError: an option is out of range, or has no effect.
        ModelError: there is no such model, or its modules cannot be run without numbers.
    """
    require_integer("batch", batch)
    if context is not None:
        require_integer("context", context)
    for name, value in (("bandwidth", bandwidth), ("flops", flops), ("memory", memory), ("measured", measured)):
        require(name, value, value is None or (is_number(value) and value > 0), "a number above 0")
    subject = _subject(model, dtype, device)
    if measure and measured is not None:
        raise OptionError("measured= is what measure=True would find", at="measure", hint="leave one of them out")
    if measure and subject.lm is None:
        raise OptionError("only a model that is loaded can be measured", at="measure", hint="LLM.load(...)")
    limit = subject.context_length
    if context is None:
        context = min(_CONTEXT, limit or _CONTEXT)
    if limit is not None and context > limit:
        raise OptionError(f"context={context:,} is more than the model's {limit:,}", at="context", hint=f"{limit}")
    speed = _speed(subject, batch, context, bandwidth, flops)
    found = _put_together(subject, batch, context, speed, memory)
    if measure and subject.lm is not None:
        measured = measured_step(subject.lm, batch, context)
    return replace(found, measured_seconds_per_token=measured)


def _put_together(subject: _Subject, batch: int, context: int, speed: DeviceSpeed, memory: int | None) -> Estimate:
    weights, cache, operations = subject.weights, subject.cache, subject.operations
    step_bytes = weights.read_by(batch)
    prompt_bytes = weights.read_by(batch * context)
    logits = 4 * subject.vocab_size * LOGITS_COPIES
    prefill = min(PREFILL_TOKENS, batch * context)
    activations = batch * logits + 3 * prefill * weights.widest * subject.dtype.itemsize
    free = memory if memory is not None else free_memory(subject.device)
    max_batch = None
    if free is not None:
        left = free - (weights.num_bytes if subject.lm is None else 0) - (activations - batch * logits)
        max_batch = max(0, int(left // max(1, cache.num_bytes(1, context) + logits)))
    return Estimate(
        name=subject.name,
        batch=batch,
        context=context,
        device=str(subject.device),
        dtype=str(subject.dtype).removeprefix("torch."),
        num_parameters=weights.num_parameters,
        weight_bytes=weights.num_bytes,
        bytes_read_per_step=round(step_bytes),
        num_experts_per_step=sizes.expected_experts(weights.experts, batch),
        kv_bytes_per_token=cache.bytes_per_token,
        state_bytes_per_row=cache.state_bytes,
        cache_bytes=cache.num_bytes(batch, context),
        window_bytes=cache.bytes_seen(batch, context),
        activation_bytes=activations,
        max_batch=max_batch,
        flops_per_prompt_token=operations.per_token,
        attention_flops=operations.attention(context),
        speed=speed,
        seconds_to_first_token=speed.least_seconds(prompt_bytes, batch * operations.prefill(context)),
        seconds_per_token=speed.least_seconds(
            step_bytes + cache.bytes_seen(batch, context), batch * operations.step(context)
        ),
        notes=subject.notes,
    )


def _speed(subject: _Subject, batch: int, context: int, bandwidth: float | None, flops: float | None) -> DeviceSpeed:
    if bandwidth is not None and flops is not None:
        return DeviceSpeed(bandwidth, flops)
    num_bytes = round(subject.weights.read_by(batch)) + subject.cache.bytes_seen(batch, context)
    seen = device_speed(subject.device, subject.dtype, num_bytes)
    return DeviceSpeed(bandwidth or seen.bandwidth, flops or seen.flops)


def _subject(model: Any, dtype: Any, device: Any) -> _Subject:
    """The sizes of what was given."""
    inner = getattr(model, "model", model) if hasattr(model, "tokenizer") else model  # an `LLM` has both
    if isinstance(inner, nn.Module) and not isinstance(inner, HuggingFaceLM) and hasattr(inner, "config"):
        inner = HuggingFaceLM(inner)
    if isinstance(inner, HuggingFaceLM):
        for name, value in (("dtype", dtype), ("device", device)):
            if value is not None:
                raise OptionError(f"{name}= has no effect on a model that is loaded", at=name, hint="leave it out")
        return _loaded(inner)
    if isinstance(inner, str | os.PathLike):
        return _planned(load_config(inner), os.fspath(inner), dtype, device)
    if hasattr(inner, "get_text_config") and hasattr(inner, "model_type"):
        return _planned(inner, getattr(inner, "_name_or_path", "") or type(inner).__name__, dtype, device)
    raise ModelError(
        f"{type(inner).__name__} is neither a model of transformers nor a configuration",
        at="model",
        hint="an LLM, AutoModelForCausalLM, AutoConfig, a folder or a name",
    )


def _loaded(lm: HuggingFaceLM) -> _Subject:
    cache = sizes.cache_sizes(lm)
    model = sizes.on_meta(lm.model.config, type(lm.model), lm.dtype)
    return _Subject(
        lm.name,
        lm.dtype,
        lm.device,
        sizes.weight_sizes(lm.model),
        cache,
        sizes.operations(model),
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
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError) as problem:
        raise OptionError(f"there is no device {device!r:.60}", at="device", hint='"cpu" or "cuda"') from problem
    model: Any = sizes.on_meta(config, dtype=kind)
    weights = sizes.weight_sizes(model, sizes.quantised_bytes(config, model))
    cache = sizes.cache_sizes_on_meta(model)
    notes = ["from the configuration alone: which tier runs the model is known when it is loaded"]
    if getattr(config, "quantization_config", None) is not None:
        notes.append("bytes of quantised weights are those of their bits and scales, within a few percent")
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    return _Subject(
        name,
        model.dtype,
        place,
        weights,
        cache,
        sizes.operations(model),
        vocab_size,
        context_length_of(config.get_text_config()),
        None,
        (*notes, *_notes(config, cache)),
    )


def _notes(config: Any, cache: sizes.CacheSizes) -> tuple[str, ...]:
    """What a reader would not guess of the cache."""
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
        notes.append("no cache: every step computes all tokens again (tier recompute), which the least times leave out")
    if cache.state_bytes:
        notes.append("operations are those of matrix products: scans of recurrent layers are not counted")
    return tuple(notes)
