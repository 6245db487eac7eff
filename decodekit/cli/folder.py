"""`status` and `report`: look at a job folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodekit.cli import options as o
from decodekit.cli.console import command, note, print_json, print_table


@command
def status(directory: o.JobDirectory, as_json: o.Json = False) -> None:
    """Count what is done, failed and left; also while the job runs."""
    from decodekit.jobs.view import JobView

    figures = JobView.read(directory).to_json()
    if as_json:
        print_json(figures)
        return
    rows = [(name, _plain(figures[name])) for name in ("done", "failed")]
    rows += [(f"  {reason}", _plain(count)) for reason, count in figures["failures"].items()]
    if figures["cut"]:
        rows.append(("cut at the limit", _plain(figures["cut"])))
    rows.append(("left", "unknown: an input has gone" if figures["left"] is None else _plain(figures["left"])))
    rows.append(("tokens", _plain(figures["tokens"])))
    if figures["seconds"]:
        rows.append(("documents per second", _plain(figures["documents_per_second"])))
        rows.append(("tokens per second", _plain(figures["tokens_per_second"])))
    rows += [(name, str(figures[name])) for name in ("model", "strategy", "fingerprint")]
    last = figures["runs"][-1] if figures["runs"] else {}
    rows.append(("last run", last.get("outcome", "running, or killed") if last else "none"))
    print_table(rows)


@command
def report(
    directory: o.JobDirectory,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Left out: report.html in DIR.", show_default=False),
    ] = None,
    documents: Annotated[int, typer.Option(min=0, help="How many documents are shown with their text.")] = 2000,
) -> None:
    """Build report.html again: one file, with every document beside its JSON."""
    from decodekit.jobs.report import write_report
    from decodekit.jobs.store import REPORT
    from decodekit.jobs.view import JobView

    view = JobView.read(directory)
    path = output or directory / REPORT
    write_report(path, [view], title=view.title, max_documents=documents)
    note(f"report: {path}")


def _plain(value: float) -> str:
    return f"{value:,}"
