"""Logits processors as values: each wraps one function of ``functions`` with a validated setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling.certificates import Flags, RankStatistics, within_min_p, within_top_k, within_top_p
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
from decodekit.sampling.processors import functions
from decodekit.sampling.processors.history import History
from decodekit.sampling.tolerances import lowest_kept_of, reached, widened

_REMOVED = np.float32(-np.inf)


@dataclass(frozen=True, repr=False)
class Temperature(OrderPreserving):
    """Divide the logits by the temperature; see ``apply_temperature``."""

    _domain = POSITIVE.hinting('strategy="greedy": the limit of temperature 0 is the likeliest token', is_zero)
    temperature: float = field(metadata=option("temperature", _domain, off=(0, 1), idle=1))
    stage = Stage.TEMPERATURE
    is_tokenwise = True

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """z / temperature."""
        return functions.apply_temperature(logits, self.temperature)

    def divides_by(self) -> float:
        """The temperature."""
        return self.temperature

    def on_sorted(self, logits: Floats) -> Floats:
        """z / temperature."""
        return logits if self.temperature == 1.0 else logits / np.float32(self.temperature)


@dataclass(frozen=True, repr=False)
class TopK(Narrowing):
    """Keep the k likeliest tokens and ties with the last of them; see ``apply_top_k``.

    Args:
        k: how many.
        exact: keep no more than k: of ties with the last one those with the lowest ids.
    """

    _domain = COUNT.hinting("leaving top_k out to keep every token", is_zero)
    k: int = field(metadata=option("top_k", _domain, "Keep the k likeliest tokens.", off=(0,)))
    exact: bool = False
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """Fewer than k tokens are likelier."""
        return within_top_k(standing, self.k, exact=self.exact)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The k likeliest tokens, and ties with the last of them."""
        return functions.apply_top_k(logits, self.k, exact=self.exact)

    def adapted(self, window: int) -> TopK:
        """Exactly k tokens."""
        return replace(self, exact=True)

    def survivors(self, logits: Tensor, temperature: float, rest: Sequence[OrderPreserving]) -> Candidates | None:
        """The k likeliest tokens, and ties with the last of them; None for a quarter of a row or more."""
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
    """Keep the smallest set of likeliest tokens with this mass; see ``apply_top_p``."""

    _domain = MASS.hinting('strategy="greedy" to keep only the likeliest token', is_zero)
    p: float = field(metadata=option("top_p", _domain, off=(1,)))
    stage = Stage.TRUNCATION

    def keeps(self, standing: RankStatistics) -> Flags:
        """The likelier tokens cannot reach a share p of what is left without it."""
        return within_top_p(standing, self.p)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The likeliest tokens with mass p."""
        return functions.apply_top_p(logits, self.p)

    def survivors(self, logits: Tensor, temperature: float, rest: Sequence[OrderPreserving]) -> Candidates | None:
        """The likeliest tokens with mass p, less those that a min-p right after it removes: fewer tokens to sort."""
        if self.p == 1.0:
            return None
        after = rest[0] if rest else None
        min_p = after.min_p if isinstance(after, MinP) else 0.0
        # A row and its candidates have one mass but for rounding: before another top-p, one way is taken for all rows.
        has_another = any(isinstance(processor, TopP) for processor in rest)
        return large_vocabulary.keep_top_p(logits, temperature, self.p, min_p=min_p, even_many=has_another)

    def on_sorted(self, logits: Floats) -> Floats:
        """The shortest start of the row with mass p; the same arithmetic as ``outside_nucleus``."""
        if self.p == 1.0:
            return logits
        weights = np.exp(logits - logits[:, :1]).astype(np.float64)
        mass = weights.cumsum(axis=1)
        return np.where(mass - weights >= reached(self.p) * mass[:, -1:], _REMOVED, logits)


@dataclass(frozen=True, repr=False)
class MinP(Narrowing):
    """Keep tokens at least this many times as likely as the likeliest; see ``apply_min_p``."""

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
        return functions.apply_min_p(logits, self.min_p)

    def survivors(self, logits: Tensor, temperature: float, rest: Sequence[OrderPreserving]) -> Candidates | None:
        """The tokens not much less likely than the likeliest."""
        return None if self.min_p == 0.0 else large_vocabulary.keep_min_p(logits, temperature, self.min_p)

    def on_sorted(self, logits: Floats) -> Floats:
        """The start of the row down to a share min_p of its first."""
        if self.min_p == 0.0:
            return logits
        floor = lowest_kept_of(logits[:, :1], widened(-math.log(self.min_p)))
        return np.where(logits < floor, _REMOVED, logits)


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


_FINITE = 1e30
"""What is added below this stays finite in float32, for all logits of a model."""


def can_reach_minus_infinity(biases: Iterable[float]) -> bool:
    """Whether one of the biases makes -inf of a logit: it is -inf, or too large for float32."""
    return any(bias < -_FINITE for bias in biases)


BIASES: Final = Domain("a mapping from token ids to biases", lambda value: isinstance(value, Mapping) and bool(value))
_WINDOW: Final = option(
    "penalty_window", COUNT, "How many of the last tokens the three penalties look at; None is all."
)
_OF_OPENAI: Final = numbers("a number from -2 to 2", lambda value: -2 <= value <= 2)


@dataclass(frozen=True, repr=False)
class RepetitionPenalty(LogitsProcessor):
    """Divide positive and multiply negative logits of tokens in prompt or output; see ``apply_repetition_penalty``.

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
        return self.penalty > _FINITE

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens of prompt or output, less likely."""
        return functions.apply_repetition_penalty(logits, with_history(self, history), self.penalty, self.window)


@dataclass(frozen=True, repr=False)
class _OutputPenalty(LogitsProcessor):
    """The common part of the penalties of OpenAI's API; see `PresencePenalty`."""

    penalty: float
    window: int | None = field(default=None, metadata=_WINDOW)
    counts_prompt: bool = False
    stage = Stage.BIAS
    needs_history = True
    _function: ClassVar[Callable[..., Tensor]]

    def adapted(self, window: int) -> LogitsProcessor:
        """The last tokens of prompt and output, unless a window was given."""
        return replace(self, window=self.window or window, counts_prompt=True)

    @property
    def can_forbid(self) -> bool:
        """No: what is subtracted is small, or grows no faster than the text."""
        return False

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens of the output, less likely."""
        history = with_history(self, history)
        places = history.places(self.window, with_prompt=self.counts_prompt)
        return type(self)._function(logits, history, self.penalty, places)


@dataclass(frozen=True, repr=False)
class PresencePenalty(_OutputPenalty):
    """Subtract the penalty once from each token of the output; see ``apply_presence_penalty``.

    Args:
        penalty: what is subtracted.
        window: how many of the last tokens count; None counts all.
        counts_prompt: whether tokens of the prompt count (in llama.cpp and mlx-lm; not in vLLM or OpenAI's API).
    """

    penalty: float = field(metadata=option("presence_penalty", _OF_OPENAI))
    _function = staticmethod(functions.apply_presence_penalty)


@dataclass(frozen=True, repr=False)
class FrequencyPenalty(_OutputPenalty):
    """Subtract the penalty as often as the output has the token; see ``apply_frequency_penalty``.

    Args:
        penalty: what is subtracted for each use.
        window, counts_prompt: as for `PresencePenalty`.
    """

    penalty: float = field(metadata=option("frequency_penalty", _OF_OPENAI))
    _function = staticmethod(functions.apply_frequency_penalty)


@dataclass(frozen=True, repr=False, init=False)
class LogitBias(LogitsProcessor):
    """Add biases to the logits of token ids, -inf to ban one; see ``apply_logit_bias``.

    Args:
        biases: bias by token id.
    """

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
        return can_reach_minus_infinity(bias for _, bias in self.biases)

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> LogitBias:
        """Itself, if the vocabulary has its tokens."""
        check_ids("logit_bias", (token for token, _ in self.biases), vocab_size)
        return self

    def may_forbid(self, vocab_size: int) -> Collection[int]:
        """The tokens whose bias is -inf."""
        return [token for token, bias in self.biases if can_reach_minus_infinity([bias])]

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """z + bias."""
        return functions.apply_logit_bias(logits, [i for i, _ in self.biases], [bias for _, bias in self.biases])

    def __repr__(self) -> str:
        return f"LogitBias({dict(self.biases)!r})"
