"""Recommended sampling options of a model: the values in its ``generation_config.json``.

    recommended_for("sample", {"top_k": 5}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95})
    # {"temperature": 0.6, "top_p": 0.95}

One rule: ``strategy="sample"``, by its name, takes each of them that the call does not give. Every other strategy, and
every strategy that is a value, such as ``Sample(top_p=0.9)``, is what it says and takes none. ``processors`` or
``order`` in the call say the whole pipeline, so that nothing is taken beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from decodekit.sampling.options.declared import options_of
from decodekit.sampling.options.option_fields import KINDS
from decodekit.sampling.pipeline import Stage
from decodekit.strategy.options.spelled import spelled_strategy

_OFF: Final = {
    one.name: one.off
    for kind in sorted(KINDS, key=lambda kind: kind.stage is Stage.BIAS)
    for one in options_of(kind).values()
    if one.off
}
"""The options of `Sample` that `GenerationConfig` of transformers has, and values with which they do nothing."""


def read_recommended(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options for sampling among those that a generation config sets (``GenerationConfig.to_diff_dict()``)."""
    return {
        name: config[name]
        for name, off in _OFF.items()
        if isinstance(config.get(name), int | float) and not isinstance(config[name], bool) and config[name] not in off
    }


def recommended_for(strategy: object, options: Mapping[str, Any], recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the recommended options that a call takes, given its strategy (a text may spell options) and options."""
    if not isinstance(strategy, str) or not recommended:
        return {}
    name, spelled = spelled_strategy(strategy)
    given = {*spelled, *options}
    if name != "sample" or given & {"processors", "order"}:
        return {}
    return {option: value for option, value in recommended.items() if option not in given}
