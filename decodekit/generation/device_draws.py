"""Taking tokens from logits that lie on a device: one program for all rows in place of a processor after the other.

    parameters  Temperature(0.8) | TopK(50) | TopP(0.95)   ->  0.8, 50, 0.95, no min-p
    up          of each row: parameters, seed, number of the sample, index of the token; which mask, if it has one
    down        of each row: its token, what must be allowed besides, whether it is certified, whether it failed

The tokens are those of the pipeline and the selector; see `kernels.sampler`. What the program does not know, somebody's
own processor above all, is run as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.generation.settings import NoiseKeys, Settings
from decodekit.kernels.sampler import distance_of, sample_rows
from decodekit.sampling import MinP, Pipeline, Temperature, TopK, TopP
from decodekit.sampling.leaders import lead_greedy, lead_noisy

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYOUT: Final = "=QQddifii"
"""A row in the order of `packed`."""
NUM_VALUES: Final = struct.calcsize(LAYOUT) // 4
"""32-bit numbers of a row: seed, number of the sample, top-p and distance of min-p (two each), index of the token,
temperature, top-k, whether it is greedy."""
INDEX: Final = 8
NO_MASK: Final = -1


class Parameters(NamedTuple):
    """What a strategy is to the device."""

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


def packed(
    parameters: Rows[Parameters], seeds: Iterable[int], sequences: Iterable[int], indices: Iterable[int]
) -> NDArray[np.int32]:
    """The rows of a draw, int32 [NUM_VALUES, N]."""
    rows = [
        struct.pack(
            LAYOUT,
            seed % (1 << 64),
            sequence % (1 << 64),
            one.top_p,
            distance_of(one.min_p),
            index,
            one.temperature,
            one.top_k,
            one.is_greedy,
        )
        for one, seed, sequence, index in zip(parameters, seeds, sequences, indices, strict=True)
    ]
    return np.frombuffer(b"".join(rows), dtype=np.int32).reshape(len(rows), NUM_VALUES).T.copy()


def draw_rows(
    logits: Tensor, values: Tensor, masks: Tensor | None, mask_ids: Tensor | None, uses_top_k: bool, uses_top_p: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, what must be allowed besides, certificates and status of rows, int64 [N] each; see `sample_rows`.

    Args:
        logits: [N, V].
        values: int32 [NUM_VALUES, N] on the device of the logits, as `packed`.
        masks: int32 [n, words], or None.
        mask_ids: int32 or int64 [N], which of them a row has; `NO_MASK` for none.
        uses_top_k, uses_top_p: whether a row may have one.
    """
    wide = values[:8].t().clone(memory_format=torch.contiguous_format)  # [N, 4] of 64 bits
    whole, real = wide.view(torch.int64), wide.view(torch.float64)
    index, temperatures, top_ks, are_greedy = values[INDEX:]
    tokens, are_clear, given, status = sample_rows(
        logits,
        temperatures.view(torch.float32),
        top_ks.contiguous(),
        real[:, 2].contiguous(),
        real[:, 3].contiguous(),
        are_greedy.bool(),
        whole[:, 0].contiguous(),
        whole[:, 1].contiguous(),
        index.long(),
        masks,
        mask_ids,
        uses_top_k,
        uses_top_p,
        True,
    )
    return tokens, given, are_clear.long(), status.long()


class DeviceDraw(NamedTuple):
    """What the device says of a row; see `kernels.sampler`."""

    token: int
    given: int
    is_clear: int
    status: int


def device_draws(
    logits: Tensor, settings: Settings, keys: NoiseKeys, bitmask: Tensor | None = None
) -> list[DeviceDraw] | None:
    """The tokens of rows that lie on a device; None if they do not, or it has no program for the settings.

    Args:
        logits: [N, V].
        bitmask: int32 [N, words] on the host, the allowed tokens of each row.
    """
    if not is_on_device(logits):
        return None
    parameters = Parameters.of(settings)
    if parameters is None:
        return None
    device = logits.device
    values = torch.from_numpy(packed([parameters] * len(logits), *keys)).to(device, non_blocking=True)
    masks = mask_ids = None
    if bitmask is not None:
        masks, mask_ids = bitmask.to(device, non_blocking=True), torch.arange(len(logits), device=device)
    found = draw_rows(logits, values, masks, mask_ids, parameters.top_k > 0, parameters.top_p < 1)
    return [DeviceDraw(*row) for row in torch.stack(found, dim=1).tolist()]


def is_on_device(logits: Tensor) -> bool:
    """Whether logits lie where a program takes tokens better than the host does."""
    return logits.device.type == "cuda"
