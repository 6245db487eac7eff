"""Whether a limit may be met below a schema, told from the document alone: whether it is worth to look at all of it.

The estimate counts the alternatives of one value, keyword by keyword: the branches of an `anyOf` add up, those of an
`allOf` multiply. It does not know which alternatives exclude each other, so it is often far too high; and it looks at
each schema by itself, so where several meet at one property it may be too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from decodekit.constraints.json_schema.document.loader import Library, Location
from decodekit.constraints.json_schema.meaning.keywords import MAX_BRANCHES, MAX_DEPENDENCIES
from decodekit.constraints.json_schema.meaning.semantics import MAX_IN_PLACE
from decodekit.constraints.json_schema.values.shape import MAX_ALTERNATIVES


def may_meet_a_limit(library: Library, max_patterns: int, max_contains: int) -> bool:
    """Whether some schema may have too many alternatives, patterns or `contains` conditions for one value.

    Args:
        library: of the schema.
        max_patterns, max_contains: that one value may meet.
    """
    if not any(_is_combining(location) for location in library.locations):
        return False
    return _Estimate(library, max_patterns, max_contains).is_large()


_MANY: Final = 1e9
_COMBINING: Final = frozenset({
    "anyOf", "oneOf", "allOf", "not", "if", "dependencies", "dependentSchemas", "dependentRequired",
    "patternProperties", "contains", "enum", "$ref",
})  # fmt: skip


def _is_combining(location: Location) -> bool:
    return not _COMBINING.isdisjoint(location.keywords())


class _Estimate:
    """The estimates of all schemas of a library."""

    def __init__(self, library: Library, max_patterns: int, max_contains: int) -> None:
        self._library = library
        self._max_patterns = max_patterns
        self._max_contains = max_contains
        self._known: dict[tuple[Location, bool], float] = {}
        self._gathered: dict[Location, tuple[int, int]] = {}
        self._depth = 0

    def is_large(self) -> bool:
        """Whether one of them comes near a limit."""
        for location in self._library.locations:
            if not isinstance(location.value, dict) or not _is_combining(location):
                continue
            num_patterns, num_contains = self._gather(location)
            if (
                self._ways(location, is_asserted=True) > MAX_ALTERNATIVES // 8
                or num_patterns > self._max_patterns
                or num_contains > self._max_contains
                or len(location.value.get("oneOf", ())) > MAX_BRANCHES // 8
                or len(location.value.get("dependencies", ())) > MAX_DEPENDENCIES // 8
            ):
                return True
        return False

    def _ways(self, location: Location, *, is_asserted: bool) -> float:
        """About how many alternatives a schema has, or its denial."""
        key = location, is_asserted
        known = self._known.get(key)
        if known is None and self._depth > MAX_IN_PLACE // 2:
            return _MANY
        if known is None:
            self._known[key] = 1  # of a schema that refers to itself
            self._depth += 1
            found = [self._ways_of(location, name, value, is_asserted) for name, value in location.assertions()]
            self._depth -= 1
            known = math.prod(found) if is_asserted else sum(found)
            known = self._known[key] = min(known, _MANY)
        return known

    def _ways_of(self, location: Location, name: str, value: object, is_asserted: bool) -> float:
        if name in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            branches = [self._library.child(location, name, index) for index in range(len(value))]
            ways = [self._ways(branch, is_asserted=is_asserted) for branch in branches]
            if name == "oneOf":
                # Each branch without the others.
                denied = [self._ways(branch, is_asserted=False) for branch in branches]
                return sum(ways) + (max(denied) ** (len(denied) - 1) if is_asserted and denied else len(denied) ** 2)
            return sum(ways) if (name == "anyOf") == is_asserted else math.prod(ways)
        if name == "not":
            return self._ways(self._library.child(location, name), is_asserted=not is_asserted)
        if name == "$ref" and isinstance(value, str):
            return self._ways(self._library.resolve(location, value), is_asserted=is_asserted)
        if name == "if":
            condition = self._library.child(location, "if")
            return self._ways(condition, is_asserted=True) + self._ways(condition, is_asserted=False)
        if not isinstance(value, dict | list):
            return 1
        if name in ("dependencies", "dependentSchemas", "dependentRequired"):
            return 2.0 ** min(len(value), 30)
        if is_asserted:
            return sum(isinstance(entry, dict | list) for entry in value) or 1 if name == "enum" else 1
        return max(1, len(value)) if name in ("properties", "patternProperties", "required", "prefixItems") else 1

    def _gather(self, location: Location) -> tuple[int, int]:
        """The patterns and the `contains` conditions that one object or array may meet: two counts of at most 1,000."""
        known = self._gathered.get(location)
        if known is None and self._depth > MAX_IN_PLACE // 2:
            return 0, 0
        if known is None:
            self._gathered[location] = 0, 0
            self._depth += 1
            value = location.keywords().get("patternProperties")
            counts = [(len(value) if isinstance(value, dict) else 0, int("contains" in location.keywords()))]
            counts += [self._gather(place) for place in self._in_place(location)]
            self._depth -= 1
            known = sum(count for count, _ in counts), sum(count for _, count in counts)
            known = self._gathered[location] = min(known[0], 1_000), min(known[1], 1_000)
        return known

    def _in_place(self, location: Location) -> Iterator[Location]:
        """The schemas that speak of the same value."""
        for name, value in location.assertions():
            if name in ("anyOf", "oneOf", "allOf"):
                yield from (self._library.child(location, name, index) for index in range(len(value)))
            elif name in ("not", "if", "then", "else"):
                yield self._library.child(location, name)
            elif name == "$ref":
                yield self._library.resolve(location, value)
