"""From a state to the tokens that it allows, without trying the tokens one by one.

Configurations that allow few bytes are run over the token trie together. A lexeme that allows many (the inside of a
string) is walked against the trie once: tokens that stay inside are allowed whatever surrounds it, tokens that leave it
are grouped by the place where they leave, and only from there on its surroundings are run. Walks depend on the lexical
state and the vocabulary, so they are shared by all constraints; a mask depends on the state and is kept with it.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from decodekit.constraints.automaton import Automaton, Int32Array, UInt8Array
from decodekit.constraints.bitmask import bitmask_from_ids, num_words
from decodekit.constraints.configurations import Configuration, Entry, State
from decodekit.constraints.network import Fresh, TextNeeded
from decodekit.constraints.runs import Runner
from decodekit.constraints.trie import TokenTrie
from decodekit.constraints.unfolding import Unfolding
from decodekit.constraints.walk import EXIT_AT, EXIT_BEFORE, add_tokens_kernel, walk_kernel
from decodekit.vocabulary import Vocabulary

WALK_CACHE_BYTES: Final = 64 << 20
"""Bound on the walks kept for one vocabulary."""
MASK_CACHE_BYTES: Final = 64 << 20
"""Bound on the masks kept for one grammar."""

SHORT_TOKEN: Final = 16
"""Tokens of up to so many bytes are walked apart: 99 % of the tokens of a vocabulary of 131k."""

_MAX_EXITS: Final = 4096  # a walk with more is repeated for the bytes that may follow
_MANY_BYTES: Final = 24  # a lexeme that may go on with so many is walked by itself
_ANY_BYTE: Final = np.ones(256, np.uint8)


class TokenMask:
    """The tokens that a state allows, end-of-sequence tokens included.

    Attributes:
        words: the whole row, int32 [words]; not to be written to.
    """

    __slots__ = ("_num_allowed", "words")

    def __init__(self, words: Int32Array) -> None:
        self.words = words
        self._num_allowed = -1

    @property
    def num_allowed(self) -> int:
        """How many tokens."""
        if self._num_allowed < 0:
            self._num_allowed = int(np.bitwise_count(self.words.view(np.uint32)).sum())
        return self._num_allowed

    def fill(self, row: Int32Array) -> None:
        """Write the whole row."""
        row[:] = self.words

    def only_token(self) -> int | None:
        """The one token that is allowed, or None if there are more or none."""
        if self.num_allowed != 1:
            return None
        word = int(np.flatnonzero(self.words)[0])
        bit = int(self.words[word]) & 0xFFFFFFFF
        return 32 * word + bit.bit_length() - 1

    @property
    def num_bytes(self) -> int:
        """Memory."""
        return 128 + self.words.nbytes


@dataclass(frozen=True, slots=True)
class WayOut:
    """Where tokens leave a lexeme after the same bytes: which of the exits before a node, and which of those at one."""

    before: Int32Array
    at: Int32Array


@dataclass(slots=True)
class Walk:
    """What a lexical state means for a vocabulary.

    Attributes:
        inside: tokens after which the lexeme goes on, int32 [words]; None if there are none.
        before: by label set, the nodes before whose byte the lexeme may end.
        at: by label set, the nodes with tokens that end the lexeme for good.
        label_sets: the label sets with which the lexeme may end inside a token.
        is_complete: False if there were too many exits to list; the walk must be repeated for the bytes that follow.
        ways_out: the exits of a label set by the bytes before them, made when a captured text asks for them.
        by_text: those bytes by the text that they stand for.
    """

    inside: Int32Array | None
    before: dict[int, Int32Array]
    at: dict[int, Int32Array]
    label_sets: tuple[int, ...]
    is_complete: bool
    num_bytes: int = field(init=False)
    ways_out: dict[int, dict[bytes, WayOut]] = field(init=False, default_factory=dict)
    by_text: dict[tuple[int, object], dict[str, list[bytes]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        arrays = [*self.before.values(), *self.at.values()]
        inside = 0 if self.inside is None else self.inside.nbytes
        self.num_bytes = 256 + inside + sum(128 + array.nbytes for array in arrays)


class TokenIndex:
    """The tokens of some lengths as the masks see them: their trie, and the walks of lexical states over it."""

    def __init__(self, vocabulary: Vocabulary, min_length: int = 1, max_length: int | None = None) -> None:
        self.vocabulary = vocabulary
        self.trie = TokenTrie.build(vocabulary, min_length, max_length)
        self.num_words = num_words(vocabulary.size)
        self._walks: OrderedDict[tuple[Automaton, int, bytes], Walk] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()
        self.top: Int32Array = np.flatnonzero(self.trie.depth == 1).astype(np.int32)
        """The nodes of one byte."""

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
            inside=words if num_inside else None,
            before=_group(found[found[:, 2] == EXIT_BEFORE]),
            at=_group(found[found[:, 2] == EXIT_AT]),
            label_sets=tuple(np.flatnonzero(seen).tolist()),
            is_complete=is_complete,
        )

    def ways_out(self, walk: Walk, label_set: int) -> dict[bytes, WayOut]:
        """The exits of a walk from the root with a label set, by the bytes of the lexeme before them."""
        found = walk.ways_out.get(label_set)
        if found is None:
            groups: dict[bytes, tuple[list[int], list[int]]] = {}
            depth = self.trie.depth
            for number, node in enumerate(walk.before.get(label_set, _NO_WORDS).tolist()):
                groups.setdefault(self.bytes_above(node, 0, int(depth[node]) - 1), ([], []))[0].append(number)
            for number, node in enumerate(walk.at.get(label_set, _NO_WORDS).tolist()):
                groups.setdefault(self.bytes_above(node, 0, int(depth[node])), ([], []))[1].append(number)
            found = walk.ways_out[label_set] = {
                prefix: WayOut(np.array(before, np.int32), np.array(at, np.int32))
                for prefix, (before, at) in groups.items()
            }
        return found

    def ways_by_text(self, walk: Walk, label_set: int, fresh: Fresh) -> dict[str, list[bytes]]:
        """The keys of `ways_out` by what they add to a captured text."""
        key = (label_set, fresh.decode)
        found = walk.by_text.get(key)
        if found is None:
            found = {}
            for prefix in self.ways_out(walk, label_set):
                text = fresh.decode(prefix[: len(prefix) - len(fresh.end)])
                if text is not None:
                    found.setdefault(text, []).append(prefix)
            walk.by_text[key] = found
        return found

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
def whole_index(vocabulary: Vocabulary) -> TokenIndex:
    """The index of all tokens of a vocabulary, built once."""
    return TokenIndex(vocabulary)


@lru_cache(maxsize=8)
def token_indices(vocabulary: Vocabulary) -> tuple[TokenIndex, ...]:
    """The indices of a vocabulary, of its short and of its long tokens, built once."""
    indices = (TokenIndex(vocabulary, 1, SHORT_TOKEN), TokenIndex(vocabulary, SHORT_TOKEN + 1))
    return tuple(index for index in indices if len(index.trie.tokens))


class Masks:
    """The masks of the states of one unfolding over one vocabulary. Thread-safe."""

    def __init__(self, unfolding: Unfolding, vocabulary: Vocabulary) -> None:
        self._unfolding = unfolding
        self._runner = Runner(unfolding)
        self._indices = token_indices(vocabulary)
        self._whole = whole_index(vocabulary)
        self._num_words = num_words(vocabulary.size)
        self._eos_words = bitmask_from_ids(sorted(vocabulary.eos_token_ids), vocabulary.size)
        self._kept: OrderedDict[State, int] = OrderedDict()  # states with their masks' memory, oldest first
        self._num_bytes = 0
        self._density: dict[int, bool] = {}  # by lexical state

    def mask(self, state: State) -> TokenMask:
        """The tokens that `state` allows."""
        mask = state.mask
        if mask is None:
            with self._unfolding.automaton.lock:
                if state.mask is None:
                    self._keep(state, TokenMask(self._allowed(state)))
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
        together: list[Configuration] = []
        for configuration in state.configurations:
            lexical, reader, _, text = configuration
            if text is not None:
                self._captured(configuration, text, words)
            elif self._unfolding.permitted[reader] < 0 and self._is_dense(lexical):
                self._dense(configuration, words)
            else:
                together.append(configuration)
        if together:
            whole = self._whole
            self._runner.run(whole.trie, whole.top, together, words, whole.bytes_above)
        return words

    def _is_dense(self, lexical: int) -> bool:
        is_dense = self._density.get(lexical)
        if is_dense is None:
            first = self._unfolding.automaton.first_bytes(lexical)
            is_dense = self._density[lexical] = int(np.count_nonzero(first)) >= _MANY_BYTES
        return is_dense

    def _walks(
        self, lexical: int, words: Int32Array, bytes_after: Callable[[Walk], UInt8Array]
    ) -> Iterator[tuple[TokenIndex, Walk]]:
        """The walks of a lexeme, whose tokens inside are added; with too many exits, those before some bytes alone."""
        automaton = self._unfolding.automaton
        for index in self._indices:
            walk = index.walk(automaton, lexical)
            if walk.inside is not None:
                words |= walk.inside
            yield index, walk if walk.is_complete else index.walk(automaton, lexical, bytes_after(walk))

    def _dense(self, configuration: Configuration, words: Int32Array) -> None:
        """Add the tokens of a configuration by the walk of its lexeme."""
        lexical, reader, stack, _ = configuration
        unfolding = self._unfolding
        for index, walk in self._walks(lexical, words, lambda walk: self._bytes_after(reader, stack, walk)):
            for label_set in walk.label_sets:
                self._go_on(
                    index,
                    unfolding.resolve(unfolding.leave(reader, label_set), stack),
                    walk.before.get(label_set, _NO_WORDS),
                    walk.at.get(label_set, _NO_WORDS),
                    words,
                )

    def _go_on(self, index: TokenIndex, entry: Entry, before: Int32Array, at: Int32Array, words: Int32Array) -> None:
        """Add the tokens that leave a lexeme at some nodes, after which the configurations of `entry` go on."""
        configurations, is_accepting = entry
        if not configurations and not is_accepting:
            return
        if len(at):
            add_tokens_kernel()(at, index.trie.first, index.trie.tokens, words)
        if configurations and len(before):
            self._runner.run(index.trie, before, tuple(configurations), words, index.bytes_above)

    def _bytes_after(self, reader: int, stack: int, walk: Walk) -> UInt8Array:
        """The bytes that may come after a lexeme, uint8 [256]."""
        unfolding = self._unfolding
        follow = np.zeros(256, np.uint8)
        for label_set in walk.label_sets:
            follow |= unfolding.first_bytes(unfolding.resolve(unfolding.leave(reader, label_set), stack)[0])
        return follow

    def _captured(self, configuration: Configuration, text: bytes, words: Int32Array) -> None:
        """Add the tokens of a configuration that captures: what follows depends on the bytes of each token."""
        lexical, reader, stack, _ = configuration
        unfolding = self._unfolding
        for index, walk in self._walks(lexical, words, lambda _: _ANY_BYTE):
            for label_set in walk.label_sets:
                ways = index.ways_out(walk, label_set)
                listed = self._fresh_ways(index, walk, label_set, configuration, ways, words)
                before, at = walk.before.get(label_set, _NO_WORDS), walk.at.get(label_set, _NO_WORDS)
                for prefix in ways if listed is None else listed:
                    way = ways[prefix]
                    entry = unfolding.resolve(unfolding.leave(reader, label_set, text + prefix), stack)
                    self._go_on(index, entry, before[way.before], at[way.at], words)

    def _fresh_ways(
        self,
        index: TokenIndex,
        walk: Walk,
        label_set: int,
        configuration: Configuration,
        ways: dict[bytes, WayOut],
        words: Int32Array,
    ) -> list[bytes] | None:
        """Add the tokens with which the text becomes one that is not listed; returns the ways to those that are.

        None if every way has to be looked at by itself.
        """
        _, reader, stack, text = configuration
        common = self._unfolding.fresh(reader, label_set)
        if common is None or text is None:
            return None
        fresh, following = common
        so_far = fresh.decode(text)
        if so_far is None:
            return None
        by_text = index.ways_by_text(walk, label_set, fresh)
        if sum(map(len, by_text.values())) < len(ways):  # a way that is half of an escape
            return None
        start = len(so_far)
        listed = [
            prefix
            for known in fresh.listed
            if known.startswith(so_far) and (prefixes := by_text.get(known[start:])) is not None
            for prefix in prefixes
        ]
        before, at = walk.before.get(label_set, _NO_WORDS), walk.at.get(label_set, _NO_WORDS)
        if listed:
            before = np.delete(before, np.concatenate([ways[prefix].before for prefix in listed]))
            at = np.delete(at, np.concatenate([ways[prefix].at for prefix in listed]))
        try:
            self._go_on(index, self._unfolding.resolve(following, stack), before, at, words)
        except TextNeeded:
            return None
        return listed
