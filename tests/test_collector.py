"""No whole collection while a process of decodekit's own decodes; nothing is changed in another process."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys

import pytest

from decodekit import cli, collector

OF_A_STREAM = """
import gc, json, threading
import decodekit as dk
from decodekit import collector

before = gc.get_threshold()
collector.take_over()
llm = dk.LLM.load("tiny")
collector.settle()
collections = [0, 0, 0]

def count(phase, info):
    collections[info["generation"]] += phase == "stop"

def schema(n):
    parts = [{"type": "string", "maxLength": n + 1}, {"type": "array", "items": {"minimum": n}}, {"enum": [n, str(n)]}]
    names = [f"p{n}-{m}" for m in range(30)]
    return {"type": "object", "properties": {name: {"anyOf": parts} for name in names}, "required": names[:5]}

def compile():
    for n in range(30):
        dk.compile(dk.JsonSchema(schema(n)), llm.vocabulary).matcher()

with llm.engine() as engine:
    list(engine.submit("a", max_new_tokens=4))
    gc.callbacks.append(count)
    thread = threading.Thread(target=compile)
    thread.start()
    num_chunks = 0
    while thread.is_alive():
        num_chunks += sum(1 for _ in engine.submit("a", max_new_tokens=16, min_tokens=16))
    thread.join()
    gc.callbacks.remove(count)
print(json.dumps([collections, num_chunks, gc.get_freeze_count(), before, gc.get_threshold()]))
"""


@pytest.mark.slow
def test_no_whole_collection_while_a_stream_runs() -> None:
    done = subprocess.run([sys.executable, "-c", OF_A_STREAM], capture_output=True, text=True, check=True)
    collections, num_chunks, num_frozen, before, thresholds = json.loads(done.stdout)
    assert collections[2] == 0
    assert collections[0] + collections[1] > 0 and num_chunks > 0  # there was something to collect, and a stream
    assert num_frozen > 100_000
    assert thresholds[:2] == before[:2] and thresholds[2] == collector.NEVER
    assert "leaked" not in done.stderr


OF_FREE_MEMORY = """
import numpy
from decodekit import collector

blocks = [numpy.ones(8_000) for _ in range(4_000)]  # 64 kB each, of the heap
before = collector.memory_bytes()
last = blocks[::200]
del blocks
free = collector.memory_bytes()
collector.return_memory()
print(before, free, collector.memory_bytes(), sum(block.sum() for block in last))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_free_memory_is_given_back() -> None:
    """Of 256 MB, of which one block in 200 is still in use."""
    done = subprocess.run([sys.executable, "-c", OF_FREE_MEMORY], capture_output=True, text=True, check=True)
    before, free, after, total = map(float, done.stdout.split())
    assert free > before - 30e6  # by itself it is not
    assert after < before - 200e6
    assert total == 20 * 8_000  # what is in use stays


OF_ARENAS = """
import ctypes, os, sys, threading
from decodekit import collector

if sys.argv[1] == "taken over":
    collector.take_over()
gate = threading.Barrier(6)

def take():
    ctypes.CDLL(None).malloc(100)
    gate.wait()

threads = [threading.Thread(target=take) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = libc.fdopen(os.dup(1), b"w")
libc.malloc_info(0, ctypes.c_void_p(out))
libc.fflush(ctypes.c_void_p(out))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="no malloc_info: the C library is not glibc")
@pytest.mark.parametrize(("whose", "is_one"), [("taken over", True), ("a user's", False)])
def test_threads_share_one_arena(whose: str, is_one: bool) -> None:
    done = subprocess.run([sys.executable, "-c", OF_ARENAS, whose], capture_output=True, text=True, check=True)
    assert (done.stdout.count("<heap nr=") == 1) is is_one


def test_a_process_of_a_user_stays_as_it_is() -> None:
    threshold, num_frozen = gc.get_threshold(), gc.get_freeze_count()
    collector.settle()
    assert gc.get_threshold() == threshold and gc.get_freeze_count() <= num_frozen  # what is frozen may die meanwhile


def test_the_command_takes_its_process_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collector, "_is_ours", False)
    monkeypatch.setattr(sys, "argv", ["decodekit", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert collector._is_ours and capsys.readouterr().out


@pytest.mark.parametrize(
    ("num_young", "growth", "is_idle", "due"),
    [
        (collector.FEW - 1, 9.0, True, False),
        (collector.FEW, 1.0, True, True),
        (collector.FEW, 1.0, False, False),
        (collector.MANY - 1, 1.0, False, False),
        (collector.MANY, 1.0, False, True),
        (collector.FEW, collector.GROWTH, False, True),
    ],
)
def test_when_old_objects_are_collected(num_young: int, growth: float, is_idle: bool, due: bool) -> None:
    assert collector.is_due(num_young, growth, is_idle=is_idle) is due
