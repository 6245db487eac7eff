"""Schemas from strangers: a mask or a typed error, in bounded time (processor time of this thread, on any machine)."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from decodekit.constraints import compile
from decodekit.constraints.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema import JsonSchema
from decodekit.errors import ConstraintError, ResourceLimitError
from decodekit.vocabulary import Vocabulary

MAX_SECONDS = 20.0
VOCABULARY = Vocabulary(
    [bytes([b]) for b in range(256)] + [b'{"', b'":', b'", "', b'"}', b"123", None], eos_token_ids=[261]
)


def nested(levels: int, leaf: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


def entry(number: int) -> dict[str, Any]:
    fields = {"id": {"type": "integer", "minimum": number}, "name": {"type": "string", "maxLength": 20}}
    return {"type": "object", "properties": fields, "required": ["id"], "description": "x" * 40}


USABLE: dict[str, Callable[[], Any]] = {
    "300 levels": lambda: nested(
        300, {"type": "null"}, lambda s: {"type": "object", "properties": {"a": s}, "required": ["a"]}
    ),
    "90 times not": lambda: nested(90, {"type": "null"}, lambda s: {"not": s}),
    "100,000 strings": lambda: {"enum": [f"value {n}" for n in range(100_000)]},
    "20,000 numbers": lambda: {"enum": list(range(20_000))},
    "10,000 properties": lambda: {
        "properties": {f"p{n}": {"type": "null"} for n in range(10_000)},
        "additionalProperties": False,
    },
    "20,000 required": lambda: {"type": "object", "required": [f"p{n}" for n in range(20_000)]},
    "nearly all of 5,000": lambda: {
        "type": "object",
        "properties": {f"p{n}": {} for n in range(5_000)},
        "additionalProperties": False,
        "minProperties": 4_999,
    },
    "one megabyte": lambda: {"type": "object", "properties": {f"prop{n}": entry(n) for n in range(5_000)}},
    "a billion items": lambda: {"type": "array", "minItems": 10**9},
    "a billion characters": lambda: {"type": "string", "minLength": 10**8, "maxLength": 10**9},
    "a billion properties": lambda: {"type": "object", "minProperties": 10**9},
    "400 digits": lambda: {"type": "integer", "minimum": 10**400, "maximum": 10**401},
    "a large step": lambda: {"type": "integer", "multipleOf": 10**9 + 7, "minimum": 10**30},
    "a tiny step": lambda: {"type": "number", "multipleOf": 1e-300},
    "100 branches": lambda: {
        "oneOf": [{"properties": {"k": {"const": n}}, "required": ["k"], "type": "object"} for n in range(100)]
    },
    "a catastrophic pattern": lambda: {"type": "string", "pattern": "^(a+)+(b|a*)*$"},
}
REFUSED: dict[str, Callable[[], Any]] = {
    "10,000 levels": lambda: nested(10_000, {}, lambda s: {"properties": {"a": s}}),
    "200 times allOf": lambda: nested(200, {"type": "null"}, lambda s: {"allOf": [s]}),
    "a reference to itself": lambda: {"$ref": "#"},
    "two references in a circle": lambda: {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "itself required": lambda: {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "10,000 objects": lambda: {"enum": [{"a": n} for n in range(10_000)]},
    "5,000 digits": lambda: {"minimum": 10**4_200},
    "20 overlapping branches": lambda: {
        "oneOf": [{"type": "object", "properties": {"a": {"minimum": n}}, "required": [f"r{n}"]} for n in range(20)]
    },
    "2**20 alternatives": lambda: {
        "allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(20)]
    },
    "a million that count": lambda: {
        "type": "array",
        "contains": {"type": "null"},
        "minContains": 10**6,
        "maxContains": 10**7,
    },
}


def steps(schema: Any) -> None:
    """Compile, then 30 random steps under the mask."""
    matcher = compile(JsonSchema(schema), VOCABULARY).matcher()
    mask, rng = allocate_bitmask(1, VOCABULARY.size), random.Random(0)
    for _ in range(30):
        matcher.fill_bitmask(mask)
        allowed = [int(token) for token in ids_from_bitmask(mask[0]) if token not in VOCABULARY.eos_token_ids]
        if not allowed:
            assert matcher.is_accepting
            return
        assert matcher.accept(rng.choice(allowed))


@pytest.mark.parametrize("name", USABLE)
def test_usable(name: str) -> None:
    schema = USABLE[name]()
    start = time.thread_time()
    steps(schema)
    assert time.thread_time() - start < MAX_SECONDS


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_typed_error(name: str) -> None:
    schema = REFUSED[name]()
    start = time.thread_time()
    with pytest.raises(ConstraintError):
        steps(schema)
    assert time.thread_time() - start < MAX_SECONDS


def test_overlapping_patterns_end_in_a_typed_error() -> None:
    schema = {"patternProperties": {f"^{'.' * n}a": {"minimum": n} for n in range(8)}}
    with pytest.raises(ResourceLimitError, match="regions"):
        steps(schema)
