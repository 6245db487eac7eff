"""The lexical automaton: derivatives as numbered states, with their transitions in one table that grows on demand.

Languages are hash-consed, so one automaton serves all constraints of the process: two schemas that hold the same string
language share its states, and what a vocabulary learned about them. A state exists only if a word can be completed from
it; whatever leads nowhere is the state `DEAD`.

The table costs one kilobyte per state. There is room for `ROOM_STATES` from the start: pages of zeros cost nothing
until they are used, while a copy of 64 MB took 140 ms of the mask that needed one more state. When the table outgrows
`EPOCH_STATES` the next grammar starts a new automaton, and the old one goes with the last grammar that uses it; an
automaton that reaches `MAX_STATES` refuses to grow.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Hashable
from functools import lru_cache
from operator import itemgetter
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from decodekit.constraints import priority as turns
from decodekit.constraints.language.blocks import Block
from decodekit.constraints.language.ir import bytes_of, label_range, sweep_if_due
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import Account
from decodekit.constraints.work_budget import spend
from decodekit.errors import ResourceLimitError

Int32Array: TypeAlias = npt.NDArray[np.int32]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
_Scalar = TypeVar("_Scalar", bound=np.generic)

DEAD: Final = 0
OPEN: Final = -1
"""In a row: something may follow, and `Automaton.follow` finds out what."""

EPOCH_STATES: Final = 100_000
ROOM_STATES: Final = 1 << 17
"""So many states are made without a copy of the table; more than an epoch has, unless one grammar goes on."""
MAX_STATES: Final = 1_000_000

_FEW_STEPS: Final = 4  # bytes are followed one by one before the whole row of a state is made

# What `kinds` holds.
NOT_EXPANDED: Final = 0
INNER: Final = 1  # some byte may follow
FINAL: Final = 2  # a word ends here and no byte may follow


class Automaton:
    """Lexical states as integers; row s of `next` is known once ``kinds[s]`` is not `NOT_EXPANDED`.

    Growth replaces the arrays: read an attribute anew after every call that may expand. Methods are thread-safe. Who
    reads the arrays beside them, as a walk does, holds `lock`; what was learned is kept where no lock is needed.

    Attributes:
        lock: held by everything that makes states, of any automaton; reentrant.
        account: the memory that it takes, as far as somebody has measured it.
        next: target state by state and byte, or `OPEN`, int32 [capacity, 256].
        kinds: uint8 [capacity].
        endings: number of the label set with which a word may end here, int32 [capacity]; 0 where none ends.
        low, high: range of the labels of all words from here, where they are numbers, else -1; int32 [capacity].
        label_sets: the labels by number in `endings`.
        counted: the states that `saturated` may change.
    """

    def __init__(self) -> None:
        self.next: Int32Array = np.zeros((ROOM_STATES, 256), np.int32)
        self.kinds: UInt8Array = np.zeros(ROOM_STATES, np.uint8)
        self.endings: Int32Array = np.zeros(ROOM_STATES, np.int32)
        self.low: Int32Array = np.full(ROOM_STATES, -1, np.int32)
        self.high: Int32Array = np.full(ROOM_STATES, -1, np.int32)
        self.nodes: list[Node | None] = [None]
        self.label_sets: list[tuple[Hashable, ...]] = [()]
        self._label_set_of: dict[tuple[tuple[type, Hashable], ...], int] = {(): 0}
        self._state_of: dict[Node, int] = {}
        self.counted: set[int] = set()
        self._saturated: dict[tuple[int, int], int] = {}
        self._steps: dict[int, dict[int, int]] = {}  # of states that are not expanded: the state after a byte
        self._blocks: list[tuple[int, Block[Node]]] = []  # with their root states, ascending
        self.lock = turns.lock
        self.account = Account()
        self.kinds[DEAD] = INNER  # never looked at; it only must not be expanded

    @property
    def num_states(self) -> int:
        """Number of states, `DEAD` included."""
        return len(self.nodes)

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays, as far as there are states."""
        columns = (self.kinds, self.endings, self.low, self.high)
        return self.num_states * (int(self.next[0].nbytes) + sum(column.itemsize for column in columns))

    def state(self, node: Node) -> int:
        """The state whose remaining words are those of `node`; `DEAD` if there are none.

        Raises:
            ResourceLimitError: too many states, or too many to tell whether the language is empty.
        """
        known = self._state_of.get(node)
        if known is not None:
            return known
        with self.lock:
            known = self._state_of.get(node)
            if known is not None:
                return known
            if node.is_empty:
                return DEAD
            block = node.block()
            ends = [] if block is None else [self._rows_of(end) for end in block.ends]
            state = self._allocate(1 if block is None else block.num_states)
            self.endings[state] = self._label_set(node.labels)
            if node.is_labelled:
                self.low[state], self.high[state] = label_range(node) or (-1, -1)
            self.nodes[state] = node
            self._state_of[node] = state
            if node.has_counts:
                self.counted.add(state)
            if block is not None:
                self._lay_out(state, block, ends)
            return state

    def _rows_of(self, node: Node) -> list[tuple[int, int]]:
        """The transitions of a node that is not a state: masks of bytes, each with the state behind them."""
        return [(mask, self.state(target)) for mask, target in node.transitions()]

    def _allocate(self, num_states: int) -> int:
        """Make room for some states; returns the first."""
        start = len(self.nodes)
        if start + num_states > MAX_STATES:
            raise ResourceLimitError(
                f"the constraint needs more than {MAX_STATES:,} lexical states",
                hint="simplify its patterns or lower its counts",
            )
        while start + num_states > len(self.kinds):
            self.next, self.kinds, self.endings = doubled(self.next), doubled(self.kinds), doubled(self.endings)
            self.low, self.high = doubled(self.low, -1), doubled(self.high, -1)
        self.nodes += [None] * num_states
        return start

    def _label_set(self, labels: tuple[Hashable, ...]) -> int:
        key = tuple((type(label), label) for label in labels)
        number = self._label_set_of.get(key)
        if number is None:
            number = self._label_set_of[key] = len(self.label_sets)
            self.label_sets.append(labels)
        return number

    def _lay_out(self, start: int, block: Block[Node], ends: list[list[tuple[int, int]]]) -> None:
        """Write the rows of a block whose root is `start`, with those of what follows its words."""
        stop = start + block.num_states
        self._blocks.append((start, block))
        self.next[start + block.source, block.byte] = start + block.target
        self.next[start + block.open_state, block.open_byte] = OPEN
        self.kinds[start:stop] = INNER
        if self.low[start] >= 0:
            # The words of a list are labelled in their order.
            first = self.low[start]
            self.low[start:stop], self.high[start:stop] = first + block.low, first + block.high
        for state, rows in zip((start + block.end_state).tolist(), ends, strict=True):
            for mask, successor in rows:
                for byte in bytes_of(mask):
                    self.next[state, byte] = successor

    def node(self, state: int) -> Node:
        """The language of a state: its remaining words. Inside of a block it is derived when it is asked for."""
        node = self.nodes[state]
        if node is None:
            start, block = self._block_of(state)
            node = self.nodes[start]
            assert node is not None
            for byte in block.path(state - start):
                node = node.derivative(byte)
        return node

    def _block_of(self, state: int) -> tuple[int, Block[Node]]:
        return self._blocks[bisect_right(self._blocks, state, key=itemgetter(0)) - 1]

    def follow(self, state: int, byte: int) -> int:
        """The state behind an edge that was left open, which is written down."""
        with self.lock:
            target = int(self.next[state, byte])
            if target == OPEN:
                start, block = self._block_of(state)
                target = self.state(block.open_node(state - start))
                self.next[state, byte] = target
            return target

    def expand(self, state: int) -> None:
        """Fill the row of `state`."""
        with self.lock:
            if self.kinds[state] != NOT_EXPANDED:
                return
            node = self.nodes[state]
            assert node is not None
            spend()
            row = np.zeros(256, np.int32)
            for mask, successor in self._rows_of(node):
                if successor != DEAD:
                    row[_byte_indices(mask)] = successor
            node.forget()
            self.next[state] = row
            self.kinds[state] = INNER if row.any() else FINAL
            self._steps.pop(state, None)

    def make(self, code: int) -> None:
        """Make what a kernel asks for: see `kernels._after`."""
        state, byte = divmod(-2 - code, 512)
        if byte == 256:
            self.expand(state)
        else:
            self.follow(state, byte)

    def step(self, state: int, byte: int) -> int:
        """The state after `byte`, or `DEAD`. The first few bytes of a state are followed one by one."""
        with self.lock:
            if self.kinds[state] == NOT_EXPANDED:
                steps = self._steps.setdefault(state, {})
                if byte in steps:
                    return steps[byte]
                if len(steps) < _FEW_STEPS:
                    node = self.nodes[state]
                    assert node is not None
                    steps[byte] = self.state(node.derivative(byte))
                    return steps[byte]
                self.expand(state)
            target = int(self.next[state, byte])
            return self.follow(state, byte) if target == OPEN else target

    def saturated(self, state: int, limit: int) -> int:
        """A state that behaves as `state` for the next `limit` bytes, the same one for many large counts."""
        if state not in self.counted:
            return state
        with self.lock:
            key = (state, limit)
            if key not in self._saturated:
                self._saturated[key] = self.state(self.node(state).saturated(limit))
            return self._saturated[key]

    def is_final(self, state: int) -> bool:
        """Whether no byte may follow. A state has a word, so that one may where the empty word is none."""
        if not self.endings[state]:
            return False
        with self.lock:
            if self.kinds[state] == NOT_EXPANDED:
                self.expand(state)
            return bool(self.kinds[state] == FINAL)

    def first_bytes(self, state: int) -> UInt8Array:
        """The bytes that may follow, uint8 [256] of 0 and 1."""
        with self.lock:
            if self.kinds[state] == NOT_EXPANDED:
                self.expand(state)
            first: UInt8Array = (self.next[state] != DEAD).astype(np.uint8)
            return first

    def possible_bytes(self, state: int) -> UInt8Array:
        """Bytes among which are all that may follow, uint8 [256] of 0 and 1; no state is made for it."""
        with self.lock:
            node = self.nodes[state]
            if self.kinds[state] != NOT_EXPANDED or node is None:
                return self.first_bytes(state)
            flags: UInt8Array = np.zeros(256, np.uint8)
            flags[bytes_of(node.possible_bytes())] = 1
            return flags

    def known_bytes(self, state: int) -> UInt8Array:
        """The bytes whose successors are known already, uint8 [256] of 0 and 1."""
        flags: UInt8Array = (self.next[state] != OPEN).astype(np.uint8)
        if self.kinds[state] == NOT_EXPANDED:
            flags[:] = 0
            flags[list(self._steps.get(state, ()))] = 1
        return flags


def array_bytes(owner: object) -> int:
    """Memory of the arrays that an object holds."""
    return sum(value.nbytes for value in vars(owner).values() if isinstance(value, np.ndarray))


def doubled(array: npt.NDArray[_Scalar], fill: int = 0) -> npt.NDArray[_Scalar]:
    """A copy with as many more rows of `fill` behind it."""
    grown = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)  # pages of zeros cost nothing until they are used
    grown[: len(array)] = array
    if fill:
        grown[len(array) :] = fill
    return grown


def with_room(array: npt.NDArray[_Scalar], size: int, fill: int = 0) -> npt.NDArray[_Scalar]:
    """The array, or as `doubled` makes it if it has fewer rows than that."""
    while len(array) < size:
        array = doubled(array, fill)
    return array


@lru_cache(maxsize=65_536)
def _byte_indices(mask: int) -> npt.NDArray[np.intp]:
    return np.array(bytes_of(mask), np.intp)


_current = Automaton()
_current_lock = threading.Lock()


def shared_automaton() -> Automaton:
    """The automaton for the next grammar: the one of the process, or a new one if that has grown too large."""
    global _current
    sweep_if_due()
    with _current_lock:
        if _current.num_states > EPOCH_STATES:
            _current = Automaton()
        return _current


def begin_epoch() -> None:
    """Let the next grammar start a new automaton, to have the memory of the old one back once no grammar uses it."""
    global _current
    with _current_lock:
        _current = Automaton()
