"""Strategies as a line of text spells them: ``sample:temperature=0.7,top_p=0.9+prompt-lookup``.

A name, behind a colon its options, and behind a plus sign who guesses ahead, as the option `speculate` spells it
(``grammar+prompt-lookup``, ``draft-model:tiny-draft``). Values are numbers, ``true``, ``false``, ``null`` or JSON; what
is none of these is a text. Several strategies stand between commas; a piece that begins with ``option=`` goes on with
the one before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from decodekit.errors import DecodekitError, OptionError, raise_faults
from decodekit.llm import StrategyLike
from decodekit.strategy import Strategy, resolve_strategy

Strategies: TypeAlias = Mapping[str, StrategyLike] | Sequence[StrategyLike]
"""Strategies to compare: by names of one's own, or in a list. A text may be spelled as above."""

_OPTION = re.compile(r"\w+=")
_GUESS = re.compile(r"\+(?=[A-Za-z])")  # not the plus of 1e+5
_OPEN, _CLOSED = "[{", "]}"


def split_strategies(text: str) -> list[str]:
    """The strategies between the commas of a text, each spelled as it was.

    Raises:
        OptionError: nothing stands between two commas, or an option has no strategy before it.
    """
    found: list[str] = []
    for piece in _pieces(text):
        if not piece.strip():
            raise OptionError("a name is missing between commas", at=f"{text!r:.80}")
        if not _OPTION.match(piece.strip()):
            found.append(piece.strip())
        elif found and ":" in found[-1]:
            found[-1] += f",{piece.strip()}"
        else:
            raise OptionError(
                f"{piece.strip()!r} is an option of nothing", at=f"{text!r:.80}", hint="name:option=value"
            )
    return found


def parse_strategy(text: str) -> Strategy:
    """The strategy that a text spells.

    Raises:
        UnknownNameError: no strategy, or no proposer, of that name.
        OptionError: options that it does not have, or that are out of range; all of them together.
    """
    spelled, *guess = _GUESS.split(text, maxsplit=1)
    name, _, rest = spelled.partition(":")
    options: dict[str, Any] = {}
    for piece in _pieces(rest) if rest else ():
        option, sign, value = piece.strip().partition("=")
        if not sign or not option.isidentifier():
            raise OptionError(f"{piece.strip()!r} is no option=value", at=text)
        if option in options:
            raise OptionError(f"{option} is given twice", at=text)
        options[option] = _value(value.strip())
    if guess:
        if getattr(resolve_strategy(name.strip(), options), "speculate", None) is not None:
            raise OptionError(f"{spelled!r} has a proposer already, {guess[0]!r} would be a second one", at=text)
        options["speculate"] = guess[0].strip()
    return resolve_strategy(name.strip(), options)


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
    elif isinstance(strategies, list | tuple):
        listed = [(one if isinstance(one, str) else repr(one), one) for one in strategies]
    else:
        listed = [(strategies if isinstance(strategies, str) else repr(strategies), strategies)]
    faults: list[DecodekitError] = []
    found: dict[str, Strategy] = {}
    for name, given in listed:
        try:
            strategy = parse_strategy(given) if isinstance(given, str) else resolve_strategy(given, {})
        except DecodekitError as error:
            faults.append(error)
            continue
        if name in found:
            faults.append(OptionError(f"strategy {name!r} is there twice", at="strategies", hint="a mapping of names"))
        if getattr(strategy, "seed", None) is not None:
            faults.append(
                OptionError(
                    f"strategy {name!r} has a seed of its own: {strategy!r}", at="strategies", hint="seeds=(...)"
                )
            )
        found[name] = strategy
    if not listed:
        faults.append(OptionError("there is no strategy", at="strategies", hint='strategies=["greedy"]'))
    raise_faults(faults, "strategies")
    return found


def _pieces(text: str) -> list[str]:
    """What stands between the commas of a text, those within brackets and quotes aside."""
    pieces, depth, is_quoted = [""], 0, False
    for character in text:
        if character == '"':
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (character in _OPEN) - (character in _CLOSED)
        if character == "," and depth == 0 and not is_quoted:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
