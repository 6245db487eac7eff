"""From a text to token ids, by whatever method a tokenizer has for it; and how few tokens a text may have."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from decodekit.errors import ContextLengthError, OptionError, TokenizerError
from decodekit.quoting import QuotedText, encode_quoted
from decodekit.vocabulary import Vocabulary

_BYTES_OF_UTF8: Final = frozenset((*range(0xC0), *range(0xC2, 0xF5)))
_COMPOSED: Final = 4
"""No normal form of Unicode makes a text shorter than a fourth of its bytes: U+1D41A, four bytes, is "a" in NFKC.

Proof by all code points x: let a(d) be the most bytes of a code point that decomposes into d alone. Then x has no more
bytes than its decomposition has by a, and every composed code point has a fourth of those of its own at least.
"""
_KEEPING: Final = frozenset(("ByteLevel", "Metaspace", "Digits"))
"""Pre-tokenizers that divide texts and leave nothing out."""


def encode_text(tokenizer: Any, text: str, at: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text; what a `QuotedText` quotes has no special tokens.

    A text that begins with the beginning-of-sequence token, as one that a chat template wrote does, gets no second one.

    Raises:
        OptionError: the text is not valid Unicode.
        TokenizerError: the tokenizer offers no way to encode a text, or cannot read a quotation as text.
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
    if isinstance(text, QuotedText):
        around = _encode(tokenizer, "", at, True) if add_special_tokens else []
        ids = encode_quoted(tokenizer, text, at, lambda one: _encode(tokenizer, one, at, add_special_tokens), around)
    else:
        ids = _encode(tokenizer, text, at, add_special_tokens)
    begin = getattr(tokenizer, "bos_token_id", None)
    if add_special_tokens and begin is not None and text.startswith(getattr(tokenizer, "bos_token", None) or "\0"):
        ids = ids[1:] if [*ids[:2]] == [begin, begin] else ids
    return ids


def _encode(tokenizer: Any, text: str, at: str, add_special_tokens: bool) -> list[int]:
    if callable(tokenizer):  # transformers
        # Not verbose: a text that is too long is answered with an error that says more than the tokenizer's warning.
        ids = tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
    elif hasattr(tokenizer, "encode_batch"):  # tokenizers
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    elif hasattr(tokenizer, "encode"):  # mistral-common
        ids = tokenizer.encode(text, bos=add_special_tokens, eos=False)
    else:
        raise TokenizerError(f"a {type(tokenizer).__name__} cannot encode a text", at=at)
    return [int(token) for token in ids]


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text without special tokens.

    Raises:
        TokenizerError: the tokenizer offers no way to encode a text.
    """
    return encode_text(tokenizer, text, "text", add_special_tokens=False)


def check_bytes(text: str, at: str, most_tokens: int | None, most_bytes: int | None) -> None:
    """Refuse a prompt that leaves no room for an answer by its bytes, before it is divided into tokens.

    `most_tokens` has the context of the model, `most_bytes` a token (`most_bytes_per_token`); None without a bound.

    Raises:
        ContextLengthError: it has too many.
    """
    if most_tokens is None or most_bytes is None or 4 * len(text) <= (most_tokens - 1) * most_bytes:
        return
    num_bytes = len(text.encode(errors="replace"))
    if num_bytes > (most_tokens - 1) * most_bytes:  # more bytes are `most_tokens` tokens at least
        cause = (
            f"the prompt has {num_bytes:,} bytes, the context of the model {most_tokens:,} tokens of {most_bytes:,} "
            "bytes at most: there is no room for an answer"
        )
        raise ContextLengthError(cause, at=at, hint="a shorter prompt, or a model with a longer context")


def most_bytes_per_token(tokenizer: Any, vocabulary: Vocabulary) -> int | None:
    """Most bytes of a text that one token stands for, so that n bytes are n / this many tokens at least.

    None where that has no bound or is not known. Tokens alone do not say it: a tokenizer may leave blanks out before it
    looks at tokens, let an added token swallow all blanks beside it, or make one token of any number of unknown
    characters. So the parts of the tokenizer are looked at, and each has to be one that is known to keep all bytes.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    encode = getattr(type(tokenizer), "_encode_plus", None)  # of transformers, unless the model brings code of its own
    if not getattr(encode or type(backend), "__module__", "").startswith(("transformers.", "tokenizers")):
        return None
    if not all(hasattr(backend, name) for name in ("normalizer", "pre_tokenizer", "model", "get_added_tokens_decoder")):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None
    if encode is None and backend.truncation is not None:
        return None
    normalizer, divider = _parts_of(backend.normalizer), _parts_of(backend.pre_tokenizer)
    factors = [_most_shortened(part) for part in normalizer]
    if not all(map(math.isfinite, factors)) or not all(map(_keeps_all, divider)):
        return None
    model = backend.model
    is_bytewise = any(part["type"] == "ByteLevel" for part in (*normalizer, *divider))
    if type(model).__name__ != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    singles = {data[0] for data in vocabulary.token_bytes if data is not None and len(data) == 1}
    if not (is_bytewise or model.byte_fallback) or not singles >= _BYTES_OF_UTF8:
        return None  # what is unknown may be left out, or be one token together
    longest = max(len(data) for data in vocabulary.token_bytes if data is not None)
    longest = max(longest, *(len(name.encode()) for name in vocabulary.special_tokens), 1)
    return math.ceil(longest * math.prod(factors))


def _parts_of(component: Any) -> list[dict[str, Any]]:
    """The parts of a normaliser or a divider of the library tokenizers, as their file has them."""
    if component is None:
        return []
    try:
        described = json.loads(component.__getstate__())
    except Exception:  # one that is written in Python
        return [{"type": "unknown"}]
    if described["type"] != "Sequence":
        return [described]
    return [*described.get("normalizers", ()), *described.get("pretokenizers", ())]


def _most_shortened(part: dict[str, Any]) -> float:
    """By what factor a part of a normaliser shortens a text at most."""
    kind = part["type"]
    if kind in ("Prepend", "ByteLevel"):
        return 1.0
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return float(_COMPOSED)
    if kind == "Replace" and "String" in part["pattern"] and part["content"]:
        return max(1.0, len(part["pattern"]["String"].encode()) / len(part["content"].encode()))
    return math.inf


def _keeps_all(part: dict[str, Any]) -> bool:
    return part["type"] in _KEEPING or (part["type"] == "Split" and part["behavior"] != "Removed")
