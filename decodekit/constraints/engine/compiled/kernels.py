"""The compiled kernels: walks of lexical states and runs of configurations over the token trie.

Example: the vocabulary ``a``, ``"``, ``",`` and ``ab"`` is the trie

    node    1 "    2 ,    3 a    4 b    5 "
    depth   1      2      1      2      3        (1-2 are one branch, 3-5 another)

`walk` reads the inside of a JSON string. ``a`` (node 3) stays inside, so it is allowed whatever surrounds the string.
The quotes (nodes 1 and 5) end the lexeme for good: these are exits at a node. Node 2 is an exit before a node, as the
string has ended before its comma. `run` is given whole configurations and goes on behind the exits: it enters frames,
begins their lexemes and returns from them, until the token ends or nothing may follow. A *thread* is one configuration
on the way down the trie.

No kernel can derive languages or ask frames. Where something is missing, a kernel stops and says what it needs; the
caller makes it and calls again with the same arguments. Slow twins of the kernels are in ``tests/reference/walk.py``,
and every mask is compared with one made token by token.

numba takes three times as long to unpack 36 arrays that come in named tuples (24 µs a call, not 8), so the entries take
arrays one by one; everything behind `run` takes one tuple of them.

This module imports numba: import it where a kernel is called, not with a module.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from decodekit.constraints.engine.automaton import DEAD, FINAL, NOT_EXPANDED, OPEN, Int32Array, UInt8Array
from decodekit.constraints.engine.configurations import BUNDLE, CUT, Int64Array
from decodekit.records.compiled_code import kernel, part

Int: TypeAlias = "int | np.integer[Any]"

# What the third column of an exit says.
EXIT_BEFORE: Final = 0  # the lexeme ends before the node's byte: its subtree belongs to what follows
EXIT_AT: Final = 1  # the lexeme ends with the node's byte and cannot go on: tokens of this node end with it

# What a run needs before it can go on, in ``position[NEED:]``.
DONE: Final = 0
LEXICAL: Final = 1  # a row or an edge of the automaton: its code, see `_after`
LEAVE: Final = 2  # what follows when a reader ends a lexeme with a label set
CAPTURED: Final = 3  # the same for a reader that captures: (reader, label set, depth at which the lexeme began)
ENTER: Final = 4  # what follows on the entry of a frame
ROOM: Final = 5  # space for more threads
STACKS: Final = 6  # space for more stacks
MERGE: Final = 7  # so many threads after a node that it is worth asking which differ in their stacks alone
DEEPER: Final = 8  # more of the stacks: too many tokens end what was left out
PAUSE: Final = 9  # the leave to go on: `STEPS_AT_ONCE` were made

# The places of ``position``, int64 [9].
ROOT: Final = 0  # index in ``roots``
NODE: Final = 1
NEED: Final = 2  # and the two behind it: what is needed, in numbers
NUM_NODES: Final = 5  # looked at so far; tells the entries of ``seen`` that are of this node
NUM_RETURNED: Final = 6
MERGE_ABOVE: Final = 7  # threads after one node
NUM_STEPS: Final = 8  # threads and places that were looked at since the last `PAUSE`

STEPS_AT_ONCE: Final = 1 << 15
"""So many steps of a run are made before it asks whether to go on: about a millisecond."""

FEW: Final = 32  # threads that are compared one by one
NO_ROOM: Final = -1


class Run(NamedTuple):
    """The arrays that a run reads and writes, `words` to `position`; the others are those of their owners.

    Attributes:
        captured: what was said of captured texts, int64 [n, 3]: see `_row_of_captured`.
        num_stacks: the `count` of `Stacks`.
        threads: int32 [4, capacity]: lexical state, reader, stack, and the depth at which the lexeme began (-1 - i:
            before the root, for configuration i). Those after the byte of a node at level L below its root (1 for the
            root itself) lie at ``offsets[L]`` to before ``offsets[L + 1]``.
        todo: the (stack, row) pairs that follow at one node, each once, int32 [2, capacity].
        places: where they are in `todo`, as `seen`, int64 [a power of 2].
        seen: threads of one node, found by what they are: 2**20 * (number of the node) + thread, int64 [a power of 2].
        words: the mask.
        returned: the nodes whose subtrees depend on what lies below a `CUT`.
        position: where the run is and what it needs; see the constants.
    """

    # of the `Automaton`
    table: Int32Array
    kinds: UInt8Array
    endings: Int32Array
    low: Int32Array
    high: Int32Array
    # of the readers of the `Recogniser`
    captures: UInt8Array
    permitted: Int32Array
    num_permitted: Int32Array
    # of `Rows`
    keys: Int64Array
    rows: Int32Array
    entry: Int32Array
    start: Int32Array
    returns: UInt8Array
    row_lexical: Int32Array
    row_reader: Int32Array
    push: Int32Array
    pushed: Int32Array
    captured: Int64Array
    # of `Stacks`
    frame: Int32Array
    parent: Int32Array
    members: Int32Array
    slots: Int32Array
    num_stacks: Int64Array
    # of the `TokenTrie`
    byte: UInt8Array
    depth: Int32Array
    end: Int32Array
    first: Int32Array
    tokens: Int32Array
    # of the `Runner`
    threads: Int32Array
    offsets: Int32Array
    todo: Int32Array
    places: Int64Array
    seen: Int64Array
    words: Int32Array
    returned: Int32Array
    position: Int64Array


# -- parts


@part
def _after(table: Int32Array, kinds: UInt8Array, state: Int, byte: Int) -> Int:
    """The lexical state after a byte; or, below -1, the code of what the automaton has to make first.

    The code of an open edge is ``-2 - (512 * state + byte)``, that of a state to expand has 256 in place of the byte.
    """
    if kinds[state] == NOT_EXPANDED:
        return -2 - (np.int64(state) << 9 | 256)
    target = np.int64(table[state, byte])
    if target == OPEN:
        return -2 - (np.int64(state) << 9 | byte)
    if target != DEAD and kinds[target] == NOT_EXPANDED:
        return -2 - (target << 9 | 256)
    return target


@part
def _add_tokens_of(node: Int, first: Int32Array, tokens: Int32Array, words: Int32Array) -> None:
    """Set the bits of the tokens of a node."""
    for i in range(first[node], first[node + 1]):
        token = tokens[i]
        words[token >> 5] |= np.int32(1) << np.int32(token & 31)


@part
def _slot(key: Int, size: Int) -> Int:
    """The slot where the search for a key begins in a table of open addressing."""
    return (key ^ key >> 29) * 0x9E3779B1 & size - 1


@part
def _row(run: Run, key: Int) -> Int:
    """The row of a key, -1 if there is none."""
    slot = _slot(key, len(run.keys))
    while run.keys[slot] >= 0:
        if run.keys[slot] == key:
            return int(run.rows[slot])
        slot = slot + 1 & len(run.keys) - 1
    return -1


@part
def _row_of_captured(run: Run, key: Int, begin: Int) -> Int:
    """The row of a key after the text captured up to the node, by (key, node * 2**20 + depth of its begin, row)."""
    captured, detail = run.captured, run.position[NODE] << 20 | begin & 0xFFFFF
    for i in range(len(captured)):
        if captured[i, 0] == key and captured[i, 1] == detail:
            return int(captured[i, 2])
    return -1


@part
def _pushed(run: Run, parent: Int, frame: Int) -> Int:
    """The stack with a frame on top of another, made if there was none; `NO_ROOM`."""
    if run.num_stacks[0] == len(run.frame):
        return NO_ROOM
    slot = _slot(np.int64(parent) << 32 | frame, len(run.slots))
    number = np.int64(run.slots[slot])
    while number != 0 and (run.parent[number] != parent or run.frame[number] != frame):
        slot = slot + 1 & len(run.slots) - 1
        number = np.int64(run.slots[slot])
    if number == 0:
        number = run.num_stacks[0]
        run.num_stacks[0] += 1
        run.slots[slot] = number
        run.parent[number], run.frame[number] = parent, frame
    return number


@part
def _is_thread(threads: Int32Array, i: Int, lexical: Int, reader: Int, stack: Int) -> bool:
    return bool(threads[0, i] == lexical and threads[1, i] == reader and threads[2, i] == stack)


@part
def _with_thread(run: Run, begin: Int, count: Int, lexical: Int, reader: Int, stack: Int, depth: Int) -> Int:
    """Add a thread to those from `begin` on unless it is one of them; returns their end, or `NO_ROOM`."""
    threads, seen, number = run.threads, run.seen, run.position[NUM_NODES]
    slot: Int = -1
    if count - begin < FEW:
        for i in range(begin, count):
            if _is_thread(threads, i, lexical, reader, stack):
                return count
    else:
        slot = _slot((np.int64(stack) << 32 | reader) * 31 + lexical, len(seen))
        while seen[slot] >> 20 == number:
            if _is_thread(threads, seen[slot] & 0xFFFFF, lexical, reader, stack):
                return count
            slot = slot + 1 & len(seen) - 1
    if count == threads.shape[1]:
        return NO_ROOM
    threads[0, count], threads[1, count], threads[2, count], threads[3, count] = lexical, reader, stack, depth
    if slot >= 0:
        seen[slot] = number << 20 | count
    return count + 1


@part
def _begin_lexemes(run: Run, row: Int, stack: Int, depth: Int, begin: Int, count: Int) -> tuple[Int, Int]:
    """Add the threads with which a row begins lexemes on a stack; returns what is needed, and the threads' end."""
    for k in range(run.start[row], run.start[row + 1]):
        inner: Int = np.int64(stack)
        for m in range(run.push[k], run.push[k + 1]):
            inner = _pushed(run, inner, run.pushed[m])
            if inner == NO_ROOM:
                return STACKS, count
        end = _with_thread(run, begin, count, run.row_lexical[k], run.row_reader[k], inner, depth)
        if end == NO_ROOM:
            return ROOM, count
        count = end
    return DONE, count


@part
def _follow(run: Run, row: Int, stack: Int, count: Int) -> Int:
    """Add what is to be followed at the node to the first `count` unless it is there; returns their end, or `NO_ROOM`.

    An ambiguous text has as many ways down its bundles as it has readings, and few places to come to.
    """
    todo, places, number = run.todo, run.places, run.position[NUM_NODES]
    slot: Int = -1
    if count < FEW:
        for i in range(count):
            if todo[0, i] == stack and todo[1, i] == row:
                return count
    else:
        slot = _slot(np.int64(stack) << 32 | row, len(places))
        while places[slot] >> 20 == number:
            i = places[slot] & 0xFFFFF
            if todo[0, i] == stack and todo[1, i] == row:
                return count
            slot = slot + 1 & len(places) - 1
    if count == todo.shape[1]:
        return NO_ROOM
    todo[0, count], todo[1, count] = stack, row
    if slot >= 0:
        places[slot] = number << 20 | count
    return count + 1


@part
def _return(run: Run, stack: Int, num_todo: Int) -> tuple[Int, Int, bool]:
    """Go on below a stack, a bundle in each of its stacks: what is needed, the end of `todo`, is the text whole."""
    returned, position = run.returned, run.position
    low = high = -1
    if run.frame[stack] == BUNDLE:
        low = run.parent[stack] + 1
        high = low + run.members[low - 1] - 1
    is_whole = False
    for j in range(low, high + 1):
        top = stack if j < 0 else run.members[j]
        if top == 0:
            is_whole = True
            continue
        frame = run.frame[top]
        if frame == CUT:
            num = position[NUM_RETURNED]
            if num == 0 or returned[num - 1] != position[NODE]:
                if num == len(returned):
                    return DEEPER, num_todo, is_whole
                returned[num] = position[NODE]
                position[NUM_RETURNED] += 1
            continue
        if run.entry[frame] < 0:
            position[NEED] = frame
            return ENTER, num_todo, is_whole
        end = _follow(run, run.entry[frame], run.parent[top], num_todo)
        if end == NO_ROOM:
            return ROOM, num_todo, is_whole
        num_todo = end
    return DONE, num_todo, is_whole


@part
def _go_on(
    run: Run, row: Int, stack: Int, depth: Int, begin: Int, count: Int, num_todo: Int
) -> tuple[Int, Int, Int, bool]:
    """Add the threads of all that follows a row on a stack: what is needed, their end, that of `todo`, is it whole."""
    todo, i, is_whole = run.todo, num_todo, False
    num_todo = _follow(run, row, stack, num_todo)
    if num_todo == NO_ROOM:
        return ROOM, count, num_todo, is_whole
    while i < num_todo:
        stack, row = todo[0, i], todo[1, i]
        needed, count = _begin_lexemes(run, row, stack, depth, begin, count)
        if needed != DONE:
            return needed, count, num_todo, is_whole
        if run.returns[row] != 0:
            needed, num_todo, ends = _return(run, stack, num_todo)
            if needed != DONE:
                return needed, count, num_todo, is_whole
            is_whole |= ends
        i += 1
    return DONE, count, num_todo, is_whole


@part
def _is_selected(run: Run, reader: Int, state: Int) -> bool:
    """Whether some word from a lexical state on ends with a label that the reader permits."""
    selection, counts = run.permitted[reader], run.num_permitted
    if selection < 0 or run.low[state] < 0:
        return True
    return bool(counts[selection + run.high[state]] != counts[selection + run.low[state]])


@part
def _row_after(run: Run, reader: Int, ending: Int, begin: Int) -> Int:
    """The row of what follows a lexeme; -1 - (what is needed) if it is not known."""
    position, key = run.position, np.int64(reader) << 32 | ending
    captures = run.captures[reader] != 0
    row = _row_of_captured(run, key, begin) if captures else _row(run, key)
    if row < 0:
        position[NEED], position[NEED + 1], position[NEED + 2] = reader, ending, begin
        return -1 - (CAPTURED if captures else LEAVE)
    return row


@part
def _advance(run: Run, low: Int, begin: Int) -> tuple[Int, Int, bool]:
    """Read the node's byte in the threads ``low .. begin``: what is needed, the threads' end, is the text whole."""
    position, threads = run.position, run.threads
    node = position[NODE]
    value, depth = run.byte[node], run.depth[node]
    count, is_whole = begin, False
    num_todo: Int = 0
    for i in range(low, begin):
        reader = threads[1, i]
        target = _after(run.table, run.kinds, threads[0, i], value)
        if target < 0:
            position[NEED] = target
            return LEXICAL, count, is_whole
        if target == DEAD or not _is_selected(run, reader, target):
            continue
        if run.kinds[target] != FINAL:
            end = _with_thread(run, begin, count, target, reader, threads[2, i], threads[3, i])
            if end == NO_ROOM:
                return ROOM, count, is_whole
            count = end
        if run.endings[target] != 0:
            row = _row_after(run, reader, run.endings[target], threads[3, i])
            if row < 0:
                return -1 - row, count, is_whole
            needed, count, num_todo, ends = _go_on(run, row, threads[2, i], depth, begin, count, num_todo)
            if needed != DONE:
                return needed, count, is_whole
            is_whole |= ends
    position[NUM_STEPS] += count - low + num_todo
    return DONE, count, is_whole


@part
def _run_below(run: Run, root: Int) -> Int:
    """Run the subtree of a root from ``position[NODE]`` on; returns what is needed."""
    position, offsets = run.position, run.offsets
    stop, base = run.end[root], run.depth[root] - 1
    if not root <= position[NODE] < stop:
        position[NODE] = root
    while position[NODE] < stop:
        if position[NUM_STEPS] >= STEPS_AT_ONCE:
            return PAUSE
        node = position[NODE]
        level = run.depth[node] - base
        begin = offsets[level]
        position[NUM_NODES] += 1
        needed, count, is_whole = _advance(run, offsets[level - 1], begin)
        if needed != DONE:
            return needed
        if count - begin > position[MERGE_ABOVE]:
            position[NEED], position[NEED + 1] = begin, count
            return MERGE
        if is_whole or count > begin:
            _add_tokens_of(node, run.first, run.tokens, run.words)
        if count > begin:
            offsets[level + 1] = count
            position[NODE] = node + 1
        else:
            position[NODE] = run.end[node]
    return DONE


# -- kernels


@kernel
def run(
    table: Int32Array, kinds: UInt8Array, endings: Int32Array, low: Int32Array, high: Int32Array,
    captures: UInt8Array, permitted: Int32Array, num_permitted: Int32Array,
    keys: Int64Array, rows: Int32Array, entry: Int32Array, start: Int32Array, returns: UInt8Array,
    row_lexical: Int32Array, row_reader: Int32Array, push: Int32Array, pushed: Int32Array, captured: Int64Array,
    frame: Int32Array, parent: Int32Array, members: Int32Array, slots: Int32Array, num_stacks: Int64Array,
    byte: UInt8Array, depth: Int32Array, end: Int32Array, first: Int32Array, tokens: Int32Array,
    roots: Int32Array, threads: Int32Array, offsets: Int32Array, todo: Int32Array, places: Int64Array,
    seen: Int64Array, words: Int32Array, returned: Int32Array, position: Int64Array,
) -> Int:  # fmt: skip
    """Add the tokens at and below `roots` that the configurations ``threads[:, :offsets[1]]`` allow to `words`.

    The configurations are those before the byte of a root. The other arrays are those of `Run`, in their order.

    Returns:
        DONE, or what is needed; with the same arguments the run then goes on where it stopped.
    """
    state = Run(
        table, kinds, endings, low, high, captures, permitted, num_permitted,
        keys, rows, entry, start, returns, row_lexical, row_reader, push, pushed, captured,
        frame, parent, members, slots, num_stacks, byte, depth, end, first, tokens,
        threads, offsets, todo, places, seen, words, returned, position,
    )  # fmt: skip
    while position[ROOT] < len(roots):
        needed = _run_below(state, roots[position[ROOT]])
        if needed != DONE:
            return needed
        position[ROOT], position[NODE] = position[ROOT] + 1, -1
    return DONE


@kernel
def walk(
    table: Int32Array, kinds: UInt8Array, endings: Int32Array,
    byte: UInt8Array, depth: Int32Array, end: Int32Array, first: Int32Array, tokens: Int32Array,
    follow: UInt8Array, start_depth: Int, stop: Int, stack: Int32Array,
    words: Int32Array, reached: Int32Array, exits: Int32Array, seen: UInt8Array, position: Int32Array,
) -> Int:  # fmt: skip
    """Walk the nodes from ``position[0]`` to before `stop`, with ``stack[d]`` the lexical state at depth d.

    The first arrays are those of the `Automaton` and of the `TokenTrie`.

    Args:
        follow: the bytes before which the lexeme may end, uint8 [256].
        start_depth: where the walk begins. There the lexeme does not end: that is a configuration of its own.
        words: gets the bits of the tokens after which the lexeme goes on, int32 [words].
        reached: gets the lexical states after these tokens, int32 [tokens], or [0] if nobody asks.
        exits: gets where the lexeme ends, int32 [capacity, 3]: node, label set, `EXIT_BEFORE` or `EXIT_AT`. Those
            beyond the capacity are counted and not stored.
        seen: the label sets of the exits are marked here.
        position: (next node, number of exits, number of tokens inside).

    Returns:
        -1 when the walk is complete; else the code of what the automaton has to make (see `_after`).
    """
    node, num_inside = position[0], position[2]
    num_exits: Int = position[1]
    unknown: Int = np.int64(-1)
    while node < stop:
        level, value = depth[node], byte[node]
        state = stack[level - 1]
        target = _after(table, kinds, state, value)
        if target < 0:
            unknown = target
            break
        if endings[state] != 0 and follow[value] != 0 and level - 1 > start_depth:
            num_exits = _with_exit(exits, seen, num_exits, node, endings[state], EXIT_BEFORE)
        if target == DEAD:
            node = end[node]
            continue
        stack[level] = target
        if first[node] != first[node + 1]:
            if kinds[target] == FINAL:
                num_exits = _with_exit(exits, seen, num_exits, node, endings[target], EXIT_AT)
            else:
                _add_tokens_of(node, first, tokens, words)
                num_inside += first[node + 1] - first[node]
                if len(reached):
                    for i in range(first[node], first[node + 1]):
                        reached[tokens[i]] = target
        node += 1
    position[0], position[1], position[2] = node, num_exits, num_inside
    return unknown


@part
def _with_exit(exits: Int32Array, seen: UInt8Array, num_exits: Int, node: Int, label_set: Int, kind: Int) -> Int:
    """Note an exit if there is room; returns their number."""
    seen[label_set] = 1
    if num_exits < len(exits):
        exits[num_exits, 0], exits[num_exits, 1], exits[num_exits, 2] = node, label_set, kind
    return num_exits + 1


@kernel
def add_tokens(nodes: Int32Array, first: Int32Array, tokens: Int32Array, words: Int32Array) -> None:
    """Set the bits of the tokens of some nodes."""
    for node in nodes:
        _add_tokens_of(node, first, tokens, words)


@kernel
def divide(
    text: UInt8Array,
    top: Int32Array,
    byte: UInt8Array,
    end: Int32Array,
    first: Int32Array,
    tokens: Int32Array,
    left_out: Int32Array,
    fewest: Int32Array,
    chosen: Int32Array,
) -> None:
    """Divide a text into the fewest tokens: see `Division._divide`. Of tokens with equal bytes the first is taken."""
    size = len(text)
    fewest[size] = 0
    for start in range(size - 1, -1, -1):
        node = top[text[start]]
        if node == 0:
            continue
        for stop in range(start, size):
            if stop > start:
                child, behind = node + 1, end[node]
                while child < behind and byte[child] < text[stop]:  # the children of a node ascend
                    child = end[child]
                if child >= behind or byte[child] != text[stop]:
                    break
                node = child
            if fewest[stop + 1] + 1 > fewest[start]:
                continue
            for i in range(first[node], first[node + 1]):
                token = tokens[i]
                if left_out[token >> 5] >> (token & 31) & 1 == 0:
                    fewest[start] = fewest[stop + 1] + 1
                    chosen[0, start], chosen[1, start] = stop + 1 - start, token
                    break
