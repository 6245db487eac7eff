"""The content of a text that may call tools, and its calls.

    <-   "I look it up.<tool_", "call>\n{...}</tool_call>"
    ->   content "I look it up.", then one call

What may be the beginning of a call waits. A call is handed out whole, at the end, when all of it is known.

Of a text that was cut inside of a call, the calls that are whole are handed out, with the reason "length". The one that
was broken off is not, since its arguments are no JSON: every call that a client gets can be made as it stands.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple

from decodekit.constraints.composition.combinators import OneOf
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.tool_calls import FORMATS, ToolResponse, Tools
from decodekit.llm import Completion


class WrittenCall(NamedTuple):
    """A call as answers have it: the arguments are a text of JSON."""

    id: str
    name: str
    arguments: str


class TextEnd(NamedTuple):
    """An ended text: what of the content was not told yet, the calls, and OpenAI's word for why it ended."""

    rest: str
    calls: list[WrittenCall]
    finish_reason: str


class CallSplitter:
    """Divides one text, as it grows, into content and calls.

    Args:
        constraint: of the text; None for none.
    """

    def __init__(self, constraint: Constraint | None) -> None:
        self._tools, self._has_schema = _tools_in(constraint), isinstance(constraint, OneOf)
        self._format = None if self._tools is None else FORMATS[self._tools.format]
        self._text = ""
        self._num_told = 0
        self._is_held = self._is_open = self._format is not None and self._format.is_alone  # open: blanks alone so far
        self.has_calls = self._format is not None
        """Whether the text may have calls."""

    def push(self, text: str) -> str:
        """Take what is new; the content that is certain now and was not before."""
        if self._format is None:
            return text
        self._text += text
        trigger = self._format.trigger
        end = self._text.find(trigger, max(0, self._num_told - len(trigger)))
        if end < 0:
            end = len(self._text) - _num_held(self._text, trigger)
        if self._is_open and (first := text.lstrip()[:1]):
            self._is_held, self._is_open = first == "{", False
        if self._is_held:
            end = 0
        new = self._text[self._num_told : end]
        self._num_told = max(self._num_told, end)
        return new

    def end(self, completion: Completion) -> TextEnd:
        """The rest, with the last chunk. A text that is whole where it was cut is a whole one."""
        reason = "length" if completion.finish_reason == "length" else "stop"
        if self._tools is None:
            return TextEnd("", [], reason)
        value = completion.value
        if isinstance(value, ToolResponse):
            reason = "tool_calls" if value.calls else reason
        elif completion.finish_reason == "length" and not self._is_json():
            value = self._tools.parse_cut(self._text)
        else:
            return TextEnd(self._text[self._num_told :], [], reason)
        calls = [
            WrittenCall(one.id or f"call_{uuid.uuid4().hex[:24]}", one.name, _json(one.arguments))
            for one in value.calls
        ]
        return TextEnd(value.content[self._num_told :], calls, reason)

    def _is_json(self) -> bool:
        """Whether the text is JSON of a schema, where it might have been calls: none of it begins as a call does."""
        return self._has_schema and self._format is not None and not self._text.startswith(self._format.trigger)


def _tools_in(constraint: Constraint | None) -> Tools | None:
    """What a text may call, if it may call something; it may be JSON of a schema instead."""
    options = constraint.options if isinstance(constraint, OneOf) else (constraint,)
    found = (one for one in options if isinstance(one, Tools) and one.choice != "none")
    return next(found, None)


def _num_held(text: str, trigger: str) -> int:
    """Length of the longest end of a text that may be the beginning of a call."""
    lengths = range(min(len(trigger) - 1, len(text)), 0, -1)
    return next((length for length in lengths if trigger.startswith(text[-length:])), 0)


def _json(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
