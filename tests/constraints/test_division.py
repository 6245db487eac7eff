"""The division of texts into the fewest tokens, beside a slow twin; and where tokens lead inside of a lexeme."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from decodekit.constraints import Regex
from decodekit.constraints.engine.automaton import FINAL, Automaton
from decodekit.constraints.engine.compiled.kernels import divide
from decodekit.constraints.engine.division import Division
from decodekit.constraints.engine.token_index import Exits, all_tokens
from decodekit.constraints.language.node import Node
from decodekit.constraints.network import Read
from decodekit.constraints.special import is_text, spellings
from decodekit.vocabulary import Vocabulary
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary, random_vocabulary, tekken_vocabulary


def fewest(vocabulary: Vocabulary, text: bytes, left_out: frozenset[int]) -> int | None:
    """The slow twin: every beginning that is a token, and what is left."""
    kept = [data for token, data in enumerate(vocabulary.token_bytes) if token not in left_out]
    entries = {data for data in kept if data and is_text(data)}
    entries |= {data for token, some in spellings(vocabulary).items() if token not in left_out for data in some}

    @cache
    def rest(start: int) -> float:
        if start == len(text):
            return 0
        return min((1 + rest(start + len(data)) for data in entries if text.startswith(data, start)), default=np.inf)

    found = rest(0)
    return None if found == np.inf else int(found)


def test_divisions_are_those_of_the_slow_twin() -> None:
    rng = random.Random(5)
    for number in range(40):
        vocabulary = adversarial_vocabulary(complete=number % 4 == 0)
        if number % 2:
            vocabulary = random_vocabulary(rng, b"abc", 14)
        left_out = frozenset(rng.sample(range(vocabulary.size), rng.randrange(vocabulary.size // 3)))
        division = Division(vocabulary, left_out)
        pieces = [data for data in vocabulary.token_bytes if data]
        for _ in range(6):
            text = b"".join(rng.choice(pieces) for _ in range(rng.randrange(5)))
            expected = fewest(vocabulary, text, left_out)
            tokens = division.tokens(text)
            assert division.num_tokens(text) == expected and (tokens is None) == (expected is None)
            if tokens is not None:
                assert len(tokens) == expected and not left_out & set(tokens)
                assert b"".join(vocabulary.token_bytes[token] or b"" for token in tokens) == text or not is_text(text)


def test_compiled_division_equals_its_source() -> None:
    """The same function, run by Python."""
    vocabulary = tekken_vocabulary()
    division, trie = Division(vocabulary), all_tokens(vocabulary).whole.trie
    for text in (b"", b'{"title":"aaaa","n":[1,2]}', "Zürich – 東京".encode()):
        size = len(text)
        counts, chosen = np.full(size + 1, 1 << 30, np.int32), np.zeros((2, size), np.int32)
        data, none = np.frombuffer(text, np.uint8), np.zeros(vocabulary.num_mask_words, np.int32)
        divide.py_func(  # type: ignore[attr-defined]
            data, division._top, trie.byte, trie.end, trie.first, trie.tokens, none, counts, chosen
        )
        fast = division._divide(text)
        assert (fast[0] == counts).all() and (fast[1] == chosen).all()


def test_bytes_that_are_tokens() -> None:
    assert Division(byte_vocabulary()).has_all_bytes
    without = Division(byte_vocabulary(), frozenset({ord("a")}))
    assert not without.has_all_bytes and without.usable >> ord("b") & 1 and not without.usable >> ord("a") & 1


def node_of(pattern: str) -> Node:
    move = Regex(pattern).root().moves()[0]
    assert isinstance(move, Read)
    return move.node


def test_where_tokens_lead_is_what_every_byte_says() -> None:
    vocabulary = adversarial_vocabulary()
    index = all_tokens(vocabulary).whole
    for pattern in ("[a-z é]{2,9}", "(ab|a{3})*c?", '[^"]*'):
        automaton = Automaton()
        state = automaton.state(node_of(pattern))
        reached = index.reached(automaton, state)
        for token, data in enumerate(vocabulary.token_bytes):
            target = state if data and is_text(data) else 0
            for byte in data or b"":
                target = automaton.step(target, byte) if target else 0
            expected = target if target and automaton.kinds[target] != FINAL else 0
            assert reached[token] == expected
        assert reached.any()


def test_tokens_along_some_bytes_and_below_some_nodes() -> None:
    vocabulary = adversarial_vocabulary()
    index = all_tokens(vocabulary).whole
    data = b'"a": "b"'
    texts = enumerate(vocabulary.token_bytes)
    assert set(index.along(data)) == {t for t, text in texts if text and data.startswith(text)}
    node = index.top[index.trie.byte[index.top] == ord('"')]
    quoted = {t for t, text in enumerate(vocabulary.token_bytes) if text and is_text(text) and text[:1] == b'"'}
    none = np.zeros(0, np.int32)
    assert set(index.below(Exits(node, none)).tolist()) == quoted
    assert set(index.below(Exits(none, node)).tolist()) == {t for t in quoted if vocabulary.token_bytes[t] == b'"'}
