"""The bytes of all tokens as one trie in preorder arrays: the shape in which a walk meets every prefix once.

Node 0 is the root. A node's subtree is the range up to `end`, so a dead prefix is skipped by one assignment, and the
tokens of a subtree are neighbours, because preorder is the lexicographic order of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.automaton import Int32Array, UInt8Array
from decodekit.constraints.engine.disk_store import narrow
from decodekit.constraints.special import is_text, spellings
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class TokenTrie:
    """Preorder arrays over the N nodes of the trie of a vocabulary.

    Attributes:
        byte: the last byte of the prefix that a node stands for, uint8 [N].
        depth: the length of that prefix, int32 [N].
        end: the first node after the subtree, int32 [N].
        first: tokens of node n, duplicates included, are ``tokens[first[n]:first[n + 1]]``; int32 [N + 1].
        tokens: token ids in the order of their bytes, int32. Special tokens stand at their spellings (see `special`);
            tokens that cannot be part of a text are left out.
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

    @property
    def num_bytes(self) -> int:
        """Memory."""
        return sum(array.nbytes for array in (self.byte, self.depth, self.end, self.first, self.tokens))

    @classmethod
    def build_all(cls, vocabulary: Vocabulary, lengths: Sequence[tuple[int, int | None]]) -> list[TokenTrie]:
        """One trie for each range of lengths; the tokens are sorted once, which takes most of the time."""
        entries = [(token, data) for token, data in enumerate(vocabulary.token_bytes) if data and is_text(data)]
        entries += ((token, data) for token, some in spellings(vocabulary).items() for data in some)
        words = sorted({data for _, data in entries})
        number_of = dict(zip(words, range(len(words)), strict=True))
        tokens = np.fromiter((token for token, _ in entries), np.int32, len(entries))
        numbers = np.fromiter((number_of[data] for _, data in entries), np.int32, len(entries))
        order = np.argsort(numbers, kind="stable")  # tokens of the same bytes ascend
        tokens, numbers = tokens[order], numbers[order]
        sizes = np.fromiter(map(len, words), np.int32)
        tries = []
        for low, high in lengths:
            is_in = (sizes >= low) & (sizes <= (sizes.max(initial=0) if high is None else high))
            kept = is_in[numbers]
            renumbered = (np.cumsum(is_in) - 1).astype(np.int32)
            tries.append(cls._of_words(list(compress(words, is_in)), tokens[kept], renumbered[numbers[kept]]))
        return tries

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays for `from_arrays`, in few bytes."""
        return {
            "byte": self.byte,
            "depth": narrow(self.depth),
            "size": narrow(self.end - np.arange(self.num_nodes, dtype=np.int32)),  # of the subtree
            "count": narrow(np.diff(self.first)),  # tokens of the node
            "tokens": self.tokens,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TokenTrie:
        """The trie that `to_arrays` was asked of."""
        depth = arrays["depth"].astype(np.int32)
        end = arrays["size"].astype(np.int32) + np.arange(len(depth), dtype=np.int32)
        first = np.zeros(len(depth) + 1, np.int32)
        np.cumsum(arrays["count"], out=first[1:])
        return cls(arrays["byte"], depth, end, first, arrays["tokens"], int(depth.max()))

    @classmethod
    def _of_words(cls, words: Sequence[bytes], tokens: Int32Array, numbers: Int32Array) -> TokenTrie:
        """The trie of distinct byte strings, ascending, and of the tokens that have them: token i has the string
        ``words[numbers[i]]``, ascending.
        """
        if not words:
            zero = np.zeros(1, np.int32)
            return cls(zero.astype(np.uint8), zero, zero + 1, np.zeros(2, np.int32), tokens, 0)
        lengths = np.fromiter(map(len, words), np.int64)
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
        by_depth = np.argsort(depth.astype(np.min_scalar_type(depth.max())), kind="stable")
        levels = np.searchsorted(depth[by_depth], np.arange(1, int(depth.max()) + 2))
        for level, (start, stop) in enumerate(pairwise(levels.tolist()), 1):
            nodes = by_depth[start:stop]
            breaks = np.append(np.flatnonzero(shared < level), len(words))
            following = breaks[np.searchsorted(breaks, word_of[nodes - 1], side="right")]
            end[nodes] = begins[following]

        # A word ends in the last node it adds (words are distinct, so it adds one at least).
        first = np.zeros(num_nodes + 1, np.int32)
        # Node of a word is begins[k + 1] - 1; counts go one further.
        first[begins[1:]] = np.bincount(numbers, minlength=len(words))
        return cls(byte, depth, end, np.cumsum(first, dtype=np.int32), tokens, int(lengths.max()))


def _common_prefixes(
    text: UInt8Array, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The number of first bytes that each word shares with the word before it; 0 for the first."""
    shared = np.zeros(len(lengths), np.int64)
    pairs = np.arange(1, len(lengths))
    for depth in range(int(lengths.max())):
        pairs = pairs[(lengths[pairs] > depth) & (lengths[pairs - 1] > depth)]
        pairs = pairs[text[starts[pairs] + depth] == text[starts[pairs - 1] + depth]]
        if not len(pairs):
            break
        shared[pairs] += 1
    return shared
