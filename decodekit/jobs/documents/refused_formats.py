"""Files that are neither documents nor tables of documents: office files, archives, pictures, JSON that is not in
lines.

A document is a text, an HTML page, a PDF, or a row of a JSONL, CSV or Parquet file. A table that was read as one text
would give one result for all of its rows, so what is none of these by the ending of its name is looked at, and refused
with the way to give it:

- by the ending of its name (``prices.xlsx``, ``all.zip``), or by how its bytes begin;
- by what it holds, where the ending says nothing: one JSON array or object, lines of JSON, rows of equally many cells.

What is named ``.txt``, ``.md`` or ``.text`` is a document, whatever stands in it. XML is a text with tags.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import zlib
from collections.abc import Collection, Iterable
from pathlib import PurePath
from typing import Final

from decodekit.errors import DocumentError, JobError
from decodekit.jobs.documents.encodings import plain_text
from decodekit.jobs.documents.files import File
from decodekit.jobs.documents.rows import kind_of_rows

HTML_SUFFIXES: Final = (".html", ".htm", ".xhtml")
PDF_SUFFIXES: Final = (".pdf",)
MAIL_SUFFIXES: Final = (".eml",)
FOLDER_SUFFIXES: Final = (".txt", ".md", ".text", *HTML_SUFFIXES, *PDF_SUFFIXES)
"""What is taken of a folder: files that are one document each."""

_NUM_BYTES_SNIFFED: Final = 1 << 16  # of a text, to tell rows of cells and lines of JSON
_LINES: Final = "a JSON line for each document"
_FIELDS: Final = "; then --text-field says which field has the text, --id-field which one the id"
_PANDAS: Final = 'import pandas, sys; pandas.{reader}(sys.argv[1]).to_json(sys.stdout, orient="records", lines=True)'
_JSON: Final = (
    "import json, sys; data = json.load(open(sys.argv[1])); "
    "[print(json.dumps(row)) for row in (data if isinstance(data, list) else [data])]"
)


def _to_lines(program: str) -> str:
    """A line of Python that converts a file."""
    return f"{_LINES}{_FIELDS}:\n      python -c '{program}' {{file}} > {{stem}}.jsonl"


_DELIMITERS: Final = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_NAMED: Final = "a name that says so: cp {{file}} {{stem}}{suffix}"
_TABLES: Final = {
    delimiter: (f"a table with {name} between its cells", _NAMED.format(suffix=".csv") + _FIELDS)
    for delimiter, name in _DELIMITERS.items()
}
_WORKBOOK: Final = ("a workbook of tables", _to_lines(_PANDAS.format(reader="read_excel")))
_DATABASE: Final = ("a database", f"{_LINES}, written by a query{_FIELDS}")
_OFFICE: Final = ("an office document", "its text: pandoc {file} -t plain -o {stem}.txt")
_OLD_OFFICE: Final = ("an office document", "its text: libreoffice --headless --convert-to txt:Text {file}")
_PICTURE: Final = ("a picture", "its text, by a program that reads pictures: tesseract {file} {stem}")
_RECORDING: Final = ("a recording", "its transcript as a .txt file")
_PDF: Final = ("a PDF", _NAMED.format(suffix=".pdf"))
_ZIP: Final = ("an archive", "what is in it: unzip {file} -d {stem}")
_TAR: Final = ("an archive", "what is in it: mkdir {stem} && tar xf {file} -C {stem}")
_ARCHIVE: Final = ("an archive", "the files that are in it")
_GZIP: Final = ("a compressed file", "what is in it: gunzip -c {file} > {stem}.txt, or a name that ends in .gz")
_PACKED: Final = ("a compressed file", "what is in it")
_PARQUET: Final = ("a table in Parquet", _NAMED.format(suffix=".parquet") + _FIELDS)
_FEATHER: Final = ("a table in Arrow", _to_lines(_PANDAS.format(reader="read_feather")))
_BINARY: Final = ("no text but data of a program", f"texts, or {_LINES}")

BY_SUFFIX: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), _WORKBOOK),
    **dict.fromkeys((".feather", ".arrow"), _FEATHER),
    **dict.fromkeys((".avro", ".orc", ".dta", ".sav"), ("a table", f"{_LINES}{_FIELDS}")),
    **dict.fromkeys((".sqlite", ".sqlite3", ".db", ".duckdb", ".mdb"), _DATABASE),
    **dict.fromkeys((".docx", ".odt", ".rtf", ".epub", ".pptx"), _OFFICE),
    **dict.fromkeys((".doc", ".ppt", ".odp"), _OLD_OFFICE),
    ".zip": _ZIP,
    **dict.fromkeys((".tar", ".tgz", ".tbz2", ".txz"), _TAR),
    **dict.fromkeys((".7z", ".rar", ".jar", ".whl"), _ARCHIVE),
    **dict.fromkeys((".bz2", ".xz", ".zst", ".lz4", ".br"), _PACKED),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".heic", ".ico"), _PICTURE),
    **dict.fromkeys((".mp3", ".wav", ".flac", ".ogg", ".m4a", ".mp4", ".mov", ".avi", ".mkv", ".webm"), _RECORDING),
    **dict.fromkeys((".pkl", ".pickle", ".npy", ".npz", ".pt", ".safetensors", ".exe", ".so", ".pyc"), _BINARY),
}
_BY_BEGINNING: Final[dict[bytes, tuple[str, str]]] = {
    b"%PDF-": _PDF,
    b"PK\x03\x04": _ZIP,
    b"\x1f\x8b": _GZIP,
    b"\xfd7zXZ\x00": _PACKED,
    b"BZh": _PACKED,
    b"(\xb5/\xfd": _PACKED,
    b"7z\xbc\xaf\x27\x1c": _ARCHIVE,
    b"PAR1": _PARQUET,
    b"ARROW1": _FEATHER,
    b"SQLite format 3\x00": _DATABASE,
    b"\x89PNG\r\n": _PICTURE,
    b"\xff\xd8\xff": _PICTURE,
    b"GIF8": _PICTURE,
    b"\xd0\xcf\x11\xe0": _OLD_OFFICE,
    b"\x7fELF": _BINARY,
}
_ARRAY: Final = ("one JSON array", _to_lines(_JSON))
_OBJECT: Final = (
    "one JSON object",
    f"{_to_lines(_JSON)}\n  or, if the whole object is one document, a copy: {{stem}}.txt",
)
_JSON_LINES: Final = ("lines of JSON", _NAMED.format(suffix=".jsonl") + _FIELDS)

_HEADING: Final = re.compile(r"[^\W\d_][\w .()/%#-]{0,39}")
_WIDE: Final = 3  # columns; two may be names and values of one document


def refusal_of_file(file: File, name: str, fields: Collection[str]) -> JobError | None:
    """The error of a file that was named as an input and is not a document; None if it may be one. `fields` are names
    of fields of documents, which the heading of a narrow table may have."""
    suffix = file.suffix
    if suffix in (*FOLDER_SUFFIXES, *MAIL_SUFFIXES) or kind_of_rows(suffix) is not None:
        return None
    if suffix in BY_SUFFIX:
        return _refusal(BY_SUFFIX[suffix], name)
    try:
        with file.open() as opened:
            data = opened.read(file.max_bytes)
    except (OSError, EOFError, zlib.error):
        return None  # told when it is read
    return refusal_of_bytes(data, name, fields, file.encoding)


def refusal_of_bytes(
    data: bytes, name: str, fields: Collection[str] = (), encoding: str = "utf-8", file: str | None = None
) -> JobError | None:
    """The error of what is not a text but something else; None if that is not seen. `file`: its path, if not `name`."""
    kind = _kind_of(data, fields, encoding)
    return None if kind is None else _refusal(kind, name, file)


def is_json_lines(data: bytes) -> bool:
    """Whether the first line that is not blank is a JSON object."""
    first = next((line for line in data.splitlines() if line.strip()), b"")
    return _is_object(first.decode("utf-8-sig", errors="replace"))


def _refusal(kind: tuple[str, str], name: str, file: str | None = None) -> JobError:
    what, way = kind
    stem = PurePath(name).stem.partition(".")[0] if file is None else "documents"
    cause = f"{name} is {what}, and would be read as one document."
    return JobError(cause, at=name, hint=way.format(file=shlex.quote(file or name), stem=shlex.quote(stem)))


def _kind_of(data: bytes, fields: Collection[str], encoding: str) -> tuple[str, str] | None:
    """The kind of some bytes, if they are not plain text."""
    for beginning, kind in _BY_BEGINNING.items():
        if data.startswith(beginning):
            return kind
    try:
        text = plain_text(data, "", encoding)
    except DocumentError:
        return None  # told when it is read, with the place
    if text.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return _JSON_LINES if all(_is_object(line) for line in text.splitlines() if line.strip()) else None
        if isinstance(value, dict):
            return _OBJECT
        # A line such as "[2024]" is a text as well.
        return _ARRAY if len(value) > 1 or any(isinstance(item, dict | list) for item in value) else None
    whole = len(data) <= _NUM_BYTES_SNIFFED
    lines = text[:_NUM_BYTES_SNIFFED].splitlines(keepends=True)
    delimiter = delimiter_of(lines if whole else lines[:-1], fields)
    return None if delimiter is None else _TABLES[delimiter]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def delimiter_of(lines: Iterable[str], fields: Collection[str]) -> str | None:
    """The separator of cells, if the lines of a text are the rows of a table; None if they are not.

    A letter has commas too. A table has at least three rows, as many cells in each, no blank after a comma or a
    semicolon, and a heading of different short names; one of two columns has a name of a field of documents there.
    """
    rows = [line for line in lines if line.strip()]
    if len(rows) < _WIDE:
        return None
    return next((delimiter for delimiter in _DELIMITERS if _is_table(rows, delimiter, fields)), None)


def _is_table(lines: list[str], delimiter: str, fields: Collection[str]) -> bool:
    if delimiter not in lines[0]:
        return False
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    heading = rows[0]
    if len(rows) < _WIDE or len({len(row) for row in rows}) > 1 or len(set(heading)) < len(heading):
        return False
    if delimiter in ",;" and any(cell[:1] == " " for row in rows for cell in row[1:]):
        return False
    if not all(_HEADING.fullmatch(cell.strip()) for cell in heading):
        return False
    return len(heading) >= _WIDE or any(cell.strip().lower() in fields for cell in heading)
