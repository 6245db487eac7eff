"""Measures of accuracy: exact match, field F1, validity under a constraint, as functions of texts and values."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from decodekit.constraints import as_constraint, explain
from decodekit.constraints.constraint import Constraint
from decodekit.errors import InvalidConstraintError
from decodekit.records.strict_json import is_equal, leaves, read_json, validator_of


def json_value(text: str) -> Any:
    """The JSON value of a text; ValueError if it is not JSON, as NaN and infinities are not."""
    try:
        return read_json(text)
    except RecursionError as error:
        raise ValueError("the text is nested too deeply") from error


def exact_match(text: str, reference: Any) -> bool:
    """Whether a text is the reference: without blanks at the ends, or as a JSON value if the reference is not text."""
    if isinstance(reference, str):
        return text.strip() == reference.strip()
    try:
        return is_equal(json_value(text), reference)
    except ValueError:
        return False


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
    be one of its own. Raises the `ConstraintError` of one that cannot be used.
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
    from jsonschema import SchemaError

    named = [(uri, json.loads(text)) for uri, text in getattr(constraint, "registry", ())]
    try:
        return validator_of(json.loads(schema), named)
    except SchemaError as error:
        raise InvalidConstraintError(f"not a JSON Schema: {error.message}", at=error.json_path) from error
