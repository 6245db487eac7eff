"""Token ids and the bytes they stand for, read from any tokenizer whose tokens have bytes of their own.

A constraint is a language over bytes, and a mask is exact only if the bytes of every token are known exactly. So this
module reads the byte map from the tokenizer's own definition (its decoder, its SentencePiece pieces, its ranks) and
never calls ``decode`` on single tokens, which replaces halves of characters, strips spaces and cannot be inverted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np

from decodekit.errors import TokenizerError, VocabularyMismatchError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_PIECE = "\N{LOWER ONE EIGHTH BLOCK}"  # "▁", how SentencePiece spells a space

# By id; None for a token that is never text. An id that is missing is unused.
TokenBytes = dict[int, bytes | None]
SpecialTokens = dict[str, int]


class Vocabulary:
    """The bytes of every token id, immutable and picklable; equal vocabularies have equal fingerprints.

    A token has bytes exactly when it can be part of a text, and then at least one: special and control tokens, tokens
    of no bytes, unused ids, rows that only pad the logits and every EOS id have ``None``.

    The text of token ids is ``vocabulary.decode(ids).decode("utf-8", errors="replace")``. It is not
    ``tokenizer.decode(ids)``, which may strip a first space or tidy up spaces before punctuation.

    Args:
        token_bytes: bytes by token id, ``None`` for a token that is never text.
        eos_token_ids: every id that ends a text.
        size: width of a row of logits, at least ``len(token_bytes)``; the ids in between are never text.
        special_tokens: ids by name.

    Raises:
        VocabularyMismatchError: an EOS or special id, or a token, lies outside a row of ``size`` logits.
    """

    __slots__ = ("_fingerprint", "eos_token_ids", "size", "special_tokens", "token_bytes")

    size: int
    token_bytes: tuple[bytes | None, ...]
    eos_token_ids: frozenset[int]
    special_tokens: Mapping[str, int]
    _fingerprint: str | None

    def __init__(
        self,
        token_bytes: Iterable[bytes | None],
        eos_token_ids: Iterable[int],
        size: int | None = None,
        special_tokens: Mapping[str, int] | Iterable[tuple[str, int]] = (),
    ) -> None:
        rows = [data or None for data in token_bytes]
        width = len(rows) if size is None else size
        if width < len(rows):
            raise _too_narrow(len(rows), width)
        rows += [None] * (width - len(rows))
        eos, special = frozenset(int(i) for i in eos_token_ids), dict(special_tokens)
        for kind, ids in (("EOS token", eos), ("special token", special.values())):
            for token_id in ids:
                if not 0 <= token_id < width:
                    cause = f"{kind} id {token_id} is outside the vocabulary of {width} ids"
                    raise VocabularyMismatchError(cause, hint="load model and tokenizer from the same folder")
        for token_id in eos:
            rows[token_id] = None
        for name, value in (
            ("size", width),
            ("token_bytes", tuple(rows)),
            ("eos_token_ids", eos),
            ("special_tokens", MappingProxyType(special)),
            ("_fingerprint", None),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, logits_width: int | None = None, eos_token_ids: Iterable[int] | None = None
    ) -> Vocabulary:
        """Read the byte map of a tokenizer.

        Understood are Hugging Face fast tokenizers (and bare ``tokenizers.Tokenizer``) that decode by ByteLevel or by
        the SentencePiece steps (Replace or Metaspace, ByteFallback, Fuse, Strip), Hugging Face tokenizers over a
        SentencePiece model, ``sentencepiece.SentencePieceProcessor``, the tokenizers of mistral-common (SentencePiece,
        Tekken, and the wrappers around them) and ``tiktoken.Encoding``.

        Args:
            tokenizer: the tokenizer.
            logits_width: width of a row of logits where it is wider than the tokenizer; the default is no padding.
            eos_token_ids: further ids that end a text, such as the list of a generation config; the tokenizer's own is
                always one of them.

        Raises:
            TokenizerError: the tokenizer has no byte map (WordPiece, or spaces put between tokens by the decoder).
            VocabularyMismatchError: ``logits_width`` is smaller than the tokenizer, or an EOS id lies outside.
        """
        tokens, special, eos = _read(tokenizer)
        num_tokens = max(tokens, default=-1) + 1
        if logits_width is not None and logits_width < num_tokens:
            raise _too_narrow(num_tokens, logits_width)
        rows = [tokens.get(i) for i in range(num_tokens)]
        return cls(rows, [*eos, *(eos_token_ids or ())], logits_width, special)

    @property
    def num_mask_words(self) -> int:
        """Number of int32 words of one row of a bitmask."""
        return (self.size + 31) // 32

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over size, bytes of every token, EOS ids and special tokens: the key of a compiled grammar."""
        fingerprint = self._fingerprint
        if fingerprint is None:
            # -1 tells "never text" apart, and the lengths make the concatenation unambiguous.
            rows = [data or b"" for data in self.token_bytes]
            lengths = np.fromiter(map(len, rows), "<i4", len(rows))
            lengths[lengths == 0] = -1  # a token that is text has a byte at least
            # What a grammar can ask for by name.
            special = sorted(entry for entry in self.special_tokens.items() if entry[1] not in self.eos_token_ids)
            digest = hashlib.sha256(f"{self.size} {sorted(self.eos_token_ids)} {special}\n".encode())
            digest.update(lengths.tobytes())
            digest.update(b"".join(rows))
            fingerprint = digest.hexdigest()
            object.__setattr__(self, "_fingerprint", fingerprint)
        return fingerprint

    def decode(self, token_ids: Iterable[int]) -> bytes:
        """Concatenated bytes of the tokens, of which those that are never text have none; their ids must be in it."""
        parts: list[bytes] = []
        for token_id in token_ids:
            if not 0 <= token_id < self.size:
                raise VocabularyMismatchError(f"token id {token_id} is outside the vocabulary of {self.size} ids")
            parts.append(self.token_bytes[token_id] or b"")
        return b"".join(parts)

    def ending_with(self, token_ids: Iterable[int]) -> Vocabulary:
        """The same tokens, of which the given ones end a text, too, and are not part of it."""
        ids = frozenset(token_ids) - self.eos_token_ids
        return _ending_with(self, ids) if ids else self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Vocabulary is immutable; {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Vocabulary is immutable; {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self is other or self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        num_text = sum(data is not None for data in self.token_bytes)
        return f"Vocabulary(size={self.size}, {num_text} text tokens, eos_token_ids={sorted(self.eos_token_ids)})"

    def __reduce__(self) -> tuple[object, ...]:
        return Vocabulary, (self.token_bytes, self.eos_token_ids, self.size, dict(self.special_tokens))


@lru_cache(maxsize=16)
def _ending_with(vocabulary: Vocabulary, token_ids: frozenset[int]) -> Vocabulary:
    ends = vocabulary.eos_token_ids | token_ids
    return Vocabulary(vocabulary.token_bytes, ends, vocabulary.size, vocabulary.special_tokens)


def _too_narrow(num_tokens: int, width: int) -> VocabularyMismatchError:
    cause = f"the tokenizer has {num_tokens} tokens, a row of logits {width}"
    hint = "load model and tokenizer from the same folder; after adding tokens call model.resize_token_embeddings"
    return VocabularyMismatchError(cause, hint=hint)


def _no_byte_map(tokenizer: object, cause: str) -> TokenizerError:
    kind = type(tokenizer)
    cause = f"the bytes of the tokens of {kind.__module__.split('.')[0]}.{kind.__qualname__} cannot be known: {cause}"
    return TokenizerError(cause, hint="a model with a byte-level BPE, SentencePiece or tiktoken tokenizer")


# --- which kind of tokenizer -----------------------------------------------------------------------------------------
# Every kind is recognised by the methods it is read with, so that none of the optional packages is imported here.


def _read(tokenizer: Any) -> tuple[TokenBytes, SpecialTokens, set[int]]:
    """Bytes by id, ids of special tokens by name, the tokenizer's own EOS ids."""
    if isinstance(tokenizer, str | bytes | Mapping) or tokenizer is None:
        raise _no_byte_map(tokenizer, "it is not a tokenizer")
    if hasattr(tokenizer, "instruct_tokenizer"):  # mistral_common MistralTokenizer
        return _read(tokenizer.instruct_tokenizer.tokenizer)
    if hasattr(tokenizer, "id_to_byte_piece"):  # mistral_common Tekkenizer
        return _read_tekken(tokenizer)
    if _is_sentencepiece(getattr(tokenizer, "_model", None)):  # mistral_common SentencePieceTokenizer
        return _read_sentencepiece(tokenizer._model)
    if _is_sentencepiece(tokenizer):
        return _read_sentencepiece(tokenizer)
    if hasattr(tokenizer, "decode_single_token_bytes") and hasattr(tokenizer, "special_tokens_set"):
        return _read_tiktoken(tokenizer)
    if hasattr(tokenizer, "get_added_tokens_decoder") and hasattr(tokenizer, "decoder"):  # tokenizers.Tokenizer
        return (*_read_backend(tokenizer, tokenizer, special_ids=()), set())
    if hasattr(tokenizer, "all_special_ids") and hasattr(tokenizer, "eos_token_id"):  # transformers
        return _read_transformers(tokenizer)
    raise _no_byte_map(tokenizer, "this kind of tokenizer is not understood")


def _read_transformers(tokenizer: Any) -> tuple[TokenBytes, SpecialTokens, set[int]]:
    eos_token_id: int | Sequence[int] | None = tokenizer.eos_token_id
    eos = set() if eos_token_id is None else {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return (*_read_backend(tokenizer, backend, _left_out(tokenizer, backend)), eos)
    wrapped = getattr(tokenizer, "tokenizer", None)
    if hasattr(wrapped, "instruct_tokenizer"):  # transformers' wrapper around mistral-common
        tokens, special, own_eos = _read(wrapped)
        return tokens, special, eos | own_eos
    if _is_sentencepiece(getattr(tokenizer, "sp_model", None)):
        return (*_read_sentencepiece_wrapper(tokenizer), eos)
    raise _no_byte_map(tokenizer, "it is written in Python and has neither a fast backend nor a SentencePiece model")


# --- Hugging Face `tokenizers` ---------------------------------------------------------------------------------------


def _left_out(tokenizer: Any, backend: Any) -> set[int]:
    """The special tokens of a transformers tokenizer that ``decode(..., skip_special_tokens=True)`` leaves out.

    transformers 5 calls the user-defined pieces of a SentencePiece model special too, and yet keeps them as text: of
    AI21's J2 these are a comma and brackets. Those that the backend calls special need not be asked about.
    """
    flagged = {token_id for token_id, added in backend.get_added_tokens_decoder().items() if added.special}
    special_ids = set(tokenizer.all_special_ids)
    asked = special_ids - flagged
    # Twice, since decoders may strip the first blank of a text.
    kept = {i for i in asked if tokenizer.decode([i, i]) == tokenizer.decode([i, i], skip_special_tokens=True)}
    return special_ids - kept


def _read_backend(tokenizer: Any, backend: Any, special_ids: Iterable[int]) -> tuple[TokenBytes, SpecialTokens]:
    """Tokens of a ``tokenizers.Tokenizer``: its vocabulary through its decoder's byte map, then the added tokens."""
    to_bytes = _decoder_map(tokenizer, backend.decoder)
    model_vocabulary: Mapping[str, int] = backend.get_vocab(with_added_tokens=False)
    if to_bytes is _byte_level:
        tokens: TokenBytes = dict(zip(model_vocabulary.values(), _all_byte_level(list(model_vocabulary)), strict=True))
    else:
        tokens = {token_id: to_bytes(token) for token, token_id in model_vocabulary.items()}
    special: SpecialTokens = {}
    special_ids = set(special_ids)
    for token_id, added in backend.get_added_tokens_decoder().items():
        if added.special or token_id in special_ids:
            tokens[token_id] = None
            special[added.content] = token_id
        elif model_vocabulary.get(added.content) != token_id:
            # An added token stands for its own text: it is cut out of the text before the alphabet is applied. (The
            # ByteLevel decoder would read an added "é" as the single byte E9.) One that the model has too keeps the
            # model's spelling, such as Gemma's runs of "▁".
            text = added.content.replace(_SPACE_PIECE, " ") if to_bytes is not _byte_level else added.content
            tokens[token_id] = text.encode("utf-8", errors="surrogatepass")
    for token_id in special_ids - set(special.values()):
        tokens[token_id] = None
        special[str(backend.id_to_token(token_id))] = token_id
    return tokens, special


def _decoder_map(tokenizer: object, decoder: Any) -> Callable[[str], bytes]:
    """The decoder's map from one token to bytes; refuses a decoder that looks at the neighbours of a token.

    The steps are those of https://github.com/huggingface/tokenizers (src/decoders). What only touches the start of the
    whole text (Strip after Fuse, Metaspace at the first token) is left out: it is not part of any token's bytes.
    """
    if decoder is None:
        raise _no_byte_map(tokenizer, "it has no decoder, so a space is put between any two tokens")
    steps = _flatten(json.loads(decoder.__getstate__()))
    kinds = [str(step["type"]) for step in steps]
    if "ByteLevel" in kinds:
        others = set(kinds) - {"ByteLevel", "Fuse"}
        if others:
            raise _no_byte_map(tokenizer, f"its decoder applies {', '.join(sorted(others))} beside ByteLevel")
        return _byte_level

    replacements: list[tuple[str, str]] = []
    has_byte_pieces, is_fused = False, False
    for step, kind in zip(steps, kinds, strict=True):
        if kind == "ByteFallback":
            has_byte_pieces = True
        elif kind == "Fuse":
            is_fused = True
        elif kind == "Metaspace":
            replacements.append((step["replacement"], " "))
        elif kind == "Replace":
            pattern = step["pattern"].get("String")
            # A longer pattern could begin in one token and end in the next once the tokens are joined.
            if not pattern or (len(pattern) > 1 and (is_fused or has_byte_pieces)):
                raise _no_byte_map(tokenizer, f"its decoder replaces the pattern {step['pattern']}")
            replacements.append((pattern, step["content"]))
        elif kind != "Strip" or not is_fused or step["stop"] > 0:
            cause = f"its decoder applies {kind}, whose result depends on the neighbouring tokens"
            raise _no_byte_map(tokenizer, cause)

    def to_bytes(token: str) -> bytes:
        if has_byte_pieces and (match := _BYTE_PIECE.fullmatch(token)):
            return bytes((int(match[1], 16),))
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        return token.encode("utf-8", errors="surrogatepass")

    return to_bytes


def _flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] == "Sequence":
        return [leaf for inner in step["decoders"] for leaf in _flatten(inner)]
    return [step]


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes are themselves, the other 68 are U+0100, U+0101, ... in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_byte_alphabet().__getitem__, token))
    except KeyError:  # the decoder's own rule: a token with any other character stands for its text
        return token.encode("utf-8", errors="surrogatepass")


def _all_byte_level(tokens: Sequence[str]) -> Sequence[bytes]:
    """`_byte_level` of every token, by one look-up for all their characters."""
    alphabet = _byte_alphabet()
    byte_of = np.full(ord(max(alphabet)) + 1, -1, np.int16)
    byte_of[[ord(character) for character in alphabet]] = list(alphabet.values())
    code_points = np.frombuffer("".join(tokens).encode("utf-32-le", errors="surrogatepass"), "<u4")
    data = byte_of[code_points] if code_points.max(initial=0) < len(byte_of) else np.array([-1], np.int16)
    if data.min(initial=0) < 0:  # some character is none of the alphabet
        return [_byte_level(token) for token in tokens]
    joined = data.astype(np.uint8).tobytes()
    ends = list(accumulate(map(len, tokens)))
    return [joined[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# --- SentencePiece, Tekken, tiktoken ---------------------------------------------------------------------------------


def _is_sentencepiece(model: object) -> bool:
    return all(hasattr(model, name) for name in ("id_to_piece", "is_byte", "is_control", "is_unknown", "is_unused"))


def _read_sentencepiece(model: Any) -> tuple[TokenBytes, SpecialTokens, set[int]]:
    """Pieces of a ``SentencePieceProcessor``; the piece types (byte, control, unknown, unused) are the model's own."""
    ids = list(range(model.get_piece_size()))
    pieces: list[str] = model.id_to_piece(ids)
    tokens: TokenBytes = {}
    special: SpecialTokens = {}
    types = zip(model.is_byte(ids), model.is_control(ids), model.is_unknown(ids), model.is_unused(ids), strict=True)
    for token_id, piece, (is_byte, is_control, is_unknown, is_unused) in zip(ids, pieces, types, strict=True):
        if is_control or is_unknown:
            special[piece] = token_id
        if is_control or is_unknown or is_unused:
            tokens[token_id] = None
        elif is_byte:
            tokens[token_id] = bytes((int(piece[3:5], 16),))
        else:
            tokens[token_id] = piece.replace(_SPACE_PIECE, " ").encode()
    return tokens, special, {model.eos_id()} - {-1}


def _read_sentencepiece_wrapper(tokenizer: Any) -> tuple[TokenBytes, SpecialTokens]:
    """A Hugging Face tokenizer over a SentencePiece model; ids are the wrapper's, which may shift the model's."""
    model = tokenizer.sp_model
    by_piece, _, _ = _read_sentencepiece(model)
    tokens: TokenBytes = {}
    for token_id, piece in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        model_id = model.piece_to_id(piece)
        # `piece_to_id` answers the unknown id for a piece it does not have: then the token is one the wrapper added.
        tokens[token_id] = by_piece[model_id] if model.id_to_piece(model_id) == piece else piece.encode()
    special: SpecialTokens = {}
    special_ids = set(tokenizer.all_special_ids)
    for token_id, added in tokenizer.added_tokens_decoder.items():
        if added.special or token_id in special_ids:
            special_ids.add(token_id)
        elif model.id_to_piece(model.piece_to_id(added.content)) != added.content:
            tokens[token_id] = added.content.encode()
    for token_id in special_ids:
        tokens[token_id] = None
        special[tokenizer.convert_ids_to_tokens(token_id)] = token_id
    return tokens, special


def _read_tekken(tokenizer: Any) -> tuple[TokenBytes, SpecialTokens, set[int]]:
    special_ids = set(tokenizer.special_ids)
    tokens: TokenBytes = {
        i: None if i in special_ids else tokenizer.id_to_byte_piece(i) for i in range(tokenizer.n_words)
    }
    return tokens, {tokenizer.id_to_piece(i): i for i in sorted(special_ids)}, {tokenizer.eos_id}


def _read_tiktoken(encoding: Any) -> tuple[TokenBytes, SpecialTokens, set[int]]:
    special: SpecialTokens = {name: encoding.encode_single_token(name) for name in sorted(encoding.special_tokens_set)}
    tokens: TokenBytes = dict.fromkeys(special.values())
    for token_id in range(encoding.n_vocab):
        if token_id not in tokens:
            try:
                tokens[token_id] = encoding.decode_single_token_bytes(token_id)
            except KeyError:  # a hole between the ranks and the special tokens
                tokens[token_id] = None
    eos = special.get("<|endoftext|>")
    return tokens, special, set() if eos is None else {eos}
