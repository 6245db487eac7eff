"""`extract` and `retry`: documents in, validated JSON out, in a job folder."""

from __future__ import annotations

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from decodekit import collector
from decodekit.cli.jobs.job_commands import named, print_damage, tell_program, write_pages
from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import DONE, INTERRUPTED, SOME_FAILED, note, typed_text
from decodekit.errors import DecodekitError, InvalidValueError, LengthError, OptionError, OutputError
from decodekit.jobs.document_prompt import BUNDLED_MODELS
from decodekit.jobs.documents.documents import DocumentRef, Scan, counted, read_stdin, scan, stdin_input
from decodekit.jobs.documents.files import MAX_DOCUMENT_MB, needed
from decodekit.jobs.documents.inputs import Input, without_own
from decodekit.jobs.folder.file_names import JOB, REPORT
from decodekit.jobs.folder.job_folder import Damaged, JobFile, JobFolder, known_inputs, read_failures
from decodekit.jobs.reports.progress import JobProgress
from decodekit.records.run_folder import check_free
from decodekit.terminal import one_line

if TYPE_CHECKING:
    from decodekit.jobs.extraction import Extraction, ExtractionOptions
    from decodekit.jobs.job_runner import RunSummary
    from decodekit.jobs.reports.result_tables import TableFormat
    from decodekit.llm import LLM


ExecutorOption: TypeAlias = Annotated[
    Literal["local", "ray"],
    typer.Option(help="In this process, or in workers of the Ray cluster of RAY_ADDRESS (else of this machine)."),
]
WorkersOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Workers of Ray, each with its model: by default one per GPU or CPU."),
]


@dataclass(frozen=True, slots=True)
class DocumentOptions:
    """The options that choose documents, and their texts."""

    id_field: Annotated[str, typer.Option(help="Field or column that holds the id.")] = "id"
    text_field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text"
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Further files of folders, such as '*.log' or '*.eml'; several times."),
    ] = None
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Files of folders that are no documents; several times.")
    ] = None
    encoding: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Of texts that declare none; auto: UTF-8, or UTF-16 by its mark; auto:cp1252: the same, else cp1252.",
        ),
    ] = "utf-8"
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first documents.")] = None
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Only the I-th of N parts (by id).")] = None
    max_failures: Annotated[int | None, typer.Option(min=1, help="Stop after so many failures.")] = None
    max_document_mb: Annotated[
        float, typer.Option(help="Mebibytes of a document after it is unpacked; a larger one fails.")
    ] = MAX_DOCUMENT_MB
    executor: ExecutorOption = "local"
    num_workers: WorkersOption = None
    alternatives: Annotated[
        bool,
        typer.Option(
            "--alternatives",
            help="The probability of every value that an enum, literal or boolean may have, in metrics.jsonl and the "
            "report; each document is read once more.",
        ),
    ] = False

    def input(self, path: str, folder: Path) -> Input:
        """An input as it is read with these options."""
        return Input(
            path,
            self.id_field,
            self.text_field,
            str(folder),
            max_document_mb=self.max_document_mb,
            include=tuple(self.include or ()),
            exclude=tuple(self.exclude or ()),
            encoding=self.encoding,
        )


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The options that make a prompt of a document."""

    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help="Prompt with {text} and perhaps {schema}, or @FILE. Left out: the bare document for the bundled "
            "models, else an instruction with the schema. A chat template is used if the model has one.",
            rich_help_panel=o.MODEL,
        ),
    ] = None
    raw: o.Raw = False
    chat_template_kwargs: o.ChatTemplateKwargs = None

    @property
    def template(self) -> str | None:
        """The template as it was typed; the name of a file stays as the system knows it."""
        given = self.prompt
        return given if given is None or given.startswith("@") else typed_text(given)


@command
def extract(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Files of text, HTML or PDF, folders of these, .jsonl, .csv and .parquet files (one document per "
            "row), or - for stdin (JSON lines if its first line is a JSON object, else one text). Each may be "
            "compressed (.gz) or a URL (s3://bucket/a.jsonl).",
        ),
    ],
    output: Annotated[Path, o.output_option(help="The job folder.")],
    schema: Annotated[str, typer.Option(help=o.SCHEMA_HELP)],
    *,
    layout: o.SchemaOptions,
    model: o.ModelOptions,
    prompt: PromptOptions,
    sampling: o.SamplingOptions,
    speed: o.SpeedOptions,
    documents: DocumentOptions,
    batch_size: o.BatchSize = "auto",
    max_new_tokens: o.MaxNewTokens = 512,
    on_length: Annotated[
        o.OnLength,
        typer.Option(help="A document at the budget: failed, returned as far as it came, or closed in time."),
    ] = "error",
    max_rollbacks: o.MaxRollbacks = None,
    max_retries: o.MaxRetries = 0,
    output_format: Annotated[
        Literal["jsonl", "csv", "excel", "parquet"],
        typer.Option(
            help="A table of the results beside results.jsonl, which is always written; excel is CSV in which no text "
            "is a formula."
        ),
    ] = "jsonl",
    fresh: o.Fresh = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on in a folder made with other settings; each row names its own.")
    ] = False,
) -> int:
    """Extract JSON from documents. Run the same command again to resume; nothing is done twice.

    The folder gets job.json, results.jsonl (id and value per line), failed.jsonl and report.html. Unless --speculate
    says otherwise, the schema and the document itself guess ahead; that never changes a result.
    """
    from decodekit.jobs.extraction import ExtractionOptions
    from decodekit.jobs.job_schema import load_schema

    if fresh and force:
        raise OptionError("--fresh and --force cannot be combined: one deletes what the other keeps.", at="--force")
    shard = o.parse_shard(documents.shard)
    chosen = ExtractionOptions(
        load_schema(schema, layout.given()),
        model=model.model,
        strategy=sampling.strategy,
        strategy_options=sampling.of_strategy(),
        prompt=prompt.template,
        is_raw=prompt.raw,
        max_new_tokens=max_new_tokens,
        on_length=on_length,
        seed=sampling.seed,
        speculate=o.parse_speculate(speed.speculate),
        fast_forward=speed.fast_forward,
        max_rollbacks=max_rollbacks,
        max_retries=max_retries,
        chat_template_kwargs=o.parse_chat_template_kwargs(prompt.chat_template_kwargs),
        batch_size=o.parse_batch_size(batch_size),
        max_failures=documents.max_failures,
        executor=documents.executor,
        num_workers=documents.num_workers,
        alternatives=documents.alternatives,
        device_map=model.device_map,
    )
    if output_format == "parquet":
        needed("pyarrow", "tables", "--output-format parquet")
    selection: dict[str, Any] = {"shard": shard, "limit": documents.limit}
    selection["tables"] = [] if output_format == "jsonl" else [output_format]
    return _extract(inputs, output, chosen, model.dtype, documents, selection, fresh=fresh, force=force)


def _extract(
    inputs: list[str],
    output: Path,
    chosen: ExtractionOptions,
    dtype: str,
    documents: DocumentOptions,
    selection: Mapping[str, Any],
    *,
    fresh: bool,
    force: bool,
) -> int:
    """Read the inputs, then load the model and run the job; their faults are reported before it loads."""
    from decodekit.jobs.extraction import Extraction
    from decodekit.jobs.job_schema import warnings_of

    chosen.check()
    check_free(output)
    sources, own = without_own([documents.input(path, Path.cwd()) for path in inputs if path != "-"], output)
    known = [] if fresh else known_inputs(output)
    found = scan(sources, known=known)
    piped = read_stdin(sys.stdin.buffer, documents.input("", output)) if "-" in inputs else None
    for warning in warnings_of(chosen.schema):
        note(f"schema: {warning}")
    extraction = Extraction(load_model(chosen.model, dtype, chosen.device_map), chosen)
    folder, is_resumed = JobFolder.create_or_resume(output, extraction.settings, fresh=fresh, force=force)
    with folder:
        if piped is not None:
            sources.append(stdin_input(piped, output, documents.input("", output)))
            found = scan(sources, known=known)
        _print_left_out(found, own)
        folder.add_inputs(sources)
        if is_resumed:
            note(f"resuming {output}: {len(folder.done)} done, {len(folder.failures)} failed")
        return run(extraction, folder, found.entries, **selection)


@command
def retry(
    directory: o.JobDirectory,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Another budget.")] = None,
    on_length: Annotated[o.OnLength | None, typer.Option(help="What becomes of a document cut at the budget.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed.")] = None,
    max_rollbacks: o.MaxRollbacks = None,
    max_retries: Annotated[int | None, typer.Option(min=0, help="How often each is asked for again.")] = None,
    batch_size: o.BatchSize = "auto",
    device_map: o.DeviceMap = None,
    executor: ExecutorOption = "local",
    num_workers: WorkersOption = None,
) -> int:
    """Run the failed documents of a job again; those that succeed move to results.jsonl.

    Settings are the job's own, but for the options given here; each row names the settings it was made with.
    """
    from decodekit.jobs.extraction import Extraction, ExtractionOptions

    rows = o.parse_batch_size(batch_size)
    job = JobFile.read(directory)
    damaged: Damaged = defaultdict(list)
    failures = read_failures(directory, damaged)
    if not failures:
        print_damage(damaged)
        note(f"{directory} has no failed documents")
        return DONE
    check_free(directory)
    gone: list[DecodekitError] = []
    entries = scan(job.inputs, is_lookup=True, gone=gone).entries
    found = {entry.id: entry for entry in entries if entry.id in failures}
    for error in gone:
        note(f"an input of {directory / JOB} cannot be used: {error.cause}")
    missing = [document_id for document_id in failures if document_id not in found]
    if missing:
        text = "document stays failed: it is" if len(missing) == 1 else "documents stay failed: they are"
        note(f"{len(missing):,} {text} no longer in the inputs: {named(missing)}")
    if not found:
        return SOME_FAILED
    tell_program(job, directory)
    changes: dict[str, Any] = {"max_new_tokens": max_new_tokens, "on_length": on_length, "seed": seed}
    changes |= {"max_rollbacks": max_rollbacks, "max_retries": max_retries}
    changes |= {"batch_size": rows, "executor": executor, "num_workers": num_workers, "device_map": device_map}
    chosen = ExtractionOptions.of_settings(job.settings, **changes)
    chosen.check()
    extraction = Extraction(load_model(chosen.model, job.settings.dtype, chosen.device_map), chosen)
    # The settings may differ: every line names its own, and the job keeps those of `extract`.
    with JobFolder.create_or_resume(directory, extraction.settings, retries=True)[0] as folder:
        return run(extraction, folder, list(found.values()), retries=True)


def load_model(name: str, dtype: str, device_map: str | None) -> LLM:
    """Load a model and say so on stderr, for it may take a while."""
    if name in BUNDLED_MODELS or Path(name).is_dir():
        # Nothing is downloaded, so a bar about it would only be noise between our own lines.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from decodekit.llm import LLM

    note(f"loading {name}")
    llm = LLM.load(name, dtype=dtype, device_map=device_map)
    collector.settle()
    return llm


def run(
    extraction: Extraction,
    folder: JobFolder,
    entries: list[DocumentRef],
    tables: Sequence[TableFormat] = (),
    **selection: Any,
) -> int:
    """Run a job on stderr, write its report and tables, those that it had by default, and return the exit code."""
    for name, lines in folder.damaged.items():
        if lines:
            where = f"line {lines[0].number}: {lines[0].why}"
            moved = counted(len(lines), "damaged line")
            note(f"moved {moved} of {name} to damaged.jsonl ({where}); what they lack is done again")
    if folder.num_torn_bytes:
        note(f"cut {counted(folder.num_torn_bytes, 'byte')} of torn lines off; their documents are done again")
    try:
        summary = extraction.run(folder, entries, observer=JobProgress(), **selection)
    except KeyboardInterrupt:
        note(
            f"interrupted: {len(folder.done)} done and {len(folder.failures)} failed are in {folder.path}; "
            "run the same command again to go on"
        )
        try:
            _write_pages(folder, tables)
            note(f"report: {folder.path / REPORT}")
        except OutputError as error:
            note(str(error))
        return INTERRUPTED
    return tell_end(summary, folder, tables)


def tell_end(summary: RunSummary, folder: JobFolder, tables: Sequence[TableFormat] = ()) -> int:
    """Write the report of a job and its tables, tell what a run did, and return the exit code."""
    _write_pages(folder, tables)
    _print_summary(summary, folder)
    return SOME_FAILED if folder.failures else DONE


def _write_pages(folder: JobFolder, tables: Sequence[TableFormat]) -> None:
    for path in write_pages(folder.path, tables)[1]:
        note(f"results as a table: {path}")


def _print_left_out(found: Scan, own: Sequence[str]) -> None:
    if found.skipped:
        kind = "is no text file" if len(found.skipped) == 1 else "are no text files"
        note(
            f"left out {counted(len(found.skipped), 'file')} of folders that {kind} "
            f"({found.skipped_kinds}), such as {one_line(found.skipped[0])}"
            + (f"; what is text of them: {one_line(found.way)}" if found.way else "")
        )
    if found.hidden:
        part = next(part for part in reversed(found.hidden[0].split("/")) if part.startswith("."))
        hidden, way = one_line(found.hidden[0]), one_line(shlex.quote(part))
        note(f"left out {counted(len(found.hidden), 'hidden file')}, such as {hidden}; --include {way} takes it")
    if own:
        note(f"left out {counted(len(own), 'input')} that the job itself has written, such as {one_line(own[0])}")
    if found.outside:
        note(
            f"left out {counted(len(found.outside), 'link')} out of their folders or to nothing, "
            f"such as {one_line(found.outside[0])}; what a link leads to is read where it is named itself"
        )
    if found.repeated:
        first = one_line(found.repeated[0])
        note(f"files that are named more than once are done once: {len(found.repeated)}, such as {first}")


def _print_summary(summary: RunSummary, folder: JobFolder) -> None:
    if summary.num_changed:
        changed = "has changed since it was" if summary.num_changed == 1 else "have changed since they were"
        note(f"{counted(summary.num_changed, 'document')} {changed} done, and done again")
    if summary.num_unread:
        results = "document that is done cannot be read any more; its result stays"
        results = results if summary.num_unread == 1 else "documents that are done cannot be read; their results stay"
        note(f"{summary.num_unread:,} {results}")
    num_ended = summary.num_done + summary.num_failed
    rate = f", {num_ended / summary.seconds:.1f} documents/s, {summary.num_tokens / summary.seconds:,.0f} tokens/s"
    note(
        f"{summary.num_done} done and {summary.num_failed} failed in {summary.seconds:.1f} s"
        f"{rate if num_ended else ''}; {len(folder.done)} done and {len(folder.failures)} failed in all"
    )
    if summary.is_stopped:
        note("stopped at the limit of failures; run the same command again to go on")
    if folder.failures:
        again = f"`decodekit retry {folder.path}` runs them again"
        if InvalidValueError.code in summary.failures:
            # A greedy text is the same again, unless the model reads what was refused.
            again = f"`decodekit retry {folder.path} --max-retries 2` runs them again, and asks again with the reason "
            again += "what a validator has refused"
        if LengthError.code in summary.failures:
            again += "; a larger --max-new-tokens has room for those that were cut"
        note(f"see {folder.path / 'failed.jsonl'}; {again}")
    note(f"report: {folder.path / 'report.html'}")
