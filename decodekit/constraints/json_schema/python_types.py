"""Python types as JSON Schemas: Pydantic models, dataclasses, TypedDict, Enum, Literal and the typing forms.

`pydantic.TypeAdapter` writes the schema and reads the finished text, so a generated value has the type that was asked
for, with its validators.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import typing
from collections.abc import Mapping
from functools import lru_cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, Required

import typing_extensions

from decodekit.constraints.constraint import Constraint
from decodekit.errors import InvalidConstraintError, UnsupportedSchemaError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from decodekit.constraints.json_schema.validators import AskedValidator

_TYPES: Final = "a Pydantic model, a TypeAdapter, a dataclass, a TypedDict, an Enum, a Literal or a typing form"


def is_adapter(value: object) -> bool:
    """Whether a value is a `pydantic.TypeAdapter`, which need not be loaded to tell."""
    kind = getattr(sys.modules.get("pydantic.type_adapter"), "TypeAdapter", None)
    return kind is not None and isinstance(value, kind)


def _adapter(python_type: Any) -> TypeAdapter[Any]:
    if is_adapter(python_type):
        adapter: TypeAdapter[Any] = python_type
        return adapter
    python_type = _readable(python_type)
    try:
        return _cached_adapter(python_type)
    except TypeError:  # an unhashable annotation, such as Annotated with a list
        return _cached_adapter.__wrapped__(python_type)


@lru_cache(maxsize=256)
def _cached_adapter(python_type: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(python_type)


def json_schema_of(python_type: object) -> tuple[dict[str, object], tuple[AskedValidator, ...]]:
    """The JSON Schema (draft 2020-12) of the texts to write for a type, and the validators that it says nothing of.

    Its fields by alias, and no other keys; see the module `written_values`.

    Raises:
        InvalidConstraintError: it is not a type, has a name in quotes in it, or Pydantic cannot read it from JSON.
        UnsupportedSchemaError: its values have no form in JSON.
    """
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError

    from decodekit.constraints.json_schema.validators import marks_of
    from decodekit.constraints.json_schema.written_values import WrittenValues

    _check_type(python_type)
    try:
        written = _adapter(python_type).json_schema(mode="validation", schema_generator=WrittenValues)
    except PydanticInvalidForJsonSchema as error:
        raise UnsupportedSchemaError(
            f"{_shown(python_type)} has no JSON Schema: {_first_line(error)}", hint="a field type that JSON can hold"
        ) from error
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise InvalidConstraintError(_unreadable(python_type, error), hint=_TYPES) from error
    except ImportError as error:  # Pydantic needs another package for e-mail addresses
        raise InvalidConstraintError(
            f"{_shown(python_type)} cannot be read: {_first_line(error)}", hint="that package, or a str"
        ) from error
    schema, asked = marks_of(written)
    try:
        # Python's json writes defaults that are no JSON (NaN, say) too; they are annotations.
        json.dumps(schema, allow_nan=False)
    except ValueError:
        schema = _without_defaults(schema)
    return schema, asked


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


def is_type(value: object) -> bool:
    """Whether a value is a type or a typing form, as an annotation without quotes."""
    is_form = hasattr(value, "__origin__") or type(value).__module__ in ("typing", "typing_extensions", "types")
    return value is None or isinstance(value, type | typing.ForwardRef) or is_form


def _check_type(value: object) -> None:
    """Refuse what is not a type before Pydantic sees it: it would evaluate a str as an expression."""
    if not is_type(value) and not is_adapter(value):
        raise InvalidConstraintError(f"{value!r:.60} is no schema and no type", hint=_meant(value))
    quoted = _quoted(value)
    if quoted is not None:
        raise InvalidConstraintError(
            f"{_shown(value)} has a name in quotes, {quoted!r:.60}, and names are not looked up",
            hint="the class itself in its place",
        )


def _meant(value: object) -> str:
    if isinstance(value, str):
        return 'JsonSchema(json.loads("...")) if it is the text of a schema'
    if isinstance(value, os.PathLike):
        return "JsonSchema(json.loads(path.read_text())) for the schema in a file"
    if isinstance(value, Constraint):
        return "the constraint itself in place of JsonSchema(...)"
    meant = class_meant(value)
    if meant is not None:
        return f"the class {meant} in place of one of its values"
    return f"a schema as a dict, or {_TYPES}"


def class_meant(value: object) -> str | None:
    """The name of the class of a value, if the class would be a constraint."""
    is_value = dataclasses.is_dataclass(value) or hasattr(type(value), "model_fields")
    return type(value).__name__ if is_value and not isinstance(value, type) else None


def _quoted(form: object) -> str | None:
    """A name in quotes inside of a typing form."""
    stack = [form]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            return one
        if isinstance(one, typing.ForwardRef):
            return one.__forward_arg__
        origin, inner = typing.get_origin(one), typing.get_args(one)
        if origin is not Literal:  # whose strings are values
            stack += inner[:1] if origin is Annotated else inner
    return None


def _unreadable(python_type: object, error: Exception) -> str:
    """Why Pydantic cannot read a type, without its advice to people who write for Pydantic."""
    shown, message = _shown(python_type), _first_line(error)
    if getattr(error, "code", None) == "class-not-fully-defined":
        return f"{shown} refers to a class that is not defined"
    if getattr(error, "code", None) == "schema-for-unknown-type":
        inner = message.removeprefix("Unable to generate pydantic-core schema for ").partition(". Set `")[0]
        if inner != repr(python_type):
            return f"{shown} cannot be read from JSON: nothing says how {inner} is"
        return f"{shown} cannot be read from JSON: nothing says how"
    return f"{shown} cannot be read from JSON: {message}"


def _shown(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) and not typing.get_args(value) else f"{value!r:.200}"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def core_schema_of(python_type: object) -> Mapping[str, Any]:
    """The core schema of a type, by which Pydantic reads it."""
    schema: Mapping[str, Any] = _adapter(python_type).core_schema
    return schema


def _readable(form: Any) -> Any:
    """A type or typing form, in which the classes of `typing.TypedDict` are those that Pydantic can read.

    Before Python 3.12 it reads those of `typing_extensions` alone: the same fields, the same ones required.
    """
    return form if sys.version_info >= (3, 12) else _rebuilt(form, {})


def _rebuilt(form: Any, made: dict[Any, Any]) -> Any:
    """`made` is what has been made of classes so far: they may hold themselves."""
    origin, inside = typing.get_origin(form), typing.get_args(form)
    if typing.is_typeddict(form) and type(form).__module__ == "typing":
        return made[form] if form in made else _typed_dict(form, made)
    if origin is None or origin is Literal:
        return form
    if origin is Annotated:
        return Annotated[(_rebuilt(inside[0], made), *inside[1:])]
    parts = tuple([_rebuilt(one, made) for one in inside])
    if parts == inside:
        return form
    if origin in (UnionType, typing.Union):
        return reduce(or_, parts)
    return origin[parts] if isinstance(form, GenericAlias) else form.copy_with(parts)


def _typed_dict(form: Any, made: dict[Any, Any]) -> Any:
    make: Any = typing_extensions.TypedDict
    same = made[form] = make(form.__name__, {})
    hints = typing.get_type_hints(form, include_extras=True)
    bare = {name: _bare(hint) for name, hint in hints.items()}
    kinds: dict[str, Any] = {name: Required if name in form.__required_keys__ else NotRequired for name in hints}
    same.__annotations__ = {name: kinds[name][_rebuilt(hint, made)] for name, hint in bare.items()}
    for name in ("__required_keys__", "__optional_keys__", "__doc__", "__module__", "__qualname__"):
        setattr(same, name, getattr(form, name))
    return same


def _bare(hint: Any) -> Any:
    """A hint without `Required` and `NotRequired`."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) in (Required, NotRequired) else hint
