"""The slow twin of the constructors of `ir`: what each operator means for sets of labelled words, up to a length.

Nothing here knows of nodes, so no simplification of theirs can hide. Cutting words at a length is exact: whether a word
belongs to a result depends on words that are no longer than it.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from functools import cache

Language = frozenset[tuple[bytes, Hashable]]
"""Words with the label they end with; None is no label."""


class Meanings:
    """What the operators mean for the words over `alphabet` of at most `max_length` bytes."""

    def __init__(self, alphabet: bytes, max_length: int) -> None:
        self.alphabet, self.max_length = alphabet, max_length
        self.everything: Language = frozenset(
            (bytes(word), None) for n in range(max_length + 1) for word in itertools.product(alphabet, repeat=n)
        )
        self.concat = cache(self._concat)
        self.repeat = cache(self._repeat)
        self.complement = cache(self._complement)
        self.both = cache(self._both)

    def byte_set(self, members: bytes) -> Language:
        """One byte out of `members`."""
        return frozenset((bytes([byte]), None) for byte in members)

    def accept(self, label: Hashable) -> Language:
        """The empty word with a label."""
        return frozenset({(b"", label)})

    def choice(self, first: Language, second: Language) -> Language:
        """A word of either."""
        return first | second

    def _concat(self, first: Language, second: Language) -> Language:
        # If a word passes several labels, the last one counts.
        return frozenset(
            (before + after, label if last is None else last)
            for before, label in first
            for after, last in second
            if len(before) + len(after) <= self.max_length
        )

    def _repeat(self, body: Language, low: int, high: int | None) -> Language:
        found: Language = frozenset()
        rounds = self.accept(None)  # the words of exactly `count` rounds
        seen: set[Language] = set()
        count = 0
        while (high is None or count <= high) and rounds not in seen:
            if count >= low:
                found |= rounds
                seen.add(rounds)  # if they come again, so does all that follows
            rounds = self.concat(rounds, body)
            count += 1
        return found

    def _complement(self, operand: Language) -> Language:
        words = {word for word, _ in operand}
        return frozenset((word, None) for word, _ in self.everything if word not in words)

    def _both(self, first: Language, second: Language) -> Language:
        """Common words. Only one of the two may have labels; it gives them."""
        others: dict[bytes, list[Hashable]] = {}
        for word, label in second:
            others.setdefault(word, []).append(label)
        return frozenset(
            (word, label if other is None else other) for word, label in first for other in others.get(word, ())
        )
