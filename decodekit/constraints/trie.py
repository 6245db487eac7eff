"""The bytes of all tokens as one trie in preorder arrays: the shape in which a walk meets every prefix once.

Node 0 is the root. A node's subtree is the range up to `end`, so a dead prefix is skipped by one assignment, and the
tokens of a subtree are neighbours, because preorder is the lexicographic order of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decodekit.constraints.automaton import Int32Array, UInt8Array
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class TokenTrie:
    """Preorder arrays over the N nodes of the trie of a vocabulary.

    Attributes:
        byte: the last byte of the prefix that a node stands for, uint8 [N].
        depth: the length of that prefix, int32 [N].
        end: the first node after the subtree, int32 [N].
        first: tokens of node n, duplicates included, are ``tokens[first[n]:first[n + 1]]``; int32 [N + 1].
        tokens: token ids in the order of their bytes, int32. Tokens without bytes are left out.
        max_depth: length of the longest token.
    """

    byte: UInt8Array
    depth: Int32Array
    end: Int32Array
    first: Int32Array
    tokens: Int32Array
    max_depth: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.byte)

    @classmethod
    def build(cls, vocabulary: Vocabulary, min_length: int = 1, max_length: int | None = None) -> TokenTrie:
        """The trie of the tokens of a vocabulary with so many bytes; 131k tokens take about a fifth of a second."""
        longest = max_length or max((len(data) for data in vocabulary.token_bytes if data), default=0)
        pairs = sorted(
            (data, token)
            for token, data in enumerate(vocabulary.token_bytes)
            if data and min_length <= len(data) <= longest
        )
        words: list[bytes] = []  # distinct byte strings
        numbers: list[int] = []  # to which of them each token belongs
        for data, _ in pairs:
            if not words or words[-1] != data:
                words.append(data)
            numbers.append(len(words) - 1)
        tokens = np.array([token for _, token in pairs], np.int32)
        if not words:
            zero = np.zeros(1, np.int32)
            return cls(zero.astype(np.uint8), zero, zero + 1, np.zeros(2, np.int32), tokens, 0)
        lengths = np.array([len(word) for word in words], np.int64)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        text = np.frombuffer(b"".join(words), np.uint8)
        shared = _common_prefixes(text, starts, lengths)

        # Word k adds nodes for its prefixes of length shared[k] + 1 .. lengths[k].
        added = lengths - shared
        begins = 1 + np.concatenate(([0], np.cumsum(added)))  # first node that word k adds; the last is N
        num_nodes = int(begins[-1])
        word_of = np.repeat(np.arange(len(words)), added)
        within = np.arange(num_nodes - 1) - (begins[:-1] - 1)[word_of]
        depth = np.zeros(num_nodes, np.int32)
        depth[1:] = shared[word_of] + within + 1
        byte = np.zeros(num_nodes, np.uint8)
        byte[1:] = text[starts[word_of] + depth[1:] - 1]

        # The subtree of a node of depth d ends where the next word begins that shares less than d bytes.
        end = np.full(num_nodes, num_nodes, np.int32)
        for level in range(1, int(lengths.max()) + 1):
            nodes = np.flatnonzero(depth == level)
            breaks = np.append(np.flatnonzero(shared < level), len(words))
            following = breaks[np.searchsorted(breaks, word_of[nodes - 1], side="right")]
            end[nodes] = begins[following]

        # A word ends in the last node it adds (words are distinct, so it adds one at least).
        first = np.zeros(num_nodes + 1, np.int32)
        np.add.at(first, begins[1:][numbers], 1)  # node of a word is begins[k + 1] - 1; counts go one further
        return cls(byte, depth, end, np.cumsum(first, dtype=np.int32), tokens, int(lengths.max()))


def _common_prefixes(
    text: UInt8Array, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """How many first bytes each word shares with the word before it; 0 for the first."""
    shared = np.zeros(len(lengths), np.int64)
    pairs = np.arange(1, len(lengths))
    for depth in range(int(lengths.max())):
        pairs = pairs[(lengths[pairs] > depth) & (lengths[pairs - 1] > depth)]
        pairs = pairs[text[starts[pairs] + depth] == text[starts[pairs - 1] + depth]]
        if not len(pairs):
            break
        shared[pairs] += 1
    return shared
