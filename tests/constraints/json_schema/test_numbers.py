"""Number languages against exact decimal arithmetic, on many short texts; `test_numbers_exhaustive.py` takes all."""

import itertools
import math
import random
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest

from decodekit.constraints.json_schema.values import numbers
from decodekit.constraints.json_schema.values.numbers import NumberSpec, exact
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.errors import ResourceLimitError
from tests.sizes import few

NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z")
FIXED = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?\Z")
SIZE = r"0*(\d{1,2}|[12]\d\d|30[0-7])"  # of an exponent above 0; the words have no e308 but those that are listed
SCIENTIFIC = re.compile(rf"-?[1-9](\.\d+)?[eE](\+?({SIZE}|0*308)|-0*\d{{1,3}})\Z|-?0(\.0+)?[eE][+-]?0*\d{{1,3}}\Z")
WHOLE_SCIENTIFIC = re.compile(rf"-?[1-9](\.0+)?[eE](\+?({SIZE}|0*308)|-0+)\Z|-?0(\.0+)?[eE][+-]?0*\d{{1,3}}\Z")


def _words() -> list[str]:
    rng = random.Random(0)
    words = ["".join(word) for size in range(1, 5) for word in itertools.product("-0159.", repeat=size)]
    longer = ["".join(word) for word in itertools.product("-015.", repeat=5)]
    words += rng.sample(longer, 500)
    with_exponent = ["".join(rng.choices("-1.05e+", k=rng.randint(3, 7))) for _ in range(2500)]
    words += [word for word in with_exponent if NUMBER.match(word)]
    return [
        *words,
        "1e-07",
        "6.02e23",
        "9.99E+2",
        "1e1000",
        "1e307",
        "9.9e-0307",
        "1e308",
        "1.8e308",
        "1e309",
        "5e-324",
        "1e-400",
        "1e-999",
        "1e-1000",
        "12345678901234567890",
        "-1e-5",
        "5e0",
        "4.9e0",
        "9e-1",
    ]


WORDS = _words()


def holds(node: Node, word: str) -> bool:
    for byte in word.encode():
        node = node.derivative(byte)
    return node.is_nullable


def is_comparable(word: str) -> bool:
    return bool(FIXED.match(word) or (SCIENTIFIC.match(word) and math.isfinite(float(word))))


def check(
    spec: NumberSpec, is_member: Callable[[Fraction], bool], is_spelling: Callable[[str], object] = is_comparable
) -> None:
    node = spec.node()
    for word in WORDS:
        expected = bool(NUMBER.match(word) and is_spelling(word) and is_member(Fraction(Decimal(word))))
        if expected and float(word) == 0:  # to be right as written is not enough
            expected = is_member(Fraction(0))
        assert holds(node, word) == expected, (spec, word)


@few(4)
@pytest.mark.parametrize("bound", ["0", "5", "-5", "0.5", "1.05", "-15.1", "100", "0.001"])
@pytest.mark.parametrize("is_strict", [False, True])
def test_bounds(bound: str, is_strict: bool) -> None:
    q = Fraction(Decimal(bound))
    check(NumberSpec(low=q, low_strict=is_strict), lambda v: v > q or (v == q and not is_strict))
    check(NumberSpec(high=q, high_strict=is_strict), lambda v: v < q or (v == q and not is_strict))


@few(2)
@pytest.mark.parametrize("step", ["5", "0.5", "0.01", "2.5", "7"])
@pytest.mark.parametrize(("low", "high"), [(None, None), ("0", None), ("-10", "10"), ("0.5", "51"), (None, "-5")])
def test_multiples(step: str, low: str | None, high: str | None) -> None:
    q = Fraction(step)
    least, most = (None if bound is None else Fraction(bound) for bound in (low, high))

    def is_member(value: Fraction) -> bool:
        fits = (least is None or value >= least) and (most is None or value <= most)
        return fits and (value / q).denominator == 1

    check(NumberSpec(low=least, high=most, step=q), is_member, FIXED.match)


def test_not_a_multiple() -> None:
    check(NumberSpec(no_multiples=frozenset({Fraction(5)})), lambda v: (v / 5).denominator != 1, FIXED.match)


def test_integers_within_bounds() -> None:
    spec = NumberSpec(low=Fraction(-3), high=Fraction(10), is_integer=True)
    check(spec, lambda v: v.denominator == 1 and -3 <= v <= 10, lambda w: FIXED.match(w) or WHOLE_SCIENTIFIC.match(w))


def test_values() -> None:
    values = frozenset(Fraction(Decimal(text)) for text in ("0", "1", "1.5", "-50", "100", "0.05"))
    check(NumberSpec(values=values), lambda v: v in values)
    check(NumberSpec(no_values=values), lambda v: v not in values)


@few(2)
@pytest.mark.parametrize(
    ("step", "without", "values", "low", "high"),
    [
        ("5", ["15"], [], None, None),
        ("0.5", ["1", "1.5"], [], None, None),
        ("5", ["10", "15"], ["5"], "-60", "600"),
        ("1", ["5", "10"], ["11", "-1", "0"], None, None),
        ("0.5", ["5"], ["0.5", "0.25"], "-1", None),
    ],
)
def test_multiples_but_not_of_others(
    step: str, without: list[str], values: list[str], low: str | None, high: str | None
) -> None:
    spec = NumberSpec(step=Fraction(step)).meet(NumberSpec(no_values=frozenset(map(Fraction, values))))
    for other in without:
        spec = spec.meet(NumberSpec(no_multiples=frozenset({Fraction(other)})))
    if low is not None:
        spec = spec.meet(NumberSpec(low=Fraction(low)))
    if high is not None:
        spec = spec.meet(NumberSpec(high=Fraction(high), high_strict=True))

    def is_member(value: Fraction) -> bool:
        return (
            (value / Fraction(step)).denominator == 1
            and all((value / Fraction(other)).denominator > 1 for other in without)
            and value not in map(Fraction, values)
            and (low is None or value >= Fraction(low))
            and (high is None or value < Fraction(high))
        )

    assert not spec.is_impossible
    check(spec, is_member, FIXED.match)


def test_impossible_multiples() -> None:
    def spec(step: int, *others: int, low: int | None = None, high: int | None = None) -> NumberSpec:
        bounds = [None if bound is None else Fraction(bound) for bound in (low, high)]
        result = NumberSpec(low=bounds[0], high=bounds[1], step=Fraction(step))
        for other in others:
            result = result.meet(NumberSpec(no_multiples=frozenset({Fraction(other)})))
        return result

    assert spec(24, 8).is_impossible and spec(24, 8).node() is ir.EMPTY
    assert spec(6, 4, 9, low=30, high=36).is_impossible is False  # 30
    assert spec(6, 4, 9, low=36, high=36).is_impossible
    assert spec(6, 4, 9, 15, low=27, high=40).is_impossible
    assert not spec(8721, 2, 5, 7, 11, 37).is_impossible and not spec(8721, 2, 5, 7, 11, 37).node().is_empty
    whole = NumberSpec(is_integer=True).meet(numbers.not_integer(is_plain=False))
    assert whole.is_impossible and whole.node().is_empty
    assert (
        NumberSpec(low=Fraction(3), high=Fraction(3)).meet(NumberSpec(no_values=frozenset({Fraction(3)}))).is_impossible
    )


def test_emptiness_is_exact() -> None:
    assert NumberSpec(low=Fraction(1, 2), high=Fraction(3, 5), is_integer=True).node().is_empty
    assert not NumberSpec(low=Fraction(1, 2), high=Fraction(1), is_integer=True).node().is_empty
    assert NumberSpec(low=Fraction(1), high=Fraction(6), step=Fraction(7)).node().is_empty
    big = 10**9 + 7
    assert NumberSpec(low=Fraction(1), high=Fraction(big - 1), step=Fraction(big)).node().is_empty
    assert not NumberSpec(low=Fraction(1), high=Fraction(big), step=Fraction(big)).node().is_empty


def test_floats_mean_what_was_written() -> None:
    assert exact(0.1) == Fraction(1, 10)
    assert exact(1e22) == 10**22
    with pytest.raises(ResourceLimitError):
        exact(10**4000)


def test_an_off_by_one_bound_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check(NumberSpec(low=Fraction(5), low_strict=True), lambda v: v >= 5)


def test_whether_numbers_are_left_is_found_without_their_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant of 50,000 numbers asks for each of them. With languages besides, these are asked."""
    values = [Fraction(0), Fraction(7), Fraction(-5, 2), Fraction(10**400), Fraction(1, 10**60)]
    conditions = [{}, {"low": Fraction(1)}, {"is_integer": True}, {"is_plain": True}, {"no_values": frozenset(values)}]
    specs = [NumberSpec(values=frozenset({value}), **given) for value in values for given in conditions]
    expected = [spec.node().is_empty for spec in specs]
    asked = NumberSpec(values=frozenset(values), languages=frozenset({ir.literal(b"8")}))
    assert asked.is_empty and not asked.is_impossible and set(expected) == {True, False}
    monkeypatch.setattr(NumberSpec, "node", lambda spec: pytest.fail("a language was made"))
    assert [spec.is_empty for spec in specs] == expected
