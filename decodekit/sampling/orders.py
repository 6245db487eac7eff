"""Named orders of processors: the same settings give different laws in different libraries.

`ordered` puts processors into the order in which a library applies them, and gives them that library's meaning where
it differs: exactly k tokens for top-k in llama.cpp and mlx-lm, penalties over the last 64 or 20 tokens of prompt and
output there. What a library does not have is refused. The constraint mask does not move: it comes before temperature
and truncation in every order, since a truncation of an unmasked row could keep only forbidden tokens.

Orders as in transformers 5.23 (`GenerationMixin._get_logits_processor`), vLLM's engine v1 (`v1/sample/sampler.py`),
llama.cpp (`common_params_sampling.samplers`), mlx-lm 0.32 (`make_logits_processors`, `make_sampler`).

Not reproduced: ties. Where a library's sort decides which of equal tokens stay, here it is the lower ids (mlx-lm keeps
all ties of top-p, typical keeps them here and in transformers). And two faults of llama.cpp: what top-n-sigma removes
there still counts as a candidate, so that typical sampling after it is undefined and dynamic temperature another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from decodekit.errors import OptionError, UnknownNameError
from decodekit.sampling.bans import AllowedTokens, BadWords, MinTokens, SequenceBias
from decodekit.sampling.processors import (
    FrequencyPenalty,
    LogitBias,
    LogitsProcessor,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from decodekit.sampling.repeats import DRY, NoRepeatNGram
from decodekit.sampling.shapes import XTC, DynamicTemperature, Quadratic
from decodekit.sampling.truncations import Epsilon, Eta, TopA, TopH, TopNSigma, Typical
from decodekit.sampling.watermark import Watermark


def _as_it_is(processor: LogitsProcessor) -> LogitsProcessor:
    return processor


@dataclass(frozen=True)
class Order:
    """The order of one library.

    Args:
        library: its name in errors.
        types: the processors that it has, first to last.
        adapted: a processor with the meaning that it has there.
    """

    library: str
    types: tuple[type[LogitsProcessor], ...]
    adapted: Callable[[LogitsProcessor], LogitsProcessor] = _as_it_is


def _with_window(processor: LogitsProcessor, window: int) -> LogitsProcessor:
    """Penalties over the last tokens of prompt and output, unless a window was given; exactly k tokens."""
    if isinstance(processor, RepetitionPenalty):
        return replace(processor, window=processor.window or window)
    if isinstance(processor, PresencePenalty | FrequencyPenalty):
        return replace(processor, window=processor.window or window, counts_prompt=True)
    if isinstance(processor, TopK):
        return replace(processor, exact=True)
    return processor


_BIASES = (
    RepetitionPenalty, PresencePenalty, FrequencyPenalty, LogitBias, SequenceBias,
    DRY, NoRepeatNGram, BadWords, AllowedTokens, MinTokens,
)  # fmt: skip

ORDERS: Mapping[str, Order] = MappingProxyType(
    {
        # Penalties and biases; the mask; temperature, then truncations, the joint ones of most models first.
        "decodekit": Order(
            "decodekit",
            (
                *_BIASES, DynamicTemperature, Temperature, Quadratic, TopK, TopP, MinP,
                Typical, Epsilon, Eta, TopNSigma, TopA, TopH, XTC, Watermark,
            ),
        ),
        "hf": Order(
            "transformers",
            (
                SequenceBias, LogitBias, RepetitionPenalty, NoRepeatNGram, BadWords, MinTokens, AllowedTokens,
                Temperature, TopH, TopK, TopP, MinP, Typical, Epsilon, Eta, Watermark,
            ),
        ),
        # Min-p is one of the logits processors that cannot change the argmax; they come between temperature and top-k.
        "vllm": Order(
            "vLLM",
            (
                AllowedTokens, BadWords, MinTokens, LogitBias, RepetitionPenalty, FrequencyPenalty, PresencePenalty,
                Temperature, MinP, TopK, TopP,
            ),
        ),
        # The truncations see the law at temperature 1.
        "llamacpp": Order(
            "llama.cpp",
            (
                LogitBias, RepetitionPenalty, FrequencyPenalty, PresencePenalty, DRY, TopNSigma, TopK, Typical, TopP,
                MinP, XTC, DynamicTemperature, Temperature,
            ),
            lambda processor: _with_window(processor, 64),
        ),
        # Top-k comes last, temperature after it.
        "mlx": Order(
            "mlx-lm",
            (
                LogitBias, RepetitionPenalty, PresencePenalty, FrequencyPenalty,
                TopP, MinP, XTC, TopK, Temperature,
            ),
            lambda processor: _with_window(processor, 20),
        ),
    }
)  # fmt: skip
"""The orders by name."""


def ordered(processors: Iterable[LogitsProcessor], order: str = "decodekit") -> tuple[LogitsProcessor, ...]:
    """The processors in the order of a library, with the meaning that they have there.

    Processors of one kind keep their order. What follows XTC becomes its ``then``: see `XTC`.

    Args:
        processors: in any order.
        order: a name in `ORDERS`.

    Raises:
        UnknownNameError: no such order.
        OptionError: the library has no such processor.
    """
    if not isinstance(order, str) or order not in ORDERS:
        raise UnknownNameError(f"no order {order!r:.60}. Orders: {', '.join(ORDERS)}.", at="order")
    chosen = ORDERS[order]
    ranks = {kind: rank for rank, kind in enumerate(chosen.types)}
    given = list(processors)
    for processor in given:
        if type(processor) not in ranks:
            raise OptionError(
                f"{chosen.library} has no {type(processor).__name__}",
                at=f"order={order!r}",
                hint=f"another order, or a pipeline composed by hand: Pipeline([...]) | {processor!r}",
            )
    made = [chosen.adapted(processor) for processor in sorted(given, key=lambda processor: ranks[type(processor)])]
    for index in range(len(made) - 1, -1, -1):
        processor, rest = made[index], made[index + 1 :]
        if isinstance(processor, XTC) and rest and not any(each.needs_history for each in rest):
            made[index:] = [replace(processor, then=(*processor.then, *rest))]
    return tuple(made)
