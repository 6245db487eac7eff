"""The states of a word list, made at once: a trie of bytes whose rows are written without a derivative for each state.

Front ends describe their lists (the keys of an object) as lazily derived nodes, and a mask looks at every beginning of
every word. For lists of common sizes it is much cheaper to lay all states out at once; what is rarely met, such as the
words spelled with escapes, stays with the node: its edges are left open until somebody follows one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

N = TypeVar("N")

MAX_BYTES: Final = 2048
"""Longest list, in bytes, that is laid out; each byte may be a state with a row of a kilobyte."""


class Block(Generic[N]):
    """The trie of some words as numbered states, 0 the root. What follows a word is a node.

    Args:
        words: different, ascending.
        ends: what follows each word; begins with no byte that continues another word there.
        open_edge: the byte whose edge is left open, by a word and a depth in bytes at which that word goes on, or -1;
            not asked where no word goes on.
        resolve: what follows the open edge of a state, by the range of its words and its depth in bytes.

    Attributes:
        source, byte, target: the edges, int32 each.
        open_state, open_byte: the edges that are left open, int32 each.
        end_state: the state at the end of each word, int32.
        low, high: the words below each state, int32.
    """

    def __init__(
        self,
        words: Sequence[bytes],
        ends: Sequence[N],
        open_edge: Callable[[bytes, int], int],
        resolve: Callable[[int, int, int], N],
    ) -> None:
        edges: list[tuple[int, int, int]] = []
        opened: list[tuple[int, int]] = []
        low, high, depths = [0], [len(words)], [0]
        path = [0]  # the states along the last word, by depth
        previous = b""
        ended: list[int] = []
        for number, word in enumerate(words):
            unlike = (i for i, (one, other) in enumerate(zip(previous, word, strict=False)) if one != other)
            shared = next(unlike, min(len(previous), len(word)))
            for state in path[shared + 1 :]:
                high[state] = number
            del path[shared + 1 :]
            for depth in range(shared, len(word)):
                state = len(low)
                edges.append((path[-1], word[depth], state))
                low.append(number)
                high.append(len(words))
                depths.append(depth + 1)
                path.append(state)
            ended.append(path[-1])
            previous = word
        inner = {source for source, _, _ in edges}
        for state in inner:
            byte = open_edge(words[high[state] - 1], depths[state])
            if byte >= 0:
                opened.append((state, byte))
        self.ends = ends
        self.num_states = len(low)
        self._depths = depths
        self._resolve = resolve
        self.source, self.byte, self.target = _columns(edges, 3)
        self.open_state, self.open_byte = _columns(opened, 2)
        self.end_state = np.array(ended, np.int32)
        self.low, self.high = np.array(low, np.int32), np.array(high, np.int32)

    def closed(self) -> Block[N]:
        """This block, with no edge left open."""
        self.open_state, self.open_byte = _columns([], 2)
        return self

    def path(self, state: int) -> bytes:
        """The bytes that lead from the root to a state."""
        path = bytearray()
        while state:
            path.append(self.byte[state - 1])  # state k is the target of edge k - 1
            state = int(self.source[state - 1])
        return bytes(path[::-1])

    def open_node(self, state: int) -> N:
        """The node behind the open edge of a state."""
        return self._resolve(int(self.low[state]), int(self.high[state]), self._depths[state])


def _columns(rows: Sequence[tuple[int, ...]], num_columns: int) -> tuple[npt.NDArray[np.int32], ...]:
    return tuple(np.array(rows, np.int32).reshape(-1, num_columns).T)
