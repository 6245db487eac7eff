"""A constraint with a function of the user's that judges the whole value.

A mask decides byte by byte. A function that says yes or no to a value is asked where the language accepts the text, and
no text that it refuses is ever finished. How far a refused text is taken back is in `Refusal.keep`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from decodekit.constraints.coercion import coerce
from decodekit.constraints.constraint import (
    Constraint,
    Guard,
    GuardReader,
    Refusal,
    WorkingGuard,
    WrappedConstraint,
    judging_of,
    reader_of,
    set_fields,
)
from decodekit.constraints.work_budget import Work
from decodekit.errors import ConstraintError, DecodekitError, InvalidConstraintError

Verdict: TypeAlias = bool | str
"""True is yes; False, or a text that says why, is no."""


@dataclass(frozen=True, slots=True)
class Guarded(WrappedConstraint):
    """The texts of a constraint whose value a function of yours accepts.

        dk.Guarded(Invoice, lambda invoice: invoice.net + invoice.tax == invoice.total or "the sum is wrong")

    The function sees what `Completion.value` would be. It is asked while decoding, whenever a text may end, and what it
    refuses is never returned: tokens are drawn again, at the end first, then further and further back. So it should
    refuse what is rare; what can be said in the constraint itself belongs there.

    Args:
        constraint: a `Constraint`, or what `as_constraint` takes as one.
        function: given a value, True if it is accepted; False, or a str that says why, if not. It must be a pure
            function of the value. An exception that it raises is the error of the row (`ConstraintError`).

    Raises:
        InvalidConstraintError: the function cannot be called, or `constraint` is none.
    """

    constraint: Constraint
    function: Callable[..., Verdict]

    def __init__(self, constraint: object, function: Callable[..., Verdict]) -> None:
        if not callable(function):
            raise InvalidConstraintError(
                f"a guard is a function of the value, not a {type(function).__name__}",
                at="function",
                hint='Guarded(schema, lambda value: value["low"] <= value["high"])',
            )
        set_fields(self, constraint=coerce(constraint), function=function)

    def parse(self, text: str) -> object:
        """The value that the inner constraint gives.

        Raises:
            ValueError: the text is none of the constraint's, or the function refuses its value.
        """
        value = self.constraint.parse(text)
        message = _ask(self.function, value)
        if message is not None:
            raise ValueError(message)
        return value

    def guard(self) -> Guard:
        """First the guard of the inner constraint, if it has one, then the function."""
        return _FunctionGuard(self)


@dataclass(frozen=True, slots=True)
class _FunctionGuard(WorkingGuard):
    guarded: Guarded

    def reader(self) -> GuardReader | None:
        """That of the inner guard: the function sees whole values only."""
        inner = self.guarded.constraint.guard()
        return None if inner is None else reader_of(inner)

    def judging(self, text: bytes) -> Work[Refusal | None]:
        inner = self.guarded.constraint.guard()
        refusal = None if inner is None else (yield from judging_of(inner, text))
        if refusal is not None:
            return refusal
        keep = len(text)  # nothing is known about where the fault lies
        try:
            value = self.guarded.constraint.parse(text.decode())
        except DecodekitError:
            raise
        except Exception as error:  # a validator of the user's own type raises what it likes
            return Refusal(keep, "the whole value", f"the text has no value: {type(error).__name__}: {error}")
        message = _ask(self.guarded.function, value)
        return None if message is None else Refusal(keep, "the whole value", message)


def _ask(function: Callable[..., Verdict], value: object) -> str | None:
    """The reason why the function refuses the value; None if it does not."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        verdict = function(value)
    except DecodekitError:
        raise
    except Exception as error:  # a program of the user's, which raises what it likes
        raise ConstraintError(
            f"the guard {name} raised {type(error).__name__}: {error}",
            at=f"{value!r:.200}",
            hint="a function that answers True, False or a text for every value that the constraint admits",
        ) from error
    if isinstance(verdict, str):
        return verdict
    if verdict:
        return None
    return "the guard refuses the value" if name == "<lambda>" else f"the guard {name} refuses the value"
