r"""A JSON text while it grows: the value so far after each piece of it, every character read once.

    text so far                     value so far
    {"name": "Bos                   {"name": "Bos"}                  a string grows
    {"name": "Bosch\u00             {"name": "Bosch"}                half of an escape waits
    {"name": "Bosch", "net": 4      {"name": "Bosch"}                4 may be the beginning of 40, so it waits
    {"name": "Bosch", "net": 40,    {"name": "Bosch", "net": 40}

What a value so far holds, the whole text holds as well: objects and arrays get more members, strings get longer, and
nothing else changes. A key is there as soon as its value begins, a number or a word when it is complete.

A value so far is made of a `Mark`, which is a few references. Objects and arrays that were complete by then are shared
between all values that are made; the open ones around the end of the text are copied.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

ABSENT: Final[Any] = object()
"""Where there is no value yet."""

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_DIGITS: Final = re.compile(r"[-+0-9.eE]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, tuple[str, bool | None]]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_ESCAPED: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX: Final = "0123456789abcdefABCDEF"
_ONE: Final = 6  # characters of an escaped UTF-16 unit, `\uXXXX`
_SECOND: Final = ("\\", "u", "dD", "cdefCDEF", _HEX, _HEX)  # of the unit behind half of a pair


@dataclass(eq=False, slots=True)
class _Container:
    """An object or array that is open; it becomes part of the one around it when it is closed.

    Attributes:
        members: so far; grows at its end only.
        around: the one around it.
        key: of it in an object around it.
        place: how many members the one around it has before it.
    """

    members: dict[str, Any] | list[Any]
    around: _Container | None
    key: str
    place: int


class Mark(NamedTuple):
    """A position in a growing text: all that is needed to make the value so far.

    Args:
        top: the innermost object or array that is open.
        num_members: its members.
        key: of the value that comes next in it, if it is an object.
        pieces, num_pieces: of the string that is open; None if none is.
        whole: the value of the whole text; `ABSENT` before its end.
    """

    top: _Container | None
    num_members: int
    key: str
    pieces: list[str] | None
    num_pieces: int
    whole: Any

    def value(self) -> tuple[Any, int]:
        """The value so far, `ABSENT` before it begins, and how many open objects, arrays and strings it ends in."""
        if self.whole is not ABSENT or (self.top is None and self.pieces is None):
            return self.whole, 0
        inner: Any = ABSENT if self.pieces is None else "".join(self.pieces[: self.num_pieces])
        num_open, one, num_members, key = int(self.pieces is not None), self.top, self.num_members, self.key
        while one is not None:
            members: dict[str, Any] | list[Any]
            if isinstance(one.members, dict):
                members = dict(islice(one.members.items(), num_members))
                if inner is not ABSENT:
                    members[key] = inner
            else:
                members = one.members[:num_members]
                if inner is not ABSENT:
                    members.append(inner)
            inner, num_members, key, one = members, one.place, one.key, one.around
            num_open += 1
        return inner, num_open


class GrowingJson:
    """Reads one JSON text.

    Args:
        is_written: keep the text as `json.dumps` would write it, in `written`.

    Attributes:
        num_read: how many characters were read.
        written: what is certain of ``json.dumps(value, ensure_ascii=False)``, in pieces.
    """

    def __init__(self, *, is_written: bool = False) -> None:
        self.num_read = 0
        self.written: list[str] = []
        self._is_written = is_written
        self._top: _Container | None = None
        self._whole: Any = ABSENT
        self._next = "value"  # or "first", "key", "first key", ":" and ","
        self._key = ""
        self._is_key = False
        self._pieces: list[str] | None = None  # of the string that is open
        self._escape = ""  # as far as it goes, from its backslash on
        self._scalar: list[str] = []  # of the number or word that has begun

    def mark(self) -> Mark:
        """The position behind what was read."""
        pieces = None if self._is_key else self._pieces
        num_members = 0 if self._top is None else len(self._top.members)
        return Mark(self._top, num_members, self._key, pieces, len(pieces or ()), self._whole)

    @property
    def is_closed(self) -> bool:
        """Whether the value is whole and nothing goes on with it."""
        return self._whole is not ABSENT

    @property
    def is_inside(self) -> bool:
        """Whether what comes next belongs to the value for certain: a bracket or a quote is open."""
        return self._top is not None or self._pieces is not None

    @property
    def may_end(self) -> bool:
        """Whether the text may be whole as it is: it is closed, or a number."""
        return self.is_closed or (not self.is_inside and bool(self._scalar) and self._scalar[-1][-1].isdigit())

    def end(self, num_characters: int) -> None:
        """Take the text as whole, a number that ends after so many characters."""
        if not self.is_closed and not self.is_inside and self._scalar:
            self._scalar = ["".join(self._scalar)[:num_characters]]
            self._end_scalar()

    def push(self, text: str, start: int = 0) -> int:
        """Go on with a piece of the text, from `start` on.

        Returns:
            How many of the characters belong to the value: less than all if it ends before, or if no JSON goes on so.
        """
        at = start
        while at < len(text) and not self.is_closed:
            if self._pieces is not None:
                after = self._read_escape(text[at], at) if self._escape else self._read_string(text, at, self._pieces)
            elif self._scalar:
                after = self._read_scalar(text, at)
            else:
                after = self._read_between(text, at)
            if after < 0:
                break
            at = after
        self.num_read += at - start
        return at - start

    # -- strings

    def _read_string(self, text: str, at: int, pieces: list[str]) -> int:
        """Read on in a string; where it was left, -1 if no string goes on so."""
        plain = _PLAIN.match(text, at)
        if plain is not None:
            self._grow(plain[0])
            return plain.end()
        if text[at] == "\\":
            self._escape = "\\"
        elif text[at] == '"':
            self._pieces = None
            if self._is_key:
                self._key, self._is_key, self._next = "".join(pieces), False, ":"
                self._write(f"{_dumps(self._key)}: ")
            else:
                self._write('"')
                self._add("".join(pieces))
        else:
            return -1
        return at + 1

    def _read_escape(self, character: str, at: int) -> int:
        """Read a character of an escape, or behind half of a pair of them; as `_read_string`."""
        escape = self._escape
        if len(escape) >= _ONE and character not in _SECOND[len(escape) - _ONE]:
            self._grow(_unit(escape))  # the other half does not come: it stands alone, as in `json.loads`
            self._escape = escape[_ONE:]
            return at
        if len(escape) == 1 and character in _ESCAPED:
            self._grow(_ESCAPED[character])
            self._escape = ""
            return at + 1
        if character not in ("u" if len(escape) == 1 else _HEX if len(escape) < _ONE else character):
            return -1
        self._escape = escape = escape + character
        if len(escape) == 2 * _ONE:
            self._grow(chr(0x10000 + (ord(_unit(escape)) - 0xD800 << 10) + ord(_unit(escape[_ONE:])) - 0xDC00))
            self._escape = ""
        elif len(escape) == _ONE and not "\ud800" <= _unit(escape) <= "\udbff":
            self._grow(_unit(escape))
            self._escape = ""
        return at + 1

    def _grow(self, piece: str) -> None:
        assert self._pieces is not None
        self._pieces.append(piece)
        if self._is_written and not self._is_key:
            self.written.append(_dumps(piece)[1:-1])

    # -- numbers and words

    def _read_scalar(self, text: str, at: int) -> int:
        word, value = _WORDS.get(self._scalar[0] if self._scalar else text[at], ("", None))
        if word:
            if text[at] != word[len(self._scalar)]:
                return -1
            self._scalar.append(text[at])
            if len(self._scalar) == len(word):
                self._end_with(value)
            return at + 1
        found = _DIGITS.match(text, at)
        if found is not None:
            self._scalar.append(found[0])
            return found.end()
        return at if self._end_scalar() else -1

    def _end_scalar(self) -> bool:
        """Whether what was read is a number, which is added then."""
        digits = "".join(self._scalar)
        if not _NUMBER.fullmatch(digits):
            return False
        try:
            value = json.loads(digits)
        except ValueError:  # more digits than Python reads
            return False
        self._end_with(value)
        return True

    def _end_with(self, value: Any) -> None:
        self._scalar = []
        self._write(_dumps(value))
        self._add(value)

    # -- what stands between them

    def _read_between(self, text: str, at: int) -> int:
        blanks = _BLANKS.match(text, at)
        if blanks is not None:
            return blanks.end()
        character, expected = text[at], self._next
        if character in "]}":
            return at + 1 if self._close(character) else -1
        if character in ",:":
            if character != expected:
                return -1
            is_object = self._top is not None and isinstance(self._top.members, dict)
            self._next = "key" if character == "," and is_object else "value"
            if character == ",":
                self._write(", ")
            return at + 1
        if expected in ("key", "first key"):
            if character != '"':
                return -1
            self._pieces, self._is_key = [], True
            return at + 1
        if expected not in ("value", "first"):
            return -1
        if character == '"':
            self._pieces = []
            self._write('"')
        elif character in "[{":
            place = 0 if self._top is None else len(self._top.members)
            self._top = _Container({} if character == "{" else [], self._top, self._key, place)
            self._next = "first key" if character == "{" else "first"
            self._write(character)
        elif character in "-0123456789tfn":
            return self._read_scalar(text, at)
        else:
            return -1
        return at + 1

    def _close(self, bracket: str) -> bool:
        """Whether what is open ends with this bracket; it is added then to what is around it."""
        one = self._top
        if one is None or isinstance(one.members, dict) != (bracket == "}"):
            return False
        if self._next not in (",", "first key" if bracket == "}" else "first"):
            return False
        self._top, self._key = one.around, one.key
        self._write(bracket)
        self._add(one.members)
        return True

    def _add(self, value: Any) -> None:
        """A complete value."""
        self._next = ","
        if self._top is None:
            self._whole = value
        elif isinstance(self._top.members, dict):
            self._top.members[self._key] = value
        else:
            self._top.members.append(value)

    def _write(self, piece: str) -> None:
        if self._is_written:
            self.written.append(piece)


def _unit(escape: str) -> str:
    """The character of ``\\uXXXX``; of half of a pair a surrogate."""
    return chr(int(escape[2:_ONE], 16))


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
