"""Sets of JSON values as an algebra: one part for each of the six types, united and intersected part by part.

A `Shape` is a disjunction of *atoms*. Strings and numbers are languages, so their part is closed under every Boolean
operation. Objects and arrays are lists of specs, each a conjunction: what the keywords of one branch ask of the same
object. The values below a spec are *goals*, conjunctions of schemas by reference, which are looked into only when a
text reaches them; that is what lets schemas recurse, and a large one start at once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from typing import Final, TypeAlias, TypeVar

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.values.numbers import NO_CONDITION, NumberSpec
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import united
from decodekit.constraints.priority import give_way
from decodekit.errors import ResourceLimitError

Literal: TypeAlias = int
"""A schema, asserted or denied: twice the number of its location, plus one if denied."""
Goal: TypeAlias = frozenset[Literal]
"""A conjunction of literals, as in logic programming: what one value has to satisfy."""


class Sense(enum.Enum):
    """The side of a schema that a shape stands for, and what the shape tells of its values."""

    VALID = enum.auto()
    """Those that it admits."""
    INVALID = enum.auto()
    """Those that it does not."""
    EVALUATED = enum.auto()
    """As `VALID`; each object and array tells what was evaluated of it. An alternative may tell less than all."""
    EXACT = enum.auto()
    """As `EVALUATED`, and alternatives that evaluate different parts are apart."""

    @property
    def is_asserted(self) -> bool:
        """Whether the values are those that the schema admits."""
        return self is not Sense.INVALID

    @property
    def is_evaluated(self) -> bool:
        """Whether they tell what was evaluated."""
        return self in (Sense.EVALUATED, Sense.EXACT)


TRUE: Final[Goal] = frozenset()
FALSE: Final[Goal] = frozenset({1})  # location 0 admits everything; its denial admits nothing

WORDS: Final[tuple[str, ...]] = ("null", "true", "false")
MAX_ALTERNATIVES: Final = 512
"""Bound on the specs of one type in a shape."""
MAX_PAIRS: Final = 1 << 14
"""Bound on the pairs of specs that are met to find those of an intersection: a sixth of a second."""


def conjunction(*goals: Goal) -> Goal:
    """All literals together, FALSE if two of them contradict each other outright."""
    literals = reduce(united, goals, TRUE)
    if len(literals) < 2:  # as mostly
        return TRUE if 0 in literals else literals
    if 0 in literals:
        literals -= {0}
    return FALSE if 1 in literals or any(literal ^ 1 in literals for literal in literals) else literals


def denial(goal: Goal) -> Goal:
    """The denial of a goal of at most one literal."""
    if not goal:
        return FALSE
    (literal,) = goal
    return conjunction(frozenset({literal ^ 1}))


@dataclass(frozen=True, eq=False)
class Properties:
    """`properties`, `patternProperties` and `additionalProperties` of one schema object, which know each other.

    Compared by identity: a part belongs to one schema.

    Attributes:
        names: goal of each declared property.
        patterns: body language of keys and goal of each pattern.
        additional: goal of the keys that neither names nor patterns cover.
    """

    names: dict[str, Goal] = field(default_factory=dict)
    patterns: tuple[tuple[Node, Goal], ...] = ()
    additional: Goal = TRUE

    def goal(self, key: str) -> Goal:
        """The goal of the value at `key`, as far as this part asks."""
        if not self.patterns:
            return self.names.get(key, self.additional)
        goals = [goal for language, goal in self.patterns if text.matches(language, key)]
        if key in self.names:
            goals.append(self.names[key])
        return conjunction(*goals) if goals else self.additional

    def uncovered(self) -> Node:
        """The keys that neither the names nor the patterns cover."""
        language = text.without(text.BODY, text.words(list(self.names))) if self.names else text.BODY
        for pattern, _ in self.patterns:
            language = text.without(language, pattern)
        return language


@lru_cache(maxsize=16_384)
def single(name: str, goal: Goal) -> Properties:
    """The condition on one property alone; the same object for the same goal, so that equal ones are seen to be."""
    return Properties({name: goal})


@dataclass(frozen=True)
class Witness:
    """An obligation: some property has a key of the body language `keys` and a value that satisfies `goal`."""

    keys: Node
    goal: Goal


@dataclass(frozen=True)
class EvaluatedParts:
    """The properties or items that the schemas of one conjunction have evaluated, for an `unevaluated...` around them.

    Attributes:
        is_all: all of them, because of `additionalProperties`, `items` or an inner `unevaluated...`.
        names: of `properties`. `patterns`: body languages of `patternProperties`.
        num_items: so many items from the first on.
        goals: the items that satisfy one of these (`contains`).
    """

    is_all: bool = False
    names: frozenset[str] = frozenset()
    patterns: tuple[Node, ...] = ()
    num_items: int = 0
    goals: frozenset[Goal] = frozenset()

    def meet(self, other: EvaluatedParts) -> EvaluatedParts:
        """The union: what either of two schemas that both hold has evaluated."""
        if self.is_all or not other:
            return self
        if other.is_all or not self:
            return other
        return EvaluatedParts(
            False,
            united(self.names, other.names),
            tuple(dict.fromkeys(self.patterns + other.patterns)),
            max(self.num_items, other.num_items),
            united(self.goals, other.goals),
        )

    def __bool__(self) -> bool:
        return self != _NO_PARTS


_NO_PARTS: Final = EvaluatedParts()


@dataclass(frozen=True)
class ObjectSpec:
    """A conjunction of conditions on an object.

    Attributes:
        parts: all of them hold.
        required: names that occur, in the order in which they were asked for.
        names: goals of the key itself (`propertyNames`).
        witnesses: obligations, each to be met by some property.
        evaluated: no condition, but what was evaluated; empty unless an `unevaluatedProperties` is about to ask.
        excluding: literals that do not hold, still to be multiplied out (`Semantics.shape` does it).
    """

    parts: tuple[Properties, ...] = ()
    required: tuple[str, ...] = ()
    min_properties: int = 0
    max_properties: int | None = None
    names: Goal = TRUE
    witnesses: tuple[Witness, ...] = ()
    evaluated: EvaluatedParts = _NO_PARTS
    excluding: frozenset[Literal] = frozenset()

    def meet(self, other: ObjectSpec) -> ObjectSpec:
        """The objects of both."""
        give_way()
        return ObjectSpec(
            tuple(dict.fromkeys(self.parts + other.parts)),
            tuple(dict.fromkeys(self.required + other.required)),
            max(self.min_properties, other.min_properties),
            _least(self.max_properties, other.max_properties),
            conjunction(self.names, other.names),
            tuple(dict.fromkeys(self.witnesses + other.witnesses)),
            self.evaluated.meet(other.evaluated),
            united(self.excluding, other.excluding),
        )

    def goal(self, key: str) -> Goal:
        """The goal of the value at `key`."""
        return conjunction(*(part.goal(key) for part in self.parts))

    def denials(self) -> Iterator[ObjectSpec]:
        """For each part and each required name, the objects that do not satisfy it."""
        for part in self.parts:
            for name, goal in part.names.items():
                if goal != TRUE:
                    yield ObjectSpec((single(name, denial(goal)),), (name,))
            for pattern, goal in part.patterns:
                if goal != TRUE:
                    yield ObjectSpec(witnesses=(Witness(pattern, denial(goal)),))
            if part.additional != TRUE:
                yield ObjectSpec(witnesses=(Witness(part.uncovered(), denial(part.additional)),))
        yield from map(without, self.required)

    @property
    def num_conditions(self) -> int:
        """The number of its conditions, by which specs are ordered."""
        return len(self.parts) + len(self.required) + len(self.witnesses)

    def takes_in(self, other: ObjectSpec) -> bool:
        """Whether each object of `other` is one of this spec, as far as that is plain to see."""
        give_way()
        return (
            set(self.parts) <= set(other.parts)
            and set(self.required) <= set(other.required)
            and set(self.witnesses) <= set(other.witnesses)
            and self.min_properties <= other.min_properties
            and _is_at_most(other.max_properties, self.max_properties)
            and self.names <= other.names
            and self.evaluated == other.evaluated
            and self.excluding <= other.excluding
        )

    @cached_property
    def declared(self) -> tuple[str, ...]:
        """The declared names in their order, then required names that no part declares."""
        return tuple(dict.fromkeys([name for part in self.parts for name in part.names] + list(self.required)))


def without(name: str) -> ObjectSpec:
    """The objects without a property."""
    return ObjectSpec((single(name, FALSE),))


@dataclass(frozen=True)
class Contains:
    """Between `min` and `max` items from index `start` on satisfy `goal`; those that do not count satisfy `denied`."""

    goal: Goal
    denied: Goal
    min: int
    max: int | None
    start: int = 0


@dataclass(frozen=True)
class ArraySpec:
    """A conjunction of conditions on an array: the goals of the first items, of all later ones, and counts.

    Attributes:
        is_unique: no two items are equal. `is_repeating`: two items are.
        evaluated: no condition, but what was evaluated; empty unless an `unevaluatedItems` is about to ask.
        excluding: as in `ObjectSpec`.
    """

    prefix: tuple[Goal, ...] = ()
    rest: Goal = TRUE
    min_items: int = 0
    max_items: int | None = None
    contains: tuple[Contains, ...] = ()
    is_unique: bool = False
    is_repeating: bool = False
    evaluated: EvaluatedParts = _NO_PARTS
    excluding: frozenset[Literal] = frozenset()

    def goal(self, index: int) -> Goal:
        """The goal of the item at `index`."""
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def denials(self) -> Iterator[ArraySpec]:
        """For each item and each bound on their number, the arrays that do not satisfy it."""
        if self.min_items:
            yield ArraySpec(max_items=self.min_items - 1)
        if self.max_items is not None:
            yield ArraySpec(min_items=self.max_items + 1)
        start = len(self.prefix)
        for index, goal in enumerate(self.prefix):
            if goal != TRUE:
                yield ArraySpec((TRUE,) * index + (denial(goal),), min_items=index + 1)
        if self.rest != TRUE and (self.max_items is None or self.max_items > start):
            other = Contains(denial(self.rest), self.rest, 1, None, start)
            yield ArraySpec(contains=(other,), min_items=start + 1)

    @property
    def num_conditions(self) -> int:
        """The number of its conditions, by which specs are ordered."""
        return len(self.prefix) + len(self.contains) + self.min_items

    def takes_in(self, other: ArraySpec) -> bool:
        """Whether each array of `other` is one of this spec, as far as that is plain to see."""
        return (
            all(self.goal(index) <= other.goal(index) for index in range(max(len(self.prefix), len(other.prefix)) + 1))
            and set(self.contains) <= set(other.contains)
            and self.min_items <= other.min_items
            and _is_at_most(other.max_items, self.max_items)
            and self.is_unique <= other.is_unique
            and self.is_repeating <= other.is_repeating
            and self.evaluated == other.evaluated
            and self.excluding <= other.excluding
        )

    def meet(self, other: ArraySpec) -> ArraySpec:
        """The arrays of both."""
        num_prefix = max(len(self.prefix), len(other.prefix))
        return ArraySpec(
            tuple(conjunction(self.goal(index), other.goal(index)) for index in range(num_prefix)),
            conjunction(self.rest, other.rest),
            max(self.min_items, other.min_items),
            _least(self.max_items, other.max_items),
            tuple(dict.fromkeys(self.contains + other.contains)),
            self.is_unique or other.is_unique,
            self.is_repeating or other.is_repeating,
            self.evaluated.meet(other.evaluated),
            united(self.excluding, other.excluding),
        )


ANY_OBJECT: Final = ObjectSpec()
ANY_ARRAY: Final = ArraySpec()


def _is_at_most(first: int | None, second: int | None) -> bool:
    """Of two bounds, None for no bound."""
    return second is None or (first is not None and first <= second)


def _least(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)


@dataclass(frozen=True)
class Shape:
    """A set of JSON values.

    Attributes:
        words: those of `WORDS` that belong to it.
        strings: body language. `numbers`, `objects`, `arrays`: alternatives.
    """

    words: frozenset[str] = frozenset()
    strings: Node = ir.EMPTY
    numbers: tuple[NumberSpec, ...] = ()
    objects: tuple[ObjectSpec, ...] = ()
    arrays: tuple[ArraySpec, ...] = ()

    @property
    def has_scalar(self) -> bool:
        """Whether a null, boolean, string or number is in it."""
        return self.has_plain or not self.strings.is_empty

    @property
    def has_plain(self) -> bool:
        """Whether a null, boolean or number is in it."""
        return bool(self.words) or not all(spec.is_empty for spec in self.numbers)

    def meet(self, other: Shape) -> Shape:
        """The values of both."""
        if self is EVERYTHING or other is EVERYTHING:
            return other if self is EVERYTHING else self
        return Shape(
            self.words & other.words,
            text.meet(self.strings, other.strings),
            _both(self.numbers, other.numbers, NO_CONDITION),
            _both(self.objects, other.objects, ANY_OBJECT),
            _both(self.arrays, other.arrays, ANY_ARRAY),
        )

    def join(self, other: Shape) -> Shape:
        """The values of either."""
        strings = text.BODY if text.BODY in (self.strings, other.strings) else ir.choice(self.strings, other.strings)
        return Shape(
            united(self.words, other.words),
            strings,
            _unique([*self.numbers, *other.numbers], NO_CONDITION),
            _unique(_present_or_absent([*self.objects, *other.objects]), ANY_OBJECT),
            _unique([*self.arrays, *other.arrays], ANY_ARRAY),
        )

    @property
    def is_settled(self) -> bool:
        """Whether no alternative excludes a literal that is not multiplied out."""
        return not (any(spec.excluding for spec in self.objects) or any(spec.excluding for spec in self.arrays))

    def excluding(self, literal: Literal, shape: Shape) -> Shape:
        """The same scalars, and the objects and arrays that do not satisfy a literal, which is left to be settled.

        `shape`: that of the literal; it may have objects or arrays only.
        """
        objects = [replace(spec, excluding=spec.excluding | {literal}) for spec in self.objects if shape.objects]
        arrays = [replace(spec, excluding=spec.excluding | {literal}) for spec in self.arrays if shape.arrays]
        return replace(self, objects=tuple(objects) or self.objects, arrays=tuple(arrays) or self.arrays)

    @property
    def has_evaluated(self) -> bool:
        """Whether some alternative tells what it has evaluated."""
        return any(spec.evaluated for spec in self.objects) or any(spec.evaluated for spec in self.arrays)

    def without_evaluated(self) -> Shape:
        """The same values, without what was evaluated."""
        if not self.has_evaluated:
            return self
        objects = _unique([replace(spec, evaluated=_NO_PARTS) for spec in self.objects], ANY_OBJECT)
        arrays = _unique([replace(spec, evaluated=_NO_PARTS) for spec in self.arrays], ANY_ARRAY)
        return replace(self, objects=objects, arrays=arrays)

    def without_compounds(self) -> Shape:
        """The scalars among the values."""
        return replace(self, objects=(), arrays=())

    def only(self, *types: str) -> Shape:
        """The values of these types (JSON Schema's names, "number" for every number)."""
        return Shape(
            frozenset(word for word in self.words if (word if word == "null" else "boolean") in types),
            self.strings if "string" in types else ir.EMPTY,
            self.numbers if "number" in types else (),
            self.objects if "object" in types else (),
            self.arrays if "array" in types else (),
        )


EVERYTHING: Final = Shape(frozenset(WORDS), text.BODY, (NO_CONDITION,), (ANY_OBJECT,), (ANY_ARRAY,))
"""All JSON values."""
NOTHING: Final = Shape()
"""No value."""


def restrict(
    strings: Node = text.BODY,
    numbers: tuple[NumberSpec, ...] = EVERYTHING.numbers,
    objects: tuple[ObjectSpec, ...] = EVERYTHING.objects,
    arrays: tuple[ArraySpec, ...] = EVERYTHING.arrays,
) -> Shape:
    """All values except that one type is limited: a keyword says nothing about the other types."""
    return Shape(EVERYTHING.words, strings, numbers, objects, arrays)


def _both(first: tuple[_S, ...], second: tuple[_S, ...], anything: _S) -> tuple[_S, ...]:
    """The alternatives of both: every pair, unless one side has none or asks for nothing, as is usual."""
    if not first or not second:
        return ()
    if len(second) == 1 and second[0] is anything:
        return limited(first)
    if len(first) == 1 and first[0] is anything:
        return limited(second)
    if len(first) * len(second) > MAX_PAIRS:
        raise _too_many()
    pairs = [a.meet(b) for a in first for b in second]
    return _unique([both for both in pairs if not (isinstance(both, NumberSpec) and both.is_impossible)], anything)


def _present_or_absent(specs: list[ObjectSpec]) -> list[ObjectSpec]:
    """Objects without a property, or with it and a value that satisfies a goal: one condition on the property.

    A denied schema with properties and `required` is full of such pairs, and alternatives multiply.
    """
    absent = {name for spec in specs if len(spec.declared) == 1 for name in spec.declared if spec == without(name)}
    if not absent:
        return specs
    joined: list[ObjectSpec] = []
    needless: set[ObjectSpec] = set()
    for spec in specs:
        name = next(iter(spec.declared), None)
        if name in absent and (goal := spec.goal(name)) != FALSE and spec == ObjectSpec((single(name, goal),), (name,)):
            joined.append(ObjectSpec(spec.parts))
            needless.add(without(name))
        else:
            joined.append(spec)
    return [spec for spec in joined if spec not in needless]


_S = TypeVar("_S", NumberSpec, ObjectSpec, ArraySpec)


def _unique(specs: list[_S], anything: _S) -> tuple[_S, ...]:
    """Without repetition; one spec without conditions takes the others in, except those that evaluated something."""
    unique: tuple[_S, ...] = tuple(dict.fromkeys(specs))
    if anything in unique:
        unique = tuple([spec for spec in unique if spec == anything or getattr(spec, "evaluated", None)])
    return limited(unique)


def limited(specs: Sequence[_S]) -> tuple[_S, ...]:
    """The same specs.

    Raises:
        ResourceLimitError: more than `MAX_ALTERNATIVES`.
    """
    if len(specs) > MAX_ALTERNATIVES:
        raise _too_many()
    return tuple(specs)


def _too_many() -> ResourceLimitError:
    return ResourceLimitError(
        f"the combinations of anyOf, oneOf, not and if give more than {MAX_ALTERNATIVES} alternatives",
        hint='fewer combined branches, or branches told apart by a "const" property',
    )
