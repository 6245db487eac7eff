"""Options of strategies under the names that their users know, and the processors that they stand for.

Names are those of transformers, vLLM and llama.cpp. An option that is None is not used. One that refines another, such
as ``dry_base``, has no effect without it and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from decodekit import plugins
from decodekit.errors import DecodekitError, OptionError, UnknownNameError, UselessOptionError
from decodekit.sampling.checks import is_count, is_number
from decodekit.sampling.pipeline import LogitsProcessor, Pipeline
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
from decodekit.sampling.processors.transformers_processors import as_processors, is_foreign, is_function, of_function
from decodekit.sampling.processors.truncations import Epsilon, Eta, TopA, TopH, TopNSigma, Typical
from decodekit.sampling.processors.watermark import Watermark

Processors: TypeAlias = (
    Pipeline | LogitsProcessor | str | Callable[..., Any] | Sequence[LogitsProcessor | str | Callable[..., Any]]
)
"""Logits processors as an option takes them: values, names of installed ones (see `plugins`), or those of transformers
(see `foreign`)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BiasOptions:
    """Options that change the logits of single tokens, before the constraint's mask.

    Args:
        repetition_penalty: divide positive and multiply negative logits of tokens that occurred, prompt included.
        presence_penalty: subtracted from the logits of tokens that were generated.
        frequency_penalty: subtracted once for every time that a token was generated.
        penalty_window: how many of the last tokens these three look at; None is all.
        logit_bias: added to the logits of these token ids.
        sequence_bias: added to the logit of the token that would complete one of these sequences of token ids.
        no_repeat_ngram_size: n; no token comes that would repeat an n-gram of prompt or output.
        bad_words: sequences of token ids that do not come.
        allowed_tokens: the token ids that may come; all others do not.
        min_tokens: the least number of tokens before a text may end. A constraint that is complete ends it earlier.
        dry_multiplier: weaken tokens that would extend a repeat, by this times ``dry_base`` to the power of its length
            (see `apply_dry`).
        dry_base: how the penalty grows; None is 1.75.
        dry_allowed_length: the longest repeat that costs no more than the multiplier; None is 2.
        dry_breakers: sequences of token ids over which no repeat reaches.
        dry_window: how many of the last tokens are looked at for repeats; None is all.
    """

    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_window: int | None = None
    logit_bias: Mapping[int, float] | None = None
    sequence_bias: Mapping[tuple[int, ...], float] | None = None
    no_repeat_ngram_size: int | None = None
    bad_words: Sequence[Sequence[int]] | None = None
    allowed_tokens: Sequence[int] | None = None
    min_tokens: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_breakers: Sequence[Sequence[int]] | None = None
    dry_window: int | None = None

    def biases(self, faults: list[DecodekitError]) -> list[LogitsProcessor]:
        """The processors of the options that are given and in range; `faults` gets what is wrong with the others."""
        window = self.penalty_window
        if window is not None and not is_count(window):
            faults.append(
                OptionError(f"penalty_window={window!r} is not an integer of at least 1", at="penalty_window")
            )
            window = None
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        refines(self, ("penalty_window",), penalties, faults)
        dry = ("dry_base", "dry_allowed_length", "dry_breakers", "dry_window")
        refines(self, dry, ("dry_multiplier",), faults)
        dry_options = {name.removeprefix("dry_"): getattr(self, name) for name in dry}
        given = {name: value for name, value in dry_options.items() if value is not None}
        return [
            *made(partial(RepetitionPenalty, window=window), self.repetition_penalty, faults),
            *made(partial(PresencePenalty, window=window), self.presence_penalty, faults),
            *made(partial(FrequencyPenalty, window=window), self.frequency_penalty, faults),
            *made(LogitBias, self.logit_bias, faults),
            *made(SequenceBias, self.sequence_bias, faults),
            *made(partial(DRY, **given), self.dry_multiplier, faults),
            *made(NoRepeatNGram, self.no_repeat_ngram_size, faults),
            *made(BadWords, self.bad_words, faults),
            *made(AllowedTokens, self.allowed_tokens, faults),
            *made(MinTokens, self.min_tokens, faults),
        ]


@dataclass(frozen=True, kw_only=True, repr=False)
class ShapeOptions:
    """Options that reshape the distribution of a token, after the constraint's mask.

    Args:
        typical_p: keep the tokens whose surprise is nearest to the entropy, with this mass (Meister et al. 2022).
        epsilon_cutoff: keep tokens of at least this probability (Hewitt et al. 2022).
        eta_cutoff: the same with a limit that falls where the distribution is flat (Hewitt et al. 2022).
        top_n_sigma: keep logits within n standard deviations of the largest (Tang et al. 2024).
        top_a: keep tokens of at least this times the square of the largest probability.
        top_h: keep the likeliest tokens with this share of the entropy (Potraghloo et al. 2025).
        xtc_probability: how often all of the likeliest tokens but the last of them are left out; see `apply_xtc`.
        xtc_threshold: from which probability on a token is one of them; None is 0.1.
        dynamic_temperature: (low, high) or (low, high, exponent): a temperature that follows the entropy, in place of
            ``temperature``.
        smoothing_factor: bend the logits; see `apply_quadratic`.
        smoothing_curve: how, from 1 to 3; None is 1.
        watermark: make the tokens of a keyed green list likelier.
    """

    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    top_n_sigma: float | None = None
    top_a: float | None = None
    top_h: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynamic_temperature: tuple[float, float] | tuple[float, float, float] | None = None
    smoothing_factor: float | None = None
    smoothing_curve: float | None = None
    watermark: Watermark | None = None

    def shapes(
        self,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        min_p: float | None,
        faults: list[DecodekitError],
    ) -> list[LogitsProcessor]:
        """Temperature and truncations, in no order; `faults` gets what is wrong with the options."""
        # A temperature of 1 divides by 1: no processor is needed.
        is_plain = is_number(temperature) and temperature == 1
        if not is_plain and self.dynamic_temperature is not None:
            faults.append(
                OptionError(
                    f"temperature={temperature!r} and dynamic_temperature cannot be combined: there is one temperature",
                    at="temperature",
                    hint="the bounds of dynamic_temperature multiplied by the temperature",
                )
            )
        refines(self, ("xtc_threshold",), ("xtc_probability",), faults)
        refines(self, ("smoothing_curve",), ("smoothing_factor",), faults)
        threshold: dict[str, Any] = {} if self.xtc_threshold is None else {"threshold": self.xtc_threshold}
        curve: dict[str, Any] = {} if self.smoothing_curve is None else {"curve": self.smoothing_curve}
        return [
            *made(Temperature, None if is_plain else temperature, faults),
            *made(_dynamic_temperature, self.dynamic_temperature, faults),
            *made(partial(Quadratic, **curve), self.smoothing_factor, faults),
            *made(TopK, top_k, faults),
            *made(TopP, top_p, faults),
            *made(MinP, min_p, faults),
            *made(Typical, self.typical_p, faults),
            *made(Epsilon, self.epsilon_cutoff, faults),
            *made(Eta, self.eta_cutoff, faults),
            *made(TopNSigma, self.top_n_sigma, faults),
            *made(TopA, self.top_a, faults),
            *made(TopH, self.top_h, faults),
            *made(partial(XTC, **threshold), self.xtc_probability, faults),
            *made(_watermark, self.watermark, faults),
        ]


def made(factory: Callable[[Any], LogitsProcessor], value: Any, faults: list[DecodekitError]) -> list[LogitsProcessor]:
    """The processor for an option, if it is given and in range."""
    if value is None:
        return []
    try:
        return [factory(value)]
    except OptionError as error:
        faults.append(error)
        return []


def refines(options: object, names: Sequence[str], refined: Sequence[str], faults: list[DecodekitError]) -> None:
    """A fault for every option of `names` that is given while none of `refined` is."""
    if all(getattr(options, name) is None for name in refined):
        faults += [
            UselessOptionError(
                f"{name}={getattr(options, name)!r} has no effect without {' or '.join(refined)}", at=name
            )
            for name in names
            if getattr(options, name) is not None
        ]


def _dynamic_temperature(value: Any) -> DynamicTemperature:
    if not isinstance(value, tuple | list) or len(value) not in (2, 3):
        raise OptionError(
            f"dynamic_temperature={value!r:.60} is neither (low, high) nor (low, high, exponent)",
            at="dynamic_temperature",
        )
    try:
        return DynamicTemperature(*value)
    except OptionError as error:
        raise OptionError(f"dynamic_temperature={value!r}: {error.cause}", at="dynamic_temperature") from error


def _watermark(value: Any) -> Watermark:
    if not isinstance(value, Watermark):
        raise OptionError(f"watermark={value!r:.60} is no Watermark", at="watermark", hint="Watermark(key=...)")
    return value


def listed(given: Processors, faults: list[DecodekitError]) -> list[LogitsProcessor]:
    """The processors of an option, in their order; what a name stands for may be several.

    `faults` gets an `OptionError` for what is not a processor, and the error of a name that is not known or whose
    plug-in fails.
    """
    processors: list[LogitsProcessor] = []
    each: Iterable[Any] = given if isinstance(given, Pipeline | list | tuple) else [given]
    for one in each:
        try:
            made = plugins.make("processor", one, _is_one, at="processors") if isinstance(one, str) else one
            if is_foreign(made):
                made = as_processors(made)
            elif is_function(made):
                made = [of_function(made)]
            processors += made if isinstance(made, Pipeline | list) else Pipeline([made])
        except (OptionError, UnknownNameError) as error:
            faults.append(error)
    return processors


def _is_one(value: object) -> bool:
    return isinstance(value, LogitsProcessor | Pipeline)
