"""From a prompt to token ids, by the tokenizer's own rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from decodekit.errors import ChatTemplateError, OptionError
from decodekit.models.encoding import encode_plain as encode_plain
from decodekit.models.encoding import encode_text

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation: dictionaries with ``role`` and ``content``, and whatever else the chat template reads."""

Prompt: TypeAlias = str | Messages


def is_messages(prompt: object) -> TypeGuard[Messages]:
    """Whether this is a conversation rather than a list of prompts."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) for message in prompt)
    )


def encode(tokenizer: Any, prompt: Prompt, at: str) -> list[int]:
    """Token ids of a prompt.

    A text gets the special tokens that the tokenizer adds by default. Messages go through the chat template, which
    writes its special tokens itself, with the generation prompt at the end.

    Args:
        tokenizer: of transformers, tokenizers or mistral-common.
        prompt: text or messages.
        at: the place to name in errors.

    Raises:
        OptionError: the prompt is neither a text nor messages, or no valid Unicode.
        ChatTemplateError: the tokenizer has no chat template, or the template refuses the messages.
        TokenizerError: the tokenizer offers no way to encode a text.
    """
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt, at, add_special_tokens=True)
    if is_messages(prompt):
        return encode_text(tokenizer, _apply_chat_template(tokenizer, prompt, at), at, add_special_tokens=False)
    raise OptionError(
        f"a prompt is a text or a list of messages, not a {type(prompt).__name__}",
        at=at,
        hint='"some text" or [{"role": "user", "content": "some text"}]',
    )


def _apply_chat_template(tokenizer: Any, messages: Messages, at: str) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ChatTemplateError(
            "messages were given and the tokenizer has no chat template",
            at=at,
            hint="one text as prompt, a chat model, or setting tokenizer.chat_template",
        )
    try:
        return str(tokenizer.apply_chat_template([*messages], tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of the model's author and raises what it likes
        raise ChatTemplateError(
            f"the chat template of the tokenizer refuses the messages: {type(error).__name__}: {error}", at=at
        ) from error
