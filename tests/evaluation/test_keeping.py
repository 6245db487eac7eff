"""Comparisons that are interrupted: the rows that were whole stay as they were measured, the others are measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.cli import bench as bench_command
from decodekit.errors import JobError, JobSettingsError, OptionError
from decodekit.evaluation import Comparison, Example, Task, compare
from decodekit.evaluation import comparison_run as module
from decodekit.evaluation.comparison_folder import BenchFolder, count_rows
from decodekit.evaluation.reports.comparison_tables import grids
from decodekit.evaluation.result_rows import record_of, row_of
from decodekit.records.ledger import encode_line
from tests.evaluation.test_bench_cli import Result
from tests.sizes import few

ROOT = Path(__file__).parents[2]
TASKS = [
    Task(
        "bills",
        (Example("one", "Invoice A-17, total 40.20 EUR.\n", "17"), Example("two", "Invoice B-9, total 7.50 EUR.\n")),
        constraint=dk.Regex("[0-9]{1,3}"),
        max_new_tokens=6,
    ),
    Task("free", (Example("x", "The old harbour\n"),), max_new_tokens=5),
]
STRATEGIES = ["greedy", "sample:temperature=1.5", "sample:top_k=5+suffix"]
NUM_ROWS = 2 * 3 * 3


def compared(folder: Path | None = None, **changes: Any) -> Comparison:
    options: dict[str, Any] = {"strategies": STRATEGIES, "tasks": TASKS, "seeds": (0, 1, 2), "repeats": 2, **changes}
    return compare(options.pop("llm", dk.LLM.load("tiny")), folder=folder, **options)


@pytest.fixture(autouse=True)
def _one_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of a working copy may change while the tests run, and processes may differ in their threads."""
    monkeypatch.setattr(module, "provenance", origin)


def origin() -> dict[str, Any]:
    machine = {"processor": "any", "num_threads": 1, "gpu": None}
    return {"date": "today", "decodekit": "0", "commit": "of this test", "machine": machine}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """A comparison that nothing disturbs, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "provenance", origin)
        return folder, compared(folder)


@pytest.fixture
def undisturbed(whole: tuple[Path, Comparison]) -> Comparison:
    return whole[1]


def untimed(record: Any) -> Any:
    """A record without its times and what follows from them."""
    if isinstance(record, dict):
        return {
            name: untimed(value)
            for name, value in record.items()
            if not name.endswith("_s") and name not in ("s_per_token", "gaps", "kv_bytes", "mask_s_per_token")
        }
    return [untimed(one) for one in record] if isinstance(record, list) else record


def without_times(comparison: Comparison) -> list[Any]:
    """Its records without times, and all that its page says of quality."""
    records = [untimed({**record, "speed": len(record["speed"])}) for record in comparison.records()]
    return [records, [next(grids(comparison, task.name)) for task in comparison.tasks], comparison.notes]


@pytest.mark.slow
def test_a_killed_comparison_goes_on(tmp_path: Path, undisturbed: Comparison) -> None:
    """SIGKILL while the second seed of the second task is decoded, and a line that is torn."""
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tests.evaluation.test_keeping import compared, module, origin\n"
        "module.provenance = origin\n"
        "def progress(num_done, num_calls, label):\n"
        "    if label == 'free, seed 1, sample:temperature=1.5': os.kill(os.getpid(), signal.SIGKILL)\n"
        "compared(Path(sys.argv[1]), progress=progress)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, check=False, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    before = (tmp_path / "bench.jsonl").read_bytes()
    assert count_rows(tmp_path) == before.count(b"\n") == 12
    (tmp_path / "bench.jsonl").write_bytes(before + before[:70])
    calls: list[tuple[int, int, str]] = []
    resumed = compared(tmp_path, progress=lambda *call: calls.append(call))
    after = (tmp_path / "bench.jsonl").read_bytes()
    assert after.startswith(before) and after.count(b"\n") == NUM_ROWS
    assert {label.partition(",")[0] for _, _, label in calls} == {"free"}
    assert [call[:2] for call in calls] == [(number, 12) for number in range(12)]  # strategies, seeds and repeats
    assert without_times(resumed) == without_times(undisturbed)
    lines = [json.loads(line) for line in after.splitlines()]
    assert sorted(map(key, lines)) == sorted(map(key, resumed.records()))
    measured = {key(record): record for record in resumed.records()}
    assert all(line == measured[key(line)] for line in lines)


def key(record: dict[str, Any]) -> tuple[str, str, int]:
    return record["task"], record["strategy"], record["seed"]


@few(1)
@pytest.mark.parametrize("num_rows", [1, 10, NUM_ROWS])
def test_wherever_it_stops_the_rows_are_the_same(tmp_path: Path, whole: tuple[Path, Comparison], num_rows: int) -> None:
    """After any row, those of one seed being there in part included; a whole comparison decodes nothing."""
    folder, undisturbed = whole
    lines = (folder / "bench.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "bench.json").write_bytes((folder / "bench.json").read_bytes())
    (tmp_path / "bench.jsonl").write_bytes(b"".join(lines[:num_rows]))
    calls: list[Any] = []
    resumed = compared(tmp_path, progress=lambda *call: calls.append(call))
    assert without_times(resumed) == without_times(undisturbed)
    assert bool(calls) == (num_rows < NUM_ROWS)
    if not calls:
        assert resumed.summaries == undisturbed.summaries


def test_a_folder_changes_nothing(undisturbed: Comparison) -> None:
    assert without_times(compared()) == without_times(undisturbed)


def test_rows_are_read_as_they_were(undisturbed: Comparison) -> None:
    for row, record in zip(undisturbed.rows, undisturbed.records(), strict=True):
        read = row_of(json.loads(encode_line(record)))
        assert replace(read, provenance={}) == replace(row, provenance={})
        assert read.provenance == json.loads(json.dumps(row.provenance))
    strategies = {
        "particles": dk.Particles(2, "awrs", predicate=lambda text, is_whole: False),  # log evidence -inf
        "chain": dk.Greedy(speculate=["grammar", "suffix"]),
        "best": dk.BestOf(2),
        "broken": dk.BestOf(2, rank=lambda completion: 1 / 0),
    }
    found = compare(dk.LLM.load("tiny"), strategies, TASKS[1], seeds=(0,))
    for row in found.rows:
        record = json.loads(encode_line(record_of(row, None, "", {})))
        assert repr(replace(row_of(record), provenance={})) == repr(replace(row, provenance={}))
    stats = found.rows[0].outcomes[0].repeats[0].stats
    assert stats is not None and stats.particles is not None and stats.particles.log_evidence == float("-inf")


@few(1)
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seeds": (0, 1)}, ["seeds was [0, 1, 2], now [0, 1]"]),
        (
            {"strategies": ["greedy", "sample"], "batch_size": 2},
            ["batch_size was 1, now 2", "strategies.sample:temperature=1.5 was 'Sample(temperature=1.5)', now absent"],
        ),
        ({"strategies": {**{name: name for name in STRATEGIES}, "greedy": "sample"}}, ["strategies.greedy was"]),
        ({"tasks": [TASKS[0], TASKS[1].first(1), replace(TASKS[1], name="more")]}, ["tasks.more was absent"]),
        ({"tasks": [replace(TASKS[0], constraint=dk.Regex("[0-9]{1,4}")), TASKS[1]]}, ["tasks.bills was"]),
        ({"tasks": [TASKS[0], replace(TASKS[1], examples=(Example("x", "The new harbour\n"),))]}, ["tasks.free was"]),
        ({"max_new_tokens": 3}, ["max_new_tokens.bills was 6, now 3", "max_new_tokens.free was 5, now 3"]),
        ({"llm": "tiny-draft"}, ["weights was", "judge_weights was"]),
        ({"baseline": STRATEGIES[1]}, ["baseline was 'greedy'"]),
    ],
)
def test_other_settings_are_refused_with_what_differs(tmp_path: Path, changes: dict[str, Any], told: list[str]) -> None:
    if "llm" in changes:
        changes = {"llm": dk.LLM.load(changes["llm"])}
    stop_at_once(tmp_path)
    with pytest.raises(JobSettingsError) as caught:
        compared(tmp_path, **changes)
    assert all(one in caught.value.cause for one in told), caught.value.cause
    assert "--fresh" in (caught.value.hint or "")
    assert count_rows(tmp_path) == 0


def stop_at_once(folder: Path) -> None:
    """A comparison that is interrupted before its first decoding."""

    def progress(*call: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(folder, progress=progress)


def test_fresh_begins_again(tmp_path: Path) -> None:
    few: dict[str, Any] = {"tasks": TASKS[1], "seeds": (0,), "repeats": 1}
    compared(tmp_path, **few, strategies=["greedy"])
    before = (tmp_path / "bench.jsonl").read_bytes()
    assert len(compared(tmp_path, **few, strategies=["sample"], fresh=True).rows) == 1
    assert count_rows(tmp_path) == 1 and (tmp_path / "bench.jsonl").read_bytes() != before
    with pytest.raises(OptionError, match="no effect without a folder"):
        compared(None, **few, fresh=True)


def test_folders_that_cannot_be_gone_on_with(tmp_path: Path) -> None:
    with BenchFolder(tmp_path / "a", {}), pytest.raises(JobError, match="another run works in"):
        BenchFolder(tmp_path / "a", {})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "bench.jsonl").write_text("{}\n")
    with pytest.raises(JobError, match=r"no bench\.json: what its rows were measured with is not known"):
        BenchFolder(tmp_path / "b", {})
    (tmp_path / "b" / "bench.json").write_text('{"format": 1, "settings": {}}')
    with pytest.raises(JobError, match="was not written by decodekit"):
        BenchFolder(tmp_path / "b", {})
    (tmp_path / "b" / "bench.json").write_text('{"format": 7, "settings": {}}')
    with pytest.raises(JobError, match="format 7"):
        BenchFolder(tmp_path / "b", {})
    (tmp_path / "b" / "bench.json").write_text("[")
    with pytest.raises(JobError, match="cannot be read"):
        BenchFolder(tmp_path / "b", {})
    with BenchFolder(tmp_path / "b", {}, fresh=True) as folder:
        assert folder.rows == {}


def test_rows_say_who_measured_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few: dict[str, Any] = {"strategies": ["greedy", "sample"], "tasks": TASKS[1], "seeds": (0,), "repeats": 1}
    known = origin()
    monkeypatch.setattr(module, "provenance", lambda: {**known, "commit": "before"})
    compared(tmp_path, **few)
    lines = (tmp_path / "bench.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "bench.jsonl").write_bytes(lines[0])
    monkeypatch.setattr(module, "provenance", lambda: {**known, "commit": "after"})
    found = compared(tmp_path, **few)
    assert [record["commit"] for record in found.records()] == ["before", "after"]
    assert found.provenance["commit"] == "after"
    assert "1 of 2 rows were measured by an earlier run: commit was 'before', now 'after'" in found.notes


def test_an_interrupted_command_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tmp_path / "t.jsonl"
    task.write_text('{"prompt": "Invoice A-17\\n", "reference": "17"}\n')
    command = ["bench", "--strategies", "greedy,sample", "--tasks", task, "--seeds", "0,1", "--max-new-tokens", "3"]
    command += ["-o", tmp_path / "out"]
    watch = bench_command._Watch.__call__

    def interrupt(self: Any, num_done: int, num_calls: int, label: str) -> None:
        if num_done == 3:
            raise KeyboardInterrupt
        watch(self, num_done, num_calls, label)

    with monkeypatch.context() as patch:
        patch.setattr(bench_command._Watch, "__call__", interrupt)
        stopped = Result(*command)
    assert stopped.code == 130 and "interrupted: 2 of 4 rows are in" in stopped.err
    done = Result(*command)
    assert done.code in (0, 7) and "2 of 4 rows are measured" in done.err
    assert count_rows(tmp_path / "out") == 4
    other = Result(*command, "--repeats", "2")
    assert other.code == 2 and "repeats was 1, now 2" in other.err and "--fresh" in other.err
    assert Result(*command, "--repeats", "2", "--fresh").code == done.code
