"""A small byte-level tokenizer, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = 0, 1, 2


def small_tokenizer(words: Sequence[str] = ("th", "er", "ab", "é"), *, chat_template: str | None = None) -> Any:
    """ASCII and the two bytes of "é", one token per byte, with a few longer tokens; 0 to 2 are <pad>, <s> and </s>.

    It adds no special token by itself. An "é" that is not one of the `words` takes two tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_byte = {_spelled(chr(code)): code for code in range(128)}
    letters = [*by_byte, *_spelled("é")]
    assert set(letters) <= set(alphabet)
    pieces = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    merges = []
    for word in words:
        spelled = _spelled(word)
        assert len(spelled) == 2
        merges.append((spelled[0], spelled[1]))
        pieces[spelled] = len(pieces)
    backend = Tokenizer(models.BPE(vocab=pieces, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=chat_template
    )


def _spelled(text: str) -> str:
    """A text in the alphabet of byte-level tokenizers."""
    [(spelled, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return spelled
