"""The documents of a job: files of texts, folders, rows of tables and of JSON lines, standard input; read late.

Inputs are scanned once before the work starts, so that a repeated id or a wrong field name is known before the first
token; the texts are read again one by one when their turn comes, so a job of any size needs memory for the ids only.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from decodekit.errors import DecodekitError, DocumentError, JobError, collecting, raise_faults
from decodekit.jobs.encodings import check_encoding
from decodekit.jobs.files import GZIP_SUFFIX, MAX_DOCUMENT_MB, File, files_of_url, is_url, reason
from decodekit.jobs.formats import BY_SUFFIX, FOLDER_SUFFIXES, refusal_of_file, refusal_of_lines
from decodekit.jobs.names import JOB, Names, is_own
from decodekit.jobs.rows import Cells, JsonLines, Row, RowReader, kind_name, kind_of_rows
from decodekit.jobs.settings import shard_of
from decodekit.jobs.texts import TextFile, is_encodable, usable_text
from decodekit.records.folder import LOCK

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""An integer in the one spelling that it has, of at most 64 bits."""


class TextSource(Protocol):
    """Where texts are read from."""

    def text(self, offset: int, length: int, field: str, place: str) -> str:
        """One text, which is never blank; raises DocumentError if it cannot be had."""


@dataclass(frozen=True, slots=True)
class RowTexts:
    """The texts of the rows of a file."""

    rows: RowReader

    def text(self, offset: int, length: int, field: str, place: str) -> str:
        """The text of a row."""
        return usable_text(_field_text(self.rows.row(offset, length, place, field), field, place), place)


@dataclass(frozen=True, slots=True)
class DocumentRef:
    """One document of the scan, without its text.

    Attributes:
        id: the id of a row, or the path of a text file.
        source: the file.
        place: file, or ``file:line``; ``file:row`` in Parquet.
        offset, length: where the row begins, in bytes (in rows in Parquet), and how long it is; the whole file when
            `length` is -1.
        text_field: the field of the row that holds the text.
        digest: of the text; empty when there is a fault.
        fault: why this document cannot be used, or None.
        is_number: the id is a whole number in the file.
    """

    id: str
    source: TextSource
    place: str
    offset: int
    length: int
    text_field: str
    digest: str
    fault: DocumentError | None
    is_number: bool = False

    @property
    def key(self) -> str | int:
        """The id as it stands in the file."""
        return int(self.id) if self.is_number else self.id

    def read(self) -> str:
        """The text, which is never blank.

        Raises:
            DocumentError: the document cannot be used, or its file has gone or changed since the scan.
        """
        if self.fault is not None:
            raise self.fault
        return self.source.text(self.offset, self.length, self.text_field, self.place)


@dataclass(frozen=True, slots=True)
class Input:
    """One input as it was named: a path and how to read it.

    Attributes:
        path: as given, or a URL; also the beginning of the ids of text files.
        id_field, text_field: fields of JSON lines, columns of tables.
        folder: the folder that a relative `path` starts from.
        name: the beginning of the ids instead of `path`, for what is saved in the job folder: standard input, or
            documents of a Python program.
        max_document_mb: mebibytes of each document after it is unpacked; a larger one has failed.
        include: patterns of further files of a folder that are documents, such as ``*.log``. Without a slash, a pattern
            is that of a file, or of a folder for all that is in it; with one, of a path below the folder. Case does not
            matter; what begins with a dot is meant by a pattern that does.
        exclude: patterns of files of a folder that are none.
        encoding: of texts that declare none: a name, ``auto`` or ``auto:NAME``; see `encodings`.

    Raises:
        OptionError: there is no such encoding.
    """

    path: str
    id_field: str = "id"
    text_field: str = "text"
    folder: str = "."
    name: str = ""
    max_document_mb: float = MAX_DOCUMENT_MB
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        for name in ("include", "exclude"):  # a list, where they were read from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def max_bytes(self) -> int:
        """`max_document_mb` in bytes."""
        return int(self.max_document_mb * (1 << 20))

    def file(self, path: str) -> File:
        """One of its files."""
        return File(path, self.max_bytes, self.encoding)

    @property
    def location(self) -> Path:
        """Where the input is."""
        return Path(self.folder) / self.path

    @property
    def is_remote(self) -> bool:
        """Whether it is a URL, which starts from no folder."""
        return is_url(self.path)

    @property
    def label(self) -> str:
        """What the ids of its documents begin with."""
        return self.name or (self.path if self.is_remote else Path(self.path).as_posix())

    @property
    def fields(self) -> set[str]:
        """Names that the columns of a table of documents may have."""
        return {self.id_field.lower(), self.text_field.lower(), "id", "text"}


@dataclass(frozen=True, slots=True)
class Scan:
    """What the inputs hold.

    Attributes:
        entries: the documents, in order of the inputs.
        skipped: files in folders that are no text files or are excluded, and so are no documents.
        hidden: files in folders whose name, or that of a folder on the way, begins with a dot.
        outside: links in folders that lead to files outside of them, and so are no documents.
        repeated: files that were named before, by another input or another spelling; each is done once.
    """

    entries: list[DocumentRef] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def way(self) -> str:
        """The options that take what was skipped, such as ``"--include '*.log'"``; empty if nothing was."""
        names = [PurePosixPath(name.lower().removesuffix(GZIP_SUFFIX)) for name in self.skipped]
        kinds = Counter(
            f"*{name.suffix}" if name.suffix else name.name for name in names if name.suffix not in BY_SUFFIX
        )
        return " ".join(f"--include {shlex.quote(kind)}" for kind, _ in kinds.most_common(4))

    @property
    def skipped_kinds(self) -> str:
        """How many files of which endings were skipped, such as ``"2 .csv, 1 .pdf"``."""
        kinds = Counter(PurePosixPath(name).suffix.lower() or "without an ending" for name in self.skipped)
        shown = [f"{count} {kind}" for kind, count in kinds.most_common(4)]
        return ", ".join([*shown, "..."] if len(kinds) > 4 else shown)


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
    """List the documents of all inputs.

    A file of text, HTML or PDF is one document, its id is its path as given first (see `names`). A folder stands for
    such files in it, at any depth. A ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet`` file holds one document per row.
    Each may be compressed (``.gz``) or lie behind a URL. A file is read once, however often and in whatever spelling it
    is named.

    Args:
        inputs: in the order in which documents shall be done.
        known: inputs that the job met before, whose names stay.
        is_lookup: texts of a job are looked up after the fact: what its inputs hold is taken as it is, and what a run
            would refuse, such as equal ids or a table, is not.
        gone: gets the error of each input that cannot be used, in place of raising it.

    Raises:
        JobError: an input does not exist, holds no document, or is a table, an archive or the like (see `formats`).
        DocumentError: two documents have one id, or no line of a file has the named field.
        OptionError: several inputs cannot be used, each with its own error.
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
        paths, is_folder = _paths_of(source, found)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        cause = "there is no file or folder {}." if is_missing else f"{{}} cannot be read: {reason(error)}."
        raise JobError(cause.format(f"{source.path!r:.200}"), hint="check the path of the input.") from error
    if not paths:
        others = f" It has files of other kinds: {found.skipped_kinds}." if found.skipped else ""
        others += f" {counted(len(found.outside), 'link')} out of it: name what is meant." if found.outside else ""
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
            found.repeated.append(_inside(source, path))
            continue
        seen.add(key)
        name = source.name or (path if file.is_remote else names.name(place, source.label))
        kind = kind_of_rows(file.suffix)
        if kind is not None:
            yield from _scan_rows(source, kind(file), name, is_lookup)
        else:
            yield _scan_text_file(TextFile(file), name)


def _paths_of(source: Input, found: Scan) -> tuple[list[str], bool]:
    """The files of an input, and whether it is a folder; those of a folder that are no documents are noted."""
    if source.is_remote:
        paths, is_folder = files_of_url(source.path, found.outside)
        if is_folder:
            begin = len(source.path.rstrip("/")) + 1
            paths = [path for path in paths if _takes(source, path[begin:], found)]
        return paths, is_folder
    if source.name and source.location.is_symlink():
        cause = f"{source.location} is a link, and a job saves its documents as files of its own."
        raise JobError(cause, at=str(source.location), hint="the file itself in its place")
    mode = source.location.stat().st_mode
    if stat.S_ISDIR(mode):
        return [str(path) for path in _files_of(source, found)], True
    if not stat.S_ISREG(mode):
        cause = f"{source.path!r} is a pipe or a device, and documents are read more than once."
        raise JobError(cause, hint=f"standard input: cat {source.path} | decodekit extract - ...")
    return [str(source.location)], False


def _inside(source: Input, path: str) -> str:
    """What a file of an input is called."""
    if source.is_remote or Path(path) == source.location:
        return path if source.is_remote else source.label
    return f"{source.label}/{Path(path).relative_to(source.location).as_posix()}"


def select(entries: Sequence[DocumentRef], shard: tuple[int, int] | None, limit: int | None) -> list[DocumentRef]:
    """The documents of one shard, (number from 1, number of shards), and of these at most `limit`; None for all."""
    if shard is not None:
        entries = [entry for entry in entries if shard_of(entry.id, shard[1]) == shard[0] - 1]
    return list(entries[:limit])


def _files_of(source: Input, found: Scan) -> list[Path]:
    """The documents of a folder; other files are noted, and so are links that lead out of it."""
    folder, paths, root = source.location, [], source.location.resolve()
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if path.name == LOCK or (is_own(path.name) and (path.parent / JOB).exists()):
            continue  # of a job, and came out of documents
        relative = path.relative_to(folder).as_posix()
        if not _takes(source, relative, found):
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            found.outside.append(
                f"{source.label}/{relative}"
            )  # whoever fills the folder would choose what else is read
        else:
            paths.append(path)
    return paths


def _takes(source: Input, path: str, found: Scan) -> bool:
    """Whether a file of a folder, by its path below it, is a document; what is none, and not excluded, is noted."""
    if _matches(path, source.exclude):
        return False
    name = f"{source.label.rstrip('/')}/{path}"
    is_hidden = any(part.startswith(".") for part in path.split("/"))
    if is_hidden and not _matches(path, [one for one in source.include if one.startswith(".") or "/." in one]):
        found.hidden.append(name)
        return False
    if is_hidden or File(path).suffix in FOLDER_SUFFIXES or _matches(path, source.include):
        return True
    found.skipped.append(name)
    return False


def _matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is that of a path; see `Input.include`."""
    path = path.lower()
    whole, parts = {path, path.removesuffix(GZIP_SUFFIX)}, set(path.split("/"))
    parts.add(path.rpartition("/")[2].removesuffix(GZIP_SUFFIX))
    lower = (pattern.lower() for pattern in patterns)
    return any(fnmatch.fnmatchcase(one, pattern) for pattern in lower for one in (whole if "/" in pattern else parts))


def _refuse_other_kinds(source: Input, file: File, is_folder: bool) -> None:
    """Raise JobError for a file that is no document by its kind; see `formats`."""
    name = _inside(source, file.path)
    refusal = refusal_of_file(file, name if is_folder else source.path, source.fields)
    if refusal is not None and is_folder:
        pattern = shlex.quote(f"*{file.suffix}" if file.suffix else PurePosixPath(name).name)
        raise JobError(refusal.cause, at=refusal.at, hint=f"--exclude {pattern}; or {refusal.hint}")
    if refusal is not None:
        raise refusal


def without_own(inputs: Sequence[Input], output: Path) -> tuple[list[Input], list[str]]:
    """The inputs but for what the job has written into its own folder, and the names of that.

    With ``-o letters``, ``letters/*`` names the files of the job, too, when the command is run again.

    Raises:
        JobError: there is nothing else, or a document has the name of a file that the job would write.
    """
    place, is_job = os.path.realpath(output), (output / JOB).exists()
    kept: list[Input] = []
    own: list[str] = []
    for source in inputs:
        if source.is_remote or source.name or not source.path:
            kept.append(source)
            continue
        location = Path(os.path.realpath(source.location))
        names = [location.name] if str(location.parent) == place else []
        if location.is_dir():
            is_around = Path(place).is_relative_to(location) and os.path.isdir(place)
            names = os.listdir(place) if is_around else []
        taken = sorted(filter(is_own, names))
        if taken and not is_job:
            cause = f"{output / taken[0]} is a file of the inputs, and the job would write its own in its place."
            raise JobError(
                cause, at=str(output / taken[0]), hint="another folder with -o, or another name for this file"
            )
        is_job_folder = location.is_dir() and (location / JOB).exists()
        if not _files_of(source, Scan()) if is_job_folder else bool(taken) and not location.is_dir():
            own.append(source.label)
        else:
            kept.append(source)
    if own and not kept:
        raise JobError(f"{own[0]} is what a job has written, and there are no other inputs.", hint="the documents")
    return kept, own


def _scan_text_file(source: TextFile, name: str) -> DocumentRef:
    source.check()
    entry = DocumentRef(name, source, name, 0, -1, "", "", None)
    try:
        return replace(entry, digest=text_digest(entry.read()))
    except DocumentError as error:
        return replace(entry, fault=error.with_traceback(None))


def _scan_rows(source: Input, rows: RowReader, name: str, is_lookup: bool) -> list[DocumentRef]:
    texts = RowTexts(rows)
    found: list[DocumentRef] = []
    columns: dict[str, None] = {}  # of the first hundred rows that are some, and whether any has the named ones
    num_rows = 0
    wanted = (source.id_field, source.text_field)
    try:
        for place, offset, length, row in rows.scan(name, wanted):
            found.append(_scan_row(source, texts, place, offset, length, row))
            if not isinstance(row, DocumentError):
                num_rows += bool(row)
                columns |= dict.fromkeys(row if num_rows <= 100 else [one for one in wanted if one in row])
    except (OSError, EOFError) as error:
        raise JobError(f"{source.path} cannot be read: {reason(error)}.", hint="check the file.") from error
    if not found:
        raise JobError(f"{source.path!r} holds no document.", hint="a JSONL file has a JSON object on each line.")
    if not num_rows and not is_lookup:
        raise _no_rows(rows, name, found[0])
    if num_rows:
        # The name of a field is a setting: when no row has it, the name is wrong, not the rows.
        named = [("--text-field", source.text_field), ("--id-field", source.id_field)]
        for option, field in named[:1] if source.id_field == "id" else named:
            if field not in columns:
                hint = f"{option}; the lines have: {', '.join(sorted(columns))}."
                raise DocumentError(f"no line of {name} has the field {field!r}.", at=name, hint=hint)
    if isinstance(rows, Cells) and all(_INTEGER.fullmatch(one.id) for one in found if one.fault is None):
        found = [
            replace(one, is_number=_INTEGER.fullmatch(one.id) is not None) for one in found
        ]  # a column of integers
    return found


def _no_rows(rows: RowReader, name: str, first: DocumentRef) -> JobError:
    """Why no row of a file is one."""
    assert first.fault is not None
    if not isinstance(rows, JsonLines):
        return DocumentError(f"no row of {name} can be read; the first one: {first.fault.cause}", at=name)
    return refusal_of_lines(rows.file.read(name), name) or DocumentError(
        f"no line of {name} is a JSON object; of the first one: {first.fault.cause}",
        at=name,
        hint=first.fault.hint or "a JSONL file has a JSON object on each line; a text file ends in .txt.",
    )


def _scan_row(
    source: Input, texts: RowTexts, place: str, offset: int, length: int, row: Row | DocumentError
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
        digest = text_digest(usable_text(_field_text(row, source.text_field, place), place))
    except DocumentError as error:
        fault = error.with_traceback(None)
    return DocumentRef(identity, texts, place, offset, length, source.text_field, digest, fault, is_number)


def _field_id(value: object, field: str, place: str) -> str:
    if isinstance(value, str) and value and is_encodable(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DocumentError(f"field {field!r} is {kind_name(value)}; an id is a text or a whole number.", at=place)


def _field_text(row: Row, field: str, place: str) -> str:
    if field not in row:
        raise DocumentError(f"the line has no field {field!r}.", at=place)
    value = row[field]
    if not isinstance(value, str):
        raise DocumentError(f"field {field!r} is {kind_name(value)}, not a text.", at=place)
    return value


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
