"""A reader of texts that remembers where each lexeme began: for explaining a refusal, and for going on at random.

Example: ``{"ab": 12`` under ``{"type": "object"}``. The trace has three threads, as what is read next may be

    a digit     of the number that began at byte 7: entered by the frame of the value
    "}"         begun at byte 9: by the frame of the object, behind its member
    ","         begun at byte 9: by the frame of the object, on the way to another key

The protocol: `Trace(root)` stands before the text. `read(data)` goes on byte by byte and returns how many could be
read; where none can, nothing changes. `threads` are the lexemes that may go on, each with its `Origin`: the frames
entered since the lexeme before it. `ended` are the origins of lexemes that the last byte may have ended, and
`is_accepting` says whether the text may end. A thread's `stack` leads to the frames that wait for a return.

The engine (`recogniser`) forgets on purpose which frames led to a state, so that states are few; completions need no
more than such a state. A trace reads the same network one byte at a time in Python, with a bound, since an ambiguous
grammar has many ways. It is the only other reader: it accepts exactly the texts that the engine accepts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.network import Call, End, Frame, Move, Read, Return
from decodekit.errors import ResourceLimitError

MAX_STEPS: Final = 200_000
"""Bound on the lexemes and frames that one trace may touch: about a second. A long JSON text takes four a byte."""


@dataclass(slots=True, eq=False)
class StackNode:
    """A node of a graph-structured stack (Tomita, 1986): a frame, and the nodes to return to, None for the end.

    Interned by its trace. Stacks with the same frame on top are one node, so that ambiguous texts do not multiply them.
    """

    frame: Frame
    thens: Thens


Thens: TypeAlias = "tuple[StackNode | None, ...]"
Path: TypeAlias = tuple[tuple[Frame, Move], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The origin of a lexeme: the frames entered since the last one, with the moves taken, and the bytes before it."""

    path: Path
    start: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One way to have read the text: inside a lexeme.

    Attributes:
        node: what is left of it.
        stack: the frame that is asked at its end, and those to return to.
        text: the bytes read if they are captured, else None.
        origin: where the lexeme came from.
    """

    node: Node
    stack: StackNode
    text: bytes | None
    origin: Origin


class Trace:
    """The ways to read a text, which grows.

    Attributes:
        position: number of bytes read.
        threads: the lexemes that may go on.
        ended: the lexemes with which the text so far may end one, begun where they began.
        is_accepting: whether the text so far is a whole one.
    """

    def __init__(self, root: Frame) -> None:
        self.position = 0
        self.ended: tuple[Origin, ...] = ()
        self._places: Memo[tuple[Frame, Thens], StackNode] = Memo(lambda parts: StackNode(*parts))
        self._moves: Memo[Frame, tuple[Move, ...]] = Memo(lambda frame: frame.moves())
        self._num_steps = 0
        self.is_accepting = False
        self.threads = self._enter([self._places[root, (None,)]])

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
        places: list[StackNode] = []
        for thread in self.threads:
            rest = thread.node.derivative(byte)
            if rest.is_empty:
                continue
            text = None if thread.text is None else thread.text + bytes((byte,))
            if rest.transitions():
                advanced.append(Thread(rest, thread.stack, text, thread.origin))
            if rest.labels:
                ended.append(thread.origin)
                places += self.behind(thread.stack, rest.labels, text or b"")
        self._count(len(self.threads))
        position, is_accepting = self.position, self.is_accepting
        self.position, self.is_accepting = position + 1, False
        threads = self._unique([*advanced, *self._enter(places)] if places else advanced)
        if not threads and not self.is_accepting:
            self.position, self.is_accepting = position, is_accepting
            return False
        self.threads, self.ended = threads, tuple(ended)
        return True

    def behind(self, place: StackNode, labels: Iterable[Hashable], text: bytes) -> list[StackNode]:
        """The places after a lexeme that was read at `place` and ends with any of some labels."""
        return [self._places[frame, place.thens] for label in labels for frame in place.frame.after(label, text)]

    def _joined(self, places: Iterable[StackNode | None]) -> Thens:
        """The same places, one for all that have the same frame."""
        distinct = tuple(dict.fromkeys(places))
        if len(distinct) < 2:
            return distinct
        by_frame: dict[Frame | None, list[StackNode | None]] = {}
        for place in distinct:
            by_frame.setdefault(None if place is None else place.frame, []).append(place)
        return tuple(group[0] if len(group) == 1 else self._join(group) for group in by_frame.values())

    def _join(self, group: list[StackNode | None]) -> StackNode | None:
        """One place for several with the same frame."""
        self._count(len(group))
        first = group[0]
        if first is None:
            return None
        return self._places[first.frame, self._joined(then for place in group if place for then in place.thens)]

    def _unique(self, threads: list[Thread]) -> tuple[Thread, ...]:
        """One thread for all that read the same at the same frame."""
        if len(threads) < 2:
            return tuple(threads)
        groups: dict[tuple[Node, Frame, bytes | None], list[Thread]] = {}
        for thread in threads:
            groups.setdefault((thread.node, thread.stack.frame, thread.text), []).append(thread)
        found = []
        for group in groups.values():
            (place,) = self._joined(thread.stack for thread in group)
            assert place is not None
            found.append(group[0] if place is group[0].stack else replace(group[0], stack=place))
        return tuple(found)

    def _enter(self, places: list[StackNode]) -> tuple[Thread, ...]:
        """The lexemes that may begin at some places, after all moves that read nothing."""
        threads: list[Thread] = []
        begin = self._joined(places)
        agenda: list[tuple[StackNode, Path]] = [(place, ()) for place in reversed(begin) if place]
        seen: set[StackNode] = set()
        while agenda:
            place, path = agenda.pop()
            if place in seen:
                continue
            seen.add(place)
            self._count(1)
            following: list[tuple[StackNode, Path]] = []
            for move in self._moves[place.frame]:
                now = (*path, (place.frame, move))
                if isinstance(move, Read):
                    reading = place if move.reader is None else self._places[move.reader, place.thens]
                    if not move.node.is_empty and move.node.transitions():
                        captured = b"" if move.capture else None
                        threads.append(Thread(move.node, reading, captured, Origin(now, self.position)))
                    following += ((after, now) for after in self.behind(reading, move.node.labels, b""))
                elif isinstance(move, Call):
                    # What only returns need not be returned to, so that right recursion is flat.
                    thens = place.thens if isinstance(move.then, End) else (self._places[move.then, place.thens],)
                    following.append((self._places[move.callee, thens], now))
                elif isinstance(move, Return):
                    self.is_accepting |= None in place.thens
                    following += ((then, path) for then in place.thens if then is not None)
            agenda += reversed(following)
        return self._unique(threads)

    def _count(self, num_steps: int) -> None:
        self._num_steps += num_steps
        if self._num_steps > MAX_STEPS:
            raise ResourceLimitError(f"there are too many ways to read the text for {MAX_STEPS:,} steps")
