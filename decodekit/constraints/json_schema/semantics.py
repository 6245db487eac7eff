"""What each keyword means: from schemas to shapes, asserted and denied.

A literal is a schema that is asserted or denied. Denial is pushed inwards (the negation normal form): *not all* is
*any not*, a denied property is a required one with a denied value, a denied `additionalProperties` is a witness. So
`not`, `if` and an overlapping `oneOf` need no machinery of their own, and a shape is always a plain disjunction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias, cast

from decodekit.constraints import ir
from decodekit.constraints.ir import Node
from decodekit.constraints.json_schema import formats, numbers, patterns, text
from decodekit.constraints.json_schema.drafts import Draft, JsonValue, is_number, keyword
from decodekit.constraints.json_schema.formats import Formats
from decodekit.constraints.json_schema.loader import Library, Location, show
from decodekit.constraints.json_schema.numbers import NO_CONDITION, NumberSpec, exact
from decodekit.constraints.json_schema.shape import (
    EVERYTHING,
    FALSE,
    NOTHING,
    TRUE,
    ArraySpec,
    Contains,
    Goal,
    Literal,
    ObjectSpec,
    Part,
    Shape,
    Witness,
    conjunction,
    restrict,
)
from decodekit.errors import ResourceLimitError, UnsupportedSchemaError

MAX_IN_PLACE: Final = 100
"""Bound on the nesting of keywords that speak of the same value: references, allOf, anyOf, oneOf, not, if."""

_Meaning: TypeAlias = "Callable[[Semantics, Location, Any, bool], Shape]"

_Path: TypeAlias = tuple[str | int, ...]

_PROPERTY_KEYWORDS: Final = ("properties", "patternProperties", "additionalProperties")
_ITEM_KEYWORDS: Final = ("prefixItems", "items", "additionalItems")
_COMPOUND: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"})


class Semantics:
    """The meaning of the schemas of one library, with memory.

    Args:
        library: the documents.
        formats: whether a known `format` limits the strings, and how; otherwise it is an annotation.
    """

    def __init__(self, library: Library, formats: Formats) -> None:
        self.library = library
        self.formats = formats
        self._locations: list[Location | None] = [None]  # by literal // 2; number 0 admits everything
        self._numbers: dict[Location, int] = {}
        self._constants: dict[str, Literal] = {}
        self._shapes: dict[Literal, Shape] = {0: EVERYTHING, 1: NOTHING}
        self._goals: dict[Goal, Shape] = {TRUE: EVERYTHING, FALSE: NOTHING}
        self._in_progress: list[Literal] = []
        self._lock = threading.RLock()  # `_in_progress` belongs to one thread at a time
        self._parts: dict[Location, Part] = {}

    # -- literals and goals

    def literal(self, location: Location, *, is_asserted: bool = True) -> Literal:
        """The literal of a schema. Schemas without a condition are literal 0, ``false`` is its denial."""
        if location.value is False:
            number = 1
        elif location.value is True or not location.value:
            number = 0
        else:
            index = self._numbers.get(location)
            if index is None:
                index = self._numbers[location] = len(self._locations)
                self._locations.append(location)
            number = 2 * index
        return number if is_asserted else number ^ 1

    def location(self, literal: Literal) -> Location | None:
        """The schema of a literal; None for the one without a condition."""
        return self._locations[literal >> 1]

    def goal(self, location: Location, *, is_asserted: bool = True) -> Goal:
        """The goal of one schema alone."""
        return conjunction(frozenset({self.literal(location, is_asserted=is_asserted)}))

    def below(self, location: Location, *tokens: str | int, is_asserted: bool = True) -> Goal:
        return self.goal(self.library.child(location, *tokens), is_asserted=is_asserted)

    def constant(self, location: Location, value: JsonValue, *tokens: str | int) -> Literal:
        """The literal of ``{"const": value}``, where `value` is what lies below `location`."""
        pointer = location.at(*tokens)
        literal = self._constants.get(pointer)
        if literal is None:
            path = pointer.removeprefix(f"{location.document.uri}#")
            schema = {"const": value}
            constant = Location(-1, schema, location.document, path, location.base, Draft.DRAFT2020, is_constant=True)
            literal = self._constants[pointer] = self.literal(constant)
        return literal

    # -- shapes

    def shape(self, goal: Goal) -> Shape:
        """The values that satisfy all literals of a goal."""
        shape = self._goals.get(goal)
        if shape is None:
            shape = EVERYTHING
            for literal in sorted(goal):  # document order, so that merged properties keep it
                shape = shape.meet(self.shape_of(literal))
            self._goals[goal] = shape = self._prune(shape) if len(goal) > 1 else shape
        return shape

    def shape_of(self, literal: Literal) -> Shape:
        """The values that one literal admits.

        Raises:
            UnsupportedSchemaError: a keyword that is not enforced, or a schema that refers to itself in place.
            ResourceLimitError: too many alternatives, too deep.
        """
        shape = self._shapes.get(literal)
        if shape is not None:
            return shape
        with self._lock:
            return self._shape_of(literal)

    def _shape_of(self, literal: Literal) -> Shape:
        location = self._locations[literal >> 1]
        assert location is not None
        if literal in self._in_progress:
            raise UnsupportedSchemaError(
                "the schema refers to itself for the same value, so it says nothing that could be enforced",
                at=location.pointer,
                hint="placing the reference below properties or items",
            )
        if len(self._in_progress) >= MAX_IN_PLACE:
            raise ResourceLimitError(
                f"more than {MAX_IN_PLACE} references or combinators speak of the same value", at=location.pointer
            )
        self._in_progress.append(literal)
        try:
            shape = self._evaluate(location, is_asserted=not literal & 1)
        except ResourceLimitError as error:
            if error.at is not None:
                raise
            raise ResourceLimitError(error.cause, at=location.pointer, hint=error.hint) from error
        finally:
            self._in_progress.pop()
        self._shapes[literal] = shape
        return shape

    def _evaluate(self, location: Location, *, is_asserted: bool) -> Shape:
        result = EVERYTHING if is_asserted else NOTHING
        done = set()
        for name, value in location.keywords().items():
            known = keyword(name, location.draft)
            meaning = _MEANINGS.get(name)
            if known is None or not known.is_assertion or meaning is None or meaning in done:
                continue
            if meaning in (_properties, _items):
                done.add(meaning)  # these read their sisters too
            shape = meaning(self, location, value, is_asserted)
            result = result.meet(shape) if is_asserted else result.join(shape)
        return result

    # -- what is plainly empty, to keep disjunctions short; the exact answer is that of `Emptiness`

    def is_apart(self, first: Shape, second: Shape) -> bool:
        """Whether no value is in both, as far as that is plain to see."""
        common = first.meet(second)
        return not (
            common.has_null
            or common.has_true
            or common.has_false
            or not common.strings.is_empty
            or any(not spec.node().is_empty for spec in common.numbers)
            or any(not self._is_contradictory(spec) for spec in common.objects)
            or any(not self._is_contradictory(spec) for spec in common.arrays)
        )

    def _is_contradictory(self, spec: ObjectSpec | ArraySpec, depth: int = 3) -> bool:
        if isinstance(spec, ObjectSpec):
            if spec.max_properties is not None and spec.max_properties < max(len(spec.required), spec.min_properties):
                return True
            needed: Iterable[Goal] = (spec.goal(name) for name in spec.required)
        else:
            if spec.max_items is not None and spec.max_items < spec.min_items:
                return True
            needed = (spec.goal(index) for index in range(min(spec.min_items, len(spec.prefix) + 1)))
        return any(self._is_plainly_empty(goal, depth) for goal in needed)

    def _is_plainly_empty(self, goal: Goal, depth: int) -> bool:
        if goal == FALSE:
            return True
        if len(goal) < 2 or depth == 0 or not all(map(self._is_simple, goal)):
            return False
        shape = self.shape(goal)
        return not (
            shape.has_null
            or shape.has_true
            or shape.has_false
            or not shape.strings.is_empty
            or any(not spec.node().is_empty for spec in shape.numbers)
            or any(not self._is_contradictory(spec, depth - 1) for spec in shape.objects)
            or any(not self._is_contradictory(spec, depth - 1) for spec in shape.arrays)
        )

    def _is_simple(self, literal: Literal) -> bool:
        """Whether the shape of a literal needs no other one that may be in progress."""
        location = self.location(literal)
        for _ in range(8):
            if location is None:
                return True
            keywords = location.keywords()
            if not _COMPOUND.isdisjoint(keywords):
                return False
            reference = keywords.get("$ref")
            if not isinstance(reference, str):
                return "$dynamicRef" not in keywords and "$recursiveRef" not in keywords
            if len(keywords.keys() - {"$defs", "definitions", "$schema", "$id", "title", "description"}) > 1:
                return False
            location = self.library.resolve(location, reference)
        return False

    def _prune(self, shape: Shape) -> Shape:
        """Without objects and arrays that are plainly impossible."""
        objects = tuple(spec for spec in shape.objects if not self._is_contradictory(spec))
        arrays = tuple(spec for spec in shape.arrays if not self._is_contradictory(spec))
        if len(objects) == len(shape.objects) and len(arrays) == len(shape.arrays):
            return shape
        return Shape(
            shape.has_null, shape.has_true, shape.has_false, shape.strings, shape.numbers, objects, arrays
        )

    def both(self, first: Shape, second: Shape) -> Shape:
        """Intersection, without plainly impossible alternatives."""
        return self._prune(first.meet(second))

    # -- property and item groups

    def part(self, location: Location) -> Part:
        """`properties`, `patternProperties` and `additionalProperties` of a schema object."""
        part = self._parts.get(location)
        if part is None:
            keywords = location.keywords()
            names = {name: self.below(location, "properties", name) for name in keywords.get("properties", ())}  # type: ignore[attr-defined]
            rules = [
                (self.pattern(location, pattern, "patternProperties"), self.below(location, "patternProperties", pattern))
                for pattern in cast("dict[str, JsonValue]", keywords.get("patternProperties", {}))
            ]
            additional = self.below(location, "additionalProperties") if "additionalProperties" in keywords else TRUE
            part = self._parts[location] = Part(names, tuple(rules), additional)
        return part

    def pattern(self, location: Location, pattern: str, *tokens: str) -> Node:
        """The texts in which a pattern is found."""
        at = location.at(*tokens, *(() if tokens == ("pattern",) else (pattern,)))
        return patterns.search_language(pattern, at=at)

    def uncovered(self, part: Part) -> Node:
        """The keys that neither the names nor the patterns of a part cover."""
        language = text.without(text.BODY, text.words(list(part.names))) if part.names else text.BODY
        for pattern, _ in part.patterns:
            language = text.without(language, pattern)
        return language

    def items(self, location: Location) -> ArraySpec:
        """The goals of the items by `prefixItems`, `items` and `additionalItems`, as the draft reads them."""
        keywords = location.keywords()
        if location.draft >= Draft.DRAFT2020:
            prefix_key, rest_key = "prefixItems", "items"
        else:
            prefix_key, rest_key = "items", "additionalItems"
            if not isinstance(keywords.get("items"), list):
                rest = self.below(location, "items") if "items" in keywords else TRUE
                return ArraySpec(rest=rest)
        prefix = cast("list[JsonValue]", keywords.get(prefix_key, []))
        goals = tuple(self.below(location, prefix_key, index) for index in range(len(prefix)))
        return ArraySpec(goals, self.below(location, rest_key) if rest_key in keywords else TRUE)


def _denied(goal: Goal) -> Goal:
    """The denial of a goal of at most one literal."""
    if not goal:
        return FALSE
    (literal,) = goal
    return conjunction(frozenset({literal ^ 1}))


# -- any type


def _type(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    names = value if isinstance(value, list) else [value]
    is_plain = location.draft == Draft.DRAFT4
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
        shape = semantics.both(shape, restrict(objects=tuple(_object_differs(semantics, location, path, entry))))
    for path, entry in arrays:
        shape = semantics.both(shape, restrict(arrays=tuple(_array_differs(semantics, location, path, entry))))
    return shape


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
        yield ObjectSpec((Part({name: frozenset({constant ^ 1})}),), (name,))
    others = text.without(text.BODY, text.words(list(value))) if value else text.BODY
    yield ObjectSpec(witnesses=(Witness(others, TRUE),))


def _array_equal(semantics: Semantics, location: Location, path: _Path, value: list[JsonValue]) -> ArraySpec:
    goals = [
        frozenset({semantics.constant(location, below, *path, index)}) for index, below in enumerate(value)
    ]
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


def _bound(name: str) -> _Meaning:
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
    language = formats.language(value, semantics.formats, at=location.at("format"))
    if language is None:
        return EVERYTHING if is_asserted else NOTHING
    return _strings(language, is_asserted)


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
        denied.append(ArraySpec(contains=(Contains(_denied(spec.rest), spec.rest, 1, None, start),), min_items=start + 1))
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
    raise refuse(location, "uniqueItems")


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
    return ObjectSpec((Part({name: FALSE}),))


def _properties(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    part = semantics.part(location)
    if is_asserted:
        return _objects(ObjectSpec((part,)), is_asserted=True)
    denied = [
        ObjectSpec((Part({name: _denied(goal)}),), (name,)) for name, goal in part.names.items() if goal != TRUE
    ]
    denied += [
        ObjectSpec(witnesses=(Witness(pattern, _denied(goal)),)) for pattern, goal in part.patterns if goal != TRUE
    ]
    if part.additional != TRUE:
        denied.append(ObjectSpec(witnesses=(Witness(semantics.uncovered(part), _denied(part.additional)),)))
    return _objects(*denied, is_asserted=False)


def _property_names(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    if is_asserted:
        return _objects(ObjectSpec(names=semantics.below(location, "propertyNames")), is_asserted=True)
    refused = semantics.shape(semantics.below(location, "propertyNames", is_asserted=False)).strings
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
    result = EVERYTHING if is_asserted else NOTHING
    for name, below in value.items():
        if isinstance(below, list):
            needed = tuple(dict.fromkeys(below))
            then = restrict(objects=(ObjectSpec(required=needed),))
            otherwise = Shape(objects=tuple(map(_absent, needed)))
        else:
            key = "dependencies" if location.draft <= Draft.DRAFT7 else "dependentSchemas"
            goal = semantics.below(location, key, name)
            then = semantics.shape(goal) if is_asserted else EVERYTHING
            otherwise = NOTHING if is_asserted else semantics.shape(_denied(goal))
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


def _all_of(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    literals = _literals(semantics, location, "allOf", len(value), is_asserted=is_asserted)
    return _all(semantics, literals) if is_asserted else _any(semantics, literals)


def _any_of(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    literals = _literals(semantics, location, "anyOf", len(value), is_asserted=is_asserted)
    return _any(semantics, literals) if is_asserted else _all(semantics, literals)


def _one_of(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    literals = _literals(semantics, location, "oneOf", len(value), is_asserted=True)
    shapes = [semantics.shape_of(literal) for literal in literals]
    if is_asserted:
        result = NOTHING
        for index, shape in enumerate(shapes):
            for other, literal in enumerate(literals):
                if other != index and not semantics.is_apart(shapes[index], shapes[other]):
                    shape = semantics.both(shape, semantics.shape_of(literal ^ 1))
            result = result.join(shape)
        return result
    none = _all(semantics, [literal ^ 1 for literal in literals])
    for index, shape in enumerate(shapes):
        for other in shapes[:index]:
            none = none.join(semantics.both(shape, other))
    return none


def _not(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    return semantics.shape(semantics.below(location, "not", is_asserted=not is_asserted))


def _if(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    keywords = location.keywords()
    if "then" not in keywords and "else" not in keywords:
        return EVERYTHING if is_asserted else NOTHING
    result = NOTHING
    for key, holds in (("then", True), ("else", False)):
        if key in keywords:
            branch = semantics.shape(semantics.below(location, key, is_asserted=is_asserted))
        else:
            branch = EVERYTHING if is_asserted else NOTHING
        if branch != NOTHING:
            condition = semantics.shape(semantics.below(location, "if", is_asserted=holds))
            result = result.join(semantics.both(condition, branch))
    return result


def _ref(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    target = semantics.library.resolve(location, value)
    return semantics.shape(semantics.goal(target, is_asserted=is_asserted))


def _dynamic_ref(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
    target = semantics.library.resolve_dynamic(location)
    if target is None:
        raise refuse(location, "$dynamicRef" if "$dynamicRef" in location.keywords() else "$recursiveRef")
    return semantics.shape(semantics.goal(target, is_asserted=is_asserted))


def _unevaluated(name: str) -> _Meaning:
    def meaning(semantics: Semantics, location: Location, value: Any, is_asserted: bool) -> Shape:
        if semantics.below(location, name) == TRUE:
            return EVERYTHING if is_asserted else NOTHING
        raise refuse(location, name)

    return meaning


_HINTS: Final = {
    "uniqueItems": "leaving it out and checking the finished value",
    "unevaluatedProperties": 'listing the properties of all branches in one schema with "additionalProperties"',
    "unevaluatedItems": 'listing the items of all branches in one schema with "items" after "prefixItems"',
    "$dynamicRef": 'a plain "$ref"',
    "$recursiveRef": 'a plain "$ref"',
}


def refuse(location: Location, name: str) -> UnsupportedSchemaError:
    """The error of a keyword that is not enforced."""
    value = location.keywords().get(name)
    return UnsupportedSchemaError(
        f'"{name}": {show(value)} cannot be enforced while decoding', at=location.at(name), hint=_HINTS.get(name)
    )


_MEANINGS: Final[dict[str, _Meaning]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    **{name: _bound(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "multipleOf": _multiple_of,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
    **dict.fromkeys(_ITEM_KEYWORDS, _items),
    "minItems": _min_items,
    "maxItems": _max_items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    **dict.fromkeys(_PROPERTY_KEYWORDS, _properties),
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
    "unevaluatedProperties": _unevaluated("unevaluatedProperties"),
    "unevaluatedItems": _unevaluated("unevaluatedItems"),
}
