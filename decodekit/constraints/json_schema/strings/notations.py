r"""Scalars and keys in another notation than JSON: the same languages, read through a translation of bytes.

    JSON        Python                   Gemma 4
    "it's\n"    "it's\n"  'it\'s\n'      <|"|>it's
                                         <|"|>              strings between marks, as they are
    true        True  true               true
    {"a":1}     {'a':1}  {"a":1}         {a:1}              keys as they are

The languages of the other modules hold JSON, with all spellings of a text. `Respelled` reads the other notation and
follows, with each piece of it, what stands for the piece in JSON, in one spelling:

    '  →  "      \'  →  '      "  →  \"      \x07  →  \u0007      True  →  true

So a notation changes nothing of what a schema means. The translation is a transducer with a few states: inside of a
string, behind its backslash, behind ``<|``, which may begin a mark and is held until that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Final

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import EMPTY, ByteMask, Node, Transitions, search_is_empty
from decodekit.constraints.network import Lexeme
from decodekit.constraints.special import spelling

_PER_BYTE: Final = 6
"""Bytes of JSON that stand for a byte of a notation, at most."""
_CONTROLS: Final[ByteMask] = (1 << 0x20) - 1
_QUOTES: Final[ByteMask] = 1 << 0x22 | 1 << 0x5C
"""The characters that JSON cannot write as they are, beside control characters."""
_HEX: Final = b"0123456789abcdefABCDEF"
_NOT_IN_KEYS: Final = ":,{}[]\"'`\\"
"""Characters that no bare key holds, beside marks, control characters and white space but single blanks inside."""


class _State:
    """A state of the translation. Compared by identity.

    Attributes:
        moves: by a byte, what stands for it in JSON, and the state behind it: None where JSON goes on.
        passing: other bytes, which stand for themselves. `behind`: the state behind them.
        controls: control characters that are written as they are.
        before: JSON that was held, and stands before what passes and before control characters.
        is_partial: whether what was read is half of something, so that perhaps nothing goes on as JSON can.
        is_lossy: whether some texts cannot be written: those that hold a mark.
        is_open: whether a string may end here, without a mark.
        ending: the byte that goes on with the mark that begins or ends a string, if there is one.
    """

    __slots__ = ("before", "behind", "controls", "ending", "is_lossy", "is_open", "is_partial", "moves", "passing")

    def __init__(self, passing: ByteMask = 0, *, is_partial: bool = False) -> None:
        self.moves: dict[int, tuple[bytes, _State | None]] = {}
        self.passing, self.controls, self.before, self.is_partial = passing, 0, b"", is_partial
        self.behind: _State | None = self
        self.ending: int | None = None
        self.is_lossy = self.is_open = False


class Respelled(Node):
    """A language of JSON, read in another notation.

    Args:
        node: what follows in JSON.
        state: of the translation.
    """

    __slots__ = ("_hash", "can_be_empty", "has_counts", "is_labelled", "node", "state")

    can_be_empty: bool
    is_labelled: bool
    has_counts: bool

    def __init__(self, node: Node, state: _State) -> None:
        self.node, self.state = node, state
        self.can_be_empty = state.is_partial or state.is_lossy or node.can_be_empty
        self.is_labelled, self.has_counts = node.is_labelled, node.has_counts
        self._hash = hash((node, id(state)))

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """As in `Node`."""
        return self.node.derivative(0x22).labels if self.state.is_open else self.node.labels

    def transitions(self) -> Transitions:
        """As in `Node`."""
        state, rows = self.state, list(self._passing())
        if state.controls:
            rows += _controls(_after(self.node, state.before), state)
        for byte, (json, behind) in state.moves.items():
            target = _after(self.node, json)
            if target is not EMPTY:
                rows.append((1 << byte, _respelled(target, behind)))
        return tuple(rows)

    def derivative(self, byte: int) -> Node:
        """As in `Node`."""
        state = self.state
        move = state.moves.get(byte)
        if move is not None:
            return _respelled(_after(self.node, move[0]), move[1])
        if state.passing >> byte & 1:
            return _respelled(_after(_after(self.node, state.before), (byte,)), state.behind)
        if state.controls >> byte & 1:
            return _respelled(_after(_after(self.node, state.before), _in_json(byte)), state.behind)
        return EMPTY

    def _is_empty(self) -> bool:
        if self.state.is_lossy:
            self._look_ahead()
            return search_is_empty(self)
        if self.state.is_partial:
            return all(target.is_empty for _, target in self.transitions())
        return self.node.is_empty

    def _look_ahead(self) -> None:
        """Find a word on the widest way, where nearly all languages have one: long texts are beyond a search."""
        way: dict[Node, None] = {}
        found: Node = self
        while isinstance(found, Respelled) and found not in way and found.known_emptiness() is None:
            way[found] = None
            if found.is_nullable:
                break
            found = found._ahead()
        is_found = found.is_nullable or (
            found.known_emptiness() is False if isinstance(found, Respelled) else not found.is_empty
        )
        for node in way if is_found else ():
            node.remember_emptiness(False)

    def _ahead(self) -> Node:
        """The derivative by the next byte of a mark, if it may stand here, or else by most bytes."""
        if self.state.ending is not None and not self.node.derivative(0x22).is_empty:
            return self.derivative(self.state.ending)
        rows = self._passing() or self.transitions()
        return max(rows, key=lambda row: row[0].bit_count(), default=(0, EMPTY))[1]

    def _passing(self) -> Transitions:
        """Bytes that stand for themselves."""
        state = self.state
        if not state.passing:
            return ()
        rows = _after(self.node, state.before).transitions()
        return tuple(
            [(found, _respelled(target, state.behind)) for mask, target in rows if (found := mask & state.passing)]
        )

    def _saturate(self, limit: int) -> Node:
        num_bytes = _PER_BYTE * limit + len(self.state.before)
        return Respelled(self.node.saturated(num_bytes), self.state)

    def forget(self) -> None:
        """As in `Node`."""
        self.node.forget()

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Respelled and self.state is other.state and self.node == other.node)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Respelled({self.node!r})"


def _respelled(node: Node, state: _State | None) -> Node:
    return node if node is EMPTY or state is None else Respelled(node, state)


def _after(node: Node, data: Sequence[int]) -> Node:
    for byte in data:
        node = node.derivative(byte)
        if node is EMPTY:
            break
    return node


def _in_json(byte: int) -> bytes:
    """A byte of a character in a string of JSON."""
    if byte < 0x20:
        return b"\\u%04x" % byte
    return b"\\%c" % byte if _QUOTES >> byte & 1 else bytes((byte,))


def _controls(node: Node, state: _State) -> list[tuple[ByteMask, Node]]:
    """Control characters as they are: what follows ``\\u00`` in JSON."""
    rows = []
    for digit, escaped in enumerate(_after(_after(node, b"\\u00"), one) for one in (b"0", b"1")):
        for mask, target in escaped.transitions():
            found = sum(1 << 16 * digit + low for low in range(16) if mask >> _HEX[low] & 1)
            if found & state.controls:
                rows.append((found & state.controls, _respelled(target, state.behind)))
    return rows


# -- the states of the notations


def _passing(without: bytes) -> ByteMask:
    """All bytes but control characters and some others."""
    return ir.ALL_BYTES & ~_CONTROLS & ~sum(1 << byte for byte in without)


def _as_they_are(words: Sequence[str], *, is_mark: bool) -> _State:
    """Inside of a string that is written as it is and holds none of some words; or up to the only word, which ends it.

    The states are the beginnings of words that the text ends in (Aho and Corasick 1975). A mark is held until it is
    whole, for it is not part of the text.
    """
    found = [word.encode() for word in words]
    states = {word[:size]: _State() for word in found or [b""] for size in range(len(word) or 1)}
    for begun, state in states.items():
        state.before = _json(begun) if is_mark else b""
        state.behind, state.is_lossy, state.is_open = states[b""], bool(found), not is_mark
        state.passing, state.controls = ir.ALL_BYTES & ~_CONTROLS, _CONTROLS
        for byte in {*b'"\\', *(byte for word in found for byte in word)}:
            read = begun + bytes((byte,))
            whole = next((word for word in found if read.endswith(word)), None)
            end = next(read[start:] for start in range(len(read) + 1) if read[start:] in states)
            if whole is not None:
                state.moves[byte] = (_json(read[: -len(whole)]) + b'"' if is_mark else _NOTHING), None
            elif end or _in_json(byte) != read:
                told = read[: len(read) - len(end)] if is_mark else read[-1:]
                state.moves[byte] = _json(told), states[end]
            if is_mark and found[0].startswith(read):
                state.ending = byte
        _settle(state)
    return states[b""]


def _json(data: bytes) -> bytes:
    return b"".join(map(_in_json, data))


def _settle(state: _State) -> None:
    """Take the moves from what passes."""
    taken = sum(1 << byte for byte in state.moves)
    state.passing, state.controls = state.passing & ~taken, state.controls & ~taken


_NOTHING: Final = b"\xff"
"""A byte that no language of texts has."""


def _pieces(pieces: dict[bytes, tuple[bytes, _State | None]], passing: ByteMask) -> _State:
    """Before a value: either a piece, or a byte behind which JSON goes on."""
    states = {b"": _State(passing)}
    states[b""].behind = None
    for piece, (json, behind) in pieces.items():
        for size in range(1, len(piece)):
            states.setdefault(piece[:size], _State(is_partial=True))
        for size, byte in enumerate(piece):
            last = size + 1 == len(piece)
            states[piece[:size]].moves[byte] = (json, behind) if last else (b"", states[piece[: size + 1]])
            if behind is not None and behind.is_lossy:
                states[piece[:size]].ending, states[piece[:size]].is_lossy = byte, True
    _settle(states[b""])
    return states[b""]


def _python_string(quote: str) -> _State:
    """Inside of a string: with the escapes that are needed, in small and large digits."""
    inside = _State(_passing(b"\\'\"" if quote == "'" else b'\\"'))
    escape, last = _State(is_partial=True), _State(sum(1 << byte for byte in _HEX), is_partial=True)
    last.behind = inside
    digits = [_State(is_partial=True) for _ in range(3)]  # of which 0, 0, and 0 or 1
    for before, after in zip(digits, (*digits[1:], last), strict=True):
        before.moves[0x30] = b"0", after
    digits[2].moves[0x31] = b"1", last
    escape.moves |= {ord("\\"): (b"\\\\", inside), ord(quote): (_in_json(ord(quote)), inside)}
    escape.moves |= {ord(letter): (_in_json(code), inside) for code, letter in _SHORT.items()}
    escape.moves |= {ord("x"): (b"\\u00", digits[2]), ord("u"): (b"\\u", digits[0])}
    inside.moves = {ord(quote): (b'"', None), ord("\\"): (b"", escape)}
    if quote == "'":
        inside.moves[0x22] = b'\\"', inside
    return inside


_SHORT: Final = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}
_PYTHON: Final = {"'": _python_string("'"), '"': _python_string('"')}
_WORDS: Final[dict[bytes, tuple[bytes, _State | None]]] = {
    b"True": (b"true", None), b"False": (b"false", None), b"None": (b"null", None)
}  # fmt: skip


_BARE: Final = _State(_passing(b'"\\:'))
_BARE.moves[ord(":")] = b'"', None


@lru_cache(maxsize=64)
def _text(strings: str, without: tuple[str, ...]) -> _State:
    """Inside of a string that is written as it is, with a mark behind it or `without` some words."""
    return _as_they_are(without, is_mark=False) if strings == "raw" else _as_they_are((strings,), is_mark=True)


@lru_cache(maxsize=16)
def _between_tokens(mark: str) -> _State:
    """Inside of a string up to the special token of a mark, whose characters it does not hold."""
    first, *others = spelling(mark)
    name: tuple[bytes, _State | None] = b'"', None  # what the rest of it is read as
    for byte in reversed(others):
        state = _State(is_partial=True)
        state.moves[byte] = name
        name = b"", state
    inside = _as_they_are((mark,), is_mark=False)
    agenda, seen = [inside], {inside}
    while agenda:
        state = agenda.pop()
        following = {after for _, after in state.moves.values() if after is not None} - seen
        seen |= following
        agenda += following
        state.is_open, state.ending, state.moves[first] = False, first, name
        _settle(state)
    return inside


class _Written(Node):
    """All bytes, which it writes down."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def derivative(self, byte: int) -> Node:
        """As in `Node`, once each."""
        self.data.append(byte)
        return self


@dataclass(frozen=True, eq=False)
class Quotation:
    """The marks around strings or keys, and the translation of the text between them.

    Attributes:
        begin, end: what stands around them.
        inside: the state of the translation; None for JSON.
        read: the text that bytes between these stand for; None if they are half of one, or half of a character.
        spell: one way to write a text between them.
        is_told: whether any part of what is between them can be read by itself.
    """

    begin: bytes
    end: bytes
    inside: _State | None
    read: Callable[[bytes], str | None]
    spell: Callable[[str], bytes]
    is_told: bool = True

    @cached_property
    def opening(self) -> Lexeme:
        """The mark before them, as a frame."""
        return Lexeme(ir.literal(self.begin))

    def language(self, node: Node) -> Node:
        """Texts with their end, given in JSON with the quote at the end."""
        return _respelled(node, self.inside)


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _read(inside: _State, data: bytes) -> str | None:
    written = _Written()
    after = _after(Respelled(written, inside), data)
    is_whole = isinstance(after, Respelled) and after.state is inside
    return text.text_of(bytes(written.data)) if is_whole else None


def _spell_python(quote: str, written: str) -> bytes:
    """With the escapes of JSON, which Python reads alike but for the quotation mark."""
    body = text.to_body(written).replace(b'\\"', b'"')
    return body.replace(quote.encode(), b"\\" + quote.encode())


_IN_JSON: Final = Quotation(b'"', b'"', None, text.text_of, text.to_body)
_IN_PYTHON: Final = tuple(
    [
        Quotation(quote.encode(), quote.encode(), inside, partial(_read, inside), partial(_spell_python, quote))
        for quote, inside in _PYTHON.items()
    ]
)
_OF_BARE_KEYS: Final = Quotation(b"", b":", _BARE, _decoded, str.encode)


@dataclass(frozen=True)
class Notation:
    """The written form of scalars and keys. Brackets, numbers and white space are those of JSON.

    Attributes:
        strings: as in JSON or in Python, `raw` for a string without an end of its own, or the mark on both sides: its
            characters, or the special token of that name.
        has_python_words: whether True, False and None may stand for true, false and null.
        has_bare_keys: whether keys are written without anything around them.
        without: what no raw string holds.
    """

    strings: str = "json"
    has_python_words: bool = False
    has_bare_keys: bool = False
    without: tuple[str, ...] = ()

    def value(self, node: Node) -> Node:
        """Scalars and opening brackets; in a raw notation either strings or something else."""
        if self is JSON:
            return node
        if self.strings == "raw" and (body := node.derivative(0x22)) is not EMPTY:
            return Respelled(body, _text("raw", self.without))
        return _respelled(node, self._before_value)

    def scalar(self, lexeme: bytes) -> bytes:
        """A scalar that was read, as JSON."""
        if self is JSON:
            return lexeme
        written = _Written()
        _after(_respelled(written, self._before_value), lexeme)
        return bytes(written.data)

    @cached_property
    def _before_value(self) -> _State | None:
        if self.strings == "json" and not self.has_python_words:
            return None
        pieces = dict(_WORDS) if self.has_python_words else {}
        if self.strings not in ("json", "raw"):
            pieces |= {one.begin: (b'"', one.inside) for one in self.quotations}
        return _pieces(pieces, ir.ALL_BYTES if self.strings == "json" else _passing(b'"'))

    @cached_property
    def quotations(self) -> tuple[Quotation, ...]:
        """Those of strings; not of raw ones."""
        if self.strings == "json":
            return (_IN_JSON,)
        if self.strings == "python":
            return _IN_PYTHON
        mark, token = self.strings.encode(), spelling(self.strings)
        return (
            Quotation(mark, mark, _text(self.strings, ()), _decoded, str.encode, is_told=False),
            Quotation(token, token, _between_tokens(self.strings), _decoded, str.encode, is_told=False),
        )

    @cached_property
    def places_of_keys(self) -> dict[str, Quotation]:
        """Where a text is inside of a key: a name for each way to write one. A colon ends a bare one."""
        return _places("key", (_OF_BARE_KEYS,) if self.has_bare_keys else self.quotations)

    @cached_property
    def places_of_texts(self) -> dict[str, Quotation]:
        """Where it is inside of a string."""
        return _places("text", self.quotations)

    @cached_property
    def places(self) -> dict[str, Quotation]:
        """Both of them."""
        return self.places_of_keys | self.places_of_texts

    @cached_property
    def keys(self) -> Node:
        """The texts that can be keys, as bodies of JSON strings: without blanks around them and what could end them."""
        if not self.has_bare_keys:
            return text.BODY
        points = [point for point in range(0x3001) if not self._is_in_keys(chr(point))]
        edge = text.encode(utf8.invert((point, point) for point in points))
        return ir.concat(edge, ir.repeat(ir.concat(ir.repeat(text.spell(" ")), edge)))

    def can_be_key(self, name: str) -> bool:
        """Whether a text can be a key."""
        if not self.has_bare_keys:
            return True
        return name != "" and name == name.strip() and all(one == " " or self._is_in_keys(one) for one in name)

    def _is_in_keys(self, character: str) -> bool:
        excluded = _NOT_IN_KEYS if self.strings in ("json", "python") else _NOT_IN_KEYS + self.strings[0]
        return character > " " and not character.isspace() and character not in excluded

    @cached_property
    def is_lossy(self) -> bool:
        """Whether some strings cannot be written."""
        return self._before_value is not None and self._before_value.is_lossy


def _places(name: str, quotations: tuple[Quotation, ...]) -> dict[str, Quotation]:
    """The first has the name alone."""
    return {name + (one.begin.decode("latin-1") if number else ""): one for number, one in enumerate(quotations)}


JSON: Final = Notation()
