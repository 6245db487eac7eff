"""Runs of configurations over a token trie in compiled code, which comes back for what was never met before.

Example: ``[1`` (see `recogniser`) is run over all tokens. The kernel meets the token ``],`` and needs the row of ``]``
in the automaton (`LEXICAL`), what follows the end of the array (`LEAVE`), then of what encloses it (`ENTER`). Each time
it stops, the runner asks the recogniser, which writes the answer into its arrays, and calls again. The second mask
with an array finds everything in the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.configurations import Configuration, Int64Array, StackCut, row_key
from decodekit.constraints.engine.recogniser import Recogniser, too_many
from decodekit.constraints.engine.token_index import TokenIndex
from decodekit.constraints.engine.trie import TokenTrie
from decodekit.constraints.network import TextNeeded
from decodekit.constraints.work_budget import Unfinished, charge, is_sliced, spend

MAX_THREADS: Final = 1 << 17
"""Bound on the configurations along one token."""

MANY_THREADS: Final = 256
"""From so many configurations after one node on, those that differ in their stacks alone are made one."""
MAX_RETURNED: Final = 64
"""So many nodes at most are put off because they depend on what was cut from the stacks."""

MAX_LONG_RUNS: Final = 256
"""So many runs are kept that were stopped, or were long: the masks that need them may not be whole yet."""
STEPS_KEPT: Final = 64
"""From so many steps on a run is long."""
STEPS_OF_RUN: Final = 32
"""So many steps of a run take as long as one of `work_budget`."""

_NONE_CAPTURED: Final = np.zeros((0, 3), np.int64)

_Key: TypeAlias = tuple[TokenIndex, bytes, tuple[Configuration, ...], bool]


@dataclass(frozen=True, slots=True)
class _LongRun:
    """A run that was stopped in the middle: the arrays of `kernels.Run`, as far as they are filled.

    `words` has the tokens of this run alone: what else is in a mask differs from one mask to the next.
    """

    num_steps: int
    threads: Int32Array
    offsets: Int32Array
    position: Int64Array
    returned: Int32Array
    captured: Int64Array
    words: Int32Array


class Runner:
    """Runs the configurations of one recogniser. The lock of its automaton is held by who calls."""

    def __init__(self, recogniser: Recogniser) -> None:
        self._recogniser = recogniser
        self._threads: Int32Array = np.zeros((4, 256), np.int32)
        self._offsets: Int32Array = np.zeros(256, np.int32)
        self._todo: Int32Array = np.zeros((2, 256), np.int32)
        self._places: Int64Array = np.full(1024, -1, np.int64)
        self._seen: Int64Array = np.full(1024, -1, np.int64)
        self._position: Int64Array = np.zeros(9, np.int64)
        self._returned: Int32Array = np.zeros(MAX_RETURNED, np.int32)
        self._long_runs: dict[_Key, _LongRun] = {}  # the one that was used last at the end
        self._num_steps = 0  # of the run that goes on, those of `work_budget`

    @cached_property
    def _kernels(self) -> ModuleType:
        """The compiled functions. Their module imports numba, so it is imported with the first matcher."""
        from decodekit.constraints.engine.compiled import kernels

        return kernels

    def add_tokens(self, trie: TokenTrie, nodes: Int32Array, words: Int32Array) -> None:
        """Add the tokens of some nodes to a mask, int32 [words]."""
        self._kernels.add_tokens(nodes, trie.first, trie.tokens, words)

    def run(
        self, index: TokenIndex, roots: Int32Array, configurations: tuple[Configuration, ...], words: Int32Array
    ) -> list[int]:
        """Add the tokens at and below `roots` whose bytes, from that of a root on, the configurations allow.

        Returns:
            Nodes at and below which tokens may be missing, because they lead to the place where a stack was cut.

        Raises:
            TextNeeded: the configurations follow a text that is not known, and it matters.
            StackCut: there are more than `MAX_RETURNED` such nodes.
        """
        try:
            return self._run(index, roots, configurations, words, is_listed=False)
        except TextNeeded:
            # Perhaps because of a text that was captured on the way and taken to be any; the tokens so far are right.
            return self._run(index, roots, configurations, words, is_listed=True)

    def _run(
        self,
        index: TokenIndex,
        roots: Int32Array,
        configurations: tuple[Configuration, ...],
        words: Int32Array,
        is_listed: bool,
    ) -> list[int]:
        kernels, position, trie = self._kernels, self._position, index.trie
        self._begin(trie, configurations)
        captured, own = _NONE_CAPTURED, words
        key: _Key | None = (index, roots.tobytes(), configurations, is_listed) if is_sliced() else None
        if key is not None:
            begun = self._long_runs.pop(key, None)
            if begun is None:
                own = np.zeros_like(words)
            else:
                captured, own = begun.captured, begun.words
                self._go_on_with(begun)
        try:
            while (needed := kernels.run(*self._arguments(trie, captured, roots, own))) != kernels.DONE:
                if needed == kernels.CAPTURED:
                    captured = self._with_row_of_captured(captured, index, roots, configurations, is_listed)
                elif needed == kernels.MERGE:
                    self._merge(trie, roots, own)
                elif needed != kernels.PAUSE:
                    self._make(needed, *map(int, position[kernels.NEED : kernels.NEED + 2]))
                else:
                    self._charge()
                    spend()
        except Unfinished:
            self._charge()
            if key is not None:
                level = int(trie.depth[position[kernels.NODE]] - trie.depth[roots[position[kernels.ROOT]]]) + 1
                self._keep(key, level, captured, own)
            raise
        self._charge()
        if key is not None:
            words |= own
            if self._num_steps >= STEPS_KEPT:  # what the mask needs besides may take more than a slice
                self._keep(key, 0, captured, own)
        nodes: list[int] = self._returned[: position[kernels.NUM_RETURNED]].tolist()
        return nodes

    def _with_row_of_captured(
        self,
        captured: Int64Array,
        index: TokenIndex,
        roots: Int32Array,
        configurations: tuple[Configuration, ...],
        is_listed: bool,
    ) -> Int64Array:
        """The rows of captured texts, with one more: that of the text that the run has met.

        Texts that are not listed share theirs, unless all are to be taken as if they were (`is_listed`).
        """
        kernels, position, depth = self._kernels, self._position, index.trie.depth
        node, reader, label_set, begin = map(int, position[kernels.NODE : kernels.NEED + 3])
        before = (configurations[-1 - begin][3] or b"") if begin < 0 else b""
        start = int(depth[roots[position[kernels.ROOT]]]) - 1 if begin < 0 else begin
        text = before + index.bytes_above(node, start, int(depth[node]))
        closure = None
        common = None if is_listed else self._recogniser.fresh(reader, label_set)
        if common is not None:
            decoded = common[0].decode(text[: len(text) - len(common[0].end)])
            closure = None if decoded is None or decoded in common[0].listed else common[1]
        row = self._recogniser.rows.add(closure or self._recogniser.leave(reader, label_set, text))
        entry = [[row_key(reader, label_set), node << 20 | begin & 0xFFFFF, row]]
        return np.concatenate((captured, np.array(entry, np.int64)))

    def _charge(self) -> None:
        """Count the steps of a run since it was counted last."""
        num_steps = int(self._position[self._kernels.NUM_STEPS]) // STEPS_OF_RUN
        self._num_steps += num_steps
        self._position[self._kernels.NUM_STEPS] = 0
        charge(num_steps)

    def _keep(self, key: _Key, level: int, captured: Int64Array, words: Int32Array) -> None:
        """Keep where a long run is: at a node of a level below its root, or at its end."""
        offsets = self._offsets[: level + 1].copy()
        threads = self._threads[:, : offsets[level]].copy()
        position, returned = self._position.copy(), self._returned.copy()
        self._long_runs[key] = _LongRun(self._num_steps, threads, offsets, position, returned, captured, words)
        if len(self._long_runs) > MAX_LONG_RUNS:
            del self._long_runs[next(iter(self._long_runs))]

    def _go_on_with(self, kept: _LongRun) -> None:
        """Put a long run to where it was stopped."""
        num_nodes = int(self._position[self._kernels.NUM_NODES])  # what is marked in `seen` and `places` stays marked
        while kept.threads.shape[1] > self._threads.shape[1]:
            self._widen()
        self._threads[:, : kept.threads.shape[1]] = kept.threads
        self._offsets[: len(kept.offsets)] = kept.offsets
        self._num_steps = kept.num_steps
        self._position[:], self._returned[:] = kept.position, kept.returned
        self._position[self._kernels.NUM_NODES] = num_nodes

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
        self._position[kernels.NUM_STEPS] = self._num_steps = 0

    def _arguments(
        self, trie: TokenTrie, captured: Int64Array, roots: Int32Array, words: Int32Array
    ) -> tuple[npt.NDArray[Any], ...]:
        """The arrays of a run, in the order of `kernels.run`. Growth replaces them."""
        recogniser = self._recogniser
        automaton, rows, stacks = recogniser.automaton, recogniser.rows, recogniser.stacks
        return (
            automaton.next, automaton.kinds, automaton.endings, automaton.low, automaton.high,
            recogniser.captures, recogniser.permitted, recogniser.num_permitted,
            rows.keys, rows.rows, rows.entry, rows.start, rows.returns, rows.lexical, rows.reader, rows.push,
            rows.pushed, captured,
            stacks.frame, stacks.parent, stacks.members, stacks.slots, stacks.count,
            trie.byte, trie.depth, trie.end, trie.first, trie.tokens, roots,
            self._threads, self._offsets, self._todo, self._places, self._seen, words, self._returned, self._position,
        )  # fmt: skip

    def _make(self, needed: int, one: int, two: int) -> None:
        """Make what a run needs; `StackCut` if that is more of the stacks."""
        kernels, recogniser = self._kernels, self._recogniser
        if needed == kernels.LEXICAL:
            recogniser.automaton.make(one)
        elif needed == kernels.LEAVE:
            recogniser.rows.put(row_key(one, two), recogniser.rows.add(recogniser.leave(one, two)))
        elif needed == kernels.ENTER:
            recogniser.rows.put_entry(one, recogniser.rows.add(recogniser.enter(one)))
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
        lexical, reader, stack, start = self._threads[:, begin:end].copy()
        start[self._recogniser.captures[reader] == 0] = 0
        order = np.lexsort((start, reader, lexical))
        kinds = np.stack((lexical, reader, start))[:, order]
        firsts = np.flatnonzero(np.any(kinds[:, 1:] != kinds[:, :-1], axis=0)) + 1
        groups = np.split(order, firsts)
        if 2 * len(groups) > end - begin:  # not worth asking again
            self._position[kernels.MERGE_ABOVE] *= 4
        for number, group in enumerate(groups, begin):
            one = group[0]
            bundle = self._recogniser.stacks.bundle(stack[group].tolist())
            self._threads[:, number] = lexical[one], reader[one], bundle, start[one]
        root = int(roots[index])
        self._offsets[trie.depth[node] - trie.depth[root] + 2] = begin + len(groups)
        self.add_tokens(trie, np.array([node], np.int32), words)
        if node + 1 < trie.end[root]:
            self._position[kernels.NODE] = node + 1
        else:
            self._position[kernels.ROOT], self._position[kernels.NODE] = index + 1, -1

    def _widen(self) -> None:
        """Make room for more threads, up to `MAX_THREADS`."""
        capacity = 2 * self._threads.shape[1]
        if capacity > MAX_THREADS:
            raise too_many()
        self._threads = np.concatenate((self._threads, np.zeros_like(self._threads)), axis=1)
        self._todo = np.zeros((2, capacity), np.int32)
        self._places = np.full(4 * capacity, -1, np.int64)
        self._seen = np.full(4 * capacity, -1, np.int64)
