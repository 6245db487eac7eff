r"""JSON texts inside of a JSON string, as a body language: what ``contentSchema`` asks of a string.

    content     [1,"a"]
    body        [1,\"a\"]        the quote and the backslash with a backslash, everything else as it is

Arrays and objects nest, so this is not a regular language: a node stands for a set of configurations of a network (what
is read, by which frame, above which frames), and its derivatives are made as they are asked for. Keys that are not
declared are not told apart, or each would have states of its own: so one may come twice, and the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from decodekit.constraints.json_schema.strings import text as string_bodies
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import EMPTY, ByteMask, Node, Transitions
from decodekit.constraints.language.shortest import shortest_word
from decodekit.constraints.network import Call, Frame, Label, Move, Read

_Stack: TypeAlias = tuple[Frame, ...]
"""Frames to return to, the innermost last."""
_Item: TypeAlias = tuple[Node, bytes | None, Frame, _Stack]
"""A configuration: the language of the lexeme being read, its captured bytes, its frame, the stack below that."""

_ESCAPES: Final = {0x22: b'"', 0x5C: b"\\", 0x0A: b"n", 0x0D: b"r", 0x09: b"t"}
"""The bytes that a string cannot hold as they are, white space included, with what stands behind their backslash."""
_ESCAPED: Final[ByteMask] = sum(1 << byte for byte in _ESCAPES)


class Embedded(Node):
    """The rest of a JSON text inside of a string: configurations, and whether the text may be whole."""

    __slots__ = ("_hash", "_transitions", "items", "may_end")

    can_be_empty = False  # frames offer only what can be completed
    is_labelled = False

    def __init__(self, items: frozenset[_Item], may_end: bool) -> None:
        self.items, self.may_end = items, may_end
        self._hash = hash((items, may_end))
        self._transitions: Transitions | None = None

    @property
    def labels(self) -> tuple[None, ...]:
        """As in `Node`."""
        return (None,) if self.may_end else ()

    def transitions(self) -> Transitions:
        """As in `Node`."""
        if self._transitions is None:
            self._transitions = tuple(self._rows())
        return self._transitions

    def _rows(self) -> Iterable[tuple[ByteMask, Node]]:
        escaped: list[tuple[bytes, Node]] = []
        for mask, group in _divided([(item, row) for item in self.items for row in item[0].transitions()]):
            escaped += [(way, _after(group, byte)) for byte, way in _ESCAPES.items() if mask >> byte & 1]
            rest = mask & ~_ESCAPED
            if rest:
                yield from _by_capture(group, rest)
        behind = ir.choice(*(ir.concat(ir.literal(way), target) for way, target in escaped))
        if behind is not EMPTY:
            yield 1 << 0x5C, behind

    def forget(self) -> None:
        """As in `Node`."""
        self._transitions = None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Embedded and self.may_end == other.may_end and self.items == other.items
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Embedded({len(self.items)} configurations)"


def embedded(root: Frame) -> Node:
    """The texts of a frame that some text completes, as the body of a string."""
    return _entered([(root, ())], [])


@dataclass(frozen=True, slots=True)
class _KnownText(Frame):
    """The frame that is asked at the end of a text that it would have captured, where that is known, or is as good."""

    frame: Frame
    text: bytes

    def moves(self) -> tuple[Move, ...]:
        return self.frame.moves()

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return self.frame.after(label, self.text)


def _readings(move: Read, reader: Frame, stack: _Stack) -> Iterator[_Item]:
    """The ways to read a lexeme: one for each text that matters, and one for all others."""
    word = shortest_word(move.node) if move.capture else None
    fresh = None if word is None else reader.fresh(word[1])
    if word is None or fresh is None:
        yield move.node, b"" if move.capture else None, reader, stack
        return
    listed = {name: fresh.spell(name) + fresh.end for name in sorted(fresh.listed)}
    others = ir.complement(ir.concat(string_bodies.words(tuple(listed)), string_bodies.QUOTE))
    unlisted = next(name for point in range(0xE000, 0xF900) if (name := chr(point)) not in listed)
    other = _KnownText(reader, fresh.spell(unlisted) + fresh.end)
    yield ir.both(move.node, others) if listed else move.node, None, other, stack
    for name, text in listed.items():
        if reader.after(word[1], text):
            spelled = ir.concat(string_bodies.words((name,)), string_bodies.QUOTE)
            yield ir.both(move.node, spelled), None, _KnownText(reader, text), stack


_Step: TypeAlias = tuple[_Item, Node]


def _divided(rows: list[tuple[_Item, tuple[ByteMask, Node]]]) -> list[tuple[ByteMask, list[_Step]]]:
    """Disjoint sets of bytes, with what each of them leads to."""
    parts: list[tuple[ByteMask, list[_Step]]] = []
    for item, (mask, target) in rows:
        left, divided = mask, []
        for known, steps in parts:
            both = known & left
            if both:
                divided.append((both, [*steps, (item, target)]))
            if known & ~left:
                divided.append((known & ~left, steps))
            left &= ~known
        parts = [*divided, *([(left, [(item, target)])] if left else [])]
    return parts


def _by_capture(steps: list[_Step], mask: ByteMask) -> Iterable[tuple[ByteMask, Node]]:
    """The derivatives by the bytes of a set: one for all of them, or one for each where bytes are captured."""
    masks = [mask]
    if any(captured is not None for (_, captured, _, _), _ in steps):
        masks = [1 << byte for byte in range(256) if mask >> byte & 1]
    for one in masks:
        target = _after(steps, one.bit_length() - 1)
        if target is not EMPTY:
            yield one, target


def _after(steps: list[_Step], byte: int) -> Node:
    """The derivative by a byte."""
    starts: list[tuple[Frame, _Stack]] = []
    kept: list[_Item] = []
    for (_, captured, frame, stack), target in steps:
        if target.is_empty:
            continue
        captured = None if captured is None else captured + bytes((byte,))
        if target.transitions():
            kept.append((target, captured, frame, stack))
        starts += [(after, stack) for label in target.labels for after in frame.after(label, captured or b"")]
    return _entered(starts, kept)


def _entered(starts: list[tuple[Frame, _Stack]], kept: list[_Item]) -> Node:
    """The node of what is being read, and of what some frames offer."""
    items, may_end = set(kept), False
    agenda, seen = list(starts), set(starts)
    while agenda:
        frame, stack = agenda.pop()
        following: list[tuple[Frame, _Stack]] = []
        for move in frame.moves():
            if isinstance(move, Read):
                reader = move.reader or frame
                if move.node.transitions():
                    items.update(_readings(move, reader, stack))
                following += [(after, stack) for label in move.node.labels for after in reader.after(label, b"")]
            elif isinstance(move, Call):
                following.append((move.callee, (*stack, move.then)))
            elif stack:
                following.append((stack[-1], stack[:-1]))
            else:
                may_end = True
        new = [start for start in following if start not in seen]
        seen.update(new)
        agenda += new
    return Embedded(frozenset(items), may_end) if items or may_end else EMPTY
