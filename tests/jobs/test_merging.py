"""The parts of a job, put together, are the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decodekit.cli.parts import console
from tests.commands import Result
from tests.jobs.fakes import FakeLLM, read_jsonl, row_set, words, write_jsonl

FIELDS = ("--schema", "first, words int, seed int")


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"doc-{n}", "text": words(n) + (" CUT" if n % 10 == 0 else "")} for n in range(60)]
    return write_jsonl(tmp_path / "d.jsonl", rows)


def extract(documents: Path, out: str, *options: str) -> int:
    return Result("extract", documents, "-o", out, *FIELDS, *options).code


def test_parts_together_are_the_whole(tmp_path: Path, documents: Path) -> None:
    extract(documents, "whole")
    for number in (1, 2, 3):
        extract(documents, f"part-{number}", "--shard", f"{number}/3")
    for parts, num_done in ((("part-1", "part-2"), None), (("part-1", "part-2", "part-3"), 54)):
        done = Result("merge", *parts, "-o", "merged")  # the second merge adds the third part
        assert done.code == console.SOME_FAILED, done.err
        assert num_done is None or f"{num_done} done and 6 failed" in done.err
    for name in ("results.jsonl", "failed.jsonl"):
        assert row_set(tmp_path / "merged" / name) == row_set(tmp_path / "whole" / name)
        assert len(read_jsonl(tmp_path / "merged" / name)) == len(read_jsonl(tmp_path / "whole" / name))
    status = json.loads(Result("status", "merged", "--json").out)
    assert (status["done"], status["failed"], status["left"]) == (54, 6, 0)
    rows = [{**row, "text": row["text"].replace(" CUT", "")} for row in read_jsonl(documents)]
    write_jsonl(documents, rows)
    assert Result("retry", "merged").code == console.DONE
    assert len(read_jsonl(tmp_path / "merged" / "results.jsonl")) == 60


def test_a_merge_says_what_is_missing(tmp_path: Path, documents: Path) -> None:
    sizes = []
    for number in (1, 2, 3):
        extract(documents, f"part-{number}", "--shard", f"{number}/3")
        sizes.append(json.loads(Result("status", f"part-{number}", "--json").out))
    for part in sizes:
        assert part["missing_shards"] == "" and part["left"] == 0
    num_missing = sizes[1]["done"] + sizes[1]["failed"]
    done = Result("merge", "part-1", "part-3", "-o", "merged")
    assert f"missing: {num_missing} documents: nobody has brought the shards 2/3" in done.err
    for is_there in (True, False):  # also where the inputs are on another machine
        if not is_there:
            documents.rename(tmp_path / "elsewhere")
        status = json.loads(Result("status", "merged", "--json").out)
        assert (status["left"], status["missing_shards"]) == (num_missing, "2/3")
        shown = Result("status", "merged").out
        assert "missing shards" in shown and "2/3" in shown
    done = Result("merge", "part-1", "part-2", "part-3", "-o", "merged")
    assert "missing" not in done.err
    assert json.loads(Result("status", "merged", "--json").out)["left"] == 0


def test_missing_shards_of_many(tmp_path: Path, documents: Path) -> None:
    extract(documents, "part", "--shard", "1/1000000000000")
    done = Result("merge", "part", "-o", "merged")
    assert "the shards 2/1000000000000, 3/1000000000000, " in done.err and "and 999,999,999,991 more" in done.err
    extract(documents, "part", "--limit", "3")  # how many there would be is not known then
    assert "missing" not in Result("merge", "part", "-o", "limited").err


def test_standard_input_comes_along(tmp_path: Path, documents: Path) -> None:
    assert Result("extract", "-", "-o", "piped", *FIELDS, stdin="one two\n").code == console.DONE
    assert Result("merge", "piped", "-o", "merged").code == console.DONE
    for path in (tmp_path / "piped").iterdir():
        path.unlink()
    assert Result("report", "merged").code == console.DONE
    assert "no longer where" not in (tmp_path / "merged" / "report.html").read_text()


def test_folders_that_do_not_belong_together(tmp_path: Path, documents: Path) -> None:
    extract(documents, "a")
    extract(documents, "b", "--seed", "1")
    done = Result("merge", "a", "b", "-o", "merged")
    assert done.code == console.USAGE and "DK501" in done.err and "seed was 0, now 1" in done.err
    write_jsonl(documents, [{"id": "doc-1", "text": "another text"}])
    extract(documents, "c")
    done = Result("merge", "a", "c", "-o", "merged")
    assert done.code == console.USAGE and "results of 'doc-1' for different texts" in done.err
    done = Result("merge", "a", "nowhere", "-o", "merged")
    assert done.code == console.USAGE and "is not a job folder" in done.err
    done = Result("merge", "a", "-o", "./a")
    assert done.code == console.USAGE and "is one of the folders" in done.err
    assert not (tmp_path / "merged").exists()
