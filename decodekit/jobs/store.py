"""The folder of a job: what was asked (`job.json`), what came out, what failed and why, and the lock.

- `results.jsonl`: one line per document that is done; an id stands in it at most once, at every moment.
- `failed.jsonl`: the documents that failed, with code, message, raw text and number of attempts; the last line of an id
  counts, and an id that is in `results.jsonl` counts as done.
- `metrics.jsonl`: seconds and probabilities of each result, for the report. It decides nothing: results are the same
  without it, and equal for equal settings however often the job was killed.
- `job.json`: settings and fingerprint, the inputs, and the settings of earlier lines when `--force` mixed them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from decodekit.errors import JobError, JobSettingsError, OutputError
from decodekit.jobs.documents import SPOOLED, STDIN_ID, Input
from decodekit.jobs.settings import Settings
from decodekit.records.folder import lock_folder, remove_files
from decodekit.records.ledger import Ledger, Row, new_file, read_rows, replace_file

JOB, RESULTS, FAILED, METRICS, REPORT = "job.json", "results.jsonl", "failed.jsonl", "metrics.jsonl", "report.html"
FORMAT = 1


@dataclass
class JobFile:
    """The contents of `job.json`.

    Attributes:
        settings: of the newest run.
        earlier: settings by fingerprint of lines that were made before `--force` changed them.
        inputs: everything that documents came from.
        runs: start of each run (seconds since 1970) and how it ended; a run that was killed has no end.
    """

    settings: Settings
    earlier: dict[str, Settings] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Replace `job.json` in one step."""
        data = {
            "format": FORMAT,
            "fingerprint": self.settings.fingerprint,
            "settings": self.settings.to_json(),
            "earlier": {fingerprint: settings.to_json() for fingerprint, settings in self.earlier.items()},
            "inputs": [asdict(source) for source in self.inputs],
            "runs": self.runs,
        }
        replace_file(folder / JOB, [(json.dumps(data, indent=2, ensure_ascii=True) + "\n").encode("ascii")])

    @classmethod
    def read(cls, folder: Path) -> JobFile:
        """Read `job.json`.

        Raises:
            JobError: the folder is no job folder, or the file was made by another version of the format.
        """
        path = folder / JOB
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise JobError(
                f"{folder} is not a job folder: it has no {JOB}.", hint="decodekit extract INPUT… -o DIR makes one."
            ) from error
        except (OSError, ValueError) as error:
            raise JobError(f"{path} cannot be read: {error}.", at=str(path)) from error
        try:
            if data["format"] != FORMAT:
                raise JobError(f"{path} has format {data['format']}, this version reads {FORMAT}.", at=str(path))
            return cls(
                Settings.from_json(data["settings"]),
                {key: Settings.from_json(value) for key, value in data["earlier"].items()},
                [_here(Input(**source), folder) for source in data["inputs"]],
                data["runs"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise JobError(f"{path} was not written by decodekit: {error!r}.", at=str(path)) from error


def _here(source: Input, folder: Path) -> Input:
    """Saved standard input lies in the job folder, wherever that has been moved to."""
    return replace(source, folder=str(folder.resolve())) if source.name == STDIN_ID else source


def read_results(folder: Path) -> Iterator[Row]:
    """The rows of the documents that are done."""
    return read_rows(folder / RESULTS)


def read_failures(folder: Path) -> dict[str, Row]:
    """The last failure of every document that failed and is not done, by id."""
    done = {row["id"] for row in read_results(folder)}
    return {row["id"]: row for row in read_rows(folder / FAILED) if row["id"] not in done}


def read_metrics(folder: Path) -> dict[str, Row]:
    """The last metrics of every document, by id."""
    return {row["id"]: row for row in read_rows(folder / METRICS)}


class JobFolder:
    """A job folder that this process has locked and writes to. Use it as a context manager.

    Attributes:
        job: the contents of `job.json`.
        done: digest of the text of every document that is done, by id.
        failures: the last failure of every document that is not done, by id.
        num_torn_bytes: what was cut off the ends of torn files on opening.
    """

    def __init__(self, path: Path, job: JobFile, lock: IO[str]) -> None:
        self.path, self.job, self._lock = path, job, lock
        self.results, self.failed = Ledger(path / RESULTS), Ledger(path / FAILED)
        self.metrics = Ledger(path / METRICS, sync_interval_s=math.inf)  # a power cut may have them
        self.num_torn_bytes = sum(ledger.num_torn_bytes for ledger in (self.results, self.failed, self.metrics))
        self.done: dict[str, str] = {row["id"]: row["document"] for row in self.results.rows()}
        rows = list(self.failed.rows())
        self.failures: dict[str, Row] = {row["id"]: row for row in rows if row["id"] not in self.done}
        if len(rows) != len(self.failures):
            self.failed.rewrite(self.failures.values())

    @classmethod
    def create_or_resume(
        cls, path: Path, settings: Settings, *, fresh: bool = False, force: bool = False
    ) -> tuple[JobFolder, bool]:
        """Open a folder for a job with these settings, and say whether it resumes an earlier run.

        Args:
            path: the folder; made when missing.
            settings: of this run.
            fresh: delete what an earlier job left in the folder.
            force: go on in a folder made with other settings; each line names the settings that it was made with.

        Raises:
            JobSettingsError: the folder was made with other settings.
            JobError: another process works in the folder, or it holds files of this name that are no job's.
            OutputError: the folder cannot be made or written.
        """
        lock = lock_folder(path)
        try:
            for name in (JOB, RESULTS, FAILED, METRICS, REPORT):
                new_file(path / name).unlink(missing_ok=True)  # left over by a kill
            resumes = (path / JOB).exists() and not fresh
            if fresh:
                _delete_job(path)
            if not resumes:
                stray = [name for name in (RESULTS, FAILED) if (path / name).exists()]
                if stray:
                    raise JobError(
                        f"{path} holds {', '.join(stray)} but no {JOB}: these lines are not known to be a job's.",
                        hint="choose another folder with -o, or --fresh to delete them.",
                    )
                job = JobFile(settings)
                job.write(path)
                return cls(path, job, lock), False
            job = JobFile.read(path)
            _take_settings(path, job, settings, force=force)
            return cls(path, job, lock), True
        except BaseException:
            lock.close()
            raise

    @classmethod
    def resume(cls, path: Path, settings: Settings) -> JobFolder:
        """Open an existing job folder, for a run with these settings, which may differ (every line names its own)."""
        JobFile.read(path)
        return cls.create_or_resume(path, settings, force=True)[0]

    def add_inputs(self, inputs: Sequence[Input]) -> None:
        """Remember where documents come from, for `retry` and `report`."""
        # dict: keeps the order and drops an input that an earlier run named already
        self.job.inputs = list(dict.fromkeys([*self.job.inputs, *inputs]))
        self.job.write(self.path)

    def start_run(self, **selection: object) -> None:
        """Note in `job.json` that a run begins, and with which ``shard`` and ``limit``."""
        self.job.runs.append({"started": round(time.time(), 3), **selection})
        self.job.write(self.path)

    def end_run(self, outcome: str, num_done: int, num_failed: int) -> None:
        """Note in `job.json` how the run ended: ``"finished"``, ``"interrupted"`` or ``"too many failures"``."""
        self.job.runs[-1] |= {
            "ended": round(time.time(), 3),
            "outcome": outcome,
            "num_done": num_done,
            "num_failed": num_failed,
        }
        self.job.write(self.path)

    def forget(self, ids: set[str]) -> None:
        """Take results back, because their documents have changed; they will be done again."""
        if ids:
            self.results.rewrite(row for row in self.results.rows() if row["id"] not in ids)
            for document_id in ids:
                self.done.pop(document_id, None)

    def record_result(self, row: Row, metrics: Row) -> None:
        """Append a result. The metrics go first: a kill between the two costs nothing but a line that is ignored."""
        if row["id"] in self.done:
            raise JobError(f"document {row['id']!r} is already done; its result would stand twice.")
        self.metrics.append(metrics)
        self.results.append(row)
        self.done[row["id"]] = row["document"]
        self.failures.pop(row["id"], None)

    def record_failure(self, row: Row) -> None:
        """Append a failure; it replaces an earlier failure of the same document."""
        self.failed.append(row)
        self.failures[row["id"]] = row

    def close(self) -> None:
        """Drop failures that were made good since, sync everything and release the lock."""
        with ExitStack() as stack:  # each of these is done, whatever happens to the others
            stack.callback(self._lock.close)
            for ledger in (self.results, self.failed, self.metrics):
                stack.callback(ledger.close)
            num_lines = sum(1 for _ in self.failed.rows())
            if num_lines != len(self.failures):
                self.failed.rewrite(self.failures.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error that is on its way says more than a second one about the same full disk.
        with suppress(OutputError) if error is not None else nullcontext():
            self.close()


def _take_settings(path: Path, job: JobFile, settings: Settings, *, force: bool) -> None:
    old, new = job.settings.fingerprint, settings.fingerprint
    if old == new:
        return
    if not force:
        changes = "; ".join(job.settings.differences(settings))
        raise JobSettingsError(
            f"{path} was made with other settings ({old}, now {new}): {changes}.",
            at=str(path / JOB),
            hint="--fresh to start again, another folder with -o, or --force to go on (recorded per row).",
        )
    job.earlier[old] = job.settings
    job.earlier.pop(new, None)
    job.settings = settings
    job.write(path)


def _delete_job(path: Path) -> None:
    # job.json goes last: killed in between, the folder is still recognised as a job's and can be made fresh again.
    remove_files(path, [RESULTS, FAILED, METRICS, REPORT, *(file.name for file in path.glob(SPOOLED)), JOB])
