"""Why no value fits: the words, that they claim no more than is true, and that none of what they name can be spared."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

import decodekit as dk
from decodekit.constraints import sample_text
from decodekit.constraints.json_schema.frames.schema_frames import SchemaNetwork
from decodekit.constraints.json_schema.messages import descriptions
from decodekit.constraints.json_schema.messages.unsatisfiable import Reasons
from decodekit.errors import ConstraintError, UnsatisfiableError
from tests.constraints.json_schema import fuzzing
from tests.reference.any_json import any_json
from tests.sizes import few

# A schema, its impossible parts with the reason of each, and the same schema with one change that makes all possible.
TABLE: list[tuple[Any, dict[str, str], Any]] = [
    (
        {"type": "array", "items": False, "minItems": 1},
        {"#": 'for type "array", items false and minItems 1 exclude each other'},
        {"items": False, "minItems": 1},
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 2},
        {"#": 'for type "array", prefixItems [{"type": "null"}], items false and minItems 2 exclude each other'},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 1},
    ),
    (
        {"type": "array", "items": {"enum": []}, "minItems": 1},
        {"#": "item 0 is impossible", "#/items": "the enum is empty"},
        {"type": "array", "items": {"enum": [1]}, "minItems": 1},
    ),
    (
        {"type": "object", "required": ["a", "b"], "properties": {"a": {}}, "additionalProperties": False},
        {"#": 'the required property "b" is not declared, and additionalProperties is false'},
        {"type": "object", "required": ["a"], "properties": {"a": {}}, "additionalProperties": False},
    ),
    (
        {"type": "object", "required": ["a"], "properties": {"a": False}, "additionalProperties": False},
        {"#": 'for type "object", required ["a"] and properties {"a": false} exclude each other'},
        {"type": "object", "required": ["b"], "properties": {"a": False}, "patternProperties": {"b": {}}},
    ),
    (
        {"type": "object", "required": ["ab"], "patternProperties": {"^b": {}}, "additionalProperties": False},
        {"#": 'the required property "ab" is not declared, and additionalProperties is false'},
        {"type": "object", "required": ["ab"], "patternProperties": {"b": {}}, "additionalProperties": False},
    ),
    (
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}},
        {"#": 'the required property "a" is impossible', "#/properties/a": "minimum 5 > maximum 3"},
        {"type": "object", "required": ["a"], "properties": {"a": {"minimum": 5, "maximum": 3}}},
    ),
    (
        {"anyOf": [{"type": "string"}, {"type": "integer", "const": "a"}]},
        {"#/anyOf/1": 'type "integer" and const "a" exclude each other'},
        {"anyOf": [{"type": "string"}, {"type": "string", "const": "a"}]},
    ),
    (
        {"anyOf": [{"enum": []}, {"not": {}}]},
        {
            "#": "every branch of anyOf is impossible",
            "#/anyOf/0": "the enum is empty",
            "#/anyOf/1": "every value fits what not excludes",
        },
        {"anyOf": [{"enum": [1]}, {"not": False}]},
    ),
    (
        {"oneOf": [{"type": "string"}, {"type": "string"}]},
        {"#": "every value that fits one branch of oneOf fits another one too"},
        {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 1}]},
    ),
    (
        {"const": 1, "type": "string"},
        {"#": 'type "string" and const 1 exclude each other'},
        {"const": 1, "type": "number"},
    ),
    (
        {"enum": ["ab", "cd"], "pattern": "^x", "type": "string", "title": "x"},
        {"#": 'enum ["ab", "cd"] and pattern "^x" exclude each other'},
        {"enum": ["ab", "cd", 1], "pattern": "^x"},
    ),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer", "minimum": 3, "maximum": 1}}},
        {"#": 'what "#/$defs/a" refers to is impossible', "#/$defs/a": "minimum 3 > maximum 1"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"minimum": 3, "maximum": 1}}},
    ),
    (
        {"type": "integer", "multipleOf": 10, "minimum": 3, "maximum": 7},
        {"#": 'for type "integer", multipleOf 10, minimum 3 and maximum 7 exclude each other'},
        {"type": "integer", "multipleOf": 10, "minimum": 3, "maximum": 10},
    ),
    (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {
            "#": 'the required property "a" leads back to this schema, without end',
            "#/properties/a": 'what "#" refers to leads back to this schema, without end',
        },
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ),
    (
        {"allOf": [{"minLength": 2}, {"type": "string"}, {"title": "x"}, {"type": ["null", "integer"]}]},
        {"#": "allOf/1 and allOf/3 exclude each other"},
        {"allOf": [{"minLength": 2}, {"type": "string"}, {"title": "x"}, {"type": ["null", "string"]}]},
    ),
    (
        {"allOf": [{}, {"enum": []}]},
        {"#": "allOf/1 is impossible", "#/allOf/1": "the enum is empty"},
        {"allOf": [{}, {"enum": [0]}]},
    ),
    (
        {
            "type": "object",
            "required": ["ab"],
            "properties": {"ab": {"type": "string"}},
            "patternProperties": {"a": {"type": "null"}},
        },
        {"#": 'the required property "ab" is impossible: #/properties/ab and #/patternProperties/a exclude each other'},
        {
            "type": "object",
            "required": ["ab"],
            "properties": {"ab": {"type": "string"}},
            "patternProperties": {"c": {"type": "null"}},
        },
    ),
    (
        {"type": "object", "minProperties": 2, "propertyNames": {"enum": ["a"]}},
        {"#": 'for type "object", minProperties 2 and propertyNames {"enum": ["a"]} exclude each other'},
        {"type": "object", "minProperties": 1, "propertyNames": {"enum": ["a"]}},
    ),
    (
        {"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 3},
        {"#": "uniqueItems asks for 3 different items, which have 2 values"},
        {"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 2},
    ),
    (
        {"type": "array", "contains": {"type": "integer"}, "items": {"type": "string"}, "minContains": 2},
        {
            "#": 'for type "array", contains {"type": "integer"}, items {"type": "string"} and minContains 2 '
            "exclude each other"
        },
        {"type": "array", "contains": {"type": "integer"}, "items": {"type": "string"}, "minContains": 0},
    ),
    (
        {"type": "object", "required": ["a"], "properties": {"b": {}}, "unevaluatedProperties": False},
        {
            "#": 'for type "object", required ["a"], properties {"b": {}} and unevaluatedProperties false '
            "exclude each other"
        },
        {"type": "object", "required": ["b"], "properties": {"b": {}}, "unevaluatedProperties": False},
    ),
    (
        {"type": ["array", "string"], "maxItems": 1, "minItems": 2, "maxLength": 0, "pattern": "x"},
        {
            "#": 'for type "array" or "string", maxItems 1, minItems 2, maxLength 0 and pattern "x" exclude each other'
        },
        {"type": ["array", "string"], "maxItems": 1, "minItems": 2, "maxLength": 0},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "reasons", "possible"), TABLE, ids=[json.dumps(row[0])[:60] for row in TABLE])
def test_reasons(schema: Any, reasons: dict[str, str], possible: Any) -> None:
    found = dk.check(schema)
    assert dict(zip(found.impossible, found.reasons, strict=True)) == reasons
    assert len(set(found.impossible)) == len(found.impossible)
    report = str(found)
    assert [line for line in report.split("\n") if line.startswith("no value fits")] == [
        f"no value fits {place}: {reason}" for place, reason in reasons.items()
    ]
    assert found.is_supported == ("#" not in reasons) == (not report.startswith("refused"))
    if not found.is_supported:
        assert isinstance(found.error, UnsatisfiableError) and found.error.at in reasons
        assert found.error.cause == f"{reasons[found.error.at]}: no value fits"
    control = dk.check(possible)
    assert control.is_supported and not control.impossible and "no value fits" not in str(control)
    jsonschema.validate(json.loads(sample_text(possible)), possible)


POOLS: dict[str, list[Any]] = {
    "type": ["string", "integer", "array", "object", ["string", "array"], ["object", "null"]],
    "const": [1, "a", [], {"a": 1}],
    "enum": [[], [1, "a"], [None, "abc"], [[1], {}]],
    "minimum": [0, 2],
    "maximum": [1, 3],
    "multipleOf": [2, 5],
    "minLength": [1, 3],
    "maxLength": [0, 2],
    "pattern": ["^x", "a"],
    "items": [False, {"type": "integer"}, {"enum": []}],
    "prefixItems": [[{}], [{"type": "string"}, False]],
    "minItems": [1, 2],
    "maxItems": [0, 1],
    "contains": [{"type": "string"}, {"const": 1}],
    "minContains": [0, 2],
    "uniqueItems": [True],
    "properties": [{"a": False}, {"a": {"type": "string"}, "b": {}}],
    "patternProperties": [{"^a": {"type": "null"}}],
    "additionalProperties": [False, {"type": "integer"}],
    "required": [["a"], ["b", "c"], ["a", "b"]],
    "minProperties": [1, 3],
    "maxProperties": [0, 1],
    "propertyNames": [{"maxLength": 0}, {"enum": ["b"]}],
    "unevaluatedProperties": [False],
    "allOf": [[{"type": "string"}, {"type": "integer"}], [{"minItems": 1}, {"required": ["b"]}]],
    "anyOf": [[{"type": "null"}, {"type": "integer"}], [{"maxLength": 1}]],
    "oneOf": [[{"type": "string"}, {"type": "string"}], [{"minLength": 2}, {"type": "object"}]],
    "not": [{"type": "string"}, {"required": ["a"]}],
}
INSTANCES: list[Any] = [
    None, True, False, 0, 1, 2, 3, 5, 10, 1.5, "", "a", "x", "ab", "xa", "abc", "xyz",
    [], [1], ["a"], [1, 1], [1, 2], ["a", "b"], ["a", 1], [[1]], {}, {"a": 1}, {"b": 1}, {"a": "s"}, {"a": None},
    {"b": 1, "c": 2}, {"a": "s", "b": 1}, {"a": None, "b": 1}, {"a": 1, "b": 2, "c": 3}, {"": 1},
]  # fmt: skip
READ = {"properties", "patternProperties", "prefixItems", "minContains", "allOf", "anyOf", "oneOf", "not", "items"}


def _conditions(schema: dict[str, Any], parts: Any) -> dict[str, Any]:
    """The schema with some of its conditions alone."""
    kept: dict[str, Any] = {}
    for name, detail in parts:
        if detail is None:
            kept[name] = schema[name]
        else:
            kept.setdefault(name, []).append(detail if name == "required" else schema[name][detail])
    return kept


def _is_possible(schema: dict[str, Any]) -> bool:
    """Whether a value is at hand that `jsonschema` takes; it knows nothing of reasons."""
    validator = jsonschema.Draft202012Validator(schema)
    if any(map(validator.is_valid, INSTANCES)):
        return True
    try:
        return validator.is_valid(json.loads(sample_text(any_json(schema))))
    except ConstraintError:
        return False


def test_reasons_are_true_and_as_small_as_can_be() -> None:
    """What is named excludes every value, by `jsonschema`; without any one part of it some value fits."""
    source, num_impossible, num_dropped = random.Random(7), 0, 0
    for _ in range(400):
        names = source.sample(sorted(POOLS), source.randint(3, 7))
        schema = {name: source.choice(POOLS[name]) for name in names}
        network = SchemaNetwork(schema, {}, "annotate", "any", "declared", "any", "any", descriptions)
        if network.is_inhabited(network.root_goal):
            continue
        num_impossible += 1
        parts = Reasons(network).parts(network.library.root)
        assert parts and not _is_possible(_conditions(schema, parts)), (schema, parts)
        for part in parts:
            if part.keyword in READ and {"additionalProperties", "items", "contains", "unevaluatedProperties"} & {
                other.keyword for other in parts
            }:
                continue  # it may only be there for what reads it
            num_dropped += 1
            left = [other for other in parts if other != part]
            assert _is_possible(_conditions(schema, left)), (schema, parts, part)
    assert num_impossible > 50 and num_dropped > 100


@few(2)
@pytest.mark.parametrize("draft", fuzzing.DRAFTS)
def test_reasons_of_random_schemas(draft: int) -> None:
    """In every draft, with references: no value that `jsonschema` takes fits what a reason names."""
    num_impossible = 0
    for seed in range(60):
        schema = fuzzing.Source(random.Random(seed), draft).root()
        found = dk.check(schema)
        if not isinstance(schema, dict) or not isinstance(found.error, UnsatisfiableError):
            continue
        num_impossible += 1
        assert found.impossible[0] == "#" and all(found.reasons)
        network = SchemaNetwork(schema, {}, "annotate", "any", "declared", "any", "any", descriptions)
        parts = Reasons(network).parts(network.library.root)
        aside = {name: schema[name] for name in ("$schema", "$id", "id", "$defs", "definitions") if name in schema}
        validator = fuzzing._CLASSES[draft]({**aside, **_conditions(schema, parts)})
        assert not any(map(validator.is_valid, INSTANCES)), (schema, parts)
    assert num_impossible >= 3


def test_negative_control() -> None:
    """The oracle of the test above finds values where there are some, and a part too many would be noticed."""
    schema = {"type": "string", "const": 1, "minLength": 2}
    assert not _is_possible(schema) and not _is_possible(_conditions(schema, [("type", None), ("const", None)]))
    assert _is_possible(_conditions(schema, [("const", None), ("minLength", None)]))


def test_a_reason_of_many_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without questions left a reason gets longer, and stays true."""
    monkeypatch.setattr("decodekit.constraints.json_schema.messages.unsatisfiable.MAX_GOALS", 0)
    schema = {"type": "string", "const": 1, "minLength": 2, "title": "x"}
    (reason,) = dk.check(schema).reasons
    assert reason == 'for type "string", const 1 and minLength 2 exclude each other'
    large = {"type": "object", "required": [f"k{n}" for n in range(200)], "additionalProperties": False}
    assert "required and additionalProperties false exclude each other" in dk.check(large).reasons[0]


@few(1)
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "object", "required": [f"k{n}" for n in range(2000)], "additionalProperties": False},
            'the required property "k0" is not declared, and additionalProperties is false',
        ),
        (
            {"allOf": [{"type": "string", "minLength": n} for n in range(500)] + [{"type": "null"}]},
            "allOf/0 and allOf/500 exclude each other",
        ),
        (
            {"type": "null", "enum": [f"v{n}" for n in range(10_000)], "pattern": "^x"},
            'type "null" and enum exclude each other',
        ),
    ],
    ids=["required", "allOf", "enum"],
)
def test_long_lists(schema: Any, reason: str) -> None:
    assert dk.check(schema).reasons == (reason,)
