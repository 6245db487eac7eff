"""One alternative in place of many: what all of them ask for, as far as that is plain to see.

A union with more alternatives than a shape may have is written as one that holds every one of them. A worked example:

    objects with "k" = 1 and "a"        hull:  objects with "k", which is 1 or 2
    objects with "k" = 2 and "b"

A hull is larger than the union, so it may stand in for it wherever values are admitted, never where they are excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from typing import Final, TypeAlias, TypeVar

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

_One = TypeVar("_One")
_Bound = TypeVar("_Bound", int, Fraction)
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
    are_listed = all(spec.values is not None for spec in specs)
    return NumberSpec(
        low=_outermost(min, [spec.low for spec in specs]),
        high=_outermost(max, [spec.high for spec in specs]),
        is_integer=all(spec.is_integer for spec in specs),
        is_plain=all(spec.is_plain for spec in specs),
        values=frozenset().union(*(spec.admitted_values for spec in specs)) if are_listed else None,
    )


def _outermost(furthest: Callable[[list[_Bound]], _Bound], bounds: list[_Bound | None]) -> _Bound | None:
    """The bound within which all lie; None if one has none."""
    known = [bound for bound in bounds if bound is not None]
    return furthest(known) if len(known) == len(bounds) else None


def _common(lists: Iterable[Collection[_One]]) -> tuple[_One, ...]:
    """The members of the first that are in all others."""
    first, *others = lists
    return tuple(one for one in first if all(one in other for other in others))


def _choice(goals: Sequence[Goal], either: Either) -> Goal:
    """One of some goals; any value if they are too many to choose from."""
    unique = dict.fromkeys(goals)
    return TRUE if TRUE in unique or len(unique) > MAX_CHOICE else either(*unique)


def _of_objects(specs: list[ObjectSpec], either: Either) -> ObjectSpec:
    if ANY_OBJECT in specs:
        return ANY_OBJECT
    found = ObjectSpec(
        _common(spec.parts for spec in specs) + _members(specs, either),
        _common(spec.required for spec in specs),
        min(spec.min_properties for spec in specs),
        _outermost(max, [spec.max_properties for spec in specs]),
        frozenset.intersection(*(spec.names for spec in specs)),
        _common(spec.witnesses for spec in specs),
        excluding=frozenset.intersection(*(spec.excluding for spec in specs)),
    )
    return ANY_OBJECT if found == ANY_OBJECT else found  # which is known by identity


def _members(specs: list[ObjectSpec], either: Either) -> tuple[Properties, ...]:
    """The conditions on single properties: on those that all declare or, if all list their properties, on all."""
    closed = [
        next((part for part in spec.parts if part.additional == FALSE and not part.patterns), None) for spec in specs
    ]
    are_listed = None not in closed
    if are_listed:
        names = tuple(dict.fromkeys(name for part in closed if part is not None for name in part.names))
    else:
        names = _common(dict.fromkeys(name for part in spec.parts for name in part.names) for spec in specs)
    goals = {name: _choice([spec.goal(name) for spec in specs], either) for name in names}
    if are_listed:
        return (Properties(goals, additional=FALSE),)
    goals = {name: goal for name, goal in goals.items() if goal != TRUE}
    return (Properties(goals),) if goals else ()


def _of_arrays(specs: list[ArraySpec], either: Either) -> ArraySpec:
    if ANY_ARRAY in specs:
        return ANY_ARRAY

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
        _outermost(max, [spec.max_items for spec in specs]),
        _common(spec.contains for spec in specs),
        all(spec.is_unique for spec in specs),
        all(spec.is_repeating for spec in specs),
        excluding=frozenset.intersection(*(spec.excluding for spec in specs)),
    )
    return ANY_ARRAY if found == ANY_ARRAY else found
