"""Random schemas against the `jsonschema` package, in both directions, with values and with texts walked at random.

A text is accepted exactly when it parses and is valid (invariant 3), and a walk under the network never gets stuck
(invariants 2 and 9). Everything is seeded, so the tests fail always or never.
"""

import json
import random
from typing import Any

import jsonschema
import pytest

from decodekit.constraints.json_schema import JsonSchema
from decodekit.errors import ResourceLimitError, UnsatisfiableError
from tests.reference.any_json import any_json
from tests.reference.json_network import SlowNetwork, accepts

KEYS = ["a", "b", "ab", "c"]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 3, -1, 1.5, 10, "", "a", "b", "ab", "abc"]


def random_schema(rng: random.Random, depth: int) -> Any:
    if rng.random() < 0.08:
        return rng.random() < 0.7
    schema: dict[str, Any] = {}
    if rng.random() < 0.5:
        names = ["null", "boolean", "integer", "number", "string", "array", "object"]
        schema["type"] = rng.choice(names) if rng.random() < 0.7 else rng.sample(names, 3)
    simple = [
        lambda: {"enum": rng.sample(SCALARS, 4)},
        lambda: {"const": rng.choice([*SCALARS, [1, "a"], {"a": 1}, {}])},
        lambda: {"minimum": rng.choice([0, 1, 1.5])},
        lambda: {"exclusiveMaximum": rng.choice([2, 3.5])},
        lambda: {"multipleOf": rng.choice([2, 0.5])},
        lambda: {"minLength": rng.randint(0, 2)},
        lambda: {"maxLength": rng.randint(0, 2)},
        lambda: {"pattern": rng.choice(["a", "^a", "b$", "^ab?$"])},
        lambda: {"required": rng.sample(KEYS, rng.randint(1, 2))},
        lambda: {"minProperties": rng.randint(0, 2)},
        lambda: {"maxProperties": rng.randint(0, 3)},
        lambda: {"minItems": rng.randint(0, 2)},
        lambda: {"maxItems": rng.randint(0, 3)},
        lambda: {"dependentRequired": {rng.choice(KEYS): [rng.choice(KEYS)]}},
    ]

    def below() -> Any:
        return random_schema(rng, depth - 1)

    nested = [
        lambda: {"properties": {key: below() for key in rng.sample(KEYS, rng.randint(1, 3))}},
        lambda: {"patternProperties": {rng.choice(["a", "^b", "b$"]): below()}},
        lambda: {"additionalProperties": below()},
        lambda: {"propertyNames": below()},
        lambda: {"items": below()},
        lambda: {"prefixItems": [below() for _ in range(rng.randint(1, 2))]},
        lambda: {"contains": below(), "minContains": rng.randint(0, 2)},
        lambda: {"contains": below(), "maxContains": rng.randint(1, 2)},
        lambda: {"allOf": [below(), below()]},
        lambda: {"anyOf": [below(), below()]},
        lambda: {"oneOf": [below(), below()]},
        lambda: {"not": below()},
        lambda: {"if": below(), "then": below(), "else": below()},
        lambda: {"dependentSchemas": {rng.choice(KEYS): below()}},
        lambda: {"$ref": "#/$defs/x"},
    ]
    for _ in range(rng.randint(0, 2)):
        schema |= rng.choice(simple)()
    for _ in range(rng.randint(0, 2) if depth else 0):
        schema |= rng.choice(nested)()
    return schema


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return rng.choice(SCALARS)
    if kind < 0.7:
        return [random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {key: random_value(rng, depth - 1) for key in rng.sample(KEYS, rng.randint(0, 3))}


def walk(rule: JsonSchema, rng: random.Random) -> bytes | None:
    """A text of the network by random bytes, closing where it can; None if it grew too long."""
    network = SlowNetwork(rule)
    text = b""
    for _ in range(150):
        assert network.items or network.is_accepting, f"stuck after {text!r}"
        if network.is_accepting and (not network.items or rng.random() < 0.5):
            return text
        choices = {
            byte
            for node, *_ in network.items
            for mask, rest in node.transitions()
            if not rest.is_empty
            for byte in b'"}]{[:,abn019.truelsf'
            if mask >> byte & 1
        }
        if not choices:
            choices = {
                byte
                for node, *_ in network.items
                for mask, rest in node.transitions()
                if not rest.is_empty
                for byte in range(128)
                if mask >> byte & 1
            }
        # A captured lexeme may be refused at its end (a key that was used), but never at every byte.
        before = network.items, network.is_accepting
        while True:
            closing = [byte for byte in b'"}]' if byte in choices]
            byte = rng.choice(closing) if closing and rng.random() < 0.6 else rng.choice(sorted(choices))
            if network.feed(bytes((byte,))):
                break
            network.items, network.is_accepting = before
            choices.discard(byte)
        text += bytes((byte,))
    return None


def validator(schema: Any) -> Any:
    return jsonschema.Draft202012Validator(schema)


def compare(seed: int) -> tuple[int, int, bool]:
    """(valid values, invalid values, whether the schema was too large)."""
    rng = random.Random(seed)
    schema = random_schema(rng, 2)
    if isinstance(schema, dict):
        schema["$defs"] = {"x": {"type": ["object", "array", "null"], "items": {"$ref": "#/$defs/x"}, "maxItems": 2}}
    oracle = validator(schema)
    values = SCALARS + [random_value(rng, 3) for _ in range(40)]
    num_valid = num_invalid = 0
    try:
        free, strict = any_json(schema, order="any"), any_json(schema)
        try:
            free.root()
        except UnsatisfiableError:
            assert not any(oracle.is_valid(value) for value in values), json.dumps(schema)
            return 0, len(values), False
        for value in values:
            is_valid = oracle.is_valid(value)
            num_valid, num_invalid = num_valid + is_valid, num_invalid + (not is_valid)
            text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
            assert accepts(free, text.encode()) == is_valid, (json.dumps(schema), text, is_valid)
        for rule in (free, strict):
            for _ in range(4):
                text_ = walk(rule, rng)
                if text_ is not None:
                    assert oracle.is_valid(rule.parse(text_.decode())), (json.dumps(schema), text_)
    except ResourceLimitError:
        return 0, 0, True
    return num_valid, num_invalid, False


@pytest.mark.parametrize("block", range(3))
def test_random_schemas(block: int) -> None:
    results = [compare(1000 * block + number) for number in range(25)]
    assert sum(too_large for _, _, too_large in results) <= 2
    assert sum(valid for valid, _, _ in results) > 100
    assert sum(invalid for _, invalid, _ in results) > 100


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_random_schemas(block: int) -> None:
    for number in range(100):
        compare(100_000 + 1000 * block + number)


def test_small_world() -> None:
    """Every text of up to 7 bytes over a few symbols, for one schema of each kind."""
    symbols = b'{}[]",:a1'
    schemas: list[Any] = [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
        {"type": "array", "items": {"enum": [1, "a", []]}, "maxItems": 2},
        {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "object", "minProperties": 1}]},
    ]
    for schema in schemas:
        rule, oracle = any_json(schema, order="any", whitespace="compact"), validator(schema)
        frontier = [(b"", SlowNetwork(rule))]
        found = set()
        for _ in range(7):
            following = []
            for text, network in frontier:
                for symbol in symbols:
                    after = SlowNetwork.__new__(SlowNetwork)
                    after.items, after.is_accepting = network.items, network.is_accepting
                    if after.feed(bytes((symbol,))):
                        following.append((text + bytes((symbol,)), after))
            found |= {text for text, network in following if network.is_accepting}
            frontier = following
        expected = set()
        values: list[Any] = [
            1,
            11,
            111,
            "a",
            "1",
            "",
            "aa",
            [],
            {},
            [1],
            ["a"],
            [1, 1],
            [[]],
            [1, "a"],
            {"a": 1},
            {"": 1},
        ]
        values += [[[], 1], {"a": 11}, {"1": 1}, ["a", 1], {"": []}, {"": {}}, {"": "a"}, {"a": []}, [[], []]]
        for value in values:
            text = json.dumps(value, separators=(",", ":")).encode()
            if oracle.is_valid(value) and len(text) <= 7:
                expected.add(text)
        assert expected <= found
        for text in found:
            assert oracle.is_valid(json.loads(text)), text


def test_the_comparison_notices_a_wrong_keyword() -> None:
    """A negative control: the same check fails when the oracle reads another schema."""
    rule, oracle = any_json({"minimum": 2}), validator({"minimum": 3})
    assert any(accepts(rule, json.dumps(value).encode()) != oracle.is_valid(value) for value in SCALARS)
