from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit.constraints.json_schema.document.pointers import pointer as pointer_of_what_is_open
from decodekit.errors import DecodekitError, InvalidOutputError, JobError, JobSettingsError, OutputError
from decodekit.jobs.documents.documents import document_seed, scan
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.folder.job_folder import JobFile, JobFolder, read_failures
from decodekit.jobs.validation import OutputValidator
from decodekit.llm import LLM
from decodekit.records import ledger
from decodekit.testing.toy import ToyCache, ToyLM, ToyTokenizer
from tests.jobs.conftest import SmallDisk
from tests.jobs.fakes import (
    SCHEMA,
    FakeLLM,
    expected_value,
    make_settings,
    read_jsonl,
    row_set,
    run_job,
    words,
    write_jsonl,
)

JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
RESULTS, FAILED = "results.jsonl", "failed.jsonl"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "d.jsonl", [{"id": f"doc-{n}", "text": words(n)} for n in range(200)])


def test_every_document_is_done_once_and_every_output_is_valid(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": f"doc-{n}", "text": words(n)} for n in range(1000)])
    summary = run_job(tmp_path / "out", [path], FakeLLM())
    assert (summary.num_done, summary.num_failed, summary.num_before) == (1000, 0, 0)
    rows = read_jsonl(tmp_path / "out" / RESULTS)
    assert sorted(row["id"] for row in rows) == sorted(f"doc-{n}" for n in range(1000))
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for row in rows:
        validator.validate(row["value"])
        assert row["value"] == expected_value(words(int(row["id"][4:])), document_seed(0, row["id"]))
    assert read_jsonl(tmp_path / "out" / FAILED) == []


def test_results_depend_on_neither_order_nor_batch_nor_shards(tmp_path: Path, documents: Path) -> None:
    run_job(tmp_path / "a", [documents], FakeLLM(), batch_size=1)
    other = write_jsonl(tmp_path / "o.jsonl", read_jsonl(documents)[::-1])
    for number in (3, 1, 2):
        run_job(tmp_path / "b", [other], FakeLLM(), batch_size=5, shard=(number, 3))
    assert row_set(tmp_path / "a" / RESULTS) == row_set(tmp_path / "b" / RESULTS)
    assert len(read_jsonl(tmp_path / "b" / RESULTS)) == 200
    run_job(tmp_path / "c", [documents], FakeLLM(), settings=make_settings(seed=1))
    values = [sorted(json.dumps(row["value"]) for row in read_jsonl(tmp_path / name / RESULTS)) for name in "ac"]
    assert values[0] != values[1]  # the seed arrives


def test_a_finished_job_does_nothing_more(tmp_path: Path, documents: Path) -> None:
    run_job(tmp_path / "out", [documents], FakeLLM())
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    llm = FakeLLM()
    summary = run_job(tmp_path / "out", [documents], llm)
    assert llm.seen == []
    assert (summary.num_before, summary.num_done, summary.num_failed) == (200, 0, 0)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}


def test_a_limit_takes_the_first_documents_and_is_idempotent(tmp_path: Path, documents: Path) -> None:
    for _ in range(2):
        run_job(tmp_path / "out", [documents], FakeLLM(), limit=7)
    assert {row["id"] for row in read_jsonl(tmp_path / "out" / RESULTS)} == {f"doc-{n}" for n in range(7)}
    llm = FakeLLM()
    run_job(tmp_path / "out", [documents], llm, limit=10)
    assert len(llm.seen) == 3


BAD = {
    "cut": ("a CUT b", "DK101", "length"),
    "dead": ("a DEAD b", "DK601", "dead_end"),
    "wrong": ("a WRONG b", "DK504", "stop"),
    "garbled": ("a GARBLED b", "DK504", "stop"),
    "empty": (" ", "DK502", None),
}


def test_bad_documents_fail_with_their_reasons_and_the_others_go_on(tmp_path: Path) -> None:
    rows = [{"id": f"doc-{n}", "text": words(n)} for n in range(20)]
    rows[5:5] = [{"id": name, "text": text} for name, (text, _, _) in BAD.items()]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    with path.open("ab") as file:
        file.write(b'{"id": "latin", "text": "caf\xe9"}\n')
    summary = run_job(tmp_path / "out", [path], FakeLLM())
    assert summary.num_done == 20
    assert summary.failures == {"DK101": 1, "DK601": 1, "DK504": 2, "DK502": 2}
    failures = {row["id"]: row for row in read_jsonl(tmp_path / "out" / FAILED)}
    assert failures.keys() == {*BAD, f"{path}:26"}
    for name, (_, code, reason) in BAD.items():
        row = failures[name]
        assert (row["code"], row["finish_reason"], row["attempts"]) == (code, reason, 1)
        assert row["message"]
        assert "prompt 3" not in json.dumps(row)  # a number that would differ from run to run
    assert failures["cut"]["text"] == '{"first":'
    assert failures["cut"]["at"] == 'inside "/first"'
    assert failures["wrong"]["at"] == "#/words"
    llm = FakeLLM()
    again = run_job(tmp_path / "out", [path], llm)  # resuming leaves failures alone
    assert (llm.seen, again.num_before) == ([], 26)


def test_on_length_return_keeps_the_text_as_far_as_it_came(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "a CUT b"}, {"id": "b", "text": "fine"}])
    run_job(tmp_path / "out", [path], FakeLLM(), settings=make_settings(on_length="return"))
    rows = {row["id"]: row for row in read_jsonl(tmp_path / "out" / RESULTS)}
    assert (rows["a"]["value"], rows["a"]["text"], rows["a"]["finish_reason"]) == (None, '{"first":', "length")
    assert "text" not in rows["b"]


def test_retry_moves_what_succeeds_and_counts_attempts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write_jsonl(
        tmp_path / "d.jsonl", [{"id": n, "text": t} for n, t in [("a", "x"), ("b", "CUT"), ("c", "DEAD")]]
    )
    run_job(out, [path], FakeLLM())
    write_jsonl(path, [{"id": n, "text": t} for n, t in [("a", "x"), ("b", "mended"), ("c", "DEAD")]])
    llm = FakeLLM()
    summary = run_job(out, [path], llm, retries=True)
    assert sorted(llm.seen) == ["DEAD\n", "mended\n"]
    assert (summary.num_done, summary.num_failed) == (1, 1)
    assert [row["id"] for row in read_jsonl(out / RESULTS)] == ["a", "b"]
    assert [(row["id"], row["attempts"]) for row in read_jsonl(out / FAILED)] == [("c", 2)]


def test_a_document_that_changed_is_done_again(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "old"}, {"id": "b", "text": "CUT"}])
    run_job(tmp_path / "out", [path], FakeLLM())
    write_jsonl(path, [{"id": "a", "text": "new text"}, {"id": "b", "text": "mended"}])
    summary = run_job(tmp_path / "out", [path], FakeLLM())
    assert summary.num_changed == 1
    assert sorted((row["id"], row["value"]["first"]) for row in read_jsonl(tmp_path / "out" / RESULTS)) == [
        ("a", "new"),
        ("b", "mended"),
    ]
    assert read_jsonl(tmp_path / "out" / FAILED) == []


def test_too_many_failures_stop_the_job_and_it_can_go_on(tmp_path: Path) -> None:
    rows = [{"id": f"doc-{n}", "text": words(n) + (" CUT" if n % 2 else "")} for n in range(100)]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    summary = run_job(tmp_path / "out", [path], FakeLLM(), batch_size=4, max_failures=5)
    assert summary.is_stopped
    assert 5 <= summary.num_failed <= 5 + 4  # those in flight are still written down
    assert JobFile.read(tmp_path / "out").runs[-1]["outcome"] == "too many failures"
    summary = run_job(tmp_path / "out", [path], FakeLLM(), batch_size=4)
    assert not summary.is_stopped
    assert len(read_jsonl(tmp_path / "out" / RESULTS)) == len(read_jsonl(tmp_path / "out" / FAILED)) == 50


class Narrow(ToyLM):
    """A model that has memory for so many rows of a pass, for so many tokens of a row, and for caches of that size."""

    def __init__(self, num_rows: int = 10**9, num_tokens: int = 10**9) -> None:
        super().__init__()
        self.room = num_rows, num_tokens
        self.widths: list[int] = []

    def forward(self, tokens: Tensor, num_tokens: Any, cache: Any, rows: Any = None, **options: Any) -> Tensor:
        rows = range(cache.num_rows) if rows is None else rows
        longest = max(len(cache.tokens[row]) + count for row, count in zip(rows, num_tokens, strict=True))
        if len(rows) > self.room[0] or longest > self.room[1]:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.widths.append(len(rows))
        return super().forward(tokens, num_tokens, cache, rows, **options)


SHORT = make_settings(
    schema={
        "type": "object",
        "properties": {"a": {"enum": ["abc", "ab cd"]}, "b": {"type": "string", "maxLength": 9}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_documents_wait_where_memory_runs_out(tmp_path: Path, num_rows: int) -> None:
    """The same values whatever there is room for; a model that never has room fails them all, and nothing is lost."""
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": str(n), "text": words(n)} for n in range(12)])
    calm, narrow = Narrow(), Narrow(num_rows)
    for name, model in (("calm", calm), ("out", narrow)):
        run_job(tmp_path / name, [path], LLM(model, ToyTokenizer()), settings=SHORT, batch_size=8)
    assert max(calm.widths) == 8 and max(narrow.widths) == num_rows
    assert row_set(tmp_path / "out" / RESULTS) == row_set(tmp_path / "calm" / RESULTS)
    assert len(read_jsonl(tmp_path / "out" / RESULTS)) == 12 and not read_jsonl(tmp_path / "out" / FAILED)
    run_job(tmp_path / "none", [path], LLM(Narrow(0), ToyTokenizer()), settings=SHORT, batch_size=8)
    assert sorted(row["id"] for row in read_jsonl(tmp_path / "none" / FAILED)) == sorted(map(str, range(12)))


@pytest.mark.parametrize("where", ["pass", "cache"])
def test_a_document_too_large_for_memory_alone_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whether the pass that reads it finds no room, or the cache that is made for it."""
    huge = 0 if where == "cache" else 4
    rows = [{"id": str(n), "text": "HUGE" * 200 if n == huge else words(n)} for n in range(9)]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    model = Narrow(num_tokens=400 if where == "pass" else 10**9)

    def new_cache(num_rows: int, capacity: int) -> ToyCache:
        if capacity > 600:
            raise MemoryError
        return ToyCache(num_rows, capacity)

    if where == "cache":
        monkeypatch.setattr(model, "new_cache", new_cache)
    run_job(tmp_path / "out", [path], LLM(model, ToyTokenizer()), settings=SHORT, batch_size=4)
    run_job(tmp_path / "calm", [path], LLM(ToyLM(), ToyTokenizer()), settings=SHORT, batch_size=1)
    failed = [(row["id"], row["code"]) for row in read_jsonl(tmp_path / "out" / FAILED)]
    assert failed == [(str(huge), "DK603" if where == "pass" else "DK309")]
    others = {line for line in row_set(tmp_path / "calm" / RESULTS) if json.loads(line)["id"] != str(huge)}
    assert row_set(tmp_path / "out" / RESULTS) == others and len(others) == 8


# --- settings, lock, disk ---------------------------------------------------------------------------------------------


def test_other_settings_are_refused_and_named(tmp_path: Path, documents: Path) -> None:
    out = tmp_path / "out"
    run_job(out, [documents], FakeLLM(), limit=3)
    changed = make_settings(schema=SCHEMA | {"title": "T"}, seed=5)
    before = row_set(out / RESULTS)
    with pytest.raises(JobSettingsError) as caught:
        run_job(out, [documents], FakeLLM(), settings=changed)
    assert caught.value.code == "DK501"
    assert "schema was #" in str(caught.value) and "seed was 0, now 5" in str(caught.value)
    assert make_settings().fingerprint in str(caught.value) and changed.fingerprint in str(caught.value)
    assert row_set(out / RESULTS) == before


def test_force_goes_on_and_every_row_names_its_settings(tmp_path: Path, documents: Path) -> None:
    out = tmp_path / "out"
    old, new = make_settings(), make_settings(seed=5)
    run_job(out, [documents], FakeLLM(), limit=3)
    run_job(out, [documents], FakeLLM(), settings=new, force=True, limit=5)
    assert [row["settings"] for row in read_jsonl(out / RESULTS)].count(old.fingerprint) == 3
    assert [row["settings"] for row in read_jsonl(out / RESULTS)].count(new.fingerprint) == 2
    job = JobFile.read(out)
    assert (job.settings, job.earlier) == (new, {old.fingerprint: old})


def test_fresh_deletes_the_old_job_and_nothing_else(tmp_path: Path, documents: Path) -> None:
    out = tmp_path / "out"
    run_job(out, [documents], FakeLLM(), limit=3)
    (out / "mine.txt").write_text("x")
    (out / "input-data.txt").write_text("x")
    (out / "input-0123abcd.txt").write_text("x")
    run_job(out, [documents], FakeLLM(), settings=make_settings(seed=5), fresh=True, limit=2)
    assert len(read_jsonl(out / RESULTS)) == 2
    assert JobFile.read(out).earlier == {}
    assert sorted(path.name for path in out.glob("*.txt")) == ["input-data.txt", "mine.txt"]


def test_a_moved_folder_or_model_is_still_the_same_job() -> None:
    assert make_settings(model="/elsewhere/fake", schema_source="x.json").fingerprint == make_settings().fingerprint
    for name, value in {"weights": "f", "dtype": "b", "tokenizer": "f", "prompt": "x{text}", "is_chat": True}.items():
        assert make_settings(**{name: value}).fingerprint != make_settings().fingerprint, name


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    job, _ = JobFolder.create_or_resume(tmp_path / "out", make_settings())
    with job, pytest.raises(JobError) as caught:
        JobFolder.create_or_resume(tmp_path / "out", make_settings())
    assert f"process {os.getpid()}" in str(caught.value)
    JobFolder.create_or_resume(tmp_path / "out", make_settings())[0].close()


@pytest.mark.parametrize(
    ("content", "cause"),
    [(None, "not a job folder"), ("{", "cannot be read"), ("{}", "not written by"), ('{"format": 99}', "format 99")],
)
def test_a_folder_that_is_no_job_is_named(tmp_path: Path, content: str | None, cause: str) -> None:
    if content is not None:
        (tmp_path / "job.json").write_text(content)
    with pytest.raises(JobError, match=cause):
        JobFile.read(tmp_path)


def test_results_without_a_job_are_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text('{"id": "x"}\n')
    with pytest.raises(JobError, match=r"holds results\.jsonl but no job\.json"):
        JobFolder.create_or_resume(tmp_path, make_settings())
    assert (tmp_path / RESULTS).read_text() == '{"id": "x"}\n'


def test_an_output_that_cannot_be_a_folder_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/decodekit")):
        with pytest.raises(OutputError) as caught:
            JobFolder.create_or_resume(path, make_settings())
        assert caught.value.code == "DK503"


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path, documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    run_job(tmp_path / "calm", [documents], FakeLLM())
    room = 9000

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        size = min(room, len(data))
        room -= size
        return os.write(descriptor, data[:size])

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write", write)
        with pytest.raises(OutputError, match="no space left"):
            run_job(out, [documents], FakeLLM())
    num_written = len(read_jsonl(out / RESULTS))
    assert 0 < num_written < 200
    llm = FakeLLM()
    run_job(out, [documents], llm)
    assert len(llm.seen) == 200 - num_written
    assert row_set(out / RESULTS) == row_set(tmp_path / "calm" / RESULTS)
    assert len(read_jsonl(out / RESULTS)) == 200


def test_a_disk_that_is_really_full_and_gets_room_again(tmp_path: Path, small_disk: SmallDisk, documents: Path) -> None:
    run_job(tmp_path / "calm", [documents], FakeLLM())
    out = small_disk.path / "out"
    filler = small_disk.path / "filler"
    filler.write_bytes(b"x" * 36_000)
    with pytest.raises(OutputError, match="no space left"):
        run_job(out, [documents], FakeLLM())
    assert {row["id"] for row in read_jsonl(out / RESULTS)} < {f"doc-{n}" for n in range(200)}
    with pytest.raises(OutputError):  # still full: told again, and still nothing is lost
        run_job(out, [documents], FakeLLM())
    small_disk.remount("size=1m")
    run_job(out, [documents], FakeLLM())
    assert row_set(out / RESULTS) == row_set(tmp_path / "calm" / RESULTS)
    assert len(read_jsonl(out / RESULTS)) == 200


def test_a_folder_that_has_become_read_only(small_disk: SmallDisk, documents: Path) -> None:
    run_job(small_disk.path / "out", [documents], FakeLLM(), limit=5)
    small_disk.remount("ro")
    with pytest.raises(OutputError, match="Read-only file system") as caught:
        run_job(small_disk.path / "out", [documents], FakeLLM())
    assert "may write to" in str(caught.value)
    assert len(read_jsonl(small_disk.path / "out" / RESULTS)) == 5  # it can still be looked at
    assert JobFile.read(small_disk.path / "out").settings == make_settings()


# --- killed -----------------------------------------------------------------------------------------------------------


def start(out: Path, documents: Path) -> BaseProcess:
    """Run the job in a process of its own, a millisecond per token; a fork, for loading everything takes seconds."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=run_job, args=(out, [documents], FakeLLM(delay_s=0.001)), kwargs={"batch_size": 4})
    process.start()
    return process


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_killed_ten_times_the_job_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    rows = [{"id": f"doc-{n}", "text": words(n) + (" CUT" if n % 17 == 0 else "")} for n in range(400)]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    out, calm = tmp_path / "out", tmp_path / "calm"
    run_job(calm, [path], FakeLLM())
    generator = random.Random(7)
    seen: list[int] = []
    for _ in range(10):
        process = start(out, path)
        num_wanted = num_lines(out / RESULTS) + generator.choice([0, 1, 5, 20])
        while process.is_alive() and num_lines(out / RESULTS) < num_wanted:
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.01))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the job was done before it was killed ten times"
        if generator.random() < 0.5 and (out / RESULTS).exists():  # torn as by a power cut
            with (out / RESULTS).open("ab") as file:
                file.write(b'{"id":"doc-1","value":{"fi')
        lines = (out / RESULTS).read_bytes().split(b"\n")[:-1] if (out / RESULTS).exists() else []
        ids = [json.loads(line)["id"] for line in lines]
        assert len(ids) == len(set(ids))  # nothing twice, at any time
        seen.append(len(ids))
    assert seen == sorted(seen)  # nothing lost
    assert seen[-1] > seen[0]
    process = start(out, path)
    process.join()
    assert process.exitcode == 0
    assert row_set(out / RESULTS) == row_set(calm / RESULTS)
    assert len(read_jsonl(out / RESULTS)) == len(read_jsonl(calm / RESULTS))
    assert row_set(out / FAILED) == row_set(calm / FAILED)


def test_an_interrupt_is_passed_on_with_everything_written(tmp_path: Path, documents: Path) -> None:
    class Impatient:
        num_done = 0

        def start(self, num_documents: int, num_before: int) -> None: ...

        def finish(self) -> None: ...

        def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
            self.num_done += 1
            if self.num_done == 20:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(tmp_path / "out", [documents], FakeLLM(), observer=Impatient())
    assert len(read_jsonl(tmp_path / "out" / RESULTS)) == 20
    assert JobFile.read(tmp_path / "out").runs[-1]["outcome"] == "interrupted"
    llm = FakeLLM()
    run_job(tmp_path / "out", [documents], llm)
    assert len(llm.seen) == 180


def test_a_failure_that_was_made_good_before_a_kill_is_not_counted(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "CUT"}])
    run_job(tmp_path / "out", [path], FakeLLM())
    failed = (tmp_path / "out" / FAILED).read_bytes()
    write_jsonl(path, [{"id": "a", "text": "mended"}])
    run_job(tmp_path / "out", [path], FakeLLM(), retries=True)
    (tmp_path / "out" / FAILED).write_bytes(failed)  # as if killed before the failure was dropped
    assert read_failures(tmp_path / "out") == {}
    run_job(tmp_path / "out", [path], FakeLLM())
    assert (tmp_path / "out" / FAILED).read_bytes() == b""


# --- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text", "cause"),
    [
        ({"type": "integer"}, "1.5", "is not of type 'integer'"),
        ({}, "NaN", "NaN is not JSON"),
        ({}, "-Infinity", "-Infinity is not JSON"),
        ({}, "1e999", "beyond the range"),
        ({}, "[" * 100_000, "not JSON"),
        ({}, '{"a": 1} x', "not JSON"),
        ({}, "", "not JSON"),
        ({"$ref": "https://example.org/nowhere"}, "1", "cannot be validated"),
        ({"type": "string", "pattern": r"\p{L}"}, '"a"', "cannot be validated"),
    ],
)
def test_outputs_that_are_refused(schema: Any, text: str, cause: str) -> None:
    with pytest.raises(InvalidOutputError) as caught:
        OutputValidator(schema).value(text)
    assert cause in str(caught.value)


def test_the_draft_of_the_schema_is_used() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}
    with pytest.raises(InvalidOutputError):
        OutputValidator(old).value("3")
    assert OutputValidator({"prefixItems": [{"type": "null"}]}).value("[null]") == [None]
    with pytest.raises(DecodekitError, match="not a JSON Schema"):
        OutputValidator({"type": "integre"})


def test_scanning_the_same_inputs_twice_gives_the_same_entries(documents: Path) -> None:
    assert scan([Input(str(documents))]) == scan([Input(str(documents))])


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("", ""),
        ("12", ""),
        ('"ab', ""),
        ('{"a', ""),
        ('{"a":', "/a"),
        ('{"a": [1, 2', "/a/1"),
        ('{"a": [{"b": "x,]}\\"', "/a/0/b"),
        ('{"a": [1, {"b": 2}], "c/~": tr', "/c~1~0"),
        ('{"a": 1, ', ""),
        ('{"a": 1}', ""),
        ("]", ""),
        ("[1]]", ""),
        (", 1", ""),
    ],
)
def test_where_a_text_breaks_off(text: str, pointer: str) -> None:
    assert pointer_of_what_is_open(text.encode()) == pointer


@settings(deadline=None)
@given(JSON, st.data())
def test_every_beginning_of_a_text_breaks_off_inside_what_is_open(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    size = data.draw(st.integers(0, len(text)))
    pointer = pointer_of_what_is_open(text[:size].encode())
    for part in pointer.split("/")[1:]:
        if value == []:
            assert part == "0"  # the item that could come first
            break
        key = part.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]  # it is a place of the whole value
