"""The least and the most tokens of a grammar, known before generation."""

from __future__ import annotations

import pytest

from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.combinators import Concat, Many
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.regex.regex import Regex
from decodekit.vocabulary import Vocabulary

BYTES = Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [256])


@pytest.mark.parametrize(
    ("constraint", "least", "most"),
    [
        (Grammar('start: "a" "b"? | "cde"'), 1, 3),
        (Grammar('start: "a" (item item)~1..3\nitem: "xy" | "z"'), 3, 13),
        (Grammar('start: "(" start ")" | "x"'), 1, None),
        (Grammar('start: start "+" start | "xx"'), 2, None),
        (Grammar('start: a b\na: "x"? \nb: a a "y"~0..2'), 0, 5),
        (Grammar("uuid"), 36, 36),
        (Concat("total ", Regex("[0-9]{1,4}")), 7, 10),
        (Many(Choices(["a", "bcd"]), 1, 3, separator=", "), 1, 13),
    ],
)
def test_least_and_most(constraint: Constraint, least: int, most: int | None) -> None:
    grammar = compile(constraint, BYTES)
    assert (grammar.least_tokens(), grammar.most_tokens()) == (least, most)
