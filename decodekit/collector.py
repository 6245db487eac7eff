"""The garbage collector of a process that is decodekit's own: no whole collection while texts are decoded.

A whole collection looks at every object that may be part of a circle, and no thread runs meanwhile. Torch and
transformers alone bring half a million of them: 400 to 800 ms, in the middle of somebody's stream. So the processes of
`decodekit serve`, of the other commands and of Ray's workers

- set aside what is there when the model is loaded (`gc.freeze`), which never becomes garbage;
- leave young objects to the collector as it is, some milliseconds at most;
- collect the old ones, which are then what caches hold, when nobody decodes, or when the process has grown;
- give memory back that is free inside of the C library, which keeps what lies below a block that is still in use;
- have one arena of the C library for all threads. With one each, what threads take in turn (bodies, prompts, masks)
  leaves a process that grows by a tenth with every round of the same requests.

In a process of a user's nothing of the collector is changed; there it helps that what is kept of constraints holds no
circles. A server of one's own may call `take_over` at its start, and `settle` when its models are loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
from pathlib import Path
from typing import Final

LOOK_S: Final = 1.0
"""So often it is looked at whether the old objects should be collected; nobody decodes who took no step since."""
FEW: Final = 8
"""Collections of young objects after which the old ones are collected when nobody decodes."""
MANY: Final = 4096
"""The same while texts are decoded. A young collection makes at most some thousand objects old, and most go again."""
GROWTH: Final = 1.5
"""The process has grown when its memory was so many times as large as at the last collection."""
KEPT: Final = 1.1
"""Free memory is given back when the process takes so many times what it took after the last time ..."""
PAUSE: Final = 30
"""... and so many looks after it. It takes some milliseconds, in which other threads go on."""
NEVER: Final = 1 << 30
_M_ARENA_MAX: Final = -8
"""The parameter of glibc's `mallopt`."""

_is_ours = False
_watching: threading.Thread | None = None


def take_over() -> None:
    """This process is decodekit's own: `settle` may govern the collector."""
    global _is_ours
    _is_ours = True
    if sys.platform == "linux":
        set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none, and no arenas
        if set_parameter is not None:
            set_parameter(_M_ARENA_MAX, 1)


def settle() -> None:
    """Let the objects that are there now stay: a model has been loaded. For a process that was taken over."""
    global _watching
    if not _is_ours:
        return
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    gc.collect()
    gc.freeze()
    if _watching is None:
        atexit.register(gc.unfreeze)  # or what extensions hold is never let go of, which some of them tell on stderr
        _watching = threading.Thread(target=_watch, name="decodekit-collector", daemon=True)
        _watching.start()


def is_due(num_young: int, growth: float, *, is_idle: bool) -> bool:
    """Whether the old objects should be collected now, after so many collections of young ones since the last time.

    `growth` is the most memory of the process over that of the last time; idle is who decodes nothing.
    """
    return num_young >= (FEW if is_idle or growth >= GROWTH else MANY)


def _watch() -> None:
    from decodekit.constraints import priority as turns  # a command may end before it needs any of them

    pause, memory, num_steps = threading.Event(), _most_memory(), -1
    kept, num_looks = memory_bytes(), 0
    while True:
        pause.wait(LOOK_S)
        num_looks += 1
        if num_looks >= PAUSE and memory_bytes() > KEPT * kept:
            return_memory()
            kept, num_looks = memory_bytes(), 0
        before, num_steps = num_steps, turns.num_steps()
        if is_due(gc.get_count()[2], _most_memory() / memory, is_idle=before == num_steps):
            gc.collect()
            memory = _most_memory()


def _most_memory() -> int:
    """The most memory that the process has had, in some unit; 1 where that is not told."""
    try:
        import resource
    except ImportError:  # Windows
        return 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_bytes() -> int:
    """The memory of the process that is resident; 0 where that is not told."""
    try:
        resident = Path("/proc/self/statm").read_text().split()[1]
    except OSError:  # not Linux
        return 0
    return int(resident) * os.sysconf("SC_PAGE_SIZE")


def return_memory() -> None:
    """Let the system have the memory that is free; glibc alone keeps much of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
