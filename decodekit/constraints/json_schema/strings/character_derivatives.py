"""Languages of JSON strings, derived character by character instead of byte by byte.

A body language holds every spelling of a text or none (see `text`), so one spelling of each character is enough to look
at: the raw one where there is one. What follows a character is put together from the parts of a node, so that no states
inside of characters are made, and what a part answered serves every node that it is part of.

Source: J. Brzozowski, Derivatives of Regular Expressions (1964), over code points in place of bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, pairwise
from typing import Final, TypeAlias

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import ByteMask, Node, forgetters
from decodekit.constraints.language.utf8 import Ranges, normalise
from decodekit.constraints.regex.regex import Loop
from decodekit.constraints.work_budget import charge

_Way: TypeAlias = tuple[int, int, Node]
"""First and last code point, with what follows them."""
Row: TypeAlias = tuple[_Way, ...]
"""Ways that are ascending and disjoint. What is left out leads nowhere."""

Targets: TypeAlias = tuple["Node | None", ...]
"""The derivatives of several languages by one character; None for an empty one."""
_Piece: TypeAlias = tuple[int, int, Targets]

_HEX: Final = b"0123456789abcdef"

_declared: set[Node] = set()
_spelled: dict[Node, bool] = {}
_rows: dict[Node, Row] = {}
forgetters.extend((_spelled.clear, _rows.clear))


def is_spelled(node: Node) -> bool:
    """Whether a node is made of whole characters, each with all its spellings."""
    known = _spelled.get(node)
    if known is None:
        known = _spelled[node] = _is_spelled(node)
    return known


def declare(node: Node) -> Node:
    """The node, which is made of whole characters, though its form may not show it; never forgotten."""
    _declared.add(node)
    return node


def trust(node: Node) -> Node:
    """The same of a node that is met on the way, and may be met no more."""
    _spelled[node] = True
    return node


def _is_spelled(node: Node) -> bool:
    if node in _declared:
        return True
    while isinstance(node, ir.Product) and not isinstance(node.head, ir.Bytes):
        if not is_spelled(node.head):
            return False
        node = node.tail
    if _begins_with_byte(node):  # characters without a raw spelling: the backslash, then what it may escape
        return _is_whole(node)
    if isinstance(node, ir.Accept):
        return node.label is None
    if isinstance(node, ir.Choice):
        characters = [option for option in node.options if _begins_with_byte(option)]
        return (not characters or _is_whole(ir.choice(*characters))) and all(
            is_spelled(option) for option in node.options if not _begins_with_byte(option)
        )
    if isinstance(node, ir.Repeat):
        return is_spelled(node.body)
    if isinstance(node, ir.Both):
        return all(map(is_spelled, node.operands))
    if isinstance(node, ir.Complement):
        return is_spelled(node.operand)
    if isinstance(node, Loop):
        return node.lowering.encode is text.encode
    return node is ir.EMPTY or text.first_characters(node) is not None


def _begins_with_byte(node: Node) -> bool:
    return isinstance(node, ir.Bytes | ir.Literal) or (
        isinstance(node, ir.Product) and isinstance(node.head, ir.Bytes | ir.Literal)
    )


def _is_whole(node: Node) -> bool:
    """Whether a node that begins with bytes is what its characters and what follows them give with all spellings."""
    followed: dict[Node, list[tuple[int, int]]] = {}
    for low, high, target in row(node):
        followed.setdefault(target, []).append((low, high))
    whole = ir.choice(*(ir.concat(text.encode(tuple(points)), target) for target, points in followed.items()))
    return whole is node and all(map(is_spelled, followed))


def row(node: Node) -> Row:
    """The derivatives of a language by each character, as disjoint ranges of code points."""
    known = _rows.get(node)
    if known is None:
        known = _rows[node] = _joined(_ways(node))
    return known


def _joined(ways: Iterable[_Way]) -> Row:
    """Ways as a row: where they overlap, what follows is any of their targets."""
    ordered = sorted(ways, key=lambda way: way[0])
    if any(one[1] >= other[0] for one, other in pairwise(ordered)):
        ordered = _united(ordered)
    joined: list[_Way] = []
    for low, high, target in ordered:
        if joined and joined[-1][1] + 1 == low and joined[-1][2] is target:
            joined[-1] = (joined[-1][0], high, target)
        else:
            joined.append((low, high, target))
    return tuple(joined)


def _united(ways: list[_Way]) -> list[_Way]:
    """The same with disjoint characters, ascending: a sweep over the places where some way begins or ends."""
    turns: dict[int, list[tuple[int, Node]]] = {}
    for low, high, target in ways:
        turns.setdefault(low, []).append((1, target))
        turns.setdefault(high + 1, []).append((-1, target))
    found: list[_Way] = []
    open_: Counter[Node] = Counter()
    start = 0
    for point in sorted(turns):
        if open_:
            found.append((start, point - 1, ir.choice(*open_)))
        for step, target in turns[point]:
            open_[target] += step
            if not open_[target]:
                del open_[target]
        start = point
    return found


def _ways(node: Node) -> Iterable[_Way]:
    """The derivatives by each character, made of those of the parts of a node, which other nodes share."""
    if isinstance(node, ir.Choice):
        characters = [option for option in node.options if _begins_with_byte(option)]
        rows = [row(option) for option in node.options if not _begins_with_byte(option)]
        return chain(_spelled_ways(ir.choice(*characters)), *rows)
    if isinstance(node, ir.Repeat) and is_spelled(node.body):
        rest = ir.repeat(node.body, max(node.min - 1, 0), None if node.max is None else node.max - 1)
        return [(low, high, ir.concat(target, rest)) for low, high, target in row(node.body)]
    if isinstance(node, ir.Both) and not all(isinstance(operand, ir.Complement) for operand in node.operands):
        return _common_ways(node.operands)
    ways: list[_Way] = []
    while isinstance(node, ir.Product) and not _begins_with_byte(node) and is_spelled(node.head):
        tail = node.tail
        ways += [(low, high, ir.concat(target, tail)) for low, high, target in row(node.head)]
        if not node.head.is_nullable:
            return ways
        node = tail
    if ways:
        return chain(ways, row(node))
    words = text.first_characters(node)
    if words is not None:
        return [(ord(character), ord(character), rest) for character, rest in words]
    return _spelled_ways(node)


def _common_ways(operands: tuple[Node, ...]) -> Iterator[_Way]:
    """The derivatives by each character of an intersection, of which not all operands are complements."""
    asked = [operand for operand in operands if not isinstance(operand, ir.Complement)]
    excluded = [operand.operand for operand in operands if isinstance(operand, ir.Complement)]
    for low, high, targets in aligned(asked, excluded):
        held = [target for target in targets[: len(asked)] if target is not None]
        denied = [ir.complement(target) for target in targets[len(asked) :] if target is not None]
        common = ir.both(*held, *denied)
        if common is not ir.EMPTY:
            yield low, high, common


def aligned(asked: Iterable[Node], excluded: Iterable[Node]) -> list[_Piece]:
    """The characters that all languages asked for go on with, and what follows them in each, then in each excluded."""
    first, *others = asked
    pieces: list[_Piece] = [(low, high, (target,)) for low, high, target in row(first)]
    for node in others:
        pieces = [piece for piece in _marked(pieces, row(node)) if piece[2][-1] is not None]
    for node in excluded:
        pieces = _marked(pieces, row(node))
    charge(sum(len(targets) for _, _, targets in pieces))
    return pieces


def _marked(pieces: list[_Piece], ways: Row) -> list[_Piece]:
    """All characters of the first, with what follows them in the second where something does."""
    found: list[_Piece] = []
    index = 0
    for low, high, targets in pieces:
        while index < len(ways) and ways[index][1] < low:
            index += 1
        at = index
        while at < len(ways) and ways[at][0] <= high:
            first, last, target = ways[at]
            if low < first:
                found.append((low, first - 1, (*targets, None)))
            found.append((max(low, first), min(high, last), (*targets, target)))
            low = last + 1
            at += 1
        if low <= high:
            found.append((low, high, (*targets, None)))
    return found


def _spelled_ways(node: Node) -> Iterator[_Way]:
    """The derivatives by each character, made byte by byte: raw where it may be, otherwise by its escape."""
    inside: dict[tuple[Node, int], Row] = {}
    for mask, target in node.transitions():
        for low, high in _runs(mask & _RAW):
            yield low, high, target
        if mask >> 0x5C & 1:
            yield from _escaped(target)
        for size, leads in enumerate(_LEADS, 1):
            for low, high in _runs(mask & leads):
                for lead in range(low, high + 1):
                    base = (lead & (0x3F >> size)) << 6 * size
                    for first, last, rest in _continued(target, size, inside):
                        yield base + first, base + last, rest


_RAW: Final = sum(1 << byte for byte in range(0x20, 0x80) if byte not in b'"\\')
_LEADS: Final = tuple(
    sum(1 << byte for byte in range(low, high)) for low, high in ((0xC0, 0xE0), (0xE0, 0xF0), (0xF0, 0xF8))
)
_CONTINUATION: Final = sum(1 << byte for byte in range(0x80, 0xC0))


@lru_cache(maxsize=4096)
def _runs(mask: ByteMask) -> Ranges:
    """The members of a byte set, as ranges."""
    return normalise((byte, byte) for byte in ir.bytes_of(mask))


def _continued(node: Node, size: int, inside: dict[tuple[Node, int], Row]) -> Row:
    """The derivatives by the last `size` bytes of a character in UTF-8, by the number that these hold."""
    known = inside.get((node, size))
    if known is None:
        found: list[_Way] = []
        for mask, target in node.transitions():
            for low, high in _runs(mask & _CONTINUATION):
                if size == 1:
                    found.append((low & 0x3F, high & 0x3F, target))
                    continue
                for byte in range(low, high + 1):
                    base = (byte & 0x3F) << 6 * (size - 1)
                    found += [(base + a, base + b, rest) for a, b, rest in _continued(target, size - 1, inside)]
        known = inside[node, size] = _joined(found)
    return known


def _escaped(node: Node) -> Iterator[_Way]:
    """The derivatives by characters that are never raw: the quote, the backslash and control characters."""
    for byte in b'"\\':
        rest = node.derivative(byte)
        if rest is not ir.EMPTY:
            yield byte, byte, rest
    for byte in b"u00":
        node = node.derivative(byte)
    for tens, digit in enumerate(b"01"):
        tens_read = node.derivative(digit)
        for ones, last in enumerate(_HEX):
            rest = tens_read.derivative(last)
            if rest is not ir.EMPTY:
                yield 16 * tens + ones, 16 * tens + ones, rest
