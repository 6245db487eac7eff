"""The guard of a schema: `uniqueItems` where items may be objects or arrays, which no mask can compare.

The mask then admits all arrays there, repeated items or not, whether the keyword is asserted or denied. The guard
judges the whole value by the whole schema, so it is right whatever stands around the keyword.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from decodekit.constraints.guards import Guard, Refusal
from decodekit.constraints.json_schema import instances, support
from decodekit.constraints.json_schema.arrays import is_by_value
from decodekit.constraints.json_schema.judging import Judge
from decodekit.constraints.json_schema.loader import Location
from decodekit.constraints.json_schema.meanings import is_unique_anyway
from decodekit.constraints.json_schema.semantics import Semantics
from decodekit.errors import ConstraintError, ResourceLimitError

_DENYING: Final = ("not", "oneOf", "if", "contains", "unevaluatedProperties", "unevaluatedItems")
"""The keywords that may ask a schema not to hold."""


@dataclass(frozen=True)
class SchemaGuard:
    """Judges a whole text by a whole schema."""

    semantics: Semantics

    @property
    def is_of_compounds(self) -> bool:
        """Every scalar that the mask admits is valid."""
        return True

    def refuses(self, text: bytes) -> Refusal | None:
        """Why the value of a text is not valid.

        What can stay ends before the first repeated item where there is one; otherwise nothing does.

        Raises:
            ResourceLimitError: the value is nested too deeply for the schema.
        """
        judge = Judge(self.semantics)
        try:
            if judge.evaluate(self.semantics.library.root, instances.read(text)) is not None:
                return None
        except RecursionError as error:
            raise ResourceLimitError("the value is nested too deeply to be judged", hint='"maxItems"') from error
        if not judge.repetitions:
            return Refusal(0, "the whole value", "the value is not valid: items are equal, or different, that must not")
        found = min(judge.repetitions, key=lambda repetition: repetition.keep)
        return Refusal(
            found.keep,
            f"{found.array}/{found.second}",
            f"item {found.second} equals item {found.first}, against {found.keyword}",
        )


def guard_of(semantics: Semantics) -> Guard | None:
    """The guard of a schema; None if the mask enforces all of it."""
    return SchemaGuard(semantics) if guarded_locations(semantics) else None


def guarded_locations(semantics: Semantics) -> frozenset[int]:
    """The schemas, by `Location.index`, whose `uniqueItems` the mask does not enforce."""
    asking: list[Location] = []
    may_deny = False
    for location in support.reachable(semantics.library):
        keywords = location.keywords()
        may_deny = may_deny or any(name in keywords for name in _DENYING)
        if "uniqueItems" in keywords and not is_unique_anyway(location, semantics.formats):
            asking.append(location)
    return frozenset(place.index for place in asking if not _is_in_mask(semantics, place, may_deny=may_deny))


def _is_in_mask(semantics: Semantics, location: Location, *, may_deny: bool) -> bool:
    """Whether all arrays that the schema admits are compared by value. Other schemas around it only narrow them."""
    try:
        shapes = [semantics.shape(semantics.goal(location))]
        if may_deny:
            shapes.append(semantics.shape(semantics.goal(location, is_asserted=False)))
        specs = [spec for shape in shapes for spec in shape.arrays if spec.is_unique or spec.is_repeating]
        return all(is_by_value(spec, semantics) for spec in specs)
    except ConstraintError:  # it cannot be told here; where it takes part, the error is met
        return False
