"""Schemas that cannot be used: which error, at which pointer, with which words."""

import sys
from typing import Any

import pytest

from decodekit.constraints.author.coverage import check
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.frames.objects import MAX_WITNESSES
from decodekit.errors import (
    ConstraintError,
    InvalidConstraintError,
    OptionError,
    ResourceLimitError,
    UnresolvableReferenceError,
    UnsatisfiableError,
    UnsupportedSchemaError,
)

UNSUPPORTED: list[tuple[Any, str, str]] = [
    ({"$ref": "#"}, "#", "refers to itself"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "#", "refers to itself"),
    ({"pattern": "\\q"}, "#/pattern", "the escape \\q"),
    ({"pattern": "a(?i)b"}, "#/pattern", "inline flags for a whole pattern"),
    ({"patternProperties": {"(?>a)": {}}}, "#/patternProperties/(?>a)", "atomic groups"),
]
INVALID: list[tuple[Any, str]] = [
    ({"minLength": "x"}, "#/minLength"),
    ({"properties": {"a": {"type": "strng"}}}, "#/properties/a/type"),
    ({"properties": {"a": 5}}, "#/properties/a"),
    ({"allOf": []}, "#/allOf"),
    ({"items": [{}]}, "#/items"),
    ({"multipleOf": 0}, "#/multipleOf"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": 1}}, "#/dependencies/a"),
    ({"pattern": "("}, "#/pattern"),
    ({"required": [1]}, "#/required"),
]
IMPOSSIBLE: list[tuple[Any, str, str]] = [
    ({"type": "integer", "minimum": 5, "maximum": 3}, "#", "minimum 5 > maximum 3: no value fits"),
    (False, "#", "false"),
    (
        {
            "type": "object",
            "properties": {"age": {"type": "string", "minLength": 3, "maxLength": 2}},
            "required": ["age"],
        },
        "#/properties/age",
        "minLength 3 > maxLength 2",
    ),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#/properties/a", "no value fits"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "#", "no value fits"),
    ({"type": "array", "items": {"enum": []}, "minItems": 1}, "#/items", "the enum is empty"),
    ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "#", "no value fits"),
    ({"const": "\ud800"}, "#", "no value fits"),
    (
        {"type": "object", "patternProperties": {"^[ab]$": {}}, "additionalProperties": False, "minProperties": 3},
        "#",
        "no value",
    ),
    ({"type": "array", "contains": {"type": "null"}, "items": {"type": "integer"}}, "#", "no value fits"),
]


@pytest.mark.parametrize(("schema", "pointer", "words"), UNSUPPORTED)
def test_unsupported(schema: Any, pointer: str, words: str) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        JsonSchema(schema).root()
    assert caught.value.at is not None and caught.value.at.startswith(pointer)
    assert words in caught.value.cause


@pytest.mark.parametrize(("schema", "pointer"), INVALID)
def test_invalid(schema: Any, pointer: str) -> None:
    with pytest.raises(InvalidConstraintError) as caught:
        JsonSchema(schema).root()
    assert caught.value.at is not None and caught.value.at.startswith(pointer)


@pytest.mark.parametrize(("schema", "pointer", "words"), IMPOSSIBLE)
def test_impossible(schema: Any, pointer: str, words: str) -> None:
    with pytest.raises(UnsatisfiableError, match="DK202") as caught:
        JsonSchema(schema).root()
    assert caught.value.at is not None and caught.value.at.startswith(pointer)
    assert words in caught.value.cause


def test_references_that_lead_nowhere() -> None:
    with pytest.raises(UnresolvableReferenceError, match="invoice") as caught:
        JsonSchema({"items": {"$ref": "#/$defs/invioce"}, "$defs": {"invoice": {}}}).root()
    assert caught.value.at == "#/items/$ref"
    with pytest.raises(UnresolvableReferenceError, match="nothing is ever fetched"):
        JsonSchema({"$ref": "http://example.com/x"}).root()
    with pytest.raises(UnresolvableReferenceError):
        JsonSchema({"$ref": "#nowhere"}).root()


def test_an_unreachable_refusal_does_not_matter() -> None:
    JsonSchema({"type": "integer", "$defs": {"a": {"pattern": "\\q"}}}).root()


def test_unknown_formats_are_annotations() -> None:
    JsonSchema({"format": "nobody knows"}, format="assert").root()
    JsonSchema({"format": "nobody knows"}).root()


def test_several_refusals_are_told_together() -> None:
    schema = {"properties": {name: {"pattern": "\\q"} for name in "abc"}}
    with pytest.raises(UnsupportedSchemaError, match=r"(?s)and 2 more: #/properties/b/pattern.*#/properties/c"):
        JsonSchema(schema).root()


def test_refusals_are_those_of_the_full_account() -> None:
    # What is refused is found by the few keywords that can be; the account for `check` looks at all of them.
    bad = {"pattern": "\\q", "multipleOf": 1, "title": "t", "format": "date"}
    huge = {"minimum": 0, "patternProperties": {"\\j": bad, "c": {}}, "$ref": "#/$defs/bad"}
    schema = {"$defs": {"bad": bad, "unused": bad}, "anyOf": [huge, bad, {"items": huge}, {"$ref": "#/anyOf/0"}]}
    nums = []
    for candidate in (schema, {**schema, "$schema": "http://json-schema.org/draft-07/schema#"}, {"not": bad}, {}, True):
        library = JsonSchema(candidate).unchecked_network().library
        slow = [finding.error for finding in support.findings(library, "annotate") if finding.error is not None]
        fast = [finding.error for finding in support._troubles(library, "annotate")]
        assert [(type(error), str(error)) for error in fast] == [(type(error), str(error)) for error in slow]
        nums.append(len(fast))
    assert min(nums[:3]) > 0 and nums[3:] == [0, 0] and nums[0] > nums[1]  # draft 7 ignores what stands beside a $ref


def test_options() -> None:
    for options in (
        {"format": "x"},
        {"order": "x"},
        {"whitespace": "x"},
        {"whitespace": -1},
        {"registry": 3},
        {"escapes": 1},
    ):
        with pytest.raises(OptionError):
            JsonSchema({}, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidConstraintError):
        JsonSchema({"const": float("nan")})


def test_coverage_names_every_keyword() -> None:
    found = check(
        {
            "title": "x",
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}, "b": {"x": 1}},
        }
    )
    assert found.draft == "draft 2020-12"
    assert found.is_supported and found.error is None
    assert {entry.pointer: entry.status for entry in found.keywords} == {
        "#/title": "annotation",
        "#/type": "mask",
        "#/properties": "mask",
        "#/properties/a/type": "mask",
        "#/properties/a/minimum": "mask",
        "#/properties/a/maximum": "mask",
        "#/properties/b/x": "annotation",
    }
    assert found.impossible == ("#/properties/a",)
    assert "no value fits #/properties/a" in str(found)


def test_coverage_of_what_is_refused() -> None:
    found = check({"items": {"pattern": "\\q", "format": "date"}})
    assert not found.is_supported and [entry.pointer for entry in found.refused] == ["#/items/pattern"]
    assert isinstance(found.error, UnsupportedSchemaError)
    assert isinstance(check(False).error, UnsatisfiableError)
    assert isinstance(check({"$ref": "#"}).error, UnsupportedSchemaError)
    with pytest.raises(ConstraintError):
        check({"type": 5})


def test_equal_content_is_equal() -> None:
    first, second = JsonSchema({"a": 1}), JsonSchema({"a": 1})
    assert first == second and hash(first) == hash(second) and first.network() is second.network()
    assert first != JsonSchema({"a": 2}) and first != JsonSchema({"a": 1}, order="any")
    with pytest.raises(AttributeError):
        first.order = "any"


def test_parse_refuses_repeated_keys() -> None:
    assert JsonSchema({}).parse('{"a": 1, "b": [2.5]}') == {"a": 1, "b": [2.5]}
    with pytest.raises(ValueError, match="'a' occurs twice"):
        JsonSchema({}).parse('{"a": 1, "\\u0061": 2}')


def test_errors_are_met_before_the_first_text() -> None:
    with pytest.raises(UnsupportedSchemaError):
        JsonSchema({"properties": {"a": {"$ref": "#/properties/a"}}}).root()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the json of Python 3.14 has no bound at 10,000 levels")
def test_deep_nesting_is_a_typed_error() -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ResourceLimitError):
        JsonSchema(deep)


@pytest.mark.parametrize("num_more", [0, 1])
def test_what_is_left_to_the_guard_is_what_exceeds_the_bound_on_denied_keywords(num_more: int) -> None:
    denied = [{"not": {"patternProperties": {f"^{n}": {"type": "null"}}}} for n in range(MAX_WITNESSES + num_more)]
    network = JsonSchema({"type": "object", "allOf": denied}).network()
    assert [plan.spec.witnesses != () for plan in network.objects(network.root_goal)] == [True]
    assert len(network.semantics.left) == num_more
