"""The text of a grammar and places in it, for errors that show the line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn, TypeVar

from decodekit.errors import ConstraintError, InvalidConstraintError, ResourceLimitError

MAX_LENGTH: Final = 2_000_000
"""Bound on the characters of a grammar."""
MAX_DEPTH: Final = 100
"""Bound on groups within groups, and on templates within the arguments of templates."""
MAX_COUNT: Final = 2**32
"""Bound on the numbers of a counted repetition."""

_MAX_COMPARED: Final = 10_000  # names that are compared with a misspelt one
_Error = TypeVar("_Error", bound=ConstraintError)


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a grammar, with the name of its file (None if it was given as text).

    Raises:
        ResourceLimitError: the text is longer than `MAX_LENGTH` characters.
    """

    text: str
    file: str | None = None

    def __post_init__(self) -> None:
        if len(self.text) > MAX_LENGTH:
            raise ResourceLimitError(
                f"the grammar has {len(self.text):,} characters, at most {MAX_LENGTH:,} may be", at=self.file
            )


class Position(NamedTuple):
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

    def locate(self, error: _Error) -> _Error:
        """The same error about a part of the grammar, with the place of the part in front of its own."""
        at = str(self) if error.at is None else f"{self.short}, {error.at}"
        return type(error)(error.cause, at=at, hint=error.hint)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """A hint that names what may be meant by `name`; None if nothing is near."""
    candidates = [other for _, other in zip(range(_MAX_COMPARED), names, strict=False)]
    folded = [other for other in candidates if other.lower() == name.lower()]
    near = folded[:1] or difflib.get_close_matches(name, candidates, n=1)
    return f"{near[0]!r}" if near else None
