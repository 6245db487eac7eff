"""Real schemas: MaskBench's development split, where it is at hand (`DECODEKIT_CORPORA`, by default `../shared`)."""

from __future__ import annotations

import gzip
import json
import os
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("DECODEKIT_CORPORA", "../shared")) / "maskbench" / "data"
DATA = FOLDER / "dev.jsonl.gz"
needs_corpus = pytest.mark.skipif(not DATA.exists(), reason=f"no corpus at {DATA}; set DECODEKIT_CORPORA")


@lru_cache(maxsize=1)
def _lines() -> tuple[str, ...]:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        return tuple(lines)


def sample(number: int, seed: int, max_bytes: int = 50_000) -> list[dict[str, Any]]:
    """That many rows ``{"id", "schema", "tests"}``, drawn at random from those of at most `max_bytes`."""
    lines = [line for line in _lines() if len(line) <= max_bytes]
    return [json.loads(line) for line in random.Random(seed).sample(lines, min(number, len(lines)))]
