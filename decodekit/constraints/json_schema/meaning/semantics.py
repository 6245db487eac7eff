"""What each schema means: from schemas to shapes, as valid and as invalid.

A literal is a schema that is asserted (an even number) or denied (the next odd one). A goal is a conjunction of
literals, a shape the set of its values, type by type. A worked example:

    {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "object", "required": ["a"]}],
     "not": {"properties": {"a": {"type": "integer"}}}}

    4   the schema itself      6, 8   its branches      10   what not holds      12   #/not/properties/a
    shape of 6     numbers: integers of at least 3
    shape of 8     objects: with "a"
    shape of 11    objects: with "a", whose value satisfies the goal {13}      10 denied, which no number is
    shape of 4     (6 or 8) and 11: objects with "a", whose value satisfies the goal {13}

Denial is pushed inwards (the negation normal form): *not all* is *any not*, a denied property is a required one with a
denied value, a denied `additionalProperties` is a witness. So `not`, `if` and an overlapping `oneOf` need no machinery
of their own, and a shape is always a plain disjunction. The values below an object or array stay goals, which are
looked into only when a text reaches them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, TypeAlias, TypeVar, cast

from decodekit.constraints.json_schema.document.drafts import JsonValue, SchemaDraft, keyword
from decodekit.constraints.json_schema.document.loader import Library, Location
from decodekit.constraints.json_schema.strings import patterns, text
from decodekit.constraints.json_schema.strings.formats import Formats
from decodekit.constraints.json_schema.values.kept import kept
from decodekit.constraints.json_schema.values.shape import (
    EVERYTHING,
    FALSE,
    NOTHING,
    TRUE,
    ArraySpec,
    EvaluatedKeys,
    Goal,
    Literal,
    ObjectSpec,
    Properties,
    Sense,
    Shape,
    conjunction,
    limited,
    single,
    union,
)
from decodekit.constraints.language.node import Node
from decodekit.constraints.slices import Unfinished, spend
from decodekit.errors import ResourceLimitError, UnsupportedSchemaError

MAX_COMPARED: Final = 128
"""Alternatives that are compared with each other, to leave out what another one takes in."""
MAX_IN_PLACE: Final = 100
"""Bound on the nesting of keywords that speak of the same value: references, allOf, anyOf, oneOf, not, if."""

_Spec = TypeVar("_Spec", ObjectSpec, ArraySpec)

_COMPOUND: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"}
    | {"unevaluatedProperties", "unevaluatedItems"}
)

_COMPOUNDS: Final[Goal] = frozenset({2})
"""All objects and arrays."""
_SCALAR_TYPES: Final = ("string", "number", "integer", "boolean", "null")
_SIMPLE: Final = frozenset({
    "type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format",
})  # fmt: skip
"""The keywords without schemas or any values in them, those of objects and arrays aside."""

Meaning: TypeAlias = "Callable[[Semantics, Location, Any, Sense], Shape]"
"""(semantics, schema, value of the keyword, sense of the schema) -> the values that it stands for."""


@dataclass(frozen=True)
class Keywords:
    """What the keywords mean, by name; see the module `keywords`, which makes it.

    Attributes:
        meanings: the values that a keyword stands for.
        groups: the meanings that read several keywords at once, under whichever of them comes first.
        unevaluated: the keywords that read which properties and items were evaluated.
    """

    meanings: Mapping[str, Meaning]
    groups: Collection[Meaning]
    unevaluated: Mapping[str, Callable[[Semantics, Location, Shape], Shape]]


class Semantics:
    """The meaning of the schemas of one library, with memory.

    Args:
        library: the documents.
        formats: whether a known `format` limits the strings, and how; otherwise it is an annotation.
        keywords: what each keyword means.
    """

    def __init__(self, library: Library, formats: Formats, keywords: Keywords) -> None:
        self.library = library
        self.formats = formats
        self.keywords = keywords
        self._involved = keywords.meanings.keys() - _SIMPLE
        self._locations: list[Location | None] = [None, None]  # by literal // 2
        self._numbers: dict[Location, int] = {}
        self._constants: dict[str, Literal] = {}
        self._choices: dict[int, tuple[Goal, ...]] = {}
        self._shapes: dict[Literal, Shape] = {
            0: EVERYTHING,
            1: NOTHING,
            2: EVERYTHING.only("object", "array"),
            3: EVERYTHING.without_compounds(),
        }
        self._in_progress: list[tuple[Literal, bool]] = []
        self._lock = threading.RLock()  # `_in_progress` belongs to one thread at a time
        self._plainly_empty: dict[tuple[Goal, int], bool] = {}

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
        """The schema of a literal; None for those that are not written down."""
        return self._locations[literal >> 1]

    def goal(self, location: Location, *, is_asserted: bool = True) -> Goal:
        """The goal of one schema alone."""
        literal = self.literal(location, is_asserted=is_asserted)
        return frozenset({literal}) if literal else TRUE

    def below(self, location: Location, *tokens: str | int, is_asserted: bool = True) -> Goal:
        """The goal of a sub-schema."""
        return self.goal(self.library.child(location, *tokens), is_asserted=is_asserted)

    def constant(self, location: Location, value: JsonValue, *tokens: str | int) -> Literal:
        """The literal of ``{"const": value}``, where `value` is what lies below `location`."""
        pointer = location.at(*tokens)
        literal = self._constants.get(pointer)
        if literal is None:
            path = pointer.removeprefix(f"{location.document.uri}#")
            schema = {"const": value}
            constant = Location(
                -1, schema, location.document, path, location.base, SchemaDraft.DRAFT2020, is_constant=True
            )
            literal = self._constants[pointer] = self.literal(constant)
        return literal

    def either(self, *goals: Goal) -> Goal:
        """The goal of the values that satisfy one of several goals."""
        goals = tuple(sorted(set(goals) - {FALSE}, key=sorted))
        if TRUE in goals:
            return TRUE
        if len(goals) < 2:
            return goals[0] if goals else FALSE
        with self._lock:
            return self._new_choice(goals)

    @kept
    def _new_choice(self, goals: tuple[Goal, ...]) -> Goal:
        number = len(self._locations)
        self._locations.append(None)
        self._choices[number] = goals
        return frozenset({2 * number})

    def compound(self, goal: Goal) -> Goal:
        """The goal of the objects and arrays that satisfy a goal."""
        return conjunction(goal, _COMPOUNDS)

    def is_plain(self, goal: Goal) -> bool:
        """Whether a goal is that of one schema of scalars without combinators: its shape raises no error."""
        if len(goal) != 1:
            return False
        (literal,) = goal
        location = self.location(literal)
        if location is None or literal & 1:
            return False
        keywords = location.keywords()
        if keywords.get("type") not in _SCALAR_TYPES or not self._involved.isdisjoint(keywords):
            return False
        return all(type(value) is str for value in cast("list[JsonValue]", keywords.get("enum", ())))

    # -- shapes

    @kept
    def shape(self, goal: Goal) -> Shape:
        """The values that satisfy all literals of a goal.

        Raises:
            UnsupportedSchemaError: a keyword that is not enforced, or a schema that refers to itself in place.
            ResourceLimitError: too many alternatives, too deep.
        """
        spend()
        shape = self.pending(goal)
        if shape.is_settled:
            return shape
        # Every excluded literal is multiplied out, unless it is plainly apart anyway.
        objects = [new for spec in shape.objects for new in self._settle(spec)]
        arrays = [new for spec in shape.arrays for new in self._settle(spec)]
        return replace(shape, objects=limited(objects), arrays=limited(arrays))

    def pending(self, goal: Goal) -> Shape:
        """As `shape`, where alternatives may still exclude literals: a part of a larger condition."""
        shape = EVERYTHING
        for literal in sorted(goal):  # document order, so that merged properties keep it
            shape = shape.meet(self.shape_of(literal))
        return self._prune(shape) if len(goal) > 1 else shape

    def shape_of(self, literal: Literal) -> Shape:
        """The values that one literal admits.

        Raises:
            UnsupportedSchemaError: a keyword that is not enforced, or a schema that refers to itself in place.
            ResourceLimitError: too many alternatives, too deep.
        """
        shape = self._shapes.get(literal)
        if shape is None:
            with self._lock:
                shape = self._guarded(literal, Sense.INVALID if literal & 1 else Sense.VALID)
                self._shapes[literal] = shape
        return shape

    def read(self, literal: Literal, sense: Sense) -> Shape:
        """The values that an asserted literal stands for in a sense."""
        if sense is Sense.INVALID:
            return self.shape_of(literal ^ 1)
        if sense is Sense.VALID or literal & 1 or self.location(literal) is None:
            return self.shape_of(literal)
        with self._lock:
            return self._guarded(literal, sense)

    def read_below(self, location: Location, *tokens: str | int, sense: Sense) -> Shape:
        """`read` for a sub-schema."""
        return self.read(self.literal(self.library.child(location, *tokens)), sense)

    def _choice(self, goals: tuple[Goal, ...], *, is_asserted: bool) -> Shape:
        if is_asserted:
            return union(map(self.pending, goals))
        denied = (union(self.shape_of(literal ^ 1) for literal in goal) for goal in goals)
        return reduce(self.both, denied, EVERYTHING)

    @kept
    def _guarded(self, literal: Literal, sense: Sense) -> Shape:
        """Evaluate one literal, unless that is going on already."""
        location = self.location(literal)
        if location is None:
            return self._choice(self._choices[literal >> 1], is_asserted=not literal & 1)
        key = literal, sense.is_evaluated
        if key in self._in_progress:
            raise UnsupportedSchemaError(
                "the schema refers to itself for the same value, so it says nothing that could be enforced",
                at=location.pointer,
                hint="placing the reference below properties or items",
            )
        if len(self._in_progress) >= MAX_IN_PLACE:
            raise ResourceLimitError(
                f"more than {MAX_IN_PLACE} references or combinators speak of the same value", at=location.pointer
            )
        self._in_progress.append(key)
        try:
            return self._evaluate(location, sense)
        except ResourceLimitError as error:
            if error.at is not None:
                raise
            raise ResourceLimitError(error.cause, at=location.pointer, hint=error.hint) from error
        finally:
            self._in_progress.pop()

    def _evaluate(self, location: Location, sense: Sense) -> Shape:
        if sense.is_evaluated:
            return self.evaluated(location, sense)
        if sense is Sense.VALID and self._is_unevaluated_limited(location):
            return self.evaluated(location, Sense.EVALUATED).without_evaluated()
        result = EVERYTHING if sense.is_asserted else NOTHING
        for _, value, meaning in self._assertions(location):
            shape = meaning(self, location, value, sense)
            result = result.meet(shape) if sense.is_asserted else result.join(shape)
        return result

    def evaluated(self, location: Location, sense: Sense, *, has_unevaluated: bool = True) -> Shape:
        """The values that a schema admits, where each object and array tells what was evaluated of it.

        Without its `unevaluatedProperties` and `unevaluatedItems`, which come last, unless `has_unevaluated`.
        """
        result, last = EVERYTHING, []
        unevaluated = self.keywords.unevaluated
        for name, value, meaning in self._assertions(location):
            if name in unevaluated:
                last.append(name)
            else:
                result = self.both(result, meaning(self, location, value, sense))
        for name in last if has_unevaluated else ():
            result = self._prune(unevaluated[name](self, location, result))
        return result

    def _is_unevaluated_limited(self, location: Location) -> bool:
        """Whether `unevaluatedProperties` or `unevaluatedItems` ask for something."""
        names = self.keywords.unevaluated.keys() & location.keywords().keys()
        return any(keyword(name, location.draft) and self.below(location, name) != TRUE for name in names)

    def _assertions(self, location: Location) -> Iterator[tuple[str, JsonValue, Meaning]]:
        """The keywords of a schema that say what is valid, with values and meanings; of a group only the first."""
        done = set()
        for name, value in location.assertions():
            meaning = self.keywords.meanings.get(name)
            if meaning is None or meaning in done:
                continue
            if meaning in self.keywords.groups:
                done.add(meaning)  # these read their sisters too
            yield name, value, meaning

    # -- what is plainly empty, to keep disjunctions short; the exact answer is that of `Emptiness`

    def have_common_scalar(self, first: Shape, second: Shape) -> bool:
        """Whether a null, boolean, number or string is in both."""
        if first.words & second.words or not text.meet(first.strings, second.strings).is_empty:
            return True
        return any(not a.meet(b).node().is_empty for a in first.numbers for b in second.numbers)

    def _settle(self, spec: _Spec) -> tuple[_Spec, ...]:
        if not spec.excluding:
            return (spec,)
        specs = [replace(spec, excluding=frozenset())]
        left = sorted(spec.excluding)
        while left:
            # What leaves no more alternatives than there are comes first: it may tell them apart from the others.
            found: dict[Literal, list[_Spec]] = {}
            for literal in left:
                found[literal] = self._without(specs, literal)
                if len(found[literal]) <= len(specs):
                    break
            literal = min(found, key=lambda literal: len(found[literal]))
            specs = list(limited(found[literal]))
            left.remove(literal)
        return tuple(specs)

    def _without(self, specs: list[_Spec], literal: Literal) -> list[_Spec]:
        """The alternatives of some specs that do not satisfy a literal."""
        following: list[_Spec] = []
        for one in specs:
            if self._is_apart(one, literal):
                following.append(one)
                continue
            for denied in self._denied(one, literal):
                both = one.meet(denied)
                if not self._is_contradictory(both):
                    # What the denial excludes in its turn holds for this alternative only.
                    following += self._settle(both)
        return _largest(following)

    def _specs_like(self, spec: _Spec, literal: Literal) -> tuple[_Spec, ...]:
        shape = self.shape_of(literal)
        return shape.objects if isinstance(spec, ObjectSpec) else shape.arrays

    def _denied(self, spec: _Spec, literal: Literal) -> tuple[_Spec, ...]:
        """The alternatives of the denial of a literal, of the same type.

        Where the literal asks for a constant at a property, all alternatives but the one that denies this are limited
        to objects that have it. So they are apart from those of literals with other constants, and do not multiply.
        """
        alternatives = self._specs_like(spec, literal ^ 1)
        asked = self.shape_of(literal).objects
        if not isinstance(spec, ObjectSpec) or len(asked) != 1:
            return alternatives
        name = next((name for name in asked[0].required if self._constants_at(asked[0], name) is not None), None)
        if name is None:
            return alternatives
        goal = asked[0].goal(name)
        has_it = ObjectSpec((single(name, goal),), (name,))
        parts = [ObjectSpec((single(name, FALSE),))]
        parts += [ObjectSpec((single(name, conjunction(frozenset({other ^ 1}))),), (name,)) for other in sorted(goal)]
        parts += [other.meet(has_it) for other in alternatives]  # those that deny the constant contradict it now
        return Shape(objects=tuple(parts)).join(NOTHING).objects

    def _is_apart(self, spec: _Spec, literal: Literal) -> bool:
        """Whether no value satisfies both, as far as that is plain to see."""
        others = self._specs_like(spec, literal)
        if isinstance(spec, ObjectSpec):
            others = tuple(other for other in others if not self._differ_in_a_constant(spec, other))
        return all(self._is_contradictory(spec.meet(other)) for other in others)

    def _differ_in_a_constant(self, spec: ObjectSpec, other: ObjectSpec) -> bool:
        """Whether both ask for a property, and for different values of it: the usual way to tell branches apart."""
        for name in spec.required:
            mine = self._constants_at(spec, name)
            if mine is not None:
                theirs = self._constants_at(other, name)
                if theirs is not None and mine.isdisjoint(theirs):
                    return True
        return False

    def _constants_at(self, spec: ObjectSpec, name: str) -> frozenset[object] | None:
        """The scalars that a property may be, if the schemas of its value list them."""
        found: frozenset[object] | None = None
        for part in spec.parts:
            for literal in part.names.get(name, ()):
                constants = self._constants_of(literal)
                if constants is not None:
                    found = constants if found is None else found & constants
        return found

    def _is_contradictory(self, spec: ObjectSpec | ArraySpec, depth: int = 3) -> bool:
        if isinstance(spec, ObjectSpec):
            if spec.max_properties is not None and spec.max_properties < max(len(spec.required), spec.min_properties):
                return True
            needed: Iterable[Goal] = (spec.goal(name) for name in spec.required)
        else:
            if spec.max_items is not None and spec.max_items < spec.min_items:
                return True
            if spec.is_unique and spec.is_repeating:
                return True
            needed = (spec.goal(index) for index in range(min(spec.min_items, len(spec.prefix) + 1)))
        return any(self._is_plainly_empty(goal, depth) for goal in needed)

    def _is_plainly_empty(self, goal: Goal, depth: int) -> bool:
        if goal == FALSE:
            return True
        if len(goal) < 2:
            return False
        known = self._plainly_empty.get((goal, depth))
        if known is None:
            self._plainly_empty[goal, depth] = False  # who asks again on the way here is not told more than that
            try:
                known = self._plainly_empty[goal, depth] = self._find_plainly_empty(goal, depth)
            except Unfinished:
                del self._plainly_empty[goal, depth]  # the next slice is told the answer
                raise
        return known

    def _find_plainly_empty(self, goal: Goal, depth: int) -> bool:
        exact = [(literal, listed) for literal in goal if (listed := self._exact_constants_of(literal)) is not None]
        if len(exact) == len(goal):  # nothing else is asked
            admitted = [listed for literal, listed in exact if not literal & 1]
            denied = [listed for literal, listed in exact if literal & 1]
            return bool(admitted) and not frozenset.intersection(*admitted).difference(*denied)
        constants = [found for literal in goal if (found := self._constants_of(literal)) is not None]
        if len(constants) > 1 and not frozenset.intersection(*constants):
            return True
        if depth == 0 or not all(map(self._is_simple, goal)):
            return False
        shape = self.pending(goal)
        return not (
            shape.has_scalar
            or any(not self._is_contradictory(spec, depth - 1) for spec in shape.objects)
            or any(not self._is_contradictory(spec, depth - 1) for spec in shape.arrays)
        )

    @kept
    def _constants_of(self, literal: Literal) -> frozenset[object] | None:
        """The scalars of an asserted `const` or `enum`, comparable across types: how branches are told apart mostly."""
        location = self.location(literal)
        if location is None or literal & 1:
            return None
        keywords = location.keywords()
        has_const = "const" in keywords and keyword("const", location.draft) is not None
        values = [keywords["const"]] if has_const else keywords.get("enum")
        if not isinstance(values, list) or any(isinstance(value, (list, dict)) for value in values):
            return None
        return frozenset((isinstance(value, bool), value) for value in values)

    def _exact_constants_of(self, literal: Literal) -> frozenset[object] | None:
        """As `_constants_of`, for a schema that says nothing else; of a denied literal, those of its denial."""
        location, constants = self.location(literal), self._constants_of(literal & ~1)
        if location is None or constants is None:
            return None
        says = dict(location.assertions())
        type_ = says.pop("type", None)
        is_of_type = type_ is None or (
            type_ == "string" and all(isinstance(value, str) for _, value in cast("Any", constants))
        )
        return constants if len(says) == 1 and is_of_type else None

    def _is_simple(self, literal: Literal) -> bool:
        """Whether the shape of a literal needs no other one that may be in progress."""
        if literal >> 1 in self._choices:
            return False
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
        return Shape(shape.words, shape.strings, shape.numbers, objects, arrays)

    def both(self, first: Shape, second: Shape) -> Shape:
        """Intersection, without plainly impossible alternatives."""
        return self._prune(first.meet(second))

    # -- property and item groups

    @kept
    def part(self, location: Location) -> Properties:
        """`properties`, `patternProperties` and `additionalProperties` of a schema object."""
        keywords = cast("dict[str, Any]", location.keywords())
        names = {name: self.below(location, "properties", name) for name in keywords.get("properties", ())}
        rules = tuple(
            (self.pattern(location, name, "patternProperties"), self.below(location, "patternProperties", name))
            for name in keywords.get("patternProperties", ())
        )
        additional = self.below(location, "additionalProperties") if "additionalProperties" in keywords else TRUE
        return Properties(names, rules, additional)

    @kept
    def remainder(self, location: Location, evaluated: EvaluatedKeys) -> Properties:
        """`unevaluatedProperties` of a schema object behind what was evaluated."""
        names = dict.fromkeys(sorted(evaluated.names), TRUE)
        rules = tuple((pattern, TRUE) for pattern in evaluated.patterns)
        return Properties(names, rules, self.below(location, "unevaluatedProperties"))

    def pattern(self, location: Location, pattern: str, *tokens: str) -> Node:
        """The texts in which a pattern is found."""
        at = location.at(*tokens, *(() if tokens == ("pattern",) else (pattern,)))
        return patterns.search_language(pattern, at=at)

    def items(self, location: Location) -> ArraySpec:
        """The goals of the items by `prefixItems`, `items` and `additionalItems`, as the draft reads them."""
        keywords = location.keywords()
        is_2020 = location.draft >= SchemaDraft.DRAFT2020
        prefix_key, rest_key = ("prefixItems", "items") if is_2020 else ("items", "additionalItems")
        prefix = keywords.get(prefix_key, [] if is_2020 else None)
        if not isinstance(prefix, list):
            prefix, rest_key = [], "items"
        goals = tuple(self.below(location, prefix_key, index) for index in range(len(prefix)))
        return ArraySpec(goals, self.below(location, rest_key) if rest_key in keywords else TRUE)


def _largest(specs: list[_Spec]) -> list[_Spec]:
    """Without the alternatives that another one takes in, as far as that is plain to see."""
    unique = list(dict.fromkeys(specs))
    if not 1 < len(unique) <= MAX_COMPARED:
        return unique
    # One with fewer conditions is asked first; of two that ask the same, the first stays.
    kept: list[_Spec] = []
    for spec in sorted(unique, key=lambda spec: spec.num_conditions):
        if not any(other.takes_in(spec) for other in kept):
            kept.append(spec)
    return [spec for spec in unique if spec in kept]
