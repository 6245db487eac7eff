"""The division of a text into the fewest tokens, some of them left out.

Example: over the tokens ``a``, ``b``, ``ab`` and ``ba``, the text ``aba`` has the divisions ``a|b|a``, ``ab|a`` and
``a|ba``. The fewest tokens are two; of equals the one whose first token is the longest is taken, ``ab|a``. Without the
token ``ab`` it is ``a|ba``.

Found from the end of the text to its beginning by dynamic programming: the tokens that begin at a place are met in one
descent of the trie. The descent is compiled; its slow twin is in the tests.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import bitmask_from_ids
from decodekit.constraints.engine.token_index import all_tokens
from decodekit.constraints.language.node import ByteMask
from decodekit.vocabulary import Vocabulary

NONE: Final[frozenset[int]] = frozenset()
"""No token is left out."""
_MANY: Final = 1 << 30  # more tokens than a text has; no division


class Division:
    """The divisions of texts into the tokens of a vocabulary, some left out; special ones count by their spellings."""

    def __init__(self, vocabulary: Vocabulary, left_out: frozenset[int] = NONE) -> None:
        index = all_tokens(vocabulary).whole
        self._trie = index.trie
        self._left_out: Int32Array = bitmask_from_ids(left_out, vocabulary.size)
        self._top: Int32Array = np.zeros(256, np.int32)  # the node of each byte; 0 if no token begins with it
        self._top[index.trie.byte[index.top]] = index.top

    def num_tokens(self, text: bytes) -> int | None:
        """The fewest tokens that a text can be divided into; None if there is no division."""
        fewest = self._divide(text)[0]
        return None if fewest[0] == _MANY else int(fewest[0])

    def tokens(self, text: bytes) -> tuple[int, ...] | None:
        """The division into the fewest tokens, the longest first among equals; None if there is none."""
        fewest, chosen = self._divide(text)
        if fewest[0] == _MANY:
            return None
        lengths, tokens = chosen.tolist()
        found, position = [], 0
        while position < len(text):
            found.append(tokens[position])
            position += lengths[position]
        return tuple(found)

    @cached_property
    def usable(self) -> ByteMask:
        """The bytes that are tokens, and those of which the spellings of special tokens are made."""
        return sum(1 << byte for byte in range(256) if byte >= 0xFE or self.num_tokens(bytes((byte,))) is not None)

    @cached_property
    def has_all_bytes(self) -> bool:
        """Whether every byte of a text is a token."""
        return self.usable == (1 << 256) - 1

    def _divide(self, text: bytes) -> tuple[Int32Array, Int32Array]:
        """From every place of the text on: how many tokens, int32 [n + 1]; length and id of the first, int32 [2, n]."""
        from decodekit.constraints.engine.compiled.kernels import divide  # imports numba

        trie = self._trie
        fewest: Int32Array = np.full(len(text) + 1, _MANY, np.int32)
        chosen: Int32Array = np.zeros((2, len(text)), np.int32)
        data = np.frombuffer(text, np.uint8)
        divide(data, self._top, trie.byte, trie.end, trie.first, trie.tokens, self._left_out, fewest, chosen)
        return fewest, chosen


@lru_cache(maxsize=16)
def division_of(vocabulary: Vocabulary, left_out: frozenset[int] = NONE) -> Division:
    """The division into the tokens of a vocabulary; made once."""
    return Division(vocabulary, left_out)
