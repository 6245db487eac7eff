"""The slow twin of derivatives: the words of a node up to a length, from what its operators mean for sets of words."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from functools import cache

from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node

Words = frozenset[tuple[bytes, Hashable]]
"""Words with the label they end with."""


def words(node: Node, alphabet: bytes, max_length: int) -> Words:
    """All words over `alphabet` of at most `max_length` bytes, each with each of its labels."""
    universe = {bytes(w) for n in range(max_length + 1) for w in itertools.product(alphabet, repeat=n)}

    def join(first: Words, second: Words) -> Words:
        return frozenset(
            (a + b, la if lb is None else lb) for a, la in first for b, lb in second if len(a) + len(b) <= max_length
        )

    @cache
    def of(node: Node) -> Words:
        if node is ir.EMPTY:
            return frozenset()
        if isinstance(node, ir.Accept):
            return frozenset({(b"", node.label)})
        if isinstance(node, ir.Bytes):
            return frozenset((bytes([b]), None) for b in alphabet if node.mask >> b & 1)
        if isinstance(node, ir.Literal):
            return frozenset({(node.text, None)}) if node.text in universe else frozenset()
        if isinstance(node, ir.Product):
            return join(of(node.head), of(node.tail))
        if isinstance(node, ir.Choice):
            return frozenset().union(*map(of, node.options))
        if isinstance(node, ir.Both):
            common = set.intersection(*({word for word, _ in of(operand)} for operand in node.operands))
            labelled = [of(operand) for operand in node.operands if operand.is_labelled]
            plain: Words = frozenset((word, None) for word in common)
            return frozenset((w, label) for w, label in labelled[0] if w in common) if labelled else plain
        if isinstance(node, ir.Complement):
            return frozenset((word, None) for word in universe - {word for word, _ in of(node.operand)})
        assert isinstance(node, ir.Repeat)
        rounds: Words = frozenset({(b"", None)})
        found = set(rounds) if node.min == 0 else set()
        for count in range(1, (max_length + node.min if node.max is None else node.max) + 1):
            rounds = join(rounds, of(node.body))
            if count >= node.min:
                found |= rounds
        return frozenset(found)

    return of(node)


def derived_words(node: Node, alphabet: bytes, max_length: int) -> Words:
    """The same words, found by derivatives."""
    found: set[tuple[bytes, Hashable]] = set()
    level: list[tuple[bytes, Node]] = [(b"", node)]
    for length in range(max_length + 1):
        found |= {(word, label) for word, rest in level for label in rest.labels}
        if length < max_length:
            level = [(word + bytes([b]), rest.derivative(b)) for word, rest in level for b in alphabet]
    return frozenset(found)
