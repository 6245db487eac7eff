"""The folder of a job: what was asked (`job.json`), what came out, what failed and why, and the lock.

- `results.jsonl`: one line per document that is done; an id stands in it at most once, at every moment.
- `failed.jsonl`: the documents that failed, with code, message, raw text and number of attempts; the last line of an id
  counts, and an id that is in `results.jsonl` counts as done.
- `metrics.jsonl`: seconds and probabilities of each result, for the report. It decides nothing: results are the same
  without it, and equal for equal settings however often the job was killed.
- `job.json`: settings and fingerprint, the inputs, and the settings of earlier lines when `--force` mixed them.
- `damaged.jsonl`: lines of these files that are not rows (an edit by hand, a bad disk). A command that reads the folder
  leaves them out and says so; a run moves them here, and does the documents again of which nothing else is known.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TypeAlias

from decodekit.errors import JobError, JobSettingsError, OptionError, OutputError
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.folder.file_names import DAMAGED, FAILED, JOB, METRICS, REPORT, RESULTS, SPOOLED, TABLES, is_own
from decodekit.records.fingerprints import differences, digest
from decodekit.records.ledger import Check, Damage, Ledger, Record, new_file, open_own, read_rows, replace_file
from decodekit.records.run_folder import lock_folder, remove_files

FORMAT = 1
_MAX_NAMED: Final = 8

Damaged: TypeAlias = defaultdict[str, list[Damage]]
"""The lines that are no rows, by name of the file."""

_TEXT_OR_NONE: Final = (str, type(None))
_FIELDS: Final[Mapping[str, Mapping[str, type | tuple[type, ...]]]] = {
    RESULTS: {"id": str, "value": object, "finish_reason": str, "num_generated_tokens": int, "document": str},
    FAILED: {
        "id": str,
        "code": str,
        "error": str,
        "message": str,
        "at": _TEXT_OR_NONE,
        "hint": _TEXT_OR_NONE,
        "text": str,
        "num_generated_tokens": int,
        "attempts": int,
        "document": str,
    },
    METRICS: {"id": str, "run": int, "at": (int, float), "seconds": (int, float, type(None))},
}
"""The fields of a row that are read."""


def row_check(name: str) -> Check:
    """Says what is wrong with a row of one of the files of a job; in `results.jsonl`, an id stands but once."""
    seen: set[str] = set()

    def wrong(row: Record) -> str | None:
        for field_name, kind in _FIELDS[name].items():
            if field_name not in row:
                return f"it has no field {field_name!r}"
            if not isinstance(row[field_name], kind) or (isinstance(row[field_name], bool) and kind is not object):
                return f"field {field_name!r} is {row[field_name]!r:.40}"
        if not isinstance(row.get("text", ""), str):
            return f"field 'text' is {row['text']!r:.40}"
        if not _are_numbers(row.get("probabilities", {})):
            return f"field 'probabilities' is {row['probabilities']!r:.40}"
        if "key" in row and (type(row["key"]) is not int or str(row["key"]) != row["id"]):
            return f"field 'key' is {row['key']!r:.40}"
        alternatives = row.get("alternatives", {})
        if not isinstance(alternatives, dict) or not all(map(_are_numbers, alternatives.values())):
            return f"field 'alternatives' is {alternatives!r:.40}"
        if name == RESULTS and row["id"] in seen:
            return f"it repeats id {row['id']!r:.60}"
        seen.add(row["id"])
        return None

    return wrong


def no_metrics(document_id: str) -> Record:
    """The metrics of a result whose own were lost: of no run, without a time."""
    return {"id": document_id, "run": 0, "at": 0.0, "seconds": None}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Everything that the value of a result depends on, besides the document.

    Batch size, sharding, limits and the inputs are not part of it: they decide which documents are done and how fast,
    never what a document's result is.

    Attributes:
        weights: fingerprint of configuration and parameters.
        dtype: number type of the parameters, such as ``"float32"``.
        tokenizer: fingerprint of the tokenizer: what its tokens are, and how it divides a text.
        schema_source: what was given as schema: a file, ``module.py:Class``, or fields.
        constraint: what is asked for beyond the schema, such as a guard; see `JobSchema.beyond`.
        programs: what the strategy brings along that its options do not say; see `programs_of`.
        chat_template: fingerprint of the template of the tokenizer, where the prompt is a chat; else empty.
        reading: how the schema is read and its texts are written; see `JobSchema.reading`.
        prompt: the template, with ``{text}`` and perhaps ``{schema}``.
        is_chat: whether the filled template is sent as a user's message through the chat template.
        strategy: ``{"name": "sample", "temperature": 0.7}``: the decoding strategy and the options that were given.
        seed: base of the per-document seeds.
        version: version of decodekit.
    """

    model: str
    weights: str
    dtype: str
    tokenizer: str
    schema_source: str
    schema: Mapping[str, Any] | bool
    prompt: str
    is_chat: bool
    strategy: Mapping[str, Any]
    max_new_tokens: int
    on_length: str
    seed: int
    version: str
    constraint: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    chat_template: str = ""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    # Where the schema and the model came from is for people; what they are is in the other fields. So a folder that
    # was moved, or a schema file given by another path, is still the same job.
    _NOT_COMPARED = ("schema_source", "model")
    _LATER = ("constraint", "reading", "programs", "chat_template", "chat_template_kwargs")

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits over all compared fields."""
        return digest(self._compared(), length=8)

    def _compared(self) -> dict[str, object]:
        # Jobs that were made before there were the later ones have none.
        left_out = {*self._NOT_COMPARED, *(name for name in self._LATER if not getattr(self, name))}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def differences(self, other: JobSettings) -> list[str]:
        """The compared fields that differ, each as ``"name was A, now B"`` with `other` as the newer one."""
        return differences(self._compared(), other._compared())

    @property
    def strategy_text(self) -> str:
        """The strategy on one line, such as ``sample(temperature=0.7)``."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.strategy.items() if name != "name")
        return f"{self.strategy['name']}({options})"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSettings:
        """The settings in `job.json`; raises KeyError for a missing field."""
        names = (one.name for one in fields(cls))
        return cls(**{name: data[name] for name in names if name in data or name not in cls._LATER})


@dataclass
class JobFile:
    """The contents of `job.json`.

    Attributes:
        settings: of the job: those of its newest run by `extract`.
        earlier: settings by fingerprint of lines that were made with others: before `--force` changed them, or by
            `retry` with options of its own.
        inputs: everything that documents came from.
        runs: start of each run (seconds since 1970) and how it ended; a run that was killed has no end.
    """

    settings: JobSettings
    earlier: dict[str, JobSettings] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def selection(self) -> Mapping[str, Any]:
        """The newest run that chose among the documents of the inputs; `retry` takes up what another one chose."""
        return next((run for run in reversed(self.runs) if "shard" in run), {})

    @property
    def missing_shards(self) -> str:
        """The shards that nobody has brought to a merged job, such as ``"2/3, 3/3"``; else empty."""
        shards = {tuple(run["shard"]) for run in self.runs if run.get("shard")}
        did_all = any(run.get("shard", 0) is None and not run.keys() & {"merged", "answers"} for run in self.runs)
        totals = {total for _, total in shards}
        if "merged" not in self.selection or did_all or len(totals) != 1:
            return ""
        (total,) = totals
        missing = (f"{number}/{total}" for number in range(1, total + 1) if (number, total) not in shards)
        named = list(itertools.islice(missing, _MAX_NAMED))
        num_more = total - len(shards) - len(named)
        return ", ".join([*named, f"and {num_more:,} more"] if num_more else named)

    def write(self, folder: Path) -> None:
        """Replace `job.json` in one step."""
        data = {"format": FORMAT, "fingerprint": self.settings.fingerprint, **asdict(self)}
        replace_file(folder / JOB, [(json.dumps(data, indent=2, ensure_ascii=True) + "\n").encode("ascii")])

    @classmethod
    def read(cls, folder: Path) -> JobFile:
        """Read `job.json`; raises JobError if the folder is not a job folder, or another version of the format made
        it."""
        path = folder / JOB
        try:
            with os.fdopen(open_own(path), "rb") as file:
                data = json.loads(file.read())
        except (FileNotFoundError, NotADirectoryError) as error:
            what = f"it has no {JOB}" if folder.is_dir() else "it is a file" if folder.exists() else "there is nothing"
            cause = f"{folder} is not a job folder: {what}."
            raise JobError(cause, hint="decodekit extract INPUT… -o DIR makes one.") from error
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise JobError(f"{path} cannot be read: {why}.", at=str(path)) from error
        try:
            if data["format"] != FORMAT:
                raise JobError(f"{path} has format {data['format']}, this version reads {FORMAT}.", at=str(path))
            _check_job(data)
            # What was saved in the job folder lies there, wherever that has been moved to.
            here = {"folder": str(folder.resolve())}
            return cls(
                JobSettings.from_json(data["settings"]),
                {key: JobSettings.from_json(value) for key, value in data["earlier"].items()},
                [Input(**(one | here if one.get("name") else one)) for one in data["inputs"]],
                data["runs"],
            )
        except (KeyError, TypeError, AttributeError, OptionError) as error:
            cause = f"{path} was not written by decodekit, or edited since: {error!r}."
            hint = "mend it, or a fresh job; results.jsonl stays as it is until then."
            raise JobError(cause, at=str(path), hint=hint) from error


def _check_job(data: Mapping[str, Any]) -> None:
    """Raise TypeError if a part of `job.json` that is read is not as `JobFile.write` writes it."""

    def check(is_right: bool, what: str) -> None:
        if not is_right:
            raise TypeError(what)

    for settings in (data["settings"], *data["earlier"].values()):
        check(isinstance(settings["schema"], dict | bool), "schema is neither an object nor true or false")
        check(isinstance(settings["strategy"], dict), "strategy is no object")
        check(isinstance(settings["strategy"].get("name"), str), "the strategy has no name")
        check(isinstance(settings.get("constraint", {}), dict), "constraint is no object")
        check(isinstance(settings["is_chat"], bool), "is_chat is no boolean")
        for name in ("model", "weights", "dtype", "tokenizer", "schema_source", "prompt", "on_length", "version"):
            check(isinstance(settings[name], str), f"{name} is no text")
        check("{text}" in settings["prompt"], "the prompt has no {text}")
        for name in ("max_new_tokens", "seed"):
            check(type(settings[name]) is int, f"{name} is no integer")
    for source in data["inputs"]:
        patterns = [*source.get("include", ()), *source.get("exclude", ())]
        texts = [value for name, value in source.items() if name not in ("max_document_mb", "include", "exclude")]
        check(all(isinstance(value, str) for value in [*texts, *patterns]), "an input has something that is no text")
        most = source.get("max_document_mb", 1)
        check(_is_number(most) and most > 0, "max_document_mb of an input is no number above 0")
        # What is said to be saved in the folder is read, copied and deleted there, and nowhere else.
        is_here = not source.get("name") or SPOOLED.fullmatch(source["path"]) is not None
        check(is_here, f"the input {source.get('name')!r} is not saved in the folder")
    for run in data["runs"]:
        check(_is_number(run["started"]), "the start of a run is no number")
        check(_is_number(run.get("ended", 0)), "the end of a run is no number")
        check(isinstance(run.get("outcome", ""), str), "the outcome of a run is no text")
        check(isinstance(run.get("limit", 1) or 1, int), "the limit of a run is no integer")
        check(type(run.get("num_documents", 0)) is int, "the number of documents of a run is no integer")
        shard = run.get("shard") or [1, 1]
        check(isinstance(shard, list) and len(shard) == 2, "the shard of a run is no pair")
        check(all(type(number) is int for number in shard), "the shard of a run is no pair of integers")
        check(0 < shard[0] <= shard[1], "the shard of a run is none of its parts")


def known_inputs(folder: Path) -> list[Input]:
    """The inputs that a job has met so far; none where there is no job yet."""
    return JobFile.read(folder).inputs if os.path.isfile(folder / JOB) else []


def _read(folder: Path, name: str, damaged: Damaged | None) -> Iterator[Record]:
    found: list[Damage] = [] if damaged is None else damaged[name]
    return read_rows(folder / name, row_check(name), found)


def read_results(folder: Path, damaged: Damaged | None = None) -> Iterator[Record]:
    """The rows of the documents that are done. Lines that are not rows are left out, and told to `damaged`."""
    return _read(folder, RESULTS, damaged)


def read_failures(
    folder: Path, damaged: Damaged | None = None, *, done: Collection[str] | None = None
) -> dict[str, Record]:
    """The last failure of every document that failed and is not done, by id; `done` where the caller has read it."""
    if done is None:
        done = {row["id"] for row in read_results(folder)}
    return {row["id"]: row for row in _read(folder, FAILED, damaged) if row["id"] not in done}


def read_metrics(folder: Path, damaged: Damaged | None = None) -> dict[str, Record]:
    """The last metrics of every document, by id; `damaged` as in `read_results`."""
    return {row["id"]: row for row in _read(folder, METRICS, damaged)}


class JobFolder:
    """A job folder that this process has locked and writes to. Use it as a context manager.

    Attributes:
        settings: of this run.
        done: digest of the text of every document that is done, by id.
        failures: the last failure of every document that is not done, by id.
        num_torn_bytes: what was cut off the ends of torn files on opening.
        damaged: the lines that were moved to `damaged.jsonl` on opening.
    """

    def __init__(self, path: Path, job: JobFile, lock: IO[str], settings: JobSettings) -> None:
        self.path, self.job, self._lock, self.settings = path, job, lock, settings

        def opened(name: str, **options: Any) -> Ledger:
            ledger = Ledger(path / name, new_check=partial(row_check, name), damaged_path=path / DAMAGED, **options)
            self.damaged[name] += ledger.damaged
            return ledger

        self.damaged: Damaged = defaultdict(list)
        self.results, self.failed = opened(RESULTS), opened(FAILED)
        self.metrics = opened(METRICS, sync_interval_s=math.inf)  # a power cut may have them
        self.num_torn_bytes = sum(ledger.num_torn_bytes for ledger in (self.results, self.failed, self.metrics))
        self.done: dict[str, str] = {row["id"]: row["document"] for row in self.results.rows()}
        rows = list(self.failed.rows())
        self.failures: dict[str, Record] = {row["id"]: row for row in rows if row["id"] not in self.done}
        try:
            if len(rows) != len(self.failures):
                self.failed.rewrite(self.failures.values())
            self._match_metrics()
        except OutputError:
            with suppress(OutputError):
                self.close()
            raise

    @classmethod
    def create_or_resume(
        cls, path: Path, settings: JobSettings, *, fresh: bool = False, force: bool = False, retries: bool = False
    ) -> tuple[JobFolder, bool]:
        """Open a folder for a job with these settings, and say whether it resumes an earlier run.

        Args:
            fresh: delete what an earlier job left in the folder.
            force: go on in a folder made with other settings; each line names the settings that it was made with.
            retries: other settings are those of this run alone; the job keeps its own.

        Raises:
            JobSettingsError: the folder was made with other settings.
            JobError: another process works in the folder, or it holds files of this name that belong to no job.
            OutputError: the folder cannot be made or written.
        """
        lock = lock_folder(path)
        try:
            names = (JOB, RESULTS, FAILED, METRICS, REPORT, *TABLES.values())
            remove_files(path, [new_file(path / name).name for name in names])  # left over by a kill
            resumes = (path / JOB).exists() and not fresh
            if fresh:
                # job.json goes last: killed before, the folder is still a job's and can be made fresh again.
                remove_files(path, sorted(filter(is_own, os.listdir(path)), key=JOB.__eq__))
            if not resumes:
                stray = sorted(name for name in os.listdir(path) if is_own(name))
                if stray:
                    cause = f"{path} holds {', '.join(stray)} but no {JOB}: they are not known to be a job's."
                    raise JobError(cause, hint="another folder, or fresh=True to delete them.")
                job = JobFile(settings)
                job.write(path)
                return cls(path, job, lock, settings), False
            job = JobFile.read(path)
            if not retries:
                _take_settings(path, job, settings, force=force)
            elif settings.fingerprint != job.settings.fingerprint:
                job.earlier[settings.fingerprint] = settings
                job.write(path)
            return cls(path, job, lock, settings), True
        except BaseException:
            lock.close()
            raise

    def add_inputs(self, inputs: Sequence[Input]) -> None:
        """Remember where documents come from, for `retry` and `report`."""
        # By all that names it: an input that an earlier run named already stays in its place, and is read as today.
        every = [*self.job.inputs, *inputs]
        named = {replace(one, max_document_mb=1, encoding="utf-8", exclude=()): one for one in every}
        self.job.inputs = list(named.values())
        self.job.write(self.path)

    def start_run(self, **selection: object) -> None:
        """Note in `job.json` that a run begins, and with which ``shard`` and ``limit``."""
        self.job.runs.append({"started": round(time.time(), 3), **selection})
        self.job.write(self.path)

    def end_run(self, outcome: str, num_done: int, num_failed: int) -> None:
        """Note in `job.json` how the run ended: ``"finished"``, ``"interrupted"`` or ``"too many failures"``."""
        ended = {"ended": round(time.time(), 3), "outcome": outcome}
        self.job.runs[-1] |= {**ended, "num_done": num_done, "num_failed": num_failed}
        self.job.write(self.path)

    def forget(self, ids: set[str]) -> None:
        """Take results back, because their documents have changed; they will be done again."""
        if ids:
            self.results.rewrite(row for row in self.results.rows() if row["id"] not in ids)
            for document_id in ids:
                self.done.pop(document_id, None)
            self._match_metrics()

    def _match_metrics(self) -> None:
        """Leave one line of metrics for each result, and no other: either file may have lost its end."""
        last: dict[str, int] = {}
        num_lines = 0
        for num_lines, row in enumerate(self.metrics.rows(), 1):
            if row["id"] in self.done:
                last[row["id"]] = num_lines
        if num_lines != len(last):
            kept = set(last.values())
            self.metrics.rewrite(row for number, row in enumerate(self.metrics.rows(), 1) if number in kept)
        for document_id in [one for one in self.done if one not in last]:
            self.metrics.append(no_metrics(document_id))

    def record_result(self, row: Record, metrics: Record) -> None:
        """Append a result. The metrics go first: a kill between the two costs nothing but a line that is ignored."""
        if row["id"] in self.done:
            raise JobError(f"document {row['id']!r} is already done; its result would stand twice.")
        self.metrics.append(metrics)
        self.results.append(row)
        self.done[row["id"]] = row["document"]
        self.failures.pop(row["id"], None)

    def record_failure(self, row: Record) -> None:
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


def _take_settings(path: Path, job: JobFile, settings: JobSettings, *, force: bool) -> None:
    old, new = job.settings.fingerprint, settings.fingerprint
    if old == new:
        if job.settings != settings:  # where the schema and the model came from
            job.settings = settings
            job.write(path)
        return
    if not force:
        changes = "; ".join(job.settings.differences(settings))
        cause = f"{path} was made with other settings ({old}, now {new}): {changes}."
        hint = "fresh=True to start again, another folder, or force=True to go on (recorded per row)."
        raise JobSettingsError(cause, at=str(path / JOB), hint=hint)
    job.earlier[old] = job.settings
    job.earlier.pop(new, None)
    job.settings = settings
    job.write(path)
