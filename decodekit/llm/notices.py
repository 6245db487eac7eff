"""Warnings of a call, at the line of the caller."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def warn(message: str) -> None:
    """Warn at the line that called into this room."""
    here = str(Path(__file__).parent)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(here):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def warn_of_equal_prompts(prompts: Sequence[Any]) -> None:
    """Warn that equal prompts get equal texts, which is a surprise where several are drawn without a seed."""
    counts = Counter(prompt if isinstance(prompt, str) else repr(prompt) for prompt in prompts)
    most = max(counts.values(), default=1)
    if most > 1:
        warn(
            f"{most} equal prompts get {most} equal texts: without a seed, every prompt has the seed 0. "
            "Try seed=range(len(prompts)), or num_return_sequences for several texts of one prompt."
        )
