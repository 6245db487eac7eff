"""A step ahead of the host the texts are what they are step by step: free and constrained, captured and not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from decodekit import LLM
from decodekit.generation import decode_step
from decodekit.generation.run_ahead import RunAhead
from decodekit.models.huggingface import HuggingFaceLM
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


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM.load("tiny")


def over_pages(plain: LLM) -> LLM:
    model: Any = plain.model
    return LLM(HuggingFaceLM(copy.deepcopy(model.model), tier="paged"), plain.tokenizer)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[RunAhead]:
    """Those that are made during a test."""
    made: list[RunAhead] = []
    begin = RunAhead.__init__

    def init(self: RunAhead, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(RunAhead, "__init__", init)
    return made


def texts(llm: LLM, **options: Any) -> list[tuple[Any, ...]]:
    prompts = [prompt or [5, 6, 7] for prompt in PROMPTS]
    done = llm.generate(prompts, max_new_tokens=20, on_error="return", **options)  # type: ignore[arg-type]
    return [(one.text, one.finish_reason, one.token_ids, [other.text for other in one.others]) for one in done]


@pytest.fixture(autouse=True)
def _short_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the attention looks at every slot of a table."""
    monkeypatch.setattr(paged, "LONGEST", 128)


@pytest.mark.parametrize(
    ("is_captured", "numbers"),
    [(False, [2, 5, 9, 10]), (True, [1, 6, 8, 11]), pytest.param(False, range(13), marks=pytest.mark.slow),
     pytest.param(True, range(13), marks=pytest.mark.slow)],
)  # fmt: skip
def test_texts_are_those_of_the_step_by_step_loop(
    plain: LLM, loops: list[RunAhead], monkeypatch: pytest.MonkeyPatch, is_captured: bool, numbers: Any
) -> None:
    ahead = over_pages(plain)
    if is_captured:
        monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
        monkeypatch.setattr(decode_step, "CAPTURE_AFTER", 0)
        assert ahead.model.paged is not None  # type: ignore[attr-defined]
        ahead.model.paged.capture = RecordedCapture()  # type: ignore[attr-defined]
    for options in (STRATEGIES[number] for number in numbers):
        loops.clear()
        assert texts(ahead, **options) == texts(plain, **options), options
        assert sum(loop.num_steps for loop in loops) > 3, options


def test_a_step_needs_nothing_of_the_host_in_steady_state(plain: LLM, loops: list[RunAhead]) -> None:
    ahead = over_pages(plain)
    ahead.generate(["Once upon a time", "The end of"], max_new_tokens=60)
    [loop] = loops
    assert loop.num_steps >= 58
    assert loop.num_uploads <= 8  # the first step, and a page for each row every 32 tokens


def test_a_token_that_the_constraint_refuses_does_not_stay(
    plain: LLM, monkeypatch: pytest.MonkeyPatch, loops: list[RunAhead]
) -> None:
    """Negative control: without the question, texts leave their constraint."""
    ahead = over_pages(plain)
    right = texts(ahead, constraint=SCHEMA)
    monkeypatch.setattr(RunAhead, "_allows", lambda self, text, entry, draw: True)
    with pytest.raises(RuntimeError, match="refused token"):
        texts(ahead, constraint=SCHEMA)
    assert any('{"name' in text for text, *_ in right)


def test_what_has_no_program_is_decoded_step_by_step(plain: LLM, loops: list[RunAhead]) -> None:
    ahead = over_pages(plain)
    for options in ({"logprobs": 2}, {"strategy": "beam", "num_beams": 2},
                    {"strategy": "sample", "repetition_penalty": 1.2}):  # fmt: skip
        assert texts(ahead, **options) == texts(plain, **options), options
    assert sum(loop.num_steps for loop in loops) == 0


def test_nan_is_the_error_of_its_row(plain: LLM, monkeypatch: pytest.MonkeyPatch, loops: list[RunAhead]) -> None:
    """A row whose logits become NaN on the way fails as on the host; its neighbours' texts are unchanged."""
    ahead = over_pages(plain)
    expected = texts(plain)
    model = ahead.model.paged  # type: ignore[attr-defined]
    read = model.read

    def poisoned(state: Any, num_seen: int = 0, module: Any = None) -> Any:
        logits = read(state, num_seen, module)
        is_long = (state.starts + state.counts > 15).repeat_interleave(state.width)
        is_second = state.rows == 1
        bad = is_long & is_second.repeat_interleave(state.width)
        return torch.where(bad[: len(logits), None], torch.nan, logits)

    monkeypatch.setattr(model, "read", poisoned)
    monkeypatch.setattr(model, "_run_eagerly", _poisoned_eagerly(model))
    done = texts(ahead)
    failed = [row for row, one in enumerate(done) if one[1] == "error"]
    assert len(failed) == 1
    assert [one for row, one in enumerate(done) if row not in failed] == [
        one for row, one in enumerate(expected) if row not in failed
    ]


def _poisoned_eagerly(model: Any) -> Any:
    run = model._run_eagerly

    def poisoned(state: Any, num_seen: int, most: int, num_wanted: int, *rest: Any) -> Any:
        logits = run(state, num_seen, most, num_wanted, *rest)
        if most == 1 and state.width == 1:
            is_second = (state.rows == 1) & (state.starts + state.counts > 15)
            logits = torch.where(is_second[:, None], torch.nan, logits)
        return logits

    return poisoned
