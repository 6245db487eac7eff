"""JSON numbers within exact decimal bounds, as languages of bytes.

A language with a bound or a step holds these spellings of a value, and all of them:

- without an exponent: ``-12``, ``0.50``, ``-0``; with ``multipleOf`` other than 1 only these;
- with an exponent and one digit that is not zero before the point: ``1e-07``, ``6.02E+23``, which is how JSON writers
  print large and small numbers. Integers need a mantissa without fraction here: ``1e3``, not ``1.5e3``.

Other spellings (``0.5e1``, ``50e-1``) cannot be compared with a bound by any finite automaton; they are generated where
a number has no condition at all. Exponents end at 307 (at 99 after several digits), so that no reader overflows or
underflows: `json.loads` reads ``1e400`` as infinity, which is no number any more. All arithmetic is exact: bounds are
fractions, digits are compared as digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Final

from decodekit.constraints import ir
from decodekit.constraints.ir import Node, Transitions
from decodekit.constraints.json_schema.text import WordTable
from decodekit.errors import ResourceLimitError

MAX_DIGITS: Final = 1_000
"""Bound on the decimal digits of a bound, a step or a value of a schema."""
_MANY_DIGITS: Final = 40
"""A bound with more digits is read beside another condition, an intersection: the nodes of its digits lie inside each
other, and an intersection is not rebuilt as a whole for each state (`ir.Node.saturated`)."""

_DIGIT: Final = ir.byte_set(b"0123456789")
_DIGITS: Final = ir.repeat(_DIGIT)
_NONZERO: Final = ir.byte_set(b"123456789")
_ZEROS: Final = ir.repeat(ir.literal(b"0"))
_POINT: Final = ir.literal(b".")
_MINUS: Final = ir.literal(b"-")
_SOME_NONZERO: Final = ir.concat(_DIGITS, _NONZERO, _DIGITS)
_NATURAL: Final = ir.choice(ir.literal(b"0"), ir.concat(_NONZERO, _DIGITS))  # no leading zeros
_POSITIVE: Final = ir.concat(_NONZERO, _DIGITS)
_FRACTION: Final = ir.optional(ir.concat(_POINT, ir.repeat(_DIGIT, 1)))
_NO_FRACTION: Final = ir.optional(ir.concat(_POINT, ir.repeat(ir.literal(b"0"), 1)))
_SOME_FRACTION: Final = ir.concat(_POINT, _SOME_NONZERO)
_E: Final = ir.byte_set(b"eE")
_SIGN: Final = ir.optional(ir.byte_set(b"+-"))
_PLUS: Final = ir.optional(ir.literal(b"+"))
_UP_TO_99: Final = ir.repeat(_DIGIT, 1, 2)
_UP_TO_307: Final = ir.choice(
    _UP_TO_99,
    ir.concat(ir.byte_set(b"12"), _DIGIT, _DIGIT),
    ir.concat(ir.literal(b"30"), ir.byte_set(b"01234567")),
)
_EXPONENT: Final = ir.concat(_E, _SIGN, _ZEROS, _UP_TO_307)
_SMALL_EXPONENT: Final = ir.concat(_E, _SIGN, _ZEROS, _UP_TO_99)
_ZERO_EXPONENT: Final = ir.concat(_E, _SIGN, ir.repeat(ir.literal(b"0"), 1))

_FIXED: Final = ir.concat(_NATURAL, _FRACTION)
_SCIENTIFIC: Final = ir.concat(_NONZERO, _FRACTION, _EXPONENT)
_SCIENTIFIC_ZERO: Final = ir.concat(ir.literal(b"0"), _NO_FRACTION, _EXPONENT)


def _signed(magnitude: Node) -> Node:
    return ir.concat(ir.optional(_MINUS), magnitude)


ANY_NUMBER: Final[Node] = _signed(
    ir.choice(
        ir.concat(_NATURAL, _FRACTION, ir.optional(_SMALL_EXPONENT)),
        ir.concat(_DIGIT, _FRACTION, _EXPONENT),
    )
)
"""Every JSON number."""
_COMPARABLE: Final = _signed(ir.choice(_FIXED, _SCIENTIFIC, _SCIENTIFIC_ZERO))
_PLAIN_INTEGER: Final = _signed(_NATURAL)
_INTEGER: Final = _signed(
    ir.choice(
        ir.concat(
            _NATURAL, _NO_FRACTION, ir.optional(ir.choice(ir.concat(_E, _PLUS, _ZEROS, _UP_TO_99), _ZERO_EXPONENT))
        ),
        ir.concat(_NONZERO, _NO_FRACTION, _E, _PLUS, _ZEROS, _UP_TO_307),
        _SCIENTIFIC_ZERO,
    )
)
_NOT_INTEGER: Final = _signed(
    ir.choice(
        ir.concat(_NATURAL, _SOME_FRACTION),
        ir.concat(_NONZERO, _FRACTION, _E, _MINUS, _ZEROS, ir.both(_POSITIVE, _UP_TO_307)),
    )
)


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


def _too_long() -> ResourceLimitError:
    return ResourceLimitError(
        f"a number of the schema has more than {MAX_DIGITS:,} decimal digits", hint="round the bound"
    )


def _split(value: Fraction) -> tuple[str, str]:
    """Digits before and after the point of a decimal number >= 0, without closing zeros."""
    if value.denominator == 1:
        return str(value.numerator), ""
    num_digits = _num_fraction_digits(value)
    digits = str(int(value * 10**num_digits)).rjust(num_digits + 1, "0")
    return digits[: len(digits) - num_digits], digits[len(digits) - num_digits :]


def _num_fraction_digits(value: Fraction) -> int:
    """The least d with ``value * 10**d`` an integer; the denominator of a decimal number has factors 2 and 5 only."""
    twos, fives, rest = 0, 0, value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives)


def _digits_above(digit: str, first: int = 0) -> Node:
    return ir.byte_set(b"0123456789"[max(int(digit) + 1, first) :])


def _digits_below(digit: str, first: int = 0) -> Node:
    return ir.byte_set(b"0123456789"[first : int(digit)])


def _natural_above(digits: str) -> Node:
    """Naturals greater than `digits`."""
    num_digits = len(digits)
    if digits == "0":
        return _POSITIVE
    greater: Node = ir.EMPTY
    for index in range(num_digits - 1, -1, -1):
        rest = ir.repeat(_DIGIT, num_digits - 1 - index, num_digits - 1 - index)
        same = ir.concat(ir.literal(digits[index].encode()), greater)
        greater = ir.choice(ir.concat(_digits_above(digits[index]), rest), same)
    return ir.choice(greater, ir.concat(_NONZERO, ir.repeat(_DIGIT, num_digits)))


def _natural_below(digits: str) -> Node:
    """Naturals less than `digits`."""
    num_digits = len(digits)
    if digits == "0":
        return ir.EMPTY
    less: Node = ir.EMPTY
    for index in range(num_digits - 1, -1, -1):
        rest = ir.repeat(_DIGIT, num_digits - 1 - index, num_digits - 1 - index)
        same = ir.concat(ir.literal(digits[index].encode()), less)
        less = ir.choice(ir.concat(_digits_below(digits[index], 1 if index == 0 else 0), rest), same)
    shorter = ir.concat(_NONZERO, ir.repeat(_DIGIT, 0, num_digits - 2)) if num_digits > 1 else ir.EMPTY
    return ir.choice(less, shorter, ir.literal(b"0"))


def _fraction_above(digits: str, *, strict: bool) -> Node:
    """What may stand after equal digits before the point for a number >= (or >) ``x.digits``."""
    if not digits:
        return _SOME_FRACTION if strict else _FRACTION
    node = _SOME_NONZERO if strict else _DIGITS
    for digit in reversed(digits):
        node = ir.choice(ir.concat(_digits_above(digit), _DIGITS), ir.concat(ir.literal(digit.encode()), node))
    return ir.concat(_POINT, node)


def _fraction_below(digits: str, *, strict: bool) -> Node:
    """What may stand after equal digits before the point for a number <= (or <) ``x.digits``."""
    if not digits:
        return ir.EMPTY if strict else _NO_FRACTION
    node = ir.EMPTY if strict else _ZEROS
    for index in range(len(digits) - 1, -1, -1):
        same = ir.concat(ir.literal(digits[index].encode()), node)
        node = ir.choice(ir.concat(_digits_below(digits[index]), _DIGITS), same)
        if index:  # a shorter fraction is less, since the last digit of `digits` is not zero
            node = ir.choice(ir.EPSILON, node)
    return ir.optional(ir.concat(_POINT, node))


def _magnitude_above(bound: Fraction, *, strict: bool) -> Node:
    """Unsigned comparable spellings of numbers >= (or >) `bound` >= 0."""
    if bound == 0:
        positive = ir.choice(ir.concat(_POSITIVE, _FRACTION), ir.concat(ir.literal(b"0"), _SOME_FRACTION), _SCIENTIFIC)
        zero = ir.concat(ir.literal(b"0"), _NO_FRACTION, ir.optional(_EXPONENT))
        return positive if strict else ir.choice(positive, zero)
    whole, fraction = _split(bound)
    fixed = ir.choice(
        ir.concat(_natural_above(whole), _FRACTION),
        ir.concat(ir.literal(whole.encode()), _fraction_above(fraction, strict=strict)),
    )
    exponent, first, rest = _scientific_parts(bound)
    mantissa = ir.choice(
        ir.concat(_digits_above(first, 1), _FRACTION),
        ir.concat(ir.literal(first.encode()), _fraction_above(rest, strict=strict)),
    )
    return ir.choice(
        fixed,
        ir.concat(_NONZERO, _FRACTION, _exponent_above(exponent)),
        ir.concat(mantissa, _exponent_equal(exponent)),
    )


def _magnitude_below(bound: Fraction, *, strict: bool) -> Node:
    """Unsigned comparable spellings of numbers <= (or <) `bound` >= 0."""
    zero = ir.concat(ir.literal(b"0"), _NO_FRACTION, ir.optional(_EXPONENT))
    if bound == 0:
        return ir.EMPTY if strict else zero
    whole, fraction = _split(bound)
    fixed = ir.choice(
        ir.concat(_natural_below(whole), _FRACTION),
        ir.concat(ir.literal(whole.encode()), _fraction_below(fraction, strict=strict)),
    )
    exponent, first, rest = _scientific_parts(bound)
    mantissa = ir.choice(
        ir.concat(_digits_below(first, 1), _FRACTION),
        ir.concat(ir.literal(first.encode()), _fraction_below(rest, strict=strict)),
    )
    return ir.choice(
        fixed,
        zero,
        ir.concat(_NONZERO, _FRACTION, _exponent_below(exponent)),
        ir.concat(mantissa, _exponent_equal(exponent)),
    )


def _scientific_parts(value: Fraction) -> tuple[int, str, str]:
    """(k, d, f) with ``value == d.f * 10**k``, one digit d that is not zero, no closing zeros in f."""
    whole, fraction = _split(value)
    if whole != "0":
        digits, exponent = whole + fraction, len(whole) - 1
    else:
        digits = fraction.lstrip("0")
        exponent = len(digits) - len(fraction) - 1
    return exponent, digits[0], digits[1:].rstrip("0")


def _exponent(positive: Node, negative: Node) -> Node:
    """``e+k`` with k in one set, ``e-k`` with k in another; leading zeros are legal in an exponent."""
    plus = ir.concat(_PLUS, _ZEROS, ir.both(positive, _UP_TO_307))
    return ir.concat(_E, ir.choice(plus, ir.concat(_MINUS, _ZEROS, ir.both(negative, _UP_TO_307))))


def _exponent_equal(exponent: int) -> Node:
    same = ir.literal(str(abs(exponent)).encode())
    if exponent == 0:
        return _exponent(same, same)
    return _exponent(same, ir.EMPTY) if exponent > 0 else _exponent(ir.EMPTY, same)


def _exponent_above(exponent: int) -> Node:
    if exponent >= 0:
        return _exponent(_natural_above(str(exponent)), ir.EMPTY)
    return _exponent(_NATURAL, _natural_below(str(-exponent)))


def _exponent_below(exponent: int) -> Node:
    if exponent > 0:
        return _exponent(_natural_below(str(exponent)), _NATURAL)
    return _exponent(ir.EMPTY, _natural_above(str(-exponent)))


@lru_cache(maxsize=1024)
def _at_least(bound: Fraction, strict: bool) -> Node:
    magnitude = abs(bound)
    if bound > 0:
        return _magnitude_above(magnitude, strict=strict)
    below = ir.concat(_MINUS, _magnitude_below(magnitude, strict=strict))
    return ir.choice(_magnitude_above(Fraction(0), strict=strict and bound == 0), below)


@lru_cache(maxsize=1024)
def _at_most(bound: Fraction, strict: bool) -> Node:
    magnitude = abs(bound)
    if bound < 0:
        return ir.concat(_MINUS, _magnitude_above(magnitude, strict=strict))
    negative = ir.concat(_MINUS, _magnitude_above(Fraction(0), strict=strict and bound == 0))
    return ir.choice(_magnitude_below(magnitude, strict=strict), negative)


def _values(values: Iterable[Fraction]) -> Node:
    """Exactly these numbers, in every comparable spelling."""
    entries = [entry for value in values for entry in _spellings(value)]
    entries.sort(key=lambda entry: entry[0])
    table = WordTable([word for word, _ in entries], lambda index: entries[index][1](), _spell_ascii)
    return table.node()


@lru_cache(maxsize=100_000)  # as many as a schema may list, which is asked again for every one that is left out
def _spellings(value: Fraction) -> tuple[tuple[str, Callable[[], Node]], ...]:
    """The digits of a number in its spellings, and what may follow them."""
    entries: list[tuple[str, Callable[[], Node]]] = []
    whole, fraction = _split(abs(value))
    for sign in ("", "-") if value == 0 else ("-",) if value < 0 else ("",):
        fixed = f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
        entries.append((fixed, partial(_more_zeros, fraction)))
        if value == 0:
            entries.append((fixed, partial(ir.concat, _NO_FRACTION, _EXPONENT)))
            continue
        exponent, first, rest = _scientific_parts(abs(value))
        mantissa = f"{sign}{first}.{rest}" if rest else f"{sign}{first}"
        entries.append((mantissa, partial(_more_zeros, rest, exponent)))
    return tuple(entries)


def _more_zeros(fraction: str, exponent: int | None = None) -> Node:
    """What may follow a number with these digits after its point: zeros, and its exponent if it has one."""
    zeros = _ZEROS if fraction else _NO_FRACTION
    return zeros if exponent is None else ir.concat(zeros, _exponent_equal(exponent))


def _spell_ascii(character: str) -> Node:
    return ir.literal(character.encode())


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
        low, low_strict = self.low, self.low_strict
        if other.low is not None and (low is None or (other.low, other.low_strict) > (low, low_strict)):
            low, low_strict = other.low, other.low_strict
        high, high_strict = self.high, self.high_strict
        if other.high is not None and (high is None or (other.high, not other.high_strict) < (high, not high_strict)):
            high, high_strict = other.high, other.high_strict
        values = self.values
        if other.values is not None:
            values = other.values if values is None else values & other.values
        return NumberSpec(
            low,
            low_strict,
            high,
            high_strict,
            _least_common_multiple(self.step, other.step),
            self.is_integer or other.is_integer,
            self.is_plain or other.is_plain,
            values,
            self.no_multiples | other.no_multiples,
            self.no_values | other.no_values,
            self.languages | other.languages,
        )

    def admits(self, value: Fraction) -> bool:
        """Whether bounds, steps and integrality admit a value; `languages` are not asked."""
        return not (
            value in self.no_values
            or any((value / step).denominator == 1 for step in self.no_multiples)
            or self._is_outside(value)
        )

    @cached_property
    def admitted_values(self) -> frozenset[Fraction]:
        """Those of `values` that the other conditions admit, `languages` aside."""
        values = (self.values or frozenset()) - self.no_values
        is_free = self.low is self.high is self.step is None and not (
            self.no_multiples or self.is_integer or self.is_plain
        )
        return values if is_free else frozenset(value for value in values if self.admits(value))

    @cached_property
    def whole_step(self) -> Fraction | None:
        """What every value is a multiple of; None if there is no such number."""
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
        if step is None:
            if self.low is None or self.high is None or self.low < self.high:
                return False
            return not self.admits(self.low)
        if any((step / other).denominator == 1 for other in self.no_multiples):
            return True
        if self.low is None or self.high is None:
            return False
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return last - first <= _MAX_TRIED and not any(self.admits(n * step) for n in range(first, last + 1))

    def _is_outside(self, value: Fraction) -> bool:
        return (
            (self.low is not None and (value < self.low or (self.low_strict and value == self.low)))
            or (self.high is not None and (value > self.high or (self.high_strict and value == self.high)))
            or (self.step is not None and (value / self.step).denominator != 1)
            or ((self.is_integer or self.is_plain) and value.denominator != 1)
        )

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
            parts.append(_at_least(spec.low, spec.low_strict))
        if spec.high is not None:
            parts.append(_at_most(spec.high, spec.high_strict))
        if any(
            bound is not None and sum(map(len, _split(abs(bound)))) > _MANY_DIGITS for bound in (spec.low, spec.high)
        ):
            parts.append(_COMPARABLE)
        parts += (
            _NOT_INTEGER if step == 1 else ir.both(_signed(_FIXED), ir.complement(NumberSpec(step=step).node()))
            for step in sorted(spec.no_multiples)
        )
        if spec.no_values:
            parts.append(ir.both(_COMPARABLE, ir.complement(_values(spec.no_values))))
    return ir.both(*parts) if parts else ANY_NUMBER


def not_integer(*, is_plain: bool) -> NumberSpec:
    """The numbers that ``"type": "integer"`` refuses; `is_plain` as in draft 4."""
    if not is_plain:
        return not_multiple(Fraction(1))
    return NumberSpec(languages=frozenset({ir.both(ANY_NUMBER, ir.complement(_PLAIN_INTEGER))}))


def not_multiple(step: Fraction) -> NumberSpec:
    """The numbers that are no multiple of `step`."""
    return NumberSpec(no_multiples=frozenset({step}))


def not_values(values: frozenset[Fraction]) -> NumberSpec:
    """All numbers but these."""
    return NumberSpec(no_values=values)


def members(spec: NumberSpec, limit: int) -> frozenset[Fraction] | None:
    """The numbers of a set if there are at most `limit`, else None."""
    if spec.node().is_empty:
        return frozenset()
    if spec.values is not None:
        candidates: Iterable[Fraction] = (value for value in spec.values if spec.admits(value))
    else:
        if spec.low is None or spec.high is None:
            return None  # no language of ours leaves finitely many of infinitely many numbers
        step = spec.whole_step
        if step is None:
            if spec.low != spec.high:
                return None
            candidates = (spec.low,)
        else:
            first, last = math.ceil(spec.low / step), math.floor(spec.high / step)
            has_gaps = spec.languages or spec.no_multiples or spec.no_values
            if last - first - 1 > (_MAX_CANDIDATES if has_gaps else limit):
                return None
            candidates = (value for n in range(first, last + 1) if spec.admits(value := n * step))
    found = set()
    for value in candidates:
        if not spec.languages or not ir.both(spec.node(), _values((value,))).is_empty:
            found.add(value)
            if len(found) > limit:
                return None
    return frozenset(found)


_MAX_TRIED: Final = 1_000  # multiples between bounds that are looked at one by one
_MAX_CANDIDATES: Final = 10_000  # of so many numbers, what a schema refuses one by one leaves many


def _least_common_multiple(first: Fraction | None, second: Fraction | None) -> Fraction | None:
    if first is None or second is None:
        return first if second is None else second
    denominator = math.lcm(first.denominator, second.denominator)
    return Fraction(math.lcm(int(first * denominator), int(second * denominator)), denominator)


def _multiples(spec: NumberSpec) -> Node:
    """Fixed-point spellings of the multiples of the step within the bounds, less those that are left out."""
    step = spec.whole_step
    assert step is not None
    places = _num_fraction_digits(step)
    scale = 10**places
    if places > MAX_DIGITS:
        raise _too_long()
    modulus = int(step * scale)
    # Scaled bounds: the least and the greatest integer X with X / 10**places within the bounds.
    low = None if spec.low is None else math.ceil(spec.low * scale)
    if low is not None and spec.low_strict and low == (spec.low or 0) * scale:
        low += 1
    high = None if spec.high is None else math.floor(spec.high * scale)
    if high is not None and spec.high_strict and high == (spec.high or 0) * scale:
        high -= 1
    factors = []
    for other in spec.no_multiples:
        common = _least_common_multiple(step, other)
        assert common is not None
        factors.append(int(common / step))
    # All that the states of one language have in common.
    out = (
        tuple(sorted(factors)),
        frozenset(int(value * scale) for value in spec.no_values if (value / step).denominator == 1),
    )
    positive = _magnitudes(modulus, places, max(low or 0, 0), high, *out)
    least = max(-high if high is not None else 0, 0)
    negative = _magnitudes(modulus, places, least, None if low is None else -low, out[0], frozenset(-x for x in out[1]))
    return ir.choice(positive, ir.concat(_MINUS, negative))


def _magnitudes(
    modulus: int, places: int, low: int, high: int | None, factors: tuple[int, ...], out: frozenset[int]
) -> Node:
    if high is not None and high < low:
        return ir.EMPTY
    node = _Multiples(_progression(modulus, places, low, high, factors, out), "start", 0, 0)
    return node if node.is_alive() else ir.EMPTY


@dataclass(frozen=True, eq=False)
class _Progression:
    """The integers X = n * `modulus`, `low` <= X <= `high`, that are not in `out`, where no factor divides n.

    X stands for X / 10**places.
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

    @cached_property
    def periodic(self) -> _Progression:
        """The same without bounds and exceptions."""
        return _progression(self.modulus, self.places, 0, None, self.factors, frozenset())

    def has_one(self, first: int, last: int) -> bool:
        """Whether one of them lies between `first` and `last`."""
        first = max(first, self.low)
        if self.high is not None:
            last = min(last, self.high)
        n = -(-first // self.modulus)
        while n * self.modulus <= last:
            if n * self.modulus not in self.out and all(n % factor for factor in self.factors):
                return True
            n += 1
        return False


_progression = lru_cache(maxsize=4096)(_Progression)  # one object for equal ones


class _Multiples(Node):
    """The unsigned numbers of a progression; derived when asked for.

    The state is the number read so far, scaled by the digits after the point, so whether it can still become one of
    them is arithmetic on an interval and no search. Far up and without an upper bound, only the remainder counts.
    """

    __slots__ = ("num_read", "phase", "progression", "value")

    can_be_empty = False
    is_labelled = False

    def __init__(self, progression: _Progression, phase: str, value: int, num_read: int):
        is_open = phase == "whole" and progression.high is None
        if is_open and value * 10**progression.places >= progression.is_periodic_from:
            progression = progression.periodic
            value %= progression.period
        self.progression = progression
        self.phase, self.value = phase, value  # phase: start, zero, whole, point, fraction
        self.num_read = num_read  # digits after the point, at most `places`

    def _key(self) -> tuple[Hashable, ...]:
        return (self.progression, self.phase, self.value, self.num_read)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Multiples) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

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
        rows = []
        for digit in range(10):
            after = self._after(digit)
            if after is not None and after.is_alive():
                rows.append((1 << (48 + digit), after))
        if self.phase in ("zero", "whole"):
            after = self._with("point", self.value, 0)
            if after.is_alive():
                rows.append((1 << ord("."), after))
        by_target: dict[Node, int] = {}
        for mask, target in rows:
            by_target[target] = by_target.get(target, 0) | mask
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
        return _Multiples(self.progression, phase, value, num_read)

    def __repr__(self) -> str:
        those = self.progression
        return f"multiples({those.modulus}e-{those.places}, {those.low}..{those.high}, {self.phase} {self.value})"
