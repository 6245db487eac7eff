"""`schema check`: which parts of a schema are enforced while decoding."""

from __future__ import annotations

from typing import Annotated

import typer

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import Command, command
from decodekit.cli.parts.console import DONE, SCHEMA_REFUSED, print_json, print_text

app = typer.Typer(help="Look at a schema.", no_args_is_help=True)

_FACTS = "draft is_supported is_complete error impossible reasons least_tokens most_tokens warnings"
"""What is told of a coverage as JSON, by the names of its attributes."""


@app.callback()
def group() -> None:
    """Look at a schema."""


@app.command(cls=Command)
@command
def check(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA", help=o.SCHEMA_HELP)],
    model: Annotated[
        str | None, typer.Option(help="Count tokens with the tokenizer of this model, such as tiny.")
    ] = None,
    *,
    layout: o.SchemaOptions,
    as_json: o.Json = False,
) -> int:
    """Say which keywords are enforced at every token, which by a guard, which not; 3 if the schema is refused."""
    from decodekit.constraints import check
    from decodekit.jobs.job_schema import load_schema

    constraint = load_schema(schema, layout.given()).constraint
    tokenizer = None
    if model is not None:
        from decodekit.cli.jobs.extract import load_model

        tokenizer = load_model(model, "auto", None).vocabulary
    coverage = check(constraint, tokenizer=tokenizer)
    if as_json:
        facts = {name: getattr(coverage, name) for name in _FACTS.split()}
        keywords = [{"pointer": one.pointer, "status": one.status, "error": one.error} for one in coverage.keywords]
        validators = [{"name": one.name, "pointer": one.pointer, "status": one.status} for one in coverage.validators]
        print_json({**facts, "keywords": keywords, "validators": validators})
    else:
        print_text(str(coverage))
    return DONE if coverage.is_supported else SCHEMA_REFUSED
