"""Where the beginning of a JSON text stands: in which arrays and objects, and at which place of them; for messages."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from decodekit.constraints.json_schema.strings.text import text_of
from decodekit.records.strict_json import pointer_of

_TOKEN: Final = re.compile(
    rb"[ \t\r\n]*(?:(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)|(?P<colon>:)"
    rb'|(?P<string>"(?:[^"\\]|\\.)*(?P<quote>"|\\?\Z))|(?P<word>-?[0-9][0-9.eE+-]*|-\Z|[a-z]+))',
    re.DOTALL,
)
_VALUE: Final = frozenset({"open", "string", "word"})
_MAX_BEGINNINGS: Final = 200  # brackets that are tried as the first of a JSON text behind another text

_Levels: TypeAlias = list[int | str | None]
"""For each array or object that is open, the index or key of what comes next in it; None before a key."""


def pointer(data: bytes) -> str:
    """The JSON Pointer of what comes next; empty for the whole value."""
    return _pointer(_open_at_end(data))


def innermost(data: bytes) -> str:
    """The JSON Pointer of the innermost array or object that is open; empty for the whole value."""
    return _pointer(_open_at_end(data)[:-1])


def _pointer(levels: _Levels) -> str:
    return pointer_of(at for at in levels if at is not None)


def _open_at_end(data: bytes) -> _Levels:
    """Those of a text.

    What comes before the JSON text, in a composition, is left out as far as it can be told: the text begins with the
    first bracket from which on everything is JSON.
    """
    brackets = (found.start() for found in re.finditer(rb"[{\[]", data))
    for _, begin in zip(range(_MAX_BEGINNINGS), (0, *brackets), strict=False):
        levels = _read(data, begin)
        if levels is not None:
            return levels
    return []


def _read(data: bytes, begin: int) -> _Levels | None:
    """Those of the JSON text from `begin` on; None if it is none, not even the beginning of one."""
    levels: _Levels = []
    may_be, position = _VALUE, begin
    while position < len(data):
        found = _TOKEN.match(data, position)
        if found is None:
            return None if data[position:].strip(b" \t\r\n") else levels
        position = found.end()
        kind = "key" if found["string"] and "key" in may_be else found.lastgroup
        index = levels[-1] if levels else None  # of an array; that of an object is none or a key
        if kind not in may_be or (kind == "close" and isinstance(index, int) != (found["close"] == b"]")):
            return None
        if kind == "open":
            is_array = found["open"] == b"["
            levels.append(0 if is_array else None)
            may_be = _VALUE | {"close"} if is_array else frozenset({"key", "close"})
        elif kind == "comma":
            levels[-1] = index + 1 if isinstance(index, int) else None
            may_be = _VALUE if isinstance(index, int) else frozenset({"key"})
        elif kind == "colon":
            may_be = _VALUE
        elif kind == "key":
            levels[-1] = text_of(found["string"][1:-1]) if found["quote"] == b'"' else None
            may_be = frozenset({"colon"})
        else:  # a value is over
            if kind == "close":
                levels.pop()
            may_be = frozenset({"comma", "close"}) if levels else frozenset()
    return levels
