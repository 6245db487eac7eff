"""The strategies of a comparison: by names of one's own, or in a list of values and of texts that spell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from decodekit.errors import DecodekitError, OptionError, collecting, raise_faults
from decodekit.llm import StrategyLike
from decodekit.strategy import Strategy, resolve_strategy

Strategies: TypeAlias = Mapping[str, StrategyLike] | Sequence[StrategyLike]
"""Strategies to compare: by names of one's own, or in a list. A text may have options; see `decodekit.spelling`."""


def named_strategies(strategies: Strategies | StrategyLike) -> dict[str, Strategy]:
    """Strategies by the names that tables show.

    Those of a list have the text that spells them as their name; a value has its `repr`.

    Raises:
        UnknownNameError, OptionError: a strategy is none; one has a seed of its own, or a name stands for two; all of
            them together.
    """
    listed: list[tuple[str, Any]]
    if isinstance(strategies, Mapping):
        listed = list(strategies.items())
    else:
        several = strategies if isinstance(strategies, list | tuple) else [strategies]
        listed = [(one if isinstance(one, str) else repr(one), one) for one in several]
    faults: list[DecodekitError] = []
    found: dict[str, Strategy] = {}
    for name, given in listed:
        with collecting(faults):
            strategy = resolve_strategy(given, {})
            if name in found:
                cause = f"strategy {name!r} is there twice"
                faults.append(OptionError(cause, at="strategies", hint="a mapping of names"))
            if getattr(strategy, "seed", None) is not None:
                cause = f"strategy {name!r} has a seed of its own: {strategy!r}"
                faults.append(OptionError(cause, at="strategies", hint="seeds=(...)"))
            found[name] = strategy
    if not listed:
        faults.append(OptionError("there is no strategy", at="strategies", hint='strategies=["greedy"]'))
    raise_faults(faults, "strategies")
    return found
