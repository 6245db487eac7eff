"""Whether a limit may be met below a schema, told from the document alone: whether it is worth to look at all of it.

The estimate counts the alternatives of one value, keyword by keyword: the branches of an `anyOf` add up, those of an
`allOf` multiply. It does not know which alternatives exclude each other, so it is often far too high; and it looks at
each schema by itself, so where several meet at one property it may be too low.
"""

from __future__ import annotations

import math
from typing import Any, Final

from decodekit.constraints.json_schema.document.loader import Library, Location
from decodekit.constraints.json_schema.meaning.keywords import MAX_BRANCHES, MAX_DEPENDENCIES
from decodekit.constraints.json_schema.meaning.semantics import MAX_IN_PLACE
from decodekit.constraints.json_schema.values.shape import MAX_ALTERNATIVES

_MANY: Final = 1e9
_COMBINING: Final = frozenset({
    "anyOf", "oneOf", "allOf", "not", "if", "dependencies", "dependentSchemas", "dependentRequired",
    "patternProperties", "contains", "enum", "$ref",
})  # fmt: skip
_IN_PLACE: Final = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref")


def may_meet_a_limit(library: Library, max_patterns: int, max_contains: int) -> bool:
    """Whether some schema may have too many alternatives, patterns or `contains` conditions for one value."""
    estimate = _Estimate(library)

    def is_large(location: Location) -> bool:
        num_patterns, num_contains = estimate.gather(location)
        return (
            estimate.ways(location, is_asserted=True) > MAX_ALTERNATIVES // 8
            or num_patterns > max_patterns
            or num_contains > max_contains
            or len(location.keywords().get("oneOf", ())) > MAX_BRANCHES // 8
            or len(location.keywords().get("dependencies", ())) > MAX_DEPENDENCIES // 8
        )

    return any(is_large(one) for one in library.locations if not _COMBINING.isdisjoint(one.keywords()))


class _Estimate:
    """The estimates of the schemas of a library."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: dict[tuple[Location, bool], float] = {}
        self._gathered: dict[Location, tuple[int, int]] = {}
        self._depth = 0

    def ways(self, location: Location, *, is_asserted: bool) -> float:
        """About how many alternatives a schema has, or its denial."""
        key = location, is_asserted
        if key in self._known:
            return self._known[key]
        if self._depth > MAX_IN_PLACE // 2:
            return _MANY
        self._known[key] = 1  # of a schema that refers to itself
        self._depth += 1
        found = [self._ways_of(location, name, value, is_asserted) for name, value in location.assertions()]
        self._depth -= 1
        self._known[key] = min(math.prod(found) if is_asserted else sum(found), _MANY)
        return self._known[key]

    def _ways_of(self, location: Location, name: str, value: Any, is_asserted: bool) -> float:
        below = list(self._library.parts(location, (name,))) if name in _IN_PLACE else []
        if name in ("anyOf", "oneOf", "allOf"):
            ways = [self.ways(branch, is_asserted=is_asserted) for branch in below]
            if name == "oneOf":
                # Each branch without the others.
                denied = [self.ways(branch, is_asserted=False) for branch in below]
                return sum(ways) + (max(denied) ** (len(denied) - 1) if is_asserted else len(denied) ** 2)
            return sum(ways) if (name == "anyOf") == is_asserted else math.prod(ways)
        if name in ("not", "$ref"):
            return self.ways(below[0], is_asserted=is_asserted == (name == "$ref"))
        if name == "if":
            return self.ways(below[0], is_asserted=True) + self.ways(below[0], is_asserted=False)
        if not isinstance(value, dict | list):
            return 1
        if name in ("dependencies", "dependentSchemas", "dependentRequired"):
            return 2.0 ** min(len(value), 30)
        if is_asserted:
            return sum(isinstance(entry, dict | list) for entry in value) or 1 if name == "enum" else 1
        return max(1, len(value)) if name in ("properties", "patternProperties", "required", "prefixItems") else 1

    def gather(self, location: Location) -> tuple[int, int]:
        """The patterns and the `contains` conditions that one object or array may meet: two counts of at most 1,000."""
        if location in self._gathered:
            return self._gathered[location]
        if self._depth > MAX_IN_PLACE // 2:
            return 0, 0
        self._gathered[location] = 0, 0
        self._depth += 1
        keywords = location.keywords()
        counts = [(len(keywords.get("patternProperties", ())), int("contains" in keywords))]
        counts += [self.gather(place) for place in self._library.parts(location, _IN_PLACE)]
        self._depth -= 1
        patterns, contains = (min(sum(column), 1_000) for column in zip(*counts, strict=True))
        self._gathered[location] = patterns, contains
        return patterns, contains
