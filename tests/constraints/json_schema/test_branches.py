"""oneOf, anyOf and not over objects that are told apart by constants, or are not: against `jsonschema`."""

import json
import random
from typing import Any

import jsonschema
import pytest

from decodekit.constraints import compile
from decodekit.constraints.json_schema import JsonSchema
from decodekit.errors import ResourceLimitError, UnsatisfiableError
from decodekit.testing import check_language
from tests.reference.any_json import any_json
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

VOCABULARY = byte_vocabulary([], num_eos=1)


def accepts(rule: JsonSchema, text: str) -> bool:
    matcher = compile(rule, VOCABULARY).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_accepting


def compare(schema: Any, instances: list[Any]) -> int:
    """How many of the instances are valid; the engine has to say the same of each."""
    validator = jsonschema.Draft202012Validator(schema)
    expected = [validator.is_valid(instance) for instance in instances]
    rule = any_json(schema, order="any")
    try:
        found = [accepts(rule, json.dumps(instance)) for instance in instances]
    except UnsatisfiableError:
        found = [False] * len(instances)
    assert found == expected, (schema, [i for i, a, b in zip(instances, found, expected, strict=True) if a != b])
    return sum(expected)


def value(rng: random.Random) -> Any:
    return rng.choice(["v0", "v1", "v2", "x", 1, 2, 3, {"k": 1}, {}])


def members(rng: random.Random) -> dict[str, Any]:
    return {key: value(rng) for key in ("t", "p", "q", "z", "k") if rng.random() < 0.55}


def condition(rng: random.Random) -> Any:
    return rng.choice(
        [
            {"type": "string"},
            {"type": "integer"},
            {"minimum": 2},
            {"enum": ["x", "y"]},
            {"const": "x"},
            True,
            {"type": "object", "required": ["k"]},
            {"not": {"const": 3}},
        ]
    )


def branch(rng: random.Random) -> Any:
    tag = rng.choice([{"const": f"v{rng.randint(0, 3)}"}, {"enum": ["v0", "v1"]}, {"type": "string"}])
    schema: dict[str, Any] = {
        "properties": {"t": tag, "p": condition(rng), "q": condition(rng)},
        "required": rng.sample(["t", "p", "q"], rng.randint(0, 3)),
    }
    if rng.random() < 0.3:
        schema["additionalProperties"] = rng.choice([False, condition(rng)])
    if rng.random() < 0.3:
        schema["type"] = "object"
    return {"anyOf": [schema, {"required": ["z"]}]} if rng.random() < 0.2 else schema


def schema_of_branches(rng: random.Random) -> Any:
    key = rng.choice(["oneOf", "oneOf", "anyOf"])
    schema: Any = {key: [branch(rng) for _ in range(rng.randint(2, 5))]}
    if rng.random() < 0.4:
        schema["required"] = ["t"]
    if rng.random() < 0.2:
        schema = {"not": schema}
    if rng.random() < 0.3:
        other = {"properties": {"w": schema, "t": {"const": "v1"}}}
        schema = {"type": "object", "properties": {"w": schema}, "oneOf": [{"required": ["w"]}, other]}
    return schema


@few(2)
@pytest.mark.parametrize("block", range(6))
def test_against_jsonschema(block: int) -> None:
    num_valid = num_all = num_too_large = 0
    for seed in range(3):
        rng = random.Random(100 * block + seed)
        schema = schema_of_branches(rng)
        instances: list[Any] = [members(rng) for _ in range(25)]
        instances += [members(rng) | {"w": members(rng)} for _ in range(10)] + ["x", 1, [], None]
        try:
            num_valid += compare(schema, instances)
            num_all += len(instances)
        except ResourceLimitError:
            num_too_large += 1
    assert num_too_large <= 1
    assert num_all / 10 < num_valid < num_all * 9 / 10


def test_a_property_told_apart_around_the_branches() -> None:
    """The constants are optional in the branches; a sibling asks for the property."""
    branches = [
        {"properties": {"kind": {"enum": [name]}, "data": {"properties": {"a": {"type": kind}, name: {"type": kind}}}}}
        for name, kind in (("one", "string"), ("two", "integer"), ("three", "null"), ("four", "boolean"))
    ]
    schema = {"type": "object", "required": ["kind"], "oneOf": branches}
    values = ["s", 1, None, True]
    instances = [{"kind": kind, "data": {"a": a}} for kind in ("one", "two", "three", "five") for a in values]
    assert compare(schema, instances) == 3
    assert compare({"allOf": [{"required": ["kind"]}, {"oneOf": branches}]}, instances) == 3
    assert compare({"oneOf": branches}, [{"data": {"a": a, key: a}} for a in values for key in ("one", "two")]) > 0


def test_many_branches_each_with_a_property_of_its_own() -> None:
    """The denial of a required property with a schema is one condition: absent, or with another value."""
    names = [f"p{number}" for number in range(26)]
    schema = {
        "type": "object",
        "oneOf": [{"required": [name], "properties": {name: {"type": "integer"}}} for name in names],
        "additionalProperties": False,
        "properties": dict.fromkeys(names, True),
    }
    instances: list[Any] = [{name: 1} for name in names[:3]] + [
        {"p0": 1, "p1": 2},
        {"p0": 1, "p1": "x"},
        {"p7": "x"},
        {},
    ]
    assert compare(schema, instances) == 4


def test_overlapping_bounds() -> None:
    rng = random.Random(3)
    schema = {
        "oneOf": [{"type": "object", "properties": {"a": {"minimum": n}}, "required": [f"r{n}"]} for n in range(8)]
    }
    instances: list[Any] = []
    for _ in range(40):
        instance: dict[str, Any] = {f"r{n}": 1 for n in rng.sample(range(8), rng.choice([0, 1, 2, 3]))}
        instances.append(instance | rng.choice([{}, {"a": rng.randint(-1, 8)}, {"a": "x"}]))
    assert 5 < compare(schema, instances) < 35


def test_branches_told_apart_by_one_that_they_do_not_require() -> None:
    """The branch that asks for the base alone leaves only objects with a protocol; the others are apart from then on.

    Taken in their order, the other ten gave more than 512 alternatives before.
    """
    own = [0, 9, 9, 5, 2, 3, 2, 1, 5, 4, 0]
    required = [[], ["protocol", "x1-0"], ["protocol"], [], [], ["x5-0"], ["x6-0"], ["x7-0"], [], ["x9-0", "x9-1"], []]
    branches = [
        {
            "allOf": [{"$ref": "#/$defs/base"}],
            "properties": {"protocol": {"enum": [f"p{k}"]}, **{f"x{k}-{n}": {"type": "string"} for n in range(number)}},
            "required": names,
        }
        for k, (number, names) in enumerate(zip(own, required, strict=True))
    ]
    base = {"type": "object", "properties": {f"b{n}": {"type": "integer"} for n in range(6)}}
    instances: list[Any] = [{}, {"b1": 1}, {"protocol": "p0"}, {"protocol": "p0", "b1": "x"}, {"protocol": "q"}]
    for k, names in enumerate(required):
        whole = {"protocol": f"p{k}", **{name: "x" for name in names if name != "protocol"}}
        instances += [whole, {"protocol": f"p{k}"}, {**whole, "b0": 1}, {**whole, "b5": None}, {**whole, f"x{k}-0": 1}]
        instances.append({name: value for name, value in whole.items() if name != "protocol"})
    assert 11 <= compare({"$defs": {"base": base}, "oneOf": branches}, instances) <= len(instances) - 20


def test_a_const_of_draft_4_is_no_condition() -> None:
    branch = {"properties": {"x": {"enum": ["a"], "const": "b"}}, "required": ["x"]}
    schema = {"type": "object", "allOf": [branch, {"properties": {"x": {"enum": ["a"]}}}]}
    assert accepts(JsonSchema({"$schema": "http://json-schema.org/draft-04/schema#", **schema}), '{"x":"a"}')
    with pytest.raises(UnsatisfiableError):
        JsonSchema(schema).root()


@pytest.mark.parametrize(
    ("asked", "denied", "accepts", "rejects"),
    [
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}, [], ["a", 1]),
        ({"enum": ["a", 1]}, {"type": "string", "enum": ["a", 1]}, [1], ["a"]),
        ({"enum": ["a"]}, {"type": "integer", "enum": ["a"]}, ["a"], [1]),
        ({"type": "string", "enum": ["a", 1]}, {"type": "integer", "enum": ["a", 1]}, ["a"], [1]),
        ({"enum": ["a", 1]}, {"type": "string", "enum": [1]}, ["a", 1], ["b"]),
    ],
    ids=str,
)
def test_a_list_denied_with_its_type(asked: Any, denied: Any, accepts: list[Any], rejects: list[Any]) -> None:
    """Only what the type admits is denied, so a property may be left a value."""
    property_asked = {"type": "object", "properties": {"k": asked}, "required": ["k"]}
    schema = {"allOf": [property_asked, {"not": {"properties": {"k": denied}}}]}
    if not accepts:
        with pytest.raises(UnsatisfiableError):
            any_json(schema).root()
        return
    texts = [[json.dumps({"k": value}) for value in values] for values in (accepts, rejects)]
    check_language(any_json(schema), accepts=texts[0], rejects=texts[1])
