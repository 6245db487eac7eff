"""The states of a constraint: sets of configurations of its recursive transition network, made when they are reached.

A configuration is (lexical state, place, captured text): the lexeme being read, the frame that reads it with the frames
to return to, and the bytes read so far if the frame asked for them. Reading a byte advances every configuration by
itself; where a lexeme may end, the configurations that follow join the set. Equal sets are the same `State` object, so
a state is a value: whoever keeps it can come back to it, whatever was read since.

Places are numbers, and what follows a lexeme at a place is kept in flat arrays (`Leaves`), so that compiled code can
run configurations over many bytes and comes back only for what was never met before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
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


@dataclass(slots=True, eq=False)
class Place:
    """A frame with what it reads, and the place to go on with when it returns. Interned by its network.

    Attributes:
        number: its index in the network.
        then: None if the text ends with the frame.
        captures: whether the frame wants the bytes that are read here.
        entry: what entering the frame here means, once it is known.
    """

    number: int
    frame: Frame
    then: Place | None
    captures: bool
    permitted: bytes | None
    entry: Entry | None = None

    def __repr__(self) -> str:
        return f"Place({self.frame!r})" if self.then is None else f"Place({self.frame!r} in {self.then.frame!r})"


Configuration: TypeAlias = tuple[int, int, bytes | None]
"""(lexical state, number of the place, captured bytes)."""
Entry: TypeAlias = tuple[frozenset[Configuration], bool]
"""Configurations, and whether the text may end before any of them reads a byte."""


class State:
    """A set of configurations, and whether the text so far is accepted. Interned by its network.

    Attributes:
        configurations: each with a byte that may follow; empty if the text can only end.
        is_accepting: whether the text so far is a whole text of the constraint.
        edges: the states after each byte that was tried, None where nothing follows.
        mask: the allowed tokens, once they are known; owned by the masks of a vocabulary.
    """

    __slots__ = ("__weakref__", "_first_bytes", "configurations", "edges", "is_accepting", "mask")

    def __init__(self, configurations: frozenset[Configuration], is_accepting: bool) -> None:
        self.configurations = tuple(configurations)
        self.is_accepting = is_accepting
        self.edges: dict[int, State | None] = {}
        self.mask: object = None
        self._first_bytes: UInt8Array | None = None

    def __repr__(self) -> str:
        return f"State({len(self.configurations)} configurations, is_accepting={self.is_accepting})"


class Leaves:
    """What follows when a lexeme ends at a place, as flat arrays for compiled code; grows only.

    Row r stands for the configurations ``lexical[start[r]:start[r + 1]]``, ``place[...]`` and for ``accepts[r]``. The
    row of (place, label set) is found by open addressing: ``keys`` holds place * 2**32 + label set, -1 where free.
    """

    def __init__(self) -> None:
        self.keys: Int64Array = np.full(1024, -1, np.int64)
        self.rows: Int32Array = np.zeros(1024, np.int32)
        self.start: Int32Array = np.zeros(1024, np.int32)
        self.accepts: UInt8Array = np.zeros(1024, np.uint8)
        self.lexical: Int32Array = np.zeros(2048, np.int32)
        self.place: Int32Array = np.zeros(2048, np.int32)
        self.num_rows = 0
        self._num_keys = 0

    def add_row(self, entry: Entry) -> int:
        """A new row."""
        configurations, is_accepting = entry
        row, first = self.num_rows, int(self.start[self.num_rows])
        last = first + len(configurations)
        while row + 1 >= len(self.start):
            self.start = _doubled(self.start)
            self.accepts = _doubled(self.accepts)
        while last > len(self.lexical):
            self.lexical, self.place = _doubled(self.lexical), _doubled(self.place)
        for index, (lexical, place, _) in enumerate(configurations, first):
            self.lexical[index], self.place[index] = lexical, place
        self.start[row + 1] = last
        self.accepts[row] = is_accepting
        self.num_rows += 1
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

    def _insert(self, key: int, row: int) -> None:
        mask = len(self.keys) - 1
        slot = (key ^ key >> 29) * 0x9E3779B1 & mask
        while self.keys[slot] >= 0:
            slot = slot + 1 & mask
        self.keys[slot], self.rows[slot] = key, row


def leave_key(place: int, label_set: int) -> int:
    """The key of a row."""
    return place << 32 | label_set


def _doubled(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    grown = np.zeros(2 * len(array), array.dtype)
    grown[: len(array)] = array
    return grown


class Unfolding:
    """The part of a constraint's network that was reached so far; grows only. Thread-safe.

    Attributes:
        leaves: what follows the lexemes of the places that were left so far.
        captures: by place, whether the bytes read there are captured, uint8.
        permitted: by place, where its selection of labels begins in `num_permitted`, -1 if it has none, int32.
        num_permitted: running counts of permitted labels, int32: of labels low to before high, a selection that begins
            at b permits ``num_permitted[b + high] - num_permitted[b + low]``.

    Raises (from any method):
        ResourceLimitError: too many alternatives at once, or left recursion without end.
    """

    def __init__(self, root: Frame, automaton: Automaton) -> None:
        self.automaton = automaton
        self.places: list[Place] = []
        self.leaves = Leaves()
        self.captures: UInt8Array = np.zeros(256, np.uint8)
        self.permitted: Int32Array = np.full(256, -1, np.int32)
        self.num_permitted: Int32Array = np.zeros(256, np.int32)
        self._num_counts = 0
        self._selections: dict[bytes, int] = {}
        self._numbers: dict[tuple[Frame, Place | None, bool, bytes | None], Place] = {}
        self._states: dict[Entry, State] = {}
        self._row_of: dict[int, int] = {}
        self._entry_of: dict[int, Entry] = {}
        self._fresh: dict[tuple[int, int], tuple[Fresh, Entry] | None] = {}
        with automaton.lock:
            self.root = self._intern(self._enter([(root, None)])) or State(frozenset(), False)
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

    def is_selected(self, lexical: int, place: Place) -> bool:
        """Whether some word from a lexical state ends with a label that the place permits."""
        if place.permitted is None:
            return True
        low, high = int(self.automaton.low[lexical]), int(self.automaton.high[lexical])
        return low < 0 or 1 in place.permitted[low:high]

    def leave(self, place: int, label_set: int, text: bytes | None = None) -> Entry:
        """What follows a lexeme read at `place` that ends with any label of a set; `text` if the place captures."""
        if text is not None:
            return self._leave(self.places[place], label_set, text)
        key = leave_key(place, label_set)
        entry = self._entry_of.get(key)
        if entry is None:
            entry = self._entry_of[key] = self._leave(self.places[place], label_set, None)
        return entry

    def row(self, place: int, label_set: int) -> int:
        """The row of `leaves` for a lexeme read at `place`, which does not capture."""
        key = leave_key(place, label_set)
        row = self._row_of.get(key)
        if row is None:
            row = self._row_of[key] = self.leaves.add_row(self.leave(place, label_set))
            self.leaves.put(key, row)
        return row

    def fresh(self, place: int, label_set: int) -> tuple[Fresh, Entry] | None:
        """What follows most captured texts, None if the frame does not say."""
        key = (place, label_set)
        if key not in self._fresh:
            where, labels = self.places[place], self.automaton.label_sets[label_set]
            common = where.frame.fresh(labels[0]) if len(labels) == 1 else None
            self._fresh[key] = (
                None if common is None else (common, self._enter([(frame, where.then) for frame in common.frames]))
            )
        return self._fresh[key]

    def first_bytes(self, state: State) -> UInt8Array:
        """Which bytes may follow, uint8 [256] of 0 and 1."""
        if state._first_bytes is None:
            state._first_bytes = self.first_bytes_of(state.configurations)
        return state._first_bytes

    def first_bytes_of(self, configurations: Iterable[Configuration]) -> UInt8Array:
        """Which bytes may follow in any of the configurations, selections aside, uint8 [256] of 0 and 1."""
        first = np.zeros(256, np.uint8)
        for lexical, _, _ in configurations:
            first |= self.automaton.first_bytes(lexical)
        return first

    def _read(self, state: State, byte: int) -> State | None:
        reached: set[Configuration] = set()
        is_accepting = False
        automaton = self.automaton
        for lexical, number, text in state.configurations:
            target = automaton.step(lexical, byte)
            if target == DEAD or not self.is_selected(target, self.places[number]):
                continue
            text_now = None if text is None else text + bytes((byte,))
            if not automaton.is_final(target):
                reached.add((target, number, text_now))
            if automaton.endings[target]:
                configurations, ends = self.leave(number, int(automaton.endings[target]), text_now)
                reached |= configurations
                is_accepting |= ends
        return self._intern((frozenset(reached), is_accepting))

    def _leave(self, place: Place, label_set: int, text: bytes | None) -> Entry:
        labels = self.automaton.label_sets[label_set]
        if len(labels) == 1:
            return self._end_lexeme(place, labels[0], text)
        configurations: frozenset[Configuration] = frozenset()
        is_accepting = False
        for label in labels:
            more, ends = self._end_lexeme(place, label, text)
            configurations |= more
            is_accepting |= ends
        return configurations, is_accepting

    def _end_lexeme(self, place: Place, label: Hashable, text: bytes | None) -> Entry:
        if place.permitted is not None and type(label) is int and not place.permitted[label]:
            return frozenset(), False
        frames = place.frame.after(label, b"" if text is None else text)
        return self._enter([(frame, place.then) for frame in frames])

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

    def _place(self, frame: Frame, then: Place | None, captures: bool = False, permitted: bytes | None = None) -> Place:
        key = (frame, then, captures, permitted)
        place = self._numbers.get(key)
        if place is None:
            number = len(self.places)
            place = self._numbers[key] = Place(number, frame, then, captures, permitted)
            self.places.append(place)
            if number == len(self.captures):
                self.captures = _doubled(self.captures)
                self.permitted = np.concatenate((self.permitted, np.full(number, -1, np.int32)))
            self.captures[number] = captures
            if permitted is not None:
                self.permitted[number] = self._selection(permitted)
        return place

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

    def _enter(self, starts: Iterable[tuple[Frame, Place | None]]) -> Entry:
        """Follow all moves that read nothing: what may be read next, and whether the text may end here."""
        agenda = [self._place(frame, then) for frame, then in starts]
        start = agenda[0] if len(agenda) == 1 else None
        if start is not None and start.entry is not None:
            return start.entry
        entered: set[int] = set()
        configurations: set[Configuration] = set()
        is_accepting = False
        while agenda:
            place = agenda.pop()
            if place.number in entered:
                continue
            entered.add(place.number)
            if len(entered) > MAX_CONFIGURATIONS:
                raise _too_many()
            if place.entry is not None:
                configurations |= place.entry[0]
                is_accepting |= place.entry[1]
                continue
            for move in place.frame.moves():
                if isinstance(move, Read):
                    lexical = self.automaton.state(move.node if move.within is None else move.within.node)
                    if lexical == DEAD:
                        continue
                    permitted = None if move.within is None else move.within.permitted
                    reader = place
                    if move.capture or permitted is not None:
                        reader = self._place(place.frame, place.then, move.capture, permitted)
                    if not self.is_selected(lexical, reader):
                        continue
                    if not self.automaton.is_final(lexical):
                        configurations.add((lexical, reader.number, b"" if move.capture else None))
                    for label in self.automaton.labels[lexical]:
                        if permitted is None or type(label) is not int or permitted[label]:
                            agenda += (self._place(frame, place.then) for frame in place.frame.after(label, b""))
                elif isinstance(move, Call):
                    agenda.append(self._place(move.callee, self._return_to(move.then, place.then)))
                elif isinstance(move, Return):
                    if place.then is None:
                        is_accepting = True
                    else:
                        agenda.append(place.then)
        entry = (frozenset(configurations), is_accepting)
        if start is not None:
            start.entry = entry
        return entry

    def _return_to(self, then: Frame, outer: Place | None) -> Place | None:
        # A frame that only returns need not be returned to: right recursion keeps a flat stack.
        return outer if then.moves() == (RETURN,) else self._place(then, outer)


def _too_many() -> ResourceLimitError:
    return ResourceLimitError(
        f"the constraint has more than {MAX_CONFIGURATIONS:,} alternatives at one place of the text",
        hint="make alternatives begin differently, and remove rules that begin with themselves",
    )
