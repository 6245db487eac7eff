"""Logits processors of transformers as stages of a pipeline.

    as_processor(TemperatureLogitsWarper(0.7))     # Temperature(0.7)
    as_processor(MyProcessor())                    # Foreign(MyProcessor()), a bias: before the constraint's mask

A processor of transformers is called as ``processor(input_ids, scores)`` with int64 [n, S] and float32 [n, V], and
gives new scores. What does the same here becomes that, so that it keeps the fast paths of a pipeline; any other is
called. Nothing of transformers is imported: its classes are known by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from decodekit.errors import OptionError, ProcessorError
from decodekit.sampling.pipeline import LogitsProcessor, Pipeline, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.processors.pointwise import MinP, RepetitionPenalty, Temperature, TopK, TopP, with_history

RowLayout: TypeAlias = Callable[[Tensor], Tensor]
"""The layout in which a row is shown to a processor of transformers: with the padding that its prompt had, say.

From the tokens of a prompt without padding, int64 [L], the prompt as it was given, int64 [S].
"""


@dataclass(frozen=True, eq=False, repr=False)
class Foreign(LogitsProcessor):
    """A processor of transformers, or any function of ``(input_ids, scores)``, that is called as it is.

    It is shown the rows of one length at a time, which may be fewer than the batch has, in any order, and at places of
    a draft too; so its answer for a row must depend on that row alone.

    Args:
        processor: is called.
        stage: where it stands; a bias comes before the constraint's mask.
        layout: how prompts are shown; None shows their tokens.

    Raises:
        OptionError: it cannot be called.
    """

    processor: Callable[..., Tensor]
    stage: Stage = Stage.BIAS  # type: ignore[misc]
    layout: RowLayout | None = field(default=None, kw_only=True)

    needs_history = True
    is_tokenwise = False  # nobody knows: masks are always made before what follows

    def __post_init__(self) -> None:
        if not callable(self.processor):
            raise OptionError(f"{self.processor!r:.60} cannot be called", at="processors")

    def __repr__(self) -> str:
        return f"Foreign({_name(self.processor)})"

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """The scores that the processor gives, rows of one length at a time."""
        history = with_history(self, history)
        out = logits.clone()
        shown = [self._shown(history, row) for row in range(len(logits))]
        for length in sorted({len(row) for row in shown}):
            rows = [row for row, tokens in enumerate(shown) if len(tokens) == length]
            out[rows] = self._called(torch.stack([shown[row] for row in rows]), logits[rows].clone())
        return out

    def _shown(self, history: History, row: int) -> Tensor:
        prefix = history.token_ids[row, : int(history.lengths[row])]
        if self.layout is None:
            return prefix
        num_prompt = int(history.prompt_lengths[row])
        return torch.cat((self.layout(prefix[:num_prompt]), prefix[num_prompt:]))

    def _called(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        with torch.inference_mode(False):  # what it gets and makes may be kept and written to
            made = self.processor(input_ids.clone(), scores.clone())
        return _shaped(self, self.processor, made, scores, "scores")


def _shaped(
    processor: LogitsProcessor, program: object, made: Any, given: Tensor, what: str, hint: str | None = None
) -> Tensor:
    """The result of a processor's program; a `ProcessorError` if it has another shape than what was given."""
    if isinstance(made, Tensor) and made.shape == given.shape:
        return made.to(given)
    kind = f"{[*made.shape]}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
    cause = f"{_name(program)} made {kind} of {what} {[*given.shape]}"
    raise ProcessorError(cause, at=f"processor {processor!r}", hint=hint)


def _removes(one: Any) -> bool:
    """Whether a truncation of transformers removes tokens, and may leave one alone."""
    return bool(one.filter_value == -float("inf")) and one.min_tokens_to_keep == 1


NATIVE: Final[Mapping[str, Callable[[Any], LogitsProcessor | None]]] = {
    "TemperatureLogitsWarper": lambda one: Temperature(float(one.temperature)),
    # The least number of tokens to keep is part of its k.
    "TopKLogitsWarper": lambda one: TopK(int(one.top_k)) if one.filter_value == -float("inf") else None,
    "TopPLogitsWarper": lambda one: TopP(one.top_p) if _removes(one) else None,
    "MinPLogitsWarper": lambda one: MinP(one.min_p) if _removes(one) else None,
    # An integer says how much of the prompt does not count; a tensor only how long the padding is.
    "RepetitionPenaltyLogitsProcessor": lambda one: (
        None if isinstance(getattr(one, "prompt_ignore_length", None), int) else RepetitionPenalty(float(one.penalty))
    ),
}
"""What does here the same as a class of transformers; None where the settings of an object ask for something else."""

WARPERS: Final[Mapping[str, Stage]] = {
    "TemperatureLogitsWarper": Stage.TEMPERATURE,
    **{
        f"{name}LogitsWarper": Stage.TRUNCATION
        for name in ("TopH", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta")
    },
    **dict.fromkeys(
        ("LogitNormalization", "WatermarkLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"), Stage.LAST
    ),
}
"""Classes of transformers that come after the constraint's mask; all others come before it."""


def class_in_transformers(value: object) -> str | None:
    """The name of the nearest class of an object that belongs to transformers; None if it has none."""
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] == "transformers":
            return kind.__name__
    return None


def is_foreign(value: object) -> bool:
    """Whether this is a logits processor of transformers, or a list of them."""
    kind = class_in_transformers(value)
    return kind is not None and (kind == "LogitsProcessorList" or callable(value))


def as_processor(value: Any, *, layout: RowLayout | None = None, is_native: bool = True) -> LogitsProcessor:
    """A processor of transformers as one of decodekit: `is_native`, if something here does the same, by that."""
    kind = class_in_transformers(value) or ""
    if is_native and type(value).__name__ == kind and kind in NATIVE:  # not a class of somebody else that inherits
        made = NATIVE[kind](value)
        if made is not None:
            return made
    return Foreign(value, WARPERS.get(kind, Stage.BIAS), layout=layout)


@dataclass(frozen=True, eq=False, repr=False)
class PlainFunction(LogitsProcessor):
    """A function ``(logits, history)`` as a processor: a bias, before the constraint's mask.

    It is given copies, float32 [N, V] and the `History` of the rows, and gives float32 [N, V]. The first rows are
    processed twice: a function whose answers differ is none of its arguments, and no text could be repeated.

    Args:
        function: is called.
    """

    function: Callable[..., Tensor]
    _checked: list[bool] = field(default_factory=list, init=False)

    stage = Stage.BIAS
    needs_history = True
    is_tokenwise = False  # nobody knows, as with `Foreign`

    def __repr__(self) -> str:
        return f"PlainFunction({_name(self.function)})"

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """The result of the function; a `ProcessorError` if it raises, or gives two answers to one question."""
        history = with_history(self, history)
        made = self._called(logits, history)
        if not self._checked:
            again = self._called(logits, history)
            if not torch.allclose(made, again, rtol=0, atol=0, equal_nan=True):
                cause = f"{_name(self.function)} gave two answers to the same logits and history"
                hint = "a function of its arguments alone, without a state or random numbers"
                raise ProcessorError(cause, at=f"processor {self!r}", hint=hint)
            self._checked.append(True)
        return made

    def _called(self, logits: Tensor, history: History | None) -> Tensor:
        try:
            with torch.inference_mode(False):
                made: Any = self.function(logits.clone(), history)
        except Exception as error:  # a program of the user's, which raises what it likes
            cause = f"{_name(self.function)} raised {type(error).__name__}: {str(error)[:200]}"
            raise ProcessorError(cause, at=f"processor {self!r}") from error
        return _shaped(self, self.function, made, logits, "logits", hint="return the changed logits")


def is_function(value: object) -> bool:
    """Whether this is called like a function and not a processor yet: a function, a method, an object with a call."""
    return callable(value) and not isinstance(value, LogitsProcessor | Pipeline | type) and not is_foreign(value)


def of_function(function: Any) -> LogitsProcessor:
    """A plain function as a processor; the names of its two parameters say of which kind it is.

    ``(logits, history)`` is a `PlainFunction`; ``(input_ids, scores)``, as in transformers, or ``(token_ids, logits)``
    is `Foreign`.

    Raises:
        OptionError: it has other parameters.
    """
    try:
        required = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        required = []
    names = [one.name for one in required]
    if len(names) == 2 and names[0] in _LOGITS and names[1] == "history":
        return PlainFunction(function)
    if len(names) == 2 and names[0] in _TOKENS and names[1] in _LOGITS:
        return Foreign(function)
    raise OptionError(
        f"{_name(function)}({', '.join(names)}) is no processor: its parameters do not say what it is given",
        at="processors",
        hint="def f(logits, history), or def f(input_ids, scores) as in transformers",
    )


_LOGITS: Final = ("logits", "scores")
_TOKENS: Final = ("input_ids", "token_ids")


def _name(value: object) -> str:
    return getattr(value, "__name__", type(value).__name__)
