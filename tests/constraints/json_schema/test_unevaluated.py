"""`unevaluatedProperties` and `unevaluatedItems`: by hand, and at random against the specification and `jsonschema`."""

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from decodekit.constraints.author.coverage import check
from decodekit.errors import UnsatisfiableError, UnsupportedSchemaError
from decodekit.testing import check_language
from tests.constraints.json_schema.test_against_jsonschema import walk
from tests.reference import json_schema as reference
from tests.reference.any_json import any_json
from tests.reference.json_network import SlowNetwork, accepts, is_admitted
from tests.sizes import few

D19 = "https://json-schema.org/draft/2019-09/schema"

A_TEXT: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
B_ANY: dict[str, Any] = {"properties": {"b": True}}

TABLE: list[tuple[Any, list[str], list[str]]] = [
    ({"unevaluatedProperties": False}, ["{}", "[1]", "3"], ['{"a":1}', '{"a"']),
    ({**A_TEXT, "unevaluatedProperties": {"type": "null"}}, ['{"a":"x","b":null}'], ['{"a":1}', '{"b":1}']),
    ({"patternProperties": {"^x": {}}, "unevaluatedProperties": False}, ['{"x1":1,"x":2}'], ['{"y"', '{"x":1,"y"']),
    ({"additionalProperties": {"minimum": 2}, "unevaluatedProperties": False}, ['{"a":2}'], ['{"a":1}']),
    ({"allOf": [A_TEXT, B_ANY], "unevaluatedProperties": False}, ['{"a":"x","b":1}'], ['{"c"']),
    # cousins do not see each other
    ({"allOf": [A_TEXT, {"unevaluatedProperties": False}]}, ["{}"], ['{"a"']),
    ({"allOf": [{"unevaluatedProperties": True}], "unevaluatedProperties": False}, ['{"z":1}'], []),
    # of anyOf, all branches that hold; of oneOf, the one; of not, nothing
    (
        {"anyOf": [A_TEXT, B_ANY], "unevaluatedProperties": False},
        ["{}", '{"a":"x"}', '{"a":"x","b":1}', '{"b":1}'],
        ['{"a":1}', '{"b":1,"a":1}', '{"c"'],
    ),
    (
        {"oneOf": [{**A_TEXT, "required": ["a"]}, {**B_ANY, "required": ["b"]}], "unevaluatedProperties": False},
        ['{"a":"x"}', '{"b":1}'],
        ['{"a":"x","b":1}', "{}", '{"a":1,"b":1}'],
    ),
    ({"not": {"not": A_TEXT}, "unevaluatedProperties": False}, ["{}"], ['{"a"']),
    # if is seen where it holds, with or without then
    ({"if": A_TEXT, "unevaluatedProperties": False}, ["{}", '{"a":"x"}'], ['{"a":1}', '{"b"']),
    (
        {
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": B_ANY,
            "else": {"properties": {"c": True}},
            "unevaluatedProperties": False,
        },
        ['{"a":1,"b":2}', '{"c":1}', "{}"],
        ['{"a":1,"c":1}', '{"b":1}', '{"a":2}', '{"c":1,"b"'],
    ),
    (
        {"properties": {"k": True}, "dependentSchemas": {"k": A_TEXT}, "unevaluatedProperties": False},
        ['{"k":1,"a":"x"}', '{"a":"x","k":1}', "{}"],
        ['{"a":"x"}', '{"k":1,"a":1}'],
    ),
    (
        {"$ref": "#/$defs/x", **B_ANY, "unevaluatedProperties": False, "$defs": {"x": A_TEXT}},
        ['{"b":1,"a":"x"}'],
        ['{"c"', '{"a":1}'],
    ),
    (
        {"type": "object", **A_TEXT, "required": ["q"], "unevaluatedProperties": {"const": 1}},
        ['{"q":1}', '{"a":"x","q":1}'],
        ['{"q":2}', "{}"],
    ),
    # denied: some property or item is left, and refused
    (
        {"not": {"anyOf": [A_TEXT, B_ANY], "unevaluatedProperties": False}},
        ['{"c":1}', '{"a":1}', '{"a":1,"b":1}', '{"a":"x","c":1}'],
        ["{}", '{"a":"x"}', '{"b":1}', "3"],
    ),
    ({"not": {**A_TEXT, "unevaluatedProperties": {"type": "null"}}}, ['{"a":1}', '{"b":1}'], ['{"b":null}', "{}"]),
    ({"not": {"prefixItems": [True], "unevaluatedItems": False}}, ["[1,2]"], ["[1]", "[]", "3"]),
    ({"not": {"contains": {"const": 1}, "unevaluatedItems": False}}, ["[]", "[2]", "[1,2]"], ["[1]", "[1,1]"]),
    (
        {"oneOf": [{**A_TEXT, "unevaluatedProperties": False}, {"maxProperties": 1}]},
        ['{"b":1}', '{"a":1}'],
        ["{}", '{"a":"x"}', '{"b":1,"c":1}', "[]", "3"],
    ),
    # items
    ({"unevaluatedItems": False}, ["[]", "{}"], ["[1", "[["]),
    ({"prefixItems": [True], "unevaluatedItems": {"type": "null"}}, ["[1,null]", "[1]"], ["[1,1]"]),
    ({"items": {"minimum": 1}, "unevaluatedItems": False}, ["[1,2]"], ["[0]"]),
    (
        {"allOf": [{"prefixItems": [True]}, {"prefixItems": [True, {"const": 2}]}], "unevaluatedItems": False},
        ["[1,2]", "[1]"],
        ["[1,2,3", "[1,3]"],
    ),
    (
        {"contains": {"type": "string"}, "unevaluatedItems": {"const": 1}},
        ['["a"]', '[1,"a",1,"b"]'],
        ["[1]", "[]", '["a",2]'],
    ),
    ({"contains": {"type": "string"}, "minContains": 0, "unevaluatedItems": False}, ["[]", '["a"]'], ['["a",1]']),
    ({"if": {"prefixItems": [{"const": 1}]}, "unevaluatedItems": False}, ["[1]", "[]"], ["[2]", "[1,2"]),
    # draft 2019-09: `contains` evaluates nothing, `items` may be a list
    ({"$schema": D19, "contains": {"const": 1}, "unevaluatedItems": {"const": 1}}, ["[1]"], ["[2,1]", "[]"]),
    ({"$schema": D19, "contains": True, "unevaluatedItems": False}, [], ["[1", "[]"]),
    ({"$schema": D19, "items": [True], "unevaluatedItems": False}, ["[1]"], ["[1,2"]),
    (
        {"$schema": D19, "items": [True], "additionalItems": {"const": 2}, "unevaluatedItems": False},
        ["[1,2]"],
        ["[1,1]"],
    ),
    ({"$schema": D19, "additionalItems": {"const": 2}, "unevaluatedItems": {"const": 3}}, ["[3]"], ["[2]"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), TABLE)
def test_by_hand(schema: Any, good: list[str], bad: list[str]) -> None:
    rule = any_json(schema, order="any", whitespace="compact")
    assert rule.guard() is None
    for text in good:
        assert accepts(rule, text.encode()), text
    for text in bad:
        if text.endswith(("]", "}", "3")):
            assert not accepts(rule, text.encode()), text
        else:
            assert not SlowNetwork(rule).feed(text.encode()), text


def test_masks_agree_with_validation() -> None:
    schema = {"anyOf": [A_TEXT, B_ANY], "unevaluatedProperties": False, "type": "object"}
    check_language(
        any_json(schema, order="any", whitespace="compact"),
        accepts=["{}", '{"a":"x","b":[]}', '{"b":1}'],
        rejects=['{"a":1}', '{"c":1}', '{"b":1,"a":2}'],
    )


def test_recursion_through_unevaluated() -> None:
    tree = {
        "$ref": "#/$defs/node",
        "unevaluatedProperties": False,
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}}},
    }
    rule = any_json(tree)
    assert accepts(rule, b'{"next":{"next":{},"v":1}}') and not accepts(rule, b'{"next":{"w":1}}')
    leaf = {"unevaluatedProperties": {"$ref": "#"}, "type": "object"}
    assert accepts(any_json(leaf), b'{"a":{"b":{}}}') and not accepts(any_json(leaf), b'{"a":{"b":1}}')
    with pytest.raises(UnsupportedSchemaError, match="refers to itself"):
        any_json({"anyOf": [{"$ref": "#"}, A_TEXT], "unevaluatedProperties": False}).root()


def test_what_no_value_fits_and_what_is_too_large() -> None:
    with pytest.raises(UnsatisfiableError):
        any_json({"type": "object", "required": ["a"], "unevaluatedProperties": False}).root()
    with pytest.raises(UnsatisfiableError):
        any_json({"type": "array", "minItems": 2, "prefixItems": [True], "unevaluatedItems": False}).root()
    branches = [{"properties": {f"k{n}": {"const": n}}} for n in range(12)]
    found = check({"anyOf": branches, "unevaluatedProperties": False})
    assert [entry.pointer for entry in found.keywords if entry.status == "guard"] == ["#/unevaluatedProperties"]
    told_apart = [{"properties": {"t": {"const": n}, f"k{n}": True}, "required": ["t"]} for n in range(40)]
    rule = any_json({"anyOf": told_apart, "unevaluatedProperties": False, "type": "object"})
    assert accepts(rule, b'{"t":7,"k7":1}') and not accepts(rule, b'{"t":7,"k8":1}')


def test_coverage() -> None:
    found = check({**A_TEXT, "unevaluatedProperties": False, "items": True, "unevaluatedItems": {"type": "null"}})
    assert found.is_supported
    assert {entry.status for entry in found.keywords} == {"mask"}


class Source:
    """Random schemas of objects and arrays with these keywords anywhere."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def leaf(self) -> Any:
        values = [None, True, 0, 1, "", "a"]
        return self.rng.choice(
            [True, False, {"type": ["string", "null"]}, {"enum": self.rng.sample(values, 2)}, {"minimum": 1}]
        )

    def schema(self, depth: int, *, is_array: bool) -> dict[str, Any]:
        rng = self.rng
        schema: dict[str, Any] = {}

        def below() -> Any:
            return self.schema(depth - 1, is_array=is_array)

        if is_array:
            if rng.random() < 0.4:
                schema["prefixItems"] = [self.leaf() for _ in range(rng.randint(1, 2))]
            if rng.random() < 0.15:
                schema["items"] = self.leaf()
            if rng.random() < 0.3:
                schema |= {"contains": self.leaf(), "minContains": rng.randint(0, 2)}
        else:
            if rng.random() < 0.6:
                schema["properties"] = {key: self.leaf() for key in rng.sample("abc", rng.randint(1, 2))}
            if rng.random() < 0.2:
                schema["patternProperties"] = {rng.choice(["^a", "b|c"]): self.leaf()}
            if rng.random() < 0.1:
                schema["additionalProperties"] = self.leaf()
            if rng.random() < 0.3:
                schema["required"] = [rng.choice("abc")]
        ways: list[Callable[[], dict[str, Any]]] = [
            lambda: {rng.choice(["allOf", "anyOf", "oneOf"]): [below(), below()]},
            lambda: {"not": below()},
            lambda: {"if": below(), rng.choice(["then", "else", "$comment"]): below()},
            lambda: {"if": below(), "then": below(), "else": below()},
            lambda: {"dependentSchemas": {rng.choice("abc"): below()}},
            lambda: {"$ref": "#/$defs/x"},
        ]
        for _ in range(rng.randint(0, 2) if depth else 0):
            schema |= rng.choice(ways)()
        if isinstance(schema.get("$comment"), dict):
            del schema["$comment"]
        if rng.random() < 0.4:
            schema["unevaluatedItems" if is_array else "unevaluatedProperties"] = rng.choice([False, self.leaf()])
        return schema

    def value(self, *, is_array: bool) -> Any:
        rng = self.rng
        if is_array:
            return [rng.choice([None, True, 0, 1, "", "a"]) for _ in range(rng.randint(0, 3))]
        return {key: rng.choice([None, True, 0, 1, "", "a"]) for key in rng.sample("abcd", rng.randint(0, 3))}


def compare(seed: int) -> tuple[int, int]:
    """(valid values, invalid values)"""
    source = Source(random.Random(seed))
    is_array = seed % 2 == 0
    schema = source.schema(2, is_array=is_array)
    schema["$defs"] = {"x": source.schema(0, is_array=is_array)}
    schema["unevaluatedItems" if is_array else "unevaluatedProperties"] = source.leaf()
    written = json.dumps(schema)
    oracle, other = reference.Validator(json.loads(written)), jsonschema.Draft202012Validator(schema)
    values: list[Any] = [None, *(source.value(is_array=is_array) for _ in range(15))]
    rule = any_json(schema, order="any", whitespace="compact")
    num_valid = 0
    try:
        rule.root()
    except UnsatisfiableError:
        assert not any(oracle.is_valid(value) for value in values), written
        return 0, len(values)
    for value in values:
        is_valid = oracle.is_valid(value)
        # The package reads annotations of branches that fail elsewhere; the specification wins.
        if not is_valid and other.is_valid(value):
            assert "unevaluated" in written
        assert is_admitted(rule, json.dumps(value, separators=(",", ":")).encode()) == is_valid, (written, value)
        num_valid += is_valid
    text = walk(rule, source.rng)
    assert text is None or oracle.is_valid(reference.load(text.decode())), (written, text)
    return num_valid, len(values) - num_valid


@few(4)
@pytest.mark.parametrize("block", range(6))
def test_against_the_specification(block: int) -> None:
    results = [compare(1000 * block + number) for number in range(12)]
    assert sum(valid for valid, _ in results) > 10
    assert sum(invalid for _, invalid in results) > 10


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_against_the_specification(block: int) -> None:
    for number in range(200):
        compare(100_000 + 1000 * block + number)


def test_the_comparison_notices_a_missing_branch() -> None:
    """A negative control: an engine that saw one branch only would differ."""
    rule = any_json({"allOf": [A_TEXT], "unevaluatedProperties": False}, order="any")
    oracle = reference.Validator({"allOf": [A_TEXT, B_ANY], "unevaluatedProperties": False})
    values = [{}, {"a": "x"}, {"b": 1}]
    assert any(accepts(rule, json.dumps(value).encode()) != oracle.is_valid(value) for value in values)
