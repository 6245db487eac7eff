"""`schema check`: which parts of a schema are enforced while decoding."""

from __future__ import annotations

from typing import Annotated

import typer

from decodekit.cli import options as o
from decodekit.cli.console import command

app = typer.Typer(help="Look at a schema.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at a schema."""


@app.command()
@command
def check(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA", help=o.SCHEMA_HELP, show_default=False)],
    as_json: o.Json = False,
) -> int:
    """Say what of a schema is enforced while decoding. Exit code 3 if it is refused."""
    raise NotImplementedError
