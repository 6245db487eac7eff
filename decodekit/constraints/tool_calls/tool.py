"""A tool that a model may call: a name, and the arguments that it takes. And a call of it."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NotRequired, cast

from decodekit.constraints.json_schema import JsonSchema
from decodekit.errors import InvalidConstraintError

_NO_PARAMETERS: Final[dict[str, object]] = {"type": "object", "properties": {}, "additionalProperties": False}
RESOURCE: Final = "urn:decodekit:parameters"
"""The URI of the parameters where another schema refers to them."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. Equal tools compare and hash equal.

    Attributes:
        name: the name with which it is called.
        description: what it does, for the prompt; None if nobody said.
        parameters: the JSON Schema of the arguments as a JSON text, or the Python type or function that has them.
    """

    name: str
    description: str | None
    parameters: str | Callable[..., object]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, as a fresh value."""
        if isinstance(self.parameters, str):
            return cast("dict[str, Any]", json.loads(self.parameters))
        return cast("dict[str, Any]", JsonSchema(_type_of(self.parameters)).schema)

    def arguments(self) -> JsonSchema:
        """The JSON texts of the arguments: objects that the schema admits."""
        if not isinstance(self.parameters, str):
            return JsonSchema(_type_of(self.parameters))
        schema = self.schema
        if "$ref" not in schema:
            return JsonSchema({**schema, "type": "object"})
        # Some drafts read a schema with a reference as the reference alone, so it is met with the objects from outside.
        return JsonSchema({"type": "object", "allOf": [{"$ref": RESOURCE}]}, registry={RESOURCE: schema})

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as OpenAI's requests and chat templates have it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": self.schema}}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: the name of the tool.
        arguments: a dict of JSON values; of a tool that is a function, a dict of its keyword arguments with their
            types; of one that is a Python type, a value of that type.
        id: the identifier of the call, where the format has one and the model wrote it.
    """

    name: str
    arguments: Any
    id: str | None = None


def read_tool(value: object) -> Tool:
    """A tool from an OpenAI tool, the dict of its function alone, a Pydantic model, another type, or a function."""
    if isinstance(value, Tool):
        return value
    if isinstance(value, Mapping):
        return _read_mapping(value)
    if isinstance(value, type) or (callable(value) and not hasattr(value, "__origin__")):
        function = cast("Callable[..., object]", value)
        _type_of(function)  # raises what is wrong with it
        return Tool(function.__name__, inspect.getdoc(value) or None, function)
    raise InvalidConstraintError(
        f"a {type(value).__name__} is no tool",
        hint='{"type": "function", "function": {"name": ..., "parameters": {...}}}, a Pydantic model or a function',
    )


def _read_mapping(value: Mapping[str, object]) -> Tool:
    at = ""
    if "function" in value:
        if value.get("type", "function") != "function":
            raise InvalidConstraintError(
                f"a tool of type {value['type']!r:.60} is not supported", at="/type", hint='"function"'
            )
        _refuse_unknown(value, ("type", "function"), at)
        function = value["function"]
        if not isinstance(function, Mapping):
            raise InvalidConstraintError("the function of a tool must be a mapping", at="/function")
        value, at = function, "/function"
    elif value.get("type") == "function":  # the tools of OpenAI's Responses have no level of their own
        value = {name: entry for name, entry in value.items() if name != "type"}
    _refuse_unknown(value, ("name", "description", "parameters", "strict"), at)
    name, description, parameters = value.get("name"), value.get("description"), value.get("parameters")
    if not isinstance(name, str) or not name:
        raise InvalidConstraintError("a tool needs a name", at=f"{at}/name", hint='{"name": "get_weather", ...}')
    if description is not None and not isinstance(description, str):
        raise InvalidConstraintError("the description of a tool must be a text", at=f"{name}{at}/description")
    # Arguments are always those of the schema, so both values of `strict` get what they ask for.
    if value.get("strict") not in (None, True, False):
        raise InvalidConstraintError('"strict" must be true or false', at=f"{name}{at}/strict")
    if parameters is None:
        parameters = _NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise InvalidConstraintError(
            "the parameters of a tool must be a JSON Schema",
            at=f"{name}{at}/parameters",
            hint='{"type": "object", ...}',
        )
    kinds = parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise InvalidConstraintError(
            f"arguments are an object, never of type {kinds!r:.60}", at=f"{name}#/type", hint='"type": "object"'
        )
    try:
        text = json.dumps(dict(parameters), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConstraintError(f"the parameters are not JSON: {error}", at=f"{name}#") from error
    return Tool(name, description, text)


def _refuse_unknown(value: Mapping[str, object], known: tuple[str, ...], at: str) -> None:
    for name in value:
        if name not in known:
            raise InvalidConstraintError(
                f"{name!r:.60} is no part of a tool", at=at or "/", hint=f"one of {', '.join(known)}"
            )


@lru_cache(maxsize=256)
def _type_of(value: Callable[..., object]) -> Any:
    """The Python type of the arguments: the type itself, or a TypedDict of what a function takes."""
    if isinstance(value, type):
        return value
    from typing_extensions import TypedDict  # what Pydantic reads before Python 3.12

    name = getattr(value, "__name__", type(value).__name__)
    try:
        hints = typing.get_type_hints(value, include_extras=True)
    except Exception as error:  # a name in an annotation that is not there, or anything that evaluating it raises
        raise InvalidConstraintError(
            f"the annotations of the function cannot be read: {type(error).__name__}: {error}", at=name
        ) from error
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidConstraintError(
                f"the parameter {str(parameter)!r} cannot be given by its name",
                at=name,
                hint="parameters with names and types",
            )
        if parameter.name not in hints:
            raise InvalidConstraintError(
                f"the parameter {parameter.name!r} has no type", at=name, hint=f"{parameter.name}: int, for example"
            )
        hint = hints[parameter.name]
        fields[parameter.name] = hint if parameter.default is parameter.empty else NotRequired[hint]
    return TypedDict(name, fields)  # type: ignore[operator]
