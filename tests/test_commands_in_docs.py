"""The commands that the README and the pages show do what they say: all of them run, on small data, in their order."""

from __future__ import annotations

import glob
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from tests.commands import Result

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "examples" / "README.md"]
SHOWN = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]

CHEAP = {
    "extract": ("--limit", "1", "--max-new-tokens", "100"),
    "bench": ("--limit", "1", "--seeds", "0", "--repeats", "1", "--max-new-tokens", "6"),
    "generate": ("--max-new-tokens", "12"),
}
"""What is added, so that a command takes a second. A text may be cut then, which is no fault of the page."""


def commands(page: Path) -> Iterator[list[tuple[str, ...]]]:
    """The lines that are typed, each as the commands between ``&&``; what is piped in stands before ``|``."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            words = shlex.split(line, comments=True)
            found: list[list[str]] = [[]]
            for word in words:
                if word == "&&":
                    found.append([])
                else:
                    found[-1].append(word)
            yield [tuple(one) for one in found]


def run(words: tuple[str, ...]) -> Result | None:
    """Run one command of a line; None for what is no command of ours."""
    stdin = ""
    if "|" in words:
        bar = words.index("|")
        assert words[0] == "echo", words
        stdin, words = " ".join(words[1:bar]) + "\n", words[bar + 1 :]
    if words[0] != "decodekit":
        assert words[0] == "make", words  # tests/test_readme.py knows whether there is such a target
        return None
    arguments = [path for word in words[1:] for path in (sorted(glob.glob(word)) if "*" in word else [word])]
    return Result(*arguments, *CHEAP.get(arguments[0], ()), stdin=stdin)


MODELS = """
import decodekit as dk
from pydantic import BaseModel

class Contact(BaseModel):
    paid: bool

def check(contact):
    return contact.paid or "not paid"

CHECKED = dk.Guarded(Contact, check)
"""


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a reader who has the files that the pages name."""
    monkeypatch.chdir(tmp_path)
    for folder in ("letters", "notes", "my"):
        (tmp_path / folder).mkdir()
    text = "Invoice A-17, total 40.20 EUR."
    for name in ("letters/a.txt", "letters/b.txt", "notes/c.txt"):
        (tmp_path / name).write_text(f"{text} {name}")
    (tmp_path / "more.jsonl").write_text(json.dumps({"id": "m", "text": text}) + "\n")
    (tmp_path / "models.py").write_text(MODELS)
    shape = {"type": "object", "properties": {"number": {"type": "string", "maxLength": 9}}, "required": ["number"]}
    (tmp_path / "schema.json").write_text(json.dumps({**shape, "additionalProperties": False}))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "my" / "folder").symlink_to(Path(dk.__file__).parent / "models" / "tiny")
    # The file of a task is the one that the page shows.
    (block,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.jsonl").write_text(block)
    monkeypatch.setattr(extract_module, "load_model", cache(extract_module.load_model))
    return tmp_path


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page: Path, reader: Path) -> None:
    num_run = 0
    for line in commands(page):
        for words in line:
            done = run(words)
            if done is not None:
                num_run += 1
                assert done.code in (console.DONE, console.SOME_FAILED), (words, done.err)
    assert num_run >= 1


def test_a_command_that_does_not_run_is_noticed(reader: Path) -> None:
    page = reader / "page.md"
    page.write_text(
        "```console\n$ decodekit stauts out/   # a typo\n$ echo x | decodekit extract - -o out --schema 'a'\n```\n"
    )
    first, second = (run(words) for line in commands(page) for words in line)
    assert first is not None and first.code == console.USAGE
    assert second is not None and second.code != console.USAGE


def test_every_page_with_commands_is_among_them() -> None:
    assert {str(page.relative_to(ROOT)) for page in SHOWN} >= {
        "README.md",
        "docs/command-line.md",
        "docs/comparing.md",
        "docs/jobs.md",
        "examples/README.md",
    }
    assert all(sum(1 for _ in commands(page)) == page.read_text().count("\n$ ") for page in SHOWN)
    inline: set[Any] = set()
    golden = json.loads((ROOT / "tests" / "jobs" / "cli_options.json").read_text())
    for page in PAGES:  # commands inside a sentence name verbs that there are
        inline |= set(re.findall(r"`decodekit ([a-z]+)", page.read_text(encoding="utf-8")))
    assert inline <= {verb.partition(" ")[0] for verb in golden}
