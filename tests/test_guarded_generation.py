"""Guards and budgets on the bundled model, from the front door."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

import decodekit as dk
from decodekit.errors import GuardError, LengthError, OptionError, UselessOptionError

POINTS = {
    "type": "array",
    "uniqueItems": True,
    "minItems": 2,
    "maxItems": 4,
    "items": {
        "type": "object",
        "properties": {"x": {"enum": ["left", "right"]}, "y": {"enum": ["a", "b"]}},
        "required": ["x", "y"],
        "additionalProperties": False,
    },
}
RANGE = {
    "type": "object",
    "properties": {
        "low": {"type": "string", "pattern": "^[0-9]{2}$"},
        "high": {"type": "string", "pattern": "^[0-9]{2}$"},
    },
    "required": ["low", "high"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "emails": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        "age": {"type": "integer"},
    },
    "required": ["name", "emails", "age"],
    "additionalProperties": False,
}
HOT = dk.Sample(temperature=1.5)


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def is_range(value: dict[str, Any]) -> bool | str:
    return value["low"] <= value["high"] or f"{value['low']} > {value['high']}"


def test_distinct_objects(llm: dk.LLM) -> None:
    prompts = [f"Points {number}." for number in range(16)]
    points = dk.JsonSchema(POINTS, whitespace="compact")
    done = llm.generate(prompts, constraint=points, strategy=HOT, seed=range(16), max_new_tokens=200)
    finished = [completion for completion in done if completion.error is None]
    for completion in finished:
        assert completion.finish_reason in ("stop", "complete")
        jsonschema.validate(completion.value, POINTS)
    assert len(finished) >= 12
    assert sum(completion.stats.num_rollbacks for completion in done) > 0  # or the test shows nothing
    # Negative control: without the guard the same model repeats points.
    free = dk.JsonSchema(POINTS | {"uniqueItems": False}, whitespace="compact")
    plain = llm.generate(prompts, constraint=free, strategy=HOT, seed=range(16), max_new_tokens=200)
    repeats = [
        c.value for c in plain if c.value and len({json.dumps(v, sort_keys=True) for v in c.value}) < len(c.value)
    ]
    assert repeats


def test_a_function_of_the_user(llm: dk.LLM) -> None:
    prompts = [f"Between {number} and {90 - number}." for number in range(16)]
    guarded = dk.Guarded(dk.JsonSchema(RANGE, whitespace="compact"), is_range)
    done = llm.generate(prompts, constraint=guarded, strategy=HOT, seed=range(16), max_new_tokens=100)
    finished = [completion for completion in done if completion.error is None]
    assert all(is_range(completion.value) is True for completion in finished) and len(finished) >= 12
    assert all(isinstance(completion.error, GuardError | LengthError) for completion in done if completion.error)
    assert sum(completion.stats.num_guard_refusals for completion in done) > 0
    # Alone, and streamed, each is what it was in the batch; nothing that was handed out is taken back.
    chunks = list(llm.stream(prompts[3], constraint=guarded, strategy=HOT, seed=3, max_new_tokens=100))
    assert "".join(chunk.text for chunk in chunks) == done[3].text
    assert [token for chunk in chunks for token in chunk.token_ids] == list(done[3].token_ids)


@pytest.mark.parametrize("extra", [0, 1, 3, 10])
def test_budgets_from_the_least_one_up(llm: dk.LLM, extra: int) -> None:
    least = dk.compile(PERSON, llm.vocabulary).least_tokens()
    done = llm.generate(
        ["Ada, 36, ada@example.org"] * 4,
        constraint=PERSON,
        strategy=HOT,
        seed=range(4),
        max_new_tokens=least + extra,
        on_length="close",
    )
    for completion in done:
        assert completion.error is None and completion.stats.num_generated_tokens <= least + extra
        jsonschema.validate(completion.value, PERSON)


def test_options(llm: dk.LLM) -> None:
    least = dk.compile(PERSON, llm.vocabulary).least_tokens()
    with pytest.raises(OptionError, match=f"it needs {least}") as caught:
        llm.generate("x", constraint=PERSON, max_new_tokens=least - 1, on_length="close")
    assert caught.value.hint == f"max_new_tokens={least} or more"
    with pytest.raises(UselessOptionError, match="without a constraint"):
        llm.generate("x", on_length="close")
    with pytest.raises(UselessOptionError, match="a constraint with a guard"):
        llm.generate("x", constraint=PERSON, max_rollbacks=3)
    with pytest.raises(OptionError, match="max_rollbacks must be"):
        llm.generate("x", constraint=POINTS, max_rollbacks=-1)
    never = dk.Guarded(dk.Choices(["monday", "tuesday"]), lambda day: "no day is good enough")
    completion = llm.generate("x", constraint=never, max_rollbacks=2, max_new_tokens=50)
    assert isinstance(completion.error, GuardError) and "no day is good enough" in str(completion.error)
    assert completion.value is None and completion.stats.num_rollbacks <= 2
