"""How fast a device reads memory and multiplies: measured in a fraction of a second, once for a process.

Decoding reads every weight for every token, so a model of 14.2 GB on a device that reads 1,008 GB a second takes at
least 14.2 / 1,008 = 14.1 ms for a token, whatever its kernels do.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

_SECONDS: Final = 0.2
"""How long each of the measurements may go on."""
_MOST_BYTES: Final = {"cpu": 1 << 28, "cuda": 1 << 30}
_LEAST_BYTES: Final = 1 << 20
_SIDE: Final = {"cpu": 1024, "cuda": 8192}
_WIDTH: Final = 1024


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What bounds a forward pass.

    Args:
        bandwidth: bytes a second that are read from memory, at best.
        flops: floating-point operations a second of matrix products, at best; one multiplication with its addition
            is two.
    """

    bandwidth: float
    flops: float

    def least_seconds(self, num_bytes: float, num_operations: float = 0.0) -> float:
        """The time below which a device cannot read so many bytes and do so many operations, both at once."""
        return max(num_bytes / self.bandwidth, num_operations / self.flops)


def device_speed(device: torch.device, dtype: torch.dtype, num_bytes: int) -> DeviceSpeed:
    """The speed of a device, measured in less than a second at the first call of a process.

    Args:
        device: "cpu" or "cuda".
        dtype: of the weights; products are measured in it.
        num_bytes: how much is read in a step: what fits into a processor's cache is read faster. Sizes are taken in
            powers of two, from 1 MiB up to 256 MiB on a CPU and 1 GiB on a GPU.
    """
    most = _MOST_BYTES.get(device.type, _MOST_BYTES["cpu"])
    size = 1 << round(math.log2(min(max(num_bytes, _LEAST_BYTES), most)))
    return _measured(device.type, device.index, dtype, size, torch.get_num_threads())


@functools.lru_cache(maxsize=64)
def _measured(kind: str, index: int | None, dtype: torch.dtype, size: int, num_threads: int) -> DeviceSpeed:
    device = torch.device(kind) if index is None else torch.device(kind, index)
    with torch.inference_mode():
        bandwidth = _bandwidth(device, size)
        side = _SIDE.get(kind, _SIDE["cpu"])
        left = torch.ones(side, side, device=device, dtype=dtype)
        products = 2 * side**3 / _best(lambda: torch.mm(left, left), device)
    return DeviceSpeed(bandwidth, products)


def _bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second: of a product with a vector, which only reads, as decoding does, or of a copy."""
    matrix = torch.ones(max(1, size // (4 * _WIDTH)), _WIDTH, device=device)
    vector, target = torch.ones(_WIDTH, device=device), torch.empty_like(matrix)
    read = matrix.nbytes / _best(lambda: torch.mv(matrix, vector), device)
    return max(read, 2 * matrix.nbytes / _best(lambda: target.copy_(matrix), device))


def _best(run: Callable[[], object], device: torch.device) -> float:
    """Least seconds of a run: others may disturb, and nothing makes it faster than it can be."""
    best, end = math.inf, time.perf_counter() + _SECONDS
    for number in range(1000):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if number:  # the first run warms up
            best = min(best, now - begin)
        if number >= 2 and now > end:
            break
    return best
