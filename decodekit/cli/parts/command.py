"""Commands made of functions: options, exit codes, and the answer to an option that a command does not have.

    @command
    def check(schema: str, *, layout: SchemaOptions, as_json: Json = False) -> int: ...

has the options of `SchemaOptions` and ``--json``. typer takes one parameter for each option, so a parameter that is a
dataclass of options is shown to it as the fields of the dataclass, and put together again when the command runs.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from types import FrameType
from typing import Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand

from decodekit.cli.parts.as_typed import told, unknown
from decodekit.cli.parts.console import CRASH, DONE, INTERRUPTED, USAGE, escape_what_cannot_be_written, exit_code, note
from decodekit.errors import DecodekitError


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Make a function a command: what it returns is the exit code, and the errors it raises become exit codes.

    SIGTERM is taken like an interrupt from the keyboard, so a job that a scheduler stops ends in an orderly way.
    """
    parameters = inspect.signature(function, eval_str=True).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in parameters.items() if is_dataclass(one.annotation)}
    flat = [
        option for name, one in parameters.items() for option in (_options(groups[name]) if name in groups else [one])
    ]
    flat = [one.replace(kind=one.KEYWORD_ONLY) for one in flat]
    names = [one.name for one in flat]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        escape_what_cannot_be_written()
        try:
            with _sigterm_interrupts():
                code = function(**_grouped(groups, values))
                sys.stdout.flush()
        except DecodekitError as error:
            note(told(error, names, {one.name: values[one.name] for one in flat if values[one.name] != one.default}))
            code = exit_code(error)
        except KeyboardInterrupt:
            note("interrupted")
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader of stdout has gone (`| head`). Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = CRASH
        raise typer.Exit(code or DONE)

    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


def _options(group: type[Any]) -> list[inspect.Parameter]:
    """The options of a group, each with its annotation for typer."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default if one.default_factory is MISSING else one.default_factory(),
            annotation=hints[one.name],
        )
        for one in fields(group)
    ]


def _grouped(groups: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a command: the options of each group put together."""
    rest = dict(values)
    made = {name: group(**{one.name: rest.pop(one.name) for one in fields(group)}) for name, group in groups.items()}
    return {**rest, **made}


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


class Command(TyperCommand):
    """A command that answers an option that it does not have with what to write instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left; an unknown option is answered, and ends the command."""
        typed = [*args]
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if type(error).__name__ != "NoSuchOption" or not isinstance(option, str):
                raise
            names = [str(one.name) for one in self.params if str(one.opts[-1]).startswith("--")]
            note(str(unknown(option, typed, names, str(ctx.command_path))))
            ctx.exit(USAGE)
            raise AssertionError from error
