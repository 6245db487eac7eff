"""Patterns of `re`, adapters of Pydantic, validators of jsonschema and objects of outlines_core as constraints."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
import referencing
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator, FormatChecker
from referencing.jsonschema import DRAFT7

import decodekit as dk
from decodekit.constraints import JsonSchema, Regex, as_constraint
from decodekit.constraints.fingerprint import described
from decodekit.errors import DecodekitError, InvalidConstraintError, UnsupportedSchemaError
from decodekit.jobs.job_schema import load_schema
from decodekit.testing import check_language

# --- re.Pattern ---


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile("a.b|c"),
        re.compile("a.b|é", re.DOTALL | re.IGNORECASE),
        re.compile("(?i:a)b"),
        re.compile("(?is)a.b"),
        re.compile("^a$|^b", re.MULTILINE),
        re.compile("a b  # c", re.VERBOSE),
        re.compile(r"\w+", re.ASCII),
        re.compile(r"\w+", re.UNICODE),
        re.compile("a|ab"),
        re.compile("a+?b??"),
    ],
    ids=lambda pattern: f"{pattern.pattern}-{int(pattern.flags)}",
)
def test_patterns_match_as_fullmatch_does(pattern: re.Pattern[str]) -> None:
    constraint = as_constraint(pattern)
    assert isinstance(constraint, Regex)
    for letters in itertools.chain.from_iterable(itertools.product("aBbcé\n ", repeat=n) for n in range(4)):
        text = "".join(letters)
        try:
            constraint.parse(text)
        except ValueError:
            assert pattern.fullmatch(text) is None
        else:
            assert pattern.fullmatch(text)
    assert pickle.loads(pickle.dumps(constraint)) == constraint


@pytest.mark.parametrize(("pattern", "said"), [(re.compile(b"a"), "matches bytes"), (re.compile(r"(a)\1"), "back-ref")])
def test_patterns_that_are_refused(pattern: re.Pattern[Any], said: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=said) as caught:
        as_constraint(pattern)
    assert caught.value.hint


# --- pydantic.TypeAdapter ---


class Point(pydantic.BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def double(cls, value: int) -> int:
        return value * 2


def test_the_values_of_an_adapter_are_read_by_it() -> None:
    adapter = pydantic.TypeAdapter(list[Point])
    constraint = as_constraint(adapter)
    assert constraint.parse('[{"x":3}]') == [Point.model_construct(x=6)]
    check_language(adapter, accepts=["[]", '[{"x":1},{"x":2}]'], rejects=["{}", '[{"y":1}]', ""])
    assert constraint == as_constraint(adapter)
    assert isinstance(constraint, JsonSchema)
    assert constraint.schema == JsonSchema(list[Point]).schema
    assert pickle.loads(pickle.dumps(constraint)).schema == constraint.schema


def test_the_configuration_of_an_adapter_holds() -> None:
    @pydantic.with_config(pydantic.ConfigDict(str_max_length=2))
    @dataclasses.dataclass
    class Named:
        name: str

    check_language(pydantic.TypeAdapter(Named), accepts=['{"name":"ab"}'], rejects=['{"name":"abc"}'])
    adapter = pydantic.TypeAdapter(str, config=pydantic.ConfigDict(str_to_upper=True))
    assert as_constraint(adapter).parse('"ab"') == "AB"


def test_a_job_sees_the_classes_in_an_adapter(tmp_path: Path) -> None:
    program = """
import pydantic
class Item(pydantic.BaseModel):
    n: int
    @pydantic.field_validator("n")
    @classmethod
    def small(cls, value: int) -> int:
        assert value < LIMIT
        return value
RULE = pydantic.TypeAdapter(list[Item])
"""
    said = []
    for number, limit in enumerate((10, 10, 20)):
        path = tmp_path / str(number) / "rules.py"
        path.parent.mkdir()
        path.write_text(program.replace("LIMIT", str(limit)))
        found = load_schema(f"{path}:RULE")
        assert found.schema["type"] == "array"  # type: ignore[index]
        said.append(json.dumps([found.reading, found.schema]))
    assert "0x" not in said[0]
    assert said[0] == said[1] != said[2]


# --- validators of jsonschema ---

SCHEMA = {"type": "object", "properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"]}


def test_a_validator_is_its_schema() -> None:
    assert as_constraint(Draft202012Validator(SCHEMA)) == JsonSchema(SCHEMA)
    assert as_constraint(Draft202012Validator(True)) == JsonSchema(True)
    check_language(Draft202012Validator({"type": "integer", "minimum": 3}), accepts=["3", "12"], rejects=["2", '"3"'])


def test_a_validator_reads_in_its_draft() -> None:
    """A list of ``items`` is a tuple in draft 7, and no schema in 2020-12; what stands beside ``$ref`` is ignored."""
    pairs = {"type": "array", "items": [{"type": "null"}, {"const": 1}], "additionalItems": False}
    check_language(Draft7Validator(pairs), accepts=["[null, 1]", "[]"], rejects=["[1]", "[null,1,1]"])
    beside = {"definitions": {"n": {"type": "integer"}}, "$ref": "#/definitions/n", "minimum": 3}
    check_language(Draft7Validator(beside), accepts=["1", "5"], rejects=['"a"'])
    check_language(Draft4Validator({"enum": [1, "a"]}), accepts=["1", '"a"'], rejects=["2"])


def test_a_validator_with_a_registry() -> None:
    """The documents are read in the draft of the validator where they declare none."""
    contents = {"type": "array", "items": [{"type": "null"}], "additionalItems": False}
    resource = DRAFT7.create_resource(contents)
    registry = referencing.Registry().with_resource("https://example.org/a", resource)
    validator = Draft7Validator({"$ref": "https://example.org/a"}, registry=registry)
    check_language(validator, accepts=["[]", "[null]"], rejects=["[1]", "[null,null]"])
    with pytest.raises(DecodekitError, match=r"example\.org/b"):
        as_constraint(Draft7Validator({"$ref": "https://example.org/b"}, registry=registry)).root()


def test_a_validator_with_a_format_checker() -> None:
    for validator, is_enforced in (
        (Draft202012Validator(SCHEMA), False),
        (Draft202012Validator(SCHEMA, format_checker=FormatChecker()), True),
        (Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER), True),
        (Draft202012Validator(SCHEMA, format_checker=FormatChecker(["email"])), False),
    ):
        constraint = as_constraint(validator)
        assert isinstance(constraint, JsonSchema) and (constraint.format == "assert") == is_enforced
        check_language(validator, accepts=['{"d":"2020-01-31"}'], rejects=['{"d":"2020-01-32"}'] * is_enforced)


def own_checker() -> FormatChecker:
    checker = FormatChecker(["email"])
    checker.checks("plate")(lambda value: value == "A")
    return checker


def own_date() -> FormatChecker:
    checker = FormatChecker(["date"])
    checker.checks("date")(lambda value: value == "A")
    return checker


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (lambda: Draft7Validator, InvalidConstraintError, "without a schema"),
        (lambda: jsonschema.Draft3Validator({}), UnsupportedSchemaError, "Draft3Validator"),
        (lambda: jsonschema.validators.extend(Draft7Validator)({}), UnsupportedSchemaError, "of its own"),
        (
            lambda: jsonschema.validators.extend(Draft7Validator, {"even": lambda *_: None})({}),
            UnsupportedSchemaError,
            "of its own",
        ),
        (lambda: Draft7Validator({"$schema": "http://json-schema.org/draft-04/schema#"}), UnsupportedSchemaError, "04"),
        (lambda: Draft7Validator({"format": "plate"}, format_checker=own_checker()), UnsupportedSchemaError, "'plate'"),
        (lambda: Draft7Validator(SCHEMA, format_checker=own_date()), UnsupportedSchemaError, "'date'"),
    ],
)
def test_validators_that_are_refused(value: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        as_constraint(value())
    assert caught.value.hint  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_resolver_is_refused() -> None:
    with pytest.raises(UnsupportedSchemaError, match="resolver"):
        as_constraint(Draft7Validator({}, resolver=jsonschema.RefResolver("", {})))


# --- outlines_core ---


def test_objects_of_outlines_core() -> None:
    core = pytest.importorskip("outlines_core", reason="outlines_core is not installed")
    vocabulary = core.Vocabulary(2, {"a": [0], "b": [1]})
    index = core.Index("[ab]+", vocabulary)
    for value, said in ((index, "token ids"), (core.Guide(index), "token ids"), (vocabulary, "no rule")):
        with pytest.raises(UnsupportedSchemaError, match=said) as caught:
            as_constraint(value)
        assert "Regex(" in str(caught.value.hint)
    pattern = core.json_schema.build_regex_from_schema('{"type": "boolean"}')
    check_language(Regex(pattern), accepts=["true", "false"], rejects=["", "tru"])


# --- everywhere ---


@pytest.mark.parametrize("name", ["PATTERN", "PARSER", "AUTOMATON", "ADAPTER", "VALIDATOR"])
def test_objects_of_a_module_are_schemas_of_jobs(name: str, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(
        "import interegular, jsonschema, lark, pydantic, re\n"
        "PATTERN = re.compile('[0-9]+')\nPARSER = lark.Lark('start: /[0-9]+/')\n"
        "AUTOMATON = interegular.parse_pattern('[0-9]+').to_fsm()\nADAPTER = pydantic.TypeAdapter(int)\n"
        "VALIDATOR = jsonschema.Draft202012Validator({'type': 'integer'})\n"
    )
    source = f"{tmp_path}/rules.py:{name}"
    found, again = load_schema(source), load_schema(source)
    assert found.constraint.parse("12") == (12 if found.is_json else "12")
    assert found.is_json == (name in ("ADAPTER", "VALIDATOR"))
    assert json.dumps([found.beyond, found.reading]) == json.dumps([again.beyond, again.reading])


def test_in_a_generation() -> None:
    llm = dk.LLM.load("tiny")
    assert re.fullmatch("[0-9]{3}", llm.generate("x", constraint=re.compile("[0-9]{3}")).text)
    out = llm.generate("x", constraint=pydantic.TypeAdapter(tuple[bool, bool]))
    assert isinstance(out.value, tuple)
    many = llm.generate("x", constraint=dk.OneOf(re.compile("a+b"), Draft7Validator({"type": "null"})))
    assert re.fullmatch("a+b|null", many.text)


def test_descriptions_say_what_is_meant() -> None:
    assert described(as_constraint(re.compile("a", re.I))) == described(Regex("a", flags="i"))
    assert described(as_constraint(Draft202012Validator(SCHEMA))) == described(JsonSchema(SCHEMA))


def test_no_package_is_loaded_to_recognise_its_objects() -> None:
    program = """
import sys, re
from decodekit.constraints import as_constraint
as_constraint(re.compile("a"))
try:
    as_constraint(3.5)
except Exception as error:
    assert "float is no constraint" in str(error)
assert not {"lark", "interegular", "jsonschema", "pydantic", "outlines_core", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
