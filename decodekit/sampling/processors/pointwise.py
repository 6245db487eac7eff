"""Logits processors that most samplers have: penalties, biases, temperature, top-k, top-p, min-p.

A processor is a function over all rows at once, as a value with validated settings. ``logits`` is float32 [N, V] and is
never changed in place. A removed token is -inf; what is -inf stays -inf, what is NaN stays NaN (so a fault of the model
is seen where a token is selected), and no truncation removes a whole row. Where a truncation compares what is equal but
for rounding, the token stays: see `tolerances`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling.certificates import Flags, RankStatistics, within_min_p
from decodekit.sampling.checks import (
    COUNT,
    MASS,
    POSITIVE,
    SHARE,
    Domain,
    is_count,
    is_number,
    is_zero,
    numbers,
    require,
)
from decodekit.sampling.fast import large_vocabulary
from decodekit.sampling.fast.candidates import Candidates, Floats
from decodekit.sampling.options.declared import option
from decodekit.sampling.pipeline import LogitsProcessor, Narrowing, OrderPreserving, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.tolerances import MARGIN, lowest_kept, lowest_kept_of, precise, reached, widened

_REMOVED = np.float32(-np.inf)


@dataclass(frozen=True, repr=False)
class Temperature(OrderPreserving):
    """Divide the logits by the temperature. softmax(z / T) is sharper below 1, flatter above (Ackley et al. 1985)."""

    _domain = POSITIVE.hinting('strategy="greedy": the limit of temperature 0 is the likeliest token', is_zero)
    temperature: float = field(metadata=option("temperature", _domain, off=(0, 1), idle=1))
    stage = Stage.TEMPERATURE
    is_tokenwise = True

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """z / T."""
        return large_vocabulary.divided(logits, self.temperature)

    def divides_by(self) -> float:
        """The temperature."""
        return self.temperature

    def on_sorted(self, logits: Floats) -> Floats:
        """z / temperature."""
        return logits if self.temperature == 1.0 else logits / np.float32(self.temperature)


@dataclass(frozen=True, repr=False)
class TopK(Narrowing):
    """Keep the k likeliest tokens and ties with the last of them, as in transformers and vLLM (Fan et al. 2018).

    Args:
        k: how many.
        exact: keep no more than k, as in llama.cpp and mlx-lm: of ties with the last one those with the lowest ids,
            which is undefined in those libraries.
    """

    _domain = COUNT.hinting("leaving top_k out to keep every token", is_zero)
    k: int = field(metadata=option("top_k", _domain, "Keep the k likeliest tokens.", off=(0,)))
    exact: bool = False
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """Fewer than k tokens are likelier; with `exact`, or as likely."""
        is_before = standing.distances >= 0 if self.exact else standing.distances > 0
        flags: Flags = np.count_nonzero(is_before, axis=1) < self.k
        return flags

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The k likeliest tokens, and ties with the last of them."""
        if self.k >= logits.shape[-1]:
            return logits
        threshold = torch.topk(logits, self.k, dim=-1, sorted=True).values[..., -1:]
        removed = logits < threshold
        if self.exact:
            is_tied = logits == threshold
            room = self.k - (logits > threshold).sum(dim=-1, keepdim=True)
            removed |= is_tied & (is_tied.cumsum(dim=-1) > room) & (threshold > -math.inf)
        return logits.masked_fill(removed, -math.inf)

    def adapted(self, window: int) -> TopK:
        """Exactly k tokens."""
        return replace(self, exact=True)

    def survivors(self, logits: Tensor, temperature: float, rest: Sequence[OrderPreserving]) -> Candidates | None:
        """None for a quarter of a row or more."""
        found = large_vocabulary.keep_top_k(logits, temperature, self.k)
        if found is None or not self.exact:
            return found
        return replace(found, logits=self.on_sorted(found.logits))

    def on_sorted(self, logits: Floats) -> Floats:
        """The first k, and ties with the last of them."""
        if self.k >= logits.shape[1]:
            return logits
        if self.exact:
            return np.where(np.arange(logits.shape[1]) >= self.k, _REMOVED, logits)
        return np.where(logits < logits[:, self.k - 1 : self.k], _REMOVED, logits)


@dataclass(frozen=True, repr=False)
class TopP(Narrowing):
    """Keep the smallest set of likeliest tokens with this mass. At least one stays (Holtzman et al. 2020).

    Of equally likely tokens the one with the lower id comes first. (transformers sorts upwards with an unstable sort:
    which of them it keeps is undefined there; their number is the same.)
    """

    _domain = MASS.hinting('strategy="greedy" to keep only the likeliest token', is_zero)
    p: float = field(metadata=option("top_p", _domain, off=(1,)))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """The likelier tokens cannot reach a share p of what is left without it: A (1 - p) < p P."""
        if self.p == 1.0:
            return np.ones(len(standing.tokens), np.bool_)
        with np.errstate(over="ignore"):
            before = np.exp(standing.distances).sum(axis=1)  # A / P
        flags: Flags = before * (1.0 - self.p + MARGIN) < self.p * (1.0 - MARGIN)
        return flags

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The likeliest tokens with mass p."""
        if self.p == 1.0:
            return logits
        if large_vocabulary.is_wide(logits):
            found = large_vocabulary.outside_nucleus(logits, self.p)
            if found is not None:
                return logits.masked_fill(torch.from_numpy(found), -math.inf)
        ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        weights = precise((ordered - ordered[..., :1]).exp())
        mass = weights.cumsum(dim=-1)
        # Both sides are left unnormalised, so that it does not matter how many places of -inf follow. The first token
        # has mass 0 before it, so it always stays. NaN compares false: a faulty row keeps all its places.
        outside = mass - weights >= reached(self.p) * mass[..., -1:]
        removed = torch.empty_like(ids, dtype=torch.bool).scatter_(-1, ids, outside)
        return logits.masked_fill(removed, -math.inf)

    def survivors(self, logits: Tensor, temperature: float, rest: Sequence[OrderPreserving]) -> Candidates | None:
        """Less those that a min-p right after it removes: fewer tokens to sort."""
        if self.p == 1.0:
            return None
        after = rest[0] if rest else None
        min_p = after.min_p if isinstance(after, MinP) else 0.0
        # A row and its candidates have one mass but for rounding: before another top-p, one way is taken for all rows.
        has_another = any(isinstance(processor, TopP) for processor in rest)
        return large_vocabulary.keep_top_p(logits, temperature, self.p, min_p=min_p, even_many=has_another)

    def on_sorted(self, logits: Floats) -> Floats:
        """The shortest start of the row with mass p; the same arithmetic as a call."""
        if self.p == 1.0:
            return logits
        weights = np.exp(logits - logits[:, :1]).astype(np.float64)
        mass = weights.cumsum(axis=1)
        return np.where(mass - weights >= reached(self.p) * mass[:, -1:], _REMOVED, logits)


@dataclass(frozen=True, repr=False)
class MinP(Narrowing):
    """Keep tokens at least this many times as likely as the likeliest. (Nguyen et al. 2024)"""

    min_p: float = field(metadata=option("min_p", SHARE, off=(0,)))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """It is likely enough beside the likeliest."""
        return within_min_p(standing, self.min_p)

    def floor(self, peaks: Floats) -> Floats:
        """The logit that is min_p times as likely as the likeliest."""
        if self.min_p == 0.0:
            return np.full_like(peaks, _REMOVED)
        return lowest_kept_of(peaks, widened(-math.log(self.min_p)))

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens not much less likely than the likeliest."""
        if self.min_p == 0.0:
            return logits
        return logits.masked_fill(logits < lowest_kept(logits, widened(-math.log(self.min_p))), -math.inf)

    def survivors(self, logits: Tensor, temperature: float, rest: Sequence[OrderPreserving]) -> Candidates | None:
        """The tokens not much less likely than the likeliest."""
        return None if self.min_p == 0.0 else large_vocabulary.keep_min_p(logits, temperature, self.min_p)

    def on_sorted(self, logits: Floats) -> Floats:
        """The start of the row down to a share min_p of its first."""
        return logits if self.min_p == 0.0 else np.where(logits < self.floor(logits[:, :1]), _REMOVED, logits)


def with_history(processor: LogitsProcessor, history: History | None) -> History:
    """The history; an `OptionError` that names the processor if there is none."""
    if history is None:
        raise OptionError(f"{processor!r} needs the history of the rows", hint="passing a History to the pipeline")
    return history


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise an `OptionError` if a token id of the option `name` is outside the vocabulary."""
    largest = max(ids, default=-1)
    if largest >= vocab_size:
        raise OptionError(f"token id {largest} is outside the vocabulary of {vocab_size} ids", at=name)


def check_within(ids: Sequence[int], vocab_size: int, name: str) -> None:
    """Raise an `OptionError` if a token id of the option `name` has no logit."""
    if ids and max(ids) >= vocab_size:
        raise OptionError(f"token id {max(ids)} is outside the {vocab_size} logits", at=name, hint="a smaller id")


FINITE: Final = 1e30
"""A bias up to this leaves all logits of a model finite in float32."""


def _counts(history: History, window: int | None, vocab_size: int, *, with_prompt: bool) -> Tensor:
    """[N, V] float32: how often the last tokens have each token.

    Ids outside the row of logits (a prompt token that the model embeds but cannot emit) are not counted.
    """
    ids = history.token_ids
    weights = history.places(window, with_prompt=with_prompt) & (ids >= 0) & (ids < vocab_size)
    counts = torch.zeros((ids.shape[0], vocab_size), dtype=torch.float32, device=ids.device)
    return counts.scatter_add_(1, ids.clamp(0, vocab_size - 1), weights.to(torch.float32))


BIASES: Final = Domain("a mapping from token ids to biases", lambda value: isinstance(value, Mapping) and bool(value))
_WINDOW: Final = option(
    "penalty_window", COUNT, "How many of the last tokens the three penalties look at; None is all."
)
_OF_OPENAI: Final = numbers("a number from -2 to 2", lambda value: -2 <= value <= 2)


@dataclass(frozen=True, repr=False)
class RepetitionPenalty(LogitsProcessor):
    """Divide positive and multiply negative logits of tokens in prompt or output. (Keskar et al. 2019)

    Args:
        penalty: 1 is none, above 1 discourages repeats.
        window: how many of the last tokens count; None counts all, as transformers and vLLM do (llama.cpp counts 64,
            mlx-lm 20, unless told otherwise).
    """

    _domain = numbers("a finite number above 0 (1 is no penalty)", lambda value: value > 0)
    penalty: float = field(metadata=option("repetition_penalty", _domain, usual=1.1, off=(1,)))
    window: int | None = field(default=None, metadata=_WINDOW)
    stage = Stage.BIAS
    needs_history = True

    def adapted(self, window: int) -> RepetitionPenalty:
        """The last tokens alone, unless a window was given."""
        return replace(self, window=self.window or window)

    @property
    def can_forbid(self) -> bool:
        """Only a penalty that leaves float32 can."""
        return self.penalty > FINITE

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens of prompt or output, less likely."""
        history = with_history(self, history)
        if self.penalty == 1.0:
            return logits
        seen = _counts(history, self.window, logits.shape[-1], with_prompt=True) > 0
        penalized = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return torch.where(seen, penalized, logits)


@dataclass(frozen=True, repr=False)
class _OutputPenalty(LogitsProcessor):
    """The common part of the penalties of OpenAI's API.

    Of a `window` only the last tokens count. The prompt counts in llama.cpp and mlx-lm, not in vLLM or OpenAI's API.
    """

    penalty: float
    window: int | None = field(default=None, metadata=_WINDOW)
    counts_prompt: bool = False
    stage = Stage.BIAS
    needs_history = True
    can_forbid = False  # what is subtracted is small, or grows no faster than the text
    _once: ClassVar[bool]

    def adapted(self, window: int) -> LogitsProcessor:
        """The last tokens of prompt and output, unless a window was given."""
        return replace(self, window=self.window or window, counts_prompt=True)

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens of the output, less likely."""
        history = with_history(self, history)
        if self.penalty == 0.0:
            return logits
        counts = _counts(history, self.window, logits.shape[-1], with_prompt=self.counts_prompt)
        return logits - self.penalty * (counts > 0 if self._once else counts)


@dataclass(frozen=True, repr=False)
class PresencePenalty(_OutputPenalty):
    """Subtract the penalty once from each token of the output. The prompt does not count (OpenAI)."""

    penalty: float = field(metadata=option("presence_penalty", _OF_OPENAI))
    _once = True


@dataclass(frozen=True, repr=False)
class FrequencyPenalty(_OutputPenalty):
    """Subtract the penalty as often as the output has the token. The prompt does not count (OpenAI)."""

    penalty: float = field(metadata=option("frequency_penalty", _OF_OPENAI))
    _once = False


@dataclass(frozen=True, repr=False, init=False)
class LogitBias(LogitsProcessor):
    """Add biases to the logits of token ids, -inf to ban one. (OpenAI)"""

    biases: tuple[tuple[int, float], ...] = field(metadata=option("logit_bias", BIASES, type="Mapping[int, float]"))
    stage = Stage.BIAS

    def __init__(self, biases: Mapping[int, float]) -> None:
        name = "logit_bias"
        BIASES.require(name, biases)
        for token_id, bias in biases.items():
            require(f"{name}, key", token_id, is_count(token_id, 0), "a token id")
            require(f"{name}[{token_id}]", bias, is_number(bias) or bias == -math.inf, "a finite number or -inf")
        object.__setattr__(self, "biases", tuple(sorted((i, float(bias)) for i, bias in biases.items())))

    @property
    def can_forbid(self) -> bool:
        """Whether a bias is -inf."""
        return any(bias < -FINITE for _, bias in self.biases)

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> LogitBias:
        """Itself, if the vocabulary has its tokens."""
        check_ids("logit_bias", (token for token, _ in self.biases), vocab_size)
        return self

    def may_forbid(self, vocab_size: int) -> Collection[int]:
        """The tokens whose bias is -inf."""
        return [token for token, bias in self.biases if bias < -FINITE]

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """z + bias."""
        token_ids, biases = zip(*self.biases, strict=True)
        check_within(token_ids, logits.shape[-1], "logit_bias")
        ids = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
        values = torch.tensor(biases, dtype=logits.dtype, device=logits.device)
        return logits.index_add(-1, ids, values.expand(*logits.shape[:-1], -1))

    def __repr__(self) -> str:
        return f"LogitBias({dict(self.biases)!r})"
