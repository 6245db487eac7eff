"""`demo`: the sample documents through the bundled model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import DONE, note, print_table
from decodekit.errors import JobError
from decodekit.jobs.documents.documents import scan
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.folder.file_names import REPORT
from decodekit.jobs.folder.job_folder import JobFolder
from decodekit.jobs.reports.job_report import write_report
from decodekit.jobs.reports.job_view import JobView, total_fields
from decodekit.jobs.reports.progress import JobProgress


@command
def demo(
    output: Annotated[Path, o.output_option(help="Where the results go.")] = Path("out/demo"),
    model: o.Model = "tiny",
    examples: Annotated[
        Path | None, typer.Option(help="The folder of the sample documents; found by itself in the repository.")
    ] = None,
) -> int:
    """Extract JSON from the sample documents with the bundled model and compare it with what is right.

    Writes a job folder per kind of document and one report.html for all of them. Always starts afresh.
    """
    from decodekit.cli.jobs.extract import load_model
    from decodekit.jobs.extraction import Extraction, ExtractionOptions
    from decodekit.jobs.job_schema import load_schema

    folder = find_examples(examples)
    kinds = sorted(path.parent.name for path in folder.glob("*/schema.json"))
    llm = load_model(model, "auto", None)
    views = []
    for kind in kinds:
        options = ExtractionOptions(load_schema(str(folder / kind / "schema.json")), model=model)
        extraction = Extraction(llm, options)
        source = Input(kind, folder=str(folder.resolve()))
        job, _ = JobFolder.create_or_resume(output / kind, extraction.settings, fresh=True)
        note(f"{kind}:")
        with job:
            job.add_inputs([source])
            extraction.run(job, scan([source]).entries, observer=JobProgress())
        views.append(JobView.read(output / kind, expected=_expected(folder / kind)))
        write_report(output / kind / REPORT, views[-1:], title=f"Sample documents: {kind}")
    report = output / REPORT
    write_report(report, views, title=f"Sample documents through {model}")
    _print_summary(views, report)
    return DONE


def find_examples(given: Path | None) -> Path:
    """The folder of the sample documents; an installed package does not bring it along."""
    import decodekit

    places = [given] if given else [Path("examples"), Path(decodekit.__file__).resolve().parents[1] / "examples"]
    for place in places:
        if any(place.glob("*/schema.json")):
            return place
    raise JobError(
        f"no sample documents in {places[0] if given else 'examples/'}.",
        hint="the samples are in the repository of decodekit, not in the installed package: run this there, or give "
        "--examples FOLDER, with FOLDER/KIND/schema.json and FOLDER/KIND/*.txt.",
    )


def _expected(folder: Path) -> dict[str, Any]:
    """The right values of one kind, by the ids that its text files get: the name of the file under that of the kind."""
    path = folder / "expected.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = (json.loads(line) for line in lines if line.strip())
    return {f"{folder.name}/{row['id'].rpartition('/')[2]}.txt": row["value"] for row in rows}


def _print_summary(views: list[JobView], report: Path) -> None:
    rows = [(view.title, _line(len(view.done), len(view.failed), view.fields())) for view in views]
    num_done, num_failed = sum(len(view.done) for view in views), sum(len(view.failed) for view in views)
    rows.append(("all", _line(num_done, num_failed, total_fields(views))))
    seconds = sum(view.working_seconds for view in views)
    if seconds:
        num_tokens = sum(view.num_tokens for view in views)
        rate = f"{(num_done + num_failed) / seconds:.1f} documents/s, {num_tokens / seconds:,.0f} tokens/s"
        rows.append(("rate", rate))
    print_table([*rows, ("report", str(report))])


def _line(num_done: int, num_failed: int, fields: tuple[int, int] | None) -> str:
    right = f", {fields[0]} of {fields[1]} fields right ({fields[0] / fields[1]:.1%})" if fields and fields[1] else ""
    return f"{num_done} done, {num_failed} failed{right}"
