"""What the bundled model writes under a schema is valid, at a temperature at which it would write anything.

A text that ends by itself validates; one that is cut says so; with ``on_length="close"`` none is cut. The judge is the
package `jsonschema`, with the draft that ``$schema`` names and formats ignored. Where it refuses a text, the reading of
the specification in `tests/reference/json_schema.py` decides, and the case is printed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Literal

import jsonschema
import pytest

import decodekit as dk
from decodekit.errors import GuardError, LengthError, ResourceLimitError, UnsatisfiableError, UnsupportedSchemaError
from tests.constraints.json_schema.corpora import needs_corpus, sample
from tests.reference import json_schema as reference
from tests.sizes import few

HOT = dk.Sample(temperature=1.5)
DEFAULT = jsonschema.Draft202012Validator
PROMPTS = ("A", "Invoice A-17, total 40.20 EUR.\n", "Dear all,\n", "{", "Call me on 030 1234567, Ada.\n")
WHITESPACE: tuple[Literal["compact"], Literal["any"]] = ("compact", "any")
LONGEST_LEAST = 400  # tokens; schemas whose least instance is longer take no part in closing
SCHEMAS: dict[str, Any] = {
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9, "exclusiveMaximum": True}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "draft 7, cases": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"kind": {"enum": ["card", "cash"]}, "number": {"type": "string", "pattern": "^[0-9]{4}$"}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "card"}}},
        "then": {"required": ["number"]},
        "else": {"properties": {"number": False}},
        "additionalProperties": False,
    },
    "unevaluated": {
        "type": "object",
        "oneOf": [{"required": ["a"], "properties": {"a": True}}, {"required": ["b"], "properties": {"b": True}}],
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
        "unevaluatedProperties": False,
    },
    "distinct": {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": [1, 2, "1", [2]]}},
    "recursive": {"type": "array", "maxItems": 2, "items": {"$ref": "#"}},
    "not and multiples": {"type": "number", "multipleOf": 0.5, "not": {"maximum": 3}, "maximum": 20},
}


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def verdicts(schema: Any, text: str) -> tuple[bool | None, bool | None]:
    """What `jsonschema` and the reading of the specification say of a text; None where they cannot read the schema."""
    kind = jsonschema.validators.validator_for(schema, default=DEFAULT)
    try:
        first = kind(schema).is_valid(json.loads(text))
    except (re.error, RecursionError):  # a pattern that Python does not have
        first = None
    try:
        draft = next(draft for draft, uri in reference.DRAFTS.items() if kind.META_SCHEMA["$schema"] == uri)
        exact = reference.Validator(reference.load(json.dumps(schema)), draft)
        return first, exact.is_valid(reference.load(text))
    except (re.error, RecursionError, LookupError):
        return first, None


def is_valid(schema: Any, text: str) -> bool:
    """Whether `jsonschema` takes the text, or refuses one that the specification admits."""
    first, second = verdicts(schema, text)
    if first is not True:
        print(f"jsonschema says {first}, the specification {second}: {json.dumps(schema)[:200]} {text[:200]}")
    return first is True or second is True


def generate(
    llm: dk.LLM,
    name: str,
    schema: Any,
    whitespace: Literal["any", "compact"],
    max_new_tokens: int,
    on_length: Literal["error", "close"],
    num: int,
) -> Counter[str]:
    """How the texts of one schema ended. None is invalid, none ends without saying how.

    Raises:
        ConstraintError: the schema cannot be used.
    """
    rule = dk.JsonSchema(schema, whitespace=whitespace)
    if on_length == "close":
        least = dk.compile(rule, llm.vocabulary).least_tokens()
        if least > LONGEST_LEAST:
            return Counter()
        max_new_tokens = max(max_new_tokens, least)
    done = llm.generate(
        [PROMPTS[index % len(PROMPTS)] for index in range(num)],
        strategy=HOT,
        constraint=rule,
        seed=range(num),
        max_new_tokens=max_new_tokens,
        on_length=on_length,
    )
    ends: Counter[str] = Counter()
    for completion in done:
        reason = completion.finish_reason
        if isinstance(completion.error, GuardError):
            ends["refused by a guard"] += 1
        elif on_length == "close" and isinstance(completion.error, ResourceLimitError):
            ends["no way to the end was found"] += 1
        elif reason == "length":
            assert on_length == "error", (name, completion.text)
            assert isinstance(completion.error, LengthError), (name, completion.error)
            ends["length"] += 1
        else:
            assert reason in ("stop", "complete") and completion.error is None, (name, reason, completion.error)
            assert is_valid(schema, completion.text), (name, completion.text)
            ends["finished"] += 1
    return ends


@few(2)
@pytest.mark.parametrize("on_length", ["error", "close"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_own_schemas(llm: dk.LLM, name: str, on_length: Literal["error", "close"]) -> None:
    # So hot, the model likes blanks and fills every gap with as many as it may: without closing, few texts would end.
    whitespace = WHITESPACE[on_length == "close"]
    ends = generate(llm, name, SCHEMAS[name], whitespace, 40, on_length, num=4)
    assert ends["finished"] >= 1 and ends.total() == 4


def test_negative_control_the_judge_sees_texts_of_another_schema(llm: dk.LLM) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    loose = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "required": ["n"]}
    done = llm.generate(["A"] * 6, strategy=HOT, constraint=loose, seed=range(6), max_new_tokens=60, on_length="close")
    assert not all(is_valid(schema, completion.text) for completion in done)
    assert all(is_valid(loose, completion.text) for completion in done)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_corpus
@pytest.mark.parametrize("on_length", ["error", "close"])
def test_real_schemas(llm: dk.LLM, on_length: Literal["error", "close"]) -> None:
    check_real_schemas(llm, on_length, num_schemas=100, num_each=5)


def check_real_schemas(llm: dk.LLM, on_length: Literal["error", "close"], num_schemas: int, num_each: int) -> None:
    """That many texts of that many schemas; those that are refused by name are counted, and others take their place."""
    ends: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    num_used = 0
    for row in sample(2 * num_schemas, seed=11):
        if num_used == num_schemas:
            break
        try:
            found = generate(llm, row["id"], row["schema"], WHITESPACE[num_used % 2], 256, on_length, num_each)
        except (UnsupportedSchemaError, UnsatisfiableError, ResourceLimitError) as error:
            refused[type(error).__name__] += 1
            continue
        num_used += bool(found)
        ends += found
    print(f"{num_used} schemas, {num_each} texts each: {dict(ends)}; schemas that were refused: {dict(refused)}")
    assert num_used == num_schemas and ends.total() == num_schemas * num_each
    assert refused.total() <= 0.05 * num_schemas
    # What gives up is bounded, and says so. A text that is cut while it should close is a failure above.
    assert ends["finished"] >= (0.2 if on_length == "error" else 0.95) * ends.total()
    assert ends["refused by a guard"] <= 0.05 * ends.total()
