"""All small schemas of objects and arrays against `jsonschema`, on every text of a small world. See `small_worlds`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from decodekit.constraints.json_schema import schema
from decodekit.constraints.json_schema.frames.arrays import ArrayPlan
from decodekit.constraints.json_schema.frames.objects import ObjectPlan
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.values import shape
from decodekit.errors import ResourceLimitError, UnsatisfiableError
from tests.constraints.json_schema import small_schemas as small
from tests.constraints.json_schema.small_schemas import Schema
from tests.constraints.json_schema.small_worlds import World, faults
from tests.reference.json_network import accepts
from tests.sizes import few, sized

TWICE = ('{"a":0,"a":0}', '{"c":1,"c":0}')


def objects_of(most: int) -> list[Any]:
    """All objects of at most so many of the keys a, b, c with the values 0 and 1, and some with values inside."""
    found: list[Any] = []
    for num in range(most + 1):
        for keys in itertools.combinations("abc", num):
            found += [dict(zip(keys, row, strict=True)) for row in itertools.product([0, 1], repeat=num)]
    return [*found, {"a": {}}, {"b": []}, {"a": {"a": 0}}, {"b": {"a": {}}}]


def arrays_of(most: int) -> list[Any]:
    """All arrays of at most so many of 0, 1, the empty string and the empty array, and some others."""
    found = [list(row) for num in range(most + 1) for row in itertools.product([0, 1, "", []], repeat=num)]
    return [*found, [0, 0, 0, 0], [[0], [0]], [[], [], [], []], [[[]]], [{}, {}]]


OBJECTS, FEW_OBJECTS = World(objects_of(3), TWICE), World(objects_of(2), TWICE)
ARRAYS, FEW_ARRAYS = World(arrays_of(3)), World(arrays_of(2))
MIXED = World([*objects_of(1), *arrays_of(1), 0, 1, "", None])


def check(
    schemas: Iterable[Schema],
    world: World,
    *,
    type_: str | None,
    at_least: int = 1,
    draft: int = 2020,
    is_thorough: bool = False,
) -> None:
    """No schema has a fault in the world, and nearly none has too many alternatives."""
    found: list[str] = []
    num = num_large = 0
    for num, below in enumerate(schemas, 1):  # noqa: B007
        try:
            found += faults(
                below if type_ is None else {"type": type_, **below}, world, draft=draft, is_thorough=is_thorough
            )
        except ResourceLimitError:
            num_large += 1
    assert not found, "\n".join(found[:10])
    assert num >= at_least and num_large <= 0.01 * num


def every(step: int, schemas: Iterable[Schema], start: int = 0) -> Iterable[Schema]:
    return itertools.islice(schemas, start, None, step)


# --- the ordinary run ---


def test_one_keyword() -> None:
    check(small.OBJECT_KEYWORDS, OBJECTS, type_="object")
    check(small.ARRAY_KEYWORDS, ARRAYS, type_="array")


@pytest.mark.slow
def test_keywords_leave_other_types_alone() -> None:
    """Also denied, where they admit nothing else."""
    keywords = [*small.OBJECT_KEYWORDS, *small.ARRAY_KEYWORDS]
    check([*keywords, *({"not": keyword} for keyword in keywords)], MIXED, type_=None)


@pytest.mark.slow
@sized("step", 3, slow=1)
def test_two_keywords_of_objects(step: int) -> None:
    schemas = every(step, small.together(small.OBJECT_KEYWORDS, 2))
    check(schemas, FEW_OBJECTS, type_="object", at_least=400 // step)


@sized("step", 3, slow=1)
def test_two_keywords_of_arrays(step: int) -> None:
    schemas = every(step, small.together(small.ARRAY_KEYWORDS, 2))
    check(schemas, FEW_ARRAYS, type_="array", at_least=280 // step)


@pytest.mark.slow
def test_combined_objects() -> None:
    check(every(14, small.combined(small.FEW_OBJECT_KEYWORDS)), FEW_OBJECTS, type_="object", at_least=50)


def test_combined_arrays() -> None:
    check(every(9, small.combined(small.FEW_ARRAY_KEYWORDS)), FEW_ARRAYS, type_="array", at_least=70)


def test_dependent_keys() -> None:
    check(small.dependent(), FEW_OBJECTS, type_="object", at_least=100)


def test_unevaluated() -> None:
    """`unevaluatedProperties` and `unevaluatedItems` around every combinator."""
    some = [small.OBJECT_KEYWORDS[number] for number in (1, 3, 8, 24)]
    check(
        every(3, small.beside([{"unevaluatedProperties": False}], list(small.combined(some)))),
        FEW_OBJECTS, type_="object",
    )  # fmt: skip
    some = [small.ARRAY_KEYWORDS[number] for number in (1, 4, 7, 8)]
    check(
        every(3, small.beside([{"unevaluatedItems": small.ZERO}], list(small.combined(some)))),
        FEW_ARRAYS, type_="array",
    )  # fmt: skip


@pytest.mark.slow
def test_values_inside_of_values() -> None:
    inner = [*small.RECURSIVE_OBJECTS, *every(150, small.together(small.OBJECT_KEYWORDS, 2))]
    check(small.nested([{"type": "object", **one} for one in inner], is_object=True), FEW_OBJECTS, type_="object")
    inner = [*small.RECURSIVE_ARRAYS, *every(150, small.together(small.ARRAY_KEYWORDS, 2))]
    check(small.nested([{"type": "array", **one} for one in inner], is_object=False), FEW_ARRAYS, type_="array")


def test_schemas_that_hold_themselves() -> None:
    check(small.RECURSIVE_OBJECTS, OBJECTS, type_="object")
    check(small.RECURSIVE_ARRAYS, ARRAYS, type_="array")


@few(1)
@pytest.mark.parametrize("draft", [4, 7, 2019])
def test_older_drafts(draft: int) -> None:
    for keywords, world, type_ in (
        (small.OLD_OBJECT_KEYWORDS, FEW_OBJECTS, "object"),
        (small.OLD_ARRAY_KEYWORDS, FEW_ARRAYS, "array"),
    ):
        some = [*small.together(keywords, 2), *({"not": keyword} for keyword in keywords)]
        if draft == 4:
            some = [small.without_const(one) for one in some]
        check(every(3, some), world, type_=type_, draft=draft)


def test_no_key_is_spent_on_nothing() -> None:
    """The key b has to meet an obligation, with another one or without: no configuration reads it for nothing."""
    pattern: Schema = {"patternProperties": {"^[ab]$": small.ZERO}}
    schema: Schema = {"not": {"anyOf": [pattern, {"const": {"a": 0}}]}}
    check([schema], World(objects_of(1)), type_="object", is_thorough=True)


def test_the_last_key_of_a_class_is_not_spent_on_nothing() -> None:
    """Of the keys a and b one was used: the other one has to be what no empty object allows."""
    schema: Schema = {"oneOf": [{"additionalProperties": False}, {"propertyNames": {"enum": ["a", "b"]}}]}
    check([schema], FEW_OBJECTS, type_="object", is_thorough=True)


def declared_orders(schema: Schema, value: dict[str, Any]) -> list[list[str]]:
    """The orders of the members with ``order="declared"``, where no combinator speaks of the same object.

    The names of `properties` come in their order, then required names that are not among them, in theirs, then all
    others in every order.
    """
    declared = list(dict.fromkeys([*schema.get("properties", {}), *schema.get("required", ())]))
    first = [name for name in declared if name in value]
    others = [name for name in value if name not in declared]
    return [[*first, *row] for row in itertools.permutations(others)]


def test_the_declared_order() -> None:
    plain = [one for one in small.OBJECT_KEYWORDS if not one.keys() & {"const", "enum"} and "depend" not in str(one)]
    for below in small.together(plain, 2):
        given = {"type": "object", **below}
        rules = {order: schema.JsonSchema(given, order=order, whitespace="compact") for order in ("any", "declared")}
        for value in ({"a": 0, "b": 1}, {"a": 0, "c": 0}, {"c": 1, "b": 1, "a": 0}):
            try:
                is_valid = accepts(rules["any"], json.dumps(value, separators=(",", ":")).encode())
            except UnsatisfiableError:
                break
            expected = declared_orders(given, value) if is_valid else []
            for keys in itertools.permutations(value):
                text = json.dumps({key: value[key] for key in keys}, separators=(",", ":"))
                assert accepts(rules["declared"], text.encode()) == (list(keys) in expected), (given, text)


# --- larger worlds, and the rest of the schemas ---


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(4))
def test_three_keywords(block: int) -> None:
    check(every(4, small.together(small.OBJECT_KEYWORDS, 3), block), OBJECTS, type_="object", at_least=800)
    check(every(4, small.together(small.ARRAY_KEYWORDS, 3), block), ARRAYS, type_="array", at_least=400)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(4))
def test_all_combined(block: int) -> None:
    check(every(4, small.combined(small.FEW_OBJECT_KEYWORDS), block), OBJECTS, type_="object")
    check(every(4, small.combined(small.FEW_ARRAY_KEYWORDS), block), ARRAYS, type_="array")
    check(every(8, small.branched(small.FEW_OBJECT_KEYWORDS[:8]), block), FEW_OBJECTS, type_="object")
    check(every(8, small.branched(small.FEW_ARRAY_KEYWORDS[:8]), block), FEW_ARRAYS, type_="array")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_configuration_can_be_completed() -> None:
    some = every(29, small.combined(small.FEW_OBJECT_KEYWORDS))
    check(some, FEW_OBJECTS, type_="object", is_thorough=True)
    some = every(29, small.combined(small.FEW_ARRAY_KEYWORDS))
    check(some, FEW_ARRAYS, type_="array", is_thorough=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_beside_combinators() -> None:
    limits: list[Schema] = [{"minProperties": 2}, {"maxProperties": 1}, {"unevaluatedProperties": small.ZERO}]
    combined = list(small.combined(small.FEW_OBJECT_KEYWORDS[:8]))
    check(every(3, small.beside(limits, combined)), FEW_OBJECTS, type_="object")
    limits = [{"minItems": 2}, {"maxItems": 1}, {"uniqueItems": True}, {"unevaluatedItems": False}]
    combined = list(small.combined(small.FEW_ARRAY_KEYWORDS[:8]))
    check(every(3, small.beside(limits, combined)), FEW_ARRAYS, type_="array")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_more_values_inside_of_values() -> None:
    some = [{"type": "object", **one} for one in every(12, small.together(small.OBJECT_KEYWORDS, 2))]
    check(small.nested(some, is_object=True), OBJECTS, type_="object")
    some = [{"type": "array", **one} for one in every(12, small.together(small.ARRAY_KEYWORDS, 2))]
    check(small.nested(some, is_object=False), ARRAYS, type_="array")


# --- negative controls: a rule of the plans that is broken is found ---

MUTANTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "members count twice": (ObjectPlan, "_counted", lambda self, state: min(state.count + 2, self._count_cap)),
    "an object may always be finished": (ObjectPlan, "can_finish", lambda self, state, ask=None: True),
    "required names may be passed over": (ObjectPlan, "reach", lambda self, state: ~state.seen),
    "used keys come again": (ObjectPlan, "unused", lambda self, keys, used: keys),
    "an array may end early": (ArrayPlan, "can_close", lambda self, state: state.num_items >= self.spec.min_items),
    "an array may always be finished": (ArrayPlan, "_can_finish", lambda self, state, ask: True),
    "every alternative takes in all others": (shape.ObjectSpec, "takes_in", lambda self, other: True),
    "names cover nothing": (shape.Properties, "uncovered", lambda self: text.BODY),
    "all branches are apart": (Semantics, "_is_apart", lambda self, spec, literal: True),
    "items are forgotten": (ArrayPlan, "remember", staticmethod(lambda state, scalar: state)),
}


@few(5)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, broken = MUTANTS[name]
    schema._release_networks()
    monkeypatch.setattr(owner, attribute, broken)
    of_objects = owner is not ArrayPlan
    keywords = small.FEW_OBJECT_KEYWORDS if of_objects else small.FEW_ARRAY_KEYWORDS
    pairs = list(small.together(keywords, 2))
    denied = [{"not": pair} for pair in pairs]
    combined = list(small.combined(keywords[3:8]))
    first = {"uncovered": denied, "takes_in": combined, "_is_apart": combined}.get(attribute, [])
    schemas = [*first, *pairs, *denied, *combined]
    found: list[str] = []
    for below in schemas:
        given = {"type": "object" if of_objects else "array", **below}
        found = faults(given, FEW_OBJECTS if of_objects else FEW_ARRAYS)
        if found:
            break
    schema._release_networks()
    assert found
