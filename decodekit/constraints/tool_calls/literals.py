r"""The fixed texts of a format as they may be written: marks as texts or special tokens, blanks or none.

    "</function>\n</tool_call>"        the text </function>, a line break or none, the mark </tool_call>

A blank of a template may be left out, one by one, and no other stands in its place: where any white space may stand, a
model that nobody taught to call tools writes it up to the bound at every place, and its text is cut before its calls
are done. That goes for blanks between brackets, marks and the punctuation of JSON, which every parser reads past:

    left out     {"name":"f"    <tool_call>{    }</tool_call><tool_call>    [TOOL_CALLS][    }, {
    written      <invoke name=    name="x" string=    f\n```json\n{    role<|role_sep|>\n{    f(a=1)\ng(b=2)

Beside a letter, a fence or a name they tell the parts of a text, and other parsers want them; beside a text that is
written as it is they would be taken for some of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from decodekit.constraints.composition.composed import expression_of
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, SpecialToken, Terminal, sequence
from decodekit.constraints.language import ir

BLANKS: Final = " \t\r\n"
LETTER: Final = "a"
"""Stands for a word, or for a text that begins and ends with no blanks."""
TEXT: Final = "\0"
"""Stands for a text of which nothing is known: blanks beside it may be its own."""
_LOOSE: Final = frozenset('<>[](){},:"')
"""Beside which blanks tell nothing."""
_HEADER_END: Final = ("|>", "｜>")
"""How marks end behind which a line of a header may end."""
_MARK: Final = re.compile(r"<[^<>\s]+>?|\[/?[A-Z][A-Z_]*\]")
"""``<tool_call>``, ``<function=``, ``[TOOL_CALLS]``."""


def literal(
    text: str, marks: Iterable[str] = (), are_special: bool | None = None, *, before: str = "", after: str = ""
) -> Expression:
    """A text of a format.

    Args:
        text: as templates write it.
        marks: texts in it that may be special tokens of the same name.
        are_special: whether they are; None if they may be either.
        before, after: what stands beside it: a character, `LETTER` or `TEXT`; empty for nothing that minds blanks.
    """
    optional = _optional(text, before, after)
    items: list[Expression] = []
    place = 0
    for start, end in _places(text, marks):
        items += [_stretch(text, place, start, optional), mark(text[start:end], are_special)]
        place = end
    return sequence(*items, _stretch(text, place, len(text), optional))


def mark(name: str, are_special: bool | None) -> Expression:
    """A mark, as a special token, as its text, or as either."""
    if are_special is None:
        return Alternatives((SpecialToken(name), expression_of(name)))
    return SpecialToken(name) if are_special else expression_of(name)


def beginning(text: str, marks: Iterable[str]) -> str:
    """The beginning of a text behind its first blanks: a mark, or a part without blanks, whatever else is left out.

    It never ends as it begins (as ``aba`` does), so what is found of it first, in a text without it that it follows, is
    where that text ends. Empty if nothing but blanks stands there.
    """
    text = text.lstrip(BLANKS)
    optional = _optional(text)
    whole = text[: min(optional, default=len(text))]
    found = _MARK.match(text)
    names = [name for name in marks if text.startswith(name)]
    first = max(names, key=len) if names else found[0] if found and found.end() <= len(whole) else whole
    ways = [first, whole, *(first[:length] for length in range(len(first), 0, -1))]
    return next((way for way in ways if not any(way.startswith(way[at:]) for at in range(1, len(way)))), "")


def begins_with_mark(text: str, marks: Iterable[str]) -> bool:
    """Whether a mark is the first of a text behind its blanks."""
    text = text.lstrip(BLANKS)
    return bool(_MARK.match(text)) or text.startswith(tuple(marks))


def marks_of(texts: Iterable[str], marks: Iterable[str]) -> Iterator[str]:
    """The marks in some texts: those that are given, and what looks like one."""
    known = tuple(marks)
    for text in texts:
        yield from (name for name in known if name in text)
        yield from (found[0] for found in _MARK.finditer(text) if len(found[0]) > 1)


def read(text: str, fixed: str) -> tuple[int, bool] | None:
    """The number of characters of `text` that are `fixed`, some blanks missing perhaps; and whether all of it is there.

    None if the text begins otherwise.
    """
    place = 0
    optional = _optional(fixed, after=TEXT)
    for number, character in enumerate(fixed):
        if place == len(text):
            return place, False
        if text[place] == character:
            place += 1
        elif number not in optional:
            return None
    return place, True


def num_held(text: str, mark: str) -> int:
    """Length of the longest end of a text that may be the beginning of a mark."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if mark.startswith(text[-length:])), 0)


def _optional(text: str, before: str = "", after: str = "") -> set[int]:
    """The places of the blanks that may be left out."""
    found: set[int] = set()
    for run in re.finditer(rf"[{BLANKS}]+", text):
        left, right = text[: run.start()] or before, text[run.end() :] or after
        is_header = run.start() > 0 and left.endswith(_HEADER_END) and right[:1] not in ("", "<")
        if _is_loose(left[-1:]) and ((left.endswith(",") and right != TEXT) or _is_loose(right[:1])) and not is_header:
            found.update(range(*run.span()))
    return found


def _is_loose(character: str) -> bool:
    return not character or character in _LOOSE


def _places(text: str, marks: Iterable[str]) -> list[tuple[int, int]]:
    """The places of marks; of two that overlap, the one that begins first, or is longer."""
    names = sorted(marks, key=len, reverse=True)
    return [found.span() for found in re.finditer("|".join(map(re.escape, names)), text)] if names else []


def _stretch(text: str, start: int, end: int, optional: set[int]) -> Expression:
    """The characters between two marks."""
    nodes = []
    place = start
    while place < end:
        stop = place + 1
        while place not in optional and stop < end and stop not in optional:
            stop += 1
        node = ir.literal(text[place:stop].encode())
        nodes.append(ir.optional(node) if place in optional else node)
        place = stop
    return Terminal(ir.concat(*nodes)) if nodes else EMPTY_TEXT
