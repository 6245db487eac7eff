"""The structure of a request's text: a value of JSON, which a process may look at before an engine does.

    Structure("json_schema", {"type": "object"}, field="guided_json")
    Structure("tools", {"tools": [...], "tool_choice": "auto", "parallel": None, "format": "hermes"}, field="tools")

Nothing in it is looked up by name: a text of a client is a pattern, a choice or a grammar, never a file or a plug-in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import pydantic_core

from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.combinators import OneOf
from decodekit.constraints.composition.tags import Tagged
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar import Grammar
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.regex.regex import Regex
from decodekit.constraints.tool_calls import FORMATS, ToolFormat, tools
from decodekit.errors import BodyLimitError, DecodekitError, InvalidConstraintError, OptionError

StructureKind: TypeAlias = Literal["json_schema", "regex", "choice", "grammar", "structural_tag", "tools"]


_TOOL_FIELDS: Final = {"tool_choice": "tool_choice", "parallel": "parallel_tool_calls"}
"""What requests call the options of `tools`."""


@dataclass(frozen=True)
class Structure:
    """A constraint as a client writes it."""

    kind: StructureKind
    value: Any  # of JSON
    field: str  # of the request that it stands in, which errors name

    @cached_property
    def key(self) -> str:
        """Equal for equal structures, and unlikely to be for others."""
        text = json.dumps([self.kind, self.value], default=str)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def check_size(self, most: int) -> None:
        """Raise the `BodyLimitError` of a constraint that has more than `most` bytes as JSON."""
        try:  # in an eighth of the time of `json.dumps`
            size = len(pydantic_core.to_json(self.value, fallback=str))
        except ValueError:  # half a surrogate, or very deep
            text = json.dumps(self.value, ensure_ascii=False, separators=(",", ":"), default=str)
            size = len(text.encode(errors="surrogatepass"))
        if size > most:
            cause = f"the constraint has {size:,} bytes as JSON, {most:,} at most"
            hint = "a smaller one, or a larger --max-constraint-kb of the endpoint"
            raise BodyLimitError(cause, at=self.field, hint=hint)

    def constraint(self) -> Constraint:
        """The constraint; the place of an error is the field."""
        try:
            return constraint_of(self.kind, self.value)
        except Exception as error:
            raise in_field(error, self.field) from error


def in_field(error: Exception, field: str) -> DecodekitError:
    """The fault of a constraint, as an error whose place is the field of the request."""
    if not isinstance(error, DecodekitError):
        cause = f"the constraint cannot be read: {type(error).__name__}: {str(error)[:200]}"
        return InvalidConstraintError(cause, at=field)
    if field == "tools":
        field = _TOOL_FIELDS.get(error.at or "", field)
    cause = error.cause if error.at in (None, field, "parallel") else f"{error.cause} (at {error.at:.200})"
    return type(error)(cause, at=field, hint=error.hint, code=error.code)


def constraint_of(kind: str, value: Any) -> Constraint:
    """The constraint that a value of JSON stands for; raises what its kind raises."""
    if kind not in _MAKERS:
        raise InvalidConstraintError(f"there is no kind of constraint {kind!r:.60}")
    return _MAKERS[kind](value)


def _tools(value: Any) -> Constraint:
    """Texts that call tools; with a schema, its texts or calls."""
    format, choice, schema = value["format"], value["tool_choice"], value.get("schema")
    form = FORMATS[format] if isinstance(format, str) else ToolFormat.of_dict(format)
    # Between "auto" and a schema nothing is free text: calls, or JSON.
    asked = "required" if schema is not None and choice == "auto" else choice
    calls = tools(value["tools"], form, asked, value["parallel"])
    if schema is None or choice not in ("auto", "none"):
        return calls
    if choice == "none":
        return JsonSchema(schema)
    if not form.is_told_from_json:
        cause = f"with the format {form.name!r} a call of a tool cannot be told from JSON of a schema"
        raise OptionError(cause, hint="tools or a schema, or an endpoint with another --tool-format")
    return OneOf(calls, JsonSchema(schema))


_MAKERS: Final[Mapping[str, Callable[[Any], Constraint]]] = {
    "json_schema": JsonSchema,
    "regex": Regex,
    "choice": Choices,
    "grammar": lambda text: Grammar(text + "\n"),  # with a line end it is a text, and not the name of a file
    "structural_tag": Tagged.from_mapping,
    "tools": _tools,
}
