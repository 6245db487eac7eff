"""Sets of code points: their arithmetic, and exactly their UTF-8 encodings."""

from __future__ import annotations

import itertools
import random

import pytest

from decodekit.constraints.language.ir import EMPTY, matches
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.utf8 import EVERYTHING, MAX_CODE_POINT, charset, intersect, invert, normalise

EDGES = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
SETS = [
    [(0, MAX_CODE_POINT)],
    [(0x41, 0x5A), (0x3B1, 0x3C9), (0xD700, 0xE001), (0xFFFF, 0x10001)],
    [(0x7F, 0x80), (0x7FF, 0x800), (0x10FFFF, 0x10FFFF)],
    [(0x1F600, 0x1F64F), (0x4E00, 0x9FFF), (0xE9, 0xE9)],
    [(5, 3), (0x61, 0x63), (0x62, 0x70)],
]


@pytest.mark.parametrize("ranges", SETS, ids=str)
def test_charset_is_the_encodings_of_its_members(ranges: list[tuple[int, int]]) -> None:
    node = charset(ranges)
    rng = random.Random(0)
    points = {edge + d for edge in EDGES for d in range(-2, 3)} | {rng.randrange(MAX_CODE_POINT) for _ in range(3000)}
    points |= {bound + d for bounds in ranges for bound in bounds for d in range(-3, 4)}
    for point in points & set(range(MAX_CODE_POINT + 1)):
        data = chr(point).encode("utf-8", errors="surrogatepass")
        is_member = any(low <= point <= high for low, high in ranges) and not 0xD800 <= point <= 0xDFFF
        assert matches(node, data) == is_member, hex(point)


def test_malformed_utf8_is_never_a_character() -> None:
    node = charset(EVERYTHING)
    critical = [
        0,
        0x41,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xDF,
        0xE0,
        0xED,
        0xEF,
        0xF0,
        0xF4,
        0xF5,
        0xFF,
    ]
    for length in range(5):
        for data in map(bytes, itertools.product(critical, repeat=length)):
            try:
                is_character = len(data.decode()) == 1
            except UnicodeDecodeError:
                is_character = False
            assert matches(node, data) == is_character, data


def test_the_automaton_is_minimal() -> None:
    # Start, three counts of continuation bytes, four restricted second bytes, the end: RFC 3629, section 4.
    seen: set[Node] = {charset(EVERYTHING)}
    agenda = list(seen)
    while agenda:
        for _, target in agenda.pop().transitions():
            if target not in seen:
                seen.add(target)
                agenda.append(target)
    assert len(seen) == 9


def test_set_arithmetic_equals_python_sets() -> None:
    rng = random.Random(1)

    def members(ranges: tuple[tuple[int, int], ...]) -> set[int]:
        return {point for low, high in ranges for point in range(low, high + 1)}

    for _ in range(200):
        first, second = (
            normalise((a := rng.randrange(60), a + rng.randrange(-1, 8)) for _ in range(rng.randrange(6))) for _ in "12"
        )
        assert members(intersect(first, second)) == members(first) & members(second)
        assert members(intersect(invert(first), ((0, 99),))) == set(range(100)) - members(first)
        for ranges in (first, invert(first), intersect(first, second)):
            assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ranges))
    assert charset([]) is EMPTY is charset([(0xD800, 0xDFFF)])
