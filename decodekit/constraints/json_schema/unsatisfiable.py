"""Why no value fits a schema: the place and the keywords that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from decodekit.constraints.json_schema import scalars
from decodekit.constraints.json_schema.arrays import ArrayPlan
from decodekit.constraints.json_schema.drafts import is_number
from decodekit.constraints.json_schema.frames import SchemaNetwork
from decodekit.constraints.json_schema.loader import Location, show
from decodekit.constraints.json_schema.shape import Goal
from decodekit.errors import UnsatisfiableError

_CROSSED = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minContains", "maxContains"),
)
_MAX_STEPS = 50


def reason(network: SchemaNetwork) -> UnsatisfiableError:
    """The error for a schema without values: follows required parts down to where the contradiction is."""
    goal = network.root_goal
    location = network.library.root
    cause = "no value fits"
    seen: set[Goal] = set()
    for _ in range(_MAX_STEPS):
        seen.add(goal)
        below = None
        places = [place for literal in sorted(goal) if (place := network.semantics.location(literal)) is not None]
        if places:
            location = places[0]
        for place in places:
            found = contradiction(place) or _too_few_values(network, place)
            if found is not None:
                return UnsatisfiableError(f"{found}: no value fits", at=place.pointer)
            below = below or _required_below(network, place)
        if below is None or below[1] in seen:
            break
        cause, goal = below
    if location.value is False:
        cause = "false admits nothing"
    return UnsatisfiableError(f"{cause}: no value fits" if cause != "no value fits" else cause, at=location.pointer)


def contradiction(location: Location) -> str | None:
    """The keywords of one schema that contradict each other by themselves, if some do."""
    keywords: dict[str, Any] = location.keywords()
    if location.value is False:
        return "the schema is false"
    for low, high in _CROSSED:
        if is_number(keywords.get(low)) and is_number(keywords.get(high)) and keywords[low] > keywords[high]:
            return f"{low} {show(keywords[low])} > {high} {show(keywords[high])}"
    if keywords.get("enum") == []:
        return "the enum is empty"
    return None


def _too_few_values(network: SchemaNetwork, location: Location) -> str | None:
    """Whether arrays fit but for `uniqueItems`."""
    if location.keywords().get("uniqueItems") is not True:
        return None
    shape = network.semantics.shape(network.semantics.goal(location))
    if any(ArrayPlan(spec, network.semantics).is_satisfiable(network.is_inhabited) for spec in shape.arrays):
        return None
    for spec in shape.arrays:
        if not ArrayPlan(replace(spec, is_unique=False), network.semantics).is_satisfiable(network.is_inhabited):
            continue
        values = None if spec.prefix else scalars.members(network.semantics.shape(spec.rest), spec.min_items)
        if values is None or spec.is_repeating or spec.contains:
            return "uniqueItems cannot hold for the items that are needed"
        count = f"{len(values)} value{'' if len(values) == 1 else 's'}"
        return f"uniqueItems asks for {spec.min_items} different items, which have {count}"
    return None


def _required_below(network: SchemaNetwork, location: Location) -> tuple[str, Goal] | None:
    """A part that every value needs and that no value fits."""
    keywords: dict[str, Any] = location.keywords()
    library, semantics = network.library, network.semantics
    if isinstance(keywords.get("$ref"), str):
        return "what it refers to is impossible", semantics.goal(library.resolve(location, keywords["$ref"]))
    for index in range(len(keywords.get("allOf", ()))):
        goal = semantics.goal(library.child(location, "allOf", index))
        if not network.is_inhabited(goal):
            return f"allOf/{index} is impossible", goal
    for name in keywords.get("required", ()):
        for spec in semantics.shape(semantics.goal(location)).objects:
            goal = spec.goal(name)
            if not network.is_inhabited(goal):
                return f"the required property {show(name)} is impossible", goal
    least = keywords.get("minItems", 0)
    if least:
        for spec_ in semantics.shape(semantics.goal(location)).arrays:
            for index in range(min(int(least), len(spec_.prefix) + 1)):
                if not network.is_inhabited(spec_.goal(index)):
                    return f"item {index} is impossible", spec_.goal(index)
    return None
