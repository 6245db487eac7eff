"""Whether a whole value is valid, read from the specification: the schema is evaluated keyword by keyword.

The plain counterpart of `semantics`: a value is given, so nothing has to be known about all values. It shares the
references, patterns and formats with the mask, so that both judge by the same schema. A rule sees one value at one
schema (`Evaluation`) and answers whether the keyword holds; what it evaluated of the value it adds there.

Source: JSON Schema Core and Validation, drafts 4 to 2020-12.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, TypeAlias, cast

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.json_schema.document.drafts import JsonValue, SchemaDraft, is_assertion, is_number
from decodekit.constraints.json_schema.document.loader import Location, escape
from decodekit.constraints.json_schema.meaning.keywords import UNEVALUATED, is_unique_anyway
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import formats, patterns
from decodekit.constraints.json_schema.strings.patterns import MAX_PATTERNS
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.json_schema.values.numbers import written


class SchemaJudge:
    """Judges one value.

    Args:
        semantics: the schema's patterns, references and treatment of formats.
        path: keys and indices that lead to the value.

    Attributes:
        repetitions: what was found against an asserted `uniqueItems`.
        refused_formats: strings that are not of a format that was asked about.
        path: keys and indices that lead to the value being judged.
        refused_values: what was found against any keyword, but for those of `num_alternatives`.
        num_open_questions: subschemas being evaluated whose failure is not an error.
        num_alternatives: as these, with the branches of an anyOf or oneOf.
    """

    def __init__(self, semantics: Semantics, path: Iterable[str | int] = ()) -> None:
        self.semantics = semantics
        self.repetitions: list[Refusal] = []
        self.refused_formats: list[Refusal] = []
        self.refused_values: list[Refusal] = []
        self.path: list[str | int] = list(path)
        self.num_open_questions = 0
        self.num_alternatives = 0
        self._known: dict[int, tuple[Instance, dict[Any, Evaluation | None]]] = {}

    def evaluate(self, location: Location, value: Instance) -> Evaluation | None:
        """What a schema evaluates of a value; None if the value is not valid.

        Goes on after a keyword that fails, so that all repetitions are found. A value is evaluated once by a schema,
        though many references may lead there.
        """
        known = self.known_of(value)
        key = location, self.num_open_questions > 0, self.num_alternatives > 0
        if key not in known:
            known[key] = self._evaluate(location, value)
        return known[key]

    def known_of(self, value: Instance) -> dict[Any, Evaluation | None]:
        """What is known of a value, by schema and by what counts as an error."""
        found = self._known.get(id(value))
        if found is None:  # kept with the value, whose id would be given to another one
            found = self._known[id(value)] = value, {}
        return found[1]

    def refusal(self, value: Instance) -> Refusal:
        """Why an evaluated value is not valid: the first of what it repeats, else of its formats, else of all."""
        for found in (self.repetitions, self.refused_formats, self.refused_values):
            if found:
                return min(found, key=lambda refusal: refusal.keep)
        pointer = pointer_of(self.path)
        return Refusal(value.start, pointer or "the whole value", f"{pointer or 'the value'} is not valid")

    def _evaluate(self, location: Location, value: Instance) -> Evaluation | None:
        evaluation, holds = Evaluation(self, location, value), True
        if isinstance(location.value, bool):
            return evaluation if location.value else None
        keywords = location.keywords()
        for name in sorted(keywords, key=UNEVALUATED.__contains__):  # those last, else in their order
            kind, rule = RULES.get(name, ("", None))
            if rule is not None and kind in ("", value.kind) and is_assertion(name, location.draft):
                is_kept = rule(evaluation, keywords[name])
                holds &= is_kept
                if not is_kept and not self.num_open_questions and not self.num_alternatives:
                    self._refuse(location.at(name), value)
        return evaluation if holds else None

    def _refuse(self, place: str, value: Instance) -> None:
        """Keep that a value is not valid by a keyword; all of it but its last byte, mostly a bracket, can stay."""
        pointer = pointer_of(self.path)
        self.refused_values.append(Refusal(value.end - 1, pointer, f"{pointer or 'the value'} is not valid by {place}"))


@dataclass(eq=False, slots=True)
class Evaluation:
    """One value at one schema.

    Attributes:
        keys, items: the properties and items that were evaluated so far.
    """

    judge: SchemaJudge
    location: Location
    value: Instance
    keys: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)

    def below(self, *tokens: str | int, value: Instance | None = None) -> Evaluation | None:
        """Evaluate a sub-schema, for the same value unless another is given."""
        location = self.judge.semantics.library.child(self.location, *tokens)
        return self.judge.evaluate(location, self.value if value is None else value)

    def take(self, other: Evaluation | None) -> bool:
        """Take in what a schema in place has evaluated; whether it holds."""
        if other is None:
            return False
        self.keys |= other.keys
        self.items |= other.items
        return True

    def question(self, *tokens: str | int, value: Instance | None = None) -> Evaluation | None:
        """Evaluate a sub-schema whose failure is not an error: its repetitions are not reported."""
        self.judge.num_open_questions += 1
        try:
            return self.below(*tokens, value=value)
        finally:
            self.judge.num_open_questions -= 1

    def inside(self, *tokens: str | int, value: Instance, at: str | int) -> bool:
        """Whether the property or item `at` satisfies a sub-schema."""
        self.judge.path.append(at)
        try:
            return self.below(*tokens, value=value) is not None
        finally:
            self.judge.path.pop()


_Rule: TypeAlias = Callable[[Evaluation, Any], bool]
"""(a value at a schema, value of the keyword) -> whether the keyword holds."""


def pointer_of(path: Iterable[str | int]) -> str:
    """The JSON Pointer that keys and indices make."""
    return "".join(f"/{escape(str(token))}" for token in path)


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
        return value.kind == "number" and value.value == written(cast("int | float", constant))
    return value.kind == "string" and value.value == constant


def _type(at: Evaluation, names: Any) -> bool:
    names, value = names if isinstance(names, list) else [names], at.value
    is_integer = value.kind == "number" and (
        value.is_plain if at.location.draft == SchemaDraft.DRAFT4 else cast("Fraction", value.value).denominator == 1
    )
    return value.kind in names or (is_integer and "integer" in names)


def _number(test: Callable[[Fraction, Fraction], bool], strict: str = "") -> _Rule:
    """A bound; in draft 4 the boolean keyword `strict` beside it makes it strict."""

    def rule(at: Evaluation, bound: Any) -> bool:
        if isinstance(bound, bool):
            return True
        number, limit = cast("Fraction", at.value.value), written(bound)
        if number == limit and at.location.draft == SchemaDraft.DRAFT4 and at.location.keywords().get(strict) is True:
            return False
        return test(number, limit)

    return rule


def _at_least(at: Evaluation, bound: Any) -> bool:
    return len(cast("str", at.value.value)) >= int(bound)


def _at_most(at: Evaluation, bound: Any) -> bool:
    return len(cast("str", at.value.value)) <= int(bound)


def _pattern(at: Evaluation, pattern: Any) -> bool:
    return at.judge.semantics.is_found(at.location, pattern, cast("str", at.value.value), "pattern")


def _format(at: Evaluation, name: Any) -> bool:
    string, place = at.value, at.location.at("format")
    if formats.is_valid(name, cast("str", string.value), at.judge.semantics.formats, at=place):
        return True
    message = f"the string {string.value!r:.80} is not of the format at {place}"
    at.judge.refused_formats.append(Refusal(string.start + 1, place, message))
    return False


def _properties(at: Evaluation, below: Any) -> bool:
    """`properties`, `patternProperties` and `additionalProperties` together, under the first of their names."""
    keywords = at.location.keywords()
    if below is not keywords[next(name for name in keywords if name in _PROPERTIES)]:
        return True
    holds = True
    for key, member in at.value.members.items():
        ways = ways_of_member(at.judge.semantics, at.location, key)
        for way in ways:
            holds &= at.inside(*way, value=member, at=key)
        if ways:
            at.keys.add(key)
    return holds


def ways_of_member(semantics: Semantics, location: Location, key: str) -> list[tuple[str, ...]]:
    """Where the sub-schemas stand that `properties` and its kin ask a member to satisfy.

    Raises:
        ResourceLimitError: whether a pattern is found in the key takes too many steps.
    """
    keywords = location.keywords()
    declared = cast("dict[str, Any]", keywords.get("properties", {}))
    patterned = cast("dict[str, Any]", keywords.get("patternProperties", {}))
    is_found = semantics.is_found if len(patterned) <= MAX_PATTERNS else _is_found_slowly
    ways: list[tuple[str, ...]] = [("properties", key)] if key in declared else []
    found = [pattern for pattern in patterned if is_found(location, pattern, key, "patternProperties")]
    ways += [("patternProperties", pattern) for pattern in found]
    if not ways and "additionalProperties" in keywords:
        ways = [("additionalProperties",)]
    return ways


def _is_found_slowly(location: Location, pattern: str, value: str, *tokens: str) -> bool:
    """Whether one of very many patterns is found in a text: without an automaton, which would take its time."""
    return patterns.is_found(pattern, value)


_PROPERTIES: Final = ("properties", "patternProperties", "additionalProperties")


def _property_names(at: Evaluation, below: Any) -> bool:
    names = (Instance("string", key, at.value.start, at.value.end, 0) for key in at.value.members)
    return all(at.below("propertyNames", value=name) is not None for name in names)


def _required(at: Evaluation, names: Any) -> bool:
    return all(name in at.value.members for name in names)


def _dependencies(name: str) -> _Rule:
    def rule(at: Evaluation, below: Any) -> bool:
        holds = True
        for key, needed in below.items():
            if key in at.value.members:
                holds &= _required(at, needed) if isinstance(needed, list) else at.take(at.below(name, key))
        return holds

    return rule


def way_of_item(location: Location, index: int) -> tuple[str | int, ...] | None:
    """Where the sub-schema stands that `items` and its kin ask an item to satisfy; None if there is none."""
    keywords = location.keywords()
    is_2020 = location.draft >= SchemaDraft.DRAFT2020
    first, rest = ("prefixItems", "items") if is_2020 else ("items", "additionalItems")
    prefix = keywords.get(first)
    if not isinstance(prefix, list):
        return ("items",) if "items" in keywords else None
    if index < len(prefix):
        return first, index
    return (rest,) if rest in keywords else None


def _items(name: str) -> _Rule:
    def rule(at: Evaluation, below: Any) -> bool:
        num_items = len(at.value.items)
        if isinstance(below, list):  # from the first on, by place
            return _each(at, 0, [(name, index) for index in range(min(len(below), num_items))])
        first = at.location.keywords().get("prefixItems" if at.location.draft >= SchemaDraft.DRAFT2020 else "items")
        if name == "additionalItems" and not isinstance(first, list):
            return True
        start = len(first) if isinstance(first, list) else 0
        return _each(at, start, [(name,)] * (num_items - start))

    return rule


def _each(at: Evaluation, start: int, ways: Sequence[tuple[str | int, ...]]) -> bool:
    """Whether the items from one on satisfy one sub-schema each."""
    holds = True
    for index, way in enumerate(ways, start):
        holds &= at.inside(*way, value=at.value.items[index], at=index)
        at.items.add(index)
    return holds


def _contains(at: Evaluation, below: Any) -> bool:
    keywords, counts = at.location.keywords(), at.location.draft >= SchemaDraft.DRAFT2019
    items = enumerate(at.value.items)
    found = {index for index, item in items if at.question("contains", value=item) is not None}
    if at.location.draft >= SchemaDraft.DRAFT2020:  # an annotation of 2020-12 only
        at.items |= found
    least = cast("int", keywords.get("minContains", 1)) if counts else 1
    most = cast("int", keywords.get("maxContains", len(found))) if counts else len(found)
    return least <= len(found) <= most


def repetition(items: Sequence[Instance], path: Sequence[str | int], first: int, place: str) -> Refusal:
    """That the item at a path equals the one with the number `first`; what can stay ends with the item before it."""
    index = cast("int", path[-1])
    message = f"item {index} equals item {first}, against {place}"
    return Refusal(items[index - 1].end, pointer_of(path), message)


def _unique_items(at: Evaluation, is_asked: Any) -> bool:
    """Whether the items of an array differ; the first that does not is reported."""
    if is_unique_anyway(at.location, at.judge.semantics.formats):
        return True
    first: dict[int, int] = {}
    for index, item in enumerate(at.value.items):
        if item.identity in first:
            if not at.judge.num_open_questions:
                path, place = (*at.judge.path, index), at.location.at("uniqueItems")
                at.judge.repetitions.append(repetition(at.value.items, path, first[item.identity], place))
            return False
        first[item.identity] = index
    return True


def _num_holding(at: Evaluation, name: str, count: int) -> int:
    is_choice = name != "allOf" and count > 1
    at.judge.num_alternatives += is_choice
    try:
        return sum(at.take(at.below(name, index)) for index in range(count))
    finally:
        at.judge.num_alternatives -= is_choice


def _if(at: Evaluation, below: Any) -> bool:
    branch = "then" if at.take(at.question("if")) else "else"
    return branch not in at.location.keywords() or at.take(at.below(branch))


def _ref(at: Evaluation, reference: Any) -> bool:
    return at.take(at.judge.evaluate(at.judge.semantics.library.follow(at.location, reference), at.value))


def _dynamic_ref(at: Evaluation, reference: Any) -> bool:
    return at.take(at.judge.evaluate(at.judge.semantics.library.resolve_dynamic(at.location), at.value))


def _unevaluated(at: Evaluation, name: str, members: Iterable[tuple[str | int, Instance]], evaluated: set[Any]) -> bool:
    holds = True
    for key, member in members:
        if key not in evaluated:
            holds &= at.inside(name, value=member, at=key)
            evaluated.add(key)
    return holds


_BY_KIND: Final[dict[str, dict[str, _Rule]]] = {
    "number": {
        "minimum": _number(operator.ge, "exclusiveMinimum"),
        "maximum": _number(operator.le, "exclusiveMaximum"),
        "exclusiveMinimum": _number(operator.gt),
        "exclusiveMaximum": _number(operator.lt),
        "multipleOf": _number(lambda number, step: (number / step).denominator == 1),
    },
    "string": {"minLength": _at_least, "maxLength": _at_most, "pattern": _pattern, "format": _format},
    "array": {
        **{name: _items(name) for name in ("prefixItems", "items", "additionalItems")},
        "minItems": _at_least,
        "maxItems": _at_most,
        "contains": _contains,
        "uniqueItems": _unique_items,
        "unevaluatedItems": lambda at, _: _unevaluated(at, "unevaluatedItems", enumerate(at.value.items), at.items),
    },
    "object": {
        **dict.fromkeys(_PROPERTIES, _properties),
        "propertyNames": _property_names,
        "required": _required,
        "minProperties": _at_least,
        "maxProperties": _at_most,
        **{name: _dependencies(name) for name in ("dependencies", "dependentRequired", "dependentSchemas")},
        "unevaluatedProperties": lambda at, _: _unevaluated(
            at, "unevaluatedProperties", at.value.members.items(), at.keys
        ),
    },
    "": {
        "type": _type,
        "enum": lambda at, entries: any(equals(at.value, entry) for entry in entries),
        "const": lambda at, entry: equals(at.value, entry),
        "allOf": lambda at, below: _num_holding(at, "allOf", len(below)) == len(below),
        "anyOf": lambda at, below: _num_holding(at, "anyOf", len(below)) > 0,
        "oneOf": lambda at, below: _num_holding(at, "oneOf", len(below)) == 1,
        "not": lambda at, below: at.question("not") is None,
        "if": _if,
        "$ref": _ref,
        **dict.fromkeys(("$dynamicRef", "$recursiveRef"), _dynamic_ref),
    },
}
RULES: Final = {name: (kind, rule) for kind, rules in _BY_KIND.items() for name, rule in rules.items()}
"""For each keyword, the kind of values that it speaks of, or "" for all, and its rule; the same as `MEANINGS`."""
