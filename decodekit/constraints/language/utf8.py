"""Sets of code points, and their UTF-8 encodings as languages of bytes.

A set is a tuple of inclusive ranges, ascending, disjoint and not touching. Surrogates U+D800..DFFF have no UTF-8 form:
they may stand in a set and are left out of the encoding, as is whatever lies beyond U+10FFFF. Overlong forms never
occur because each code point is encoded by its own length.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node

Ranges: TypeAlias = tuple[tuple[int, int], ...]

MAX_CODE_POINT: Final = 0x10FFFF
EVERYTHING: Final[Ranges] = ((0, MAX_CODE_POINT),)
SCALARS: Final[Ranges] = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))
"""All code points that UTF-8 can encode."""

# Number of continuation bytes; first and last code point; the marker bits of the lead byte.
_LENGTHS: Final = ((0, 0, 0x7F, 0x00), (1, 0x80, 0x7FF, 0xC0), (2, 0x800, 0xFFFF, 0xE0), (3, 0x10000, 0x10FFFF, 0xF0))
_CONTINUATION: Final = 0x80


def normalise(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ascending, disjoint, not touching; ranges whose end lies before their start are empty."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        elif low <= high:
            merged.append((low, high))
    return tuple(merged)


def invert(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other code points."""
    gaps, start = [], 0
    for low, high in normalise(ranges):
        gaps.append((start, low - 1))
        start = high + 1
    return normalise([*gaps, (start, MAX_CODE_POINT)])


def intersect(first: Ranges, second: Ranges) -> Ranges:
    """The code points of both sets (each normalised)."""
    common, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low <= high:
            common.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def charset(ranges: Iterable[tuple[int, int]]) -> Node:
    """One code point out of `ranges` (inclusive, any order), in UTF-8."""
    return _charset(normalise(ranges))


@lru_cache(maxsize=1024)
def _charset(ranges: Ranges) -> Node:
    points = intersect(ranges, SCALARS)
    return ir.choice(
        *(
            _digits(intersect(points, ((first, last),)), num_continuations, lead)
            for num_continuations, first, last, lead in _LENGTHS
        )
    )


def _digits(ranges: Ranges, num_continuations: int, lead: int) -> Node:
    """Code points in `ranges`: one byte ``lead + top bits``, then six bits for each continuation byte."""
    if num_continuations == 0:
        mask = 0
        for low, high in ranges:
            mask |= ((1 << (high - low + 1)) - 1) << (lead + low)
        return ir.byte_set(mask)
    size = 64**num_continuations
    below: dict[int, list[tuple[int, int]]] = {}  # top digit -> numbers in its block
    full = 0
    for low, high in ranges:
        for top in (low // size, high // size):
            part = (max(low - top * size, 0), min(high - top * size, size - 1))
            if part not in below.setdefault(top, []):
                below[top].append(part)
        for top in range(low // size + 1, high // size):
            full |= 1 << (lead + top)
    by_rest: dict[Node, int] = {}
    blocks = [([(0, size - 1)], full)] if full else []
    for parts, tops in blocks + [(parts, 1 << (lead + top)) for top, parts in below.items()]:
        rest = _digits(normalise(parts), num_continuations - 1, _CONTINUATION)
        by_rest[rest] = by_rest.get(rest, 0) | tops
    return ir.choice(*(ir.concat(ir.byte_set(mask), rest) for rest, mask in by_rest.items()))
