"""Tables, HTML, PDF, compressed and remote files as documents; what has no text is a fault of its own."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfReader, PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject, NumberObject

from decodekit.cli.parts import console
from decodekit.errors import DecodekitError, DocumentError, JobError
from decodekit.jobs.documents.documents import DocumentRef, scan
from decodekit.jobs.documents.html import html_text
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.documents.pdf import pdf_text
from tests.commands import Result
from tests.jobs.fakes import FakeLLM, read_jsonl

FIELDS = ("--schema", "first, words int, seed int")
ROWS = [
    {"id": "a", "text": "one two", "n": "1"},
    {"id": "b", "text": 'three, "four"\r\nfive', "n": "2"},
    {"id": "ç", "text": "six; seven\té \x85 \u2028 x", "n": "3"},
]


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_cells(rows: list[dict[str, Any]], delimiter: str = ",", mark: bytes = b"") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return mark + text.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=2)
    return sink.getvalue()


WRITERS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "d.jsonl": as_jsonl,
    "d.csv": as_cells,
    "semicolons.csv": lambda rows: as_cells(rows, ";", b"\xef\xbb\xbf"),
    "d.tsv": lambda rows: as_cells(rows, "\t"),
    "d.psv": lambda rows: as_cells(rows, "|"),
    "d.parquet": as_parquet,
}


@pytest.fixture
def memory() -> Iterator[Any]:
    """A file system behind URLs, as S3 is."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def texts_of(entries: list[DocumentRef]) -> list[tuple[str, str]]:
    return [(entry.id, entry.read()) for entry in entries]


EXPECTED = [(row["id"], row["text"]) for row in ROWS]


@pytest.mark.parametrize("name", WRITERS)
def test_rows_of_every_format_local_compressed_and_remote(tmp_path: Path, memory: Any, name: str) -> None:
    data = WRITERS[name](ROWS)
    (tmp_path / name).write_bytes(data)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
    memory.pipe({f"/box/{name}": data, f"/box/{name}.gz": gzip.compress(data, mtime=0)})
    for path in (str(tmp_path / name), str(tmp_path / f"{name}.gz"), f"memory://box/{name}", f"memory://box/{name}.gz"):
        entries = scan([Input(path)]).entries
        assert texts_of(entries) == EXPECTED
        assert texts_of(entries[::-1]) == EXPECTED[::-1]  # in any order
        assert texts_of(pickle.loads(pickle.dumps(entries))) == EXPECTED  # and in another process
        assert all(entry.place.startswith(f"{path}:") for entry in entries)


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.text('a,";\n\r x')),
        min_size=1,
        max_size=5,
    )
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_a_table_gives_what_was_written_into_it(rows: list[tuple[str, str]]) -> None:
    """The slow twin: the module `csv` over the whole text."""
    written = [{"id": str(number), "text": f".{one}{two}", "n": two} for number, (one, two) in enumerate(rows)]
    for delimiter in ",;\t|":
        data = as_cells(written, delimiter)
        fsspec.filesystem("memory").pipe("/table.csv", data)
        found = texts_of(scan([Input("memory://table.csv")]).entries)
        twin = csv.DictReader(io.StringIO(data.decode(), newline=""), delimiter=delimiter)
        assert found == [(row["id"], row["text"]) for row in twin]


def test_columns_by_name(tmp_path: Path) -> None:
    rows = [{"key": 7, "body": "one", "text": "no"}, {"key": 8, "body": "two", "text": "no"}]
    for name, writer in WRITERS.items():
        (tmp_path / name).write_bytes(writer(rows))
        found = scan([Input(str(tmp_path / name), id_field="key", text_field="body")]).entries
        assert texts_of(found) == [("7", "one"), ("8", "two")]
        for columns, said in (({"text_field": "bdy"}, "bdy"), ({"id_field": "nr"}, "nr")):
            with pytest.raises(DocumentError) as caught:
                scan([Input(str(tmp_path / name), **columns)])
            assert f"no line of {tmp_path / name} has the field {said!r}" in caught.value.cause
            assert caught.value.hint is not None and "body, key, text" in caught.value.hint
        assert [entry.id for entry in scan([Input(str(tmp_path / name))]).entries] == [
            entry.place for entry in scan([Input(str(tmp_path / name))]).entries
        ]


BROKEN_ROWS = [
    (b"a,b\n", "the row has 2 cells, and the heading 3"),
    (b"a,one,two,three\n", "the row has 4 cells"),
    (b"a,,x\n", "the document is empty"),
    (b",text,x\n", "an id is a text"),
    (b"a,caf\xe9,x\n", "not UTF-8: byte 0xe9"),
    (b'a,"open,x\nb,two,y\n', "a quotation mark of line 3 is never closed"),
]


@pytest.mark.parametrize(("row", "said"), BROKEN_ROWS)
def test_a_broken_row_is_a_fault_of_its_own(tmp_path: Path, row: bytes, said: str) -> None:
    (tmp_path / "d.csv").write_bytes(b"id,text,n\nok,fine,0\n" + row)
    good, bad = scan([Input(str(tmp_path / "d.csv"))]).entries
    assert good.read() == "fine"
    assert bad.fault is not None and said in bad.fault.cause
    assert bad.place == f"{tmp_path / 'd.csv'}:3"


def test_odd_tables(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    long = "x" * 300_000  # more than `csv` takes by itself
    path.write_bytes(f"id,text\na,{long}\n\nb,y".encode())
    limit = csv.field_size_limit()
    assert texts_of(scan([Input(str(path))]).entries) == [("a", long), ("b", "y")]
    assert csv.field_size_limit() == limit
    for data, said in [
        (b"", "holds no document"),
        (b"id,text\n", "holds no document.\n  try a table has rows below its heading"),
        (b"id,text,text\na,b,c\n", "has 2 columns 'text'"),
        ("id,text\na,b\n".encode("utf-16"), "the text is UTF-16"),
        (b"id,text\na\n", "no row of"),
    ]:
        path.write_bytes(data)
        with pytest.raises(JobError, match=said):
            scan([Input(str(path))])
    (tmp_path / "d.parquet").write_bytes(b"no table")
    with pytest.raises(JobError, match="is no table in Parquet"):
        scan([Input(str(tmp_path / "d.parquet"))])
    (tmp_path / "d.parquet").write_bytes(as_parquet([{"id": 1, "text": "x"}, {"id": None, "text": "y"}]))
    assert [entry.fault is None for entry in scan([Input(str(tmp_path / "d.parquet"))]).entries] == [True, False]
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(as_jsonl(ROWS * 99))[:-50])
    with pytest.raises(JobError, match=r"d.jsonl.gz cannot be read"):
        scan([Input(str(tmp_path / "d.jsonl.gz"))])


def test_rows_that_change_after_the_scan(tmp_path: Path) -> None:
    for name, writer in WRITERS.items():
        path = tmp_path / name
        path.write_bytes(writer(ROWS))
        entries = scan([Input(str(path))]).entries
        path.unlink()
        if name != "d.parquet":  # that file is still open
            with pytest.raises(DocumentError, match="cannot be read"):
                entries[0].read()


# --- HTML and PDF -----------------------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html><html><head><title>Bill &amp; more</title><style>p {color: red}</style></head>
<body><!-- secret --><script>var total = 1;</script><h1>In<b>voice</b>
A-17</h1><p>Total:   <i>40.20</i><br>EUR</p>
<table><tr><th>Item</th><th>Price</th></tr><tr><td>Tea
pot</td><td>40.20</td></tr></table><pre>a  b
c</pre><noscript>turn it on</noscript></body></html>"""
PAGE_TEXT = "Bill & more\nInvoice A-17\nTotal: 40.20\nEUR\nItem\tPrice\nTea pot\t40.20\na  b\nc"


def test_the_text_of_a_page() -> None:
    assert html_text(PAGE.encode(), "p.html") == PAGE_TEXT
    assert html_text(b"\xef\xbb\xbf" + PAGE.encode(), "p.html") == PAGE_TEXT
    assert html_text(PAGE.encode("utf-16"), "p.html") == PAGE_TEXT
    latin = '<meta charset="iso-8859-1"><p>caf\xe9'
    assert html_text(latin.encode("latin-1"), "p.html") == "caf\xe9"
    for data, said in [
        (b"", "the page has no text"),
        (b"<html><body><script>draw()</script> &nbsp; </body></html>", "the page has no text"),
        (b"<p>caf\xe9</p>", "it declares no encoding, so it is UTF-8"),
        (b'<meta charset="utf-8"><p>caf\xe9</p>', "it declares 'utf-8'"),
        (b'<meta charset="klingon"><p>x</p>', "unknown encoding"),
    ]:
        with pytest.raises(DocumentError, match=said):
            html_text(data, "p.html")


def pdf(*pages: str | None, password: str = "") -> bytes:
    """A PDF with a text on each page; None is a page with a picture, "" an empty one."""
    writer = PdfWriter()
    for text in pages:
        page = writer.add_blank_page(300, 300)
        content = DecodedStreamObject()
        resources = DictionaryObject()
        if text is None:
            picture = DecodedStreamObject()
            picture.set_data(b"\0")
            size = {NameObject(f"/{name}"): NumberObject(1) for name in ("Width", "Height", "BitsPerComponent")}
            kind = {NameObject("/Subtype"): NameObject("/Image"), NameObject("/ColorSpace"): NameObject("/DeviceGray")}
            picture.update({NameObject("/Type"): NameObject("/XObject"), **kind, **size})
            resources[NameObject("/XObject")] = DictionaryObject({NameObject("/I"): writer._add_object(picture)})
            content.set_data(b"300 0 0 300 0 0 cm /I Do")
        elif text:
            font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
            made = DictionaryObject({NameObject(key): NameObject(value) for key, value in font.items()})
            resources[NameObject("/Font")] = DictionaryObject({NameObject("/F"): writer._add_object(made)})
            content.set_data(f"BT /F 12 Tf 20 200 Td ({text}) Tj ET".encode("latin-1"))
        page[NameObject("/Resources")] = resources
        page[NameObject("/Contents")] = writer._add_object(content)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    data = io.BytesIO()
    writer.write(data)
    return data.getvalue()


def test_the_text_of_a_pdf() -> None:
    assert pdf_text(pdf("Invoice A-17", "", "total 40.20 EUR"), "p.pdf") == "Invoice A-17\n\ntotal 40.20 EUR"
    assert len(PdfReader(io.BytesIO(pdf("a", None))).pages) == 2
    for data, said in [
        (pdf(None), "page 1 of 1 of the PDF have no text but pictures: a scan"),
        (pdf("Invoice", None, "total"), "page 2 of 3"),  # a part of a document would be a guess
        (pdf(None, None), "2 pages of 2"),
        (pdf("", ""), "the PDF has no text on its 2 pages"),
        (pdf("secret", password="tea"), "protected by a password"),
        (b"", "cannot be read"),
        (b"%PDF-1.7\nhello", "cannot be read"),
        (pdf("cut")[:200], "cannot be read"),
    ]:
        with pytest.raises(DocumentError, match=said) as caught:
            pdf_text(data, "p.pdf")
        assert caught.value.at is not None and caught.value.at.startswith("p.pdf")


def test_files_without_a_text_are_listed_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    files = {"a.pdf": pdf("one two"), "b.pdf": pdf(None), "c.html": b"<p>three</p>", "d.htm": b"<p></p>", "e.txt": b"f"}
    for name, data in files.items():
        (tmp_path / "docs" / name).write_bytes(data)
    (tmp_path / "docs" / "g.html.gz").write_bytes(gzip.compress(b"<p>zip"))
    done = Result("extract", "docs", "-o", "out", *FIELDS)
    assert done.code == console.SOME_FAILED
    firsts = {row["id"]: row["value"]["first"] for row in read_jsonl(tmp_path / "out" / "results.jsonl")}
    assert firsts == {"docs/a.pdf": "one", "docs/c.html": "three", "docs/e.txt": "f", "docs/g.html.gz": "zip"}
    failed = {row["id"]: (row["code"], row["message"]) for row in read_jsonl(tmp_path / "out" / "failed.jsonl")}
    assert failed == {
        "docs/b.pdf": ("DK502", "page 1 of 1 of the PDF have no text but pictures: a scan."),
        "docs/d.htm": ("DK502", "the page has no text: it is empty, or a program of the page writes it."),
    }
    (tmp_path / "docs" / "b.pdf").write_bytes(pdf("read"))  # by a program for pictures
    assert Result("retry", "out").code == console.SOME_FAILED
    assert len(read_jsonl(tmp_path / "out" / "results.jsonl")) == 5


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("a.pdf", "pypdf", "texts"), ("a.parquet", "pyarrow.parquet", "tables")]
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(JobError) as caught:
        scan([Input(str(tmp_path / name))])
    assert caught.value.hint == f"pip install 'decodekit[{extra}]'"


# --- behind a URL -----------------------------------------------------------------------------------------------------


def test_folders_and_files_behind_a_url(memory: Any) -> None:
    memory.pipe(
        {"/box/a.txt": b"one", "/box/deep/b.html": b"<p>two", "/box/c.csv": b"id,text\n1,x\n", "/box/d.bin": b""}
    )
    found = scan([Input("memory://box"), Input("memory://box/a.txt"), Input("memory://box/c.csv")])
    assert texts_of(found.entries) == [("memory://box/a.txt", "one"), ("memory://box/deep/b.html", "two"), ("1", "x")]
    assert found.repeated == ["memory://box/a.txt"]
    assert sorted(found.skipped) == ["memory://box/c.csv", "memory://box/d.bin"]
    memory.rm("/box/a.txt")
    with pytest.raises(DocumentError, match="cannot be read"):
        found.entries[0].read()


@pytest.mark.parametrize(
    ("path", "said", "advised"),
    [
        ("memory://nowhere/a.csv", "there is no file or folder", "check the path"),
        ("klingon://a.csv", "Protocol not known", "a protocol that fsspec knows"),
        ("s3://bucket/a.csv", "s3", "pip install s3fs"),
    ],
)
def test_urls_that_cannot_be_opened(
    memory: Any, monkeypatch: pytest.MonkeyPatch, path: str, said: str, advised: str
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(DecodekitError) as caught:
        scan([Input(path)])
    assert said in caught.value.cause and advised in str(caught.value.hint)
    done = Result("extract", path, "-o", "never", *FIELDS)
    assert done.code == console.USAGE and advised in done.err


def test_a_job_over_a_url_resumes_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any, llm: FakeLLM
) -> None:
    monkeypatch.chdir(tmp_path)
    memory.pipe("/box/d.csv.gz", gzip.compress(as_cells(ROWS)))
    arguments = ("extract", "memory://box/d.csv.gz", "-o", "out", *FIELDS)
    assert Result(*arguments, "--limit", "2").code == console.DONE
    llm.seen.clear()
    assert Result(*arguments).code == console.DONE
    assert len(llm.seen) == 1
    assert {row["id"] for row in read_jsonl(tmp_path / "out" / "results.jsonl")} == {"a", "b", "ç"}
    assert "no longer where" not in (tmp_path / "out" / "report.html").read_text()
    assert json.loads(Result("status", "out", "--json").out)["left"] == 0
