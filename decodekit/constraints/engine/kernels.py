"""Walks over the token trie, compiled by numba on first use (kept on disk). Their slow twins are in the tests.

`walk_kernel`: one lexical state; which tokens stay inside the lexeme, and where tokens leave it. `reach_kernel`: the
same, for where those lead that stay inside. `run_kernel`: the configurations of a network, through any number of
lexemes and frames. None can make lexical states or places: where one is missing, a walk stops and says what it needs;
the caller makes it and calls again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from decodekit.constraints.engine.automaton import DEAD, FINAL, NOT_EXPANDED, OPEN
from decodekit.constraints.engine.configurations import BUNDLE, CUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from decodekit.constraints.engine.automaton import Int32Array, UInt8Array
    from decodekit.constraints.engine.configurations import Int64Array

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
        (state to expand, or -1 when the walk is complete, or -2 - (256 * state + byte) for an open edge to follow;
        number of exits; number of tokens inside).
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
        if target == OPEN:
            position[0], position[1], position[2] = node, num_exits, num_inside
            return -2 - (np.int64(state) << 8 | value), num_exits, num_inside
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


def _reach(
    table: Int32Array,
    kinds: UInt8Array,
    byte: UInt8Array,
    depth: Int32Array,
    end: Int32Array,
    first: Int32Array,
    tokens: Int32Array,
    stack: Int32Array,
    reached: Int32Array,
    position: Int32Array,
) -> int:
    """The walk of ``stack[0]`` over a whole trie once more, for the states that it leads to.

    ``reached[t]`` becomes the lexical state after token t, for the tokens after which the lexeme goes on; others are
    left as they are. ``position`` is (next node,), 1 at first.

    Returns:
        As `_walk`: a state to expand, -1, or an open edge to follow.
    """
    node = position[0]
    while node < len(byte):
        level = depth[node]
        state = stack[level - 1]
        if kinds[state] == NOT_EXPANDED:
            position[0] = node
            return int(state)
        value = byte[node]
        target = table[state, value]
        if target == OPEN:
            position[0] = node
            return int(-2 - (np.int64(state) << 8 | value))
        if target == DEAD:
            node = end[node]
            continue
        if kinds[target] == NOT_EXPANDED:
            position[0] = node
            return int(target)
        stack[level] = target
        if kinds[target] != FINAL:
            for i in range(first[node], first[node + 1]):
                reached[tokens[i]] = target
        node += 1
    return -1


# What a run needs before it can go on.
DONE: Final = 0
EXPAND: Final = 1  # the row of a lexical state
LEAVE: Final = 2  # what follows when a reader ends a lexeme with a label set
CAPTURED: Final = 3  # the same for a reader that captures: (reader, label set, depth at which the lexeme began)
ENTER: Final = 4  # what follows on the entry of a frame
ROOM: Final = 5  # space for more configurations
STACKS: Final = 6  # space for more stacks
FOLLOW: Final = 7  # the open edge of a lexical state
MERGE: Final = 8  # so many threads after a node that it is worth asking which differ in their stacks alone
DEEPER: Final = 9  # more of the stacks: too many tokens end what was left out

FEW: Final = 32  # threads that are compared one by one


def _run(
    table: Int32Array,
    kinds: UInt8Array,
    endings: Int32Array,
    low: Int32Array,
    high: Int32Array,
    captures: UInt8Array,
    permitted: Int32Array,
    num_permitted: Int32Array,
    keys: Int64Array,
    rows: Int32Array,
    entry: Int32Array,
    start: Int32Array,
    returns: UInt8Array,
    row_lexical: Int32Array,
    row_reader: Int32Array,
    push: Int32Array,
    pushed: Int32Array,
    stack_frame: Int32Array,
    stack_parent: Int32Array,
    members: Int32Array,
    stack_slots: Int32Array,
    num_stacks: Int64Array,
    captured: Int64Array,
    byte: UInt8Array,
    depth: Int32Array,
    end: Int32Array,
    first: Int32Array,
    tokens: Int32Array,
    roots: Int32Array,
    threads: Int32Array,
    todo: Int32Array,
    seen: Int64Array,
    offsets: Int32Array,
    words: Int32Array,
    returned: Int32Array,
    position: Int64Array,
) -> int:
    """Add the tokens at and below `roots` that the configurations ``threads[:, :offsets[1]]`` allow to `words`.

    The configurations are those before the byte of a root. ``threads`` is int32 [4, capacity]: lexical state, reader,
    stack, and the depth of the trie at which the lexeme began (-1 - i: before the root, for configuration i); those
    after the byte of a node at level L below its root (1 for the root itself) lie at ``offsets[L]`` to before
    ``offsets[L + 1]``. ``captured`` holds what CAPTURED asked for, int64 [n, 3]: (reader * 2**32 + label set,
    node * 2**20 + depth, row). ``returned`` gets the nodes whose subtrees depend on what lies below a `CUT`.
    ``position`` is (index of the root, node, what is needed: up to three numbers; at [5] the number of nodes so far, at
    [6] that of nodes in ``returned``, at [7] the number of threads above which MERGE is asked for). Scratch space:
    ``todo``, int32 [2, capacity], and ``seen``, int64 [a power of two], where 2**20 * (number of the node) + thread is
    found by what the thread is.

    Returns:
        DONE, or what is needed; with the same arguments the run then goes on where it stopped.
    """
    index, node = position[0], position[1]
    mask = len(keys) - 1
    stack_mask = len(stack_slots) - 1
    seen_mask = len(seen) - 1
    capacity = threads.shape[1]
    while index < len(roots):
        root = roots[index]
        stop = end[root]
        if node < root or node >= stop:
            node = root
        base = depth[root] - 1
        while node < stop:
            level = depth[node] - base
            begin = offsets[level]
            count = begin
            position[5] += 1
            value = byte[node]
            is_alive = False
            for i in range(offsets[level - 1], begin):
                state = threads[0, i]
                reader = threads[1, i]
                if kinds[state] == NOT_EXPANDED:
                    position[0], position[1], position[2] = index, node, state
                    return EXPAND
                target = table[state, value]
                if target == DEAD:
                    continue
                if target == OPEN:
                    position[0], position[1], position[2], position[3] = index, node, state, value
                    return FOLLOW
                if kinds[target] == NOT_EXPANDED:
                    position[0], position[1], position[2] = index, node, target
                    return EXPAND
                selection = permitted[reader]
                is_ranged = selection >= 0 and low[target] >= 0
                if is_ranged and num_permitted[selection + high[target]] == num_permitted[selection + low[target]]:
                    continue
                if kinds[target] != FINAL:
                    is_new = True
                    for j in range(begin, count):
                        if threads[0, j] == target and threads[1, j] == reader and threads[2, j] == threads[2, i]:
                            is_new = False
                            break
                    if is_new:
                        if count == capacity:
                            position[0], position[1] = index, node
                            return ROOM
                        threads[0, count], threads[1, count] = target, reader
                        threads[2, count], threads[3, count] = threads[2, i], threads[3, i]
                        count += 1
                ending = endings[target]
                if ending == 0:
                    continue
                key = np.int64(reader) << 32 | ending
                row = -1
                if captures[reader]:
                    detail = np.int64(node) << 20 | (threads[3, i] & 0xFFFFF)
                    for j in range(len(captured)):
                        if captured[j, 0] == key and captured[j, 1] == detail:
                            row = captured[j, 2]
                            break
                    if row < 0:
                        position[0], position[1], position[2], position[3] = index, node, reader, ending
                        position[4] = threads[3, i]
                        return CAPTURED
                else:
                    slot = (key ^ key >> 29) * 0x9E3779B1 & mask
                    while keys[slot] >= 0:
                        if keys[slot] == key:
                            row = rows[slot]
                            break
                        slot = slot + 1 & mask
                    if row < 0:
                        position[0], position[1], position[2], position[3] = index, node, reader, ending
                        return LEAVE
                todo[0, 0], todo[1, 0] = threads[2, i], row
                num_todo = 1
                while num_todo > 0:
                    num_todo -= 1
                    stack, row = todo[0, num_todo], todo[1, num_todo]
                    for k in range(start[row], start[row + 1]):
                        inner = stack
                        for m in range(push[k], push[k + 1]):
                            if num_stacks[0] == len(stack_frame):
                                position[0], position[1] = index, node
                                return STACKS
                            frame = pushed[m]
                            key = np.int64(inner) << 32 | frame
                            slot = (key ^ key >> 29) * 0x9E3779B1 & stack_mask
                            number = stack_slots[slot]
                            while number != 0 and (stack_parent[number] != inner or stack_frame[number] != frame):
                                slot = slot + 1 & stack_mask
                                number = stack_slots[slot]
                            if number == 0:
                                number = num_stacks[0]
                                num_stacks[0] += 1
                                stack_slots[slot] = number
                                stack_parent[number], stack_frame[number] = inner, frame
                            inner = number
                        is_new = True
                        slot = -1
                        if count - begin < FEW:
                            for j in range(begin, count):
                                if (
                                    threads[0, j] == row_lexical[k]
                                    and threads[1, j] == row_reader[k]
                                    and threads[2, j] == inner
                                ):
                                    is_new = False
                                    break
                        else:
                            key = (np.int64(inner) << 32 | row_reader[k]) * 31 + row_lexical[k]
                            slot = (key ^ key >> 29) * 0x9E3779B1 & seen_mask
                            while seen[slot] >> 20 == position[5]:
                                j = seen[slot] & 0xFFFFF
                                if (
                                    threads[0, j] == row_lexical[k]
                                    and threads[1, j] == row_reader[k]
                                    and threads[2, j] == inner
                                ):
                                    is_new = False
                                    break
                                slot = slot + 1 & seen_mask
                        if is_new:
                            if count == capacity:
                                position[0], position[1] = index, node
                                return ROOM
                            threads[0, count], threads[1, count] = row_lexical[k], row_reader[k]
                            threads[2, count], threads[3, count] = inner, depth[node]
                            if slot >= 0:
                                seen[slot] = position[5] << 20 | count
                            count += 1
                    if returns[row] == 0:
                        continue
                    # A bundle goes on in each of its stacks.
                    low_member = high_member = -1
                    if stack_frame[stack] == BUNDLE:
                        low_member = stack_parent[stack] + 1
                        high_member = low_member + members[low_member - 1] - 1
                    for j in range(low_member, high_member + 1):
                        below = stack if j < 0 else members[j]
                        if below == 0:
                            is_alive = True
                            continue
                        frame = stack_frame[below]
                        if frame == CUT:
                            if position[6] == 0 or returned[position[6] - 1] != node:
                                if position[6] == len(returned):
                                    return DEEPER
                                returned[position[6]] = node
                                position[6] += 1
                            continue
                        if entry[frame] < 0:
                            position[0], position[1], position[2] = index, node, frame
                            return ENTER
                        if num_todo == capacity:
                            position[0], position[1] = index, node
                            return ROOM
                        todo[0, num_todo], todo[1, num_todo] = stack_parent[below], entry[frame]
                        num_todo += 1
            if count - begin > position[7]:
                position[0], position[1], position[2], position[3] = index, node, begin, count
                return MERGE
            if count > begin:
                is_alive = True
            if is_alive:
                for i in range(first[node], first[node + 1]):
                    token = tokens[i]
                    words[token >> 5] |= np.int32(1) << np.int32(token & 31)
            if count > begin:
                offsets[level + 1] = count
                node += 1
            else:
                node = end[node]
        index += 1
        node = -1
    position[0] = index
    return DONE


def _add_tokens(nodes: Int32Array, first: Int32Array, tokens: Int32Array, words: Int32Array) -> None:
    """Add the tokens of some nodes to `words`."""
    for node in nodes:
        for i in range(first[node], first[node + 1]):
            token = tokens[i]
            words[token >> 5] |= np.int32(1) << np.int32(token & 31)


@lru_cache(maxsize=1)
def walk_kernel() -> Kernel:
    """The compiled walk. numba is imported when a kernel is asked for and not earlier."""
    from decodekit.constraints.engine.numba_cache import compiled

    return compiled(_walk)


@lru_cache(maxsize=1)
def reach_kernel() -> Callable[..., int]:
    """The compiled `_reach`."""
    from decodekit.constraints.engine.numba_cache import compiled

    return compiled(_reach)


@lru_cache(maxsize=1)
def run_kernel() -> Callable[..., int]:
    """The compiled run."""
    from decodekit.constraints.engine.numba_cache import compiled

    return compiled(_run)


@lru_cache(maxsize=1)
def add_tokens_kernel() -> Callable[..., None]:
    """The compiled `_add_tokens`."""
    from decodekit.constraints.engine.numba_cache import compiled

    return compiled(_add_tokens)
