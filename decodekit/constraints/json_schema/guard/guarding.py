"""The guard of a schema: what no mask can tell. Two things are left to it.

* `uniqueItems` where items may be objects or arrays. The mask admits all arrays there, repeated items or not, whether
  the keyword is asserted or denied.
* Asserted formats whose characters decide together (`formats.GUARDED`): international host names, and patterns. The
  mask admits all that has their form.

The guard judges the whole value by the whole schema, so it is right whatever stands around the keyword.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from decodekit.constraints.constraint import Guard, Refusal
from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.document.loader import Location
from decodekit.constraints.json_schema.frames.arrays import is_by_value
from decodekit.constraints.json_schema.guard.judging import SchemaJudge
from decodekit.constraints.json_schema.meaning.keywords import is_unique_anyway
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings.formats import GUARDED
from decodekit.constraints.json_schema.values import instances
from decodekit.errors import ConstraintError, ResourceLimitError

_DENYING: Final = frozenset({"not", "oneOf", "if", "contains", "unevaluatedProperties", "unevaluatedItems"})
"""The keywords that may ask a schema not to hold."""
_INTERNATIONAL: Final = re.compile(rb"--|\\u|[\x80-\xff]")
"""Hyphens of an A-label, a character beyond ASCII, or an escape, in which they could be spelled."""


@dataclass(frozen=True)
class SchemaGuard:
    """Judges a whole text by a whole schema.

    A number or a word is valid if the mask admits it.

    Attributes:
        semantics: the meaning of the schema.
        is_of_names: whether only host names are left to it: a text without `_INTERNATIONAL` is not judged.
    """

    is_of_compounds: ClassVar[bool] = True

    semantics: Semantics
    is_of_names: bool = False

    def refuses(self, text: bytes) -> Refusal | None:
        """Why the value of a text is not valid.

        What can stay ends before the first repeated item or the first string that is not of its format, where there is
        one; otherwise nothing does.

        Raises:
            ResourceLimitError: the value is nested too deeply for the schema.
        """
        if self.is_of_names and not _INTERNATIONAL.search(text):
            return None
        judge = SchemaJudge(self.semantics)
        try:
            if judge.evaluate(self.semantics.library.root, instances.read(text)) is not None:
                return None
        except RecursionError as error:
            raise ResourceLimitError("the value is nested too deeply to be judged", hint='"maxItems"') from error
        for found in (judge.repetitions, judge.refused_formats):
            if found:
                return min(found, key=lambda refusal: refusal.keep)
        return Refusal(0, "the whole value", "the value is not valid: items are equal, or different, that must not")


def guard_of(semantics: Semantics) -> Guard | None:
    """The guard of a schema; None if the mask enforces all of it."""
    has_repetitions, formats = bool(guarded_locations(semantics)), set[str]()
    if semantics.formats == "assert":
        places = support.reachable(semantics.library)
        formats = {str(place.keywords().get("format")) for place in places} & GUARDED.keys()
    if not has_repetitions and not formats:
        return None
    return SchemaGuard(semantics, is_of_names=not has_repetitions and "regex" not in formats)


def guarded_locations(semantics: Semantics) -> frozenset[int]:
    """The schemas, by `Location.index`, whose `uniqueItems` the mask does not enforce."""
    asking: list[Location] = []
    may_deny = False
    for location in support.reachable(semantics.library):
        keywords = location.keywords()
        may_deny |= not _DENYING.isdisjoint(keywords)
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
