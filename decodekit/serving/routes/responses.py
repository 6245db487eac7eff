"""`/v1/responses`: what structured output and tools need of it. Nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Discriminator, Field, Tag

from decodekit.errors import DecodekitError, InvalidRequestError
from decodekit.llm import Completion
from decodekit.serving.requests.engine_requests import Asked, sampling_options, seed_of
from decodekit.serving.requests.fields import (
    AnyObjectFormat,
    AssistantMessage,
    CallFields,
    ChatMessage,
    Effort,
    EmptyList,
    FunctionCallFields,
    FunctionFields,
    Listed,
    Messages,
    NamedSchema,
    SamplingFields,
    SpokenMessage,
    TextFormat,
    ToolMessage,
    WireModel,
)
from decodekit.serving.requests.prompt_reader import PastCalls, size_of
from decodekit.serving.requests.structure import Structure
from decodekit.serving.routes.call_stream import CallSplitter
from decodekit.serving.routes.chat import tools_structure
from decodekit.serving.routes.response_stream import (
    ResponseStream,
    call_item,
    ended_response,
    message_item,
    thought_item,
)
from decodekit.serving.routes.route import Route
from decodekit.serving.service import Running

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
    """The result of a tool."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Listed[InputPart]
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningPart(WireModel):
    """A part of what the model has thought."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(WireModel):
    """The model's thought before a message or a call; the chat template says whether it is read."""

    type: Literal["reasoning"]
    summary: EmptyList | None = None
    content: Listed[ReasoningPart] | None = None
    id: str | None = None
    encrypted_content: None = None
    status: ItemStatus | None = None


def _kind_of_item(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", "message")
    return kind if isinstance(kind, str) else "message"


InputItem: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
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


class ReasoningFields(WireModel):
    """`reasoning`: how much a model thinks before it answers."""

    effort: Effort | None = Field(None, description="A variable of the chat template, or its switch.")
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
    reasoning: ReasoningFields | None = Field(None, description="Left out, models reason as their template says.")
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    background: Literal[False] | None = Field(None, description="Answers are waited for.")
    truncation: Literal["disabled"] | None = Field(None, description="Nothing is cut off a prompt.")
    include: EmptyList | None = Field(None, description="Nothing further is told.")
    previous_response_id: None = Field(None, description="Nothing is stored.")


class OutputTextReply(BaseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessageReply(BaseModel):
    """A message."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputTextReply]


class OutputCallReply(BaseModel):
    """A call of a tool."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class ReasoningPartReply(BaseModel):
    """A part of the reasoning."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoningReply(BaseModel):
    """The reasoning before an answer."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[ReasoningPartReply]
    status: ItemStatus


class ResponseUsageReply(BaseModel):
    """`usage`."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseReply(BaseModel):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[Annotated[OutputMessageReply | OutputCallReply | OutputReasoningReply, Field(discriminator="type")]]
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
        structure, form = None, None if body.text is None else body.text.format
        if isinstance(form, ResponseSchemaFormat):
            structure = Structure("json_schema", form.schema_, "text.format.schema")
        elif isinstance(form, AnyObjectFormat):
            structure = Structure("json_schema", {"type": "object"}, "text.format")
        choice = body.tool_choice
        tools = [
            {"type": "function", "function": one.model_dump(exclude={"type"}, exclude_none=True)}
            for one in body.tools or ()
        ]
        if tools:
            named = choice.model_dump() if isinstance(choice, ResponseToolChoice) else choice
            structure = tools_structure(tools, named, body.parallel_tool_calls, structure, self.service.tool_format)
        elif choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice without tools", at="tool_choice", hint="tools")
        messages = _messages(body)
        told = None if choice == "none" else tools
        prompts, size = self.service.prompts, size_of(messages)
        effort = None if body.reasoning is None else body.reasoning.effort
        variables, thinking = prompts.thinking(effort, None, None, "reasoning.effort")
        options |= thinking
        read = prompts.of_chat
        return Asked(lambda: [read(messages, told, variables, "input")], size, 1, options, structure, seed_of(body))

    def _head(self, body: ResponseBody) -> dict[str, Any]:
        choice, text = body.tool_choice, {"format": {"type": "text"}}
        if body.text is not None and body.text.format is not None:
            text = body.text.model_dump(by_alias=True, exclude_none=True)
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
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": text,
            "tool_choice": choice.model_dump() if isinstance(choice, ResponseToolChoice) else choice or "auto",
            "tools": [one.model_dump() for one in body.tools or ()],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    def reply(self, body: ResponseBody, running: Running, completions: Sequence[Completion]) -> dict[str, Any]:
        """See `Route`."""
        (completion,) = completions
        content, outcome = CallSplitter(running.constraint).whole(completion)
        output = [thought_item(completion.reasoning)] if completion.reasoning else []
        output += [message_item(content, outcome.status)] if content or not outcome.calls else []
        output += [call_item(one) for one in outcome.calls]
        return ended_response(self._head(body), output, outcome, running)

    async def events(self, body: ResponseBody, running: Running) -> AsyncGenerator[bytes]:
        """See `Route`."""
        stream = ResponseStream(self._head(body))
        yield stream.event("response.created", response=stream.head)
        yield stream.event("response.in_progress", response=stream.head)
        splitter = CallSplitter(running.constraint)
        try:
            async for _, chunk in running.chunks():
                for event in stream.think(chunk.reasoning):
                    yield event
                content = splitter.push(chunk.content)
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
                if outcome is not None:
                    for event in stream.end(outcome, running):
                        yield event
        except DecodekitError as error:
            failed = {"code": error.code, "message": f"{error.code} {error.cause}"}
            yield stream.event("response.failed", response={**stream.head, "status": "failed", "error": failed})


def _messages(body: ResponseBody) -> list[ChatMessage]:
    """The conversation as chats have it.

    A turn of the model is one message: what it has thought, said and called, as far as it comes in this order.
    """
    found: list[ChatMessage] = []
    calls = PastCalls()
    if body.instructions is not None:
        found.append(SpokenMessage(role="system", content=body.instructions))
    items = [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    for place, item in enumerate(items):
        last, at = found[-1] if found else None, f"input.{place}"
        if isinstance(item, InputCallOutput):
            calls.check_result(item.call_id, f"{at}.call_id")
            found.append(ToolMessage(role="tool", content=_plain_text(item.output), tool_call_id=item.call_id))
            continue
        if isinstance(item, InputMessage) and item.role != "assistant":
            found.append(SpokenMessage(role=item.role, content=_plain_text(item.content)))
            continue
        if isinstance(item, InputReasoning) and not item.content:
            continue
        # A call goes on with any turn, a message with one that has said and called nothing.
        is_new = not isinstance(item, InputCall)
        if isinstance(last, AssistantMessage) and isinstance(item, InputMessage):
            is_new = last.content is not None or last.tool_calls is not None
        if is_new or not isinstance(last, AssistantMessage):
            last = AssistantMessage(role="assistant")
            found.append(last)
        if isinstance(item, InputReasoning):
            last.reasoning_content = "".join(part.text for part in item.content or ())
        elif isinstance(item, InputMessage):
            last.content = _plain_text(item.content)
        else:
            calls.check_call(item.call_id, item.arguments, f"{at}.call_id", f"{at}.arguments")
            function = FunctionCallFields(name=item.name, arguments=item.arguments)
            call = CallFields(id=item.call_id, type="function", function=function)
            last.tool_calls = [*(last.tool_calls or ()), call]
    return found


def _plain_text(content: str | list[InputPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
