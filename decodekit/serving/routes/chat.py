"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.errors import InvalidRequestError
from decodekit.llm import Completion
from decodekit.serving.requests.engine_requests import Asked, check_ids, seed_of, structure_of, text_options
from decodekit.serving.requests.fields import (
    CallFields,
    ChatMessage,
    Effort,
    JsonObject,
    Listed,
    Messages,
    NamedToolChoice,
    TextFields,
    ToolFields,
    UsageReply,
)
from decodekit.serving.requests.prompt_reader import PastCalls, size_of
from decodekit.serving.requests.structure import Structure
from decodekit.serving.routes.call_stream import CallSplitter
from decodekit.serving.routes.route import Route
from decodekit.serving.routes.token_logprobs import as_event
from decodekit.serving.service import Running


class ChatBody(TextFields):
    """A request for the next message of a conversation."""

    messages: Messages[ChatMessage] = Field(description="The conversation so far.")
    max_completion_tokens: int | None = Field(None, ge=1, description="Newer name of `max_tokens`.")
    logprobs: bool | None = Field(None, description="Log-probabilities of the tokens under the model itself.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="With so many alternatives; needs `logprobs`.")
    tools: Listed[ToolFields] | None = Field(None, min_length=1, max_length=128, description="What may be called.")
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = Field(
        None, description="`auto` if left out."
    )
    parallel_tool_calls: bool | None = Field(None, description="`false` for one call at most.")
    chat_template_kwargs: JsonObject | None = Field(None, description="Variables of the chat template.")
    reasoning_effort: Effort | None = Field(
        None, description="A variable of the chat template, or its switch; left out, models reason as it says."
    )
    thinking_token_budget: int | None = Field(None, ge=0, description="Most tokens of the thought before the answer.")
    include_reasoning: bool | None = Field(None, description="`false` leaves the thought out of the answer.")
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    modalities: Listed[Literal["text"]] | None = Field(None, description="Text alone.")


class ChatMessageReply(BaseModel):
    """The message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[CallFields] | None = None


class AlternativeReply(BaseModel):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenReply(AlternativeReply):
    """A token of the text."""

    top_logprobs: list[AlternativeReply]


class ChatLogprobsReply(BaseModel):
    """Log-probabilities of a message."""

    content: list[TokenReply]
    refusal: None = None


class ChatChoiceReply(BaseModel):
    """One of the texts."""

    index: int
    message: ChatMessageReply
    logprobs: ChatLogprobsReply | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatReply(BaseModel):
    """The answer to a request for a message."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceReply]
    usage: UsageReply


def tools_structure(
    tools: list[dict[str, Any]],
    choice: Any,
    parallel: bool | None,
    structure: Structure | None,
    format: str | dict[str, Any],
) -> Structure:
    """The constraint of a text that may call tools; with a schema, the `structure` of what it writes instead.

    `tools` are in OpenAI's form, `choice` and `parallel` as the request has them, `format` a name or a value of
    `ToolFormat.to_dict`.
    """
    if structure is not None and structure.kind != "json_schema":
        raise InvalidRequestError(
            f"{structure.field} and tools cannot be combined", at=structure.field, hint="a JSON Schema"
        )
    several = None if choice == "none" or parallel is not False else False
    value = {"tools": tools, "tool_choice": choice or "auto", "parallel": several, "format": format}
    if structure is not None and choice in (None, "auto", "none"):
        value["schema"] = structure.value
    elif structure is not None:
        cause = f"{structure.field} has no effect where tool_choice leaves nothing but calls"
        raise InvalidRequestError(cause, at=structure.field)
    return Structure("tools", value, "tools")


class ChatRoute(Route[ChatBody]):
    """Messages of the assistant."""

    path: ClassVar[str] = "/v1/chat/completions"
    body = ChatBody
    reply_model: ClassVar[type[Any]] = ChatReply
    says: ClassVar[str] = "The next message of a conversation"

    def asked(self, body: ChatBody) -> Asked:
        """See `Route`."""
        limits = self.service.limits
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
            raise InvalidRequestError("max_tokens says something else", at="max_completion_tokens")
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true", at="top_logprobs")
        check_ids(body, has_logprobs=bool(body.logprobs))
        options = text_options(body, getattr(body, name), limits, name)
        if body.logprobs:
            options["logprobs"] = body.top_logprobs or True
        structure = structure_of(body)
        tools = None if body.tools is None else [one.model_dump(exclude_none=True) for one in body.tools]
        choice = body.tool_choice.model_dump() if isinstance(body.tool_choice, NamedToolChoice) else body.tool_choice
        if tools is not None:
            structure = tools_structure(tools, choice, body.parallel_tool_calls, structure, self.service.tool_format)
        elif choice not in (None, "none") or body.parallel_tool_calls is not None:
            at = "parallel_tool_calls" if choice in (None, "none") else "tool_choice"
            raise InvalidRequestError(f"{at} without tools", at=at, hint="tools")
        PastCalls().check_chat(body.messages)
        told = None if choice == "none" else tools
        prompts, budget = self.service.prompts, body.thinking_token_budget
        variables, thinking = prompts.thinking(
            body.reasoning_effort, budget, body.chat_template_kwargs, "reasoning_effort", "thinking_token_budget"
        )
        limit_field = None if getattr(body, name) is None else name

        def read() -> list[list[int]]:
            return [prompts.of_chat(body.messages, told, variables)]

        size, options = size_of(body.messages), options | thinking
        return Asked(read, size, body.n or 1, options, structure, seed_of(body), limit_field)

    def reply(self, body: ChatBody, running: Running, completions: Sequence[Completion]) -> dict[str, Any]:
        """See `Route`."""
        choices = [self._choice(body, running, index, one) for index, one in enumerate(completions)]
        return {**self.head("chatcmpl", "chat.completion"), "choices": choices, "usage": running.usage()}

    def _choice(self, body: ChatBody, running: Running, index: int, completion: Completion) -> dict[str, Any]:
        content, outcome = CallSplitter(running.constraint).whole(completion)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if completion.reasoning is not None and body.include_reasoning is not False:
            message["reasoning_content"] = completion.reasoning
        if outcome.calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in outcome.calls
            ]
        logprobs = None
        if body.logprobs:
            entries = (completion.logprobs or ())[completion.stats.num_reasoning_tokens :]
            logprobs = {"content": self._entries(body, entries), "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": outcome.finish_reason}

    def _entries(self, body: ChatBody, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return self.tokens.of_chat(logprobs, bool(body.return_tokens_as_token_ids))

    async def events(self, body: ChatBody, running: Running) -> AsyncGenerator[bytes]:
        """See `Route`."""
        head = self.head("chatcmpl", "chat.completion.chunk")
        with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        usage = {"usage": None} if with_usage else {}

        def event(index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> bytes:
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return as_event({**head, "choices": [choice], **usage})

        splitters = [CallSplitter(running.constraint) for _ in running.handles]
        for index in range(len(splitters)):
            yield event(index, {"role": "assistant", "content": "", "refusal": None})
        async for index, chunk in running.chunks():
            content = splitters[index].push(chunk.content)
            entries = self._entries(body, chunk.logprobs[chunk.num_reasoning_tokens :]) if body.logprobs else []
            if chunk.reasoning and body.include_reasoning is not False:
                yield event(index, {"reasoning_content": chunk.reasoning})
            outcome = None
            if chunk.completion is None:
                pieces = splitters[index].calls()
            else:
                outcome, pieces = await self.outcome(splitters[index], chunk.completion)
                content += outcome.rest
            if content or entries:
                yield event(index, {"content": content}, {"content": entries, "refusal": None} if entries else None)
            for piece in pieces:
                yield event(index, {"tool_calls": [piece.delta]})
            if outcome is not None:
                yield event(index, {}, None, outcome.finish_reason)
        if with_usage:
            yield as_event({**head, "choices": [], "usage": running.usage()})
        yield b"data: [DONE]\n\n"
