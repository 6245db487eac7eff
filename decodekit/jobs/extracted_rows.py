"""Jobs from Python: documents in, rows out, in their order.

    rows = dk.extract(["Invoice A-17, total 40.20 EUR."], "number, total float", "tiny")
    rows[0].value, rows[0].error

It is `decodekit extract` without the command line: the same settings, the same validation, and with a `folder` the same
job folder, so that a killed program goes on where it was and `decodekit status`, `retry` and `report` work on it.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

from decodekit import errors
from decodekit.errors import DecodekitError, DocumentError, JobError, OptionError, UselessOptionError, out_of_domain
from decodekit.jobs.document_prompt import BUNDLED_MODELS
from decodekit.jobs.documents.documents import DocumentRef, scan, select
from decodekit.jobs.documents.files import MAX_DOCUMENT_MB
from decodekit.jobs.documents.inputs import Input, without_own
from decodekit.jobs.extraction import Extraction, ExtractionKeywords, ExtractionOptions
from decodekit.jobs.folder.job_folder import JobFolder, known_inputs, read_metrics, read_results
from decodekit.jobs.job_runner import Observer
from decodekit.jobs.job_schema import schema_of
from decodekit.jobs.reports.progress import JobProgress
from decodekit.plugins import did_you_mean
from decodekit.records.ledger import Record, encode_line, replace_file
from decodekit.sampling.checks import COUNT, FLAG, Domain, is_count

if TYPE_CHECKING:
    from decodekit.llm import LLM

_STRATEGY = Domain("a text: a job writes it down", lambda value: isinstance(value, str)).hinting(
    'a name with its options: "sample:temperature=0.7,top_p=0.9"'
)
_SHARD = Domain(
    "a pair (i, n) with i from 1 to n",
    lambda value: isinstance(value, tuple) and len(value) == 2 and all(map(is_count, value)) and value[0] <= value[1],
)
_NAME = "documents"  # the beginning of the places of rows that came from a program


@dataclass(frozen=True, slots=True)
class ExtractedRow:
    """The outcome of one document.

    Attributes:
        id: of the document: its `id_field` (an integer where it is one there), its path, or its number among the
            documents.
        value: the JSON value, an object as a dictionary, whatever type the schema came from; None where there is an
            error.
        error: why there is no value.
        text: the value as JSON (of a constraint that is not about JSON, the text itself); where there is an error or
            the text was cut, the text of the model as far as it came.
        finish_reason: as of a `Completion`; None if no model was asked.
        probabilities: the lowest token probability of every value, by JSON Pointer.
        alternatives: with ``alternatives=True``, of every enum, literal and boolean the probability of each value that
            it may have, in JSON, by JSON Pointer; see `jobs.reports.alternatives`.
    """

    id: str | int
    value: Any
    error: DecodekitError | None
    text: str = ""
    finish_reason: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    alternatives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def table_rows(self) -> list[dict[str, Any]]:
        """A row for `to_pandas`."""
        error = self.error
        told = {"error": error and error.code, "message": error and error.cause, "finish_reason": self.finish_reason}
        return [{"id": self.id, "value": self.value, **told, "text": self.text}]


def extract(
    documents: Any,
    schema: Any,
    model: str | LLM = "tiny",
    *,
    folder: str | os.PathLike[str] | None = None,
    id_field: str = "id",
    text_field: str = "text",
    raw: bool = False,
    strategy: str = "greedy",
    limit: int | None = None,
    shard: tuple[int, int] | None = None,
    max_document_mb: float = MAX_DOCUMENT_MB,
    fresh: bool = False,
    force: bool = False,
    progress: bool | Observer = False,
    **options: Unpack[ExtractionKeywords],
) -> list[ExtractedRow]:
    """Extract JSON from documents; one that fails is a row with an error, and the others go on.

    Args:
        documents: an iterable of texts, or of dictionaries with the fields `id_field` and `text_field`: a list, a
            generator, a ``datasets.Dataset``, a DataFrame. Or a path (``pathlib.Path``), or a
            `jobs.documents.inputs.Input`, which also takes a URL, patterns of file names and an encoding, or a list of
            these: files and folders as `decodekit extract` takes them. A text has its number as id, from 0; so has a
            dictionary without one.
        schema: a Pydantic model, dataclass or other type, a JSON Schema, a constraint, or a text as for ``--schema``.
        model: a name or folder for `LLM.load`, or a model that is loaded.
        folder: the job folder, which makes the call resumable: what is done in it is not done again. None keeps none.
        raw: do not use the model's chat template.
        strategy: a name, with options if need be: ``"sample:temperature=0.7"``.
        limit, shard: only the first documents; only the i-th of n parts, as (i, n).
        max_document_mb: mebibytes of a document after it is unpacked; a larger one fails. An `Input` has its own.
        fresh, force: delete what the folder holds; go on with other settings than those that it was made with.
        progress: show progress on stderr, or tell an observer.
        options: of `jobs.extraction.ExtractionOptions`, with their defaults: ``prompt`` (None), ``max_new_tokens``
            (512), ``on_length`` ('error'), ``seed`` (0), ``speculate`` (None), ``fast_forward`` ('exact'),
            ``max_rollbacks`` (None), ``max_retries`` (0), ``chat_template_kwargs`` (None), ``batch_size`` (None),
            ``max_failures`` (None; rows of what was not reached then say so), ``executor`` ('local') and
            ``num_workers`` (None; actors of Ray, each with a model of its own), ``alternatives`` (False; for
            `ExtractedRow.alternatives`), ``device_map`` (None).

    Returns:
        A row for each document, in their order.

    Raises:
        OptionError, ConstraintError, ModelError: an option, the schema or the model cannot be used.
        JobError: a file cannot be used, ids or fields are wrong, or the folder belongs to another job.
    """
    for name in sorted(options.keys() - ExtractionKeywords.__annotations__.keys()):
        known = [*inspect.signature(extract).parameters, *ExtractionKeywords.__annotations__]
        raise TypeError(f"extract() got an unexpected keyword argument {name!r}.{did_you_mean(name, known)}")
    read_as = Input("", id_field, text_field, str(Path.cwd()), max_document_mb=max_document_mb)
    chosen = ExtractionOptions(schema_of(schema), model=_name_of(model), strategy=strategy, is_raw=raw, **options)
    with nullcontext(folder) if folder is not None else TemporaryDirectory() as path:
        selection = (shard, limit)
        return _run(documents, read_as, model, chosen, Path(path), selection, progress, fresh=fresh, force=force)


def _run(
    documents: Any,
    read_as: Input,
    model: str | LLM,
    chosen: ExtractionOptions,
    folder: Path,
    selection: tuple[tuple[int, int] | None, int | None],
    progress: bool | Observer,
    *,
    fresh: bool,
    force: bool,
) -> list[ExtractedRow]:
    sources = _files_of(documents, read_as)
    for name, domain, value in (
        ("strategy", _STRATEGY, chosen.strategy), ("raw", FLAG, chosen.is_raw), ("fresh", FLAG, fresh),
        ("force", FLAG, force), ("shard", _SHARD.or_none, selection[0]), ("limit", COUNT.or_none, selection[1]),
    ):  # fmt: skip
        domain.require(name, value)
    if fresh and force:
        raise OptionError("fresh and force cannot be combined: one deletes what the other keeps", at="force")
    chosen.check()
    if not isinstance(model, str) and chosen.device_map is not None and chosen.executor == "local":
        cause = f"device_map={chosen.device_map!r} has no effect on a model that is loaded"
        raise UselessOptionError(cause, at="device_map", hint="LLM.load(name, device_map=...)")
    known = [] if fresh else known_inputs(folder)
    if sources is not None:
        sources, _ = without_own(sources, folder)
        scan(sources, known=known)  # faults of the documents are told before the model is loaded
    if isinstance(model, str):
        from decodekit.llm import LLM

        model = LLM.load(model, device_map=chosen.device_map)
    extraction = Extraction(model, chosen)
    job, _ = JobFolder.create_or_resume(folder, extraction.settings, fresh=fresh, force=force)
    with job:
        if sources is None:
            sources = [_saved(documents, folder, read_as)]
        entries = scan(sources, known=known).entries
        job.add_inputs(sources)
        observer = progress if isinstance(progress, Observer) else JobProgress() if progress else None
        extraction.run(job, entries, shard=selection[0], limit=selection[1], observer=observer)
        failures = dict(job.failures)
    return _rows(folder, select(entries, *selection), failures, is_json=chosen.schema.is_json)


def _rows(
    folder: Path, entries: list[DocumentRef], failures: Mapping[str, Record], *, is_json: bool
) -> list[ExtractedRow]:
    wanted = {entry.id for entry in entries}
    done = {row["id"]: row for row in read_results(folder) if row["id"] in wanted}
    metrics = read_metrics(folder)
    rows = []
    for entry in entries:
        if (row := done.get(entry.id)) is not None:
            found = metrics.get(entry.id, {})
            figures = found.get("probabilities", {}), found.get("alternatives", {})
            text, value = row.get("text"), row["value"]
            if text is None:
                text = value if isinstance(value, str) and not is_json else json.dumps(value, ensure_ascii=False)
            made = ExtractedRow(entry.key, value, None, text, row["finish_reason"], *figures)
        elif (row := failures.get(entry.id)) is not None:
            made = ExtractedRow(entry.key, None, errors.error_of(row), row["text"], row["finish_reason"])
        else:
            cause = "the document was not reached: the job stopped at max_failures"
            made = ExtractedRow(entry.key, None, JobError(cause, at=entry.id, hint="the same call goes on"))
        rows.append(made)
    return rows


def _files_of(documents: Any, read_as: Input) -> list[Input] | None:
    """The documents as inputs, if they are files; None for texts and rows. Raises OptionError for anything else."""

    def as_input(given: Any) -> Input:
        return given if isinstance(given, Input) else replace(read_as, path=os.fspath(given))

    if _is_file(documents):
        return [as_input(documents)]
    if isinstance(documents, str | bytes):
        cause = f"documents={documents!r:.60} is one text"
        raise OptionError(cause, at="documents", hint="[text], or pathlib.Path(path) for a file or folder")
    if isinstance(documents, Mapping):
        keys = ", ".join(map(str, itertools.islice(documents, 8)))
        hint = "a list of rows; of a datasets.DatasetDict, one split"
        raise OptionError(f"documents are one dictionary, of {keys}", at="documents", hint=hint)
    if not isinstance(documents, Iterable) and not hasattr(documents, "to_batches"):
        raise out_of_domain("documents", "an iterable of texts", documents, hint="a list of texts")
    if isinstance(documents, list | tuple) and any(map(_is_file, documents)):
        if not all(map(_is_file, documents)):
            raise OptionError("documents are files and texts together", at="documents", hint="two calls")
        return [as_input(one) for one in documents]
    return None


def _is_file(given: Any) -> bool:
    return isinstance(given, os.PathLike | Input)


def _saved(documents: Any, folder: Path, read_as: Input) -> Input:
    """Texts and rows of a program, saved in the job folder as JSON lines, as an input; they are taken one by one."""
    text_field = read_as.text_field
    columns: dict[str, None] = {}
    digest, made = hashlib.sha256(), folder / "input-rows.jsonl"

    def lines() -> Iterator[bytes]:
        for row in _as_rows(_each(documents), read_as.id_field, text_field, columns):
            line = encode_line(row)
            digest.update(line)
            yield line

    replace_file(made, lines())
    path = made.replace(folder / f"input-{digest.hexdigest()[:8]}.jsonl")
    if not path.stat().st_size:
        raise JobError("there are no documents", at="documents", hint="at least one text")
    if columns and text_field not in columns:
        hint = f"text_field; the rows have: {', '.join(sorted(columns))}"
        raise DocumentError(f"no row of the documents has the field {text_field!r}", at="documents", hint=hint)
    return Input(path.name, "id", "text", str(folder.resolve()), _NAME, read_as.max_document_mb)


def _each(documents: Any) -> Iterator[Any]:
    """The rows of a table of another package, which by itself would give its columns; else the documents."""
    if hasattr(documents, "itertuples"):  # pandas
        for row in documents.itertuples(index=False, name=None):
            yield dict(zip(documents.columns, row, strict=True))
    elif hasattr(documents, "iter_rows"):  # polars
        yield from documents.iter_rows(named=True)
    elif hasattr(documents, "to_batches"):  # pyarrow
        for batch in documents.to_batches(256):
            yield from batch.to_pylist()
    else:
        yield from documents


def _as_rows(
    documents: Iterable[Any], id_field: str, text_field: str, columns: dict[str, None]
) -> Iterator[dict[str, Any]]:
    """Rows with the fields ``id`` and ``text``; what a document lacks, its row lacks too, and fails for it."""
    for number, document in enumerate(documents):
        if not isinstance(document, Mapping):
            if not columns:
                columns[text_field] = None
            yield {"id": str(number), "text": _plain(document)}
            continue
        if len(columns) < 1000:
            columns |= dict.fromkeys(map(str, document))
        row = {"id": document[id_field]} if id_field in document else {"id": str(number)} if id_field == "id" else {}
        if text_field in document:
            row["text"] = document[text_field]
        yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """A value that can stand in a line of JSON: a text or whole number as it is, of anything else its kind."""
    if isinstance(value, str | bool):
        return value
    if _is_null(value):
        return None
    with suppress(TypeError):  # an int, also of numpy
        return operator.index(value)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {"type": type(value).__name__}
    return value


def _is_null(value: Any) -> bool:
    """Whether a cell of a table is empty: None, NaN, and pandas' NaT and NA."""
    with suppress(Exception):  # an array has no truth value
        return value is None or type(value).__name__ == "NAType" or bool(value != value)  # true of NaN alone
    return False


def _name_of(model: str | LLM) -> str:
    name = model if isinstance(model, str) else str(model.model.name)
    path = Path(name)
    is_bundled = path.name in BUNDLED_MODELS and path.parent == Path(errors.__file__).parent / "models"
    return path.name if is_bundled else name
