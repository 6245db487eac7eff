"""What a parser of calls reads, and how parsers tell the type of a value that has no quotation marks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

JsonObject: TypeAlias = dict[str, Any]


class Reading(NamedTuple):
    """A text as a parser reads it.

    Attributes:
        calls: name and arguments of each.
        content: the text beside them; None where the parser has none to give.
    """

    calls: list[tuple[str, JsonObject]]
    content: str | None


def properties_of(tools: list[JsonObject], name: str) -> JsonObject:
    """The declared parameters of a tool by name; none if there is no such tool."""
    found = next((tool["function"] for tool in tools if tool["function"]["name"] == name), {})
    return dict(found.get("parameters", {}).get("properties", {}))


def types_of(schema: Any) -> set[str]:
    """The types of values that a schema names, also by constants and in its branches; strings if it names none."""
    if not isinstance(schema, dict):
        return {"string"}
    named = schema.get("type", [])
    found = {named} if isinstance(named, str) else set(named)
    found |= {_type_of(value) for value in schema.get("enum", [])}
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(keyword, []):
            found |= types_of(branch)
    return found or {"string"}


def _type_of(value: Any) -> str:
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


_FIRST: Final = ("null", "integer", "number", "boolean", "object", "array", "string")


def coerced(text: str, types: set[str]) -> Any:
    """A text as the first of some types that it can be, in the order of vLLM 0.33's `coerce_to_schema_type`.

    A text that is of none is what JSON reads in it, else itself.
    """
    for kind in (one for one in _FIRST if one in types):
        for value in _values_of(text, kind):
            return value
    return next(_finite(text), text)


def _values_of(text: str, kind: str) -> Iterator[Any]:
    """The text as a value of a type, if it is one."""
    if kind == "string":
        yield text
    elif kind in ("object", "array"):
        yield from _finite(text)
    elif kind in ("null", "boolean"):
        words = {"null": {"null": None}, "boolean": {"true": True, "1": True, "false": False, "0": False}}[kind]
        if (word := text.lower().strip() if kind == "boolean" else text.lower()) in words:
            yield words[word]
    else:
        for read in (int, float)[: 1 if kind == "integer" else 2]:
            try:
                value = read(text)
            except ValueError:
                continue
            if math.isfinite(value):
                yield int(value) if value == int(value) else value
                return


def _finite(text: str) -> Iterator[Any]:
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return
    yield value


def coerced_inside(value: Any, schema: Any) -> Any:
    """A value with its texts coerced by a schema, and by the schemas of its items and members."""
    if isinstance(value, str):
        return coerced(value, types_of(schema))
    if isinstance(value, dict):
        inside = schema.get("properties", {})
        return {key: coerced_inside(one, inside[key]) if key in inside else one for key, one in value.items()}
    if isinstance(value, list):
        return [coerced_inside(one, schema["items"]) for one in value] if "items" in schema else value
    return coerced(json.dumps(value), types_of(schema))
