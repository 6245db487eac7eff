"""The names by which strategies are found, and what a caller means by the option `strategy`.

Those of other packages are found as `plugins` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from decodekit import plugins
from decodekit.errors import DecodekitError, OptionError, PluginError, UselessOptionError, raise_faults
from decodekit.sampling import LogitsProcessor, Pipeline
from decodekit.sampling.checks import plain
from decodekit.sampling.named import Processors
from decodekit.strategy.base import Strategy
from decodekit.strategy.beam import Beam
from decodekit.strategy.contrastive import ContrastiveSearch
from decodekit.strategy.particles import Particles
from decodekit.strategy.remedies import (
    GENERATION_OPTIONS as GENERATION_OPTIONS,
)
from decodekit.strategy.remedies import (
    GUESSING,
    Site,
    Style,
    own_options,
    unknown_option,
    useless_with_greedy_hint,
)
from decodekit.strategy.several import BestOf, SelfConsistency, WithSampleOptions
from decodekit.strategy.speculative import Speculative
from decodekit.strategy.spelled import read_options, spelled_strategy
from decodekit.strategy.tokenwise import Greedy, Mirostat, Sample


def _resolved(strategy: Any, options: dict[str, Any]) -> Strategy:
    return resolve_strategy(strategy, options)


_BUILT_IN: dict[str, Callable[..., Any]] = {
    "greedy": Greedy,
    "sample": Sample,
    "prompt-lookup": partial(Greedy, speculate="prompt-lookup"),
    "suffix": partial(Greedy, speculate="suffix"),
    "speculative": Speculative(),
    "mirostat": Mirostat,
    "beam": Beam,
    "contrastive": ContrastiveSearch,
    "best-of": WithSampleOptions(BestOf, _resolved),
    "self-consistency": WithSampleOptions(SelfConsistency, _resolved),
    "particles": WithSampleOptions(Particles, _resolved),
}


def available_strategies() -> list[str]:
    """Names of the installed strategies, the built-in ones first."""
    return plugins.available("strategy", _BUILT_IN)


def resolve_strategy(strategy: str | Strategy | Beam | Processors, options: Mapping[str, Any]) -> Strategy:
    """The strategy that a caller means.

    Args:
        strategy: a name, possibly with options and who guesses ahead (``"sample:temperature=0.7+suffix"``, see
            `spelled`), a value, or processors to sample with.
        options: keyword options for a strategy given by name.

    Raises:
        UnknownNameError: no strategy of that name is installed, or it cannot be loaded.
        OptionError: options that the strategy does not have, or that were given beside a value; all of them together.
    """
    if isinstance(strategy, str):
        name, given = spelled_strategy(strategy)
        twice = [option for option in options if option in given]
        raise_faults([OptionError(f"{option} is given twice", at=strategy) for option in twice])
        return _named(name, given, options)
    if isinstance(strategy, Strategy):
        raise_faults([_beside(option, value, strategy) for option, value in options.items()])
        return strategy
    if isinstance(strategy, Pipeline | LogitsProcessor | list | tuple):
        faults: list[DecodekitError] = []
        made: Strategy | None = None
        try:
            made = Sample(processors=strategy)
        except DecodekitError as error:
            faults.append(error)
        site = Site("sample", (), {}, _BUILT_IN)
        accepted = inspect.signature(Sample).parameters
        for option, value in options.items():
            if option in accepted:
                cause = f"{option}={value!r:.60} is given beside processors, which are the whole strategy"
                hint = f'strategy="sample", {option}=..., processors=...'
                faults.append(OptionError(cause, at=option, hint=hint))
            else:
                faults.append(unknown_option(option, value, site))
        raise_faults(faults)
        assert made is not None
        return made
    raise OptionError(
        f"{strategy!r:.60} is no strategy",
        at="strategy",
        hint='a name such as "greedy", a value such as Sample(temperature=0.7), or processors joined by |',
    )


def _beside(option: str, value: Any, strategy: Any) -> OptionError:
    """The fault of an option beside a strategy that is a value."""
    name = getattr(type(strategy), "name", type(strategy).__name__)
    accepted = inspect.signature(type(strategy)).parameters
    if option in accepted:
        return OptionError(
            f"{option}={value!r:.60} is given beside strategy={strategy!r:.200}, which is complete",
            at=option,
            hint=f"{option} inside the strategy, or the strategy by its name",
        )
    return unknown_option(option, value, Site(name, accepted, {}, _BUILT_IN, "value"))


def strategy_factory(name: str) -> Callable[..., Any]:
    """What makes the strategies of a name; its signature says which options they have.

    Raises:
        UnknownNameError: no strategy of that name is installed.
        PluginError: it cannot be loaded, or makes nothing.
    """
    factory = plugins.find("strategy", name, _BUILT_IN)
    if not callable(factory):
        raise PluginError(f"strategy {name!r} is {factory!r:.60}, which is no class or function", at="strategy")
    return factory  # type: ignore[no-any-return]


def _named(name: str, inside: Mapping[str, Any], beside: Mapping[str, Any]) -> Strategy:
    """The strategy of a name.

    Args:
        name: the name.
        inside: the options that stand in the text that spells the strategy.
        beside: those given as keywords.
    """
    factory = strategy_factory(name)
    accepted = inspect.signature(factory).parameters
    options = {option: plain(value) for option, value in {**inside, **beside}.items()}
    given = {option: value for option, value in options.items() if option in accepted}
    is_greedy = factory in (Greedy, _BUILT_IN["prompt-lookup"], _BUILT_IN["suffix"])
    faults: list[DecodekitError] = []
    for option, value in options.items():
        if option == "speculate" and name in GUESSING:
            cause = f"strategy {name!r} has a proposer already, {value!r:.60} would be a second one"
            faults.append(OptionError(cause, at=option, hint='strategy="greedy" or "sample" with this proposer'))
            continue
        if option in accepted:
            continue
        style: Style = "text" if option in inside else "call"
        site = Site(name, accepted, given, _BUILT_IN, style)
        if is_greedy and option in _OF_SAMPLE and not (option == "num_return_sequences" and value == 1):
            hint, remedy = useless_with_greedy_hint(option, value, site)
            useless = UselessOptionError(
                f"{option}={value!r:.60} has no effect with greedy decoding.", at=option, hint=hint
            )
            useless.remedy = remedy
            faults.append(useless)
        else:
            faults.append(unknown_option(option, value, site))
    strategy: Strategy | None = None
    try:
        known = {option: value for option, value in given.items() if not (option == "speculate" and name in GUESSING)}
        known = read_options(known, faults)
        strategy = plugins.called("strategy", name, factory, lambda made: isinstance(made, Strategy), known)
    except OptionError as error:
        faults.append(error)
    raise_faults(faults)
    assert strategy is not None
    return strategy


_OF_SAMPLE = inspect.signature(Sample).parameters


def all_option_names() -> set[str]:
    """Every option of a built-in strategy."""
    return own_options(Site("", (), {}, _BUILT_IN))


def _answering(kind: type[Any]) -> None:
    """Let a class of strategies answer an option that it does not have with what to write instead.

    Numbers of numpy and torch become numbers of Python, so that a strategy is a plain value.
    """
    make = kind.__init__
    accepted = inspect.signature(kind).parameters

    @wraps(make)
    def init(self: Any, *values: Any, **options: Any) -> None:
        faults: list[DecodekitError] = []
        given = {option: plain(value) for option, value in options.items() if option in accepted}
        site = Site(kind.name, accepted, given, _BUILT_IN, "class")
        faults += [unknown_option(option, value, site) for option, value in options.items() if option not in accepted]
        try:
            make(self, *map(plain, values), **given)
        except OptionError as error:
            faults.append(error)
        raise_faults(faults)

    kind.__init__ = init


for _kind in (Greedy, Sample, Mirostat, Beam, ContrastiveSearch, BestOf, SelfConsistency, Particles):
    _answering(_kind)
