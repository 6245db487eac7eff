"""The option `speculate`: names, values, and several of them.

``"grammar"`` is a proposer by its name, ``"draft-model:tiny-draft,num_tokens=6"`` one with an argument and options (see
`spelling`). A list of proposers is tried in order (`Chain`); ``"grammar+prompt-lookup"`` joins two in one draft
(`Joined`). Those of other packages are found as `plugins` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from decodekit import plugins
from decodekit.speculation.proposer import Proposer, is_proposer, no_proposer
from decodekit.speculation.proposers.joined import Chain, Joined
from decodekit.spelling import arguments, read_call, split


def by_options(kind: type, wrap: Callable[[Any], Proposer] = lambda made: made) -> Callable[..., Proposer]:
    """The factory of a proposer from its options, all by their names."""

    @wraps(kind, updated=())
    def make(**options: Any) -> Proposer:
        return wrap(kind(**options))

    parameters = inspect.signature(kind).parameters.values()
    make.__signature__ = inspect.Signature([one.replace(kind=one.KEYWORD_ONLY) for one in parameters])  # type: ignore[attr-defined]
    return make


def resolve_proposer(speculate: Any, names: Mapping[str, Callable[..., Proposer]]) -> Proposer | None:
    """The proposer that a caller means; None if no guesses are wanted.

    Args:
        speculate: a name, a proposer, or a list or tuple of them.
        names: what makes the proposers of the built-in names; others are looked up among the installed ones.

    Raises:
        UnknownNameError: a name is not known.
        PluginError: what it stands for cannot be loaded or made.
        OptionError: something is not a proposer, the list is empty, or a proposer is given what it does not take, or
            not what it needs.
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
    if not is_proposer(speculate):
        raise no_proposer(speculate)
    return speculate


def _named(text: str, names: Mapping[str, Callable[..., Proposer]]) -> Proposer:
    parts = split(text, "+")
    if len(parts) > 1:
        return Joined(tuple(_named(part, names) for part in parts))
    call = read_call(text)
    found = plugins.find("proposer", call.name, names, at="speculate")
    if callable(found) and not is_proposer(found):
        given = arguments("proposer", found, call, at="speculate")
        made: Proposer = plugins.called("proposer", call.name, partial(found, **given), _is_made, at="speculate")
        return made
    value: Proposer = plugins.make("proposer", text, _is_made, names, at="speculate")
    return value


def _is_made(value: object) -> bool:
    return isinstance(value, Proposer)
