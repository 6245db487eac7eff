"""The schemas that a value inside of a text has to satisfy, however the text goes on.

    {"properties": {"id": {"pattern": "^(.)\\\\1$"}}, "anyOf": [{"properties": {"id": {"minLength": 4}}}, ...]}

    {"id":"aa"      "id" has to satisfy #/properties/id, so it is judged by that when its quote closes it
    {"id":"aa"}     whether #/anyOf/0/properties/id has to hold is known when the object is whole

The schemas of a value are those of the value around it, one step further along keywords that always hold. The mask
enforces most of them. A value is judged by itself where it may not: beside what was left to the guard, and around an
anyOf, a not and the like in which something was left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from decodekit.constraints.json_schema.document.drafts import REFERENCES
from decodekit.constraints.json_schema.document.loader import Location
from decodekit.constraints.json_schema.guard.guard_rules import way_of_item, ways_of_member
from decodekit.constraints.json_schema.meaning.keywords import is_unique_anyway
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings.patterns import MAX_PATTERNS
from decodekit.constraints.json_schema.strings.string_formats import GUARDED
from decodekit.constraints.work_budget import done
from decodekit.errors import ResourceLimitError

MAX_KEYS: Final = 1024
"""A place remembers so many members' places; beyond, it begins anew."""
MAX_VERDICTS: Final = 128
"""A place remembers so many verdicts, of texts of at most `MAX_TEXT` bytes."""
MAX_TEXT: Final = 1024
MAX_COMPARED: Final = 10_000
"""A key is tried on the patterns of a place if so many characters are compared at most."""
MAX_PLACES: Final = 16_384
"""So many places are known at most; beyond, they are made anew."""
_ALONE: Final = frozenset({
    "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "contains", "enum",
    "const", "uniqueItems", "dependentRequired", "minLength", "maxLength", "propertyNames",
})  # fmt: skip
"""The keywords that can be left to the guard without any effect on what the mask asks of members and items."""


_IN_PLACE: Final = frozenset({"allOf", *REFERENCES})
"""The keywords that ask something of the same value in any case."""
_INSIDE: Final = frozenset({
    "properties", "patternProperties", "additionalProperties", "propertyNames", "prefixItems", "items",
    "additionalItems",
})  # fmt: skip
"""Those that ask something of members, items and keys in any case."""


class Place:
    """A place of values.

    Attributes:
        schemas: what a value there has to satisfy.
        in_place: these, and what they ask of the same value by allOf and references.
        is_weak: whether the mask may be weaker for the value, and for whatever is inside of it.
        is_judged: whether values are judged by themselves.
        is_watched: whether they are, or values inside of them may be.
        is_judged_inside: whether keys, members or items of values may be judged.
        is_empty: whether no value may stand here.
        repeating: the pointers of each `uniqueItems` that the mask does not enforce.
        verdicts: whether values are valid here, by their texts, and in how many steps that was found; the last ones.
    """

    __slots__ = (
        "_items", "_members", "_names", "_places", "in_place", "is_empty", "is_judged", "is_judged_inside",
        "is_watched", "is_weak", "repeating", "schemas", "verdicts",
    )  # fmt: skip

    def __init__(self, places: Places, schemas: tuple[Location, ...], is_weak: bool) -> None:
        self._places = places
        self._members: dict[str, Place] = {}
        self._items: dict[object, Place] = {}
        self._names: Place | None = None
        self.verdicts: dict[bytes, tuple[bool, int]] = {}
        self.schemas = schemas
        self.in_place = places.in_place(schemas)
        self.is_weak = is_weak or any(place.index in places.spreading for place in self.in_place)
        self.is_empty = any(place.value is False for place in self.in_place)
        says_something = self.is_empty or any(True for place in self.in_place for _ in place.assertions())
        self.is_judged = (self.is_weak and says_something) or any(map(places.is_asking, self.in_place))
        self.is_watched = self.is_judged or not places.leading.isdisjoint(self.in_place)
        self.repeating = tuple(
            place.at("uniqueItems")
            for place in self.in_place
            if "uniqueItems" in place.keywords()
            and (place.index in places.repeating or self.is_weak)
            and not is_unique_anyway(place, places.semantics.formats)
        )
        self.is_judged_inside = self.is_watched and (
            self.is_weak or bool(self.repeating) or any(map(places.is_asking_inside, self.in_place))
        )

    @property
    def names(self) -> Place:
        """The place of keys."""
        if self._names is None:
            parts = self._places.semantics.library.parts
            asked = [schema for place in self.in_place for schema in parts(place, ("propertyNames",))]
            self._names = self._places.at(asked, self.is_weak)
        return self._names

    def remember(self, text: bytes, verdict: tuple[bool, int]) -> None:
        """Note whether the value of a text is valid here, and the steps of the judgement."""
        if len(self.verdicts) >= MAX_VERDICTS:
            self.verdicts.clear()
        if len(text) <= MAX_TEXT:
            self.verdicts[text] = verdict

    def member(self, key: str) -> Place:
        """The place of the member with a key."""
        found = self._members.get(key)
        if found is None:
            if len(self._members) >= MAX_KEYS:
                self._members.clear()
            child = self._places.semantics.library.child
            below = [child(place, *way) for place in self.in_place for way in self._ways(place, key)]
            found = self._members[key] = self._places.at(below, self.is_weak)
        return found

    def _ways(self, place: Location, key: str) -> list[tuple[str, ...]]:
        """The paths of the sub-schemas for a member; none where it takes too long to try the key on the patterns."""
        num_patterns = len(place.keywords().get("patternProperties", ()))
        if num_patterns > MAX_PATTERNS or num_patterns * len(key) > MAX_COMPARED:
            return []
        try:
            return done(ways_of_member(self._places.semantics, place, key))
        except ResourceLimitError:
            return []

    def item(self, index: int) -> Place:
        """The place of an item."""
        ways = tuple(way_of_item(place, index) for place in self.in_place)
        found = self._items.get(ways)
        if found is None:
            child = self._places.semantics.library.child
            below = [child(place, *way) for place, way in zip(self.in_place, ways, strict=True) if way is not None]
            found = self._items[ways] = self._places.at(below, self.is_weak)
        return found


class Places:
    """The places of one schema, as far as is known now what is left to its guard.

    Args:
        semantics: the meaning of the schema.
        repeating: the schemas, by index, whose `uniqueItems` the mask does not enforce.

    Attributes:
        asking, spreading: the schemas, by index, with a keyword that is left to the guard; and those where this weakens
            the mask for the members and items as well.
        leading: the schemas that lead to one of them, or to one of `repeating`.
    """

    def __init__(self, semantics: Semantics, repeating: frozenset[int]) -> None:
        self.semantics = semantics
        self.repeating = repeating
        self.num_left = len(semantics.left)
        self.asking, self.spreading = self._left()
        self._known: dict[tuple[frozenset[Location], bool], Place] = {}
        self._asked: dict[Location, bool] = {}
        self.leading = self._leading() if self.asking or repeating else frozenset()
        self.root = self.at([semantics.library.root], False)

    def at(self, schemas: Iterable[Location], is_weak: bool) -> Place:
        """The place of the values that have to satisfy some schemas; `is_weak`: as around it."""
        listed = tuple(dict.fromkeys(schemas))
        key = frozenset(listed), is_weak
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_PLACES:
                self._known.clear()
            found = self._known[key] = Place(self, listed, is_weak)
        return found

    def in_place(self, schemas: Iterable[Location]) -> tuple[Location, ...]:
        """Some schemas, and those that they ask of the same value in any case."""
        found: dict[Location, None] = {}
        stack = list(schemas)
        while stack:
            location = stack.pop()
            if location not in found:
                found[location] = None
                stack += self.semantics.library.parts(location, _IN_PLACE)
        return tuple(found)

    def is_asking(self, location: Location) -> bool:
        """Whether values that have to satisfy a schema are judged: beside what is left, or around it by an anyOf."""
        found = self._asked.get(location)
        if found is None:
            if location in self.leading:
                library = self.semantics.library
                holding = {*library.parts(location, _IN_PLACE), *library.parts(location, _INSIDE)}
                others = (one for one in library.references(location) if one not in holding)
                found = location.index in self.asking or any(one in self.leading for one in others)
            self._asked[location] = found = bool(found)
        return found

    def is_asking_inside(self, location: Location) -> bool:
        """Whether what a schema always asks of members, items and keys is asking."""
        inside = self.semantics.library.parts(location, _INSIDE)
        return location in self.leading and any(map(self.is_asking, self.in_place(inside)))

    def _left(self) -> tuple[frozenset[int], frozenset[int]]:
        """See `asking` and `spreading`. A pointer may be that of a keyword, or of a schema in a keyword."""
        library, left = self.semantics.library, self.semantics.left
        by_pointer = {location.pointer: location.index for location in library.locations} if left else {}
        asking, spreading = set(), set()
        for pointer in left:
            found, name = pointer, ""
            while found:
                if found in by_pointer:
                    asking.add(by_pointer[found])
                    if name not in _ALONE:
                        spreading.add(by_pointer[found])
                    if name:
                        break
                found, _, name = found.rpartition("/")
        if self.semantics.formats == "assert":
            places = (place for place in library.locations if "format" in place.keywords())
            asking |= {place.index for place in places if str(place.keywords()["format"]) in GUARDED}
        return frozenset(asking), frozenset(spreading)

    def _leading(self) -> frozenset[Location]:
        marked, referrers = self.asking | self.repeating, self.semantics.referrers()
        found = {location for location in referrers if location.index in marked}
        stack = list(found)
        while stack:
            for location in referrers[stack.pop()]:
                if location not in found:
                    found.add(location)
                    stack.append(location)
        return frozenset(found)
