"""The documents of a job: text files, folders, JSON lines, standard input. A list of ids; texts are read late.

Inputs are scanned once before the work starts, so that a repeated id or a wrong field name is known before the first
token; the texts are read again one by one when their turn comes, so a job of any size needs memory for the ids only.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from decodekit.errors import DecodekitError, DocumentError, JobError, collecting, raise_faults
from decodekit.jobs.formats import (
    JSONL_SUFFIXES,
    TEXT_SUFFIXES,
    is_json_lines,
    refusal_of_file,
    refusal_of_lines,
    refusal_of_stdin,
)
from decodekit.jobs.names import Names
from decodekit.jobs.settings import shard_of
from decodekit.records.ledger import replace_file

STDIN_ID = "stdin"
SPOOLED = f"input-{'[0-9a-f]' * 8}.*"  # glob of the saved copies of standard input in a job folder


@dataclass(frozen=True, slots=True)
class DocumentRef:
    """One document of the scan, without its text.

    Attributes:
        id: the id of a JSON line, or the path of a text file.
        source: the file.
        place: file, or ``file:line``.
        offset, length: the bytes of the JSON line; the whole file when `length` is -1.
        text_field: the field of the JSON line that holds the text.
        digest: of the text; empty when there is a fault.
        fault: why this document cannot be used, or None.
    """

    id: str
    source: Path
    place: str
    offset: int
    length: int
    text_field: str
    digest: str
    fault: DocumentError | None

    def read(self) -> str:
        """The text, which is never blank.

        Raises:
            DocumentError: the document cannot be used, or its file has gone or changed since the scan.
        """
        if self.fault is not None:
            raise self.fault
        try:
            with self.source.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self.length)
        except OSError as error:
            raise DocumentError(f"the file cannot be read: {error.strerror}.", at=self.place) from error
        if self.length < 0:
            text = _decode(data, self.place)
        else:
            text = _field_text(_parse_line(data, self.place), self.text_field, self.place)
        return _usable_text(text, self.place)


@dataclass(frozen=True, slots=True)
class Input:
    """One input as it was named: a path and how to read it.

    Attributes:
        path: as given; also the beginning of the ids of text files.
        id_field, text_field: fields of JSON lines.
        folder: the folder that a relative `path` starts from.
        name: the beginning of the ids instead of `path`, for standard input.
    """

    path: str
    id_field: str = "id"
    text_field: str = "text"
    folder: str = "."
    name: str = ""

    @property
    def location(self) -> Path:
        """Where the input is."""
        return Path(self.folder) / self.path

    @property
    def label(self) -> str:
        """What the ids of its documents begin with."""
        return self.name or Path(self.path).as_posix()

    @property
    def fields(self) -> set[str]:
        """Names that the columns of a table of documents may have."""
        return {self.id_field.lower(), self.text_field.lower(), "id", "text"}


@dataclass(frozen=True, slots=True)
class Scan:
    """What the inputs hold.

    Attributes:
        entries: the documents, in order of the inputs.
        skipped: files in folders that are not text files, and so are no documents.
        repeated: files that were named before, by another input or another spelling; each is done once.
    """

    entries: list[DocumentRef] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def skipped_kinds(self) -> str:
        """How many files of which endings were skipped, such as ``"2 .csv, 1 .pdf"``."""
        kinds = Counter(Path(name).suffix.lower() or "without an ending" for name in self.skipped)
        shown = [f"{count} {kind}" for kind, count in kinds.most_common(4)]
        return ", ".join([*shown, "..."] if len(kinds) > 4 else shown)


def text_digest(text: str) -> str:
    """16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


def scan(inputs: Sequence[Input], *, known: Sequence[Input] = (), is_lookup: bool = False) -> Scan:
    """List the documents of all inputs.

    A text file is one document, its id is its path as given first (see `names`). A folder stands for the text files in
    it, at any depth. A ``.jsonl`` or ``.ndjson`` file holds one document per line. A file is read once, however often
    and in whatever spelling it is named.

    Args:
        inputs: in the order in which documents shall be done.
        known: inputs that the job met before, whose names stay.
        is_lookup: texts of a job are looked up after the fact: what its inputs hold is taken as it is, and what a run
            would refuse, such as equal ids or a table, is not.

    Raises:
        JobError: an input does not exist, holds no document, or is a table, an archive or the like (see `formats`).
        DocumentError: two documents have one id, or no line of a file has the named field.
        OptionError: several inputs cannot be used, each with its own error.
    """
    found = Scan()
    names = Names((source.location, source.label) for source in (*known, *inputs))
    seen: set[tuple[str, str, str]] = set()
    refused: list[DecodekitError] = []
    for source in inputs:
        with collecting(refused, JobError):
            found.entries.extend(_scan_input(source, names, seen, found, is_lookup))
    raise_faults(refused, "inputs")
    if not is_lookup:
        _refuse_repeats(found.entries)
    return found


def _scan_input(
    source: Input, names: Names, seen: set[tuple[str, str, str]], found: Scan, is_lookup: bool
) -> Iterator[DocumentRef]:
    """The documents of one input, but for the files that were `seen`."""
    if not source.path:
        raise JobError("an input is the empty text.", hint="the path of a file or folder, or - for standard input.")
    location = source.location
    try:
        mode = location.stat().st_mode
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        cause = "there is no file or folder {}." if is_missing else f"{{}} cannot be read: {error.strerror}."
        raise JobError(cause.format(f"{source.path!r:.200}"), hint="check the path of the input.") from error
    if stat.S_ISDIR(mode):
        paths = _files_of(source, found.skipped)
        if not paths:
            others = f" It has files of other kinds: {found.skipped_kinds}." if found.skipped else ""
            hint = f"text files of a folder end in {', '.join(TEXT_SUFFIXES)}; name other files one by one."
            raise JobError(f"{source.path!r} holds no document.{others}", hint=hint)
    else:
        if not stat.S_ISREG(mode):
            cause = f"{source.path!r} is a pipe or a device, and documents are read more than once."
            raise JobError(cause, hint=f"standard input: cat {source.path} | decodekit extract - ...")
        paths = [location]
        refusal = None if source.name or is_lookup else refusal_of_file(location, source.path, source.fields)
        if refusal is not None:
            raise refusal
    for path in paths:
        place = names.place(path)
        key = (place, source.id_field, source.text_field)
        if key in seen:
            inside = "" if path == location else f"/{path.relative_to(location).as_posix()}"
            found.repeated.append(source.label + inside)
            continue
        seen.add(key)
        name = source.name or names.name(place, source.label)
        if path.suffix.lower() in JSONL_SUFFIXES:
            yield from _scan_lines(source, name, is_lookup)
        else:
            yield _scan_text_file(path, name)


def select(entries: Sequence[DocumentRef], shard: tuple[int, int] | None, limit: int | None) -> list[DocumentRef]:
    """The documents of one shard, (number from 1, number of shards), and of these at most `limit`; None for all."""
    if shard is not None:
        entries = [entry for entry in entries if shard_of(entry.id, shard[1]) == shard[0] - 1]
    return list(entries[:limit])


def _files_of(source: Input, skipped: list[str]) -> list[Path]:
    """The text files of a folder; the names of the others go to `skipped`."""
    folder, found = source.location, []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        if (path.parent / "job.json").exists():
            continue  # a job folder: what is in it came out of documents
        if path.suffix.lower() in TEXT_SUFFIXES:
            found.append(path)
        else:
            skipped.append(f"{source.label}/{relative.as_posix()}")
    return found


def _scan_text_file(path: Path, name: str) -> DocumentRef:
    entry = DocumentRef(name, path, name, 0, -1, "", "", None)
    try:
        return replace(entry, digest=text_digest(entry.read()))
    except DocumentError as error:
        return replace(entry, fault=error.with_traceback(None))


def _scan_lines(source: Input, name: str, is_lookup: bool) -> list[DocumentRef]:
    path = source.location
    found: list[tuple[DocumentRef, dict[str, Any]]] = []
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip(b" \t\r\n\xef\xbb\xbf"):
                    found.append(_scan_line(source, path, line, offset, f"{name}:{number}"))
                offset += len(line)
    except OSError as error:
        raise JobError(f"{source.path} cannot be read: {error.strerror}.") from error
    if not found:
        raise JobError(f"{source.path!r} holds no document.", hint="a JSONL file has a JSON object on each line.")
    rows = [row for _, row in found if row]
    if not rows and not is_lookup:
        raise _no_lines(path, name, found[0][0])
    if rows:
        # The name of a field is a setting: when no line has it, the name is wrong, not the lines.
        named = [("--text-field", source.text_field), ("--id-field", source.id_field)]
        for option, field in named[:1] if source.id_field == "id" else named:
            if not any(field in row for row in rows):
                names = ", ".join(sorted({key for row in rows[:100] for key in row}))
                hint = f"{option}; the lines have: {names}."
                raise DocumentError(f"no line of {name} has the field {field!r}.", at=name, hint=hint)
    return [entry for entry, _ in found]


def _no_lines(path: Path, name: str, first: DocumentRef) -> JobError:
    """Why no line of a file is a JSON object."""
    assert first.fault is not None
    return refusal_of_lines(path.read_bytes(), name) or DocumentError(
        f"no line of {name} is a JSON object; of the first one: {first.fault.cause}",
        at=name,
        hint=first.fault.hint or "a JSONL file has a JSON object on each line; a text file ends in .txt.",
    )


def _scan_line(source: Input, path: Path, line: bytes, offset: int, place: str) -> tuple[DocumentRef, dict[str, Any]]:
    identity, digest, fault = place, "", None
    row: dict[str, Any] = {}
    try:
        row = _parse_line(line, place)
        if source.id_field in row:
            identity = _field_id(row[source.id_field], source.id_field, place)
        elif source.id_field != "id":
            raise DocumentError(f"the line has no field {source.id_field!r}.", at=place)
        digest = text_digest(_usable_text(_field_text(row, source.text_field, place), place))
    except DocumentError as error:
        fault = error.with_traceback(None)
    # Only the names of the fields are wanted afterwards; holding on to the texts would fill the memory.
    fields = dict.fromkeys(row)
    entry = DocumentRef(identity, path, place, offset, len(line), source.text_field, digest, fault)
    return entry, fields


def _parse_line(data: bytes, place: str) -> dict[str, Any]:
    text = _decode(data, place)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"the line is not JSON: {error}.", at=place) from error
    if not isinstance(row, dict):
        raise DocumentError(f"the line is not a JSON object but {_kind(row)}.", at=place)
    return row


def _field_id(value: object, field: str, place: str) -> str:
    if isinstance(value, str) and value and _is_encodable(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DocumentError(f"field {field!r} is {_kind(value)}; an id is a text or a whole number.", at=place)


def _field_text(row: dict[str, Any], field: str, place: str) -> str:
    if field not in row:
        raise DocumentError(f"the line has no field {field!r}.", at=place)
    value = row[field]
    if not isinstance(value, str):
        raise DocumentError(f"field {field!r} is {_kind(value)}, not a text.", at=place)
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "an unusable text", list: "an array"}
    return names.get(type(value), "an object")


def _decode(data: bytes, place: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("the text is UTF-16, not UTF-8.", at=place, hint=_UTF_16_HINT)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cause = f"the text is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}."
        raise DocumentError(cause, at=place, hint="convert the file to UTF-8, then `decodekit retry`.") from error
    if "\0" in text:
        cause = "the file has NUL bytes, so it is no UTF-8 text but UTF-16 or data of a program."
        raise DocumentError(cause, at=place, hint=_UTF_16_HINT)
    return text


_UTF_16_HINT = "convert the file to UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW."


def _usable_text(text: str, place: str) -> str:
    if not text.strip():
        raise DocumentError("the document is empty.", at=place)
    if not _is_encodable(text):
        raise DocumentError("the text has half of a surrogate pair, which is no character.", at=place)
    return text


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_repeats(entries: Iterable[DocumentRef]) -> None:
    firsts: dict[str, DocumentRef] = {}
    repeats = [
        _describe_repeat(entry, first.place)
        for entry in entries
        if (first := firsts.setdefault(entry.id, entry)) is not entry
    ]
    if repeats:
        more = f" and {len(repeats) - 3} more" if len(repeats) > 3 else ""
        cause = "; ".join(repeats[:3]) + more + "."
        raise DocumentError(cause, hint="give every document an id of its own, or name another field with --id-field.")


def _describe_repeat(entry: DocumentRef, first: str) -> str:
    file, _, line = entry.place.rpartition(":")
    first_file, _, first_line = first.rpartition(":")
    if entry.place == first:
        return f"{entry.place} is given twice"
    if file == first_file:
        return f"{file}: line {line} repeats id {entry.id!r} of line {first_line}"
    return f"{entry.place} repeats id {entry.id!r} of {first}"


def read_stdin(stream: BinaryIO, id_field: str, text_field: str) -> bytes:
    """Standard input as it came, after a look at it: whether it holds documents, without faults in names of fields.

    Raises:
        JobError: nothing came in, or what is no text and no JSON lines (see `formats`).
        DocumentError: two documents have one id, or no line has the named field.
    """
    data = stream.read()
    if not data.strip():
        raise JobError("standard input is empty.", hint="pipe a text or JSON lines into the command.")
    with TemporaryDirectory() as folder:
        source = stdin_input(data, Path(folder), id_field, text_field)
        if refusal := refusal_of_stdin(data, source.fields):
            raise refusal
        scan([source])
    return data


def spool(data: bytes, folder: Path) -> Path:
    """Save standard input in a job folder, so that `retry` and `report` find the documents again.

    The input is JSON lines when its first line that is not blank is a JSON object; otherwise it is one text, with the
    id ``stdin``.

    Raises:
        OutputError: the folder cannot be written.
    """
    name = f"input-{hashlib.sha256(data).hexdigest()[:8]}" + (".jsonl" if is_json_lines(data) else ".txt")
    replace_file(folder / name, [data])
    return folder / name


def stdin_input(data: bytes, folder: Path, id_field: str, text_field: str) -> Input:
    """Standard input, saved in the job folder, as an input."""
    path = spool(data, folder)
    return Input(path.name, id_field, text_field, folder=str(folder.resolve()), name=STDIN_ID)
