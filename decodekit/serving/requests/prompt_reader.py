"""From messages and texts to the tokens of prompts.

How long a text is in tokens is known when it has been divided, which takes a second for each megabyte. So what cannot
fit into the context by its bytes is refused before: n bytes are n / `most_bytes_per_token` tokens at least. For a chat
that is so of what the template has written, and not of its messages, of which a template may leave out what it likes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

from decodekit.chat.conversation import OWN_OPTIONS, TemplateArguments
from decodekit.chat.forms.message_form import plain, text_of
from decodekit.chat.template_thought import BUDGETS, EFFORT, SWITCHES, thought_of
from decodekit.errors import ContextLengthError, InvalidRequestError, OptionError
from decodekit.llm import LLM
from decodekit.models.encoding import check_bytes, encode_text, most_bytes_per_token
from decodekit.quoting import QuotedText
from decodekit.serving.requests.fields import AssistantMessage, ChatMessage, ToolMessage

_SAID: Final[Any] = {"role": True, "content": True, "name": True, "tool_call_id": True,
                     "reasoning_content": True, "reasoning": True,
                "tool_calls": {"__all__": {"id": True, "type": True, "function": {"name", "arguments"}}}}  # fmt: skip


class Prompts:
    """Reads prompts with the tokenizer of a model, maybe by a chat template of one's own. Threads may share it.

    Prompts that have no tokens, or leave no room for an answer, are an `OptionError` or a `ContextLengthError`.
    """

    def __init__(self, llm: LLM, template: str | None = None) -> None:
        if template is not None and not hasattr(llm.tokenizer, "apply_chat_template"):
            cause = f"a {type(llm.tokenizer).__name__} takes no chat template"
            raise OptionError(cause, at="chat_template", hint="a tokenizer of transformers")
        self._llm = llm
        self._own: dict[str, Any] = {} if template is None else {"chat_template": template}
        self._thought = thought_of(llm.tokenizer, TemplateArguments(options=self._own))
        self._lock = threading.Lock()
        self._bytes_per_token = most_bytes_per_token(llm.tokenizer, llm.vocabulary)

    @property
    def has_template(self) -> bool:
        """Whether chats go through a template; otherwise the messages are put one after the other."""
        return TemplateArguments(options=self._own).can_write(self._llm.tokenizer)

    def reads(self, name: str) -> bool:
        """Whether chats go through a template that has a variable of this name."""
        return self.has_template and name in TemplateArguments(options=self._own).variables_of(self._llm.tokenizer)

    def thinking(
        self, effort: str | None, most_tokens: int | None, options: Mapping[str, Any] | None, at: str, most_at: str = ""
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of thinking for a request: variables of the chat template, and options of `LLM.generate`.

        An effort is a variable of some templates; others have a switch. Where there is neither, a thought that the
        model would begin is ended at once for the effort "none", and any other effort is refused. `options`, the
        `chat_template_kwargs`, go before; `at` and `most_at` are the fields of the effort and of the tokens.
        """
        told = dict(options or {})
        chosen: dict[str, Any] = {"reasoning": self._thought or "none"}
        if most_tokens is not None and self._thought is None:
            raise InvalidRequestError("this model has no thoughts before its answers", at=most_at)
        switch = next((name for name in SWITCHES if self.reads(name)), None) if effort else None
        if effort == "none" and switch is not None:
            told.setdefault(switch, False)
        elif effort == "none":
            most_tokens = None if self._thought is None else 0
        elif effort is not None and self.reads(EFFORT):
            told.setdefault(EFFORT, effort)
        elif effort is not None and switch is not None:
            told.setdefault(switch, True)
        elif effort is not None:
            cause = f"{at}={effort!r} has no effect: the chat template of this model does not read it"
            raise InvalidRequestError(cause, at=at, hint="leaving it out")
        if most_tokens is not None:
            chosen["max_reasoning_tokens"] = most_tokens
            for name in filter(self.reads, BUDGETS):
                told.setdefault(name, most_tokens)
        return told, chosen

    def of_text(self, text: str, at: str = "prompt") -> list[int]:
        """Token ids of a text of the field `at`, with the special tokens that the tokenizer adds."""
        return self.of_ids(self._encoded(text, at, add_special_tokens=True), at)

    def check_bytes(self, texts: Sequence[str], at: str = "prompt") -> None:
        """Raise the `ContextLengthError` of texts of which one has too many bytes to leave room for an answer."""
        for text in texts:
            check_bytes(text, at, self._llm.model.context_length, self._bytes_per_token)

    def _encoded(self, text: str, at: str, *, add_special_tokens: bool) -> list[int]:
        self.check_bytes([text], at)
        tokenizer = self._llm.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        # Threads may share a tokenizer that changes nothing in itself. Those of transformers keep options of a call in
        # what they stand on: padding and truncation, which a call without them, as all are here, takes away.
        changes = getattr(backend, "truncation", None) is not None or getattr(backend, "padding", None) is not None
        with self._lock if changes else nullcontext():
            return encode_text(tokenizer, text, at, add_special_tokens=add_special_tokens)

    def of_ids(self, ids: list[int], at: str = "prompt") -> list[int]:
        """Token ids, checked."""
        size, most = self._llm.vocabulary.size, self._llm.model.context_length
        if not ids:
            raise OptionError("the prompt has no tokens", at=at, hint="a prompt that is not empty")
        wrong = next((one for one in ids if not 0 <= one < size), None)
        if wrong is not None:
            raise OptionError(f"token id {wrong} is outside the vocabulary of {size:,} ids", at=at)
        if most is not None and len(ids) >= most:
            cause = f"the prompt has {len(ids):,} tokens, the context of the model {most:,}: no room for an answer"
            raise ContextLengthError(cause, at=at, hint="a shorter prompt")
        return ids

    def of_chat(
        self,
        messages: Sequence[ChatMessage],
        tools: list[dict[str, Any]] | None,
        options: Mapping[str, Any] | None,
        at: str = "messages",
    ) -> list[int]:
        """Token ids of a conversation, by the chat template, which may tell of `tools` and reads `options`.

        Raises the `ChatTemplateError` of messages that it refuses, and the `InvalidRequestError` of other options.
        """
        listed = [message.model_dump(include=_SAID, exclude_none=True) for message in messages]
        if not self.has_template:
            if options:
                cause = "this model has no chat template, so that there is nothing to set"
                raise InvalidRequestError(cause, at="chat_template_kwargs")
            return self.of_text(QuotedText(_plain(plain(listed, "", at))), at)
        chat, tokenizer = self._chat(tools or [], options or {}), self._llm.tokenizer
        written = chat.written(tokenizer, listed, at)
        if isinstance(written, str):
            written = self._encoded(written, at, add_special_tokens=False)
        return self.of_ids(written, at)

    def _chat(self, tools: list[dict[str, Any]], options: Mapping[str, Any]) -> TemplateArguments:
        """The arguments of the template; tools only for one that reads them, for calls are constrained in any case."""
        tokenizer = self._llm.tokenizer
        refused = next((name for name in options if name in OWN_OPTIONS), None)
        if refused is not None:
            raise InvalidRequestError(f"{refused} is not for clients to set", at="chat_template_kwargs")
        chat = TemplateArguments(options={**options, **self._own})
        for fault in chat.faults(tokenizer):
            raise InvalidRequestError(str(fault.cause), at="chat_template_kwargs", hint=fault.hint)
        return TemplateArguments(tools, chat.options) if "tools" in chat.variables_of(tokenizer) else chat


def size_of(messages: Sequence[ChatMessage]) -> int:
    """About how many characters a conversation has."""
    size = 0
    for message in messages:
        content = message.content or ""
        size += len(content) if isinstance(content, str) else sum(len(part.text) for part in content)
        if isinstance(message, AssistantMessage):
            size += sum(len(call.function.arguments) for call in message.tool_calls or ())
    return size


class PastCalls:
    """The calls of a conversation as its client tells them, in order: each has an identifier, and one result at most.

    An identifier may come again once its call has a result: there are models that count from 0 in every turn.
    """

    def __init__(self) -> None:
        self._has_result: dict[str, bool] = {}

    def check_call(self, id: str, arguments: str, id_at: str, arguments_at: str) -> None:
        """Take a call, whose fields are `id_at` and `arguments_at`; no arguments are an empty object."""
        try:
            json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError("the arguments are no JSON", at=arguments_at) from error
        if self._has_result.get(id) is False:
            raise InvalidRequestError(f"two calls without a result have the identifier {id!r:.80}", at=id_at)
        self._has_result[id] = False

    def check_result(self, id: str, at: str) -> None:
        """Take the result of a call; `at` is the field of the identifier."""
        if self._has_result.get(id) is not False:
            cause = f"the call {id!r:.80} has a result already" if id in self._has_result else f"no call is {id!r:.80}"
            waiting = [one for one, has_result in self._has_result.items() if not has_result]
            hint = f"calls that wait for a result: {', '.join(map(repr, waiting))[:200]}" if waiting else None
            raise InvalidRequestError(cause, at=at, hint=hint)
        self._has_result[id] = True

    def check_chat(self, messages: Sequence[ChatMessage]) -> None:
        """Take the messages of a chat."""
        for place, message in enumerate(messages):
            if isinstance(message, ToolMessage):
                self.check_result(message.tool_call_id, f"messages.{place}.tool_call_id")
            for number, call in enumerate(message.tool_calls or () if isinstance(message, AssistantMessage) else ()):
                at = f"messages.{place}.tool_calls.{number}"
                self.check_call(call.id, call.function.arguments, f"{at}.id", f"{at}.function.arguments")


def _plain(messages: list[dict[str, Any]]) -> str:
    """A conversation for a model without a chat template: what was said, each time with a line end."""
    lines = []
    for message in messages:
        content = text_of(message["content"])
        lines += [content] if content or not message.get("tool_calls") else []
        lines += [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    return "".join(f"{line}\n" for line in lines)
