"""A JSON text as a value that knows where it stands: what a guard judges."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from decodekit.constraints.json_schema.values import numbers

_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*(?:("(?:[^"\\]|\\.)*")|(-?[0-9][0-9.eE+-]*)|(true|false|null)|([\[\]{},:]))', re.DOTALL
)
_WORDS: Final[dict[bytes, bool | None]] = {b"true": True, b"false": False, b"null": None}


@dataclass(eq=False, slots=True)
class Instance:
    """One value of a text.

    Attributes:
        kind: "null", "boolean", "number", "string", "array" or "object".
        value: None, a bool, the exact number, the text, the items, the members by key.
        start, end: the number of bytes of the text up to its beginning and up to its end.
        identity: equal for equal values of one text (JSON's equality: 1 is 1.0 and is not true).
        is_plain: a number without point and exponent.
    """

    kind: str
    value: bool | Fraction | str | list[Instance] | dict[str, Instance] | None
    start: int
    end: int
    identity: int
    is_plain: bool = False

    @property
    def items(self) -> list[Instance]:
        """The items of an array."""
        assert isinstance(self.value, list)
        return self.value

    @property
    def members(self) -> dict[str, Instance]:
        """The members of an object."""
        assert isinstance(self.value, dict)
        return self.value


@dataclass(eq=False, slots=True)
class _Open:
    bracket: bytes
    start: int = 0
    values: list[Instance] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def read(text: bytes) -> Instance:
    """The value of a JSON text. A loop, so nesting costs no stack.

    Raises:
        ValueError: it is not JSON.
    """
    identities: dict[Hashable, int] = {}
    outer = _Open(b"")
    stack = [outer]
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            if not text[at:].strip():
                break
            raise ValueError(f"no JSON at byte {at}")
        at = found.end()
        string, number, word, mark = found.groups()
        top = stack[-1]
        if mark in (b"[", b"{"):
            stack.append(_Open(mark, at - 1))
            continue
        if mark in (b",", b":"):
            continue
        if string is not None and top.bracket == b"{" and len(top.keys) == len(top.values):
            top.keys.append(json.loads(string))
            continue
        if string is not None:
            instance = Instance("string", json.loads(string), at - len(string), at, 0)
            content: Hashable = instance.value  # type: ignore[assignment]
        elif number is not None:
            exact = numbers.read(number.decode())
            instance = Instance("number", exact, at - len(number), at, 0, is_plain=number.lstrip(b"-").isdigit())
            content = exact
        elif word is not None:
            content = _WORDS[word]
            instance = Instance("null" if content is None else "boolean", content, at - len(word), at, 0)
        else:
            if len(stack) == 1:
                raise ValueError(f"a bracket too many at byte {at - 1}")
            stack.pop()
            if top.bracket == b"[":
                instance = Instance("array", top.values, top.start, at, 0)
                content = tuple(value.identity for value in top.values)
            else:
                members = dict(zip(top.keys, top.values, strict=True))
                instance = Instance("object", members, top.start, at, 0)
                content = frozenset((key, value.identity) for key, value in members.items())
            top = stack[-1]
        instance.identity = identities.setdefault((instance.kind, content), len(identities))
        top.values.append(instance)
    if len(stack) > 1 or len(outer.values) != 1:
        raise ValueError("no whole JSON value")
    return outer.values[0]
