"""What the languages of grammars have in common below their syntax: strings, token ids and JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NoReturn

from decodekit.constraints.grammar.source import Position
from decodekit.errors import ResourceLimitError, UnsupportedSchemaError

MAX_TOKEN_IDS: Final = 1_000
"""Bound on the ids of one item such as ``<[100-199]>``."""


def token_ids(text: str, place: Position) -> tuple[int, ...]:
    """The ids of ``<[7]>`` or ``<[7,10-12]>``, of which `text` is what stands between the square brackets.

    Raises:
        InvalidConstraintError: no numbers, or a range in the wrong order.
        UnsupportedSchemaError: all tokens (``*``) or all but some (``^``).
        ResourceLimitError: more than `MAX_TOKEN_IDS` ids.
    """
    if text.startswith("^") or text == "*":
        place.fail(
            "all tokens, or all but some, are not supported as an item",
            "the ids, or a terminal for the text",
            UnsupportedSchemaError,
        )
    ids: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            place.fail("a token by its number is <[7]>, several are <[7,10-12]>")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first + len(ids) >= MAX_TOKEN_IDS:
            place.fail(f"more than {MAX_TOKEN_IDS:,} token ids", "fewer ids", ResourceLimitError)
        ids += range(first, last + 1)
    return tuple(dict.fromkeys(ids))


def check_encodable(text: str, place: Position) -> None:
    """Refuse surrogates, which have no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place.fail(
            f"the string holds the surrogate U+{ord(text[error.start]):X}, which has no UTF-8 form",
            "\\U and eight digits for a character beyond U+FFFF",
        )


def read_json(text: str, start: int, place: Callable[[int], Position]) -> tuple[object, int]:
    """The JSON value that begins at `start`, and where it ends. Raises errors that show the place."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON value")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) < len(pairs):
            raise ValueError("a key occurs twice in an object")
        return value

    decoder = json.JSONDecoder(object_pairs_hook=unique, parse_constant=refuse_constant)
    try:
        return decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        place(error.pos).fail(f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}")
    except RecursionError:
        place(start).fail("the JSON value is nested too deeply", "fewer levels", ResourceLimitError)
    except ValueError as error:
        place(start).fail(f"this is not JSON: {error}")
