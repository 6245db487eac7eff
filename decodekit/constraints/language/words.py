"""A finite set of words as one lazily derived node: sorted once, a remainder is an interval of the list.

A choice of 100,000 literals would be 100,000 nodes to merge at every byte; here a derivative is two binary searches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from decodekit.constraints.language.ir import EMPTY, accept, concat, literal
from decodekit.constraints.language.node import Node, Transitions


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The words ascending, with their labels."""

    words: tuple[bytes, ...]
    labels: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Words(Node):
    """The rests of ``words[low:high]`` after their common first `depth` bytes. At least two words."""

    can_be_empty = False
    is_labelled: bool = field(compare=False)
    table: _Table  # compared by identity
    low: int
    high: int
    depth: int

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """The label of the word that ends here, if one does: the shortest, so the first."""
        ends = len(self.table.words[self.low]) == self.depth
        return (self.table.labels[self.low],) if ends else ()

    def transitions(self) -> Transitions:
        """One interval for each byte that occurs next."""
        words, depth = self.table.words, self.depth
        rows = []
        low = self.low + (len(words[self.low]) == depth)
        while low < self.high:
            byte = words[low][depth]
            # All words of the interval share `depth` bytes, so the byte at `depth` ascends.
            high = bisect_left(words, byte + 1, low, self.high, key=lambda word: word[depth])
            rows.append((1 << byte, _interval(self.table, low, high, depth + 1, self.is_labelled)))
            low = high
        return tuple(rows)


def _interval(table: _Table, low: int, high: int, depth: int, is_labelled: bool) -> Node:
    if high - low == 1:
        return concat(literal(table.words[low][depth:]), accept(table.labels[low]))
    return Words(is_labelled, table, low, high, depth)


def words(labels: Mapping[bytes, Hashable]) -> Node:
    """The words that are the keys, each ending with its label (None for no label)."""
    ascending = sorted(labels)
    if not ascending:
        return EMPTY
    table = _Table(tuple(ascending), tuple(labels[word] for word in ascending))
    return _interval(table, 0, len(ascending), 0, any(label is not None for label in table.labels))
