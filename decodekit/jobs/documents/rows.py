"""Files of many documents: JSON lines, tables with delimiters, Parquet. A row is found again by where it begins.

    for place, offset, length, row in rows.scan(name, columns): ...     # once, before the work starts
    rows.row(offset, length, place, "text")                             # each again, when its turn comes

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
from typing import Any, Final, TypeAlias

from decodekit.errors import DocumentError, JobError
from decodekit.jobs.documents.encodings import plain_text
from decodekit.jobs.documents.files import File, mebibytes, needed, too_large

_DELIMITERS: Final = (",", ";", "\t", "|")
_PIECE: Final = 1 << 20  # of a line that is passed over

Row: TypeAlias = Mapping[str, Any]
Scanned: TypeAlias = tuple[str, int, int, Row | DocumentError]
"""Place behind the name of the file (a number), offset and length, and the row, or why it is none."""


@dataclass(frozen=True)
class JsonLines:
    """A JSON object on each line; blank lines are passed over."""

    file: File

    def scan(self, name: str, columns: Collection[str]) -> Iterator[Scanned]:
        """All rows in order, at least with these columns of theirs; raises OSError or EOFError."""
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
                        yield place, offset, length, self._parsed(line, place)
                    except DocumentError as error:
                        yield place, offset, length, error.with_traceback(None)
                offset += length

    def row(self, offset: int, length: int, place: str, column: str) -> Row:
        """One row, at least with this column; raises DocumentError if it has gone or cannot be read."""
        return self._parsed(self.file.read(place, offset, length), place)

    def _parsed(self, data: bytes, place: str) -> Row:
        text = plain_text(data, place, self.file.encoding, is_line=True)
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DocumentError(f"the line is not JSON: {error}.", at=place) from error
        if isinstance(row, dict):
            return row
        kind = "a text" if isinstance(row, str) else kind_name(row)
        raise DocumentError(f"the line is not a JSON object but {kind}.", at=place)


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
        """As `JsonLines.scan`; raises JobError, too, for a file that is not a table."""
        most = self.file.max_bytes
        with self.file.open() as lines, _long_cells():
            first = lines.readline(most + 1)
            if len(first) > most:
                raise JobError(f"the heading of {name} is larger than {mebibytes(most)}.", at=f"{name}:1")
            self._read_heading(first, name, columns)
            begin = offset = len(first)  # of the row, and of the next line
            next_number, is_over = 2, False

            def texts() -> Iterator[str]:
                nonlocal offset, next_number, is_over
                while line := lines.readline(most + 1):
                    if offset + len(line) - begin > most:
                        raise OverflowError
                    offset += len(line)
                    next_number += 1
                    yield str(line, "latin-1")
                is_over = True

            records = csv.reader(texts(), delimiter=self.delimiter)
            while True:
                begin, number = offset, next_number
                place = f"{name}:{number}"
                try:
                    cells = next(records, None)
                except OverflowError:  # where the next row begins cannot be told, for this one may be inside of quotes
                    cause = f"the row is larger than {mebibytes(most)}; the rest of the table is not read."
                    hint = "the table without it, or a larger --max-document-mb"
                    yield place, begin, 0, DocumentError(cause, at=place, hint=hint)
                    return
                except csv.Error as error:
                    raise JobError(f"{name} cannot be read as a table: {error}.", at=place) from error
                if cells is None:
                    return
                if not cells:
                    continue
                try:
                    if is_over:  # the reader asked for more lines, so it is inside of quotation marks
                        cause = f"a quotation mark of line {number} is never closed; the rest of the file is in it."
                        raise DocumentError(cause, at=place)
                    yield place, begin, offset - begin, self._as_row(cells, place)
                except DocumentError as error:
                    yield place, begin, offset - begin, error.with_traceback(None)

    def row(self, offset: int, length: int, place: str, column: str) -> Row:
        """As `JsonLines.row`."""
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
        """As `Cells.scan`. Of a table without one of the columns, the rows have all others as None."""
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
        """As `JsonLines.row`."""
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


RowReader: TypeAlias = JsonLines | Cells | ParquetRows
"""The rows of a file."""

_KINDS: Final[Mapping[str, type[RowReader]]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), JsonLines),
    **dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), Cells),
    **dict.fromkeys((".parquet", ".pq"), ParquetRows),
}


def kind_of_rows(suffix: str) -> type[RowReader] | None:
    """The class for the rows of files of this ending; None if such a file is one document."""
    return _KINDS.get(suffix)
