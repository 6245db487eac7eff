"""The time of a decoding step on a GPU, from counts: kernels, bytes, operations, rows.

One row of 1,024 tokens, a Llama of 8 billion weights in bfloat16, an H200, layers as transformers has them:

    1,291 kernels x 2.2 us                                2.84 ms   each starts when the one before it has ended
    15.01 GB of weights, at 86.5 % of 4.3 TB/s            4.04 ms   products of one row stay below the speed of a copy
    0.13 GB of keys and values, at 75 %                   0.04 ms
                                                          6.92 ms   the bytes alone take 3.5 ms: half of it is reached

The host is not in the sum: it works on the last step while the device runs this one, and counts only where it takes
longer, or where it sees every token first (recurrent state). Each constant names its source; one step was measured on
an H200, by compiled layers: 4.92 ms for 4.94.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

COPY_SHARE: Final = 0.895
"""A copy reads and writes at this share of the memory's nominal bandwidth: 4.3 of 4.8 TB/s on an H200, 3.0 of 3.35 on
an H100."""
PRODUCT_SHARE: Final = 0.865
"""Of a copy's bandwidth, by matrix products of few rows. Source: 85 to 88 % for cuBLAS on Hopper."""
ATTENTION_SHARE: Final = 0.85
"""Of a copy's bandwidth, by reading keys and values; with pages that are not fetched ahead, 75 %."""
PRODUCT_FLOPS_SHARE: Final = 0.65
"""Of the nominal arithmetic, by products of some hundred rows. Source: 600 to 700 TFLOP/s of cuBLAS on an H100."""
EAGER_KERNEL_SECONDS: Final = 7e-6
"""Of a kernel that is started from Python: transformers needs 8 to 12 ms for the 1,200 kernels of an 8B model."""
HOST_SECONDS: Final = (150e-6, 10e-6)
"""Of a step on the host: once, and for each row (text, end, stop strings, the question to a constraint)."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """The speed of a kind of GPU, which bounds a step."""

    bandwidth: float  # bytes a second, nominal
    flops: float  # dense operations a second in bfloat16, nominal; one multiplication with its addition is two
    memory: int  # bytes
    gap_s: float  # seconds of a small kernel in a captured graph, to the start of the next one
    source: str  # of bandwidth, operations and memory

    @property
    def copy_bandwidth(self) -> float:
        """Bytes a second, read and written, of a large copy."""
        return COPY_SHARE * self.bandwidth


# Gaps: 2.0 to 2.6 us are reported for graphs of elementwise kernels on Hopper. The others by their clocks.
DEVICES: Final = MappingProxyType(
    {
        "b200": DeviceSpeed(8.0e12, 2250e12, 180_000_000_000, 2.2e-6, "NVIDIA DGX B200 datasheet"),
        "h200": DeviceSpeed(4.8e12, 989e12, 141_000_000_000, 2.2e-6, "NVIDIA H200 datasheet, SXM"),
        "h100": DeviceSpeed(3.35e12, 989e12, 80_000_000_000, 2.2e-6, "NVIDIA H100 datasheet, SXM"),
        "a100": DeviceSpeed(2.039e12, 312e12, 80_000_000_000, 2.8e-6, "NVIDIA A100 datasheet, SXM 80 GB"),
        "l40s": DeviceSpeed(0.864e12, 362e12, 48_000_000_000, 2.2e-6, "NVIDIA L40S datasheet"),
        "l4": DeviceSpeed(0.300e12, 121e12, 24_000_000_000, 2.6e-6, "NVIDIA L4 datasheet"),
        "5090": DeviceSpeed(1.792e12, 209.5e12, 32_000_000_000, 2.0e-6, "NVIDIA RTX Blackwell architecture, appendix"),
        "4090": DeviceSpeed(1.008e12, 165.2e12, 24_000_000_000, 2.0e-6, "NVIDIA Ada architecture, appendix A"),
        "3090": DeviceSpeed(0.936e12, 71e12, 24_000_000_000, 2.8e-6, "NVIDIA Ampere GA102 architecture, appendix"),
    }
)
"""Kinds of GPU by the name that `estimate` takes."""


def device_speed(name: str) -> DeviceSpeed | None:
    """The constants of a device that is called so by a user or by CUDA; None if there are none.

    "NVIDIA H200" and "h200" are one; cards of the PCIe kinds of data centres have another memory, and are not known.
    """
    words = re.split(r"[^0-9a-z]+", name.lower())
    return None if {"pcie", "nvl"} & {*words} else next((DEVICES[word] for word in words if word in DEVICES), None)


class StepWork(NamedTuple):
    """The work of one step."""

    kernels: float  # how many start one after the other
    weight_bytes: float  # what products read
    cache_bytes: float  # what attention reads
    operations: float  # of the products
    rows: int  # texts that go on by a token or more

    def least_seconds(self, speed: DeviceSpeed) -> float:
        """Of reading the bytes once, or of the operations: no program is faster."""
        read = (self.weight_bytes + self.cache_bytes) / speed.copy_bandwidth
        return max(read, self.operations / speed.flops)

    def seconds(
        self,
        speed: DeviceSpeed,
        is_captured: bool,
        product_share: float = PRODUCT_SHARE,
        attention_share: float = ATTENTION_SHARE,
        is_ahead: bool = True,
    ) -> float:
        """The expected seconds of a step; a captured one starts without Python, one not ahead waits for the host."""
        read = self.weight_bytes / (product_share * speed.copy_bandwidth)
        multiplied = self.operations / (PRODUCT_FLOPS_SHARE * speed.flops)
        attended = self.cache_bytes / (attention_share * speed.copy_bandwidth)
        device = self.kernels * speed.gap_s + max(read, multiplied) + attended
        once, each = HOST_SECONDS
        started = 0.0 if is_captured else self.kernels * EAGER_KERNEL_SECONDS
        host = once + each * self.rows
        return max(device, started, host) if is_ahead else max(device, started) + host
