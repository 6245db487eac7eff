"""The mask of a schema in random reachable states against single bytes, for every token of a vocabulary (invariant 1).

The oracle is `tests.reference.byte_masks`; single bytes themselves are held against the plainest run of the network in
`test_against_jsonschema.py` and against validators in `test_fuzzing.py`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import ConstraintError
from decodekit.vocabulary import Vocabulary
from tests.constraints.json_schema import corpora
from tests.constraints.json_schema.fuzzing import DRAFTS, Source
from tests.reference import json_network
from tests.reference.any_json import any_json
from tests.reference.byte_masks import allowed_by_bytes
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary, tekken_vocabulary
from tests.sizes import few

SCHEMAS: dict[str, Any] = {
    "anything": {},
    "an object": {"properties": {"name": {"type": "string"}, "né": {"type": "number"}}, "required": ["name"]},
    "closed": {
        "properties": {"a": {"enum": ["x", "xy", 1, None]}, "ab": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "strings": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[^b]"}},
    "long strings": {"type": "string", "maxLength": 300},
    "numbers": {"type": "array", "items": {"type": "number", "minimum": -2.5, "exclusiveMaximum": 31}},
    "steps": {"type": "array", "items": {"type": "integer", "multipleOf": 7}},
    "patterned keys": {"patternProperties": {"^[a-f]+$": {"type": "integer"}, "e": {"minimum": 3}}, "minProperties": 2},
    "alternatives": {
        "oneOf": [
            {"properties": {"k": {"const": "a"}, "v": {"type": "string"}}, "required": ["k"]},
            {"properties": {"k": {"const": "b"}, "v": {"type": "array"}}, "required": ["k", "v"]},
        ]
    },
    "contains": {"type": "array", "contains": {"type": "string"}, "maxContains": 2},
    "recursive": {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}, {"format": "date"}]}},
    "denied": {"type": ["string", "object"], "not": {"anyOf": [{"const": "true"}, {"required": ["a"]}]}},
}


def compare(rule: Constraint, vocabulary: Vocabulary, rng: random.Random, num_states: int) -> int:
    """Hold the masks of states on a random way against the oracle; how many."""
    matcher = CompiledGrammar(rule, vocabulary).matcher()
    by_bytes = CompiledGrammar(rule, byte_vocabulary()).matcher()
    mask = allocate_bitmask(1, vocabulary.size)
    text = b""
    for number in range(num_states):
        matcher.fill_bitmask(mask)
        found, expected = ids_from_bitmask(mask[0]), allowed_by_bytes(by_bytes, vocabulary)
        assert np.array_equal(found, expected), (
            f"{rule!r}: after {text!r} the mask has {np.setdiff1d(found, expected)[:10].tolist()} too much "
            f"and lacks {np.setdiff1d(expected, found)[:10].tolist()}"
        )
        for _ in range(rng.randint(1, 6)):
            matcher.fill_bitmask(mask)
            allowed = [token for token in ids_from_bitmask(mask[0]).tolist() if vocabulary.token_bytes[token]]
            if not allowed:
                return number + 1
            # Mostly short tokens, or the way would be long strings only; now and then any.
            some = rng.sample(allowed, min(rng.choice([1, 4]), len(allowed)))
            token = min(some, key=lambda t: len(vocabulary.token_bytes[t] or b""))
            if not matcher.accept(token):
                assert getattr(matcher, "has_guard", False)
                return number + 1
            data = vocabulary.token_bytes[token] or b""
            text += data
            assert all(by_bytes.accept(byte) for byte in data)
    return num_states


@few(6)
@pytest.mark.parametrize("order", ["any", "declared"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_small_vocabulary(name: str, order: Any) -> None:
    wide: dict[str, Any] = {"whitespace": random.Random(name).choice(["any", 2]), "escapes": "any"}
    for seed in range(2):
        options = {} if seed else wide
        rule = JsonSchema(SCHEMAS[name], order=order, format="assert", **options)
        compare(rule, adversarial_vocabulary(), random.Random(f"{name}/{order}/{seed}"), 5)


@few(2)
@pytest.mark.parametrize("draft", DRAFTS)
def test_random_schemas_on_a_small_vocabulary(draft: int) -> None:
    num_states = 0
    for seed in range(60):
        try:
            rule = any_json(Source(random.Random(seed), draft).root(), order="any")
            num_states += compare(rule, adversarial_vocabulary(), random.Random(seed), 4)
        except ConstraintError:
            continue
        if num_states >= 12:
            return
    raise AssertionError(f"only {num_states} states")


@pytest.mark.slow
def test_random_schemas_on_a_real_vocabulary() -> None:
    rule = any_json(SCHEMAS["closed"])
    assert compare(rule, tekken_vocabulary(), random.Random(1), 3) == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@corpora.needs_corpus
def test_the_corpus_on_a_real_vocabulary() -> None:
    """Every one of 131,072 tokens, in 200 states and more, under 100 schemas and more."""
    num_schemas = num_states = 0
    for number, row in enumerate(corpora.sample(125, seed=3)):
        try:
            rule = any_json(row["schema"], format="assert", order="any" if number % 2 else "declared")
            num_states += compare(rule, tekken_vocabulary(), random.Random(number), 3)
        except ConstraintError:
            continue
        num_schemas += 1
    print(f"{num_states} states of {num_schemas} schemas")
    assert num_schemas >= 100 and num_states >= 200


def test_the_oracle_agrees_with_the_plainest_run() -> None:
    rule, vocabulary = any_json(SCHEMAS["alternatives"]), adversarial_vocabulary()
    for text in (b"", b'{"k', b'{"k":"a"', b'{"k": "b", "v": [1, {"x": "\xc3'):
        by_bytes = CompiledGrammar(rule, byte_vocabulary()).matcher()
        assert all(by_bytes.accept(byte) for byte in text)
        network = json_network.SlowNetwork(rule)
        assert network.feed(text)
        expected = [token for token in vocabulary.eos_token_ids if network.is_accepting]
        for token, data in enumerate(vocabulary.token_bytes):
            if data is not None:
                after = json_network.SlowNetwork.__new__(json_network.SlowNetwork)
                after.items, after.is_accepting = network.items, network.is_accepting
                if after.feed(data):
                    expected.append(token)
        assert allowed_by_bytes(by_bytes, vocabulary).tolist() == sorted(expected)


def test_negative_control_another_schema_is_noticed() -> None:
    vocabulary = adversarial_vocabulary()
    by_bytes = CompiledGrammar(any_json({"type": "integer"}), byte_vocabulary()).matcher()
    matcher = CompiledGrammar(any_json({"type": "number"}), vocabulary).matcher()
    mask = allocate_bitmask(1, vocabulary.size)
    assert matcher.accept(vocabulary.token_bytes.index(b"1")) and by_bytes.accept(ord("1"))
    matcher.fill_bitmask(mask)
    assert not np.array_equal(ids_from_bitmask(mask[0]), allowed_by_bytes(by_bytes, vocabulary))
