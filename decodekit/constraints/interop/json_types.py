"""Objects that validate JSON values as `JsonSchema`: a `pydantic.TypeAdapter`, a validator of `jsonschema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.document.drafts import META_SCHEMAS
from decodekit.constraints.json_schema.python_types import is_adapter
from decodekit.constraints.json_schema.strings.string_formats import names as names_of_formats
from decodekit.errors import InvalidConstraintError, UnsupportedSchemaError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_VALIDATORS: Final = tuple(f"Draft{draft}Validator" for draft in (4, 6, 7, 201909, 202012))


def constraint_of(validator: Any) -> JsonSchema:
    """The JSON texts that an adapter or a validator takes, in its draft and with the documents that it may refer to.

    With a format checker, the known formats are enforced as `JsonSchema` has them: its texts are valid for the checker,
    which may take more. Without one they are annotations.
    """
    if is_adapter(validator):
        return JsonSchema(validator)
    if isinstance(validator, type):
        raise InvalidConstraintError(
            f"{validator.__name__} is a class of validators without a schema", hint=f"{validator.__name__}(schema)"
        )
    dialect = _dialect(validator)
    registry: Any = getattr(validator, "_registry", None)
    specifications: Any = getattr(type(validator)({}), "_registry", None)
    documents = {uri: _in(dialect, registry[uri].contents) for uri in registry if uri not in specifications}
    schema: Any = validator.schema
    declared = schema.get("$schema", dialect) if isinstance(schema, Mapping) else dialect
    if _draft(declared) != _draft(dialect):
        raise UnsupportedSchemaError(
            f"a {type(validator).__name__} reads a schema that declares {declared!r:.80}",
            at="#/$schema",
            hint="jsonschema.validators.validator_for(schema)(schema)",
        )
    checked = [name for document in (schema, *documents.values()) for name in _checked_formats(validator, document)]
    return JsonSchema(_in(dialect, schema), "assert" if checked else "annotate", registry=documents or None)


def _dialect(validator: Validator) -> str:
    import jsonschema

    kind = type(validator)
    dialect = str(kind.META_SCHEMA.get("$schema", ""))
    if _draft(dialect) is None or kind not in (getattr(jsonschema, name) for name in _VALIDATORS):
        raise UnsupportedSchemaError(
            f"the validator {kind.__name__} has keywords or types of its own, or a draft that is not supported",
            hint=f"one of {', '.join(_VALIDATORS)}",
        )
    if getattr(validator, "_ref_resolver", None) is not None:
        raise UnsupportedSchemaError(
            "a validator with a resolver is not supported: it may fetch what it refers to",
            hint="registry=referencing.Registry(...) with the documents",
        )
    return dialect


def _draft(uri: object) -> object:
    return META_SCHEMAS.get(str(uri).removesuffix("#"))


def _in(dialect: str, schema: Any) -> Any:
    """The schema with its draft, where that is not what a schema without ``$schema`` is read in."""
    is_told = not isinstance(schema, Mapping) or "$schema" in schema or _draft(dialect) == max(META_SCHEMAS.values())
    return schema if is_told else {"$schema": dialect, **schema}


def _checked_formats(validator: Validator, schema: object) -> Iterator[str]:
    """The formats of a schema that the checker of the validator checks."""
    checker: Any = validator.format_checker
    if checker is None:
        return
    theirs = {**type(checker).checkers, **validator.FORMAT_CHECKER.checkers}
    for name in set(_formats(schema)) & checker.checkers.keys():
        if name not in names_of_formats() or checker.checkers[name] != theirs.get(name):
            raise UnsupportedSchemaError(
                f"the format checker has its own check of the format {name!r}, which no mask enforces",
                hint="Guarded(schema, validator.is_valid)",
            )
        yield name


def _formats(schema: object) -> Iterator[str]:
    agenda = [schema]
    while agenda:
        value = agenda.pop()
        if isinstance(value, Mapping):
            if isinstance(value.get("format"), str):
                yield value["format"]
            agenda += value.values()
        elif isinstance(value, list):
            agenda += value
