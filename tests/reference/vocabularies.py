"""Small vocabularies that are hard on a constraint engine, and the real tokenizers that ship inside mistral-common.

Token ids here are stable for a given call, so a test may quote them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from decodekit.vocabulary import Vocabulary

# Every pair of these is a token of the adversarial vocabulary: a token may close one thing and open the next.
JSON_PUNCTUATION: tuple[bytes, ...] = tuple(bytes((c,)) for c in b'{}[]",: \n\\-.0')

# Tokens that lie across the boundaries that a grammar draws.
ACROSS_BOUNDARIES: tuple[bytes, ...] = (
    b'":"', b'","', b'": "', b'", "', b'"}', b'"},{"', b'"}]}', b'{"', b'{"a":', b'[["', b'""', b'"""', b'\\"',
    b'\\\\"', b'"\\',
    b"\\u", b"\\u00", b"\\ud83d", b"\\ude00", b"\\u00e9", b"null", b"nul", b"l,", b"true}", b"false]", b"tru",
    b"e,", b"-0", b"0.",
    b".5e", b"e+1", b"E-", b"1e9", b"00", b"12,", b"12]", b"-1}", b"  ", b"    ",
    b"\n  ", b"\r\n", b"\t\t", b" \n \n", b'  "',
)  # fmt: skip

# Characters whose UTF-8 bytes are split over tokens in every way: 2, 3 and 4 bytes, combining, joined emoji.
SPLIT_CHARACTERS: tuple[str, ...] = ("é", "ß", "€", "日", "ا", "😀", "𝒳", "\u200d", "\u0301", "\uffff", "\U0010ffff")

# Bytes that begin no character, end none, or spell one in a forbidden way (overlong, surrogate, beyond U+10FFFF).
INVALID_UTF8: tuple[bytes, ...] = (
    b"\xff", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80\x80",
    b'\xc3"', b'\xa9"', b"\xf0\x9f", b"\x98\x80",
)  # fmt: skip


def byte_vocabulary(extra: Iterable[bytes] = (), *, num_eos: int = 1, size: int | None = None) -> Vocabulary:
    """Tokens 0..255 are the single bytes, then ``num_eos`` EOS ids, then ``extra``, then padding up to ``size``."""
    tokens: list[bytes | None] = [bytes((b,)) for b in range(256)]
    eos = list(range(256, 256 + num_eos))
    tokens += [None] * num_eos + list(extra)
    return Vocabulary(tokens, eos, size, {f"<eos{i}>": token_id for i, token_id in enumerate(eos)})


def small_vocabulary(texts: Sequence[str | bytes], *, size: int | None = None) -> Vocabulary:
    """Token i is ``texts[i]``, and the id after them is EOS: for answers written by hand."""
    tokens: list[bytes | None] = [text.encode() if isinstance(text, str) else text for text in texts]
    return Vocabulary([*tokens, None], [len(tokens)], size, {"<eos>": len(tokens)})


def adversarial_tokens() -> tuple[bytes, ...]:
    """Multi-byte tokens: pairs of JSON punctuation, tokens across boundaries, pieces of split characters, bad UTF-8."""
    tokens: dict[bytes, None] = {}
    for first in JSON_PUNCTUATION:
        for second in JSON_PUNCTUATION:
            tokens[first + second] = None
    tokens.update(dict.fromkeys(ACROSS_BOUNDARIES))
    for text in SPLIT_CHARACTERS:
        data = text.encode()
        for start in range(len(data)):
            for stop in range(start + 1, len(data) + 1):
                tokens[data[start:stop]] = None
        tokens[b'"' + data] = tokens[data + b'"'] = tokens[data[-1:] + b'"'] = tokens[b'"' + data[:1]] = None
    tokens.update(dict.fromkeys(INVALID_UTF8))
    return tuple(token for token in tokens if len(token) > 1)


@functools.cache
def adversarial_vocabulary(*, complete: bool = True) -> Vocabulary:
    """The single bytes and ``adversarial_tokens``, a duplicate of some, two EOS ids, a control token, padded rows.

    ``complete=False`` leaves out two thirds of the single bytes, so that some texts have no tokens at all and a
    constraint may run into a dead end.
    """
    single = [bytes((b,)) for b in range(256)]
    if not complete:
        single = [data for data in single if data[0] % 3 == 0 or data in b'"{}[]']
    tokens: list[bytes | None] = [None, None, None, *single, *adversarial_tokens()]
    tokens += [b'"', b"a", "é".encode(), b'":"']  # duplicates: other ids, same bytes
    tokens += [b"", None]  # no bytes at all; an unused id
    return Vocabulary(tokens, [1, 2], len(tokens) + 37, {"<bos>": 0, "</s>": 1, "<|end|>": 2})


def random_vocabulary(rng: random.Random, alphabet: bytes, num_tokens: int, max_length: int = 4) -> Vocabulary:
    """Every byte of ``alphabet``, then random strings over it (with repeats) up to ``num_tokens``, then one EOS."""
    tokens: list[bytes | None] = [bytes((b,)) for b in alphabet]
    while len(tokens) < num_tokens:
        tokens.append(bytes(rng.choice(alphabet) for _ in range(rng.randint(1, max_length))))
    return Vocabulary([*tokens, None], [len(tokens)], None, {"<eos>": len(tokens)})


# --- real tokenizers, from the data files inside the package mistral-common ------------------------------------------


def mistral_data(name: str) -> Path:
    """Path of a data file of mistral-common."""
    import mistral_common

    return Path(mistral_common.__file__).parent / "data" / name


@functools.cache
def sentencepiece_tokenizer() -> Any:
    """mistral-common's SentencePiece tokenizer, v7: 32,768 pieces, byte fallback, prefix space."""
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    return SentencePieceTokenizer(mistral_data("mistral_instruct_tokenizer_241114.model.v7"))


@functools.cache
def tekken_tokenizer() -> Any:
    """mistral-common's Tekken tokenizer, 240911: 131,072 tokens, 1,000 of them special."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    return Tekkenizer.from_file(mistral_data("tekken_240911.json"))


@functools.cache
def sentencepiece_vocabulary() -> Vocabulary:
    """Vocabulary of ``sentencepiece_tokenizer``."""
    return Vocabulary.from_tokenizer(sentencepiece_tokenizer())


@functools.cache
def tekken_vocabulary() -> Vocabulary:
    """Vocabulary of ``tekken_tokenizer``."""
    return Vocabulary.from_tokenizer(tekken_tokenizer())
