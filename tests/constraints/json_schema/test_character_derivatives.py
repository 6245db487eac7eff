"""Derivatives of body languages by characters, against their derivatives by bytes."""

import random
from itertools import pairwise

import pytest

from decodekit.constraints.json_schema.strings import character_derivatives, patterns, text
from decodekit.constraints.json_schema.strings import string_formats as formats
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node

PATTERNS = [
    "^a*$", "a", "[^a]", "^[ab]{2,4}$", "^(a|bc)*$", "(?=.*b)a", "^(?!ab)", r"\\", '"', r"^[\u0000-\u001f]$", "é|ü",
    r"[\u0800-\uffff]", "^.{3}$", r"\bab\b", "^a(b|c|de)f?$", r"\d+-", "😀", "^(a|b|cd)$", r"^[^\x00-\x7f]+$",
    "^(a|b)*a(a|b){9}$", "^(a?){5}a{5}$", "^(x+x+)+y$", "^(a|[^b]c){2,}é?(b|$)", "^((ab?){3}){3}$",
]  # fmt: skip
SAMPLE = 'abcdefxy \t\n\u001f"\\/\u007f0é\u07ffü\u0800\ud7ff\ue000\uffff😀\U0010ffff'


def by_bytes(node: Node, character: str) -> Node:
    """What follows one character, in the spelling that a row is read in."""
    for byte in text.to_body(character):
        node = node.derivative(byte)
    return node


def after(node: Node, character: str) -> Node:
    """The same by the row."""
    point = ord(character)
    return next((target for low, high, target in character_derivatives.row(node) if low <= point <= high), ir.EMPTY)


def random_node(rng: random.Random) -> Node:
    nodes = [patterns.searched(pattern, at="#").texts for pattern in rng.sample(PATTERNS, rng.randint(1, 3))]
    kind = rng.random()
    if kind < 0.4:
        return ir.choice(*nodes)
    if kind < 0.6:
        return ir.concat(*(ir.repeat(node, 0, rng.choice([1, 2, None])) for node in nodes))
    if kind < 0.8:
        return text.meet(*nodes)
    return text.without(text.BODY, ir.choice(*nodes, text.words(["a", "ab", 'é"', "😀x"])))


def test_rows_are_derivatives() -> None:
    rng = random.Random(3)
    num_alive = 0
    for _ in range(120):
        node = random_node(rng)
        if not character_derivatives.is_spelled(node):
            continue  # spellings of several characters were put together: left to bytes
        for _ in range(5):
            row = character_derivatives.row(node)
            assert all(low <= high for low, high, _ in row)
            assert all(one[1] < other[0] for one, other in pairwise(row))
            for character in SAMPLE:
                if not "\ud800" <= character <= "\udfff":
                    slow, fast = by_bytes(node, character), after(node, character)
                    assert slow is fast or (slow.is_empty and fast.is_empty) or same(slow, fast, rng), (node, character)
            alive = [target for _, _, target in row if not target.is_empty]
            num_alive += bool(alive)
            if not alive:
                break
            node = character_derivatives.trust(rng.choice(alive))
    assert num_alive > 200


def same(one: Node, other: Node, rng: random.Random) -> bool:
    """Whether two nodes that are built differently agree on many texts."""
    words = ["".join(rng.choices("aaaabbbbc" + SAMPLE, k=rng.randint(0, 6))) for _ in range(60)]
    return all(text.matches(one, word) == text.matches(other, word) for word in words)


def test_negative_control_other_languages_are_told_apart() -> None:
    rng = random.Random(0)
    one, other = (patterns.searched(pattern, at="#").texts for pattern in ("^a*b?$", "^a*$"))
    assert not same(one, other, rng) and same(one, one, rng)


def test_what_overlaps_is_united() -> None:
    one, two, three = ir.literal(b"x1"), ir.literal(b"x2"), ir.literal(b"x3")
    ways = [(10, 20, one), (15, 30, two), (18, 18, three), (31, 40, two), (50, 50, one)]
    expected = [
        (10, 14, [one]), (15, 17, [one, two]), (18, 18, [one, two, three]), (19, 20, [one, two]), (21, 40, [two]),
        (50, 50, [one]),
    ]  # fmt: skip
    assert character_derivatives._joined(ways) == tuple((low, high, ir.choice(*nodes)) for low, high, nodes in expected)


@pytest.mark.slow
def test_most_formats_are_read_by_characters() -> None:
    known = [
        name
        for name in formats.names()
        if character_derivatives.is_spelled(formats.language(name, "assert", at="#") or ir.EMPTY)
    ]
    assert {"date", "time", "date-time", "uri", "uuid", "ipv4", "hostname"} <= set(known)
