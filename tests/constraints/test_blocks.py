"""Word lists that are laid out at once, against the derivatives of their nodes."""

from __future__ import annotations

import random

import pytest

from decodekit.constraints.engine.automaton import DEAD, OPEN, Automaton
from decodekit.constraints.json_schema.strings.text import QUOTE, WordTable, to_body
from decodekit.constraints.language import ir
from decodekit.constraints.language.blocks import MAX_BYTES
from decodekit.constraints.language.node import Node
from tests.sizes import few, thinned

ALPHABET = ["a", "b", "ab", "é", "ß", "語", "٣", "z", "1"]


def end(position: int) -> Node:
    return ir.concat(QUOTE, ir.accept(position))


def random_words(rng: random.Random) -> list[str]:
    return sorted({"".join(rng.choices(ALPHABET, k=rng.randint(0, 5))) for _ in range(rng.randint(1, 12))})


def table_of(words: list[str]) -> WordTable:
    return WordTable(words, end, are_labelled=True)


def spellings(rng: random.Random, word: str) -> bytes:
    """A word as bytes of JSON, some characters escaped, in either case."""
    parts = []
    for character in word:
        escape = rng.choice((f"\\u{ord(character):04x}", f"\\u{ord(character):04X}"))
        parts.append(escape if rng.random() < 0.3 else character)
    return "".join(parts).encode() + b'"'


@few(4)
@thinned("seed", range(40), keep=range(12))
def test_states_are_the_derivatives(seed: int) -> None:
    rng = random.Random(seed)
    words = random_words(rng)
    node = table_of(words).node()
    automaton = Automaton()
    root = automaton.state(node)
    assert automaton.num_states > 1 + len("".join(words).encode()) // 2  # laid out
    texts = [spellings(rng, rng.choice(words)) for _ in range(12)]
    texts += [bytes(rng.choices(b'ab\\u"0e\xc3\xa9', k=rng.randint(1, 6))) for _ in range(30)]
    for data in texts:
        state, rest = root, node
        for byte in data:
            state, rest = automaton.step(state, byte), rest.derivative(byte)
            assert (state == DEAD) == (rest is ir.EMPTY or rest.is_empty)
            if state == DEAD:
                break
            assert automaton.label_sets[automaton.endings[state]] == rest.labels
            expected = ir.label_range(rest)
            if expected is not None:
                assert (automaton.low[state], automaton.high[state]) == expected
            allowed = {b for mask, target in rest.transitions() if not target.is_empty for b in ir.bytes_of(mask)}
            assert {b for b in range(256) if automaton.first_bytes(state)[b]} == allowed


def test_every_word_is_found_and_nothing_else() -> None:
    words = ["", "a", "ab", "abc", "b", "é", "éa"]
    automaton = Automaton()
    root = automaton.state(table_of(words).node())
    for position, word in enumerate(words):
        state = root
        for byte in to_body(word) + b'"':
            state = automaton.step(state, byte)
        assert automaton.label_sets[automaton.endings[state]] == (position,)
    state = root
    for byte in b"ac":
        state = automaton.step(state, byte)
    assert state == DEAD


def test_an_escape_is_open_until_it_is_followed() -> None:
    automaton = Automaton()
    root = automaton.state(table_of(["ab", "ac"]).node())
    assert automaton.next[root, ord("\\")] == OPEN
    before = automaton.num_states
    target = automaton.step(root, ord("\\"))
    assert target > 0
    assert automaton.num_states == before + 1
    assert automaton.next[root, ord("\\")] == target == automaton.step(root, ord("\\"))


@pytest.mark.parametrize(
    "words",
    [["x" * (MAX_BYTES + 1)], ['a"b'], ["a\nb"], ["a\\b"], ["🙂"]],
    ids=["too long", "quote", "control", "backslash", "pair"],
)
def test_lists_that_are_left_to_derivatives(words: list[str]) -> None:
    node = table_of(words).node()
    assert node.block() is None
    automaton = Automaton()
    state, rest = automaton.state(node), node
    for byte in to_body(words[0])[:40]:
        state, rest = automaton.step(state, byte), rest.derivative(byte)
        assert state == automaton.state(rest) != DEAD


def test_a_list_without_ends_is_left_to_derivatives() -> None:
    assert WordTable(["a", "b"]).node().block() is None
