"""Against repeats of more than one token: DRY and the ban of repeated n-grams. Logits are float32 [N, V]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodekit.sampling.checks import COUNT, SEQUENCES, from_on, token_sequence
from decodekit.sampling.options.declared import option
from decodekit.sampling.pipeline import LogitsProcessor, Stage
from decodekit.sampling.processors.history import PADDING, History
from decodekit.sampling.processors.pointwise import with_history

_LARGEST = 1e30
"""A penalty beyond which nothing changes: it removes all the mass, and the logit stays finite."""


def _reach(ids: Tensor, is_token: Tensor, breakers: Sequence[Sequence[int]]) -> Tensor:
    """[N, 1]: how many tokens follow the latest breaker, of all that begin there the longest one."""
    num_rows, width = ids.shape
    places = torch.arange(width, device=ids.device)
    # The latest place where a breaker begins, and the tokens after the longest one that begins there.
    start = torch.full((num_rows, 1), width, dtype=torch.int64, device=ids.device)
    reach = is_token.sum(dim=-1, keepdim=True)
    for breaker in breakers:
        length = len(breaker)
        if length > width:
            continue
        pattern = torch.tensor(breaker[::-1], dtype=torch.int64, device=ids.device)
        ends = (ids.unfold(1, length, 1) == pattern).all(dim=-1)  # [N, width - length + 1]: it ends at the place
        end = torch.where(ends, places[: width - length + 1], width).amin(dim=-1, keepdim=True)
        begin = end + length - 1
        is_later = (end < width) & ((begin < start) | ((begin == start) & (end < reach)))
        start, reach = torch.where(is_later, begin, start), torch.where(is_later, end, reach)
    return reach


def _repeat_lengths(ids: Tensor, is_token: Tensor, reach: Tensor, longest: int) -> Tensor:
    """[N, width] int64: for each distance how many tokens from there back are those from the end back."""
    width = ids.shape[1]
    lengths = torch.zeros_like(ids)
    is_repeat = is_token.clone()
    is_repeat[:, 0] = False
    for n in range(min(width, longest)):  # one round per length of a repeat
        is_repeat = is_repeat[:, : width - n] & (ids[:, n:] == ids[:, n : n + 1]) & is_token[:, n:] & (reach > n)
        if not is_repeat.any():
            break
        lengths[:, : width - n] += is_repeat
    return lengths


@dataclass(frozen=True, repr=False)
class DRY(LogitsProcessor):
    """Weaken tokens that would extend a repeat, the more the longer it is.

    z - multiplier base^(n - allowed_length) for tokens that would extend a repeat of n >= allowed_length tokens.

    "Don't repeat yourself" (p-e-w, 2024; in text-generation-webui, KoboldCpp, llama.cpp). The end of the prefix repeats
    an earlier place if the n tokens before that place are its last n tokens; the token at the place would extend the
    repeat, and gets the penalty of the longest one that it extends. No repeat reaches back over a breaker, and a
    breaker of one token is never penalized. Repeats may overlap with themselves.

    Exponents stop where base^n leaves float32, as in llama.cpp; text-generation-webui stops at n = 50.

    Args:
        multiplier: of the penalty; 0 is none, 0.8 is usual.
        base: how the penalty grows with each token of the repeat, 1.75 if left out.
        allowed_length: the longest repeat that costs no more than the multiplier, 2 if left out.
        breakers: sequences of token ids over which no repeat reaches, as newlines, quotes, names of speakers.
        window: how many of the last tokens are looked at; None looks at all.
    """

    multiplier: float = field(metadata=option("dry_multiplier", from_on(0), usual=0.8))
    base: float = field(default=1.75, metadata=option("dry_base", from_on(1)))
    allowed_length: int = field(default=2, metadata=option("dry_allowed_length", COUNT))
    breakers: tuple[tuple[int, ...], ...] = field(
        default=(), metadata=option("dry_breakers", SEQUENCES, type="Sequence[Sequence[int]]")
    )
    window: int | None = field(default=None, metadata=option("dry_window", COUNT))
    stage = Stage.BIAS
    needs_history = True
    can_forbid = False  # the largest penalty is finite

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "breakers", tuple(token_sequence("dry_breakers", each) for each in self.breakers))

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens that would extend a repeat, less likely."""
        history = with_history(self, history)
        num_rows, vocab_size = logits.shape
        width = history.token_ids.shape[1] if self.window is None else min(self.window, history.token_ids.shape[1])
        if self.multiplier == 0.0 or width <= self.allowed_length:
            return logits
        ids = history.last(width).flip(-1)  # [N, width], the latest first; -1 before the start
        is_token = ids != PADDING
        longest = self.allowed_length  # a repeat beyond which the penalty does not grow
        if self.base >= 1.000001:
            longest += max(0, math.ceil(math.log(_LARGEST / self.multiplier) / math.log(self.base)))
        # [N, width]: how many tokens before the place (which is the one `distance` from the end) repeat the end.
        lengths = _repeat_lengths(ids, is_token, _reach(ids, is_token, self.breakers), longest)
        # [N, width - 1]: the token after each place that the end repeats, and the length of the repeat.
        tokens, repeats = ids[:, :-1], lengths[:, 1:]
        is_penalized = (repeats >= self.allowed_length) & (tokens >= 0) & (tokens < vocab_size)
        exponents = torch.where(is_penalized, repeats - self.allowed_length, -1)
        largest = torch.full((num_rows, vocab_size), -1, dtype=torch.int64, device=logits.device)
        largest.scatter_reduce_(1, tokens.clamp(0, vocab_size - 1), exponents, "amax")
        single = [breaker[0] for breaker in self.breakers if len(breaker) == 1 and breaker[0] < vocab_size]
        largest[:, single] = -1
        penalty = (self.multiplier * torch.pow(self.base, largest.clamp(min=0).to(torch.float64))).clamp(max=_LARGEST)
        return torch.where(largest >= 0, logits - penalty.to(torch.float32), logits)


@dataclass(frozen=True, repr=False)
class NoRepeatNGram(LogitsProcessor):
    """Remove the tokens that would repeat an n-gram of this size. (fairseq; transformers)

    That is, complete one that prompt or output have already; of size 1 every token that was used.
    """

    size: int = field(metadata=option("no_repeat_ngram_size", COUNT, off=(0,)))
    stage = Stage.BIAS
    needs_history = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Logits in which no token repeats an n-gram."""
        history, size = with_history(self, history), self.size
        ids, vocab_size = history.token_ids, logits.shape[-1]
        if ids.shape[1] < size:
            return logits
        windows = ids.unfold(1, size, 1)  # [N, S - n + 1, n]
        ends = torch.arange(size, ids.shape[1] + 1, device=ids.device) <= history.lengths.unsqueeze(1)
        is_repeat = (windows[..., :-1] == history.last(size - 1).unsqueeze(1)).all(dim=-1) & ends
        tokens = windows[..., -1]
        is_repeat &= (tokens >= 0) & (tokens < vocab_size)
        spare = torch.where(is_repeat, tokens, vocab_size)  # the others go to a place that is cut off
        removed = torch.zeros((len(ids), vocab_size + 1), dtype=torch.bool, device=logits.device)
        return logits.masked_fill(removed.scatter_(1, spare, True)[:, :vocab_size], -math.inf)
