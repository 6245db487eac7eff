"""The two streams of the command line and its exit codes: data on stdout, everything else on stderr."""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, ParamSpec

import typer

from decodekit.cli.as_typed import given_options, told
from decodekit.errors import (
    ConstraintError,
    DecodekitError,
    JobError,
    ModelError,
    OptionError,
    OutputError,
    UnknownNameError,
)

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

P = ParamSpec("P")


def exit_code(error: DecodekitError) -> int:
    """The exit code of the command that an error ends."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), CRASH)


def command(function: Callable[P, int | None]) -> Callable[P, None]:
    """Make a function a command: what it returns is the exit code, and the errors it raises become exit codes.

    SIGTERM is taken like an interrupt from the keyboard, so a job that a scheduler stops ends in an orderly way.
    """

    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        escape_what_cannot_be_written()
        try:
            with _sigterm_interrupts():
                code = function(*args, **kwargs)
                sys.stdout.flush()
        except DecodekitError as error:
            note(told(error, [*parameters], given_options(function, kwargs)))
            code = exit_code(error)
        except KeyboardInterrupt:
            note("interrupted")
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader of stdout has gone (`| head`). Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = CRASH
        raise typer.Exit(code or DONE)

    return run


def escape_what_cannot_be_written() -> None:
    """Let both streams write a character that their encoding lacks as an escape, ``\\xe9``, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def note(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """A JSON value on stdout, indented for a terminal and on one line for a pipe."""
    print(as_json(value, indent=2 if sys.stdout.isatty() else None))


def as_json(value: Any, indent: int | None = None) -> str:
    """A JSON value as text that stdout can write: what its encoding lacks is escaped as JSON does."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, default=str)
    return text


def print_table(rows: list[tuple[str, str]]) -> None:
    """Two columns on stdout, as plain text."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name.ljust(width)}  {value}")
