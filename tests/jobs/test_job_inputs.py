"""What is taken as a document and what is refused by name; one document has one name, however its path is spelled."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from decodekit.errors import DecodekitError, DocumentError, JobError
from decodekit.jobs.documents.documents import read_stdin, scan
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.documents.refused_formats import delimiter_of
from tests.commands import Result
from tests.jobs.fakes import FakeLLM, read_jsonl, write_jsonl

FIELDS = ("--schema", "first, words int, seed int")


def refusal(call: Callable[[], Any]) -> DecodekitError:
    with pytest.raises(DecodekitError) as caught:
        call()
    return caught.value


# --- what is no document ----------------------------------------------------------------------------------------------

ROWS = [{"id": "a", "text": "one two"}, {"id": "b", "text": "three, four"}, {"id": "c", "text": 'five "six"'}]
TABLE = 'id,text\na,one two\nb,"three, four"\nc,"five ""six"""\n'


def office(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")


def refused_files() -> dict[str, tuple[bytes | Callable[[Path], None], str]]:
    """Contents by name, with what is said of them."""
    array = json.dumps(ROWS, indent=1).encode()
    return {
        "data.json": (array, "one JSON array"),
        "short.json": (b"[1, 2]", "one JSON array"),
        "object.json": (b'{"invoice": {"total": 3}}\n', "one JSON object"),
        "lines.json": (b'{"text": "a"}\n{"text": "b"}\n', "lines of JSON"),
        "export": (array, "one JSON array"),
        "export.dat": (TABLE.encode(), "a table with commas"),
        "wide": (b"name;city;year\nAnn;Rome;2001\nBob;Oslo;1999\n", "a table with semicolons"),
        "a.xlsx": (office, "a workbook"),
        "a.docx": (office, "an office document"),
        "scan": (b"%PDF-1.7\n", "a PDF"),
        "all.zip": (office, "an archive"),
        "all.tar.gz": (gzip.compress(b"x", mtime=0), "an archive"),
        "sheet.xlsx.gz": (gzip.compress(b"x", mtime=0), "a workbook"),
        "export.gz": (gzip.compress(TABLE.encode(), mtime=0), "a table with commas"),
        "table": (b"PAR1....PAR1", "Parquet"),
        "unnamed": (gzip.compress(b"x", mtime=0), "a compressed file"),
        "photo.jpg": (b"\xff\xd8\xff\xe0", "a picture"),
        "photo": (b"\x89PNG\r\n\x1a\n", "a picture"),
        "call.mp3": (b"ID3", "a recording"),
        "jobs.db": (b"SQLite format 3\0", "a database"),
    }


@pytest.mark.parametrize("name", refused_files())
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, name: str) -> None:
    contents, said = refused_files()[name]
    path = tmp_path / name
    if callable(contents):
        contents(path)
    else:
        path.write_bytes(contents)
    error = refusal(lambda: scan([Input(name, folder=str(tmp_path))]))
    assert isinstance(error, JobError)
    assert error.cause.startswith(f"{name} is ") and said in error.cause and "as one document" in error.cause
    assert error.hint and console.exit_code(error) == console.USAGE
    (tmp_path / "as.txt").write_bytes(path.read_bytes())  # whoever means it can say so
    assert len(scan([Input("as.txt", folder=str(tmp_path))]).entries) == 1
    assert len(scan([Input(name, folder=str(tmp_path))], is_lookup=True).entries) == 1  # of a job that took it


TEXTS = {
    "a letter with commas": "Dear Ann,\nthank you for tea, cake, and company.\nSee you soon, Bob,\nyour friend",
    "as many commas in each line": "Roses, violets\nSugar, spice\nCats, dogs\nRain, shine\n",
    "a form with tabs": "Name\tAnn\nTotal\t5\nDue\tMay\n",
    "a form with colons": "Name:\tAnn\tRome\nTotal:\t5\tEUR\nDue:\tMay\t1\n",
    "a log": "[2024-01-01] started\n[2024-01-02] stopped\n[2024-01-03] gone\n",
    "a reference": "[1]",
    "a list of numbers": "[1] Smith, J. On tea.\n[2] Roe, R. On cake.\n",
    "one line": "Invoice A-17, total 40.20 EUR.",
    "braces": "{not json}\n{at all}\n",
    "a table of Markdown": "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "numbers": "1,2,3\n4,5,6\n7,8,9\n",
    "HTML": "<html><body><p>Total 40.20</p></body></html>",
    "XML": "<?xml version='1.0'?>\n<a><b>1</b></a>\n",
    "two rows": "id,text\na,b\n",
    "a JSON text": '"Total 40.20"',
}


@pytest.mark.parametrize("about", TEXTS)
def test_plain_texts_are_documents(tmp_path: Path, about: str) -> None:
    for name in ("letter", "letter.log", "letter.xml", "letter.eml"):
        (tmp_path / name).write_text(TEXTS[about])
        assert len(scan([Input(name, folder=str(tmp_path))]).entries) == 1
    assert read_stdin(io.BytesIO(TEXTS[about].encode()), Input("")) == TEXTS[about].encode()


def test_tables_by_what_they_hold() -> None:
    rows = ["city,year,name", "Rome,2001,Ann", "Oslo,1999,Bob"]
    assert delimiter_of(rows, ()) == ","
    assert delimiter_of([row.replace(",", "\t") for row in rows], ()) == "\t"
    assert delimiter_of([row.replace(",", "|") for row in rows], ()) == "|"
    assert delimiter_of(rows[:2], ()) is None  # too few rows
    assert delimiter_of([*rows, "Bonn"], ()) is None  # not as many cells
    assert delimiter_of([rows[0], *(row.replace(",", ", ") for row in rows[1:])], ()) is None  # prose has blanks
    assert delimiter_of(["city,city,name", *rows[1:]], ()) is None  # a heading names columns apart
    assert delimiter_of(["1,2,3", *rows[1:]], ()) is None
    narrow = ["name,total", "Ann,1", "Bob,2", "Cid,3"]
    assert delimiter_of(narrow, ()) is None
    assert delimiter_of(narrow, {"name"}) == ","


def test_several_refusals_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "b.zip").write_bytes(b"PK")
    inputs = [Input(name, folder=str(tmp_path)) for name in ("a.json", "b.zip", "nowhere")]
    error = refusal(lambda: scan(inputs))
    assert "3 inputs cannot be used" in str(error) and console.exit_code(error) == console.USAGE
    assert all(name in str(error) for name in ("a.json", "b.zip", "nowhere"))


@pytest.mark.parametrize("name", ["data.json", "lines.json", "table", "wide.dat"])
def test_what_is_advised_works(tmp_path: Path, name: str) -> None:
    """The line is run as it is printed, and what it writes is a job's documents."""
    contents = {"data.json": json.dumps(ROWS, indent=2), "table": TABLE}.get(name, "")
    if name == "wide.dat":
        contents = 'id\ttext\na\tone two\nb\tthree, four\nc\t"five ""six"""\n'
    if name == "lines.json":
        contents = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / name).write_text(contents)
    hint = refusal(lambda: scan([Input(name, folder=str(tmp_path))])).hint
    assert hint is not None
    lines = [line.strip() for line in hint.splitlines() if line.strip().startswith("python -c")]
    line = lines[0] if lines else hint[hint.index("cp ") :].partition(";")[0]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(line, shell=True, cwd=tmp_path, check=True, env=environment)
    made = shlex.split(line)[-1]
    entries = scan([Input(made, folder=str(tmp_path))]).entries
    assert [(entry.id, entry.read()) for entry in entries] == [(row["id"], row["text"]) for row in ROWS]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (TABLE.encode(), "standard input is a table with commas"),
        (json.dumps(ROWS, indent=1).encode(), "standard input is one JSON array"),
        (json.dumps(ROWS).encode(), "standard input is one JSON array"),
        (json.dumps(ROWS[0], indent=1).encode(), "standard input is one JSON object"),
        (b"%PDF-1.4", "standard input is a PDF"),
        (gzip.compress(b"x", mtime=0), "standard input is a compressed file"),
        (b'{"body": "x"}\n{"body": "y"}\n', "no line of stdin has the field 'text'"),
        (b'{"id": 1, "text": "x"}\n{"id": 1, "text": "y"}\n', "repeats id '1'"),
        (b"", "standard input is empty"),
    ],
)
def test_standard_input_is_looked_at_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, said: str
) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(extract_module, "load_model", never)
    done = Result("extract", "-", "-o", tmp_path / "out", *FIELDS, stdin=data)
    assert done.code == console.USAGE and said in done.err, done.err
    assert not (tmp_path / "out").exists()


def test_lines_of_json_come_in_by_standard_input(tmp_path: Path) -> None:
    for data in (b'{"text": "x"}', b'\n{"text": "x"}\r\n', b'{"text": "x"}\n{"text": "y"}\nbroken\n'):
        assert read_stdin(io.BytesIO(data), Input("")) == data


def test_jsonl_that_is_none(tmp_path: Path) -> None:
    for data, said in [
        (json.dumps(ROWS, indent=1).encode(), "is one JSON array"),
        (TABLE.encode(), "no line of d.jsonl is a JSON object; of the first one: the line is not JSON"),
        ('{"text": "a"}\n'.encode("utf-16"), "the text is UTF-16"),
        (b"\n \n", "holds no document"),
        (b'{"body": 1}\n', "no line of d.jsonl has the field 'text'"),
    ]:
        (tmp_path / "d.jsonl").write_bytes(data)
        assert said in str(refusal(lambda: scan([Input("d.jsonl", folder=str(tmp_path))])))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named(tmp_path: Path, encoding: str) -> None:
    for name in ("a.txt", "a.log"):
        (tmp_path / name).write_bytes("Invoice A-17".encode(encoding))
        (entry,) = scan([Input(name, folder=str(tmp_path))]).entries
        assert entry.fault is not None and "UTF-16" in entry.fault.cause
        assert "iconv -f UTF-16" in str(entry.fault)
        with pytest.raises(DocumentError):
            entry.read()


def test_odd_inputs(tmp_path: Path, llm: FakeLLM) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in [
        ("pipe", "a pipe or a device"),
        ("", "an input is the empty text"),
        ("Invoice A-17, total 40.20 EUR. " * 20, "cannot be read: File name too long"),
        ("a\0b", "embedded null"),
    ][:3]:
        assert said in refusal(lambda path=path: scan([Input(path, folder=str(tmp_path))])).cause  # type: ignore[misc]
    (tmp_path / "a.txt").write_text("x")
    long = ", ".join(f"field_{n} string" for n in range(40))
    assert Result("schema", "check", long).code == 0
    for arguments, said in [
        (("extract", tmp_path / "a.txt", "-o", "", *FIELDS), "the empty text is no path"),
        (("bench", "--strategies", "greedy", "-o", ""), "the empty text is no path"),
        (("demo", "-o", ""), "the empty text is no path"),
        (("grammar", "check", long), "DK204"),
    ]:
        done = Result(*arguments)
        assert done.code in (console.USAGE, console.SCHEMA_REFUSED) and said in done.err, done.err


def test_a_folder_of_mixed_files(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for name in ("a.csv", "b.csv", "c.zip", "d.jsonl", "e"):
        (tmp_path / "docs" / name).write_text("x")
    error = refusal(lambda: scan([Input("docs")]))
    assert "It has files of other kinds: 2 .csv, 1 .zip, 1 .jsonl, 1 without an ending." in error.cause
    (tmp_path / "docs" / "f.txt").write_text("one")
    done = Result("extract", "docs", "-o", "out", *FIELDS)
    assert done.code == console.DONE
    assert "left out 5 files of folders that are no text files (2 .csv, 1 .zip" in done.err
    assert "what is text of them: --include '*.csv' --include '*.jsonl' --include e\n" in done.err
    again = Result("extract", "docs", "out/results.jsonl", "-o", "out", *FIELDS)
    assert again.code == console.DONE
    assert "left out 1 input that the job itself has written, such as " in again.err


# --- one document, one name -------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with documents, which is the present one; and a link to it beside."""
    folder = tmp_path / "work"
    (folder / "docs" / "deep").mkdir(parents=True)
    for name in ("a.txt", "docs/b.txt", "docs/deep/c.md"):
        (folder / name).write_text(f"text of {name}")
    write_jsonl(folder / "rows.jsonl", [{"text": "row one"}, {"id": "own", "text": "row two"}])
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    return folder


def ids(out: Path) -> list[str]:
    return [row["id"] for row in read_jsonl(out / "results.jsonl")]


def test_spellings_of_one_path_are_one_document(here: Path, tmp_path: Path, llm: FakeLLM) -> None:
    spellings = [
        "a.txt",
        "./a.txt",
        "docs/../a.txt",
        here / "a.txt",
        tmp_path / "link" / "a.txt",
        "docs/deep/../../a.txt",
    ]
    done = Result("extract", *spellings, "-o", "out", *FIELDS)
    assert (done.code, ids(here / "out")) == (console.DONE, ["a.txt"])
    assert "files that are named more than once are done once: 5, such as a.txt" in done.err
    for spelling in spellings:  # nor is it another one in a later run
        llm.seen.clear()
        assert Result("extract", spelling, "-o", "out", *FIELDS).code == console.DONE
        assert (llm.seen, ids(here / "out")) == ([], ["a.txt"]), spelling
    assert json.loads(Result("status", "out", "--json").out)["left"] == 0
    # The first spelling is the name, also where it is another one.
    assert Result("extract", here / "a.txt", "a.txt", "-o", "other", *FIELDS).code == console.DONE
    assert ids(here / "other") == [str(here / "a.txt")]


def test_folders_and_what_is_in_them(here: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> None:
    assert Result("extract", "docs", here / "docs" / "b.txt", "-o", "out", *FIELDS).code == console.DONE
    assert sorted(ids(here / "out")) == ["docs/b.txt", "docs/deep/c.md"]
    monkeypatch.chdir(here / "docs")
    llm.seen.clear()
    assert Result("extract", "b.txt", "deep", ".", "-o", "../out", *FIELDS).code == console.DONE
    assert llm.seen == []
    assert json.loads(Result("status", "../out", "--json").out)["left"] == 0
    (here / "docs" / "new.txt").write_text("new")  # of a folder that is known, by its new spelling
    assert Result("extract", ".", "-o", "../out", *FIELDS).code == console.DONE
    assert sorted(ids(here / "out")) == ["docs/b.txt", "docs/deep/c.md", "docs/new.txt"]
    report = (here / "out" / "report.html").read_text()
    assert "no longer where" not in report and "has changed" not in report


def test_lines_of_a_file_have_one_name(here: Path, llm: FakeLLM) -> None:
    assert Result("extract", "rows.jsonl", here / "rows.jsonl", "-o", "out", *FIELDS).code == console.DONE
    assert sorted(ids(here / "out")) == ["own", "rows.jsonl:1"]
    llm.seen.clear()
    assert Result("extract", here / "rows.jsonl", "-o", "out", *FIELDS).code == console.DONE
    assert llm.seen == []


def test_links_to_one_file_are_documents_of_their_own(here: Path) -> None:
    (here / "docs" / "same.txt").symlink_to("b.txt")
    found = [entry.id for entry in scan([Input("docs", folder=str(here))]).entries]
    assert found == ["docs/b.txt", "docs/deep/c.md", "docs/same.txt"]


def test_names_of_a_job_that_knows_a_file_by_two_stay(here: Path, llm: FakeLLM) -> None:
    """A folder of the time when each spelling was a document: nothing of it is done again, and its texts are found."""
    assert Result("extract", "a.txt", "-o", "out", *FIELDS).code == console.DONE
    (row,) = read_jsonl(here / "out" / "results.jsonl")
    with (here / "out" / "results.jsonl").open("a") as file:
        file.write(json.dumps({**row, "id": str(here / "a.txt")}) + "\n")
    llm.seen.clear()
    assert Result("extract", "a.txt", here / "a.txt", "-o", "out", *FIELDS).code == console.DONE
    assert llm.seen == [] and ids(here / "out") == ["a.txt", str(here / "a.txt")]
    assert "no longer where" not in (here / "out" / "report.html").read_text()


# --- what the report says of a text that it cannot show ---------------------------------------------------------------


def test_the_report_says_why_a_text_is_missing(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for name, data in [("empty.txt", b""), ("binary.txt", b"\x80\x81"), ("zeros.txt", b"a\0b"), ("good.txt", b"one")]:
        (tmp_path / "docs" / name).write_bytes(data)
    assert Result("extract", "docs", "-o", "out", *FIELDS).code == console.SOME_FAILED

    def report() -> str:
        assert Result("report", "out").code == 0
        return (tmp_path / "out" / "report.html").read_text()

    shown = report()
    for said in ("the document is empty", "the text is not UTF-8: byte 0x80", "the file has NUL bytes"):
        assert shown.count(said) == 1, said
    assert shown.count('<p class="none">no text</p>') == 3
    assert "has changed" not in shown and "no longer where" not in shown
    (tmp_path / "docs" / "good.txt").write_text("two")
    (tmp_path / "docs" / "empty.txt").write_text("three")
    assert report().count("the document has changed since.") == 2
    (tmp_path / "docs" / "good.txt").unlink()
    assert report().count("the document is no longer where it was read from.") == 1
