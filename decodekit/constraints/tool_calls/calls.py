"""The calls of a response as an expression, made from the description of their format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

from decodekit.constraints.composition.combinators import rounds
from decodekit.constraints.composition.composed import row
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, Inline, Repeated, Terminal
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.regex.regex import full_match
from decodekit.constraints.tool_calls.elements import QuotedJson, elements_of, noted
from decodekit.constraints.tool_calls.format import ID, NUMBER, ElementArguments, Part, ToolFormat
from decodekit.constraints.tool_calls.literals import BLANKS, literal
from decodekit.constraints.tool_calls.tool import Tool, ToolCall

CALL_ID: Final = "call id"
"""The name of the part that tells the identifier of a call."""
_NUMBERS: Final = "0|[1-9][0-9]{0,3}"  # of a call in its conversation, which goes on from response to response
_MOST_IN_ID: Final = 64


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a response."""

    format: ToolFormat
    tools: tuple[Tool, ...]
    max_calls: int | None  # None for no bound
    are_special: bool | None  # the marks of the format; None if they may be either

    def literal(self, text: str, before: str = "", after: str = "") -> Expression:
        """A text of the format, with what stands beside it."""
        return literal(text, self.format.marks, self.are_special, before=before, after=after)

    def pieces(self, *, is_behind_content: bool = False) -> tuple[Expression, Expression, Expression, Expression]:
        """The opening before the calls, the first call, the others with their separators, and the closing."""
        return _pieces(self, is_behind_content)

    def expression(self) -> Expression:
        """One call or several."""
        return row(*self.pieces())

    def values(self, first: object, others: object) -> tuple[ToolCall, ...]:
        """The calls, from the values of the second and the third of `pieces`."""
        return tuple(map(self._value, [first, *(call for _, call in cast("list[Any]", others))]))

    def _call(self) -> Expression:
        before, between, after = self._parts()
        options = []
        for tool in self.tools:
            name: Expression | str = self.format.name_text(tool.name)
            arguments = Inline(arguments_of(tool, self.format, self.are_special), tool.name)
            first, last = (name, arguments) if self.format.is_name_first else (arguments, name)
            options.append(row(first, row(*between), last))
        return row(row(*before), Alternatives(tuple(options)), row(*after))

    def _parts(self) -> list[list[Expression]]:
        """The expressions of a call before, between and behind the name and the arguments."""
        call, place, found = self.format.call, 0, []
        for parts in self.format.divided:
            places = range(place, place + len(parts))
            found.append([self._part(call[at], call[:at], call[at + 1 :]) for at in places])
            place = places.stop + 1
        return found

    def _part(self, part: Part, before: Sequence[Part], behind: Sequence[Part]) -> Expression:
        form = self.format
        if isinstance(part, str):
            left, right = (form.edges(beside)[at] for beside, at in ((before[-1:], 1), (behind[:1], 0)))
            return self.literal(part, left, right)
        if isinstance(part, tuple):
            return Repeated(row(*(self._part(one, part[:at], part[at + 1 :]) for at, one in enumerate(part))), 0, 1)
        pattern = _NUMBERS if part == NUMBER else form.id_pattern or _id_pattern(form)
        return Terminal(full_match(pattern), CALL_ID if part == form.id_hole else None)

    def _value(self, parts: Any) -> ToolCall:
        found, (number, (first, between, last)), rest = parts
        name = self.tools[number].name
        ids = (self._id_in(*one) for one in zip(self.format.divided, (found, between, rest), strict=True))
        identifier = next((one for one in ids if one is not None), None)
        arguments = last if self.format.is_name_first else first
        return ToolCall(name, arguments, None if identifier is None else self.format.identifier_of(name, identifier))

    def _id_in(self, parts: Iterable[Part], values: Iterable[Any]) -> str | None:
        """The text at the place of the identifier, if it is among some parts of a call."""
        for part, value in zip(parts, values, strict=True):
            if part == self.format.id_hole:
                return cast("str", value)
            if isinstance(part, tuple) and value:
                return self._id_in(part, value[0])
        return None


@lru_cache(maxsize=64)
def _pieces(calls: Calls, is_behind_content: bool) -> tuple[Expression, Expression, Expression, Expression]:
    form = calls.format
    joint = form.joint if is_behind_content or form.has_joint_alone else ""
    first, last = form.edges(form.call[0])[0], form.edges(form.call[-1])[1]
    opening = calls.literal(joint + form.opening, after=first)
    if joint and not (form.is_framed or form.has_joint_alone):  # no content may stand before it
        opening = Alternatives((opening, calls.literal(form.opening, after=first)))
    if form.lead:
        opening = row(Alternatives((calls.literal(form.lead), EMPTY_TEXT)), opening)
    call = calls._call()
    most = None if calls.max_calls is None else calls.max_calls - 1
    others = rounds(row(calls.literal(form.separator, last, first), call), 0, most)
    closing = calls.literal(form.closing, last)
    if form.is_closing_optional:
        closing = Alternatives((closing, EMPTY_TEXT))
    if form.end:
        closing = row(closing, Alternatives((calls.literal(form.end), EMPTY_TEXT)))
    return opening, call, others, closing


def arguments_of(tool: Tool, format: ToolFormat, are_special: bool | None = None) -> Constraint:
    """The arguments of a tool as a format writes them. Its `root` raises a `ConstraintError` if it cannot."""
    form = format.arguments
    if isinstance(form, ElementArguments):
        return elements_of(tool, form, format.excluded, format.marks, are_special)
    values = noted(tool.arguments(), form.values)
    return QuotedJson(cast("JsonSchema", values)) if form.is_quoted else values


def _id_pattern(format: ToolFormat) -> str:
    """The pattern of identifiers where none is given: no text of it can be taken for what stands behind it."""
    place = format.pieces.index(ID)
    after = format.pieces[place + 1] if place + 1 < len(format.pieces) else ""
    ends = re.escape(after.lstrip(BLANKS)[:1]) if isinstance(after, str) else ""
    return rf"[^\s\x00-\x20\x7f-\x9f\"\\<>{ends}]{{1,{_MOST_IN_ID}}}"
