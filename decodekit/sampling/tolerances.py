"""Margins: numbers that are equal but for rounding are taken for equal. The margin of every truncation, and its side.

A truncation compares two numbers that follow from the logits, and at some points the two are one number: of two tokens
the second is exactly two standard deviations below the first, of ten equal tokens three have the share 0.3. Rounding
would decide there, and rounding differs with the width of a row, its place in a batch, its strides and its device. So

- a token that is at the limit is inside: kept where the definition says "at least" or "at most", and a share that is
  reached but for the margin is reached;
- the margin is `MARGIN`, relative to a probability: 64 units in the last place of float32;
- sums over a row are made in float64, where 131,072 terms cost less than 10^-11; what is left is the rounding of one
  float32 weight, 3 10^-7. A limit is computed in float64, as a distance from the largest logit, and rounded up to the
  float32 that a logit is compared with (`lowest_kept`), so that the comparison itself is exact.

The margin covers, too, that probabilities were rounded when they were written as logits: of magnitude 16, by 10^-6.
Further off, a row decides by its own float32 numbers, in every batch alike.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Scalar = TypeVar("Scalar", float, Tensor)

MARGIN: Final = 2.0**-18
"""Relative to a probability, absolute to its logarithm: 3.8 10^-6."""

NEAR: Final = 1e-4
"""Sums of a logit and its noise that are nearer than this may be told apart by rounding alone.

It is far above the rounding of a float32 sum of a noise below 37 and a logit that can win.
"""


def reached(share: float) -> float:
    """The share of a mass at which `share` counts as reached; near 1 what is missing is measured."""
    return share - MARGIN * min(share, 1 - share)


def widened(distance: Scalar) -> Scalar:
    """A largest distance of logarithms of probabilities, with its margin."""
    return distance + MARGIN


def stretched(distance: Scalar) -> Scalar:
    """A largest distance in a unit that a temperature changes, with its margin."""
    return distance * (1 + MARGIN)


def precise(values: Tensor) -> Tensor:
    """The values in float64, in float32 on a device without it (Apple's)."""
    return values.to(precise_type(values))


def precise_type(values: Tensor) -> torch.dtype:
    """float64, where the device of the values has it."""
    return torch.float32 if values.device.type == "mps" else torch.float64


def lowest_kept(logits: Tensor, distance: Tensor | float) -> Tensor:
    """The least float32 that is not farther below the largest logit than `distance`, [..., 1].

    A float64 distance [..., 1] below 0 counts as 0, so that the likeliest tokens stay. NaN where the distance is, or
    where the row has no token or an infinite one: no comparison with it removes anything.
    """
    peaks = logits.amax(dim=-1, keepdim=True)
    if peaks.device.type == "cpu" and peaks.dtype == torch.float32:  # a third of the time for a few numbers
        far = distance.numpy(force=True) if isinstance(distance, Tensor) else distance
        rows = peaks.numpy(force=True)
        return torch.from_numpy(np.where(np.isinf(rows), np.float32(np.nan), lowest_kept_of(rows, np.maximum(far, 0))))
    peak = precise(peaks)
    limit = peak - (distance.clamp(min=0.0) if isinstance(distance, Tensor) else max(distance, 0.0))
    rounded = limit.to(torch.float32)
    is_below = rounded.to(limit.dtype) < limit
    rounded = torch.where(is_below, torch.nextafter(rounded, torch.full_like(rounded, math.inf)), rounded)
    return torch.where(peak.isinf(), math.nan, rounded)


def lowest_kept_of(peaks: NDArray[np.float32], distance: float | NDArray[np.float64]) -> NDArray[np.float32]:
    """`lowest_kept` of rows on the host whose largest logits are known, [...]."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinite rows
        limits = peaks.astype(np.float64) - distance
        rounded: NDArray[np.float32] = limits.astype(np.float32)
        up: NDArray[np.float32] = np.nextafter(rounded, np.float32(np.inf))
        return np.where(rounded < limits, up, rounded)


def log_total(logits: Tensor) -> Tensor:
    """ln sum e^(z - max z) of each row, float64 [..., 1]; NaN for a row without tokens, with NaN or with +inf."""
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    total: Any = weights.sum(dim=-1, keepdim=True, dtype=precise_type(logits))
    return total.log()  # type: ignore[no-any-return]
