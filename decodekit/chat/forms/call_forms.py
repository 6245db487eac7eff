r"""Calls around their arguments: what opens and closes them and what joins them, from one call and from several.

one       <calls>[{"name": "f", "arguments": {...}}]</calls>
three     <calls>[{"name": "f", "arguments": {...}}, {"name": "g", "arguments": {...}}, {"name": ...}]</calls>

between two calls       }, {"name": "          before the first     <calls>[{"name": "
behind the last         }]</calls>             in common            }    and    {"name": "
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from decodekit.chat.forms.renderings import (
    CONTENT,
    IDS,
    KEYS,
    MARK,
    VALUES,
    Renderings,
    call_of,
    common_begin,
    common_end,
)
from decodekit.constraints.tool_calls.format import ARGUMENTS, ID, NAME, NUMBER, Arguments, Hole, Part, ToolFormat
from decodekit.constraints.tool_calls.literals import begins_with_mark
from decodekit.errors import InvalidConstraintError

Piece = str | Hole

_MEMBER: Final = re.compile(r",\s*\"\w+\":\s*\"$")
_FIRST_MEMBER: Final = re.compile(r"\"\w+\":\s*\"$")
_BEFORE_KEY: Final = re.compile(r"[{,:]\s*\"$")
_NINE: Final = "[a-zA-Z0-9]{9}"


def call_forms(renderings: Renderings, arguments: Arguments) -> Iterator[ToolFormat]:
    """Formats that calls with such arguments may have, the likeliest first."""
    call = call_of(0)
    for num_calls in (3, 2, 1):
        row = _row(renderings, arguments, num_calls)
        if row is None:
            continue
        with suppress(InvalidConstraintError):  # nothing tells such calls from a content, say
            format = _format(renderings, arguments, row)
            if format.closing and renderings.response("", (call,)) is None:
                # The closing may be missing, with the end of the turn, where the template writes a single call.
                single = replace(format, closing="", end="").written("", (call,))
                is_optional = (renderings.turn(calls=(call,)) or "").endswith(single)
                format = replace(format, is_closing_optional=is_optional)
            yield format


class _Row(NamedTuple):
    """Calls one behind the other."""

    before: str  # the first hole
    calls: tuple[tuple[Piece, ...], ...]  # of each call its holes, and the texts between them
    between: tuple[str, ...]  # the last hole of a call and the first one of the next
    behind: str  # the last hole


def _row(renderings: Renderings, arguments: Arguments, num_calls: int) -> _Row | None:
    """So many calls with arguments; None if the template does not write them, or not each in the same way."""
    calls = [call_of(number, {KEYS[number]: VALUES[number]}) for number in range(num_calls)]
    text = renderings.response("", calls)
    words: dict[str, Hole] = dict.fromkeys((call.name for call in calls), NAME) | dict.fromkeys(IDS[:num_calls], ID)
    words |= {arguments.written(call.arguments): ARGUMENTS for call in calls}
    if text is None or not all(word in text for word, hole in words.items() if hole != ID):
        return None
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    pieces: list[Piece] = [words.get(piece, piece) for piece in re.split(f"({pattern})", text)]
    size = (len(pieces) - 1) // num_calls  # a text and a hole in turns, and a text at the end
    inside = tuple(tuple(pieces[1 + size * number : size * (number + 1)]) for number in range(num_calls))
    holes = [[piece for piece in one if isinstance(piece, Hole)] for one in inside]
    if (len(pieces) - 1) % num_calls or any(one != holes[0] for one in holes) or len({*holes[0]}) != len(holes[0]):
        return None
    between = tuple(str(pieces[size * number]) for number in range(1, num_calls))
    return _Row(str(pieces[0]), inside, between, str(pieces[-1]))


def _format(renderings: Renderings, arguments: Arguments, row: _Row) -> ToolFormat:
    inside = [piece for place in range(len(row.calls[0])) for piece in _numbered([one[place] for one in row.calls])]
    opening, begin, separator, end, closing = _around(row)
    call = tuple(piece for piece in (*begin, *inside, end) if piece != "")
    said = renderings.response(CONTENT) or CONTENT
    content_begin, _, content_end = said.partition(CONTENT)
    alone, both = (renderings.response(content, (call_of(0),)) or "" for content in ("", CONTENT))
    blanks = alone[: len(alone) - len(alone.lstrip())]
    is_joined = both.startswith(said) and both.endswith(alone[len(blanks) :])
    joint = both[len(said) : len(both) - len(alone) + len(blanks)] if is_joined else ""
    if is_joined and blanks:  # what stands before the calls in any case is the joint
        opening, call = (opening[len(blanks) :], call) if opening else ("", (str(call[0])[len(blanks) :], *call[1:]))
    shut = closing.rstrip()
    start = opening + "".join(str(piece) for piece in itertools.takewhile(lambda one: isinstance(one, str), call))
    return ToolFormat(
        "template",
        "read off the chat template",
        _with_optional_id(call),
        arguments,
        opening=opening,
        separator=separator,
        closing=shut,
        names=_spelling_of_names(call),
        id_pattern=_NINE if ID in call and _wants_nine(renderings) else None,
        content_begin=content_begin,
        content_end=content_end,
        joint=joint,
        end=closing[len(shut) :],
        max_calls=None if row.between else 1,
        is_alone=not is_joined and not begins_with_mark(start, ()),
        identifier=_identifier(call),
        lead=renderings.thought_before_calls,
        has_joint_alone=is_joined and bool(blanks) and joint == blanks,
    )


def _around(row: _Row) -> tuple[str, tuple[Piece, ...], str, str, str]:
    """The texts that open the calls, begin one, stand between two, end one, and close them."""
    if not row.between:
        return "", (row.before,), "", row.behind, ""
    head, *number = _numbered([f"{row.before}", *row.between], is_first_longer=True)
    first = row.before if not number else row.before[: len(row.before) - len(f"0{number[-1]}")]
    begin = common_end((first, str(head))).lstrip()
    rest = str(head)[: len(str(head)) - len(begin)]
    end = common_begin((rest, row.behind)).rstrip()  # the blanks between two calls are of neither
    opening = first[: len(first) - len(begin)]
    return opening, (begin, *number), rest[len(end) :], end, row.behind[len(end) :]


def _numbered(pieces: Sequence[Piece], is_first_longer: bool = False) -> list[Piece]:
    """A piece of each call in order, with a hole where their numbers stand; the piece of the first call without.

    With `is_first_longer` the first one may begin otherwise, and what is found is of the second.
    """
    texts, skipped = [str(piece) for piece in pieces], int(is_first_longer)
    rests = texts[skipped:]
    if not isinstance(pieces[0], Hole) and len({*rests}) > 1:
        place = next(place for place, letters in enumerate(zip(*rests, strict=False)) if len({*letters}) > 1)
        tails = {text[place:].removeprefix(str(number)) for number, text in enumerate(rests, skipped)}
        if len(tails) == 1 and texts[0].endswith(f"0{min(tails)}"):
            return [rests[0][:place], NUMBER, min(tails)]
    return [pieces[skipped]]


def _beside(call: Sequence[Piece], hole: Hole) -> tuple[str, str]:
    """The texts before and behind a hole."""
    place = call.index(hole)
    before, after = (str(call[at]) if 0 <= at < len(call) else "" for at in (place - 1, place + 1))
    return before, after


def _spelling_of_names(call: Sequence[Piece]) -> Any:
    before, after = _beside(call, NAME)
    return "json" if _BEFORE_KEY.search(before) and after.startswith('"') else "raw"


def _with_optional_id(call: tuple[Piece, ...]) -> tuple[Part, ...]:
    """A call in which what belongs to the identifier may be left out: a member of JSON, or a mark."""
    if ID not in call:
        return call
    place, (before, after) = call.index(ID), _beside(call, ID)
    member, first = _MEMBER.search(before), _FIRST_MEMBER.search(before)
    following = re.match(r"\",\s*", after)
    mark = next((found for found in MARK.finditer(before) if found.end() == len(before)), None)
    if member and after.startswith('"'):
        parts: tuple[Part, ...] = before[: member.start()], (member[0], ID, '"'), after[1:]
    elif first and following:
        parts = before[: first.start()], (first[0], ID, following[0]), after[following.end() :]
    elif mark:
        parts = before[: mark.start()], (mark[0], ID), after
    else:
        return call
    return tuple(part for part in (*call[: max(place - 1, 0)], *parts, *call[place + 2 :]) if part != "")


def _wants_nine(renderings: Renderings) -> bool:
    """Whether the template refuses all identifiers but those of nine letters or digits."""
    longer = call_of(0, name_of_id="call_zq0123456789")
    return str(longer.id) not in (renderings.turn(calls=(longer,)) or "")


def _identifier(call: Sequence[Piece]) -> tuple[Piece, ...]:
    """Of what identifiers are made that a template writes by itself: the number, or the name and the number."""
    if NUMBER not in call or ID in call:
        return ()
    place = call.index(NUMBER)
    if place > 1 and call[place - 2] == NAME and not MARK.search(str(call[place - 1])):
        before = re.search(r"[\w.-]*$", str(call[place - 3])) if place > 2 else None
        return tuple(piece for piece in ("" if before is None else before[0], NAME, call[place - 1], NUMBER) if piece)
    return (NUMBER,)
