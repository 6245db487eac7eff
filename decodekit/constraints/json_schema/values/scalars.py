"""Scalars by value, whatever their spelling: what `uniqueItems` compares while a text is being read.

Equality is JSON's: ``1`` is ``1.0``, ``1e0`` and not ``true``; ``-0`` is ``0``, and so is ``1e-400``, which is
read as zero; strings are compared after unescaping.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Final, TypeAlias

from decodekit.constraints.json_schema.strings import character_search, text
from decodekit.constraints.json_schema.values import numbers
from decodekit.constraints.json_schema.values.numbers import NumberSpec
from decodekit.constraints.json_schema.values.shape import WORDS, Shape
from decodekit.constraints.json_schema.values.short_numbers import Numbers, in_form
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node

Scalar: TypeAlias = tuple[str, str | Fraction]
"""("string", its text), ("number", its value), ("word", ``null``, ``true`` or ``false``)."""

_MAX_LISTED: Final = 100  # the numbers of a range that are listed one by one
_MAX_WORDS: Final = 10_000  # of a list of words that are listed without those that are gone


def read(lexeme: bytes) -> Scalar:
    """The scalar that a text stands for; whitespace around it is allowed."""
    lexeme = lexeme.strip(b" \t\r\n")
    if lexeme.startswith(b'"'):
        return "string", json.loads(lexeme)
    written = lexeme.decode()
    return ("word", written) if written in WORDS else ("number", numbers.read(written))


def language(shape: Shape, *, without: Iterable[Scalar] = (), form: Numbers = "any") -> Node:
    """The texts of the scalars of a shape but some; of numbers that are compared, the spellings that can be."""
    taken = frozenset(without)
    parts = [ir.literal(word.encode()) for word in WORDS if word in shape.words and ("word", word) not in taken]
    strings = shape.strings
    used = {value for kind, value in taken if kind == "string" and isinstance(value, str)}
    if used and not strings.is_empty:
        is_list = text.first_characters(strings) is not None
        listed = character_search.texts(strings, _MAX_WORDS) if is_list else None
        if listed is None:
            strings = text.without(strings, text.words(list(used)))
        else:  # what is left of a list is a list
            strings = text.words([value for value in listed if value not in used])
    if not strings.is_empty:
        parts.append(text.quoted(strings))
    refused = frozenset(value for kind, value in taken if kind == "number" and isinstance(value, Fraction))
    specs = (_without(spec, refused) for spec in shape.numbers)
    parts += [node for spec in specs if not (node := in_form(spec, form)).is_empty]
    return ir.choice(*parts)


def _without(spec: NumberSpec, refused: frozenset[Fraction]) -> NumberSpec:
    if not refused:
        return spec
    values = numbers.members(spec, _MAX_LISTED + len(refused)) if not spec.languages else spec.values
    if values is not None:  # what is left is a list, and a list needs no complement
        return replace(spec, values=values - refused)
    return spec.meet(NumberSpec(no_values=refused))


def language_of(scalar: Scalar, form: Numbers = "any") -> Node:
    """The texts of one scalar."""
    kind, value = scalar
    if isinstance(value, Fraction):
        return in_form(NumberSpec(values=frozenset({value})), form)
    return text.quoted(text.words([value])) if kind == "string" else ir.literal(value.encode())


def belongs(scalar: Scalar, shape: Shape) -> bool:
    """Whether a scalar is one of a shape's values."""
    kind, value = scalar
    if isinstance(value, Fraction):
        one = NumberSpec(values=frozenset({value}))
        return any(not spec.meet(one).is_empty for spec in shape.numbers)
    return text.matches(shape.strings, value) if kind == "string" else value in shape.words


def members(shape: Shape, limit: int) -> frozenset[Scalar] | None:
    """The scalars of a shape if there are at most `limit`, else None."""
    found: set[Scalar] = {("word", word) for word in shape.words}
    for spec in shape.numbers:
        values = numbers.members(spec, limit)
        if values is None:
            return None
        found.update(("number", value) for value in values)
    if not shape.strings.is_empty:
        texts = character_search.texts(shape.strings, limit)
        if texts is None:
            return None
        found.update(("string", value) for value in texts)
    return frozenset(found) if len(found) <= limit else None
