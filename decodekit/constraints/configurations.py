"""The states of a constraint: sets of configurations of its recursive transition network, made when they are reached.

A configuration is (lexical state, place, captured text): the lexeme being read, the frame that reads it with the frames
to return to, and the bytes read so far if the frame asked for them. Reading a byte advances every configuration by
itself; where a lexeme may end, the configurations that follow join the set. Equal sets are the same `State` object, so
a state is a value: whoever keeps it can come back to it, whatever was read since.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, TypeAlias

import numpy as np

from decodekit.constraints.automaton import DEAD, Automaton, UInt8Array
from decodekit.constraints.network import RETURN, Call, Frame, Read, Return
from decodekit.errors import ResourceLimitError

MAX_CONFIGURATIONS: Final = 20_000
"""Bound on the alternatives that one state may hold, and on the frames that one step may enter."""


class Place:
    """A frame, and the place to go on with when it returns (None: the text ends). Interned by its network."""

    __slots__ = ("_after", "entry", "frame", "then")

    def __init__(self, frame: Frame, then: Place | None) -> None:
        self.frame, self.then = frame, then
        self.entry: Entry | None = None  # what entering here means, once it is known
        self._after: dict[tuple[type, Hashable], State | None] = {}  # for lexemes that are not captured

    def __repr__(self) -> str:
        return f"Place({self.frame!r})" if self.then is None else f"Place({self.frame!r} in {self.then.frame!r})"


Configuration: TypeAlias = tuple[int, Place, bytes | None]
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


class Unfolding:
    """The part of a constraint's network that was reached so far; grows only. Thread-safe.

    Raises (from any method):
        ResourceLimitError: too many alternatives at once, or left recursion without end.
    """

    def __init__(self, root: Frame, automaton: Automaton) -> None:
        self.automaton = automaton
        self._places: dict[tuple[Frame, Place | None], Place] = {}
        self._states: dict[Entry, State] = {}
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

    def leave(self, place: Place, label: Hashable, text: bytes | None) -> State | None:
        """The state after a lexeme read at `place` ended with `label`; None if nothing follows and nothing may end."""
        with self.automaton.lock:
            if text is not None:
                return self._intern(self._end_lexeme(place, label, text))
            key = (type(label), label)
            if key not in place._after:
                place._after[key] = self._intern(self._end_lexeme(place, label, None))
            return place._after[key]

    def first_bytes(self, state: State) -> UInt8Array:
        """Which bytes may follow, uint8 [256] of 0 and 1."""
        if state._first_bytes is None:
            first = np.zeros(256, np.uint8)
            for lexical, _, _ in state.configurations:
                first |= self.automaton.first_bytes(lexical)
            state._first_bytes = first
        return state._first_bytes

    def _read(self, state: State, byte: int) -> State | None:
        reached: set[Configuration] = set()
        is_accepting = False
        automaton = self.automaton
        for lexical, place, text in state.configurations:
            target = automaton.step(lexical, byte)
            if target == DEAD:
                continue
            text_now = None if text is None else text + bytes((byte,))
            if not automaton.is_final(target):
                reached.add((target, place, text_now))
            for label in automaton.labels[target]:
                after = self.leave(place, label, text_now)
                if after is not None:
                    reached.update(after.configurations)
                    is_accepting |= after.is_accepting
        return self._intern((frozenset(reached), is_accepting))

    def _end_lexeme(self, place: Place, label: Hashable, text: bytes | None) -> Entry:
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

    def _place(self, frame: Frame, then: Place | None) -> Place:
        key = (frame, then)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(frame, then)
        return place

    def _enter(self, starts: Iterable[tuple[Frame, Place | None]]) -> Entry:
        """Follow all moves that read nothing: what may be read next, and whether the text may end here."""
        agenda = [self._place(frame, then) for frame, then in starts]
        start = agenda[0] if len(agenda) == 1 else None
        if start is not None and start.entry is not None:
            return start.entry
        entered: set[Place] = set()
        configurations: set[Configuration] = set()
        is_accepting = False
        while agenda:
            place = agenda.pop()
            if place in entered:
                continue
            entered.add(place)
            if len(entered) > MAX_CONFIGURATIONS:
                raise _too_many()
            if place.entry is not None:
                configurations |= place.entry[0]
                is_accepting |= place.entry[1]
                continue
            for move in place.frame.moves():
                if isinstance(move, Read):
                    lexical = self.automaton.state(move.node)
                    if lexical == DEAD:
                        continue
                    if not self.automaton.is_final(lexical):
                        configurations.add((lexical, place, b"" if move.capture else None))
                    for label in self.automaton.labels[lexical]:
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
