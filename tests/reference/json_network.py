"""The slow, plain way to run a constraint's network: sets of (node, frames to return to), one byte at a time."""

from __future__ import annotations

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.language.ir import EMPTY
from decodekit.constraints.language.node import Node
from decodekit.constraints.network import Call, Frame, Read, Return

Stack = tuple[Frame, ...]  # frames to return to, the innermost last
Item = tuple[Node, bytes | None, Frame, Stack]  # what is being read, captured so far, by which frame


def can_go_on(node: Node) -> bool:
    """Whether a word is longer than nothing."""
    return any(not rest.is_empty for _, rest in node.transitions())


class SlowNetwork:
    """All runs of a network on one text."""

    def __init__(self, constraint: Constraint) -> None:
        self.items: frozenset[Item] = frozenset()
        self.is_accepting = False
        self.items, self.is_accepting = self._enter([(constraint.root(), ())])

    def feed(self, text: bytes) -> bool:
        """Read a text; False if nothing that starts with it is accepted."""
        for byte in text:
            starts: list[tuple[Frame, Stack]] = []
            kept: set[Item] = set()
            for node, captured, frame, stack in self.items:
                rest = node.derivative(byte)
                if rest is EMPTY or rest.is_empty:
                    continue
                captured = None if captured is None else captured + bytes((byte,))
                if can_go_on(rest):
                    kept.add((rest, captured, frame, stack))
                for label in rest.labels:
                    starts += [(after, stack) for after in frame.after(label, captured or b"")]
            entered, self.is_accepting = self._enter(starts)
            self.items = frozenset(kept) | entered
            if not self.items and not self.is_accepting:
                return False
        return True

    @staticmethod
    def _enter(starts: list[tuple[Frame, Stack]]) -> tuple[frozenset[Item], bool]:
        items: set[Item] = set()
        is_accepting = False
        agenda, seen = list(starts), set(starts)
        while agenda:
            frame, stack = agenda.pop()
            following: list[tuple[Frame, Stack]] = []
            for move in frame.moves():
                if isinstance(move, Read):
                    reader = move.reader or frame
                    if can_go_on(move.node):
                        items.add((move.node, b"" if move.capture else None, reader, stack))
                    following += [(after, stack) for label in move.node.labels for after in reader.after(label, b"")]
                elif isinstance(move, Call):
                    following.append((move.callee, (*stack, move.then)))
                elif isinstance(move, Return):
                    if stack:
                        following.append((stack[-1], stack[:-1]))
                    else:
                        is_accepting = True
            for start in following:
                if start not in seen:
                    seen.add(start)
                    agenda.append(start)
        return frozenset(items), is_accepting


def accepts(constraint: Constraint, text: bytes) -> bool:
    """Whether a text is one of the constraint's."""
    network = SlowNetwork(constraint)
    return network.feed(text) and network.is_accepting


def is_admitted(constraint: Constraint, text: bytes) -> bool:
    """Whether a text is one of the constraint's and its guard, if it has one, does not refuse it."""
    guard = constraint.guard()
    return accepts(constraint, text) and (guard is None or guard.refuses(text) is None)


def stops_at(constraint: Constraint, text: bytes) -> int | None:
    """Where a text stops being the start of one of the constraint's; None if it never does."""
    network = SlowNetwork(constraint)
    for index in range(len(text)):
        if not network.feed(text[index : index + 1]):
            return index
    return None
