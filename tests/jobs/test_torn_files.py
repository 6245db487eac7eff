"""The files of a job agree by id, whichever of them has lost its end; retries leave the settings of the job alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import decodekit as dk
from decodekit.cli.parts import console
from decodekit.jobs.folder.file_names import FAILED, METRICS, RESULTS, is_own
from decodekit.jobs.folder.job_folder import JobFile
from tests.commands import Result
from tests.jobs.fakes import SCHEMA, FakeLLM, read_jsonl, row_set, run_job, write_jsonl
from tests.sizes import few, sized

FIELDS = ("--schema", "first, words int, seed int")


@sized("stride", 23, slow=1)
@pytest.mark.parametrize("name", [RESULTS, FAILED, METRICS])
def test_files_agree_after_any_tear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stride: int) -> None:
    """A cut at every byte of the last two lines of each file, then the same run again, beside the run without a cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a cut is made by hand here
    texts = {"a": "x", "b": "x y", "c": "CUT", "d": "DEAD", "e": "z"}
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": one, "text": text} for one, text in texts.items()])
    calm, out = tmp_path / "calm", tmp_path / "out"
    run_job(calm, [path], FakeLLM())
    whole = (calm / name).read_bytes()
    begin = whole[:-1].rfind(b"\n", 0, whole[:-1].rfind(b"\n")) + 1
    assert whole[begin:].count(b"\n") == 2
    for end in range(begin, len(whole), stride):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(calm, out)
        (out / name).write_bytes(whole[:end])
        run_job(out, [path], FakeLLM())
        for one in (RESULTS, FAILED):
            assert row_set(out / one) == row_set(calm / one), end
        ids = {one: sorted(row["id"] for row in read_jsonl(out / one)) for one in (RESULTS, METRICS, FAILED)}
        assert ids == {RESULTS: ["a", "b", "e"], METRICS: ["a", "b", "e"], FAILED: ["c", "d"]}, end


def test_a_document_that_has_changed_has_one_line_of_metrics(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}])
    run_job(tmp_path / "out", [path], FakeLLM())
    for text in ("another", "CUT"):  # done again, then failed
        write_jsonl(path, [{"id": "a", "text": text}, {"id": "b", "text": "two"}])
        run_job(tmp_path / "out", [path], FakeLLM())
        done = sorted(row["id"] for row in read_jsonl(tmp_path / "out" / RESULTS))
        assert sorted(row["id"] for row in read_jsonl(tmp_path / "out" / METRICS)) == done
    assert done == ["b"]


def test_lost_metrics_have_no_time(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "one"}])
    arguments = ("extract", "d.jsonl", "-o", "out", *FIELDS)
    assert Result(*arguments).code == console.DONE
    (tmp_path / "out" / METRICS).unlink()
    assert Result(*arguments).code == console.DONE and len(llm.seen) == 1  # nothing is done twice for it
    assert [row["seconds"] for row in read_jsonl(tmp_path / "out" / METRICS)] == [None]
    assert Result("merge", "out", "-o", "whole").code == console.DONE
    assert [row["seconds"] for row in read_jsonl(tmp_path / "whole" / METRICS)] == [None]
    assert "Time per document" not in (tmp_path / "whole" / "report.html").read_text()


def test_a_retry_keeps_the_settings_of_the_job(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": "a", "text": "one"}, {"id": "b", "text": "CUT"}]
    write_jsonl(tmp_path / "d.jsonl", rows)
    arguments = ("extract", "d.jsonl", "-o", "out", *FIELDS, "--max-new-tokens", "80", "--shard", "1/1")
    assert Result(*arguments).code == console.SOME_FAILED
    before = JobFile.read(tmp_path / "out").settings
    write_jsonl(tmp_path / "d.jsonl", [rows[0], {"id": "b", "text": "two"}])
    assert Result("retry", "out", "--max-new-tokens", "150", "--seed", "7").code == console.DONE
    job = JobFile.read(tmp_path / "out")
    ((name, other),) = job.earlier.items()
    assert job.settings == before and (other.max_new_tokens, other.seed) == (150, 7)
    assert job.selection["shard"] == [1, 1]  # a retry selects nothing
    write_jsonl(tmp_path / "d.jsonl", [rows[0], {"id": "b", "text": "two"}, {"id": "c", "text": "three"}])
    done = Result(*arguments)
    assert done.code == console.DONE, done.err
    found = {row["id"]: row["settings"] for row in read_jsonl(tmp_path / "out" / RESULTS)}
    assert found == {"a": before.fingerprint, "b": name, "c": before.fingerprint}
    assert Result("merge", "out", "-o", "whole").code == console.DONE
    assert JobFile.read(tmp_path / "whole").earlier == {name: other}  # the rows name settings that are there
    assert Result(*arguments, "--seed", "3").code == console.USAGE  # as before


# --- the job's own files among the inputs -----------------------------------------------------------------------------


@few(3)
@pytest.mark.parametrize("inputs", [["s"], ["."], ["glob"], ["s/1.txt", "glob"]], ids=str)
@pytest.mark.parametrize("output", ["s", "s/out"])
def test_the_output_may_be_the_folder_of_the_documents(
    tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, inputs: list[str], output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").mkdir()
    for name in ("1.txt", "2.md"):
        (tmp_path / "s" / name).write_text(f"text of {name}")
    for number in range(3):
        here = [
            f"s/{path.name}" for path in sorted(Path("s").iterdir()) if path.name != ".lock"
        ]  # as the shell gives them
        named = [one for given in inputs for one in (here if given == "glob" else [given])]
        done = Result("extract", *named, "-o", output, *FIELDS, "--output-format", "csv")
        assert done.code == console.DONE, done.err
        (tmp_path / "s" / f"new-{number}.txt").write_text(f"new {number}")
    assert sorted(map(str.strip, llm.seen)) == ["new 0", "new 1", "text of 1.txt", "text of 2.md"]
    assert sum(map(is_own, os.listdir(output))) == 6
    figures = json.loads(Result("status", output, "--json").out)
    assert (figures["done"], figures["left"]) == (4, 0 if "glob" in inputs else 1)
    assert all((tmp_path / "s" / name).exists() for name in ("1.txt", "2.md", "new-2.txt"))


def test_the_same_folder_from_python(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("one")
    for number in (1, 2, 3):
        llm = FakeLLM()
        rows = dk.extract(tmp_path, SCHEMA, llm, folder=tmp_path, prompt="{text}")  # type: ignore[arg-type]
        assert len(rows) == number and len(llm.seen) == 1
        (tmp_path / f"new-{number}.txt").write_text("two")


def test_documents_that_the_job_would_overwrite_are_refused(
    tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "report.html").write_text("<p>mine")
    write_jsonl(tmp_path / "s" / "results.jsonl", [{"id": "a", "text": "mine"}])
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    for named in ("s", "s/report.html", "s/results.jsonl", "."):
        for more in ((), ("--fresh",)):
            done = Result("extract", named, "-o", "s", *FIELDS, *more)
            assert done.code == console.USAGE and "the job would write its own" in done.err, done.err
    (tmp_path / "a.txt").write_text("x")
    done = Result("extract", "a.txt", "-o", "s", *FIELDS)
    assert done.code == console.USAGE and "but no job.json" in done.err  # what is not an input is kept as well
    assert {name: (tmp_path / "s" / name).read_bytes() for name in before} == before and llm.seen == []
    # The results of one job are the documents of another.
    assert Result("extract", "s/results.jsonl", "-o", "out", *FIELDS).code == console.DONE
    done = Result("extract", "out/results.jsonl", "-o", "out", *FIELDS)
    assert done.code == console.USAGE and "is what a job has written" in done.err
