"""Where a parser of another engine reads a text of ours otherwise, and why: none of these is of the mask's making.

A difference holds for a parser and for those texts alone that its test finds in the calls; anything else is a fault.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from decodekit.constraints.tool_calls import ToolCall
from tests.reference.tool_parsers.reading import JsonObject, properties_of, types_of

Argument: TypeAlias = tuple[Any, JsonObject]
"""A value of a call, and the schema of its parameter."""


class Difference(NamedTuple):
    """Attributes:
    why: in words.
    is_in: whether a text with such arguments may be read otherwise for that reason.
    """

    why: str
    is_in: Callable[[str, list[Argument]], bool]


def strings_in(value: Any) -> Iterator[str]:
    """All strings of a value, its keys among them."""
    if isinstance(value, str):
        yield value
    for inside in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings_in(inside)


def _is_any(test: Callable[[Any], bool]) -> Callable[[str, list[Argument]], bool]:
    return lambda _, arguments: any(test(value) for value, _ in arguments)


def _is_any_of(test: Callable[[Any, JsonObject], bool]) -> Callable[[str, list[Argument]], bool]:
    return lambda _, arguments: any(test(*one) for one in arguments)


def _is_text_of(types: set[str], test: Callable[[str], object]) -> Callable[[str, list[Argument]], bool]:
    """Whether a parameter that may be of such a type has a text that passes."""
    return _is_any_of(lambda value, schema: bool(isinstance(value, str) and types & types_of(schema) and test(value)))


def _has_nested_words(value: Any) -> bool:
    parts = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(isinstance(one, str | bool | None) or _has_nested_words(one) for one in parts)


def _is_read_as_null(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "null"


def _is_inexact(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (abs(value) > 2**53 or not math.isfinite(value))


def _is_read(read: Callable[[str], Any]) -> Callable[[str], bool]:
    """Whether a function reads a text."""

    def test(text: str) -> bool:
        try:
            read(text)
        except (ValueError, SyntaxError):
            return False
        return True

    return test


def _is_untyped(schema: JsonObject) -> bool:
    return not {"type", "enum", "anyOf", "oneOf", "allOf"} & {*schema}


_OF_VLLM: Final = (
    Difference(
        "vLLM takes a parameter without types for a text",
        _is_any_of(lambda value, schema: _is_untyped(schema) and not isinstance(value, str)),
    ),
    Difference("vLLM reads null in any letters as none, where it may be none", _is_text_of({"null"}, _is_read_as_null)),
    Difference(
        "vLLM takes the words of Python for texts, where they may be texts; these templates write them",
        lambda text, arguments: (
            any(word in text for word in ("None", "True", "False"))
            and any(isinstance(value, bool | None) and "string" in types_of(schema) for value, schema in arguments)
        ),
    ),
    Difference(
        "vLLM reads 1 and 0, and true and false in any letters, as booleans, where they may be",
        _is_text_of({"boolean"}, lambda text: text.strip().lower() in ("true", "false", "1", "0")),
    ),
    Difference(
        "vLLM reads numbers as Python does, with signs, zeros, blanks and underscores",
        _is_text_of({"integer", "number"}, _is_read(float)),
    ),
    Difference(
        "vLLM takes a whole number with a point or an exponent for a text, where it may be one",
        _is_any_of(lambda value, schema: isinstance(value, float) and {"string", "integer"} <= types_of(schema)),
    ),
    Difference(
        "vLLM reads JSON of all types in a text that may be a list or an object",
        _is_text_of({"array", "object"}, _is_read(json.loads)),
    ),
)
"""Of its parsers that read the texts of arguments by the types of their parameters."""

DIFFERENCES: Final[dict[str, tuple[Difference, ...]]] = {
    **dict.fromkeys(("qwen3 coder", "glm", "minimax", "deepseek v3.2", "deepseek v4", "gemma 4"), _OF_VLLM),
    "seed-oss": (
        *_OF_VLLM,
        Difference(
            "vLLM takes a line break at the begin and at the end of a string for the template's, which writes none",
            _is_any(lambda value: isinstance(value, str) and value != value.strip("\n")),
        ),
        Difference(
            "the template writes lists and objects as Python does, and vLLM reads them as JSON or as texts",
            _is_any(lambda value: isinstance(value, dict) or _has_nested_words(value)),
        ),
    ),
    "glm mlx": (
        Difference(
            "mlx-lm takes the blanks around a string for the template's",
            _is_any(lambda value: isinstance(value, str) and value != value.strip()),
        ),
        Difference(
            "mlx-lm reads what JSON or Python reads, unless the parameter is a text alone",
            _is_any_of(
                lambda value, schema: (
                    isinstance(value, str)
                    and schema.get("type") != "string"
                    and any(_is_read(read)(value.strip()) for read in (json.loads, ast.literal_eval))
                )
            ),
        ),
    ),
    "qwen3 coder mlx": (
        Difference("mlx-lm reads the string null as none, whatever the schema says", _is_any(_is_read_as_null)),
        Difference("mlx-lm reads whole numbers by way of floating point", _is_any(_is_inexact)),
        Difference(
            "mlx-lm takes a parameter without types, or with anyOf, for a text",
            _is_any_of(lambda value, schema: "type" not in schema and not isinstance(value, str)),
        ),
        Difference(
            "mlx-lm reads a parameter with a list of types as Python does",
            _is_any_of(
                lambda value, schema: (
                    isinstance(value, str)
                    and isinstance(schema.get("type"), list)
                    and _is_read(ast.literal_eval)(value.strip(" \t"))
                )
            ),
        ),
    ),
    "step3": (
        Difference(
            "vLLM hands out lists and objects as texts, and strings without the blanks around them",
            _is_any(
                lambda value: isinstance(value, dict | list) or (isinstance(value, str) and value != value.strip())
            ),
        ),
        Difference(
            "vLLM takes a parameter that has not one type for a text",
            _is_any_of(lambda value, schema: not (isinstance(value, str) or isinstance(schema.get("type"), str))),
        ),
    ),
    "functiongemma": (
        Difference(
            "mlx-lm ends every value that is no string at the next comma, also inside of lists and objects",
            _is_any(lambda value: isinstance(value, dict | list)),
        ),
        Difference(
            "mlx-lm ends the arguments at the first brace, also inside of strings",
            _is_any(lambda value: isinstance(value, str) and "}" in value),
        ),
    ),
    "phi-4 mini": (
        Difference("vLLM ends the list of calls at the first bracket", lambda text, _: text.count("]") > 1),
    ),
    "olmo3": (
        Difference(
            "vLLM divides the calls at the ends of lines before it reads them, also inside of lists and strings",
            lambda text, arguments: (
                "[\n" in text
                or "{\n" in text
                or any(len(f"{one}.".splitlines()) > 1 for one in strings_in([value for value, _ in arguments]))
            ),
        ),
    ),
    "xlam": (
        Difference(
            "vLLM looks for fences and the marks of other families first",
            lambda text, _: any(mark in text for mark in ("```", "[TOOL_CALLS]", "<tool_call>")),
        ),
    ),
}


def explained(parser: str, text: str, calls: Iterable[ToolCall], given: list[JsonObject]) -> bool:
    """Whether a known difference may be in a text with such calls of tools."""
    arguments: list[Argument] = []
    for call in calls:
        declared = properties_of(given, call.name)
        arguments += [(value, declared.get(key, {})) for key, value in call.arguments.items()]
    return any(one.is_in(text, arguments) for one in DIFFERENCES.get(parser, ()))
