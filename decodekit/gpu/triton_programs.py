"""Whether programs for a GPU can be made, and why not; decodekit works without them, on CUDA slower.

missing()                        # None, or "triton is not installed: pip install triton"
TRITON_INTERPRET=1 python ...    # programs run on the host, number by number: tests compare them with their twins
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

OFF = "DECODEKIT_KERNELS"
"""The environment variable that, set to `off`, sends every operation to its twin."""
_OLDEST = (7, 5)


@functools.cache
def missing() -> str | None:
    """Why there are no programs here; None if there are."""
    if os.environ.get(OFF, "").lower() == "off":
        return f"switched off by {OFF}=off"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton"
    try:
        import triton  # noqa: F401
    except Exception as error:  # an installation that does not fit the driver or Python fails in its own ways
        return f"triton cannot be imported: {error}"
    return None if is_interpreted() or not torch.cuda.is_available() else _cannot_start()


def _cannot_start() -> str | None:
    """Why Triton cannot start programs on this machine's GPU, which it does by C that it compiles; None if it can."""
    if not os.environ.get("CC") and not any(map(shutil.which, ("gcc", "clang", "cc"))):
        return "triton needs a C compiler: apt install gcc"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        return f"triton needs {header}: apt install python3-dev"
    capability = torch.cuda.get_device_capability()
    if capability < _OLDEST:
        least, own = (".".join(map(str, one)) for one in (_OLDEST, capability))
        return f"triton knows GPUs of compute capability {least} and later, this one has {own}"
    return None


def is_interpreted() -> bool:
    """Whether Triton runs programs on the host, by TRITON_INTERPRET=1."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"


def program(function: Callable[..., Any]) -> Any:
    """`triton.jit`, typed: a program, or a part of one."""
    import triton

    return triton.jit(function)


def program_for_any(*names: str) -> Callable[[Callable[..., Any]], Any]:
    """`program` that is not compiled again where arguments of these names are 1, or multiples of 16."""
    import triton

    return triton.jit(do_not_specialize=list(names))  # type: ignore[no-any-return]


def on(device: torch.device) -> AbstractContextManager[Any]:
    """In here programs are started on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Card(NamedTuple):
    """The limits of a card, which the programs of a device share."""

    num_processors: int  # of multiprocessors
    shared_bytes: int  # of shared memory that one program may have: 227 KiB on an H100, 99 KiB on an RTX 4090
    capability: tuple[int, int]  # major and minor, (9, 0) of an H100

    @property
    def has_wide_products(self) -> bool:
        """Whether tensor cores read both sides of a product from shared memory (Hopper, B200)."""
        return self.capability[0] in (9, 10)


H100: Final = Card(132, 227 << 10, (9, 0))


@functools.cache
def card_of(device: torch.device) -> Card:
    """The card of a device; an H100 where there is none."""
    if device.type != "cuda":
        return H100
    found: Any = torch.cuda.get_device_properties(device)
    return Card(found.multi_processor_count, found.shared_memory_per_block_optin, (found.major, found.minor))


_COUNTERS: dict[tuple[torch.device, int], Tensor] = {}
NUM_COUNTERS: Final = 1 << 15


def counters(device: torch.device) -> Tensor:
    """Zeros, int32 [NUM_COUNTERS], that whoever counts with them leaves behind as zeros; one for each stream.

    They are made outside of captured graphs, since memory that a capture makes is not filled before its first replay.
    """
    if device.type != "cuda":
        return torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    if key not in _COUNTERS:
        made = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)
        if torch.cuda.is_current_stream_capturing():
            return made
        _COUNTERS[key] = made
    return _COUNTERS[key]


def next_power_of_2(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def splits_of(num_programs: int, num_places: int, most: int) -> int:
    """In how many parts programs are split, so that they fill the places on the multiprocessors; at most so many.

    Say 192 programs for 264 places: two splits are 384, in two rounds of which the second is half empty; of three, 576,
    it is the third, and with four 768 programs leave only 24 of three rounds' 792 places empty.
    """
    least = min(most, max(1, num_places // num_programs))
    for splits in range(least, min(most, least + 3) + 1):
        rounds = -(-num_programs * splits // num_places)
        if num_programs * splits >= 0.85 * rounds * num_places:
            return splits
    return least
