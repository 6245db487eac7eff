"""What a caller means by the option `speculate`: names, values, and several of them.

``"grammar"`` is a proposer by its name, ``"early-exit:8"`` one that is made of a text, and ``"grammar+prompt-lookup"``
are two joined in one draft. Those of other packages are found as `plugins` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from decodekit import plugins
from decodekit.speculation.joined import Joined
from decodekit.speculation.proposer import Chain, Proposer, no_proposer


def resolve_proposer(speculate: Any, names: Mapping[str, Callable[..., Proposer]]) -> Proposer | None:
    """The proposer that a caller means; None if no guesses are wanted.

    Args:
        speculate: a name, a proposer, or a list or tuple of them.
        names: what makes the proposers of the built-in names, without arguments, or of the text behind a colon; others
            are looked up among the installed ones.

    Raises:
        UnknownNameError: a name is not known.
        PluginError: what it stands for cannot be loaded or made.
        OptionError: something is no proposer, or the list is empty.
    """
    if speculate is None:
        return None
    if isinstance(speculate, str):
        return _named(speculate, names)
    if isinstance(speculate, list | tuple):
        proposers = [resolve_proposer(one, names) for one in speculate]
        if len(proposers) == 1 and proposers[0] is not None:
            return proposers[0]
        return Chain(tuple(proposers))  # type: ignore[arg-type]  # it refuses None
    if isinstance(speculate, type) or not isinstance(speculate, Proposer):
        raise no_proposer(speculate)
    return speculate


def _named(text: str, names: Mapping[str, Callable[..., Proposer]]) -> Proposer:
    if "+" in text:
        return Joined(tuple(_named(part.strip(), names) for part in text.split("+")))
    name, colon, argument = text.partition(":")
    proposer: Proposer
    if colon:
        factory = partial(plugins.find("proposer", name, names, at="speculate"), argument)
        proposer = plugins.called("proposer", text, factory, _is_proposer, at="speculate")
    else:
        proposer = plugins.make("proposer", text, _is_proposer, names, at="speculate")
    return proposer


def _is_proposer(made: object) -> bool:
    return isinstance(made, Proposer)
