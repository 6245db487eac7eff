"""The tokens into which the tokenizer itself divides a text, where a part of the text is already in tokens.

Many divisions of a text into tokens are legal under a constraint, and one of them is what the model was trained on.
Two questions are answered for bytes that must follow a text: how the tokenizer divides them there (`after`), and how
far that division holds whatever comes after them (`settled_after`).

    text             {              the constraint forces "name": " after it
    after            "name  ":  ·"  as the tokenizer divides the whole text
    settled_after    "name  ":      a quote may follow, and ·"" is one token: then ·" is none

The second needs care. Of the bytes ``"name": "`` the last two may be a token ``·"`` by themselves and yet not be one
before another quote, if the vocabulary has ``·""``. Let T be all bytes so far. If the division of a longer text has a
token that begins at p and ends beyond T, the tokens before p are the division of T[:p]: pairs that are merged on one
side of a boundary do not depend on the other side (Sennrich et al. 2016). So the tokens that hold are those that the
divisions of T and of every such T[:p] have in common; p is a place from which on the rest of T is the beginning of a
longer token. A tokenizer that splits words before it merges looks at the kind of the next character, too, so T is also
divided with one character of every kind after it.

SentencePiece tokenizers put a space before a text. A text that begins with none is divided as behind a line break:
``The`` is the token ``The`` there, and not ``·The``, whatever the prompt ends with.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Final

from decodekit.errors import DecodekitError
from decodekit.speculation.verification import num_equal
from decodekit.vocabulary import Vocabulary

WINDOW: Final = 32
"""How many of the last tokens of a text are looked at; a merge reaches no further than a word."""

_KINDS: Final = ("a", "A", "0", " ", "\n", '"', ",", "}", "é")
_decoder: Final = codecs.getincrementaldecoder("utf-8")


class Canonical:
    """The canonical division of texts by a tokenizer."""

    def __init__(self, encode: Callable[[str], Sequence[int]], vocabulary: Vocabulary) -> None:
        self._encode = encode
        self.token_bytes = vocabulary.token_bytes
        self._divide = lru_cache(maxsize=4096)(self._divide_anew)

    @cached_property
    def _adds_space(self) -> bool:
        """Whether the tokenizer puts a space before a text."""
        return b"".join(self.token_bytes[token] or b"" for token in self._encode("a")) == b" a"

    @cached_property
    def _tokens(self) -> list[bytes]:
        return sorted({data for data in self.token_bytes if data is not None})

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._tokens), default=1)

    def after(self, text: Sequence[int], following: bytes) -> tuple[int, ...]:
        """The tokens of `following` in the tokenizer's own division of `text` and `following` together.

        None if that division has no boundary between the two: then no tokens after those of `text` are canonical.
        Special tokens of the text end what is looked at; of an incomplete character at the end there are no tokens.
        """
        return self._divide(self._bytes_of(text), following)

    def settled_after(self, text: Sequence[int], following: bytes) -> tuple[int, ...]:
        """Those of `after` that stay the same whatever follows the bytes."""
        context = self._bytes_of(text)
        tokens = self._divide(context, following)
        if not tokens:
            return ()
        whole = context + following
        nearest = max(0, len(whole) - self._longest + 1)
        begins = [begin for begin in range(nearest, len(whole)) if self._has_longer(whole[begin:])]
        for shorter in [following[: max(0, begin - len(context))] for begin in begins]:
            tokens = _common(tokens, self._divide(context, shorter))
        for kind in _KINDS:
            tokens = _common(tokens, self._divide(context, following + kind.encode()))
        return tokens

    def _has_longer(self, data: bytes) -> bool:
        """Whether some token begins with `data` and is longer."""
        place = bisect_right(self._tokens, data)
        return place < len(self._tokens) and self._tokens[place].startswith(data)

    def _bytes_of(self, text: Sequence[int]) -> bytes:
        data = b""
        for token in reversed(text[-WINDOW:]):
            piece = self.token_bytes[token]
            if piece is None:
                break
            data = piece + data
        return data.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that the window cut

    def _divide_anew(self, context: bytes, following: bytes) -> tuple[int, ...]:
        try:
            whole = _decoder("strict").decode(context + following)
        except UnicodeDecodeError:
            return ()
        num_left = len(whole.encode()) - len(context)
        if num_left <= 0:
            return ()
        try:
            if self._adds_space:  # the one that the text begins with, or one before a line break
                whole = whole[1:] if whole.startswith(" ") else "\n" + whole
            ids = self._encode(whole)
        except DecodekitError:  # a tokenizer that only decodes
            return ()
        # Counted from the end: what the tokenizer and this put before the text is none of it.
        tokens: list[int] = []
        for token in reversed(ids):
            if num_left <= 0:
                break
            data = self.token_bytes[token] if 0 <= token < len(self.token_bytes) else None
            if data is None:
                return ()
            tokens.append(token)
            num_left -= len(data)
        tokens.reverse()
        written = b"".join(self.token_bytes[token] or b"" for token in tokens)
        return tuple(tokens) if num_left == 0 and following.startswith(written) else ()


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The common beginning."""
    return first[: num_equal(first, second)]
