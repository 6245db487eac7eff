"""A little of the fuzzer at every run, what it found, and where its second oracle is wrong."""

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from decodekit.constraints.json_schema.document.drafts import KEYWORDS
from tests.constraints.json_schema import fuzzing
from tests.constraints.json_schema.fuzzing import DRAFTS, Engine, FailureError, Oracle, Source, Tally
from tests.reference import json_schema as reference
from tests.sizes import few

NUM_CASES = 6


@pytest.mark.parametrize("draft", DRAFTS)
def test_random_schemas(draft: int) -> None:
    tally = Tally()
    for seed in range(NUM_CASES):
        fuzzing.run_case(draft, seed, tally, num_values=12, num_walks=2)
    assert tally.num_valid >= 20 and tally.num_invalid >= 20 and tally.num_masks >= 1, str(tally)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("draft", DRAFTS)
def test_many_random_schemas(draft: int) -> None:
    tally = Tally()
    for seed in range(1000, 1150):
        fuzzing.run_case(draft, seed, tally)
    assert sum(tally.refused.values()) <= 0.5 * tally.num_schemas, str(tally)


@few(2)
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_schemas_are_schemas_and_meet_every_keyword(draft: int) -> None:
    met: set[str] = set()

    def collect(schema: Any) -> None:
        met.update(schema if isinstance(schema, dict) else ())
        for _, child in reference.below(schema):
            collect(child)

    for seed in range(400):
        schema = Source(random.Random(seed), draft).root()
        if seed < 40:
            fuzzing._CLASSES[draft].check_schema(schema)
        collect(schema)
    known = {
        name
        for name, readings in KEYWORDS.items()
        if any(r.first <= draft <= r.last and r.is_assertion for r in readings)
    }
    assert known <= met


WRONG: dict[str, tuple[str, str]] = {
    "a wider bound is accepted": ('{"minimum": 2}', '{"minimum": 3}'),
    "a narrower one is refused": ('{"maxLength": 0}', '{"maxLength": 1}'),
    "a keyword ignored": ('{"type": "array"}', '{"type": "array", "uniqueItems": true}'),
    "another type": ('{"type": ["string", "null"]}', '{"type": "string"}'),
}


@pytest.mark.parametrize("name", WRONG)
def test_negative_control(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer notices an engine that reads another schema, and makes the case small."""
    read, meant = (json.loads(text) for text in WRONG[name])
    monkeypatch.setattr(fuzzing, "Engine", lambda schema, order="any": Engine(read, order))
    with pytest.raises(FailureError) as caught:
        fuzzing.check_schema(meant, 2020, random.Random(0), Tally(), num_values=400, num_walks=20)
    assert caught.value.expected is not None


def test_a_failure_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    class IgnoresMaxItems(Engine):
        def __init__(self, schema: Any, order: str = "any") -> None:
            super().__init__(json.loads(json.dumps(schema).replace("maxItems", "x-maxItems")), order)

    monkeypatch.setattr(fuzzing, "Engine", IgnoresMaxItems)
    schema = {"anyOf": [{"type": "array", "items": {"maxItems": 1, "title": "x"}}, {"type": "null"}], "minLength": 2}
    failure = FailureError(schema, b'["a", [1, 2, 3]]', "accepted", expected=False)
    small = fuzzing.shrink(failure, 2020, seconds=20)
    assert len(json.dumps(small.schema)) <= 40 and len(small.text) <= 10
    assert "accepts" not in fuzzing.as_test(small, "a name") and small.text.decode() in fuzzing.as_test(small, "a name")


@pytest.mark.parametrize(("text", "is_valid"), [("[1, true]", True), ("[1, 1.0]", False), ('{"a": 0, "a": 0}', False)])
def test_the_oracle_by_hand(text: str, is_valid: bool) -> None:
    assert Oracle({"uniqueItems": True}, 2020).is_valid(text.encode()) is is_valid


def test_the_package_jsonschema_is_wrong_here() -> None:
    """Why the fuzzer does not ask `jsonschema` about some keywords: the specification wins."""
    unique: dict[str, Any] = {"uniqueItems": True}  # sorts [1] beside [true], and misses the two [1]
    assert jsonschema.Draft202012Validator(unique).is_valid([[1], [True], [1]])
    assert not reference.Validator(unique).is_valid([[1], [True], [1]])
    # Draft 2019-09 has no annotation of `contains`, so the item stays unevaluated.
    contains: dict[str, Any] = {"contains": {"const": 1}, "unevaluatedItems": False}
    assert jsonschema.Draft201909Validator(contains).is_valid([1])
    assert not reference.Validator(contains, 2019).is_valid([1])
    # A boolean `items` beside `additionalItems` stops it.
    both: dict[str, Any] = {"items": True, "additionalItems": False}
    with pytest.raises(TypeError):
        jsonschema.Draft7Validator(both).is_valid([1])
    assert reference.Validator(both, 7).is_valid([1])
    # Binary floats: 0.3 is a multiple of 0.1.
    assert not jsonschema.Draft7Validator({"multipleOf": 0.1}).is_valid(0.3)
    assert reference.Validator({"multipleOf": Decimal("0.1")}, 7).is_valid(Decimal("0.3"))
    # Python's $ stands before a last line break too.
    assert jsonschema.Draft7Validator({"pattern": "a$"}).is_valid("a\n")
    assert not reference.Validator({"pattern": "a$"}, 7).is_valid("a\n")


FOUND: list[tuple[str, str, bytes, bool, str]] = [
    (
        "another key before the only one that denies",
        '{"not": {"patternProperties": {"^$": false}}}',
        b'{"a": 1, "": ""}',
        True,
        "any",
    ),
    (
        "one of the few keys that deny, without denying",
        '{"not": {"patternProperties": {"^[ab]$": {"type": "integer"}}}}',
        b'{"b": 3, "a": ""}',
        True,
        "any",
    ),
]


@pytest.mark.parametrize(("name", "schema", "text", "is_valid", "order"), FOUND, ids=[entry[0] for entry in FOUND])
def test_found(name: str, schema: str, text: bytes, is_valid: bool, order: str) -> None:
    assert Engine(json.loads(schema), order).accepts(text) is is_valid
