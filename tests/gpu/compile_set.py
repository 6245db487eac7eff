"""Every kind of launch of attention, compiled for a card; what is wrong with the result.

    PYTHONPATH=/tmp/triton-3.6.0:. python -m tests.gpu.compile_set 90 [words of a case ...]

A line of JSON for each case: the case, registers, shared memory, buffers of keys in both walks, faults; or why it has
no kernel on such a card.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final
from unittest import mock

import torch
import triton

from decodekit.gpu import attention_launch, paged_attention
from decodekit.gpu.kernels import attention_kernel
from tests.gpu.offline import CARDS, Compiled, compiled

Case = dict[str, Any]

MOST_SPILLED: Final = {80: 192, 90: 0}
"""Bytes; on other cards than Hopper ptxas gives some up for a program more on a multiprocessor: 192 on an A100, where
it halves the registers of latent attention in float32."""

_LATENT: Final[Case] = {"key_dim": 576, "value_dim": 512, "heads": 1}
_OF_64, _OF_256, _OF_512 = ({"key_dim": dim, "value_dim": dim} for dim in (64, 256, 512))
_ALL: Final[Case] = {"window": 128, "softcap": 50.0, "has_sinks": True}
_F32: Final[Case] = {"dtype": torch.float32}

CASES: Final[list[Case]] = [
    {}, {"group": 1}, {"group": 8}, {"width": 4}, {"width": 16}, {"width": 16, "group": 8}, {"width": 512},
    {"group": 7, "width": 4}, {"dtype": torch.float16},
    {"window": 128}, {"softcap": 50.0}, {"has_sinks": True}, _ALL, _ALL | {"width": 512},
    _OF_64, _OF_64 | {"group": 1}, _OF_64 | {"width": 512}, {"key_dim": 80, "value_dim": 80},
    {"key_dim": 192, "group": 1}, {"key_dim": 192, "group": 1, "width": 512},
    {"key_dim": 192, "group": 1, "heads": 16, "width": 4},
    _OF_256, _OF_256 | {"width": 512}, _OF_256 | _ALL | {"group": 2}, _OF_256 | _ALL | {"group": 2, "width": 512},
    {"key_dim": 320, "value_dim": 320}, _OF_512 | _ALL | {"width": 512},
    _LATENT | {"group": 128}, _LATENT | {"group": 16, "width": 512},
    {"stored": 1}, {"stored": 1, "width": 4}, {"stored": 1, "width": 512},
    _OF_256 | {"stored": 1}, _OF_256 | {"stored": 1, "width": 512},
    _F32, _F32 | {"width": 512}, _F32 | _OF_256 | {"width": 512}, _F32 | _OF_512 | {"width": 512},
    _F32 | _LATENT | {"group": 16},
    # Of the small twins that a model's own check runs.
    _F32 | {"key_dim": 16, "value_dim": 16, "heads": 2, "group": 2},
    _F32 | {"key_dim": 16, "value_dim": 16, "heads": 2, "group": 2, "width": 8},
]  # fmt: skip


def launch(
    width: int = 1, group: int = 4, heads: int = 8, key_dim: int = 128, value_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16, stored: int = 0, window: int = 0, softcap: float = 0.0,
    has_sinks: bool = False,
) -> attention_launch.Launch:  # fmt: skip
    """Four rows of 2,048 tokens."""

    def made(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    query = made(4, width, heads * group, key_dim)
    key, value = made(4, width, heads, key_dim), made(4, width, heads, value_dim)
    numbers = made(4, kind=torch.int32)
    scales = (1 << 17, (1 << 17) + 4096) if stored else (-1, -1)
    return attention_launch.launch_of(
        query, key, value, made(4, 64, kind=torch.int32), numbers, numbers, made(1024, kind=torch.int64),
        (32, 64, 1 << 20), (0, 1 << 16, *scales), stored, 0.09, window, softcap,
        made(heads * group) if has_sinks else None, made(4, width, heads * group, value_dim),
    )  # fmt: skip


def compiled_case(case: Case, capability: int) -> tuple[attention_launch.Launch, Compiled]:
    """A case, launched and compiled for a card of this compute capability."""
    with mock.patch.object(attention_launch, "card_of", return_value=CARDS[capability]):
        made = launch(**case)
    options = {"capability": capability, "enable_fp_fusion": True}
    return made, compiled(attention_kernel.attend, made.arguments, made.constants, made.num_warps, **options)


def why_not(case: Case, capability: int) -> str | None:
    """Why a case has no kernel on such a card."""
    dtype, key_dim, value_dim = (
        case.get(*one) for one in (("dtype", torch.bfloat16), ("key_dim", 128), ("value_dim", 128))
    )
    with mock.patch.object(attention_launch, "card_of", return_value=CARDS[capability]):
        return paged_attention.why_no_kernel(dtype, key_dim, value_dim, case.get("stored", 0))


def buffers_of(found: Compiled) -> list[int]:
    """Blocks of keys that each of the two loops, over pages and over new tokens, has on their way."""
    return [
        int(number) for number in re.findall(r"%keys\w* = ttg.local_alloc : \(\) -> !ttg.memdesc<(\d+)x", found.ttgir)
    ]


def faults_of(case: Case, capability: int, made: attention_launch.Launch, found: Compiled) -> list[str]:
    """What is wrong with it: spills, too much shared memory, numbers that are loaded one by one or waited for."""
    faults = []
    if found.spilled > MOST_SPILLED.get(capability, 128):
        faults.append(f"{found.spilled} bytes spill")
    if found.shared > CARDS[capability].shared_bytes:
        faults.append(f"{found.shared} bytes of shared memory of {CARDS[capability].shared_bytes}")
    stages = made.constants["STAGES"]
    if not buffers_of(found) or buffers_of(found)[0] < stages:
        faults.append(f"{buffers_of(found)} buffers for {stages} stages")
    # Chunks of 16 bytes, on their way while others are multiplied.
    if case.get("dtype") is not torch.float32 and "cp.async.cg" not in found.ptx:
        faults.append("no copies of 16 bytes")
    faults += [f"{name} in the PTX" for name in ("ld.global.b16", "ld.global.b8") if name in found.ptx]
    return faults


def main(argv: list[str]) -> None:
    """See the module."""
    capability, words = int(argv[0]), argv[1:]
    for case in CASES:
        if not all(word in str(case) for word in words):
            continue
        line: dict[str, Any] = {"triton": triton.__version__, "capability": capability, "case": str(case)}
        if (reason := why_not(case, capability)) is not None:
            print(json.dumps(line | {"told": reason, "faults": []}), flush=True)
            continue
        try:
            made, found = compiled_case(case, capability)
        except Exception as error:
            line |= {"faults": [f"{type(error).__name__}: {error}"]}
        else:
            tiles = {name: made.constants[name] for name in ("M", "N", "STAGES")} | {"num_warps": made.num_warps}
            line |= {"tiles": tiles, "buffers": buffers_of(found), "registers": found.registers, "shared": found.shared}
            line |= {"faults": faults_of(case, capability, made, found)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
