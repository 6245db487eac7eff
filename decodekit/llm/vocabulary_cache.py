"""Facts about tokenizers, kept as long as the tokenizer lives: reading a large one takes some tenths of a second."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from decodekit.decoding.request.prompt import encode_plain
from decodekit.models.causal_lm import CausalLM
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.vocabulary import Vocabulary

_facts: weakref.WeakKeyDictionary[Any, tuple[tuple[object, ...], Vocabulary, Canonical]] = weakref.WeakKeyDictionary()
"""Of each living tokenizer what its facts depend on, and the facts that were last read of it."""


def facts_of(tokenizer: Any, model: CausalLM) -> tuple[Vocabulary, Canonical]:
    """The tokens of a tokenizer and how it divides texts, read again where tokens, their kinds or the decoder changed.

    What divides texts remembers divisions, and does not hold the tokenizer.

    Raises:
        VocabularyMismatchError: the tokenizer belongs to another model.
        TokenizerError: the bytes of its tokens cannot be known.
    """
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "decoder", None)
    read_for = (
        len(tokenizer) if hasattr(tokenizer, "__len__") else None,
        getattr(tokenizer, "eos_token_id", None),
        tuple(getattr(tokenizer, "all_special_ids", ())),
        decoder.__getstate__() if hasattr(decoder, "__getstate__") else None,
        model.vocab_size,
        model.eos_token_ids,
    )
    try:
        known = _facts.get(tokenizer)
        encode = partial(_encode_with, weakref.ref(tokenizer))
    except TypeError:  # no weak references, or no hash
        known, encode = None, partial(encode_plain, tokenizer)
    if known is not None and known[0] == read_for:
        return known[1:]
    vocabulary = Vocabulary.from_tokenizer(tokenizer, logits_width=model.vocab_size, eos_token_ids=model.eos_token_ids)
    canonical = Canonical(encode, vocabulary)
    if encode.func is _encode_with:
        _facts[tokenizer] = read_for, vocabulary, canonical
    return vocabulary, canonical


def _encode_with(tokenizer: weakref.ref[Any], text: str) -> list[int]:
    return encode_plain(tokenizer(), text)
