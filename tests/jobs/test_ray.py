"""Documents decoded by workers of Ray: killed workers, a killed driver, documents that kill, pools that never start."""

from __future__ import annotations

import json
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import decodekit as dk
from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from decodekit.errors import DecodekitError, JobError, OptionError
from decodekit.jobs.document_prompt import Prompt
from decodekit.jobs.documents.documents import document_seed, scan
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.folder.job_folder import JobFolder
from decodekit.jobs.job_runner import DocumentTask, JobRunner, LocalExecutor, Observer
from decodekit.jobs.ray import RayExecutor, Worker, model_on_worker
from decodekit.jobs.validation import OutputValidator
from decodekit.records.fingerprints import weights_fingerprint
from tests.commands import Result
from tests.jobs.fakes import (
    SCHEMA,
    Deadly,
    FakeLLM,
    expected_value,
    make_settings,
    marked,
    read_jsonl,
    row_set,
    run_job,
    words,
    write_jsonl,
)

RESULTS, FAILED = "results.jsonl", "failed.jsonl"
ROOT = Path(__file__).parents[2]


def run_on_ray(
    folder: Path, path: Path, load: Callable[[], Any], num_workers: int = 2, observer: Observer | None = None
) -> None:
    source = Input(str(path))
    settings = make_settings()
    with JobFolder.create_or_resume(folder, settings)[0] as job:
        job.add_inputs([source])
        runner = JobRunner(
            job, Prompt(settings.prompt, False, SCHEMA), OutputValidator(SCHEMA), observer=observer or Observer()
        )
        runner.run(scan([source]).entries, RayExecutor(load, {"on_length": "error"}, None, num_workers))


# --- without a cluster ------------------------------------------------------------------------------------------------


def tasks_of(texts: list[str]) -> dict[str, list[bytes]]:
    return {"task": [pickle.dumps(DocumentTask(str(n), "0", text, n)) for n, text in enumerate(texts)]}


def test_a_worker_gives_an_outcome_for_each_task_and_errors_stay_with_theirs() -> None:
    outcomes = [
        pickle.loads(data) for data in Worker(Deadly, {}, 2)(tasks_of(["one", "RAISE", "two", "CUT"]))["outcome"]
    ]
    errors = {one.task.id: one.completion.error for one in outcomes}
    assert len(outcomes) == len(errors) == 4
    assert errors["0"] is None and errors["2"] is None
    assert errors["3"].code == "DK101" and "own processor is broken" in errors["1"].cause


def test_options_of_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> None:
    (tmp_path / "a.txt").write_text("x")
    arguments = ("extract", tmp_path / "a.txt", "-o", tmp_path / "out", "--schema", "first, words int, seed int")
    done = Result(*arguments, "--workers", "2")
    assert done.code == console.USAGE and "no effect without Ray" in done.err
    done = Result(*arguments, "--executor", "ray", "--max-failures", "2")
    assert done.code == console.USAGE and "--max-failures" in done.err
    monkeypatch.setitem(sys.modules, "ray.data", None)
    done = Result(*arguments, "--executor", "ray")
    assert done.code == console.USAGE and "pip install 'decodekit[ray]'" in done.err
    assert not (tmp_path / "out").exists()


class Cluster(ModuleType):
    """Stands in for the package ray."""

    def __init__(self, num_cpus: int, error: Exception | None = None) -> None:
        super().__init__("ray")
        self.num_cpus, self.error, self.addresses = num_cpus, error, list[str]()
        self.options: dict[str, Any] = {}
        self.is_initialized = lambda: bool(self.addresses) and self.error is None
        self.cluster_resources = lambda: {"CPU": float(self.num_cpus)}
        self.cloudpickle = SimpleNamespace(register_pickle_by_value=lambda module: None)

    def init(self, address: str, **options: Any) -> None:
        self.addresses.append(address)
        self.options = options
        if self.error is not None:
            raise self.error


def refuse_to_load(*arguments: Any) -> None:
    raise AssertionError("a model was loaded")


@pytest.mark.parametrize("workers", ["2", "3", None])
def test_too_many_workers_are_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str | None
) -> None:
    """Without a cluster, Ray does not start for it; a cluster is asked how large it is."""
    (tmp_path / "a.txt").write_text("x")
    where = ("--executor", "ray", *(("--workers", workers) if workers else ()))
    arguments = ("extract", tmp_path / "a.txt", "-o", tmp_path / "out", "--schema", "first, words int", *where)
    monkeypatch.setattr(extract_module, "load_model", refuse_to_load)
    monkeypatch.setattr(os, "cpu_count", lambda: 2 if workers else 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address in (None, "there:6379"):
        if address is not None:
            monkeypatch.setenv("RAY_ADDRESS", address)
        ray = Cluster(num_cpus=os.cpu_count() or 1)
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.data", ModuleType("ray.data"))
        done = Result(*arguments)
        assert done.code == console.USAGE and "take every CPU" in done.err, done.err
        assert ray.options in ({}, {"log_to_driver": False, "logging_level": logging.ERROR})  # what is printed is ours
        assert bool(ray.options) == (address is not None)
        assert ("--workers 1" if workers else '--executor "local"') in done.err
        assert ray.addresses == ([] if address is None else [address]) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("ray client cannot reach there:6379"),
        RuntimeError("InvalidAuthToken: authentication failed\n" + "  a line of a traceback\n" * 100),
        ValueError(""),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_cluster_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setattr(extract_module, "load_model", refuse_to_load)
    monkeypatch.setenv("RAY_ADDRESS", "there:6379")
    monkeypatch.setitem(sys.modules, "ray", Cluster(8, error))
    monkeypatch.setitem(sys.modules, "ray.data", ModuleType("ray.data"))
    fields = ("--schema", "first, words int", "--executor", "ray")
    done = Result("extract", tmp_path / "a.txt", "-o", tmp_path / "out", *fields)
    assert done.code == console.USAGE and len(done.err.splitlines()) < 8, done.err
    assert "DK500 the cluster of Ray at 'there:6379' cannot be reached" in done.err
    assert type(error).__name__ in done.err and "RAY_AUTH_MODE" in done.err and '--executor "local"' in done.err
    with pytest.raises(JobError, match="cannot be reached"):
        dk.extract(["x"], "first, words int", "tiny", executor="ray")


def test_the_command_line_decodes_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM
) -> None:
    started: list[tuple[int | None, int | None, str]] = []

    class Recorded(LocalExecutor):
        def __init__(self, load: Any, options: Any, batch_size: int | None, workers: int | None, _: bool):
            started.append((batch_size, workers, load.args[-1]))
            super().__init__(llm, 1, options)  # type: ignore[arg-type]

    monkeypatch.setitem(sys.modules, "ray.data", ModuleType("ray.data"))
    monkeypatch.setattr("decodekit.jobs.ray.RayExecutor", Recorded)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("one CUT")
    where = ("--executor", "ray", "--workers", "2", "--batch-size", "3", "--device-map", "cpu")
    arguments = ("extract", tmp_path / "a.txt", tmp_path / "b.txt", "--schema", "first, words int, seed int")
    assert Result(*arguments, "-o", tmp_path / "local").code == console.SOME_FAILED
    assert not started
    assert Result(*arguments, "-o", tmp_path / "out", *where).code == console.SOME_FAILED
    assert started == [(3, 2, "cpu")]
    assert row_set(tmp_path / "out" / RESULTS) == row_set(tmp_path / "local" / RESULTS)
    Result("retry", tmp_path / "out", *where)
    assert started == [(3, 2, "cpu")] * 2
    assert Result("retry", tmp_path / "out", "--workers", "2").code == console.USAGE


def test_another_model_on_a_worker_is_refused() -> None:
    llm = dk.LLM.load("tiny")
    right = weights_fingerprint(llm.model)
    assert model_on_worker("tiny", "float32", right).model.name == llm.model.name
    with pytest.raises(JobError, match="has the weights"):
        model_on_worker("tiny-draft", "float32", right)


# --- with one ---------------------------------------------------------------------------------------------------------


def start_ray(num_cpus: int = 3) -> Any:
    ray = pytest.importorskip("ray", reason="needs ray, which the extra `slow` brings")
    ray.init("local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    return ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = start_ray()
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_a_pool_that_takes_every_cpu_is_refused(cluster: Any, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "one"}])
    for number in (3, 4):
        with pytest.raises(OptionError, match="take every CPU") as caught:
            run_on_ray(tmp_path / "out", path, FakeLLM, number)
        assert caught.value.hint is not None and "num_workers=2" in caught.value.hint
    run_on_ray(tmp_path / "out", path, FakeLLM)
    assert len(read_jsonl(tmp_path / "out" / RESULTS)) == 1


@pytest.mark.slow
def test_ray_gives_what_one_process_gives(cluster: Any, tmp_path: Path) -> None:
    rows = [{"id": f"doc-{n}", "text": words(n) + (" CUT" if n % 9 == 0 else "")} for n in range(100)]
    path = write_jsonl(tmp_path / "d.jsonl", [*rows, {"id": "empty", "text": ""}])
    run_job(tmp_path / "a", [path], FakeLLM())
    run_on_ray(tmp_path / "b", path, FakeLLM)
    for name in (RESULTS, FAILED):
        assert row_set(tmp_path / "a" / name) == row_set(tmp_path / "b" / name)
        assert len(read_jsonl(tmp_path / "a" / name)) == len(read_jsonl(tmp_path / "b" / name))


@pytest.mark.slow
def test_documents_that_kill_their_worker_fail_and_the_others_come_through(cluster: Any, tmp_path: Path) -> None:
    rows = [{"id": f"doc-{n}", "text": words(n)} for n in range(70)]
    rows[40]["text"] = "a POISON b"
    rows[41]["text"] = "a RAISE b"
    run_on_ray(tmp_path / "out", write_jsonl(tmp_path / "d.jsonl", rows), Deadly)
    assert {row["id"]: row["code"] for row in read_jsonl(tmp_path / "out" / FAILED)} == {
        "doc-40": "DK600",
        "doc-41": "DK600",
    }
    assert len({row["id"] for row in read_jsonl(tmp_path / "out" / RESULTS)}) == 68


@pytest.mark.slow
def test_workers_that_cannot_start_say_why(cluster: Any, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "one"}])
    with pytest.raises(DecodekitError, match="has the weights"):
        run_on_ray(tmp_path / "out", path, partial(model_on_worker, "tiny", "float32", "0" * 16), 1)


@pytest.mark.slow
def test_the_bundled_model_on_ray_and_a_class_of_a_file(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(
        "from pydantic import BaseModel\n\nclass Invoice(BaseModel):\n    number: str\n    total: float\n"
    )
    texts = [f"Invoice A-{n}, total {n}.20 EUR." for n in range(3)]
    schema = f"{tmp_path / 'shapes.py'}:Invoice"
    here = dk.extract(texts, schema, "tiny")
    there = dk.extract(texts, schema, "tiny", executor="ray", num_workers=1)
    assert here == there
    assert [row.error for row in here] == [None] * 3


# --- the long job: two workers, one in a hundred bad, workers and the driver killed -----------------------------------

NUM_DOCUMENTS = 5000
BAD = ["a CUT b", "a DEAD b", "a WRONG b", "a GARBLED b", ""]


def text_of(number: int) -> str:
    return BAD[number // 100 % len(BAD)] if number % 100 == 50 else words(number)


class Memory(Observer):
    """The resident memory of the driver, at the hundredth document and every five hundred."""

    def __init__(self) -> None:
        self.num_documents, self.sizes = 0, []

    def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
        self.num_documents += 1
        if self.num_documents == 100 or self.num_documents % 500 == 0:
            self.sizes.append(rss_mib())


def drive(folder: Path) -> None:
    """The driver: does the job of a folder, and writes down its memory."""
    start_ray()
    memory = Memory()
    run_on_ray(folder / "out", folder / "d.jsonl", partial(marked, folder / "workers"), observer=memory)
    (folder / "memory.json").write_text(json.dumps(memory.sizes))


def rss_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start_driver(folder: Path) -> subprocess.Popen[bytes]:
    pytest.importorskip("ray", reason="needs ray, which the extra `slow` brings")
    code = f"from pathlib import Path; from tests.jobs.test_ray import drive; drive(Path({str(folder)!r}))"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=(folder / "driver.log").open("ab"))


def wait_for(folder: Path, driver: subprocess.Popen[bytes], number: int) -> None:
    while num_lines(folder / "out" / RESULTS) < number:
        assert driver.poll() is None, (folder / "driver.log").read_text()[-2000:]
        time.sleep(0.005)


def kill_a_worker(folder: Path) -> None:
    for path in (folder / "workers").iterdir():
        path.unlink()
        try:
            os.kill(int(path.name), signal.SIGKILL)
            return
        except ProcessLookupError:
            continue
    raise AssertionError("no worker is alive")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_thousand_documents_survive_killed_workers_and_a_killed_driver(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    rows = [{"id": f"doc-{n}", "text": text_of(n)} for n in range(NUM_DOCUMENTS)]
    write_jsonl(tmp_path / "d.jsonl", rows)
    driver = start_driver(tmp_path)
    wait_for(tmp_path, driver, 500)
    kill_a_worker(tmp_path)
    wait_for(tmp_path, driver, 1500)
    driver.kill()
    driver.wait()
    num_before = num_lines(tmp_path / "out" / RESULTS)
    assert 1500 <= num_before < 4900
    for path in (tmp_path / "workers").iterdir():
        path.unlink()
    driver = start_driver(tmp_path)
    wait_for(tmp_path, driver, num_before + 500)
    kill_a_worker(tmp_path)
    assert driver.wait() == 0, (tmp_path / "driver.log").read_text()[-2000:]

    results, failures = (read_jsonl(tmp_path / "out" / name) for name in (RESULTS, FAILED))
    bad = {f"doc-{n}" for n in range(NUM_DOCUMENTS) if n % 100 == 50}
    assert len(bad) == NUM_DOCUMENTS // 100
    assert sorted(row["id"] for row in results) == sorted({row["id"] for row in rows} - bad)  # each once
    assert sorted(row["id"] for row in failures) == sorted(bad)
    for row in results:
        number = int(row["id"].removeprefix("doc-"))
        assert row["value"] == expected_value(words(number), document_seed(0, row["id"]))
    sizes = json.loads((tmp_path / "memory.json").read_text())
    print("driver:", *(f"{size:.0f}" for size in sizes), "MiB, at 100 documents and every 500")
    assert len(sizes) >= 4
    assert sizes[-1] - sizes[1] < 50
