"""The command line on streams that cannot write every character, or whose reader has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from decodekit.cli.parts.console import typed_text
from tests.sizes import few

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM = "import sys; from decodekit.cli import main; sys.argv[0] = 'decodekit'; main()"


def run(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONUTF8", "PYTHONIOENCODING")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        timeout=300,
    )


SCHEMA = {"enum": ["é€日", "ß"]}
ASCII = {"PYTHONIOENCODING": "ascii"}
PLAIN_C = {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "é.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (tmp_path / "é.gbnf").write_text('root ::= "é€日"', encoding="utf-8")
    return tmp_path


@few(1)
@pytest.mark.parametrize("environment", [ASCII, PLAIN_C], ids=["ascii", "LANG=C"])
def test_what_ascii_cannot_write_is_escaped(folder: Path, environment: dict[str, str]) -> None:
    """Commands without a model; those with one write through the same functions."""
    done = run("grammar", "sample", "é.gbnf", "--num", "1", "--json", folder=folder, **environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == "é€日"
    done = run("grammar", "check", "é.gbnf", "é€日", "x", folder=folder, **environment)
    assert b"Traceback" not in done.stderr, done.stderr


@few(1)
@pytest.mark.parametrize("environment", [ASCII, PLAIN_C], ids=["ascii", "LANG=C"])
def test_texts_are_read_as_they_are_typed(folder: Path, environment: dict[str, str]) -> None:
    """In a plain C locale the words of a command are ASCII to Python; its texts are UTF-8 all the same."""
    done = run("grammar", "check", "é.gbnf", "é€日", folder=folder, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert typed_text("é€日") == "é€日"
    assert typed_text(os.fsdecode(b"\xff")) == os.fsdecode(b"\xff")  # no UTF-8


@pytest.mark.slow
@pytest.mark.parametrize("environment", [ASCII, PLAIN_C], ids=["ascii", "LANG=C"])
def test_every_command_writes_to_ascii(folder: Path, environment: dict[str, str]) -> None:
    (folder / "dé.txt").write_text("née 3 €", encoding="utf-8")
    job = ("extract", "dé.txt", "-o", "öut", "--schema", "é.json")
    commands: list[tuple[str, ...]] = [
        ("generate", "né", "--schema", "é.json"),
        ("generate", "né", "--schema", "é.json", "--json"),
        ("generate", "né", "--choices", "é€日,ß"),
        ("generate", "né", "--json", "--max-new-tokens", "3"),
        job,
        ("status", "öut"),
        ("status", "öut", "--json"),
        ("report", "öut"),
        ("schema", "check", "é.json"),
        ("schema", "check", "é.json", "--json"),
        ("grammar", "check", "é.gbnf", "é€日"),
        ("grammar", "check", "é.gbnf", "é€日", "--json"),
        ("grammar", "list"),
        ("grammar", "sample", "é.gbnf"),
        ("strategies",),
        ("strategies", "--json"),
        ("doctor",),
        ("doctor", "--json"),
    ]
    for words in commands:
        done = run(*words, folder=folder, **environment)
        assert b"Traceback" not in done.stderr, (words, done.stderr)
        assert done.returncode in (0, 7), (words, done.returncode, done.stderr)
        done.stdout.decode("ascii")
        if "--json" in words and done.stdout.count(b"\n") == 1:
            json.loads(done.stdout)


@few(1)
@pytest.mark.parametrize("words", [("strategies",), ("grammar", "sample", "é.gbnf", "--num", "5000")])
def test_a_reader_that_has_gone_gives_no_traceback(folder: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=300,
        )
    finally:
        os.close(writing)
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr, done.stderr
