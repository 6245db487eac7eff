"""One walk over the token trie: which tokens stay inside a lexeme, and where tokens leave it.

Compiled by numba on first use (kept on disk). The slow twin is in the tests. A walk cannot make lexical states, so when
it meets a state whose row is not filled it stops and says where; the caller fills the row and calls again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from decodekit.constraints.automaton import DEAD, FINAL, NOT_EXPANDED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from decodekit.constraints.automaton import Int32Array, UInt8Array

    Kernel: TypeAlias = Callable[..., tuple[int, int, int]]

# What the third column of an exit says.
EXIT_BEFORE: Final = 0  # the lexeme ends before the node's byte: its subtree belongs to what follows
EXIT_AT: Final = 1  # the lexeme ends with the node's byte and cannot go on: tokens of this node end with it


def _walk(
    table: Int32Array,
    kinds: UInt8Array,
    endings: Int32Array,
    byte: UInt8Array,
    depth: Int32Array,
    end: Int32Array,
    first: Int32Array,
    tokens: Int32Array,
    follow: UInt8Array,
    start_depth: int,
    stop: int,
    stack: Int32Array,
    words: Int32Array,
    exits: Int32Array,
    seen: UInt8Array,
    position: Int32Array,
) -> tuple[int, int, int]:
    """Walk the nodes from ``position[0]`` to before `stop`, with ``stack[d]`` the lexical state at depth d.

    Tokens after which the lexeme goes on get their bit in `words`. Places where the lexeme ends go to `exits`
    (rows: node, label set, `EXIT_BEFORE` or `EXIT_AT`), the former only for bytes that `follow` (uint8 [256]) marks;
    their label sets are marked in `seen`. At `start_depth`, where the walk begins, the lexeme does not end: that
    alternative is a configuration of its own. ``position`` is (next node, number of exits, number of tokens inside);
    exits beyond the capacity are counted, not stored.

    Returns:
        (state to expand or -1 when the walk is complete, number of exits, number of tokens inside).
    """
    node, num_exits, num_inside = position[0], position[1], position[2]
    capacity = len(exits)
    while node < stop:
        level = depth[node]
        state = stack[level - 1]
        kind = kinds[state]
        if kind == NOT_EXPANDED:
            position[0], position[1], position[2] = node, num_exits, num_inside
            return state, num_exits, num_inside
        value = byte[node]
        target = table[state, value]
        if target != DEAD and kinds[target] == NOT_EXPANDED:
            position[0], position[1], position[2] = node, num_exits, num_inside
            return target, num_exits, num_inside
        if endings[state] != 0 and follow[value] != 0 and level - 1 > start_depth:
            seen[endings[state]] = 1
            if num_exits < capacity:
                exits[num_exits, 0], exits[num_exits, 1], exits[num_exits, 2] = node, endings[state], EXIT_BEFORE
            num_exits += 1
        if target == DEAD:
            node = end[node]
            continue
        stack[level] = target
        low, high = first[node], first[node + 1]
        if low != high:
            if kinds[target] == FINAL:
                seen[endings[target]] = 1
                if num_exits < capacity:
                    exits[num_exits, 0], exits[num_exits, 1], exits[num_exits, 2] = node, endings[target], EXIT_AT
                num_exits += 1
            else:
                for i in range(low, high):
                    token = tokens[i]
                    words[token >> 5] |= np.int32(1) << np.int32(token & 31)
                num_inside += high - low
        node += 1
    position[0], position[1], position[2] = node, num_exits, num_inside
    return -1, num_exits, num_inside


@lru_cache(maxsize=1)
def walk_kernel() -> Kernel:
    """The compiled walk. numba is imported here and nowhere earlier."""
    import numba

    kernel: Kernel = numba.njit(cache=True, nogil=True)(_walk)
    return kernel
