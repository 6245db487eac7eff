"""Options in errors, as one types them on the command line: ``--top-p 2`` and not ``top_p=2``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from decodekit.errors import DecodekitError, OptionError, collecting
from decodekit.plugins import nearest
from decodekit.spelling import read_call, read_value

if TYPE_CHECKING:
    from decodekit.strategy.options.remedies import Remedy

_VALUE: Final = r"""("[^"\n]*"|'[^'\n]*'|[^\s,;:()'"]+)"""

_ELSEWHERE: Final[Mapping[str, str]] = {
    "prompt": "the prompt as the argument of `generate`",
    "grammar_file": "generate --constraint FILE",
    "json_schema_file": "--schema FILE",
    "file": "@FILE as --prompt of `extract`, or - for stdin",
    "max_seq_len": "leaving it out: --max-new-tokens bounds a text",
}
"""Options of other command lines that are no options of their libraries."""


def dashed(name: str) -> str:
    """``--top-p`` for ``top_p``."""
    return {"as_json": "--json", "num_workers": "--workers"}.get(name, f"--{name.replace('_', '-')}")


def told(error: DecodekitError, names: Sequence[str], given: Mapping[str, Any]) -> str:
    """An error with options as they are typed: `names` are those of the command, `given` stand on the command line."""
    faults = error.faults if isinstance(error, OptionError) else ()
    if faults:
        first = error.cause.split("\n")[0]
        lines = [told(fault, names, given).replace("\n", "\n    ") for fault in faults]
        return "\n  - ".join([f"{error.code} {first}", *lines])
    at, cause, hint = error.at, error.cause, error.hint
    remedy: Any = getattr(error, "remedy", None)
    if at is not None and at in given:
        cause = re.sub(rf"^{re.escape(at)}\b(?!=)", dashed(at), cause)
        at = dashed(at)
    cause = _replaced(cause, [*given])
    if remedy is not None and (hint is None or ":" not in hint or "=dk." in hint):
        hint = as_options(remedy, names, given)
    elif hint is not None:
        hint = _replaced(hint, names)
    return str(type(error)(cause, at=at, hint=hint, code=error.code))


def _replaced(text: str, names: Sequence[str]) -> str:
    """``name=value`` as ``--name value``, ``name=True`` and names that are not English words as ``--name``."""
    for name in names:
        text = re.sub(rf"(?<![\w.:,-]){name}=True\b", dashed(name), text)
        text = re.sub(rf"(?<![\w.:,-]){name}={_VALUE}", rf"{dashed(name)} \1", text)
        if "_" in name:
            text = re.sub(rf"(?<![\w.:,-]){name}\b(?!=)", dashed(name), text)
    return text


def as_options(remedy: Remedy, names: Sequence[str], given: Mapping[str, Any]) -> str:
    """The correction, as options of a command."""
    from decodekit.strategy.options.known_options import Code, shown
    from decodekit.strategy.options.remedies import spelled

    words: list[str] = []
    if not remedy.is_other and remedy.options and all(name in names for name in remedy.options):
        words += [f"{dashed(name)} {_word(value)}" for name, value in remedy.options.items()]
    elif remedy.options or remedy.is_other:
        before = {} if remedy.is_other else read_call(str(given.get("strategy") or remedy.strategy)).options
        beside = {name: value for name, value in remedy.options.items() if name not in given or not remedy.is_other}
        text = spelled(remedy.strategy, {**before, **beside})
        words.append(f"{'--strategies' if 'strategies' in names else '--strategy'} {_word(text)}")
    for name, value in remedy.generation.items():
        if isinstance(value, Code) and value.command and value.command in map(dashed, names):
            is_list = isinstance(value.value, list | tuple)
            words.append(f"{value.command} {_word(','.join(map(str, value.value)) if is_list else value.value)}")
        elif name in names:
            each = value if isinstance(value, list | tuple) else [value]
            words += [f"{dashed(name)} {_word(one)}" for one in each]
        else:
            words.append(f"in Python, {name}={shown(value)}")
    return " ".join(words)


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if re.fullmatch(r"[\w.,:=+/@-]+", text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def unknown(option: str, typed: Sequence[str], names: Sequence[str], command: str) -> OptionError:
    """The fault of an option, as it was typed among all words, that a command with these `names` of options does not
    have."""
    name = option.lstrip("-").replace("-", "_")
    cause = f"no option {option}."
    if name in _ELSEWHERE:
        return OptionError(cause, at=command, hint=_ELSEWHERE[name])
    if {"strategy", "strategies"} & {*names} and (found := _of_a_strategy(option, name, typed, names)):
        return found
    near = nearest(name, names)
    if near is not None:
        return OptionError(f"{cause} Did you mean {dashed(near)}?", at=command)
    return OptionError(cause, at=command, hint=f"`{command} --help`, which lists the options")


def _of_a_strategy(option: str, name: str, typed: Sequence[str], names: Sequence[str]) -> OptionError | None:
    """The answer where the option decides how texts are decoded; None if it is near to one of the command alone."""
    from decodekit.strategy.options.generate_options import GENERATION_OPTIONS
    from decodekit.strategy.options.known_options import answer, known_options
    from decodekit.strategy.options.remedies import Remedy
    from decodekit.strategy.strategy_names import all_option_names

    value = _value_of(option, typed)
    if name in GENERATION_OPTIONS:
        cause = f"no option {option} of this command."
        return OptionError(cause, at=option, hint=f"LLM.generate(..., {name}=...) in Python")
    every = [*names, *all_option_names(), *known_options()]
    near = name if name in every else nearest(name, every)
    if near is None or near in names:
        return None
    known = None if near in all_option_names() and near != "n" else known_options().get(near)
    cause = f"no option {option}" + (f" ({known.libraries})" if known is not None and near == name else "") + "."
    cause += f" Did you mean {dashed(near)}?" if near != name else ""
    found = answer(near, value) if known is not None else None
    cause += f" {found.note[:1].upper()}{found.note[1:]}" if found is not None and found.note else ""
    strategy = str(_value_of("--strategy", typed) or "greedy")
    call = read_call(strategy.partition("+")[0])
    fault = _fault(call.name, {**call.options, near: value}, near)
    # Where there is no fault, the strategy has it, and the command line has no option of its own for it.
    remedy: Any = Remedy(call.name, options={near: value}) if fault is None else fault.remedy
    if remedy is not None:
        return OptionError(cause, at=option, hint=as_options(remedy, names, {"strategy": strategy}))
    hint = None if fault is None else fault.hint
    return OptionError(cause, at=option, hint=f"leaving {option} out" if hint == f"leaving {near} out" else hint)


def _fault(strategy: str, options: Mapping[str, Any], name: str) -> OptionError | None:
    """The fault of one of the options."""
    from decodekit.strategy import resolve_strategy

    faults: list[DecodekitError] = []
    with collecting(faults):
        resolve_strategy(strategy, options)
    every = [one for fault in faults if isinstance(fault, OptionError) for one in fault.faults or (fault,)]
    return next((one for one in every if isinstance(one, OptionError) and one.at == name), None)


def _value_of(option: str, typed: Sequence[str]) -> Any:
    """The value behind an option; True where there is none."""
    for place, word in enumerate(typed):
        if word == option:
            following = typed[place + 1] if place + 1 < len(typed) else "--"
            is_value = not following.startswith("-") or following[1:2].isdigit()
            return read_value(following) if is_value else True
        if word.startswith(f"{option}="):
            return read_value(word.partition("=")[2])
    return None
