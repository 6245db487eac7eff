"""The documents of a job: files of texts, folders, rows of tables and of JSON lines, standard input; read late.

Inputs are scanned once before the work starts, so that a repeated id or a wrong field name is known before the first
token; the texts are read again one by one when their turn comes, so a job of any size needs memory for the ids only.

What cannot be read with certainty is a `DocumentError`, never a guess: bytes that are not of the encoding that is
declared, a page that is a picture, a protected file, more bytes than a document may have.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

from decodekit.errors import DecodekitError, DocumentError, JobError, collecting, raise_faults
from decodekit.jobs.documents.encodings import plain_text
from decodekit.jobs.documents.files import File, needed, reason
from decodekit.jobs.documents.html import html_text
from decodekit.jobs.documents.inputs import Input, LeftOut, name_in, paths_of
from decodekit.jobs.documents.mail import mail_text
from decodekit.jobs.documents.pdf import pdf_text
from decodekit.jobs.documents.refused_formats import (
    FOLDER_SUFFIXES,
    HTML_SUFFIXES,
    MAIL_SUFFIXES,
    PDF_SUFFIXES,
    is_json_lines,
    refusal_of_bytes,
    refusal_of_file,
)
from decodekit.jobs.documents.rows import Cells, JsonLines, Row, RowReader, kind_name, kind_of_rows
from decodekit.jobs.folder.file_names import Names
from decodekit.records.ledger import replace_file

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""An integer in the one spelling that it has, of at most 64 bits."""


@dataclass(frozen=True, slots=True)
class DocumentRef:
    """One document of the scan, without its text.

    Attributes:
        id: the id of a row, or the path of a text file.
        source: the file that is the document, or that has it as a row.
        place: file, or ``file:line``; ``file:row`` in Parquet.
        offset, length: where a row begins, in bytes (in rows in Parquet), and how long it is.
        text_field: the field of the row that holds the text.
        digest: of the text; empty when there is a fault.
        fault: why this document cannot be used, or None.
        is_number: the id is a whole number in the file.
    """

    id: str
    source: File | RowReader
    place: str
    offset: int = 0
    length: int = 0
    text_field: str = ""
    digest: str = ""
    fault: DocumentError | None = None
    is_number: bool = False

    @property
    def key(self) -> str | int:
        """The id as it stands in the file."""
        return int(self.id) if self.is_number else self.id

    def read(self) -> str:
        """The text, which is never blank; raises DocumentError if there is none, or none any more."""
        if self.fault is not None:
            raise self.fault
        if isinstance(self.source, File):
            return _usable(_file_text(self.source, self.place), self.place)
        row = self.source.row(self.offset, self.length, self.place, self.text_field)
        return _row_text(row, self.text_field, self.place)


@dataclass(frozen=True, slots=True)
class Scan(LeftOut):
    """The contents of the inputs: the documents in order of the inputs, and what is left out."""

    entries: list[DocumentRef] = field(default_factory=list)


def counted(number: int, noun: str) -> str:
    """A number of things in words: ``"1 document"``, ``"2,000 documents"``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def text_digest(text: str) -> str:
    """16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


def scan(
    inputs: Sequence[Input],
    *,
    known: Sequence[Input] = (),
    is_lookup: bool = False,
    gone: list[DecodekitError] | None = None,
) -> Scan:
    """List the documents of all inputs, in their order.

    A file of text, HTML or PDF is one document, its id is its path as given first (see `Names`). A folder stands for
    such files in it, at any depth. A ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet`` file holds one document per row.
    Each may be compressed (``.gz``) or lie behind a URL. A file is read once, however often and in whatever spelling it
    is named.

    Args:
        known: inputs that the job met before, whose names stay.
        is_lookup: texts of a job are looked up after the fact: what its inputs hold is taken as it is, and what a run
            would refuse, such as equal ids or a table, is not.
        gone: gets the error of each input that cannot be used, in place of raising it.
    """
    found = Scan()
    names = Names((source.location, source.label) for source in (*known, *inputs) if not source.is_remote)
    seen: set[tuple[str, str, str]] = set()
    refused: list[DecodekitError] = []
    for source in inputs:
        with collecting(refused, JobError):
            found.entries.extend(_scan_input(source, names, seen, found, is_lookup))
    if gone is None:
        raise_faults(refused, "inputs")
    else:
        gone += refused
    if not is_lookup:
        _refuse_repeats(found.entries)
    return found


def _scan_input(
    source: Input, names: Names, seen: set[tuple[str, str, str]], found: Scan, is_lookup: bool
) -> Iterator[DocumentRef]:
    """The documents of one input, but for the files that were `seen`."""
    if not source.path:
        raise JobError("an input is the empty text.", hint="the path of a file or folder, or - for standard input.")
    try:
        paths, is_folder = paths_of(source, found)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        cause = "there is no file or folder {}." if is_missing else f"{{}} cannot be read: {reason(error)}."
        raise JobError(cause.format(f"{source.path!r:.200}"), hint="check the path of the input.") from error
    if not paths:
        others = f" It has files of other kinds: {found.skipped_kinds}." if found.skipped else ""
        if found.outside:
            others += f" {counted(len(found.outside), 'link')} out of it or to nothing: name what is meant."
        others += f" {counted(len(found.hidden), 'hidden file')}." if found.hidden else ""
        hint = f"text files of a folder end in {', '.join(FOLDER_SUFFIXES)}; {found.way or '--include'} takes others."
        raise JobError(f"{source.path!r} holds no document.{others}", hint=hint)
    for path in paths:
        file = source.file(path)
        if not (source.name or is_lookup):
            _refuse_other_kinds(source, file, is_folder)
        place = path if file.is_remote else names.place(Path(path))
        key = (place, source.id_field, source.text_field)
        if key in seen:
            found.repeated.append(name_in(source, path))
            continue
        seen.add(key)
        name = source.name or (path if file.is_remote else names.name(place, source.label))
        kind = kind_of_rows(file.suffix)
        if kind is not None:
            yield from _scan_rows(source, kind(file), name, is_lookup)
            continue
        if file.suffix in PDF_SUFFIXES:
            needed("pypdf", "texts", f"{path} is a PDF")
        entry = DocumentRef(name, file, name)
        try:
            yield replace(entry, digest=text_digest(entry.read()))
        except DocumentError as error:
            yield replace(entry, fault=error.with_traceback(None))


def document_seed(seed: int, document_id: str) -> int:
    """The seed of one document: it depends on nothing but the job's seed and the document's id.

    So a document gets the same text in whatever order, batch, shard or resumed run it is done.
    """
    data = f"{seed}:{document_id}".encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1  # 63 bits: a torch int64


def shard_of(document_id: str, num_shards: int) -> int:
    """The shard, 0 to `num_shards` - 1, of a document: by its id, so that added documents move no other."""
    data = document_id.encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[8:16], "big") % num_shards


def select(entries: Sequence[DocumentRef], shard: tuple[int, int] | None, limit: int | None) -> list[DocumentRef]:
    """The documents of one shard, (number from 1, number of shards), and of these at most `limit`; None for all."""
    if shard is not None:
        entries = [entry for entry in entries if shard_of(entry.id, shard[1]) == shard[0] - 1]
    return list(entries[:limit])


def _refuse_other_kinds(source: Input, file: File, is_folder: bool) -> None:
    """Raise JobError for a file that is not a document by its kind; see `formats`."""
    name = name_in(source, file.path)
    refusal = refusal_of_file(file, name if is_folder else source.path, source.fields)
    if refusal is not None and is_folder:
        pattern = shlex.quote(f"*{file.suffix}" if file.suffix else PurePosixPath(name).name)
        raise JobError(refusal.cause, at=refusal.at, hint=f"--exclude {pattern}; or {refusal.hint}")
    if refusal is not None:
        raise refusal


def _scan_rows(source: Input, rows: RowReader, name: str, is_lookup: bool) -> list[DocumentRef]:
    found: list[DocumentRef] = []
    columns: dict[str, None] = {}  # of the first hundred rows that are some, and whether any has the named ones
    num_rows = 0
    wanted = (source.id_field, source.text_field)
    try:
        for place, offset, length, row in rows.scan(name, wanted):
            found.append(_scan_row(source, rows, place, offset, length, row))
            if not isinstance(row, DocumentError):
                num_rows += bool(row)
                columns |= dict.fromkeys(row if num_rows <= 100 else [one for one in wanted if one in row])
    except (OSError, EOFError) as error:
        raise JobError(f"{source.path} cannot be read: {reason(error)}.", hint="check the file.") from error
    if not found:
        is_lines = isinstance(rows, JsonLines)
        hint = "a JSONL file has a JSON object on each line." if is_lines else "a table has rows below its heading."
        raise JobError(f"{source.path!r} holds no document.", hint=hint)
    if num_rows:
        # The name of a field is a setting: when no row has it, the name is wrong, not the rows.
        named = [("text_field", source.text_field), ("id_field", source.id_field)]
        for option, field in named[:1] if source.id_field == "id" else named:
            if field not in columns:
                hint = f"{option}; the lines have: {', '.join(sorted(columns))}."
                raise DocumentError(f"no line of {name} has the field {field!r}.", at=name, hint=hint)
    elif not is_lookup:
        raise _no_rows(rows, name, found[0])
    if isinstance(rows, Cells) and all(_INTEGER.fullmatch(one.id) for one in found if one.fault is None):
        # A column of integers.
        found = [replace(one, is_number=_INTEGER.fullmatch(one.id) is not None) for one in found]
    return found


def _no_rows(rows: RowReader, name: str, first: DocumentRef) -> JobError:
    """The error of a file without rows that can be read."""
    assert first.fault is not None
    if not isinstance(rows, JsonLines):
        return DocumentError(f"no row of {name} can be read; the first one: {first.fault.cause}", at=name)
    return refusal_of_bytes(rows.file.read(name), name) or DocumentError(
        f"no line of {name} is a JSON object; of the first one: {first.fault.cause}",
        at=name,
        hint=first.fault.hint or "a JSONL file has a JSON object on each line; a text file ends in .txt.",
    )


def _scan_row(
    source: Input, rows: RowReader, place: str, offset: int, length: int, row: Row | DocumentError
) -> DocumentRef:
    identity, digest, fault, is_number = place, "", None, False
    try:
        if isinstance(row, DocumentError):
            raise row
        if source.id_field in row:
            identity = _field_id(row[source.id_field], source.id_field, place)
            is_number = isinstance(row[source.id_field], int)
        elif source.id_field != "id":
            raise DocumentError(f"the line has no field {source.id_field!r}.", at=place)
        digest = text_digest(_row_text(row, source.text_field, place))
    except DocumentError as error:
        fault = error.with_traceback(None)
    return DocumentRef(identity, rows, place, offset, length, source.text_field, digest, fault, is_number)


def _field_id(value: object, field: str, place: str) -> str:
    if isinstance(value, str) and value and _is_encodable(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DocumentError(f"field {field!r} is {kind_name(value)}; an id is a text or a whole number.", at=place)


def _row_text(row: Row, field: str, place: str) -> str:
    if field not in row:
        raise DocumentError(f"the line has no field {field!r}.", at=place)
    value = row[field]
    if not isinstance(value, str):
        raise DocumentError(f"field {field!r} is {kind_name(value)}, not a text.", at=place)
    return _usable(value, place)


def _file_text(file: File, place: str) -> str:
    """The text of a file that is one document: of its bytes, of an HTML page, of a mail, of the pages of a PDF."""
    suffix, data = file.suffix, file.read(place)
    if suffix in PDF_SUFFIXES:
        return pdf_text(data, place, file.max_bytes)
    read = html_text if suffix in HTML_SUFFIXES else mail_text if suffix in MAIL_SUFFIXES else plain_text
    return read(data, place, file.encoding)


def _usable(text: str, place: str) -> str:
    """The text itself; raises DocumentError if it is blank or no Unicode."""
    if not text.strip():
        raise DocumentError("the document is empty.", at=place)
    if not _is_encodable(text):
        raise DocumentError("the text has half of a surrogate pair, which is no character.", at=place)
    return text


def _is_encodable(text: str) -> bool:
    """Whether a text has a UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_repeats(entries: Iterable[DocumentRef]) -> None:
    firsts: dict[str, DocumentRef] = {}
    repeats = []
    for entry in entries:
        first = firsts.setdefault(entry.id, entry)
        if entry is first:
            continue
        file, _, line = entry.place.rpartition(":")
        first_file, _, first_line = first.place.rpartition(":")
        if entry.place == first.place:
            repeats.append(f"{entry.place} is given twice")
        elif file == first_file:
            repeats.append(f"{file}: line {line} repeats id {entry.id!r} of line {first_line}")
        else:
            repeats.append(f"{entry.place} repeats id {entry.id!r} of {first.place}")
    if repeats:
        more = f" and {len(repeats) - 3} more" if len(repeats) > 3 else ""
        cause = "; ".join(repeats[:3]) + more + "."
        raise DocumentError(cause, hint="give every document an id of its own, or name another field as id_field.")


def read_stdin(stream: BinaryIO, read_as: Input) -> bytes:
    """Standard input as it came, after a look at it: whether it holds documents, without faults in names of fields.
    Raises JobError as `scan` does, and for what is neither text nor JSON lines."""
    data = stream.read()
    if not data.strip():
        raise JobError("standard input is empty.", hint="pipe a text or JSON lines into the command.")
    with TemporaryDirectory() as folder:
        source = stdin_input(data, Path(folder), read_as)
        if not is_json_lines(data):
            refusal = refusal_of_bytes(data, "standard input", source.fields, file="/dev/stdin")
            if refusal is not None:
                raise refusal
        scan([source])
    return data


def stdin_input(data: bytes, folder: Path, read_as: Input) -> Input:
    """Standard input, saved in a job folder, so that `retry` and `report` find the documents again.

    It is JSON lines when its first line that is not blank is a JSON object, else one text, with the id ``stdin``; and
    is read with the options of another input.
    """
    name = f"input-{hashlib.sha256(data).hexdigest()[:8]}" + (".jsonl" if is_json_lines(data) else ".txt")
    replace_file(folder / name, [data])
    return replace(read_as, path=name, folder=str(folder.resolve()), name="stdin", include=(), exclude=())
