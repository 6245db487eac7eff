"""The settings by which texts are drawn, as numbers for the device: a column for each text.

temperature 0.8, top-p 0.95, seed 7, sample 0, token 12         draft of two tokens, masks 4 - - at three positions
[7 0 | 0 0 | 0.95 | inf | 12 | 0.8 | 0 | ASKED]                 [2 | 4 -1 -1]
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

LAYOUT: Final = "=QQddifii"
"""The numbers that a text is drawn by, packed by `struct`: seed, number of the sample, top-p, distance of min-p, index
of the token, temperature, top-k, flags."""
NUM_VALUES: Final = struct.calcsize(LAYOUT) // 4
SEQUENCE, TOP_P, DISTANCE, INDEX, TEMPERATURE, TOP_K, FLAGS = 2, 4, 6, 8, 9, 10, 11
"""Where they are, in numbers of 32 bits."""
DRAFT: Final = NUM_VALUES
"""Where the length of a text's draft is."""
MASKS: Final = NUM_VALUES + 1
"""Where the numbers of its masks begin, one for each position; `NO_MASK` for none."""
NO_MASK: Final = -1
GREEDY, ASKED = 1, 2
"""Flags: the likeliest token is taken; a constraint may be asked about the token, so that its certificate is wanted."""


def distance_of(min_p: float) -> float:
    """-ln of a min-p, on the host, where its logarithm is that of `MinP`; inf for 0."""
    return -math.log(min_p) if min_p else math.inf


def packed(
    settings: Iterable[tuple[float, int, float, float, bool]],
    seeds: Iterable[int],
    sequences: Iterable[int],
    indices: Iterable[int],
    num_positions: int = 1,
    is_asked: bool = True,
) -> NDArray[np.int32]:
    """The numbers of texts, int32 [MASKS + num_positions, B], without drafts and masks.

    Settings are temperature, top-k or 0, top-p, min-p, and whether it is greedy; the index of the noise is that of the
    text's first position, and certificates are wanted where it is asked.
    """
    rows = [
        struct.pack(
            LAYOUT,
            seed % (1 << 64),
            sequence % (1 << 64),
            top_p,
            distance_of(min_p),
            index,
            temperature,
            top_k,
            GREEDY * is_greedy + ASKED * is_asked,
        )
        for (temperature, top_k, top_p, min_p, is_greedy), seed, sequence, index in zip(
            settings, seeds, sequences, indices, strict=True
        )
    ]
    values = np.full((MASKS + num_positions, len(rows)), NO_MASK, dtype=np.int32)
    values[:NUM_VALUES] = np.frombuffer(b"".join(rows), dtype=np.int32).reshape(len(rows), NUM_VALUES).T
    values[DRAFT] = 0
    return values
