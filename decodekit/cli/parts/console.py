"""The two streams of the command line and its exit codes: data on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from typing import Any

from decodekit.errors import (
    ConstraintError,
    DecodekitError,
    JobError,
    ModelError,
    OptionError,
    OutputError,
    UnknownNameError,
)
from decodekit.terminal import json_lines, one_line, plain_lines

DONE, CRASH, USAGE, SCHEMA_REFUSED, MODEL, SOME_FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 7, 130

EXIT_CODES_HELP = (
    "Exit codes: 0 done, 1 crash or output that cannot be written, 2 usage, 3 schema refused, 4 model or tokenizer, "
    "7 finished but some documents failed, 130 interrupted and resumable."
)

# The first class that fits decides. Output that cannot be written is no fault of how the command was written.
_EXIT_CODES: tuple[tuple[type[DecodekitError], int], ...] = (
    (OutputError, CRASH),
    (JobError, USAGE),
    (OptionError, USAGE),
    (UnknownNameError, USAGE),
    (ConstraintError, SCHEMA_REFUSED),
    (ModelError, MODEL),
)


def exit_code(error: DecodekitError) -> int:
    """The exit code of the command that an error ends."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), CRASH)


def escape_what_cannot_be_written() -> None:
    """Let both streams write a character that their encoding lacks as an escape, ``\\xe9``, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def typed_text(argument: str) -> str:
    """A text of the command line as the UTF-8 that was typed; of bytes that are none, what Python makes of them.

    In a plain C locale Python reads bytes beyond ASCII as surrogates. File names have to stay so; texts must not.
    """
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument


def note(text: str) -> None:
    """A line for the person at the terminal; what else the text has of lines is shown to belong to it."""
    first, *others = plain_lines(text).split("\n")
    lines = [first, *(f"    {line}" if line[:1].strip() else line for line in others)]
    print("\n".join(lines), file=sys.stderr, flush=True)


def print_text(text: str, end: str = "\n") -> None:
    """A text on stdout: as it is for a file or a pipe, without what a terminal obeys for a terminal."""
    print(plain_lines(text) if sys.stdout.isatty() else text, end=end, flush=True)


def print_json(value: Any) -> None:
    """A JSON value on stdout, indented for a terminal and on one line for a pipe."""
    print(as_json(value, indent=2 if sys.stdout.isatty() else None))


def as_json(value: Any, indent: int | None = None) -> str:
    """A JSON value as text that stdout can write: what its encoding lacks is escaped as JSON does."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if sys.stdout.isatty():
        text = json_lines(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, default=str)
    return text


class GrowingView:
    """A JSON value on stdout while it grows: drawn anew in its place on a terminal, else a line for each that is new.

    Of a value that is higher than the terminal, its end is seen while it grows.
    """

    def __init__(self) -> None:
        self._shown = ""
        self._num_lines = 0

    def show(self, value: Any, *, is_last: bool = False) -> None:
        """The value so far; the last one is shown whole."""
        is_terminal = sys.stdout.isatty()
        text = as_json(value, indent=2 if is_terminal else None)
        if text == self._shown and not (is_last and is_terminal):
            return
        self._shown = text
        if not is_terminal:
            print(text, flush=True)
            return
        columns, rows = shutil.get_terminal_size()
        lines = text.split("\n")
        if not is_last:
            # Half of the width holds any characters, also those that are two columns wide.
            lines = [line[: columns - 1 if line.isascii() else columns // 2 - 1] for line in lines[1 - rows :]]
        back = f"\x1b[{self._num_lines}F\x1b[J" if self._num_lines else ""
        print(back + "\n".join(lines), flush=True)
        self._num_lines = len(lines)


def print_table(rows: list[tuple[str, str]]) -> None:
    """Two columns on stdout, as plain text."""
    rows = [(one_line(name), one_line(value)) for name, value in rows]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name.ljust(width)}  {value}")
