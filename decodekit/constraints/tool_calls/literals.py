r"""The fixed texts of a format as they may be written: marks as texts or special tokens, blanks or none.

    "</function>\n</tool_call>"        the text </function>, a line break or none, the mark </tool_call>

A blank of a template may be left out, one by one, and no other stands in its place: where any white space may stand, a
model that nobody taught to call tools writes it up to the bound at every place, and its text is cut before its calls
are done. Blanks between two letters or digits stay (``<invoke name=``). So do those beside a text that is written as it
is, for which they would be taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from decodekit.constraints.composition.composed import expression_of
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, SpecialToken, Terminal, sequence
from decodekit.constraints.language import ir

BLANKS: Final = " \t\r\n"
_MARK: Final = re.compile(r"<[^<>\s]+>?|\[/?[A-Z][A-Z_]*\]")
"""``<tool_call>``, ``<function=``, ``[TOOL_CALLS]``."""


def literal(
    text: str,
    marks: Iterable[str] = (),
    are_special: bool | None = None,
    *,
    has_fixed_begin: bool = False,
    has_fixed_end: bool = False,
) -> Expression:
    """A text of a format.

    Args:
        text: as templates write it.
        marks: texts in it that may be special tokens of the same name.
        are_special: whether they are; None if they may be either.
        has_fixed_begin, has_fixed_end: whether the blanks at this end stay.
    """
    optional = _optional(text, has_fixed_begin, has_fixed_end)
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
    """What a text begins with behind its first blanks, whatever others are left out: a mark, or a part without blanks.

    It never ends as it begins (as ``aba`` does), so what is found of it first, in a text without it that it follows, is
    where that text ends. Empty if nothing but blanks stands there.
    """
    text = text.lstrip(BLANKS)
    optional = _optional(text, False, False)
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
    """How many characters of `text` are `fixed`, blanks of which may be missing, and whether it is there as a whole.

    None if the text begins otherwise.
    """
    place = 0
    optional = _optional(fixed, False, True)
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


def without_gap(text: str, gap: str) -> str:
    """A text without the blanks of `gap` at its end, any of which may be missing."""
    end = len(text)
    for blank in reversed(gap):
        end -= text[end - 1 : end] == blank
    return text[:end]


def _optional(text: str, has_fixed_begin: bool, has_fixed_end: bool) -> set[int]:
    """The places of the blanks that may be left out."""
    first, last = len(text) - len(text.lstrip(BLANKS)), len(text.rstrip(BLANKS))
    return {
        place
        for place, character in enumerate(text)
        if character in BLANKS
        and not (has_fixed_begin and place < first)
        and not (has_fixed_end and place >= last)
        and not (text[place - 1 : place].isalnum() and text[place + 1 : place + 2].isalnum())
    }


def _places(text: str, marks: Iterable[str]) -> list[tuple[int, int]]:
    """Where marks stand; of two that overlap, the one that begins first, or is longer."""
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
