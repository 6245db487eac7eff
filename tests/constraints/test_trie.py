"""The trie is the prefixes of the tokens in order, and the compiled walk does what its numpy twin does, bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.engine.bitmask import first_id, ids_from_bitmask, num_set
from decodekit.constraints.engine.compiled.kernels import EXIT_AT, EXIT_BEFORE
from decodekit.constraints.engine.token_index import Walk, all_tokens
from decodekit.constraints.engine.trie import TokenTrie
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex.regex import full_match
from decodekit.vocabulary import Vocabulary
from tests.reference import walk as reference
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary, random_vocabulary, tekken_vocabulary
from tests.sizes import few

VOCABULARIES = {
    "adversarial": adversarial_vocabulary(),
    "bytes": byte_vocabulary(),
    "duplicates": Vocabulary([b"a", b"ab", b"a", None, b"ab", b"", b"b", b"abcdef"], [3], size=64),
    "random": random_vocabulary(random.Random(0), b"ab", 60),
    "one": Vocabulary([b"xyz"], []),
    "none": Vocabulary([None], [0]),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_trie_is_the_prefixes_in_order(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    trie, nodes = TokenTrie.build_all(vocabulary, [(1, None)])[0], reference.trie_nodes(vocabulary)
    assert trie.num_nodes == len(nodes)
    assert trie.max_depth == max(len(prefix) for prefix, _ in nodes)
    for number, (prefix, tokens) in enumerate(nodes):
        assert trie.depth[number] == len(prefix)
        assert number == 0 or trie.byte[number] == prefix[-1]
        assert sorted(trie.tokens[trie.first[number] : trie.first[number + 1]].tolist()) == tokens
        below = [n for n, (other, _) in enumerate(nodes) if other.startswith(prefix)]
        assert trie.end[number] == below[-1] + 1


def test_trie_of_a_real_vocabulary() -> None:
    vocabulary = tekken_vocabulary()
    trie = TokenTrie.build_all(vocabulary, [(1, None)])[0]
    assert 200_000 < trie.num_nodes < 400_000
    assert sorted(trie.tokens.tolist()) == sorted(token for token, _ in reference.entries(vocabulary))
    rng = random.Random(0)
    for _ in range(300):
        place = rng.randrange(len(trie.tokens))
        node = int(np.searchsorted(trie.first, place, side="right")) - 1
        data = vocabulary.token_bytes[int(trie.tokens[place])]
        if data is None:
            continue  # a special token
        assert trie.depth[node] == len(data) and trie.byte[node] == data[-1]
        assert node < trie.end[node] <= trie.num_nodes


NODES: dict[str, Node] = {
    "string": full_match(r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'),
    "labels": ir.choice(
        ir.concat(full_match("[a-b]*"), ir.accept(1)), ir.concat(full_match("ab?"), ir.accept(2)), full_match("b{2,9}")
    ),
    "any text": full_match("(.|\n)*"),
    "not": full_match("(?!.*ab)[ab]{0,5}"),
    "one word": ir.literal(b"xyz"),
}


def as_sets(walk: Walk, size: int) -> tuple[list[int], set[tuple[int, int, int]]]:
    exits = {
        (n, label, kind)
        for label, (before, at) in walk.exits.items()
        for kind, nodes in ((EXIT_BEFORE, before), (EXIT_AT, at))
        for n in nodes.tolist()
    }
    return [] if walk.inside is None else ids_from_bitmask(walk.inside).tolist(), exits


@few(8)
@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("language", NODES)
def test_compiled_walk_equals_its_twin(name: str, language: str) -> None:
    vocabulary = VOCABULARIES[name]
    index, automaton = all_tokens(vocabulary).whole, Automaton()
    for follow in (None, np.frombuffer(bytes(b in b'a":,' for b in range(256)), np.uint8)):
        for prefix in (b"", b'"', b"a", b"bb", b'"\\'):
            node = NODES[language]
            for byte in prefix:
                node = node.derivative(byte)
            state = automaton.state(node)
            if state == 0:
                continue
            fast = index.walk(automaton, state, follow)
            every = np.ones(256, np.uint8) if follow is None else follow
            expected = reference.walk(automaton, index.trie, state, vocabulary.size, every)
            assert as_sets(fast, vocabulary.size) == expected
            assert set(fast.exits) == {label for _, label, _ in expected[1]}


def test_compiled_walk_equals_its_twin_on_a_real_vocabulary() -> None:
    index, automaton = all_tokens(tekken_vocabulary()).whole, Automaton()
    state = automaton.state(NODES["string"].derivative(ord('"')))
    fast = index.walk(automaton, state)
    expected = reference.walk(automaton, index.trie, state, index.vocabulary.size, np.ones(256, np.uint8))
    assert as_sets(fast, index.vocabulary.size) == expected
    assert len(expected[0]) > 120_000 and len(expected[1]) > 200


def test_rows_of_bits() -> None:
    rng = np.random.default_rng(0)
    for density in (0.0, 0.001, 0.3, 1.0):
        bits = rng.random(3200) < density
        row = np.packbits(bits, bitorder="little").view(np.int32)
        assert ids_from_bitmask(row).tolist() == np.flatnonzero(bits).tolist()
        assert num_set(row) == bits.sum() and first_id(row) == (int(bits.argmax()) if bits.any() else None)
    for token in (0, 31, 32, 63, 100):
        row = np.zeros(5, np.int32)
        row[token // 32] = np.uint32(1 << token % 32).astype(np.int32)
        assert first_id(row) == token and num_set(row) == 1
