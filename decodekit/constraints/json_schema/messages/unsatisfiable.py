"""Why no value fits a schema: the least that contradicts itself, in words.

A reason is found by leaving out: of the keywords of a schema, one after the other is dropped as long as still no value
fits. Those that are left exclude each other, whatever else the schema says, and none of them can be spared; so a reason
claims no more than `Emptiness` has answered. Each branch of an `allOf` and each name that is `required` counts for
itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from decodekit.constraints.json_schema.document.drafts import REFERENCES
from decodekit.constraints.json_schema.document.loader import Location, show
from decodekit.constraints.json_schema.frames.arrays import ArrayPlan
from decodekit.constraints.json_schema.frames.schema_frames import SchemaNetwork
from decodekit.constraints.json_schema.meaning.keywords import EVALUATING, UNEVALUATED
from decodekit.constraints.json_schema.values import scalars
from decodekit.constraints.json_schema.values.shape import FALSE, TRUE, Goal, Properties, conjunction
from decodekit.constraints.memory_account import kept
from decodekit.errors import ConstraintError, UnsatisfiableError

MAX_GOALS: Final = 5_000
"""So many more questions whether a value fits may the reasons of one schema take; then they get longer, not wrong."""

_MAX_STEPS: Final = 200  # from a schema to a part that it needs
_MAX_SHOWN: Final = 40  # characters of a keyword's value
_MAX_LISTED: Final = 6

_CROSSED: Final = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minContains", "maxContains"),
)
_OF_OBJECTS: Final = frozenset({"required", "properties", "patternProperties", "additionalProperties"})
_OF_ITEMS: Final = frozenset({"minItems", "prefixItems", "items", "additionalItems"})
_BRANCHED: Final = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")

_READS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(UNEVALUATED, EVALUATING | {"then", "else"}),
    "additionalProperties": frozenset({"properties", "patternProperties"}),
    "additionalItems": frozenset({"items"}),
    "items": frozenset({"prefixItems"}),
    "contains": frozenset({"minContains"}),
}
"""Keywords that ask for more without another one, which therefore stays as long as they do."""

_FIRST: Final = (*_READS, *_BRANCHED, *REFERENCES)
"""The keywords that are dropped first, so that a reason is made of plain ones if it can be."""


class Condition(NamedTuple):
    """One condition of a schema: a keyword, one name of `required`, or one branch of `allOf`."""

    keyword: str
    detail: str | int | None = None


class Reasons:
    """Why no value fits some schemas of a network, which is asked more questions."""

    def __init__(self, network: SchemaNetwork) -> None:
        self._network = network
        self._semantics = network.semantics
        self._most_goals = network.emptiness.num_known + MAX_GOALS

    def of(self, place: Location) -> str:
        """The reason of a schema that no value fits."""
        try:
            return self._reason(place)
        except ConstraintError:  # a limit that the schema as a whole does not meet
            return _excluding(self.parts(place), place.keywords())

    def _reason(self, place: Location) -> str:
        step = self._needed(place)
        if step is None:
            return self._contradiction(place)
        what, goal = step
        if self._is_circular(place, goal):
            return f"{what} leads back to this schema, without end"
        apart = self._places(self._least_goal(goal))
        both = f": {' and '.join(other.pointer for other in apart)} exclude each other" if len(apart) > 1 else ""
        return f"{what} is impossible{both}"

    def error(self) -> UnsatisfiableError:
        """The error for the whole schema: the reason is that of the innermost part that it needs."""
        place, met = self._network.library.root, set[Location]()
        for _ in range(_MAX_STEPS):
            met.add(place)
            step = self._needed(place)
            below = None if step is None else self._alone(step[1])
            if below is None or below in met:
                break
            place = below
        return UnsatisfiableError(f"{self.of(place)}: no value fits", at=place.pointer)

    # -- what contradicts itself

    @kept
    def parts(self, place: Location) -> list[Condition]:
        """The least conditions of a schema that no value fits together, in document order.

        None can be left out but those that another one reads, such as `properties` beside `additionalProperties`.
        """
        return self._least(place, _all_parts(place))

    def _least(self, place: Location, parts: list[Condition]) -> list[Condition]:
        """A minimal part of some conditions that no value fits together; halves are left out first, for speed."""
        ranks = {name: rank for rank, name in enumerate(_FIRST)}
        order = parts[::-1]  # of equal ones the first stay
        order.sort(key=lambda part: ranks.get(part.keyword, len(ranks)))
        agenda, left = [order], parts
        while agenda and self._network.emptiness.num_known < self._most_goals:
            group = agenda.pop()
            gone = set(group)
            kept = [part for part in left if part not in gone]
            read = {name for part in kept for name in _READS.get(part.keyword, ())}
            if not any(part.keyword in read for part in group) and self._is_empty(self._goal(place, kept)):
                left = kept
            elif len(group) > 1:
                agenda += [group[len(group) // 2 :], group[: len(group) // 2]]
        return left

    def _is_empty(self, goal: Goal) -> bool:
        """Whether it is known that no value fits."""
        try:
            return not self._network.is_inhabited(goal)
        except ConstraintError:
            return False

    def _goal(self, place: Location, parts: list[Condition]) -> Goal:
        """The goal of some conditions of a schema: of a schema with those alone, at the same place."""
        keywords = place.keywords()
        value = {name: keywords[name] for name, detail in parts if detail is None}
        names = [detail for name, detail in parts if name == "required" and detail is not None]
        if names:
            value["required"] = names
        variant = replace(place, value=value, is_constant=False)
        branches = [detail for name, detail in parts if name == "allOf" and detail is not None]
        return conjunction(
            self._semantics.goal(variant), *(self._semantics.below(place, "allOf", branch) for branch in branches)
        )

    def _contradiction(self, place: Location) -> str:
        if place.value is False:
            return "the schema is false"
        parts, keywords = self.parts(place), place.keywords()
        names = {part.keyword for part in parts} - {"type"}
        if names == {"enum"} and keywords["enum"] == []:
            return "the enum is empty"
        for low, high in _CROSSED:
            if names - {"contains"} == {low, high} and keywords[low] > keywords[high]:
                return f"{low} {show(keywords[low])} > {high} {show(keywords[high])}"
        if names == {"not"} and len(parts) == 1:
            return "every value fits what not excludes"
        if names in ({"anyOf"}, {"oneOf"}) and len(parts) == 1:
            (name,) = names
            goals = [self._semantics.below(place, name, index) for index in range(len(keywords[name]))]
            if all(map(self._is_empty, goals)):
                return f"every branch of {name} is impossible"
            if name == "oneOf":
                return "every value that fits one branch of oneOf fits another one too"
        return (
            self._undeclared(place, names, parts) or self._too_few_values(place, names) or _excluding(parts, keywords)
        )

    def _undeclared(self, place: Location, names: set[str], parts: list[Condition]) -> str | None:
        """Whether a property is required that `additionalProperties` alone refuses."""
        required = _required(parts)
        if not (names <= _OF_OBJECTS and len(required) == 1):
            return None
        part, name = self._semantics.part(place), required[0]
        if part.goal(name) != FALSE or Properties(part.names, part.patterns).goal(name) != TRUE:
            return None
        return f"the required property {show(name)} is not declared, and additionalProperties is false"

    def _too_few_values(self, place: Location, names: set[str]) -> str | None:
        """Whether arrays fit but for `uniqueItems`."""
        if "uniqueItems" not in names or not names <= _OF_ITEMS | {"uniqueItems"}:
            return None
        network, semantics = self._network, self._semantics
        for spec in semantics.shape(self._goal(place, self.parts(place))).arrays:
            if not ArrayPlan(replace(spec, is_unique=False), semantics).is_satisfiable(network.is_inhabited):
                continue
            values = None if spec.prefix else scalars.members(semantics.shape(spec.rest), spec.min_items)
            if values is None or spec.is_repeating:
                return "uniqueItems cannot hold for the items that are needed"
            count = f"{len(values)} value{'' if len(values) == 1 else 's'}"
            return f"uniqueItems asks for {spec.min_items} different items, which have {count}"
        return None

    # -- what a schema needs

    @kept
    def _needed(self, place: Location) -> tuple[str, Goal] | None:
        """A part that every value of a schema has, and that no value fits; if that alone is the reason."""
        try:
            return None if place.value is False else self._find_needed(place)
        except ConstraintError:
            return None

    def _find_needed(self, place: Location) -> tuple[str, Goal] | None:
        parts, semantics, library = self.parts(place), self._semantics, self._network.library
        keywords = place.keywords()
        names = {part.keyword for part in parts} - {"type"}
        if len(parts) == 1:
            name, detail = parts[0]
            if name == "allOf" and detail is not None:
                return f"allOf/{detail}", semantics.below(place, "allOf", detail)
            if name in REFERENCES:
                return f"what {show(keywords[name])} refers to", semantics.goal(library.target(place, name))
        required = _required(parts)
        if names <= _OF_OBJECTS and len(required) == 1:
            goal = semantics.part(place).goal(required[0])
            if self._is_impossible(goal):
                return f"the required property {show(required[0])}", goal
        if "minItems" in names and names <= _OF_ITEMS:
            spec = semantics.items(place)
            for index in range(min(int(keywords["minItems"]), len(spec.prefix) + 1)):
                if self._is_impossible(spec.goal(index)):
                    return f"item {index}", spec.goal(index)
        return None

    def _is_impossible(self, goal: Goal) -> bool:
        """Whether no value fits a goal that is more than ``false``."""
        return bool(self._places(goal)) and self._is_empty(goal)

    def _places(self, goal: Goal) -> list[Location]:
        found = (self._semantics.location(literal) for literal in sorted(goal) if literal & 1 == 0)
        return [place for place in found if place is not None]

    def _least_goal(self, goal: Goal) -> Goal:
        """The fewest literals of a goal that exclude each other."""
        for literal in sorted(goal):
            if len(goal) > 1 and self._is_empty(goal - {literal}):
                goal = goal - {literal}
        return goal

    def _alone(self, goal: Goal) -> Location | None:
        """The one schema of a goal that no value fits by itself."""
        least = self._least_goal(goal)
        places = self._places(least)
        return places[0] if len(places) == len(least) == 1 else None

    def _is_circular(self, place: Location, goal: Goal) -> bool:
        """Whether what a schema needs comes back to it."""
        for _ in range(_MAX_STEPS):
            below = self._alone(goal)
            if below is place:
                return True
            step = None if below is None else self._needed(below)
            if step is None:
                return False
            goal = step[1]
        return False


def _all_parts(place: Location) -> list[Condition]:
    """The conditions of a schema, in document order."""
    keywords = place.keywords()
    parts: list[Condition] = []
    for name, value in place.assertions():
        details: Iterable[str | int] = ()
        if name == "required":
            details = dict.fromkeys(value)
        elif name == "allOf" and UNEVALUATED.keys().isdisjoint(keywords):
            details = range(len(value))
        parts += [Condition(name, detail) for detail in details] or [Condition(name)]
    return parts


def _required(parts: list[Condition]) -> list[str]:
    """The names of `required` that count apart."""
    return [str(part.detail) for part in parts if part.keyword == "required" and part.detail is not None]


def _excluding(parts: list[Condition], keywords: dict[str, Any]) -> str:
    """That some conditions exclude each other, with the values of their keywords where those are short."""
    shown: list[str] = []
    types: list[str] = []
    required = _required(parts)
    for name, detail in parts:
        if name == "type" and len(parts) > 1:
            types = [keywords[name]] if isinstance(keywords[name], str) else keywords[name]
        elif name == "required" and detail is not None:
            if detail == required[0]:
                shown.append(_with_value(name, required))
        else:
            shown.append(_with_value(name, keywords[name]) if detail is None else f"{name}/{detail}")
    listed = shown if len(shown) <= _MAX_LISTED else [*shown[: _MAX_LISTED - 1], f"{len(shown) - _MAX_LISTED + 1} more"]
    together = " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)
    if types and len(listed) == 1:
        return f"type {' or '.join(map(show, types))} and {together} exclude each other"
    among = f"for type {' or '.join(map(show, types))}, " if types else ""
    return f"{among}{together} {'exclude each other' if len(listed) > 1 else 'admits no value'}"


def _with_value(name: str, value: object) -> str:
    text = show(value)
    return name if name in _BRANCHED or len(text) > _MAX_SHOWN else f"{name} {text}"
