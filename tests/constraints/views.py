"""What can be seen of a node from outside, for comparison with words that were found another way."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

from decodekit.constraints.language.node import Node
from tests.reference.expressions import Language


class Views:
    """What can be seen of a node from outside: its ends and dead ends after every text up to a length.

    A view has a number for each label, and one for "not empty": the texts with it, a bit for each. Bit 0 is the empty
    text; then come those that begin with the first letter, then those with the second, in the same order. So with
    ascending letters the bits are those of the sorted texts.

    Args:
        alphabet: the letters.
        labels: the labels that are told apart, None for no label.
        with_dead_ends: whether emptiness is asked for.
    """

    def __init__(self, alphabet: bytes, labels: tuple[Hashable, ...] = (None,), *, with_dead_ends: bool = True) -> None:
        self.alphabet, self.labels, self.with_dead_ends = alphabet, labels, with_dead_ends
        self._views: dict[tuple[Node, int], tuple[int, ...]] = {}
        self.words = cache(self._words)
        self.shortest = cache(self._shortest)

    def num_texts(self, length: int) -> int:
        return sum(len(self.alphabet) ** n for n in range(length + 1))

    def of(self, node: Node, length: int) -> tuple[int, ...]:
        """What derivatives show of the texts of at most `length` bytes."""
        known = self._views.get((node, length))
        if known is None:
            view = [
                *(int(label in node.labels) for label in self.labels),
                int(self.with_dead_ends and not node.is_empty),
            ]
            for mask, target in node.transitions() if length else ():
                for number, letter in enumerate(self.alphabet):
                    if mask >> letter & 1:
                        shift = 1 + number * self.num_texts(length - 1)
                        for place, below in enumerate(self.of(target, length - 1)):
                            view[place] |= below << shift
            known = self._views[node, length] = tuple(view)
        return known

    def _words(self, language: Language, length: int) -> tuple[int, ...]:
        """The same for a set of words, without what is not empty."""
        found: dict[Hashable, int] = dict.fromkeys(self.labels, 0)
        for word, label in language:
            place = 0
            for index, byte in enumerate(word):
                place += 1 + self.alphabet.index(byte) * self.num_texts(length - index - 1)
            found[label] |= 1 << place
        return tuple(found.values())

    def _shortest(self, node: Node) -> int | None:
        """The length of a shortest word; None if there is none."""
        layer, seen, length = {node}, {node}, 0
        while layer:
            if any(other.labels for other in layer):
                return length
            layer = {target for other in layer for _, target in other.transitions()} - seen
            seen |= layer
            length += 1
        return None

    def beginnings(self, node: Node, most: int = 30) -> set[Node]:
        """What is left after each beginning of a word, or after the first ones."""
        seen, layer = {node}, {node}
        while layer and len(seen) < most:
            layer = {target for other in layer for _, target in other.transitions()} - seen
            seen |= layer
        return seen
