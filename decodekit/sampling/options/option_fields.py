"""The options of logits processors as fields and keywords, written by `tests.options_page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from decodekit.sampling.pipeline import LogitsProcessor
from decodekit.sampling.processors.bans import AllowedTokens, BadWords, MinTokens, SequenceBias
from decodekit.sampling.processors.pointwise import (
    FrequencyPenalty,
    LogitBias,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from decodekit.sampling.processors.repeats import DRY, NoRepeatNGram
from decodekit.sampling.processors.shapes import XTC, DynamicTemperature, Quadratic
from decodekit.sampling.processors.truncations import Epsilon, Eta, PLess, TopA, TopH, TopNSigma, Typical
from decodekit.sampling.processors.watermark import Watermark

__all__ = [
    "DRY", "XTC", "AllowedTokens", "BadWords", "DynamicTemperature", "Epsilon", "Eta", "FrequencyPenalty", "LogitBias",
    "MinP", "MinTokens", "NoRepeatNGram", "PLess", "PresencePenalty", "Quadratic", "RepetitionPenalty", "SequenceBias",
    "Temperature", "TopA", "TopH", "TopK", "TopNSigma", "TopP", "Typical", "Watermark",
]  # fmt: skip

KINDS: Final[tuple[type[LogitsProcessor], ...]] = (
    RepetitionPenalty, PresencePenalty, FrequencyPenalty, LogitBias, SequenceBias, DRY, NoRepeatNGram, BadWords,
    AllowedTokens, MinTokens, DynamicTemperature, Temperature, Quadratic, TopK, TopP, MinP, Typical, Epsilon, Eta,
    TopNSigma, TopA, TopH, PLess, XTC, Watermark,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class BiasOptions:
    """Options that change the logits of single tokens, before the constraint's mask; see docs/options.md."""

    repetition_penalty: float | None = None
    penalty_window: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    sequence_bias: Mapping[tuple[int, ...], float] | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_breakers: Sequence[Sequence[int]] | None = None
    dry_window: int | None = None
    no_repeat_ngram_size: int | None = None
    bad_words: Sequence[Sequence[int]] | None = None
    allowed_tokens: Sequence[int] | None = None
    min_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class ShapeOptions:
    """Options that reshape the distribution of a token, after the constraint's mask; see docs/options.md."""

    dynamic_temperature: tuple[float, float] | tuple[float, float, float] | None = None
    smoothing_factor: float | None = None
    smoothing_curve: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    top_n_sigma: float | None = None
    top_a: float | None = None
    top_h: float | None = None
    p_less: bool | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    watermark: Watermark | None = None


class ProcessorKeywords(TypedDict, total=False):
    """All of them as keywords."""

    repetition_penalty: float | None
    penalty_window: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    sequence_bias: Mapping[tuple[int, ...], float] | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_breakers: Sequence[Sequence[int]] | None
    dry_window: int | None
    no_repeat_ngram_size: int | None
    bad_words: Sequence[Sequence[int]] | None
    allowed_tokens: Sequence[int] | None
    min_tokens: int | None
    dynamic_temperature: tuple[float, float] | tuple[float, float, float] | None
    temperature: float
    smoothing_factor: float | None
    smoothing_curve: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    top_n_sigma: float | None
    top_a: float | None
    top_h: float | None
    p_less: bool | None
    xtc_probability: float | None
    xtc_threshold: float | None
    watermark: Watermark | Mapping[str, Any] | bool | None
