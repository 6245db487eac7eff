"""A job folder read for looking at: counts, rates, and every document with what became of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from decodekit.errors import DecodekitError, DocumentError
from decodekit.jobs.documents.documents import DocumentRef, scan, select, text_digest
from decodekit.jobs.folder.job_folder import Damaged, JobFile, read_failures, read_metrics, read_results
from decodekit.records.ledger import Record
from decodekit.records.strict_json import is_equal, pointer_of

MISSING: Any = object()
_NOT_READ = "the inputs of the parts are not read by `merge`; `decodekit report` shows the text."


@dataclass
class DocumentView:
    """One document of a job.

    Attributes:
        row: its line in `results.jsonl` or `failed.jsonl`.
        metrics: its line in `metrics.jsonl`, empty if there is none.
        entry: where its text is, or another one that has its id now; None if the input has gone.
        expected: the value it should have, `MISSING` if that is not known.
        missing: what is said of a text whose input is not there.
    """

    id: str
    row: Record
    metrics: Record
    entry: DocumentRef | None
    expected: Any = MISSING
    missing: str = "the document is no longer where it was read from."

    @property
    def is_failed(self) -> bool:
        """Whether it stands in `failed.jsonl`."""
        return "code" in self.row

    @property
    def seconds(self) -> float | None:
        """Wall time from taking it up to its end."""
        return self.metrics.get("seconds")

    @property
    def probabilities(self) -> Mapping[str, float]:
        """Lowest token probability of every value, by JSON Pointer."""
        return cast("Mapping[str, float]", self.metrics.get("probabilities", {}))

    @property
    def alternatives(self) -> Mapping[str, Mapping[str, float]]:
        """The probability of every value that a field may have, in JSON, by JSON Pointer."""
        return cast("Mapping[str, Mapping[str, float]]", self.metrics.get("alternatives", {}))

    @property
    def weakest(self) -> tuple[float, str] | None:
        """The least probable value: its probability and JSON Pointer."""
        return min(((p, pointer) for pointer, p in self.probabilities.items()), default=None)

    @property
    def num_tokens(self) -> int:
        """Generated tokens."""
        return int(self.row.get("num_generated_tokens", 0))

    def text(self) -> str:
        """The text of the document; raises DocumentError if its input has gone or changed."""
        if self.entry is None:
            raise DocumentError(self.missing)
        if self.entry.digest == self.row["document"]:
            text = self.entry.read()
            if text_digest(text) == self.entry.digest:
                return text
        raise DocumentError("the document has changed since.")

    def fields(self) -> tuple[int, int] | None:
        """The number of fields that are exactly right, and that of all; None if the right ones are not known."""
        return None if self.expected is MISSING else compare_fields(self.row.get("value"), self.expected)

    def wrong(self) -> dict[str, Any]:
        """The expected values of the fields that are wrong, by JSON Pointer."""
        return {} if self.expected is MISSING else wrong_fields(self.row.get("value"), self.expected)


def compare_fields(value: Any, expected: Any) -> tuple[int, int]:
    """(fields that are exactly right, fields in all); the fields of an object are its members, else it is one field."""
    total = len(expected) if isinstance(expected, dict) else 1
    return total - len(wrong_fields(value, expected)), total


def wrong_fields(value: Any, expected: Any) -> dict[str, Any]:
    """Expected values, by JSON Pointer, of the fields that are not exactly right."""
    if not isinstance(expected, dict):
        return {} if is_equal(value, expected) else {"": expected}
    given = value if isinstance(value, dict) else {}
    return {
        pointer_of([name]): right
        for name, right in expected.items()
        if name not in given or not is_equal(given[name], right)
    }


@dataclass
class JobView:
    """A job as it stands.

    Attributes:
        documents: the failed ones first, else in the order in which they were done.
        num_left: documents of the newest run's shard and limit that are neither done nor failed; None if an input
            has gone.
        damaged: lines of its files that were left out, because they are not rows.
    """

    title: str
    job: JobFile
    documents: list[DocumentView] = field(default_factory=list)
    num_left: int | None = None
    damaged: Damaged = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, folder: Path, *, expected: Mapping[str, Any] | None = None, is_closed: bool = False) -> JobView:
        """Read a job folder; a run may be writing to it.

        Args:
            expected: right values by id, where they are known.
            is_closed: read nothing outside of the folder; its inputs then are those that were saved in it.
        """
        job = JobFile.read(folder)
        view = cls(folder.resolve().name, job)
        metrics = read_metrics(folder, view.damaged)
        inputs = [source for source in job.inputs if source.name or not is_closed]
        gone: list[DecodekitError] = []
        entries = scan(inputs, is_lookup=True, gone=gone).entries
        missing = _NOT_READ if is_closed else DocumentView.missing
        by_id = {entry.id: entry for entry in entries}
        # A name of long ago may not be that of today, but an equal digest is an equal text.
        by_text = {entry.digest: entry for entry in entries if entry.digest}
        results = list(read_results(folder, view.damaged))
        done = {row["id"] for row in results}
        for row in [*read_failures(folder, view.damaged, done=done).values(), *results]:
            entry = by_id.get(row["id"])
            if entry is None or entry.digest != row["document"]:
                entry = by_text.get(row["document"], entry)
            right = MISSING if expected is None else expected.get(row["id"], MISSING)
            view.documents.append(DocumentView(row["id"], row, metrics.get(row["id"], {}), entry, right, missing))
        newest = job.selection
        if newest and len(inputs) == len(job.inputs) > 0 and not gone:
            shard, limit = newest["shard"], newest.get("limit")
            selected = {entry.id for entry in select(entries, shard, limit)}
            view.num_left = len(selected - {document.id for document in view.documents})
        elif "merged" in newest and "num_documents" in newest:
            view.num_left = max(0, newest["num_documents"] - len(view.documents))
        return view

    @property
    def failed(self) -> list[DocumentView]:
        """The documents that failed."""
        return [document for document in self.documents if document.is_failed]

    @property
    def done(self) -> list[DocumentView]:
        """The documents that are done."""
        return [document for document in self.documents if not document.is_failed]

    @property
    def failures(self) -> Counter[str]:
        """Number of failed documents by code and class, such as ``"DK101 LengthError"``."""
        return Counter(f"{document.row['code']} {document.row['error']}" for document in self.failed)

    @property
    def num_cut(self) -> int:
        """Documents that are done with a text cut at the limit (``--on-length return``)."""
        return sum(document.row["finish_reason"] == "length" for document in self.done)

    @property
    def working_seconds(self) -> float:
        """Wall time of all runs; a run that was killed counts up to its last result."""
        last: dict[int, float] = {}
        for metrics in (document.metrics for document in self.documents if document.metrics):
            last[metrics["run"]] = max(last.get(metrics["run"], 0.0), metrics["at"])
        ends = ((run, run.get("ended", last.get(number))) for number, run in enumerate(self.job.runs, start=1))
        return sum((end - run["started"] for run, end in ends if end is not None), start=0.0)

    @property
    def num_tokens(self) -> int:
        """Generated tokens of all documents, the failed ones too."""
        return sum(document.num_tokens for document in self.documents)

    def fields(self) -> tuple[int, int] | None:
        """The number of fields that are exactly right, and that of all; failed documents have none. None if unknown."""
        return total_fields(self.documents)

    def to_json(self) -> dict[str, Any]:
        """Counts and rates as plain values; a document counts for the rate when it is done or has failed."""
        seconds = self.working_seconds
        return {
            "done": len(self.done),
            "failed": len(self.failed),
            "left": self.num_left,
            "missing_shards": self.job.missing_shards,
            "cut": self.num_cut,
            "damaged": sum(map(len, self.damaged.values())),
            "failures": dict(self.failures.most_common()),
            "tokens": self.num_tokens,
            "seconds": round(seconds, 3),
            "documents_per_second": round(len(self.documents) / seconds, 3) if seconds else None,
            "tokens_per_second": round(self.num_tokens / seconds, 1) if seconds else None,
            "fingerprint": self.job.settings.fingerprint,
            "model": self.job.settings.model,
            "strategy": self.job.settings.strategy_text,
            "runs": self.job.runs,
        }


def total_fields(views: Sequence[JobView | DocumentView]) -> tuple[int, int] | None:
    """`fields` of several jobs or documents together."""
    known = [count for view in views if (count := view.fields()) is not None]
    return (sum(right for right, _ in known), sum(total for _, total in known)) if known else None
