"""`/v1/responses`: what structured output and tools need of it. Nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from decodekit.errors import DecodekitError, InvalidRequestError
from decodekit.llm import Completion
from decodekit.serving.asked import Asked, sampling_options, seed_of
from decodekit.serving.calls import CallPiece, CallSplitter, TextEnd, WrittenCall
from decodekit.serving.chat import tools_structure
from decodekit.serving.fields import (
    AnyObjectFormat,
    AssistantMessage,
    CallFields,
    ChatMessage,
    EmptyList,
    FunctionCallFields,
    FunctionFields,
    Listed,
    Messages,
    NamedSchema,
    ReplyModel,
    SamplingFields,
    SpokenMessage,
    TextFormat,
    ToolMessage,
    WireModel,
)
from decodekit.serving.prompts import arguments_of, size_of
from decodekit.serving.route import Route
from decodekit.serving.service import Running
from decodekit.serving.structure import Structure
from decodekit.serving.tokens import as_event

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class InputPart(WireModel):
    """A part of a message; text alone is read."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: EmptyList | None = None
    logprobs: EmptyList | None = None
    parsed: Annotated[Any, Field(description="Accepted: what a client has read in the text.")] = None


class InputMessage(WireModel):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Listed[InputPart]
    id: str | None = None
    status: ItemStatus | None = None


class InputCall(WireModel):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None
    parsed_arguments: Annotated[Any, Field(description="Accepted: what a client has read in the arguments.")] = None


class InputCallOutput(WireModel):
    """What a tool has answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Listed[InputPart]
    id: str | None = None
    status: ItemStatus | None = None


def _kind_of_item(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", "message")
    return kind if isinstance(kind, str) else "message"


InputItem: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")],
    Discriminator(_kind_of_item),
]


class ResponseSchemaFormat(NamedSchema):
    """`text.format` of a JSON Schema."""

    type: Literal["json_schema"]


class ResponseText(WireModel):
    """`text`: what the text must be."""

    format: Annotated[TextFormat | AnyObjectFormat | ResponseSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: None = None


class ResponseTool(FunctionFields):
    """One of the `tools`."""

    type: Literal["function"]


class ResponseToolChoice(WireModel):
    """The `tool_choice` of one function."""

    type: Literal["function"]
    name: str


class NoReasoning(WireModel):
    """`reasoning`: models reason as their template says."""

    effort: Literal["none"] | None = None
    summary: None = None


class ResponseBody(SamplingFields):
    """A request for a response."""

    input: str | Messages[InputItem] = Field(description="A text, or a conversation.")
    instructions: str | None = Field(None, description="Said before everything else, by the system.")
    text: ResponseText | None = Field(None, description="What the text must be.")
    max_output_tokens: int | None = Field(None, ge=1, description="Most tokens of the text.")
    tools: Listed[ResponseTool] | None = Field(None, max_length=128, description="What may be called.")
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = Field(None, description="`auto`.")
    parallel_tool_calls: bool | None = Field(None, description="`false` for one call at most.")
    reasoning: NoReasoning | None = Field(None, description="Models reason as their template says.")
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    background: Literal[False] | None = Field(None, description="Answers are waited for.")
    truncation: Literal["disabled"] | None = Field(None, description="Nothing is cut off a prompt.")
    include: EmptyList | None = Field(None, description="Nothing further is told.")
    previous_response_id: None = Field(None, description="Nothing is stored.")


class OutputTextReply(ReplyModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessageReply(ReplyModel):
    """A message."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputTextReply]


class OutputCallReply(ReplyModel):
    """A call of a tool."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class ResponseUsageReply(ReplyModel):
    """`usage`."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseReply(ReplyModel):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[Annotated[OutputMessageReply | OutputCallReply, Field(discriminator="type")]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    usage: ResponseUsageReply | None


class ResponsesRoute(Route[ResponseBody]):
    """Responses."""

    path: ClassVar[str] = "/v1/responses"
    body = ResponseBody
    reply_model: ClassVar[type[Any]] = ResponseReply
    says: ClassVar[str] = "A response to a text or a conversation"
    limit_field: ClassVar[str] = "max_output_tokens"

    def asked(self, body: ResponseBody) -> Asked:
        """See `Route`."""
        limits = self.service.limits
        options = sampling_options(body, body.max_output_tokens, limits, "max_output_tokens")
        structure = _structure_of(body.text)
        choice = body.tool_choice
        tools = _chat_tools(body.tools)
        if tools:
            named = choice.model_dump() if isinstance(choice, ResponseToolChoice) else choice
            structure = tools_structure(tools, named, body.parallel_tool_calls, structure, limits.tool_format)
        elif choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice without tools", at="tool_choice", hint="tools")
        messages = _messages(body)
        told = None if choice == "none" else tools
        read = self.service.prompts.of_chat
        size = size_of(messages)
        return Asked(lambda: [read(messages, told, None, "input")], size, 1, options, structure, seed_of(body))

    def _head(self, body: ResponseBody) -> dict[str, Any]:
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": self.service.name,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}}
            if body.text is None or body.text.format is None
            else body.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": body.tool_choice.model_dump()
            if isinstance(body.tool_choice, ResponseToolChoice)
            else body.tool_choice or "auto",
            "tools": [one.model_dump() for one in body.tools or ()],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    def reply(self, body: ResponseBody, running: Running, completions: Sequence[Completion]) -> dict[str, Any]:
        """See `Route`."""
        (completion,) = completions
        splitter = CallSplitter(running.constraint)
        content = splitter.push(completion.text)
        outcome = splitter.end(completion)
        content += outcome.rest
        output = [_message(_new_id("msg"), content, outcome.status)] if content or not outcome.calls else []
        output += [_call(_new_id("fc"), one) for one in outcome.calls]
        return _ended(self._head(body), output, outcome, running, completion)

    async def events(self, body: ResponseBody, running: Running) -> AsyncGenerator[bytes]:
        """See `Route`."""
        stream = _Stream(self._head(body))
        yield stream.event("response.created", response=stream.head)
        yield stream.event("response.in_progress", response=stream.head)
        splitter = CallSplitter(running.constraint)
        try:
            async for _, chunk in running.chunks():
                content = splitter.push(chunk.text)
                outcome = None
                if chunk.completion is None:
                    pieces = splitter.calls()
                else:
                    outcome, pieces = await self.outcome(splitter, chunk.completion)
                    content += outcome.rest
                if content or (outcome is not None and not outcome.calls and not stream.text):
                    for event in stream.write(content):
                        yield event
                for piece in pieces:
                    for event in stream.call(piece):
                        yield event
                if outcome is not None and chunk.completion is not None:
                    for event in stream.end(outcome, running, chunk.completion):
                        yield event
        except DecodekitError as error:
            failed = {"code": error.code, "message": f"{error.code} {error.cause}"}
            yield stream.event("response.failed", response={**stream.head, "status": "failed", "error": failed})


class _Stream:
    """The events of one response: each has its number, and items have their places."""

    def __init__(self, head: dict[str, Any]) -> None:
        self.head = head
        self.text = ""
        self._message_id: str | None = None
        self._call: dict[str, Any] | None = None  # that is open
        self._output: list[dict[str, Any]] = []  # the items that are done
        self._num_calls = 0
        self._number = 0

    def event(self, type: str, **fields: Any) -> bytes:
        made = as_event({"type": type, "sequence_number": self._number, **fields}, type)
        self._number += 1
        return made

    def write(self, text: str) -> list[bytes]:
        """The events of new content."""
        events = []
        if self._message_id is None:
            self._message_id = _new_id("msg")
            item = {"type": "message", "id": self._message_id, "role": "assistant", "status": "in_progress",
                    "content": []}  # fmt: skip
            events.append(self.event("response.output_item.added", output_index=0, item=item))
            events.append(self._of_part("response.content_part.added", part=_part("")))
        self.text += text
        if text:
            events.append(self._of_part("response.output_text.delta", delta=text, logprobs=[]))
        return events

    def _of_part(self, type: str, **fields: Any) -> bytes:
        return self.event(type, item_id=self._message_id, output_index=0, content_index=0, **fields)

    def call(self, piece: CallPiece) -> list[bytes]:
        """The events of what is new of a call."""
        events: list[bytes] = []
        if piece.id is not None and piece.name is not None:
            events += [*self._end_message("completed"), *self._end_call("completed")]
            item = _call(_new_id("fc"), WrittenCall(piece.id, piece.name, ""))
            self._call, self._num_calls = item, self._num_calls + 1
            begun = {**item, "status": "in_progress"}
            events.append(self.event("response.output_item.added", output_index=len(self._output), item=begun))
        if piece.arguments and self._call is not None:
            self._call["arguments"] += piece.arguments
            events.append(self._of_call("response.function_call_arguments.delta", delta=piece.arguments))
        return events

    def _of_call(self, type: str, **fields: Any) -> bytes:
        assert self._call is not None
        return self.event(type, item_id=self._call["id"], output_index=len(self._output), **fields)

    def _end_call(self, status: str) -> list[bytes]:
        """The events behind the last piece of a call, if one is open."""
        item = self._call
        if item is None:
            return []
        item["status"] = status
        told = {name: item[name] for name in ("name", "arguments")}
        events = [
            self._of_call("response.function_call_arguments.done", **told),
            self.event("response.output_item.done", output_index=len(self._output), item=item),
        ]
        self._output.append(item)
        self._call = None
        return events

    def _end_message(self, status: str) -> list[bytes]:
        """The events behind the last content, if a message is open."""
        if self._message_id is None or self._output:
            return []
        item = _message(self._message_id, self.text, status)
        events = [
            self._of_part("response.output_text.done", text=self.text, logprobs=[]),
            self._of_part("response.content_part.done", part=_part(self.text)),
            self.event("response.output_item.done", output_index=0, item=item),
        ]
        self._output.append(item)
        return events

    def end(self, outcome: TextEnd, running: Running, completion: Completion) -> list[bytes]:
        """The events behind the last piece. A call that was broken off is incomplete."""
        events = self._end_message(outcome.status)
        events += self._end_call("completed" if self._num_calls == len(outcome.calls) else "incomplete")
        ended = _ended(self.head, self._output, outcome, running, completion)
        return [*events, self.event(f"response.{ended['status']}", response=ended)]


def _structure_of(text: ResponseText | None) -> Structure | None:
    given = None if text is None else text.format
    if isinstance(given, ResponseSchemaFormat):
        return Structure("json_schema", given.schema_, "text.format.schema")
    return Structure("json_schema", {"type": "object"}, "text.format") if isinstance(given, AnyObjectFormat) else None


def _chat_tools(tools: Listed[ResponseTool] | None) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    return [{"type": "function", "function": one.model_dump(exclude={"type"}, exclude_none=True)} for one in tools]


def _messages(body: ResponseBody) -> list[ChatMessage]:
    """The conversation as chats have it."""
    found: list[ChatMessage] = []
    if body.instructions is not None:
        found.append(SpokenMessage(role="system", content=body.instructions))
    items = [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    for place, item in enumerate(items):
        if isinstance(item, InputCallOutput):
            found.append(ToolMessage(role="tool", content=_plain_text(item.output), tool_call_id=item.call_id))
        elif isinstance(item, InputCall):
            arguments_of(item.arguments, f"input.{place}.arguments")
            function = FunctionCallFields(name=item.name, arguments=item.arguments)
            call = CallFields(id=item.call_id, type="function", function=function)
            last = found[-1] if found else None
            if isinstance(last, AssistantMessage):  # calls that were made together
                last.tool_calls = [*(last.tool_calls or ()), call]
            else:
                found.append(AssistantMessage(role="assistant", tool_calls=[call]))
        elif item.role == "assistant":
            found.append(AssistantMessage(role="assistant", content=_plain_text(item.content)))
        else:
            found.append(SpokenMessage(role=item.role, content=_plain_text(item.content)))
    return found


def _plain_text(content: str | list[InputPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(id: str, text: str, status: str) -> dict[str, Any]:
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": [_part(text)]}


def _call(id: str, call: WrittenCall) -> dict[str, Any]:
    return {"type": "function_call", "id": id, "call_id": call.id, "name": call.name, "arguments": call.arguments,
            "status": "completed"}  # fmt: skip


def _ended(
    head: dict[str, Any], output: list[dict[str, Any]], outcome: TextEnd, running: Running, completion: Completion
) -> dict[str, Any]:
    usage = running.usage([completion])
    is_cut = outcome.finish_reason == "length"
    return {
        **head,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }
