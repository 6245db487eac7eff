"""Files of many documents: JSON lines, tables with delimiters, Parquet. A row is found again by where it begins.

    for place, offset, length, row in rows.scan(columns): ...      # once, before the work starts
    rows.row(offset, length, place, "text")                        # each again, when its turn comes

So a job over a file of any size needs memory for the ids only. A row that is broken is a `DocumentError` in its place,
and the others go on.
"""

from __future__ import annotations

import bisect
import csv
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from decodekit.errors import DocumentError, JobError
from decodekit.jobs.documents.encodings import plain_text
from decodekit.jobs.documents.files import File, mebibytes, needed, too_large

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson")
DELIMITED_SUFFIXES: Final = (".csv", ".tsv", ".tab", ".psv")
PARQUET_SUFFIXES: Final = (".parquet", ".pq")
_DELIMITERS: Final = (",", ";", "\t", "|")
_PIECE: Final = 1 << 20  # of a line that is passed over

Row: TypeAlias = Mapping[str, Any]
Scanned: TypeAlias = tuple[str, int, int, Row | DocumentError]
"""Place behind the name of the file (a number), offset and length, and the row, or why it is none."""


class RowReader(Protocol):
    """The rows of a file."""

    def scan(self, name: str, columns: Collection[str]) -> Iterator[Scanned]:
        """All rows in order, at least with these columns of theirs.

        Raises:
            OSError, EOFError: the file cannot be read.
            JobError: it is no such file.
        """

    def row(self, offset: int, length: int, place: str, column: str) -> Row:
        """One row, at least with this column; raises DocumentError if it has gone or cannot be read."""


def kind_of_rows(suffix: str) -> type[JsonLines] | type[Cells] | type[ParquetRows] | None:
    """The class for the rows of files of this ending; None if such a file is one document."""
    if suffix in JSONL_SUFFIXES:
        return JsonLines
    if suffix in DELIMITED_SUFFIXES:
        return Cells
    return ParquetRows if suffix in PARQUET_SUFFIXES else None


@dataclass(frozen=True)
class JsonLines:
    """A JSON object on each line; blank lines are passed over."""

    file: File

    def scan(self, name: str, columns: Collection[str]) -> Iterator[Scanned]:
        """As `RowReader.scan`."""
        offset, most = 0, self.file.max_bytes
        with self.file.open() as lines:
            for number in itertools.count(1):
                line = lines.readline(most + 1)
                if not line:
                    return
                place, length = f"{name}:{number}", len(line)
                if length > most:
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(_PIECE)
                        length += len(line)
                    yield place, offset, length, too_large(place, most, "line")
                elif line.strip(b" \t\r\n\xef\xbb\xbf"):
                    try:
                        yield place, offset, length, parse_line(line, place, self.file.encoding)
                    except DocumentError as error:
                        yield place, offset, length, error.with_traceback(None)
                offset += length

    def row(self, offset: int, length: int, place: str, column: str) -> Row:
        """As `RowReader.row`."""
        return parse_line(self.file.read(place, offset, length), place, self.file.encoding)


def parse_line(data: bytes, place: str, encoding: str = "utf-8") -> dict[str, Any]:
    """A line of JSON as a row; raises DocumentError."""
    text = plain_text(data, place, encoding, is_line=True)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"the line is not JSON: {error}.", at=place) from error
    if not isinstance(row, dict):
        raise DocumentError(
            f"the line is not a JSON object but {'a text' if isinstance(row, str) else kind_name(row)}.", at=place
        )
    return row


def kind_name(value: object) -> str:
    """The kind of a value, in words."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "an unusable text", list: "an array"}
    return names.get(type(value), "an object")


@dataclass
class Cells:
    """A table with a heading and a delimiter: commas, semicolons, tabs or bars, whichever divides the heading.

    Quotes, and what they hold (delimiters, line feeds), are as in RFC 4180. Delimiters and quotes are ASCII, so the
    bytes are divided as they are, and each cell is read in the encoding of the file.
    """

    file: File
    heading: Sequence[str] = ()
    delimiter: str = ","

    def scan(self, name: str, columns: Collection[str]) -> Iterator[Scanned]:
        """As `RowReader.scan`."""
        most = self.file.max_bytes
        with self.file.open() as lines, _long_cells():
            first = lines.readline(most + 1)
            if len(first) > most:
                raise JobError(f"the heading of {name} is larger than {mebibytes(most)}.", at=f"{name}:1")
            self._read_heading(first, name, columns)
            counted = _Counted(lines, len(first), most)
            records = csv.reader(counted, delimiter=self.delimiter)
            while True:
                begin, number = counted.offset, counted.number
                counted.begin = begin
                try:
                    cells = next(records, None)
                except OverflowError:  # where the next row begins cannot be told, for this one may be inside of quotes
                    cause = f"the row is larger than {mebibytes(most)}; the rest of the table is not read."
                    hint = "the table without it, or a larger --max-document-mb"
                    yield f"{name}:{number}", begin, 0, DocumentError(cause, at=f"{name}:{number}", hint=hint)
                    return
                except csv.Error as error:
                    raise JobError(f"{name} cannot be read as a table: {error}.", at=f"{name}:{number}") from error
                if cells is None:
                    return
                if not cells:
                    continue
                place, length = f"{name}:{number}", counted.offset - begin
                try:
                    if counted.is_over:  # the reader asked for more lines, so it is inside of quotation marks
                        cause = f"a quotation mark of line {number} is never closed; the rest of the file is in it."
                        raise DocumentError(cause, at=place)
                    yield place, begin, length, self._as_row(cells, place)
                except DocumentError as error:
                    yield place, begin, length, error.with_traceback(None)

    def row(self, offset: int, length: int, place: str, column: str) -> Row:
        """As `RowReader.row`."""
        text = self.file.read(place, offset, length).decode("latin-1")
        with _long_cells():
            records = list(csv.reader([text], delimiter=self.delimiter))
        if len(records) != 1:
            raise DocumentError("the table has changed since it was read first.", at=place)
        return self._as_row(records[0], place)

    def _read_heading(self, line: bytes, name: str, columns: Collection[str]) -> None:
        text = plain_text(line, name, self.file.encoding, is_line=True).rstrip("\r\n")
        headings = {one: next(csv.reader([text], delimiter=one), []) for one in _DELIMITERS}
        wanted = [one for one in _DELIMITERS if set(columns) & set(headings[one])]
        most = max(_DELIMITERS, key=lambda one: len(headings[one]))
        self.delimiter = wanted[0] if wanted else most
        self.heading = headings[self.delimiter]
        for column in columns:
            if self.heading.count(column) > 1:
                raise JobError(f"{name} has {self.heading.count(column)} columns {column!r}.", at=name)

    def _as_row(self, cells: list[str], place: str) -> Row:
        if len(cells) != len(self.heading):
            cause = f"the row has {len(cells)} cells, and the heading {len(self.heading)}."
            raise DocumentError(cause, at=place, hint="put quotation marks around a cell that holds the delimiter.")
        texts = (plain_text(cell.encode("latin-1"), place, self.file.encoding, is_line=True) for cell in cells)
        return dict(zip(self.heading, texts, strict=True))


class _Counted:
    """Lines of a file as text of its bytes, with the offset and the number of the next one."""

    def __init__(self, lines: Any, offset: int, max_bytes: int) -> None:
        self._lines, self._max_bytes, self.offset, self.number = lines, max_bytes, offset, 2
        self.begin = offset  # of the row
        self.is_over = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._lines.readline(self._max_bytes + 1)
        if not line:
            self.is_over = True
            raise StopIteration
        if self.offset + len(line) - self.begin > self._max_bytes:
            raise OverflowError
        self.offset += len(line)
        self.number += 1
        return str(line, "latin-1")


@contextmanager
def _long_cells() -> Iterator[None]:
    """No limit on the length of a cell while a table is read; the limit of `csv` is one for the process."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@dataclass
class ParquetRows:
    """A table in Parquet. Rows are read by groups, as they are stored; one group is kept."""

    file: File
    _open: list[Any] = field(default_factory=list, compare=False, repr=False)
    _kept: tuple[int, str, Any] | None = field(default=None, compare=False, repr=False)

    def scan(self, name: str, columns: Collection[str]) -> Iterator[Scanned]:
        """As `RowReader.scan`. Of a table without one of the columns, the rows have all others as None."""
        table = self._table(name)
        names = table.schema_arrow.names
        chosen = [column for column in names if column in columns]
        others = dict.fromkeys(names)
        number, most = 0, self.file.max_bytes
        for batch in table.iter_batches(batch_size=256, columns=chosen):
            for index in range(batch.num_rows):  # one at a time: a page that is small on disk may hold large values
                row = {column: batch.column(column)[index].as_py() for column in chosen}
                place, number = f"{name}:{number + 1}", number + 1
                is_large = any(isinstance(value, str) and len(value.encode()) > most for value in row.values())
                yield place, number - 1, 1, too_large(place, most, "row") if is_large else others | row

    def row(self, offset: int, length: int, place: str, column: str) -> Row:
        """As `RowReader.row`."""
        try:
            table = self._table(place)
            sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
            ends = list(itertools.accumulate(sizes))
            group = bisect.bisect_right(ends, offset)
            if self._kept is None or self._kept[:2] != (group, column):
                self._kept = (group, column, table.read_row_group(group, columns=[column]).column(column))
            return {column: self._kept[2][offset - ends[group] + sizes[group]].as_py()}
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise DocumentError(f"the table cannot be read: {error}.", at=place) from error

    def _table(self, place: str) -> Any:
        parquet = needed("pyarrow.parquet", "tables", f"{self.file.path} is a table in Parquet")
        if not self._open:
            try:
                self._open.append(parquet.ParquetFile(self.file.open(), pre_buffer=False))
            except ValueError as error:  # pyarrow's own errors are of this class
                raise JobError(f"{place} is no table in Parquet: {error}.", at=place) from error
        return self._open[0]

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "_open": [], "_kept": None}
