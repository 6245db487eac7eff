"""`decodekit generate`: several texts, and mistakes that are found before a model is loaded."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import decodekit as dk
from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from tests.commands import Result
from tests.reference.growing_json import goes_on

FEW = ("--max-new-tokens", "4")


def test_several_texts_are_told_apart() -> None:
    llm = dk.LLM.load("tiny")
    done = Result("generate", "Dear", "To", "-n", "2", "--strategy", "sample", *FEW)
    assert done.code == 0, done.err
    ours = llm.generate(["Dear", "To"], strategy="sample", num_return_sequences=2, seed=0, max_new_tokens=4)
    expected = "".join(
        f"--- prompt {prompt} of 2, text {sample} of 2\n{text.text}\n"
        for prompt, one in enumerate(ours, 1)
        for sample, text in enumerate((one, *one.others), 1)
    )
    assert done.out == expected
    assert "prompt 1: length: 4 tokens" in done.err and "prompt 2: length" in done.err
    alone = Result("generate", "Dear", "-n", "2", "--strategy", "sample", *FEW)
    assert alone.out.startswith("--- text 1 of 2\n")
    assert Result("generate", "Dear", *FEW).out == llm.generate("Dear", max_new_tokens=4).text + "\n"


def test_several_prompts_as_lines_of_json() -> None:
    done = Result("generate", "Dear", "-", "--json", *FEW, stdin="To")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["prompt"] for row in rows] == [0, 1] and all(row["text"] for row in rows)


def test_a_value_is_shown_while_it_grows() -> None:
    asked = ("generate", "Invoice A-17, total 40.20 EUR.", "--schema", "number, total float")
    rows = [json.loads(line) for line in Result(*asked, "--stream").out.splitlines()]
    whole = json.loads(Result(*asked).out)
    assert rows[-1] == whole and rows[0] == {} and {"number": whole["number"][:2]} in rows
    assert all(goes_on(before, after) for before, after in pairwise(rows)) and len({*map(repr, rows)}) == len(rows)


def test_a_value_is_drawn_in_its_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more lines than the terminal has, until the last value is shown whole."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((12, 5)))
    view = console.GrowingView()
    for value in ({}, {}, {"a": "x" * 20}, {"a": ["€" * 20, 2, 3]}):
        view.show(value)
    view.show({"a": ["€" * 20, 2, 3]}, is_last=True)
    first, second, third, last = re.split("\x1b\\[[0-9]F\x1b\\[J", out.getvalue())
    assert (first, second) == ("{}\n", '{\n  "a": "xxx\n}\n')
    assert third == "    2,\n    3\n  ]\n}\n" and out.getvalue().count("\x1b[4F") == 1
    assert json.loads(last) == {"a": ["€" * 20, 2, 3]}


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("generate", "-"), console.USAGE, "standard input is empty"),
        (("generate", "-", "-"), console.USAGE, "given twice"),
        (("generate", "x", "--chat-template-kwargs", "{"), console.USAGE, "is a JSON object"),
        (("generate", "x", "--stream"), console.USAGE, "draws the value of JSON"),
        (("generate", "x", "--stream", "--regex", "a+"), console.USAGE, "draws the value of JSON"),
        (("generate", "x", "y", "--stream", "--schema", "a"), console.USAGE, "one value, not 2"),
        (("generate", "x", "--stream", "--json", "--schema", "a"), console.USAGE, "cannot be combined"),
        (("extract", "missing.txt", "--schema", "a", "-o", "out"), console.USAGE, "there is no file or folder"),
        (("extract", "empty", "--schema", "a", "-o", "out"), console.USAGE, "holds no document"),
        (("extract", "-", "--schema", "a", "-o", "out"), console.USAGE, "standard input is empty"),
        (("extract", "a.txt", "--schema", "a", "-o", "a.txt"), console.CRASH, "DK503"),
        (("extract", "a.txt", "--schema", "a", "-o", "a.txt/out"), console.CRASH, "DK503"),
        (("bench", "--strategies", "greedy", "-o", "a.txt/out"), console.CRASH, "DK503"),
        (("bench", "--strategies", "greedy", "-o", "a.txt"), console.CRASH, "DK503"),
    ],
)
def test_what_is_found_before_the_model_is_loaded(
    command: tuple[str, ...], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "empty").mkdir()

    def load(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(extract_module, "load_model", load)
    done = Result(*command)
    assert (done.code, says in done.err) == (code, True), done.err


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "decodekit", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == dk.__version__


def test_a_bar_counts_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    llm = dk.LLM.load("tiny")
    shown = llm.generate(["Dear", "To", "From"], progress=True, max_new_tokens=2)
    assert "3/3" in capsys.readouterr().err
    assert [one.text for one in shown] == [one.text for one in llm.generate(["Dear", "To", "From"], max_new_tokens=2)]
    assert capsys.readouterr().err == ""
