"""Whether a language of JSON strings has a word, decided character by character instead of byte by byte.

A body language holds every spelling of a text or none (see `text`), so one spelling of each character is enough to look
at: the raw one where there is one. And where several languages meet, or are left out, nothing has to be built but the
sets of places at which they are together: a breadth-first search over the product of their derivatives, which finds a
shortest common text. Bounds on the length are kept apart as the number of characters read.

Source: J. Brzozowski, Derivatives of Regular Expressions (1964), for the product of derivatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from decodekit.constraints import ir
from decodekit.constraints.ir import ByteMask, Node
from decodekit.constraints.json_schema import text
from decodekit.constraints.regex import Loop
from decodekit.errors import ResourceLimitError

MAX_STATES: Final = 20_000
"""Bound on the places of the product that one question may look at."""
MAX_DIVES: Final = 100
"""Places that a depth-first search looks at before the breadth-first one begins: most languages have many words."""
_MAX_COMPARED: Final = 16
MAX_REMEMBERED: Final = 20_000
"""Bound on the places whose answer is kept."""

Row: TypeAlias = tuple[tuple[int, int, Node], ...]
"""First and last code point, ascending and disjoint, with what follows them. What is left out leads nowhere."""
_Place: TypeAlias = tuple[frozenset[Node], frozenset[Node]]
"""What the rest of a text belongs to, and what it does not belong to."""
_Targets: TypeAlias = tuple["Node | None", ...]
_Piece: TypeAlias = tuple[int, int, _Targets]

_HEX: Final = b"0123456789abcdef"

_spelled: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()
_rows: WeakKeyDictionary[Node, Row] = WeakKeyDictionary()
_known: dict[_Place, bool] = {}
_inhabited: tuple[_Place, ...] = ()  # the last places from which a text was found
_ANY_TEXT: Final[_Place] = (frozenset({text.BODY}), frozenset())


def is_empty(node: Node) -> bool | None:
    """Whether a body language has no word; None if the node is no body language, or begins inside a character.

    Raises:
        ResourceLimitError: the search exceeds `MAX_STATES`.
    """
    if not is_spelled(node):
        return None
    place, least, most = _start(node)
    if place is None:
        return True
    if not place[0]:
        return None  # only complements: the language has words that are no texts
    return not _has_word(place, least, most)


# -- which nodes are body languages


def is_spelled(node: Node) -> bool:
    """Whether a node is made of whole characters, each with all its spellings."""
    known = _spelled.get(node)
    if known is None:
        known = _spelled[node] = _is_spelled(node)
    return known


def trust(node: Node) -> Node:
    """The node, which is made of whole characters, though its form may not show it."""
    _spelled[node] = True
    return node


def _is_spelled(node: Node) -> bool:
    while isinstance(node, ir.Concat) and not isinstance(node.head, ir.Bytes):
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
        isinstance(node, ir.Concat) and isinstance(node.head, ir.Bytes | ir.Literal)
    )


def _is_whole(node: Node) -> bool:
    """Whether a node that begins with bytes is what its characters and what follows them give with all spellings."""
    followed: dict[Node, list[tuple[int, int]]] = {}
    for low, high, target in _row(node):
        followed.setdefault(target, []).append((low, high))
    whole = ir.choice(*(ir.concat(text.encode(tuple(points)), target) for target, points in followed.items()))
    return whole is node and all(map(is_spelled, followed))


# -- derivatives by characters


def _row(node: Node) -> Row:
    """What follows each character."""
    row = _rows.get(node)
    if row is None:
        words = text.first_characters(node)
        ways = _ways(node) if words is None else [(ord(character), ord(character), rest) for character, rest in words]
        row = _rows[node] = _joined(ways)
    return row


def _joined(ways: Iterable[tuple[int, int, Node]]) -> Row:
    joined: list[tuple[int, int, Node]] = []
    for low, high, target in sorted(ways, key=lambda way: way[0]):
        if joined and joined[-1][1] + 1 == low and joined[-1][2] is target:
            joined[-1] = (joined[-1][0], high, target)
        else:
            joined.append((low, high, target))
    return tuple(joined)


def _ways(node: Node) -> Iterator[tuple[int, int, Node]]:
    inside: dict[tuple[Node, int], list[tuple[int, int, Node]]] = {}
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


def _runs(mask: ByteMask) -> Iterator[tuple[int, int]]:
    """The members of a byte set, as ranges."""
    start = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & mask + 1).bit_length() - 1
        mask >>= ones
        start += zeros
        yield start, start + ones - 1
        start += ones


def _continued(
    node: Node, size: int, inside: dict[tuple[Node, int], list[tuple[int, int, Node]]]
) -> list[tuple[int, int, Node]]:
    """What follows the last `size` bytes of a character in UTF-8, by the number that they hold."""
    found = inside.get((node, size))
    if found is None:
        found = []
        for mask, target in node.transitions():
            for low, high in _runs(mask & _CONTINUATION):
                if size == 1:
                    found.append((low & 0x3F, high & 0x3F, target))
                    continue
                for byte in range(low, high + 1):
                    base = (byte & 0x3F) << 6 * (size - 1)
                    found += [(base + a, base + b, rest) for a, b, rest in _continued(target, size - 1, inside)]
        found = inside[node, size] = list(_joined(found))
    return found


def _escaped(node: Node) -> Iterator[tuple[int, int, Node]]:
    """What follows the characters that are never raw: the quote, the backslash and control characters."""
    for byte in b'"\\':
        rest = node.derivative(byte)
        if rest is not ir.EMPTY:
            yield byte, byte, rest
    for byte in b"u00":
        node = node.derivative(byte)
    for tens, digit in enumerate(b"01"):
        row = node.derivative(digit)
        for ones, last in enumerate(_HEX):
            rest = row.derivative(last)
            if rest is not ir.EMPTY:
                yield 16 * tens + ones, 16 * tens + ones, rest


# -- the product


def _start(node: Node) -> tuple[_Place | None, int, int | None]:
    """The place before a text, with the least and the greatest length; no place if it is plainly empty."""
    least, most = 0, None
    conditions: list[tuple[Node, bool]] = []
    for operand in node.operands if isinstance(node, ir.Both) else (node,):
        if isinstance(operand, ir.Repeat) and operand.body is text.CHARACTER:
            least = max(least, operand.min)
            if operand.max is not None:
                most = operand.max if most is None else min(most, operand.max)
            conditions.append((text.BODY, True))
        elif isinstance(operand, ir.Complement):
            conditions.append((operand.operand, False))
        else:
            conditions.append((operand, True))
    place = _place(conditions)
    return (None if most is not None and least > most else place), least, most


def _place(conditions: list[tuple[Node, bool]]) -> _Place | None:
    """A place in its normal form; None if nothing can follow there."""
    belongs: set[Node] = set()
    excluded: set[Node] = set()
    while conditions:
        node, holds = conditions.pop()
        if holds and isinstance(node, ir.Both):
            conditions += [(operand, True) for operand in node.operands]
        elif isinstance(node, ir.Complement):
            conditions.append((node.operand, not holds))
        elif not holds and isinstance(node, ir.Choice):
            conditions += [(option, False) for option in node.options]
        elif _is_universal(node):
            if not holds:
                return None
            belongs.add(text.BODY)
        elif holds:
            belongs.add(node)
        else:
            excluded.add(node)
    if len(belongs) > 1:
        belongs.discard(text.BODY)
    return (
        None
        if not belongs.isdisjoint(excluded) or ir.EMPTY in belongs
        else (frozenset(belongs), frozenset(excluded - {ir.EMPTY}))
    )


def _is_universal(node: Node) -> bool:
    """Whether a node admits every text, as far as that is plain to see."""
    while isinstance(node, ir.Concat) and node.head.is_nullable:
        node = node.tail
    return node is text.BODY or (isinstance(node, ir.Choice) and text.BODY in node.options)


def _is_end(place: _Place) -> bool:
    return all(node.is_nullable for node in place[0]) and not any(node.is_nullable for node in place[1])


def _following(place: _Place) -> set[_Place]:
    """The places after one more character."""
    found = {_after(place, targets) for targets in _followed(place)}
    return {after for after in found if after is not None}


def _followed(place: _Place) -> dict[_Targets, int]:
    """What follows each condition of a place, in its order, with the number of the characters that lead there."""
    pieces: list[_Piece] | None = None
    for node in place[0]:
        row = _row(node)
        pieces = [(low, high, (target,)) for low, high, target in row] if pieces is None else _met(pieces, row)
    assert pieces is not None  # some language is always asked for
    for node in place[1]:
        pieces = _marked(pieces, _row(node))
    found: dict[_Targets, int] = {}
    for low, high, targets in pieces:
        found[targets] = found.get(targets, 0) + high - low + 1
    for target in {target for targets in found for target in targets if target is not None}:
        _spelled[target] = True  # what follows a whole character
    return found


def _after(place: _Place, targets: _Targets) -> _Place | None:
    """The place where each condition is what follows it."""
    num_asked = len(place[0])
    return _place([(node, index < num_asked) for index, node in enumerate(targets) if node is not None])


def _met(pieces: list[_Piece], row: Row) -> list[_Piece]:
    """The characters of both."""
    found = []
    index = 0
    for low, high, targets in pieces:
        while index < len(row) and row[index][1] < low:
            index += 1
        at = index
        while at < len(row) and row[at][0] <= high:
            found.append((max(low, row[at][0]), min(high, row[at][1]), (*targets, row[at][2])))
            at += 1
    return found


def _marked(pieces: list[_Piece], row: Row) -> list[_Piece]:
    """All characters of the first, with what follows them in the second where something does."""
    found: list[_Piece] = []
    index = 0
    for low, high, targets in pieces:
        while index < len(row) and row[index][1] < low:
            index += 1
        at = index
        while at < len(row) and row[at][0] <= high:
            first, last, target = row[at]
            if low < first:
                found.append((low, first - 1, (*targets, None)))
            found.append((max(low, first), min(high, last), (*targets, target)))
            low = last + 1
            at += 1
        if low <= high:
            found.append((low, high, (*targets, None)))
    return found


def _has_word(start: _Place, least: int, most: int | None) -> bool:
    """Whether a text of some length between the bounds leads from a place to an end."""
    if start == _ANY_TEXT:
        return True
    if not least and most is None:
        if start in _known:
            return _known[start]
        # With fewer conditions than a place that has a text: every successor of an intersection that lost an operand.
        if len(start[0]) > 1 and any(start[0] <= other[0] and start[1] <= other[1] for other in _inhabited):
            return True
    if _dive(start, least, most):
        if not least and most is None:
            _learn([(start, True)])
        return True
    came_from: dict[_Place, _Place | None] = {start: None}
    frontier = [start]
    length = num_looked = 0
    while frontier:
        if length >= least:
            for place in frontier:
                if _is_end(place) or (most is None and _known.get(place)):
                    _remember(came_from, place, least, most)
                    return True
        if length == most:
            return False
        following: dict[_Place, _Place] = {}
        for place in frontier:
            if length >= least and _known.get(place) is False:
                continue
            for after in _following(place):
                following.setdefault(after, place)
            num_looked += 1
            if num_looked > MAX_STATES:
                raise ResourceLimitError(
                    f"more than {MAX_STATES:,} states are needed to tell whether an intersection is empty",
                    hint="use fewer or simpler patterns together",
                )
        length += 1
        if length < least and following.keys() == set(frontier):
            length = least  # it goes round
        # A place that was reached with fewer characters says nothing new, once there are enough of them.
        frontier = [place for place in following if length <= least or place not in came_from]
        if length >= least:
            if length == least:
                came_from = dict.fromkeys(frontier)
            came_from.update((place, following[place] if length > least else None) for place in frontier)
    if not least and most is None:
        _learn((place, False) for place in came_from)
    return False


def _dive(start: _Place, least: int, most: int | None) -> bool:
    """Whether a text is found by going ahead."""
    stack = [(start, 0)]
    seen = {start}
    num_left = MAX_DIVES + least
    while stack and num_left:
        place, length = stack.pop()
        num_left -= 1
        if length >= least and (_is_end(place) or (most is None and _known.get(place))):
            return True
        if length == most or _known.get(place) is False:
            continue
        for after in _following(place):
            if length < least or after not in seen:
                seen.add(after)
                stack.append((after, length + 1))
    return False


def _remember(came_from: dict[_Place, _Place | None], end: _Place, least: int, most: int | None) -> None:
    """A text leads from all places on the way to the end."""
    way: list[_Place] = []
    place: _Place | None = end
    while place is not None:
        way.append(place)
        place = came_from.get(place)
    _learn((place, True) for place in way)


def _learn(answers: Iterable[tuple[_Place, bool]]) -> None:
    global _inhabited
    if len(_known) > MAX_REMEMBERED:
        _known.clear()
    learned = dict(answers)
    _known.update(learned)
    inhabited = [place for place, has_word in learned.items() if has_word]
    _inhabited = (*inhabited, *_inhabited)[:_MAX_COMPARED]


# -- counting


def num_texts(node: Node, limit: int) -> int | None:
    """The number of texts of a body language, or `limit` if there are at least so many; None as `is_empty`.

    Counts level by level: the number of ways into each place after k characters.

    Raises:
        ResourceLimitError: as `is_empty`.
    """
    if not is_spelled(node):
        return None
    start, least, most = _start(node)
    if start is None:
        return 0
    if not start[0]:
        return None
    total = length = 0
    frontier = {start: 1} if _has_word(start, least, most) else {}
    while frontier and total + sum(frontier.values()) < limit:  # each of these ways goes on to a text of its own
        following: dict[_Place, int] = {}
        least_left = max(0, least - length - 1)
        most_left = None if most is None else most - length - 1
        for place, num_ways in frontier.items():
            if length >= least and _is_end(place):
                total += num_ways
            if most_left is not None and most_left < 0:
                continue
            for targets, num_characters in _followed(place).items():
                after = _after(place, targets)
                if after is not None and (after in following or _has_word(after, least_left, most_left)):
                    following[after] = following.get(after, 0) + num_ways * num_characters
        frontier = following
        length += 1
        if length > _MAX_LENGTH:
            return limit  # a language with longer texts only is taken to be large
    return min(limit, total + sum(frontier.values()))


_MAX_LENGTH: Final = 2_000
