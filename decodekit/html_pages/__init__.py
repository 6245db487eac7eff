"""Pages that show what was found: one file without scripts, the same look for all of them.

A report has a style sheet of its own after `page.css`, and pictures in SVG whose colours stand in the elements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from secrets import token_hex

INK, SOFT, LINE, BAR, FAULT = "#1c2330", "#5b6678", "#d9dee7", "#3b6fd4", "#b3261e"
"""Colours on a light page, those of `page.css`: text, remarks, lines, bars and what went wrong."""


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a page may do: nothing but to be styled by itself. What is escaped cannot run; this is the wall behind it."""


def sheet(room: str, name: str) -> str:
    """A style sheet of a package."""
    return files(room).joinpath(name).read_text(encoding="utf-8")


def page_html(title: str, parts: Iterable[str], room: str, name: str = "report.css") -> str:
    """A page of HTML parts; `room` and `name` are the package and its style sheet that goes on from `page.css`."""
    style = sheet("decodekit.html_pages", "page.css") + sheet(room, name)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def new_anchor() -> str:
    """The beginning of the anchors of a piece: a page of a notebook has many pieces, and some of them twice."""
    return f"n{token_hex(6)}"


def figure_html(caption: str, content: str) -> str:
    """A picture or table, as HTML, with its caption."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{content}</figure>"


def table_html(rows: Iterable[Sequence[str]], heading: Sequence[str] = ()) -> str:
    """A table of texts, as HTML; without a heading there is none."""
    first = "".join(f"<th>{escape(name)}</th>" for name in heading)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in ([first] if first else []) + lines) + "</table>"


LABEL_SIZE = 11
"""Font size of the labels in pictures."""


def label_width(text: str) -> float:
    """The largest width of a label of a picture, whatever font the reader has.

    Pictures have no layout of their own: what is wider than its room is cut, and "100 %" reads "00 %".
    """
    return LABEL_SIZE * sum(_share_of_em(character) for character in text)


def _share_of_em(character: str) -> float:
    if character in " .,:;|!'ijlft()[]/-":
        return 0.42
    if character.isdigit():
        return 0.66
    if character in "mwMWOQ@%&" or not character.isascii():  # what is written as high as it is wide, for one
        return 1.1
    return 0.86 if character in "+<=>~^#" or not character.islower() else 0.66


def shortened(text: str, width: float) -> str:
    """The text, or as much of its beginning as is no wider than that, with an ellipsis."""
    if label_width(text) <= width:
        return text
    size = next(size for size in range(len(text), -1, -1) if label_width(f"{text[:size]}…") <= width or not size)
    return f"{text[:size]}…"


def round_step(raw: float) -> float:
    """The least of 1, 2, 5 and 10 times a power of ten that is at least `raw`, which is above 0."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def page_bytes(html: str) -> bytes:
    """A page in UTF-8. A file name that Python could not decode is written as its bytes (PEP 383), any other half of a
    surrogate pair as U+FFFD."""
    return re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", html).encode("utf-8", "surrogateescape")
