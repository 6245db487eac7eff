"""Conversations: messages by the chat template of a tokenizer, with what the template is to be told besides.

    Telling(tools=[...], options={"enable_thinking": False}).encode(tokenizer, messages, "prompt 0")

Three kinds of tokenizers write conversations: those of transformers, by a template in Jinja; those of transformers
around mistral-common, and those of mistral-common itself, by a program. **What they write is all that the model
reads**: they write the beginning-of-sequence token themselves, and none is added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from decodekit.errors import ChatTemplateError, DecodekitError, OptionError, UselessOptionError
from decodekit.models.encoding import encode_text

OWN_OPTIONS: Final = frozenset({"continue_final_message", "chat_template"})
"""Options of `apply_chat_template` that may stand beside the variables of a template."""

_GIVEN: Final = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables of templates that are not for `chat_template_kwargs`."""

_TRANSFORMERS_TAG: Final = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_OF_MISTRAL: Final = ("reasoning_effort",)


@dataclass(frozen=True, slots=True)
class Telling:
    """What a chat template is told beside the messages.

    Args:
        tools: definitions of tools in OpenAI's form.
        options: variables of the template, such as ``enable_thinking``; and ``continue_final_message``, which lets the
            model go on with the last message, or ``chat_template``, another template or the name of one.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tools or self.options)

    @property
    def names(self) -> str:
        """What was told, for errors."""
        return ", ".join([*(["tools"] if self.tools else []), *self.options])

    def faults(self, tokenizer: Any) -> list[DecodekitError]:
        """What the template of a tokenizer does not read."""
        if not self or not self.can_write(tokenizer):
            return []  # a conversation is refused by name, and nothing else can be told anything
        reads = self.variables_of(tokenizer)
        found: list[DecodekitError] = []
        if self.tools and "tools" not in reads:
            cause = "tools= has no effect: the chat template of the tokenizer reads no tools"
            hint = "the tools in a message, and constraint=dk.tools(...) for the calls"
            found.append(UselessOptionError(cause, at="tools", hint=hint))
        for name in self.options:
            if name in _GIVEN:
                cause = f"{name} is not for chat_template_kwargs"
                hint = "tools=" if name == "tools" else "continue_final_message" if "prompt" in name else "the prompt"
                found.append(OptionError(cause, at="chat_template_kwargs", hint=hint))
            elif name not in reads and name not in OWN_OPTIONS:
                known = sorted(one for one in reads - _GIVEN if not one.endswith("_token"))
                cause = f"{name} has no effect: the chat template of the tokenizer does not read it"
                hint = f"its variables: {', '.join(known)}" if known else "it has no variables"
                found.append(UselessOptionError(cause, at="chat_template_kwargs", hint=hint))
        return found

    def encode(self, tokenizer: Any, messages: Sequence[Mapping[str, Any]], at: str) -> list[int]:
        """Token ids of a conversation, with the beginning of an answer at the end.

        Raises:
            ChatTemplateError: there is no chat template, or it refuses the messages.
        """
        if not self.can_write(tokenizer):
            raise ChatTemplateError(
                "messages were given and the tokenizer has no chat template",
                at=at,
                hint="one text as prompt, a chat model, or setting tokenizer.chat_template",
            )
        try:
            written = self._written(tokenizer, [*messages])
        except Exception as error:  # a template is a program of the model's author and raises what it likes
            raise ChatTemplateError(
                f"the chat template of the tokenizer refuses the messages: {type(error).__name__}: {str(error)[:500]}",
                at=at,
            ) from error
        if isinstance(written, str):
            return encode_text(tokenizer, written, at, add_special_tokens=False)
        return [int(token) for token in written]

    def _written(self, tokenizer: Any, messages: list[Mapping[str, Any]]) -> str | Sequence[int]:
        """The conversation as a text, or in tokens where the tokenizer has no text for its special ones."""
        tools = [dict(tool) for tool in self.tools] or None
        if hasattr(tokenizer, "encode_chat_completion"):
            from mistral_common.protocol.instruct.request import ChatCompletionRequest

            request = ChatCompletionRequest.from_openai([dict(one) for one in messages], tools, **self.options)
            return tokenizer.encode_chat_completion(request).tokens  # type: ignore[no-any-return]
        continues = bool(self.options.get("continue_final_message"))
        told = {"tools": tools, "add_generation_prompt": not continues, **self.options}
        if self._has_text(tokenizer):
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **told))
        ids: Any = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **told)
        return [*(ids[0] if ids and not isinstance(ids[0], int) else ids)]

    def can_write(self, tokenizer: Any) -> bool:
        """Whether a tokenizer can write conversations, by itself or by the template that is told."""
        return has_chat_template(tokenizer) or self._has_text(tokenizer)

    def _has_text(self, tokenizer: Any) -> bool:
        """Whether there is a template in Jinja."""
        is_told = "chat_template" in self.options and hasattr(tokenizer, "apply_chat_template")
        return bool(getattr(tokenizer, "chat_template", None)) or is_told

    def variables_of(self, tokenizer: Any) -> frozenset[str]:
        """The names that the template of a tokenizer reads."""
        if not self._has_text(tokenizer):
            return frozenset({"tools", *_OF_MISTRAL})
        template = tokenizer.chat_template
        if hasattr(tokenizer, "get_chat_template"):
            template = tokenizer.get_chat_template(self.options.get("chat_template"), [*self.tools] or None)
        return variables(str(template))


def has_chat_template(tokenizer: Any) -> bool:
    """Whether a tokenizer can write conversations."""
    return bool(getattr(tokenizer, "chat_template", None)) or any(
        hasattr(one, "encode_chat_completion")
        for one in (tokenizer, getattr(tokenizer, "tokenizer", None))  # of mistral-common, and transformers' around it
    )


def variables(template: str) -> frozenset[str]:
    """The variables that a template in Jinja reads and does not set.

    Without Jinja, or where transformers' dialect of it has changed, every word of the template.
    """
    try:
        from jinja2 import Environment, TemplateError, meta
    except ImportError:
        return _words(template)
    try:
        environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # parsed, never rendered
        return frozenset(meta.find_undeclared_variables(environment.parse(_TRANSFORMERS_TAG.sub("", template))))
    except TemplateError:
        return _words(template)


def _words(template: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", template))
