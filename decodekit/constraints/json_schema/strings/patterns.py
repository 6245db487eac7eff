r"""Regular expressions inside JSON strings: ECMA-262 patterns, over all spellings of each character.

Whether a text is such a pattern (the format ``regex``) is asked when the text is whole. Groups nest, names and numbers
refer to each other, and counts and ranges are ordered, so the patterns are no regular language, and a part of them as a
mask forbids what people write. So the mask admits every text, and a guard asks the parser of `pattern` (see
`guarding`). Not accepted are patterns that it refuses by name, such as escapes of letters that mean nothing and Unicode
properties that are no general category; and two groups of one name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from decodekit.constraints.json_schema.strings import character_search, text
from decodekit.constraints.language import node
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex import backtracking, regex
from decodekit.constraints.regex.syntax import parse, parse_groups
from decodekit.errors import ConstraintError, ResourceLimitError, UnsupportedSchemaError

MAX_PATTERNS: Final = 1_000
"""Bound on the `patternProperties` of one schema that a mask tells apart."""

node.deciders.append(character_search.is_empty)

_PIECE: Final = re.compile(
    r"\[(?:\\.|[^\]\\])*\]|\\k<(?P<name>[^>]*)>|\\(?P<number>[1-9][0-9]*)|\\."
    r"|\(\?<(?![=!])(?P<named>[^>]*)>|(?P<group>\((?!\?))|.",
    re.DOTALL,
)
_ANY_ATOM: Final = "(?:)"


def search_language(pattern: str, *, at: str) -> Node:
    """The texts in which `pattern` is found, as a body language.

    Raises:
        InvalidConstraintError: the pattern is malformed.
        UnsupportedSchemaError: it has something that is not regular, or not understood.
        ResourceLimitError: it is too long or too deep.
    """
    try:
        return regex.parse_search(pattern, "ecma", text.encode)
    except ConstraintError as error:
        where = at if error.at is None else f"{at}, {error.at}"
        raise type(error)(error.cause, at=where, hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class Searched:
    """The texts in which a pattern is found, as far as a mask can tell them.

    Attributes:
        texts: a body language that holds all of them.
        excess: why it holds others, too; None if it does not.
    """

    texts: Node
    excess: ResourceLimitError | None = None

    @property
    def others(self) -> Node:
        """A body language that holds all texts in which the pattern is not found."""
        return text.without(text.BODY, self.texts) if self.excess is None else text.BODY


def searched(pattern: str, *, at: str) -> Searched:
    """As `search_language`, where a guard asks `is_found` about what is not regular or exceeds a limit.

    Raises:
        InvalidConstraintError: the pattern is malformed.
        UnsupportedSchemaError: it has something that is not understood.
        ResourceLimitError: it is too long or its groups are too deep.
    """
    try:
        return Searched(search_language(pattern, at=at))
    except (UnsupportedSchemaError, ResourceLimitError) as error:
        texts = _superset(pattern)
        if texts is None:
            raise
        return Searched(texts, ResourceLimitError(error.cause, at=error.at, hint=error.hint))


@lru_cache(maxsize=512)
def _superset(pattern: str) -> Node | None:
    """A body language of all texts in which a pattern is found, and of others; None if it cannot be read at all."""
    try:
        tree, _ = parse_groups(pattern)
    except ConstraintError:
        return None
    try:
        return regex.search_of(backtracking.regular(tree), text.encode)
    except ConstraintError:
        return text.BODY


def check_syntax(pattern: str, *, at: str) -> None:
    """Refuse what `searched` refuses, without making a language.

    Raises:
        ConstraintError: as `searched`.
    """
    try:
        parse_groups(pattern)
    except ConstraintError as error:
        raise type(error)(error.cause, at=f"{at}, {error.at}", hint=error.hint) from error


def is_found(pattern: str, value: str) -> bool:
    """Whether a pattern is found in a text, by backtracking.

    Raises:
        ResourceLimitError: that takes too many steps.
    """
    tree, num_groups = parse_groups(pattern)
    return text.is_text(value) and backtracking.is_found(tree, num_groups, value)


def full_language(pattern: str) -> Node:
    """The texts that `pattern` matches as a whole; for patterns of our own."""
    return regex.full_match(pattern, "ecma", encode=text.encode)


def is_pattern(written: str) -> bool:
    """Whether a text is a pattern, with references only to groups that it has."""
    pieces = list(_PIECE.finditer(written))
    names = [piece["named"] for piece in pieces if piece["named"] is not None]
    num_groups = len(names) + sum(piece["group"] is not None for piece in pieces)
    if len(set(names)) < len(names):
        return False
    plain = ""
    for piece in pieces:
        name, number = piece["name"], piece["number"]
        is_reference = name is not None or number is not None
        if is_reference and (name not in names if number is None else int(number) > num_groups):
            return False
        # The parser makes automata and so knows no back-references. Any atom stands for one.
        plain += _ANY_ATOM if is_reference else piece[0]
    try:
        parse(plain, "ecma")
    except ConstraintError:
        return False
    return True
