"""Conditions on the settings of processors, with errors that name the setting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from decodekit.errors import OptionError


def require(name: str, value: object, condition: bool, expected: str, hint: str | None = None) -> None:
    """Raise an `OptionError` that says what ``name`` must be unless the condition holds."""
    if not condition:
        raise OptionError(f"{name} must be {expected}, not {value!r}", at=name, hint=hint)


def is_number(value: object) -> bool:
    """Whether this is a finite number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def is_count(value: object, least: int = 1) -> bool:
    """Whether this is an integer of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_integer(name: str, value: object, least: int = 1) -> None:
    """Raise an `OptionError` unless the option ``name`` is an integer of at least ``least``."""
    if not is_count(value, least):
        raise OptionError(f"{name}={value!r} is not an integer from {least} on", at=name)


def plain(value: Any) -> Any:
    """A number or an array of numpy or torch as a number or lists of Python; anything else as it is."""
    if type(value).__module__ in ("builtins", "types") or not hasattr(value, "tolist"):
        return value
    return value.tolist()


def token_ids(name: str, values: Iterable[int], *, may_be_empty: bool = False) -> tuple[int, ...]:
    """The token ids, ascending and once each.

    Raises:
        OptionError: there are none, or something is not a token id.
    """
    require(name, values, isinstance(values, Iterable) and not isinstance(values, str), "token ids")
    ids = tuple(values)
    require(name, ids, may_be_empty or len(ids) > 0, "at least one token id")
    for value in ids:
        require(name, value, is_count(value, 0), "token ids")
    return tuple(sorted(set(ids)))


def token_sequence(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """The token ids in the order given.

    Raises:
        OptionError: there are none, or something is not a token id.
    """
    is_sequence = isinstance(values, Sequence) and not isinstance(values, str | bytes) and len(values) > 0
    require(name, values, is_sequence, "a non-empty sequence of token ids")
    for value in values:
        require(name, values, is_count(value, 0), "a non-empty sequence of token ids")
    return tuple(values)
