r"""The content of a text that may call tools, and its calls.

    <-   "I look it up.<tool_", "call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Be", "rn\"}}..."
    ->   content "I look it up.", a call of get_weather, and its arguments in pieces: {"city": "Be  rn"}

What may be the beginning of a call waits. In a stream a call is told when its arguments begin. They come in pieces as
soon as these are certain, and are together what the whole call has: JSON as `json.dumps` writes it, however the model
wrote it.

Of a text that was cut inside of a call, the calls that are whole are handed out, with the reason "length". The one that
was broken off is not, since its arguments are no JSON: every call that a client gets can be made as it stands. In a
stream its beginning has been told by then, as OpenAI does.
"""

from __future__ import annotations

import json
import secrets
import string
import uuid
from dataclasses import replace
from typing import Any, NamedTuple

from decodekit.constraints.composition.combinators import OneOf
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.growing import Document, GrowingSplit
from decodekit.constraints.tool_calls import FORMATS, ToolResponse, Tools
from decodekit.llm import Completion


class WrittenCall(NamedTuple):
    """A call as answers have it: the arguments are a text of JSON."""

    id: str
    name: str
    arguments: str


class CallPiece(NamedTuple):
    """What is new of a call: the first piece has its id and its name, and each some of its arguments."""

    number: int
    id: str | None
    name: str | None
    arguments: str

    @property
    def delta(self) -> dict[str, Any]:
        """As an entry of `tool_calls` in a stream of a chat."""
        if self.name is None:
            return {"index": self.number, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.number, "id": self.id, "type": "function", "function": function}


class TextEnd(NamedTuple):
    """An ended text: what of the content was not told yet, the calls, and OpenAI's word for why it ended."""

    rest: str
    calls: list[WrittenCall]
    finish_reason: str

    @property
    def status(self) -> str:
        """OpenAI's word for it in a response."""
        return "incomplete" if self.finish_reason == "length" else "completed"


class CallSplitter:
    """Divides one text, as it grows, into content and calls.

    Args:
        constraint: of the text; None for none.
    """

    def __init__(self, constraint: Constraint | None) -> None:
        self._tools, self._with_schema = _tools_in(constraint), constraint if isinstance(constraint, OneOf) else None
        self._format = None if self._tools is None else FORMATS[self._tools.format]
        self._split: GrowingSplit | None = None
        self._num_split = None if self._with_schema is None else 0  # what it has read; None before the calls
        self._ids: list[str] = []  # of the calls that have begun
        self._told: list[list[str]] = []  # what was told of their arguments
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
        if self._num_split is None and end >= 0:
            self._num_split = end
        if end < 0:
            end = len(self._text) - _num_held(self._text, trigger)
        if self._is_open and (first := text.lstrip()[:1]):
            self._is_held, self._is_open = first == "{", False
        if self._is_held:
            end = 0
            self._num_split = None if self._is_open else self._num_split or 0
        new = self._text[self._num_told : end]
        self._num_told = max(self._num_told, end)
        return new

    def calls(self, ended: TextEnd | None = None) -> list[CallPiece]:
        """What is certain of the calls now and was not before; with the end of the text, the rest of them."""
        pieces = []
        documents: list[Document] = []
        if self._num_split is not None and self._tools is not None:
            if self._split is None:
                calls = replace(self._tools, choice="required")  # no text comes before them any more
                self._split = GrowingSplit(self._with_schema or calls, is_written=True)
            self._split.push(self._text[self._num_split :])
            self._num_split = len(self._text)
            documents = [one for one in self._split.documents if one.name is not None]  # else JSON of a schema
        for number, one in enumerate(documents):
            assert one.name is not None
            if number == len(self._ids):
                self._ids.append(one.id or self._new_id())
                self._told.append([])
                pieces.append(CallPiece(number, self._ids[number], one.name, ""))
            new, one.json.written = "".join(one.json.written), []
            pieces.append(CallPiece(number, None, None, new))
            self._told[number].append(new)
        for number, call in enumerate([] if ended is None else ended.calls):
            if number == len(self._ids):
                self._ids.append(call.id)
                self._told.append([])
                pieces.append(CallPiece(number, call.id, call.name, ""))
            told = "".join(self._told[number])
            assert call.arguments.startswith(told), "what was told of the arguments is taken back"
            pieces.append(CallPiece(number, None, None, call.arguments[len(told) :]))
        return [one for one in pieces if one.name is not None or one.arguments]

    def _new_id(self) -> str:
        if self._format is not None and self._format.has_short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{uuid.uuid4().hex[:24]}"

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
        ids = [*self._ids, *(one.id or self._new_id() for one in value.calls[len(self._ids) :])]
        calls = [WrittenCall(id, one.name, _json(one.arguments)) for id, one in zip(ids, value.calls, strict=False)]
        return TextEnd(value.content[self._num_told :], calls, reason)

    def _is_json(self) -> bool:
        """Whether the text is JSON of a schema, where it might have been calls: none of it begins as a call does."""
        return (
            self._with_schema is not None
            and self._format is not None
            and not self._text.startswith(self._format.trigger)
        )


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
