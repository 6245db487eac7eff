"""Parts one after the other, one of several, many, or none; and free text between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from decodekit.constraints.composition.composed import Composed, Special, checked_text, expression_of, part_of, row
from decodekit.constraints.composition.free_text import endings_before, free_text
from decodekit.constraints.constraint import Constraint, set_fields
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, Repeated, Terminal
from decodekit.errors import InvalidConstraintError

Part: TypeAlias = str | Special | Constraint


@dataclass(frozen=True, slots=True)
class Concat(Composed):
    r"""The parts one after the other.

        dk.Concat("Answer: ", dk.Regex(r"\d+"), ", because ", dk.Text())

    The value is the tuple of the values of the parts, without those that are fixed texts and special tokens.

    Args:
        parts: a str stands for itself, `Special` for a special token; the rest is what `as_constraint` takes.

    Raises:
        InvalidConstraintError: no parts, or something that is none.
    """

    parts: tuple[Part, ...]

    def __init__(self, *parts: object) -> None:
        set_fields(self, parts=_parts("Concat", parts))

    def expression(self) -> Expression:
        """A sequence."""
        return row(*self.parts)

    def value(self, parts: object) -> tuple[object, ...]:
        """The values of the parts that are not fixed."""
        values = cast("list[object]", parts)
        return tuple(value for part, value in zip(self.parts, values, strict=True) if isinstance(part, Constraint))


@dataclass(frozen=True, slots=True)
class OneOf(Composed):
    """A text of any of the options; the value is that of the first that the text fits.

    Args:
        options: as the parts of `Concat`; the value of a fixed text, or of a special token, is its text.

    Raises:
        InvalidConstraintError: no options, or something that is none.
    """

    options: tuple[Part, ...]

    def __init__(self, *options: object) -> None:
        set_fields(self, options=_parts("OneOf", options))

    def expression(self) -> Expression:
        """Alternatives."""
        return Alternatives(tuple(map(expression_of, self.options)))

    def value(self, parts: object) -> object:
        """The value of the option."""
        _, value = cast("tuple[int, object]", parts)
        return value


@dataclass(frozen=True, slots=True)
class Many(Composed):
    r"""`min` to `max` items, with a separator between them; the value is the list of the values of the items.

        dk.Many(dk.Regex(r"[a-z]+"), min=1, separator=", ")

    Where a text divides in several ways, each item from the first on is as short as it can be.

    Args:
        item: as a part of `Concat`.
        min: least number of items.
        max: largest number of items; None for no bound.
        separator: as a part of `Concat`; its value is not kept.

    Raises:
        InvalidConstraintError: negative or crossed bounds, or an item that is none.
    """

    item: Part
    min: int
    max: int | None
    separator: Part

    def __init__(self, item: object, min: int = 0, max: int | None = None, separator: object = "") -> None:
        check_bounds(min, max, "min", "max")
        part = part_of(item, "the item of Many")
        set_fields(self, item=part, min=min, max=max, separator=part_of(separator, "the separator of Many"))

    def expression(self) -> Expression:
        """One item and then pairs of a separator and an item, or nothing."""
        if self.max == 0:
            return EMPTY_TEXT
        item = expression_of(self.item)
        most = None if self.max is None else self.max - 1
        pairs = rounds(row(self.separator, item), self.min - 1 if self.min else 0, most)
        return Repeated(row(item, pairs), int(self.min > 0), 1)

    def value(self, parts: object) -> list[object]:
        """The values of the items."""
        some = cast("list[list[Any]]", parts)
        return [] if not some else [some[0][0], *(value for _, value in some[0][1])]


@dataclass(frozen=True, slots=True)
class Optional(Composed):
    """A text of the item, or none; the value is that of the item if the text fits it, else None.

    Args:
        item: as a part of `Concat`.

    Raises:
        InvalidConstraintError: the item is none.
    """

    item: Part

    def __init__(self, item: object) -> None:
        set_fields(self, item=part_of(item, "the item of Optional"))

    def expression(self) -> Expression:
        """Alternatives: the empty text of an item that has one is the item's."""
        return Alternatives((expression_of(self.item), EMPTY_TEXT))

    def value(self, parts: object) -> object:
        """The value of the item, or None."""
        number, value = cast("tuple[int, object]", parts)
        return value if number == 0 else None


@dataclass(frozen=True, slots=True)
class Text(Composed):
    r"""Free text; the value is the text.

        dk.Concat("Summary: ", dk.Text(until="\n", max_chars=200), Invoice)

    Args:
        until: the text ends with the first occurrence of this, which is not part of the value; None if it may end
            anywhere.
        max_chars: largest number of characters (code points), `until` not counted; None for no bound.
        min_chars: least number of characters.
        excludes: texts that it does not hold.

    Raises:
        InvalidConstraintError: an empty text to look for, one that holds another one that is excluded, or bounds that
            are negative or crossed.
    """

    until: str | None
    max_chars: int | None
    min_chars: int
    excludes: tuple[str, ...]

    def __init__(
        self, until: str | None = None, max_chars: int | None = None, min_chars: int = 0, excludes: Iterable[str] = ()
    ) -> None:
        check_bounds(min_chars, max_chars, "min_chars", "max_chars")
        if isinstance(excludes, str):
            raise InvalidConstraintError(
                "excludes takes several texts, not one", at="excludes", hint=f"excludes=[{excludes!r:.60}]"
            )
        words = tuple(checked_text(word, "excludes", may_be_empty=False) for word in excludes)
        if until is not None:
            checked_text(until, "until", may_be_empty=False)
            for word in words:
                if word in until:
                    raise InvalidConstraintError(f"{until!r:.60} holds the excluded {word!r:.60}", at="until")
        set_fields(self, until=until, max_chars=max_chars, min_chars=min_chars, excludes=words)

    def expression(self) -> Expression:
        """A language without the words, and `until` behind it."""
        if self.until is None:
            return Terminal(free_text(self.excludes, (), self.min_chars, self.max_chars), "text")
        words = (self.until, *self.excludes)
        before = free_text(words, endings_before(self.until, words), self.min_chars, self.max_chars)
        return row(Terminal(before, "text"), self.until)

    def value(self, parts: object) -> str:
        """The text."""
        return cast("str", parts if self.until is None else cast("list[str]", parts)[0])


def check_bounds(low: object, high: object, low_name: str, high_name: str) -> None:
    """Refuse numbers that bound nothing: no integers from 0 on, or crossed. `high` may be None."""
    for name, bound in ((low_name, low), (high_name, 0 if high is None else high)):
        if not isinstance(bound, int) or isinstance(bound, bool) or bound < 0:
            raise InvalidConstraintError(f"{name}={bound!r:.40} is no number from 0 on", at=name)
    if high is not None and cast("int", high) < cast("int", low):
        raise InvalidConstraintError(f"no number is at least {low} and at most {high}", at=f"{low_name}, {high_name}")


def _parts(owner: str, values: tuple[object, ...]) -> tuple[Part, ...]:
    if not values:
        raise InvalidConstraintError(f"{owner} of nothing", at=owner, hint=f'{owner}("a text", a_constraint)')
    return tuple(part_of(value, f"part {number} of {owner}") for number, value in enumerate(values, 1))


def rounds(item: Expression, min: int, max: int | None) -> Expression:
    """The item `min` to `max` times; its value is a list in any case."""
    return EMPTY_TEXT if max == 0 else Repeated(item, min, max)
