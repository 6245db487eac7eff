"""The loop of a job: take the documents that are not done, decode them, check every output, write it down.

Documents are decoded by an executor: in this process, in batches that are refilled, or elsewhere.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from decodekit.errors import DecodekitError, DocumentError, LengthError, OutputError
from decodekit.jobs.document_prompt import Prompt
from decodekit.jobs.documents.documents import DocumentRef, document_seed, select, text_digest
from decodekit.jobs.folder.job_folder import JobFolder
from decodekit.jobs.reports.probabilities import value_probabilities
from decodekit.jobs.validation import OutputValidator
from decodekit.records.ledger import Record

if TYPE_CHECKING:
    from decodekit.llm import LLM, Completion
    from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class DocumentTask:
    """One document on its way to the model, as a text or messages, with a seed of its own."""

    id: str
    digest: str
    prompt: Any
    seed: int
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """The outcome of a task: a completion, which may carry an error, and the seconds from taking it up to its end."""

    task: DocumentTask
    completion: Completion
    seconds: float
    alternatives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def failed(task: DocumentTask, error: DecodekitError) -> Decoded:
    """The outcome of a task that has no text."""
    from decodekit.decoding.request.completion import Completion  # which loads torch
    from decodekit.decoding.request.stats import Stats

    return Decoded(task, Completion("", (), None, "error", error, None, Stats(0, 0, 0, None, 0.0)), 0.0)


class Executor(Protocol):
    """Gives an outcome for each document: by decoding it, or because another engine has."""

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """Take tasks lazily and yield each outcome as soon as it is known: every task once, in any order."""


@dataclass
class LocalExecutor:
    """Decodes in this process, by `options` of `LLM.as_completed`; `alternatives`: see `FieldAlternatives`.

    When the memory of the device runs out, documents wait for one another, and one that does not fit alone fails; see
    `decoding.loop.batch`.
    """

    llm: LLM
    batch_size: int | None
    options: Mapping[str, Any]
    alternatives: bool = False

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """As `Executor.run`."""
        in_flight: dict[int, tuple[DocumentTask, float]] = {}

        def taken() -> Iterator[DocumentTask]:
            for number, task in enumerate(tasks):
                in_flight[number] = (task, time.perf_counter())
                yield task

        for_prompts, for_seeds = itertools.tee(taken())  # whichever of the two is asked first takes the task
        prompts, seeds = (task.prompt for task in for_prompts), (task.seed for task in for_seeds)
        completions = self.llm.as_completed(prompts, seed=seeds, batch_size=self.batch_size, **self.options)
        found = None
        if self.alternatives:
            from decodekit.jobs.reports.alternatives import FieldAlternatives  # which most jobs do not need

            found = FieldAlternatives(self.llm, self.options)
        for number, completion in completions:
            task, started = in_flight.pop(number)
            seconds = time.perf_counter() - started
            yield Decoded(task, completion, seconds, {} if found is None else found.of(task.prompt, completion))


class Observer:
    """Is told how a run goes; this one ignores it."""

    def start(self, num_documents: int, num_before: int) -> None:
        """A run begins: the number of documents, and how many of them were done or failed before."""

    def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
        """A document is done, or failed with an error."""

    def finish(self) -> None:
        """The run is over, for whatever reason."""


@dataclass
class RunSummary:
    """The counts of one run.

    Attributes:
        num_before: documents of the shard and limit, if any, done or failed in earlier runs and not touched.
        num_changed: done before, but the text has changed since, so they were done again.
        num_unread: done before, and cannot be read any more; their results stay.
        failures: number of failures of this run by code.
        is_stopped: the limit on failures was reached, and documents are left.
    """

    num_before: int
    num_changed: int
    num_unread: int
    num_done: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    is_stopped: bool = False


@dataclass
class JobRunner:
    """Runs the documents of a job that are not done.

    Args:
        folder: where results go; locked by this process.
        vocabulary: of the model, to give probabilities to the values of an output; None leaves them out.
        max_failures: the number of failures after which no more documents are taken up; None for no limit.
    """

    folder: JobFolder
    prompt: Prompt
    validator: OutputValidator
    vocabulary: Vocabulary | None = None
    max_failures: int | None = None
    observer: Observer = field(default_factory=Observer)

    def __post_init__(self) -> None:
        self._settings = self.folder.settings.fingerprint

    def run(
        self,
        entries: Sequence[DocumentRef],
        executor: Executor,
        *,
        shard: tuple[int, int] | None = None,
        limit: int | None = None,
        retries: bool = False,
        origin: Mapping[str, Any] = MappingProxyType({}),
    ) -> RunSummary:
        """Do all documents that are not done; one that fails is written down and the others go on.

        Args:
            shard, limit: which of them; see `documents.select`.
            retries: take up documents that failed before, too.
            origin: what else `job.json` says of the run, such as the file that its answers come from.

        Raises:
            OutputError: the folder cannot be written any more; what was written stays.
            KeyboardInterrupt: passed on after everything is written; the run can be resumed.
        """
        # What is tried again is some of what an earlier run has selected.
        told: dict[str, Any] = {"shard": shard, "limit": limit} if origin or not retries else {}
        if not (retries or origin):
            told["num_documents"] = len(entries)
        entries, done = select(entries, shard, limit), self.folder.done
        read = [entry for entry in entries if entry.fault is None]  # what cannot be read may be what it was
        changed = {entry.id for entry in read if entry.id in done and done[entry.id] != entry.digest}
        self.folder.forget(changed)
        todo = open_documents(entries, done, self.folder.failures, retries=retries)
        num_unread = sum(entry.fault is not None and entry.id in done for entry in entries)
        summary = RunSummary(len(entries) - len(todo), len(changed), num_unread)
        self.folder.start_run(**told, **origin)
        self.observer.start(len(entries), summary.num_before)
        started = time.perf_counter()
        try:
            for result in executor.run(self._tasks(todo, summary)):
                self._record(result, summary)
        except BaseException as error:
            outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
            with suppress(OutputError):  # the first error says more than a second one about the same full disk
                self.folder.end_run(outcome, summary.num_done, summary.num_failed)
            raise
        finally:
            self.observer.finish()
            summary.seconds = time.perf_counter() - started
        num_left = len(todo) - summary.num_done - summary.num_failed
        summary.is_stopped = num_left > 0
        outcome = "too many failures" if summary.is_stopped else "finished"
        self.folder.end_run(outcome, summary.num_done, summary.num_failed)
        return summary

    def _tasks(self, entries: Sequence[DocumentRef], summary: RunSummary) -> Iterator[DocumentTask]:
        seed = self.folder.settings.seed
        for entry in entries:
            if self.max_failures is not None and summary.num_failed >= self.max_failures:
                return
            try:
                text = entry.read()
            except DocumentError as error:
                self._fail(entry.id, "", error, None, summary)
            else:
                own_seed = document_seed(seed, entry.id)
                yield DocumentTask(entry.id, text_digest(text), self.prompt.fill(text), own_seed, entry.is_number)

    def _record(self, outcome: Decoded, summary: RunSummary) -> None:
        task, completion = outcome.task, outcome.completion
        try:
            row = self._result(task, completion)
        except DecodekitError as error:
            self._fail(task.id, task.digest, error, completion, summary)
            return
        metrics: Record = {
            "id": task.id,
            "run": len(self.folder.job.runs),
            "at": round(time.time(), 3),
            "seconds": round(outcome.seconds, 4),
        }
        if self.vocabulary is not None and completion.logprobs and "text" not in row:  # a text that was cut has none
            is_json = self.validator.is_json
            metrics["probabilities"] = value_probabilities(completion, self.vocabulary, is_json=is_json)
        if outcome.alternatives:
            metrics["alternatives"] = outcome.alternatives
        self.folder.record_result(row, metrics)
        summary.num_done += 1
        summary.num_tokens += completion.stats.num_generated_tokens
        self.observer.advance(task.id, None, completion.stats.num_generated_tokens)

    def _result(self, task: DocumentTask, completion: Completion) -> Record:
        if completion.error is not None:
            raise completion.error
        row: Record = {
            "id": task.id,
            "value": None,
            "finish_reason": completion.finish_reason,
            "num_prompt_tokens": completion.stats.num_prompt_tokens,
            "num_generated_tokens": completion.stats.num_generated_tokens,
            "document": task.digest,
            "settings": self._settings,
        }
        if task.is_number:
            row["key"] = int(task.id)
        if completion.attempts:
            row["num_retries"] = completion.stats.num_retries
        if completion.finish_reason == "length":
            # Cut at the limit and asked for all the same (on_length="return"): the text as far as it came.
            row["text"] = completion.text
        if completion.finish_reason != "length" or completion.value is not None:
            row["value"] = self.validator.value(completion.text)
        return row

    def _fail(
        self, document_id: str, digest: str, error: DecodekitError, completion: Completion | None, summary: RunSummary
    ) -> None:
        before = self.folder.failures.get(document_id)
        row: dict[str, Any] = {
            "id": document_id,
            **error.to_dict(),
            "at": _place(error, completion if self.validator.is_json else None),
            "text": "",
            "finish_reason": None,
            "num_generated_tokens": 0,
            "refused": [],
            "attempts": 1 + (before["attempts"] if before else 0),
            "document": digest,
            "settings": self._settings,
        }
        if completion is not None:
            attempts = [(one.text, one.error) for one in completion.attempts]  # before the last one
            row |= {
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "num_generated_tokens": completion.stats.num_generated_tokens,
                "refused": [{"text": text, "message": why.cause} for text, why in attempts if why is not None],
            }
        self.folder.record_failure(row)
        summary.num_failed += 1
        summary.num_tokens += row["num_generated_tokens"]
        summary.failures[error.code] = summary.failures.get(error.code, 0) + 1
        self.observer.advance(document_id, error, row["num_generated_tokens"])


def open_documents(
    entries: Sequence[DocumentRef], done: Mapping[str, str], failures: Mapping[str, Record], *, retries: bool = False
) -> list[DocumentRef]:
    """The documents that are neither done nor failed with the text that they have now; done is also what has none.

    `done` has the digest of the text of each that is done, by id, `failures` the last failure of each that failed.
    `retries` takes those, too.
    """
    ended = dict(done)
    if not retries:
        ended |= {document_id: row["document"] for document_id, row in failures.items()}
    return [
        entry
        for entry in entries
        if ended.get(entry.id) != entry.digest and not (entry.fault is not None and entry.id in done)
    ]


def _place(error: DecodekitError, completion: Completion | None) -> str | None:
    """The place where the error was seen; for a text that was cut, the value that it leaves open.

    Never the number of the prompt: it differs from run to run.
    """
    if isinstance(error, LengthError) and completion is not None:
        from decodekit.constraints.json_schema.document.pointers import pointer

        place = pointer(completion.text.encode("utf-8", errors="surrogatepass"))
        return f'inside "{place}"' if place else "inside the whole value"
    return re.sub(r"^prompt \d+(, )?", "", error.at or "") or None
