"""Job folders from elsewhere: what they name is read and written nowhere but in them, and names move no cursor."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodekit.cli.parts import console
from decodekit.errors import DecodekitError, JobError, JobSettingsError, OutputError
from decodekit.jobs.documents import documents
from decodekit.jobs.folder.job_folder import JobFile, JobFolder
from decodekit.jobs.folder.shards import merge_jobs
from decodekit.jobs.reports.result_tables import write_tables
from decodekit.terminal import json_lines, one_line, plain_lines
from tests.commands import Result
from tests.jobs.fakes import FakeLLM, read_jsonl, run_job, write_jsonl

FIELDS = ("--schema", "first, words int, seed int")


@pytest.fixture
def part(tmp_path: Path, llm: FakeLLM) -> Path:
    """A job whose documents came by standard input."""
    done = Result("extract", "-", "-o", tmp_path / "part", *FIELDS, stdin=b'{"id": "a", "text": "one two"}\n')
    assert done.code == console.DONE
    return tmp_path / "part"


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads((folder / "job.json").read_text())
    change(data)
    (folder / "job.json").write_text(json.dumps(data))


COMMANDS: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "merge": lambda part: ("merge", part, "-o", part.parent / "whole"),
    "status": lambda part: ("status", part),
    "report": lambda part: ("report", part),
    "retry": lambda part: ("retry", part),
    "export": lambda part: ("export", part, "--to", "vllm-batch", "-o", part.parent / "requests.jsonl"),
    "import": lambda part: ("import", part, part / "results.jsonl"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "path", ["../.cfg/rc", "/etc/passwd", "input-0000abcd.txt/../../rc", "rc", "input-0000abcd.txt\n"]
)
def test_what_is_said_to_be_saved_in_a_folder_is_named_as_a_job_names_it(part: Path, command: str, path: str) -> None:
    edit(part, lambda data: data["inputs"][0].update(path=path))
    before = sorted(part.parent.rglob("*"))
    done = Result(*COMMANDS[command](part))
    assert done.code == console.USAGE and "is not saved in the folder" in done.err
    assert sorted(part.parent.rglob("*")) == before


def test_merge_overwrites_no_file_beside_the_new_folder(part: Path, tmp_path: Path) -> None:
    (tmp_path / ".cfg").mkdir()
    (tmp_path / ".cfg" / "rc").write_text("my precious config")
    (part / "x").mkdir()
    edit(part, lambda data: data["inputs"][0].update(path="../.cfg/rc"))
    with pytest.raises(JobError, match="not saved in the folder"):
        merge_jobs([part], tmp_path / "whole")
    assert (tmp_path / ".cfg" / "rc").read_text() == "my precious config"


@pytest.mark.parametrize("name", ["input", "job.json", "results.jsonl", "failed.jsonl", "metrics.jsonl"])
def test_a_link_in_a_part_is_not_followed(part: Path, tmp_path: Path, name: str) -> None:
    path = next(part.glob("input-*.jsonl")) if name == "input" else part / name
    secret = tmp_path / "secret"
    secret.write_bytes(path.read_bytes() if path.exists() else b"")
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    with pytest.raises(JobError, match="link"):
        merge_jobs([part], tmp_path / "whole")
    for command in ("status", "retry") if name != "input" else ():
        done = Result(*COMMANDS[command](part))
        if name != "metrics.jsonl" or command == "status":
            assert done.code != console.DONE and "it is a link" in done.err, command
    if name == "input":
        assert list((tmp_path / "whole").glob("input-*")) == []


def test_a_pipe_in_a_part_holds_nobody_up(part: Path, tmp_path: Path) -> None:
    (part / "results.jsonl").unlink()
    os.mkfifo(part / "results.jsonl")
    with pytest.raises(JobError, match="it is no file"):
        merge_jobs([part], tmp_path / "whole")


def test_what_was_saved_is_what_its_name_says(part: Path, tmp_path: Path) -> None:
    path = next(part.glob("input-*.jsonl"))
    path.write_bytes(b'{"id": "a", "text": "EVIL PAYLOAD"}\n')
    with pytest.raises(JobError, match="is not what its name says"):
        merge_jobs([part], tmp_path / "whole")
    good = b"x"
    assert hashlib.sha256(good).hexdigest()[:8] not in path.name


@pytest.mark.parametrize("name", [".lock", "damaged.jsonl", "results.jsonl", ".report.html.new", ".job.json.new"])
def test_work_in_a_folder_writes_through_no_link(part: Path, tmp_path: Path, name: str, llm: FakeLLM) -> None:
    """Of a folder that somebody else has packed: what it links to keeps every byte."""
    own = tmp_path / "authorized_keys"
    own.write_text("my keys\n")
    with (part / "results.jsonl").open("a") as file:
        file.write("ssh-rsa EVIL\n" + json.dumps({**read_jsonl(part / "results.jsonl")[0], "id": "z"}) + "\n")
    (part / name).unlink(missing_ok=True)
    (part / name).symlink_to(own)
    Result("extract", "-", "-o", part, *FIELDS, stdin=b'{"id": "b", "text": "three"}\n')
    Result("report", part)
    assert own.read_text() == "my keys\n"


def test_merge_reads_nothing_outside_of_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM
) -> None:
    (tmp_path / "letter.txt").write_text("dear diary")
    out = tmp_path / "part"
    assert Result("extract", tmp_path / "letter.txt", "-o", out, *FIELDS).code == console.DONE
    assert " diary" in (out / "report.html").read_text()
    edit(out, lambda data: data["inputs"].append({**data["inputs"][0], "path": "memory://elsewhere/a.txt"}))
    seen: list[str] = []
    own = documents.paths_of
    monkeypatch.setattr(documents, "paths_of", lambda source, found: seen.append(source.path) or own(source, found))
    assert Result("merge", out, "-o", tmp_path / "whole").code == console.DONE
    assert seen == []
    page = (tmp_path / "whole" / "report.html").read_text()
    assert " diary" not in page and "decodekit report" in page
    assert len(json.loads((tmp_path / "whole" / "job.json").read_text())["inputs"]) == 2
    assert Result("report", tmp_path / "whole").code == console.DONE  # who asks for the texts gets them
    assert " diary" in (tmp_path / "whole" / "report.html").read_text()


def test_a_program_in_the_folder_of_a_job_is_not_run(part: Path, tmp_path: Path) -> None:
    (part / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    edit(part, lambda data: data["settings"].update(schema_source=f"{part / 'evil.py'}:Evil"))
    row = read_jsonl(part / "results.jsonl")[0]
    failure = {"code": "DK101", "error": "LengthError", "message": "m", "at": None, "hint": None, "text": ""}
    failure |= {"num_generated_tokens": 0, "attempts": 1, "document": row["document"], "id": "a"}
    (part / "results.jsonl").write_text("")
    (part / "failed.jsonl").write_text(json.dumps(failure) + "\n")
    for command in ("retry", "export", "import"):
        done = Result(*COMMANDS[command](part))
        assert done.code == console.USAGE and "lies in the folder of the job" in done.err, command
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["runs"][0].update(shard=[1, 0]), "none of its parts"),
        (lambda data: data["settings"].update(prompt="@/etc/passwd"), "no {text}"),
        (lambda data: data["inputs"][0].update(max_document_mb="64"), "no number"),
        (lambda data: data["inputs"][0].update(max_document_mb=float("nan")), "no number above 0"),
    ],
)
def test_what_no_job_writes_is_refused(part: Path, change: Callable[[dict[str, Any]], None], said: str) -> None:
    edit(part, change)
    with pytest.raises(JobError) as caught:
        JobFile.read(part)
    assert said in caught.value.cause


def test_a_template_may_begin_with_the_sign_of_a_file(tmp_path: Path, llm: FakeLLM) -> None:
    (tmp_path / "a.txt").write_text("CUT one")
    (tmp_path / "template").write_text("@everybody: {text}")
    out = tmp_path / "out"
    done = Result("extract", tmp_path / "a.txt", "-o", out, *FIELDS, "--prompt", f"@{tmp_path / 'template'}")
    assert done.code == console.SOME_FAILED and llm.seen == ["@everybody: CUT one"]
    assert Result("retry", out).code == console.SOME_FAILED and llm.seen[1:] == ["@everybody: CUT one"]


def test_folders_of_today_go_on(part: Path, tmp_path: Path) -> None:
    """A folder of the time before documents had a bound: the input has no such field."""
    edit(part, lambda data: data["inputs"][0].pop("max_document_mb"))
    assert JobFile.read(part).inputs[0].max_document_mb == 64
    merge_jobs([part], tmp_path / "whole")
    with pytest.raises(JobSettingsError):
        JobFolder.create_or_resume(
            part, JobFile.read(part).settings.__class__.from_json({**_settings(part), "seed": 9})
        )


def _settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "job.json").read_text())["settings"]
    return settings


# --- the terminal -----------------------------------------------------------------------------------------------------

HOSTILE = "\x1b]0;PWNED\x07\x1b[2J\nfailed other: DK000\u202e\x9b1A\x7f"


def is_tame(text: str) -> bool:
    return not any(one in text for one in "\x1b\x07\u202e\x9b\x7f\r")


def test_what_a_terminal_obeys_is_escaped() -> None:
    assert one_line(HOSTILE) == r"\x1b]0;PWNED\x07\x1b[2J\nfailed other: DK000\u202e\x9b1A\x7f"
    assert plain_lines("a\n\tb\x1b[0m \u2067c") == "a\n\tb\\x1b[0m \\u2067c"
    honest = "naïve 漢字 🙂 עברית العربية “quotes” — a\u200db"
    assert one_line(honest) == plain_lines(honest) == json_lines(honest) == honest
    text = json.dumps({"a": HOSTILE}, ensure_ascii=False, indent=2)
    assert is_tame(json_lines(text)) and json.loads(json_lines(text)) == json.loads(text)
    assert json_lines(text).count("\n") == text.count("\n")


def test_ids_and_errors_forge_no_line(tmp_path: Path, llm: FakeLLM) -> None:
    rows = [{"id": HOSTILE, "text": "DEAD"}, {"id": "b" + HOSTILE, "text": ""}]
    write_jsonl(tmp_path / "d.jsonl", rows)
    done = Result("extract", tmp_path / "d.jsonl", "-o", tmp_path / "out", *FIELDS)
    lines = [line for line in done.err.split("\n") if line.startswith("failed ")]
    assert is_tame(done.err) and len(lines) == 2 and not any(line.startswith("failed other") for line in lines)
    status = Result("status", tmp_path / "out")
    assert is_tame(status.out + status.err)
    answer = {"custom_id": "x" + HOSTILE, "response": None}
    (tmp_path / "answers.jsonl").write_text(json.dumps(answer) + "\n")
    taken = Result("import", tmp_path / "out", tmp_path / "answers.jsonl")
    assert is_tame(taken.err) and not any(line.startswith("failed other") for line in taken.err.split("\n"))
    assert {row["id"] for row in read_jsonl(tmp_path / "out" / "failed.jsonl")} == {row["id"] for row in rows}


def test_names_of_files_forge_no_line(tmp_path: Path, llm: FakeLLM) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("one")
    (docs / f"{HOSTILE.replace('/', '')}.csv").write_text("x")
    (docs / f"{HOSTILE.replace('/', '')}.txt").symlink_to("/etc/hostname")
    done = Result("extract", docs, "-o", tmp_path / "out", *FIELDS)
    assert done.code == console.DONE and is_tame(done.err) and "left out 1 file" in done.err
    assert not any(line.startswith("failed other") for line in done.err.split("\n"))


def test_lines_of_an_error_are_shown_to_belong_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    console.note(str(DecodekitError("a\nfailed b", at="c\nd", hint="e\n      f")))
    assert capsys.readouterr().err == "DK000 a\n    failed b\n  at  c\n    d\n  try e\n      f\n"


def test_texts_of_a_model_are_raw_in_a_pipe_and_tame_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console.print_text("a\x1b[2J\nb")
    assert capsys.readouterr().out == "a\x1b[2J\nb\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    console.print_text("a\x1b[2J\nb")
    console.print_json({"a": HOSTILE})
    told = capsys.readouterr().out
    assert told.startswith("a\\x1b[2J\nb\n") and is_tame(told)


# --- spreadsheets -----------------------------------------------------------------------------------------------------


def test_no_text_of_a_spreadsheet_is_a_formula(tmp_path: Path) -> None:
    import csv

    folder = tmp_path / "out"
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "=cmd|' /C calc'!A0", "text": "@SUM(1) two"}])
    run_job(folder, [path], FakeLLM())
    rows = read_jsonl(folder / "results.jsonl")
    rows[0]["value"] |= {"seed": -5, "-x": "-1", "=y": ["=1"], "z": "plain = text"}
    (folder / "results.jsonl").write_text(json.dumps(rows[0]) + "\n")
    plain, excel = write_tables(folder, ["csv", "excel"])
    heading, row = csv.reader(plain.read_text().splitlines())
    assert row[0] == "=cmd|' /C calc'!A0" and heading[-3:] == ["-x", "=y", "z"]  # as it is
    assert excel.name == "results.excel.csv" and excel.read_bytes().startswith(b"\xef\xbb\xbf")
    heading, row = csv.reader(excel.read_text("utf-8-sig").splitlines())
    assert heading == ["id", "first", "words", "seed", "'-x", "'=y", "z"]
    assert row == ["'=cmd|' /C calc'!A0", "'@SUM(1)", "2", "-5", "'-1", '["=1"]', "plain = text"]


def test_a_full_folder_of_links_cannot_be_written(tmp_path: Path) -> None:
    from decodekit.records.ledger import replace_file

    (tmp_path / "own").write_text("mine")
    (tmp_path / ".a.new").symlink_to(tmp_path / "own")
    with pytest.raises(OutputError, match="it is a link"):
        replace_file(tmp_path / "a", [b"theirs"])
    assert (tmp_path / "own").read_text() == "mine"
