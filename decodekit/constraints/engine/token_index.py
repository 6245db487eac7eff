"""The index of a vocabulary: the tries of its tokens, and the walks of lexical states over them, kept.

Example: the walk of "inside of a JSON string" over the tokens ``a``, ``"``, ``",`` and ``é"}`` is kept as

    inside    {a}: allowed whatever surrounds the string
    before    the nodes of ``,`` in ``",`` and of ``}`` in ``é"}``: the string has ended before their bytes
    at        the node of ``"``: a token that ends with the string

and serves every schema with a string, in every place: only at the exits it matters what surrounds the string.

Counters would make every length of a string a state with a walk of its own. But a token of 16 bytes sees no difference
between 900 and 800 characters left, so short tokens are walked with counts beyond their reach forgotten, and only the
few long ones with more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet, finalize

import numpy as np

from decodekit.constraints import special
from decodekit.constraints.engine import automaton, trie
from decodekit.constraints.engine.automaton import Automaton, Int32Array, UInt8Array
from decodekit.constraints.engine.bitmask import num_words
from decodekit.constraints.engine.disk_store import Store, version_of
from decodekit.constraints.engine.trie import TokenTrie
from decodekit.constraints.language import ir
from decodekit.constraints.language.ir import accept
from decodekit.constraints.language.registry import named
from decodekit.constraints.memory_account import Account, Shelf, on_shortage
from decodekit.constraints.network import Fresh
from decodekit.first_use import announcer
from decodekit.vocabulary import Vocabulary

WALK_CACHE_BYTES: Final = 64 << 20
"""Bound on the walks kept for one trie and one automaton; less if the memory limit is low."""

SHORT_TOKEN: Final = 16
"""Tokens of up to so many bytes are walked apart: 99 % of the tokens of a vocabulary of 131k."""

MIN_TOKENS_KEPT: Final = 8192
"""A vocabulary with fewer tokens is as quickly sorted as read."""

# The sources of what is kept.
_KERNELS: Final = str(Path(__file__).parent / "compiled" / "kernels.py")  # not imported here, as it imports numba
_SOURCES: Final = (__file__, special.__file__, trie.__file__, _KERNELS, automaton.__file__, ir.__file__)

MANY_NODES: Final = 1500
"""A first byte with so many nodes below it is looked at by itself."""

NO_NODES: Final = np.zeros(0, np.int32)

_MAX_EXITS: Final = 4096  # a walk with more is repeated for the bytes that may follow
_ANY_BYTE: Final = np.ones(256, np.uint8)


class Exits(NamedTuple):
    """The exits of a lexeme: the nodes before whose byte it may end, and those with tokens that end it for good."""

    before: Int32Array
    at: Int32Array


@dataclass(slots=True)
class Walk:
    """The walk of a lexical state over the tokens of a vocabulary.

    Attributes:
        inside: tokens after which the lexeme goes on, int32 [words]; None if there are none.
        exits: by the label set with which the lexeme may end inside a token; without nodes unless `is_complete`.
        is_complete: False if there were too many exits to list; the walk must be repeated for the bytes that follow.
        ways_out: by label set, the places of exits in `exits` by the bytes before them, once a captured text asks.
        by_text: those bytes by the text that they stand for.
    """

    inside: Int32Array | None
    exits: dict[int, Exits]
    is_complete: bool = True
    ways_out: dict[int, dict[bytes, Exits]] = field(init=False, default_factory=dict)
    by_text: dict[tuple[int, object], dict[str, list[bytes]]] = field(init=False, default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Memory, what captured texts ask for aside."""
        inside = 0 if self.inside is None else self.inside.nbytes
        return 256 + inside + sum(128 + nodes.nbytes for exits in self.exits.values() for nodes in exits if len(nodes))

    def to_arrays(self) -> dict[str, Int32Array]:
        """The arrays for `from_arrays`, of a complete walk with one label set at most; the number of that set aside."""
        exits = next(iter(self.exits.values()), Exits(NO_NODES, NO_NODES))
        return {"inside": NO_NODES if self.inside is None else self.inside, "before": exits.before, "at": exits.at}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Int32Array], label_set: int) -> Walk:
        """The walk that `to_arrays` was asked of, with the number of the label set in some automaton."""
        inside, exits = arrays["inside"], Exits(arrays["before"], arrays["at"])
        return cls(inside if len(inside) else None, {label_set: exits} if any(map(len, exits)) else {})


class TokenIndex:
    """The tokens of some lengths as the masks see them: their trie, and the walks of lexical states over it.

    With `root`, a node of the trie, it is the tokens below that node, and what is read are their bytes from there on.
    """

    def __init__(
        self, vocabulary: Vocabulary, trie: TokenTrie, name: str, store: Store | None = None, root: int = 0
    ) -> None:
        self.vocabulary, self.trie = vocabulary, trie
        self.root, self.depth = root, int(self.trie.depth[root])
        self._name, self._store = name, store
        self.num_words = num_words(vocabulary.size)
        # By the `id` of the automaton that numbers the states: by state, and the bytes that may follow, if any.
        self._walks: dict[int, Shelf[tuple[int, bytes], Walk]] = {}
        self._lock = threading.RLock()
        self._account = Account()
        self._account.add(0 if root else self.trie.num_bytes)
        _indices.add(self)
        below = slice(root + 1, int(self.trie.end[root]))
        self.top: Int32Array = (np.flatnonzero(self.trie.depth[below] == self.depth + 1) + root + 1).astype(np.int32)
        """The nodes of one byte more than the root."""

    def walk(self, automaton: Automaton, state: int, follow: UInt8Array | None = None) -> Walk:
        """The walk of a lexical state over the whole trie, kept for next time. The automaton's lock is held."""
        state = automaton.saturated(state, self.trie.max_depth)
        key = (state, b"" if follow is None else follow.tobytes())
        with self._lock:
            kept = self._walks.get(id(automaton))
            if kept is None:
                kept = self._walks[id(automaton)] = Shelf(_size, WALK_CACHE_BYTES, 8)
                finalize(automaton.account, self._walks.pop, id(automaton), None).atexit = False
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        walk = self._common_walk(automaton, state) if follow is None else self._walk_all(automaton, state, follow)
        with self._lock:
            kept.keep(key, walk)
        return walk

    def forget_walks(self) -> None:
        """Let go of all walks."""
        with self._lock:
            for kept in self._walks.values():
                kept.empty()

    def _common_walk(self, automaton: Automaton, state: int) -> Walk:
        """The walk of a lexical state, from disk if its language has a name; kept there if it was not yet."""
        node = automaton.nodes[state]
        known = None if node is None or self._store is None else named(node)
        if known is None or self._store is None:
            return self._walk_all(automaton, state)
        language, label = known
        file = f"{language}-{self._name}"
        # A label is numbered by the automaton, so its number is not kept.
        label_set = int(automaton.endings[automaton.state(accept(label))])
        arrays = self._store.load(file)
        if arrays is not None:
            return Walk.from_arrays(arrays, label_set)
        walk = self._walk_all(automaton, state)
        if walk.is_complete and walk.exits.keys() <= {label_set}:
            self._store.save(file, walk.to_arrays())
        return walk

    def _walk_all(self, automaton: Automaton, state: int, follow: UInt8Array | None = None) -> Walk:
        """The walk of a lexical state over the whole trie.

        With the bytes that may `follow` the lexeme, uint8 [256], the exits before other bytes are left out and the
        rest are listed whatever their number.
        """
        from decodekit.constraints.engine.compiled.kernels import EXIT_AT, EXIT_BEFORE  # imports numba

        words: Int32Array = np.zeros(self.num_words, np.int32)
        exits, seen, num_exits, num_inside = self._run(automaton, state, follow, words, NO_NODES, _MAX_EXITS)
        if num_exits > len(exits) and follow is not None:
            exits, *_ = self._run(automaton, state, follow, words, NO_NODES, num_exits)
        is_complete = num_exits <= len(exits)
        nodes, label_sets, kinds = exits[: num_exits if is_complete else 0].T
        before, at = kinds == EXIT_BEFORE, kinds == EXIT_AT
        groups = ((label_set, label_sets == label_set) for label_set in np.flatnonzero(seen).tolist())
        by_label_set = {label_set: Exits(nodes[before & group], nodes[at & group]) for label_set, group in groups}
        return Walk(words if num_inside else None, by_label_set, is_complete)

    def reached(self, automaton: Automaton, state: int) -> Int32Array:
        """By token, the lexical state after it if the lexeme goes on, else `DEAD`; int32 [V]. Not kept.

        The automaton's lock is held, and the index has all tokens.
        """
        reached: Int32Array = np.zeros(32 * self.num_words, np.int32)
        self._run(automaton, state, None, np.zeros(self.num_words, np.int32), reached, 0)
        return reached

    def _run(
        self,
        automaton: Automaton,
        state: int,
        follow: UInt8Array | None,
        words: Int32Array,
        reached: Int32Array,
        capacity: int,
    ) -> tuple[Int32Array, UInt8Array, int, int]:
        """Run `kernels.walk` to its end; returns exits, label sets, and the numbers of exits and tokens inside."""
        from decodekit.constraints.engine.compiled import kernels

        trie, start, stop = self.trie, self.root + 1, int(self.trie.end[self.root])
        stack: Int32Array = np.zeros(trie.max_depth + 1, np.int32)
        stack[self.depth] = state
        bytes_after = _ANY_BYTE if follow is None else follow
        exits: Int32Array = np.empty((capacity, 3), np.int32)
        position: Int32Array = np.array([start, 0, 0], np.int32)
        seen: UInt8Array = np.zeros(len(automaton.label_sets), np.uint8)
        while True:
            unknown = kernels.walk(
                automaton.next, automaton.kinds, automaton.endings,
                trie.byte, trie.depth, trie.end, trie.first, trie.tokens,
                bytes_after, self.depth, stop, stack, words, reached, exits, seen, position,
            )  # fmt: skip
            if unknown == -1:
                return exits, seen, int(position[1]), int(position[2])
            automaton.make(int(unknown))
            if len(seen) < len(automaton.label_sets):
                seen = np.concatenate((seen, np.zeros(len(automaton.label_sets) - len(seen), np.uint8)))

    def below(self, exits: Exits) -> Int32Array:
        """The tokens that leave a lexeme at some exits; ids in no order."""
        (before, at), first, end = exits, self.trie.first, self.trie.end
        change = np.zeros(len(self.trie.tokens) + 1, np.int32)
        for starts, stops in ((first[before], first[end[before]]), (first[at], first[at + 1])):
            np.add.at(change, starts, 1)
            np.add.at(change, stops, -1)
        return self.trie.tokens[np.cumsum(change[:-1]) > 0]

    def after(self, byte: int) -> list[TokenIndex]:
        """The tokens that begin with a byte, as what follows it; empty if there are none."""
        nodes = self.top[self.trie.byte[self.top] == byte].tolist()
        return [TokenIndex(self.vocabulary, self.trie, f"{byte}-{self._name}", self._store, node) for node in nodes]

    def along(self, data: bytes) -> Iterator[int]:
        """The tokens with which some bytes begin, the shortest first. The index has all tokens."""
        trie, node = self.trie, 0
        for byte in data:
            child, end = node + 1, int(trie.end[node])
            while child < end and trie.byte[child] < byte:  # the children of a node ascend
                child = int(trie.end[child])
            if child >= end or trie.byte[child] != byte:
                return
            node = child
            yield from trie.tokens[trie.first[node] : trie.first[node + 1]].tolist()

    def ways_out(self, walk: Walk, label_set: int) -> dict[bytes, Exits]:
        """The exits of a walk with a label set by the bytes of the lexeme before them, as places in ``walk.exits``."""
        found = walk.ways_out.get(label_set)
        if found is None:
            groups: dict[bytes, tuple[list[int], list[int]]] = {}
            for is_at, nodes in enumerate(walk.exits[label_set]):
                for place, node in enumerate(nodes.tolist()):
                    prefix = self.bytes_above(node, self.depth, int(self.trie.depth[node]) - 1 + is_at)
                    groups.setdefault(prefix, ([], []))[is_at].append(place)
            found = walk.ways_out[label_set] = {
                prefix: Exits(np.array(before, np.int32), np.array(at, np.int32))
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
        data = self.vocabulary.token_bytes[int(self.trie.tokens[self.trie.first[node]])]
        return (self._spelled(node) if data is None else data)[start:stop]

    def _spelled(self, node: int) -> bytes:
        """The prefix of a node in the spelling of a special token, from its ancestors."""
        byte, depth = self.trie.byte, self.trie.depth
        prefix = bytearray()
        while depth[node]:
            prefix.append(byte[node])
            node = int(np.flatnonzero(depth[:node] == depth[node] - 1)[-1])
        return bytes(prefix[::-1])


def _size(walk: Walk) -> int:
    return walk.num_bytes


_indices: WeakSet[TokenIndex] = WeakSet()


@on_shortage
def _forget_walks() -> None:
    for index in list(_indices):
        index.forget_walks()


_RANGES: Final = {"tokens": (1, None), "short-tokens": (1, SHORT_TOKEN), "long-tokens": (SHORT_TOKEN + 1, None)}


def store_of(vocabulary: Vocabulary) -> Store | None:
    """The store of what depends on a vocabulary alone; None if the vocabulary is too small to be worth a file."""
    if len(vocabulary) < MIN_TOKENS_KEPT:
        return None
    return Store(vocabulary.fingerprint, version_of(*_SOURCES))


@lru_cache(maxsize=8)
def _tries(vocabulary: Vocabulary) -> tuple[TokenTrie, ...]:
    """The tries of all tokens, of the short and of the long ones; from disk if they are there."""
    store = store_of(vocabulary)
    if store is not None:
        kept = [store.load(name) for name in _RANGES]
        if all(arrays is not None for arrays in kept):
            return tuple(TokenTrie.from_arrays(arrays) for arrays in kept if arrays is not None)
    with announcer.step("sorting the tokens"):
        tries = tuple(TokenTrie.build_all(vocabulary, tuple(_RANGES.values())))
        if store is not None:
            for name, made in zip(_RANGES, tries, strict=True):
                store.save(name, made.to_arrays())
    return tries


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens that have their first bytes in common: all of them, those that are short and those that are long."""

    whole: TokenIndex
    by_length: tuple[TokenIndex, ...]


@lru_cache(maxsize=8)
def all_tokens(vocabulary: Vocabulary) -> Part:
    """All tokens of a vocabulary; made once."""
    store = store_of(vocabulary)
    whole, *others = (
        TokenIndex(vocabulary, trie, name, store) for name, trie in zip(_RANGES, _tries(vocabulary), strict=True)
    )
    return Part(whole, tuple(index for index in others if len(index.trie.tokens)))


@lru_cache(maxsize=8)
def byte_tokens(vocabulary: Vocabulary) -> UInt8Array:
    """The bytes that are tokens by themselves, uint8 [256] of 0 and 1."""
    index = all_tokens(vocabulary).whole
    trie, top = index.trie, index.top
    flags: UInt8Array = np.zeros(256, np.uint8)
    flags[trie.byte[top[trie.first[top + 1] > trie.first[top]]]] = 1
    return flags


@lru_cache(maxsize=8)
def tokens_after(vocabulary: Vocabulary) -> tuple[tuple[int, Part], ...]:
    """For each blank or punctuation mark with which many tokens begin: these tokens, as what follows it.

    Half of many vocabularies begins with a blank.
    """
    every = all_tokens(vocabulary)
    trie = every.whole.trie
    parts: list[tuple[int, Part]] = []
    for node in every.whole.top.tolist():
        byte = int(trie.byte[node])
        if trie.end[node] - node >= MANY_NODES and byte < 0x80 and not chr(byte).isalnum():
            whole, *others = (after for index in (every.whole, *every.by_length) for after in index.after(byte))
            parts.append((byte, Part(whole, tuple(others))))
    return tuple(parts)
