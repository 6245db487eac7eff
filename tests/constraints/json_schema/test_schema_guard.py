"""What exceeds a limit is left to the guard: every schema is enforced whole, and nothing valid is refused.

The strongest test lowers the limits: small schemas exceed them then, and all texts of a small world have to be accepted
as ever. The others build schemas just above the limits as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

import decodekit as dk
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.guard.guard_rules import SchemaJudge
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.values.shape import NOTHING
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.work_budget import Work
from decodekit.errors import GuardError, UnsatisfiableError
from tests.constraints.json_schema import small_schemas as small
from tests.constraints.json_schema.low_limits import LIMITS, forget, lower
from tests.constraints.json_schema.small_worlds import faults
from tests.constraints.json_schema.test_small_schemas import FEW_ARRAYS, FEW_OBJECTS, every
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few, sized, thinned

Schema = dict[str, Any]


SOME_OBJECTS: list[Schema] = [
    *every(5, [*small.OBJECT_KEYWORDS, *({"not": keyword} for keyword in small.OBJECT_KEYWORDS)]),
    *every(80, small.together(small.OBJECT_KEYWORDS, 2)),
    *every(60, small.combined(small.FEW_OBJECT_KEYWORDS)),
    *every(20, small.beside([{"unevaluatedProperties": False}], list(small.combined(small.OBJECT_KEYWORDS[1:9:3])))),
]
SOME_ARRAYS: list[Schema] = [
    *every(5, [*small.ARRAY_KEYWORDS, *({"not": keyword} for keyword in small.ARRAY_KEYWORDS)]),
    *every(60, small.together(small.ARRAY_KEYWORDS, 2)),
    *every(50, small.combined(small.FEW_ARRAY_KEYWORDS)),
    *every(20, small.beside([{"unevaluatedItems": small.ZERO}], list(small.combined(small.ARRAY_KEYWORDS[1:8:3])))),
]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget()


def num_left(schemas: list[Schema]) -> int:
    """In how many schemas the mask leaves something to the guard."""
    num = 0
    for schema in schemas:
        rule = JsonSchema(schema, order="any", whitespace="compact")
        try:
            has_left = bool(rule.network().semantics.left)
        except UnsatisfiableError:
            continue
        assert not has_left or rule.guard() is not None
        num += has_left
    return num


@few(4)
@thinned("name", LIMITS, keep=[*LIMITS][::2])
def test_small_schemas_under_low_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted is what `jsonschema` calls valid, as under the normal limits (see `test_small_schemas`)."""
    lower(monkeypatch, LIMITS[name])
    objects = [{"type": "object", **below} for below in every(2, SOME_OBJECTS)]
    arrays = [{"type": "array", **below} for below in every(2, SOME_ARRAYS)]
    found = [fault for schema in objects for fault in faults(schema, FEW_OBJECTS)]
    found += [fault for schema in arrays for fault in faults(schema, FEW_ARRAYS)]
    assert not found, "\n".join(found[:10])
    assert num_left([*objects, *arrays]) >= 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LIMITS)
def test_more_small_schemas_under_low_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, LIMITS[name])
    objects = [*SOME_OBJECTS, *every(3, small.together(small.OBJECT_KEYWORDS, 2))]
    objects += small.combined(small.FEW_OBJECT_KEYWORDS)
    arrays = [*SOME_ARRAYS, *small.together(small.ARRAY_KEYWORDS, 2), *small.combined(small.FEW_ARRAY_KEYWORDS)]
    found = [fault for below in objects for fault in faults({"type": "object", **below}, FEW_OBJECTS)]
    found += [fault for below in arrays for fault in faults({"type": "array", **below}, FEW_ARRAYS)]
    assert not found, "\n".join(found[:10])


def judges_nothing(self: SchemaJudge, location: object, value: object) -> Work[object]:
    yield 0
    return self


def weaker_is_nothing(self: Semantics, shapes: object, place: object = None) -> object:
    return NOTHING


@pytest.mark.parametrize(
    ("owner", "attribute", "broken"),
    [(SchemaJudge, "judging", judges_nothing), (Semantics, "union", weaker_is_nothing)],
)
def test_a_guard_that_accepts_all_and_a_mask_that_is_too_narrow_are_found(
    owner: type, attribute: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, {"MAX_ALTERNATIVES": 1})
    monkeypatch.setattr(owner, attribute, broken)
    schemas = [{"type": "object", **below} for below in every(20, small.combined(small.FEW_OBJECT_KEYWORDS))]
    assert any(faults(schema, FEW_OBJECTS) for schema in schemas)


# -- schemas just above the limits as they are

PAIRS = [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(10)]
ALL_A = {f"a{n}": 0 for n in range(10)}
OBJECT = {"type": "object"}
ABOVE: dict[str, tuple[Schema, list[Any], list[Any], str]] = {
    "2**10 alternatives": (
        {**OBJECT, "allOf": PAIRS},
        [ALL_A, {**ALL_A, "b3": 1}],
        [{}, {key: 0 for key in ALL_A if key != "a9"}],
        "#/allOf",
    ),
    "2**10 alternatives, denied": (
        {**OBJECT, "not": {"anyOf": [{"not": pair} for pair in PAIRS]}},
        [ALL_A],
        [{}, {key: 0 for key in ALL_A if key != "a9"}],
        "#/not",
    ),
    "2**10 alternatives of a property": (
        {**OBJECT, "properties": {"p": {**OBJECT, "allOf": PAIRS}}, "required": ["p"]},
        [{"p": ALL_A}],
        [{"p": {}}, {"p": {"a0": 0}}],
        "#/properties/p/allOf",
    ),
    "600 objects": (
        {"enum": [{"n": n, "m": [n % 7]} for n in range(600)]},
        [{"n": 5, "m": [5]}, {"n": 599, "m": [4]}],
        [{"n": 5, "m": [4]}, {"n": 600, "m": [5]}, {"n": 5}],
        "#/enum",
    ),
    "not 600 objects": (
        {**OBJECT, "not": {"enum": [{"n": n, "m": n % 7} for n in range(600)]}},
        [{"n": 5, "m": 4}, {}, {"n": 5}],
        [{"n": 5, "m": 5}, {"n": 599, "m": 4}],
        "#/not/enum",
    ),
    "600 arrays": ({"enum": [[n, n % 7] for n in range(600)]}, [[8, 1]], [[8, 2], [8]], "#/enum"),
    "1,001 branches of oneOf": (
        {**OBJECT, "oneOf": [{"required": [f"k{n}"]} for n in range(1_001)]},
        [{"k7": 0}, {"k1000": 1}],
        [{}, {"k7": 0, "k8": 0}],
        "#/oneOf",
    ),
    "not one of 1,001": (
        {**OBJECT, "not": {"oneOf": [{"required": [f"k{n}"]} for n in range(1_001)]}},
        [{}, {"k7": 0, "k8": 0}],
        [{"k7": 0}],
        "#/not/oneOf",
    ),
    "70 dependencies": (
        {**OBJECT, "dependentRequired": {f"a{n}": [f"b{n}"] for n in range(70)}},
        [{}, {"a69": 1, "b69": 1}],
        [{"a69": 1}, {"a0": 1, "b1": 1}],
        "#/dependentRequired",
    ),
    "7 witnesses": (
        {**OBJECT, "allOf": [{"not": {"additionalProperties": {"not": {"const": n}}}} for n in range(7)]},
        [{f"k{n}": n for n in range(7)}],
        [{f"k{n}": n for n in range(6)}, {}],
        "#/allOf/6/not/additionalProperties",
    ),
    "40 classes of keys": (
        {**OBJECT, "patternProperties": {f"^{'.' * n}a": {"minimum": n} for n in range(8)}},
        [{"aaaaaaaa": 7}, {"b": 0}, {"xxxxxxxa": 7}],
        [{"aaaaaaaa": 6}, {"xxxxxxxa": 6}],
        "#/patternProperties",
    ),
    "7 times contains": (
        {"type": "array", "allOf": [{"contains": {"const": n}} for n in range(7)]},
        [list(range(7)), [6, 5, 4, 3, 2, 1, 0, 9]],
        [[], list(range(6)), list(range(1, 7))],
        "#/allOf/6/contains",
    ),
    "30,000 that count": (
        {"type": "array", "contains": {"type": "null"}, "minContains": 3 * 10**4, "maxContains": 4 * 10**4},
        [],
        [[], [None], [1]],
        "#/contains",
    ),
    "more than 1,000 digits": (
        {"type": "integer", "minimum": 10**1_300},
        [10**1_300, 10**1_301],
        [0, 10**1_299, -(10**1_301)],
        "#/minimum",
    ),
    "a back-reference": (
        {"type": "object", "additionalProperties": {"type": "string", "pattern": "^(a|bc)x\\1$"}},
        [{"k": "axa"}, {"k": "bcxbc"}, {}],
        [{"k": "axbc"}, {"k": "ax"}, {"k": "axa", "l": "bcxa"}],
        "#/additionalProperties/pattern",
    ),
    "a back-reference, denied": (
        {"type": "object", "additionalProperties": {"type": "string", "not": {"pattern": "^(.)\\1"}}},
        [{"k": "ab"}, {"k": ""}],
        [{"k": "aab"}, {"k": "bb"}],
        "#/additionalProperties/not/pattern",
    ),
    "a back-reference in a key": (
        {"patternProperties": {"^(.)\\1$": {"const": 0}}, "additionalProperties": {"const": 1}, **OBJECT},
        [{"aa": 0}, {"ab": 1}],
        [{"aa": 1}, {"ab": 0}],
        "#/patternProperties",
    ),
    "a lookbehind in a repetition": (
        {"type": "object", "additionalProperties": {"type": "string", "pattern": "^a((?<=a)b|(?<=b)a)*$"}},
        [{"k": "abab"}, {"k": "a"}],
        [{"k": "abb"}, {"k": "aa"}],
        "#/additionalProperties/pattern",
    ),
    "unevaluated beside many branches": (
        {
            **OBJECT,
            "anyOf": [{"properties": {f"k{n}": {"const": n}}} for n in range(12)],
            "unevaluatedProperties": False,
        },
        [{"k3": 3}, {"k3": 3, "k11": 11}],
        [{"k3": 4}, {"z": 0}],
        "#/unevaluatedProperties",
    ),
    "a tower of anyOf": (
        {
            **OBJECT,
            "$ref": "#/$defs/d0",
            "$defs": {
                **{
                    f"d{n}": {
                        "anyOf": [
                            {"$ref": f"#/$defs/d{n + 1}", "required": [f"a{n}"]},
                            {"$ref": f"#/$defs/d{n + 1}", "required": [f"b{n}"]},
                        ]
                    }
                    for n in range(10)
                },
                "d10": {},
            },
        },
        [ALL_A],
        [{}, {"a0": 0}],
        "#/$defs/",
    ),
}
"""By name: a schema above a limit, valid and invalid values, and the beginning of what is left to the guard."""


def accepts(rule: JsonSchema, text: bytes) -> bool:
    """Whether a text is accepted token by token, and may end."""
    matcher = compile(rule, byte_vocabulary()).matcher()
    return all(matcher.accept(byte) for byte in text) and matcher.is_accepting


@few(2)
@thinned("name", ABOVE, keep=[*ABOVE][::2])
def test_above_the_limits(name: str) -> None:
    schema, valid, invalid, pointer = ABOVE[name]
    rule = JsonSchema(schema, order="any", whitespace="compact")
    for value, is_valid in [*((value, True) for value in valid), *((value, False) for value in invalid)]:
        assert jsonschema.Draft202012Validator(schema).is_valid(value) == is_valid
        text = json.dumps(value, separators=(",", ":")).encode()
        assert accepts(rule, text) == is_valid, text
    found = dk.check(schema)
    assert found.is_supported
    guarded = [entry for entry in found.keywords if entry.status == "guard"]
    assert any(entry.pointer.startswith(pointer) and entry.reason for entry in guarded), str(found)
    assert "because" in "".join(found.warnings)


def test_a_schema_below_the_limits_has_no_guard() -> None:
    for schema in ({**OBJECT, "allOf": PAIRS[:8]}, {"enum": [{"n": n} for n in range(500)]}, {"pattern": "^(a|b)c$"}):
        rule = JsonSchema(schema)
        rule.root()
        assert rule.guard() is None and not rule.network().semantics.left


# -- generation

DRAWN: dict[str, Schema] = {
    "alternatives": {
        **OBJECT,
        "properties": {f"{letter}{n}": {"type": "boolean"} for n in range(10) for letter in "ab"},
        "required": [f"a{n}" for n in range(9)],
        "additionalProperties": False,
        "allOf": PAIRS,
    },
    "a back-reference": {
        **OBJECT,
        "properties": {"k": {"type": "string", "pattern": "^(a|b)\\1$"}},
        "required": ["k"],
        "additionalProperties": False,
    },
    "objects": {"enum": [{"n": n % 30, "m": n // 30 % 4, "o": n // 120} for n in range(600)]},
}


@few(1)
@sized("num_texts", 1, slow=6)
@pytest.mark.parametrize("name", DRAWN)
def test_drawn_texts_are_valid(name: str, num_texts: int) -> None:
    schema = DRAWN[name]
    rule = JsonSchema(schema, whitespace="compact")
    assert rule.guard() is not None
    llm = dk.LLM.load("tiny")
    validator = jsonschema.Draft202012Validator(schema)
    for seed in range(num_texts):
        drawn = llm.generate(
            "some JSON: ", constraint=rule, strategy=dk.Sample(temperature=1.5, seed=seed), max_new_tokens=400
        )
        assert drawn.finish_reason == "complete" and validator.is_valid(json.loads(drawn.text)), drawn.text


def test_a_guard_that_is_never_content_ends_in_a_typed_error() -> None:
    """The mask cannot tell that no value fits; a row tries a bounded number of texts."""
    names = [f"{letter}{n}" for n in range(10) for letter in "ab"]
    schema = {**OBJECT, "allOf": PAIRS, "maxProperties": 9, "additionalProperties": False,
              "properties": {name: {"const": None} for name in names}}  # fmt: skip
    out = dk.LLM.load("tiny").generate("x", constraint=schema, max_new_tokens=300, max_rollbacks=4)
    assert isinstance(out.error, GuardError) and "#/allOf" in str(out.error)


def test_the_shortest_text_is_one_of_the_mask() -> None:
    grammar = compile(JsonSchema(DRAWN["objects"], whitespace="compact"), byte_vocabulary())
    assert grammar.least_tokens() == len('{"n":0,"m":0,"o":0}')
