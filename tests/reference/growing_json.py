"""The slow twin of values so far: of a whole text, read with `json`, what the first characters say for certain."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

NOTHING = object()
_ENDS = ('"', 'x"', 'n"', '\\"', 'u0041"', 'udc00"', '\\udc00"', *("0041"[i:] + '"' for i in range(4)))
_ENDS += (*("dc00"[i:] + '"' for i in range(4)), '5"', '51"', '511"', '5111"')


def so_far(text: str, num_read: int) -> Any:
    """The value after so many characters; `NOTHING` before it begins."""
    return _so_far(text, num_read, 0)[0]


def _so_far(text: str, num_read: int, at: int) -> tuple[Any, int]:
    """The value that begins at a place or behind blanks, as far as it was read, and where it ends in the whole text."""
    at = _skip(text, at)
    if text[at] == '"':
        end = json.JSONDecoder().raw_decode(text, at)[1]
        return (NOTHING if at >= num_read else _string(text[at : min(end, num_read)])), end
    if text[at] not in "[{":
        value, end = json.JSONDecoder().raw_decode(text, at)
        is_number = text[end - 1].isdigit()
        return (value if end + is_number <= num_read else NOTHING), end
    is_object, found = text[at] == "{", list[Any]()
    start, at = at, _skip(text, at + 1)
    while text[at] not in "]}":
        key = None
        if is_object:
            key, at = json.JSONDecoder().raw_decode(text, at)
            at = _skip(text, at) + 1  # the colon
        value, at = _so_far(text, num_read, at)
        if value is not NOTHING:
            found.append((key, value))
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at
    made: Any = dict(found) if is_object else [value for _, value in found]
    return (made if start < num_read else NOTHING), at + 1


def _string(begun: str) -> str:
    """What all strings have in common that begin so."""
    found = []
    for end in ("", *_ENDS):
        try:
            value = json.loads(begun + end)
        except ValueError:
            continue
        if end == "":
            return str(value)  # it is whole
        found.append(value)
    least, most = min(found), max(found)  # what these two share, all of them do
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False)))


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def goes_on(before: Any, after: Any) -> bool:
    """Whether a value so far may become another one: members are added, the last one and its strings grow."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _rows_go_on([*before.items()], [*after.items()])
    if isinstance(before, list) and isinstance(after, list):
        return _rows_go_on([*enumerate(before)], [*enumerate(after)])
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    return type(before) is type(after) and before == after


def _rows_go_on(before: list[Any], after: list[Any]) -> bool:
    is_prefix = [key for key, _ in before] == [key for key, _ in after[: len(before)]]
    return is_prefix and all(goes_on(one, other) for (_, one), (_, other) in zip(before, after, strict=False))
