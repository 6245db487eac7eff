"""Descriptions in English of the values, keys and brackets that a schema allows; for messages only.

A refused scalar is held against each keyword alone, so that a message can name those that refuse it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final, TypeAlias

from decodekit.constraints.json_schema.document.drafts import JsonValue
from decodekit.constraints.json_schema.document.loader import Location, show
from decodekit.constraints.json_schema.document.pointers import innermost, pointer
from decodekit.constraints.json_schema.frames.arrays import SOME_TEXT
from decodekit.constraints.json_schema.frames.schema_frames import ArrayFrame, ObjectFrame, SchemaNetwork, ValueFrame
from decodekit.constraints.json_schema.meaning.keywords import MEANINGS, OF_SCALARS
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import string_formats as formats
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.values import numbers, scalars
from decodekit.constraints.json_schema.values.numbers import NumberSpec
from decodekit.constraints.json_schema.values.shape import EVERYTHING, WORDS, Goal, Sense, Shape, conjunction
from decodekit.constraints.json_schema.values.short_numbers import MAX_BYTES
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.phrases import listed
from decodekit.constraints.network import Call, Frame, Lexeme, Move, Read
from decodekit.errors import ConstraintError

_MAX_FACTS: Final = 200
_MAX_BRANCHES: Final = 6
_LEXEME: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|-?[0-9][0-9.eE+-]*|[a-z]+', re.DOTALL)
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?([eE][+-]?[0-9]+)")
_Facts: TypeAlias = list[tuple[Location, str, Any]]
_OF_SCALARS: Final = OF_SCALARS | {"type", "enum", "const", "anyOf", "oneOf", "not", "if"}


def expected(frame: Frame, move: Move) -> tuple[str, ...]:
    """Descriptions of what a move of a frame begins; see `Frame.expected`."""
    if isinstance(frame, ValueFrame):
        return value_words(frame.network, frame.goal)
    if isinstance(frame, ObjectFrame):  # the keys, but for the comma before one
        is_key = frame.place not in ("open", "member") or (frame.place == "open" and isinstance(move, Call))
        return _key_words(frame) if is_key else ()
    assert isinstance(frame, ArrayFrame)  # the items that are told apart here; others say it themselves
    is_told = isinstance(move, Read) or (isinstance(move, Call) and isinstance(move.callee, Lexeme))
    return _item_words(frame) if is_told and frame.place not in ("open", "item") else ()


def objection(frame: Frame, data: bytes, start: int, stop: int) -> str | None:
    """Why a text cannot go on; see `Frame.objection`."""
    if isinstance(frame, ValueFrame):
        return _value_objection(frame.network, frame.goal, data, start, stop)
    if isinstance(frame, ObjectFrame):
        return _object_objection(frame, data, start, stop)
    assert isinstance(frame, ArrayFrame)
    return _array_objection(frame, data, start, stop)


# -- values


def value_words(network: SchemaNetwork, goal: Goal) -> tuple[str, ...]:
    """Descriptions of the values of a goal: ``("an integer from 0 to 150", "null")``; none where a limit is met."""
    shape = _shape(network, goal)
    if shape is None:
        return ()
    facts = list(_facts(network.semantics, goal))
    return (
        _enumerated(network, facts, shape)
        or _branch_words(network, goal, facts)
        or _words_of_shape(shape, facts, network.semantics)
    )


def _shape(network: SchemaNetwork, goal: Goal) -> Shape | None:
    try:
        return network.semantics.shape(goal)
    except ConstraintError:
        return None


def _value_objection(network: SchemaNetwork, goal: Goal, data: bytes, start: int, stop: int) -> str | None:
    """The need of a value and the keywords that refuse it; None if it is not JSON, or if no keyword alone does."""
    objection = _exponent_objection(network, goal, data, start, stop)
    if objection := objection or _form_objection(network, goal, data, start, stop):
        return objection
    lexeme = data[start : stop + 1]
    is_begun = stop > start
    if lexeme and not _is_alive(_language(EVERYTHING), lexeme) and not is_begun:
        return None
    pointers = list(dict.fromkeys(_refusing(network.semantics, goal, lexeme, stop - start)))
    if not pointers and (found := _LEXEME.match(data, start)) is not None and found.end() > stop:
        # No keyword alone refuses its beginning; perhaps one refuses all of it, as it is written.
        pointers = list(dict.fromkeys(_refusing(network.semantics, goal, found[0], len(found[0]))))
    if not pointers:
        return None
    needs = listed(value_words(network, goal))
    return f"{pointer(data[:start]) or 'the value'} needs {needs} ({', '.join(pointers[:3])})" if needs else None


def _exponent_objection(network: SchemaNetwork, goal: Goal, data: bytes, start: int, stop: int) -> str | None:
    """Why a number is refused because of its exponent, though its value may satisfy all keywords."""
    found = _NUMBER.match(data, start)
    if found is None or not found.start(1) <= stop < found.end():
        return None
    written = found[0].decode()
    objection = numbers.objection(written)
    if objection is not None:
        return objection
    shape = _shape(network, goal)
    if shape is None or _is_alive(_language(shape), data[start : found.end()]):
        return None
    scalar = scalars.read(found[0])
    # What is read as zero, but written otherwise, either of the keywords may speak against.
    is_nearly_zero = scalar == ("number", Fraction(0)) and re.match(rb"-?[0.]*[1-9]", found[0])
    if is_nearly_zero or not scalars.belongs(scalar, shape):
        return None
    return f"{written} has a condition, and so one digit that is not 0 before its point, or no exponent"


def _form_objection(network: SchemaNetwork, goal: Goal, data: bytes, start: int, stop: int) -> str | None:
    """Why a number is refused because of the way it is written alone."""
    found = _LEXEME.match(data, start)
    if network.numbers == "any" or found is None or not start <= stop < found.end():
        return None
    shape = _shape(network, goal)
    if shape is None or found[0][:1] not in b"-0123456789" or not _is_alive(_language(shape), data[start : stop + 1]):
        return None
    if data[stop] in b".eE":
        if not ir.matches(_language(shape), found[0]):
            return None
        return f'{found[0][:MAX_BYTES].decode()} is an integer, written as digits alone (unless numbers="any")'
    shown = found[0][:MAX_BYTES].decode()
    return f'{shown}… has more than {MAX_BYTES} characters and ends as soon as it may (unless numbers="any")'


def _facts(semantics: Semantics, goal: Goal) -> Iterator[tuple[Location, str, Any]]:
    """The keywords that a value has to satisfy, with those of ``$ref`` and ``allOf`` in their place."""
    agenda = [place for literal in sorted(goal) if not literal & 1 and (place := semantics.location(literal))]
    seen: set[Location] = set()
    for location in agenda:  # grows while it is read
        if location in seen or len(seen) > _MAX_FACTS:
            continue
        seen.add(location)
        agenda += semantics.library.parts(location, ("$ref", "allOf"))
        yield from ((location, *fact) for fact in location.assertions() if fact[0] not in ("$ref", "allOf"))


def _enumerated(network: SchemaNetwork, facts: _Facts, shape: Shape) -> tuple[str, ...]:
    """The values of an enum or a const that the other keywords leave."""
    semantics = network.semantics

    def is_excluded(location: Location, entry: JsonValue, path: tuple[str | int, ...]) -> bool:
        """Whether a constant is plainly none of the scalars of a shape."""
        constant = semantics.shape(frozenset({semantics.constant(location, entry, *path)}))
        return not (constant.objects or constant.arrays) and not semantics.have_common_scalar(shape, constant)

    for location, name, value in facts:
        if name == "const" or (name == "enum" and len(value) == 1):
            return (show(value if name == "const" else value[0]),)
        if name == "enum":
            entries = enumerate(value)
            return tuple(show(entry) for n, entry in entries if not is_excluded(location, entry, ("enum", n)))
    return ()


def _branch_words(network: SchemaNetwork, goal: Goal, facts: _Facts) -> tuple[str, ...]:
    """Those of the branches of an anyOf or oneOf, if each of them says of which type it is."""
    semantics = network.semantics
    for location, name, branches in facts:
        if name not in ("anyOf", "oneOf") or len(branches) > _MAX_BRANCHES:
            continue
        found: list[str] = []
        for index in range(len(branches)):
            below = semantics.below(location, name, index)
            own = list(_facts(semantics, below))
            if not {"type", "enum", "const"} & {fact for _, fact, _ in own}:
                break
            if network.is_inhabited(conjunction(goal, below)):
                found += value_words(network, below)
        else:
            return tuple(dict.fromkeys(found))
    return ()


def _words_of_shape(shape: Shape, facts: _Facts, semantics: Semantics) -> tuple[str, ...]:
    if shape == EVERYTHING:
        return ("any JSON value",)
    words = [word for word in WORDS if word in shape.words]
    if not shape.strings.is_empty:
        words.append(_string_words(facts, semantics))
    words += dict.fromkeys(_number_words(spec) for spec in shape.numbers if not spec.is_empty)
    words += ["an object"] if shape.objects else []
    words += ["an array"] if shape.arrays else []
    return tuple(words)


def _string_words(facts: _Facts, semantics: Semantics) -> str:
    least = max((int(value) for _, name, value in facts if name == "minLength"), default=0)
    most = min((int(value) for _, name, value in facts if name == "maxLength"), default=None)
    words = "a string"
    if size := _range(least, most):
        words += f" of {size} character{'' if most == 1 or (most is None and least == 1) else 's'}"
    for location, name, value in facts:
        if name == "pattern":
            words += f" that matches {value}"
        elif name == "format" and formats.language(value, semantics.formats, at=location.at(name)) is not None:
            words += f" in the format {value}"
    return words


def _range(least: int, most: int | None) -> str:
    if most is None:
        return f"at least {least}" if least else ""
    if least == most:
        return str(least)
    return f"{least} to {most}" if least else f"at most {most}"


def _number_words(spec: NumberSpec) -> str:
    if spec.values is not None:
        return listed([_decimal(value) for value in sorted(spec.values)])
    words = "an integer" if spec.is_integer or spec.is_plain else "a number"
    low = None if spec.low is None else _decimal(spec.low)
    high = None if spec.high is None else _decimal(spec.high)
    if low is not None and high is not None and not spec.low_strict and not spec.high_strict:
        words += f" from {low} to {high}"
    else:
        if low is not None:
            words += f" above {low}" if spec.low_strict else f" of at least {low}"
        if high is not None:
            words += f"{' and' if low is not None else ''} {'below' if spec.high_strict else 'of at most'} {high}"
    return words if spec.step is None else f"{words}, a multiple of {_decimal(spec.step)}"


def _decimal(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.15g}"


def _language(shape: Shape) -> Node:
    """The scalars of a shape, and the brackets with which its objects and arrays begin."""
    brackets = [ir.literal(b"{")] if shape.objects else []
    brackets += [ir.literal(b"[")] if shape.arrays else []
    return ir.choice(scalars.language(shape), *brackets)


def _is_alive(node: Node, lexeme: bytes) -> bool:
    for byte in lexeme:
        node = node.derivative(byte)
    return not node.is_empty


def _refusing(semantics: Semantics, goal: Goal, lexeme: bytes, num_read: int) -> Iterator[str]:
    """Pointers of the keywords without which the value could go on; `lexeme` ends with what is refused."""

    def refuses(shape: Shape) -> bool:
        node = _language(shape)
        return not (ir.matches(node, lexeme[:num_read]) if is_over else _is_alive(node, lexeme))

    # A number ends where something else begins; a text that ends does so, too.
    is_over = len(lexeme) == num_read or (num_read > 0 and not _is_alive(_language(EVERYTHING), lexeme))
    if is_over and not ir.matches(_language(EVERYTHING), lexeme[:num_read]):
        return
    for literal in sorted(goal):
        location = semantics.location(literal)
        if literal & 1 and location is not None and refuses(semantics.shape_of(literal)):
            yield f"not {location.pointer}"
    for location, name, value in _facts(semantics, goal):
        if name in _OF_SCALARS and refuses(MEANINGS[name](semantics, location, value, Sense.VALID)):
            yield location.at(name)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _container(before: bytes, kind: str) -> str:
    at = innermost(before)
    return f"the {kind} {at}" if at else f"the {kind}"


# -- objects


def _key_words(frame: ObjectFrame) -> tuple[str, ...]:
    plan, state = frame.plan, frame.state
    names = [_quoted(name) for name in _permitted(frame)]
    others = plan.is_free(state) or any(True for _ in plan.others(state))
    words = [f"a key out of {listed(names)}" if len(names) > 1 else f"the key {names[0]}"] if names else []
    if others:
        is_any = plan.is_free(state) or all(region.is_open for region in plan.classes)
        words.append("any other key" if names and is_any else "any key" if is_any else "a key that a pattern allows")
    return tuple(words)


def _object_objection(frame: ObjectFrame, data: bytes, start: int, stop: int) -> str | None:
    if frame.place == "key":
        return _key_objection(frame, data, start, stop)
    plan, state = frame.plan, frame.state
    subject = _container(data[:start], "object")
    refused = data[stop : stop + 1]
    if refused in (b"", b"}") and not plan.can_close(state):
        return f"{subject} still needs {_missing(frame)}"
    if refused == (b'"' if frame.place == "open" else b",") and not plan.has_next(state):
        most = plan.spec.max_properties
        why = f" (maxProperties {most})" if most is not None and state.count >= most else ""
        return f"{subject} can have no {'' if frame.place == 'open' else 'other '}property{why}"
    return None


def _missing(frame: ObjectFrame) -> str:
    plan, state = frame.plan, frame.state
    left = [plan.names[number] for number in plan.required if not state.seen >> number & 1]
    if names := [_quoted(name) for name in left]:
        return f"{', '.join(names)} (required)"
    least = plan.spec.min_properties - state.count
    if least > 0:
        return f"{least} more {'property' if least == 1 else 'properties'} (minProperties {plan.spec.min_properties})"
    return "a property that makes one of its alternatives hold"


def _key_objection(frame: ObjectFrame, data: bytes, start: int, stop: int) -> str | None:
    found = _LEXEME.match(b'"' + data[start:])
    quoted = b"" if found is None else found[0]
    key = text.text_of(quoted[1:-1]) if len(quoted) > 1 and quoted.endswith(b'"') else None
    if key is None or start + len(quoted) - 1 <= stop:
        return None
    plan, state = frame.plan, frame.state
    shown = _quoted(key)
    number = plan.index.get(key)
    if number is None:
        if key in state.used:
            return f"the key {shown} is there already"
        near = difflib.get_close_matches(key, _permitted(frame), n=1)
        meant = f"; did you mean {_quoted(near[0])}?" if near else ""
        first = _required_first(frame)
        if first is not None and plan.classes:
            return f'{first} comes before {shown} (required, order="declared")'
        return f"no key {shown} may stand here{meant}"
    if not plan.is_inhabited(plan.goal(number)):
        return f"no value fits the key {shown}"
    if state.seen >> number & 1:
        return f"the key {shown} is there already" + (', or comes too late (order="declared")' if plan.in_order else "")
    first = _required_first(frame)
    return None if first is None else f'{first} comes before {shown} (required, order="declared")'


def _required_first(frame: ObjectFrame) -> str | None:
    plan, state = frame.plan, frame.state
    left = [number for number in plan.required if plan.in_order and not state.seen >> number & 1]
    return _quoted(plan.names[left[0]]) if left else None


def _permitted(frame: ObjectFrame) -> list[str]:
    """The declared names that may come next, in their order."""
    plan = frame.plan
    flags = plan.permitted(frame.state)
    return [plan.names[number] for number in sorted(n for n, flag in zip(plan.numbers, flags, strict=True) if flag)]


# -- arrays


def _array_objection(frame: ArrayFrame, data: bytes, start: int, stop: int) -> str | None:
    plan, state = frame.plan, frame.state
    subject = _container(data[:start], "array")
    refused = data[stop : stop + 1]
    if frame.place in ("open", "item"):
        if refused in (b"", b"]") and not plan.can_close(state):
            return f"{subject} still needs {_missing_items(frame)}"
        may_go_on = any(True for _ in plan.items(state, frame.network.is_inhabited))
        if refused == b"," and frame.place == "item" and not may_go_on:
            most = plan.spec.max_items
            why = f" (maxItems {most})" if most is not None else ""
            return f"{subject} can have no other item{why}"
        return None
    begin = start - 1 if frame.place == "text" else start
    found = _LEXEME.match(data, begin)
    if found is None or not state.used - {SOME_TEXT}:
        return None
    try:
        scalar = scalars.read(found[0])
    except (ValueError, ArithmeticError):
        return None
    if scalar not in state.used:
        return None
    return f"{subject} has {found[0].decode(errors='replace')} already (uniqueItems)"


def _missing_items(frame: ArrayFrame) -> str:
    plan, state = frame.plan, frame.state
    least = plan.spec.min_items - state.num_items
    if least > 0:
        return f"{least} more item{'' if least == 1 else 's'} (minItems {plan.spec.min_items})"
    for contains, count in zip(plan.spec.contains, state.counted, strict=True):
        if count < contains.min:
            what = listed(value_words(frame.network, contains.goal)) or "what contains asks for"
            return f"an item that is {what} (contains)"
    return "two equal items"


def _item_words(frame: ArrayFrame) -> tuple[str, ...]:
    """Descriptions of the next item, where it may have to differ from those before."""
    items = frame.plan.items(frame.state, frame.network.is_inhabited)
    words = dict.fromkeys(word for item in items for word in value_words(frame.network, item.goal))
    return tuple(f"{word} unlike the items before" for word in words) if frame.state.used else tuple(words)
