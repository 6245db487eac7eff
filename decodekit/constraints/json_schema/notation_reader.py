r"""Whole texts of another notation as JSON, which values and guards are read from.

    [1, 0x1F, 'it\'s', None,]      [1, 31, "it's", null]

All values of JSON that `ast.literal_eval` reads are read in Python's notation, strings with prefixes, with three
quotation marks and side by side left out. What is not a value as JSON either, such as ``[1 2]``, is left as it is.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from functools import lru_cache
from typing import Final, TypeAlias

from decodekit.constraints.json_schema.strings.notations import Notation

Place: TypeAlias = tuple[int, int, int]
"""Where a part begins as JSON and in its notation, and how many bytes of the latter begin a string."""

_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BARE_KEY: Final = re.compile(rb"[^:,{}\[\] \t\r\n][^:,{}\[\]]*(?=:)")
_STRINGS: Final = {
    "json": rb'"(?:[^"\\]|\\.)*"',
    "python": rb"'(?P<single>(?:[^'\\\r\n\0]|\\.)*)'|" + rb'"(?P<double>(?:[^"\\\r\n\0]|\\.)*)"',
    "raw": rb"(?!)",
}
_OTHERS: Final = (
    rb"(?P<word>[A-Za-z]+)|(?P<number>[-+]?\.?[0-9](?:[eE][-+]|[0-9A-Za-z_.])*)"
    rb"|(?P<bracket>[\[\]{}])|(?P<comma>,)|(?P<colon>:)|(?P<blank>[ \t\r\n]+)"
)
_WORDS: Final = {b"true": b"true", b"false": b"false", b"null": b"null"}
_PYTHON_WORDS: Final = {**_WORDS, b"True": b"true", b"False": b"false", b"None": b"null"}
_ESCAPE: Final = re.compile(
    r"\\(\r\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|.)", re.DOTALL
)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED.update({"\n": "", "\r": "", "\r\n": "", "\\": "\\", "'": "'", '"': '"'})


@lru_cache(maxsize=64)
def _pattern(strings: str) -> re.Pattern[bytes]:
    mark = re.escape(strings.encode())
    string = _STRINGS.get(strings, rb"%b(?P<marked>.*?)%b" % (mark, mark))
    return re.compile(rb"(?P<string>%b)|%b" % (string, _OTHERS), re.DOTALL)


def translated(data: bytes, outer: Notation, nested: Notation) -> tuple[bytes, list[Place]]:
    """A whole text as JSON, and where its parts stand. What is not a value there is none of JSON.

    Raises:
        ValueError: something in it is none of the notation.
    """
    out, places, brackets = bytearray(), list[Place](), bytearray()
    at, is_key = 0, False
    comma = -1  # where the last piece of the output is one
    while at < len(data):
        notation = nested if brackets else outer
        found = _BARE_KEY.match(data, at) if is_key and notation.has_bare_keys else None
        if found is None:
            found = _pattern(notation.strings).match(data, at)
        if found is None:
            raise ValueError(f"no value at byte {at}")
        kind, piece, begun = found.lastgroup, found[0], at
        at = found.end()
        if kind == "blank":
            out += piece
            continue
        if kind == "bracket":
            if piece in b"[{":
                brackets += piece
            else:
                if (
                    comma > 0
                    and notation.strings == "python"
                    and bytes(out[:comma].rstrip()[-1:]) not in (b"[", b"{", b",")
                ):
                    del out[comma]  # Python has one behind the last item, too
                del brackets[-1:]
        is_key = piece in (b"{", b",") and brackets[-1:] == b"{"
        places.append((len(out), begun, _opening(found)))
        comma = len(out) if kind == "comma" else -1
        out += _piece(found, notation)
    places.append((len(out), len(data), 0))
    return bytes(out), places


class GrowingTranslation:
    """A text of another notation while it grows, as JSON; the notations as of `translated`."""

    def __init__(self, outer: Notation, nested: Notation) -> None:
        self._outer, self._nested = outer, nested
        self._rest = b""  # of which more has to be known
        self._brackets = b""
        self._is_key = False
        self._end: bytes | None = None  # of the string that is open

    def push(self, text: str, *, is_last: bool = False) -> str:
        """Go on with a piece of the text; what of the JSON is certain now and was not before."""
        self._rest += text.encode("utf-8", errors="surrogatepass")
        out = bytearray()
        while self._rest:
            notation = self._nested if self._brackets else self._outer
            piece = self._piece(notation, is_last) if self._end is None else self._body(notation, self._end)
            if piece is None:
                break
            out += piece
        return out.decode("utf-8", errors="surrogatepass")

    def _read(self, size: int) -> bytes:
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def _piece(self, notation: Notation, is_last: bool) -> bytes | None:
        """The next piece outside of strings."""
        is_bare = self._is_key and notation.has_bare_keys
        for begin in () if is_bare else _begins(notation.strings):
            if self._rest.startswith(begin):
                self._end, self._is_key = self._read(len(begin)), False
                return b'"'
            if begin.startswith(self._rest):
                return None
        found = _BARE_KEY.match(self._rest) if is_bare else None
        if found is None:
            if is_bare and self._rest[:1] not in b"} \t\r\n":
                return None
            found = _pattern(notation.strings).match(self._rest)
        rest = b"" if found is None else self._rest[found.end() :].lstrip()
        if found is None or (found.lastgroup in ("word", "number", "comma") and not rest and not is_last):
            return None
        piece = self._read(found.end())
        if found.lastgroup == "blank":
            return piece
        if found.lastgroup == "bracket":
            self._brackets = self._brackets + piece if piece in b"[{" else self._brackets[:-1]
        self._is_key = piece in (b"{", b",") and self._brackets[-1:] == b"{"
        if found.lastgroup == "comma" and notation.strings == "python" and rest[:1] in b"]}":
            return b""  # Python has one behind the last item, too
        return _piece(found, notation)

    def _body(self, notation: Notation, end: bytes) -> bytes | None:
        """More of the string that is open, or its end."""
        if self._rest.startswith(end):
            self._read(len(end))
            self._end = None
            return b'"'
        found = _body_pattern(notation.strings, end).match(self._rest)
        body = b"" if found is None else self._read(found.end())
        if not body:
            return None
        return body if notation.strings == "json" else quoted(body, notation.strings == "python")[1:-1]


def _begins(strings: str) -> tuple[bytes, ...]:
    """The marks that begin strings."""
    return {"json": (b'"',), "python": (b"'", b'"'), "raw": ()}.get(strings, (strings.encode(),))


@lru_cache(maxsize=64)
def _body_pattern(strings: str, end: bytes) -> re.Pattern[bytes]:
    """The pattern of what surely belongs to an open string: whole escapes, and nothing that may begin its end."""
    if strings in ("json", "python"):
        escape = rb"." if strings == "json" else _WHOLE_ESCAPE
        return re.compile(rb"(?:[^%b\\]|\\(?:%b))+" % (end, escape), re.DOTALL)
    begun = b"|".join(re.escape(end[:size]) for size in range(1, len(end)))
    return re.compile(rb"(?:(?!%b)(?!(?:%b)\Z).)+" % (re.escape(end), begun or rb"(?!)"), re.DOTALL)


_WHOLE_ESCAPE: Final = (
    rb"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{3}|[0-7]{1,2}(?=[^0-7])"
    rb"|\r\n|\r(?=[^\n])|[^xuUN0-7\r]"
)


def _opening(found: re.Match[bytes]) -> int:
    """The number of bytes of a piece that open a string; 0 if it is none."""
    if found.lastgroup != "string":
        return 0
    inner = next((name for name in _INSIDE if found.groupdict().get(name) is not None), None)
    return 1 if inner is None else found.start(inner) - found.start()


_INSIDE: Final = ("single", "double", "marked")


def _piece(found: re.Match[bytes], notation: Notation) -> bytes:
    """A piece of a text as JSON."""
    kind, piece = found.lastgroup, found[0]
    is_python = notation.strings == "python"
    if kind is None:  # a bare key
        return quoted(piece)
    if kind == "string" and notation.strings != "json":
        inner = next(part for name in _INSIDE if (part := found.groupdict().get(name)) is not None)
        return quoted(inner, is_python)
    if kind == "word":
        words = _PYTHON_WORDS if notation.has_python_words else _WORDS
        if piece not in words:
            raise ValueError(f"no value begins with {piece.decode()!r:.60}")
        return words[piece]
    if kind == "number" and not _NUMBER.fullmatch(piece):
        if not is_python:
            raise ValueError(f"{piece.decode()!r:.60} is no number")
        return _number(piece.decode())
    return piece


def quoted(data: bytes, is_python: bool = False) -> bytes:
    """Characters as a string of JSON, perhaps with the escapes of Python."""
    written = data.decode("utf-8", errors="surrogatepass")
    if is_python:
        written = _ESCAPE.sub(_unescaped, written)
    return json.dumps(written, ensure_ascii=False).encode("utf-8", errors="surrogatepass")


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    if escape in _ESCAPED:
        return _ESCAPED[escape]
    if escape[0] in "01234567":
        return chr(int(escape, 8))
    if escape[0] not in "xuUN":
        return found[0]  # as Python has it
    if len(escape) == 1:
        raise ValueError(f"{found[0]!r} is half of an escape")
    if escape[0] == "N":
        try:
            return unicodedata.lookup(escape[2:-1])
        except KeyError:
            raise ValueError(f"{escape[2:-1]!r:.60} is no name of a character") from None
    return chr(int(escape[1:], 16))


def _number(written: str) -> bytes:
    """A number of Python, in one of the forms that JSON does not have."""
    try:
        value: int | float = int(written, 0)
    except ValueError:
        if not re.search("[.eE]", written):
            raise
        value = float(written)
    if not math.isfinite(value):
        raise ValueError(f"{written:.60} is too large a number")
    return json.dumps(value).encode()
