"""The judgement of a whole value by a schema, keyword by keyword, as the specification has it.

The plain counterpart of `semantics`: a value is given, so nothing has to be known about all values. References,
patterns and formats are those of the mask, so that both judge by the same schema.

A rule sees one value at one schema (`Evaluation`) and answers whether the keyword holds; what it evaluated of the value
it adds there. A rule that asks sub-schemas is a generator, which yields the questions and is sent the answers:

    allOf   yields (#/allOf/0, value)   is sent what it evaluated, or None   yields (#/allOf/1, value)   ...

It yields numbers of steps as well, where it has worked by itself. The rules that wait for answers are a stack, so
nesting costs no recursion, and the judgement is `Work` that can be left off.

Source: JSON Schema Core and Validation, drafts 4 to 2020-12.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.json_schema.document.drafts import (
    REFERENCES,
    JsonValue,
    SchemaDraft,
    is_assertion,
    is_number,
)
from decodekit.constraints.json_schema.document.loader import Location
from decodekit.constraints.json_schema.meaning.keywords import UNEVALUATED, is_unique_anyway
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import string_formats as formats
from decodekit.constraints.json_schema.values import numbers
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.json_schema.values.numbers import written
from decodekit.constraints.work_budget import Work
from decodekit.errors import ResourceLimitError
from decodekit.records.strict_json import pointer_of

_Answer = TypeVar("_Answer")
Question: TypeAlias = "tuple[Location, Instance]"
Asking: TypeAlias = "Generator[Question | int, Evaluated | None, _Answer]"
"""Yields questions, each of which is answered, and steps, as `Work` does."""


class Evaluated(NamedTuple):
    """The properties, by key, and the items, by index, that a schema has evaluated of a value that is valid by it."""

    keys: AbstractSet[str]
    items: AbstractSet[int]


NOTHING: Final = Evaluated(frozenset(), frozenset())
_PART: Final = 512
"""So many steps are made before the judgement can be left off."""
_COST: Final = 5
"""The steps of a question, and those of its answer, whatever the schema says."""


class SchemaJudge:
    """Judges one value. A value is evaluated once by a schema, though many references may lead there.

    Args:
        is_remembered: whether instances remember what is known of them from one judgement to the next; of what was
            known before, no reason is kept.

    Attributes:
        path: keys and indices that lead to the value being judged.
        num_open_questions: subschemas being evaluated whose failure is not an error.
        num_alternatives: as these, with the branches of an anyOf or oneOf.
    """

    def __init__(self, semantics: Semantics, path: Iterable[str | int] = (), *, is_remembered: bool = False) -> None:
        self.semantics = semantics
        self._is_remembered = is_remembered
        self.path: list[str | int] = list(path)
        self.num_open_questions = 0
        self.num_alternatives = 0
        self._found: dict[str, Refusal] = {}
        self._known: dict[int, tuple[Instance, dict[Any, Evaluated | None]]] = {}

    def refusal(self, value: Instance) -> Refusal:
        """Why an evaluated value is not valid: the first of what it repeats, else of its formats, else of all."""
        for kind in ("repetition", "format", "value"):
            if kind in self._found:
                return self._found[kind]
        pointer = pointer_of(self.path)
        return Refusal(value.start, pointer or "the whole value", f"{pointer or 'the value'} is not valid")

    def refuse(self, kind: str, keep: int, reason: Callable[[], Refusal]) -> None:
        """Keep why a value is not valid, of each kind what comes first in the text."""
        if kind not in self._found or keep < self._found[kind].keep:
            self._found[kind] = reason()

    def judging(self, location: Location, value: Instance) -> Work[Evaluated | None]:
        """The properties and items that a schema evaluates of a value; None if the value is not valid.

        Goes on after a keyword that fails, so that all repetitions are found.

        Raises:
            ResourceLimitError: a schema refers to itself for the same value, or a pattern takes too many steps.
        """
        stack: list[tuple[dict[Any, Evaluated | None], Any, Asking[Evaluated | None]]] = []
        open_questions = set[Any]()
        question: Question | None = (location, value)
        answer: Evaluated | None = None
        num_steps = 0
        while True:
            if question is not None:
                (location, value), question = question, None
                known, key = self._known_of(value), (location, self.num_open_questions > 0, self.num_alternatives > 0)
                num_steps += _COST
                answer = known.get(key)
                if answer is None and key not in known:
                    mark = id(value), key
                    if mark in open_questions:
                        raise ResourceLimitError("a schema refers to itself for the same value", at=location.pointer)
                    open_questions.add(mark)
                    stack.append((known, mark, self._evaluate(location, value)))
            if not stack:
                break
            known, mark, evaluation = stack[-1]
            try:
                asked = evaluation.send(answer)
            except StopIteration as end:
                stack.pop()
                open_questions.remove(mark)
                answer = known[mark[1]] = end.value
                num_steps += _COST
            else:
                answer = None
                if isinstance(asked, int):
                    num_steps += asked
                else:
                    question = asked
            if num_steps >= _PART:
                yield num_steps
                num_steps = 0
        yield num_steps
        return answer

    def _known_of(self, value: Instance) -> dict[Any, Evaluated | None]:
        """The evaluations of a value so far, by schema and by whether failures count as errors; writable."""
        if self._is_remembered:
            value.known = {} if value.known is None else value.known
            return value.known
        found = self._known.get(id(value))
        if found is None:  # kept with the value, whose id would be given to another one
            found = self._known[id(value)] = value, {}
        return found[1]

    def _evaluate(self, location: Location, value: Instance) -> Asking[Evaluated | None]:
        evaluation, holds = Evaluation(self, location, value), True
        if isinstance(location.value, bool):
            return NOTHING if location.value else None
        keywords = location.keywords()
        yield len(keywords)
        for name in sorted(keywords, key=UNEVALUATED.__contains__):  # those last, else in their order
            kind, rule = RULES.get(name, ("", None))
            if rule is not None and kind in ("", value.kind) and is_assertion(name, location.draft):
                is_kept = rule(evaluation, keywords[name])
                if not isinstance(is_kept, bool):
                    is_kept = yield from _placed(is_kept, location.at(name))
                holds &= is_kept
                if not is_kept and not self.num_open_questions and not self.num_alternatives:
                    self._refuse(location, name, value)
        return evaluation.result() if holds else None

    def _refuse(self, location: Location, name: str, value: Instance) -> None:
        """Keep that a value is not valid by a keyword; all of it but its last byte, mostly a bracket, can stay."""

        def reason() -> Refusal:
            pointer = pointer_of(self.path)
            message = f"{pointer or 'the value'} is not valid by {location.at(name)}"
            return Refusal(value.end - 1, pointer, message)

        self.refuse("value", value.end - 1, reason)


def _placed(asking: Asking[bool], at: str) -> Asking[bool]:
    """A rule whose errors say which keyword it is."""
    try:
        return (yield from asking)
    except ResourceLimitError as error:
        if error.at is not None:
            raise
        raise ResourceLimitError(error.cause, at=at, hint=error.hint) from error


@dataclass(eq=False, slots=True)
class Evaluation:
    """One value at one schema, with the properties and items that were evaluated so far."""

    judge: SchemaJudge
    location: Location
    value: Instance
    keys: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)

    def result(self) -> Evaluated:
        """The properties and items that were evaluated so far."""
        return Evaluated(self.keys, self.items) if self.keys or self.items else NOTHING

    def below(self, *tokens: str | int, value: Instance | None = None) -> Asking[Evaluated | None]:
        """Evaluate a sub-schema, for the same value unless another is given."""
        location = self.judge.semantics.library.child(self.location, *tokens)
        return (yield location, self.value if value is None else value)

    def take(self, other: Evaluated | None) -> bool:
        """Take in what a schema in place has evaluated; whether it holds."""
        if other is None:
            return False
        self.keys |= other.keys
        self.items |= other.items
        return True

    def taking(self, *tokens: str | int) -> Asking[bool]:
        """Evaluate a sub-schema for the same value, and take in what it evaluated; whether it holds."""
        other = yield from self.below(*tokens)
        if other is not None and (other.keys or other.items):
            yield (len(other.keys) + len(other.items)) // 16
        return self.take(other)

    def question(self, *tokens: str | int, value: Instance | None = None) -> Asking[Evaluated | None]:
        """Evaluate a sub-schema whose failure is not an error: its repetitions are not reported."""
        self.judge.num_open_questions += 1
        found = yield from self.below(*tokens, value=value)
        self.judge.num_open_questions -= 1
        return found

    def inside(self, *tokens: str | int, value: Instance, at: str | int) -> Asking[bool]:
        """Whether the property or item `at` satisfies a sub-schema."""
        self.judge.path.append(at)
        found = yield from self.below(*tokens, value=value)
        self.judge.path.pop()
        return found is not None


_Rule: TypeAlias = "Callable[[Evaluation, Any], bool | Asking[bool]]"
"""(a value at a schema, value of the keyword) -> whether the keyword holds."""


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
        value.is_plain if at.location.draft == SchemaDraft.DRAFT4 else numbers.is_integer(_value(value))
    )
    return value.kind in names or (is_integer and "integer" in names)


def _value(value: Instance) -> Any:
    """As it is, where a rule knows the kind."""
    return value.value


def _number(test: Callable[[Any, Any], bool], strict: str, at: Evaluation, bound: Any) -> bool:
    """A bound; in draft 4 the boolean keyword `strict` beside it makes it strict."""
    if isinstance(bound, bool):
        return True
    number, limit = _value(at.value), written(bound)
    if number == limit and at.location.draft == SchemaDraft.DRAFT4 and at.location.keywords().get(strict) is True:
        return False
    return test(number, limit)


def _at_least(at: Evaluation, bound: Any) -> bool:
    return len(_value(at.value)) >= int(bound)


def _at_most(at: Evaluation, bound: Any) -> bool:
    return len(_value(at.value)) <= int(bound)


def _pattern(at: Evaluation, pattern: Any) -> Asking[bool]:
    return (yield from at.judge.semantics.search(at.location, pattern, _value(at.value), "pattern"))


def _format(at: Evaluation, name: Any) -> Asking[bool]:
    string, text, place = at.value, _value(at.value), at.location.at("format")
    if (yield from formats.judging(name, text, at.judge.semantics.formats, at=place)):
        return True
    message = f"the string {text[:80]!r:.80} is not of the format at {place}"
    at.judge.refuse("format", string.start + 1, lambda: Refusal(string.start + 1, place, message))
    return False


def _properties(at: Evaluation, below: Any) -> Asking[bool]:
    """`properties`, `patternProperties` and `additionalProperties` together, under the first of their names."""
    keywords = at.location.keywords()
    if below is not keywords[next(name for name in keywords if name in _PROPERTIES)]:
        return True
    holds = True
    for key, member in at.value.members.items():
        ways = yield from ways_of_member(at.judge.semantics, at.location, key)
        for way in ways:
            holds &= yield from at.inside(*way, value=member, at=key)
        if ways:
            at.keys.add(key)
    return holds


def ways_of_member(semantics: Semantics, location: Location, key: str) -> Work[list[tuple[str, ...]]]:
    """Where the sub-schemas stand that `properties` and its kin ask a member to satisfy.

    Raises:
        ResourceLimitError: whether a pattern is found in the key takes too many steps.
    """
    keywords = location.keywords()
    ways: list[tuple[str, ...]] = [("properties", key)] if key in keywords.get("properties", ()) else []
    for pattern in keywords.get("patternProperties", ()):
        is_found = yield from semantics.search(location, pattern, key, "patternProperties")
        ways += [("patternProperties", pattern)] if is_found else []
    if not ways and "additionalProperties" in keywords:
        ways = [("additionalProperties",)]
    return ways


_PROPERTIES: Final = ("properties", "patternProperties", "additionalProperties")


def _property_names(at: Evaluation, below: Any) -> Asking[bool]:
    for key in at.value.members:
        name = Instance("string", key, at.value.start, at.value.end, 0)
        if (yield from at.below("propertyNames", value=name)) is None:
            return False
    return True


def _required(at: Evaluation, names: Any) -> bool:
    return all(name in at.value.members for name in names)


def _dependencies(name: str, at: Evaluation, below: Any) -> Asking[bool]:
    holds = True
    yield len(below) // 8
    for key, needed in below.items():
        if key in at.value.members:
            holds &= _required(at, needed) if isinstance(needed, list) else (yield from at.taking(name, key))
    return holds


def way_of_item(location: Location, index: int) -> tuple[str | int, ...] | None:
    """Where the sub-schema stands that `items` and its kin ask an item to satisfy; None if there is none."""
    first, listed, rest = location.of_items()
    if index < len(listed):
        return first, index
    return (rest,) if rest in location.keywords() else None


def _items(name: str, at: Evaluation, below: Any) -> Asking[bool]:
    num_items = len(at.value.items)
    if isinstance(below, list):  # from the first on, by place
        return (yield from _each(at, 0, [(name, index) for index in range(min(len(below), num_items))]))
    _, listed, rest = at.location.of_items()
    if name != rest:  # additionalItems without a list
        return True
    return (yield from _each(at, len(listed), [(name,)] * (num_items - len(listed))))


def _each(at: Evaluation, start: int, ways: Sequence[tuple[str | int, ...]]) -> Asking[bool]:
    """Whether the items from one on satisfy one sub-schema each."""
    holds = True
    for index, way in enumerate(ways, start):
        holds &= yield from at.inside(*way, value=at.value.items[index], at=index)
        at.items.add(index)
    return holds


def _contains(at: Evaluation, below: Any) -> Asking[bool]:
    keywords, counts = at.location.keywords(), at.location.draft >= SchemaDraft.DRAFT2019
    found = set[int]()
    for index, item in enumerate(at.value.items):
        if (yield from at.question("contains", value=item)) is not None:
            found.add(index)
    if at.location.draft >= SchemaDraft.DRAFT2020:  # an annotation of 2020-12 only
        at.items |= found
    least, most = keywords.get("minContains", 1), keywords.get("maxContains", len(found))
    return bool(least <= len(found) <= most) if counts else len(found) >= 1


def repetition(items: Sequence[Instance], path: Sequence[str | int], first: int, place: str) -> Refusal:
    """That the item at a path equals the one with the number `first`; what can stay ends with the item before it."""
    index = int(path[-1])
    return Refusal(items[index - 1].end, pointer_of(path), f"item {index} equals item {first}, against {place}")


def _unique_items(at: Evaluation, is_asked: Any) -> Asking[bool]:
    """Whether the items of an array differ; the first that does not is reported."""
    if is_unique_anyway(at.location, at.judge.semantics.formats):
        return True
    items, first = at.value.items, dict[int, int]()
    yield len(items) // 8
    for index, item in enumerate(items):
        number = first.setdefault(item.identity, index)
        if number != index:
            if not at.judge.num_open_questions:
                path, place = (*at.judge.path, index), at.location.at("uniqueItems")
                reason = partial(repetition, items, path, number, place)
                at.judge.refuse("repetition", items[index - 1].end, reason)
            return False
    return True


def _holding(name: str, test: Callable[[int, int], bool], at: Evaluation, below: Any) -> Asking[bool]:
    """A rule about how many of some sub-schemas hold: given that number, and how many there are."""
    is_choice, num_holding = name != "allOf" and len(below) > 1, 0
    for index in range(len(below)):
        at.judge.num_alternatives += is_choice
        holds = yield from at.taking(name, index)
        at.judge.num_alternatives -= is_choice
        num_holding += holds
    return test(num_holding, len(below))


def _not(at: Evaluation, below: Any) -> Asking[bool]:
    return (yield from at.question("not")) is None


def _if(at: Evaluation, below: Any) -> Asking[bool]:
    branch = "then" if at.take((yield from at.question("if"))) else "else"
    return branch not in at.location.keywords() or (yield from at.taking(branch))


def _reference(name: str, at: Evaluation, reference: Any) -> Asking[bool]:
    library = at.judge.semantics.library
    target = library.follow(at.location) if name == "$ref" else library.target(at.location, name)
    return at.take((yield target, at.value))


def _unevaluated(name: str, at: Evaluation, below: Any) -> Asking[bool]:
    is_array, holds = name == "unevaluatedItems", True
    members: Iterable[tuple[Any, Instance]] = enumerate(at.value.items) if is_array else at.value.members.items()
    evaluated: set[Any] = at.items if is_array else at.keys
    for key, member in members:
        if key not in evaluated:
            holds &= yield from at.inside(name, value=member, at=key)
            evaluated.add(key)
    return holds


def _enum(at: Evaluation, entries: Any) -> Asking[bool]:
    size = (at.value.end - at.value.start) // 16
    for entry in entries:
        yield 2 + (4 + size if isinstance(entry, dict | list) else 0)
        if equals(at.value, entry):
            return True
    return False


def _by_name(rule: Callable[..., Any], *names: str) -> dict[str, _Rule]:
    return {name: partial(rule, name) for name in names}


_BY_KIND: Final[dict[str, dict[str, _Rule]]] = {
    "number": {
        "minimum": partial(_number, operator.ge, "exclusiveMinimum"),
        "maximum": partial(_number, operator.le, "exclusiveMaximum"),
        "exclusiveMinimum": partial(_number, operator.gt, ""),
        "exclusiveMaximum": partial(_number, operator.lt, ""),
        "multipleOf": partial(_number, numbers.is_multiple, ""),
    },
    "string": {"minLength": _at_least, "maxLength": _at_most, "pattern": _pattern, "format": _format},
    "array": {
        **_by_name(_items, "prefixItems", "items", "additionalItems"),
        "minItems": _at_least,
        "maxItems": _at_most,
        "contains": _contains,
        "uniqueItems": _unique_items,
        **_by_name(_unevaluated, "unevaluatedItems"),
    },
    "object": {
        **dict.fromkeys(_PROPERTIES, _properties),
        "propertyNames": _property_names,
        "required": _required,
        "minProperties": _at_least,
        "maxProperties": _at_most,
        **_by_name(_dependencies, "dependencies", "dependentRequired", "dependentSchemas"),
        **_by_name(_unevaluated, "unevaluatedProperties"),
    },
    "": {
        "type": _type,
        "enum": _enum,
        "const": lambda at, entry: equals(at.value, entry),
        "allOf": partial(_holding, "allOf", operator.eq),
        "anyOf": partial(_holding, "anyOf", lambda num_holding, _: num_holding > 0),
        "oneOf": partial(_holding, "oneOf", lambda num_holding, _: num_holding == 1),
        "not": _not,
        "if": _if,
        **_by_name(_reference, *REFERENCES),
    },
}
RULES: Final = {name: (kind, rule) for kind, rules in _BY_KIND.items() for name, rule in rules.items()}
"""For each keyword, the kind of values that it speaks of, or "" for all, and its rule; the same as `MEANINGS`."""
