"""Python types as JSON Schemas: Pydantic models, dataclasses, TypedDict, Enum, Literal and the typing forms.

`pydantic.TypeAdapter` writes the schema and reads the finished text, so a generated value has the type that was asked
for, with its validators.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from decodekit.errors import InvalidConstraintError, UnsupportedSchemaError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def _adapter(python_type: object) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(python_type)
    except TypeError:  # an unhashable annotation, such as Annotated with a list
        return _new_adapter(python_type)


def _new_adapter(python_type: object) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(python_type)  # type: ignore[arg-type]
    except PydanticUserError as error:
        raise InvalidConstraintError(
            f"{python_type!r:.200} is no type that a JSON text can be read as: {_first_line(error)}",
            hint="a Pydantic model, a dataclass, a TypedDict, an Enum, a Literal or a typing form",
        ) from error


@lru_cache(maxsize=256)
def _cached_adapter(python_type: object) -> TypeAdapter[Any]:
    return _new_adapter(python_type)


@lru_cache(maxsize=1)
def _generator() -> type[Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class ClosedObjects(GenerateJsonSchema):
        """Objects with the declared fields only, unless the type says ``extra="allow"``.

        Pydantic ignores other keys when it reads, so its schemas leave them open; but a model that is asked for a
        type has no reason to write what would be thrown away.
        """

        def model_schema(self, schema: Any) -> dict[str, Any]:
            return _closed(super().model_schema(schema))

        def dataclass_schema(self, schema: Any) -> dict[str, Any]:
            return _closed(super().dataclass_schema(schema))

        def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
            return _closed(super().typed_dict_schema(schema))

    return ClosedObjects


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    is_object = schema.get("type") == "object"
    return {**schema, "additionalProperties": False} if is_object and "additionalProperties" not in schema else schema


def json_schema_of(python_type: object) -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of the texts to write for a type: its fields by alias, and no other keys.

    Raises:
        InvalidConstraintError: Pydantic cannot read this type from JSON.
    """
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        schema: dict[str, object] = _adapter(python_type).json_schema(
            by_alias=True, mode="validation", schema_generator=_generator()
        )
    except PydanticInvalidForJsonSchema as error:
        raise UnsupportedSchemaError(
            f"{python_type!r:.200} has no JSON Schema: {_first_line(error)}",
            hint="a field type that JSON can hold",
        ) from error
    try:
        # Python's json writes defaults that are no JSON (NaN, say) too; they are annotations.
        json.dumps(schema, allow_nan=False)
    except ValueError:
        schema = _without_defaults(schema)
    return schema


def _without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_defaults(below) for key, below in value.items() if key != "default"}
    return [_without_defaults(below) for below in value] if isinstance(value, list) else value


def validate_json(python_type: object, text: str) -> object:
    """The value of a JSON text as a Python type.

    Raises:
        ValueError: the text does not validate (a `pydantic.ValidationError`).
    """
    return _adapter(python_type).validate_json(text)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
