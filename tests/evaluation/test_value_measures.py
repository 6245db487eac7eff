from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

import decodekit as dk
from decodekit.evaluation.measures.accuracy import exact_match, field_f1, is_valid
from decodekit.records.strict_json import is_equal, leaves

NESTED = {"a": 1, "b": {"c": [True, None], "d": []}}


def test_leaves_are_scalars_and_empty_containers_by_their_paths() -> None:
    assert dict(leaves(NESTED)) == {
        ("a",): ("number", 1),
        ("b", "c", 0): ("bool", True),
        ("b", "c", 1): ("NoneType", None),
        ("b", "d"): ("list", "[]"),
    }
    assert dict(leaves(3.5)) == {(): ("number", 3.5)}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 1.0, True),
        (1, True, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ([], {}, False),
        ({"0": "x"}, ["x"], False),
        (None, 0, False),
    ],
)
def test_equality_of_json_values(one: Any, other: Any, expected: bool) -> None:
    assert is_equal(one, other) is expected


def test_exact_match() -> None:
    assert exact_match(" Paris\n", "Paris")
    assert not exact_match("paris", "Paris")
    assert exact_match('{"b": 2.0, "a": 1}', {"a": 1, "b": 2})
    assert not exact_match('{"a": 1', {"a": 1})
    assert not exact_match("NaN", 1)


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ('{"a": 1, "b": 2}', {"a": 1, "b": 2}, 1.0),
        ('{"a": 1, "b": 3}', {"a": 1, "b": 2}, 0.5),  # precision 1/2, recall 1/2
        ('{"a": 1}', {"a": 1, "b": 2}, 2 / 3),  # precision 1, recall 1/2
        ('{"a": 1, "b": 2, "c": 3}', {"a": 1}, 0.5),  # precision 1/3, recall 1
        ('{"x": {"y": [1, 2]}}', {"x": {"y": [1, 3]}}, 0.5),
        ('{"x": [1, 2]}', {"x": [2]}, 0.0),  # by index
        ('{"x": []}', {"x": []}, 1.0),
        ('{"x": []}', {"x": [1]}, 0.0),
        ("not json", {"a": 1}, 0.0),
        ('{"a": 1e999}', {"a": 1}, 0.0),
    ],
)
def test_field_f1_by_hand(text: str, reference: Any, expected: float) -> None:
    assert field_f1(text, reference) == pytest.approx(expected)


def test_validity_under_a_schema_is_that_of_the_value() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert is_valid('{"a": 1}', schema)
    assert is_valid('{ "b" : 0,\n "a" : 1 }', schema)  # layout and order are not the schema's business
    assert not is_valid('{"a": 1.5}', schema)
    assert not is_valid('{"a": 1', schema)
    assert not is_valid("NaN", {})


def test_validity_under_other_constraints_is_being_one_of_their_texts() -> None:
    assert is_valid("aab", dk.Regex("a+b"))
    assert not is_valid("aa", dk.Regex("a+b"))  # the beginning of one
    assert not is_valid("aabx", dk.Regex("a+b"))
    assert is_valid("yes", dk.Choices(["yes", "no"]))


def test_validity_under_a_python_type() -> None:
    class Invoice(BaseModel):
        number: str

    assert is_valid('{"number": "A-17"}', Invoice)
    assert not is_valid('{"number": 17}', Invoice)


def test_references_are_taken_from_the_registry_and_never_fetched() -> None:
    schema = dk.JsonSchema(
        {"$ref": "https://example.org/name"}, registry={"https://example.org/name": {"type": "string"}}
    )
    assert is_valid('"x"', schema)
    assert not is_valid("1", schema)
