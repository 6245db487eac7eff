"""A step ahead of the host the texts are what they are step by step: free and constrained, captured and not."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import pytest

from decodekit import LLM
from decodekit.generation import decode_step
from decodekit.generation.run_ahead import RunAhead
from decodekit.models.tiers import paged
from tests.models.recording import RecordedCapture

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "tags"],
}
PROMPTS = ["Once upon a time", "The", "A quick brown fox jumps over the lazy dog and", ""]
STRATEGIES: list[dict[str, Any]] = [
    {},
    {"strategy": "sample", "temperature": 0.9, "top_p": 0.9, "seed": 3},
    {"strategy": "sample", "top_k": 20, "min_p": 0.02, "seed": [5, 1, 4, 1]},
    {"stop": ["e "], "batch_size": 2},
    {"strategy": "sample", "temperature": 1.2, "num_return_sequences": 2, "batch_size": 5},
    {"constraint": SCHEMA},
    {"constraint": SCHEMA, "strategy": "sample", "temperature": 1.3, "seed": 1, "batch_size": 4},
    {"constraint": SCHEMA, "strategy": "sample", "top_k": 40, "fast_forward": "off"},
    {"speculate": "prompt-lookup"},
    {"speculate": "prompt-lookup", "strategy": "sample", "temperature": 0.9, "seed": [5, 1, 4, 1], "batch_size": 3},
    {"speculate": "suffix", "constraint": SCHEMA, "strategy": "sample", "temperature": 1.3, "seed": 1},
    {"speculate": "grammar", "constraint": SCHEMA, "masks": "always"},
    {"constraint": SCHEMA, "masks": "always", "fast_forward": "canonical", "strategy": "sample", "top_p": 0.9},
]


def texts(llm: LLM, **options: Any) -> list[tuple[Any, ...]]:
    prompts = [prompt or [5, 6, 7] for prompt in PROMPTS]
    done = llm.generate(prompts, max_new_tokens=20, on_error="return", **options)  # type: ignore[arg-type]
    return [(one.text, one.finish_reason, one.token_ids, [other.text for other in one.others]) for one in done]


def be_captured(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the steps of a model over pages be captured from the first one on."""
    model: Any = llm.model.paged  # type: ignore[attr-defined]
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(decode_step, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(model, "capture", RecordedCapture())
    monkeypatch.setattr(model, "_steps", WeakKeyDictionary())


@pytest.mark.parametrize(
    ("is_captured", "numbers"),
    [(False, [2, 5, 9, 10]), (True, [1, 6, 8, 11]), pytest.param(False, range(13), marks=pytest.mark.slow),
     pytest.param(True, range(13), marks=pytest.mark.slow)],
)  # fmt: skip
def test_texts_are_those_of_the_step_by_step_loop(
    plain: LLM, ahead: LLM, loops: list[RunAhead], monkeypatch: pytest.MonkeyPatch, is_captured: bool, numbers: Any
) -> None:
    if is_captured:
        be_captured(ahead, monkeypatch)
    for options in (STRATEGIES[number] for number in numbers):
        loops.clear()
        assert texts(ahead, **options) == texts(plain, **options), options
        assert sum(loop.num_steps for loop in loops) > 3, options


def test_a_step_needs_nothing_of_the_host_in_steady_state(ahead: LLM, loops: list[RunAhead]) -> None:
    ahead.generate(["Once upon a time", "The end of"], max_new_tokens=60)
    [loop] = loops
    assert loop.num_steps >= 58
    assert loop.num_uploads <= 8  # the first step, and a page for each row every 32 tokens


def test_a_token_that_the_constraint_refuses_does_not_stay(ahead: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the question, texts leave their constraint."""
    right = texts(ahead, constraint=SCHEMA)
    monkeypatch.setattr(RunAhead, "_allows", lambda self, text, entry, draw: True)
    with pytest.raises(RuntimeError, match="refused token"):
        texts(ahead, constraint=SCHEMA)
    assert any('{"name' in text for text, *_ in right)


def test_what_has_no_program_is_decoded_step_by_step(plain: LLM, ahead: LLM, loops: list[RunAhead]) -> None:
    for options in ({"logprobs": 2}, {"strategy": "beam", "num_beams": 2},
                    {"strategy": "sample", "repetition_penalty": 1.2}):  # fmt: skip
        assert texts(ahead, **options) == texts(plain, **options), options
    assert sum(loop.num_steps for loop in loops) == 0
