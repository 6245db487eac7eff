"""Decoding and measuring: the times between the pieces of a stream, and the memory that keys and values take.

The loop itself is not touched: times come from the stream and from `Stats`, memory from a copy of the model that looks
on.
"""

from __future__ import annotations

import copy
import math
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from decodekit.decoding.request.prompt import Prompt
from decodekit.decoding.request.stats import Stats
from decodekit.errors import DecodekitError
from decodekit.llm import LLM
from decodekit.models.causal_lm import Cache, CausalLM


@dataclass(frozen=True, slots=True)
class Measurement:
    """One example, decoded once.

    Args:
        text: what was decoded; None if there is nothing.
        token_ids: its tokens.
        finish_reason: why it ended; ``error`` if decoding failed.
        error: what went wrong, in words; None if nothing.
        stats: times and counts; None if decoding failed.
        gaps: between the pieces of the stream after the first: seconds, and the tokens that came at its end.
        wall_s: seconds of the call that decoded the example, shared among the examples of the call.
        kv_bytes: largest size of the cache of the call; None if the model does not tell.
        cpu_s: seconds that the cores spent on this process meanwhile, shared like `wall_s`; None if not measured.
        gpu_utilisation: share of the last moments of the call in which the GPU was busy, from 0 to 1; None without one.
        logprob: log-probability of the text, where those of its tokens were recorded (for the metric ``log-z``).
    """

    text: str | None
    token_ids: tuple[int, ...]
    finish_reason: str
    error: str | None
    stats: Stats | None
    gaps: tuple[tuple[float, int], ...]
    wall_s: float
    kv_bytes: int | None
    cpu_s: float | None = None
    gpu_utilisation: float | None = None
    logprob: float | None = None

    @property
    def s_per_token(self) -> float | None:
        """Seconds of the row over its tokens, prefill included; None without tokens."""
        if self.stats is None or self.stats.num_generated_tokens == 0:
            return None
        return self.stats.duration_s / self.stats.num_generated_tokens


class Meter:
    """Notes how large the caches of a model become, and where it computes."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.begin()

    def begin(self) -> None:
        """Forget what was seen."""
        self.peak_bytes: int | None = None
        self._caches: list[weakref.ref[Any]] = []
        self._shapes: dict[int, tuple[int, int]] = {}

    def watch(self, model: CausalLM) -> CausalLM:
        """A copy of the model, with its weights shared, that tells the meter of its caches.

        A copy of the same class, for there are proposers that ask what kind of model they draft for. A model that has
        no attributes of its own to be copied is not watched.
        """
        self.device = torch.device(model.device)
        if not hasattr(model, "__dict__"):
            return model
        twin: CausalLM = object.__new__(type(model))

        def new_cache(num_rows: int, capacity: int) -> Cache:
            cache = model.new_cache(num_rows, capacity)
            with suppress(TypeError):  # a cache without weak references is not watched: the meter must not keep it
                self._caches.append(weakref.ref(cache))
            self._look()
            return cache

        def forward(tokens: Tensor, num_tokens: Sequence[int], cache: Cache, *rest: Any, **options: Any) -> Tensor:
            result = model.forward(tokens, num_tokens, cache, *rest, **options)
            shape = (cache.num_rows, cache.capacity)
            if self._shapes.get(id(cache)) != shape:  # it has grown, or lost rows; else there is nothing to see
                self._shapes[id(cache)] = shape
                self._look()
            return result

        vars(twin).update(vars(model), new_cache=new_cache, forward=forward)
        return twin

    def _look(self) -> None:
        caches = [cache for reference in self._caches if (cache := reference()) is not None]
        sizes = [getattr(cache, "num_bytes", None) for cache in caches]
        if sizes and None not in sizes:
            self.peak_bytes = max(self.peak_bytes or 0, sum(cast("list[int]", sizes)))


def metered(llm: LLM) -> tuple[LLM, Meter]:
    """An `LLM` beside the given one whose caches are watched."""
    twin, meter = copy.copy(llm), Meter()
    twin.model = meter.watch(llm.model)
    return twin, meter


def decode(llm: LLM, meter: Meter, prompts: Sequence[Prompt], **options: Any) -> list[Measurement]:
    """Decode prompts together, by an LLM of `metered` and options of `LLM.stream`, and measure each.

    What raises for all prompts together, such as options of a strategy, is the error of those that are not done: one
    that fails must not end a comparison.
    """
    pieces: list[list[tuple[float, int]]] = [[] for _ in prompts]
    completions: list[Any] = [None] * len(prompts)
    failure: str | None = None
    meter.begin()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    try:
        for chunk in llm.stream(list(prompts), **options):
            if chunk.token_ids:
                pieces[chunk.index].append((time.perf_counter(), len(chunk.token_ids)))
            if chunk.completion is not None:
                completions[chunk.index] = chunk.completion
    except Exception as error:
        failure = str(error) if isinstance(error, DecodekitError) else f"{type(error).__name__}: {error}"
    wall_s = (time.perf_counter() - begin) / len(prompts)
    cpu_s = (time.process_time() - cpu_begin) / len(prompts)
    call = (wall_s, meter.peak_bytes, cpu_s, gpu_utilisation(meter.device))
    measured = []
    for completion, arrivals in zip(completions, pieces, strict=True):
        if completion is None:
            fault = failure or "no text came"
            measured.append(Measurement(None, (), "error", fault, None, (), *call))
            continue
        # A row that failed before its first token has no text that could be judged.
        text = None if completion.finish_reason == "error" and not completion.token_ids else completion.text
        measured.append(
            Measurement(
                text,
                completion.token_ids,
                completion.finish_reason,
                None if completion.error is None else str(completion.error),
                completion.stats,
                tuple((now - before, num_tokens) for (before, _), (now, num_tokens) in pairwise(arrivals)),
                *call,
                None if completion.logprobs is None else math.fsum(one.logprob for one in completion.logprobs),
            )
        )
    return measured


def gpu_utilisation(device: torch.device) -> float | None:
    """The share of the last sampling period (a sixth of a second to a second) in which a kernel ran, from 0 to 1.

    What NVIDIA's driver tells; None for other devices, and where its library (nvidia-ml-py) is missing.
    """
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except Exception:  # no library, no permission, or a device without a counter: nothing is known
        return None
