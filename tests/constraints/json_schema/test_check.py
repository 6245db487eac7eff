"""What `check` says beside coverage: budgets, reasons, warnings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, AwareDatetime, BaseModel, PastDate, field_validator, model_validator

import decodekit as dk
from decodekit.constraints.author.coverage import NO_BOUND
from decodekit.errors import InvalidConstraintError, UnknownNameError
from tests.reference.any_json import any_json
from tests.reference.vocabularies import byte_vocabulary

BYTES = byte_vocabulary()
COMPACT: dict[str, Any] = {"whitespace": "compact"}


@pytest.mark.parametrize(
    ("schema", "least", "most"),
    [
        ({"enum": ["a", "bcd", None]}, 3, 20),  # "bcd" as three escapes of six bytes, and two quotes
        ({"type": "boolean"}, 4, 5),
        ({"type": "array", "items": {"const": None}, "minItems": 1, "maxItems": 3}, 6, 16),
        (
            {"type": "object", "properties": {"a": {"const": None}}, "additionalProperties": False},
            2,
            15,
        ),  # a key of one escape
        ({"type": "string"}, 2, None),
        ({"type": "string", "maxLength": 32_767}, 2, 12 * 32_767 + 2),  # two escapes for each character
        ({"type": "array", "items": {"type": "string", "maxLength": 9_000}, "maxItems": 9}, 2, 9 * 108_003 + 1),
        ({"type": "array", "items": {"type": "boolean"}}, 2, None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}]}}}, 2, None),
    ],
)
def test_least_and_most(schema: Any, least: int, most: int | None) -> None:
    coverage = dk.check(any_json(schema, **COMPACT), tokenizer=BYTES)
    assert coverage.least_tokens == least
    assert coverage.most_tokens == most


@pytest.mark.parametrize(
    ("schema", "most"),
    [
        ({"enum": ["a", "bcd", None]}, 5),
        ({"const": 'a"\u00e9'}, 11),  # the quote as \\u0022
        ({"type": "string", "maxLength": 32_767}, 6 * 32_767 + 2),  # a control character is an escape of six bytes
        ({"type": "string", "maxLength": 7, "pattern": "^[a-z]+$"}, 9),
        ({"type": "array", "items": {"type": "string", "maxLength": 9_000}, "maxItems": 9}, 9 * 54_003 + 1),
        ({"type": "string"}, None),
    ],
)
def test_most_with_the_needed_escapes_alone(schema: Any, most: int | None) -> None:
    assert dk.check(dk.JsonSchema(schema, whitespace="compact"), tokenizer=BYTES).most_tokens == most


@pytest.mark.parametrize("order", ["any", "declared"])
def test_the_order_of_members_does_not_change_how_long_they_get(order: Literal["any", "declared"]) -> None:
    members = {f"k{number:02}": {"type": "null"} for number in range(20)}
    schema = {"type": "object", "properties": members, "additionalProperties": False, "minProperties": 3}
    rule = dk.JsonSchema(schema, order=order, whitespace="compact", escapes="needed")
    coverage = dk.check(rule, tokenizer=BYTES)
    assert (coverage.least_tokens, coverage.most_tokens) == (2 + 3 * 11 - 1, 2 + 20 * 11 - 1)


def test_without_a_tokenizer_nothing_is_counted() -> None:
    coverage = dk.check({"type": "boolean"})
    assert coverage.least_tokens is None and coverage.most_tokens is None


def test_the_report() -> None:
    """Each fact once: the keywords schema by schema, the parts that no value fits, the tokens, the warnings."""
    schema = {
        "title": "T",
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 5, "maximum": 3},
            "at": {"type": "string", "format": "date"},
            "tags": {"$ref": "#/$defs/tags"},
        },
        "requird": ["at"],
        "$defs": {"tags": {"type": "array", "items": {"type": "object"}, "uniqueItems": True}},
    }
    assert str(dk.check(dk.JsonSchema(schema, whitespace="compact"), tokenizer=BYTES)).split("\n") == [
        "draft 2020-12: 10 keywords in the mask of every token, 1 by a guard when a value is complete, 4 annotations",
        "  #                  mask type, properties; annotation title, requird, $defs",
        "    properties/age   mask type, minimum, maximum",
        "    properties/at    mask type; annotation format",
        "    properties/tags  mask $ref",
        "    $defs/tags       mask type, items; guard uniqueItems",
        "      items          mask type",
        "no value fits #/properties/age: minimum 5 > maximum 3",
        f"tokens: 2 for the smallest value, {NO_BOUND}",
        'warning: #/requird: "requird" is no keyword of draft 2020-12: it is an annotation; did you mean "required"?',
        'warning: #/properties/at/format: the format "date" is an annotation; '
        'JsonSchema(..., format="assert") enforces it',
        "warning: #/$defs/tags/uniqueItems: enforced by a guard when a value is complete; texts may be taken back",
    ]
    impossible = {**schema, "required": ["age"]}
    lines = str(dk.check(impossible, tokenizer=BYTES)).split("\n")
    assert lines[0] == "refused (DK202): no value fits"
    assert lines[8:10] == [
        'no value fits #: the required property "age" is impossible',
        "no value fits #/properties/age: minimum 5 > maximum 3",
    ]
    assert not any(line.startswith("tokens") for line in lines) and "DK202" not in "\n".join(lines[1:])


def test_the_report_of_what_is_not_supported() -> None:
    lines = str(dk.check({"items": {"pattern": "\\q"}, "properties": {"b": {"pattern": "\\j"}}})).split("\n")
    assert lines[0] == "refused (DK201): 2 keywords"
    assert sum(line.startswith("DK201 the escape") for line in lines) == 2
    assert any("at  #/properties/b/pattern" in line for line in lines)
    deep = str(dk.check({"$ref": "#"}))
    assert deep.startswith("refused (DK201)\n") and deep.count("refers to itself") == 1 and "  at  #" in deep
    assert str(dk.check(False)).split("\n") == [
        "refused (DK202): no value fits",
        "draft 2020-12: 0 keywords in the mask of every token",
        "no value fits #: the schema is false",
    ]


def _warnings(schema: Any, draft: str = "", **options: Any) -> str:
    uri = {"": {}, "4": {"$schema": "http://json-schema.org/draft-04/schema#"}}.get(
        draft, {"$schema": f"http://json-schema.org/draft-0{draft}/schema#"}
    )
    if draft.startswith("20"):
        uri = {"$schema": f"https://json-schema.org/draft/{draft}/schema"}
    return "\n".join(dk.check(dk.JsonSchema({**uri, **schema}, **options)).warnings)


SINCE = {"examples": 6, "$comment": 7, "readOnly": 7, "writeOnly": 7, "contentMediaType": 7, "deprecated": 2019}


@pytest.mark.parametrize("draft", ["4", "6", "7", "2019-09", "2020-12"])
def test_the_keywords_of_each_draft_are_no_surprise(draft: str) -> None:
    number = int(draft.partition("-")[0])
    every = {
        "title": "T",
        "description": "d",
        "default": 1,
        "x-note": 1,
        "type": "string",
        "id" if number == 4 else "$id": "u:a",
    }
    known = {name: "x" for name, first in SINCE.items() if first <= number}
    assert _warnings({**every, **known}, draft) == ""
    for name in SINCE.keys() - known.keys():
        first = {2019: "2019-09"}.get(SINCE[name], SINCE[name])
        said = f'#/{name}: "{name}" is a keyword since draft {first}, in draft {draft} it is an annotation'
        assert _warnings({**every, name: "x"}, draft) == said


@pytest.mark.parametrize(
    ("schema", "draft", "said"),
    [
        ({"prefixItems": [{}]}, "7", 'in draft 7 it is an annotation; draft 7 has "items" with a list'),
        ({"$defs": {}}, "7", 'since draft 2019-09, in draft 7 it is an annotation, and references'),
        ({"definitions": {}}, "2020-12", 'up to draft 7, in draft 2020-12 it is an annotation, and references into it'),
        ({"definitions": {}}, "", 'draft 2020-12 has "$defs"'),
        ({"id": "x"}, "2020-12", 'of draft 4, in draft 2020-12 it is an annotation; draft 2020-12 has "$id"'),
        ({"$id": "u:x"}, "4", 'since draft 6, in draft 4 it is an annotation; draft 4 has "id"'),
        ({"dependencies": {}}, "2020-12", 'draft 2020-12 has "dependentRequired" or "dependentSchemas"'),
        ({"dependentRequired": {}}, "7", 'draft 7 has "dependencies"'),
        ({"additionalItems": {}}, "2020-12", 'up to draft 2019-09, in draft 2020-12 it is an annotation'),
        ({"const": 1}, "4", 'since draft 6, in draft 4 it is an annotation; draft 4 has "enum" with one value'),
        ({"$recursiveRef": "#"}, "2020-12", 'of draft 2019-09, in draft 2020-12 it is an annotation; draft'),
        ({"if": {}}, "6", 'since draft 7, in draft 6 it is an annotation'),
        ({"maxLenght": 3}, "", 'no keyword of draft 2020-12: it is an annotation; did you mean "maxLength"?'),
        ({"$comments": "x"}, "", 'did you mean "$comment"?'),
        ({"nullable": True}, "", 'of OpenAPI, in draft 2020-12 it is an annotation; draft 2020-12 has "type"'),
        ({"zzz": 3}, "", '#/zzz: "zzz" is no keyword of draft 2020-12: it is an annotation'),
        ({"$ref": "#/definitions/a", "definitions": {"a": {}}, "maximum": 2}, "7", '"maximum" is ignored beside'),
        ({"format": "dat"}, "", 'the format "dat" is not known: it is an annotation'),
        ({"format": "date"}, "", 'the format "date" is an annotation; JsonSchema(..., format="assert") enforces it'),
    ],
    ids=str,
)  # fmt: skip
def test_warnings_by_name(schema: Any, draft: str, said: str) -> None:
    warnings = _warnings(schema, draft)
    assert said in warnings and warnings.count("\n") == 0


def test_what_is_enforced_gets_no_warning() -> None:
    assert _warnings({"format": "date"}, format="assert") == ""
    assert _warnings({"$ref": "#/$defs/a", "$defs": {"a": {}}, "minLength": 2}) == ""
    assert _warnings({"prefixItems": [{}], "$defs": {}, "const": 1, "$id": "u:x", "dependentRequired": {}}) == ""
    assert _warnings({"discriminator": {"propertyName": "a"}, "example": 1}) == ""
    assert dk.check(list[int]).warnings == ()


def test_what_is_taken() -> None:
    schema = {"type": "string", "format": "date"}
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = dk.check(wrapped, format="assert")
    assert found == dk.check(schema, format="assert") == dk.check(dk.JsonSchema(schema, format="assert"))
    assert found.num_keywords("mask") == 2 and found != dk.check(schema)
    for other in (dk.Regex("a"), {"type": "structural_tag", "structures": [], "triggers": []}, {"tools": []}):
        with pytest.raises(InvalidConstraintError):
            dk.check(other)
    with pytest.raises(InvalidConstraintError, match="check looks at JSON Schemas, and this is a Regex"):
        dk.check(dk.Regex("a"))
    for text in ('{"type": "string"}', "[a-z]+", "os.getcwd()"):
        with pytest.raises(UnknownNameError, match=r"(?s)no constraint .*if the text is no name") as caught:
            dk.check(text)
        assert 'JsonSchema(json.loads("..."))' in str(caught.value) and "Installed" not in str(caught.value)


def test_equal_warnings_are_one() -> None:
    schema = {"properties": {name: {"nullable": True} for name in "abcde"}}
    assert _warnings(schema).startswith(
        "#/properties/a/nullable, #/properties/b/nullable, #/properties/c/nullable, … (5 places): "
    )


def test_guards_are_named() -> None:
    coverage = dk.check({"type": "array", "uniqueItems": True, "items": {"type": "object"}}, tokenizer=BYTES)
    assert [entry.pointer for entry in coverage.keywords if entry.status == "guard"] == ["#/uniqueItems"]
    assert any("guard" in warning for warning in coverage.warnings)
    assert coverage.least_tokens == 2 and coverage.most_tokens is None
    assert "tokens: 2 for the smallest value, no bound above" in str(coverage)


class Person(BaseModel):
    born: PastDate
    names: list[Annotated[str, AfterValidator(str.title)]]

    @field_validator("names")
    @classmethod
    def has_two(cls, names: list[str]) -> list[str]:
        if len(names) < 2:
            raise ValueError("a first and a last name")
        return names

    @model_validator(mode="after")
    def is_grown_up(self) -> Person:
        return self


class Point(BaseModel):
    moment: AwareDatetime
    marks: dict[int, bool]


def test_validators_that_are_only_asked_are_named() -> None:
    coverage = dk.check(Person)
    assert {(one.pointer, one.name, one.status) for one in coverage.validators} == {
        ("#/properties/born", "in the past", "guard"),
        ("#/properties/names/items", "str.title", "end"),
        ("#/properties/names", "Person.has_two", "end"),
        ("#", "Person.is_grown_up", "end"),
    }
    assert 'validator "Person.has_two" of #/properties/names: asked when the text has ended' in str(coverage)
    assert "4 validators" in str(coverage)
    assert not dk.check(Point).validators and "validator" not in str(dk.check(Point))


def test_the_guard_of_a_type_takes_back_the_value_that_it_refuses() -> None:
    guard = dk.JsonSchema(Person).guard()
    assert guard is not None
    text = b'{"born":"2999-01-01","names":["A","B"]}'
    refusal = guard.refuses(text)
    assert refusal is not None and (refusal.at, text[: refusal.keep]) == ("#/born", b'{"born":"')
    assert "past" in refusal.message
    assert guard.refuses(text.replace(b"2999", b"1999")) is None
    assert dk.JsonSchema(Point).guard() is None
