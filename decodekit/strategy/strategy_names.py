"""The names by which strategies are found, and what a caller means by the option `strategy`.

Those of other packages are found as `plugins` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial, wraps
from typing import Any, Final

from decodekit import plugins
from decodekit.errors import (
    DecodekitError,
    OptionError,
    PluginError,
    UselessOptionError,
    collecting,
    out_of_domain,
    raise_faults,
)
from decodekit.sampling import LogitsProcessor, Pipeline
from decodekit.sampling.checks import COUNT, plain
from decodekit.speculation import Adaptive, DraftModel, Proposer, Suffix
from decodekit.spelling import accepting
from decodekit.strategy.options.generate_options import StrategyLike
from decodekit.strategy.options.remedies import CLASSES, GUESSING, Site, find_remedy, own_options, unknown_option
from decodekit.strategy.options.spelled import read_options, spelled_strategy
from decodekit.strategy.searches import Beam, ContrastiveSearch
from decodekit.strategy.several import BestOf, OverSamples, Particles, SelfConsistency
from decodekit.strategy.strategy import Strategy, options_of
from decodekit.strategy.tokenwise import Greedy, Mirostat, Sample, useless_with_greedy


def _over_samples(kind: Callable[..., OverSamples]) -> Callable[..., Strategy]:
    """The strategy over samples of a name: its own options and those of `Sample`, side by side.

    Samples of another strategy are asked for by ``strategy=``, with its name in place of the options of `Sample`.
    """
    own = inspect.signature(kind).parameters
    sample = [one for one in inspect.signature(Sample).parameters.values() if one.name != "num_return_sequences"]

    @accepting(*sample, *own.values())
    def make(**options: Any) -> Strategy:
        of_kind = {name: value for name, value in options.items() if name in own}
        rest = {name: value for name, value in options.items() if name not in own}
        faults: list[DecodekitError] = []
        made: Strategy = Sample()
        with collecting(faults):
            made = resolve_strategy(of_kind.pop("strategy"), rest) if "strategy" in of_kind else Sample(**rest)
        with collecting(faults):
            made = kind(strategy=made, **of_kind)
        raise_faults(faults)
        return made

    return make


@accepting(*(one for one in inspect.signature(Sample).parameters.values() if one.name != "speculate"))
def speculative(draft_model: Any = None, num_draft_tokens: int | None = None, **options: Any) -> Strategy:
    """The strategy ``"speculative"``: `Greedy`, or `Sample` if there is a temperature, with a proposer.

    It takes the options of these but ``speculate``, and two of its own.

    Args:
        draft_model: an `LLM`, or the name of a model, as `DraftModel` takes it. Without one the draft is what mostly
            followed the longest ending of the text that came before, as long as that pays: `Adaptive` `Suffix`.
            (Prompt look-up behind it would never be asked: where it finds anything, so does `Suffix`.)
        num_draft_tokens: the most tokens of a draft; None is as many as pay (`Adaptive`), or the draft model's default.
        options: of `Sample`.

    Raises:
        OptionError: with all options that are out of range, or have no effect without a temperature.
    """
    faults: list[DecodekitError] = []
    proposer: Proposer = Suffix()
    with collecting(faults, OptionError):
        proposer = _guessing(draft_model, num_draft_tokens)
    kind: Callable[..., Strategy] = Sample
    own = options
    if "temperature" not in options:
        kind = Greedy
        of_greedy = inspect.signature(Greedy).parameters
        useless = [f"{name}={value!r}" for name, value in options.items() if name not in of_greedy]
        faults += [useless_with_greedy(option, hint="a temperature, as 1.0") for option in useless]
        own = {name: value for name, value in options.items() if name in of_greedy}
    strategy: Strategy = Greedy()
    with collecting(faults, OptionError):
        strategy = kind(speculate=proposer, **own)
    raise_faults(faults)
    return strategy


SPECULATIVE: Final = {"num_draft_tokens": COUNT.or_none}
"""The domains of what `speculative` has beside the options of `Sample`; drafters check themselves."""


def _guessing(draft_model: Any, num_tokens: int | None) -> Proposer:
    SPECULATIVE["num_draft_tokens"].require("num_draft_tokens", num_tokens)
    if draft_model is None:
        return Adaptive(Suffix()) if num_tokens is None else Suffix(max_tokens=num_tokens)
    try:
        return DraftModel(draft_model) if num_tokens is None else DraftModel(draft_model, num_tokens)
    except OptionError:
        domain = "None, an LLM or the name of a model"
        raise out_of_domain("draft_model", domain, draft_model, hint='"tiny-draft"') from None


_BUILT_IN: dict[str, Callable[..., Any]] = {
    "greedy": Greedy,
    "sample": Sample,
    "prompt-lookup": partial(Greedy, speculate="prompt-lookup"),
    "suffix": partial(Greedy, speculate="suffix"),
    "speculative": speculative,
    "mirostat": Mirostat,
    "beam": Beam,
    "contrastive": ContrastiveSearch,
    "best-of": _over_samples(BestOf),
    "self-consistency": _over_samples(SelfConsistency),
    "particles": _over_samples(Particles),
}


def available_strategies() -> list[str]:
    """Names of the installed strategies, the built-in ones first."""
    return plugins.available("strategy", _BUILT_IN)


def resolve_strategy(strategy: StrategyLike, options: Mapping[str, Any]) -> Strategy:
    """The strategy that a caller means.

    Args:
        strategy: a name, possibly with options and a proposer (``"sample:temperature=0.7+suffix"``, see `spelled`), a
            value, or processors to sample with.
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
        kind = type(strategy)
        cause = f"is given beside strategy={kind.__name__}(...), which is complete"
        hint = f"{kind.__name__}(..., {{}}=...), or the strategy by its name"
        site = Site(getattr(kind, "name", kind.__name__), options_of(kind), {}, _BUILT_IN, "value")
        raise_faults(_beside(options, site, options_of(kind), cause, hint))
        return strategy
    if isinstance(strategy, Pipeline | LogitsProcessor | list | tuple):
        faults: list[DecodekitError] = []
        with collecting(faults):
            made = Sample(processors=strategy)
        cause = "is given beside processors, which are the whole strategy"
        hint = 'strategy="sample", {}=..., processors=...'
        site = Site("sample", (), {}, _BUILT_IN)
        raise_faults([*faults, *_beside(options, site, options_of(Sample), cause, hint)])
        return made
    hint = 'a name such as "greedy", a value such as Sample(temperature=0.7), or processors joined by |'
    raise out_of_domain("strategy", "a name, a Strategy or logits processors", strategy, hint=hint)


def _beside(
    options: Mapping[str, Any], site: Site, accepted: Collection[str], cause: str, hint: str
) -> list[DecodekitError]:
    """The faults of options that are given beside a strategy that is whole; `accepted` could stand inside it."""
    return [
        OptionError(f"{option}={value!r:.60} {cause}", at=option, hint=hint.format(option))
        if option in accepted
        else unknown_option(option, value, site)
        for option, value in options.items()
    ]


def strategy_factory(name: str) -> Callable[..., Any]:
    """The factory of the strategies of a name; its signature says which options they have.

    Raises:
        UnknownNameError, PluginError: no such strategy is installed, or it cannot be loaded, or makes nothing.
    """
    factory = plugins.find("strategy", name, _BUILT_IN)
    if not callable(factory):
        raise PluginError(f"strategy {name!r} is {factory!r:.60}, which is no class or function", at="strategy")
    return factory  # type: ignore[no-any-return]


def _named(name: str, inside: Mapping[str, Any], beside: Mapping[str, Any]) -> Strategy:
    """The strategy of a name, with the options in the text that spells it and those given as keywords."""
    factory = strategy_factory(name)
    accepted = options_of(factory)
    options = {option: plain(value) for option, value in {**inside, **beside}.items()}
    faults: list[DecodekitError] = []
    if "n" in options and "n" not in accepted and "num_return_sequences" in accepted:  # OpenAI's and vLLM's name
        if "num_return_sequences" in options:
            faults.append(OptionError("n is another name of num_return_sequences, which is given, too", at="n"))
        number = options.pop("n")
        if number is not None:
            options.setdefault("num_return_sequences", number)
    given = {option: value for option, value in options.items() if option in accepted}
    if name in GUESSING and "speculate" in options:
        cause = f"strategy {name!r} has a proposer already, {options.pop('speculate')!r:.60} would be a second one"
        faults.append(OptionError(cause, at="speculate", hint='strategy="greedy" or "sample" with this proposer'))
    for option, value in options.items():
        if option not in accepted:
            site = Site(name, accepted, given, _BUILT_IN, "text" if option in inside else "call")
            faults.append(_useless(option, value, site) or unknown_option(option, value, site))
    known = read_options({option: value for option, value in options.items() if option in accepted}, faults)
    with collecting(faults, OptionError):
        strategy: Strategy = plugins.called("strategy", name, factory, lambda made: isinstance(made, Strategy), known)
    raise_faults(faults)
    return strategy


def _useless(option: str, value: Any, site: Site) -> OptionError | None:
    """The fault of an option of sampling that is given to greedy decoding; None for any other."""
    if site.name not in ("greedy", "prompt-lookup", "suffix") or option not in options_of(Sample):
        return None
    if option == "num_return_sequences" and value == 1:
        return None
    remedy = None if value is None else find_remedy({option: value}, site)
    hint = f"leaving {option} out" if value is None else remedy.written(site.style) if remedy else 'strategy="sample"'
    useless = UselessOptionError(f"{option}={value!r:.60} has no effect with greedy decoding.", at=option, hint=hint)
    useless.remedy = remedy
    return useless


def all_option_names() -> set[str]:
    """Every option of a built-in strategy."""
    return own_options(Site("", (), {}, _BUILT_IN))


def _answering(kind: type[Any]) -> None:
    """Let the constructor of a strategy answer an option that it does not have with what to write instead.

    The answer names the other strategies, so it is given here, where all are known. Numbers of numpy and torch become
    numbers of Python, so a strategy is a plain value.
    """
    make, accepted = kind.__init__, options_of(kind)

    @wraps(make)
    def init(self: Any, *values: Any, **options: Any) -> None:
        given = {option: plain(value) for option, value in options.items() if option in accepted}
        faults: list[DecodekitError] = [
            unknown_option(option, value, Site(kind.name, accepted, given, _BUILT_IN, "class"))
            for option, value in options.items()
            if option not in accepted
        ]
        with collecting(faults, OptionError):
            make(self, *map(plain, values), **given)
        raise_faults(faults)

    kind.__init__ = init


for _kind in CLASSES.values():
    _answering(_kind)
