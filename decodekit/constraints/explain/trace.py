"""Reading a text against the network of a constraint with a memory of where each lexeme began.

The engine forgets on purpose which frames led to a state, so that states are few. Whoever explains a refusal, or goes
on with a text at random, needs them. A trace keeps them for every way to read the text: one byte at a time, in Python,
and bounded, since an ambiguous grammar has many ways.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from decodekit.constraints.language.node import Node
from decodekit.constraints.network import Call, End, Frame, Move, Read, Return
from decodekit.errors import ResourceLimitError

MAX_STEPS: Final = 200_000
"""Bound on the lexemes and frames that one trace may touch: about a second. A long JSON text takes four a byte."""


class Place:
    """A frame, and the places to go on with when it returns, None for the end of the text; interned by its trace.

    Stacks with the same frame on top are one place, so that ambiguous texts do not multiply them (as in the
    graph-structured stacks of Tomita, 1986).
    """

    __slots__ = ("frame", "thens")

    def __init__(self, frame: Frame, thens: Thens) -> None:
        self.frame, self.thens = frame, thens


Thens: TypeAlias = "tuple[Place | None, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a lexeme came from.

    Attributes:
        path: the frames entered since the lexeme before it, each with the move that was taken; the last one is the
            `Read`.
        start: number of bytes of the text before it.
    """

    path: tuple[tuple[Frame, Move], ...]
    start: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One way to have read the text: inside a lexeme.

    Attributes:
        node: what is left of it.
        place: the frame that is asked at its end, and those to return to.
        text: the bytes read if they are captured, else None.
        origin: where the lexeme came from.
    """

    node: Node
    place: Place
    text: bytes | None
    origin: Origin


class Trace:
    """The ways to read a text, which grows.

    Args:
        root: the frame of a whole text.

    Attributes:
        position: number of bytes read.
        threads: the lexemes that may go on.
        ended: the lexemes with which the text so far may end one, begun where they began.
        is_accepting: whether the text so far is a whole one.

    Raises (from any method):
        ResourceLimitError: more than `MAX_STEPS` steps.
    """

    def __init__(self, root: Frame) -> None:
        self.position = 0
        self.ended: tuple[Origin, ...] = ()
        self._places: dict[tuple[Frame, Thens], Place] = {}
        self._moves: dict[Frame, tuple[Move, ...]] = {}
        self._num_steps = 0
        self.is_accepting = False
        self.threads = self._enter([self._place(root, (None,))])

    def read(self, data: bytes) -> int:
        """Go on with `data` as far as it can be read; returns the number of bytes."""
        for count, byte in enumerate(data):
            if not self._step(byte):
                return count
        return len(data)

    def _step(self, byte: int) -> bool:
        """Go on with one byte; False, and nothing changes, if no text does."""
        advanced: list[Thread] = []
        ended: list[Origin] = []
        places: list[Place] = []
        for thread in self.threads:
            rest = thread.node.derivative(byte)
            if rest.is_empty:
                continue
            text = None if thread.text is None else thread.text + bytes((byte,))
            if rest.transitions():
                advanced.append(Thread(rest, thread.place, text, thread.origin))
            if rest.labels:
                ended.append(thread.origin)
                places += self.behind(thread.place, rest.labels, text or b"")
        self._count(len(self.threads))
        position, is_accepting = self.position, self.is_accepting
        self.position, self.is_accepting = position + 1, False
        threads = self._unique([*advanced, *self._enter(places)] if places else advanced)
        if not threads and not self.is_accepting:
            self.position, self.is_accepting = position, is_accepting
            return False
        self.threads, self.ended = threads, tuple(ended)
        return True

    def behind(self, place: Place, labels: Iterable[Hashable], text: bytes) -> list[Place]:
        """The places after a lexeme that was read at `place` and ends with any of some labels."""
        return [self._place(frame, place.thens) for label in labels for frame in place.frame.after(label, text)]

    def _moves_of(self, frame: Frame) -> tuple[Move, ...]:
        moves = self._moves.get(frame)
        if moves is None:
            moves = self._moves[frame] = frame.moves()
        return moves

    def _place(self, frame: Frame, thens: Thens) -> Place:
        key = (frame, thens)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(frame, thens)
        return place

    def _joined(self, places: Iterable[Place | None]) -> Thens:
        """The same places, one for all that have the same frame."""
        distinct = tuple(dict.fromkeys(places))
        if len(distinct) < 2:
            return distinct
        by_frame: dict[Frame | None, list[Place | None]] = {}
        for place in distinct:
            by_frame.setdefault(None if place is None else place.frame, []).append(place)
        return tuple(group[0] if len(group) == 1 else self._join(group) for group in by_frame.values())

    def _join(self, group: list[Place | None]) -> Place | None:
        """One place for several with the same frame."""
        self._count(len(group))
        first = group[0]
        if first is None:
            return None
        return self._place(first.frame, self._joined(then for place in group if place for then in place.thens))

    def _unique(self, threads: list[Thread]) -> tuple[Thread, ...]:
        """One thread for all that read the same at the same frame."""
        if len(threads) < 2:
            return tuple(threads)
        groups: dict[tuple[Node, Frame, bytes | None], list[Thread]] = {}
        for thread in threads:
            groups.setdefault((thread.node, thread.place.frame, thread.text), []).append(thread)
        found = []
        for group in groups.values():
            (place,) = self._joined(thread.place for thread in group)
            assert place is not None
            found.append(group[0] if place is group[0].place else replace(group[0], place=place))
        return tuple(found)

    def _enter(self, places: list[Place]) -> tuple[Thread, ...]:
        """The lexemes that may begin at some places, after all moves that read nothing."""
        threads: list[Thread] = []
        begin = self._joined(places)
        agenda: list[tuple[Place, tuple[tuple[Frame, Move], ...]]] = [(place, ()) for place in reversed(begin) if place]
        seen: set[Place] = set()
        while agenda:
            place, path = agenda.pop()
            if place in seen:
                continue
            seen.add(place)
            self._count(1)
            following: list[tuple[Place, tuple[tuple[Frame, Move], ...]]] = []
            for move in self._moves_of(place.frame):
                now = (*path, (place.frame, move))
                if isinstance(move, Read):
                    reading = place if move.reader is None else self._place(move.reader, place.thens)
                    if not move.node.is_empty and move.node.transitions():
                        captured = b"" if move.capture else None
                        threads.append(Thread(move.node, reading, captured, Origin(now, self.position)))
                    following += ((after, now) for after in self.behind(reading, move.node.labels, b""))
                elif isinstance(move, Call):
                    # What only returns need not be returned to, so that right recursion is flat.
                    thens = place.thens if isinstance(move.then, End) else (self._place(move.then, place.thens),)
                    following.append((self._place(move.callee, thens), now))
                elif isinstance(move, Return):
                    self.is_accepting |= None in place.thens
                    following += ((then, path) for then in place.thens if then is not None)
            agenda += reversed(following)
        return self._unique(threads)

    def _count(self, num_steps: int) -> None:
        self._num_steps += num_steps
        if self._num_steps > MAX_STEPS:
            raise ResourceLimitError(f"there are too many ways to read the text for {MAX_STEPS:,} steps")
