"""The option `speculate`: names, values, and several of them.

``"grammar"`` is a proposer by its name, ``"draft-model:tiny-draft,num_tokens=6"`` one with an argument and options (see
`spelling`). A list of proposers is tried in order (`Chain`); ``"grammar+prompt-lookup"`` joins two in one draft
(`Joined`). Those of other packages are found as `plugins` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final

from decodekit import plugins
from decodekit.speculation.draft_length import Adaptive
from decodekit.speculation.proposer import Proposer, is_proposer, no_proposer
from decodekit.speculation.proposers.draft_model import DraftModel, EarlyExit
from decodekit.speculation.proposers.grammar_draft import GrammarDraft
from decodekit.speculation.proposers.joined import Chain, Joined
from decodekit.speculation.proposers.suffix import PromptLookup, Suffix
from decodekit.spelling import accepting, arguments, read_call, split


def _by_options(kind: type, wrap: Callable[[Any], Proposer] = lambda made: made) -> Callable[..., Proposer]:
    """The factory of a proposer from its options, all by their names."""

    @accepting(*inspect.signature(kind).parameters.values())
    @wraps(kind, updated=())
    def make(**options: Any) -> Proposer:
        return wrap(kind(**options))

    return make


PROPOSERS: Final[Mapping[str, Callable[..., Proposer]]] = {
    "prompt-lookup": _by_options(PromptLookup, Adaptive),
    "suffix": _by_options(Suffix, Adaptive),
    "grammar": _by_options(GrammarDraft),
    "draft-model": DraftModel,
    "early-exit": EarlyExit.of,
}
"""Names that the option `speculate` takes, beside those of installed proposers.

What is looked up is worth as much as the text repeats itself, so that by name it comes with `Adaptive`.
"""


def resolve_proposer(speculate: Any) -> Proposer | None:
    """The proposer that a caller means by a name, a proposer, or a list of them; None if no guesses are wanted.

    Raises:
        UnknownNameError, PluginError: a name is not known, or what it stands for cannot be loaded or made.
        OptionError: something is not a proposer, the list is empty, or a proposer is given what it does not take, or
            not what it needs.
    """
    if speculate is None:
        return None
    if isinstance(speculate, str):
        return _named(speculate)
    if isinstance(speculate, list | tuple):
        proposers = [resolve_proposer(one) for one in speculate]
        if len(proposers) == 1 and proposers[0] is not None:
            return proposers[0]
        return Chain(tuple(proposers))  # type: ignore[arg-type]  # it refuses None
    if not is_proposer(speculate):
        raise no_proposer(speculate)
    return speculate


def _named(text: str) -> Proposer:
    parts = split(text, "+")
    if len(parts) > 1:
        return Joined(tuple(map(_named, parts)))
    call = read_call(text)
    found = plugins.find("proposer", call.name, PROPOSERS, at="speculate")
    if callable(found) and not is_proposer(found):
        given = arguments("proposer", found, call, at="speculate")
        made: Proposer = plugins.called("proposer", call.name, partial(found, **given), _is_made, at="speculate")
        return made
    value: Proposer = plugins.make("proposer", text, _is_made, PROPOSERS, at="speculate")
    return value


def _is_made(value: object) -> bool:
    return isinstance(value, Proposer)
