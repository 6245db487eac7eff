"""Arguments of a call as elements, one for each parameter: the format of Qwen3-Coder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

from decodekit.constraints.composition.composed import Composed, row
from decodekit.constraints.composition.free_text import free_text
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, Inline, Repeated, Terminal
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.strings.formats import Formats
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex.regex import parse_search
from decodekit.constraints.tool_calls.tool import RESOURCE, Tool
from decodekit.errors import InvalidConstraintError, UnsatisfiableError, UnsupportedSchemaError

LINE_BREAK: Final = "line break"
LINE: Final = Repeated(Terminal(ir.literal(b"\n"), LINE_BREAK), 0, 1)
"""A line break, or none."""

_NOT_IN_TEXT: Final = ("</parameter>", "<parameter=", "</function>", "<tool_call>", "</tool_call>")

_ANNOTATIONS: Final = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format", "$comment")
)
_OF_OBJECTS: Final = _ANNOTATIONS | frozenset(
    ("type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id")
)
_OF_STRINGS: Final = _ANNOTATIONS | frozenset(("type", "enum", "const", "pattern", "minLength", "maxLength"))


@dataclass(frozen=True, slots=True)
class XmlArguments(Composed):
    r"""The arguments of a tool, each in an element: ``<parameter=city>\nBern\n</parameter>``.

    The parameters stand in the order in which the schema declares them; those that are not required may be left out,
    and no others are written. A parameter that can only be a string is its characters as they are, without the marks
    of the format (`_NOT_IN_TEXT`); one that is never a string is JSON. The value is that of the same arguments as JSON.

    Raises (from `root`):
        UnsupportedSchemaError: a parameter that may be a string and may be something else, which nobody could tell
            apart; keywords about the object as a whole; keywords of strings other than ``enum``, ``const``,
            ``pattern``, ``minLength`` and ``maxLength``.
        ConstraintError: a schema cannot be used.
    """

    tool: Tool

    def expression(self) -> Expression:
        """An element for each parameter."""
        items: list[Expression] = []
        for parameter in _parameters(self.tool):
            element = row(f"<parameter={parameter.name}>\n", parameter.content, "\n</parameter>", LINE)
            items.append(element if parameter.is_required else Alternatives((element, EMPTY_TEXT)))
        return row(*items)

    def value(self, parts: object) -> object:
        """The arguments."""
        values: dict[str, Any] = {}
        for parameter, part in zip(_parameters(self.tool), cast("list[Any]", parts), strict=True):
            number, element = (0, part) if parameter.is_required else part
            if number == 0:
                values[parameter.name] = element[1]
        return self.tool.arguments().parse(json.dumps(values))


class _Parameter(NamedTuple):
    name: str
    content: Expression
    is_required: bool


@lru_cache(maxsize=256)
def _parameters(tool: Tool) -> tuple[_Parameter, ...]:
    schema = tool.schema
    for keyword in schema:
        if keyword not in _OF_OBJECTS:
            raise UnsupportedSchemaError(
                f'"{keyword}" is not supported for arguments that are written as elements',
                at=f"#/{keyword}",
                hint="properties alone, or another format",
            )
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    for name in required:
        if name not in properties:
            raise UnsupportedSchemaError(
                f"the required {name!r:.60} is not declared", at="#/required", hint="properties for all of them"
            )
    found = []
    for name in properties:
        content = _content(tool, schema, name)
        if content is not None:
            found.append(_Parameter(name, content, name in required))
        elif name in required:
            raise UnsatisfiableError("no value fits", at=_place(name))
    return tuple(found)


def _place(name: str) -> str:
    return f"#/properties/{name.replace('~', '~0').replace('/', '~1')}"


def _content(tool: Tool, schema: dict[str, Any], name: str) -> Expression | None:
    """What stands in the element of a parameter; None if it has no values."""
    at = _place(name)
    if not name or any(character in name for character in "<> \t\r\n"):
        raise InvalidConstraintError(f"an element cannot have the name {name!r:.60}", at=at)
    reference = {"$ref": RESOURCE + quote(at, safe="#/~")}

    def has_values(condition: dict[str, Any]) -> bool:
        try:
            JsonSchema({"allOf": [reference, condition]}, registry={RESOURCE: schema}).root()
        except UnsatisfiableError:
            return False
        return True

    has_strings, has_others = has_values({"type": "string"}), has_values({"not": {"type": "string"}})
    is_python = not isinstance(tool.parameters, str)
    if has_strings and has_others:
        raise UnsupportedSchemaError(
            "a string that is written as it is cannot be told from a value of another type",
            at=at,
            hint='"type": "string" alone, and the parameter left out for nothing; or another format',
        )
    if has_strings:
        return Terminal(_text(schema, schema["properties"][name], at, is_python), name)
    if not has_others:
        return None
    formats: Formats = "assert" if is_python else "annotate"
    return Inline(JsonSchema(reference, formats, registry={RESOURCE: schema}), name)


def _text(root: dict[str, Any], schema: Any, at: str, has_formats: bool) -> Node:
    """The strings of a schema, as they are."""
    while isinstance(schema, Mapping) and "$ref" in schema and set(schema) - _ANNOTATIONS == {"$ref"}:
        target: Any = root
        for key in cast("str", schema["$ref"]).removeprefix("#").split("/")[1:]:
            target = target[key.replace("~1", "/").replace("~0", "~")]
        schema = target
    unknown = set(schema) - (_OF_STRINGS - {"format"} if has_formats else _OF_STRINGS)
    if unknown:
        raise UnsupportedSchemaError(
            f"{', '.join(sorted(map(repr, unknown)))} is not supported for a string that is written as it is", at=at
        )
    most = schema.get("maxLength")
    nodes = [free_text(_NOT_IN_TEXT, (), int(schema.get("minLength", 0)), None if most is None else int(most))]
    if "pattern" in schema:
        nodes.append(parse_search(schema["pattern"]))
    if "enum" in schema:
        nodes.append(ir.choice(*(ir.literal(value.encode()) for value in schema["enum"] if isinstance(value, str))))
    if "const" in schema:
        nodes.append(ir.literal(schema["const"].encode()))
    node = ir.both(*nodes)
    if node.is_empty:
        raise UnsatisfiableError("no string fits that can be written as it is", at=at)
    return node
