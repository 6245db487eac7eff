"""Runs of configurations over a token trie in compiled code, which comes back for what was never met before.

Example: ``[1`` (see `recogniser`) is run over all tokens. The kernel meets the token ``],`` and needs the row of ``]``
in the automaton (`LEXICAL`), what follows the end of the array (`LEAVE`), then of what encloses it (`ENTER`). Each time
it stops, the runner asks the recogniser, which writes the answer into its arrays, and calls again. The second mask
with an array finds everything in the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.configurations import Configuration, Int64Array, StackCut, row_key
from decodekit.constraints.engine.recogniser import Recogniser, too_many
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
    """Runs the configurations of one recogniser. The lock of its automaton is held by who calls."""

    def __init__(self, recogniser: Recogniser) -> None:
        self._recogniser = recogniser
        self._threads: Int32Array = np.zeros((4, 256), np.int32)
        self._offsets: Int32Array = np.zeros(256, np.int32)
        self._todo: Int32Array = np.zeros((2, 256), np.int32)
        self._seen: Int64Array = np.full(1024, -1, np.int64)
        self._position: Int64Array = np.zeros(8, np.int64)
        self._returned: Int32Array = np.zeros(MAX_RETURNED, np.int32)

    @cached_property
    def _kernels(self) -> ModuleType:
        """The compiled functions. Their module imports numba, so it is imported with the first matcher."""
        from decodekit.constraints.engine import kernels

        return kernels

    def add_tokens(self, trie: TokenTrie, nodes: Int32Array, words: Int32Array) -> None:
        """Add the tokens of some nodes to a mask, int32 [words]."""
        self._kernels.add_tokens(nodes, trie.first, trie.tokens, words)

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
        return self._recogniser.rows.add(self._recogniser.leave(reader, label_set, text))

    def _row_of_most(self, reader: int, label_set: int, text: bytes) -> int:
        """The same; texts that are not listed share their row."""
        common = self._recogniser.fresh(reader, label_set)
        if common is not None:
            fresh, following = common
            decoded = fresh.decode(text[: len(text) - len(fresh.end)])
            if decoded is not None and decoded not in fresh.listed:
                return self._recogniser.rows.add(following)
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
        kernels, position = self._kernels, self._position
        self._begin(trie, configurations)
        captured = _NONE_CAPTURED
        while True:
            needed = kernels.run(*self._arrays(trie, captured), roots, *self._work(words), position)
            if needed == kernels.DONE:
                nodes: list[int] = self._returned[: position[kernels.NUM_RETURNED]].tolist()
                return nodes
            if needed == kernels.CAPTURED:
                node, reader, label_set, begin = map(int, position[kernels.NODE : kernels.NEED + 3])
                before = (configurations[-1 - begin][3] or b"") if begin < 0 else b""
                start = int(trie.depth[roots[position[kernels.ROOT]]]) - 1 if begin < 0 else begin
                text = before + bytes_above(node, start, int(trie.depth[node]))
                entry = [[row_key(reader, label_set), node << 20 | begin & 0xFFFFF, row_of(reader, label_set, text)]]
                captured = np.concatenate((captured, np.array(entry, np.int64)))
            elif needed == kernels.MERGE:
                self._merge(trie, roots, words)
            else:
                self._make(needed, *map(int, position[kernels.NEED : kernels.NEED + 2]))

    def _begin(self, trie: TokenTrie, configurations: Sequence[Configuration]) -> None:
        """Put the configurations before the first root."""
        kernels = self._kernels
        while len(configurations) > self._threads.shape[1]:
            self._widen()
        for number, (lexical, reader, stack, _) in enumerate(configurations):
            self._threads[:, number] = lexical, reader, stack, -1 - number
        while trie.max_depth + 3 > len(self._offsets):
            self._offsets = np.zeros(2 * len(self._offsets), np.int32)
        self._offsets[1] = len(configurations)
        self._position[kernels.ROOT], self._position[kernels.NODE] = 0, -1
        self._position[kernels.NUM_RETURNED], self._position[kernels.MERGE_ABOVE] = 0, MANY_THREADS

    def _arrays(self, trie: TokenTrie, captured: Int64Array) -> tuple[npt.NDArray[Any], ...]:
        """The arrays that a run reads, in the order of `kernels.run`. Growth replaces them."""
        recogniser = self._recogniser
        automaton, rows, stacks = recogniser.automaton, recogniser.rows, recogniser.stacks
        return (
            automaton.next, automaton.kinds, automaton.endings, automaton.low, automaton.high,
            recogniser.captures, recogniser.permitted, recogniser.num_permitted,
            rows.keys, rows.rows, rows.entry, rows.start, rows.returns, rows.lexical, rows.reader, rows.push,
            rows.pushed, captured,
            stacks.frame, stacks.parent, stacks.members, stacks.slots, stacks.count,
            trie.byte, trie.depth, trie.end, trie.first, trie.tokens,
        )  # fmt: skip

    def _work(self, words: Int32Array) -> tuple[npt.NDArray[Any], ...]:
        """The arrays that a run writes, `position` aside."""
        return self._threads, self._offsets, self._todo, self._seen, words, self._returned

    def _make(self, needed: int, one: int, two: int) -> None:
        """Make what a run needs.

        Raises:
            StackCut: it needs more of the stacks.
        """
        kernels, recogniser = self._kernels, self._recogniser
        if needed == kernels.LEXICAL:
            recogniser.automaton.make(one)
        elif needed == kernels.LEAVE:
            recogniser.add_row(one, two)
        elif needed == kernels.ENTER:
            recogniser.add_entry(one)
        elif needed == kernels.ROOM:
            self._widen()
        elif needed == kernels.STACKS:
            recogniser.stacks.grow()
        else:
            assert needed == kernels.DEEPER
            raise StackCut

    def _merge(self, trie: TokenTrie, roots: Int32Array, words: Int32Array) -> None:
        """Make one of the threads after a node that differ in their stacks alone, and go on behind that node."""
        kernels = self._kernels
        index, node, begin, end = map(int, self._position[: kernels.NEED + 2])
        groups: dict[tuple[int, int, int], list[int]] = {}
        captures = self._recogniser.captures
        for lexical, reader, stack, start in self._threads[:, begin:end].T.tolist():
            groups.setdefault((lexical, reader, start if captures[reader] else 0), []).append(stack)
        if 2 * len(groups) > end - begin:  # not worth asking again
            self._position[kernels.MERGE_ABOVE] *= 4
        for number, ((lexical, reader, start), stacks) in enumerate(groups.items(), begin):
            self._threads[:, number] = lexical, reader, self._recogniser.stacks.bundle(stacks), start
        root = int(roots[index])
        self._offsets[trie.depth[node] - trie.depth[root] + 2] = begin + len(groups)
        self.add_tokens(trie, np.array([node], np.int32), words)
        if node + 1 < trie.end[root]:
            self._position[kernels.NODE] = node + 1
        else:
            self._position[kernels.ROOT], self._position[kernels.NODE] = index + 1, -1

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
