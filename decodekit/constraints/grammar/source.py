"""The text of a grammar, places in it for errors that show the line, and what all syntaxes have in common."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from decodekit.errors import ConstraintError, InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError

MAX_LENGTH: Final = 2_000_000
"""Bound on the characters of a grammar."""
MAX_DEPTH: Final = 100
"""Bound on groups within groups, and on templates within the arguments of templates."""
MAX_COUNT: Final = 2**32
"""Bound on the numbers of a counted repetition."""
MAX_TOKEN_IDS: Final = 1_000
"""Bound on the ids of one item such as ``<[100-199]>``."""

_MAX_COMPARED: Final = 10_000  # names that are compared with a misspelt one


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a grammar, with the name of its file (None if it was given as text)."""

    text: str
    file: str | None = None

    def __post_init__(self) -> None:
        if len(self.text) > MAX_LENGTH:
            raise ResourceLimitError(
                f"the grammar has {len(self.text):,} characters, at most {MAX_LENGTH:,} may be", at=self.file
            )


class SourcePosition(NamedTuple):
    """A character of a source, by its offset."""

    source: Source
    offset: int

    @property
    def line(self) -> int:
        """The number of the line, from 1."""
        return self.source.text.count("\n", 0, self.offset) + 1

    @property
    def column(self) -> int:
        """The number of the character in its line, from 1."""
        return self.offset - self.source.text.rfind("\n", 0, self.offset)

    @property
    def short(self) -> str:
        """File, line and column."""
        file = "" if self.source.file is None else f"{self.source.file}, "
        return f"{file}line {self.line}, column {self.column}"

    def __str__(self) -> str:
        start = self.offset - self.column + 1
        end = self.source.text.find("\n", start)
        line = self.source.text[start : len(self.source.text) if end < 0 else end].rstrip("\r")
        low = max(self.column - 61, 0)  # of a long line, the part around the place
        shown = "".join(c if c.isprintable() else " " if c == "\t" else "·" for c in line[low : low + 100])
        return f"{self.short}\n      {shown}\n      {' ' * (self.column - 1 - low)}^"

    def fail(
        self, cause: str, hint: str | None = None, error: type[ConstraintError] = InvalidConstraintError
    ) -> NoReturn:
        """Raise an error that shows the place."""
        raise error(cause, at=str(self), hint=hint)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Errors about a part of the grammar have the place of the part in front of their own."""
        try:
            yield
        except ConstraintError as error:
            at = str(self) if error.at is None else f"{self.short}, {error.at}"
            raise type(error)(error.cause, at=at, hint=error.hint) from error


def nearest(name: str, names: Iterable[str]) -> str | None:
    """A hint that names what may be meant by `name`; None if nothing is near."""
    candidates = [other for _, other in zip(range(_MAX_COMPARED), names, strict=False)]
    folded = [other for other in candidates if other.lower() == name.lower()]
    near = folded[:1] or difflib.get_close_matches(name, candidates, n=1)
    return f"{near[0]!r}" if near else None


def token_ids(text: str, place: SourcePosition) -> tuple[int, ...]:
    """The ids of ``<[7]>`` or ``<[7,10-12]>``, of which `text` is what stands between the square brackets."""
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


def check_encodable(text: str, place: SourcePosition) -> None:
    """Refuse surrogates, which have no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place.fail(
            f"the string holds the surrogate U+{ord(text[error.start]):X}, which has no UTF-8 form",
            "\\U and eight digits for a character beyond U+FFFF",
        )


def read_json(text: str, start: int, place: Callable[[int], SourcePosition]) -> tuple[object, int]:
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
