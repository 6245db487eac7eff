"""The states of a constraint: sets of configurations of its recursive transition network, made when they are reached.

A configuration is (lexical state, reader, stack, captured text): the lexeme being read, the frame that reads it, the
frames to return to, and the bytes read so far if the frame asked for them. Reading a byte advances every configuration
by itself; where a lexeme may end, the configurations that follow join the set. Equal sets are the same `State` object,
so a state is a value: whoever keeps it can come back to it, whatever was read since.

Frames, readers and stacks are numbers. What follows a lexeme is known by the reader alone, whatever the stack (which
frames are entered, what is pushed, whether the frame may return), and is kept in flat arrays (`Rows`): compiled code
runs configurations over many bytes and comes back only for what was never met before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from decodekit.constraints.automaton import DEAD, Automaton, Int32Array, UInt8Array
from decodekit.constraints.network import RETURN, Call, Frame, Fresh, Read, Return
from decodekit.errors import ResourceLimitError

Int64Array: TypeAlias = npt.NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)

MAX_CONFIGURATIONS: Final = 20_000
"""Bound on the alternatives that one state may hold, and on the frames that one step may enter."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A frame with the manner in which it reads a lexeme.

    Attributes:
        frame: its number.
        captures: whether it wants the bytes.
        permitted: the labels with which the lexeme may end, None if any.
    """

    frame: int
    captures: bool = False
    permitted: bytes | None = None


Configuration: TypeAlias = tuple[int, int, int, bytes | None]
"""(lexical state, number of the reader, number of the stack, captured bytes)."""
Entry: TypeAlias = tuple[frozenset[Configuration], bool]
"""Configurations, and whether the text may end before any of them reads a byte."""


@dataclass(frozen=True, slots=True)
class Following:
    """What follows on some stack: relative to it, so that it is the same on every one.

    Attributes:
        starts: (lexical state, reader, frames pushed, the innermost last).
        is_returning: whether the frame on top of the stack may go on at once.
    """

    starts: tuple[tuple[int, int, tuple[int, ...]], ...]
    is_returning: bool


class State:
    """A set of configurations, and whether the text so far is accepted. Interned by its network.

    Attributes:
        configurations: each with a byte that may follow; empty if the text can only end.
        is_accepting: whether the text so far is a whole text of the constraint.
        edges: the states after each byte that was tried, None where nothing follows.
        mask: the allowed tokens, once they are known; owned by the masks of a vocabulary.
    """

    __slots__ = ("__weakref__", "configurations", "edges", "is_accepting", "mask")

    def __init__(self, configurations: frozenset[Configuration], is_accepting: bool) -> None:
        self.configurations = tuple(configurations)
        self.is_accepting = is_accepting
        self.edges: dict[int, State | None] = {}
        self.mask: object = None

    def __repr__(self) -> str:
        return f"State({len(self.configurations)} configurations, is_accepting={self.is_accepting})"


class Rows:
    """What follows a lexeme, or on the entry of a frame, as flat arrays for compiled code; grows only.

    Row r stands for the starts i in ``start[r] .. start[r + 1]``, which read ``lexical[i]`` by ``reader[i]`` above
    ``pushed[push[i]:push[i + 1]]``, and for ``returns[r]``. The row of (reader, label set) is found by open addressing:
    ``keys`` holds reader * 2**32 + label set, -1 where free; that of the entry of frame f is ``entry[f]``, -1 if it is
    not known.
    """

    def __init__(self) -> None:
        self.keys: Int64Array = np.full(1024, -1, np.int64)
        self.rows: Int32Array = np.zeros(1024, np.int32)
        self.entry: Int32Array = np.full(1024, -1, np.int32)
        self.start: Int32Array = np.zeros(1024, np.int32)
        self.returns: UInt8Array = np.zeros(1024, np.uint8)
        self.lexical: Int32Array = np.zeros(1024, np.int32)
        self.reader: Int32Array = np.zeros(1024, np.int32)
        self.push: Int32Array = np.zeros(1025, np.int32)
        self.pushed: Int32Array = np.zeros(1024, np.int32)
        self._num_rows = self._num_keys = self._num_starts = self._num_pushed = 0

    def add(self, following: Following) -> int:
        """A new row."""
        row = self._num_rows
        self._num_rows += 1
        if row + 2 > len(self.start):
            self.start, self.returns = _doubled(self.start), _doubled(self.returns)
        for lexical, reader, frames in following.starts:
            index = self._num_starts
            self._num_starts += 1
            if index == len(self.lexical):
                self.lexical, self.reader = _doubled(self.lexical), _doubled(self.reader)
                self.push = np.concatenate((self.push, np.zeros(index, np.int32)))
            self.lexical[index], self.reader[index] = lexical, reader
            for frame in frames:
                if self._num_pushed == len(self.pushed):
                    self.pushed = _doubled(self.pushed)
                self.pushed[self._num_pushed] = frame
                self._num_pushed += 1
            self.push[index + 1] = self._num_pushed
        self.start[row + 1] = self._num_starts
        self.returns[row] = following.is_returning
        return row

    def put(self, key: int, row: int) -> None:
        """Let a key find a row."""
        if 2 * self._num_keys >= len(self.keys):
            old = [(int(k), int(r)) for k, r in zip(self.keys, self.rows, strict=True) if k >= 0]
            self.keys, self.rows = np.full(2 * len(self.keys), -1, np.int64), np.zeros(2 * len(self.keys), np.int32)
            for k, r in old:
                self._insert(k, r)
        self._insert(key, row)
        self._num_keys += 1

    def put_entry(self, frame: int, row: int) -> None:
        """Let the entry of a frame find a row."""
        while frame >= len(self.entry):
            self.entry = np.concatenate((self.entry, np.full(len(self.entry), -1, np.int32)))
        self.entry[frame] = row

    def _insert(self, key: int, row: int) -> None:
        mask = len(self.keys) - 1
        slot = (key ^ key >> 29) * 0x9E3779B1 & mask
        while self.keys[slot] >= 0:
            slot = slot + 1 & mask
        self.keys[slot], self.rows[slot] = key, row


class Stacks:
    """Stacks of frames, interned: stack n > 0 is ``frame[n]`` on top of stack ``parent[n]``; 0 is the empty one.

    The number of a stack is found by open addressing in ``slots`` (0 where free), by parent * 2**32 + frame. Compiled
    code adds stacks too; ``count`` is int64 [1].
    """

    def __init__(self) -> None:
        self.frame: Int32Array = np.full(512, -1, np.int32)
        self.parent: Int32Array = np.zeros(512, np.int32)
        self.slots: Int32Array = np.zeros(2048, np.int32)
        self.count: Int64Array = np.ones(1, np.int64)

    def push(self, parent: int, frame: int) -> int:
        """The stack with a frame on top of another stack."""
        if self.count[0] == len(self.frame):
            self.grow()
        key = parent << 32 | frame
        mask = len(self.slots) - 1
        slot = (key ^ key >> 29) * 0x9E3779B1 & mask
        while (number := int(self.slots[slot])) != 0:
            if self.parent[number] == parent and self.frame[number] == frame:
                return number
            slot = slot + 1 & mask
        number = int(self.count[0])
        self.count[0] += 1
        self.slots[slot], self.parent[number], self.frame[number] = number, parent, frame
        return number

    def grow(self) -> None:
        """Make room."""
        self.frame, self.parent = _doubled(self.frame), _doubled(self.parent)
        self.slots = np.zeros(2 * len(self.slots), np.int32)
        mask = len(self.slots) - 1
        for number in range(1, int(self.count[0])):
            key = int(self.parent[number]) << 32 | int(self.frame[number])
            slot = (key ^ key >> 29) * 0x9E3779B1 & mask
            while self.slots[slot]:
                slot = slot + 1 & mask
            self.slots[slot] = number


def row_key(reader: int, label_set: int) -> int:
    """The key of a row."""
    return reader << 32 | label_set


def _doubled(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    grown = np.zeros(2 * len(array), array.dtype)
    grown[: len(array)] = array
    return grown


class Unfolding:
    """The part of a constraint's network that was reached so far; grows only. Thread-safe.

    Attributes:
        rows: what follows the lexemes that were left so far.
        stacks: the stacks that were reached so far.
        captures: by reader, whether the bytes are captured, uint8.
        permitted: by reader, where its selection of labels begins in `num_permitted`, -1 if it has none, int32.
        num_permitted: running counts of permitted labels, int32: of labels low to before high, a selection that begins
            at b permits ``num_permitted[b + high] - num_permitted[b + low]``.

    Raises (from any method):
        ResourceLimitError: too many alternatives at once, or left recursion without end.
    """

    def __init__(self, root: Frame, automaton: Automaton) -> None:
        self.automaton = automaton
        self.frames: list[Frame] = []
        self.readers: list[Reader] = []
        self.rows = Rows()
        self.stacks = Stacks()
        self.captures: UInt8Array = np.zeros(256, np.uint8)
        self.permitted: Int32Array = np.full(256, -1, np.int32)
        self.num_permitted: Int32Array = np.zeros(256, np.int32)
        self._num_counts = 0
        self._selections: dict[bytes, int] = {}
        self._frame_numbers: dict[Frame, int] = {}
        self._reader_numbers: dict[Reader, int] = {}
        self._states: dict[Entry, State] = {}
        self._followed: dict[tuple[int, ...], Following] = {}
        self._left: dict[int, Following] = {}
        self._fresh: dict[int, tuple[Fresh, Following] | None] = {}
        with automaton.lock:
            self.root = self._intern(self.resolve(self.enter(self._frame(root)), 0)) or State(frozenset(), False)
        self.ended = State(frozenset(), False)
        """The state after an end-of-sequence token: nothing follows."""

    @property
    def num_states(self) -> int:
        """Number of states reached."""
        return len(self._states)

    def step(self, state: State, byte: int) -> State | None:
        """The state after one more byte, or None if no text continues so."""
        try:
            return state.edges[byte]
        except KeyError:
            with self.automaton.lock:
                target = state.edges[byte] = self._read(state, byte)
            return target

    def read(self, state: State, data: bytes) -> State | None:
        """The state after all bytes of `data`, or None."""
        current: State | None = state
        for byte in data:
            try:
                current = current.edges[byte]  # type: ignore[union-attr]
            except KeyError:
                current = self.step(current, byte)  # type: ignore[arg-type]
            if current is None:
                return None
        return current

    def is_selected(self, lexical: int, permitted: bytes | None) -> bool:
        """Whether some word from a lexical state ends with a permitted label."""
        if permitted is None:
            return True
        low, high = int(self.automaton.low[lexical]), int(self.automaton.high[lexical])
        return low < 0 or 1 in permitted[low:high]

    def leave(self, reader: int, label_set: int, text: bytes | None = None) -> Following:
        """What follows a lexeme that ends with any label of a set; `text` if the reader captures."""
        if text is not None:
            return self._leave(reader, label_set, text)
        key = row_key(reader, label_set)
        following = self._left.get(key)
        if following is None:
            following = self._left[key] = self._leave(reader, label_set, b"")
        return following

    def enter(self, frame: int) -> Following:
        """What follows on the entry of a frame."""
        return self._follow((frame,))

    def add_row(self, reader: int, label_set: int) -> None:
        """Write down for compiled code what follows a lexeme of a reader that does not capture."""
        self.rows.put(row_key(reader, label_set), self.rows.add(self.leave(reader, label_set)))

    def add_entry(self, frame: int) -> None:
        """Write down for compiled code what follows on the entry of a frame."""
        self.rows.put_entry(frame, self.rows.add(self.enter(frame)))

    def resolve(self, following: Following, stack: int) -> Entry:
        """What follows, on a stack."""
        configurations: set[Configuration] = set()
        while True:
            for lexical, reader, frames in following.starts:
                inner = stack
                for frame in frames:
                    inner = self.stacks.push(inner, frame)
                configurations.add((lexical, reader, inner, b"" if self.captures[reader] else None))
            if not following.is_returning:
                return frozenset(configurations), False
            if stack == 0:
                return frozenset(configurations), True
            following = self.enter(int(self.stacks.frame[stack]))
            stack = int(self.stacks.parent[stack])

    def fresh(self, reader: int, label_set: int) -> tuple[Fresh, Following] | None:
        """What follows most captured texts, None if the frame does not say."""
        key = row_key(reader, label_set)
        if key not in self._fresh:
            frame, labels = self.frames[self.readers[reader].frame], self.automaton.label_sets[label_set]
            common = frame.fresh(labels[0]) if len(labels) == 1 else None
            self._fresh[key] = None if common is None else (common, self._follow(map(self._frame, common.frames)))
        return self._fresh[key]

    def first_bytes(self, configurations: Iterable[Configuration]) -> UInt8Array:
        """Which bytes may follow in any of the configurations, selections aside, uint8 [256] of 0 and 1."""
        first = np.zeros(256, np.uint8)
        for lexical, *_ in configurations:
            first |= self.automaton.first_bytes(lexical)
        return first

    def _read(self, state: State, byte: int) -> State | None:
        reached: set[Configuration] = set()
        is_accepting = False
        automaton = self.automaton
        for lexical, reader, stack, text in state.configurations:
            target = automaton.step(lexical, byte)
            if target == DEAD or not self.is_selected(target, self.readers[reader].permitted):
                continue
            text_now = None if text is None else text + bytes((byte,))
            if not automaton.is_final(target):
                reached.add((target, reader, stack, text_now))
            ending = int(automaton.endings[target])
            if ending:
                configurations, ends = self.resolve(self.leave(reader, ending, text_now), stack)
                reached |= configurations
                is_accepting |= ends
        return self._intern((frozenset(reached), is_accepting))

    def _leave(self, reader: int, label_set: int, text: bytes) -> Following:
        where = self.readers[reader]
        frame = self.frames[where.frame]
        frames: list[int] = []
        for label in self.automaton.label_sets[label_set]:
            if where.permitted is None or type(label) is not int or where.permitted[label]:
                frames += map(self._frame, frame.after(label, text))
        return self._follow(frames)

    def _intern(self, entry: Entry) -> State | None:
        configurations, is_accepting = entry
        if not configurations and not is_accepting:
            return None
        state = self._states.get(entry)
        if state is None:
            if len(configurations) > MAX_CONFIGURATIONS:
                raise _too_many()
            state = self._states[entry] = State(configurations, is_accepting)
        return state

    def _frame(self, frame: Frame) -> int:
        number = self._frame_numbers.get(frame)
        if number is None:
            number = self._frame_numbers[frame] = len(self.frames)
            self.frames.append(frame)
            self.rows.put_entry(number, -1)
        return number

    def _reader(self, reader: Reader) -> int:
        number = self._reader_numbers.get(reader)
        if number is None:
            number = self._reader_numbers[reader] = len(self.readers)
            self.readers.append(reader)
            if number == len(self.captures):
                self.captures = _doubled(self.captures)
                self.permitted = np.concatenate((self.permitted, np.full(number, -1, np.int32)))
            self.captures[number] = reader.captures
            if reader.permitted is not None:
                self.permitted[number] = self._selection(reader.permitted)
        return number

    def _selection(self, permitted: bytes) -> int:
        """Where the running counts of a selection begin."""
        begin = self._selections.get(permitted)
        if begin is None:
            begin = self._selections[permitted] = self._num_counts
            self._num_counts += len(permitted) + 1
            while self._num_counts > len(self.num_permitted):
                self.num_permitted = _doubled(self.num_permitted)
            counts = np.cumsum(np.frombuffer(permitted, np.uint8), dtype=np.int32)
            self.num_permitted[begin] = 0
            self.num_permitted[begin + 1 : self._num_counts] = counts
        return begin

    def _follow(self, frames: Iterable[int]) -> Following:
        """What follows on the entry of any of some frames."""
        key = tuple(frames)
        following = self._followed.get(key)
        if following is None:
            following = self._followed[key] = self._close(key)
        return following

    def _close(self, frames: tuple[int, ...]) -> Following:
        """Follow all moves that read nothing: what may be read next, and whether the stack below may go on."""
        agenda: list[tuple[int, tuple[int, ...]]] = [(frame, ()) for frame in frames]
        entered = set(agenda)
        starts: dict[tuple[int, int, tuple[int, ...]], None] = {}
        is_returning = False
        while agenda:
            frame, pushed = agenda.pop()
            following: list[tuple[int, tuple[int, ...]]] = []
            for move in self.frames[frame].moves():
                if isinstance(move, Read):
                    following += ((number, pushed) for number in self._begin(frame, move, pushed, starts))
                elif isinstance(move, Call):
                    # A frame that only returns need not be returned to: right recursion keeps a flat stack.
                    inner = pushed if move.then.moves() == (RETURN,) else (*pushed, self._frame(move.then))
                    following.append((self._frame(move.callee), inner))
                elif isinstance(move, Return):
                    if pushed:
                        following.append((pushed[-1], pushed[:-1]))
                    else:
                        is_returning = True
            for item in following:
                if item not in entered:
                    entered.add(item)
                    agenda.append(item)
            if len(entered) > MAX_CONFIGURATIONS:
                raise _too_many()
        return Following(tuple(starts), is_returning)

    def _begin(
        self, frame: int, move: Read, pushed: tuple[int, ...], starts: dict[tuple[int, int, tuple[int, ...]], None]
    ) -> list[int]:
        """Begin a lexeme; returns the frames that follow if it may be empty."""
        automaton = self.automaton
        lexical = automaton.state(move.node if move.within is None else move.within.node)
        permitted = None if move.within is None else move.within.permitted
        if lexical == DEAD or not self.is_selected(lexical, permitted):
            return []
        if not automaton.is_final(lexical):
            starts[lexical, self._reader(Reader(frame, move.capture, permitted)), pushed] = None
        return [
            self._frame(after)
            for label in automaton.labels[lexical]
            if permitted is None or type(label) is not int or permitted[label]
            for after in self.frames[frame].after(label, b"")
        ]


def _too_many() -> ResourceLimitError:
    return ResourceLimitError(
        f"the constraint has more than {MAX_CONFIGURATIONS:,} alternatives at one place of the text",
        hint="make alternatives begin differently, and remove rules that begin with themselves",
    )
