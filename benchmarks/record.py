"""What every recorded benchmark carries: the machine, the versions, the commit; and how results are kept."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "numpy", "numba")


def machine() -> dict[str, object]:
    """Processor, cores, memory in GiB and, where there is one, the GPU."""
    import torch

    processor = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor,
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def provenance() -> dict[str, object]:
    """Date, commit (with ``+`` if the tree differed from it at the start), Python and package versions, machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": COMMIT,
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": machine(),
    }


def write(name: str, rows: Sequence[Mapping[str, object]], **about: object) -> None:
    """Write one run to ``results/<name>.json``: what it was about, where it ran, and its rows; and say so."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**provenance(), **about, "rows": list(rows)}, indent=1) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip()


def _commit() -> str:
    """The commit, and whether tracked files differ from it, the records of other runs aside."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", f":(exclude){RESULTS}")
    return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


COMMIT = _commit()
"""As of the start of the run: a long one may see later ones come."""
