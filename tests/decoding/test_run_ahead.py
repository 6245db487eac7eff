"""A step ahead of the host the texts are what they are step by step: free and constrained, captured and not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decodekit import LLM
from decodekit.constraints import Regex, compile
from decodekit.decoding.draws import device_step as decode_step
from decodekit.decoding.draws.device_step import DecodeStep
from decodekit.decoding.lazy_masks.mask_pool import mask_key
from decodekit.decoding.lazy_masks.state_memory import StateMemory
from decodekit.decoding.loop.device_pass import DevicePass
from decodekit.errors import OptionError
from decodekit.models.runners import paged
from decodekit.strategy import Beam
from tests.decoding.test_asking import VOCABULARY
from tests.models.recording import RecordedCapture
from tests.sizes import few

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
    done = llm.generate(prompts, max_new_tokens=16, on_error="return", **options)  # type: ignore[arg-type]
    return [(one.text, one.finish_reason, one.token_ids, [other.text for other in one.others]) for one in done]


def be_captured(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the steps of a model over pages be captured from the first one on."""
    model: Any = llm.model.paged  # type: ignore[attr-defined]
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(decode_step, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(model, "capture", RecordedCapture())


@few(1)
@pytest.mark.parametrize(
    ("is_captured", "numbers"),
    [(False, [9]), (True, [1]), pytest.param(False, range(13), marks=pytest.mark.slow),
     pytest.param(True, range(13), marks=pytest.mark.slow)],
)  # fmt: skip
def test_texts_are_those_of_the_step_by_step_loop(
    plain: LLM, ahead: LLM, loops: list[DevicePass], monkeypatch: pytest.MonkeyPatch, is_captured: bool, numbers: Any
) -> None:
    if is_captured:
        be_captured(ahead, monkeypatch)
    for options in (STRATEGIES[number] for number in numbers):
        loops.clear()
        assert texts(ahead, **options) == texts(plain, **options), options
        assert sum(loop.num_steps for loop in loops) > 3, options


@pytest.mark.parametrize("is_baked", [False, True])
def test_a_step_that_bakes_a_position_is_not_captured(
    plain: LLM, ahead: LLM, monkeypatch: pytest.MonkeyPatch, is_baked: bool
) -> None:
    """Negative control: positions from the host show when the captured reading is compared with the modules."""
    be_captured(ahead, monkeypatch)
    model: Any = ahead.model.paged  # type: ignore[attr-defined]
    step_of = model._step_of

    def baked(state: Any, num_seen: int) -> Any:
        step, inputs = step_of(state, num_seen)
        if state.width == 1:
            step.positions = torch.full_like(step.positions, num_seen)
        return step, inputs

    if is_baked:
        monkeypatch.setattr(model, "_step_of", baked)
    prompt = "Once upon a time"
    assert ahead.generate(prompt, max_new_tokens=12).text == plain.generate(prompt, max_new_tokens=12).text
    programs = model.steps_over(model._rows).programs.values()
    [step] = [one for one in programs if isinstance(one, DecodeStep) and one.shape.width == 1]
    assert (step._run is None) == step._proof.is_refused == is_baked


def test_a_step_needs_nothing_of_the_host_in_steady_state(ahead: LLM, loops: list[DevicePass]) -> None:
    ahead.generate(["Once upon a time", "The end of"], max_new_tokens=60)
    [loop] = loops
    assert loop.num_steps >= 58
    assert loop.num_uploads <= 8  # the first step, and a page for each row every 32 tokens


def test_a_token_that_the_constraint_refuses_does_not_stay(ahead: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the question, texts leave their constraint."""
    right = texts(ahead, constraint=SCHEMA)
    monkeypatch.setattr(DevicePass, "allows", lambda self, text, entry, draw: True)
    wrong = ahead.generate(["Once upon a time"], constraint=SCHEMA, max_new_tokens=16, on_error="return")
    assert any("refused token" in str(one.error) for one in wrong)
    assert any('{"name' in text for text, *_ in right)


def test_what_has_no_program_is_decoded_step_by_step(plain: LLM, ahead: LLM, loops: list[DevicePass]) -> None:
    for options in ({"logprobs": 2}, {"strategy": "beam", "num_beams": 2},
                    {"strategy": "sample", "repetition_penalty": 1.2}):  # fmt: skip
        assert texts(ahead, **options) == texts(plain, **options), options
    assert sum(loop.num_steps for loop in loops) == 0


def test_states_that_refuse_are_known_the_next_time(plain: LLM, ahead: LLM, loops: list[DevicePass]) -> None:
    """Fewer passes in vain, and the same texts."""
    expected, num_steps = texts(plain, constraint=SCHEMA), []
    for _ in range(2):
        loops.clear()
        assert texts(ahead, constraint=SCHEMA) == expected
        num_steps.append((sum(loop.num_dropped for loop in loops), sum(loop.num_steps for loop in loops)))
    assert num_steps[1][0] < num_steps[0][0] and num_steps[1][1] <= num_steps[0][1]


def test_a_state_that_refuses_is_asked_about_again() -> None:
    """After 1, 3, 7, ... visits with a mask; once it allows what comes it is like any other."""
    matcher = compile(Regex("[ab]{2,5}"), VOCABULARY).matcher()
    before = matcher.fork()
    assert matcher.accept(0)
    known, rests = StateMemory(), []
    assert not known.refuses(matcher)
    for _ in range(7):
        known.note_answer(matcher, is_allowed=False)
        known.note_turn(mask_key(before), is_turned=False, after=matcher)
        assert known.is_turning(before)
        rests.append(0)
        while known.refuses(matcher):
            rests[-1] += 1
        known.note_turn(mask_key(before), is_turned=False, after=matcher)
        assert not known.is_turning(before)
    assert rests == [1, 3, 7, 15, 31, 31, 31]
    known.note_answer(matcher, is_allowed=True)
    known.note_answer(matcher, is_allowed=False)
    assert known.refuses(matcher) and not known.refuses(matcher) and not known.refuses(before)


def test_after_a_warm_up_nothing_is_captured_in_the_midst_of_texts(
    plain: LLM, ahead: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any number of rows, whatever is drawn: with top-k or without it is the same step."""
    be_captured(ahead, monkeypatch)
    model: Any = ahead.model.paged  # type: ignore[attr-defined]
    assert plain.warm_up() == 0
    # 2 rows and 1, of 1, 4, 8 and 16 tokens, of the last three as drafts; and the passes of other loops
    assert ahead.warm_up(2, drafts=True) == 14 + 8
    again = RecordedCapture()
    monkeypatch.setattr(model, "capture", again)
    steps = [one for one in model.steps_over(model._rows).programs.values() if isinstance(one, DecodeStep)]
    for options in (STRATEGIES[1], STRATEGIES[8], {"strategy": Beam(2), "batch_size": 1}, {"logprobs": 2}):
        options = {"batch_size": 2, **options}
        assert texts(ahead, **options) == texts(plain, **options)
    assert [one for one in model.steps_over(model._rows).programs.values() if isinstance(one, DecodeStep)] == steps
    assert all(one.is_captured for one in steps) and not again.num_operations
    with pytest.raises(OptionError, match="batch_size must be"):
        ahead.warm_up(0)
