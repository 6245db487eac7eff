"""What to write in place of an option that a strategy does not have.

An option may be unknown for four reasons, each with its own answer: it belongs to another strategy, it is another
library's (`known_options`), it is misspelled, or nobody has it. A remedy is tried first: the strategy that it
names is made with it, so no advice is refused.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, Literal, TypeAlias

from decodekit import sampling
from decodekit.errors import DecodekitError, OptionError
from decodekit.plugins import nearest, num_slips
from decodekit.spelling import read_value
from decodekit.strategy.generate_options import GENERATION_OPTIONS
from decodekit.strategy.known_options import Answer, Code, answer, known_options, shown

Factories: TypeAlias = Mapping[str, Callable[..., Any]]
Style: TypeAlias = Literal["call", "text", "class", "value"]

GUESSING: Final = ("prompt-lookup", "suffix", "speculative")
"""Names of strategies that bring their proposer along."""

CLASSES: Final[Mapping[str, str]] = {
    "greedy": "Greedy",
    "sample": "Sample",
    "mirostat": "Mirostat",
    "beam": "Beam",
    "contrastive": "ContrastiveSearch",
    "best-of": "BestOf",
    "self-consistency": "SelfConsistency",
    "particles": "Particles",
}
"""The classes of strategies by name."""

_OVER_SAMPLES: Final = ("best-of", "self-consistency", "particles")
"""Strategies over samples: as values they hold the one that draws them."""

_PARTNERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "num_beam_groups": {"diversity_penalty": 0.5},
    "diversity_penalty": {"num_beam_groups": 2},
    "temperature": {"do_sample": True},
    "penalty_window": {"repetition_penalty": 1.1},
    **{name: {"dry_multiplier": 0.8} for name in ("dry_base", "dry_allowed_length", "dry_breakers", "dry_window")},
    "xtc_threshold": {"xtc_probability": 0.5},
    "smoothing_curve": {"smoothing_factor": 0.2},
    "order": {"temperature": 0.7},
    "verify": {"speculate": "grammar"},
}
"""Options that have no effect alone, each with one that it needs."""

_OFF: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "n"), 1),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), 0.0),
    **dict.fromkeys(("early_stopping", "do_sample"), False),
    "length_penalty": 1.0,
}
"""Values with which an option does nothing."""

_PROCESSORS: Final[Mapping[str, type[sampling.LogitsProcessor]]] = {
    "temperature": sampling.Temperature,
    "top_k": sampling.TopK,
    "top_p": sampling.TopP,
    "min_p": sampling.MinP,
    "typical_p": sampling.Typical,
    "epsilon_cutoff": sampling.Epsilon,
    "eta_cutoff": sampling.Eta,
    "top_n_sigma": sampling.TopNSigma,
    "top_a": sampling.TopA,
    "top_h": sampling.TopH,
    "repetition_penalty": sampling.RepetitionPenalty,
    "presence_penalty": sampling.PresencePenalty,
    "frequency_penalty": sampling.FrequencyPenalty,
    "logit_bias": sampling.LogitBias,
    "sequence_bias": sampling.SequenceBias,
    "no_repeat_ngram_size": sampling.NoRepeatNGram,
    "bad_words": sampling.BadWords,
    "allowed_tokens": sampling.AllowedTokens,
    "min_tokens": sampling.MinTokens,
    "dry_multiplier": sampling.DRY,
    "xtc_probability": sampling.XTC,
    "smoothing_factor": sampling.Quadratic,
}
"""What an option is as a processor, for searches that take processors and not the option."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where an option was given.

    Args:
        name: of the strategy.
        accepted: the options that it has.
        given: the options beside, as far as it has them.
        factories: what makes the built-in strategies.
        style: how options are written there: as keywords of a call, inside the text that spells a strategy, to the
            class of the strategy, or beside a strategy that is a value.
    """

    name: str
    accepted: Collection[str]
    given: Mapping[str, Any]
    factories: Factories
    style: Style = "call"

    @property
    def called(self) -> str:
        """The strategy in a sentence."""
        return CLASSES.get(self.name, self.name) if self.style in ("class", "value") else f"strategy {self.name!r}"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to write: a strategy, perhaps another one than was asked for, its options, and those of `LLM.generate`."""

    strategy: str
    is_other: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    def written(self, style: Style) -> str:
        """As one types it."""
        options, beside = _keywords(self.options), _keywords(self.generation)
        is_said = bool(options) or self.is_other
        if style == "text" and all(map(_is_spelled, self.options.values())):
            inside = spelled(self.strategy, self.options) if is_said else ""
            return "; ".join(filter(None, [inside, beside and f"{beside} beside the strategy"]))
        if style == "class" and self.strategy in CLASSES:
            inside = self._constructed() if self.is_other or self._of_sample() else options
            return "; ".join(filter(None, [inside, beside and f"generate(..., {beside})"]))
        if style == "value" and self.strategy in CLASSES:
            return ", ".join(filter(None, [f"strategy={self._constructed()}" if is_said else "", beside]))
        return ", ".join(filter(None, [f'strategy="{self.strategy}"' if self.is_other else "", options, beside]))

    def _of_sample(self) -> Mapping[str, Any]:
        """The options that a strategy over samples has from the one that draws them."""
        import decodekit

        if self.strategy not in _OVER_SAMPLES:
            return {}
        own = _parameters(getattr(decodekit, CLASSES[self.strategy]))
        return {name: value for name, value in self.options.items() if name not in own}

    def _constructed(self) -> str:
        of_sample = self._of_sample()
        own = {name: value for name, value in self.options.items() if name not in of_sample}
        if of_sample:
            own["strategy"] = Code(f"dk.Sample({_keywords(of_sample)})")
        return f"dk.{CLASSES[self.strategy]}({_keywords(own)})"


def _keywords(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in options.items())


@cache
def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The options of a built-in strategy."""
    return inspect.signature(factory).parameters


def _is_spelled(value: Any) -> bool:
    if isinstance(value, Code):
        return value.spelled is not None
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def spelled(strategy: str, options: Mapping[str, Any]) -> str:
    """A strategy with its options as one text; see `decodekit.spelling`."""
    return strategy + (":" if options else "") + ",".join(f"{n}={_spelled_value(v)}" for n, v in options.items())


def _spelled_value(value: Any) -> str:
    if not isinstance(value, str | Code):
        return json.dumps(value)
    text = value if isinstance(value, str) else value.spelled or "..."
    return text if text[:1] in ("{", "[") or not set(text) & set(",+") else json.dumps(text)


def unknown_option(option: str, value: Any, site: Site) -> OptionError:
    """The fault of an option that the strategy in question does not have, with what to write in its place."""
    own = own_options(site)
    if option in own:  # n, which another library means otherwise, has an answer
        cause = f"{option}={shown(value)} is no option of {site.called}."
        return _fault(option, value, site, answer(option, value), cause)
    known = known_options().get(option)
    if known is not None:
        return _fault(option, value, site, answer(option, value), f"no option {option!r} ({known.libraries}).")
    near = _nearest(option, [site.accepted, GENERATION_OPTIONS, own, known_options()])
    if near is None:
        cause = f"no option {option!r}."
        return OptionError(cause, at=option, hint=f"`decodekit strategies` lists those of {site.called}")
    cause = f"no option {option!r}. Did you mean {near!r}?"
    if near in GENERATION_OPTIONS:
        return OptionError(cause, at=option, hint=f"{near}={shown(value)}")
    if near in site.accepted and site.name not in site.factories:  # of a plug-in, which is not tried
        return OptionError(cause, at=option, hint=Remedy(site.name, options={near: value}).written(site.style))
    if near in site.accepted:
        return _fault(option, value, site, Answer({near: value}), cause)
    if near in own:
        having = ", ".join(name for name, factory in site.factories.items() if near in _parameters(factory))
        return _fault(option, value, site, Answer({near: value}), f"{cause} That is an option of {having}.")
    return _fault(option, value, site, answer(near, value), f"{cause} ({known_options()[near].libraries})", near)


def _nearest(option: str, groups: Sequence[Iterable[str]]) -> str | None:
    """The name that was meant; of names that as many slips of the hand lead to, one of the first group."""
    found = filter(None, (nearest(option, sorted(group)) for group in groups))
    return min(found, key=lambda name: num_slips(option, name), default=None)


def own_options(site: Site) -> set[str]:
    """Every option of a built-in strategy, and those of the one in question."""
    found = {option for factory in site.factories.values() for option in _parameters(factory)}
    return found | set(site.accepted)


def useless_with_greedy_hint(option: str, value: Any, site: Site) -> tuple[str, Remedy | None]:
    """How to decode so that an option has an effect that greedy decoding gives none."""
    if value is None:
        return f"leaving {option} out", None
    remedy = find_remedy({option: value}, site)
    return (remedy.written(site.style) if remedy else 'strategy="sample"'), remedy


def _fault(
    option: str, value: Any, site: Site, found: Answer | None, cause: str, near: str | None = None
) -> OptionError:
    if found is None:
        is_off = isinstance(value, int | float) and _OFF.get(near or option) == value
        found = Answer({} if value is None or is_off else {option: value})
    cause = f"{cause} {found.note[:1].upper()}{found.note[1:]}" if found.note else cause
    write = None if found.write is None else _meant(found.write, site)
    if write is None:
        return OptionError(cause, at=option)
    if not write:
        return OptionError(cause, at=option, hint=f"leaving {option} out")
    remedy = find_remedy(write, site)
    error = OptionError(cause, at=option, hint=None if remedy is None else remedy.written(site.style))
    error.remedy = remedy
    return error


def _meant(write: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """What is left to write where the strategy in question says a part of it by itself, or calls it otherwise."""
    if "num_return_sequences" in write and "num_return_sequences" not in site.accepted and "n" in site.accepted:
        write = {("n" if name == "num_return_sequences" else name): value for name, value in write.items()}
    rest = {name: value for name, value in write.items() if name != "strategy"}
    wanted = write.get("strategy")
    if rest or wanted is None:
        return write
    draws = "temperature" in site.accepted or site.name in _OVER_SAMPLES
    if wanted == site.name or (wanted == "sample" and draws and site.name not in ("speculative", "beam")):
        return {}
    if wanted == "greedy" and not draws:
        return {}
    if wanted == "sample" and site.name == "speculative":
        return {"temperature": 1.0}
    return {"do_sample": True} if wanted == "sample" and site.name == "beam" else write


def find_remedy(write: Mapping[str, Any], site: Site) -> Remedy | None:
    """Options that say what `write` says and that the strategy in question takes, or else another strategy.

    None if no strategy has them.
    """
    generation = {name: value for name, value in write.items() if name in GENERATION_OPTIONS and name != "strategy"}
    options = {name: value for name, value in write.items() if name not in GENERATION_OPTIONS}
    wanted = write.get("strategy")
    if not options and wanted is None:
        return Remedy(site.name, generation=generation)
    first: Remedy | None = None
    for candidate, offered in _candidates(options, wanted, site):
        is_other = candidate != site.name
        for beside in _besides(candidate, offered, site):
            for partners in _partners(candidate, offered, {**site.given, **beside}):
                remedy = Remedy(
                    candidate, is_other, {**offered, **partners, **_guess(candidate, site, is_other)}, generation
                )
                first = first or remedy
                if _is_taken({**beside, **remedy.options}, site.factories[candidate]):
                    return remedy
    if first is None:
        return None
    # The value itself is out of range everywhere.
    return Remedy(first.strategy, first.is_other, {name: Code("...", "...") for name in first.options}, generation)


def _candidates(options: Mapping[str, Any], wanted: str | None, site: Site) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Strategies with all these options, best first, and the options as they take them."""
    has = {name: _parameters(factory) for name, factory in site.factories.items()}
    is_built_in = site.name in has
    has_proposer = site.name in GUESSING and "speculate" in options  # a second one is refused
    is_asked = is_built_in and not has_proposer and (bool(options) or wanted == site.name)
    if is_asked and options.keys() <= has[site.name].keys():
        yield site.name, options
    takes_processors = site.style != "text" and "processors" in site.accepted and "processors" not in site.given
    if wanted is None and is_built_in and takes_processors and len(options) == 1:
        [(option, value)] = options.items()
        if option in _PROCESSORS:
            kind: Callable[..., Any] = _PROCESSORS[option]
            code = Code(f"dk.{kind.__name__}({shown(value)})", make=partial(kind, value))
            yield site.name, {"processors": code}
    ranked = filter(None, [wanted, *(name for name in has if name not in ("prompt-lookup", "suffix"))])
    for name in dict.fromkeys(ranked):
        if options.keys() <= has[name].keys():
            yield name, options


def _besides(candidate: str, offered: Mapping[str, Any], site: Site) -> Iterator[Mapping[str, Any]]:
    """The options beside that the strategy has, and none of them."""
    has = _parameters(site.factories[candidate])
    beside = {name: value for name, value in site.given.items() if name in has and name not in offered}
    yield from [beside, {}] if beside else [{}]


def _partners(candidate: str, offered: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Options to write beside: none, those without which the offered ones do nothing, and a temperature to draw at."""
    yield {}
    every = {name: value for option in offered for name, value in _PARTNERS.get(option, {}).items()}
    yield (found := {name: value for name, value in every.items() if name not in given and name not in offered})
    if candidate == "speculative" and "temperature" not in {**given, **offered}:  # greedy without one
        yield {**found, "temperature": 1.0}


def _guess(candidate: str, site: Site, is_other: bool) -> Mapping[str, Any]:
    """The proposer that the strategy in question brings along, where another one takes it as an option."""
    is_kept = is_other and site.name in ("prompt-lookup", "suffix") and candidate in ("greedy", "sample", "mirostat")
    return {"speculate": site.name} if is_kept else {}


def _is_taken(options: Mapping[str, Any], factory: Callable[..., Any]) -> bool:
    """Whether a strategy can be made with these options."""
    from decodekit.strategy.spelled import read_options

    faults: list[DecodekitError] = []
    try:
        factory(**read_options({name: _made(value) for name, value in options.items()}, faults))
    except Exception:  # values of any type come here, and the factory says what speaks against them elsewhere
        return False
    return not faults


def _made(given: Any) -> Any:
    """The value that is written as code."""
    if not isinstance(given, Code):
        return given
    return given.make() if given.make is not None else read_value(given.spelled or given.python)
