"""The form in which a chat template reads messages, and messages in it.

    {"role": "user", "content": "Hi"}                                       most templates
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]}           those of models of images and text
    {..., "tool_calls": [{..., "function": {"arguments": {"a": 1}}}]}       most templates; others want '{"a": 1}'

Messages are brought into one form whoever wrote them (`plain`), and from there into that of the template. Which it is,
the module `prompt_outline` finds out.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from decodekit.errors import ChatTemplateError

Message: TypeAlias = dict[str, Any]

REASONING_NAMES: Final = ("reasoning_content", "reasoning", "thinking", "thought")
"""What templates call the thought before an answer."""

_TEXT_PARTS: Final = frozenset(("text", "input_text", "output_text"))
EMPTY: Final = ("text", "missing", "null")
"""Contents of calls without text: nothing, left out, none."""
NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
"""Identifiers as the templates of Mistral want them."""


class Null:
    """None, for transformers: it leaves out keys that have None, and there are templates that ask for it."""

    def model_dump(self) -> None:
        """The value, as of a model of Pydantic."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form in which messages are given to a template.

    Attributes:
        listed: roles whose contents are lists of parts; others have texts.
        empty: the content of calls without text.
        ids: of calls and results: those that were given, nine letters and digits (Mistral), or `functions.NAME:NUMBER`
            (Kimi, whose template writes no other name).
        is_divided: whether text before calls is a message of its own.
        results: of tools that are not texts.
        is_joined: whether lists of parts have one text; some templates write the first alone.
    """

    listed: frozenset[str] = frozenset()
    arguments: Literal["value", "text"] = "value"
    empty: Literal["text", "missing", "null"] = "text"
    ids: Literal["given", "nine", "numbered"] = "given"
    is_divided: bool = False
    results: Literal["value", "text"] = "value"
    is_joined: bool = False

    def of(self, messages: Sequence[Message]) -> list[Message]:
        """Messages, as `plain` gives them, in this form."""
        ids = _Ids(self.ids)
        found: list[Message] = []
        for message in messages:
            made = {**message, "content": self._content(message)}
            calls = message.get("tool_calls")
            if calls:
                made["tool_calls"] = [self._call(call, ids) for call in calls]
                is_said = not is_blank(message["content"])
                if is_said and self.is_divided:
                    found.append({name: one for name, one in made.items() if name != "tool_calls"})
                    made["content"] = self._content({**message, "content": ""})
                if (self.is_divided or not is_said) and self.empty == "null":
                    made["content"] = Null()
                elif (self.is_divided or not is_said) and self.empty == "missing":
                    del made["content"]
            if message["role"] == "tool":
                made |= ids.of_result(message)
            found.append(made)
        return found

    def _content(self, message: Message) -> Any:
        content = message["content"]
        if is_structured(content):
            return content if self.results == "value" else json.dumps(content, ensure_ascii=False)
        if message["role"] in self.listed:
            is_one = isinstance(content, str) or self.is_joined
            return [{"type": "text", "text": text_of(content)}] if is_one else content
        return text_of(content)

    def _call(self, call: Message, ids: _Ids) -> Message:
        function = call["function"]
        arguments = function["arguments"]
        if self.arguments == "text" and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        made = {**call, "function": {**function, "arguments": arguments}}
        number = ids.of_call(call)
        return made if number is None else {**made, "id": number}


class _Ids:
    """Identifiers of the calls of a conversation, in order."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: dict[str, str] = {}
        self._open: list[tuple[str | None, str]] = []  # of calls without a result: their identifiers, and their tools
        self._num = 0

    def of_call(self, call: Message) -> str | None:
        given, name = call.get("id"), str(call["function"]["name"])
        made = given
        if self._kind == "nine" and not (isinstance(given, str) and NINE.fullmatch(given)):
            made = f"call{self._num:05d}"
        elif self._kind == "numbered" and not re.fullmatch(rf"functions\.{re.escape(name)}:\d+", given or ""):
            made = f"functions.{name}:{self._num}"
        if given is not None:
            self._made[given] = str(made)
        self._open.append((made, name))
        self._num += 1
        return made

    def of_result(self, message: Message) -> Message:
        """Identifier and tool of a result; that of the first call without one, if the message does not say."""
        given = message.get("tool_call_id")
        made = self._made.get(given, given) if given is not None else None
        place = next((place for place, (one, _) in enumerate(self._open) if given is None or one == made), None)
        made, name = (made, None) if place is None else self._open.pop(place)
        found: Message = {} if made is None else {"tool_call_id": made}
        return found if message.get("name") or name is None else {**found, "name": name}


def plain(messages: Sequence[Mapping[str, Any]], source: str, at: str) -> list[Message]:
    """Messages in one form whoever wrote them: contents texts, lists of texts or values, arguments of calls values.

    ``developer`` is ``system`` for a template, `source`, that does not name it.

    Raises:
        ChatTemplateError: a message has something that is neither text nor a call.
    """
    found = []
    for number, message in enumerate(messages):
        role = message.get("role")
        made = {name: one for name, one in message.items() if one is not None}
        made["role"] = "system" if role == "developer" and "developer" not in source else role
        thought = next((made[name] for name in REASONING_NAMES if name in made), None)
        made |= {name: thought for name in REASONING_NAMES if thought is not None and name in source}
        made["content"] = _plain_content(message.get("content"), role, place_of(at, number))
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [_plain_call(call) for call in calls]
        else:
            made.pop("tool_calls", None)
        found.append(made)
    return found


def _plain_content(content: Any, role: Any, at: str) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        return dict(content) if isinstance(content, Mapping) else json.dumps(content, default=str)
    parts = []
    for part in content:
        text = part if isinstance(part, str) else None
        if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS and "text" in part:
            text = str(part["text"])
        if text is None and role == "tool" and not (isinstance(part, Mapping) and "type" in part):
            return list(content)  # a value
        if text is None:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            cause = f"a part of type {kind!r:.40} is no text, and models are used for text alone"
            raise ChatTemplateError(cause, at=at, hint='{"type": "text", "text": "..."}')
        parts.append({"type": "text", "text": text})
    return parts


def _plain_call(call: Mapping[str, Any]) -> Message:
    given: Mapping[str, Any] = call.get("function", call)
    arguments = given.get("arguments", {})
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # a template may write it as it is
            value = json.loads(arguments or "{}")
            arguments = value if isinstance(value, dict) else arguments
    function = {**given, "arguments": {} if arguments is None else arguments}
    rest = {name: one for name, one in call.items() if name not in ("name", "arguments") and one is not None}
    return {"type": "function", **rest, "function": function}


def place_of(at: str, number: int) -> str:
    """The place of a message, for errors."""
    return f"{at}.{number}" if at == "messages" else f"{at}, message {number}" if " " in at else at


def is_structured(content: Any) -> bool:
    """Whether a content is a value in place of text."""
    return not isinstance(content, str) and not (
        isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    )


def text_of(content: Any) -> str:
    """The text of a plain content."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def is_blank(content: Any) -> bool:
    """Whether a plain content says nothing."""
    return not is_structured(content) and not text_of(content).strip()
