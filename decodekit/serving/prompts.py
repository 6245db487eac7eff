"""From messages and texts to the tokens of prompts."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from decodekit.errors import ChatTemplateError, ContextLengthError, InvalidRequestError, OptionError
from decodekit.llm import LLM
from decodekit.models.encoding import encode_text
from decodekit.serving.fields import AssistantMessage, ChatMessage, ContentPart, ToolMessage


class Prompts:
    """Reads prompts with the tokenizer of a model. Threads may share it.

    Args:
        llm: model and tokenizer.
        template: a chat template in place of the tokenizer's own.

    Raises:
        OptionError: a template is given, and the tokenizer takes none.
    """

    def __init__(self, llm: LLM, template: str | None = None) -> None:
        if template is not None and not hasattr(llm.tokenizer, "apply_chat_template"):
            cause = f"a {type(llm.tokenizer).__name__} takes no chat template"
            raise OptionError(cause, at="chat_template", hint="a tokenizer of transformers")
        self._llm = llm
        self._template = template or getattr(llm.tokenizer, "chat_template", None)
        self._lock = threading.Lock()  # tokenizers of transformers keep options in the tokenizer

    @property
    def has_template(self) -> bool:
        """Whether chats go through a template; otherwise the messages are put one after the other."""
        return bool(self._template)

    def of_text(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer adds.

        Raises:
            OptionError: it has no tokens.
            ContextLengthError: it leaves no room for an answer.
        """
        with self._lock:
            ids = encode_text(self._llm.tokenizer, text, "prompt", add_special_tokens=True)
        return self.of_ids(ids)

    def of_ids(self, ids: list[int]) -> list[int]:
        """Token ids, checked.

        Raises:
            OptionError: there are none, or one is no token.
            ContextLengthError: they leave no room for an answer.
        """
        size, most = self._llm.vocabulary.size, self._llm.model.context_length
        if not ids:
            raise OptionError("the prompt has no tokens", at="prompt", hint="a prompt that is not empty")
        wrong = next((one for one in ids if not 0 <= one < size), None)
        if wrong is not None:
            raise OptionError(f"token id {wrong} is outside the vocabulary of {size:,} ids", at="prompt")
        if most is not None and len(ids) >= most:
            cause = f"the prompt has {len(ids):,} tokens, the context of the model {most:,}: no room for an answer"
            raise ContextLengthError(cause, at="prompt", hint="a shorter prompt")
        return ids

    def of_chat(
        self, messages: Sequence[ChatMessage], tools: list[dict[str, Any]] | None, options: Mapping[str, Any] | None
    ) -> list[int]:
        """Token ids of a conversation, by the chat template.

        Args:
            messages: of the conversation.
            tools: what the template may tell of tools.
            options: `chat_template_kwargs`.

        Raises:
            ChatTemplateError: the template refuses the messages.
            InvalidRequestError: an option that is none of the template's, or arguments of a call that are no JSON.
            OptionError, ContextLengthError: as `of_ids`.
        """
        listed = [_for_template(message, place) for place, message in enumerate(messages)]
        if not self._template:
            if options:
                cause = "this model has no chat template, so that there is nothing to set"
                raise InvalidRequestError(cause, at="chat_template_kwargs")
            return self.of_text(_plain(listed))
        self._check_options(options or {})
        tokenizer = self._llm.tokenizer
        with self._lock:
            try:
                text = tokenizer.apply_chat_template(
                    listed,
                    tools=tools or None,
                    chat_template=self._template,
                    tokenize=False,
                    add_generation_prompt=True,
                    **(options or {}),
                )
            except Exception as error:  # a template is a program of the model's author and raises what it likes
                cause = f"the chat template refuses the messages: {type(error).__name__}: {str(error)[:300]}"
                raise ChatTemplateError(cause, at="messages") from error
            ids = encode_text(tokenizer, str(text), "messages", add_special_tokens=False)
        return self.of_ids(ids)

    def _check_options(self, options: Mapping[str, Any]) -> None:
        own = inspect.signature(self._llm.tokenizer.apply_chat_template).parameters
        for name in options:
            if name in own or name in ("messages", "tools"):
                raise InvalidRequestError(f"{name!r:.60} is not for clients to set", at="chat_template_kwargs")
            if not re.search(rf"\b{re.escape(name)}\b", str(self._template)):
                cause = f"the chat template of the model has no variable {name!r:.60}"
                raise InvalidRequestError(cause, at="chat_template_kwargs")


def _for_template(message: ChatMessage, place: int) -> dict[str, Any]:
    """A message as templates read it: the content a text, the arguments of calls a value."""
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": _text_of(message.content)}
    if message.name is not None:
        found["name"] = message.name
    if isinstance(message, ToolMessage):
        found["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage) and message.tool_calls:
        found["tool_calls"] = []
        for number, call in enumerate(message.tool_calls):
            try:
                arguments = json.loads(call.function.arguments or "{}")
            except (ValueError, RecursionError) as error:
                at = f"messages.{place}.tool_calls.{number}.function.arguments"
                raise InvalidRequestError("the arguments are no JSON", at=at) from error
            function = {"name": call.function.name, "arguments": arguments}
            found["tool_calls"].append({"id": call.id, "type": "function", "function": function})
    return found


def _text_of(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _plain(messages: list[dict[str, Any]]) -> str:
    """A conversation for a model without a chat template: what was said, each time with a line end."""
    lines = []
    for message in messages:
        lines += [message["content"]] if message["content"] or not message.get("tool_calls") else []
        lines += [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    return "".join(f"{line}\n" for line in lines)
