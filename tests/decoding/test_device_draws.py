"""The program that takes tokens on a device gives the texts of the pipeline and the selector."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decodekit import LLM
from decodekit.decoding.draws import device_draws
from decodekit.decoding.draws.device_draws import Parameters, parameters_of
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.sampling import MinP, Pipeline, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.sampling.certificates import lead_greedy
from decodekit.sampling.selectors import greedy
from decodekit.vocabulary import Vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
SETTINGS = Settings(
    Vocabulary([b"a", b"b", None], frozenset({2})), Pipeline(), lambda rows, keys: greedy(rows), 4, lead=lead_greedy
)
PROMPTS = ["Once upon a time", "The end", "x"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM.load("tiny")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "sample", "top_k": 30, "top_p": 0.9, "seed": 4},
        {"strategy": "sample", "temperature": 0.8, "min_p": 0.05, "constraint": SCHEMA},
        {"constraint": SCHEMA, "masks": "always", "fast_forward": "off"},
        {"strategy": "sample", "speculate": "prompt-lookup", "seed": 2},
        {"strategy": "sample", "repetition_penalty": 1.2},
        {"constraint": SCHEMA, "on_length": "close"},
    ],
)
def test_texts_are_the_same(llm: LLM, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [one.token_ids for one in llm.generate(PROMPTS, max_new_tokens=16, on_error="return", **options)]
    calls: list[int] = []
    draw = device_draws.sample_rows

    def counted(logits: Any, *rest: Any) -> Any:
        calls.append(len(logits))
        return draw(logits, *rest)

    monkeypatch.setattr(device_draws, "sample_rows", counted)
    monkeypatch.setattr(device_draws, "is_on_device", lambda logits: True)
    done = [one.token_ids for one in llm.generate(PROMPTS, max_new_tokens=16, on_error="return", **options)]
    assert done == plain
    assert bool(calls) == ("repetition_penalty" not in options)


def test_other_noise_gives_other_texts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a program that is given another index for its noise is noticed."""
    options: dict[str, Any] = {"strategy": "sample", "max_new_tokens": 16}
    plain = [one.text for one in llm.generate(PROMPTS, **options)]
    monkeypatch.setattr(device_draws, "is_on_device", lambda logits: True)
    pack = device_draws.packed

    def later(rows: Any, seeds: Any, numbers: Any, at: Any, **rest: Any) -> Any:
        return pack(rows, seeds, numbers, [index + 1 for index in at], **rest)

    monkeypatch.setattr(device_draws, "packed", later)
    assert [one.text for one in llm.generate(PROMPTS, **options)] != plain


def test_a_failed_row_is_told_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_draws, "is_on_device", lambda logits: True)
    logits = torch.tensor([[0.0, 1.0, torch.nan], [0.0, 1.0, 2.0], [-torch.inf] * 3])
    drawn = device_draws.device_draws(logits, SETTINGS, NoiseKeys([0] * 3, [0] * 3, [0] * 3))
    assert drawn is not None
    assert [one.status for one in drawn] == [1, 0, 2] and drawn[1].token == 2


@pytest.mark.parametrize(
    ("processors", "expected"),
    [
        ([], Parameters()),
        ([Temperature(0.5), TopP(0.9)], Parameters(0.5, top_p=0.9)),
        ([TopK(3), MinP(0.1)], Parameters(top_k=3, min_p=0.1)),
        ([TopP(0.9), TopK(3)], None),
        ([Temperature(0.5), Temperature(0.5)], None),
        ([RepetitionPenalty(1.2)], None),
    ],
)
def test_which_pipelines_the_device_knows(processors: list[Any], expected: Parameters | None) -> None:
    assert parameters_of(Pipeline(processors)) == expected
