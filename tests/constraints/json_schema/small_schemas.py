"""All small schemas of objects and arrays: keywords with few arguments, alone, in pairs and triples, and combined."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

ZERO: Final[Schema] = {"const": 0}
OTHER: Final[Schema] = {"not": {"const": 0}}

OBJECT_KEYWORDS: Final[tuple[Schema, ...]] = (
    {"properties": {"a": False}},
    {"properties": {"a": ZERO}},
    {"properties": {"b": OTHER, "a": ZERO}},
    {"required": ["a"]},
    {"required": ["b", "a"]},
    {"required": ["c"]},
    {"additionalProperties": False},
    {"additionalProperties": ZERO},
    {"patternProperties": {"^[ab]$": ZERO}},
    {"patternProperties": {"a": False}},
    {"patternProperties": {"[bc]": OTHER, "b": ZERO}},
    {"propertyNames": {"enum": ["a", "b"]}},
    {"propertyNames": {"not": {"const": "a"}}},
    {"propertyNames": {"pattern": "[bc]"}},
    {"minProperties": 1},
    {"minProperties": 2},
    {"minProperties": 3},
    {"maxProperties": 0},
    {"maxProperties": 1},
    {"maxProperties": 2},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentRequired": {"a": ["b"], "b": ["c"]}},
    {"dependentSchemas": {"a": {"maxProperties": 1}}},
    {"dependentSchemas": {"a": False}},
    {"dependentSchemas": {"b": {"properties": {"a": ZERO}, "required": ["c"]}}},
    {"unevaluatedProperties": False},
    {"unevaluatedProperties": ZERO},
    {"const": {"a": 0}},
    {"const": {}},
    {"enum": [{}, {"a": 0}, {"b": 1, "a": 0}, 0]},
)
"""Each speaks of objects with the keys a, b, c and the values 0, 1."""

ARRAY_KEYWORDS: Final[tuple[Schema, ...]] = (
    {"items": False},
    {"items": ZERO},
    {"items": OTHER},
    {"items": {"enum": [0, ""]}},
    {"prefixItems": [ZERO]},
    {"prefixItems": [OTHER, ZERO]},
    {"prefixItems": [{}, False]},
    {"contains": ZERO},
    {"contains": OTHER, "minContains": 2},
    {"contains": ZERO, "maxContains": 1},
    {"contains": ZERO, "minContains": 0, "maxContains": 0},
    {"contains": {"type": "array"}, "minContains": 1, "maxContains": 2},
    {"contains": ZERO, "minContains": 0},
    {"contains": False},
    {"minItems": 1},
    {"minItems": 2},
    {"minItems": 3},
    {"maxItems": 0},
    {"maxItems": 1},
    {"maxItems": 2},
    {"uniqueItems": True},
    {"unevaluatedItems": False},
    {"unevaluatedItems": ZERO},
    {"const": [0]},
    {"const": []},
    {"enum": [[], [0, 0], [0, 1], 0]},
)
"""Each speaks of arrays of 0, 1, the empty string and the empty array."""

FEW_OBJECT_KEYWORDS: Final = tuple(OBJECT_KEYWORDS[number] for number in (1, 2, 3, 4, 6, 7, 8, 11, 15, 18, 20, 24, 27))
FEW_ARRAY_KEYWORDS: Final = tuple(ARRAY_KEYWORDS[number] for number in (1, 2, 4, 5, 7, 8, 9, 11, 15, 18, 20, 23))


def merged(*schemas: Schema) -> Schema | None:
    """The keywords of all schemas in one; None if a keyword comes twice."""
    whole: Schema = {}
    for schema in schemas:
        if not whole.keys().isdisjoint(schema):
            return None
        whole |= schema
    return whole


def together(keywords: Sequence[Schema], num: int) -> Iterator[Schema]:
    """So many different keywords in one schema."""
    for chosen in itertools.combinations(keywords, num):
        schema = merged(*chosen)
        if schema is not None:
            yield schema


def combined(keywords: Sequence[Schema]) -> Iterator[Schema]:
    """The combinators over two keywords each."""
    for one in keywords:
        yield {"not": one}
        yield {"anyOf": [one, {"not": one}]}
    for one, two in itertools.combinations(keywords, 2):
        both = merged(one, two)
        if both is not None:
            yield {"not": both}
        for name in ("allOf", "anyOf", "oneOf"):
            yield {name: [one, two]}
        yield {"not": {"anyOf": [one, two]}}
        yield {"not": {"oneOf": [one, two]}}
    for one, two in itertools.permutations(keywords, 2):
        yield {"if": one, "then": two}
        yield {"if": one, "else": two}


def branched(keywords: Sequence[Schema]) -> Iterator[Schema]:
    """The combinators over three keywords each."""
    for one, two, three in itertools.permutations(keywords, 3):
        yield {"if": one, "then": two, "else": three}
    for one, two, three in itertools.combinations(keywords, 3):
        for name in ("anyOf", "oneOf"):
            yield {name: [one, two, three]}
            yield {"not": {name: [one, two, three]}}


def dependent() -> Iterator[Schema]:
    """What the same key asks for by two keywords, alone in each of the combinators."""
    more: list[Any] = [True, {}, False, ZERO, {"required": ["a"]}, {"maxProperties": 1}, {"properties": {"a": ZERO}}]
    for names, below in itertools.product((["a"], ["b"], ["b", "a"]), more):
        both = {"dependentRequired": {"a": names}, "dependentSchemas": {"a": below}}
        for name in ("allOf", "anyOf", "oneOf"):
            yield {name: [both]}
        yield {"not": {"not": both}}
        yield {"not": both}


def beside(keywords: Sequence[Schema], others: Sequence[Schema]) -> Iterator[Schema]:
    """Every pair of one and another that have no keyword in common."""
    for one, two in itertools.product(keywords, others):
        schema = merged(one, two)
        if schema is not None:
            yield schema


# --- what older drafts write otherwise ---

OLD_ARRAY_KEYWORDS: Final[tuple[Schema, ...]] = (
    {"items": ZERO},
    {"items": [ZERO]},
    {"items": [OTHER, ZERO]},
    {"items": [{}, ZERO], "additionalItems": False},
    {"items": [ZERO], "additionalItems": OTHER},
    {"additionalItems": False},
    {"contains": ZERO},
    {"contains": ZERO, "minContains": 2},
    {"contains": OTHER, "maxContains": 1},
    {"minItems": 2},
    {"maxItems": 1},
    {"uniqueItems": True},
    {"enum": [[], [0, 0], [0, 1], 0]},
)
"""`minContains` and `maxContains` say something in 2019-09 only, `contains` from draft 6 on."""

OLD_OBJECT_KEYWORDS: Final[tuple[Schema, ...]] = (
    {"properties": {"a": ZERO}},
    {"required": ["b", "a"]},
    {"additionalProperties": ZERO},
    {"patternProperties": {"^[ab]$": ZERO}},
    {"propertyNames": {"enum": ["a", "b"]}},
    {"minProperties": 2},
    {"maxProperties": 1},
    {"dependencies": {"a": ["b"]}},
    {"dependencies": {"a": {"maxProperties": 1}, "b": ["c"]}},
    {"dependencies": {"b": {"properties": {"a": ZERO}, "required": ["c"]}}},
    {"dependentRequired": {"a": ["b"]}},
)
"""`dependencies` up to draft 7, `dependentRequired` from 2019-09 on, `propertyNames` from draft 6 on."""


def without_const(schema: Any) -> Any:
    """The same for draft 4, which has no `const`."""
    if isinstance(schema, list):
        return [without_const(entry) for entry in schema]
    if not isinstance(schema, dict):
        return {} if schema is True else {"not": {}} if schema is False else schema
    return {
        ("enum" if key == "const" else key): [value]
        if key == "const"
        else value
        if key in ("enum", "required") or (key == "additionalItems" and isinstance(value, bool))
        else {name: below if isinstance(below, list) else without_const(below) for name, below in value.items()}
        if key in ("properties", "patternProperties", "dependencies", "dependentRequired")
        else without_const(value)
        if isinstance(value, (dict, list))
        else value
        for key, value in schema.items()
    }


# --- values inside of values ---


def nested(inner: Sequence[Schema], *, is_object: bool) -> Iterator[Schema]:
    """Every schema of some as the only one of a member or an item, asked for and not, asserted and denied."""
    for below in inner:
        if is_object:
            yield {"properties": {"a": below}, "required": ["a"]}
            yield {"properties": {"a": below}, "not": {"required": ["b"]}}
            yield {"additionalProperties": below, "minProperties": 1}
            yield {"not": {"properties": {"a": below}}}
            yield {"not": {"additionalProperties": below}, "maxProperties": 1}
        else:
            yield {"items": below, "minItems": 1}
            yield {"prefixItems": [below, below], "items": False}
            yield {"contains": below, "maxContains": 1}
            yield {"not": {"items": below}, "maxItems": 2}
            yield {"items": below, "uniqueItems": True, "minItems": 2, "maxItems": 2}


SELF: Final[Schema] = {"$ref": "#"}
RECURSIVE_OBJECTS: Final[tuple[Schema, ...]] = (
    {"properties": {"a": SELF}},
    {"properties": {"a": SELF}, "required": ["a"]},
    {"properties": {"a": {"anyOf": [SELF, ZERO]}}, "required": ["a"]},
    {"additionalProperties": SELF},
    {"additionalProperties": SELF, "minProperties": 1},
    {"patternProperties": {"a": SELF}, "maxProperties": 1},
    {"properties": {"a": {"not": SELF}}},
    {"properties": {"a": {"not": SELF}}, "required": ["a"]},
    {"dependentSchemas": {"a": {"properties": {"b": SELF}, "required": ["b"]}}},
)
RECURSIVE_ARRAYS: Final[tuple[Schema, ...]] = (
    {"items": SELF},
    {"items": SELF, "minItems": 1},
    {"prefixItems": [SELF], "items": False},
    {"prefixItems": [SELF], "minItems": 1},
    {"contains": SELF},
    {"contains": SELF, "minContains": 0, "maxContains": 1},
    {"items": {"not": SELF}, "maxItems": 2},
    {"items": {"anyOf": [SELF, ZERO]}, "minItems": 1},
    {"unevaluatedItems": SELF, "prefixItems": [ZERO]},
)
"""Schemas that hold themselves; some of them have no value at all."""
