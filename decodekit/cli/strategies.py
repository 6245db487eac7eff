"""`strategies`: what is installed, with options."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from decodekit.cli import options as o
from decodekit.cli.console import command, print_json
from decodekit.errors import DecodekitError

_WIDTH, _INDENT = 110, "    "


@command
def strategies(as_json: o.Json = False) -> None:
    """List the installed strategies with their options, and who can guess ahead.

    An option is given as name:option=value, a proposer as name+proposer: sample:temperature=0.7+suffix.
    """
    from decodekit.plugins import available
    from decodekit.strategy import PROPOSERS, available_strategies

    found = [_describe(name) for name in available_strategies()]
    proposers = available("proposer", PROPOSERS)
    if as_json:
        print_json({"strategies": found, "proposers": proposers})
        return
    for one in found:
        print(f"{one['name']}: {one['error'] or one['about']}")
        if one["options"]:
            print(_told(one["options"]))
    print(f"\nWho guesses ahead (name+proposer): {', '.join(proposers)}")


def _describe(name: str) -> dict[str, Any]:
    """What is known of a strategy; a broken plug-in is told with its error."""
    from decodekit.strategy import resolve_strategy, strategy_factory

    try:
        options = inspect.signature(strategy_factory(name)).parameters
    except DecodekitError as error:
        return {"name": name, "about": "", "options": {}, "error": str(error).splitlines()[0]}
    try:
        value = resolve_strategy(name, {})
        is_preset = type(value).name != name  # a name for another strategy with options
        about = repr(value) if is_preset else _paragraph(type(value))
    except DecodekitError:  # it has options that must be given
        about = _paragraph(strategy_factory(name))
    shown = {
        option: {
            "type": "" if parameter.annotation is parameter.empty else str(parameter.annotation),
            "default": None if parameter.default is parameter.empty else repr(parameter.default),
        }
        for option, parameter in options.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    return {"name": name, "about": about, "options": shown, "error": None}


def _told(options: dict[str, dict[str, str | None]]) -> str:
    """The options on a few lines; a default that is None is not worth telling."""
    pieces = []
    for name, option in options.items():
        default = option["default"]
        pieces.append(f"{name}=..." if default is None else name if default == "None" else f"{name}={default}")
    return textwrap.fill(", ".join(pieces), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _paragraph(thing: object) -> str:
    """The first paragraph of what something says of itself."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
