"""Where a parser of another engine reads a text of ours otherwise, and why: none of these is of the mask's making.

A difference holds for a parser and for those texts alone that its test finds in the calls; anything else is a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

JsonObject: TypeAlias = dict[str, Any]


class Difference(NamedTuple):
    """Attributes:
    why: in words.
    is_in: whether a text with such calls may be read otherwise for that reason.
    """

    why: str
    is_in: Callable[[str, list[JsonObject]], bool]


def values_in(arguments: list[JsonObject]) -> Iterator[Any]:
    """The values of all arguments."""
    return (value for one in arguments for value in one.values())


def strings_in(value: Any) -> Iterator[str]:
    """All strings of a value, its keys among them."""
    if isinstance(value, str):
        yield value
    for inside in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings_in(inside)


def _is_any(test: Callable[[Any], bool]) -> Callable[[str, list[JsonObject]], bool]:
    return lambda _, arguments: any(map(test, values_in(arguments)))


def _has_nested_words(value: Any) -> bool:
    parts = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(isinstance(one, str | bool | None) or _has_nested_words(one) for one in parts)


def _is_read_as_null(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "null"


def _is_inexact(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (abs(value) > 2**53 or not math.isfinite(value))


DIFFERENCES: Final[dict[str, tuple[Difference, ...]]] = {
    "seed-oss": (
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
    ),
    "qwen3 coder mlx": (
        Difference("mlx-lm reads the string null as none, whatever the schema says", _is_any(_is_read_as_null)),
        Difference("mlx-lm reads whole numbers by way of floating point", _is_any(_is_inexact)),
    ),
    "step3": (
        Difference(
            "vLLM hands out lists and objects as texts, and strings without the blanks around them",
            _is_any(
                lambda value: isinstance(value, dict | list) or (isinstance(value, str) and value != value.strip())
            ),
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
                or any(len(f"{one}.".splitlines()) > 1 for one in strings_in([*arguments]))
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


def explained(parser: str, text: str, arguments: list[JsonObject]) -> bool:
    """Whether a known difference may be in a text."""
    return any(one.is_in(text, arguments) for one in DIFFERENCES.get(parser, ()))
