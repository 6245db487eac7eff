"""Whether a whole value is valid, read from the specification: the schema is evaluated keyword by keyword.

The plain counterpart of `semantics`: a value is given, so nothing has to be known about all values. It shares the
references, patterns and formats with the mask, so that both judge by the same schema.
Source: JSON Schema Core and Validation, drafts 4 to 2020-12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, TypeAlias, cast

from decodekit.constraints.json_schema.document.drafts import Draft, JsonValue, is_number, keyword
from decodekit.constraints.json_schema.document.loader import Location, escape
from decodekit.constraints.json_schema.meaning.keywords import UNEVALUATED, is_unique_anyway
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import formats, text
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.json_schema.values.numbers import exact


@dataclass(eq=False, slots=True)
class Seen:
    """The properties and items of one value that a schema has evaluated."""

    keys: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)

    def add(self, other: Seen | None) -> bool:
        """Take in what a schema in place has evaluated; whether it holds."""
        if other is None:
            return False
        self.keys |= other.keys
        self.items |= other.items
        return True


@dataclass(frozen=True)
class Repetition:
    """Two equal items where a schema asks for different ones.

    Attributes:
        array: JSON Pointer of the array in the value. `first`, `second`: the items.
        keep: number of bytes up to the end of the item before the second one.
        keyword: JSON Pointer of the `uniqueItems`.
    """

    array: str
    first: int
    second: int
    keep: int
    keyword: str


class Judge:
    """Judges one value.

    Args:
        semantics: the schema's patterns, references and treatment of formats.

    Attributes:
        repetitions: what was found against an asserted `uniqueItems`.
        refused_formats: strings that are not of a format that was asked about, each with the place of the keyword.
    """

    def __init__(self, semantics: Semantics) -> None:
        self.semantics = semantics
        self.library = semantics.library
        self.repetitions: list[Repetition] = []
        self.refused_formats: list[tuple[Instance, str]] = []
        self.path: list[str | int] = []
        self._depth_denied = 0

    def evaluate(self, location: Location, value: Instance) -> Seen | None:
        """What a schema evaluates of a value; None if the value is not valid.

        Goes on after a keyword that fails, so that all repetitions are found.
        """
        if isinstance(location.value, bool):
            return Seen() if location.value else None
        seen, holds = Seen(), True
        keywords = location.keywords()
        for name in sorted(keywords, key=UNEVALUATED.__contains__):  # those last, else in their order
            known, rule = keyword(name, location.draft), RULES.get(name)
            if known is not None and known.is_assertion and rule is not None:
                holds &= rule(self, location, value, keywords[name], seen)
        return seen if holds else None

    def below(self, location: Location, *tokens: str | int, value: Instance) -> Seen | None:
        """`evaluate` for a sub-schema."""
        return self.evaluate(self.library.child(location, *tokens), value)

    def inside(self, location: Location, *tokens: str | int, value: Instance, at: str | int) -> bool:
        """Whether the property or item `at` satisfies a sub-schema."""
        self.path.append(at)
        try:
            return self.below(location, *tokens, value=value) is not None
        finally:
            self.path.pop()

    def question(self, ask: Callable[[], Seen | None]) -> Seen | None:
        """An answer that is allowed to be no, so that repetitions on the way do not count."""
        self._depth_denied += 1
        try:
            return ask()
        finally:
            self._depth_denied -= 1

    def report(self, location: Location, value: Instance) -> bool:
        """Whether the items of an array differ; remembers the first that does not."""
        first: dict[int, int] = {}
        for index, item in enumerate(value.items):
            if item.identity in first:
                if not self._depth_denied:
                    pointer = "".join(f"/{escape(str(token))}" for token in self.path)
                    keep = value.items[index - 1].end
                    at = location.at("uniqueItems")
                    self.repetitions.append(Repetition(pointer, first[item.identity], index, keep, at))
                return False
            first[item.identity] = index
        return True


_Rule: TypeAlias = Callable[[Judge, Location, Instance, Any, Seen], bool]


def equals(value: Instance, constant: JsonValue) -> bool:
    """JSON's equality: 1 is 1.0 and is not true."""
    if isinstance(constant, dict):
        return (
            value.kind == "object"
            and value.members.keys() == constant.keys()
            and all(equals(value.members[key], entry) for key, entry in constant.items())
        )
    if isinstance(constant, list):
        return value.kind == "array" and len(value.items) == len(constant) and all(map(equals, value.items, constant))
    if isinstance(constant, bool) or constant is None:
        return value.value is constant
    if is_number(constant):
        return value.kind == "number" and value.value == exact(cast("int | float", constant))
    return value.kind == "string" and value.value == constant


def _type(judge: Judge, location: Location, value: Instance, names: Any, seen: Seen) -> bool:
    names = names if isinstance(names, list) else [names]
    is_integer = value.kind == "number" and (
        value.is_plain if location.draft == Draft.DRAFT4 else cast("Fraction", value.value).denominator == 1
    )
    return value.kind in names or (is_integer and "integer" in names)


def _number(test: Callable[[Fraction, Fraction], bool], name: str = "") -> _Rule:
    """A bound; in draft 4 the boolean keyword `name` beside it makes it strict."""

    def rule(judge: Judge, location: Location, value: Instance, bound: Any, seen: Seen) -> bool:
        if value.kind != "number" or isinstance(bound, bool):
            return True
        number, limit = cast("Fraction", value.value), exact(bound)
        if number == limit and location.draft == Draft.DRAFT4 and name and location.keywords().get(name) is True:
            return False
        return test(number, limit)

    return rule


def _sized(kind: str, test: Callable[[int, int], bool]) -> _Rule:
    def rule(judge: Judge, location: Location, value: Instance, bound: Any, seen: Seen) -> bool:
        return value.kind != kind or test(len(cast("str", value.value)), int(bound))

    return rule


def _pattern(judge: Judge, location: Location, value: Instance, pattern: Any, seen: Seen) -> bool:
    if value.kind != "string":
        return True
    return text.matches(judge.semantics.pattern(location, pattern, "pattern"), cast("str", value.value))


def _format(judge: Judge, location: Location, value: Instance, name: Any, seen: Seen) -> bool:
    at = location.at("format")
    if value.kind != "string" or formats.is_valid(name, cast("str", value.value), judge.semantics.formats, at=at):
        return True
    judge.refused_formats.append((value, at))
    return False


def _properties(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    """`properties`, `patternProperties` and `additionalProperties` together, under each of their names."""
    keywords = location.keywords()
    if value.kind != "object" or below is not keywords[next(name for name in keywords if name in _PROPERTIES)]:
        return True
    holds = True
    declared = cast("dict[str, Any]", keywords.get("properties", {}))
    patterned = {
        pattern: judge.semantics.pattern(location, pattern, "patternProperties")
        for pattern in cast("dict[str, Any]", keywords.get("patternProperties", {}))
    }
    for key, member in value.members.items():
        ways: list[tuple[str, ...]] = [("properties", key)] if key in declared else []
        ways += [("patternProperties", name) for name, node in patterned.items() if text.matches(node, key)]
        if not ways and "additionalProperties" in keywords:
            ways = [("additionalProperties",)]
        for way in ways:
            holds &= judge.inside(location, *way, value=member, at=key)
        if ways:
            seen.keys.add(key)
    return holds


_PROPERTIES: Final = ("properties", "patternProperties", "additionalProperties")


def _property_names(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    if value.kind != "object":
        return True
    names = (Instance("string", key, 0, 0) for key in value.members)
    return all(judge.below(location, "propertyNames", value=name) is not None for name in names)


def _required(judge: Judge, location: Location, value: Instance, names: Any, seen: Seen) -> bool:
    return value.kind != "object" or all(name in value.members for name in names)


def _dependencies(name: str) -> _Rule:
    def rule(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
        holds = True
        for key, needed in below.items() if value.kind == "object" else ():
            if key in value.members:
                if isinstance(needed, list):
                    holds &= all(other in value.members for other in needed)
                else:
                    holds &= seen.add(judge.below(location, name, key, value=value))
        return holds

    return rule


def _items(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    if value.kind != "array":
        return True
    if isinstance(below, list):  # from the first on, by place
        name = "prefixItems" if location.draft >= Draft.DRAFT2020 else "items"
        ways: list[tuple[str | int, ...]] = [(name, index) for index in range(min(len(below), len(value.items)))]
        start = 0
    else:
        start = len(cast("list[Any]", location.keywords().get("prefixItems", ())))
        ways = [("items",)] * (len(value.items) - start)
    return _each(judge, location, value, start, ways, seen)


def _additional_items(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    prefix = location.keywords().get("items")
    if value.kind != "array" or not isinstance(prefix, list):
        return True
    ways: list[tuple[str | int, ...]] = [("additionalItems",)] * (len(value.items) - len(prefix))
    return _each(judge, location, value, len(prefix), ways, seen)


def _each(
    judge: Judge, location: Location, value: Instance, start: int, ways: list[tuple[str | int, ...]], seen: Seen
) -> bool:
    holds = True
    for index, way in enumerate(ways, start):
        holds &= judge.inside(location, *way, value=value.items[index], at=index)
        seen.items.add(index)
    return holds


def _contains(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    if value.kind != "array":
        return True
    keywords, counts = location.keywords(), location.draft >= Draft.DRAFT2019
    found = {
        index
        for index, item in enumerate(value.items)
        if judge.question(lambda item=item: judge.below(location, "contains", value=item)) is not None  # type: ignore[misc]
    }
    if location.draft >= Draft.DRAFT2020:  # an annotation of 2020-12 only
        seen.items |= found
    least = cast("int", keywords.get("minContains", 1)) if counts else 1
    most = cast("int", keywords.get("maxContains", len(found))) if counts else len(found)
    return least <= len(found) <= most


def _unique_items(judge: Judge, location: Location, value: Instance, is_asked: Any, seen: Seen) -> bool:
    if value.kind != "array" or is_unique_anyway(location, judge.semantics.formats):
        return True
    return judge.report(location, value)


def _all_of(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    return _num_holding(judge, location, value, "allOf", len(below), seen) == len(below)


def _any_of(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    return _num_holding(judge, location, value, "anyOf", len(below), seen) > 0


def _one_of(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    return _num_holding(judge, location, value, "oneOf", len(below), seen) == 1


def _num_holding(judge: Judge, location: Location, value: Instance, name: str, count: int, seen: Seen) -> int:
    return sum(seen.add(judge.below(location, name, index, value=value)) for index in range(count))


def _not(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    return judge.question(lambda: judge.below(location, "not", value=value)) is None


def _if(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    holds = seen.add(judge.question(lambda: judge.below(location, "if", value=value)))
    branch = "then" if holds else "else"
    return branch not in location.keywords() or seen.add(judge.below(location, branch, value=value))


def _ref(judge: Judge, location: Location, value: Instance, reference: Any, seen: Seen) -> bool:
    return seen.add(judge.evaluate(judge.library.resolve(location, reference), value))


def _dynamic_ref(judge: Judge, location: Location, value: Instance, reference: Any, seen: Seen) -> bool:
    return seen.add(judge.evaluate(judge.library.resolve_dynamic(location), value))


def _unevaluated_properties(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    holds = True
    for key, member in value.members.items() if value.kind == "object" else ():
        if key not in seen.keys:
            holds &= judge.inside(location, "unevaluatedProperties", value=member, at=key)
            seen.keys.add(key)
    return holds


def _unevaluated_items(judge: Judge, location: Location, value: Instance, below: Any, seen: Seen) -> bool:
    holds = True
    for index, item in enumerate(value.items) if value.kind == "array" else ():
        if index not in seen.items:
            holds &= judge.inside(location, "unevaluatedItems", value=item, at=index)
            seen.items.add(index)
    return holds


RULES: Final[dict[str, _Rule]] = {
    "type": _type,
    "enum": lambda judge, location, value, entries, seen: any(equals(value, entry) for entry in entries),
    "const": lambda judge, location, value, entry, seen: equals(value, entry),
    "minimum": _number(lambda number, bound: number >= bound, "exclusiveMinimum"),
    "maximum": _number(lambda number, bound: number <= bound, "exclusiveMaximum"),
    "exclusiveMinimum": _number(lambda number, bound: number > bound),
    "exclusiveMaximum": _number(lambda number, bound: number < bound),
    "multipleOf": _number(lambda number, step: (number / step).denominator == 1),
    "minLength": _sized("string", lambda size, bound: size >= bound),
    "maxLength": _sized("string", lambda size, bound: size <= bound),
    "pattern": _pattern,
    "format": _format,
    **dict.fromkeys(("prefixItems", "items"), _items),
    "additionalItems": _additional_items,
    "minItems": _sized("array", lambda size, bound: size >= bound),
    "maxItems": _sized("array", lambda size, bound: size <= bound),
    "contains": _contains,
    "uniqueItems": _unique_items,
    **dict.fromkeys(_PROPERTIES, _properties),
    "propertyNames": _property_names,
    "required": _required,
    "minProperties": _sized("object", lambda size, bound: size >= bound),
    "maxProperties": _sized("object", lambda size, bound: size <= bound),
    "dependencies": _dependencies("dependencies"),
    "dependentRequired": _dependencies("dependentRequired"),
    "dependentSchemas": _dependencies("dependentSchemas"),
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _dynamic_ref,
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
}
"""What each keyword asks of a value; the same keywords as `meanings.MEANINGS`."""
