"""The division of a text into the fewest tokens, some of them left out.

Example: over the tokens ``a``, ``b``, ``ab`` and ``ba``, the text ``aba`` has the divisions ``a|b|a``, ``ab|a`` and
``a|ba``. The fewest tokens are two; of equals the one whose first token is the longest is taken, ``ab|a``. Without the
token ``ab`` it is ``a|ba``.

Found from the end of the text to its beginning by dynamic programming: the tokens that begin at a place are met in one
descent of the trie. The descent is compiled; its slow twin is in the tests.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from decodekit.constraints.engine.bitmask import bitmask_from_ids
from decodekit.constraints.engine.token_index import all_tokens
from decodekit.constraints.language.node import ByteMask
from decodekit.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from decodekit.constraints.engine.automaton import Int32Array, UInt8Array

    _Kernel: TypeAlias = Callable[..., None]

NONE: Final[frozenset[int]] = frozenset()
"""No token is left out."""
_MANY: Final = 1 << 30  # more tokens than a text has; no division


class Division:
    """The divisions of texts into the tokens of a vocabulary.

    Args:
        vocabulary: the tokens; special tokens count by their spellings (see `special`).
        left_out: tokens that no division has.
    """

    def __init__(self, vocabulary: Vocabulary, left_out: frozenset[int] = NONE) -> None:
        self._trie = all_tokens(vocabulary).whole.trie
        self._left_out: Int32Array = bitmask_from_ids(left_out, vocabulary.size)
        top = all_tokens(vocabulary).whole.top
        self._top: Int32Array = np.zeros(256, np.int32)  # the node of each byte; 0 if no token begins with it
        self._top[self._trie.byte[top]] = top

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
        trie = self._trie
        fewest: Int32Array = np.full(len(text) + 1, _MANY, np.int32)
        chosen: Int32Array = np.zeros((2, len(text)), np.int32)
        data = np.frombuffer(text, np.uint8)
        division_kernel()(data, self._top, trie.byte, trie.end, trie.first, trie.tokens, self._left_out, fewest, chosen)
        return fewest, chosen


@lru_cache(maxsize=16)
def division_of(vocabulary: Vocabulary, left_out: frozenset[int] = NONE) -> Division:
    """The division into the tokens of a vocabulary; made once."""
    return Division(vocabulary, left_out)


def _divide(
    text: UInt8Array,
    top: Int32Array,
    byte: UInt8Array,
    end: Int32Array,
    first: Int32Array,
    tokens: Int32Array,
    left_out: Int32Array,
    fewest: Int32Array,
    chosen: Int32Array,
) -> None:
    """Fill ``fewest`` and ``chosen``; see `Division._divide`. Of tokens with the same bytes the first is taken."""
    size = len(text)
    fewest[size] = 0
    for start in range(size - 1, -1, -1):
        node = top[text[start]]
        if node == 0:
            continue
        for stop in range(start, size):
            if stop > start:
                child, behind = node + 1, end[node]
                while child < behind and byte[child] < text[stop]:  # the children of a node ascend
                    child = end[child]
                if child >= behind or byte[child] != text[stop]:
                    break
                node = child
            if fewest[stop + 1] + 1 > fewest[start]:
                continue
            for i in range(first[node], first[node + 1]):
                token = tokens[i]
                if left_out[token >> 5] >> (token & 31) & 1 == 0:
                    fewest[start] = fewest[stop + 1] + 1
                    chosen[0, start], chosen[1, start] = stop + 1 - start, token
                    break


@lru_cache(maxsize=1)
def division_kernel() -> _Kernel:
    """The compiled division. numba is imported when a kernel is asked for and not earlier."""
    from decodekit.constraints.engine.numba_cache import compiled

    return compiled(_divide)
