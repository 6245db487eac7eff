"""From a text to token ids, by whatever method a tokenizer has for it."""

from __future__ import annotations

from typing import Any

from decodekit.errors import OptionError, TokenizerError


def encode_text(tokenizer: Any, text: str, at: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text.

    A text that begins with the beginning-of-sequence token, as one that a chat template wrote does, gets no second one.

    Raises:
        OptionError: the text is no valid Unicode.
        TokenizerError: the tokenizer offers no way to encode a text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptionError(
            f"the prompt is no valid Unicode: half of a surrogate pair at character {error.start}",
            at=at,
            hint='text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")',
        ) from error
    if hasattr(tokenizer, "instruct_tokenizer"):  # MistralTokenizer of mistral-common, around the one that encodes
        return encode_text(tokenizer.instruct_tokenizer.tokenizer, text, at, add_special_tokens=add_special_tokens)
    if callable(tokenizer):  # transformers
        # Not verbose: a text that is too long is answered with an error that says more than the tokenizer's warning.
        ids = tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
    elif hasattr(tokenizer, "encode_batch"):  # tokenizers
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    elif hasattr(tokenizer, "encode"):  # mistral-common
        ids = tokenizer.encode(text, bos=add_special_tokens, eos=False)
    else:
        raise TokenizerError(f"a {type(tokenizer).__name__} cannot encode a text", at=at)
    begin = getattr(tokenizer, "bos_token_id", None)
    if add_special_tokens and begin is not None and text.startswith(getattr(tokenizer, "bos_token", None) or "\0"):
        ids = ids[1:] if [*ids[:2]] == [begin, begin] else ids
    return [int(token) for token in ids]


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text without special tokens.

    Raises:
        TokenizerError: the tokenizer offers no way to encode a text.
    """
    return encode_text(tokenizer, text, "text", add_special_tokens=False)
