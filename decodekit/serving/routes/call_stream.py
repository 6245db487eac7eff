r"""The content of a text that may call tools, and its calls.

    <-   "I look it up.<tool_", "call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Be", "rn\"}}..."
    ->   content "I look it up.", a call of get_weather, and its arguments in pieces: {"city": "Be  rn"}

What may be the beginning of a call waits. In a stream a call is told when its arguments begin. They come in pieces as
soon as these are certain, and are together what the whole call has: JSON as `json.dumps` writes it, however the model
wrote it.

Of a text that was cut inside of a call, the calls that are whole are handed out, with the reason "length". The one that
was broken off is not, since its arguments are not JSON: every call that a client gets can be made as it stands. In a
stream its beginning has been told by then, as OpenAI does.
"""

from __future__ import annotations

import json
import secrets
import uuid
from dataclasses import replace
from typing import Any, NamedTuple

from decodekit.constraints.author.members import sample_text
from decodekit.constraints.composition.combinators import OneOf
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.growing import Document, GrowingSplit
from decodekit.constraints.language.ir import matches
from decodekit.constraints.regex.regex import Regex, full_match
from decodekit.constraints.tool_calls import ToolResponse, Tools
from decodekit.constraints.tool_calls.response import ContentSplit
from decodekit.llm import Completion


class WrittenCall(NamedTuple):
    """A call as answers have it: the arguments are a text of JSON."""

    id: str
    name: str
    arguments: str


class CallPiece(NamedTuple):
    """A piece of a call: the first one has its id and its name, each other one some of its arguments."""

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
    """Divides one text, as it grows, into content and calls, if its constraint has any."""

    def __init__(self, constraint: Constraint | None) -> None:
        self._with_schema = constraint if isinstance(constraint, OneOf) else None  # JSON of a schema instead of calls
        parts = (constraint,) if self._with_schema is None else self._with_schema.options
        self._tools = next((one for one in parts if isinstance(one, Tools) and one.choice != "none"), None)
        self._content: ContentSplit | None = None
        if self._tools is not None:
            has_content, is_json = self._tools.choice == "auto", self._with_schema is not None
            self._content = ContentSplit(self._tools.format, has_content, is_json)
        self._split: GrowingSplit | None = None
        self._num_split = 0  # characters that it has read
        self._ids: list[str] = []  # of the calls, as far as they are known
        self._told: list[list[str]] = []  # what was told of the arguments of those that have begun
        self._num_content = 0  # characters of the content that were told
        self.has_calls = self._tools is not None
        """Whether the text may have calls."""

    def push(self, text: str) -> str:
        """Take what is new; the content that is certain now and was not before."""
        if self._content is None:
            return text
        new = self._content.push(text)
        self._num_content += len(new)
        return new

    def calls(self, ended: TextEnd | None = None) -> list[CallPiece]:
        """The parts of the calls that have become certain; with the end of the text, the rest of them."""
        pieces: list[CallPiece] = []

        def tell(number: int, id: str | None, name: str | None, new: str) -> None:
            if number == len(self._told):
                pieces.append(CallPiece(number, self._id_of(number, id), name, ""))
                self._told.append([])
            self._told[number].append(new)
            if new:
                pieces.append(CallPiece(number, None, None, new))

        for number, one in enumerate(self._documents()):
            new, one.json.written = "".join(one.json.written), []
            tell(number, one.id, one.name, new)
        for number, call in enumerate([] if ended is None else ended.calls):
            told = "".join(self._told[number]) if number < len(self._told) else ""
            assert call.arguments.startswith(told), "what was told of the arguments is taken back"
            tell(number, call.id, call.name, call.arguments[len(told) :])
        return pieces

    def _documents(self) -> list[Document]:
        """The calls of the text so far, those that grow among them."""
        content, schema = self._content, self._with_schema
        if self._tools is None or content is None or (schema is None and content.calls_at is None):
            return []
        if self._split is None:
            calls = self._tools
            if schema is None and not calls.format.is_framed:
                calls = replace(calls, choice="required")  # no text comes before them any more
                self._num_split = content.calls_at or 0
            self._split = GrowingSplit(schema or calls, is_written=True)
        self._split.push(content.text[self._num_split :])
        self._num_split = len(content.text)
        return [one for one in self._split.documents if one.name is not None]  # else JSON of a schema

    def _id_of(self, number: int, written: str | None) -> str:
        """The identifier of a call: what the model wrote, unless that is nothing, or the one of a call before it."""
        if number == len(self._ids):
            self._ids.append(self._new_id() if written is None or written in self._ids else written)
        return self._ids[number]

    def _new_id(self) -> str:
        found = f"call_{uuid.uuid4().hex[:24]}"
        pattern = None if self._tools is None else self._tools.format.id_pattern
        if pattern is None or matches(full_match(pattern), found.encode()):
            return found
        return sample_text(Regex(pattern), seed=secrets.randbits(64))

    def whole(self, completion: Completion) -> tuple[str, TextEnd]:
        """The content of a text of which nothing was told, and its end."""
        content = self.push(completion.content)
        ended = self.end(completion)
        return content + ended.rest, ended

    def end(self, completion: Completion) -> TextEnd:
        """The rest, with the last chunk. A text that is whole where it was cut is a whole one."""
        reason = "length" if completion.finish_reason == "length" else "stop"
        if self._tools is None or self._content is None:
            return TextEnd("", [], reason)
        value, text = completion.value, self._content.text
        if isinstance(value, ToolResponse):
            reason = "tool_calls" if value.calls else reason
        elif reason == "length" and (self._with_schema is None or text.startswith(self._tools.format.starts)):
            value = self._tools.parse_cut(text)
        else:  # JSON of a schema
            return TextEnd(text[self._content.num_read :], [], reason)
        calls = [
            WrittenCall(self._id_of(number, one.id), one.name, json.dumps(one.arguments, ensure_ascii=False))
            for number, one in enumerate(value.calls)
        ]
        return TextEnd(value.content[self._num_content :], calls, reason)
