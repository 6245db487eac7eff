"""Number schemas on every short text, and on every exponent near a bound: beside `json`, `decimal` and `jsonschema`."""

from __future__ import annotations

import decimal
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache
from typing import Any, Final

import jsonschema
import pytest

from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.values import numbers, scalars
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.matching.compiler import compile
from tests.constraints.views import Views
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

ALPHABET: Final = "+-.015e"  # ascending

_FIXED: Final = r"-?(0|[1-9]\d*)(\.\d+)?"
_SCIENTIFIC: Final = r"-?([1-9](\.\d+)?|0(\.0+)?)[eE][+-]?\d+"
_WHOLE: Final = r"-?(0|[1-9]\d*)(\.0+)?([eE][+-]?0+)?|-?(0|[1-9]\d*)(\.0+)?[eE]\+?\d+|-?0(\.0+)?[eE]-\d+"
FREE: Final = re.compile(rf"{_FIXED}([eE][+-]?\d+)?")
COMPARABLE: Final = re.compile(f"{_FIXED}|{_SCIENTIFIC}")
FIXED: Final = re.compile(_FIXED)
WHOLE: Final = re.compile(_WHOLE)
COMPARABLE_WHOLE: Final = re.compile(r"-?(0|[1-9]\d*)(\.0+)?|-?[1-9](\.0+)?[eE](\+?\d+|-0+)|-?0(\.0+)?[eE][+-]?\d+")
NO_WHOLE: Final = re.compile(rf"{_FIXED}|-?[1-9](\.\d+)?[eE](-\d+|\+?0+)")

SCHEMAS: Final[list[tuple[dict[str, Any], re.Pattern[str]]]] = [
    ({}, FREE),
    ({"type": "number"}, FREE),
    ({"type": "integer"}, WHOLE),
    ({"type": "number", "minimum": 0}, COMPARABLE),
    ({"type": "number", "exclusiveMinimum": 0}, COMPARABLE),
    ({"type": "number", "maximum": 0}, COMPARABLE),
    ({"type": "number", "exclusiveMaximum": -0.5}, COMPARABLE),
    ({"type": "number", "minimum": 0.15, "exclusiveMaximum": 51}, COMPARABLE),
    ({"type": "number", "minimum": -1e300, "maximum": 5e305}, COMPARABLE),
    ({"type": "integer", "minimum": -5, "maximum": 1000}, COMPARABLE_WHOLE),
    ({"type": "number", "multipleOf": 0.5}, FIXED),
    ({"type": "integer", "multipleOf": 5, "minimum": 5}, FIXED),
    ({"enum": [0, 1.5, -50, 1e308, 5e-324]}, COMPARABLE),
    ({"type": "number", "not": {"type": "integer"}}, NO_WHOLE),
    ({"type": "number", "not": {"enum": [0, 5]}}, COMPARABLE),
]


def language(schema: dict[str, Any]) -> Node:
    """The scalars of a schema."""
    network = JsonSchema(schema).network()
    return scalars.language(network.semantics.shape(network.root_goal))


def is_integer(_: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool) and value == int(value)


_DRAFT: Final = jsonschema.Draft202012Validator
_CHECKER: Final = _DRAFT.TYPE_CHECKER.redefine("integer", is_integer)
_EXACT: Final = jsonschema.validators.extend(_DRAFT, type_checker=_CHECKER)


def judge(schema: dict[str, Any]) -> Callable[[str], bool]:
    """What `jsonschema` says of a text with exact decimals; what is read as zero must be right as zero, too."""
    validator = _EXACT(json.loads(json.dumps(schema), parse_float=Decimal))

    @cache
    def is_valid(value: Decimal) -> bool:
        with decimal.localcontext(prec=2000, Emax=10_000, Emin=-10_000):
            return bool(validator.is_valid(value))

    def says(text: str) -> bool:
        value = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        return is_valid(value.normalize()) and (float(text) != 0 or is_valid(Decimal(0)))

    return says


def is_in_range(text: str) -> bool:
    """Whether the stated bounds on exponents admit a number."""
    mantissa, _, exponent = text.lower().lstrip("-").partition("e")
    if not exponent:
        return True
    whole, _, fraction = mantissa.partition(".")
    if int(exponent) < -999 or (len(whole) > 1 and int(exponent) > 99):
        return False
    if whole == "0":
        return int(exponent) <= (308 if fraction.strip("0") else 999)
    return math.isfinite(float(text))


def texts_over(alphabet: str, length: int) -> list[str]:
    return sorted("".join(text) for n in range(length + 1) for text in itertools.product(alphabet, repeat=n))


def wrong_texts(
    schema: dict[str, Any], spellings: re.Pattern[str], texts: list[str], valid: Iterable[str], node: Node
) -> list[str]:
    """Those of all short texts, ascending, of which some are JSON numbers, that a node should not hold or miss."""
    says = judge(schema)
    expected = {text for text in valid if spellings.fullmatch(text) and is_in_range(text) and says(text)}
    length = max(map(len, texts))
    seen = Views("".join(sorted(set("".join(texts)))).encode(), with_dead_ends=False).of(node, length)[0]
    bits = reversed(f"{seen:0{len(texts)}b}")
    held = {text for text, bit in zip(texts, bits, strict=True) if bit == "1"}
    return sorted(held ^ expected)


def compare_all(length: int, alphabet: str = ALPHABET) -> int:
    texts = texts_over(alphabet, length)
    valid = [text for text in texts if FREE.fullmatch(text)]
    for schema, spellings in SCHEMAS:
        wrong = wrong_texts(schema, spellings, texts, valid, language(schema))
        assert not wrong, (schema, wrong[:10])
    return len(valid)


@pytest.mark.slow
def test_all_short_texts() -> None:
    assert compare_all(6) > 4_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_longer_texts() -> None:
    assert compare_all(7, "+-.0159e") > 30_000  # two million texts


MANTISSAS: Final = (
    "0", "0.00", "0.5", "0.05", "1", "9", "1.0", "1.7", "1.79", "1.8", "1.7976931348623157", "1.7976931348623158",
    "1.7976931348623159", "1.79769313486231581", "2", "2.4", "2.4703282292062327", "2.4703282292062328", "2.48", "3.0",
    "4.9", "5", "10", "12.5", "100", "-1.7976931348623158", "-2.5", "-0", "-99",
)  # fmt: skip
POWERS: Final = (*range(12), *range(97, 103), *range(297, 302), *range(304, 312), *range(320, 328), *range(996, 1003))


def wrong_exponents(schema: dict[str, Any], spellings: re.Pattern[str], node: Node) -> list[str]:
    says = judge(schema)
    found = []
    for mantissa in MANTISSAS:
        start = node
        for byte in f"{mantissa}e".encode():
            start = start.derivative(byte)
        for sign, zeros, power in itertools.product(("", "+", "-"), ("", "00"), POWERS):
            text = f"{mantissa}e{sign}{zeros}{power}"
            expected = bool(spellings.fullmatch(text)) and is_in_range(text) and says(text)
            if ir.matches(start, f"{sign}{zeros}{power}".encode()) != expected:
                found.append(text)
    return found


@few(5)
@pytest.mark.parametrize("number", range(len(SCHEMAS)), ids=[json.dumps(schema) for schema, _ in SCHEMAS])
def test_exponents_near_their_bounds(number: int) -> None:
    schema, spellings = SCHEMAS[number]
    assert not wrong_exponents(schema, spellings, language(schema))


def test_negative_control_another_language_is_found() -> None:
    node = language({"type": "number", "minimum": 0})
    texts = texts_over(ALPHABET, 4)
    valid = [text for text in texts if FREE.fullmatch(text)]
    assert not wrong_texts({"type": "number", "minimum": 0}, COMPARABLE, texts, valid, node)
    assert wrong_texts({"type": "number", "exclusiveMinimum": 0}, COMPARABLE, texts, valid, node)
    assert "1e-400"[:3] in {
        text[:3] for text in wrong_exponents({"exclusiveMinimum": 0, "type": "number"}, COMPARABLE, node)
    }
    assert wrong_exponents({"type": "number"}, FREE, language({"type": "number", "maximum": 1e307}))


def test_finite_numbers_are_allowed_and_infinities_are_not() -> None:
    free = language({"type": "number"})
    for text in (
        "1e308",
        "1.7e308",
        "-1.7976931348623157e+308",
        "5e-324",
        "2.2250738585072014E-308",
        "1e-400",
        "0e999",
    ):
        assert ir.matches(free, text.encode()) and math.isfinite(json.loads(text)), text
    for text in ("1e309", "1.8e308", "-1e999", "1.7976931348623159e308", "1e99999999999"):
        assert not ir.matches(free, text.encode()) and math.isinf(json.loads(text)), text


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        ({"type": "number"}, "1e309", "1e309 is more than 1.7976931348623158e308"),
        ({}, "[1.8e308", "1.8e308 is more than 1.7976931348623158e308"),
        ({"type": "number", "minimum": 3}, "1e1000", "1e1000 is more than 1.7976931348623158e308"),
        ({"type": "number"}, "12e200", "the exponent of 12e200 is more than 99, behind several digits"),
        ({"type": "number"}, "1e-1000", "the exponent of 1e-1000 is less than -999"),
        ({"type": "number", "minimum": 3}, "12e2", "one digit that is not 0 before its point"),
        ({"type": "number", "maximum": 3}, "1e9", "a number of at most 3 (#/maximum)"),
        ({"type": "integer"}, "1e-400", "an integer (#/type)"),
        ({"type": "number"}, "1e" + "9" * 5000, "is more than 1.7976931348623158e308"),
    ],
)
def test_a_refusal_names_the_bound(schema: dict[str, Any], text: str, reason: str) -> None:
    explanation = compile(JsonSchema(schema), byte_vocabulary([])).matcher().explain(text)
    assert not explanation.is_allowed and reason in explanation.text


def test_what_is_read_as_zero_is_zero() -> None:
    assert numbers.read("1e-400") == numbers.read("-2e-324") == numbers.read("1e-999999999") == 0
    assert numbers.read("5e-324") == Decimal("5e-324") and numbers.read("0." + "0" * 400 + "1") > 0
    with pytest.raises(OverflowError):
        numbers.read("1e999999999")
    schema = JsonSchema({"type": "array", "items": {"type": "number"}, "uniqueItems": True})
    matcher = compile(schema, byte_vocabulary([])).matcher()
    assert matcher.explain("[1e-400, 5e-324]").is_allowed and not matcher.explain("[1e-400, 0]").is_allowed
