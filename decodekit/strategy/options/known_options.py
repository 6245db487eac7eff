"""Options of other libraries, and what to write here in their place.

    answer("max_tokens", 64)         # Answer({"max_new_tokens": 64})
    answer("guided_regex", "[0-9]")  # Answer({"constraint": dk.Regex('[0-9]')})
    answer("use_cache", True)        # Answer({}, "a cache is always used, and changes no text.")

The table is ``known_options.toml``, which says how to read it; it is loaded when an option is unknown.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Code:
    """A value that is written as code: in Python, as the text of an option, and by the option of `decodekit generate`.

    The last two are empty if nothing says it there; `value` is what was given.
    """

    python: str
    spelled: str = ""
    command: str = ""
    value: Any = None

    def __repr__(self) -> str:
        return self.python


@dataclass(frozen=True, slots=True)
class Answer:
    """The option here for an option of another library.

    `write` are options of decodekit to write in its place, empty if it is to be left out, None if there is nothing;
    `note` says what differs, or why there is nothing.
    """

    write: Mapping[str, Any] | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """An option of other libraries.

    `kind` is the table that it stands in, ``is``, ``write``, ``left_out`` or ``missing``, and `entry` what that says of
    it; `note` is what differs here, `off` are values with which it does nothing.
    """

    libraries: str
    kind: str
    entry: Any
    note: str
    off: tuple[Any, ...]

    def answer(self, value: Any) -> Answer:
        """The text to write for a value."""
        if self.kind == "left_out":
            return Answer({}, self.entry)
        if value is None or any(type(value) is type(one) and value == one for one in self.off):
            return Answer({})
        if self.kind == "missing":
            return Answer(None, self.entry)
        if self.kind == "is":
            strategy, _, name = self.entry.rpartition(":")
            return Answer({"strategy": strategy, name: value} if strategy else {name: value}, self.note)
        return Answer({name: _filled(written, value) for name, written in self.entry.items()}, self.note)


def _filled(written: Any, value: Any) -> Any:
    """The text of the table, with a value in place of ``{}``; a list holds it as `Code` takes it."""
    if not isinstance(written, list):
        return written.format(value) if isinstance(written, str) else written
    python, spelled, command = (*written, "", "")[:3]
    return Code(python.format(shown(value)), spelled.format(json.dumps(value, default=str)), command, value)


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
    """The answer for an option of another library; None if no library that we know has it."""
    known = known_options().get(name)
    return None if known is None else known.answer(value)


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
