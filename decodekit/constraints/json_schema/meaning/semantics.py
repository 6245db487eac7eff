"""The meaning of each schema: its shapes, of the valid values and of the invalid ones.

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

A shape has a bounded number of alternatives. What would take more is written weaker: the same values and some others.
The keywords that this concerns are left to the guard of the schema, by pointer (`Semantics.left`). Denied schemas have
shapes of their own, so weaker means larger there, too.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, TypeAlias, TypeVar

from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.document.drafts import REFERENCES, JsonValue, SchemaDraft, keyword
from decodekit.constraints.json_schema.document.loader import Library, Location, asking
from decodekit.constraints.json_schema.strings import character_search, patterns, text
from decodekit.constraints.json_schema.strings.patterns import MAX_PATTERNS, Searched
from decodekit.constraints.json_schema.strings.string_formats import Formats
from decodekit.constraints.json_schema.values.over_approximation import over_approximation
from decodekit.constraints.json_schema.values.shape import (
    EVERYTHING,
    FALSE,
    NOTHING,
    TRUE,
    ArraySpec,
    EvaluatedParts,
    Goal,
    Literal,
    ObjectSpec,
    Properties,
    Sense,
    Shape,
    conjunction,
    limited,
    single,
)
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import kept
from decodekit.constraints.priority import give_way
from decodekit.constraints.regex.pattern_search import PatternProgram
from decodekit.constraints.work_budget import Unfinished, Work, spend
from decodekit.errors import ResourceLimitError, UnsupportedSchemaError

MAX_COMPARED: Final = 128
"""Alternatives that are compared with each other, to leave out what another one takes in."""
MAX_PLAIN: Final = 1_024
"""Bound on the pairs of alternatives that are met only to see whether a goal is plainly empty."""
MAX_SETTLED: Final = 10_000
"""Bound on the alternatives that are looked at to multiply out what the specs of one shape exclude."""
MAX_IN_PLACE: Final = 100
"""Bound on the nesting of keywords that speak of the same value: references, allOf, anyOf, oneOf, not, if."""

_Spec = TypeVar("_Spec", ObjectSpec, ArraySpec)

_COMPOUND: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"}
    | {"unevaluatedProperties", "unevaluatedItems"}
)

_COMPOUNDS: Final[Goal] = frozenset({2})
"""All objects and arrays."""
_OF_STRINGS: Final = frozenset({"pattern", "format", "minLength", "maxLength"})
_SHARE: Final = 10  # of the bounds of a search for a text, for an intersection without some of its patterns
_MAX_REFUSED: Final = 3  # patterns that are left out one by one before all others are
_SCALAR_TYPES: Final = ("string", "number", "integer", "boolean", "null")
Meaning: TypeAlias = "Callable[[Semantics, Location, Any, Sense], Shape]"
"""(semantics, schema, value of the keyword, sense of the schema) -> the values that it stands for."""
Embed: TypeAlias = "Callable[[Semantics, Location], Node]"


@dataclass(frozen=True)
class Keywords:
    """The meanings of the keywords, by name; the module `keywords` makes them.

    Attributes:
        meanings: the values that a keyword stands for.
        groups: the meanings that read several keywords at once, under whichever of them comes first.
        unevaluated: the keywords that read which properties and items were evaluated.
        types: the type that a keyword speaks of; none for those that speak of all.
    """

    meanings: Mapping[str, Meaning]
    groups: Collection[Meaning]
    unevaluated: Mapping[str, Callable[[Semantics, Location, Shape], Shape]]
    types: Mapping[str, str]


class Semantics:
    """The meaning of the schemas of one library, with memory.

    Args:
        library, formats, keywords: the documents, how `format` is read, and what each keyword means.
        embed: given this and a schema with ``contentSchema``, the strings that hold such texts of JSON.

    Attributes:
        left: the keywords that shapes do not say all of, by pointer, each with the limit that it met: a guard has to.
        may_leave: whether there is a guard to leave a keyword to; otherwise what meets a limit raises its error.
    """

    def __init__(self, library: Library, formats: Formats, keywords: Keywords, embed: Embed) -> None:
        self.library = library
        self.formats = formats
        self.keywords = keywords
        self._embed = embed
        involved = {name for name in keywords.meanings if keywords.types.get(name) not in ("number", "string")}
        self._involved = involved - {"type", "enum"}
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
        self.left: dict[str, str] = {}
        self.may_leave = True
        self._in_progress: list[tuple[Literal, bool]] = []
        self._reading: list[tuple[Location, str]] = []  # the keywords around the one that is being read, and it
        self._num_settled = 0  # since the shape in progress was begun
        self._is_exact = False  # shapes that tell what was evaluated are exact, or there is none
        self._lock = threading.RLock()  # `_in_progress` belongs to one thread at a time
        self._plainly_empty: dict[Goal, bool] = {}

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

    def constant(self, location: Location, value: JsonValue, *tokens: str | int, key: str = "const") -> Literal:
        """The literal of ``{"const": value}``, or of an enum, where `value` is what lies below `location`."""
        pointer = location.at(*tokens)
        literal = self._constants.get(pointer)
        if literal is None:
            path = pointer.removeprefix(f"{location.uri}#")
            schema = {key: value}
            constant = Location(-1, schema, location.uri, path, location.base, SchemaDraft.DRAFT2020, is_constant=True)
            literal = self._constants[pointer] = self.literal(constant)
        return literal

    def either(self, *goals: Goal) -> Goal:
        """The goal of the values that satisfy one of several goals."""
        listed = [one for goal in goals for one in self._options(goal)]
        goals = tuple(sorted(set(listed) - {FALSE}, key=sorted))
        if TRUE in goals:
            return TRUE
        if len(goals) < 2:
            return goals[0] if goals else FALSE
        with self._lock:
            return self._new_choice(goals)

    def _options(self, goal: Goal) -> tuple[Goal, ...]:
        """The goals between which a goal leaves the choice: itself, if it is not a choice."""
        literal = next(iter(goal)) if len(goal) == 1 else 1
        return (goal,) if literal & 1 else self._choices.get(literal >> 1, (goal,))

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
        return all(type(value) is str for value in keywords.get("enum", ()))

    # -- shapes

    @kept
    def shape(self, goal: Goal) -> Shape:
        """The values that satisfy all literals of a goal.

        Raises:
            UnsupportedSchemaError: a keyword that is not enforced, or a schema that refers to itself in place.
            ResourceLimitError: too many alternatives, too deep, and no guard to leave it to.
        """
        spend()
        shape = self._decided(goal, self.pending(goal))
        if shape.is_settled:
            return shape
        # Every excluded literal is multiplied out, unless it is plainly apart anyway.
        return replace(shape, objects=self._settle_all(shape.objects), arrays=self._settle_all(shape.arrays))

    def _decided(self, goal: Goal, shape: Shape) -> Shape:
        """With strings of which it can be told whether there are any: as many conditions on them as that allows."""
        try:
            if shape.strings.is_empty in (True, False):
                return shape
        except ResourceLimitError as error:
            places = [place for literal in sorted(goal) if (place := self.location(literal)) is not None]
            found = [place.at(name) for place in places for name, _ in place.assertions() if name in _OF_STRINGS]
            self.leave(error, *(found or itertools.chain.from_iterable(map(_combining, places))))
        parts = shape.strings.operands if isinstance(shape.strings, ir.Both) else (shape.strings,)
        strings, num_refused = text.BODY, 0
        for part in parts:
            both = ir.both(strings, part)
            try:
                is_empty = character_search.is_empty(both, character_search.SearchWork(_SHARE))
            except ResourceLimitError:
                is_empty, num_refused = None, num_refused + 1
            if is_empty:
                return replace(shape, strings=ir.EMPTY)
            strings = strings if is_empty is None else both
            if num_refused >= _MAX_REFUSED:
                break
        return replace(shape, strings=strings)

    def _settle_all(self, specs: tuple[_Spec, ...]) -> tuple[_Spec, ...]:
        self._num_settled = 0
        try:
            return limited([new for spec in specs for new in self._settle(spec)])
        except ResourceLimitError as error:
            self.leave_goals(error, [spec.excluding for spec in specs])
        return tuple([replace(spec, excluding=frozenset()) for spec in specs])

    def pending(self, goal: Goal) -> Shape:
        """As `shape`, where alternatives may still exclude literals: a part of a larger condition."""
        shape = EVERYTHING
        for literal in sorted(goal):  # document order, so that merged properties keep it
            shape = self.meet(shape, self.shape_of(literal), self.location(literal))
        return self.prune(shape) if len(goal) > 1 else shape

    # -- what exceeds a limit

    def leave(self, error: ResourceLimitError, *pointers: str) -> None:
        """Leave to the guard what met a limit: some keywords, or the one that is being read.

        Raises:
            ResourceLimitError: the given one, at the place of the keyword, if there is no guard, or if nothing weaker
                may stand in for the exact answer.
        """
        reading = [location.at(name) for location, name in self._reading[-1:]]
        found = list(pointers) or reading or [self.library.root.pointer]
        if self._is_exact or not self.may_leave:
            if error.at is not None:
                raise error
            raise ResourceLimitError(error.cause, at=found[0], hint=error.hint) from error
        for pointer in found:
            self.left.setdefault(pointer, error.cause)

    def leave_goals(self, error: ResourceLimitError, goals: Iterable[Goal]) -> None:
        """As `leave`, the keywords that ask the sub-schemas of some goals to hold, or not to hold."""
        places = map(self.location, sorted(frozenset[Literal]().union(*goals)))
        self.leave(error, *dict.fromkeys(asking(place) for place in places if place is not None))

    def meet(self, first: Shape, second: Shape, place: Location | None = None) -> Shape:
        """Intersection. `place`: the schema that is left to the guard if there are too many alternatives."""
        try:
            return first.meet(second)
        except ResourceLimitError as error:
            self.leave(error, *_combining(place))
        try:
            return first.meet(over_approximation([second], self.either))
        except ResourceLimitError:
            return over_approximation([first], self.either).meet(over_approximation([second], self.either))

    def union(self, shapes: Iterable[Shape], place: Location | None = None) -> Shape:
        """The values of any of some shapes. `place`: as in `meet`."""
        listed = list(shapes)
        try:
            return reduce(Shape.join, listed, NOTHING)
        except ResourceLimitError as error:
            self.leave(error, *_combining(place))
        return over_approximation(listed, self.either)

    def shape_of(self, literal: Literal) -> Shape:
        """The values that one literal admits.

        Raises:
            UnsupportedSchemaError: a keyword that is not enforced, or a schema that refers to itself in place.
            ResourceLimitError: too deep, and no guard to leave it to.
        """
        shape = self._shapes.get(literal)
        if shape is None:
            with self._lock:
                is_exact, self._is_exact = self._is_exact, False
                try:
                    shape = self._guarded(literal, Sense.INVALID if literal & 1 else Sense.VALID)
                finally:
                    self._is_exact = is_exact
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
            return self.union(map(self.pending, goals))
        denied = (self.union(self.shape_of(literal ^ 1) for literal in goal) for goal in goals)
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
        finally:
            self._in_progress.pop()

    def _evaluate(self, location: Location, sense: Sense) -> Shape:
        if sense.is_evaluated:
            return self.evaluated(location, sense)
        unevaluated = sorted(self.keywords.unevaluated.keys() & dict(location.assertions()))
        if sense is Sense.VALID and any(self.below(location, name) != TRUE for name in unevaluated):
            try:
                return self.evaluated(location, Sense.EVALUATED).without_evaluated()
            except ResourceLimitError as error:
                self.leave(error, *map(location.at, unevaluated))
        shapes = []
        for name, value, meaning in self._assertions(location):
            self._reading.append((location, name))
            try:
                shapes.append(meaning(self, location, value, sense))
            except ResourceLimitError as error:
                self.leave(error)
                kind = self.keywords.types.get(name)  # all values that the keyword may stand for, whatever it says
                shapes.append(EVERYTHING if sense.is_asserted or kind is None else EVERYTHING.only(kind))
            finally:
                self._reading.pop()
        if not sense.is_asserted:
            return self.union(shapes, location)
        return reduce(lambda result, shape: self.meet(result, shape, location), shapes, EVERYTHING)

    def evaluated(self, location: Location, sense: Sense, *, has_unevaluated: bool = True) -> Shape:
        """The values that a schema admits, where each object and array tells what was evaluated of it.

        Without its `unevaluatedProperties` and `unevaluatedItems`, which come last, unless `has_unevaluated`.

        Raises:
            ResourceLimitError: too many alternatives, too deep. A weaker shape would not tell what was evaluated.
        """
        result, last = EVERYTHING, []
        is_exact, self._is_exact = self._is_exact, True
        try:
            for name, value, meaning in self._assertions(location):
                if name in self.keywords.unevaluated:
                    last.append(name)
                else:
                    result = self.both(result, meaning(self, location, value, sense))
            for name in last if has_unevaluated else ():
                result = self.prune(self.keywords.unevaluated[name](self, location, result))
        finally:
            self._is_exact = is_exact
        return result

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
        try:
            if first.words & second.words or not text.meet(first.strings, second.strings).is_empty:
                return True
            return any(not a.meet(b).is_empty for a in first.numbers for b in second.numbers)
        except ResourceLimitError:  # perhaps
            return True

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
            try:
                specs = list(limited(found[literal]))
            except ResourceLimitError as error:
                self.leave_goals(error, [frozenset(left)])
                break
            left.remove(literal)
        return tuple(specs)

    def _without(self, specs: list[_Spec], literal: Literal) -> list[_Spec]:
        """The alternatives of some specs that do not satisfy a literal."""
        following: list[_Spec] = []
        for one in specs:
            self._num_settled += 1
            if self._num_settled > MAX_SETTLED:
                raise ResourceLimitError(
                    f"more than {MAX_SETTLED:,} alternatives are looked at to tell apart anyOf, oneOf, not and if",
                    hint='branches told apart by a "const" property',
                )
            if self._is_apart(one, literal):
                following.append(one)
                continue
            for denied in self._denied(one, literal):
                self._num_settled += 1
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
        return self.union([Shape(objects=tuple(parts))]).objects

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
            theirs = None if mine is None else self._constants_at(other, name)
            if mine is not None and theirs is not None and mine.isdisjoint(theirs):
                return True
        return False

    def _constants_at(self, spec: ObjectSpec, name: str) -> frozenset[Any] | None:
        """The scalars that a property may be, if the schemas of its value list them."""
        found: frozenset[Any] | None = None
        for part in spec.parts:
            for literal in part.names.get(name, ()):
                constants = self._constants_of(literal)
                if constants is not None:
                    found = constants if found is None else found & constants
        return found

    def _is_contradictory(self, spec: ObjectSpec | ArraySpec) -> bool:
        give_way()
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
        return any(map(self._is_plainly_empty, needed))

    def _is_plainly_empty(self, goal: Goal) -> bool:
        if goal == FALSE:
            return True
        if len(goal) < 2:
            return False
        known = self._plainly_empty.get(goal)
        if known is None:
            self._plainly_empty[goal] = False  # who asks again on the way here is not told more than that
            try:
                known = self._plainly_empty[goal] = self._find_plainly_empty(goal)
            except Unfinished:
                del self._plainly_empty[goal]  # the next slice is told the answer
                raise
        return known

    def _find_plainly_empty(self, goal: Goal) -> bool:
        exact = [(literal, listed) for literal in goal if (listed := self._exact_constants_of(literal)) is not None]
        if len(exact) == len(goal):  # nothing else is asked
            admitted = [listed for literal, listed in exact if not literal & 1]
            denied = [listed for literal, listed in exact if literal & 1]
            return bool(admitted) and not frozenset.intersection(*admitted).difference(*denied)
        constants = [found for literal in goal if (found := self._constants_of(literal)) is not None]
        if len(constants) > 1 and not frozenset.intersection(*constants):
            return True
        if not all(map(self._is_simple, goal)):
            return False
        shape = EVERYTHING
        try:
            for literal in sorted(goal):
                other = self.shape_of(literal)
                if max(len(shape.objects) * len(other.objects), len(shape.arrays) * len(other.arrays)) > MAX_PLAIN:
                    return False
                shape = shape.meet(other)
            shape = self.prune(shape)
            return not (shape.has_scalar or shape.objects or shape.arrays)
        except ResourceLimitError:
            return False

    @kept
    def _constants_of(self, literal: Literal) -> frozenset[Any] | None:
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

    @kept
    def _exact_constants_of(self, literal: Literal) -> frozenset[Any] | None:
        """As `_constants_of`, for a schema that says nothing else; of a denied literal, those of its denial."""
        location, constants = self.location(literal), self._constants_of(literal & ~1)
        if location is None or constants is None:
            return None
        says = dict(location.assertions())
        type_ = says.pop("type", None)
        is_of_type = type_ is None or (type_ == "string" and all(isinstance(value, str) for _, value in constants))
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
            location = self.library.target(location)
        return False

    def prune(self, shape: Shape) -> Shape:
        """Without objects and arrays that are plainly impossible."""
        objects = tuple(spec for spec in shape.objects if not self._is_contradictory(spec))
        arrays = tuple(spec for spec in shape.arrays if not self._is_contradictory(spec))
        if len(objects) == len(shape.objects) and len(arrays) == len(shape.arrays):
            return shape
        return Shape(shape.words, shape.strings, shape.numbers, objects, arrays)

    def both(self, first: Shape, second: Shape) -> Shape:
        """Intersection, without plainly impossible alternatives."""
        return self.prune(self.meet(first, second))

    # -- property and item groups

    @kept
    def part(self, location: Location) -> Properties:
        """`properties`, `patternProperties` and `additionalProperties` of a schema object."""
        keywords = location.keywords()
        names = {name: self.below(location, "properties", name) for name in keywords.get("properties", ())}
        rules: list[tuple[Node, Goal]] = []
        patterned = keywords.get("patternProperties", ())
        for name in itertools.islice(patterned, MAX_PATTERNS):
            found = self.pattern(location, name, "patternProperties")
            # A key that perhaps matches has perhaps nothing to satisfy, not even `additionalProperties`.
            rules.append((found.texts, self.below(location, "patternProperties", name) if not found.excess else TRUE))
        is_told = "additionalProperties" in keywords and len(patterned) <= MAX_PATTERNS
        additional = self.below(location, "additionalProperties") if is_told else TRUE
        return Properties(names, tuple(rules), additional)

    @kept
    def remainder(self, location: Location, evaluated: EvaluatedParts) -> Properties:
        """`unevaluatedProperties` of a schema object behind what was evaluated."""
        names = dict.fromkeys(sorted(evaluated.names), TRUE)
        rules = tuple((pattern, TRUE) for pattern in evaluated.patterns)
        return Properties(names, rules, self.below(location, "unevaluatedProperties"))

    @kept
    def referrers(self) -> dict[Location, list[Location]]:
        """The schemas that may take part in what is valid, each with those that ask it directly."""
        reachable = list(support.reachable(self.library))
        found: dict[Location, list[Location]] = {location: [] for location in reachable}
        for location in reachable:
            for target in self.library.references(location):
                found.setdefault(target, []).append(location)
        return found

    @kept
    def content(self, location: Location) -> Node:
        """The strings that hold the texts of JSON that ``contentSchema`` asks for."""
        return self._embed(self, location)

    @kept
    def pattern(self, location: Location, pattern: str, key: str) -> Searched:
        """The texts in which a pattern is found; of a Python type those in which all readers of patterns find it."""
        found = patterns.searched(pattern, at=location.at(key) if key == "pattern" else location.at(key, pattern))
        if self.formats != "python":
            return found
        return replace(found, texts=text.meet(found.texts, patterns.read_alike(pattern)))

    def search(self, location: Location, pattern: str, value: str, key: str) -> Work[bool]:
        """Whether a pattern of a schema, under a keyword, is found in a text.

        Raises:
            ResourceLimitError: that takes too many steps.
        """
        found = self.prepare_search(location, pattern, key)
        if isinstance(found, PatternProgram):
            return (yield from patterns.search(found, value))
        return (yield from text.matching(found, value))

    @kept
    def prepare_search(self, location: Location, pattern: str, key: str) -> Node | PatternProgram:
        """The body language of a pattern if it is exact and not one of very many, else a program to search with."""
        if key == "pattern" or len(location.keywords()["patternProperties"]) <= MAX_PATTERNS:
            found = self.pattern(location, pattern, key)
            if found.excess is None:
                return found.texts
        return patterns.program(pattern)

    def items(self, location: Location) -> ArraySpec:
        """The goals of the items by `prefixItems`, `items` and `additionalItems`, as the draft reads them."""
        first, listed, rest = location.of_items()
        goals = tuple(self.below(location, first, index) for index in range(len(listed)))
        return ArraySpec(goals, self.below(location, rest) if rest in location.keywords() else TRUE)


def _combining(place: Location | None) -> list[str]:
    """The pointers of the keywords of a schema that combine alternatives; of all that it asserts without them."""
    names = [] if place is None else [name for name, _ in place.assertions()]
    found = [name for name in names if name in _COMPOUND or name in REFERENCES] or names
    return [] if place is None else [place.at(name) for name in found]


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
