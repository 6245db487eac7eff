"""The examples of the README run, and the files it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import decodekit as dk

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    llm = dk.LLM.load("tiny")
    names: dict[str, object] = {}
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        # `model` and `tokenizer` stand for what a reader has loaded.
        names.update({"model": llm.model, "tokenizer": llm.tokenizer})
        exec(compile(block, "README.md", "exec"), names)
    out = names["out"]
    assert isinstance(out, dk.Completion)
    assert out.error is None
    assert out.value.number == "A-17"
    assert out.value.total == pytest.approx(40.20)
    assert "A-17" in capsys.readouterr().out


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) >= 2
    for link in links:
        assert (ROOT / link).is_file(), link


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"`make ([a-z-]+)", README)) | set(re.findall(r"^\$ make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test", "test-slow", "test-gpu", "bench", "train", "help"} <= targets
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert targets <= rules
