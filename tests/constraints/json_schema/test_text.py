"""Body languages: spellings, lengths, counting."""

import json

import pytest

from decodekit.constraints.json_schema.strings import character_search, text
from decodekit.constraints.json_schema.strings.text import BODY, WordTable
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node


def holds(node: Node, data: bytes) -> bool:
    for byte in data:
        node = node.derivative(byte)
    return node.is_nullable


@pytest.mark.parametrize(
    "body", ["a", "\\u0061", "\\n", "\\/", "/", "\\\\", '\\"', "\x7f", "\u0085", "é", "\\u00E9", "\\ud83d\\uDE00", "😀"]
)
def test_spellings_of_one_character(body: str) -> None:
    character = json.loads(f'"{body}"')
    assert holds(text.spell(character), body.encode())
    assert holds(text.CHARACTER, body.encode())
    assert not holds(text.spell("x"), body.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"\n",
        b"\x00",
        b'"',
        b"\\",
        b"\\x",
        b"\\ud83d",
        b"\\ude00",
        b"\\ude00\\ud83d",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\\u12",
    ],
)
def test_what_is_no_character(body: bytes) -> None:
    assert not holds(BODY, body)


def test_every_code_point_has_its_escape() -> None:
    for point in [*range(0, 0xD800, 997), *range(0xE000, 0x10000, 499), *range(0x10000, 0x110000, 10007), 0x10FFFF]:
        escaped = json.dumps(chr(point))[1:-1].encode()
        assert holds(text.spell(chr(point)), escaped)
        assert holds(text.spell(chr(point)), escaped.upper().replace(b"\\U", b"\\u")) or b"u" not in escaped
        assert text.matches(BODY, chr(point))


def test_words_are_the_words_and_no_others() -> None:
    table = text.words(["a", "ab", "ba", "", "é", "\ud800"])  # the last one cannot be written
    for word in ["a", "ab", "ba", "", "é"]:
        assert text.matches(table, word)
    for word in ["b", "abc", "e"]:
        assert not text.matches(table, word)
    assert character_search.num_texts(table, 100) == 5


def test_a_selection_hides_words_and_their_prefixes() -> None:
    node = WordTable(["aa", "ab", "b", "ca"]).node(b"\0\1\0\1")
    assert [word for word in ("aa", "ab", "b", "ca") if text.matches(node, word)] == ["ab", "ca"]
    assert node.derivative(ord("b")) is ir.EMPTY


def test_counting() -> None:
    assert character_search.num_texts(text.length(0, 1), 10**7) == 1 + 0x110000 - 0x800
    assert character_search.num_texts(BODY, 1000) == 1000
    assert character_search.num_texts(ir.EMPTY, 5) == 0


def test_intersections_of_lengths_are_lengths() -> None:
    assert text.meet(text.length(2, None), text.length(0, 5)) is text.length(2, 5)
    assert text.meet(text.length(6, None), text.length(0, 5)) is ir.EMPTY
    assert text.meet(BODY, text.words(["a"])) == text.words(["a"]) or text.matches(
        text.meet(BODY, text.words(["a"])), "a"
    )
    others = text.meet(text.without(BODY, text.words(["a"])), BODY)
    assert not text.matches(others, "a")
    assert not holds(others, b'"')  # the complement alone would hold any bytes


def test_equal_lists_of_few_words_are_one_node() -> None:
    """A question about the one is known for the other, also after a slice of work."""
    assert text.words(["b", "a", "b"]) is text.words(("a", "b")) and text.words(["a"]) is not text.words(["b"])
    many = [f"{number:03}" for number in range(100)]
    assert text.words(many) is not text.words(many)  # longer ones are not kept
