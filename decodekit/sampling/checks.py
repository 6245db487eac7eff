"""Domains of options, and errors that name the option.

SHARE.require("min_p", 1.5)    # OptionError: min_p must be a number from 0 to 1, got 1.5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from decodekit.errors import OptionError, out_of_domain


def require(name: str, value: object, condition: bool, expected: str, hint: str | None = None) -> None:
    """Raise an `OptionError` that says what ``name`` must be unless the condition holds."""
    if not condition:
        raise out_of_domain(name, expected, value, hint=hint)


def is_number(value: object) -> bool:
    """Whether this is a finite number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def is_zero(value: object) -> bool:
    """Whether this is the number 0."""
    return is_number(value) and value == 0


def is_count(value: object, least: int = 1) -> bool:
    """Whether this is an integer of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that an option may have.

    Args:
        text: in English, as it stands behind "must be".
        has: whether a value is one of them.
        hints: what to do with some values that are none.
    """

    text: str
    has: Callable[[Any], bool]
    hints: Callable[[Any], str | None] = lambda _: None

    def fault(self, option: str, value: object) -> OptionError | None:
        """The fault of an option with this value; None if there is none."""
        return None if self.has(value) else out_of_domain(option, self.text, value, hint=self.hints(value))

    def require(self, option: str, value: object) -> None:
        """Raise the fault of an option with this value."""
        fault = self.fault(option, value)
        if fault is not None:
            raise fault

    def hinting(self, hint: str, when: Callable[[Any], bool] = lambda _: True) -> Domain:
        """The same with a hint for wrong values, or for some of them."""
        return replace(self, hints=lambda value: hint if when(value) else None)

    @property
    def or_none(self) -> Domain:
        """The same with None."""
        has = self.has
        begin = "None," if " or " in self.text else "None or"
        return replace(self, text=f"{begin} {self.text}", has=lambda value: value is None or has(value))


def at_least(least: int) -> Domain:
    """Integers."""
    return Domain(f"an integer of at least {least}", lambda value: is_count(value, least))


def one_of(*names: str) -> Domain:
    """Names, as of a `Literal`."""
    *most, last = (f'"{name}"' for name in names)
    return Domain(f"{', '.join(most)} or {last}", lambda value: isinstance(value, str) and value in names)


def numbers(text: str, has: Callable[[float], bool] = lambda _: True) -> Domain:
    """Finite numbers."""
    return Domain(text, lambda value: is_number(value) and has(value))


def from_on(least: float) -> Domain:
    """Finite numbers from this one on."""
    return numbers(f"a finite number of at least {least:g}", lambda value: value >= least)


COUNT: Final = at_least(1)
FLAG: Final = Domain("True or False", lambda value: isinstance(value, bool))
NUMBER: Final = numbers("a finite number")
POSITIVE: Final = numbers("a finite number above 0", lambda value: value > 0)
SHARE: Final = numbers("a number from 0 to 1", lambda value: 0 <= value <= 1)
MASS: Final = numbers("a number above 0 and at most 1", lambda value: 0 < value <= 1)
INSIDE: Final = numbers("a number above 0 and below 1", lambda value: 0 < value < 1)
SEQUENCES: Final = Domain(
    "sequences of token ids", lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes)
)
TOKENS: Final = Domain("token ids", lambda value: isinstance(value, Iterable) and not isinstance(value, str))
SEED: Final = Domain("an integer from 0 to 2**63 - 1", lambda value: is_count(value, 0) and value < 1 << 63)


def faults_of(options: object, domains: Mapping[str, Domain]) -> Iterator[OptionError]:
    """The faults of those attributes whose values are out of their domains."""
    for name, domain in domains.items():
        fault = domain.fault(name, getattr(options, name))
        if fault is not None:
            yield fault


def plain(value: Any) -> Any:
    """A number or an array of numpy or torch as a number or lists of Python; anything else as it is."""
    if type(value).__module__ in ("builtins", "types") or not hasattr(value, "tolist"):
        return value
    return value.tolist()


def token_ids(name: str, values: Iterable[int], *, may_be_empty: bool = False) -> tuple[int, ...]:
    """The token ids, ascending and once each; an `OptionError` where one is none, or there is none."""
    TOKENS.require(name, values)
    ids = tuple(values)
    require(name, ids, may_be_empty or len(ids) > 0, "at least one token id")
    for value in ids:
        require(name, value, is_count(value, 0), "token ids")
    return tuple(sorted(set(ids)))


def token_sequence(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """The token ids in the order given; an `OptionError` where one is none, or there is none."""
    is_sequence = isinstance(values, Sequence) and not isinstance(values, str | bytes) and len(values) > 0
    require(name, values, is_sequence, "a non-empty sequence of token ids")
    for value in values:
        require(name, values, is_count(value, 0), "a non-empty sequence of token ids")
    return tuple(values)
