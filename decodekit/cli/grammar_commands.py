"""`grammar check | list | sample`: what a grammar is made of, which texts it accepts, and where it stops."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import Command, command
from decodekit.cli.parts.console import DONE, SOME_FAILED, print_json, print_table, print_text, typed_text
from decodekit.cli.parts.console import as_json as as_json_text

if TYPE_CHECKING:
    from decodekit.constraints.author.grammar_outline import Outline
    from decodekit.constraints.constraint import Constraint
    from decodekit.constraints.explain.explanation import Explanation

app = typer.Typer(help="Look at a grammar.", no_args_is_help=True)

_WIDTH = 100  # characters of a line that is shown with a mark below
_MAX_NAMES = 12

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A .lark, .gbnf or .regex file, a JSON Schema (.json), module.py:NAME, or the name of a grammar of the "
        "library or of an installed constraint.",
    ),
]
Start = Annotated[str | None, typer.Option(help="The rule to start from.")]


@app.callback()
def group() -> None:
    """Look at a grammar."""


@app.command(cls=Command)
@command
def check(
    file: File,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to try; - for one from stdin.")
    ] = None,
    start: Start = None,
    *,
    layout: o.SchemaOptions,
    as_json: o.Json = False,
) -> int:
    """Show what a grammar is made of, or whether it accepts texts; 7 if it does not accept all, 3 if it is refused.

    The texts come from elsewhere: a JSON Schema accepts them with any whitespace, escapes and digits that JSON allows,
    unless --whitespace, --escapes and --numbers ask for what is generated.
    """
    asked = layout.given()
    constraint = load(file, start, asked, is_judging=bool(texts))
    if not texts:
        from decodekit.constraints.author.grammar_outline import outline

        _print_outline(outline(constraint), as_json=as_json)
        return DONE
    from decodekit.constraints.author.members import explain

    given = [sys.stdin.read() if text == "-" else typed_text(text) for text in texts]
    found = [(text, explain(constraint, text)) for text in given]
    if as_json:
        print_json([_result(text, explanation) for text, explanation in found])
    else:
        for text, explanation in found:
            print_text(_shown(text, explanation))
    return DONE if all(explanation.is_allowed for _, explanation in found) else SOME_FAILED


@app.command("list", cls=Command)
@command
def list_(as_json: o.Json = False) -> int:
    """List the grammars of the library, and the constraints that packages have installed."""
    from decodekit.constraints.coercion import available_constraints
    from decodekit.constraints.grammar import library

    kinds = {name: library.path_of(name).name.removeprefix(f"{name}.") for name in library.names()}
    rows = [(name, kinds.get(name, "installed")) for name in available_constraints()]
    if as_json:
        print_json([{"name": name, "kind": kind} for name, kind in rows])
    else:
        print_table(rows)
    return DONE


@app.command(cls=Command)
@command
def sample(
    file: File,
    num: Annotated[int, typer.Option("-n", "--num", min=1, help="How many texts.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same texts.")] = 0,
    size: Annotated[int, typer.Option(min=0, help="Their mean length in bytes, where there is a choice.")] = 100,
    start: Start = None,
    *,
    layout: o.SchemaOptions,
    as_json: o.Json = False,
) -> int:
    """Write random texts of a grammar, one after the other; with --json each is a JSON string on a line."""
    from itertools import islice

    from decodekit.constraints.author.members import sample_texts

    constraint = load(file, start, layout.given())
    for text in islice(sample_texts(constraint, seed=seed, size=size), num):
        print_text(as_json_text(text) if as_json else text)
    return DONE


def load(
    source: str, start: str | None = None, asked: Mapping[str, Any] = MappingProxyType({}), *, is_judging: bool = False
) -> Constraint:
    """The constraint that a file holds, or that has a name: of the library or of an installed package.

    Args:
        asked: options of a JSON Schema.
        is_judging: whether texts from elsewhere are checked with it: a JSON Schema then takes any whitespace,
            escapes and digits, unless it was made with others or `asked` names them.
    """
    from decodekit.constraints.request_formats import json_schema_in
    from decodekit.jobs.job_schema import with_options

    constraint = _load(source, start)
    schema = json_schema_in(constraint)
    options = dict(asked)
    if is_judging and schema is not None:
        wide = {"whitespace": "natural", "escapes": "needed", "numbers": "short"}
        options = {name: "any" for name, usual in wide.items() if getattr(schema, name) == usual} | options
    return with_options(constraint, options) if options else constraint


def _load(source: str, start: str | None) -> Constraint:
    from decodekit.constraints import as_constraint
    from decodekit.constraints.coercion import available_constraints
    from decodekit.constraints.grammar import Grammar, library
    from decodekit.errors import NameNotFoundError, OptionError
    from decodekit.jobs.job_schema import is_reference
    from decodekit.plugins import near_or_first

    # What is no file is a name; the text of a grammar is not meant here.
    path = Path(source)
    is_schema = is_reference(source) or (source.endswith(".json") and os.path.isfile(path))
    names = available_constraints()
    if not is_schema:
        if os.path.isfile(path) or path.suffix in (".lark", ".gbnf", ".regex") or "/" in source:
            return Grammar(path, start=start)
        if source in library.names():
            return Grammar(library.path_of(source), start=start)
        if source not in names:
            cause = f"there is no constraint {source!r}: no file {str(path.absolute())!r}, no such name"
            raise NameNotFoundError(cause, hint=near_or_first(source, names))
    if start is not None:
        what = "what is no grammar file" if is_schema else "an installed constraint"
        raise OptionError(f"{start!r} is no start: {what} has no rules", at="--start", hint="no --start")
    if is_schema:
        from decodekit.jobs.job_schema import load_schema

        return load_schema(source).constraint
    return as_constraint(source)


def _print_outline(found: Outline, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
        return
    rows = [("kind", found.kind)]
    if found.start is not None:
        rows += [("start", found.start), ("rules", _names(found.rules)), ("terminals", _names(found.terminals))]
    if found.least is not None:
        rows.append(("least text", f"{found.least!r}, {len(found.least.encode()):,} bytes"))
    print_table([*rows, *(("warning", warning) for warning in found.warnings)])


def _names(names: tuple[str, ...]) -> str:
    more = f", {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{len(names)}: {', '.join(names[:_MAX_NAMES])}{more}" if names else "none"


def _result(text: str, explanation: Explanation) -> dict[str, Any]:
    return {
        "text": text,
        "is_accepted": explanation.is_allowed,
        "position": explanation.position,
        "message": explanation.text,
        "expected": list(explanation.expected),
    }


def _shown(text: str, explanation: Explanation) -> str:
    """The line of the text where it stops, with a mark below."""
    if explanation.is_allowed:
        return f"accepted  {text!r:.{_WIDTH}}"
    place = explanation.position
    begin = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    first = max(begin, place - _WIDTH * 3 // 4)
    line = text[first : min(len(text) if end < 0 else end, first + _WIDTH)]
    shown = "".join(character if character.isprintable() else " " if character == "\t" else "·" for character in line)
    number = text.count("\n", 0, place) + 1
    where = f"line {number}, column {place - begin + 1}: " if "\n" in text else ""
    return f"refused   {shown}\n{' ' * (10 + place - first)}^\n  {where}{explanation.text}"
