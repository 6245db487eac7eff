"""From a state to the tokens that it allows, without trying the tokens one by one.

A lexeme is walked against the token trie once: tokens that stay inside are allowed whatever surrounds it, tokens that
leave it are grouped by the place where they leave. Only for these is the surrounding asked, and it is asked for the
remaining bytes alone. Walks depend on the lexical state and the vocabulary, so they are shared by all constraints;
a mask depends on the state and is kept with it.

Counters would make every length of a string a state with a walk of its own. But a token of 16 bytes sees no difference
between 900 and 800 characters left, so short tokens are walked with counts beyond their reach forgotten, and only the
few long ones with more.

A token is allowed exactly when the state has a successor for its bytes. Tokens without bytes (special tokens, padding)
never are, the end-of-sequence tokens are exactly when the text so far is accepted. Every byte sequence that is alive
can be completed by bytes, so a vocabulary that has each single byte never meets a dead end; one that lacks some may.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from decodekit.constraints.automaton import Automaton, Int32Array, UInt8Array
from decodekit.constraints.bitmask import bitmask_from_ids, num_words
from decodekit.constraints.configurations import Configuration, State, Unfolding
from decodekit.constraints.trie import TokenTrie
from decodekit.constraints.walk import EXIT_AT, EXIT_BEFORE, walk_kernel
from decodekit.vocabulary import Vocabulary

WALK_CACHE_BYTES: Final = 64 << 20
"""Bound on the walks kept for one vocabulary."""
MASK_CACHE_BYTES: Final = 64 << 20
"""Bound on the masks kept for one grammar."""

SHORT_TOKEN: Final = 16
"""Tokens of up to so many bytes are walked apart: 99 % of the tokens of a vocabulary of 131k."""

_MAX_EXITS: Final = 4096  # a walk with more is repeated for the bytes that may follow
_SMALL_SUBTREE: Final = 48  # up to so many nodes, stepping in Python beats a walk
_ANY_BYTE: Final = np.ones(256, np.uint8)


@dataclass(frozen=True, slots=True)
class TokenMask:
    """The tokens that a state allows, end-of-sequence tokens included: whole rows, or the words that are not zero.

    Attributes:
        num_allowed: how many tokens.
        indices: which words are not zero, None if `words` is the whole row.
        words: int32.
    """

    num_allowed: int
    indices: Int32Array | None
    words: Int32Array

    @classmethod
    def pack(cls, row: Int32Array) -> TokenMask:
        """From a whole row, which is copied if it is kept."""
        indices = np.flatnonzero(row).astype(np.int32)
        num_allowed = int(np.bitwise_count(row.view(np.uint32)).sum())
        if len(indices) * 4 < len(row):
            return cls(num_allowed, indices, row[indices])
        return cls(num_allowed, None, row.copy())

    def fill(self, row: Int32Array) -> None:
        """Write the whole row."""
        if self.indices is None:
            row[:] = self.words
        else:
            row.fill(0)
            row[self.indices] = self.words

    def only_token(self) -> int | None:
        """The one token that is allowed, or None if there are more or none."""
        if self.num_allowed != 1:
            return None
        row = self.words
        word = 0 if self.indices is not None else int(np.flatnonzero(row)[0])
        bit = int(row[word]) & 0xFFFFFFFF
        return 32 * int(word if self.indices is None else self.indices[0]) + bit.bit_length() - 1

    @property
    def num_bytes(self) -> int:
        """Memory."""
        return 128 + self.words.nbytes + (0 if self.indices is None else self.indices.nbytes)


@dataclass(slots=True)
class Walk:
    """What a lexical state means for a vocabulary.

    Attributes:
        inside: tokens after which the lexeme goes on, int32 [words].
        before: by label set, the nodes before whose byte the lexeme may end.
        at: by label set, the nodes with tokens that end the lexeme for good.
        label_sets: the label sets with which the lexeme may end inside a token.
        is_complete: False if there were too many exits to list; the walk must be repeated for the bytes that follow.
    """

    inside: TokenMask
    before: dict[int, Int32Array]
    at: dict[int, Int32Array]
    label_sets: tuple[int, ...]
    is_complete: bool
    num_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        arrays = [*self.before.values(), *self.at.values()]
        self.num_bytes = 256 + self.inside.num_bytes + sum(128 + array.nbytes for array in arrays)


class TokenIndex:
    """The tokens of some lengths as the masks see them: their trie, and the walks of lexical states over it."""

    def __init__(self, vocabulary: Vocabulary, min_length: int = 1, max_length: int | None = None) -> None:
        self.vocabulary = vocabulary
        self.trie = TokenTrie.build(vocabulary, min_length, max_length)
        self.num_words = num_words(vocabulary.size)
        self._walks: OrderedDict[tuple[Automaton, int, bytes], Walk] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def walk(self, automaton: Automaton, state: int, follow: UInt8Array | None = None) -> Walk:
        """The walk of a lexical state over the whole trie, kept for next time. The automaton's lock is held."""
        state = automaton.saturated(state, self.trie.max_depth)
        key = (automaton, state, b"" if follow is None else follow.tobytes())
        with self._lock:
            walk = self._walks.get(key)
            if walk is not None:
                self._walks.move_to_end(key)
                return walk
        words = np.zeros(self.num_words, np.int32)
        walk = self.walk_nodes(automaton, state, 1, self.trie.num_nodes, words, follow)
        with self._lock:
            self._walks[key] = walk
            self._num_bytes += walk.num_bytes
            while self._num_bytes > WALK_CACHE_BYTES and len(self._walks) > 1:
                _, oldest = self._walks.popitem(last=False)
                self._num_bytes -= oldest.num_bytes
        return walk

    def walk_nodes(
        self,
        automaton: Automaton,
        state: int,
        start: int,
        stop: int,
        words: Int32Array,
        follow: UInt8Array | None = None,
    ) -> Walk:
        """The walk of a lexical state over the subtrees ``start .. stop``, siblings; adds the tokens inside to `words`.

        With the bytes that may `follow` the lexeme, uint8 [256], the exits before other bytes are left out and the
        rest are listed whatever their number.
        """
        trie, kernel = self.trie, walk_kernel()
        start_depth = int(trie.depth[start]) - 1 if start < stop else 0
        stack = np.zeros(trie.max_depth + 1, np.int32)
        stack[start_depth] = state
        bytes_after = _ANY_BYTE if follow is None else follow
        exits = np.empty((_MAX_EXITS, 3), np.int32)
        position = np.array([start, 0, 0], np.int32)
        seen = np.zeros(len(automaton.label_sets), np.uint8)
        while True:
            unknown, num_exits, num_inside = kernel(
                automaton.next, automaton.kinds, automaton.endings,
                trie.byte, trie.depth, trie.end, trie.first, trie.tokens,
                bytes_after, start_depth, stop, stack, words, exits, seen, position,
            )  # fmt: skip
            if unknown < 0:
                if num_exits <= len(exits) or follow is None:
                    break
                exits = np.empty((num_exits, 3), np.int32)
                position[:] = (start, 0, 0)
                continue
            automaton.expand(unknown)
            if len(seen) < len(automaton.label_sets):
                seen = np.concatenate((seen, np.zeros(len(automaton.label_sets) - len(seen), np.uint8)))
        is_complete = num_exits <= len(exits)
        found = exits[:num_exits] if is_complete else exits[:0]
        return Walk(
            inside=TokenMask.pack(words) if num_inside else TokenMask(0, _NO_WORDS, _NO_WORDS),
            before=_group(found[found[:, 2] == EXIT_BEFORE]),
            at=_group(found[found[:, 2] == EXIT_AT]),
            label_sets=tuple(np.flatnonzero(seen).tolist()),
            is_complete=is_complete,
        )

    def bytes_above(self, node: int, start: int, stop: int) -> bytes:
        """Of the prefix that `node` stands for, the bytes from depth `start` to `stop`."""
        # The first token of the subtree has that prefix.
        token = int(self.trie.tokens[self.trie.first[node]])
        return (self.vocabulary.token_bytes[token] or b"")[start:stop]


_NO_WORDS: Final = np.zeros(0, np.int32)


def _group(exits: Int32Array) -> dict[int, Int32Array]:
    """Nodes by label set."""
    return {int(label_set): exits[exits[:, 1] == label_set, 0].copy() for label_set in np.unique(exits[:, 1])}


@lru_cache(maxsize=8)
def token_indices(vocabulary: Vocabulary) -> tuple[TokenIndex, ...]:
    """The indices of a vocabulary, of its short and of its long tokens, built once."""
    indices = (TokenIndex(vocabulary, 1, SHORT_TOKEN), TokenIndex(vocabulary, SHORT_TOKEN + 1))
    return tuple(index for index in indices if len(index.trie.tokens))


class Masks:
    """The masks of the states of one unfolding over one vocabulary. Thread-safe."""

    def __init__(self, unfolding: Unfolding, vocabulary: Vocabulary) -> None:
        self._unfolding = unfolding
        self._indices = token_indices(vocabulary)
        self._num_words = num_words(vocabulary.size)
        self._eos_words = bitmask_from_ids(sorted(vocabulary.eos_token_ids), vocabulary.size)
        self._kept: OrderedDict[State, int] = OrderedDict()  # states with their masks' memory, oldest first
        self._num_bytes = 0

    def mask(self, state: State) -> TokenMask:
        """The tokens that `state` allows."""
        mask = state.mask
        if mask is None:
            with self._unfolding.automaton.lock:
                if state.mask is None:
                    self._keep(state, TokenMask.pack(self._allowed(state)))
                mask = state.mask
        assert isinstance(mask, TokenMask)
        return mask

    def _keep(self, state: State, mask: TokenMask) -> None:
        state.mask = mask
        self._kept[state] = mask.num_bytes
        self._num_bytes += mask.num_bytes
        while self._num_bytes > MASK_CACHE_BYTES and len(self._kept) > 1:
            oldest, num_bytes = self._kept.popitem(last=False)
            oldest.mask = None
            self._num_bytes -= num_bytes

    def _allowed(self, state: State) -> Int32Array:
        words = self._eos_words.copy() if state.is_accepting else np.zeros(self._num_words, np.int32)
        for configuration in state.configurations:
            for index in self._indices:
                walk = index.walk(self._unfolding.automaton, configuration[0])
                if walk.inside.indices is None:
                    words |= walk.inside.words
                else:
                    words[walk.inside.indices] |= walk.inside.words
                if not walk.is_complete:
                    follow = self._follow(configuration, walk)
                    walk = index.walk(self._unfolding.automaton, configuration[0], follow)
                self._leave(index, configuration, walk, 0, words)
        return words

    def _follow(self, configuration: Configuration, walk: Walk) -> UInt8Array:
        """The bytes that may come after the lexeme of `configuration`, uint8 [256]."""
        _, place, text = configuration
        if text is not None:  # what follows depends on the text, which is different for every token
            return _ANY_BYTE
        follow = np.zeros(256, np.uint8)
        for label_set in walk.label_sets:
            for label in self._unfolding.automaton.label_sets[label_set]:
                after = self._unfolding.leave(place, label, None)
                if after is not None:
                    follow |= self._unfolding.first_bytes(after)
        return follow

    def _leave(
        self, index: TokenIndex, configuration: Configuration, walk: Walk, start_depth: int, words: Int32Array
    ) -> None:
        """Add the tokens that end the lexeme of `configuration` and go on as its surroundings allow.

        The configuration is that of depth `start_depth` of the trie, where the walk began.
        """
        _, place, text = configuration
        trie, unfolding = index.trie, self._unfolding
        for label_set in walk.label_sets:
            before, at = walk.before.get(label_set), walk.at.get(label_set)
            for label in unfolding.automaton.label_sets[label_set]:
                if text is None:
                    after = unfolding.leave(place, label, None)
                    if after is None:
                        continue
                    if before is not None:
                        may_follow = unfolding.first_bytes(after)[trie.byte[before]] != 0
                        for node in before[may_follow].tolist():
                            self._subtree(index, after, node, words)
                    if at is not None:
                        for node in at.tolist():
                            _add_tokens(trie, node, words)
                    continue
                # Grouped by the prefix, because asking a frame is dear and the children of one node share it.
                known: dict[bytes, State | None] = {}
                for node in [] if before is None else before.tolist():
                    prefix = index.bytes_above(node, start_depth, int(trie.depth[node]) - 1)
                    if prefix not in known:
                        known[prefix] = unfolding.leave(place, label, text + prefix)
                    after = known[prefix]
                    if after is not None and unfolding.first_bytes(after)[trie.byte[node]]:
                        self._subtree(index, after, node, words)
                for node in [] if at is None else at.tolist():
                    if (
                        unfolding.leave(
                            place, label, text + index.bytes_above(node, start_depth, int(trie.depth[node]))
                        )
                        is not None
                    ):
                        _add_tokens(trie, node, words)

    def _subtree(self, index: TokenIndex, state: State, node: int, words: Int32Array) -> None:
        """Add the tokens at and below `node` whose bytes, from the byte of `node` on, `state` allows."""
        trie = index.trie
        stop = int(trie.end[node])
        if stop - node <= _SMALL_SUBTREE:
            target = self._unfolding.step(state, int(trie.byte[node]))
            if target is None:
                return
            _add_tokens(trie, node, words)
            child = node + 1
            while child < stop:
                self._subtree(index, target, child, words)
                child = int(trie.end[child])
            return
        for configuration in state.configurations:
            lexical = configuration[0]
            inside = np.zeros(self._num_words, np.int32)
            walk = index.walk_nodes(self._unfolding.automaton, lexical, node, stop, inside)
            words |= inside
            if not walk.is_complete:
                follow = self._follow(configuration, walk)
                walk = index.walk_nodes(self._unfolding.automaton, lexical, node, stop, inside, follow)
            self._leave(index, configuration, walk, int(trie.depth[node]) - 1, words)


def _add_tokens(trie: TokenTrie, node: int, words: Int32Array) -> None:
    for token in trie.tokens[trie.first[node] : trie.first[node + 1]].tolist():
        words[token >> 5] |= np.uint32(1 << (token & 31)).astype(np.int32)
