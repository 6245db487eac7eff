"""What every recorded benchmark carries: the machine, the versions, the commit; and how results are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from decodekit.evaluation.machine import provenance

RESULTS = Path(__file__).parent / "results"

STARTED = provenance(besides=RESULTS)
"""As of the start of the run: a long one may see later commits come. Records of other runs are no change."""


def write(name: str, rows: Sequence[Mapping[str, object]], **about: object) -> None:
    """Write one run to ``results/<name>.json``: what it was about, where it ran, and its rows; and say so."""
    write_into(None, name, rows, **about)


def write_into(folder: Path | None, name: str, rows: Sequence[Mapping[str, object]], **about: object) -> None:
    """`write` into another folder than ``results``: a machine that is lent may give back only one of its own."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**STARTED, **about, "rows": list(rows)}, indent=1) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
