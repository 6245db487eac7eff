"""JSON as the standards have it: reading what they allow, equality of values, JSON Pointers, validation by a schema."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands in a JSON value: property names and array indices."""


def read_json(text: str | bytes) -> Any:
    """The value of a text; ValueError if it is not JSON, as NaN, the infinities and numbers read as one are not,
    RecursionError if it is nested too deeply."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond the range of floating point numbers")
    return value


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, tuple[str, Any]]]:
    """The scalars of a JSON value with their paths, in order; an empty object or array is a leaf, too.

    Each leaf is (kind, value). The kind keeps apart what Python takes as equal: true and 1.
    """
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
        yield path, (kind, str(value) if isinstance(value, dict | list) else value)


def is_equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is not 1; the order of properties does not matter."""
    return dict(leaves(one)) == dict(leaves(other))


def pointer_of(path: Iterable[str | int]) -> str:
    """The JSON Pointer of a path (RFC 6901): ``/items/0/name``; empty for the whole value."""
    return "".join([f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path])


def path_of(pointer: str) -> list[str]:
    """The reference tokens of a JSON Pointer, unescaped: keys, and indices in digits; none for the whole value."""
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def value_at(value: Any, pointer: str) -> Any:
    """The value at a JSON Pointer inside of a value; None where there is none."""
    for token in path_of(pointer):
        if isinstance(value, Mapping):
            value = value.get(token)
        elif isinstance(value, list) and token.isdecimal() and int(token) < len(value):
            value = value[int(token)]
        else:
            return None
    return value


def validator_of(schema: Mapping[str, Any] | bool, documents: Iterable[tuple[str, Any]] = ()) -> Any:
    """The validator of the package `jsonschema`, in the draft that ``$schema`` names (2020-12 when it names none).

    Formats are annotations, as the specification has it. References are resolved inside the schema, in the metaschemas
    and in `documents`, by their URIs; nothing is fetched. A malformed schema raises jsonschema.SchemaError.
    """
    from jsonschema import FormatChecker
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.jsonschema import DRAFT202012

    draft = validator_for(schema, default=Draft202012Validator)
    # Without formats: patterns are ECMAScript's, which Python's `re` does not read in all cases.
    draft.check_schema(schema, format_checker=FormatChecker(formats=()))
    # Without a registry, jsonschema would fetch references from the network.
    resources = [(uri, DRAFT202012.create_resource(document)) for uri, document in documents]
    return draft(schema, registry=REGISTRY.with_resources(resources))
