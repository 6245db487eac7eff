"""Runs of configurations over a token trie in compiled code, which comes back for what was never met before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from decodekit.constraints.engine.automaton import Automaton, Int32Array
from decodekit.constraints.engine.configurations import Configuration, Int64Array, StackCut, row_key
from decodekit.constraints.engine.kernels import (
    CAPTURED,
    DEEPER,
    DONE,
    ENTER,
    EXPAND,
    FOLLOW,
    LEAVE,
    MERGE,
    ROOM,
    STACKS,
    add_tokens_kernel,
    run_kernel,
)
from decodekit.constraints.engine.recogniser import Unfolding, too_many
from decodekit.constraints.engine.trie import TokenTrie
from decodekit.constraints.network import TextNeeded

MAX_THREADS: Final = 1 << 17
"""Bound on the configurations along one token."""

MANY_THREADS: Final = 256
"""From so many configurations after one node on, those that differ in their stacks alone are made one."""
MAX_RETURNED: Final = 64
"""So many nodes at most are put off because they depend on what was cut from the stacks."""

_NONE_CAPTURED: Final = np.zeros((0, 3), np.int64)


class Runner:
    """Runs the configurations of one unfolding. The lock of its automaton is held by who calls."""

    def __init__(self, unfolding: Unfolding) -> None:
        self._unfolding = unfolding
        self._threads: Int32Array = np.zeros((4, 256), np.int32)
        self._offsets: Int32Array = np.zeros(256, np.int32)
        self._todo: Int32Array = np.zeros((2, 256), np.int32)
        self._seen: Int64Array = np.full(1024, -1, np.int64)
        self._position: Int64Array = np.zeros(8, np.int64)
        self._returned: Int32Array = np.zeros(MAX_RETURNED, np.int32)

    def run(
        self,
        trie: TokenTrie,
        roots: Int32Array,
        configurations: Sequence[Configuration],
        words: Int32Array,
        bytes_above: Callable[[int, int, int], bytes],
    ) -> list[int]:
        """Add the tokens at and below `roots` whose bytes, from that of a root on, the configurations allow.

        ``bytes_above(node, start, stop)`` are the bytes of the node's prefix from one depth to another.

        Returns:
            Nodes at and below which tokens may be missing, because they lead to the place where a stack was cut.

        Raises:
            TextNeeded: the configurations follow a text that is not known, and it matters.
            StackCut: there are more than `MAX_RETURNED` such nodes.
        """
        try:
            return self._run(trie, roots, configurations, words, bytes_above, self._row_of_most)
        except TextNeeded:
            # Perhaps because of a text that was captured on the way and taken to be any; the tokens so far are right.
            return self._run(trie, roots, configurations, words, bytes_above, self._row_of)

    def _row_of(self, reader: int, label_set: int, text: bytes) -> int:
        """What follows a captured text."""
        return self._unfolding.rows.add(self._unfolding.leave(reader, label_set, text))

    def _row_of_most(self, reader: int, label_set: int, text: bytes) -> int:
        """The same; texts that are not listed share their row."""
        common = self._unfolding.fresh(reader, label_set)
        if common is not None:
            fresh, following = common
            decoded = fresh.decode(text[: len(text) - len(fresh.end)])
            if decoded is not None and decoded not in fresh.listed:
                return self._unfolding.rows.add(following)
        return self._row_of(reader, label_set, text)

    def _run(
        self,
        trie: TokenTrie,
        roots: Int32Array,
        configurations: Sequence[Configuration],
        words: Int32Array,
        bytes_above: Callable[[int, int, int], bytes],
        row_of: Callable[[int, int, bytes], int],
    ) -> list[int]:
        unfolding = self._unfolding
        rows, stacks = unfolding.rows, unfolding.stacks
        automaton: Automaton = unfolding.automaton
        kernel, position = run_kernel(), self._position
        while len(configurations) > self._threads.shape[1]:
            self._widen()
        for number, (lexical, reader, stack, _) in enumerate(configurations):
            self._threads[:, number] = lexical, reader, stack, -1 - number
        while trie.max_depth + 3 > len(self._offsets):
            self._offsets = np.zeros(2 * len(self._offsets), np.int32)
        self._offsets[1] = len(configurations)
        position[0], position[1], position[6], position[7] = 0, -1, 0, MANY_THREADS
        captured = _NONE_CAPTURED
        while True:
            needed = kernel(
                automaton.next, automaton.kinds, automaton.endings, automaton.low, automaton.high,
                unfolding.captures, unfolding.permitted, unfolding.num_permitted,
                rows.keys, rows.rows, rows.entry, rows.start, rows.returns, rows.lexical, rows.reader, rows.push,
                rows.pushed, stacks.frame, stacks.parent, stacks.members, stacks.slots, stacks.count, captured,
                trie.byte, trie.depth, trie.end, trie.first, trie.tokens,
                roots, self._threads, self._todo, self._seen, self._offsets, words,
                self._returned, position,
            )  # fmt: skip
            if needed == DONE:
                nodes: list[int] = self._returned[: position[6]].tolist()
                return nodes
            if needed == EXPAND:
                automaton.expand(int(position[2]))
            elif needed == FOLLOW:
                automaton.follow(int(position[2]), int(position[3]))
            elif needed == LEAVE:
                unfolding.add_row(int(position[2]), int(position[3]))
            elif needed == ENTER:
                unfolding.add_entry(int(position[2]))
            elif needed == ROOM:
                self._widen()
            elif needed == STACKS:
                stacks.grow()
            elif needed == MERGE:
                self._merge(trie, roots, words)
            elif needed == DEEPER:
                raise StackCut
            elif needed == CAPTURED:
                node, reader, label_set, begin = map(int, position[1:5])
                before = (configurations[-1 - begin][3] or b"") if begin < 0 else b""
                start = int(trie.depth[roots[position[0]]]) - 1 if begin < 0 else begin
                text = before + bytes_above(node, start, int(trie.depth[node]))
                entry = [[row_key(reader, label_set), node << 20 | begin & 0xFFFFF, row_of(reader, label_set, text)]]
                captured = np.concatenate((captured, np.array(entry, np.int64)))

    def _merge(self, trie: TokenTrie, roots: Int32Array, words: Int32Array) -> None:
        """Make one of the threads after a node that differ in their stacks alone, and go on behind that node."""
        index, node, begin, end = map(int, self._position[:4])
        groups: dict[tuple[int, int, int], list[int]] = {}
        captures = self._unfolding.captures
        for lexical, reader, stack, start in self._threads[:, begin:end].T.tolist():
            groups.setdefault((lexical, reader, start if captures[reader] else 0), []).append(stack)
        if 2 * len(groups) > end - begin:  # not worth asking again
            self._position[7] *= 4
        for number, ((lexical, reader, start), stacks) in enumerate(groups.items(), begin):
            self._threads[:, number] = lexical, reader, self._unfolding.stacks.bundle(stacks), start
        root = int(roots[index])
        self._offsets[trie.depth[node] - trie.depth[root] + 2] = begin + len(groups)
        add_tokens_kernel()(np.array([node], np.int32), trie.first, trie.tokens, words)
        if node + 1 < trie.end[root]:
            self._position[1] = node + 1
        else:
            self._position[0], self._position[1] = index + 1, -1

    def _widen(self) -> None:
        """Make room for more threads.

        Raises:
            ResourceLimitError: there are too many.
        """
        capacity = 2 * self._threads.shape[1]
        if capacity > MAX_THREADS:
            raise too_many()
        self._threads = np.concatenate((self._threads, np.zeros_like(self._threads)), axis=1)
        self._todo = np.zeros((2, capacity), np.int32)
        self._seen = np.full(4 * capacity, -1, np.int64)
