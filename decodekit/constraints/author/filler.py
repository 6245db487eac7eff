r"""The filler of a JSON text: white space between its tokens, escapes in its strings, digits without end.

A model that may write either as it likes can spend its whole budget on them (``"\u006c\u006f…"``, a page of blanks),
and the text that is cut shows it. `remark` says so, and names the option that forbids it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from decodekit.constraints.constraint import Constraint

MOSTLY: Final = 0.5
"""Share of the characters from which on a text is mostly of a kind."""
DOUBLE_DIGITS: Final = 17
"""What a double is written with at most."""
MIN_CHARACTERS: Final = 16
"""Shorter texts are too short to say what they are made of."""

_PART: Final = re.compile(r'"(?:[^"\\]|\\(?:u[0-9A-Fa-f]{0,4}|.|$))*(?:"|$)|[ \t\r\n]+', re.DOTALL)
_LAST_NUMBER: Final = re.compile(r"[\[:,\s]-?(\d[\d.]*)$")
_ESCAPE: Final = re.compile(r"\\(?:u[0-9A-Fa-f]{0,4}|.|$)", re.DOTALL)
_NEEDED: Final = re.compile(r'\\(?:["\\bfnrt]?|u?|u0{0,2}|u00(?:[01][0-9A-Fa-f]?|2|22|5|5[cC]))')


@dataclass(frozen=True)
class Filler:
    """Characters of a text, which may be the beginning of one, that say little."""

    blanks: int = 0  # white space between the tokens of JSON
    needless: int = 0  # escapes of characters that JSON can write as themselves
    needed: int = 0  # other escapes, such as line breaks
    digits: int = 0  # of the number at the end, beyond those that a double has


def filler_of(text: str) -> Filler:
    """Count; what stands in strings is not white space."""
    parts = _PART.findall(text)
    escapes = [escape for part in parts if part.startswith('"') for escape in _ESCAPE.findall(part)]
    blanks = sum(len(part) for part in parts if not part.startswith('"'))
    needed = sum(len(escape) for escape in escapes if _NEEDED.fullmatch(escape))
    last = _LAST_NUMBER.search(text)
    digits = max(0, len(last[1]) - DOUBLE_DIGITS) if last else 0
    return Filler(blanks, sum(map(len, escapes)) - needed, needed, digits)


def remark(constraint: Constraint, text: str) -> tuple[str, str] | None:
    """The filler that most of a text that was cut consists of, and the option against it; None if no kind is most."""
    from decodekit.constraints.request_formats import json_schema_in  # which brings the grammars along

    schema = json_schema_in(constraint)
    if schema is None or len(text) < MIN_CHARACTERS:
        return None
    found = filler_of(text)
    blanks = "natural" if schema.whitespace == "any" else "compact"
    kinds = {
        "white space between the values": (found.blanks, f'whitespace="{blanks}" (--whitespace {blanks})'),
        "escapes that JSON does not need": (found.needless, 'escapes="needed" (--escapes needed)'),
        "escapes in strings": (found.needed, "maxLength or a pattern for the strings"),
        "digits of one number": (found.digits, 'numbers="short" (--numbers short)'),
    }
    kind, (number, hint) = max(kinds.items(), key=lambda item: item[1][0])
    return (f"{number / len(text):.0%} of it is {kind}", hint) if number >= MOSTLY * len(text) else None
