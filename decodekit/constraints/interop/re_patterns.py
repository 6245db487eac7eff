"""Compiled patterns of `re` as `Regex`."""

from __future__ import annotations

import re
from typing import Final

from decodekit.constraints.regex.regex import Regex
from decodekit.errors import UnsupportedSchemaError

_LETTERS: Final = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x", re.ASCII: "a"}
_WITHOUT_MEANING: Final = re.UNICODE | re.DEBUG  # the default, and what prints the pattern


def constraint_of(pattern: re.Pattern[str]) -> Regex:
    """The texts that the pattern matches as a whole, as its `fullmatch` does."""
    if not isinstance(pattern.pattern, str):
        raise UnsupportedSchemaError(
            f"the pattern {pattern.pattern!r:.60} matches bytes, and texts are characters",
            hint='re.compile("...", re.ASCII) with the pattern as a str',
        )
    return Regex(pattern.pattern, flags=letters_of(pattern.flags))


def letters_of(flags: int) -> str:
    """The flags of `re` as the letters that `Regex` takes."""
    rest = flags & ~_WITHOUT_MEANING
    letters = "".join(letter for flag, letter in _LETTERS.items() if rest & flag)
    rest &= ~sum(_LETTERS)
    if rest:
        raise UnsupportedSchemaError(f"the flag {re.RegexFlag(rest)!r} is not supported", hint="the pattern without it")
    return letters
