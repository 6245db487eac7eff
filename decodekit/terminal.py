"""Output for a person: texts of strangers move no cursor, set no title and begin no line of their own.

    one_line("a\\x1b[2J\\nfailed b")   ->   a\\x1b[2J\\nfailed b

Names of files, ids, errors of other programs and texts of a model may hold any character. A terminal obeys some of
them: control characters (C0, DEL, C1), and those that turn the direction of a line. They are written as escapes.
"""

from __future__ import annotations

import re
from typing import Final

OBEYED: Final = "\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
"""What a terminal obeys, as a class of a regular expression."""

_IN_LINE: Final = re.compile(f"[{OBEYED}]")
_IN_TEXT: Final = re.compile(f"(?![\n\t])[{OBEYED}]")


def one_line(text: object) -> str:
    """A name, an id or a message as a part of a line; line feeds become escapes, too."""
    return _IN_LINE.sub(_escape, str(text))


def plain_lines(text: str) -> str:
    """A text of several lines; line feeds and tabs stay."""
    return _IN_TEXT.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def json_lines(text: str) -> str:
    """A JSON text, with what a terminal obeys as JSON escapes: it is the same value."""
    return _IN_TEXT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
