"""The names of files: those that a job writes into its folder, and the one name of a file among its documents.

    a.txt   ./a.txt   letters/../a.txt   /home/ann/a.txt

The first spelling that a job meets is the name, and stays it: a job folder remembers its inputs in `job.json`, and a
later run that spells one of them otherwise, or names a folder or a file of it, finds the names of that time. So ids of
documents, and the results and seeds that hang on them, outlive a change of spelling.

A folder is known by where it is, links resolved. A file is known by its folder and its own name: links to one file from
several names are several documents.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

JOB, RESULTS, FAILED, METRICS, REPORT = "job.json", "results.jsonl", "failed.jsonl", "metrics.jsonl", "report.html"
DAMAGED: Final = "damaged.jsonl"
TABLES: Final = {"csv": "results.csv", "excel": "results.excel.csv", "parquet": "results.parquet"}
SPOOLED: Final = re.compile(r"input-[0-9a-f]{8}\.(?:jsonl|txt)")
"""What a job was given that is no file; there are no others that `job.json` may name as saved in its folder."""

_OWN: Final = frozenset({JOB, RESULTS, FAILED, METRICS, REPORT, DAMAGED, *TABLES.values()})


def is_own(name: str) -> bool:
    """Whether a job writes a file of this name into its folder."""
    return name in _OWN or SPOOLED.fullmatch(name) is not None


class Names:
    """The names of files, from the inputs of a job in the order in which it met them: where each is, and the name that
    it was given."""

    def __init__(self, inputs: Iterable[tuple[Path, str]]) -> None:
        self._roots: dict[str, tuple[int, str]] = {}
        self._folders: dict[Path, str] = {}
        for number, (path, label) in enumerate(inputs):
            is_whole = path.name in ("", ".", "..") or os.path.isdir(path)  # else its folder's links are resolved alone
            self._roots.setdefault(os.path.realpath(path) if is_whole else self.place(path), (number, label))

    def place(self, path: Path) -> str:
        """The place of a file, equal for all spellings of its path; many of one folder are asked about."""
        folder = self._folders.get(path.parent)
        if folder is None:
            folder = self._folders[path.parent] = os.path.realpath(path.parent)
        return os.path.join(folder, path.name)

    def name(self, place: str, default: str) -> str:
        """The name of what is at a place; `default` if no input brought it along."""
        above = [place]
        while (parent := os.path.dirname(above[-1])) != above[-1]:
            above.append(parent)
        found = [(*self._roots[one], one) for one in above if one in self._roots]
        if not found:
            return default
        _, label, root = min(found)  # the one that the job met first
        return label if root == place else f"{label}/{os.path.relpath(place, root).replace(os.sep, '/')}"
