"""Folders that were edited, damaged, taken away or cannot be written: a typed error or a note, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from decodekit.errors import JobError, OutputError
from decodekit.jobs.folder.file_names import FAILED, METRICS, RESULTS
from decodekit.jobs.folder.job_folder import JobFile
from decodekit.jobs.reports.job_report import write_report
from decodekit.jobs.reports.job_view import JobView
from decodekit.jobs.validation import OutputValidator
from decodekit.records.ledger import Ledger, replace_file
from tests.commands import Result
from tests.jobs.conftest import SmallDisk
from tests.jobs.fakes import BYTES, FakeLLM, make_settings, read_jsonl, row_set, run_job, write_jsonl
from tests.sizes import few

FIELDS = ("--schema", "first, words int, seed int")


@pytest.fixture
def job(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four documents done, one failed."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": name, "text": f"text {name}"} for name in "abcd"] + [{"id": "bad", "text": "CUT"}]
    write_jsonl(tmp_path / "d.jsonl", rows)
    assert Result("extract", "d.jsonl", "-o", "out", *FIELDS).code == console.SOME_FAILED
    llm.seen.clear()
    return tmp_path / "out"


Edit = Callable[[list[bytes]], list[bytes]]


def changed(**fields: Any) -> Edit:
    """The second line with other fields; None takes one away."""

    def edit(lines: list[bytes]) -> list[bytes]:
        number = min(1, len(lines) - 1)
        row = {**json.loads(lines[number]), **fields}
        row = {name: value for name, value in row.items() if value is not None}
        return [*lines[:number], json.dumps(row).encode() + b"\n", *lines[number + 1 :]]

    return edit


def second(line: bytes) -> Edit:
    return lambda lines: [lines[0], line, *lines[1:]]


DAMAGE: dict[str, tuple[str, Edit, int]] = {
    # name of the file, what happens to its lines, how many are damaged then
    "no document": (RESULTS, changed(document=None), 1),
    "no id": (RESULTS, changed(id=None), 1),
    "an id that is a list": (RESULTS, changed(id=["b"]), 1),
    "no value": (RESULTS, lambda lines: [*lines[:3], lines[3].replace(b'"value"', b'"valve"')], 1),
    "a number for a text": (RESULTS, changed(document=7), 1),
    "a boolean for a number": (RESULTS, changed(num_generated_tokens=True), 1),
    "no finish reason": (RESULTS, changed(finish_reason=None), 1),
    "a text that is none": (RESULTS, changed(text=3), 1),
    "an array": (RESULTS, second(b"[1]\n"), 1),
    "binary garbage": (RESULTS, second(b"\x00\xff\xfe{{{\n"), 1),
    "garbage at the beginning": (RESULTS, lambda lines: [b"\x80\x81\n", *lines], 1),
    "NaN": (RESULTS, second(b'{"id":"n","value":NaN}\n'), 1),
    "a number beyond all": (RESULTS, second(b'{"id":"n","value":1e999}\n'), 1),
    "a deep nest": (RESULTS, second(b'{"value":' + b"[" * 9999 + b"]" * 9999 + b"}\n"), 1),
    "an id twice": (RESULTS, lambda lines: [*lines, lines[0]], 1),
    "two halves of lines": (RESULTS, lambda lines: [lines[0], lines[1][:20] + b"\n", lines[2][20:], lines[3]], 2),
    "a key of another id": (RESULTS, changed(key=7), 1),
    "a key that is true": (RESULTS, changed(id="True", key=True), 1),
    "a torn end": (RESULTS, lambda lines: [*lines[:3], lines[3][:-9]], 0),
    "ends of Windows": (RESULTS, lambda lines: [line[:-1] + b"\r\n" for line in lines], 0),
    "blank lines": (RESULTS, second(b"\n  \n"), 0),
    "nothing at all": (RESULTS, lambda lines: [], 0),
    "no code": (FAILED, changed(code=None), 1),
    "attempts as a text": (FAILED, changed(attempts="1"), 1),
    "no attempts": (FAILED, changed(attempts=None), 1),
    "a hint that is a list": (FAILED, changed(hint=[]), 1),
    "metrics without seconds": (METRICS, changed(seconds=None), 1),
    "metrics of no document": (METRICS, changed(id=None), 1),
    "probabilities that are none": (METRICS, changed(probabilities=[1]), 1),
    "alternatives that are none": (METRICS, changed(alternatives={"/first": [1]}), 1),
    "a probability that is a text": (METRICS, changed(probabilities={"/first": "high"}), 1),
    "metrics of garbage": (METRICS, second(b"\xff\n"), 1),
}


@few(23)
@pytest.mark.parametrize("about", DAMAGE)
def test_damaged_lines_are_left_out_counted_and_done_again(job: Path, llm: FakeLLM, about: str) -> None:
    """`status` and `report` leave them out and say so; a run moves them away and does what they lack again."""
    name, edit, num_damaged = DAMAGE[about]
    calm = row_set(job / RESULTS)
    path = job / name
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    for verb in ("status", "report"):
        done = Result(verb, job)
        assert done.code == 0
        assert done.err.count("left out line") == bool(num_damaged)
        assert (f"of {name}" in done.err) == bool(num_damaged)
    assert json.loads(Result("status", job, "--json").out)["damaged"] == num_damaged
    assert path.read_bytes() == before  # whoever looks changes nothing
    done = Result("extract", "d.jsonl", "-o", "out", *FIELDS)
    assert done.code == console.SOME_FAILED
    assert ("moved" in done.err and "to damaged.jsonl" in done.err) == bool(num_damaged)
    assert row_set(job / RESULTS) >= calm
    moved = (job / "damaged.jsonl").read_bytes().splitlines() if num_damaged else []
    assert len(moved) == num_damaged and all(line in before for line in moved)
    figures = json.loads(Result("status", job, "--json").out)
    assert (figures["done"], figures["failed"], figures["left"], figures["damaged"]) == (4, 1, 0, 0)
    assert Result("retry", job).code == console.SOME_FAILED


@pytest.mark.parametrize("about", ["no document", "no code", "metrics of garbage"])
def test_retry_of_damaged_folders(job: Path, about: str) -> None:
    name, edit, _ = DAMAGE[about]
    (job / name).write_bytes(b"".join(edit((job / name).read_bytes().splitlines(keepends=True))))
    done = Result("retry", job)
    if about == "no code":  # there is nothing to run again then, as far as anybody knows
        assert done.code == console.DONE and "left out line 1 of failed.jsonl" in done.err
        assert Result("extract", "d.jsonl", "-o", "out", *FIELDS).code == console.SOME_FAILED
    else:
        assert done.code == console.SOME_FAILED and "moved 1 damaged line of" in done.err
    assert len(read_jsonl(job / FAILED)) == 1


def test_without_a_check_a_bad_line_stays_an_error(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_bytes(b'{"a":1}\noops\n{"a":2}\n')
    with pytest.raises(JobError):
        Ledger(tmp_path / "l.jsonl")


JOB_DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an array": lambda data: [data],
    "a text": lambda data: "job",
    "no settings": lambda data: {**data, "settings": None},
    "a setting that is missing": lambda data: {**data, "settings": {**data["settings"], "seed": None}},
    "a strategy that is a text": lambda data: {**data, "settings": {**data["settings"], "strategy": "greedy"}},
    "a strategy without a name": lambda data: {**data, "settings": {**data["settings"], "strategy": {}}},
    "a schema that is a text": lambda data: {**data, "settings": {**data["settings"], "schema": "x"}},
    "inputs that are texts": lambda data: {**data, "inputs": ["d.jsonl"]},
    "an input with a number": lambda data: {**data, "inputs": [{**data["inputs"][0], "path": 3}]},
    "an input of another version": lambda data: {**data, "inputs": [{**data["inputs"][0], "new": "x"}]},
    "an input in no encoding": lambda data: {**data, "inputs": [{**data["inputs"][0], "encoding": "klingon"}]},
    "patterns of numbers": lambda data: {**data, "inputs": [{**data["inputs"][0], "include": [3]}]},
    "a number of documents as a text": lambda data: {**data, "runs": [{**data["runs"][0], "num_documents": "5"}]},
    "runs that are an object": lambda data: {**data, "runs": {"a": 1}},
    "runs that are numbers": lambda data: {**data, "runs": [1]},
    "a run without a start": lambda data: {**data, "runs": [{}]},
    "a run with a shard of texts": lambda data: {**data, "runs": [{**data["runs"][0], "shard": ["1", "2"]}]},
    "a run with an outcome of no text": lambda data: {**data, "runs": [{**data["runs"][0], "outcome": 3}]},
    "earlier settings of texts": lambda data: {**data, "earlier": {"a": "x"}},
    "another format": lambda data: {**data, "format": 99},
}


@few(3)
@pytest.mark.parametrize("about", JOB_DAMAGE)
def test_a_damaged_job_file_is_a_typed_error(job: Path, about: str) -> None:
    data = json.loads((job / "job.json").read_text())
    (job / "job.json").write_text(json.dumps(JOB_DAMAGE[about](data)))
    for command in (("status", job), ("report", job), ("retry", job), ("extract", "d.jsonl", "-o", "out", *FIELDS)):
        done = Result(*command)
        assert done.code == console.USAGE, command
        assert "DK500" in done.err and "job.json" in done.err
    assert Result("extract", "d.jsonl", "-o", "out", *FIELDS, "--fresh").code == console.SOME_FAILED


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}', b"null"])
def test_a_job_file_of_garbage_is_a_typed_error(job: Path, data: bytes) -> None:
    (job / "job.json").write_bytes(data)
    for verb in ("status", "report", "retry"):
        assert Result(verb, job).code == console.USAGE
    (job / "job.json").unlink()
    done = Result("extract", "d.jsonl", "-o", "out", *FIELDS)
    assert done.code == console.USAGE and "but no job.json" in done.err


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_a_report_that_cannot_be_written(job: Path, small_disk: SmallDisk) -> None:
    for output, said in [
        ("/proc/r.html", "cannot be written"),
        (job, "is a folder"),
        (".", "is a folder"),
        ("/", "is a folder"),
        ("nowhere/r.html", "No such file"),
        (job / "job.json" / "r.html", "Not a directory"),
    ]:
        done = Result("report", job, "-o", output)
        assert done.code in (console.CRASH, console.USAGE) and said in done.err, (output, done.err)
    done = Result("report", job, "-o", "")
    assert done.code == console.USAGE and "the empty text is no path" in done.err
    shutil.copytree(job, small_disk.path / "out")
    small_disk.remount("ro")
    for command in (("report", small_disk.path / "out"), ("report", job, "-o", small_disk.path / "r.html")):
        done = Result(*command)
        assert done.code == console.CRASH and "Read-only file system" in done.err
    assert Result("status", small_disk.path / "out").code == 0
    done = Result("extract", "d.jsonl", "-o", small_disk.path / "out", *FIELDS)
    assert done.code == console.CRASH and "DK503" in done.err


def test_a_report_on_a_full_disk(job: Path, small_disk: SmallDisk) -> None:
    (small_disk.path / "filler").write_bytes(b"x" * 60_000)
    done = Result("report", job, "-o", small_disk.path / "r.html")
    assert done.code == console.CRASH and "no space left" in done.err
    assert [path.name for path in small_disk.path.iterdir()] == ["filler"]


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    for path in (Path(), Path("/"), Path("..")):
        with pytest.raises(OutputError, match="is a folder, not a file"):
            replace_file(path, [b"x"])


def test_a_job_folder_that_is_a_file(tmp_path: Path, job: Path) -> None:
    (tmp_path / "file").write_text("x")
    for verb in ("status", "report", "retry"):
        done = Result(verb, tmp_path / "file")
        assert done.code == console.USAGE and "is not a job folder: it is a file" in done.err
        done = Result(verb, tmp_path / "nowhere")
        assert done.code == console.USAGE and "is not a job folder: there is nothing" in done.err
    done = Result("extract", "d.jsonl", "-o", "file", *FIELDS)
    assert done.code == console.CRASH and "File exists" in done.err


def test_a_folder_that_cannot_be_had_is_told_before_the_model_is_loaded(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from decodekit.records.run_folder import lock_folder

    def never(*arguments: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(extract_module, "load_model", never)
    extract = ("extract", "d.jsonl", *FIELDS, "-o")
    with lock_folder(job):
        for command in ((*extract, job), ("retry", job)):
            done = Result(*command)
            assert done.code == console.USAGE and "another run works in" in done.err
    (tmp_path / "file").write_text("x")
    assert Result(*extract, tmp_path / "file").code == console.CRASH


@pytest.mark.parametrize("what", ["folder", "file", "other file"])
def test_a_folder_that_is_taken_away_during_the_job(
    tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The next sync notices, so that nobody waits hours for results that go to a file without a name."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "d.jsonl", [{"id": str(n), "text": "x"} for n in range(300)])
    whole = llm.as_completed

    def disturbed(*arguments: Any, **options: Any) -> Any:
        for count, item in enumerate(whole(*arguments, **options)):
            if count == 100:
                shutil.rmtree("out") if what == "folder" else (tmp_path / "out" / RESULTS).unlink()
                if what == "other file":
                    (tmp_path / "out" / RESULTS).write_text("")
            yield item

    monkeypatch.setattr(llm, "as_completed", disturbed)
    monkeypatch.setattr("decodekit.records.ledger._SYNC_SHARE", 0)
    original = Ledger.__init__

    def eager(self: Ledger, path: Path, **options: Any) -> None:
        original(self, path, **{**options, "sync_interval_s": 0.0})

    monkeypatch.setattr(Ledger, "__init__", eager)
    done = Result("extract", "d.jsonl", "-o", "out", *FIELDS, "--batch-size", "1")
    assert done.code == console.CRASH and "DK503" in done.err
    assert len(llm.seen) < 150


def test_a_disk_that_fails_altogether(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write fails, and so does cutting the half of a line off again."""
    log = Ledger(tmp_path / "l.jsonl")
    log.append({"a": 1})

    def fail(*arguments: Any) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("decodekit.records.ledger._write", fail)
        patch.setattr("decodekit.records.ledger.os.ftruncate", fail)
        with pytest.raises(OutputError, match="Input/output error"):
            log.append({"a": 2})
    log.close()


def test_a_file_system_without_locks_is_not_taken_for_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    from decodekit.records.run_folder import lock_folder

    def fail(*arguments: Any) -> None:
        raise OSError(38, "Function not implemented")

    with lock_folder(tmp_path / "a"), pytest.raises(JobError, match="another run works in"):
        lock_folder(tmp_path / "a")
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OutputError, match="Function not implemented"):
        lock_folder(tmp_path / "b")


def test_a_folder_behind_a_url_is_refused_and_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from decodekit.records.run_folder import check_free, lock_folder

    monkeypatch.chdir(tmp_path)
    for act in (check_free, lock_folder):
        with pytest.raises(JobError, match="s3://bucket/job is a URL"):
            act(Path("s3://bucket/job"))
    assert not any(tmp_path.iterdir())
    check_free(Path("a:b"))  # a name with a colon is one


# --- deep values ------------------------------------------------------------------------------------------------------


def test_deep_values_are_done_and_shown_as_far_as_that_goes(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(700):
        deep = [deep]
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "x"}])
    run_job(tmp_path / "out", [path], FakeLLM(), settings=make_settings(), vocabulary=BYTES)
    (row,) = read_jsonl(tmp_path / "out" / RESULTS)
    (tmp_path / "out" / RESULTS).write_text(json.dumps({**row, "value": deep}) + "\n")
    write_report(tmp_path / "r.html", [JobView.read(tmp_path / "out")], title="x")
    page = (tmp_path / "r.html").read_text()
    assert "nested too deeply to be shown" in page or page.count("[\n") >= 700  # Python 3.14 goes deeper
    recursive = {"type": "array", "items": {"$ref": "#"}}
    with pytest.raises(Exception, match="too deeply"):
        OutputValidator(recursive).value("[" * 700 + "]" * 700)
    assert JobFile.read(tmp_path / "out").settings == make_settings()
