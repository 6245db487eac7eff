"""Scores: rows of logits and the temperature that divides them, divided where one looks.

To find a leader and to certify it, a few numbers of a row of 131,072 are looked at. With z = 2.4, 2.0, -9.1, ... and
T = 0.8 only the block of 64 tokens with 2.4 is opened, and only its numbers are divided. Dividing all of them takes 20
us a row, or 80 where many rows make the system hand out new memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor

from decodekit.sampling.fast.candidates import Floats
from decodekit.sampling.fast.large_vocabulary import block_peaks, is_wide
from decodekit.sampling.processors.functions import apply_temperature


class Blocks(NamedTuple):
    """Wide rows on the host.

    Args:
        rows: z, float32 [N, V].
        peaks: the largest z of each block of 64 tokens, float32 [N, blocks].
        largest: the largest z / T of each row, float32 [N].
    """

    rows: Floats
    peaks: Floats
    largest: Floats


@dataclass(frozen=True, eq=False)
class Scores:
    """Rows z / T.

    Args:
        logits: z, float32 [N, V].
        temperature: T, above 0.
    """

    logits: Tensor
    temperature: float = 1.0

    @cached_property
    def rows(self) -> Tensor:
        """All numbers, float32 [N, V]."""
        return apply_temperature(self.logits, self.temperature)

    @cached_property
    def blocks(self) -> Blocks | None:
        """`wide.block_peaks`; None, too, where rows are not wide, there is none, or a largest z / T overflows."""
        found = block_peaks(self.logits) if is_wide(self.logits) and len(self.logits) else None
        if found is None:
            return None
        with np.errstate(over="ignore"):
            largest = found[1].max(axis=1) / np.float32(self.temperature)
        return Blocks(*found, largest) if np.isfinite(largest).all() else None

    def divided_by(self, temperature: float) -> Scores:
        """The scores at another temperature. One division follows the other: T1 T2 would be rounded otherwise."""
        return Scores(self.rows, temperature)
