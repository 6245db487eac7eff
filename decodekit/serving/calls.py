"""The content of a text that may call tools, and its calls.

    <-   "I look it up.<tool_", "call>\n{...}</tool_call>"
    ->   content "I look it up.", then one call

What may be the beginning of a call waits. A call is handed out whole, at the end, when all of it is known.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple

from decodekit.constraints.tool_calls import FORMATS, ToolResponse
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
        format: how calls are written; None for a text without calls.
    """

    def __init__(self, format: str | None) -> None:
        self._format = None if format is None else FORMATS[format]
        self._text = ""
        self._num_told = 0

    def push(self, text: str) -> str:
        """Take what is new; the content that is certain now and was not before."""
        if self._format is None:
            return text
        self._text += text
        trigger = self._format.trigger
        end = self._text.find(trigger, max(0, self._num_told - len(trigger)))
        if end < 0:
            end = len(self._text) - _num_held(self._text, trigger)
        if self._format.is_alone and self._text.lstrip()[:1] in ("", "{"):
            end = 0
        new = self._text[self._num_told : end]
        self._num_told = max(self._num_told, end)
        return new

    def end(self, completion: Completion) -> TextEnd:
        """The rest, with the last chunk. A text that was cut inside of a call is content as it stands."""
        reason = "length" if completion.finish_reason == "length" else "stop"
        if self._format is None:
            return TextEnd("", [], reason)
        value = completion.value
        if not isinstance(value, ToolResponse):
            return TextEnd(self._text[self._num_told :], [], reason)
        calls = [
            WrittenCall(one.id or f"call_{uuid.uuid4().hex[:24]}", one.name, _json(one.arguments))
            for one in value.calls
        ]
        return TextEnd(value.content[self._num_told :], calls, "tool_calls" if calls else reason)


def _num_held(text: str, trigger: str) -> int:
    """Length of the longest end of a text that may be the beginning of a call."""
    lengths = range(min(len(trigger) - 1, len(text)), 0, -1)
    return next((length for length in lengths if trigger.startswith(text[-length:])), 0)


def _json(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
