"""A whole value judged by a schema, against the reading of the specification in `tests.reference`."""

import json
import random
from fractions import Fraction
from typing import Any

import pytest

from decodekit.constraints.json_schema.frames.schema_frames import SchemaNetwork
from decodekit.constraints.json_schema.guard.guard_rules import RULES, SchemaJudge
from decodekit.constraints.json_schema.meaning.keywords import MEANINGS, TYPES
from decodekit.constraints.json_schema.values import instances
from decodekit.constraints.work_budget import done
from decodekit.errors import InvalidConstraintError
from tests.constraints.json_schema.fuzzing import DRAFTS, Source
from tests.constraints.json_schema.test_against_jsonschema import SCALARS, random_value
from tests.reference import json_schema as reference
from tests.reference.any_json import any_json
from tests.sizes import few


def test_the_keywords_of_the_mask_and_no_others() -> None:
    assert RULES.keys() == MEANINGS.keys()


def test_a_keyword_speaks_of_one_type_or_of_all() -> None:
    """A new one stands in `TYPES`: what simple schemas and explanations take for granted follows from there."""
    of_all = {"type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "$recursiveRef"}
    assert MEANINGS.keys() - TYPES.keys() == of_all and not TYPES.keys() - MEANINGS.keys()


def test_instances_know_their_place_and_value() -> None:
    text = b' {"a\\u0062": [1, 1.0 ,true, "x]"] , "c":{} } '
    whole = instances.read(text)
    array = whole.members["ab"]
    assert [item.value for item in array.items] == [1, 1, True, "x]"]
    assert text[: array.items[3].end].endswith(b'"x]"') and text[: array.end].endswith(b"]")
    first, second, third, _ = array.items
    assert first.identity == second.identity != third.identity
    assert first.is_plain and not second.is_plain
    same = instances.read(b'[{"a":1,"b":[]},{"b":[],"a":1e0},{"b":[],"a":true},-0,0.0]').items
    assert same[0].identity == same[1].identity != same[2].identity and same[3].identity == same[4].identity
    assert instances.read(b"9" * 5000).value == Fraction(10) ** 5000 - 1
    assert instances.read(b"[" * 5000 + b"]" * 5000).kind == "array"
    for wrong in (b"", b"[", b"]", b"1 2", b"[1", b"x"):
        with pytest.raises(ValueError, match=r"JSON|bracket"):
            instances.read(wrong)


def is_valid(network: SchemaNetwork, value: Any) -> bool:
    whole = instances.read(json.dumps(value).encode())
    return done(SchemaJudge(network.semantics).judging(network.library.root, whole)) is not None


@few(3)
@pytest.mark.parametrize("draft", DRAFTS)
def test_against_the_specification(draft: int) -> None:
    num_valid = num_all = 0
    for seed in range(40):
        rng = random.Random(10_000 * draft + seed)
        schema = Source(rng, draft).root()
        if isinstance(schema, dict):
            schema = {"$schema": reference.DRAFTS[draft], **schema}
        try:
            network = any_json(schema).unchecked_network()
            oracle = reference.Validator(reference.load(json.dumps(schema)), draft)
            for value in [*SCALARS, *(random_value(rng, 3) for _ in range(15))]:
                expected = oracle.is_valid(reference.load(json.dumps(value)))
                assert is_valid(network, value) == expected, (json.dumps(schema), value)
                num_valid, num_all = num_valid + expected, num_all + 1
        except (RecursionError, LookupError, InvalidConstraintError):
            continue
    assert 0.05 * num_all < num_valid < 0.95 * num_all and num_all > 500


@pytest.mark.parametrize("first", [5, [{}]])
def test_prefix_items_before_draft_2020_are_no_condition(first: Any) -> None:
    item = {"properties": {"n": {"type": "array", "uniqueItems": True}}}
    schema = {"$schema": reference.DRAFTS[7], "type": "array", "prefixItems": first, "items": item}
    guard = any_json(schema).guard()
    assert guard is not None and guard.refuses(b'[{"n":[{},[]]},{}]') is None
    refusal = guard.refuses(b'[{"n":[{},{}]},{}]')
    assert refusal is not None and refusal.at == "/0/n/1"


def test_the_comparison_notices_a_wrong_keyword() -> None:
    """A negative control."""
    oracle = reference.Validator({"exclusiveMinimum": 1})
    network = any_json({"minimum": 1}).unchecked_network()
    assert any(is_valid(network, value) != oracle.is_valid(value) for value in (0, 1, 2))
