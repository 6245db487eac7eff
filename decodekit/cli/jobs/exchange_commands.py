"""`export` and `import`: the open documents of a job as a file of requests, and the answers to them taken back."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from decodekit.cli.jobs.extract import tell_end
from decodekit.cli.jobs.job_commands import MAX_NAMED, named, print_damage, tell_program
from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import DONE, SOME_FAILED, note
from decodekit.jobs.document_prompt import Prompt
from decodekit.jobs.documents.documents import counted, scan
from decodekit.jobs.folder.job_folder import Damaged, JobFile, JobFolder, read_failures, read_results
from decodekit.jobs.job_runner import JobRunner, open_documents
from decodekit.jobs.reports.progress import JobProgress
from decodekit.records.ledger import encode_line, replace_file

_OPENAI_REQUESTS = 50_000


@command
def export(
    directory: o.JobDirectory,
    to: Annotated[
        Literal["openai-batch", "vllm-batch"],
        typer.Option(
            help="openai-batch: OpenAI's Batch API, and every engine that reads its files; vllm-batch: with what vLLM, "
            "SGLang and LMDeploy add to it (top_k, min_p, repetition_penalty, patterns, bare prompts)."
        ),
    ] = "openai-batch",
    output: Annotated[Path | None, o.output_option(metavar="FILE", help="Left out: the requests go to stdout.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model there. Left out: that of the job.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send a bare prompt as a user's message; its texts will differ.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="The documents that failed, too.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first open documents.")] = None,
) -> int:
    """Write the open documents of a job as a batch of requests for another engine; no model is loaded.

    `vllm run-batch -i requests.jsonl -o answers.jsonl --model M` runs it, and `decodekit import DIR answers.jsonl`
    takes the answers back.
    """
    from decodekit.jobs.extraction import ExtractionOptions
    from decodekit.jobs.folder.exchange import BatchRequests

    job = JobFile.read(directory)
    damaged: Damaged = defaultdict(list)
    done = {row["id"]: row["document"] for row in read_results(directory, damaged)}
    failures = read_failures(directory, damaged, done=done)
    print_damage(damaged)
    entries = open_documents(scan(job.inputs, is_lookup=True).entries, done, failures, retries=retry)[:limit]
    tell_program(job, directory)
    schema = ExtractionOptions.of_settings(job.settings).schema
    requests = BatchRequests(job.settings, schema, to, model, chat)
    for text in requests.notes():
        note(f"note: {text}")
    lines = map(encode_line, requests.lines(entries))
    if output is None:
        sys.stdout.buffer.writelines(lines)
    else:
        replace_file(output, lines)
    count = len(entries) - len(requests.left_out)
    for error in requests.left_out[:MAX_NAMED]:
        note(f"left out: {error}")
    if to == "openai-batch" and count > _OPENAI_REQUESTS:
        note(f"note: OpenAI takes {_OPENAI_REQUESTS:,} requests in a file; --limit makes smaller ones")
    place = "" if output is None else f" to {output}"
    are = "is" if len(done) == 1 else "are"
    note(f"{counted(count, 'request')}{place}; {counted(len(done), 'document')} {are} done, {len(failures):,} failed")
    return SOME_FAILED if requests.left_out else DONE


@command
def take_back(
    directory: o.JobDirectory,
    answers: Annotated[list[Path], typer.Argument(metavar="ANSWERS…", help="Files of answers, and of errors.")],
    retry: Annotated[bool, typer.Option("--retry", help="Take answers to documents that failed before, too.")] = False,
) -> int:
    """Take the answers of another engine back into a job: validated, written down and reported as our own.

    The same command again changes nothing. Documents without an answer stay open: `extract` and `export` do them.
    """
    from decodekit.jobs.extraction import ExtractionOptions
    from decodekit.jobs.folder.exchange import AnswerExecutor, Answers

    job = JobFile.read(directory)
    settings = job.settings
    entries = scan(job.inputs, is_lookup=True).entries
    found = Answers.read(answers, job, entries)
    tell_program(job, directory)
    options = ExtractionOptions.of_settings(settings)
    _, _, validator = options.check()
    with JobFolder.create_or_resume(directory, settings)[0] as folder:
        waiting = open_documents(entries, folder.done, folder.failures, retries=retry)
        missing = [entry.id for entry in waiting if entry.id not in found.found]
        prompt = Prompt(settings.prompt, settings.is_chat, settings.schema)
        runner = JobRunner(folder, prompt, validator, observer=JobProgress())
        executor = AnswerExecutor(found.found, settings.on_length)
        answered = [entry for entry in entries if entry.id in found.found]
        origin = {"answers": [str(path) for path in answers], "models": found.models}
        summary = runner.run(answered, executor, retries=retry, origin=origin)
        code = tell_end(summary, folder)
    for fault in found.faults[:MAX_NAMED]:
        note(str(fault))
    if len(found.faults) > MAX_NAMED:
        note(f"and {len(found.faults) - MAX_NAMED} more lines that are no answers to open documents")
    if missing:
        note(f"{len(missing):,} open documents have no answer: {named(missing)}")
    return SOME_FAILED if found.faults or missing else code
