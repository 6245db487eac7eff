"""`Chunk.partial`: the value so far in streams of `LLM` and of engines, whatever makes them faster."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

import decodekit as dk
from decodekit.constraints import as_constraint
from decodekit.constraints.growing import GrowingValue
from decodekit.llm import Chunk
from decodekit.testing.toy import toy_llm
from tests.reference.growing_json import goes_on
from tests.sizes import few


class Line(BaseModel):
    text: str
    amount: int


class Bill(BaseModel):
    number: str
    lines: list[Line]
    is_paid: bool = False


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"name": "put", "parameters": SCHEMA}
OPTIONS: dict[str, Any] = {"strategy": "sample", "temperature": 1.0, "max_new_tokens": 60, "on_length": "close"}
FASTER: list[dict[str, Any]] = [
    {"speculate": dk.PromptLookup()},
    {"speculate": dk.Suffix()},
    {"fast_forward": "off"},
    {"batch_size": 1},
    {"masks": "always"},
]


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return toy_llm()


def dumped(value: Any) -> Any:
    return TypeAdapter(Any).dump_python(value, mode="json")


def check_chunks(chunks: list[Chunk], constraint: Any) -> dict[str, Any]:
    """The value so far by text so far; each is what the text alone says, and the last is the value."""
    shown, text = dict[str, Any](), ""
    for number, chunk in enumerate(chunks):
        text += chunk.text
        shown[text] = dumped(chunk.partial)
        if chunk.completion is None and number % 5 == 0:
            growing = GrowingValue.of(as_constraint(constraint))
            assert growing is not None and dumped(growing.push(text)()) == shown[text]
    completion = chunks[-1].completion
    assert completion is not None and completion.error is None
    value = completion.value
    wanted = value.calls if isinstance(value, dk.ToolResponse) else value[1] if isinstance(value, tuple) else value
    assert shown[text] == dumped(list(wanted) if isinstance(wanted, tuple) else wanted)
    return shown


@few(2)
@pytest.mark.parametrize(
    "constraint",
    [SCHEMA, Bill, dk.Reasoned(SCHEMA, max_chars=9), dk.tools([TOOL], "hermes", tool_choice="required", parallel=2)],
    ids=["schema", "model", "reasoned", "tools"],
)  # fmt: skip
def test_values_so_far_of_streams(llm: dk.LLM, constraint: Any) -> None:
    """Drafts, forced runs and batches cut a text otherwise; where they cut alike, the values are the same."""
    prompts = ["abc", 'put {"a": "abc"}']
    is_schema = isinstance(constraint, dict | type)
    options = {**OPTIONS, "constraint": constraint, "seed": [1, 2]}
    options["max_new_tokens"] = 60 if is_schema else 120
    plain: dict[int, dict[str, Any]] = {}
    for faster in [{}, *FASTER[: None if is_schema else 2]]:
        by_prompt: dict[int, list[Chunk]] = {0: [], 1: []}
        for chunk in llm.stream(prompts, **{**options, **faster}):
            by_prompt[chunk.index].append(chunk)
        for index, chunks in by_prompt.items():
            shown = check_chunks(chunks, constraint)
            same = plain.setdefault(index, shown)
            both = [text for text in shown if text in same]
            assert len(both) > 1 and all(shown[text] == same[text] for text in both)
            assert [*shown][-1] == [*same][-1]


def test_values_so_far_of_an_engine(llm: dk.LLM) -> None:
    """In threads and in event loops, and also of a request that nobody looked at while it ran."""
    with llm.engine(batch_size=4) as engine:
        handles = [engine.submit("abc", constraint=Bill, seed=seed, **OPTIONS) for seed in range(3)]

        async def read(handle: Any) -> list[Chunk]:
            return [chunk async for chunk in handle]

        found = [[*handles[0]], asyncio.run(read(handles[1]))]
        handles[2].result()
        found.append([*handles[2]])
    for chunks in found:
        shown = [*check_chunks(chunks, Bill).values()]
        assert len(shown) > 5
    bills = [chunk.partial for chunk in found[0] if chunk.partial is not None]
    assert {type(bill).__name__ for bill in bills} == {"PartialBill"} and len({type(bill) for bill in bills}) == 1


def test_a_text_that_is_cut_has_the_value_as_far_as_it_goes(llm: dk.LLM) -> None:
    *_, chunk = llm.stream("abc", constraint=SCHEMA, max_new_tokens=12, on_length="return", strategy="sample", seed=3)
    assert chunk.completion is not None and chunk.completion.value is None
    assert goes_on({"a": ""}, chunk.partial)


@pytest.mark.parametrize(
    "options",
    [{"constraint": dk.Guarded(SCHEMA, lambda value: len(value["b"]) != 1)}, {"constraint": SCHEMA, "max_retries": 1},
     {"constraint": SCHEMA, "strategy": dk.BestOf(2)}],
    ids=["guard", "retries", "best of"],
)  # fmt: skip
def test_what_may_be_taken_back_is_not_shown(llm: dk.LLM, options: Any) -> None:
    """A text that a guard or another attempt may take back is handed out at its end, and so is its value."""
    given = {name: OPTIONS[name] for name in OPTIONS if not (name == "temperature" and "strategy" in options)}
    chunks = [*llm.stream("abc", **{**given, "max_new_tokens": 80, **options})]
    shown = [chunk.partial for chunk in chunks if chunk.text]
    assert len(shown) == 1 and chunks[-1].completion is not None
    assert chunks[-1].partial == chunks[-1].completion.value is not None


@pytest.mark.parametrize("options", [{}, {"constraint": dk.Regex("[ab]{3}")}], ids=["none", "regex"])
def test_other_texts_have_no_value_so_far(llm: dk.LLM, options: Any) -> None:
    assert {chunk.partial for chunk in llm.stream("abc", max_new_tokens=5, on_length="return", **options)} == {None}


def test_nothing_is_read_before_it_is_asked_for(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("read")

    monkeypatch.setattr("decodekit.constraints.growing.GrowingSplit.push", refuse)
    completion = llm.generate("abc", constraint=SCHEMA, seed=1, **OPTIONS)
    assert json.loads(completion.text) == completion.value
    with pytest.raises(AssertionError, match="read"):
        _ = next(llm.stream("abc", constraint=SCHEMA, seed=1, **OPTIONS)).partial
