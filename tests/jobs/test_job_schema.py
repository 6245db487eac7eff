from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from decodekit.constraints import as_constraint
from decodekit.errors import DecodekitError, InvalidConstraintError, JobError, NameNotFoundError, OptionError
from decodekit.jobs.document_prompt import INSTRUCTION, Prompt, choose_prompt
from decodekit.jobs.job_schema import fields_schema, load_schema, reload_schema

MODULE = """
from __future__ import annotations
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypedDict
import json
from pydantic import BaseModel

class Currency(Enum):
    EUR = "EUR"
    USD = "USD"

class Item(BaseModel):
    name: str

class Invoice(BaseModel):
    number: str
    items: list[Item]
    currency: Currency

@dataclass
class Point:
    x: int

SCHEMA = {"type": "integer"}
Kind = Literal["a", "b"]
NotAType = object()
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "invoice.py"
    path.write_text(MODULE)
    return path


def test_fields_make_an_object_with_all_of_them_required() -> None:
    schema = fields_schema("name, total float, due date?, tags string[], kind invoice|receipt, paid?, n int[]?")
    assert schema["required"] == ["name", "total", "due", "tags", "kind", "paid", "n"]
    good: dict[str, Any] = {
        "name": "x",
        "total": 1.5,
        "due": None,
        "tags": ["a"],
        "kind": "receipt",
        "paid": None,
        "n": [1],
    }
    jsonschema.validate(good, schema)
    for name, value in [("name", None), ("total", "1"), ("tags", [1]), ("kind", "x"), ("due", 3), ("n", ["x"])]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | {name: value}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | {"more": 1}, schema)


def test_choices_may_be_written_with_spaces() -> None:
    assert fields_schema("kind invoice | receipt ?")["properties"]["kind"] == {
        "anyOf": [{"enum": ["invoice", "receipt"]}, {"type": "null"}]
    }


def test_types_by_the_names_of_python() -> None:
    found = fields_schema("a float, b decimal, c datetime")["properties"]
    assert found["a"] == found["b"] == {"type": "number"} and found["c"]["format"] == "date-time"


def test_all_faults_of_the_fields_are_told_together() -> None:
    with pytest.raises(InvalidConstraintError) as caught:
        fields_schema("total flaot, , name, name int, 7up, kind a||b, x colour")
    message = str(caught.value)
    assert "unknown type 'flaot'; did you mean 'float'?" in message
    assert "unknown type 'colour'; there are string, integer, number, boolean, date" in message
    assert "field 2 ''" in message and "'name' stands twice" in message and "'7up'" in message and "'kind'" in message


@pytest.mark.parametrize("name", ["Invoice", "Point", "Currency", "Kind", "SCHEMA"])
def test_a_class_of_a_file(module: Path, name: str) -> None:
    schema = load_schema(f"{module}:{name}")
    assert isinstance(schema.schema, dict)
    jsonschema.Draft202012Validator.check_schema(schema.schema)
    assert schema.source == f"{module}:{name}"


def test_a_class_of_an_importable_module() -> None:
    assert load_schema("datetime:date").schema == {"type": "string", "format": "date"}


def test_a_misspelt_class_is_told_what_there_is(module: Path) -> None:
    with pytest.raises(NameNotFoundError) as caught:
        load_schema(f"{module}:Invioce")
    assert caught.value.code == "DK204"
    assert "no name 'Invioce'" in str(caught.value)
    assert "It has: Currency, Invoice, Item, Point." in str(caught.value)
    assert f"try {module}:Invoice" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "kind", "cause"),
    [
        ("nowhere.json", NameNotFoundError, "no schema file 'nowhere.json'"),
        ("nowhere.py:Class", NameNotFoundError, "no file 'nowhere.py'"),
        ("no.such.module:Class", NameNotFoundError, "no module named 'no'"),
        ('{"type": ', InvalidConstraintError, "not JSON"),
        ("[1]", InvalidConstraintError, "is an object, true or false"),
    ],
)
def test_what_is_not_there_is_named(source: str, kind: type[DecodekitError], cause: str) -> None:
    with pytest.raises(kind) as caught:
        load_schema(source)
    assert cause in str(caught.value)


def test_a_file_that_is_no_schema(tmp_path: Path, module: Path) -> None:
    (tmp_path / "a.json").write_text('{"type": "object",\n}')
    with pytest.raises(InvalidConstraintError, match=r"line 2|line 1"):
        load_schema(str(tmp_path / "a.json"))
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InvalidConstraintError, match="ZeroDivisionError"):
        load_schema(f"{tmp_path / 'broken.py'}:X")
    with pytest.raises(DecodekitError):
        load_schema(f"{module}:NotAType")


def test_a_response_format_is_unwrapped(tmp_path: Path) -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"type": "json_schema", "json_schema": {"name": "x", "schema": inner}}))
    assert load_schema(str(path)).schema == inner
    assert load_schema('{"type": "json_object"}').schema == {"type": "object"}


def choose(template: str | None, model: str = "m", *, has_chat_template: bool = False, is_raw: bool = False) -> Prompt:
    return choose_prompt(template, model, load_schema('{"type": "null"}'), is_chat=has_chat_template and not is_raw)


def test_the_bundled_models_read_the_bare_document() -> None:
    assert choose(None, model="tiny").fill("  text \n") == "text\n"


def test_other_models_are_told_what_to_do() -> None:
    prompt = choose(None).fill("Invoice {schema}")
    assert isinstance(prompt, str)
    assert '{"type":"null"}' in prompt and "Invoice {schema}" in prompt and prompt.endswith("JSON:\n")
    messages = choose(None, has_chat_template=True).fill("x")
    expected = INSTRUCTION.replace("{schema}", '{"type":"null"}').replace("{text}", "x")
    assert messages == [{"role": "user", "content": expected}]
    assert isinstance(choose(None, has_chat_template=True, is_raw=True).fill("x"), str)


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    assert choose('{"a": {text}} {x}').fill("T") == '{"a": T} {x}'
    (tmp_path / "t.txt").write_text("Read: {text}")
    assert choose(f"@{tmp_path / 't.txt'}").fill("T") == "Read: T"
    with pytest.raises(OptionError, match=r"no \{text\}"):
        choose("Extract!")
    with pytest.raises(OptionError, match="cannot be read"):
        choose(f"@{tmp_path / 'nowhere'}")


def test_the_schema_of_a_job_outlives_its_file(tmp_path: Path, module: Path) -> None:
    path = tmp_path / "name"  # a name that could be a field
    path.write_text('{"type": "integer"}')
    for source in (str(path), '{"type": "null"}', "total, due date", f"{module}:Invoice"):
        loaded = load_schema(source)
        if source == str(path):
            path.unlink()
        again = reload_schema(source, loaded.schema, loaded.beyond, loaded.reading)
        assert again.reading == loaded.reading
        assert again.schema == loaded.schema
        assert repr(as_constraint(again.constraint)) == repr(as_constraint(loaded.constraint))
    module.write_text(MODULE.replace("number: str", "number: int"))
    with pytest.raises(JobError, match="has changed"):
        reload_schema(f"{module}:Invoice", load_schema_of(MODULE, tmp_path))


def load_schema_of(code: str, folder: Path) -> Any:
    (folder / "old.py").write_text(code)
    return load_schema(f"{folder / 'old.py'}:Invoice").schema
