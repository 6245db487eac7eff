"""How right an answer is: exact match, field F1, validity under a constraint, as functions of texts and values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from decodekit.constraints import as_constraint, explain
from decodekit.constraints.constraint import Constraint
from decodekit.errors import InvalidConstraintError
from decodekit.records.strict_json import read_json

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands in a JSON value: property names and array indices."""


def json_value(text: str) -> Any:
    """The JSON value of a text.

    Raises:
        ValueError: it is not JSON; NaN and infinities are not.
    """
    try:
        return read_json(text)
    except RecursionError as error:
        raise ValueError("the text is nested too deeply") from error


def exact_match(text: str, reference: Any) -> bool:
    """Whether a text is the reference: without blanks at the ends, or as a JSON value if the reference is no text."""
    if isinstance(reference, str):
        return text.strip() == reference.strip()
    try:
        return is_equal(json_value(text), reference)
    except ValueError:
        return False


def is_equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is not 1; the order of properties does not matter."""
    return dict(leaves(one)) == dict(leaves(other))


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, tuple[str, Any]]]:
    """The scalars of a JSON value with their paths; an empty object or array is a leaf, too.

    Returns:
        Pairs of a path and (kind, value). The kind keeps apart what Python takes as equal: true and 1.
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


def field_f1(text: str, reference: Any) -> float:
    """The F1 of the leaves of a JSON text, from 0 to 1; 0 for a text that is not JSON.

    A leaf is right if the reference has the same value at the same path. F1 = 2 right / (leaves of the text + leaves of
    the reference), the harmonic mean of precision and recall. Items of arrays are compared by their index.
    """
    try:
        ours = dict(leaves(json_value(text)))
    except ValueError:
        return 0.0
    theirs = dict(leaves(reference))
    num_right = sum(ours[path] == leaf for path, leaf in theirs.items() if path in ours)
    return 2 * num_right / (len(ours) + len(theirs))


def is_valid(text: str, constraint: Any) -> bool:
    """Whether a text is one that a constraint describes, whatever wrote it.

    Under a JSON Schema the value counts, not how it is laid out: the text is read as JSON and validated by the package
    `jsonschema`, which has no part in decoding. Formats are annotations there. Under any other constraint the text must
    be one of its own.

    Raises:
        ConstraintError: the constraint cannot be used.
    """
    rule = as_constraint(constraint)
    schema = getattr(rule, "schema", None)
    if schema is None:
        return explain(rule, text).is_allowed
    try:
        value = json_value(text)
    except ValueError:
        return False
    return bool(_validator(rule, json.dumps(schema)).is_valid(value))


@lru_cache(maxsize=64)
def _validator(constraint: Constraint, schema: str) -> Any:
    from jsonschema import FormatChecker, SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.jsonschema import DRAFT202012

    value = json.loads(schema)
    # Without a registry, jsonschema would fetch references from the network.
    named = [(uri, DRAFT202012.create_resource(json.loads(text))) for uri, text in getattr(constraint, "registry", ())]
    draft = validator_for(value, default=Draft202012Validator)
    try:
        # Without formats: patterns are ECMAScript's, which Python's `re` does not read in all cases.
        draft.check_schema(value, format_checker=FormatChecker(formats=()))
    except SchemaError as error:
        raise InvalidConstraintError(f"not a JSON Schema: {error.message}", at=error.json_path) from error
    return draft(value, registry=REGISTRY.with_resources(named))
