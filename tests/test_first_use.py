"""A slow first use says so once; compiled code of an earlier process is found again without numba's compiler."""

from __future__ import annotations

import importlib
import logging
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import first_use
from decodekit.first_use import AnnouncedCache, Announcer, announcer
from decodekit.records.compiled_code import FunctionCache, kept
from tests.reference.vocabularies import tekken_vocabulary


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING and record.name == "decodekit" for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def wait_for(condition: object) -> None:
    for _ in range(200):
        if callable(condition) and condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within two seconds")


def test_a_slow_step_is_announced_while_it_runs_and_once(caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer(patience_s=0.02)
    with announcer.step("sorting"):
        wait_for(lambda: caplog.records)
        with announcer.step("compiling"):
            time.sleep(0.04)
    with announcer.step("compiling"):
        time.sleep(0.04)
    (message,) = messages(caplog)
    assert "sorting" in message


def test_steps_that_are_slow_together_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer(patience_s=0.1)
    for _ in range(3):
        with announcer.step("sorting"):
            time.sleep(0.06)
    assert len(messages(caplog)) == 1


def test_quick_steps_are_not_announced(caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer(patience_s=0.3)
    for _ in range(3):
        with announcer.step("sorting"):
            pass
    time.sleep(0.35)
    assert messages(caplog) == []


@pytest.mark.parametrize("has_folder", [True, False])
def test_compiling_is_a_slow_step_unless_the_code_is_found(has_folder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, str] = {}

    class Kept:
        cache_path = "somewhere"

        def load_overload(self, signature: str, target: object) -> str | None:
            return kept.get(signature)

        def save_overload(self, signature: str, compiled: str) -> None:
            kept[signature] = compiled

    steps: list[str] = []
    monkeypatch.setattr(announcer, "begin", lambda what: steps.append(what))
    monkeypatch.setattr(announcer, "end", lambda: steps.append("end"))
    cache = AnnouncedCache(Kept() if has_folder else None)
    assert cache.cache_path == ("somewhere" if has_folder else None)
    for _ in range(2):
        if cache.load_overload("int", None) is None:
            cache.save_overload("int", "code")
    assert steps == ["compiling", "end"] * (1 if has_folder else 2)


WIDE = """
import numpy as np
from decodekit.sampling.fast.logit_blocks import find_block_peaks
print(find_block_peaks(np.ones((1, 128), np.float32).view(np.int32), np.zeros((1, 2), np.int32)))
"""


@pytest.mark.slow
def test_the_first_use_of_wide_rows_is_announced_where_it_is_slow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import decodekit.first_use as f; f.announcer._patience_s = 0.01\n{WIDE}"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for said in (1, 0):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "True" and done.stderr.count("first use here: compiling") == said


CALL = """
import sys
import numpy as np
from decodekit.constraints.engine.compiled.kernels import add_tokens
words = np.zeros(2, np.int32)
first, tokens = np.array([0, 0, 2, 3], np.int32), np.array([5, 33, 7], np.int32)
add_tokens(np.array([1], np.int32), first, tokens, words)
print(words.tolist(), "numba.np.arraymath" in sys.modules, add_tokens.stats.cache_hits.total())
"""


@pytest.mark.slow
def test_compiled_code_is_found_by_the_next_process(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def call() -> str:
        command = [sys.executable, "-c", CALL]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert call() == "[32, 2] True 0"
    assert call() == "[32, 2] False 1"  # the modules of the compiler were not even imported
    for path in tmp_path.rglob("*.nbc"):
        path.unlink()
    assert call() == "[32, 2] True 0"  # what is missing is compiled, as the first time


@pytest.mark.slow
def test_where_nothing_can_be_kept_each_process_compiles() -> None:
    def refuse(_: object) -> FunctionCache:
        raise RuntimeError("no folder")

    def double(number: int) -> int:
        return 2 * number

    assert kept(double, refuse)(4) == 8


HELPER = """
from decodekit.records.compiled_code import compiled
FACTOR = {factor}
@compiled
def multiplied(x):
    return {own} * x
"""
CALLER = """
from decodekit.records.compiled_code import FunctionCache, KeptCode, kept
from helper_of_this_test import FACTOR, multiplied
def call(x):
    return 100 * FACTOR + multiplied(x)
call = kept(call, {cache})
"""


@pytest.mark.parametrize(("cache", "found"), [("KeptCode", [202, 202, 203, 503]), ("FunctionCache", [202] * 4)])
def test_code_is_compiled_anew_after_a_change_of_what_it_calls(
    cache: str, found: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of another file, and a constant; numba's own cache is the control that keeps the old code."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # changes follow each other within a tick of the clock
    caller = tmp_path / "caller.py"
    caller.write_text(CALLER.format(cache=cache))
    told, hits = [], []
    for factor, own in ((2, 2), (2, 2), (2, 3), (5, 3)):
        (tmp_path / "helper_of_this_test.py").write_text(HELPER.format(factor=factor, own=own))
        monkeypatch.delitem(sys.modules, "helper_of_this_test", raising=False)
        importlib.invalidate_caches()
        module = runpy.run_path(str(caller))
        told.append(module["call"](1))
        hits.append(module["call"].stats.cache_hits.total())
    assert told == found
    assert hits == [0, 1, int(cache != "KeptCode"), int(cache != "KeptCode")]


@pytest.mark.slow
def test_first_use_of_131k_tokens_keeps_its_bounds(tmp_path: Path) -> None:
    # Processor time up to the first masks. Half of the bounds is usual on two busy cores.
    first_use.TokenBytes.write(tekken_vocabulary(), tmp_path)
    cold = first_use.run("token bytes", tmp_path, tmp_path / "caches")
    warm = min(
        (first_use.run("token bytes", tmp_path, tmp_path / "caches") for _ in range(3)), key=lambda r: r["cpu_s"]
    )
    assert cold["cpu_s"] <= 20 and cold["said"] == 1
    assert warm["cpu_s"] <= 1.5 and warm["said"] == 0
    assert "torch" not in warm["modules"] and "transformers" not in warm["modules"]
