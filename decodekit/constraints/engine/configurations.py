"""Configurations: what one state of a constraint is made of, as numbers in flat arrays that compiled code reads.

A configuration is (lexical state, reader, stack, captured text): the lexeme being read, the frame that reads it, the
frames to return to, and the bytes read so far if the frame asked for them. What follows a lexeme is known by the reader
alone, whatever the stack (which frames are entered, what is pushed, whether the frame may return): `Closure` says it,
and `Rows` keeps it for compiled code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.automaton import Int32Array, UInt8Array, doubled, with_room
from decodekit.constraints.work_budget import charge, check

Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reader:
    """A frame, by its number, with the manner in which it reads a lexeme: `permitted` are its labels, None if any."""

    frame: int
    captures: bool = False
    permitted: bytes | None = None


Configuration: TypeAlias = tuple[int, int, int, bytes | None]
"""(lexical state, number of the reader, number of the stack, captured bytes; None if the reader does not capture)."""
Entry: TypeAlias = tuple[frozenset[Configuration], bool]
"""Configurations, and whether the text may end before any of them reads a byte."""


@dataclass(frozen=True, slots=True)
class Closure:
    """The closure of a frame: the lexemes that begin on a stack, relative to it, so the same on every one.

    Attributes:
        starts: (lexical state, reader, frames pushed, the innermost last).
        is_returning: whether the frame on top of the stack may go on at once.
    """

    starts: tuple[tuple[int, int, tuple[int, ...]], ...]
    is_returning: bool


State: TypeAlias = int
"""The number of a state: a set of configurations, and whether the text so far is accepted."""


class States:
    """The states of a recogniser, numbered from 0; grows only.

    A text of a thousand bytes makes a thousand states. So they are kept as numbers and tuples of numbers in a few large
    containers: Python's garbage collector looks at no container that holds nothing but those, and a state costs it
    nothing. Equal sets have the same number, so a state is a value: a matcher that keeps one can come back to it.

    Attributes:
        configurations: by state, ascending, each with a byte that may follow; empty if the text can only end.
        number_of: the states by whether the text is accepted, and the configurations, ascending.
        edges: the state behind a byte, by ``state << 8 | byte``, as far as it was tried; None where nothing follows.
    """

    def __init__(self) -> None:
        self.configurations: list[tuple[Configuration, ...]] = []
        self.edges: dict[int, State | None] = {}
        self._is_accepting = bytearray()
        self.number_of: dict[tuple[Configuration | bool, ...], State] = {}

    def __len__(self) -> int:
        return len(self.configurations)

    def is_accepting(self, state: State) -> bool:
        """Whether the text so far is a whole text of the constraint."""
        return self._is_accepting[state] == 1

    def add(self, configurations: Iterable[Configuration], is_accepting: bool) -> State:
        """A new state, which no other set finds."""
        self.configurations.append(tuple(sorted(configurations)))
        self._is_accepting.append(is_accepting)
        return len(self.configurations) - 1


class Rows:
    """The `Closure` of lexemes, and of the entries of frames, as flat arrays for compiled code; grows only.

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
        self._row_of: dict[Closure, int] = {}
        self._num_rows = self._num_keys = self._num_starts = self._num_pushed = 0

    def add(self, closure: Closure) -> int:
        """The row of a closure, a new one if there is none yet."""
        known = self._row_of.get(closure)
        if known is not None:
            return known
        row = self._row_of[closure] = self._num_rows
        self._num_rows += 1
        if row + 2 > len(self.start):
            self.start, self.returns = doubled(self.start), doubled(self.returns)
        size = self._num_starts + len(closure.starts)
        if size >= min(len(self.lexical), len(self.push)):
            self.lexical, self.reader = with_room(self.lexical, size), with_room(self.reader, size)
            self.push = with_room(self.push, size + 1)
        for index, (lexical, reader, frames) in enumerate(closure.starts, self._num_starts):
            self.lexical[index], self.reader[index] = lexical, reader
            end = self._num_pushed + len(frames)
            if end > len(self.pushed):
                self.pushed = with_room(self.pushed, end)
            for place, frame in enumerate(frames, self._num_pushed):
                self.pushed[place] = frame
            self.push[index + 1] = self._num_pushed = end
        self._num_starts = size
        self.start[row + 1] = self._num_starts
        self.returns[row] = closure.is_returning
        return row

    def put(self, key: int, row: int) -> None:
        """Let a key find a row."""
        if 2 * self._num_keys >= len(self.keys):
            old = zip(self.keys.tolist(), self.rows.tolist(), strict=True)
            self.keys, self.rows = np.full(2 * len(self.keys), -1, np.int64), np.zeros(2 * len(self.keys), np.int32)
            self._num_keys = 0
            for known, its_row in old:
                if known >= 0:
                    self.put(known, its_row)
        mask = len(self.keys) - 1
        slot = _first_slot(key, mask)
        while self.keys[slot] >= 0:
            slot = slot + 1 & mask
        self.keys[slot], self.rows[slot] = key, row
        self._num_keys += 1

    def put_entry(self, frame: int, row: int) -> None:
        """Let the entry of a frame find a row."""
        self.entry = with_room(self.entry, frame + 1, -1)
        self.entry[frame] = row


BUNDLE: Final = -2
"""In place of a frame: the stack stands for several."""
CUT: Final = -3
"""In place of a frame: what lies here and below was left out."""
_CUT_STACK: Final = 1
_STEPS_OF_BUNDLE: Final = 20  # of `work_budget`
_MANY_STACKS: Final = 256  # count as one step down more, so that a bundle is a bounded piece of work
_MAX_SHARED_DEPTH: Final = 200  # so far down stacks are compared at once; what was bundled before counts as one step


class StackCut(Exception):  # noqa: N818  (no error: more of the stacks is needed)
    """Raised where tokens depend on what was cut from the stacks."""


class Stacks:
    """Stacks of frames, interned: stack n > 0 is ``frame[n]`` on top of stack ``parent[n]``; 0 is the empty one.

    A bundle stands for several stacks on which the same is read, so that it is read once (as in the graph-structured
    stacks of Tomita, 1986): its frame is `BUNDLE`, and ``members`` holds at ``parent[n]`` how many stacks they are,
    then their numbers, none of them a bundle.

    The number of a stack is found by open addressing in ``slots`` (0 where free), by parent * 2**32 + frame. Compiled
    code adds stacks too; ``count`` is int64 [1].
    """

    def __init__(self) -> None:
        self.frame: Int32Array = np.full(512, -1, np.int32)
        self.parent: Int32Array = np.zeros(512, np.int32)
        self.members: Int32Array = np.zeros(64, np.int32)
        self.slots: Int32Array = np.zeros(2048, np.int32)
        self._num_members = 0
        self._bundles: dict[frozenset[int], int] = {}
        self._upper: dict[tuple[int, int], int] = {}
        self.count: Int64Array = np.full(1, 2, np.int64)
        self.frame[_CUT_STACK] = CUT

    def push(self, parent: int, frame: int) -> int:
        """The stack with a frame on top of another stack."""
        if self.count[0] == len(self.frame):
            self.grow()
        mask = len(self.slots) - 1
        slot = _first_slot(parent << 32 | frame, mask)
        while (number := int(self.slots[slot])) != 0:
            if self.parent[number] == parent and self.frame[number] == frame:
                return number
            slot = slot + 1 & mask
        number = self._next()
        self.slots[slot], self.parent[number], self.frame[number] = number, parent, frame
        return number

    def _next(self) -> int:
        """The number of a new stack, for which there is room."""
        self.count[0] += 1
        return int(self.count[0]) - 1

    def bundle(self, some: Iterable[int], depth: int = 0) -> int:
        """The number that stands for some stacks, those of bundles among them one by one.

        Stacks with the same frame on top become one, on the bundle of what is below, and so on downwards: the sets of
        stacks of an ambiguous text share their parts, and are as many as the places of the text, not as its readings.
        """
        stacks = frozenset(some)
        if len(stacks) == 1:
            return next(iter(stacks))
        number = self._bundles.get(stacks)
        if number is not None:
            return number
        frames = self.frame[[*stacks]].tolist()
        bundles = [stack for stack, frame in zip(stacks, frames, strict=True) if frame == BUNDLE]
        if bundles:
            members = stacks.difference(bundles).union(*map(self.standing_for, bundles))
            number = self._bundles[stacks] = self.bundle(members, depth)
            return number
        check()  # what is bundled below is kept, and counted when it is: who begins again gets further
        groups: dict[int, list[int]] = {}
        for stack, frame in zip(stacks, frames, strict=True):
            groups.setdefault(frame, []).append(stack)
        if len(groups) < len(stacks) and depth < _MAX_SHARED_DEPTH:
            merged: list[int] = []
            for frame, group in groups.items():
                if len(group) == 1:
                    merged += group
                else:
                    below = self.parent[group].tolist()
                    merged.append(self.push(self.bundle(below, depth + 1 + len(stacks) // _MANY_STACKS), frame))
            number = self.bundle(merged, depth)
        else:
            number = self._new_bundle(stacks)
        charge(_STEPS_OF_BUNDLE + len(stacks) // 4)
        self._bundles[stacks] = number
        return number

    def _new_bundle(self, stacks: frozenset[int]) -> int:
        if self.count[0] == len(self.frame):
            self.grow()
        number = self._next()
        start = self._num_members
        self._num_members += 1 + len(stacks)
        self.members = with_room(self.members, self._num_members)
        self.members[start], self.members[start + 1 : self._num_members] = len(stacks), sorted(stacks)
        self.frame[number], self.parent[number] = BUNDLE, start
        return number

    def upper(self, stack: int, num_frames: int) -> int:
        """The stack with the frames on top alone, so many of them; below is a place that says that more was there."""
        if stack <= _CUT_STACK:
            return stack
        key = (stack, num_frames)
        number = self._upper.get(key)
        if number is None:
            if self.frame[stack] == BUNDLE:
                number = self.bundle([self.upper(member, num_frames) for member in self.standing_for(stack)])
            elif num_frames == 0:
                number = _CUT_STACK
            else:
                number = self.push(self.upper(int(self.parent[stack]), num_frames - 1), int(self.frame[stack]))
            self._upper[key] = number
        return number

    def standing_for(self, stack: int) -> list[int]:
        """The stacks that a number stands for: itself, or those of the bundle."""
        if self.frame[stack] != BUNDLE:
            return [stack]
        start = int(self.parent[stack]) + 1
        members: list[int] = self.members[start : start + int(self.members[start - 1])].tolist()
        return members

    def grow(self) -> None:
        """Make room."""
        self.frame, self.parent = doubled(self.frame), doubled(self.parent)
        self.slots = np.zeros(2 * len(self.slots), np.int32)
        mask = len(self.slots) - 1
        for number in range(_CUT_STACK + 1, int(self.count[0])):
            if self.frame[number] != BUNDLE:
                slot = _first_slot(int(self.parent[number]) << 32 | int(self.frame[number]), mask)
                while self.slots[slot] != 0:
                    slot = slot + 1 & mask
                self.slots[slot] = number


def _first_slot(key: int, mask: int) -> int:
    """Where the search for a key begins; compiled code has the same."""
    return (key ^ key >> 29) * 0x9E3779B1 & mask


def row_key(reader: int, label_set: int) -> int:
    """The key of a row."""
    return reader << 32 | label_set
