"""One alternative in place of many: what all of them ask for, as far as that is plain to see.

A union with more alternatives than a shape may have is written as one that holds every one of them. A worked example:

    objects with "k" = 1 and "a"        hull:  objects with "k", which is 1 or 2
    objects with "k" = 2 and "b"

A hull is larger than the union, so it may stand in for it wherever values are admitted, never where they are excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.values.numbers import NumberSpec
from decodekit.constraints.json_schema.values.shape import (
    ANY_ARRAY,
    ANY_OBJECT,
    FALSE,
    TRUE,
    ArraySpec,
    Goal,
    ObjectSpec,
    Properties,
    Shape,
)
from decodekit.constraints.language import ir

MAX_CHOICE: Final = 256
"""Bound on the goals of one property among which a hull leaves the choice; beyond it any value may stand there."""
_MAX_PREFIX: Final = 64  # items of arrays that are told apart by their place

Either: TypeAlias = Callable[..., Goal]
"""The goal of the values that satisfy one of several goals."""


def over_approximation(shapes: Sequence[Shape], either: Either) -> Shape:
    """A shape with one alternative of each type that holds every value of some shapes."""
    numbers = [spec for shape in shapes for spec in shape.numbers]
    objects = list(dict.fromkeys(spec for shape in shapes for spec in shape.objects))
    arrays = list(dict.fromkeys(spec for shape in shapes for spec in shape.arrays))
    strings = [shape.strings for shape in shapes]
    return Shape(
        frozenset().union(*(shape.words for shape in shapes)),
        text.BODY if text.BODY in strings else ir.choice(*strings),
        (_of_numbers(numbers),) if numbers else (),
        (_of_objects(objects, either),) if objects else (),
        (_of_arrays(arrays, either),) if arrays else (),
    )


def _of_numbers(specs: list[NumberSpec]) -> NumberSpec:
    lows, highs = [spec.low for spec in specs], [spec.high for spec in specs]
    values: frozenset[Fraction] | None = frozenset()
    for spec in specs:
        values = None if values is None or spec.values is None else values | spec.admitted_values
    return NumberSpec(
        low=None if None in lows else min(low for low in lows if low is not None),
        high=None if None in highs else max(high for high in highs if high is not None),
        is_integer=all(spec.is_integer for spec in specs),
        is_plain=all(spec.is_plain for spec in specs),
        values=values,
    )


def _choice(goals: Sequence[Goal], either: Either) -> Goal:
    """One of some goals; any value if they are too many to choose from."""
    unique = dict.fromkeys(goals)
    return TRUE if TRUE in unique or len(unique) > MAX_CHOICE else either(*unique)


def _of_objects(specs: list[ObjectSpec], either: Either) -> ObjectSpec:
    if ANY_OBJECT in specs:
        return ANY_OBJECT
    first, others = specs[0], specs[1:]
    most = [spec.max_properties for spec in specs]
    found = ObjectSpec(
        (*(part for part in first.parts if all(part in spec.parts for spec in others)), *_members(specs, either)),
        tuple(name for name in first.required if all(name in spec.required for spec in others)),
        min(spec.min_properties for spec in specs),
        None if None in most else max(count for count in most if count is not None),
        frozenset.intersection(*(spec.names for spec in specs)),
        tuple(one for one in first.witnesses if all(one in spec.witnesses for spec in others)),
        excluding=frozenset.intersection(*(spec.excluding for spec in specs)),
    )
    return ANY_OBJECT if found == ANY_OBJECT else found  # which is known by identity


def _members(specs: list[ObjectSpec], either: Either) -> tuple[Properties, ...]:
    """The conditions on single properties: on those that all declare or, if all list their properties, on all."""
    listed = [_listed(spec) for spec in specs]
    declared = [dict.fromkeys(name for part in spec.parts for name in part.names) for spec in specs]
    closed = [names for names in listed if names is not None]
    if len(closed) == len(specs):
        names = list(dict.fromkeys(name for spec in closed for name in spec))
    else:
        names = [name for name in declared[0] if all(name in other for other in declared[1:])]
    goals = {name: _choice([spec.goal(name) for spec in specs], either) for name in names}
    if len(closed) == len(specs):
        return (Properties(goals, additional=FALSE),)
    goals = {name: goal for name, goal in goals.items() if goal != TRUE}
    return (Properties(goals),) if goals else ()


def _listed(spec: ObjectSpec) -> dict[str, None] | None:
    """The only properties that an object can have, if a part lists them."""
    for part in spec.parts:
        if part.additional == FALSE and not part.patterns:
            return dict.fromkeys(part.names)
    return None


def _of_arrays(specs: list[ArraySpec], either: Either) -> ArraySpec:
    if ANY_ARRAY in specs:
        return ANY_ARRAY
    first, others = specs[0], specs[1:]
    most = [spec.max_items for spec in specs]

    def goal(index: int) -> Goal:
        reaching = [spec for spec in specs if spec.max_items is None or spec.max_items > index]
        return _choice([spec.goal(index) for spec in reaching], either) if reaching else FALSE

    longest = max(len(spec.prefix) for spec in specs)
    num_prefix = min(longest, _MAX_PREFIX)
    rest = [spec.goal(index) for spec in specs for index in range(num_prefix, longest + 1)]
    found = ArraySpec(
        tuple(map(goal, range(num_prefix))),
        _choice(rest, either),
        min(spec.min_items for spec in specs),
        None if None in most else max(count for count in most if count is not None),
        tuple(one for one in first.contains if all(one in spec.contains for spec in others)),
        all(spec.is_unique for spec in specs),
        all(spec.is_repeating for spec in specs),
        excluding=frozenset.intersection(*(spec.excluding for spec in specs)),
    )
    return ANY_ARRAY if found == ANY_ARRAY else found
