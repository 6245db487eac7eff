"""Taking tokens from logits that lie on a device: one program for all rows in place of a processor after the other.

    parameters  Temperature(0.8) | TopK(50) | TopP(0.95)   ->  0.8, 50, 0.95, no min-p
    up          of each row: parameters, seed, number of the sample, index of the token; which mask, if it has one
    down        of each row: its token, what must be allowed besides, whether it is certified, whether it failed

The tokens are those of the pipeline and the selector; see `gpu.sampler`. What the program does not know, somebody's
own processor above all, is run as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.gpu.draw_settings import MASKS, packed
from decodekit.gpu.sampler import sample_rows
from decodekit.sampling import MinP, Pipeline, Temperature, TopK, TopP
from decodekit.sampling.certificates import lead_greedy, lead_noisy


class Parameters(NamedTuple):
    """The strategy of a row as the device knows it."""

    temperature: float = 1.0
    top_k: int = 0  # none
    top_p: float = 1.0
    min_p: float = 0.0
    is_greedy: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Parameters | None:
        """Those of a batch's settings; None if the device has no program for them."""
        if settings.mirostat is not None or settings.verify != "coupled":
            return None
        if settings.lead is lead_greedy:
            return cls(is_greedy=True) if len(settings.pipeline) == 0 else None
        return parameters_of(settings.pipeline) if settings.lead is lead_noisy else None


def parameters_of(pipeline: Pipeline) -> Parameters | None:
    """A pipeline of a temperature, top-k, top-p and min-p, in this order and each at most once."""
    found: dict[str, float] = {}
    order = [Temperature, TopK, TopP, MinP]
    for processor in pipeline:
        kind = type(processor)
        if kind not in order:
            return None
        order = order[order.index(kind) + 1 :]
        match processor:
            case Temperature(temperature=value):
                found["temperature"] = value
            case TopK(k=value):
                found["top_k"] = value
            case TopP(p=value):
                found["top_p"] = value
            case MinP(min_p=value):
                found["min_p"] = value
    return Parameters(**found)  # type: ignore[arg-type]  # by name


class DeviceDraw(NamedTuple):
    """A row's draw on the device; see `gpu.sampler`."""

    token: int
    given: int
    is_certified: int
    status: int


def device_draws(
    logits: Tensor, settings: Settings, keys: NoiseKeys, bitmask: Tensor | None = None, *, is_asked: bool = False
) -> list[DeviceDraw] | None:
    """The tokens of rows that lie on a device; None if they do not, or it has no program for the settings.

    Args:
        logits: [N, V].
        bitmask: int32 [N, words] on the host, the allowed tokens of each row.
        is_asked: whether certificates are wanted.
    """
    if not is_on_device(logits):
        return None
    parameters = Parameters.of(settings)
    if parameters is None:
        return None
    device = logits.device
    values = packed([parameters] * len(logits), *keys, is_asked=is_asked)
    if bitmask is not None:
        values[MASKS] = range(len(logits))
    numbers = torch.from_numpy(values).to(device, non_blocking=True)
    masks = None if bitmask is None else bitmask.to(device, non_blocking=True)
    found = sample_rows(logits, numbers, masks, 1, parameters.top_k > 0 or parameters.top_p < 1)
    return [DeviceDraw(*row) for row in found.tolist()]


def is_on_device(logits: Tensor) -> bool:
    """Whether logits lie where a program takes tokens better than the host does."""
    return logits.device.type == "cuda"
