"""The parts of compositions: texts, special tokens and other constraints, and rows of them."""

from __future__ import annotations

from dataclasses import dataclass

from decodekit.constraints.coercion import coerce
from decodekit.constraints.composition.split import Composed as Composed
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Concatenated, Expression, Inline, SpecialToken, Terminal
from decodekit.constraints.language.ir import literal
from decodekit.errors import InvalidConstraintError


@dataclass(frozen=True, slots=True)
class Special:
    """One special token, by its name in the vocabulary: ``dk.Special("<tool_call>")``.

    Only for tokens that the vocabulary has as special ones: compiling says so otherwise. In many families a marker of
    the same spelling is plain text, or an added token that stands for its text: then a str says it. Where it may be
    either, ``OneOf(Special("<tool_call>"), "<tool_call>")`` needs neither.

    Raises:
        InvalidConstraintError: no name.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidConstraintError(
                f"{self.name!r} is no name of a special token", hint='a name such as "<|im_end|>"'
            )
        checked_text(self.name, "Special")


def part_of(value: object, at: str) -> str | Special | Constraint:
    """A part of a composition: a str stands for itself, a special token too, the rest is what `as_constraint` takes."""
    if isinstance(value, str):
        checked_text(value, at)
        return value
    if isinstance(value, Special):
        return value
    try:
        return coerce(value)
    except InvalidConstraintError as error:
        raise InvalidConstraintError(error.cause, at=error.at or at, hint=error.hint) from None


def checked_text(text: object, at: str, may_be_empty: bool = True) -> str:
    """The text, if it is one."""
    if not isinstance(text, str):
        raise InvalidConstraintError(f"{text!r:.60} is no text", at=at, hint="a str")
    if not text and not may_be_empty:
        raise InvalidConstraintError("an empty text is everywhere", at=at, hint="at least one character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidConstraintError(
            f"{text!r:.60} holds the surrogate {text[error.start]!r}, which has no UTF-8 form", at=at
        ) from None
    return text


def expression_of(part: str | Special | Constraint | Expression) -> Expression:
    """A part as an expression, which it may be already."""
    if isinstance(part, str):
        return Terminal(literal(part.encode())) if part else EMPTY_TEXT
    if isinstance(part, Special):
        return SpecialToken(part.name)
    return Inline(part) if isinstance(part, Constraint) else part


def row(*parts: str | Special | Constraint | Expression) -> Concatenated:
    """Parts one after the other; the value is a list of as many values, also of fixed texts."""
    return Concatenated(tuple(map(expression_of, parts)))
