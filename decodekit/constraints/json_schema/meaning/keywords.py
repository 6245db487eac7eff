"""The keywords, one function each: what a keyword says when its schema is asserted, and what when it is denied.

A keyword speaks of one type. Asserted it admits all values of the other types; denied it admits none of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar, cast

from decodekit.constraints.json_schema.document.drafts import Draft, JsonValue, is_number
from decodekit.constraints.json_schema.document.loader import Location
from decodekit.constraints.json_schema.meaning.semantics import Keywords, Meaning, Semantics
from decodekit.constraints.json_schema.strings import formats, text
from decodekit.constraints.json_schema.strings.formats import Formats
from decodekit.constraints.json_schema.values import numbers
from decodekit.constraints.json_schema.values.numbers import NO_CONDITION, NumberSpec, exact
from decodekit.constraints.json_schema.values.shape import (
    EVERYTHING,
    FALSE,
    MAX_ALTERNATIVES,
    NOTHING,
    TRUE,
    ArraySpec,
    Contains,
    Goal,
    Literal,
    ObjectSpec,
    Part,
    SeenItems,
    SeenKeys,
    Shape,
    Witness,
    conjunction,
    limited,
    restrict,
    single,
)
from decodekit.constraints.language.node import Node
from decodekit.errors import ResourceLimitError

MAX_DEPENDENCIES: Final = 64
"""Bound on the properties that one schema lets depend on others; the alternatives are multiplied out."""

MAX_BRANCHES: Final = 1_000
"""Bound on the branches of a oneOf."""

_Path: TypeAlias = tuple[str | int, ...]
_Spec = TypeVar("_Spec", ObjectSpec, ArraySpec)


def _denied(goal: Goal) -> Goal:
    """The denial of a goal of at most one literal."""
    if not goal:
        return FALSE
    (literal,) = goal
    return conjunction(frozenset({literal ^ 1}))


# -- any type


def _type(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    names = tuple(value) if isinstance(value, list) else (value,)
    # Pydantic reads 1e2 as an int, and not 1e97: a Python int is generated as digits.
    is_digits = semantics.formats == "python" and is_asserted
    return _of_types(names, location.draft == Draft.DRAFT4 or is_digits, is_asserted)


@lru_cache(maxsize=1024)
def _of_types(names: tuple[str, ...], is_plain: bool, is_asserted: bool) -> Shape:
    if is_asserted:
        shape = EVERYTHING.only(*names)
        if "integer" in names and "number" not in names:
            spec = NumberSpec(is_integer=not is_plain, is_plain=is_plain)
            shape = shape.join(Shape(numbers=(spec,)))
        return shape
    shape = EVERYTHING.only(*({"null", "boolean", "string", "array", "object", "number"} - set(names)))
    if "integer" in names and "number" not in names:
        rest = numbers.not_integer(is_plain=is_plain)
        shape = Shape(
            shape.has_null, shape.has_true, shape.has_false, shape.strings, (rest,), shape.objects, shape.arrays
        )
    return shape


def _enum(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    return _among(semantics, location, [(("enum", index), entry) for index, entry in enumerate(value)], is_asserted)


def _const(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    # What stands for a constant inside an enum or a const has the place of the constant itself.
    return _among(semantics, location, [(() if location.is_constant else ("const",), value)], is_asserted)


def _among(semantics: Semantics, location: Location, values: list[tuple[_Path, Any]], is_asserted: bool) -> Shape:
    """Exactly these values, or all but these. Equality is JSON's: 1 is 1.0 and is not true."""
    texts = [entry for _, entry in values if isinstance(entry, str)]
    decimals = frozenset(exact(entry) for _, entry in values if is_number(entry))
    objects = [(path, entry) for path, entry in values if isinstance(entry, dict)]
    arrays = [(path, entry) for path, entry in values if isinstance(entry, list)]
    if max(len(objects), len(arrays)) > MAX_ALTERNATIVES:
        raise ResourceLimitError(
            f"an enum with more than {MAX_ALTERNATIVES} objects or arrays", hint="naming the values by strings"
        )
    has_null, has_true, has_false = (any(entry is single for _, entry in values) for single in (None, True, False))
    if is_asserted:
        return Shape(
            has_null,
            has_true,
            has_false,
            text.words(texts),
            (NumberSpec(values=decimals),) if decimals else (),
            tuple(_object_equal(semantics, location, path, entry) for path, entry in objects),
            tuple(_array_equal(semantics, location, path, entry) for path, entry in arrays),
        )
    shape = Shape(
        not has_null,
        not has_true,
        not has_false,
        text.without(text.BODY, text.words(texts)) if texts else text.BODY,
        (numbers.not_values(decimals) if decimals else NO_CONDITION,),
        EVERYTHING.objects,
        EVERYTHING.arrays,
    )
    for path, entry in objects:
        shape = semantics.both(shape, restrict(objects=_few(_object_differs(semantics, location, path, entry))))
    for path, items in arrays:
        shape = semantics.both(shape, restrict(arrays=_few(_array_differs(semantics, location, path, items))))
    return shape


def _few(specs: Iterator[_Spec]) -> tuple[_Spec, ...]:
    """Alternatives that are made no further than to their limit: of an array they take the square of its length."""
    return limited(tuple(itertools.islice(specs, MAX_ALTERNATIVES + 1)))


def _object_equal(semantics: Semantics, location: Location, path: _Path, value: dict[str, JsonValue]) -> ObjectSpec:
    names = {
        name: conjunction(frozenset({semantics.constant(location, below, *path, name)}))
        for name, below in value.items()
    }
    return ObjectSpec((Part(names, additional=FALSE),), tuple(value))


def _object_differs(
    semantics: Semantics, location: Location, path: _Path, value: dict[str, JsonValue]
) -> Iterator[ObjectSpec]:
    for name, below in value.items():
        yield _absent(name)
        constant = semantics.constant(location, below, *path, name)
        yield ObjectSpec((single(name, frozenset({constant ^ 1})),), (name,))
    others = text.without(text.BODY, text.words(list(value))) if value else text.BODY
    yield ObjectSpec(witnesses=(Witness(others, TRUE),))


def _array_equal(semantics: Semantics, location: Location, path: _Path, value: list[JsonValue]) -> ArraySpec:
    goals = [frozenset({semantics.constant(location, below, *path, index)}) for index, below in enumerate(value)]
    return ArraySpec(tuple(goals), FALSE, len(value), len(value))


def _array_differs(
    semantics: Semantics, location: Location, path: _Path, value: list[JsonValue]
) -> Iterator[ArraySpec]:
    if value:
        yield ArraySpec(max_items=len(value) - 1)
    yield ArraySpec(min_items=len(value) + 1)
    for index, below in enumerate(value):
        constant = semantics.constant(location, below, *path, index)
        yield ArraySpec((TRUE,) * index + (frozenset({constant ^ 1}),), min_items=index + 1)


# -- numbers and strings


def _bound(name: str) -> Meaning:
    is_low = name.endswith("inimum")

    def meaning(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
        if isinstance(value, bool):  # draft 4: read with minimum and maximum
            return EVERYTHING if is_asserted else NOTHING
        bound = exact(value)
        is_strict = name.startswith("exclusive")
        if location.draft == Draft.DRAFT4:
            is_strict = location.keywords().get(f"exclusive{name.capitalize()}") is True
        if is_asserted == is_low:
            spec = NumberSpec(low=bound, low_strict=is_strict == is_asserted)
        else:
            spec = NumberSpec(high=bound, high_strict=is_strict == is_asserted)
        return restrict(numbers=(spec,)) if is_asserted else Shape(numbers=(spec,))

    return meaning


def _multiple_of(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    step = exact(value)
    if is_asserted:
        spec = NumberSpec(is_integer=True) if step == 1 else NumberSpec(step=step)
        return restrict(numbers=(spec,))
    return Shape(numbers=(numbers.not_multiple(step),))


def _strings(language: Node, is_asserted: bool) -> Shape:
    return restrict(strings=language) if is_asserted else Shape(strings=text.without(text.BODY, language))


def _min_length(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    count = int(value)
    if is_asserted:
        return restrict(strings=text.length(count, None)) if count else EVERYTHING
    return Shape(strings=text.length(0, count - 1)) if count else NOTHING


def _max_length(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    count = int(value)
    if is_asserted:
        return restrict(strings=text.length(0, count))
    return Shape(strings=text.length(count + 1, None))


def _pattern(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    return _strings(semantics.pattern(location, value, "pattern"), is_asserted)


def _format(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    texts = formats.language if is_asserted else formats.denial
    language = texts(value, semantics.formats, at=location.at("format"))
    if language is None:
        return EVERYTHING if is_asserted else NOTHING
    return restrict(strings=language) if is_asserted else Shape(strings=language)


# -- arrays


def _arrays(*specs: ArraySpec, is_asserted: bool) -> Shape:
    return restrict(arrays=specs) if is_asserted else Shape(arrays=specs)


def _items(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    spec = semantics.items(location)
    if is_asserted:
        return _arrays(spec, is_asserted=True)
    denied = [
        ArraySpec((TRUE,) * index + (_denied(goal),), min_items=index + 1)
        for index, goal in enumerate(spec.prefix)
        if goal != TRUE
    ]
    if spec.rest != TRUE:
        start = len(spec.prefix)
        denied.append(
            ArraySpec(contains=(Contains(_denied(spec.rest), spec.rest, 1, None, start),), min_items=start + 1)
        )
    return _arrays(*denied, is_asserted=False)


def _min_items(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    count = int(value)
    if is_asserted:
        return _arrays(ArraySpec(min_items=count), is_asserted=True)
    return _arrays(ArraySpec(max_items=count - 1), is_asserted=False) if count else NOTHING


def _max_items(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    count = int(value)
    spec = ArraySpec(max_items=count) if is_asserted else ArraySpec(min_items=count + 1)
    return _arrays(spec, is_asserted=is_asserted)


def _contains(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    keywords = location.keywords()
    counts = location.draft >= Draft.DRAFT2019
    least = int(cast("int", keywords.get("minContains", 1))) if counts else 1
    most = int(cast("int", keywords["maxContains"])) if counts and "maxContains" in keywords else None
    goal = semantics.below(location, "contains")
    denied = semantics.below(location, "contains", is_asserted=False)
    if is_asserted:
        if least == 0 and most is None:
            return EVERYTHING
        return _arrays(ArraySpec(contains=(Contains(goal, denied, least, most),)), is_asserted=True)
    specs = [ArraySpec(contains=(Contains(goal, denied, 0, least - 1),))] if least else []
    if most is not None:
        specs.append(ArraySpec(contains=(Contains(goal, denied, most + 1, None),)))
    return _arrays(*specs, is_asserted=False)


def _unique_items(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    if is_unique_anyway(location, semantics.formats):
        return EVERYTHING if is_asserted else NOTHING
    if is_asserted:
        return _arrays(ArraySpec(is_unique=True), is_asserted=True)
    # Arrays that violate the items beside it are denied by those already; the others tell which items can be equal.
    spec = semantics.items(location).meet(ArraySpec(min_items=2, is_repeating=True))
    return _arrays(spec, is_asserted=False)


def is_unique_anyway(location: Location, formats: Formats) -> bool:
    """Whether ``uniqueItems`` says nothing that the keywords beside it do not.

    A Python set is read from a list with repetitions as well, unless it needs a number of different items.
    """
    keywords = location.keywords()
    types = keywords.get("type", "array")
    most, least = keywords.get("maxItems"), keywords.get("minItems", 0)
    return (
        keywords.get("uniqueItems") is False
        or (formats == "python" and is_number(least) and cast("int", least) <= 1)
        or (types != "array" and not (isinstance(types, list) and "array" in types))
        or (is_number(most) and cast("int", most) <= 1)
    )


# -- objects


def _objects(*specs: ObjectSpec, is_asserted: bool) -> Shape:
    return restrict(objects=specs) if is_asserted else Shape(objects=specs)


def _absent(name: str) -> ObjectSpec:
    return ObjectSpec((single(name, FALSE),))


def _properties(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    part = semantics.part(location)
    if is_asserted:
        return _objects(ObjectSpec((part,)), is_asserted=True)
    denied = [ObjectSpec((single(name, _denied(goal)),), (name,)) for name, goal in part.names.items() if goal != TRUE]
    denied += [
        ObjectSpec(witnesses=(Witness(pattern, _denied(goal)),)) for pattern, goal in part.patterns if goal != TRUE
    ]
    if part.additional != TRUE:
        denied.append(ObjectSpec(witnesses=(Witness(semantics.uncovered(part), _denied(part.additional)),)))
    return _objects(*denied, is_asserted=False)


def _property_names(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    if is_asserted:
        return _objects(ObjectSpec(names=semantics.below(location, "propertyNames")), is_asserted=True)
    refused = semantics.pending(semantics.below(location, "propertyNames", is_asserted=False)).strings
    return _objects(ObjectSpec(witnesses=(Witness(refused, TRUE),)), is_asserted=False)


def _required(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    names = tuple(dict.fromkeys(value))
    if is_asserted:
        return _objects(ObjectSpec(required=names), is_asserted=True)
    return _objects(*map(_absent, names), is_asserted=False)


def _min_properties(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    count = int(value)
    if is_asserted:
        return _objects(ObjectSpec(min_properties=count), is_asserted=True)
    return _objects(ObjectSpec(max_properties=count - 1), is_asserted=False) if count else NOTHING


def _max_properties(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    count = int(value)
    spec = ObjectSpec(max_properties=count) if is_asserted else ObjectSpec(min_properties=count + 1)
    return _objects(spec, is_asserted=is_asserted)


def _dependencies(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    """`dependencies`, `dependentRequired`, `dependentSchemas`: an object with the name has more to satisfy."""
    if len(value) > MAX_DEPENDENCIES:
        raise ResourceLimitError(
            f"more than {MAX_DEPENDENCIES} properties have dependencies",
            hint="objects for what belongs together",
        )
    result = EVERYTHING if is_asserted else NOTHING
    for name, below in value.items():
        if isinstance(below, list):
            needed = tuple(dict.fromkeys(below))
            then = restrict(objects=(ObjectSpec(required=needed),))
            otherwise = Shape(objects=tuple(map(_absent, needed)))
        else:
            key = "dependencies" if location.draft <= Draft.DRAFT7 else "dependentSchemas"
            goal = semantics.below(location, key, name)
            then = semantics.pending(goal) if is_asserted else EVERYTHING
            otherwise = NOTHING if is_asserted else semantics.pending(_denied(goal))
        has_name = Shape(objects=(ObjectSpec(required=(name,)),))
        if is_asserted:
            condition = restrict(objects=(_absent(name),)).join(semantics.both(has_name, then))
            result = semantics.both(result, condition)
        else:
            result = result.join(semantics.both(has_name, otherwise))
    return result


# -- combinators


def _literals(semantics: Semantics, location: Location, key: str, count: int, *, is_asserted: bool) -> list[Literal]:
    return [
        semantics.literal(semantics.library.child(location, key, index), is_asserted=is_asserted)
        for index in range(count)
    ]


def _all(semantics: Semantics, literals: Iterable[Literal]) -> Shape:
    result = EVERYTHING
    for literal in literals:
        result = semantics.both(result, semantics.shape_of(literal))
    return result


def _any(semantics: Semantics, literals: Iterable[Literal]) -> Shape:
    result = NOTHING
    for literal in literals:
        result = result.join(semantics.shape_of(literal))
    return result


def _none(semantics: Semantics, literals: list[Literal]) -> Shape:
    """The values that satisfy none of some asserted literals; of objects and arrays it is settled later."""
    result = EVERYTHING
    for literal in literals:
        denied = semantics.shape_of(literal ^ 1).without_compounds()
        result = replace(result.meet(denied), objects=result.objects, arrays=result.arrays)
        shape = semantics.shape_of(literal)
        if shape.objects:
            result = replace(result, objects=result.excluding(literal).objects)
        if shape.arrays:
            result = replace(result, arrays=result.excluding(literal).arrays)
    return result


def _all_of(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    literals = _literals(semantics, location, "allOf", len(value), is_asserted=is_asserted)
    return _all(semantics, literals) if is_asserted else _any(semantics, literals)


def _any_of(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    literals = _literals(semantics, location, "anyOf", len(value), is_asserted=True)
    return _any(semantics, literals) if is_asserted else _none(semantics, literals)


def _one_of(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    if len(value) > MAX_BRANCHES:  # they are compared pair by pair
        raise ResourceLimitError(f"a oneOf with more than {MAX_BRANCHES:,} branches", hint='"anyOf" or "enum"')
    literals = _literals(semantics, location, "oneOf", len(value), is_asserted=True)
    shapes = [semantics.shape_of(literal) for literal in literals]
    if is_asserted:
        return _exactly_one(semantics, literals, shapes)
    none = _none(semantics, literals)
    for shape, other_shape in itertools.combinations(shapes, 2):
        none = none.join(semantics.both(shape, other_shape))
    return none


def _exactly_one(semantics: Semantics, literals: list[Literal], shapes: list[Shape]) -> Shape:
    """The values of each branch that are in no other one.

    Which objects and arrays can be in two branches is asked when the conditions around the keyword are known: most
    branches are told apart by a property that is required elsewhere.
    """
    result = NOTHING
    for index, shape in enumerate(shapes):
        alone = shape
        for other, other_shape in enumerate(shapes):
            if other == index:
                continue
            if semantics.have_common_scalar(shape, other_shape):
                denied = semantics.shape_of(literals[other] ^ 1)
                alone = replace(alone.meet(denied.without_compounds()), objects=alone.objects, arrays=alone.arrays)
            if (shape.objects and other_shape.objects) or (shape.arrays and other_shape.arrays):
                alone = alone.excluding(literals[other])
        result = result.join(alone)
    return result


def _not(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    return semantics.pending(semantics.below(location, "not", is_asserted=not is_asserted))


def _if(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    keywords = location.keywords()
    if "then" not in keywords and "else" not in keywords:
        return EVERYTHING if is_asserted else NOTHING
    result = NOTHING
    for key, holds in (("then", True), ("else", False)):
        if key in keywords:
            branch = semantics.pending(semantics.below(location, key, is_asserted=is_asserted))
        else:
            branch = EVERYTHING if is_asserted else NOTHING
        if branch != NOTHING:
            condition = semantics.pending(semantics.below(location, "if", is_asserted=holds))
            result = result.join(semantics.both(condition, branch))
    return result


def _ref(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    target = semantics.library.resolve(location, value)
    return semantics.pending(semantics.goal(target, is_asserted=is_asserted))


def _dynamic_ref(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    target = semantics.library.resolve_dynamic(location)
    return semantics.pending(semantics.goal(target, is_asserted=is_asserted))


# -- what was evaluated: the combinators again, for an `unevaluatedProperties` or `unevaluatedItems` around them

"""(semantics, schema, value of the keyword, is_exact) -> what it admits asserted, see `Semantics.seen_shape_of`."""


def _seen(semantics: Semantics, location: Location, is_exact: bool, *tokens: str | int) -> Shape:
    literal = semantics.literal(semantics.library.child(location, *tokens))
    return semantics.seen_shape_of(literal, is_exact=is_exact)


def _see_properties(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    keywords, part = location.keywords(), semantics.part(location)
    seen = SeenKeys(
        frozenset(part.names), tuple(pattern for pattern, _ in part.patterns), "additionalProperties" in keywords
    )
    return _objects(ObjectSpec((part,), seen=seen), is_asserted=True)


def _see_items(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    keywords, spec = location.keywords(), semantics.items(location)
    is_list = location.draft >= Draft.DRAFT2020 or isinstance(keywords.get("items"), list)
    rest_key = "items" if location.draft >= Draft.DRAFT2020 or not is_list else "additionalItems"
    seen = SeenItems(len(spec.prefix), rest_key in keywords)
    return _arrays(replace(spec, seen=seen), is_asserted=True)


def _see_contains(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    shape = _contains(semantics, location, value, True)
    if location.draft < Draft.DRAFT2020:  # an annotation of 2020-12 only
        return shape
    seen = SeenItems(goals=frozenset({semantics.below(location, "contains")}))
    return semantics.both(shape, _arrays(ArraySpec(seen=seen), is_asserted=True))


def _see_dependencies(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    result = EVERYTHING
    key = "dependencies" if location.draft <= Draft.DRAFT7 else "dependentSchemas"
    for name, below in value.items():
        if isinstance(below, list):
            then = restrict(objects=(ObjectSpec(required=tuple(dict.fromkeys(below))),))
        else:
            then = _seen(semantics, location, is_exact, key, name)
        has_name = Shape(objects=(ObjectSpec(required=(name,)),))
        condition = restrict(objects=(_absent(name),)).join(semantics.both(has_name, then))
        result = semantics.both(result, condition)
    return result


def _see_all_of(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    result = EVERYTHING
    for index in range(len(value)):
        result = semantics.both(result, _seen(semantics, location, is_exact, "allOf", index))
    return result


def _see_any_of(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    """The union over all sets of branches that hold. Which others fail matters only if what was evaluated is exact."""
    some, none = NOTHING, EVERYTHING  # of the branches that evaluate something: some hold; none does
    others = NOTHING
    for literal in _literals(semantics, location, "anyOf", len(value), is_asserted=True):
        shape = semantics.seen_shape_of(literal, is_exact=is_exact)
        if not shape.has_seen:
            others = others.join(shape)
            continue
        fails = semantics.shape_of(literal ^ 1) if is_exact else EVERYTHING
        with_it = semantics.both(none, shape).join(semantics.both(some, shape))
        some = with_it.join(semantics.both(some, fails))
        none = semantics.both(none, fails)
    return some.join(semantics.both(none, others))


def _see_one_of(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    literals = _literals(semantics, location, "oneOf", len(value), is_asserted=True)
    shapes = [semantics.seen_shape_of(literal, is_exact=is_exact) for literal in literals]
    return _exactly_one(semantics, literals, shapes)


def _see_if(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    keywords = location.keywords()
    holds = _seen(semantics, location, is_exact, "if")
    if "then" not in keywords and "else" not in keywords:
        if not holds.has_seen:
            return EVERYTHING
        fails = semantics.pending(semantics.below(location, "if", is_asserted=False)) if is_exact else EVERYTHING
        return holds.join(fails)
    then, otherwise = (
        _seen(semantics, location, is_exact, key) if key in keywords else EVERYTHING for key in ("then", "else")
    )
    result = semantics.both(holds, then)
    if otherwise != NOTHING:
        fails = semantics.pending(semantics.below(location, "if", is_asserted=False))
        result = result.join(semantics.both(fails, otherwise))
    return result


def _see_ref(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    target = semantics.library.resolve(location, value)
    return semantics.seen_shape_of(semantics.literal(target), is_exact=is_exact)


def _see_dynamic_ref(semantics: Semantics, location: Location, value: Any, is_exact: bool) -> Shape:
    target = semantics.library.resolve_dynamic(location)
    return semantics.seen_shape_of(semantics.literal(target), is_exact=is_exact)


SEEING: Final[dict[str, Meaning]] = {
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), _see_properties),
    **dict.fromkeys(("prefixItems", "items", "additionalItems"), _see_items),
    "contains": _see_contains,
    **dict.fromkeys(("dependencies", "dependentSchemas"), _see_dependencies),
    "allOf": _see_all_of,
    "anyOf": _see_any_of,
    "oneOf": _see_one_of,
    "if": _see_if,
    "$ref": _see_ref,
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), _see_dynamic_ref),
}
"""The keywords that leave annotations of evaluated properties and items, their own or those of schemas in place."""


def _unevaluated_properties(semantics: Semantics, location: Location, shape: Shape) -> Shape:
    """A shape that tells what was evaluated, with the goal of all other properties."""
    goal = semantics.below(location, "unevaluatedProperties")
    objects = []
    for spec in shape.objects:
        if not spec.seen.is_all:
            if goal != TRUE:
                spec = spec.meet(ObjectSpec((semantics.remainder(location, spec.seen),)))
            spec = replace(spec, seen=SeenKeys(is_all=True))
        objects.append(spec)
    return replace(shape, objects=tuple(dict.fromkeys(objects)))


def _unevaluated_items(semantics: Semantics, location: Location, shape: Shape) -> Shape:
    """A shape that tells what was evaluated, with the goal of all other items."""
    goal = semantics.below(location, "unevaluatedItems")
    arrays = []
    for spec in shape.arrays:
        seen = spec.seen
        if not seen.is_all:
            rest = semantics.either(goal, *seen.goals)
            spec = replace(spec.meet(ArraySpec((TRUE,) * seen.num_items, rest)), seen=SeenItems(is_all=True))
        arrays.append(spec)
    return replace(shape, arrays=tuple(dict.fromkeys(arrays)))


UNEVALUATED: Final[dict[str, Callable[[Semantics, Location, Shape], Shape]]] = {
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
}


def _unevaluated(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    """Asserted only where it says nothing; elsewhere `Semantics.seen_shape` applies it after its sisters."""
    return EVERYTHING if is_asserted else NOTHING


def _deny_unevaluated_properties(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    """Denied: the other keywords hold, and some property that none of them evaluated is refused."""
    if is_asserted or semantics.below(location, "unevaluatedProperties") == TRUE:
        return _unevaluated(semantics, location, value, is_asserted)
    refused = semantics.below(location, "unevaluatedProperties", is_asserted=False)
    objects = []
    for spec in semantics.seen_shape(location, is_exact=True, has_unevaluated=False).objects:
        if not spec.seen.is_all:
            keys = semantics.uncovered(semantics.remainder(location, spec.seen))
            witness = ObjectSpec(witnesses=(Witness(keys, refused),))
            objects.append(replace(spec.meet(witness), seen=SeenKeys()))
    return semantics.both(EVERYTHING, Shape(objects=tuple(dict.fromkeys(objects))))


def _deny_unevaluated_items(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    """Denied: the other keywords hold, and some item that none of them evaluated is refused."""
    goal = semantics.below(location, "unevaluatedItems")
    if is_asserted or goal == TRUE:
        return _unevaluated(semantics, location, value, is_asserted)
    refused = semantics.below(location, "unevaluatedItems", is_asserted=False)
    arrays = []
    for spec in semantics.seen_shape(location, is_exact=True, has_unevaluated=False).arrays:
        seen = spec.seen
        if not seen.is_all:
            both = conjunction(refused, *map(_denied, seen.goals))
            witness = Contains(both, semantics.either(goal, *seen.goals), 1, None, seen.num_items)
            counted = ArraySpec(contains=(witness,), min_items=seen.num_items + 1)
            arrays.append(replace(spec.meet(counted), seen=SeenItems()))
    return semantics.both(EVERYTHING, Shape(arrays=tuple(dict.fromkeys(arrays))))


MEANINGS: Final[dict[str, Meaning]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    **{name: _bound(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "multipleOf": _multiple_of,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
    **dict.fromkeys(("prefixItems", "items", "additionalItems"), _items),
    "minItems": _min_items,
    "maxItems": _max_items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), _properties),
    "propertyNames": _property_names,
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _dynamic_ref,
    "unevaluatedProperties": _deny_unevaluated_properties,
    "unevaluatedItems": _deny_unevaluated_items,
}

KEYWORDS: Final = Keywords(MEANINGS, (_properties, _items), SEEING, UNEVALUATED)
