"""Measures of one's own, as functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.errors import OptionError
from tests.commands import Result


def num_letters(text: str, reference: Any) -> float:
    return len(text)


def test_a_function_is_a_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "Dear", "reference": "x"}, {"prompt": "To", "reference": "y"}]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    llm, options = dk.LLM.load("tiny"), {"tasks": "tasks.jsonl", "seeds": (0,), "max_new_tokens": 3}
    found = dk.compare(llm, ["greedy"], metrics=[num_letters], **options)  # type: ignore[arg-type]
    texts = [one.text for one in llm.generate(["Dear", "To"], max_new_tokens=3)]
    assert found.rows[0].quality["num_letters"] == sum(map(len, texts)) / 2
    assert "num_letters" in found.table()
    Path("measures.py").write_text("def mine(text, reference):\n    return text == reference\n")
    command = ("bench", "--strategies", "greedy", "--tasks", "tasks.jsonl", "--seeds", "0", "--max-new-tokens", "3")
    done = Result(*command, "--metric", "measures.py:mine", "-o", "out", "--json")
    assert done.code == 0 and '"mine": 0.0' in done.out, done.err
    assert "It has: mine" in Result(*command, "--metric", "measures.py:other", "-o", "out").err
    with pytest.raises(OptionError, match="another metric"):
        dk.compare(llm, ["greedy"], metrics={"exact-match": num_letters}, **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'bad' raised ZeroDivisionError"):
        dk.compare(llm, ["greedy"], metrics={"bad": lambda text, reference: 1 / 0}, **options)  # type: ignore[arg-type]
