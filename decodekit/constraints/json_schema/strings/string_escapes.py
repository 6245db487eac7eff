r"""Strings without needless escapes: a character that JSON can write as itself is not written as ``\u0061`` or ``\/``.

JSON lets every character be an escape, so after the quote of a key a backslash is nearly always possible, and few bytes
are forced. Where generation spells as `json.dumps` does, the letters of a key that only one key has are.

What narrows the spelling lies around a language and changes nothing inside: `Sparing` reads along with it, and lets an
escape go on only as one of the characters that have to be escaped (the quote, the backslash and U+0000 to U+001F).

Source: RFC 8259, section 7.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import reduce
from operator import or_
from typing import Final, Literal, TypeAlias

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.language import ir
from decodekit.constraints.language.blocks import Block
from decodekit.constraints.language.node import EMPTY, ByteMask, Node, Transitions
from decodekit.constraints.language.registry import Narrowed, register

Escapes: TypeAlias = Literal["any", "needed"]

_OUTSIDE: Final = ""
_BACKSLASH: Final[ByteMask] = 1 << 0x5C


def _moves() -> dict[str, list[tuple[ByteMask, str]]]:
    """The transitions of each beginning of an escape, and of `_OUTSIDE`: byte sets, each with the next one."""
    steps = {_OUTSIDE: {"\\": _BACKSLASH, _OUTSIDE: ir.ALL_BYTES & ~_BACKSLASH}}
    for escape in [*'"\\bfnrt', *(f"u{number:04x}" for number in (0x22, 0x5C, *range(0x20)))]:
        for length, letter in enumerate(escape):
            bits = 1 << ord(letter)
            if length:  # digits in both cases
                bits |= 1 << ord(letter.upper())
            target = _OUTSIDE if length + 1 == len(escape) else f"\\{escape[: length + 1]}"
            found = steps.setdefault(f"\\{escape[:length]}", {})
            found[target] = found.get(target, 0) | bits
    return {begun: [(mask, target) for target, mask in found.items()] for begun, found in steps.items()}


_MOVES: Final = _moves()


class Sparing(Narrowed):
    r"""The words of `node` in which no escape is needless. Each of its strings is there in all its spellings.

    Args:
        node: what follows, as it may be spelled.
        begun: the escape in which it begins, such as ``\u00``; empty outside of one.
    """

    __slots__ = ("begun", "can_be_empty", "has_counts", "is_labelled")

    can_be_empty: bool
    is_labelled: bool
    has_counts: bool

    def __init__(self, node: Node, begun: str = _OUTSIDE) -> None:
        self.node, self.begun = node, begun
        # Outside of an escape a text has a spelling without needless ones; inside, the next character may have none.
        self.can_be_empty = bool(begun) or node.can_be_empty
        self.is_labelled = node.is_labelled
        self.has_counts = node.has_counts

    @property
    def label_range(self) -> tuple[int, int] | None:
        """As in `Node`."""
        return ir.label_range(self.node)

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """As in `Node`."""
        return () if self.begun else self.node.labels

    def transitions(self) -> Transitions:
        """As in `Node`."""
        return tuple(
            (mask & ways, Sparing(target, begun))
            for mask, target in self.node.transitions()
            for ways, begun in _MOVES[self.begun]
            if mask & ways
        )

    def derivative(self, byte: int) -> Node:
        """As in `Node`."""
        begun = next((begun for ways, begun in _MOVES[self.begun] if ways >> byte & 1), None)
        target = EMPTY if begun is None else self.node.derivative(byte)
        return EMPTY if begun is None or target is EMPTY else Sparing(target, begun)

    def possible_bytes(self) -> ByteMask:
        """As in `Node`."""
        return self.node.possible_bytes() & reduce(or_, (ways for ways, _ in _MOVES[self.begun]))

    def _is_empty(self) -> bool:
        if not self.begun:
            return self.node.is_empty
        return all(target.is_empty for _, target in self.transitions())

    def block(self) -> Block[Node] | None:
        """As in `Node`: the edges of a list that are left open begin an escape, and its words need none."""
        block = None if self.begun else self.node.block()
        return None if block is None else block.closed()

    def forget(self) -> None:
        """As in `Node`."""
        self.node.forget()

    def _saturate(self, limit: int) -> Node:
        return Sparing(self.node.saturated(limit), self.begun)

    def narrowed(self, node: Node) -> Sparing:
        """As in `Narrowed`."""
        return Sparing(node, self.begun)

    @property
    def is_by_parts(self) -> bool:
        """As in `Narrowed`: no part of a JSON text that is counted ends inside an escape."""
        return not self.begun

    @property
    def manner(self) -> bytes:
        """As in `Narrowed`: which escapes are needed, and the one that has begun."""
        return repr((self.begun, sorted(item for item in _MOVES.items() if item[0]))).encode()

    def bounds(self) -> tuple[int, int] | None:
        """As in `Node`: the shortest spelling of a character has no needless escape."""
        return None if self.begun else self.node.bounds()

    def __eq__(self, other: object) -> bool:
        return type(other) is Sparing and self.begun == other.begun and self.node == other.node

    def __hash__(self) -> int:
        return hash((self.node, self.begun))

    def __repr__(self) -> str:
        return f"Sparing({self.node!r}, {self.begun!r})"


def spelled(node: Node, escapes: Escapes) -> Node:
    """A lexeme of JSON, with the escapes that are wanted."""
    return node if escapes == "any" or node is ir.EMPTY else Sparing(node)


# The lexical languages that nearly every JSON text passes through, whatever its schema: their walks are kept on disk.
# They are the states inside of a string that is free or only must not be empty, with any escapes and with the needed
# ones alone; a maximum length beyond the longest token makes no difference to a walk. Outside of strings few bytes may
# follow, so no walks are needed there.
for _name, _body in (("json-string", text.BODY), ("json-string-not-empty", text.length(1, None))):
    register(_name, ir.concat(_body, text.QUOTE))
    register(f"{_name}-spared", spelled(ir.concat(_body, text.QUOTE), "needed"))
