"""Reading a text against the network of a constraint with a memory of where each lexeme began.

The engine forgets on purpose which frames led to a state, so that states are few. Whoever explains a refusal, or goes
on with a text at random, needs them. A trace keeps them for every way to read the text: plain, one byte at a time, and
bounded, since the ways may be many where the engine has bundled them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from decodekit.constraints.ir import Node
from decodekit.constraints.network import Call, End, Frame, Move, Read, Return
from decodekit.errors import ResourceLimitError

MAX_STEPS: Final = 500_000
"""Bound on the lexemes and frames that one trace may touch."""


class Place:
    """A frame, and the place to go on with when it returns; interned by its trace."""

    __slots__ = ("frame", "then")

    def __init__(self, frame: Frame, then: Place | None) -> None:
        self.frame, self.then = frame, then


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
        self._places: dict[tuple[Frame, Place | None], Place] = {}
        self._num_steps = 0
        self.is_accepting = False
        self.threads = self._enter([self._place(root, None)])

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
        threads = _unique([*advanced, *self._enter(places)])
        if not threads and not self.is_accepting:
            self.position, self.is_accepting = position, is_accepting
            return False
        self.threads, self.ended = threads, tuple(ended)
        return True

    def behind(self, place: Place, labels: Iterable[Hashable], text: bytes) -> list[Place]:
        """The places after a lexeme that was read at `place` and ends with any of some labels."""
        return [self._place(frame, place.then) for label in labels for frame in place.frame.after(label, text)]

    def _place(self, frame: Frame, then: Place | None) -> Place:
        key = (frame, then)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(frame, then)
        return place

    def _enter(self, places: list[Place]) -> tuple[Thread, ...]:
        """The lexemes that may begin at some places, after all moves that read nothing."""
        threads: list[Thread] = []
        agenda: list[tuple[Place, tuple[tuple[Frame, Move], ...]]] = [(place, ()) for place in reversed(places)]
        seen: set[Place] = set()
        while agenda:
            place, path = agenda.pop()
            if place in seen:
                continue
            seen.add(place)
            self._count(1)
            following: list[tuple[Place, tuple[tuple[Frame, Move], ...]]] = []
            for move in place.frame.moves():
                now = (*path, (place.frame, move))
                if isinstance(move, Read):
                    reading = place if move.reader is None else self._place(move.reader, place.then)
                    if not move.node.is_empty and move.node.transitions():
                        captured = b"" if move.capture else None
                        threads.append(Thread(move.node, reading, captured, Origin(now, self.position)))
                    following += ((after, now) for after in self.behind(reading, move.node.labels, b""))
                elif isinstance(move, Call):
                    # What only returns need not be returned to, so that right recursion is flat.
                    then = place.then if isinstance(move.then, End) else self._place(move.then, place.then)
                    following.append((self._place(move.callee, then), now))
                elif isinstance(move, Return):
                    if place.then is None:
                        self.is_accepting = True
                    else:
                        following.append((place.then, path))
            agenda += reversed(following)
        return _unique(threads)

    def _count(self, num_steps: int) -> None:
        self._num_steps += num_steps
        if self._num_steps > MAX_STEPS:
            raise ResourceLimitError(f"there are too many ways to read the text for {MAX_STEPS:,} steps")


def _unique(threads: list[Thread]) -> tuple[Thread, ...]:
    """One thread of those that go on alike."""
    found: dict[tuple[Node, Place, bytes | None], Thread] = {}
    for thread in threads:
        found.setdefault((thread.node, thread.place, thread.text), thread)
    return tuple(found.values())
