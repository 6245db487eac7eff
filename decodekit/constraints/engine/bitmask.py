"""Token bitmasks: bit ``t % 32`` of int32 word ``t // 32`` says whether token t is allowed.

The layout is the one of xgrammar and llguidance, so masks can be handed over to engines that know theirs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from decodekit.constraints.engine.automaton import Int32Array, UInt8Array


def num_words(vocabulary_size: int) -> int:
    """Number of int32 words of one row."""
    return (vocabulary_size + 31) // 32


def allocate_bitmask(rows: int, vocabulary_size: int) -> Int32Array:
    """A bitmask that allows nothing, int32 [rows, words]."""
    return np.zeros((rows, num_words(vocabulary_size)), np.int32)


def bitmask_from_ids(ids: Iterable[int], vocabulary_size: int) -> Int32Array:
    """A row that allows `ids`, int32 [words].

    Raises:
        ValueError: an id outside the vocabulary.
    """
    tokens = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary_size):
        raise ValueError(f"token ids must lie in 0..{vocabulary_size - 1}")
    bits = np.zeros(num_words(vocabulary_size) * 32, np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


def flags_from_bitmask(row: Int32Array) -> UInt8Array:
    """One row as a number for each id, 1 if it is allowed, uint8 [32 * words]."""
    little = np.ascontiguousarray(row).astype("<i4", copy=False)
    return np.unpackbits(little.view(np.uint8), bitorder="little")


def ids_from_bitmask(row: Int32Array) -> Int32Array:
    """The allowed ids of one row, ascending, int32."""
    return np.flatnonzero(flags_from_bitmask(row)).astype(np.int32)


def num_set(row: Int32Array) -> int:
    """The number of ids that one row allows."""
    return int(np.bitwise_count(row.view(np.uint32)).sum())


def first_id(row: Int32Array) -> int | None:
    """The least id that one row allows; None if there is none."""
    used = np.flatnonzero(row)
    if not len(used):
        return None
    bits = int(row[used[0]]) & 0xFFFFFFFF
    return 32 * int(used[0]) + (bits & -bits).bit_length() - 1


def forbid(row: Int32Array, token: int) -> None:
    """Clear the bit of a token in a row, int32 [words]."""
    row.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
