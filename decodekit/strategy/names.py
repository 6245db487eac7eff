"""The names by which strategies are found, and what a caller means by the option `strategy`.

Those of other packages are found as `plugins` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from decodekit import plugins
from decodekit.errors import DecodekitError, OptionError, PluginError, raise_faults
from decodekit.generation.beam import Beam
from decodekit.generation.contrastive import ContrastiveSearch
from decodekit.plugins import did_you_mean
from decodekit.sampling import LogitsProcessor, Pipeline
from decodekit.sampling.named import Processors
from decodekit.strategy.base import Strategy
from decodekit.strategy.particles import Particles
from decodekit.strategy.several import BestOf, SelfConsistency, WithSampleOptions
from decodekit.strategy.speculative import Speculative
from decodekit.strategy.spelled import read_options, spelled_strategy
from decodekit.strategy.tokenwise import Greedy, Mirostat, Sample, useless_with_greedy

Strategy.register(Beam)  # a search of its own, with its options beside it
Strategy.register(ContrastiveSearch)

_BUILT_IN: dict[str, Callable[..., Any]] = {
    "greedy": Greedy,
    "sample": Sample,
    "prompt-lookup": partial(Greedy, speculate="prompt-lookup"),
    "suffix": partial(Greedy, speculate="suffix"),
    "speculative": Speculative(),
    "mirostat": Mirostat,
    "beam": Beam,
    "contrastive": ContrastiveSearch,
    "best-of": WithSampleOptions(BestOf),
    "self-consistency": WithSampleOptions(SelfConsistency),
    "particles": WithSampleOptions(Particles),
}


_GUESSING = ("prompt-lookup", "suffix", "speculative")
"""Names of strategies that bring their proposer along."""


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
        return _named(name, {**given, **options})
    faults: list[DecodekitError] = [
        OptionError(
            f"{name}={value!r} is given beside strategy={strategy!r}, which is complete",
            at=name,
            hint=f"{name} inside the strategy, or the strategy by its name",
        )
        if name in all_option_names()
        else unknown_option(name)
        for name, value in options.items()
    ]
    if isinstance(strategy, Strategy):
        raise_faults(faults)
        return strategy
    raise_faults(faults)
    if isinstance(strategy, Pipeline | LogitsProcessor | list | tuple):
        return Sample(processors=strategy)
    raise OptionError(
        f"{strategy!r:.60} is no strategy",
        at="strategy",
        hint='a name such as "greedy", a value such as Sample(temperature=0.7), or processors joined by |',
    )


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


def _named(name: str, options: Mapping[str, Any]) -> Strategy:
    factory = strategy_factory(name)
    accepted = inspect.signature(factory).parameters
    is_greedy = factory in (Greedy, _BUILT_IN["prompt-lookup"], _BUILT_IN["suffix"])
    faults: list[DecodekitError] = []
    for option, value in options.items():
        if option == "speculate" and name in _GUESSING:
            cause = f"strategy {name!r} has a proposer already, {value!r:.60} would be a second one"
            faults.append(OptionError(cause, at=option, hint='strategy="greedy" or "sample" with this proposer'))
            continue
        if option in accepted:
            continue
        if is_greedy and option in inspect.signature(Sample).parameters:
            faults.append(useless_with_greedy(f"{option}={value!r}"))
        else:
            faults.append(unknown_option(option, accepted))
    strategy: Strategy | None = None
    try:
        known = {option: value for option, value in options.items() if option in accepted}
        known = read_options(known, faults)
        strategy = plugins.called("strategy", name, factory, lambda made: isinstance(made, Strategy), known)
    except OptionError as error:
        faults.append(error)
    raise_faults(faults)
    assert strategy is not None
    return strategy


def all_option_names() -> set[str]:
    """Every option of a built-in strategy."""
    return {option for strategy in _BUILT_IN.values() for option in inspect.signature(strategy).parameters}


def unknown_option(name: str, accepted: Iterable[str] = ()) -> OptionError:
    """The fault of an option that nothing knows."""
    known = {*all_option_names(), *accepted, *GENERATION_OPTIONS}
    return OptionError(f"no option {name!r}.{did_you_mean(name, known)}", at=name)


GENERATION_OPTIONS = (
    "strategy",
    "constraint",
    "max_new_tokens",
    "stop",
    "seed",
    "logprobs",
    "on_length",
    "on_error",
    "max_rollbacks",
    "fast_forward",
    "batch_size",
)
"""Options of `LLM.generate` that do not belong to a strategy."""
