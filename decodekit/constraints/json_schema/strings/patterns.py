"""Regular expressions inside JSON strings: ECMA-262 patterns, over all spellings of each character."""

from __future__ import annotations

from decodekit.constraints.json_schema.strings import character_search, text
from decodekit.constraints.language import node
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex import regex
from decodekit.errors import ConstraintError

node.deciders.append(character_search.is_empty)


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


def full_language(pattern: str) -> Node:
    """The texts that `pattern` matches as a whole; for patterns of our own."""
    return regex.full_match(pattern, "ecma", encode=text.encode)
