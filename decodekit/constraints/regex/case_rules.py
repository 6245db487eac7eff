"""The rules by which characters are equal when the case does not matter: of `re`, and of the two modes of ECMA-262.

Each rule is a key: characters with one key are equal. The tables are made from Python's own Unicode data when a rule is
used for the first time, and hold only characters that are equal to another one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from decodekit.constraints.language.utf8 import MAX_CODE_POINT, Ranges, normalise

Rule: TypeAlias = Literal["python", "ascii", "ecma", "ecma unicode"]

_BLOCK: Final = 256


def _python_key(char: str) -> str:
    """`re` compares lower-case letters (the first, if there are several), and those with one upper case are equal."""
    return char.lower()[0].upper()


def _ascii_key(char: str) -> str:
    """`re` with the flag ``a``."""
    return char.lower() if char.isascii() else char


def _ecma_key(char: str) -> str:
    """ECMA-262, section 22.2.2.7.3 (Canonicalize), without the flag ``u``: code units in upper case."""
    upper = char.upper()
    if len(upper) > 1 or ord(char) > 0xFFFF or (ord(char) >= 128 and ord(upper) < 128):
        return char
    return upper


_KEYS: Final[dict[Rule, Callable[[str], str]]] = {
    "python": _python_key,
    "ascii": _ascii_key,
    "ecma": _ecma_key,
    # With the flag ``u``: simple case folding. Python knows the full one. Two characters with one full folding have one
    # simple folding too (CaseFolding.txt of Unicode 15.1 and later, which gives U+1FD3, U+1FE3 and U+FB05 the simple
    # foldings that they lacked).
    "ecma unicode": str.casefold,
}


@lru_cache(maxsize=512)
def close(ranges: Ranges, rule: Rule) -> Ranges:
    """The set with all characters that are equal to one of its members by the rule."""
    points, groups = _groups(rule)
    inside = [(bisect_left(points, low), bisect_right(points, high)) for low, high in ranges]
    if 2 * sum(end - start for start, end in inside) < len(points):
        met = (point for start, end in inside for group in groups[start:end] for point in group)
    else:  # of a large set, those outside are fewer
        gaps = zip([0, *(end for _, end in inside)], [*(start for start, _ in inside), len(points)], strict=True)
        outside = ((points[at], groups[at]) for start, end in gaps for at in range(start, end))
        met = (point for point, group in outside if any(_is_in(one, ranges) for one in group))
    found = {point for point in met if not _is_in(point, ranges)}
    return normalise([*ranges, *((point, point) for point in found)]) if found else ranges


def _is_in(point: int, ranges: Ranges) -> bool:
    at = bisect_right(ranges, (point, MAX_CODE_POINT)) - 1
    return at >= 0 and ranges[at][1] >= point


@lru_cache(maxsize=4)
def _groups(rule: Rule) -> tuple[list[int], list[list[int]]]:
    """Code points that are equal to another one, ascending; and for each all that it is equal to."""
    groups: dict[str, list[int]] = {}
    for point in _with_case():
        groups.setdefault(_KEYS[rule](chr(point)), []).append(point)
    group_of = {point: group for group in groups.values() if len(group) > 1 for point in group}
    return sorted(group_of), [group_of[point] for point in sorted(group_of)]


@lru_cache(maxsize=1)
def _with_case() -> tuple[int, ...]:
    """The code points that a change of case changes, and those that come out of one."""
    found: set[int] = set()
    for start in range(0, MAX_CODE_POINT, _BLOCK):
        points = range(start, start + _BLOCK)
        block = array("I", points).tobytes().decode("utf-32", errors="surrogatepass")
        if block.lower() == block.upper() == block.casefold() == block:
            continue
        for point, char in zip(points, block, strict=True):
            others = char.lower() + char.upper() + char.casefold()
            if others != 3 * char:
                found.update((point, *map(ord, others)))
    return tuple(sorted(found))
