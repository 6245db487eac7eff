"""Which values are taken as constraints, what the room exports, and what it leaves unloaded."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
from typing import Literal

import pydantic
import pytest
from typing_extensions import TypedDict

from decodekit import constraints
from decodekit.constraints import Choices, Constraint, JsonSchema, Regex, as_constraint
from decodekit.errors import InvalidConstraintError
from decodekit.testing import check_language


class Model(pydantic.BaseModel):
    name: str


@dataclasses.dataclass
class Point:
    x: int


class Typed(TypedDict):
    x: int


class Color(enum.Enum):
    RED = "red"


def test_a_constraint_is_itself() -> None:
    for constraint in (Regex("a"), Choices(["a"]), JsonSchema({"type": "null"})):
        assert as_constraint(constraint) is constraint


@pytest.mark.parametrize(
    ("value", "accepts", "rejects"),
    [
        ({"type": "integer", "minimum": 10}, ["10", "123"], ["9", "010", "10.5", "-10", ""]),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}}}, ["1"], ["2"]),
        ({"type": "json_object"}, ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1"]),
        (True, ["1", '"a"', "[]"], ["", "a"]),
        (Model, ['{"name":"x"}'], ['{"name":1}', "{}"]),
        (Point, ['{"x":1}'], ['{"x":"a"}']),
        (Typed, ['{"x":1}'], ["{}"]),
        (Color, ['"red"'], ['"blue"', "red"]),
        (Literal["a", 1], ['"a"', "1"], ['"b"', "2"]),
        (list[int], ["[]", "[1,2]"], ["1", '["a"]']),
        (int | None, ["1", "null"], ['"a"']),
    ],
    ids=str,
)
def test_values_taken_as_json_schemas(value: object, accepts: list[str], rejects: list[str]) -> None:
    check_language(value, accepts=accepts, rejects=rejects)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"a", "a bytes is no constraint, it could be a pattern"),
        (["a", "b"], "list is no constraint"),
        (3.5, "float is no constraint"),
        ({"type": "json_schema", "json_schema": {}}, "needs its schema"),
    ],
    ids=str,
)
def test_other_values_are_refused_with_a_hint(value: object, message: str) -> None:
    with pytest.raises(InvalidConstraintError, match=message) as caught:
        as_constraint(value)
    assert caught.value.hint


def test_a_value_in_place_of_its_class() -> None:
    with pytest.raises(InvalidConstraintError, match="a value of the class Point") as caught:
        as_constraint(Point(1))
    assert caught.value.hint == "the class Point itself"


def test_exports() -> None:
    for name in constraints.__all__:
        assert getattr(constraints, name) is not None
    assert issubclass(constraints.Regex, Constraint)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = constraints.Nothing


def test_compiling_loads_no_heavy_package_and_the_first_matcher_loads_every_kernel() -> None:
    program = """
import sys
from decodekit.constraints import Choices, allocate_bitmask, compile
from decodekit.vocabulary import Vocabulary
vocabulary = Vocabulary([b"a", b"b", None], [2])
grammar = compile(Choices(["ab"]), vocabulary)
assert not {"torch", "transformers", "numba", "jsonschema", "pydantic", "lark"} & set(sys.modules)
matcher = grammar.matcher()
assert "numba" in sys.modules and "torch" not in sys.modules
kernels = sys.modules["decodekit.constraints.engine.compiled.kernels"]
loaded = [len(kernel.signatures) for kernel in (kernels.run, kernels.walk, kernels.add_tokens)]
assert loaded == [1, 1, 1]
assert matcher.accept(0)
matcher.fill_bitmask(allocate_bitmask(1, vocabulary.size))
assert loaded == [len(kernel.signatures) for kernel in (kernels.run, kernels.walk, kernels.add_tokens)]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
