"""The environment of a comparison: the machine, the versions, the commit."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

from decodekit.plugins import version_of

PACKAGES = ("torch", "transformers", "numpy", "numba")


def provenance(besides: Path | None = None) -> dict[str, object]:
    """Date, version and commit of decodekit, Python, versions of packages, and the machine.

    The commit is that of the repository that decodekit runs from, with ``+`` if its files differ from it; None for an
    installed package.

    Args:
        besides: a folder of the repository whose files may differ.
    """
    from decodekit import __version__

    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "decodekit": __version__,
        "commit": _commit(besides),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "machine": machine(),
    }


def machine() -> dict[str, object]:
    """Processor, cores that may be used, threads of torch, memory in GiB and, where there is one, the GPU."""
    import torch

    return {
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


def _commit(besides: Path | None) -> str | None:
    import decodekit

    folder = Path(decodekit.__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    excluded = [] if besides is None else ["--", ":/", f":(exclude){besides}"]
    changed = git(folder, "status", "--porcelain", "--untracked-files=no", *excluded)
    return commit and commit + ("+" if changed else "")


def git(folder: Path, *arguments: str) -> str | None:
    """The output of git, run in a folder; None where there is no git, or it fails. Its own complaints are not shown."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
