"""Logits processors as values: each wraps one function of ``functions`` with a validated setting."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling import functions
from decodekit.sampling.candidates import Floats
from decodekit.sampling.history import History

if TYPE_CHECKING:
    from decodekit.sampling.pipeline import Pipeline


_REMOVED = np.float32(-np.inf)


class Stage(IntEnum):
    """What a processor does. The constraint mask comes before temperature and truncation, whatever their order."""

    BIAS = 0
    """Changes single logits: penalties, biases."""
    MASK = 1
    """The constraint; a pipeline applies it itself."""
    TEMPERATURE = 2
    """Changes the shape of the whole row and keeps its order."""
    TRUNCATION = 3
    """Removes unlikely tokens."""


class LogitsProcessor(ABC):
    """A pure function of logits and history; a frozen dataclass.

    Laws: the logits given are not changed in place; rows do not influence each other; what is -inf stays -inf; a row
    with a token left keeps one. Composed with ``|`` into a pipeline.
    """

    stage: ClassVar[Stage]
    needs_history: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """The new logits.

        Args:
            logits: float32 [N, V].
            history: the tokens before each row; None is enough where ``needs_history`` is false.
        """

    def __or__(self, other: LogitsProcessor | Pipeline) -> Pipeline:
        from decodekit.sampling.pipeline import Pipeline

        return Pipeline((self,)) | other

    def __repr__(self) -> str:
        settings = [repr(getattr(self, name)) for name in getattr(self, "__dataclass_fields__", ())]
        return f"{type(self).__name__}({', '.join(settings)})"


class OrderPreserving(LogitsProcessor):
    """A processor that acts on a few logits in descending order too: there it cuts the end off, or keeps the order.

    Law: what ``on_sorted`` makes of sorted rows is the sorted result of a call.
    """

    @abstractmethod
    def on_sorted(self, logits: Floats) -> Floats:
        """The new logits of rows in descending order, where equal finite values are in order of token id.

        Args:
            logits: float32 [N, K] on the host.
        """


def _check(name: str, value: object, condition: bool, expected: str, hint: str | None = None) -> None:
    if not condition:
        raise OptionError(f"{name} must be {expected}, not {value!r}", at=name, hint=hint)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, repr=False)
class Temperature(OrderPreserving):
    """softmax(z / temperature); see ``apply_temperature``.

    Raises:
        OptionError: the temperature is not a finite number above 0.
    """

    temperature: float
    stage = Stage.TEMPERATURE

    def __post_init__(self) -> None:
        value = self.temperature
        is_zero = _is_number(value) and value == 0
        hint = 'strategy="greedy": the limit of temperature 0 is the likeliest token' if is_zero else None
        _check("temperature", value, _is_number(value) and value > 0, "a finite number above 0", hint)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """z / temperature."""
        return functions.apply_temperature(logits, self.temperature)

    def on_sorted(self, logits: Floats) -> Floats:
        """z / temperature."""
        return logits if self.temperature == 1.0 else logits / np.float32(self.temperature)


@dataclass(frozen=True, repr=False)
class TopK(OrderPreserving):
    """Keep the k likeliest tokens and ties with the last of them; see ``apply_top_k``.

    Raises:
        OptionError: k is not an integer of at least 1.
    """

    k: int
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        is_int = isinstance(self.k, int) and not isinstance(self.k, bool)
        hint = "leaving top_k out to keep every token" if is_int and self.k == 0 else None
        _check("top_k", self.k, is_int and self.k >= 1, "an integer of at least 1", hint)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The k likeliest tokens, and ties with the last of them."""
        return functions.apply_top_k(logits, self.k)

    def on_sorted(self, logits: Floats) -> Floats:
        """The first k, and ties with the last of them."""
        if self.k >= logits.shape[1]:
            return logits
        return np.where(logits < logits[:, self.k - 1 : self.k], _REMOVED, logits)


@dataclass(frozen=True, repr=False)
class TopP(OrderPreserving):
    """Keep the smallest set of likeliest tokens with mass p; see ``apply_top_p``.

    Raises:
        OptionError: p is not above 0 and at most 1.
    """

    p: float
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        hint = 'strategy="greedy" to keep only the likeliest token' if self.p == 0 else None
        _check("top_p", self.p, _is_number(self.p) and 0 < self.p <= 1, "a number above 0 and at most 1", hint)

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The likeliest tokens with mass p."""
        return functions.apply_top_p(logits, self.p)

    def on_sorted(self, logits: Floats) -> Floats:
        """The shortest start of the row with mass p; the same arithmetic as ``outside_nucleus``."""
        if self.p == 1.0:
            return logits
        weights = np.exp(logits - logits[:, :1])
        mass = weights.cumsum(axis=1, dtype=np.float64).astype(np.float32)
        return np.where(mass - weights >= np.float32(self.p) * mass[:, -1:], _REMOVED, logits)


@dataclass(frozen=True, repr=False)
class MinP(OrderPreserving):
    """Keep the tokens at least min_p times as likely as the likeliest; see ``apply_min_p``.

    Raises:
        OptionError: min_p is not between 0 and 1.
    """

    min_p: float
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        _check("min_p", self.min_p, _is_number(self.min_p) and 0 <= self.min_p <= 1, "a number from 0 to 1")

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens not much less likely than the likeliest."""
        return functions.apply_min_p(logits, self.min_p)

    def on_sorted(self, logits: Floats) -> Floats:
        """The start of the row down to a share min_p of its first."""
        if self.min_p == 0.0:
            return logits
        return np.where(logits < logits[:, :1] + np.float32(math.log(self.min_p)), _REMOVED, logits)


def _with_history(processor: LogitsProcessor, history: History | None) -> History:
    if history is None:
        raise OptionError(f"{processor!r} needs the history of the rows", hint="passing a History to the pipeline")
    return history


@dataclass(frozen=True, repr=False)
class RepetitionPenalty(LogitsProcessor):
    """Divide positive and multiply negative logits of tokens in prompt or output; see ``apply_repetition_penalty``.

    Raises:
        OptionError: the penalty is not a finite number above 0 (1 is none, above 1 discourages repeats).
    """

    penalty: float
    stage = Stage.BIAS
    needs_history = True

    def __post_init__(self) -> None:
        valid = _is_number(self.penalty) and self.penalty > 0
        _check("repetition_penalty", self.penalty, valid, "a finite number above 0 (1 is no penalty)")

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens of prompt or output, less likely."""
        return functions.apply_repetition_penalty(logits, _with_history(self, history), self.penalty)


@dataclass(frozen=True, repr=False)
class PresencePenalty(LogitsProcessor):
    """Subtract the penalty once from each token of the output; see ``apply_presence_penalty``.

    Raises:
        OptionError: the penalty is not between -2 and 2, OpenAI's range.
    """

    penalty: float
    stage = Stage.BIAS
    needs_history = True

    def __post_init__(self) -> None:
        valid = _is_number(self.penalty) and -2 <= self.penalty <= 2
        _check("presence_penalty", self.penalty, valid, "a number from -2 to 2")

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens of the output, less likely."""
        return functions.apply_presence_penalty(logits, _with_history(self, history), self.penalty)


@dataclass(frozen=True, repr=False)
class FrequencyPenalty(LogitsProcessor):
    """Subtract the penalty as often as the output has the token; see ``apply_frequency_penalty``.

    Raises:
        OptionError: the penalty is not between -2 and 2, OpenAI's range.
    """

    penalty: float
    stage = Stage.BIAS
    needs_history = True

    def __post_init__(self) -> None:
        valid = _is_number(self.penalty) and -2 <= self.penalty <= 2
        _check("frequency_penalty", self.penalty, valid, "a number from -2 to 2")

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Tokens of the output, less likely with each use."""
        return functions.apply_frequency_penalty(logits, _with_history(self, history), self.penalty)


@dataclass(frozen=True, repr=False, init=False)
class LogitBias(LogitsProcessor):
    """Add a bias to the logits of given tokens; -inf bans a token; see ``apply_logit_bias``.

    Args:
        biases: bias by token id.

    Raises:
        OptionError: no bias, an id below 0, or a bias that is NaN or +inf.
    """

    biases: tuple[tuple[int, float], ...]
    stage = Stage.BIAS

    def __init__(self, biases: Mapping[int, float]) -> None:
        name = "logit_bias"
        _check(name, biases, isinstance(biases, Mapping) and len(biases) > 0, "a mapping from token ids to biases")
        for token_id, bias in biases.items():
            is_id = isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0
            _check(f"{name}, key", token_id, is_id, "a token id")
            _check(f"{name}[{token_id}]", bias, _is_number(bias) or bias == -math.inf, "a finite number or -inf")
        object.__setattr__(self, "biases", tuple(sorted((i, float(bias)) for i, bias in biases.items())))

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """z + bias."""
        return functions.apply_logit_bias(logits, [i for i, _ in self.biases], [bias for _, bias in self.biases])

    def __repr__(self) -> str:
        return f"LogitBias({dict(self.biases)!r})"
