"""Values so far of Python types: what is there stays, and at the end it is the value, as dumped."""

from __future__ import annotations

import enum
import json
import pathlib
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Network
from itertools import pairwise
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    IPvAnyAddress,
    JsonValue,
    PlainValidator,
    RootModel,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    computed_field,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from decodekit import complete
from decodekit.constraints.growing import GrowingValue
from decodekit.constraints.json_schema import JsonSchema, partial_types

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Item(BaseModel):
    name: str
    price: float = 1.5
    color: Color = Color.RED


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str
    tags: list[str] = Field(default_factory=list)


class Order(BaseModel):
    """One of everything that is common."""

    number: str = Field(alias="No")
    due: date
    at: datetime | None = None
    id: uuid.UUID
    total: Decimal
    items: list[Item]
    by_name: dict[str, Item] = {}
    by_color: dict[Color, int] = {}
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    either: Cat | Item | int | str | None = None
    lines: tuple[int, str] = (1, "x")
    words: set[str] = set()
    anything: Any = None


class Node(BaseModel):
    value: str
    children: list[Node] = []
    next: Node | None = None


class Checked(BaseModel):
    """Nothing of it may be called before it is whole, or at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: int
    high: int

    @model_validator(mode="after")
    def ordered(self) -> Checked:
        if self.high < self.low:
            raise ValueError("crossed")
        return self

    @field_validator("low")
    @classmethod
    def not_seven(cls, value: int) -> int:
        return value

    @computed_field  # type: ignore[prop-decorator]
    @property
    def width(self) -> int:
        return self.high - self.low

    def model_post_init(self, context: Any) -> None:
        assert self.high is not None


@dataclass
class Point:
    x: int
    name: str = "p"
    tags: list[str] = field(default_factory=list)


class Movie(TypedDict, total=False):
    title: str
    released: date


class Pair(NamedTuple):
    a: int
    b: str


class Box(BaseModel, Generic[T]):
    content: T


class Tagged(BaseModel):
    tags: RootModel[list[Item]]
    model_config = ConfigDict(extra="allow")


class Odd(BaseModel):
    json_: str = Field(validation_alias=AliasChoices("json", "j"))
    lower: Annotated[str, StringConstraints(to_lower=True)] = ""
    secret: SecretStr = SecretStr("")
    address: IPvAnyAddress | None = None
    path: pathlib.Path | None = None
    wait: timedelta | None = None
    shout: Annotated[str, AfterValidator(str.upper)] = "A"


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
    number: str = Field(alias="No")
    order: Item = Field(alias="Order")


ITEM = {"name": "ab", "price": 2, "color": "green"}
TABLE: list[tuple[Any, Any]] = [
    (Item, {"name": "é\n"}),
    (Item, ITEM),
    (Order, {"No": "A-1", "due": "2026-01-02", "at": "2026-01-02T03:04:05Z", "id": str(uuid.UUID(int=7)), "total": 1.25,
             "items": [ITEM, {"name": ""}], "by_name": {"x": ITEM, "y": ITEM}, "by_color": {"red": 1, "green": 2},
             "pet": {"kind": "dog", "name": "Rex"}, "either": {"kind": "cat", "lives": 9}, "lines": [3, "abc"],
             "words": ["a", "b", "a"], "anything": {"deep": ["text"]}}),
    (Order, {"No": "", "due": "2026-01-02", "id": str(uuid.UUID(int=7)), "total": 1, "items": [],
             "pet": {"kind": "cat", "lives": 1}, "either": "some text"}),
    (Order, {"No": "", "due": "2026-01-02", "id": str(uuid.UUID(int=7)), "total": 1, "items": [],
             "pet": {"kind": "cat", "lives": 1}, "either": {"name": "n", "color": "red"}}),
    (Node, {"value": "a", "children": [{"value": "b", "children": [{"value": "c"}]}, {"value": "d"}],
            "next": {"value": "e"}}),
    (Point, {"x": 1, "name": "origin"}),
    (list[Point], [{"x": 1}, {"x": 2, "tags": ["a"]}]),
    (Movie, {"title": "Alien", "released": "1979-05-25"}),
    (Box[Item], {"content": ITEM}),
    (Tagged, {"tags": [ITEM], "more": {"a": "b"}}),
    (Odd, {"json": "x", "lower": "ABC", "secret": "s", "address": "1.2.3.4", "path": "/a", "wait": "PT5S",
           "shout": "a"}),
    (dict[int, list[date]], {"1": ["2026-01-02", "2026-01-03"]}),
    (list[Literal["ab", "a"] | int], ["ab", 3, "a"]),
    (ByName, {"number": "A-1", "order": ITEM}),
    (frozenset[int], [1, 2, 1]),
    (str, "text"),
    (date, "2026-01-02"),
    (Color, "green"),
    (Pair, [1, "b"]),
    (int | None, None),
    (tuple[int, ...], [1, 2, 3]),
]  # fmt: skip


def dumped(value: Any) -> Any:
    return TypeAdapter(Any).dump_python(value, mode="json")


def keeps(before: Any, after: Any) -> bool:
    """Whether what was there is there."""
    if before is None:
        return True
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and keeps(one, after[key]) for key, one in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return all(any(keeps(one, other) for other in after) for one in before) and len(before) <= len(after)
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    return bool(before == after)


def values_of(python_type: Any, value: Any) -> list[Any]:
    growing = GrowingValue(JsonSchema(python_type))
    made = [growing.push(one) for one in json.dumps(value)]
    return [one() for one in [*made, growing.push("", is_whole=True)]]


@pytest.mark.parametrize(
    ("python_type", "value"), TABLE, ids=lambda one: getattr(one, "__name__", None) or f"{one!r:.30}"
)
def test_partial_values_of_types(python_type: Any, value: Any) -> None:
    final = TypeAdapter(python_type).validate_json(json.dumps(value))
    values = values_of(python_type, value)
    assert dumped(values[-1]) == TypeAdapter(python_type).dump_python(final, mode="json", round_trip=True)
    assert repr(values[len(values) // 2]) is not None
    steps = [*map(dumped, values)]
    for before, after in pairwise(steps):
        assert keeps(before, after), (before, after)
    assert all(keeps(one, steps[-1]) for one in steps)


def test_what_is_shown_of_a_model() -> None:
    """An example that one can look at."""
    growing = GrowingValue(JsonSchema(Item))
    told = [
        repr(growing.push(piece)()) for piece in ['{"na', 'me": "a', 'b", "price": 2', ', "color": "gre', 'en"', "}"]
    ]
    assert told == [
        "PartialItem(name=None, price=None, color=None)",
        "PartialItem(name='a', price=None, color=None)",
        "PartialItem(name='ab', price=None, color=None)",
        "PartialItem(name='ab', price=2.0, color=None)",
        "PartialItem(name='ab', price=2.0, color=<Color.GREEN: 'green'>)",
        "PartialItem(name='ab', price=2.0, color=<Color.GREEN: 'green'>)",
    ]


def test_nothing_of_a_class_is_called() -> None:
    values = values_of(Checked, {"low": 5, "high": 1})  # which the validator refuses
    assert [repr(values[index]) for index in (0, -1)] == [
        "PartialChecked(low=None, high=None)",
        "PartialChecked(low=5, high=1)",
    ]
    assert type(values[0]) is type(values[-1]) and not isinstance(values[0], Checked)


def test_unions_are_told_when_only_one_fits() -> None:
    pets = list[Cat | Dog]
    shown = [repr(one[0]) for one in values_of(pets, [{"lives": 9, "kind": "cat"}]) if one]
    assert shown[0] == "{}" and shown[-1] == "PartialCat(kind='cat', lives=9)"
    assert "PartialCat(kind=None, lives=9)" in shown
    shown = [repr(one[0]) for one in values_of(pets, [{"kind": "dog", "name": "R"}]) if one]
    assert "{'kind': 'd" not in "".join(shown) and "PartialDog(kind='dog', name=None, tags=None)" in shown


def test_classes_are_made_once_and_values_shared() -> None:
    growing = GrowingValue(JsonSchema(list[Item]))
    first = growing.push('[{"name": "a"}, {"name": "b')()
    second = growing.push('c"}')()
    assert first[0] is second[0] and first[1] is not second[1] and type(first[0]) is type(second[1])
    assert partial_types._shape_of(Item) is partial_types._shape_of(Item)


KINDS: list[Any] = [
    None, bytes, time, Decimal, Fraction, IPv4Network, pathlib.Path, list[set[str]], tuple[int, str], deque[int],
    Sequence[str], Iterable[int], Mapping[str, Item], OrderedDict[str, int], defaultdict[str, list[int]], Counter[str],
    Item | list[Item] | str, dict[Color, Item], dict[str, Item | None], SecretStr, AnyUrl, Base64Bytes, ByteSize,
    JsonValue, object, Annotated[Item, ["unhashable"]],
    Annotated[list[Item], AfterValidator(lambda value: value)], Annotated[int, PlainValidator(int)],
    list[dict[str, Pair]],
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: f"{one!r:.40}")
def test_every_kind_of_type_has_values_so_far(kind: Any) -> None:
    """The least text of each, character by character: no kind is refused, and the end is the value."""
    text = complete(JsonSchema(kind))
    final = TypeAdapter(kind).validate_json(text)
    growing = GrowingValue(JsonSchema(kind))
    for one in [*(growing.push(one) for one in text), last := growing.push("", is_whole=True)]:
        one()
    assert TypeAdapter(Any).dump_json(last(), fallback=repr) == TypeAdapter(kind).dump_json(final, fallback=repr)
