"""The process that reads constraints: what it imports, what it knows, and when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from decodekit.errors import DecodekitError
from decodekit.serving.limits import Limits
from decodekit.serving.requests import sandbox as compiler
from decodekit.serving.requests.sandbox import Compiler
from decodekit.serving.requests.structure import Structure

ENDLESS = (
    "import decodekit.serving.requests.sandbox as one\ndef work(*_):\n    while True: pass\n"
    "one.look_at = work\none.main({})"
)


def test_nothing_of_the_current_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the place of a module of Python nor of one of decodekit, also where the path names the folder."""
    for name in ("random", "json", "queue", "sitecustomize", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name}')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reader = Compiler(Limits(compile_workers=1))
    try:
        reader.check(Structure("regex", "[a-c]+", "guided_regex"))
    finally:
        reader.close()
    assert not (tmp_path / "ran").exists()


def test_it_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DECODEKIT_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("NUMBA_DISABLE_PERFORMANCE_WARNINGS", "1")  # what is for numba is handed on
    started: dict[str, Any] = {}
    begin = subprocess.Popen

    def noted(command: list[str], **options: Any) -> Any:
        started.update(options["env"])
        return begin(command, **options)

    monkeypatch.setattr(subprocess, "Popen", noted)
    Compiler(Limits(compile_workers=1)).close()
    reader = Compiler(Limits(compile_workers=1))
    reader.start()
    reader.close()
    assert "secret" not in started.values() and started["NUMBA_DISABLE_PERFORMANCE_WARNINGS"] == "1"
    assert "PATH" in started


def endless(arguments: str) -> subprocess.Popen[bytes]:
    """A process that reads a constraint for ever."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS.format(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(compiler.__file__).parents[2])},
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b'{"ready": true}\n'
    process.stdin.write(json.dumps({"kind": "regex", "value": "a"}).encode() + b"\n")
    process.stdin.flush()
    return process


def test_it_ends_with_the_endpoint() -> None:
    """However that ends: nothing but the end of its input tells it."""
    process = endless("1 << 33, 600.0")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)
    finally:
        process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="a system without this bound")
def test_its_processor_time_is_bounded() -> None:
    process = endless("1 << 33, 0.1")
    try:
        assert process.wait(300) != 0
    finally:
        process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="a system without this bound")
def test_the_bound_is_of_a_constraint_and_not_of_all() -> None:
    """A process that has worked for long reads on."""
    code = (
        "import decodekit.serving.requests.sandbox as one, time\n"
        "def work(*_):\n"
        "    until = time.process_time() + 0.7\n"
        "    while time.process_time() < until: pass\n"
        "one.look_at = work\none.main(1 << 33, 0.7)"
    )
    line = json.dumps({"kind": "regex", "value": "a"}).encode() + b"\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(compiler.__file__).parents[2])}
    done = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert done.stdin is not None and done.stdout is not None
    assert done.stdout.readline() == b'{"ready": true}\n'
    for _ in range(3):
        done.stdin.write(line)
        done.stdin.flush()
        assert done.stdout.readline() == b"{}\n"
    done.stdin.close()
    assert done.wait(20) == 0


def test_closing_ends_it_in_the_middle() -> None:
    """And who asked is told that the endpoint ends, not that the constraint was at fault."""
    reader = Compiler(Limits(compile_workers=1, compile_s=60.0))
    reader.start()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(reader.check, Structure("regex", "(a{1,999}){1,999}", "guided_regex"))
        while not reader._idle.empty():
            pass
        reader.close()
        with pytest.raises(DecodekitError):
            asked.result(30)
    assert not any(process.is_alive for process in reader._processes)
