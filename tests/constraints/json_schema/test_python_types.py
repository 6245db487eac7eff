"""Python types: the texts they admit, and the values that come back."""

import dataclasses
import datetime
import decimal
import enum
import pickle
import typing
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import typing_extensions
from pydantic import BaseModel, Field, HttpUrl

from decodekit.constraints import Regex, as_constraint
from decodekit.constraints.json_schema import JsonSchema
from decodekit.errors import InvalidConstraintError, UnsupportedSchemaError
from tests.reference.any_json import any_json
from tests.reference.json_network import accepts


class Colour(enum.Enum):
    RED = "red"
    BLUE = 3


class Item(BaseModel):
    name: str = Field(min_length=1, alias="Name")
    count: int = Field(ge=0, le=10)
    parts: list["Item"] = []
    colour: Colour = Colour.RED
    day: datetime.date | None = None
    key: uuid.UUID | None = None


@dataclasses.dataclass
class Pair:
    first: int
    second: tuple[int, str]
    others: set[int] = dataclasses.field(default_factory=set)


class Point(typing_extensions.TypedDict, total=False):
    x: int


class Closed(BaseModel):
    x: int


class Opaque:
    pass


class Default(BaseModel):
    ratio: float = float("nan")


TABLE: list[tuple[Any, str, Any]] = [
    (Pair, '{"first":1,"second":[2,"x"],"others":[1,1]}', Pair(1, (2, "x"), {1})),
    (Point, '{"x":1}', {"x": 1}),
    (Colour, "3", Colour.BLUE),
    (Literal["a", 1], '"a"', "a"),
    (list[int], "[1,2]", [1, 2]),
    (int | None, "null", None),
    (dict[str, int], '{"a":1}', {"a": 1}),
    (datetime.datetime, '"2024-01-02T10:00:00"', datetime.datetime(2024, 1, 2, 10)),
    (datetime.date, '"2024-02-29"', datetime.date(2024, 2, 29)),
    (datetime.timedelta, '"P3DT4H"', datetime.timedelta(days=3, hours=4)),
    (uuid.UUID, '"2eb8aa08-aa98-11ea-b4aa-73b441d16380"', uuid.UUID("2eb8aa08-aa98-11ea-b4aa-73b441d16380")),
    (HttpUrl, '"https://example.com/a?b=c"', HttpUrl("https://example.com/a?b=c")),
    (bytes, '"abc"', b"abc"),
]


@pytest.mark.parametrize(("python_type", "text", "value"), TABLE, ids=[str(row[0])[:40] for row in TABLE])
def test_values_come_back(python_type: Any, text: str, value: Any) -> None:
    rule = as_constraint(python_type)
    assert isinstance(rule, JsonSchema)
    assert accepts(rule, text.encode())
    assert rule.parse(text) == value


def test_a_model_with_aliases_bounds_and_recursion() -> None:
    rule = any_json(Item)
    text = '{"Name":"x","count":3,"parts":[{"Name":"y","count":0}],"colour":"red","day":"2024-02-29","key":null}'
    assert accepts(rule, text.encode())
    value = rule.parse(text)
    assert isinstance(value, Item) and value.parts[0].name == "y" and value.day == datetime.date(2024, 2, 29)
    for wrong in [
        '{"Name":"","count":3}',
        '{"Name":"x","count":11}',
        '{"name":"x","count":1}',
        '{"Name":"x","count":1,"day":"2023-02-29"}',
    ]:
        assert not accepts(rule, wrong.encode())


def test_formats_of_python_types_are_enforced_whatever_the_option() -> None:
    for format in ("annotate", "assert"):
        assert not accepts(any_json(datetime.date, format=format), b'"today"')  # type: ignore[arg-type]


@dataclasses.dataclass
class Holder:
    inside: Opaque


class Unfinished(BaseModel):
    part: "Missing"  # type: ignore[name-defined]  # noqa: F821


def test_types_without_json() -> None:
    with pytest.raises(InvalidConstraintError, match=r"^DK203 Opaque cannot be read from JSON: nothing says how\n"):
        any_json(Opaque)
    with pytest.raises(
        InvalidConstraintError, match=r"Holder cannot be read from JSON: nothing says how <class .*Opaque"
    ):
        any_json(Holder)
    with pytest.raises(InvalidConstraintError, match="Unfinished refers to a class that is not defined"):
        any_json(Unfinished)
    with pytest.raises(UnsupportedSchemaError):
        any_json(Callable)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("json", 'JsonSchema(json.loads("..."))'),
        ("__import__('os').mkdir('evaluated')", 'JsonSchema(json.loads("..."))'),
        (b"{}", "a schema as a dict"),
        (Path("schema.json"), "json.loads(path.read_text())"),
        (3, "a schema as a dict"),
        ([{}], "a schema as a dict"),
        (..., "a schema as a dict"),
        (len, "a schema as a dict"),
        (lambda text: text, "a schema as a dict"),
        (Pair(1, (2, "x")), "the class Pair"),
        (Closed(x=1), "the class Closed"),
        (Regex("a"), "the constraint itself"),
        (any_json({}), "the constraint itself"),
    ],
    ids=lambda value: type(value).__name__,  # the same in every process, which `repr` is not
)
def test_what_is_no_type_never_reaches_pydantic(
    value: Any, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConstraintError, match="is no schema and no type") as caught:
        any_json(value)
    assert hint in str(caught.value) and "pydantic-core" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "form", [list["Pair"], typing.Optional["Pair"], dict[str, tuple["Pair", int]], typing.ForwardRef("Pair")], ids=str
)
def test_names_in_quotes_are_not_looked_up(form: Any) -> None:
    with pytest.raises(InvalidConstraintError, match="has a name in quotes, 'Pair'"):
        any_json(form)


def test_quotes_that_are_no_names() -> None:
    assert accepts(any_json(list[Literal["json"]]), b'["json"]')
    assert accepts(any_json(typing_extensions.Annotated[int, "json"]), b"1")


def test_sets_with_a_least_size_have_different_items() -> None:
    rule = any_json(typing_extensions.Annotated[set[int], Field(min_length=2)])
    assert accepts(rule, b"[1,2]") and not accepts(rule, b"[1,1]") and not accepts(rule, b"[1]")
    assert accepts(any_json(set[int]), b"[1,1]")  # a smaller set is a set too


def test_equality_pickling_and_defaults_that_are_no_json() -> None:
    assert any_json(Item) == any_json(Item) != any_json(Pair)
    assert pickle.loads(pickle.dumps(any_json(Item))) == any_json(Item)
    assert pickle.loads(pickle.dumps(any_json({"a": 1}, order="any"))) == any_json({"a": 1}, order="any")
    assert accepts(any_json(Default), b'{"ratio":1.5}')


class Open(BaseModel, extra="allow"):
    item: Closed


def test_objects_have_the_declared_fields_only_unless_the_type_says_otherwise() -> None:
    assert not accepts(any_json(Closed), b'{"x":1,"y":2}')
    assert not accepts(any_json(Pair), b'{"first":1,"second":[2,"x"],"more":1}')
    assert not accepts(any_json(Point), b'{"x":1,"y":2}')
    assert not accepts(any_json(dict[str, Closed]), b'{"a":{"x":1,"y":2}}')
    assert accepts(any_json(dict[str, Closed]), b'{"a":{"x":1},"b":{"x":2}}')
    assert accepts(any_json(Open), b'{"item":{"x":1},"y":2}')
    assert not accepts(any_json(Open), b'{"item":{"x":1,"y":2}}')


class Leaf(typing.TypedDict, total=False):
    name: typing.Required[str]
    size: int


class Tree(typing.TypedDict):
    leaf: Leaf
    trees: list["Tree"]
    others: typing.NotRequired[list[Leaf] | None]
    last: Leaf | None
    count: typing.Annotated[int, Field(ge=1)]


def test_typed_dicts_of_typing_are_read_before_python_3_12_too() -> None:
    rule = JsonSchema(Tree)
    whole = '{"leaf":{"name":"a"},"trees":[%s],"last":{"name":"b","size":2},"count":1}'
    inner = whole % ""
    assert accepts(rule, (whole % inner).encode())
    assert rule.parse(inner) == {
        "leaf": {"name": "a"}, "trees": [], "last": {"name": "b", "size": 2}, "count": 1
    }  # fmt: skip
    assert accepts(rule, inner.replace('"last"', '"others":[{"name":"c"}],"last"').encode())
    for wrong in (inner.replace('"name":"a"', '"size":1'), inner.replace('"count":1', '"count":0'), "{}"):
        assert not accepts(rule, wrong.encode())
    assert accepts(JsonSchema(list[Leaf]), b'[{"name":"a"}]') and not accepts(JsonSchema(list[Leaf]), b"[{}]")


class Price(BaseModel):
    value: decimal.Decimal = Field(max_digits=6, decimal_places=2, gt=0)


def test_decimals_are_numbers_within_their_limits() -> None:
    texts = ["0.01", "37.5", "37.50", "9999.99", "37.501", "10000", "12345.6", "0", "-1", '"37.5"', '"abc"']
    for text in texts:
        whole = f'{{"value":{text}}}'
        try:
            is_read = Price.model_validate_json(whole) is not None
        except ValueError:
            is_read = False
        assert accepts(JsonSchema(Price), whole.encode()) == (is_read and text[0] != '"'), text
    assert JsonSchema(Price).parse('{"value":37.10}').value == decimal.Decimal("37.1")  # type: ignore[attr-defined]
    assert accepts(JsonSchema(decimal.Decimal), b"1.25") and not accepts(JsonSchema(decimal.Decimal), b'"1.25"')
    three = JsonSchema(typing.Annotated[decimal.Decimal, Field(max_digits=3)])
    assert accepts(three, b"999") and accepts(three, b"0.125") and not accepts(three, b"1000")
    stepped = JsonSchema(typing.Annotated[decimal.Decimal, Field(multiple_of=decimal.Decimal("0.25"), le=1)])
    assert accepts(stepped, b"0.75") and not accepts(stepped, b"0.7") and not accepts(stepped, b"1.25")


@pytest.mark.parametrize("text", ["1e97", "1e2", "1.0", "-0.0", "1E5"])
def test_integers_are_digits(text: str) -> None:
    """Pydantic reads some of these and not 1e97; a JSON Schema admits them all."""
    assert not accepts(JsonSchema(int), text.encode())
    assert not accepts(JsonSchema(list[int | str]), f"[{text}]".encode())
    assert accepts(any_json({"type": "integer"}), text.encode())
    assert accepts(JsonSchema(float), text.encode())
    assert accepts(JsonSchema(int | float), text.encode())
    assert accepts(JsonSchema(int, numbers="any"), str(int(float(text))).encode())
