"""Documents of strangers: each has a bound, and one that goes beyond it fails alone."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decodekit.cli.parts import console
from decodekit.errors import DocumentError, JobError, OptionError
from decodekit.jobs.documents import html, pdf
from decodekit.jobs.documents.documents import DocumentRef, scan
from decodekit.jobs.documents.files import File
from decodekit.jobs.documents.html import html_text
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.documents.pdf import pdf_text
from tests.commands import Result
from tests.jobs.fakes import FakeLLM, read_jsonl
from tests.reference import html_text as by_a_tree

FIELDS = ("--schema", "first, words int, seed int")
KB = 1 / 1024


def fault_of(call: object, *arguments: object) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value


# --- HTML -------------------------------------------------------------------------------------------------------------

NAMES = (
    "p div b i span a table tr td th ul li pre br hr img svg title script style noscript ruby rt rp h1 textarea select "
    "option template math input body html"
)
TEXTS = ("word ", "  two\n words ", "&amp; x", "&lt;b&gt;", "caf&eacute;", "&#8364;5", "&#x41;", " ", "\n\n", "\ttab\t")
ODD = ("<!-- note -->", "<!doctype html>", "<?pi x?>", "<!--a<b>c-->", "</>", "a < b", "5<6 ", "AT&T ")
ENDS = ("</p>", "</div>", "</td>", "</b>", "<br/>", "<p/>", "<div class=x/>", "<td>", "<li>", "<tr>", "</svg>")
GIVEN = ("", " class=x", ' title="a > b"', " data-x='y'", " checked", " href=http://x/y?a=1&b=2", " a=\"1\" b='2' c")


def page(draws: random.Random, depth: int = 0) -> str:
    pieces = []
    for _ in range(draws.randint(0, 5)):
        kind = draws.random()
        if kind < 0.6:
            pieces.append(draws.choice(TEXTS if kind < 0.4 else ODD if kind < 0.5 else ENDS))
            continue
        name, attributes = draws.choice(NAMES.split()), draws.choice(GIVEN)
        inner = "var a = '<b>' < 3;" if name in ("script", "style") else page(draws, depth + 1) if depth < 5 else "z"
        is_closed = name in ("script", "style") or draws.random() < 0.9
        pieces.append(f"<{name}{attributes}>{inner}" + (f"</{name}>" if is_closed else ""))
    return "".join(pieces)


@pytest.mark.parametrize("seed", range(8))
def test_the_words_of_a_page_are_those_of_its_tree(seed: int) -> None:
    draws = random.Random(seed)
    for _ in range(100):
        source = page(draws)
        wanted = by_a_tree.html_text(source)
        if wanted:
            assert html_text(source.encode(), "p.html") == wanted, source
        else:
            assert "no text" in fault_of(html_text, source.encode(), "p.html").cause


UNITS = {
    "siblings": "<br>",
    "levels": "<b>",
    "blocks": "<div>",
    "ends": "</b>",
    "pairs": "<p>a<b>c",
    "rows": "<tr><td>x",
    "comments": "<!--",
    "tags": "<a ",
    "quotes": "<a x='1' y=\"",
    "values": "<a =",
    "less": "<",
    "references": "&",
    "numbers": "&#9",
    "declarations": "<!",
    "sections": "<![CDATA[",
    "scripts": "<script>",
    "closing": "</",
    "drawings": "<svg>",
}


@pytest.mark.parametrize("unit", UNITS)
def test_a_page_twice_as_long_makes_at_most_twice_the_work(unit: str) -> None:
    visits = []
    for number in (2_000, 4_000, 8_000):
        words = html._PageText(f"x{UNITS[unit] * number}")
        words.read()
        visits.append(words.num_visits + len(words.pieces))
    assert visits[1] <= 2 * visits[0] + 8 and visits[2] <= 2 * visits[1] + 8, visits
    assert visits[2] <= 8 * 8_000 + 8


def test_a_page_of_too_many_tags_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_TAGS", 1_000)
    error = fault_of(html_text, b"x" + b"<b>" * 1_001, "p.html")
    assert "more than 1,000 tags" in error.cause and error.at == "p.html" and error.hint
    assert html_text(b"x" + b"<b>" * 900, "p.html") == "x"


def test_odd_pages() -> None:
    assert html_text(b"<p>a &#" + b"9" * 5_000 + b"; b", "p.html") == "a \ufffd b"
    assert html_text(b"<p>a<a href='b>c</a>d", "p.html") == "acd"  # a quotation mark that never closes
    assert html_text(b"<p>a<![CDATA[ b ]]>c", "p.html") == "a b c"
    assert "unknown encoding" in fault_of(html_text, b'<meta charset="punycode">' + b"a-b" * 9_000, "p.html").cause
    assert html_text(b'<meta content="text/html; charset=latin-1"><p>caf\xe9', "p.html") == "caf\xe9"
    assert html_text(b'<?xml version="1.0" encoding="latin-1"?><p>caf\xe9', "p.html") == "caf\xe9"


# --- bytes ------------------------------------------------------------------------------------------------------------


def entries_of(path: Path, max_document_mb: float) -> list[DocumentRef]:
    return scan([Input(path.name, folder=str(path.parent), max_document_mb=max_document_mb)]).entries


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.html.gz", "a.log"])
def test_a_document_has_a_bound_after_it_is_unpacked(tmp_path: Path, name: str) -> None:
    text = b"word " * 400
    (tmp_path / name).write_bytes(gzip.compress(text, mtime=0) if name.endswith("gz") else text)
    (entry,) = entries_of(tmp_path / name, 2 * KB)
    assert entry.fault is None and entry.read()
    (entry,) = entries_of(tmp_path / name, 1.9 * KB)
    assert entry.fault is not None and entry.fault.code == "DK502"
    assert "the document is larger than 0.0019 MiB" in entry.fault.cause
    assert entry.fault.at == name and "--max-document-mb" in str(entry.fault.hint)


def test_a_bomb_takes_no_more_memory_than_the_bound(tmp_path: Path) -> None:
    """A gigabyte in a megabyte, read by a process that may not have a quarter of that."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first, piece = (packer.compress(b"a" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    # A piece refers to nothing before it, so one stands for all; the checksum at the end, of two, is never read.
    (tmp_path / "bomb.txt.gz").write_bytes(first + piece * 1023 + packer.flush())
    (tmp_path / "good.txt").write_text("good")
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))\n"
        "from decodekit.jobs.documents.documents import Input, scan\n"
        "print([entry.fault.cause if entry.fault else entry.read() for entry in scan([Input(sys.argv[1])]).entries])"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True)
    assert done.stdout == "['the document is larger than 64 MiB.', 'good']\n", done.stderr


def test_one_large_document_is_one_failure_and_the_others_go_on(tmp_path: Path, llm: FakeLLM) -> None:
    rows = [{"text": "one"}, {"text": "x " * 2_500}, {"text": "two"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "large.txt").write_text("word " * 1_000)
    (tmp_path / "docs" / "small.txt").write_text("small one")
    out = tmp_path / "out"
    inputs = (tmp_path / "d.jsonl.gz", tmp_path / "docs")
    done = Result("extract", *inputs, "-o", out, *FIELDS, "--max-document-mb", "0.004")
    assert done.code == console.SOME_FAILED
    assert len(read_jsonl(out / "results.jsonl")) == 3
    failed = {Path(row["id"]).name: row["message"] for row in read_jsonl(out / "failed.jsonl")}
    assert failed == {
        "d.jsonl.gz:2": "the line is larger than 0.004 MiB.",
        "large.txt": "the document is larger than 0.004 MiB.",
    }
    # A later run, and what looks at the folder, keep the bound; another one takes its place.
    assert Result("retry", out).code == console.SOME_FAILED
    done = Result("extract", *inputs, "-o", out, *FIELDS)
    assert done.code == console.DONE, done.err
    assert {one["max_document_mb"] for one in json.loads((out / "job.json").read_text())["inputs"]} == {64.0}
    assert len(json.loads((out / "job.json").read_text())["inputs"]) == 2
    assert Result("status", out).code == console.DONE


def test_rows_that_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\na,one\nb,"' + "x\n" * 3_000 + '"\nc,two\n')
    found = entries_of(tmp_path / "a.csv", 4 * KB)
    assert [entry.id for entry in found] == ["a", "a.csv:3"]
    assert found[1].fault is not None and "the rest of the table is not read" in found[1].fault.cause
    assert [entry.id for entry in entries_of(tmp_path / "a.csv", 8 * KB)] == ["a", "b", "c"]
    (tmp_path / "b.csv").write_text("x" * 9_000 + ",text\na,one\n")
    with pytest.raises(JobError, match=r"the heading of b\.csv is larger"):
        entries_of(tmp_path / "b.csv", 4 * KB)


def test_rows_of_parquet_that_are_too_large(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "one"}, {"id": "b", "text": "x" * 5_000}, {"id": "c", "text": "two"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = entries_of(tmp_path / "a.parquet", 4 * KB)
    assert [entry.fault is None for entry in found] == [True, False, True]
    assert found[1].fault is not None and "the row is larger" in found[1].fault.cause
    assert [entry.read() for entry in (found[0], found[2])] == ["one", "two"]


def test_a_bound_that_no_document_keeps(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    done = Result("extract", tmp_path / "a.txt", "-o", tmp_path / "out", *FIELDS, "--max-document-mb", "0")
    assert done.code == console.USAGE and "max-document-mb" in done.err
    assert not (tmp_path / "out").exists()
    assert issubclass(OptionError, Exception)


def test_a_text_that_is_too_long_by_its_bytes_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    import decodekit as dk
    from decodekit.models import encoding

    llm = dk.LLM.load("tiny")
    seen: list[int] = []
    own = encoding._encode
    monkeypatch.setattr(encoding, "_encode", lambda *arguments: seen.append(len(arguments[1])) or own(*arguments))
    most = llm.model.context_length
    done = llm.generate(["a" * 4_000_000, [{"role": "user", "content": "b"}], "short"][::2], max_new_tokens=2)
    assert done[0].error is not None and done[0].error.code == "DK304" and "4,000,000 bytes" in done[0].error.cause
    assert done[1].error is None and max(seen) == len("short")
    assert most is not None and f"{most:,}" in done[0].error.cause


# --- PDF --------------------------------------------------------------------------------------------------------------


def pdf_of(streams: list[bytes], pages: list[int]) -> bytes:
    """A PDF of pages by the numbers of their streams."""
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    made = []
    for data in streams:
        stream = DecodedStreamObject()
        stream.set_data(data)
        made.append(writer._add_object(stream.flate_encode()))
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for number in pages:
        blank = writer.add_blank_page(100, 100)
        blank[NameObject("/Contents")] = made[number]
        blank[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
    sink = io.BytesIO()
    writer.write(sink)
    return sink.getvalue()


GOOD = b"BT /F1 12 Tf 10 10 Td (good) Tj ET"


def test_a_pdf_that_never_ends_is_one_failed_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pdf, "MAX_SECONDS", 1.0)
    bomb = pdf_of([GOOD + b" q 1 0 0 1 0 0 cm Q\n" * 200_000], [0] * 60)  # 36 million operators
    assert len(bomb) < 60_000
    (tmp_path / "bomb.pdf").write_bytes(bomb)
    (tmp_path / "good.pdf").write_bytes(pdf_of([GOOD], [0]))
    bad, good = scan([Input(str(tmp_path))]).entries
    assert bad.fault is not None and "more than 1 s of processor time" in bad.fault.cause and bad.fault.hint
    assert good.read() == "good"


@pytest.mark.slow
def test_a_pdf_of_much_memory_is_one_failed_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "MAX_MEMORY", 256 << 20)
    assert (
        "of processor time, or 256 MiB" in fault_of(pdf_text, pdf_of([GOOD + b" q" * 900_000], [0] * 4), "a.pdf").cause
    )
    assert pdf_text(pdf_of([GOOD], [0, 0]), "b.pdf") == "good\n\ngood"
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY  # not of this process


def test_the_text_of_a_pdf_has_a_bound() -> None:
    error = fault_of(pdf_text, pdf_of([GOOD], [0] * 300), "a.pdf", 1_000)
    assert "larger than a document may be" in error.cause and error.at == "a.pdf, page 251"


def test_the_process_takes_no_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "random.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "zlib.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pdf, "_processes", {})
    assert pdf_text(pdf_of([GOOD], [0]), "b.pdf") == "good"
    assert not (tmp_path / "ran").exists()


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_link_that_leads_out_of_a_folder_is_left_out_and_named(tmp_path: Path, llm: FakeLLM) -> None:
    (tmp_path / "secret").write_text("my secret")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("one")
    (docs / "inside.txt").symlink_to("a.txt")
    (docs / "notes.txt").symlink_to(tmp_path / "secret")
    (docs / "up.txt").symlink_to("../secret")
    (docs / "chain.txt").symlink_to("up.txt")
    found = scan([Input("docs", folder=str(tmp_path))])
    assert [entry.id for entry in found.entries] == ["docs/a.txt", "docs/inside.txt"]
    assert found.outside == ["docs/chain.txt", "docs/notes.txt", "docs/up.txt"]
    out = tmp_path / "out"
    done = Result("extract", docs, "-o", out, *FIELDS)
    assert done.code == console.DONE and "left out 3 links out of their folders or to nothing, such as" in done.err
    assert "my secret" not in (out / "report.html").read_text() and "secret" not in (out / "results.jsonl").read_text()
    (docs / "a.txt").unlink()
    (docs / "inside.txt").unlink()
    with pytest.raises(JobError, match="3 links out of it"):
        scan([Input("docs", folder=str(tmp_path))])
    assert [entry.read() for entry in scan([Input(str(docs / "notes.txt"))]).entries] == ["my secret"]  # as it is named
    found = scan([Input(f"file://{docs}")], is_lookup=True, gone=[])
    assert len(found.outside) == 3 and not found.entries


def test_what_is_named_as_a_text_and_is_no_file_is_left_out_and_named(tmp_path: Path, llm: FakeLLM) -> None:
    docs = tmp_path / "docs"
    (docs / "folder.txt").mkdir(parents=True)
    os.mkfifo(docs / "pipe.txt")
    (docs / "gone.txt").symlink_to("nowhere.txt")
    (docs / "round.txt").symlink_to("round.txt")
    with pytest.raises(JobError, match=r"1 \.txt\. 2 links out of it or to nothing"):
        scan([Input("docs", folder=str(tmp_path))])
    (docs / "a.txt").write_text("one")
    found = scan([Input("docs", folder=str(tmp_path))])
    assert [entry.id for entry in found.entries] == ["docs/a.txt"]
    assert (found.skipped, found.outside) == (["docs/pipe.txt"], ["docs/gone.txt", "docs/round.txt"])


def test_a_file_keeps_its_bound_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(File("a", 7))).max_bytes == 7
    assert os.name == "posix"
