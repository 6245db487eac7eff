"""Options of other libraries, and what to write here in their place.

    answer("max_tokens", 64)   # Answer({"max_new_tokens": 64})
    answer("use_cache", True)  # Answer({}, "a cache is always used, and changes no text.")

The table is ``known_options.toml``, which says how to read it; it is loaded when an option is unknown. Here is how an
answer is made of an entry and of the value that was given. `test_known_options` tries every answer.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Code:
    """A value that is written as code.

    Args:
        python: in Python.
        spelled: as the text of an option; None if no text says it.
        command: as options of `decodekit generate`; None if it has none.
        make: makes the value; None if it is not needed to see whether a strategy takes it.
    """

    python: str
    spelled: str | None = None
    command: str | None = None
    make: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        return self.python


@dataclass(frozen=True, slots=True)
class Answer:
    """What an option of another library is here.

    Args:
        write: options of decodekit to write in its place; empty if it is to be left out, None if there is nothing.
        note: what differs, or why there is nothing.
    """

    write: Mapping[str, Any] | None
    note: str = ""


Rule: TypeAlias = Callable[[Any], Answer]


@dataclass(frozen=True, slots=True)
class Known:
    """An option of other libraries.

    Args:
        libraries: who calls it so.
        kind: the table that it stands in: ``is``, ``speculate``, ``by``, ``left_out`` or ``missing``.
        entry: what the table says of it.
        note: what differs from the option here.
        off: values with which it does nothing.
    """

    libraries: str
    kind: str
    entry: str
    note: str
    off: tuple[Any, ...]

    def answer(self, value: Any) -> Answer:
        """What to write for a value."""
        if self.kind == "by":
            return _BY_VALUE[self.entry](value)
        if self.kind == "left_out":
            return Answer({}, self.entry)
        if _is_one_of(value, self.off):
            return Answer({})
        if self.kind == "missing":
            return Answer(None, self.entry)
        if self.kind == "speculate":
            return Answer({"speculate": self.entry.format(value)})
        strategy, _, name = self.entry.rpartition(":")
        return Answer({"strategy": strategy, name: value} if strategy else {name: value}, self.note)


@cache
def known_options() -> Mapping[str, Known]:
    """Options of other libraries by name; of two libraries the first says what a name means.

    None of them is an option of decodekit, but for ``n`` and ``do_sample``, which mean something else there.
    """
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    notes, off, libraries = (dict(_by_name(table.pop(one))) for one in ("notes", "off", "libraries"))
    return {
        name: Known(
            libraries.get(name, library),
            kind,
            entry,
            notes.get(name, ""),
            tuple(off.get(name, [False] if kind == "missing" else [])),
        )
        for library, kinds in table.items()
        for kind, entries in kinds.items()
        for name, entry in _by_name(entries)
    }


def _by_name(entries: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The entries of a table; a key may hold several names."""
    return ((name, entry) for names, entry in entries.items() for name in names.split())


def answer(name: str, value: Any) -> Answer | None:
    """What to write for an option of another library; None if no library that we know has it."""
    known = known_options().get(name)
    if known is None:
        return None
    return Answer({}) if value is None else known.answer(value)


def shown(value: Any) -> str:
    """A value as code; three dots for one that is long or has no code."""
    if isinstance(value, type):
        return value.__name__
    written = repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{written}')"
    if type(value).__module__.startswith("decodekit.") and not isinstance(value, Code):
        written = f"dk.{written}" if written.count("(") == 1 else "..."
    return "..." if len(written) > 120 or written.startswith("<") else written


def _is_one_of(value: Any, options: Iterable[Any]) -> bool:
    """Whether a value is one of some plain ones; True is no 1 here."""
    return any(type(value) is type(one) and value == one for one in options)


def _constraint(python: str, command: str | None = None) -> Rule:
    """A constraint that is made of the value by a class of decodekit."""

    def rule(value: Any) -> Answer:
        typed = None if command is None else f"{command} {_quoted(value)}"
        return Answer({"constraint": Code(python.format(shown(value)), command=typed)})

    return rule


_choices: Final = _constraint("dk.Choices({})", "--choices")
_regex: Final = _constraint("dk.Regex({})", "--regex")


def _quoted(value: Any) -> str:
    """A value as a word of the command line."""
    if isinstance(value, list | tuple):
        value = ",".join(str(one) for one in value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text.replace("-", "").replace(".", "").replace("_", "").isalnum() else "'" + text + "'"


def _schema(value: Any) -> Answer:
    """A JSON Schema: a mapping or its text, a Python type, or OpenAI's response format."""
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except ValueError:
            return Answer({"constraint": Code("...", command=f"--schema {_quoted(value)}")}, "the schema as a dict.")
    if isinstance(value, bool):
        return Answer({"constraint": {"type": "object"}} if value else {})
    if isinstance(value, Mapping):
        if value.get("type") == "text":
            return Answer({}, "text that may be anything has no constraint.")
        if value.get("type") in ("json", "regex") and "value" in value:  # of text-generation-inference
            return (_schema if value["type"] == "json" else _regex)(value["value"])
        if isinstance(value.get("schema"), Mapping) and "type" not in value["schema"].keys() & value.keys():
            value = value["schema"] if value.get("type") in ("json_schema", "json_object") else value
    return Answer({"constraint": value})


def _grammar(value: Any) -> Answer:
    return _schema(value) if isinstance(value, Mapping) else _constraint("dk.Grammar({})")(value)


_GUIDED: Final[Mapping[str, Rule]] = {
    "json": _schema,
    "json_object": _schema,
    "regex": _regex,
    "choice": _choices,
    "grammar": _grammar,
    "structural_tag": _schema,
}
"""What vLLM's structured outputs are made of."""


def _guided(value: Any) -> Answer:
    """vLLM's structured outputs, as a mapping or as the object that they are."""
    for name, rule in _GUIDED.items():
        given = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if given is not None:
            return rule(given)
    return Answer({"constraint": Code("...")})


def _output_type(value: Any) -> Answer:
    """Outlines takes Python types, lists of choices, and objects of its own."""
    if isinstance(value, list | tuple):
        return _choices([*value])
    for name, rule in (("pattern", _regex), ("schema", _schema), ("definition", _grammar)):
        given = getattr(value, name, None)
        if isinstance(given, str | Mapping) and not isinstance(value, type):
            return rule(given)
    return _schema(value)


def _tool_choice(value: Any) -> Answer:
    if _is_one_of(value, ("none", "auto")):
        return Answer({}, 'with "auto" a constraint for tools allows plain text, without one no tool is called.')
    return Answer({"constraint": Code("dk.tools(...)")}, "dk.tools says which tools may be called.")


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _guidance(value: Any) -> Answer:
    if _is_one_of(value, (1, 1.0)):
        return Answer({})
    return Answer({"contrast": Code(f"dk.Guidance(scale={shown(value)})", f"guidance:scale={shown(value)}")})


def _negative_prompt(value: Any) -> Answer:
    if not isinstance(value, str):
        return Answer(None, "a negative prompt is a text: contrast=dk.Guidance(negative_prompt=...).")
    text = f"guidance:negative_prompt={json.dumps(value)}"
    return Answer({"contrast": Code(f"dk.Guidance(negative_prompt={value!r})", text)})


def _dola(value: Any) -> Answer:
    layers = value if isinstance(value, str) else [*_listed(value)]
    return Answer({"contrast": Code(f"dk.DoLa(layers={layers!r})", f"dola:layers={layers}")})


def _watermark(value: Any) -> Answer:
    names = {"greenlist_ratio": "ratio", "bias": "delta", "hashing_key": "key", "context_width": "context_width"}
    said = value if isinstance(value, Mapping) else {name: getattr(value, name, None) for name in names}
    found = {ours: said[theirs] for theirs, ours in names.items() if said.get(theirs) is not None}
    python = f"dk.Watermark({', '.join(f'{name}={one!r}' for name, one in found.items())})"
    code = Code(python, json.dumps(found) if found else "true")
    return Answer({"watermark": code}, "the hash is another than in transformers.")


def _dynatemp(value: Any) -> Answer:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        return Answer({"dynamic_temperature": Code("(0.5, 1.5)", "[0.5,1.5]")}, "(lowest, highest) temperature.")
    if value == 0:
        return Answer({})
    low, high = round(1 - value, 6), round(1 + value, 6)
    code = Code(f"({low}, {high})", f"[{low},{high}]")
    return Answer({"dynamic_temperature": code}, "(lowest, highest) temperature, here around 1.")


_BY_VALUE: Final[Mapping[str, Rule]] = {
    "beam_search": lambda value: Answer({} if _is_one_of(value, (False, 0)) else {"strategy": "beam"}),
    "choices": _choices,
    "do_sample": lambda value: Answer(
        {"strategy": "greedy" if _is_one_of(value, (False,)) else "sample"}, "the strategy says it."
    ),
    "dola": _dola,
    "dynatemp": _dynatemp,
    "format": lambda value: _schema(True if value == "json" else value),  # Ollama's: "json" or a schema
    "grammar": _grammar,
    "guidance": _guidance,
    "guided": _guided,
    "negative_prompt": _negative_prompt,
    "output_type": _output_type,
    "regex": _regex,
    "schema": _schema,
    "scores": lambda value: Answer(
        {"logprobs": True} if value else {}, "Completion.logprobs has the log-probability of every token."
    ),
    "suppressed": lambda value: Answer({"bad_words": [[int(one)] for one in _listed(value)] or None}),
    "tool_choice": _tool_choice,
    "tools": _constraint("dk.tools({})"),
    "watermark": _watermark,
}
"""The functions that the tables ``by`` name."""
