"""The documents of a job: text files, folders, JSON lines, standard input. A list of ids; texts are read late.

Inputs are scanned once before the work starts, so that a repeated id or a wrong field name is known before the first
token; the texts are read again one by one when their turn comes, so a job of any size needs memory for the ids only.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from decodekit.errors import DocumentError, JobError
from decodekit.jobs.settings import shard_of

TEXT_SUFFIXES = (".txt", ".md", ".text")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
STDIN_ID = "stdin"
SPOOLED = f"input-{'[0-9a-f]' * 8}.*"  # glob of the saved copies of standard input in a job folder


@dataclass(frozen=True, slots=True)
class Document:
    """A document whose text is at hand.

    Attributes:
        id: unique in the job.
        text: never blank.
        place: file, or ``file:line``.
    """

    id: str
    text: str
    place: str

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that change when the text changes."""
        return text_digest(self.text)


@dataclass(frozen=True, slots=True)
class Entry:
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

    def read(self) -> Document:
        """Read the text.

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
            return Document(self.id, _usable_text(_decode(data, self.place), self.place), self.place)
        row = _parse_line(data, self.place)
        return Document(self.id, _usable_text(_field_text(row, self.text_field, self.place), self.place), self.place)


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


@dataclass(frozen=True, slots=True)
class Scan:
    """What the inputs hold.

    Attributes:
        entries: the documents, in order of the inputs.
        skipped: files in folders that are not text files, and so are no documents.
    """

    entries: list[Entry]
    skipped: list[str]


def text_digest(text: str) -> str:
    """16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


def scan(inputs: Sequence[Input], *, allow_repeats: bool = False) -> Scan:
    """List the documents of all inputs.

    A text file is one document, its id is its path as given. A folder stands for the text files in it, at any depth. A
    ``.jsonl`` or ``.ndjson`` file holds one document per line.

    Args:
        inputs: in the order in which documents shall be done.
        allow_repeats: keep documents with equal ids (for looking texts up after the fact).

    Raises:
        JobError: an input does not exist, or holds no document.
        DocumentError: two documents have one id, or no line of a file has the named field.
    """
    entries: list[Entry] = []
    skipped: list[str] = []
    for source in inputs:
        before = len(entries)
        location = source.location
        if location.is_dir():
            entries += _scan_folder(source, skipped)
        elif not location.exists():
            raise JobError(f"there is no file or folder {source.path!r}.", hint="check the path of the input.")
        elif location.suffix.lower() in JSONL_SUFFIXES:
            entries += _scan_lines(source)
        else:
            entries.append(_scan_text_file(location, source.label))
        if len(entries) == before:
            raise JobError(
                f"{source.path!r} holds no document.",
                hint=f"text files of a folder end in {', '.join(TEXT_SUFFIXES)}; name other files one by one.",
            )
    if not allow_repeats:
        _refuse_repeats(entries)
    return Scan(entries, skipped)


def select(entries: Sequence[Entry], shard: tuple[int, int] | None, limit: int | None) -> list[Entry]:
    """The documents of one shard, then the first ones of these.

    Args:
        entries: all documents.
        shard: (number from 1, number of shards), None for all.
        limit: how many at most, None for all.
    """
    if shard is not None:
        entries = [entry for entry in entries if shard_of(entry.id, shard[1]) == shard[0] - 1]
    return list(entries[:limit])


def _scan_folder(source: Input, skipped: list[str]) -> Iterator[Entry]:
    folder = source.location
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        if (path.parent / "job.json").exists():
            continue  # a job folder: what is in it came out of documents
        if path.suffix.lower() in TEXT_SUFFIXES:
            yield _scan_text_file(path, f"{source.label}/{relative.as_posix()}")
        else:
            skipped.append(f"{source.label}/{relative.as_posix()}")


def _scan_text_file(path: Path, name: str) -> Entry:
    entry = Entry(name, path, name, 0, -1, "", "", None)
    try:
        digest, fault = entry.read().digest, None
    except DocumentError as error:
        digest, fault = "", error.with_traceback(None)
    return Entry(name, path, name, 0, -1, "", digest, fault)


def _scan_lines(source: Input) -> list[Entry]:
    path = source.location
    name = source.label
    found: list[tuple[Entry, dict[str, Any]]] = []
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip(b" \t\r\n\xef\xbb\xbf"):
                    found.append(_scan_line(source, path, line, offset, f"{name}:{number}"))
                offset += len(line)
    except OSError as error:
        raise JobError(f"{source.path} cannot be read: {error.strerror}.") from error
    rows = [row for _, row in found if row]
    if rows:
        # The name of a field is a setting: when no line has it, the name is wrong, not the lines.
        for option, field in (("--text-field", source.text_field), ("--id-field", source.id_field)):
            is_optional = option == "--id-field" and field == "id"
            if not is_optional and not any(field in row for row in rows):
                names = ", ".join(sorted({key for row in rows[:100] for key in row}))
                raise DocumentError(
                    f"no line of {name} has the field {field!r}.", at=name, hint=f"{option}; the lines have: {names}."
                )
    return [entry for entry, _ in found]


def _scan_line(source: Input, path: Path, line: bytes, offset: int, place: str) -> tuple[Entry, dict[str, Any]]:
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
    entry = Entry(identity, path, place, offset, len(line), source.text_field, digest, fault)
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
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"the text is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}.",
            at=place,
            hint="convert the file to UTF-8, then `decodekit retry`.",
        ) from error


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


def _refuse_repeats(entries: Iterable[Entry]) -> None:
    places: dict[str, str] = {}
    repeats: list[str] = []
    for entry in entries:
        if entry.id in places:
            repeats.append(_describe_repeat(entry, places[entry.id]))
        else:
            places[entry.id] = entry.place
    if repeats:
        more = f" and {len(repeats) - 3} more" if len(repeats) > 3 else ""
        raise DocumentError(
            "; ".join(repeats[:3]) + more + ".",
            hint="give every document an id of its own, or name another field with --id-field.",
        )


def _describe_repeat(entry: Entry, first: str) -> str:
    file, _, line = entry.place.rpartition(":")
    first_file, _, first_line = first.rpartition(":")
    if entry.place == first:
        return f"{entry.place} is given twice"
    if file == first_file:
        return f"{file}: line {line} repeats id {entry.id!r} of line {first_line}"
    return f"{entry.place} repeats id {entry.id!r} of {first}"


def spool(stream: BinaryIO, folder: Path) -> Path:
    """Save standard input in a job folder, so that `retry` and `report` find the documents again.

    The input is JSON lines when its first line that is not blank is a JSON object; otherwise it is one text, with the
    id ``stdin``.

    Raises:
        JobError: nothing came in.
        OutputError: the folder cannot be written.
    """
    from decodekit.records.ledger import replace_file

    data = stream.read()
    if not data.strip():
        raise JobError("standard input is empty.", hint="pipe a text or JSON lines into the command.")
    first_line = next(line for line in data.splitlines() if line.strip())
    try:
        is_jsonl = isinstance(json.loads(first_line.decode("utf-8-sig")), dict)
    except (ValueError, RecursionError):
        is_jsonl = False
    name = f"input-{hashlib.sha256(data).hexdigest()[:8]}" + (".jsonl" if is_jsonl else ".txt")
    replace_file(folder / name, [data])
    return folder / name


def stdin_input(folder: Path, id_field: str, text_field: str) -> Input:
    """Standard input, saved in the job folder, as an input."""
    path = spool(sys.stdin.buffer, folder)
    return Input(path.name, id_field, text_field, folder=str(folder.resolve()), name=STDIN_ID)
