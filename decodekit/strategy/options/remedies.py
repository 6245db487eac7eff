"""Remedies: the call to write in place of one with an option that a strategy does not have.

    greedy, num_beams=3      no option of strategy 'greedy'.       try strategy="beam", num_beams=3
    greedy, max_tokens=5     no option 'max_tokens' (vLLM, OpenAI).   try max_new_tokens=5
    sample, tempreature=1    Did you mean 'temperature'?              try temperature=1

Three tables answer: the options of the strategies, those of `LLM.generate`, and those of other libraries
(`known_options`). A misspelled option is the nearest name of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from decodekit.errors import OptionError
from decodekit.plugins import nearest, num_slips
from decodekit.sampling.sampler_options import refined_options
from decodekit.strategy.options.generate_options import GENERATION_OPTIONS
from decodekit.strategy.options.known_options import Answer, Code, answer, known_options, shown
from decodekit.strategy.searches import Beam, ContrastiveSearch
from decodekit.strategy.several import BestOf, OverSamples, Particles, SelfConsistency
from decodekit.strategy.strategy import Strategy, options_of
from decodekit.strategy.tokenwise import Greedy, Mirostat, Sample

Factories: TypeAlias = Mapping[str, Callable[..., Any]]
Style: TypeAlias = Literal["call", "text", "class", "value"]

GUESSING: Final = ("prompt-lookup", "suffix", "speculative")
"""Names of strategies that bring their proposer along."""

CLASSES: Final[Mapping[str, type[Strategy]]] = {
    kind.name: kind for kind in (Greedy, Sample, Mirostat, Beam, ContrastiveSearch, BestOf, SelfConsistency, Particles)
}
"""The classes of strategies by name."""

_OVER_SAMPLES: Final = [name for name, kind in CLASSES.items() if issubclass(kind, OverSamples)]
"""Strategies over samples: as values they hold the one that draws them."""

_PARTNERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "num_beam_groups": {"diversity_penalty": 0.5},
    "diversity_penalty": {"num_beam_groups": 2},
    "temperature": {"do_sample": True},
    **{option.name: mains for option, mains in refined_options().items()},
    "order": {"temperature": 0.7},
    "verify": {"speculate": "grammar"},
    "predicate": {"method": "awrs"},
}
"""Options that have no effect alone, each with one that it needs."""

_OFF: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "n"), 1),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), 0.0),
    **dict.fromkeys(("early_stopping", "do_sample"), False),
    "length_penalty": 1.0,
}
"""Values with which an option does nothing."""


@dataclass(frozen=True, slots=True)
class Site:
    """The site where an option was given: a strategy, the options that it has, and those that were given beside.

    `style` is how options are written there: as keywords of a call, inside the text that spells a strategy, to the
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
        if self.style in ("class", "value"):
            return CLASSES[self.name].__name__ if self.name in CLASSES else self.name
        return f"strategy {self.name!r}"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A call to write: a strategy, perhaps another one than was asked for, its options, and those of `LLM.generate`."""

    strategy: str
    is_other: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    def written(self, style: Style) -> str:
        """As one types it."""
        options, beside = _keywords(self.options), _keywords(self.generation)
        is_said = bool(options) or self.is_other
        has_class = self.strategy in CLASSES
        if style == "text":
            parts = [
                spelled(self.strategy, self.options) if is_said else "",
                beside and f"{beside} beside the strategy",
            ]
        elif style == "class" and has_class:
            is_whole = self.is_other or self.strategy in _OVER_SAMPLES
            parts = [self._constructed() if is_whole else options, beside and f"generate(..., {beside})"]
        elif style == "value" and has_class:
            parts = [f"strategy={self._constructed()}" if is_said else "", beside]
        else:
            parts = [f'strategy="{self.strategy}"' if self.is_other else "", options, beside]
            if style == "class" and self.is_other:
                return f"generate(..., {', '.join(filter(None, parts))})"
        return ("; " if style in ("text", "class") else ", ").join(filter(None, parts))

    def _constructed(self) -> str:
        kind = CLASSES[self.strategy]
        own = dict(self.options)
        if self.strategy in _OVER_SAMPLES:
            own = {name: value for name, value in self.options.items() if name in options_of(kind)}
            of_sample = {name: value for name, value in self.options.items() if name not in own}
            if of_sample:
                own["strategy"] = Code(f"dk.Sample({_keywords(of_sample)})")
        return f"dk.{kind.__name__}({_keywords(own)})"


def _keywords(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in options.items())


def spelled(strategy: str, options: Mapping[str, Any]) -> str:
    """A strategy with its options as one text; see `decodekit.spelling`."""
    return strategy + (":" if options else "") + ",".join(f"{n}={_spelled_value(v)}" for n, v in options.items())


def _spelled_value(value: Any) -> str:
    if not isinstance(value, str | Code):
        return json.dumps(value, default=lambda _: "...")
    text = value if isinstance(value, str) else value.spelled or "..."
    return text if text[:1] in ("{", "[") or not set(text) & set(",+") else json.dumps(text)


def unknown_option(option: str, value: Any, site: Site) -> OptionError:
    """The fault of an option that the strategy in question does not have, with what to write in its place."""
    own = own_options(site)
    if option in own:  # n, which another library means otherwise, has an answer
        cause = f"{option}={shown(value)} is no option of {site.called}."
        if "processors" in site.accepted and option in options_of(site.factories["sample"]):
            cause += " What changes logits may stand in processors=."
        return _fault(option, value, site, answer(option, value), cause)
    known = known_options().get(option)
    if known is not None:
        return _fault(option, value, site, known.answer(value), f"no option {option!r} ({known.libraries}).")
    near = _nearest(option, [site.accepted, GENERATION_OPTIONS, own, known_options()])
    if near is None:
        cause = f"no option {option!r}."
        return OptionError(cause, at=option, hint=f"`decodekit strategies` lists those of {site.called}")
    cause = f"no option {option!r}. Did you mean {near!r}?"
    if near in GENERATION_OPTIONS:
        return OptionError(cause, at=option, hint=f"{near}={shown(value)}")
    if near in known_options() and near not in own:
        return _fault(option, value, site, answer(near, value), f"{cause} ({known_options()[near].libraries})", near)
    if near in own and near not in site.accepted:
        having = ", ".join(name for name, factory in site.factories.items() if near in options_of(factory))
        cause = f"{cause} That is an option of {having}."
    return _fault(option, value, site, Answer({near: value}), cause)


def _nearest(option: str, groups: Sequence[Iterable[str]]) -> str | None:
    """The name that was meant; of names that as many slips of the hand lead to, one of the first group."""
    found = filter(None, (nearest(option, sorted(group)) for group in groups))
    return min(found, key=lambda name: num_slips(option, name), default=None)


def own_options(site: Site) -> set[str]:
    """Every option of a built-in strategy, and those of the one in question."""
    return {option for factory in site.factories.values() for option in options_of(factory)} | set(site.accepted)


def _fault(
    option: str, value: Any, site: Site, found: Answer | None, cause: str, near: str | None = None
) -> OptionError:
    if found is None:
        is_off = isinstance(value, int | float) and _OFF.get(near or option) == value
        found = Answer({} if value is None or is_off else {option: value})
    cause = f"{cause} {found.note[:1].upper()}{found.note[1:]}" if found.note else cause
    if found.write is None:
        return OptionError(cause, at=option)
    write = _meant(found.write, site)
    if not write:
        return OptionError(cause, at=option, hint=f"leaving {option} out")
    remedy = find_remedy(write, site)
    error = OptionError(cause, at=option, hint=None if remedy is None else remedy.written(site.style))
    error.remedy = remedy
    return error


def _meant(write: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """The rest of a call to write, where the strategy in question says a part by itself, or calls it otherwise."""
    if "num_return_sequences" in write and "num_return_sequences" not in site.accepted and "n" in site.accepted:
        write = {("n" if name == "num_return_sequences" else name): value for name, value in write.items()}
    if write.keys() != {"strategy"}:
        return write
    if write["strategy"] == "sample" and site.name in ("beam", "speculative"):
        return {"do_sample": True} if site.name == "beam" else {"temperature": 1.0}
    draws = "temperature" in site.accepted or site.name in _OVER_SAMPLES
    return {} if write["strategy"] == site.name or (write["strategy"] == "sample" and draws) else write


def find_remedy(write: Mapping[str, Any], site: Site) -> Remedy | None:
    """The strategy in question with these options, or else the first strategy that has them all; None if none has."""
    generation = {name: value for name, value in write.items() if name in GENERATION_OPTIONS and name != "strategy"}
    options = {name: value for name, value in write.items() if name not in GENERATION_OPTIONS}
    wanted = write.get("strategy")
    if not options and wanted is None:
        return Remedy(site.name, generation=generation)
    has: dict[str, Collection[str]] = {name: options_of(factory) for name, factory in site.factories.items()}
    has.setdefault(site.name, site.accepted)  # of a plug-in
    has_proposer = site.name in GUESSING and "speculate" in options  # a second one is refused
    first = [wanted] if wanted else []
    if (options or wanted == site.name) and not has_proposer:
        first = [site.name, *first]
    ranked = [*first, *(name for name in site.factories if name not in ("prompt-lookup", "suffix"))]
    name = next((name for name in ranked if options.keys() <= set(has[name])), None)
    if name is None:
        return None
    beside = {one: value for option in options for one, value in _PARTNERS.get(option, {}).items()}
    written = {*site.given, *options}
    partners = {one: value for one, value in beside.items() if one in has[name] and one not in written}
    if name != site.name and site.name in ("prompt-lookup", "suffix") and name in ("greedy", "sample", "mirostat"):
        partners["speculate"] = site.name  # the proposer that the strategy in question brings along
    is_greedy = options.keys() <= {*options_of(site.factories["greedy"]), "draft_model", "num_draft_tokens"}
    if name == "speculative" and not is_greedy and "temperature" not in written:
        partners["temperature"] = 1.0
    return Remedy(name, name != site.name, {**options, **partners}, generation)
