"""Classifier-free guidance: every row has a second one, which has read a negative prompt in place of the prompt.

Sanchez et al. 2023, "Stay on topic with Classifier-Free Guidance". Both rows are read in one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decodekit.models.caches.kv_cache import checked_order, shortened
from decodekit.models.causal_lm import Cache, CausalLM, LogitsKind, Rows, assembled, wanted_counts
from decodekit.models.wrappers.contrast_model import ContrastLM, guided

CHUNK: Final = 512
"""Most tokens of a negative prompt that are read with a prompt that is shorter than it; bounds the activations."""


class GuidedCache:
    """A cache with two rows for each: 2i has read row i, 2i + 1 the negative prompt and the text of row i.

    Row i with P tokens of prompt and Q of negative prompt has read n tokens. For n >= P the second row has read
    Q + n - P; for n < P at most Q - 1, because the logits after the two prompts come from one pass.
    """

    def __init__(self, inner: Cache) -> None:
        self.inner = inner
        num_rows = inner.num_rows // 2
        self.row_lengths = [0] * num_rows
        self.second_lengths = [0] * num_rows
        self.prompt_lengths: list[int | None] = [None] * num_rows
        self.negative_prompts: list[Sequence[int]] = [()] * num_rows

    @property
    def num_rows(self) -> int:
        """How many sequences the cache holds; the inner cache has twice as many rows."""
        return len(self.row_lengths)

    @property
    def capacity(self) -> int:
        """Tokens a row can hold before the cache grows."""
        return self.inner.capacity

    @property
    def lengths(self) -> Tensor:
        """Tokens stored per row, int64 [num_rows], on the model's device."""
        return self.inner.lengths[::2]

    def set_prompt(self, row: int, prompt: Sequence[int], negative_prompt: Sequence[int]) -> None:
        """An empty row begins with this prompt; see `contrast.KnowsPrompts`.

        Without a negative prompt the second row begins with the last token of the prompt.
        """
        if self.row_lengths[row] or not prompt:
            raise ValueError(f"row {row} is not empty, or its prompt is")
        self.prompt_lengths[row] = len(prompt)
        self.negative_prompts[row] = negative_prompt or prompt[-1:]

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Lower the lengths of the rows; see `causal_lm.Cache.truncate`."""
        self.row_lengths = shortened(self.row_lengths, row_lengths)
        for row, length in enumerate(self.row_lengths):
            self.second_lengths[row] = min(self.second_lengths[row], self.second_length(row, length))
        self.inner.truncate(_interleaved(self.row_lengths, self.second_lengths))

    def second_length(self, row: int, length: int) -> int:
        """The most that the second row may have read when row `row` has read `length` tokens."""
        prompt_length, negative_length = self.prompt_lengths[row], len(self.negative_prompts[row])
        if prompt_length is None or length < prompt_length:
            return max(0, negative_length - 1)
        return negative_length + length - prompt_length

    def reset(self, rows: Sequence[int]) -> None:
        """Empty these rows and forget their prompts; see `causal_lm.Cache.reset`."""
        self.inner.reset(_interleaved([2 * row for row in rows], [2 * row + 1 for row in rows]))
        for row in rows:
            self.row_lengths[row] = self.second_lengths[row] = 0
            self.prompt_lengths[row], self.negative_prompts[row] = None, ()

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was, its prompts too; see `causal_lm.Cache.reorder`."""
        order = checked_order(rows, self.num_rows)
        self.inner.reorder(torch.stack([2 * rows, 2 * rows + 1], dim=1).flatten())
        for name in ("row_lengths", "second_lengths", "prompt_lengths", "negative_prompts"):
            setattr(self, name, [getattr(self, name)[row] for row in order])

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row; see `causal_lm.Cache.grow`."""
        self.inner.grow(capacity)


class PairReading(NamedTuple):
    """The tokens that one pass reads of a pair of rows."""

    row: int
    num_tokens: int
    """Of the first row."""
    num_wanted: int
    """Of its last tokens, those with wanted logits."""
    negative: Sequence[int]
    """Tokens of the negative prompt, which the second row reads first."""
    num_shared: int
    """Last tokens of the first row, which the second one reads behind them."""
    num_guided: int
    """Of the wanted places, those after which text may stand; inside the prompt the model's own logits count."""


class GuidedLM(ContrastLM):
    """A model of u + scale (c - u), with log-probabilities c after the prompt and u after the negative prompt.

    Its caches must be told what the prompts are (`GuidedCache.set_prompt`). Within a prompt the logits are the model's.
    """

    def __init__(self, model: CausalLM, scale: float) -> None:
        super().__init__(model)
        self.scale = scale

    def new_cache(self, num_rows: int, capacity: int) -> GuidedCache:
        """An empty cache; see `causal_lm.CausalLM.new_cache`."""
        return GuidedCache(self.model.new_cache(2 * num_rows, capacity))

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """Append tokens and return guided logits; see `causal_lm.CausalLM.forward`. The cache must know the prompts."""
        assert isinstance(cache, GuidedCache)
        chosen = range(cache.num_rows) if rows is None else rows
        counts = wanted_counts(logits, num_tokens)
        readings = [
            self._reading(cache, row, count, wanted)
            for row, count, wanted in zip(chosen, num_tokens, counts, strict=True)
        ]
        before = list(cache.second_lengths)
        try:
            readings = self._catch_up(cache, readings)
            if all(reading.num_shared == reading.num_tokens and not reading.negative for reading in readings):
                out = self._forward_level(tokens, num_tokens, cache, rows, logits, counts)
            else:
                out = self._forward_prompts(tokens, cache, readings)
                if logits == "all":
                    out = assembled(torch.split(out, counts), logits, tokens.shape[1])
        except BaseException:
            cache.second_lengths = before
            cache.inner.truncate(_interleaved(cache.row_lengths, before))
            raise
        for reading in readings:
            cache.row_lengths[reading.row] += reading.num_tokens
            cache.second_lengths[reading.row] += len(reading.negative) + reading.num_shared
        return out

    def _reading(self, cache: GuidedCache, row: int, num_tokens: int, num_wanted: int) -> PairReading:
        length, prompt_length = cache.row_lengths[row], cache.prompt_lengths[row]
        if prompt_length is None:
            raise ValueError(f"the cache was not told the prompt of row {row}: set_prompt(...)")
        end, negative = length + num_tokens, cache.negative_prompts[row][cache.second_lengths[row] :]
        if end < prompt_length:
            # Beside a part of the prompt the second row reads as much, but for the last token.
            return PairReading(row, num_tokens, num_wanted, negative[:-1][:num_tokens], 0, 0)
        num_text = end - prompt_length
        return PairReading(
            row, num_tokens, num_wanted, negative, min(num_text, num_tokens), min(num_wanted, num_text + 1)
        )

    def _catch_up(self, cache: GuidedCache, readings: list[PairReading]) -> list[PairReading]:
        """Read what is too long of negative prompts for one pass; what is left to read."""
        readings = list(readings)
        while True:
            late = [i for i, reading in enumerate(readings) if len(reading.negative) > max(CHUNK, reading.num_tokens)]
            if not late:
                return readings
            parts = [readings[i].negative[:CHUNK] for i in late]
            padded = pad_sequence([torch.tensor(part) for part in parts], batch_first=True).to(self.device)
            lengths, rows = [len(part) for part in parts], [2 * readings[i].row + 1 for i in late]
            self.model.forward(padded, lengths, cache.inner, rows)
            for i, part in zip(late, parts, strict=True):
                cache.second_lengths[readings[i].row] += len(part)
                readings[i] = readings[i]._replace(negative=readings[i].negative[len(part) :])

    def _forward_level(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: GuidedCache,
        rows: Rows,
        logits: LogitsKind,
        counts: Sequence[int],
    ) -> Tensor:
        """Both rows of every pair read the same tokens."""
        both = None if rows is None else _interleaved([2 * row for row in rows], [2 * row + 1 for row in rows])
        wanted = logits if isinstance(logits, str) else _interleaved(logits, logits)
        out = self.model.forward(
            tokens.repeat_interleave(2, dim=0), _interleaved(num_tokens, num_tokens), cache.inner, both, logits=wanted
        )
        if isinstance(logits, str):  # [2R, V] or [2R, T, V]
            return guided(out[::2], out[1::2], self.scale)
        parts = torch.split(out, _interleaved(counts, counts))
        return guided(torch.cat(parts[::2]), torch.cat(parts[1::2]), self.scale)

    def _forward_prompts(self, tokens: Tensor, cache: GuidedCache, readings: Sequence[PairReading]) -> Tensor:
        """Some pairs read of their prompts. Logits [sum of the wanted, V]."""
        inner_rows: list[int] = []
        parts: list[Tensor] = []
        wanted: list[int] = []
        for i, reading in enumerate(readings):
            mine = tokens[i, : reading.num_tokens]
            inner_rows.append(2 * reading.row)
            parts.append(mine)
            wanted.append(reading.num_wanted)
            if reading.negative or reading.num_shared:
                negative = torch.tensor(list(reading.negative), dtype=torch.int64, device=tokens.device)
                inner_rows.append(2 * reading.row + 1)
                parts.append(torch.cat([negative, mine[reading.num_tokens - reading.num_shared :]]))
                wanted.append(max(1, reading.num_guided))
        is_every = inner_rows == list(range(cache.inner.num_rows))
        out = self.model.forward(
            pad_sequence(parts, batch_first=True),
            [len(part) for part in parts],
            cache.inner,
            None if is_every else inner_rows,
            logits="last" if set(wanted) == {1} else wanted,
        )
        pieces = dict(zip(inner_rows, torch.split(out, wanted), strict=True))
        found: list[Tensor] = []
        for reading in readings:
            first, num_own = pieces[2 * reading.row], reading.num_wanted - reading.num_guided
            found.append(torch.log_softmax(first[:num_own], dim=-1))
            if reading.num_guided:
                found.append(guided(first[num_own:], pieces[2 * reading.row + 1], self.scale))
        return torch.cat(found)


def _interleaved(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """first[0], second[0], first[1], second[1], ..."""
    return [value for pair in zip(first, second, strict=True) for value in pair]
