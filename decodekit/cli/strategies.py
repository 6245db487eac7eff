"""`strategies`: what is installed, with options."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import print_json
from decodekit.errors import DecodekitError

_WIDTH, _INDENT = 110, "    "


@command
def strategies(as_json: o.Json = False) -> None:
    """List the installed strategies with their options, the proposers of drafts, and the contrasts.

    An option is given as name:option=value, a proposer as name+proposer, both with options of their own:
    sample:temperature=0.7,contrast=dola+draft-model:tiny-draft,num_tokens=6. A value with commas stands in double
    quotes: greedy:contrast="dola:layers=low,relative_top=0.2".
    """
    from decodekit.plugins import available
    from decodekit.strategy import CONTRASTS, PROPOSERS, available_strategies

    found = [_describe(name) for name in available_strategies()]
    proposers = {
        name: _options(PROPOSERS[name]) if name in PROPOSERS else {} for name in available("proposer", PROPOSERS)
    }
    contrasts = {name: _options(kind) for name, kind in CONTRASTS.items()}
    if as_json:
        print_json({"strategies": found, "proposers": proposers, "contrasts": contrasts})
        return
    for one in found:
        print(f"{one['name']}: {one['error'] or one['about']}")
        if one["options"]:
            print(_told(one["options"]))
    for title, kinds in (
        ("Proposers, which draft tokens: name+proposer, or speculate=proposer", proposers),
        ("Contrasts, which change the distribution: contrast=name", contrasts),
    ):
        print(f"\n{title}")
        for name, options in kinds.items():
            print(_told(options, f"{_INDENT}{name}: ") if options else f"{_INDENT}{name}")


def _describe(name: str) -> dict[str, Any]:
    """The description of a strategy; a broken plug-in is listed with its error."""
    from decodekit.strategy import resolve_strategy, strategy_factory

    try:
        shown = _options(strategy_factory(name))
    except DecodekitError as error:
        return {"name": name, "about": "", "options": {}, "error": str(error).splitlines()[0]}
    try:
        value = resolve_strategy(name, {})
        is_preset = type(value).name != name  # a name for another strategy with options
        about = repr(value) if is_preset else _paragraph(type(value))
    except DecodekitError:  # it has options that must be given
        about = _paragraph(strategy_factory(name))
    return {"name": name, "about": about, "options": shown, "error": None}


def _options(factory: Callable[..., Any]) -> dict[str, dict[str, str | None]]:
    """Types and defaults of the options of a class or function, by name."""
    return {
        option: {
            "type": "" if parameter.annotation is parameter.empty else str(parameter.annotation),
            "default": None if parameter.default is parameter.empty else repr(parameter.default),
        }
        for option, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def _told(options: dict[str, dict[str, str | None]], begin: str = _INDENT) -> str:
    """The options on a few lines; a default that is None is left out."""
    after = _INDENT if begin == _INDENT else 2 * _INDENT
    pieces = []
    for name, option in options.items():
        default = option["default"]
        pieces.append(f"{name}=..." if default is None else name if default == "None" else f"{name}={default}")
    return textwrap.fill(", ".join(pieces), _WIDTH, initial_indent=begin, subsequent_indent=after)


def _paragraph(thing: object) -> str:
    """The first paragraph of what something says of itself."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
