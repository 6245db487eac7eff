"""The command line in this process, with its commands made once: making them costs more than most of them do."""

from __future__ import annotations

from functools import cache
from typing import Any

import typer.main
import typer.testing

from decodekit.cli import app

_made: Any = cache(typer.main.get_command)
_testing: Any = typer.testing
_testing._get_command = _made


class Result:
    """What a command did: its exit code and its two streams. An exception that is no exit is raised."""

    def __init__(self, *arguments: object, stdin: str | bytes = "") -> None:
        result = typer.testing.CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
