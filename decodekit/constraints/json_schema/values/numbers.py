"""JSON numbers within exact decimal bounds, as languages of bytes.

A worked example. ``{"exclusiveMinimum": 0.5, "maximum": 20}`` is ``NumberSpec(low=1/2, low_strict=True, high=20)``. Its
language is the intersection of two, one for each bound, and each is a union of two kinds of spellings:

    above 0.5     fixed         0.51  0.6  1  12.0  20  345 …
                  scientific    5.1e-1  6e-01  1E0  2.0e+1 …     one digit before the point, and it is not zero
    at most 20    fixed         -7  0  1.5  19.99  20  20.00 …
                  scientific    -1e9  5e-3  1.9e1  2e+1 …

So after ``2`` may follow nothing, a fraction, the exponent 0, the exponent 1 if all digits between are zeros, or a
``0``. A bound is compared digit by digit: with the digits of the bound so far, the rest of the bound still counts;
beyond them, any digits may follow.

A language with a bound or a step holds these spellings of a value, and all of them:

- without an exponent: ``-12``, ``0.50``, ``-0``; with ``multipleOf`` other than 1 only these;
- with an exponent and one nonzero digit before the point: ``1e-07``, ``6.02E+23``, which is how JSON writers print
  large and small numbers. Integers need a mantissa without fraction here: ``1e3``, not ``1.5e3``; values that must not
  be integers, an exponent of at most 0.

No finite automaton compares other spellings (``0.5e1``, ``50e-1``) with a bound. They are generated only for numbers
without any condition. All arithmetic is exact: bounds are fractions, digits are compared as digits.

Readers with doubles take large numbers for infinity (`json.loads` reads ``1e309`` so), so exponents have bounds:

- with one digit before the point a number is at most ``1.7976931348623158e308``: what is read as a finite double, to 17
  digits. Behind a zero the largest exponent is 308 (``0.5e308``), and behind several digits it is 99;
- an exponent is at least -999. Numbers below ``2.4703282292062328e-324`` are read as zero, so such a number has to
  be right both as it is written and as zero: ``1e-400`` satisfies ``"minimum": 0``, but not ``"exclusiveMinimum": 0``.

Without an exponent a number may have any number of digits. With more than 308 of them before the point it is read as
infinity all the same: counting that many digits would give every number its own states for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import Final

from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node, Transitions
from decodekit.constraints.language.words import words
from decodekit.constraints.memory_account import united
from decodekit.errors import ResourceLimitError

MAX_DIGITS: Final = 1_000
"""Bound on the decimal digits of a bound, a step or a value of a schema."""
_MANY_POWERS: Final = 100_000
"""Bound on the exponent of a number that is read."""
_MANY_DIGITS: Final = 40
"""A bound with more digits is read beside another condition, an intersection: the nodes of its digits lie inside each
other, and an intersection is not rebuilt as a whole for each state (`Node.saturated`)."""

_DIGIT: Final = ir.byte_set(b"0123456789")
_DIGITS: Final = ir.repeat(_DIGIT)
_NONZERO: Final = ir.byte_set(b"123456789")
_ZEROS: Final = ir.repeat(ir.literal(b"0"))
_POINT: Final = ir.literal(b".")
_MINUS: Final = ir.literal(b"-")
_SOME_NONZERO: Final = ir.concat(_DIGITS, _NONZERO, _DIGITS)
POSITIVE: Final = ir.concat(_NONZERO, _DIGITS)
_NATURAL: Final = ir.choice(ir.literal(b"0"), POSITIVE)  # no leading zeros
_FRACTION: Final = ir.optional(ir.concat(_POINT, ir.repeat(_DIGIT, 1)))
_NO_FRACTION: Final = ir.optional(ir.concat(_POINT, ir.repeat(ir.literal(b"0"), 1)))
_SOME_FRACTION: Final = ir.concat(_POINT, _SOME_NONZERO)

_LARGEST_DIGITS: Final = "7976931348623158"
_SMALLEST_DIGITS: Final = "4703282292062328"
LARGEST: Final = Fraction(Decimal(f"1.{_LARGEST_DIGITS}e308"))
"""The largest number with an exponent. Doubles end below 2**1024 - 2**970, which is 1.79769313486231580793…e308."""
SMALLEST: Final = Fraction(Decimal(f"2.{_SMALLEST_DIGITS}e-324"))
"""The smallest number that is not zero, if it has an exponent: half the smallest double, rounded up."""
_MAX_EXPONENT: Final = 308
_MIN_EXPONENT: Final = -999


def read(text: str) -> Fraction:
    """The number that a text of JSON stands for; zero if its exponent makes it less than `SMALLEST`.

    Raises:
        OverflowError: it has more than `_MANY_POWERS` digits before the point, by its exponent.
    """
    return Fraction(read_any(text))


def read_any(text: str) -> Fraction | Decimal:
    """As `read`; a long number is a decimal one, since to make a fraction takes the square of its digits."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        mantissa, _, exponent = text.lower().partition("e")
        if not exponent.startswith("-") and Decimal(mantissa):
            raise OverflowError(f"{text:.40} is too large") from None
        number = Decimal(0)
    if "e" in text.lower():
        if number.adjusted() > _MANY_POWERS:
            raise OverflowError(f"{text:.40} is too large")
        if number.copy_abs() < SMALLEST:
            number = Decimal(0)
    return number if len(text) > MAX_DIGITS else Fraction(number)


def is_integer(number: Fraction | Decimal) -> bool:
    """Whether a number is an integer."""
    return number == number.to_integral_value() if isinstance(number, Decimal) else number.denominator == 1


def is_multiple(number: Fraction | Decimal, step: Fraction) -> bool:
    """Whether a number is an integer multiple of a step, exactly."""
    if isinstance(number, Fraction):
        return (number / step).denominator == 1
    num_digits = len(number.as_tuple().digits) + abs(number.adjusted()) + step.numerator.bit_length()
    context = Context(prec=num_digits + step.denominator.bit_length() + 10, Emax=MAX_EMAX, Emin=MIN_EMIN)
    scaled = context.multiply(number, Decimal(step.denominator))
    return context.remainder(scaled, Decimal(step.numerator)).is_zero()


def objection(text: str) -> str | None:
    """The reason why the exponent of a JSON number is refused where it has no condition; None if it is not."""
    if ir.matches(ANY_NUMBER, text.encode()):
        return None
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    mantissa, _, exponent = text.lower().lstrip("-").partition("e")
    power = Decimal(exponent)
    if power < _MIN_EXPONENT:
        return f"the exponent of {shown} is less than {_MIN_EXPONENT}"
    if len(mantissa.partition(".")[0]) > 1 and power > 99:
        return f"the exponent of {shown} is more than 99, behind several digits"
    return f"{shown} is more than 1.{_LARGEST_DIGITS}e308, where numbers with an exponent end"


def exact(value: int | float | Decimal) -> Fraction:
    """The decimal number that was written: a float stands for its shortest repr, 0.1 for one tenth.

    Raises:
        ResourceLimitError: more than `MAX_DIGITS` digits.
    """
    if isinstance(value, int):
        if value.bit_length() > 4 * MAX_DIGITS:
            raise _too_long()
        return Fraction(value)
    number = Decimal(repr(value)) if isinstance(value, float) else value
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number of JSON")
    if len(digits) > MAX_DIGITS or abs(exponent) > MAX_DIGITS:
        raise _too_long()
    return Fraction(number)


def written(value: int | float) -> Fraction:
    """As `exact`, of any length: to compare with, not to make a language of."""
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def _too_long() -> ResourceLimitError:
    return ResourceLimitError(
        f"a number of the schema has more than {MAX_DIGITS:,} decimal digits", hint="round the bound"
    )


def _split(value: Fraction) -> tuple[str, str]:
    """Digits before and after the point of a decimal number >= 0, without closing zeros."""
    num_digits = _num_fraction_digits(value)
    digits = str(int(value * 10**num_digits)).rjust(num_digits + 1, "0")
    return digits[: len(digits) - num_digits], digits[len(digits) - num_digits :]


def _num_fraction_digits(value: Fraction) -> int:
    """The least d with ``value * 10**d`` an integer; the denominator of a decimal number has factors 2 and 5 only."""
    twos = (value.denominator & -value.denominator).bit_length() - 1
    return max(twos, round(math.log(value.denominator >> twos, 5)))


# -- numbers beyond a bound: above it, or below it


def _digits(digit: str, is_above: bool, first: int = 0) -> Node:
    """Digits greater, or less, than one, from `first` on."""
    return ir.byte_set(b"0123456789"[max(int(digit) + 1, first) :] if is_above else b"0123456789"[first : int(digit)])


def _natural(digits: str, is_above: bool) -> Node:
    """Naturals greater, or less, than `digits`."""
    num_digits = len(digits)
    beyond: Node = ir.EMPTY  # with as many digits
    for index in range(num_digits - 1, -1, -1):
        rest = ir.repeat(_DIGIT, num_digits - 1 - index, num_digits - 1 - index)
        same = ir.concat(ir.literal(digits[index].encode()), beyond)
        beyond = ir.choice(ir.concat(_digits(digits[index], is_above, 0 if index else 1), rest), same)
    if is_above:
        return ir.choice(beyond, ir.concat(_NONZERO, ir.repeat(_DIGIT, num_digits)))
    if digits == "0":
        return ir.EMPTY
    shorter = ir.concat(_NONZERO, ir.repeat(_DIGIT, 0, num_digits - 2)) if num_digits > 1 else ir.EMPTY
    return ir.choice(beyond, shorter, ir.literal(b"0"))


def _fraction(digits: str, is_above: bool, *, strict: bool) -> Node:
    """The fractions behind equal whole digits of the numbers beyond ``x.digits``, or also at it unless `strict`."""
    if not digits:
        beyond, at_least = (_SOME_FRACTION, _FRACTION) if is_above else (ir.EMPTY, _NO_FRACTION)
        return beyond if strict else at_least
    beyond, at_least = (_SOME_NONZERO, _DIGITS) if is_above else (ir.EMPTY, _ZEROS)
    node = beyond if strict else at_least
    for index in range(len(digits) - 1, -1, -1):
        same = ir.concat(ir.literal(digits[index].encode()), node)
        node = ir.choice(ir.concat(_digits(digits[index], is_above), _DIGITS), same)
        if index and not is_above:  # a shorter fraction is less, since the last digit of `digits` is not zero
            node = ir.choice(ir.EPSILON, node)
    node = ir.concat(_POINT, node)
    return node if is_above else ir.optional(node)


# -- exponents


def _e(plus: Node, minus: Node = ir.EMPTY) -> Node:
    """``e+k`` with k in one set, ``e-k`` with k in another; leading zeros are legal in an exponent."""
    plus, minus = ir.concat(_PLUS, _ZEROS, plus), ir.concat(_MINUS, _ZEROS, minus)
    return ir.concat(ir.byte_set(b"eE"), ir.choice(plus, minus))


_PLUS: Final = ir.optional(ir.literal(b"+"))
_UP_TO_99, _UP_TO_307, _UP_TO_308, _UP_TO_323, _UP_TO_999 = (
    _natural(str(most + 1), is_above=False) for most in (99, 307, 308, 323, 999)
)
_ZERO_EXPONENT: Final = _e(ir.literal(b"0"), ir.literal(b"0"))
_ANY_EXPONENT: Final = _e(_UP_TO_999, _UP_TO_999)  # of zero


def _exponents(exponent: int, is_above: bool) -> Node:
    """Exponents beyond one, but for 308, behind which not every mantissa is a number."""
    is_positive = exponent >= 0 if is_above else exponent > 0
    near = _natural(str(abs(exponent)), is_above == is_positive)  # with the same sign
    other = ir.EMPTY if is_above == is_positive else _NATURAL
    plus, minus = (near, other) if is_positive else (other, near)
    return _e(ir.both(plus, _UP_TO_307), ir.both(minus, _UP_TO_999))


@lru_cache(maxsize=2048)  # all there are, nearly
def _exponent_equal(exponent: int) -> Node:
    if not _MIN_EXPONENT <= exponent <= _MAX_EXPONENT:
        return ir.EMPTY
    same = ir.literal(str(abs(exponent)).encode())
    return _e(same if exponent >= 0 else ir.EMPTY, same if exponent <= 0 else ir.EMPTY)


# -- numbers: fixed, with digits and a point alone; scientific, with one digit before the point and an exponent


def _signed(magnitude: Node) -> Node:
    return ir.concat(ir.optional(_MINUS), magnitude)


_LARGE_MANTISSA: Final = ir.concat(ir.literal(b"1"), _fraction(_LARGEST_DIGITS, is_above=False, strict=False))
_LARGE: Final = ir.concat(_LARGE_MANTISSA, _e(ir.literal(b"308")))
_SMALL: Final = ir.concat(
    ir.choice(
        ir.concat(_digits("2", is_above=True), _FRACTION),
        ir.concat(ir.literal(b"2"), _fraction(_SMALLEST_DIGITS, is_above=True, strict=False)),
    ),
    _e(ir.EMPTY, ir.literal(b"324")),
)
_FIXED: Final = ir.concat(_NATURAL, _FRACTION)
_FIXED_POSITIVE: Final = ir.choice(ir.concat(POSITIVE, _FRACTION), ir.concat(ir.literal(b"0"), _SOME_FRACTION))
_SCIENTIFIC: Final = ir.choice(ir.concat(_NONZERO, _FRACTION, _e(_UP_TO_307, _UP_TO_999)), _LARGE)
_SCIENTIFIC_POSITIVE: Final = ir.choice(ir.concat(_NONZERO, _FRACTION, _e(_UP_TO_307, _UP_TO_323)), _LARGE, _SMALL)
"""Those that are not read as zero."""
_SCIENTIFIC_ZERO: Final = ir.concat(ir.literal(b"0"), _NO_FRACTION, _ANY_EXPONENT)
_ZERO: Final = ir.concat(ir.literal(b"0"), _NO_FRACTION, ir.optional(_ANY_EXPONENT))

ANY_NUMBER: Final[Node] = _signed(
    ir.choice(
        ir.concat(_NATURAL, _FRACTION, ir.optional(_e(_UP_TO_99, _UP_TO_999))),
        ir.concat(ir.literal(b"0"), _FRACTION, _e(_UP_TO_308, _UP_TO_999)),
        _SCIENTIFIC,
        _SCIENTIFIC_ZERO,
    )
)
"""Every JSON number."""
_COMPARABLE: Final = _signed(ir.choice(_FIXED, _SCIENTIFIC, _SCIENTIFIC_ZERO))
_PLAIN_INTEGER: Final = _signed(_NATURAL)
_INTEGER: Final = _signed(
    ir.choice(
        ir.concat(_NATURAL, _NO_FRACTION, ir.optional(ir.choice(_e(_UP_TO_99), _ZERO_EXPONENT))),
        ir.concat(_NONZERO, _NO_FRACTION, _e(_UP_TO_307)),
        ir.concat(ir.literal(b"1"), _NO_FRACTION, _e(ir.literal(b"308"))),
        _SCIENTIFIC_ZERO,
    )
)
_NOT_INTEGER: Final = _signed(
    ir.choice(
        ir.concat(_NATURAL, _SOME_FRACTION),
        ir.concat(_NONZERO, _SOME_FRACTION, _ZERO_EXPONENT),
        ir.concat(_NONZERO, _FRACTION, _e(ir.EMPTY, ir.both(POSITIVE, _UP_TO_323))),
        _SMALL,
    )
)
_NOT_ZERO: Final = _signed(ir.choice(_FIXED_POSITIVE, _SCIENTIFIC_POSITIVE))


def _magnitude(bound: Fraction, is_above: bool, *, strict: bool) -> Node:
    """Unsigned comparable spellings of numbers beyond `bound` >= 0, or at it unless `strict`."""
    if is_above and bound < SMALLEST:
        if strict or bound:
            return ir.choice(_FIXED_POSITIVE, _SCIENTIFIC_POSITIVE)
        return ir.choice(_FIXED_POSITIVE, _SCIENTIFIC, _ZERO)
    if bound == 0:
        return ir.EMPTY if strict else _ZERO
    whole, fraction = _split(bound)
    exponent, first, rest = _scientific_parts(bound)
    mantissa = ir.choice(
        ir.concat(_digits(first, is_above, 1), _FRACTION),
        ir.concat(ir.literal(first.encode()), _fraction(rest, is_above, strict=strict)),
    )
    if exponent == _MAX_EXPONENT:
        mantissa = ir.both(mantissa, _LARGE_MANTISSA)
    return ir.choice(
        ir.concat(_natural(whole, is_above), _FRACTION),
        ir.concat(ir.literal(whole.encode()), _fraction(fraction, is_above, strict=strict)),
        ir.EMPTY if is_above else _ZERO,
        ir.concat(_NONZERO, _FRACTION, _exponents(exponent, is_above)),
        ir.concat(mantissa, _exponent_equal(exponent)),
        _LARGE if (exponent < _MAX_EXPONENT if is_above else exponent > _MAX_EXPONENT) else ir.EMPTY,
    )


def _scientific_parts(value: Fraction) -> tuple[int, str, str]:
    """(k, d, f) with ``value == d.f * 10**k``, one digit d that is not zero, no closing zeros in f."""
    num_fraction_digits = _num_fraction_digits(value)
    digits = str(int(value * 10**num_fraction_digits))
    return len(digits) - num_fraction_digits - 1, digits[0], digits[1:].rstrip("0")


@lru_cache(maxsize=2048)
def _beyond(bound: Fraction, is_above: bool, strict: bool) -> Node:
    """Comparable spellings of numbers above, or below, a bound, or at it unless `strict`."""
    away, back = (ir.EPSILON, _MINUS) if is_above else (_MINUS, ir.EPSILON)  # the signs of numbers far beyond, and not
    if bound and (bound > 0) == is_above:
        return ir.concat(away, _magnitude(abs(bound), is_above=True, strict=strict))
    return ir.choice(
        ir.concat(away, _magnitude(Fraction(0), is_above=True, strict=strict and bound == 0)),
        ir.concat(back, _magnitude(abs(bound), is_above=False, strict=strict)),
    )


def _values(values: Iterable[Fraction]) -> Node:
    """Exactly these numbers, in every comparable spelling."""
    lists: dict[Node, dict[bytes, None]] = {}  # by what may follow
    for word, end in chain.from_iterable(map(_spellings, values)):
        lists.setdefault(end, {})[word] = None
    return ir.choice(*(ir.concat(words(listed), end) for end, listed in lists.items()))


def digits(values: Iterable[Fraction]) -> Node:
    """Exactly these integers, as digits alone."""
    return words({str(value.numerator).encode(): None for value in values})


@lru_cache(maxsize=100_000)  # as many as a schema may list, which is asked again for every one that is left out
def _spellings(value: Fraction) -> tuple[tuple[bytes, Node], ...]:
    """The spellings of a number: its digits, and what may follow them; the one without an exponent first."""

    def spelled(whole: str, fraction: str, exponent: Node = ir.EPSILON) -> tuple[bytes, Node]:
        text = f"{'-' * (value < 0)}{whole}.{fraction}".rstrip(".")
        return text.encode(), ir.concat(_ZEROS if fraction else _NO_FRACTION, exponent)

    if value == 0:
        return tuple((zero, ir.concat(_NO_FRACTION, ir.optional(_ANY_EXPONENT))) for zero in (b"0", b"-0"))
    fixed = spelled(*_split(abs(value)))
    exponent, first, rest = _scientific_parts(abs(value))
    if exponent < _MIN_EXPONENT or abs(value) > LARGEST:
        return (fixed,)
    return fixed, spelled(first, rest, _exponent_equal(exponent))


def _num_bytes(value: Fraction, *, is_fixed: bool) -> int:
    """The length of the shortest spelling of a number; `is_fixed`: of those without an exponent."""
    return min(len(word) + (end.bounds() or (0, 0))[0] for word, end in _spellings(value)[: 1 if is_fixed else None])


@dataclass(frozen=True)
class NumberSpec:
    """A set of numbers: one conjunction of the numeric keywords.

    Attributes:
        low, high: bounds, None for none; `low_strict`, `high_strict` leave the bound itself out.
        step: every value is an integer multiple of it.
        is_integer: no fraction. `is_plain`: no fraction is even written, as draft 4 asks of an integer.
        values: only these, None for all.
        no_multiples: no value is a multiple of one of these. `no_values`: nor one of these.
        languages: further conditions, each a language that is exact for the spellings that it is about.
    """

    low: Fraction | None = None
    low_strict: bool = False
    high: Fraction | None = None
    high_strict: bool = False
    step: Fraction | None = None
    is_integer: bool = False
    is_plain: bool = False
    values: frozenset[Fraction] | None = None
    no_multiples: frozenset[Fraction] = frozenset()
    no_values: frozenset[Fraction] = frozenset()
    languages: frozenset[Node] = frozenset()

    def meet(self, other: NumberSpec) -> NumberSpec:
        """The numbers of both."""
        lows = [(spec.low, spec.low_strict) for spec in (self, other) if spec.low is not None]
        highs = [(spec.high, not spec.high_strict) for spec in (self, other) if spec.high is not None]
        low, low_strict = max(lows, default=(None, False))
        high, is_high_in = min(highs, default=(None, True))
        listed = [spec.values for spec in (self, other) if spec.values is not None]
        return NumberSpec(
            low,
            low_strict,
            high,
            not is_high_in,
            _least_common_multiple(self.step, other.step),
            self.is_integer or other.is_integer,
            self.is_plain or other.is_plain,
            frozenset.intersection(*listed) if listed else None,
            united(self.no_multiples, other.no_multiples),
            united(self.no_values, other.no_values),
            united(self.languages, other.languages),
        )

    def admits(self, value: Fraction) -> bool:
        """Whether bounds, steps and integrality admit a value; `languages` are not asked."""
        return (
            (self.low is None or (value > self.low if self.low_strict else value >= self.low))
            and (self.high is None or (value < self.high if self.high_strict else value <= self.high))
            and (self.whole_step is None or (value / self.whole_step).denominator == 1)
            and not any((value / step).denominator == 1 for step in self.no_multiples)
            and value not in self.no_values
        )

    @cached_property
    def admitted_values(self) -> frozenset[Fraction]:
        """Those of `values` that the other conditions admit, `languages` aside."""
        values = (self.values or frozenset()) - self.no_values
        is_free = self.low is self.high is self.whole_step is None and not self.no_multiples
        return values if is_free else frozenset(filter(self.admits, values))

    @cached_property
    def num_bytes(self) -> int:
        """The bytes that suffice for any number where values are listed, or two bounds and a step; else 0."""
        if self.values is not None:
            is_fixed = self.is_plain or bool(self.languages)
            return max((_num_bytes(value, is_fixed=is_fixed) for value in self.admitted_values), default=0)
        if self.low is None or self.high is None or self.whole_step is None:
            return 0
        places = _num_fraction_digits(self.whole_step)
        num_digits = max(len(_split(abs(bound))[0]) for bound in (self.low, self.high))
        return (self.low < 0) + num_digits + (places + 1 if places else 0)

    @cached_property
    def whole_step(self) -> Fraction | None:
        """The number of which every value is a multiple; None if there is none."""
        return _least_common_multiple(self.step, Fraction(1)) if self.is_integer or self.is_plain else self.step

    @cached_property
    def is_impossible(self) -> bool:
        """Whether no number is left, as far as arithmetic shows it at once; `languages` are not asked.

        Multiples nS of the step, of which those of other numbers are left out, are left for all n that no k divides,
        where kS is a least common multiple: always for some, unless a k is 1 or the bounds are narrow.
        """
        if self.values is not None:
            return not self.admitted_values
        step = self.whole_step
        if step is not None and any((step / other).denominator == 1 for other in self.no_multiples):
            return True
        if self.low is None or self.high is None:
            return False
        if step is None:
            return self.low >= self.high and not self.admits(self.low)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return last - first <= _MAX_TRIED and not any(self.admits(n * step) for n in range(first, last + 1))

    @cached_property
    def is_empty(self) -> bool:
        """Whether no number is left. Each that is listed has a spelling: no language is made to find that out."""
        return self.is_impossible or ((self.values is None or bool(self.languages)) and self.node().is_empty)

    def node(self) -> Node:
        """The language of the set (see the module about spellings)."""
        return _language(self)


NO_CONDITION: Final = NumberSpec()


@lru_cache(maxsize=4096)
def _language(spec: NumberSpec) -> Node:
    if spec.is_impossible:
        return ir.EMPTY
    parts: list[Node] = list(spec.languages)
    if spec.is_plain:
        parts.append(_PLAIN_INTEGER)
    if spec.values is not None:
        parts.append(_values(spec.admitted_values))
    elif spec.step is not None or (spec.whole_step is not None and spec.no_multiples):
        parts.append(_multiples(spec))
    else:
        if spec.is_integer and not spec.is_plain:
            parts.append(_INTEGER)
        if spec.low is not None:
            parts.append(_beyond(spec.low, True, spec.low_strict))
        if spec.high is not None:
            parts.append(_beyond(spec.high, False, spec.high_strict))
        bounds = [bound for bound in (spec.low, spec.high) if bound is not None]
        if any(sum(map(len, _split(abs(bound)))) > _MANY_DIGITS for bound in bounds):
            parts.append(_COMPARABLE)
        parts += (
            _NOT_INTEGER if step == 1 else ir.both(_signed(_FIXED), ir.complement(NumberSpec(step=step).node()))
            for step in sorted(spec.no_multiples)
        )
        if spec.no_values:
            parts.append(ir.both(_COMPARABLE, ir.complement(_values(spec.no_values))))
            if 0 in spec.no_values:
                parts.append(_NOT_ZERO)
    return ir.both(*parts) if parts else ANY_NUMBER


def not_integer(*, is_plain: bool) -> NumberSpec:
    """The numbers that ``"type": "integer"`` refuses; `is_plain` as in draft 4."""
    if is_plain:
        return NumberSpec(languages=frozenset({ir.both(ANY_NUMBER, ir.complement(_PLAIN_INTEGER))}))
    return NumberSpec(no_multiples=frozenset({Fraction(1)}))


def members(spec: NumberSpec, limit: int) -> frozenset[Fraction] | None:
    """The numbers of a set if there are at most `limit`, else None."""
    if spec.is_empty:
        return frozenset()
    step = spec.whole_step
    candidates: Iterable[Fraction]
    if spec.values is not None:
        candidates = spec.admitted_values
    elif spec.low is None or spec.high is None or (step is None and spec.low != spec.high):
        return None  # no language of ours leaves finitely many of infinitely many numbers
    elif step is None:
        candidates = (spec.low,)
    else:
        first, last = math.ceil(spec.low / step), math.floor(spec.high / step)
        has_gaps = spec.languages or spec.no_multiples or spec.no_values
        if last - first - 1 > (_MAX_CANDIDATES if has_gaps else limit):
            return None
        candidates = (value for n in range(first, last + 1) if spec.admits(value := n * step))
    held = (one for one in candidates if not spec.languages or not ir.both(spec.node(), _values((one,))).is_empty)
    found = frozenset(islice(held, limit + 1))
    return found if len(found) <= limit else None


_MAX_TRIED: Final = 1_000  # multiples between bounds that are looked at one by one
_MAX_CANDIDATES: Final = 10_000  # of so many numbers, what a schema refuses one by one leaves many


def _least_common_multiple(first: Fraction | None, second: Fraction | None) -> Fraction | None:
    if first is None or second is None:
        return first if second is None else second
    return Fraction(math.lcm(first.numerator, second.numerator), math.gcd(first.denominator, second.denominator))


def _multiples(spec: NumberSpec) -> Node:
    """Fixed-point spellings of the multiples of the step within the bounds, less those that are left out."""
    step = spec.whole_step
    assert step is not None
    places = _num_fraction_digits(step)
    scale = 10**places
    if places > MAX_DIGITS:
        raise _too_long()
    modulus = int(step * scale)
    # The least and the greatest integer X with X / 10**places within the bounds.
    low = high = None
    if spec.low is not None:
        low = math.floor(spec.low * scale) + 1 if spec.low_strict else math.ceil(spec.low * scale)
    if spec.high is not None:
        high = math.ceil(spec.high * scale) - 1 if spec.high_strict else math.floor(spec.high * scale)
    factors = tuple(sorted((other / step).numerator for other in spec.no_multiples))  # of their common multiples
    out = [int(value * scale) for value in spec.no_values if (value / step).denominator == 1]

    def magnitudes(low: int | None, high: int | None, out: Iterable[int]) -> Node:
        least = max(low or 0, 0)
        if high is not None and high < least:
            return ir.EMPTY
        node = _Multiples(_progression(modulus, places, least, high, factors, frozenset(out)), "start", 0, 0)
        return node if node.is_alive() else ir.EMPTY

    below, above = None if high is None else -high, None if low is None else -low
    negative = magnitudes(below, above, [-value for value in out])
    return ir.choice(magnitudes(low, high, out), ir.concat(_MINUS, negative))


@dataclass(frozen=True, eq=False)
class _Progression:
    """The integers X = n * `modulus`, `low` <= X <= `high`, that are not in `out`, where no factor divides n.

    X stands for X / 10**places. One object for equal ones: see `_progression`.
    """

    modulus: int
    places: int
    low: int
    high: int | None
    factors: tuple[int, ...]
    out: frozenset[int]

    @cached_property
    def period(self) -> int:
        """The remainder by which tells whether a number is one of them, the bounds and `out` aside."""
        return self.modulus * math.lcm(*self.factors)

    @cached_property
    def is_periodic_from(self) -> int:
        """From where on only the remainder counts, without a bound above."""
        return max([self.low, *(value + 1 for value in self.out)])

    def has_one(self, first: int, last: int) -> bool:
        """Whether one of them lies between `first` and `last`."""
        first = max(first, self.low)
        if self.high is not None:
            last = min(last, self.high)
        return any(
            n * self.modulus not in self.out and all(n % factor for factor in self.factors)
            for n in range(-(-first // self.modulus), last // self.modulus + 1)
        )


_progression = lru_cache(maxsize=4096)(_Progression)


@dataclass(frozen=True, slots=True, repr=False)
class _Multiples(Node):
    """The unsigned numbers of a progression; derived when asked for.

    The state is the number read so far, scaled by the digits after the point, so whether it can still become one of
    them is arithmetic on an interval and no search. Far up and without an upper bound, only the remainder counts.
    """

    progression: _Progression
    phase: str  # start, zero, whole, point, fraction
    value: int
    num_read: int  # digits after the point, at most `places`

    can_be_empty = False
    is_labelled = False

    def is_alive(self) -> bool:
        """Whether the number can be completed."""
        those = self.progression
        if self.phase == "start":
            return those.high is None or those.has_one(0, those.high)
        scale: int = 10 ** (those.places - self.num_read)
        first, last = self.value * scale, (self.value + 1) * scale - 1
        if those.has_one(first, last):
            return True
        if self.phase != "whole":
            return False
        if those.high is None:
            return True  # more digits reach every remainder
        while first <= those.high:
            first, last = first * 10, last * 10 + 9
            if those.has_one(first, last):
                return True
        return False

    @property
    def labels(self) -> tuple[Hashable, ...]:
        if self.phase in ("start", "point"):
            return ()
        value = self.value * 10 ** (self.progression.places - self.num_read)
        return (None,) if self.progression.has_one(value, value) else ()

    def transitions(self) -> Transitions:
        ways = [(48 + digit, self._after(digit)) for digit in range(10)]
        if self.phase in ("zero", "whole"):
            ways.append((ord("."), self._with("point", self.value, 0)))
        by_target: dict[Node, int] = {}
        for byte, target in ways:
            if target is not None and target.is_alive():
                by_target[target] = by_target.get(target, 0) | 1 << byte
        return tuple((mask, target) for target, mask in by_target.items())

    def _after(self, digit: int) -> _Multiples | None:
        if self.phase == "start":
            return self._with("whole" if digit else "zero", digit, 0)
        if self.phase == "whole":
            return self._with("whole", self.value * 10 + digit, 0)
        if self.phase == "zero":
            return None
        if self.num_read < self.progression.places:
            return self._with("fraction", self.value * 10 + digit, self.num_read + 1)
        return None if digit else self._with("fraction", self.value, self.num_read)  # zeros do not change the value

    def _with(self, phase: str, value: int, num_read: int) -> _Multiples:
        those = self.progression
        if phase == "whole" and those.high is None and value * 10**those.places >= those.is_periodic_from:
            those = _progression(those.modulus, those.places, 0, None, those.factors, frozenset())
            value %= those.period
        return _Multiples(those, phase, value, num_read)

    def __repr__(self) -> str:
        those = self.progression
        return f"multiples({those.modulus}e-{those.places}, {those.low}..{those.high}, {self.phase} {self.value})"
