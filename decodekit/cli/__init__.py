"""The command line: `decodekit VERB`. Data goes to stdout, everything else to stderr.

Commands load what they need inside their functions, so that `decodekit --help` loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated

import typer

from decodekit import __version__, collector
from decodekit.cli import bench, doctor, eval, serve, strategies
from decodekit.cli import generate_command as generate
from decodekit.cli import grammar_commands as grammar
from decodekit.cli import schema_commands as schema
from decodekit.cli.jobs import demo, extract
from decodekit.cli.jobs import exchange_commands as exchange
from decodekit.cli.jobs import job_commands as folder
from decodekit.cli.parts.command import Command
from decodekit.cli.parts.console import EXIT_CODES_HELP

app = typer.Typer(
    name="decodekit",
    help="Structured extraction and decoding with any Hugging Face causal language model.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in (
    extract.extract,
    folder.status,
    extract.retry,
    folder.report,
    exchange.export,
    folder.merge,
    generate.generate,
    serve.serve,
    demo.demo,
    doctor.doctor,
    bench.bench,
    strategies.strategies,
):
    app.command(cls=Command)(function)
app.command("import", cls=Command)(exchange.take_back)
app.command("eval", cls=Command)(eval.evaluate)
app.add_typer(schema.app, name="schema")
app.add_typer(grammar.app, name="grammar")


def _print_version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Structured extraction and decoding with any Hugging Face causal language model."""


def main() -> None:
    """Entry point of the `decodekit` command."""
    collector.take_over()
    app()
