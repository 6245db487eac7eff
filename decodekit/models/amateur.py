"""Contrastive decoding: a model against a weaker one, the amateur, which reads the same text.

Li et al. 2023, "Contrastive Decoding: Open-ended Text Generation as Optimization"; O'Brien & Lewis 2023, "Contrastive
Decoding Improves Reasoning in Large Language Models", whose scores are computed (`contrast.amateurish`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decodekit.models.causal_lm import Cache, CausalLM, LogitsKind, Rows
from decodekit.models.contrast import ContrastLM, amateurish
from decodekit.models.kv_cache import check_order, shortened


class PairedCache:
    """A cache of each of two models that read the same.

    Args:
        first: an empty cache of the one.
        second: of the other, with as many rows.
    """

    def __init__(self, first: Cache, second: Cache) -> None:
        self.first, self.second = first, second
        self.row_lengths = [0] * first.num_rows

    @property
    def num_rows(self) -> int:
        """How many sequences the cache holds."""
        return len(self.row_lengths)

    @property
    def capacity(self) -> int:
        """Tokens a row can hold before a cache grows."""
        return min(self.first.capacity, self.second.capacity)

    @property
    def lengths(self) -> Tensor:
        """Tokens stored per row, int64 [num_rows], on the first model's device."""
        return self.first.lengths

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Lower the lengths of the rows; see `causal_lm.Cache.truncate`."""
        self.row_lengths = shortened(self.row_lengths, row_lengths)
        for cache in (self.first, self.second):
            cache.truncate(self.row_lengths)

    def reset(self, rows: Sequence[int]) -> None:
        """Empty these rows; see `causal_lm.Cache.reset`."""
        for cache in (self.first, self.second):
            cache.reset(rows)
        for row in rows:
            self.row_lengths[row] = 0

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; see `causal_lm.Cache.reorder`."""
        order: list[int] = rows.tolist()
        check_order(order, self.num_rows)
        for cache in (self.first, self.second):
            cache.reorder(rows)
        self.row_lengths = [self.row_lengths[row] for row in order]

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row; see `causal_lm.Cache.grow`."""
        for cache in (self.first, self.second):
            cache.grow(capacity)


class AmateurLM(ContrastLM):
    """The distribution of a model against that of an amateur; see `contrast.amateurish`.

    Args:
        model: the expert.
        amateur: a weaker model whose tokens are the expert's.
        alpha: how much less likely than the likeliest a token of the expert may be.
        beta: how much of the amateur is subtracted.
    """

    def __init__(self, model: CausalLM, amateur: CausalLM, alpha: float, beta: float) -> None:
        super().__init__(model)
        self.amateur = amateur
        self.alpha, self.beta = alpha, beta

    @property
    def context_length(self) -> int | None:
        """The smaller of the two, or None where neither has a limit."""
        limits = [limit for limit in (self.model.context_length, self.amateur.context_length) if limit is not None]
        return min(limits, default=None)

    @property
    def can_rollback(self) -> bool:
        """Whether taking tokens back is free in both."""
        return self.model.can_rollback and self.amateur.can_rollback

    def new_cache(self, num_rows: int, capacity: int) -> PairedCache:
        """An empty cache of each; see `causal_lm.CausalLM.new_cache`."""
        return PairedCache(self.model.new_cache(num_rows, capacity), self.amateur.new_cache(num_rows, capacity))

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """Append tokens in both and return logits of the contrast; see `causal_lm.CausalLM.forward`."""
        assert isinstance(cache, PairedCache)
        expert = self.model.forward(tokens, num_tokens, cache.first, rows, logits=logits)
        try:
            theirs = tokens.to(self.amateur.device)
            amateur = self.amateur.forward(theirs, num_tokens, cache.second, rows, logits=logits)
        except BaseException:
            cache.first.truncate(cache.row_lengths)
            raise
        for row, count in zip(range(cache.num_rows) if rows is None else rows, num_tokens, strict=True):
            cache.row_lengths[row] += count
        return amateurish(expert, amateur.to(expert.device), self.alpha, self.beta)
