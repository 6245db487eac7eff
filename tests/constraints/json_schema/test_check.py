"""What `check` says beside coverage: budgets, reasons, warnings."""

from __future__ import annotations

from typing import Any

import pytest

import decodekit as dk
from tests.reference.vocabularies import byte_vocabulary

BYTES = byte_vocabulary()
COMPACT: dict[str, Any] = {"whitespace": "compact"}


@pytest.mark.parametrize(
    ("schema", "least", "most"),
    [
        ({"enum": ["a", "bcd", None]}, 3, 20),  # "bcd" as three escapes of six bytes, and two quotes
        ({"type": "boolean"}, 4, 5),
        ({"type": "array", "items": {"const": None}, "minItems": 1, "maxItems": 3}, 6, 16),
        (
            {"type": "object", "properties": {"a": {"const": None}}, "additionalProperties": False},
            2,
            15,
        ),  # a key of one escape
        ({"type": "string"}, 2, None),
        ({"type": "array", "items": {"type": "boolean"}}, 2, None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}]}}}, 2, None),
    ],
)
def test_least_and_most(schema: Any, least: int, most: int | None) -> None:
    coverage = dk.check(dk.JsonSchema(schema, **COMPACT), tokenizer=BYTES)
    assert coverage.least_tokens == least
    assert coverage.most_tokens == most


def test_without_a_tokenizer_nothing_is_counted() -> None:
    coverage = dk.check({"type": "boolean"})
    assert coverage.least_tokens is None and coverage.most_tokens is None


def test_reasons_and_warnings() -> None:
    coverage = dk.check(
        {
            "type": "object",
            "properties": {"age": {"minimum": 5, "maximum": 3, "type": "integer"}, "at": {"format": "date"}},
            "requird": ["age"],
        }
    )
    assert coverage.impossible == ("#/properties/age",) and "minimum 5 > maximum 3" in coverage.reasons[0]
    assert any("requird" in warning and "'required'" in warning for warning in coverage.warnings)
    assert any("#/properties/at/format" in warning for warning in coverage.warnings)
    assert "no value fits #/properties/age: minimum 5 > maximum 3" in str(coverage)


def test_guards_are_named() -> None:
    coverage = dk.check({"type": "array", "uniqueItems": True, "items": {"type": "object"}}, tokenizer=BYTES)
    assert [entry.pointer for entry in coverage.keywords if entry.status == "guard"] == ["#/uniqueItems"]
    assert any("guard" in warning for warning in coverage.warnings)
    assert coverage.least_tokens == 2 and coverage.most_tokens is None
    assert "tokens: 2 for the smallest value, no bound above" in str(coverage)
