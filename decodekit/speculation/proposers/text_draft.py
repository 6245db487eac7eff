"""Drafts of a model with another vocabulary, by way of the text (Timor et al. 2025, "assisted generation" by strings).

The text of a row is divided into tokens of the draft model, which goes on from them; the bytes it writes are divided
into tokens of the target, and verified as any draft. Nothing has to be right for the text to be the target's: a
division that the target would not have chosen is a wrong guess.

A draft model that draws as the target does cannot be had in this way: the noise of a draw is a number for every token
id, and the ids are others. So it is for greedy targets.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final

from torch import Tensor

from decodekit.models.encoding import encode_plain, encode_text
from decodekit.speculation.proposer import Context, Draft
from decodekit.speculation.proposers.canonical import WINDOW, Canonical
from decodekit.speculation.proposers.draft_engine import DraftEngine, num_common
from decodekit.vocabulary import Vocabulary

_OPEN: Final = (4, WINDOW // 2, WINDOW)
"""Numbers of last tokens that may be divided again when bytes follow, tried in turn until one begins at a boundary."""


class TextDrafts:
    """Writes drafts for targets of any vocabulary."""

    def __init__(self, engine: DraftEngine, tokenizer: Any, vocabulary: Vocabulary) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._canonical = Canonical(partial(encode_plain, tokenizer), vocabulary)

    def drafts(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The model's text in tokens of the target; none where a text ends inside a character.

        Args:
            contexts, limits: as in `Proposer.propose`; the target must be known, and how it divides texts.
        """
        texts = [self._read(context) for context in contexts]
        written = self._engine.write(contexts, texts, limits, self._likeliest)
        return [
            Draft(self._divided(context, tokens)[:limit])
            for context, tokens, limit in zip(contexts, written, limits, strict=True)
        ]

    def _read(self, context: Context) -> list[int]:
        """The text of a row in tokens of the draft model; none if it cannot be."""
        if context.target is None or context.canonical is None:
            return []
        target = context.target.vocabulary
        row = context.memory.get(self)
        if row is None:
            row = context.memory[self] = _DraftText(target.decode(context.prompt), self._tokenizer, self._canonical)
        return row.read(target.decode(context.text))

    def _likeliest(self, indices: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor) -> list[int | None]:
        """The likeliest token of each row of logits [R, V]; what is not text ends a draft."""
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        texts = self._vocabulary.token_bytes
        return [token if token < len(texts) and texts[token] is not None else None for token in tokens]

    def _divided(self, context: Context, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens of the target for those of the draft model, as the target's tokenizer goes on from the text."""
        if not tokens or context.canonical is None:
            return ()
        data = self._vocabulary.decode(tokens)
        before = [*context.prompt[-WINDOW:], *context.text[-WINDOW:]]
        return context.canonical.after(before, data) or context.canonical.after((), data)


class _DraftText:
    """A text in tokens of the draft model, divided again only where it changes; the cache is kept for the rest.

    Args:
        prompt: what comes before the text; special tokens of the target are not part of it.
    """

    def __init__(self, prompt: bytes, tokenizer: Any, canonical: Canonical) -> None:
        whole = codecs.getincrementaldecoder("utf-8")("replace").decode(prompt)
        self._canonical = canonical
        self._tokens = encode_text(tokenizer, whole, "prompt", add_special_tokens=True)
        is_text = [bool(self._bytes_of(token)) for token in self._tokens]
        self._num_special = is_text.index(True) if any(is_text) else len(is_text)  # at the beginning
        # What the tokens say, which may differ from the prompt: some tokenizers put a space before a text.
        self._data = b"".join(map(self._bytes_of, self._tokens))
        self._prompt = self._data + prompt[len(whole.encode()) :]  # and the beginning of a character
        self._ends = [*accumulate(len(self._bytes_of(token)) for token in self._tokens)]

    def _bytes_of(self, token: int) -> bytes:
        return self._canonical.token_bytes[token] or b""

    def read(self, text: bytes) -> list[int]:
        """The tokens of prompt and `text`, which may be any other than the last one; none if it has none."""
        data = self._prompt + text
        if data != self._data:
            self._go_on(data)
        return self._tokens if data == self._data else []

    def _go_on(self, data: bytes) -> None:
        settled = bisect_right(self._ends, num_common(data, self._data))  # tokens whose bytes are still there
        for num_open in _OPEN:
            begin = max(self._num_special, settled - num_open)
            tokens = self._canonical.after(self._tokens[:begin], data[self._end_of(begin) :])
            if tokens:
                break
        else:  # no boundary nearby: what is new for itself
            begin = settled
            tokens = self._canonical.after((), data[self._end_of(begin) :])
        del self._tokens[begin:], self._ends[begin:]
        for token in tokens:
            self._ends.append(self._end_of(len(self._tokens)) + len(self._bytes_of(token)))
            self._tokens.append(token)
        self._data = data[: self._end_of(len(self._tokens))]

    def _end_of(self, num_tokens: int) -> int:
        return self._ends[num_tokens - 1] if num_tokens else 0
