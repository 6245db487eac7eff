from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace

import pytest

import decodekit as dk
from decodekit.errors import OptionError
from decodekit.evaluation.measures.judges import JudgeModel, has_mauve, mauve
from decodekit.evaluation.measures.measures import METRICS, JudgedText, measure_run, missing_packages
from decodekit.evaluation.task import Example

PROMPT = "Invoice A-17, total 40.20 EUR.\n"
TEXT = '{"number":"A-17","total":40.20}'


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def test_only_the_tokens_of_the_text_count(llm: dk.LLM) -> None:
    [(nats, count)] = JudgeModel(llm).surprise([(PROMPT, TEXT)])
    both, before = llm.score(PROMPT + TEXT), llm.score(PROMPT)
    assert both.token_ids[: len(before.token_ids)] == before.token_ids  # this tokenizer divides at the line feed
    assert count == len(both.token_ids) - len(before.token_ids)
    assert nats == pytest.approx(-math.fsum(both.logprobs) + math.fsum(before.logprobs), abs=1e-3)


def test_perplexity_weighs_tokens_alike(llm: dk.LLM) -> None:
    judge, pairs = JudgeModel(llm), [(PROMPT, TEXT), (PROMPT, "no")]
    found = judge.surprise(pairs)
    assert found[0][1] > found[1][1]
    expected = math.exp(sum(nats for nats, _ in found) / sum(count for _, count in found))
    assert judge.perplexity(pairs) == pytest.approx(expected)
    assert judge.perplexity(pairs) != pytest.approx(
        (judge.perplexity(pairs[:1]) or 0) / 2 + (judge.perplexity(pairs[1:]) or 0) / 2
    )


def test_texts_without_tokens_or_too_long_say_nothing(llm: dk.LLM) -> None:
    judge = JudgeModel(llm)
    assert judge.surprise([(PROMPT, ""), (PROMPT, "x" * 3000)]) == [(0.0, 0)] * 2
    assert judge.perplexity([(PROMPT, "")]) is None
    assert judge.perplexity([(PROMPT, ""), (PROMPT, TEXT)]) == judge.perplexity([(PROMPT, TEXT)])


def test_messages_are_read_as_text_without_a_chat_template(llm: dk.LLM) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    assert JudgeModel(llm).surprise([(messages, TEXT)]) == JudgeModel(llm).surprise([(PROMPT, TEXT)])


def test_the_same_pair_is_read_once(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = JudgeModel(llm)
    first = judge.surprise([(PROMPT, TEXT), (PROMPT, TEXT)])
    monkeypatch.setattr(type(llm.model), "forward", None)
    assert judge.surprise([(PROMPT, TEXT)]) == first[:1]


def answers(*texts: str | None) -> list[JudgedText]:
    return [
        JudgedText(Example(str(i), PROMPT, "a reference"), PROMPT, None, text, None) for i, text in enumerate(texts)
    ]


def test_mauve_is_left_out_where_its_package_is_missing(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mauve", None)
    monkeypatch.setattr("decodekit.evaluation.measures.judges.importlib.util.find_spec", lambda name: None)
    assert not has_mauve()
    assert measure_run(METRICS["mauve"], answers("a", "b"), [], JudgeModel(llm)) is None
    assert "not installed" in missing_packages([METRICS["mauve"]])[0]
    assert missing_packages([METRICS["valid"]]) == []
    with pytest.raises(OptionError, match="not installed"):
        mauve(["a"], ["b"])


def test_mauve_is_asked_where_it_is_installed(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("mauve")
    seen: list[object] = []

    def compute_mauve(**options: object) -> SimpleNamespace:
        seen.append(options)
        return SimpleNamespace(mauve=0.5)

    package.compute_mauve = compute_mauve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mauve", package)
    monkeypatch.setattr("decodekit.evaluation.measures.judges.importlib.util.find_spec", lambda name: package)
    assert measure_run(METRICS["mauve"], answers("a", None, "b"), [], JudgeModel(llm)) == 0.5
    assert seen == [{"p_text": ["a reference"] * 2, "q_text": ["a", "b"], "verbose": False}]
    assert missing_packages([METRICS["mauve"]]) == []
