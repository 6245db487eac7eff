"""The base of all compositions: a text is that of an expression over parts, and so are its value and its guard."""

from __future__ import annotations

from dataclasses import dataclass

from decodekit.constraints.coercion import coerce
from decodekit.constraints.composition.split import HasParts, PartsGuard, Split
from decodekit.constraints.constraint import Constraint, Guard
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import (
    EMPTY_TEXT,
    Concatenated,
    Expression,
    Inline,
    Rules,
    SpecialToken,
    Terminal,
    special_tokens_of,
    walk,
)
from decodekit.constraints.language.ir import literal
from decodekit.constraints.network import Frame
from decodekit.errors import InvalidConstraintError


class Composed(HasParts):
    """A constraint made of parts. Subclasses say how, and what the values of the parts are together.

    A text may divide into the parts in several ways; which one counts is said in the module `split`. A special
    token stands in a text by its name.
    """

    __slots__ = ()

    def root(self) -> Frame:
        """The frame of a whole text.

        Raises:
            ConstraintError: what a part raises, or no text fits.
        """
        return root_frame(Rules({"text": self.expression()}, "text"))

    def parse(self, text: str) -> object:
        """The value of a whole text.

        Raises:
            ValueError: the text does not divide into the parts, or a part has no value.
        """
        split = Split(self.expression(), text.encode("utf-8", errors="surrogatepass"))
        if not split.is_whole:
            fits = split.data[: split.reached].decode("utf-8", errors="replace")
            raise ValueError(f"{text!r:.200} is no text of {self!r:.200}; it goes along up to {fits[-60:]!r}")
        return self.value(split.value())

    @property
    def num_bytes(self) -> int:
        """Those of the parts."""
        return sum(part.num_bytes for part in parts_of(self.expression()))

    def special_tokens(self) -> frozenset[str | int]:
        """Those of the parts."""
        return special_tokens_of(self.expression())

    def guard(self) -> Guard | None:
        """The guards of the parts, each for its part of the text; None if no part has one."""
        has_guards = any(part.guard() is not None for part in parts_of(self.expression()))
        return PartsGuard(self) if has_guards else None


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


def parts_of(expression: Expression) -> list[Constraint]:
    """The constraints of an expression, in order."""
    return [item.constraint for item in walk(expression) if isinstance(item, Inline)]
