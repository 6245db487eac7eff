r"""JSON strings as languages of bytes: every code point may be raw UTF-8 or an escape.

A language here is one of string *bodies*, the bytes between the quotes. It is closed under spelling: with one spelling
of a text it holds all of them. A worked example, the body language of the texts ``é`` and ``ab``:

    é     C3 A9                         raw
          \u00e9  \u00E9                as an escape, digits in both cases
    ab    ab  a\u0062  \u0061b  \u0061\u0062
    meet(words(["é", "ab"]), length(1, 1))       é, in all its spellings
    without(words(["é", "ab"]), words(["ab"]))   the same
    matches(words(["é", "ab"]), "ab")            True, asked with one spelling

Intersections, unions and complements (within `BODY`) of such languages are closed again. So the other modules may treat
a body language as a set of texts.

Source: RFC 8259, section 7.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.blocks import MAX_BYTES, Block
from decodekit.constraints.language.node import ByteMask, Node, Transitions
from decodekit.constraints.language.utf8 import Ranges
from decodekit.constraints.work_budget import Work, done

QUOTE: Final[Node] = ir.literal(b'"')

_PART: Final = 256
"""So many bytes are read before the work can be left off."""
_COST: Final = 4
"""The steps of a part beside its bytes."""
_RAW: Final[Ranges] = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, utf8.MAX_CODE_POINT))
"""Characters that may stand for themselves, DEL and C1 too: all but the quote, the backslash, C0 and surrogates."""
_SHORT_ESCAPES: Final = {
    0x22: '"', 0x5C: "\\", 0x2F: "/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t",
}  # fmt: skip
_HEX: Final = tuple(
    ir.byte_set({ord(f"{digit:x}"), ord(f"{digit:X}")}) for digit in range(16)
)  # \u escapes are case-insensitive


@lru_cache(maxsize=4096)
def encode(ranges: Ranges) -> Node:
    """One code point of `ranges` (inclusive, any order) as it may be spelled inside a JSON string.

    Surrogates are not code points of a text: they are left out, and so never stand alone.
    """
    points = utf8.intersect(utf8.normalise(ranges), utf8.SCALARS)
    raw = utf8.charset(utf8.intersect(points, _RAW))
    short = ir.byte_set(
        ord(letter) for point, letter in _SHORT_ESCAPES.items() if any(low <= point <= high for low, high in points)
    )
    basic = ir.concat(ir.literal(b"u"), _hex(utf8.intersect(points, ((0, 0xFFFF),)), 4))
    astral = _surrogate_pairs(utf8.intersect(points, ((0x10000, utf8.MAX_CODE_POINT),)))
    return ir.choice(raw, ir.concat(ir.literal(b"\\"), ir.choice(short, basic, astral)))


@lru_cache(maxsize=4096)
def _hex(ranges: Ranges, num_digits: int) -> Node:
    """The numbers of `ranges`, each as `num_digits` hexadecimal digits."""
    if not ranges:
        return ir.EMPTY
    if num_digits == 0:
        return ir.EPSILON
    size = 16 ** (num_digits - 1)
    rests: dict[int, list[tuple[int, int]]] = {}  # by the first digit
    for low, high in ranges:
        for digit in range(low // size, high // size + 1):
            rest = max(low - digit * size, 0), min(high - digit * size, size - 1)
            rests.setdefault(digit, []).append(rest)
    by_rest: dict[Ranges, list[Node]] = {}
    for digit, parts in rests.items():
        by_rest.setdefault(tuple(parts), []).append(_HEX[digit])
    return ir.choice(*(ir.concat(ir.choice(*digits), _hex(rest, num_digits - 1)) for rest, digits in by_rest.items()))


def _surrogate_pairs(ranges: Ranges) -> Node:
    r"""``uD83D\uDE00`` and the like. The number above 2**16 has ten bits in each half."""
    by_low: dict[tuple[int, int], list[tuple[int, int]]] = {}  # low halves -> high halves
    for low, high in ranges:
        while low <= high:
            num_blocks = 0 if low & 0x3FF else (high + 1 - low) // 0x400  # whole blocks at once
            end = low + 0x400 * num_blocks - 1 if num_blocks else min(high, low | 0x3FF)
            by_low.setdefault((low & 0x3FF, end & 0x3FF), []).append(((low - 0x10000) >> 10, (end - 0x10000) >> 10))
            low = end + 1
    return ir.choice(
        *(
            ir.concat(
                ir.literal(b"u"),
                _hex(utf8.normalise((0xD800 + low, 0xD800 + high) for low, high in tops), 4),
                ir.literal(b"\\u"),
                _hex(((0xDC00 + first, 0xDC00 + last),), 4),
            )
            for (first, last), tops in by_low.items()
        )
    )


@lru_cache(maxsize=65536)
def spell(character: str) -> Node:
    """One character with all its spellings."""
    return encode(((ord(character), ord(character)),))


CHARACTER: Final[Node] = encode(utf8.SCALARS)
"""Any one code point."""
ir.declare_alphabet(CHARACTER)
BODY: Final[Node] = ir.repeat(CHARACTER)
"""Any text."""


def meet(*bodies: Node) -> Node:
    """Intersection of body languages.

    `BODY` is the unit, and lengths are intersected as numbers, so that no product with them is ever built.
    """
    if ir.EMPTY in bodies:
        return ir.EMPTY
    bodies = tuple([body for body in bodies if body is not BODY])
    if len(bodies) == 1:
        return bodies[0]
    narrower: list[Node] = []
    is_needed = False  # inside an intersection even `BODY` matters: beside it stand complements, which hold any bytes
    least, most = 0, math.inf  # code points
    for body in bodies:
        for part in body.operands if isinstance(body, ir.Both) else (body,):
            if isinstance(part, ir.Repeat) and part.body is CHARACTER:
                is_needed |= part is not body
                least, most = max(least, part.min), min(most, math.inf if part.max is None else part.max)
            else:
                narrower.append(part)
    if least > most:
        return ir.EMPTY
    if is_needed or least or most != math.inf or not narrower:
        narrower.append(length(least, None if most == math.inf else int(most)))
    return ir.both(*narrower)


def without(body: Node, other: Node) -> Node:
    """The texts of `body` that are not of `other`."""
    return ir.EMPTY if body is other else ir.both(body, ir.complement(other))


def quoted(body: Node) -> Node:
    """A JSON string: `body` between quotes."""
    return ir.concat(QUOTE, body, QUOTE)


def closed(label: int) -> Node:
    """The quote behind a body, with a label."""
    return ir.concat(QUOTE, ir.accept(label))


def length(min_length: int, max_length: int | None) -> Node:
    """Texts of so many code points."""
    return ir.repeat(CHARACTER, min_length, max_length)


def is_text(value: str) -> bool:
    """Whether a Python string has no lone surrogate, so that it can be generated at all."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def to_body(value: str) -> bytes:
    """One spelling of a text."""
    return json.dumps(value, ensure_ascii=False)[1:-1].encode()


def text_of(body: bytes) -> str | None:
    """The text that a body spells; None if it is half of one, or half of an escape or of a character."""
    try:
        if b"\\" not in body:
            return body.decode()
        return str(json.loads(b'"' + body + b'"'))
    except ValueError:
        return None


MAX_NODES: Final = 4096
"""So many nodes are kept with what follows the bytes that were read there: some find their derivatives anew."""
_rows: dict[Node, dict[int, Node]] = {}


def matches(body: Node, value: str) -> bool:
    """Whether a text belongs to a body language."""
    return done(matching(body, value))


def matching(body: Node, value: str) -> Work[bool]:
    """As `matches`, as work that can be left off."""
    if not is_text(value):
        return False
    node, data = body, to_body(value)
    for start in range(0, len(data), _PART):
        yield _COST + min(_PART, len(data) - start)
        for byte in data[start : start + _PART]:
            rows = _rows.get(node)
            if rows is None:
                if len(_rows) >= MAX_NODES:
                    _rows.clear()
                rows = _rows[node] = {}
            target = rows.get(byte)
            if target is None:
                target = rows[byte] = node.derivative(byte)
            if target is ir.EMPTY:
                return False
            node = target
    return node.is_nullable


def word_list(body: Node) -> tuple[str, ...] | None:
    """The texts of a body language that was made as a list of them, ascending; None if it was made otherwise."""
    if isinstance(body, _Words) and body.is_list and body.table.end is None:
        return tuple(dict.fromkeys(body.table.words[body.start : body.stop]))
    return None


Selection: TypeAlias = bytes | None
"""The permitted words of a `WordTable`: one byte each, 1 if it is; None for all."""


@dataclass(frozen=True, eq=False)
class WordTable:
    """A sorted list of words and what follows each of them. Compared by identity.

    Attributes:
        words: ascending, without surrogates; a word may occur twice, each with its own end.
        end: what follows the word with an index (a label, a closing part); never an empty language. Nothing by default.
        are_labelled: whether each end holds the index of its word as the label.
    """

    words: Sequence[str]
    end: Callable[[int], Node] | None = None
    are_labelled: bool = False

    @cached_property
    def is_basic(self) -> bool:
        """Whether all characters lie in the basic multilingual plane."""
        return all(word.isascii() or max(word) <= "\uffff" for word in self.words)

    def node(self, selection: Selection = None) -> Node:
        """The language of the permitted words, each followed by its end."""
        node = _Words(self, 0, len(self.words), 0, selection)
        return node if node.has_any(0, len(self.words)) else ir.EMPTY

    def block(self) -> Block[Node] | None:
        """The states of all words at once; None if there are too many, or some need an escape or a surrogate pair."""
        if self.end is None or not self.is_basic:
            return None
        if sum(map(len, self.words)) > MAX_BYTES or any(c < " " or c in '"\\' for word in self.words for c in word):
            return None
        spelled = [word.encode() for word in self.words]
        ends = [self.end(index) for index in range(len(spelled))]
        if len(set(spelled)) < len(spelled) or any(mask != 1 << 0x22 for end in ends for mask, _ in end.transitions()):
            return None

        def open_edge(word: bytes, depth: int) -> int:
            return 0x5C if word[depth] & 0xC0 != 0x80 else -1  # between two characters

        def resolve(low: int, high: int, depth: int) -> Node:
            start = low + (len(spelled[low]) == depth)
            return _Words(self, start, high, len(spelled[low][:depth].decode()), None, "\\")

        return Block(spelled, ends, open_edge, resolve)


class _Words(Node):
    r"""The words ``table.words[start:stop]`` without their common first `depth` characters; derived when asked for.

    A node of a trie that is never built as a whole: 100,000 words cost what the walk visits. Inside an escape of the
    next character, `begun` is what was read of it, such as ``\u00``; the words are those that it may still be of.
    """

    __slots__ = ("_hash", "_transitions", "begun", "depth", "selection", "start", "stop", "table")

    can_be_empty = False

    def __init__(
        self, table: WordTable, start: int, stop: int, depth: int, selection: Selection, begun: str = ""
    ) -> None:
        self.table, self.start, self.stop, self.depth, self.selection = table, start, stop, depth, selection
        self.begun = begun
        self._hash = hash(self._key())
        self._transitions: Transitions | None = None

    @property
    def is_labelled(self) -> bool:
        return self.table.are_labelled

    @property
    def label_range(self) -> tuple[int, int] | None:
        return (self.start, self.stop) if self.table.are_labelled else None

    @property
    def is_list(self) -> bool:
        """Whether it holds whole words of the table, one beside the other."""
        return not (self.depth or self.begun) and self.selection is None

    def has_any(self, start: int, stop: int) -> bool:
        """Whether a word with index `start` <= i < `stop` is permitted."""
        return start < stop if self.selection is None else self.selection.find(1, start, stop) >= 0

    def _key(self) -> tuple[object, ...]:
        return (id(self.table), self.start, self.stop, self.depth, self.selection, self.begun)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._key() == other._key())

    def __hash__(self) -> int:
        return self._hash

    def _ends(self) -> Iterator[Node]:
        """The languages behind the words that end here."""
        words, end = self.table.words, self.table.end
        for index in range(self.start, self.stop):
            if len(words[index]) > self.depth:
                return
            if self.has_any(index, index + 1):
                yield ir.EPSILON if end is None else end(index)

    def _children(self) -> Iterator[tuple[str, _Words]]:
        """The characters that may come next, ascending, with what follows them."""
        words, depth = self.table.words, self.depth
        index = self.start
        while index < self.stop and len(words[index]) == depth:
            index += 1
        while index < self.stop:
            character = words[index][depth]
            after = self.stop
            if words[after - 1][depth] != character:
                after = bisect_right(words, character, index, after, key=lambda word: word[depth])
            if self.has_any(index, after):
                yield character, _Words(self.table, index, after, depth + 1, self.selection)
            index = after

    @property
    def labels(self) -> tuple[Hashable, ...]:
        return () if self.begun else tuple(dict.fromkeys(label for end in self._ends() for label in end.labels))

    def transitions(self) -> Transitions:
        if self._transitions is None:
            self._transitions = self._derive_escape() if self.begun else self._derive()
        return self._transitions

    def block(self) -> Block[Node] | None:
        """As in `Node`."""
        return self.table.block() if self.is_list else None

    def forget(self) -> None:
        """As in `Node`."""
        self._transitions = None

    def _derive(self) -> Transitions:
        rows: list[tuple[ByteMask, Node]] = [row for end in self._ends() for row in end.transitions()]
        children = list(self._children())
        if any(character > "\uffff" for character, _ in children):
            rows += ir.choice(*(ir.concat(spell(character), rest) for character, rest in children)).transitions()
            return ir.merge(rows)
        is_plain = not rows  # every byte leads to one child
        for character, rest in children:
            if character < " " or character in '"\\':
                continue  # by escape alone
            if character < "\x80":
                rows.append((1 << ord(character), rest))
            else:
                spelled = character.encode()
                rows.append((1 << spelled[0], ir.concat(ir.literal(spelled[1:]), rest)))
                is_plain = False
        if children:
            start = children[0][1].start  # the words that end here are not among those behind a backslash
            rows.append((1 << 0x5C, _Words(self.table, start, self.stop, self.depth, self.selection, "\\")))
        return tuple(rows) if is_plain else ir.merge(rows)

    def _derive_escape(self) -> Transitions:
        """The letters with which an escape of the next character can go on."""
        size = len(self.begun)
        groups: dict[str, list[tuple[str, _Words]]] = {}
        for character, rest in self._children():
            for escape in _escapes(character):
                if escape.startswith(self.begun):
                    groups.setdefault(escape[size], []).append((escape, rest))
        rows: list[tuple[ByteMask, Node]] = []
        for letter, found in groups.items():
            mask = 1 << ord(letter) | (1 << ord(letter.upper()) if size > 1 else 0)  # digits in both cases
            (escape, first), (_, last) = found[0], found[-1]
            if len(escape) > size + 1:
                begun = self.begun + letter
                first = _Words(self.table, first.start, last.stop, self.depth, self.selection, begun)
            rows.append((mask, first))
        return tuple(rows)

    def __repr__(self) -> str:
        return f"words({self.table.words[self.start]!r}, … {self.stop - self.start})"


def _escapes(character: str) -> Iterator[str]:
    """The escapes of a character of the basic multilingual plane, with small digits."""
    if ord(character) in _SHORT_ESCAPES:
        yield f"\\{_SHORT_ESCAPES[ord(character)]}"
    yield f"\\u{ord(character):04x}"


def words(values: Sequence[str]) -> Node:
    """The body language of finitely many texts; those with lone surrogates are left out."""
    spelled = tuple(sorted({value for value in values if is_text(value)}))
    return _few_words(spelled) if len(spelled) <= _FEW_WORDS else WordTable(spelled).node()


_FEW_WORDS: Final = 64


@lru_cache(maxsize=1024)
def _few_words(spelled: tuple[str, ...]) -> Node:
    """Kept, because two tables are never equal: what is known about the one would be asked anew about the other."""
    return WordTable(spelled).node()


def first_characters(node: Node) -> Sequence[tuple[str, Node]] | None:
    """The characters that a list of words begins with, each with the rest of its words; None for other nodes."""
    if isinstance(node, _Words) and not node.begun and node.table.end is None:
        return list(node._children())
    return None
