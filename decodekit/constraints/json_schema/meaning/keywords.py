"""The keywords, one function each: what a keyword says when its schema is asserted, and what when it is denied.

A keyword speaks of one type. Asserted it admits all values of the other types; denied it admits none of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial, reduce
from typing import Any, Final, TypeAlias, TypeVar

from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.document.drafts import REFERENCES, JsonValue, SchemaDraft, is_number
from decodekit.constraints.json_schema.document.loader import Location
from decodekit.constraints.json_schema.meaning.semantics import Keywords, Meaning, Semantics
from decodekit.constraints.json_schema.strings import string_formats as formats
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.string_formats import Formats
from decodekit.constraints.json_schema.values import numbers
from decodekit.constraints.json_schema.values.numbers import NO_CONDITION, NumberSpec, exact
from decodekit.constraints.json_schema.values.shape import (
    ANY_ARRAY,
    EVERYTHING,
    FALSE,
    MAX_ALTERNATIVES,
    NOTHING,
    TRUE,
    ArraySpec,
    Contains,
    EvaluatedParts,
    Goal,
    Literal,
    ObjectSpec,
    Properties,
    Sense,
    Shape,
    Witness,
    conjunction,
    denial,
    limited,
    restrict,
    without,
)
from decodekit.errors import ResourceLimitError

MAX_DEPENDENCIES: Final = 64
"""Bound on the properties that one schema lets depend on others; the alternatives are multiplied out."""

MAX_BRANCHES: Final = 1_000
"""Bound on the branches of a oneOf."""

_Path: TypeAlias = tuple[str | int, ...]
_Spec = TypeVar("_Spec", ObjectSpec, ArraySpec)


# -- any type


def _type(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    names = tuple(value) if isinstance(value, list) else (value,)
    # Pydantic reads 1e2 as an int, and not 1e97: a Python int is generated as digits.
    is_digits = semantics.formats == "python" and sense.is_asserted
    return _of_types(names, location.draft == SchemaDraft.DRAFT4 or is_digits, sense.is_asserted)


@lru_cache(maxsize=1024)
def _of_types(names: tuple[str, ...], is_plain: bool, is_asserted: bool) -> Shape:
    only_integers = "integer" in names and "number" not in names
    if is_asserted:
        shape = EVERYTHING.only(*names)
        spec = NumberSpec(is_integer=not is_plain, is_plain=is_plain)
        return shape.join(Shape(numbers=(spec,))) if only_integers else shape
    shape = EVERYTHING.only(*({"null", "boolean", "string", "array", "object", "number"} - set(names)))
    return replace(shape, numbers=(numbers.not_integer(is_plain=is_plain),)) if only_integers else shape


def _enum(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    values: list[tuple[_Path, Any]] = [(("enum", index), entry) for index, entry in enumerate(value)]
    return _among(semantics, location, values, sense.is_asserted)


def _const(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    # What stands for a constant inside an enum or a const has the place of the constant itself.
    return _among(semantics, location, [(() if location.is_constant else ("const",), value)], sense.is_asserted)


def _among(semantics: Semantics, location: Location, values: list[tuple[_Path, Any]], is_asserted: bool) -> Shape:
    """Exactly these values, or all but these. Equality is JSON's: 1 is 1.0 and is not true."""
    texts = [entry for _, entry in values if isinstance(entry, str)]
    decimals = frozenset(exact(entry) for _, entry in values if is_number(entry))
    objects = [(path, entry) for path, entry in values if isinstance(entry, dict)]
    arrays = [(path, entry) for path, entry in values if isinstance(entry, list)]
    singles = (entry for _, entry in values if entry is None or isinstance(entry, bool))
    words = frozenset("null" if entry is None else str(entry).lower() for entry in singles)
    if is_asserted:
        return Shape(
            words,
            text.words(texts),
            (NumberSpec(values=decimals),) if decimals else (),
            _one_object_of(semantics, location, objects),
            _one_array_of(semantics, location, arrays),
        )
    shape = Shape(
        EVERYTHING.words - words,
        text.without(text.BODY, text.words(texts)) if texts else text.BODY,
        (NumberSpec(no_values=decimals) if decimals else NO_CONDITION,),
        EVERYTHING.objects,
        EVERYTHING.arrays,
    )
    others = itertools.chain(
        (restrict(objects=_few(_object_equal(semantics, location, *value).denials())) for value in objects),
        (restrict(arrays=_few(_array_equal(semantics, location, *value).denials())) for value in arrays),
    )
    return _narrowed(semantics, shape, others)


def _narrowed(semantics: Semantics, shape: Shape, conditions: Iterable[Shape]) -> Shape:
    """The values of a shape that satisfy all conditions, as far as their alternatives are not too many."""
    try:
        for condition in conditions:
            shape = semantics.prune(shape.meet(condition))
    except ResourceLimitError as error:
        semantics.leave(error)  # which leaves those out that come now
    return shape


def _few(specs: Iterator[_Spec]) -> tuple[_Spec, ...]:
    """Alternatives that are made no further than to their limit: of an array they take the square of its length."""
    return limited(tuple(itertools.islice(specs, MAX_ALTERNATIVES + 1)))


def _one_object_of(
    semantics: Semantics, location: Location, values: list[tuple[_Path, dict[str, JsonValue]]]
) -> tuple[ObjectSpec, ...]:
    """The objects of an enum. Where they are too many, those with its properties, each with one of its values."""
    if len(values) <= MAX_ALTERNATIVES:
        return tuple(_object_equal(semantics, location, path, entry) for path, entry in values)
    columns = _columns(semantics, location, "objects", [entry.items() for _, entry in values])
    goals = {name: goal for name, (goal, _) in columns.items()}
    required = tuple(name for name, (_, count) in columns.items() if count == len(values))
    return (ObjectSpec((Properties(goals, additional=FALSE),), required),)


def _one_array_of(
    semantics: Semantics, location: Location, values: list[tuple[_Path, list[JsonValue]]]
) -> tuple[ArraySpec, ...]:
    """The arrays of an enum, as `_one_object_of`."""
    if len(values) <= MAX_ALTERNATIVES:
        return tuple(_array_equal(semantics, location, path, entry) for path, entry in values)
    columns = _columns(semantics, location, "arrays", [enumerate(entry) for _, entry in values])
    sizes = [len(entry) for _, entry in values]
    return (ArraySpec(tuple(goal for goal, _ in columns.values()), FALSE, min(sizes), max(sizes)),)


def _columns(
    semantics: Semantics, location: Location, kind: str, values: Iterable[Iterable[tuple[Any, JsonValue]]]
) -> dict[Any, tuple[Goal, int]]:
    """For each key or index of the values of an enum the goal of what one of them has there, and how many have it."""
    hint = "naming the values by strings"
    semantics.leave(ResourceLimitError(f"an enum with more than {MAX_ALTERNATIVES} {kind}", hint=hint))
    columns: dict[Any, list[JsonValue]] = {}
    for value in values:
        for at, below in value:
            columns.setdefault(at, []).append(below)
    return {
        at: (frozenset({semantics.constant(location, column, "enum", "*", at, key="enum")}), len(column))
        for at, column in columns.items()
    }


def _object_equal(semantics: Semantics, location: Location, path: _Path, value: dict[str, JsonValue]) -> ObjectSpec:
    literals = {name: semantics.constant(location, below, *path, name) for name, below in value.items()}
    names = {name: conjunction(frozenset({literal})) for name, literal in literals.items()}
    return ObjectSpec((Properties(names, additional=FALSE),), tuple(value))


def _array_equal(semantics: Semantics, location: Location, path: _Path, value: list[JsonValue]) -> ArraySpec:
    goals = [frozenset({semantics.constant(location, below, *path, index)}) for index, below in enumerate(value)]
    return ArraySpec(tuple(goals), FALSE, len(value), len(value))


# -- numbers and strings


def _bound(name: str, semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    if isinstance(value, bool):  # draft 4: read with minimum and maximum
        return EVERYTHING if sense.is_asserted else NOTHING
    is_strict = name.startswith("exclusive")
    if location.draft == SchemaDraft.DRAFT4:
        is_strict = location.keywords().get(f"exclusive{name.capitalize()}") is True
    is_strict = is_strict == sense.is_asserted
    if sense.is_asserted == name.endswith("inimum"):
        spec = NumberSpec(low=exact(value), low_strict=is_strict)
    else:
        spec = NumberSpec(high=exact(value), high_strict=is_strict)
    return _only(sense, numbers=(spec,))


def _multiple_of(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    step = exact(value)
    if not sense.is_asserted:
        return Shape(numbers=(NumberSpec(no_multiples=frozenset({step})),))
    return restrict(numbers=(NumberSpec(is_integer=True) if step == 1 else NumberSpec(step=step),))


def _size(name: str, semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    is_least, between, count = name.startswith("min"), _BETWEEN[name[3:]], int(value)
    if is_least == sense.is_asserted:
        part = between(count if is_least else count + 1, None)
    elif is_least and not count:
        return NOTHING
    else:
        part = between(0, count - 1 if is_least else count)
    return _only(sense, **part)


_BETWEEN: Final[dict[str, Callable[[int, int | None], dict[str, Any]]]] = {
    "Length": lambda least, most: {"strings": text.length(least, most) if least or most is not None else text.BODY},
    "Items": lambda least, most: {"arrays": (ArraySpec(min_items=least, max_items=most),)},
    "Properties": lambda least, most: {"objects": (ObjectSpec(min_properties=least, max_properties=most),)},
}
"""By the second part of the keywords' names, the part of a shape of which the size lies between two."""


def _only(sense: Sense, **parts: Any) -> Shape:
    """A type that is limited to a part: with all values of the other types if its keyword is asserted."""
    return restrict(**parts) if sense.is_asserted else Shape(**parts)


def _pattern(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    found = semantics.pattern(location, value, "pattern")
    if found.excess is not None:
        semantics.leave(found.excess)
    return _only(sense, strings=found.texts if sense.is_asserted else found.others)


def _format(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    if value == formats.JSON_STRING and semantics.formats == "python":
        return restrict(strings=semantics.content(location)) if sense.is_asserted else Shape(strings=text.BODY)
    texts = formats.language if sense.is_asserted else formats.denial
    language = texts(value, semantics.formats, at=location.at("format"))
    if language is None:
        return EVERYTHING if sense.is_asserted else NOTHING
    return _only(sense, strings=language)


# -- arrays


def _items(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    spec = semantics.items(location)
    if sense.is_evaluated:
        is_all = location.of_items()[2] in location.keywords()
        spec = replace(spec, evaluated=EvaluatedParts(is_all, num_items=len(spec.prefix)))
    return _only(sense, arrays=(spec,) if sense.is_asserted else tuple(spec.denials()))


def _contains(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    keywords = location.keywords()
    counts = location.draft >= SchemaDraft.DRAFT2019
    least = int(keywords.get("minContains", 1)) if counts else 1
    most = int(keywords["maxContains"]) if counts and "maxContains" in keywords else None
    goal = semantics.below(location, "contains")
    denied = semantics.below(location, "contains", is_asserted=False)
    if sense.is_asserted:
        is_met = least == 0 and most is None  # by every array
        spec = ArraySpec(contains=() if is_met else (Contains(goal, denied, least, most),))
        if sense.is_evaluated and location.draft >= SchemaDraft.DRAFT2020:  # before, it evaluated nothing
            spec = replace(spec, evaluated=EvaluatedParts(goals=frozenset({goal})))
        return EVERYTHING if spec == ANY_ARRAY else restrict(arrays=(spec,))
    specs = [ArraySpec(contains=(Contains(goal, denied, 0, least - 1),))] if least else []
    if most is not None:
        specs.append(ArraySpec(contains=(Contains(goal, denied, most + 1, None),)))
    return Shape(arrays=tuple(specs))


def _unique_items(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    if is_unique_anyway(location, semantics.formats):
        return EVERYTHING if sense.is_asserted else NOTHING
    if sense.is_asserted:
        return restrict(arrays=(ArraySpec(is_unique=True),))
    # Arrays that violate the items beside it are denied by those already; the others tell which items can be equal.
    spec = semantics.items(location).meet(ArraySpec(min_items=2, is_repeating=True))
    return Shape(arrays=(spec,))


def is_unique_anyway(location: Location, formats: Formats) -> bool:
    """Whether ``uniqueItems`` says nothing that the keywords beside it do not.

    A Python set is read from a list with repetitions as well, unless it needs a number of different items.
    """
    keywords = location.keywords()
    types = keywords.get("type", "array")
    return (
        keywords.get("uniqueItems") is False
        or (formats == "python" and keywords.get("minItems", 0) <= 1)
        or (types != "array" and not (isinstance(types, list) and "array" in types))
        or keywords.get("maxItems", 2) <= 1
    )


# -- objects


def _properties(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    part = semantics.part(location)
    excess = support.excess(location, "patternProperties", location.keywords().get("patternProperties", {}))
    if excess is not None:
        semantics.leave(excess, location.at("patternProperties"))
        if not sense.is_asserted:
            return Shape(objects=EVERYTHING.objects)
    spec = ObjectSpec((part,))
    if sense.is_evaluated:
        is_all = "additionalProperties" in location.keywords()
        evaluated = EvaluatedParts(is_all, frozenset(part.names), tuple(pattern for pattern, _ in part.patterns))
        spec = replace(spec, evaluated=evaluated)
    return _only(sense, objects=(spec,) if sense.is_asserted else tuple(spec.denials()))


def _property_names(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    if sense.is_asserted:
        return restrict(objects=(ObjectSpec(names=semantics.below(location, "propertyNames")),))
    refused = semantics.read_below(location, "propertyNames", sense=sense).strings
    return Shape(objects=(ObjectSpec(witnesses=(Witness(refused, TRUE),)),))


def _required(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    spec = ObjectSpec(required=tuple(dict.fromkeys(value)))
    return _only(sense, objects=(spec,) if sense.is_asserted else tuple(spec.denials()))


def _dependencies(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    """`dependencies`, `dependentRequired`, `dependentSchemas`: an object with the name has more to satisfy."""
    if len(value) > MAX_DEPENDENCIES:
        semantics.leave(
            ResourceLimitError(
                f"more than {MAX_DEPENDENCIES} properties have dependencies", hint="objects for what belongs together"
            )
        )
        if not sense.is_asserted:
            return Shape(objects=EVERYTHING.objects)
        value = dict(itertools.islice(value.items(), MAX_DEPENDENCIES))
    key = "dependencies" if location.draft <= SchemaDraft.DRAFT7 else "dependentSchemas"

    def with_name(name: str, below: Any) -> Shape:
        if isinstance(below, list):
            then = _required(semantics, location, below, sense)
        else:
            then = semantics.read_below(location, key, name, sense=sense)
        return semantics.both(Shape(objects=(ObjectSpec(required=(name,)),)), then)

    if not sense.is_asserted:
        return semantics.union(itertools.starmap(with_name, value.items()))
    shapes = (restrict(objects=(without(name),)).join(with_name(name, below)) for name, below in value.items())
    return _narrowed(semantics, EVERYTHING, shapes)


# -- combinators


def _branches(semantics: Semantics, location: Location, key: str) -> list[Literal]:
    return list(map(semantics.literal, semantics.library.parts(location, (key,))))


def _all_of(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    shapes = (semantics.read(literal, sense) for literal in _branches(semantics, location, "allOf"))
    return reduce(semantics.both, shapes, EVERYTHING) if sense.is_asserted else semantics.union(shapes)


def _any_of(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    literals = _branches(semantics, location, "anyOf")
    if sense is Sense.INVALID:
        return _none(semantics, literals)
    if sense.is_evaluated:
        return _some(semantics, literals, sense)
    return semantics.union(map(semantics.shape_of, literals))


def _some(semantics: Semantics, literals: list[Literal], sense: Sense) -> Shape:
    """The union over all sets of branches that hold. Which others fail matters only if what was evaluated is exact."""
    some, none = NOTHING, EVERYTHING  # of the branches that evaluate something: some hold; none does
    others = NOTHING
    for literal in literals:
        shape = semantics.read(literal, sense)
        if not shape.has_evaluated:
            others = others.join(shape)
            continue
        fails = semantics.shape_of(literal ^ 1) if sense is Sense.EXACT else EVERYTHING
        with_it = semantics.both(none, shape).join(semantics.both(some, shape))
        some = with_it.join(semantics.both(some, fails))
        none = semantics.both(none, fails)
    return some.join(semantics.both(none, others))


def _none(semantics: Semantics, literals: list[Literal]) -> Shape:
    """The values that satisfy none of some asserted literals; of objects and arrays it is settled later."""
    result = EVERYTHING
    for literal in literals:
        result = _without_scalars(semantics, result, literal).excluding(literal, semantics.shape_of(literal))
    return result


def _without_scalars(semantics: Semantics, shape: Shape, literal: Literal) -> Shape:
    denied = semantics.shape_of(literal ^ 1).without_compounds()
    return replace(shape.meet(denied), objects=shape.objects, arrays=shape.arrays)


def _one_of(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    literals = _branches(semantics, location, "oneOf")
    shapes = [semantics.read(literal, sense if sense.is_asserted else Sense.VALID) for literal in literals]
    try:
        if len(value) > MAX_BRANCHES:  # they are compared pair by pair
            raise ResourceLimitError(f"a oneOf with more than {MAX_BRANCHES:,} branches", hint='"anyOf" or "enum"')
        return _exactly_one(semantics, literals, shapes) if sense.is_asserted else _not_one(semantics, literals, shapes)
    except ResourceLimitError as error:
        semantics.leave(error)
    return semantics.union(shapes) if sense.is_asserted else EVERYTHING


def _not_one(semantics: Semantics, literals: list[Literal], shapes: list[Shape]) -> Shape:
    """The values of no branch, and those of two."""
    pairs = itertools.starmap(semantics.both, itertools.combinations(shapes, 2))
    return semantics.union([*pairs, _none(semantics, literals)])


def _exactly_one(semantics: Semantics, literals: list[Literal], shapes: list[Shape]) -> Shape:
    """The values of each branch that are in no other one.

    Which objects and arrays can be in two branches is asked when the conditions around the keyword are known: most
    branches are told apart by a property that is required elsewhere.
    """
    result = []
    for index, shape in enumerate(shapes):
        alone = shape
        for other, other_shape in enumerate(shapes):
            if other == index:
                continue
            if semantics.have_common_scalar(shape, other_shape):
                alone = _without_scalars(semantics, alone, literals[other])
            alone = alone.excluding(literals[other], other_shape)
        result.append(alone)
    return semantics.union(result)


def _not(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    return semantics.pending(semantics.below(location, "not", is_asserted=not sense.is_asserted))


def _if(semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    """*If* and *then*, or not *if* and *else*; read as invalid, with the branch denied."""
    keywords = location.keywords()
    anything = EVERYTHING if sense.is_asserted else NOTHING
    held = sense if sense.is_asserted else Sense.VALID
    if "then" not in keywords and "else" not in keywords:
        if not sense.is_evaluated:
            return anything
        holds = semantics.read_below(location, "if", sense=held)
        if not holds.has_evaluated:
            return EVERYTHING
        is_exact = sense is Sense.EXACT
        return holds.join(semantics.read_below(location, "if", sense=Sense.INVALID) if is_exact else EVERYTHING)
    result = []
    for key, condition in (("then", held), ("else", Sense.INVALID)):
        branch = semantics.read_below(location, key, sense=sense) if key in keywords else anything
        if branch != NOTHING:
            result.append(semantics.both(semantics.read_below(location, "if", sense=condition), branch))
    return semantics.union(result)


def _reference(name: str, semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    library = semantics.library
    target = library.follow(location) if name == "$ref" else library.target(location, name)
    return semantics.read(semantics.literal(target), sense)


# -- what nothing evaluated


def _unevaluated_properties(semantics: Semantics, location: Location, shape: Shape) -> Shape:
    """A shape that tells what was evaluated, with the goal of all other properties."""
    goal = semantics.below(location, "unevaluatedProperties")
    objects = []
    for spec in shape.objects:
        if not spec.evaluated.is_all:
            if goal != TRUE:
                spec = spec.meet(ObjectSpec((semantics.remainder(location, spec.evaluated),)))
            spec = replace(spec, evaluated=EvaluatedParts(is_all=True))
        objects.append(spec)
    return replace(shape, objects=tuple(dict.fromkeys(objects)))


def _unevaluated_items(semantics: Semantics, location: Location, shape: Shape) -> Shape:
    """A shape that tells what was evaluated, with the goal of all other items."""
    goal = semantics.below(location, "unevaluatedItems")
    arrays = []
    for spec in shape.arrays:
        if not spec.evaluated.is_all:
            rest = semantics.either(goal, *spec.evaluated.goals)
            spec = spec.meet(ArraySpec((TRUE,) * spec.evaluated.num_items, rest))
            spec = replace(spec, evaluated=EvaluatedParts(is_all=True))
        arrays.append(spec)
    return replace(shape, arrays=tuple(dict.fromkeys(arrays)))


UNEVALUATED: Final[dict[str, Callable[[Semantics, Location, Shape], Shape]]] = {
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
}


def _unevaluated(name: str, semantics: Semantics, location: Location, value: Any, sense: Sense) -> Shape:
    """Denied: the other keywords hold, and something that none of them evaluated is refused.

    Asserted only where it says nothing; elsewhere `Semantics.evaluated` applies it after its sisters.
    """
    goal = semantics.below(location, name)
    if sense.is_asserted or goal == TRUE:
        return EVERYTHING if sense.is_asserted else NOTHING
    refused = semantics.below(location, name, is_asserted=False)
    shape = semantics.evaluated(location, Sense.EXACT, has_unevaluated=False)
    if name == "unevaluatedProperties":
        return semantics.prune(_refusing_a_property(semantics, location, shape, refused))
    return semantics.prune(_refusing_an_item(semantics, shape, goal, refused))


def _refusing_a_property(semantics: Semantics, location: Location, shape: Shape, refused: Goal) -> Shape:
    objects = []
    for spec in shape.objects:
        if not spec.evaluated.is_all:
            keys = semantics.remainder(location, spec.evaluated).uncovered()
            witness = ObjectSpec(witnesses=(Witness(keys, refused),))
            objects.append(replace(spec.meet(witness), evaluated=EvaluatedParts()))
    return Shape(objects=tuple(dict.fromkeys(objects)))


def _refusing_an_item(semantics: Semantics, shape: Shape, goal: Goal, refused: Goal) -> Shape:
    arrays = []
    for spec in shape.arrays:
        evaluated = spec.evaluated
        if not evaluated.is_all:
            both = conjunction(refused, *map(denial, evaluated.goals))
            witness = Contains(both, semantics.either(goal, *evaluated.goals), 1, None, evaluated.num_items)
            counted = ArraySpec(contains=(witness,), min_items=evaluated.num_items + 1)
            arrays.append(replace(spec.meet(counted), evaluated=EvaluatedParts()))
    return Shape(arrays=tuple(dict.fromkeys(arrays)))


def _by_name(meaning: Callable[..., Shape], *names: str) -> dict[str, Meaning]:
    return {name: partial(meaning, name) for name in names}


_BY_TYPE: Final[dict[str, dict[str, Meaning]]] = {
    "number": {
        **_by_name(_bound, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        "multipleOf": _multiple_of,
    },
    "string": {**_by_name(_size, "minLength", "maxLength"), "pattern": _pattern, "format": _format},
    "array": {
        **dict.fromkeys(("prefixItems", "items", "additionalItems"), _items),
        **_by_name(_size, "minItems", "maxItems"),
        "contains": _contains,
        "uniqueItems": _unique_items,
        **_by_name(_unevaluated, "unevaluatedItems"),
    },
    "object": {
        **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), _properties),
        "propertyNames": _property_names,
        "required": _required,
        **_by_name(_size, "minProperties", "maxProperties"),
        **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _dependencies),
        **_by_name(_unevaluated, "unevaluatedProperties"),
    },
    "": {
        "type": _type,
        "enum": _enum,
        "const": _const,
        "allOf": _all_of,
        "anyOf": _any_of,
        "oneOf": _one_of,
        "not": _not,
        "if": _if,
        **_by_name(_reference, *REFERENCES),
    },
}
MEANINGS: Final = {name: meaning for meanings in _BY_TYPE.values() for name, meaning in meanings.items()}
TYPES: Final = {name: kind for kind, meanings in _BY_TYPE.items() for name in meanings if kind}
"""The keywords that speak of one type, with its name."""
KEYWORDS: Final = Keywords(MEANINGS, (_properties, _items), UNEVALUATED, TYPES)
OF_SCALARS: Final = _BY_TYPE["number"].keys() | _BY_TYPE["string"].keys()

EVALUATING: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "prefixItems", "items", "additionalItems", "contains"}
    | {"dependencies", "dependentSchemas", "allOf", "anyOf", "oneOf", "if", *REFERENCES}
)
"""The keywords that evaluate properties and items, by themselves or by schemas in place."""
