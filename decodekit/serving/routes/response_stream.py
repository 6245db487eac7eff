"""The output of a response: its items, and the events with which they are told.

    reasoning          response.output_item.added, .content_part.added, .reasoning_text.delta, .reasoning_text.done, ...
    message            the same, with .output_text.delta and .output_text.done
    function_call      response.output_item.added, .function_call_arguments.delta, .function_call_arguments.done, ...

One item is open at a time: what begins another one ends it.
"""

from __future__ import annotations

import uuid
from typing import Any

from decodekit.serving.routes.call_stream import CallPiece, TextEnd, WrittenCall
from decodekit.serving.routes.token_logprobs import as_event
from decodekit.serving.service import Running


class ResponseStream:
    """The events of one response: each has its number, and items have their places."""

    def __init__(self, head: dict[str, Any]) -> None:
        self.head = head
        self.text = ""
        self._item: dict[str, Any] | None = None  # that is open
        self._output: list[dict[str, Any]] = []  # those that are done
        self._num_calls = 0
        self._number = 0

    def event(self, type: str, **fields: Any) -> bytes:
        """One event."""
        made = as_event({"type": type, "sequence_number": self._number, **fields}, type)
        self._number += 1
        return made

    def think(self, text: str) -> list[bytes]:
        """The events of new reasoning."""
        return self._say(thought_item(""), text) if text else []

    def write(self, text: str) -> list[bytes]:
        """The events of new content."""
        self.text += text
        return self._say(message_item("", "in_progress"), text)

    def _say(self, item: dict[str, Any], text: str) -> list[bytes]:
        """The events of text of an item, which begins with it if none of its type is open."""
        events: list[bytes] = []
        if self._item is None or self._item["type"] != item["type"]:
            events = self._end_item("completed")
            begun = {**item, "status": "in_progress", "content": []}
            events.append(self.event("response.output_item.added", output_index=len(self._output), item=begun))
            self._item = item
            events.append(self._of_part("response.content_part.added", part={**item["content"][0]}))
        [part] = self._item["content"]
        part["text"] += text
        if text:
            logprobs: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            events.append(self._of_part(f"response.{part['type']}.delta", delta=text, **logprobs))
        return events

    def _of_item(self, type: str, **fields: Any) -> bytes:
        assert self._item is not None
        return self.event(type, item_id=self._item["id"], output_index=len(self._output), **fields)

    def _of_part(self, type: str, **fields: Any) -> bytes:
        return self._of_item(type, content_index=0, **fields)

    def call(self, piece: CallPiece) -> list[bytes]:
        """The events of what is new of a call."""
        events: list[bytes] = []
        if piece.id is not None and piece.name is not None:
            events += self._end_item("completed")
            self._item, self._num_calls = call_item(WrittenCall(piece.id, piece.name, "")), self._num_calls + 1
            begun = {**self._item, "status": "in_progress"}
            events.append(self.event("response.output_item.added", output_index=len(self._output), item=begun))
        if piece.arguments and self._item is not None:
            self._item["arguments"] += piece.arguments
            events.append(self._of_item("response.function_call_arguments.delta", delta=piece.arguments))
        return events

    def _end_item(self, status: str) -> list[bytes]:
        """The events behind the last piece of the item that is open, if there is one."""
        item = self._item
        if item is None:
            return []
        item["status"] = status
        if item["type"] == "function_call":
            told = {name: item[name] for name in ("name", "arguments")}
            events = [self._of_item("response.function_call_arguments.done", **told)]
        else:
            [part] = item["content"]
            logprobs: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            events = [
                self._of_part(f"response.{part['type']}.done", text=part["text"], **logprobs),
                self._of_part("response.content_part.done", part=part),
            ]
        events.append(self.event("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)
        self._item = None
        return events

    def end(self, outcome: TextEnd, running: Running) -> list[bytes]:
        """The events behind the last piece. A call that was broken off is incomplete."""
        is_call = self._item is not None and self._item["type"] == "function_call"
        is_broken_off = is_call and self._num_calls != len(outcome.calls)
        events = self._end_item("incomplete" if is_broken_off else "completed" if is_call else outcome.status)
        ended = ended_response(self.head, self._output, outcome, running)
        return [*events, self.event(f"response.{ended['status']}", response=ended)]


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def thought_item(text: str) -> dict[str, Any]:
    """The reasoning before an answer."""
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": _new_id("rs"), "summary": [], "content": content, "status": "completed"}


def message_item(text: str, status: str) -> dict[str, Any]:
    """A message of the assistant."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": _new_id("msg"), "role": "assistant", "status": status, "content": [part]}


def call_item(call: WrittenCall) -> dict[str, Any]:
    """A call of a tool."""
    return {"type": "function_call", "id": _new_id("fc"), "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": "completed"}  # fmt: skip


def ended_response(
    head: dict[str, Any], output: list[dict[str, Any]], outcome: TextEnd, running: Running
) -> dict[str, Any]:
    """A response at its end."""
    usage = running.usage()
    is_cut = outcome.status == "incomplete"
    return {
        **head,
        "status": outcome.status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        },
    }
