"""JSON values that know their place in the text, as a guard judges them."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, cast

from decodekit.constraints.json_schema.values import numbers
from decodekit.constraints.work_budget import Work, done

_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*(?:("(?:[^"\\]|\\.)*")|(-?[0-9][0-9.eE+-]*)|(true|false|null)|([\[\]{},:]))', re.DOTALL
)
_PART: Final = 512
"""So many steps are made before the reading can be left off."""
_TOKEN_STEPS: Final = 6


@dataclass(eq=False, slots=True)
class Instance:
    """One value of a text.

    Attributes:
        kind: "null", "boolean", "number", "string", "array" or "object".
        value: None, a bool, the exact number, the text, the items, the members by key.
        start, end: the number of bytes of the text up to its beginning and up to its end.
        identity: equal for equal values of one text (JSON's equality: 1 is 1.0 and is not true).
        is_plain: a number without point and exponent.
        known: what is remembered of it by who judges it.
    """

    kind: str
    value: bool | Fraction | Decimal | str | list[Instance] | dict[str, Instance] | None
    start: int
    end: int
    identity: int = 0
    is_plain: bool = False
    known: dict[Any, Any] | None = None

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


def scalar(raw: bytes, end: int) -> Instance:
    """The instance of a string, number or word that ends at a byte; its identity has to be found."""
    start = end - len(raw)
    if raw[0] in b"-0123456789":
        number = numbers.read_any(raw.decode())
        return Instance("number", number, start, end, is_plain=raw.lstrip(b"-").isdigit())
    value: str | bool | None = json.loads(raw)
    kind = "string" if isinstance(value, str) else "null" if value is None else "boolean"
    return Instance(kind, value, start, end)


def compound(keys: list[str] | None, values: list[Instance], start: int, end: int) -> Instance:
    """The instance of an object with some keys, or of an array; its identity has to be found."""
    if keys is None:
        return Instance("array", values, start, end)
    return Instance("object", dict(zip(keys, values, strict=True)), start, end)


def content(instance: Instance) -> Hashable:
    """A key that equal values of one text share and others do not, given the identities of their parts."""
    if instance.kind == "array":
        return "array", tuple(item.identity for item in instance.items)
    if instance.kind == "object":
        return "object", frozenset((key, member.identity) for key, member in instance.members.items())
    return instance.kind, cast("Hashable", instance.value)


def read(text: bytes) -> Instance:
    """As `reading`, at once."""
    return done(reading(text))


def reading(text: bytes) -> Work[Instance]:
    """The value of a JSON text. A loop, so nesting costs no stack.

    Raises:
        ValueError: it is not JSON.
    """
    identities: dict[Hashable, int] = {}
    outer: list[Instance] = []
    stack: list[tuple[list[str] | None, list[Instance], int]] = [(None, outer, 0)]  # keys of an object, values, start
    at = num_steps = reported = 0
    while at < len(text):
        if num_steps - reported >= _PART:
            yield num_steps - reported
            reported = num_steps
        found = _TOKEN.match(text, at)
        if found is None:
            if not text[at:].strip():
                break
            raise ValueError(f"no JSON at byte {at}")
        num_steps += _TOKEN_STEPS + (found.end() - at) // 64
        at = found.end()
        string, _, _, mark = found.groups()
        keys, values, start = stack[-1]
        if mark in (b"[", b"{"):
            stack.append((None if mark == b"[" else [], [], at - 1))
            continue
        if mark in (b",", b":"):
            continue
        if string is not None and keys is not None and len(keys) == len(values):
            keys.append(json.loads(string))
            continue
        if mark is None:
            instance = scalar(found[0].lstrip(), at)
        else:
            if len(stack) == 1:
                raise ValueError(f"a bracket too many at byte {at - 1}")
            stack.pop()
            num_steps += len(values) // 4
            instance = compound(keys, values, start, at)
            values = stack[-1][1]
        instance.identity = identities.setdefault(content(instance), len(identities))
        values.append(instance)
    if len(stack) > 1 or len(outer) != 1:
        raise ValueError("no whole JSON value")
    yield num_steps - reported
    return outer[0]
