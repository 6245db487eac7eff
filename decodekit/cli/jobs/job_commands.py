"""`status` and `report`: look at a job folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import DONE, SOME_FAILED, note, print_json, print_table
from decodekit.errors import JobError, OptionError
from decodekit.jobs.documents.documents import counted
from decodekit.jobs.folder.file_names import REPORT
from decodekit.jobs.folder.job_folder import Damaged, JobFile
from decodekit.jobs.folder.shards import merge_jobs
from decodekit.jobs.reports.job_report import write_report
from decodekit.jobs.reports.job_view import JobView
from decodekit.jobs.reports.result_tables import TableFormat, tables_of, write_tables
from decodekit.terminal import one_line

MAX_NAMED = 8
"""Of many documents or lines, so many are named."""


@command
def status(directory: o.JobDirectory, as_json: o.Json = False) -> None:
    """Count what is done, failed and left; also while the job runs."""

    view = JobView.read(directory)
    print_damage(view.damaged)
    figures = view.to_json()
    if as_json:
        print_json(figures)
        return
    counts = {"done": figures["done"], "failed": figures["failed"]}
    counts |= {f"  {reason}": count for reason, count in figures["failures"].items()}
    if figures["cut"]:
        counts["cut at the limit"] = figures["cut"]
    if figures["damaged"]:
        counts["damaged lines"] = figures["damaged"]
    counts |= {"left": figures["left"], "tokens": figures["tokens"]}
    if figures["seconds"]:
        counts["done or failed per second"] = figures["documents_per_second"]
        counts["tokens per second"] = figures["tokens_per_second"]
    rows = [(name, "unknown: an input has gone" if n is None else f"{n:,}") for name, n in counts.items()]
    if figures["missing_shards"]:
        rows.append(("missing shards", figures["missing_shards"]))
    rows += [(name, str(figures[name])) for name in ("model", "strategy", "fingerprint")]
    last = figures["runs"][-1] if figures["runs"] else {"outcome": "none"}
    print_table([*rows, ("last run", last.get("outcome", "running, or killed"))])


@command
def report(
    directory: o.JobDirectory,
    output: Annotated[Path | None, o.output_option(metavar="FILE", help="Left out: report.html in DIR.")] = None,
    documents: Annotated[int, typer.Option(min=0, help="How many documents are shown with their text.")] = 2000,
) -> None:
    """Build report.html again: one file, with every document beside its JSON."""

    path = output or directory / REPORT
    if path.is_dir():
        raise OptionError(f"{str(path)!r} is a folder.", at="-o", hint=f"a file: {path / REPORT}")
    view = JobView.read(directory)
    print_damage(view.damaged)
    write_report(path, [view], title=view.title, max_documents=documents)
    note(f"report: {path}")


@command
def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Job folders, such as of --shard 1/2 and 2/2.")
    ],
    output: Annotated[Path, o.output_option(help="The job folder that gets them all.")],
) -> int:
    """Put the folders of the parts of a job together; the same command again adds what has come since.

    Nothing outside of the folders is read: `decodekit report` shows the texts of the documents.
    """

    num_repeated = merge_jobs(directories, output)
    view, _ = write_pages(output, is_closed=True)
    repeated = f"; {num_repeated} were there already" if num_repeated else ""
    note(f"{len(view.done)} done and {len(view.failed)} failed in {output}{repeated}")
    num_documents: int | None = view.job.selection.get("num_documents")  # of the inputs; None if no part tells
    num_missing = None if num_documents is None else max(0, num_documents - len(view.documents))
    missing_shards = view.job.missing_shards
    if num_missing or missing_shards:
        count = "documents" if num_missing is None else counted(num_missing, "document")
        why = f": nobody has brought the shards {missing_shards}" if missing_shards else ""
        note(f"missing: {count}{why}; the same command with all parts adds what has come since")
    return SOME_FAILED if view.failed else DONE


def write_pages(
    folder: Path, tables: Sequence[TableFormat] = (), *, is_closed: bool = False
) -> tuple[JobView, list[Path]]:
    """Write the report of a job, and its tables: those that it had, by default. The job, and the paths of these."""
    view = JobView.read(folder, is_closed=is_closed)
    write_report(folder / REPORT, [view], title=view.title)
    return view, write_tables(folder, tables or tables_of(folder), view.job.settings.schema)


def tell_program(job: JobFile, directory: Path) -> None:
    """Say on stderr that a program is run to have the schema of a job again. One in the folder of the job is a
    JobError: whoever made the folder would choose what is run."""
    from decodekit.jobs.job_schema import is_reference

    source = job.settings.schema_source
    if is_reference(source):
        module = source.rpartition(":")[0]
        if module.endswith(".py") and Path(module).resolve().is_relative_to(directory.resolve()):
            cause = f"the schema of the job is the program {source}, which lies in the folder of the job."
            raise JobError(cause, at=str(directory), hint="a copy of it outside, if it is yours, and extract with that")
        note(f"loading {source}: its module is run")


def named(ids: Sequence[str]) -> str:
    """The first of many ids, on a line."""
    return ", ".join(map(one_line, ids[:MAX_NAMED])) + (", ..." if len(ids) > MAX_NAMED else "")


def print_damage(damaged: Damaged) -> None:
    """Say on stderr which lines of a job folder were left out."""
    for name, lines in damaged.items():
        if lines:
            more = "" if len(lines) == 1 else f" and {len(lines) - 1} more"
            note(f"left out line {lines[0].number} of {name}{more}: {lines[0].why}")
