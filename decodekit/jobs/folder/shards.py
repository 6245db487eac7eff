"""The folders of the parts of a job, put together as one: what ``--shard 1/4`` to ``4/4`` made on four machines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from decodekit.errors import JobError, JobSettingsError
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.folder.job_folder import JobFile, JobFolder, no_metrics, read_failures, read_metrics, read_results
from decodekit.records.ledger import open_own, replace_file


def merge_jobs(folders: Sequence[Path], output: Path) -> int:
    """Write the results and failures of several job folders into one, which is a job folder like any other; the number
    of results that an earlier folder has, too.

    The same merge again adds what has come since. A document that is done in one folder and failed in another is done.
    The folders may come from elsewhere: nothing is read but their own files, and nothing is written beside `output`.

    Raises:
        JobSettingsError: the folders were made with different settings, or `output` with others.
        JobError: one is not a job folder, or two have results of one id and different texts.
    """
    if output.resolve() in [folder.resolve() for folder in folders]:
        raise JobError(f"{output} is one of the folders that are merged.", at="-o", hint="another folder")
    jobs = [JobFile.read(folder) for folder in folders]
    for folder, job in zip(folders, jobs, strict=True):
        if job.settings.fingerprint != jobs[0].settings.fingerprint:
            changes = "; ".join(jobs[0].settings.differences(job.settings))
            cause = f"{folder} was made with other settings than {folders[0]}: {changes}."
            raise JobSettingsError(cause, at=str(folder), hint="merge the parts of one job")
    _check_texts(folders)
    with JobFolder.create_or_resume(output, jobs[0].settings)[0] as merged:
        num_repeated = sum(_add(merged, folder, job) for folder, job in zip(folders, jobs, strict=True))
        # Where one had a limit, or is of an older version, nobody knows how many documents there are.
        counts: list[int | None] = [
            None if job.selection.get("limit") else job.selection.get("num_documents") for job in jobs
        ]
        known = {} if None in counts else {"num_documents": max(filter(None, counts), default=0)}
        merged.start_run(shard=None, limit=None, merged=[str(folder) for folder in folders], **known)
        merged.end_run("finished", len(merged.done), len(merged.failures))
    return num_repeated


def _copy(source: Input, folder: Path) -> None:
    """Copy what was saved in the folder of a part; it has to be a file there, and what its name says."""
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        try:
            with os.fdopen(open_own(source.location), "rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
                    yield piece
        except OSError as error:
            cause = f"{source.path} of {source.folder} cannot be read: {error.strerror}."
            raise JobError(cause, at=str(source.location)) from error
        if digest.hexdigest()[:8] not in source.path:
            cause = f"{source.path} of {source.folder} is not what its name says: it has changed since it was saved."
            raise JobError(cause, at=str(source.location), hint="the folder as the job has left it")

    replace_file(folder / source.path, pieces())


def _check_texts(folders: Sequence[Path]) -> None:
    seen: dict[str, tuple[str, Path]] = {}
    for folder in folders:
        for row in read_results(folder):
            digest, first = seen.setdefault(row["id"], (row["document"], folder))
            if digest != row["document"]:
                cause = f"{first} and {folder} have results of {row['id']!r} for different texts."
                raise JobError(cause, at=str(folder), hint="run extract again where the text is the old one")


def _add(merged: JobFolder, folder: Path, job: JobFile) -> int:
    """Add what a folder has; the number of results that were there already."""
    sources = []
    for source in job.inputs:
        if source.name:  # what was saved in the folder: it comes along
            _copy(source, merged.path)
            source = replace(source, folder=str(merged.path.resolve()))
        sources.append(source)
    merged.job.earlier |= {name: one for name, one in job.earlier.items() if name != merged.settings.fingerprint}
    merged.add_inputs(sources)
    num_runs = len(merged.job.runs)
    merged.job.runs += job.runs
    metrics, num_repeated = read_metrics(folder), 0
    for row in read_results(folder):
        if row["id"] in merged.done:
            num_repeated += 1
            continue
        timed = metrics.get(row["id"]) or no_metrics(row["id"])
        merged.record_result(row, {**timed, "run": timed["run"] and timed["run"] + num_runs})
    for name, row in read_failures(folder).items():
        if name not in merged.done and merged.failures.get(name) != row:
            merged.record_failure(row)
    return num_repeated
