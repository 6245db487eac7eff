"""What a model recommends to sample with: taken by name, told, and never taken in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.strategy.options.recommended import read_recommended, recommended_for
from tests.commands import Result

ADVICE = {"temperature": 3.0, "top_k": 20, "repetition_penalty": 1.3}


@pytest.fixture
def llm() -> Any:
    made = dk.LLM.load("tiny")
    made.model.model.generation_config.update(**ADVICE)  # type: ignore[attr-defined]
    return made


def test_what_counts_as_a_recommendation() -> None:
    config = {**ADVICE, "top_p": 1.0, "min_p": None, "do_sample": True, "max_new_tokens": 5, "typical_p": "x"}
    assert read_recommended(config) == ADVICE
    assert read_recommended({"temperature": 1.0, "top_k": 0, "repetition_penalty": 1}) == {}


@pytest.mark.parametrize(
    ("strategy", "options", "taken"),
    [
        ("sample", {}, ADVICE),
        ("sample+suffix", {}, ADVICE),
        ("sample:top_k=5", {"temperature": 1.0}, {"repetition_penalty": 1.3}),
        ("sample", {"order": "vllm"}, {}),
        ("sample", {"processors": ()}, {}),
        ("greedy", {}, {}),
        ("best-of", {}, {}),
        (dk.Sample(), {}, {}),
    ],
)
def test_the_rule(strategy: Any, options: dict[str, Any], taken: dict[str, Any]) -> None:
    assert recommended_for(strategy, options, ADVICE) == taken


def test_a_call_says_what_it_took(llm: Any) -> None:
    assert llm.recommended == ADVICE
    prompts, budget = ["Dear", "Invoice"], {"max_new_tokens": 12, "seed": 3}
    named = llm.generate(prompts, strategy="sample", **budget)
    spelled = llm.generate(prompts, strategy=dk.Sample(**ADVICE), **budget)
    plain = llm.generate(prompts, strategy=dk.Sample(), **budget)
    assert [c.text for c in named] == [c.text for c in spelled] != [c.text for c in plain]
    assert [dict(c.stats.recommended) for c in named] == [ADVICE] * 2
    assert "('top_k', 20)" in repr(named[0]) and spelled[0].stats.recommended == plain[0].stats.recommended == ()
    with llm.engine() as engine:
        asked = engine.submit("Dear", strategy="sample", top_k=7, **budget).result()
    assert dict(asked.stats.recommended) == {"temperature": 3.0, "repetition_penalty": 1.3}
    assert asked.text == llm.generate("Dear", strategy="sample", top_k=7, **budget).text
    assert llm.generate("Dear", max_new_tokens=2).stats.recommended == ()


def test_commands_and_jobs_say_what_they_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: Any) -> None:
    from decodekit.cli.jobs import extract as extract_module
    from decodekit.jobs.folder.job_folder import JobFile

    monkeypatch.setattr(extract_module, "load_model", lambda *_: llm)
    done = Result("generate", "Dear", "--strategy", "sample", "--top-k", "5", "--max-new-tokens", "4")
    assert "recommends: temperature=3.0, repetition_penalty=1.3" in done.err
    assert "recommends" not in Result("generate", "Dear", "--max-new-tokens", "4").err
    (tmp_path / "a.txt").write_text("Invoice A-17, total 40.20 EUR.")
    command = ("extract", tmp_path / "a.txt", "--schema", "number", "-o", tmp_path / "out", "--strategy", "sample")
    assert Result(*command).code in (0, 7)
    assert dict(JobFile.read(tmp_path / "out").settings.strategy) == {"name": "sample", **ADVICE}
    llm.model.model.generation_config.update(top_k=3)
    assert "DK501" in Result(*command).err
