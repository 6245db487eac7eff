"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from decodekit.llm import Completion
from decodekit.serving.requests.engine_requests import Asked, check_ids, seed_of, structure_of, text_options
from decodekit.serving.requests.fields import Listed, TextFields, TokenId, UsageReply
from decodekit.serving.routes.route import Route
from decodekit.serving.routes.token_logprobs import as_event
from decodekit.serving.service import Running

DEFAULT_TOKENS = 16
"""Most tokens of a text where a request names no limit, as OpenAI has it."""


class CompletionBody(TextFields):
    """A request for the continuation of texts."""

    prompt: (
        str
        | Annotated[Listed[TokenId], Field(min_length=1)]
        | Annotated[Listed[str], Field(min_length=1, max_length=128)]
        | Annotated[Listed[Listed[TokenId]], Field(min_length=1, max_length=128)]
    ) = Field(description="A text, token ids, or a list of these.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Log-probabilities, with so many alternatives.")
    echo: Literal[False] | None = Field(None, description="The prompt is not repeated.")
    best_of: Literal[1] | None = Field(None, description="Every text is returned.")
    suffix: None = Field(None, description="Texts are continued at their end.")


class CompletionLogprobsReply(BaseModel):
    """Log-probabilities of a text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoiceReply(BaseModel):
    """One of the texts."""

    index: int
    text: str
    logprobs: CompletionLogprobsReply | None
    finish_reason: Literal["stop", "length"]


class CompletionReply(BaseModel):
    """The answer to a request for texts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoiceReply]
    usage: UsageReply


class CompletionsRoute(Route[CompletionBody]):
    """Continuations of texts."""

    path: ClassVar[str] = "/v1/completions"
    body = CompletionBody
    reply_model: ClassVar[type[Any]] = CompletionReply
    says: ClassVar[str] = "Continuations of texts"

    def asked(self, body: CompletionBody) -> Asked:
        """See `Route`."""
        limits = self.service.limits
        num_tokens = body.max_tokens or min(DEFAULT_TOKENS, limits.max_new_tokens)
        options = text_options(body, num_tokens, limits, "max_tokens")
        check_ids(body, has_logprobs=body.logprobs is not None)
        if body.logprobs is not None:
            options["logprobs"] = body.logprobs or True
        given: Any = body.prompt
        several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        prompts = self.service.prompts
        prompts.check_bytes([one for one in several if isinstance(one, str)])

        def read() -> list[list[int]]:
            return [prompts.of_text(one) if isinstance(one, str) else prompts.of_ids(one) for one in several]

        structure, size = structure_of(body), sum(map(len, several))
        limit_field = None if body.max_tokens is None else "max_tokens"
        return Asked(read, size, body.n or 1, options, structure, seed_of(body), limit_field)

    def reply(self, body: CompletionBody, running: Running, completions: Sequence[Completion]) -> dict[str, Any]:
        """See `Route`."""
        choices = [
            self._choice(body, index, one.text, one.logprobs or (), 0, _reason(one))
            for index, one in enumerate(completions)
        ]
        return {**self.head("cmpl", "text_completion"), "choices": choices, "usage": running.usage()}

    def _choice(
        self, body: CompletionBody, index: int, text: str, logprobs: Any, offset: int, reason: str | None
    ) -> dict[str, Any]:
        as_ids = bool(body.return_tokens_as_token_ids)
        told = None if body.logprobs is None else self.tokens.of_completion(logprobs, offset, as_ids)
        return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}

    async def events(self, body: CompletionBody, running: Running) -> AsyncGenerator[bytes]:
        """See `Route`."""
        head = self.head("cmpl", "text_completion")
        with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        usage = {"usage": None} if with_usage else {}
        offsets = [0] * len(running.handles)
        async for index, chunk in running.chunks():
            reason = None if chunk.completion is None else _reason(chunk.completion)
            if not (chunk.text or reason or (chunk.logprobs and body.logprobs is not None)):
                continue
            choice = self._choice(body, index, chunk.text, chunk.logprobs, offsets[index], reason)
            offsets[index] += self.tokens.num_characters(chunk.logprobs) if choice["logprobs"] else 0
            yield as_event({**head, "choices": [choice], **usage})
        if with_usage:
            yield as_event({**head, "choices": [], "usage": running.usage()})
        yield b"data: [DONE]\n\n"


def _reason(completion: Completion) -> str:
    return "length" if completion.finish_reason == "length" else "stop"
