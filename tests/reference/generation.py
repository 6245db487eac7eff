"""A toy language model and a slow, obviously right decoding loop."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decodekit.errors import DeadEndError
from decodekit.models.causal_lm import LogitsKind
from decodekit.vocabulary import Vocabulary

Law = Callable[[Sequence[int]], Tensor]
"""Logits float32 [V] of the token after a prefix."""


class ToyCache:
    """Remembers the tokens of each row. Refuses what a real cache would get wrong."""

    def __init__(self, num_rows: int, capacity: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_rows)]
        self.capacity = capacity
        self.num_reorders = 0

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([len(row) for row in self.tokens])

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        for row, length in zip(self.tokens, row_lengths, strict=True):
            assert 0 <= length <= len(row)
            del row[int(length) :]

    def reset(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.tokens[row] = []

    def reorder(self, rows: Tensor) -> None:
        self.num_reorders += 1
        self.tokens = [list(self.tokens[row]) for row in rows.tolist()]

    def grow(self, capacity: int) -> None:
        self.capacity = max(self.capacity, capacity)


class SharingCache(ToyCache):
    """Remembers prefixes, too: `SharesPrefixes`."""

    def __init__(self, num_rows: int, capacity: int) -> None:
        super().__init__(num_rows, capacity)
        self.num_kept = 0

    def keep(self, row: int, num_tokens: int) -> SharedTokens:
        assert 0 < num_tokens <= len(self.tokens[row])
        self.num_kept += 1
        return SharedTokens(self.tokens[row][:num_tokens])

    def begin_with(self, row: int, prefix: SharedTokens, num_tokens: int) -> None:
        assert not prefix.is_released and 0 < num_tokens <= prefix.num_tokens
        self.tokens[row] = prefix.tokens[:num_tokens]


class SharedTokens:
    """The first tokens of a row, a byte each."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.is_released = tokens, False
        self.num_tokens = self.num_bytes = len(tokens)

    def release(self) -> None:
        assert not self.is_released
        self.is_released = True


class NoCache(ToyCache):
    """For laws that look at nothing but the last token."""

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        pass


class ToyLM:
    """A `CausalLM` whose logits are a Python function of everything the row has read.

    It sees only what the loop put into the cache, so a token that is missing, repeated or in the wrong row shows.
    """

    def __init__(
        self, law: Law, vocab_size: int, eos_token_ids: frozenset[int] = frozenset(), context_length: int | None = None
    ) -> None:
        self.law = law
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.context_length = context_length
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.name = "toy"
        self.can_rollback = True
        self.calls: list[list[int]] = []  # the token counts of every forward pass
        self.caches: list[SharingCache] = []

    def new_cache(self, num_rows: int, capacity: int) -> ToyCache:
        self.caches.append(SharingCache(num_rows, capacity))
        return self.caches[-1]

    def forward(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: Any,
        rows: Sequence[int] | None = None,
        *,
        logits: LogitsKind = "last",
    ) -> Tensor:
        self.calls.append(list(num_tokens))
        rows = range(cache.num_rows) if rows is None else rows
        assert len(set(rows)) == len(rows) == len(num_tokens) == len(tokens)
        assert tokens.dtype == torch.int64 and tokens.shape[1] == max(num_tokens) and min(num_tokens) >= 1
        assert int(tokens.min()) >= 0 and int(tokens.max()) < self.vocab_size
        result = torch.full((*tokens.shape, self.vocab_size), math.nan)
        for i, (row, count) in enumerate(zip(rows, num_tokens, strict=True)):
            for t in range(count):
                cache.tokens[row].append(int(tokens[i, t]))
                if logits == "all" or t >= count - (1 if logits == "last" else logits[i]):
                    result[i, t] = self.law(cache.tokens[row])
            assert self.context_length is None or len(cache.tokens[row]) <= self.context_length
        if logits == "all":
            return result
        wanted = [1] * len(num_tokens) if logits == "last" else logits
        return torch.cat(
            [result[i, count - n : count] for i, (count, n) in enumerate(zip(num_tokens, wanted, strict=True))]
        )


class TableLM(ToyLM):
    """Logits that depend on the last token only, all rows at once: quick enough for tens of thousands of samples.

    Args:
        table: float32 [V, V], the logits after each token.
    """

    def __init__(self, table: Tensor, eos_token_ids: frozenset[int] = frozenset()) -> None:
        super().__init__(lambda prefix: table[prefix[-1]], table.shape[0], eos_token_ids)
        self.table = table

    def new_cache(self, num_rows: int, capacity: int) -> ToyCache:
        return NoCache(num_rows, capacity)

    def forward(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: Any,
        rows: Sequence[int] | None = None,
        *,
        logits: LogitsKind = "last",
    ) -> Tensor:
        self.calls.append(list(num_tokens))
        assert logits != "all"
        wanted = [1] * len(num_tokens) if logits == "last" else logits
        if max(num_tokens) == 1:
            return self.table[tokens[:, 0]]
        read = [tokens[i, count - n : count] for i, (count, n) in enumerate(zip(num_tokens, wanted, strict=True))]
        return self.table[torch.cat(read)]


def hashed_law(vocab_size: int, scale: float = 2.0, salt: int = 0) -> Law:
    """Random logits that depend on the whole prefix, order included."""

    def law(prefix: Sequence[int]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((salt, *prefix)) % (1 << 62))
        return torch.randn(vocab_size, generator=generator) * scale

    return law


def reference_decode(
    law: Law,
    prompt: Sequence[int],
    choose: Callable[[Tensor, list[int], list[int]], int],
    token_bytes: Sequence[bytes | None],
    *,
    eos_token_ids: frozenset[int] = frozenset(),
    stop: Sequence[str] = (),
    max_new_tokens: int = 256,
    matcher: Any = None,
) -> tuple[list[int], str, str]:
    """Token ids, text and finish reason, without a cache, a batch or anything incremental.

    Args:
        law: logits after a prefix.
        prompt: token ids.
        choose: token for logits, prompt and text so far; a constraint's forbidden tokens have -inf.
        token_bytes: bytes by token id.
        eos_token_ids: end a text.
        stop: stop strings.
        max_new_tokens: the limit.
        matcher: the constraint; asked about one token at a time.
    """
    tokens: list[int] = []
    reason = ""
    if matcher is not None and matcher.is_accepting and not matcher.can_continue:
        reason = "complete"
    while not reason:
        logits = law([*prompt, *tokens]).clone()
        if matcher is not None:
            allowed = [token for token in range(len(logits)) if matcher.validate([token])]
            if not allowed:
                reason = "dead_end"
                break
            logits[[token for token in range(len(logits)) if token not in allowed]] = -math.inf
        try:
            tokens.append(choose(logits, list(prompt), tokens))
        except DeadEndError:  # every allowed token has a bias of -inf
            reason = "dead_end"
            break
        if matcher is not None:
            assert matcher.accept(tokens[-1])
        if tokens[-1] in eos_token_ids or first_stop(certain_text(tokens, token_bytes), stop) is not None:
            reason = "stop"
        elif matcher is not None and matcher.is_accepting and not matcher.can_continue:
            reason = "complete"
        elif len(tokens) == max_new_tokens:
            reason = "length"
    text = b"".join(token_bytes[token] or b"" for token in tokens).decode("utf-8", "replace")
    cut = first_stop(text, stop)
    return tokens, text if cut is None else text[:cut], reason


def certain_text(tokens: Sequence[int], token_bytes: Sequence[bytes | None]) -> str:
    """The text so far without a last character whose bytes are incomplete."""
    data = b"".join(token_bytes[token] or b"" for token in tokens)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=False)


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where to cut: text is read character by character until it ends in a stop string; the longest of those."""
    for end in range(len(text) + 1):
        ending = [len(string) for string in stop if text[:end].endswith(string)]
        if ending:
            return end - max(ending)
    return None


class TextsMatcher:
    """The matcher of a finite set of texts, by comparing prefixes. Follows the `Matcher` protocol.

    Args:
        texts: the accepted texts.
        vocabulary: of the tokens.
    """

    def __init__(self, texts: Sequence[bytes], vocabulary: Vocabulary, tokens: Sequence[int] = ()) -> None:
        self.texts = texts
        self.vocabulary = vocabulary
        self.tokens = list(tokens)

    @property
    def text(self) -> bytes:
        return self.vocabulary.decode(self.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def is_terminated(self) -> bool:
        return any(token in self.vocabulary.eos_token_ids for token in self.tokens)

    @property
    def is_accepting(self) -> bool:
        return self.text in self.texts and not self.is_terminated

    @property
    def can_continue(self) -> bool:
        return any(self._allows(t) for t in range(self.vocabulary.size) if t not in self.vocabulary.eos_token_ids)

    def _allows(self, token: int) -> bool:
        if self.is_terminated:
            return False
        if token in self.vocabulary.eos_token_ids:
            return self.is_accepting
        data = self.vocabulary.token_bytes[token]
        return data is not None and any(text.startswith(self.text + data) for text in self.texts)

    has_guard = False

    @property
    def token_texts(self) -> Sequence[bytes | None]:
        return self.vocabulary.token_bytes

    def refusal(self, token: int) -> None:
        return None

    def refusals(self, is_early: bool = True) -> dict[int, Any]:
        return {}

    def completion(self) -> tuple[int, ...]:
        raise NotImplementedError

    def can_end_within(self, num_tokens: int, token: int) -> bool:
        raise NotImplementedError

    def fill_bitmask(self, out: Any, row: int = 0, exact: bool = True) -> None:
        out[row] = 0
        for token in range(self.vocabulary.size):
            if self._allows(token):
                out[row, token // 32] |= -(1 << 31) if token % 32 == 31 else 1 << token % 32

    def prepare(self, num_things: int, token: int | None = None) -> bool:
        return True

    def accept(self, token: int) -> bool:
        if not self._allows(token):
            return False
        self.tokens.append(token)
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        fork = self.fork()
        return next((i for i, token in enumerate(tokens) if not fork.accept(token)), len(tokens))

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[len(self.tokens) - num_tokens :]

    def fork(self) -> TextsMatcher:
        return TextsMatcher(self.texts, self.vocabulary, self.tokens)

    def forced_tokens(self) -> list[int]:
        fork = self.fork()
        forced: list[int] = []
        while not fork.is_accepting:
            allowed = [token for token in range(self.vocabulary.size) if fork._allows(token)]
            if len(allowed) != 1:
                break
            forced += allowed
            assert fork.accept(allowed[0])
        return forced

    def forced_text(self, gaps: Any = None) -> bytes:
        going_on = [text[len(self.text) :] for text in self.texts if text.startswith(self.text)]
        return next(
            going_on[0][:length]
            for length in range(min(map(len, going_on)), -1, -1)
            if len({text[:length] for text in going_on}) == 1
        )
