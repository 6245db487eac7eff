"""Names with options as one line of text: ``sample:temperature=0.7,top_p=0.9+draft-model:tiny-draft,num_tokens=6``.

A *call* is a name and, behind a colon, what it is given: first, where it takes one, an argument without a name, then
options. Calls are joined by plus signs and listed between commas; a piece that begins with ``option=`` goes on with the
call before it. Values are numbers, ``true``, ``false``, ``null`` or JSON; what is none of these is a text. A text with
commas or plus signs of its own stands in double quotes: ``greedy:contrast="dola:layers=low,relative_top=0.2"``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from decodekit.errors import DecodekitError, OptionError, raise_faults
from decodekit.plugins import did_you_mean

_OPTION = re.compile(r"\s*[^\W\d]\w*\s*=")
_JOINS = re.compile(r"\+\s*([A-Za-z]|$)")  # not the plus of 1e+5
_OPEN, _CLOSED = "[{", "]}"

Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SpelledCall:
    """A name and what it is given: options by name, and the text behind the colon that has none."""

    name: str
    argument: Any
    options: Mapping[str, Any]


def split(text: str, separator: Literal[",", "+"]) -> list[str]:
    """The pieces between the separators of a text, those within brackets and quotes aside."""
    pieces, depth, is_quoted, is_escaped = [""], 0, False, False
    for place, character in enumerate(text):
        if is_quoted:
            is_quoted = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        else:
            is_quoted = character == '"'
            depth += (character in _OPEN) - (character in _CLOSED)
        is_separator = character == separator and depth == 0 and not is_quoted
        if is_separator and (separator == "," or _JOINS.match(text, place)):
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def split_calls(text: str) -> list[str]:
    """The calls between the commas of a text, each as it was written; an option belongs to the call before it."""
    found: list[str] = []
    for piece in split(text, ","):
        if not piece:
            raise OptionError("a name is missing between commas", at=f"{text!r:.80}")
        if not _OPTION.match(piece):
            found.append(piece)
        elif found and ":" in found[-1]:
            found[-1] += f",{piece}"
        else:
            raise OptionError(f"{piece!r} is an option of nothing", at=f"{text!r:.80}", hint="name:option=value")
    return found


def read_call(text: str) -> SpelledCall:
    """The call that a text spells; an `OptionError` where something is not an option, missing, or given twice."""
    name, colon, rest = text.partition(":")
    argument: str | None = None
    options: dict[str, Any] = {}
    for number, piece in enumerate(split(rest, ",") if colon else ()):
        option, _, written = piece.partition("=")
        if _OPTION.match(piece):
            if option.strip() in options:
                raise OptionError(f"{option.strip()} is given twice", at=text)
            options[option.strip()] = read_value(written.strip())
        elif number == 0 and piece:
            argument = str(read_value(piece)) if piece.startswith('"') else piece
        else:
            raise OptionError(f"{piece!r} is no option=value", at=text)
    return SpelledCall(name.strip(), argument, options)


def read_value(text: str) -> Any:
    """A JSON value, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def arguments(what: str, factory: Callable[..., Any], call: SpelledCall, *, at: str) -> dict[str, Any]:
    """The arguments of `factory` by name: the argument of a call is its first positional one.

    `what` is the kind of thing that it makes, for errors; `at` is the option to name in them.

    Raises:
        OptionError: an option that it does not have, with the nearest one; an argument that it does not take; or one
            that it needs and that is missing. All of them together.
    """
    every = inspect.signature(factory).parameters.values()
    parameters = [one for one in every if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    takes_any = len(parameters) < len(every)
    names = [one.name for one in parameters]
    hint = f"{call.name}:option=value with {', '.join(names)}" if names else f"{call.name} alone"
    given, faults = dict(call.options), list[DecodekitError]()
    if call.argument is not None:
        first = next((one.name for one in parameters if one.kind != one.KEYWORD_ONLY), None)
        if first is None:
            cause = f"{what} {call.name!r} takes no {call.argument!r} without a name"
            faults.append(OptionError(cause, at=at, hint=hint))
        elif first in given:
            faults.append(OptionError(f"{first} of {what} {call.name!r} is given twice", at=at))
        else:
            given[first] = call.argument
    for name in given if not takes_any else ():
        if name not in names:
            near = did_you_mean(name, names)
            faults.append(OptionError(f"{what} {call.name!r} has no option {name!r}.{near}", at=at, hint=hint))
    missing = [one.name for one in parameters if one.default is one.empty and one.name not in given]
    if missing and not takes_any:
        wanted = ", ".join(missing)
        spelled = f'"{call.name}:{missing[0].upper()}"' if len(missing) == 1 else f'"{call.name}:{missing[0]}=..., ..."'
        value = f"{getattr(factory, '__name__', 'a value')}({', '.join(f'{name}=...' for name in missing)})"
        hint = f"{spelled}, or {value} in its place"
        faults.append(OptionError(f"{what} {call.name!r} needs {wanted}", at=at, hint=hint))
    raise_faults(faults)
    return given


def accepting(*others: inspect.Parameter) -> Callable[[Factory], Factory]:
    """Say which options a function takes by ``**options``: `inspect.signature` finds them behind its own."""

    def named(make: Factory) -> Factory:
        own = (one for one in inspect.signature(make).parameters.values() if one.kind is not one.VAR_KEYWORD)
        every = {one.name: one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *others)}
        make.__signature__ = inspect.Signature([*every.values()])  # type: ignore[attr-defined]
        return make

    return named
