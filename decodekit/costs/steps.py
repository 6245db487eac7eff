"""The time of a decoding step, as it is measured for `estimate`."""

from __future__ import annotations

import statistics
import time
from typing import Final

import torch

from decodekit.generation.lane import PREFILL_TOKENS
from decodekit.models.causal_lm import CausalLM

_NUM_STEPS: Final = 16
_WARM_STEPS: Final = 60
"""More than a recording on a CPU waits for (`models.replay.RECORD_AFTER`), and its proofs."""


def measured_step(lm: CausalLM, batch: int, context: int) -> float:
    """Median seconds of a forward pass that gives logits to each of `batch` rows of about `context` tokens.

    The rows are filled with arbitrary tokens up to `context`, less those of the measured steps.
    """
    num_stored = max(1, context - _NUM_STEPS)
    cache = lm.new_cache(batch, num_stored + _NUM_STEPS)
    width = max(1, PREFILL_TOKENS // batch)
    for begin in range(0, num_stored, width):
        count = min(width, num_stored - begin)
        lm.forward(_tokens(lm, batch, count), [count] * batch, cache)
    token = _tokens(lm, batch, 1)
    seconds: list[float] = []
    for number in range(_WARM_STEPS + _NUM_STEPS):
        if number and number % _NUM_STEPS == 0:
            cache.truncate([num_stored] * batch)
        begin_at = time.perf_counter()
        lm.forward(token, [1] * batch, cache)
        if lm.device.type == "cuda":
            torch.cuda.synchronize(lm.device)
        seconds.append(time.perf_counter() - begin_at)
    return statistics.median(seconds[_WARM_STEPS:])


def _tokens(lm: CausalLM, num_rows: int, count: int) -> torch.Tensor:
    return (torch.arange(num_rows * count, device=lm.device) % lm.vocab_size).reshape(num_rows, count)
