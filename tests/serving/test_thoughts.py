"""Thoughts at the endpoint: apart from content and calls, in answers and in streams, for openai's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import openai
import pytest

from tests.chat.thinking_model import BY_OPTION, CHANNELS, FREE, OPEN, WITHOUT, llm_of
from tests.serving.conftest import Endpoint, endpoint_of, events_of
from tests.sizes import few

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASKED = [{"role": "user", "content": "How much?"}]
NUMBER: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<call>\n{"name": "look", "arguments": {}}\n</call>'


def served(template: str, writes: str, is_special: bool = False) -> Iterator[Endpoint]:
    made = endpoint_of(llm_of(template, writes, is_special))
    yield made
    made.service.close()


@pytest.fixture(scope="module")
def thinking() -> Iterator[Endpoint]:
    """A model whose prompt has begun the thought."""
    yield from served(OPEN, "It {\n is\n</think>\n\n7")


@pytest.fixture(scope="module")
def calling() -> Iterator[Endpoint]:
    """A model that may think before it calls a tool."""
    yield from served(FREE, f"<think>\nI look\n</think>\n\n{CALL}")


def talk(endpoint: Endpoint, act: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with openai.AsyncOpenAI(
            api_key="none", base_url="http://endpoint/v1", http_client=endpoint.client(), max_retries=0
        ) as client:
            return await act(client)

    return asyncio.run(run())


def deltas(answer: Any) -> dict[str, str]:
    """The fields of a stream of a chat, each put together."""
    found: dict[str, str] = {}
    for event in events_of(answer)[:-1]:
        for choice in event["choices"]:
            for name, text in choice["delta"].items():
                if isinstance(text, str) and name != "role":
                    found[name] = found.get(name, "") + text
    return found


@pytest.mark.parametrize("more", [{"response_format": NUMBER}, {}, {"stop": ["zz"]}, {"guided_regex": "[0-9]+"}])
def test_the_thought_is_no_part_of_the_content(thinking: Endpoint, more: dict[str, Any]) -> None:
    body = {"messages": ASKED, **more}
    answer = thinking.post(CHAT, body).json()
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("7", "It {\n is")
    details = answer["usage"]["completion_tokens_details"]
    assert 5 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    told = deltas(thinking.post(CHAT, body | {"stream": True}))
    assert told == {"content": "7", "reasoning_content": "It {\n is"}
    without = thinking.post(CHAT, body | {"include_reasoning": False}).json()["choices"][0]["message"]
    assert without == {"role": "assistant", "content": "7", "refusal": None}
    assert deltas(thinking.post(CHAT, body | {"include_reasoning": False, "stream": True})) == {"content": "7"}


@few(2)
@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize(
    ("template", "writes"),
    [
        (FREE, "\n<think>\nsix\n</think>\n\n7"),
        (CHANNELS, "<|channel|>thought<|text|>six<|stop|><|start|>assistant<|channel|>last<|text|>7"),
    ],
)
def test_thoughts_that_the_model_begins(template: str, writes: str, is_special: bool) -> None:
    for endpoint in served(template, writes, is_special):
        for more in ({}, {"response_format": NUMBER}):
            message = endpoint.post(CHAT, {"messages": ASKED, **more}).json()["choices"][0]["message"]
            assert (message["content"], message["reasoning_content"]) == ("7", "six")
            told = deltas(endpoint.post(CHAT, {"messages": ASKED, "stream": True, **more}))
            assert told == {"content": "7", "reasoning_content": "six"}


@pytest.mark.parametrize("template", [FREE, WITHOUT])
def test_answers_without_a_thought(template: str) -> None:
    for endpoint in served(template, "7"):
        answer = endpoint.post(CHAT, {"messages": ASKED, "response_format": NUMBER}).json()
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "7", "refusal": None}
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
        assert deltas(endpoint.post(CHAT, {"messages": ASKED, "stream": True})) == {"content": "7"}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_behind_thoughts(calling: Endpoint, choice: str) -> None:
    body = {"messages": ASKED, "tools": [LOOK], "tool_choice": choice, "max_tokens": 90}
    [found] = calling.post(CHAT, body).json()["choices"]
    assert found["finish_reason"] == "tool_calls" and found["message"]["reasoning_content"] == "I look"
    assert found["message"]["content"] is None
    assert found["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    answer = calling.post(CHAT, body | {"stream": True})
    assert deltas(answer)["reasoning_content"] == "I look"
    kinds = [name for event in events_of(answer)[:-1] for one in event["choices"] for name in one["delta"]]
    assert kinds.index("tool_calls") > max(at for at, name in enumerate(kinds) if name == "reasoning_content")
    # the next turn, with all that was said
    tool = {"role": "tool", "tool_call_id": found["message"]["tool_calls"][0]["id"], "content": "SUN"}
    again = calling.post(CHAT, {"messages": [*ASKED, found["message"], tool], "tools": [LOOK], "max_tokens": 60})
    assert again.status_code == 200, again.text
    written = calling.service.prompts._chat([LOOK], {}).written(
        calling.llm.tokenizer, [*ASKED, found["message"], tool], "messages"
    )
    assert "I look" in written and '"name": "look"' in written and "SUN" in written


def test_samples_and_log_probabilities_are_those_of_the_content(thinking: Endpoint) -> None:
    body = {"messages": ASKED, "n": 2, "logprobs": True, "temperature": 0, "response_format": NUMBER}
    for choice in thinking.post(CHAT, body).json()["choices"]:
        assert [one["token"] for one in choice["logprobs"]["content"]][:1] == ["7"]
    entries = [
        entry["token"]
        for event in events_of(thinking.post(CHAT, body | {"stream": True, "n": 1}))[:-1]
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert entries[0] == "7"


def test_openai_s_client(thinking: Endpoint) -> None:
    async def act(client: openai.AsyncOpenAI) -> None:
        create: Any = client.chat.completions.create
        whole = await create(model="toy", messages=ASKED, response_format=NUMBER)
        assert whole.choices[0].message.content == "7"
        assert whole.choices[0].message.model_extra["reasoning_content"] == "It {\n is"
        again = await create(model="toy", messages=[*ASKED, whole.choices[0].message, *ASKED], max_tokens=60)
        assert again.choices[0].message.content == "7"
        chunks: AsyncIterator[Any] = await create(model="toy", messages=ASKED, stream=True)
        told = [one.choices[0].delta.model_extra.get("reasoning_content") or "" async for one in chunks]
        assert "".join(told) == "It {\n is"

    talk(thinking, act)


def test_responses(thinking: Endpoint) -> None:
    body = {
        "input": "How much?",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}},
    }
    answer = thinking.post(RESPONSES, body).json()
    thought, message = answer["output"]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "It {\n is"}])
    assert message["content"][0]["text"] == "7" and answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 5
    events = events_of(thinking.post(RESPONSES, body | {"stream": True}))
    assert [one["sequence_number"] for one in events] == [*range(len(events))]
    by_type: dict[str, list[Any]] = {}
    for one in events:
        by_type.setdefault(one["type"].removeprefix("response."), []).append(one)
    assert "".join(one["delta"] for one in by_type["reasoning_text.delta"]) == "It {\n is"
    assert by_type["reasoning_text.done"][0]["text"] == "It {\n is"
    assert "".join(one["delta"] for one in by_type["output_text.delta"]) == "7"
    assert [one["output_index"] for one in by_type["output_item.added"]] == [0, 1]
    assert {one["output_index"] for one in by_type["output_text.delta"]} == {1}
    done = [one["item"]["type"] for one in by_type["output_item.done"]]
    assert done == ["reasoning", "message"]
    assert [one["type"] for one in by_type["completed"][0]["response"]["output"]] == done

    async def act(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="toy", input="How much?")
        items: Any = [*ASKED, *first.output, *ASKED]
        second = await client.responses.create(model="toy", input=items)
        assert second.output_text == "7" and second.output[0].type == "reasoning"
        async with client.responses.stream(model="toy", input="How much?") as stream:
            final = await stream.get_final_response()
        assert final.output_text == "7"

    talk(thinking, act)


def test_a_thought_that_is_cut(thinking: Endpoint) -> None:
    body = {"messages": ASKED, "max_tokens": 3, "response_format": NUMBER}
    [choice] = thinking.post(CHAT, body).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert choice["message"]["reasoning_content"] == "It {\n is"[: len(choice["message"]["reasoning_content"])] != ""
    closed = thinking.post(CHAT, {**body, "max_tokens": 40, "thinking_token_budget": 2}).json()["choices"][0]["message"]
    assert closed["content"] == "7" and len(closed["reasoning_content"]) < len("It {\n is")
    response = thinking.post(RESPONSES, {"input": "a", "max_output_tokens": 3}).json()
    assert response["status"] == "incomplete" and response["output"][0]["type"] == "reasoning"


EFFORT_TEMPLATE = FREE.replace("{%- if tools %}", '{{- "effort:" + (reasoning_effort or "any") }}{%- if tools %}', 1)
BUDGET_TEMPLATE = FREE.replace(
    "{%- if tools %}", '{{- "budget:" + (thinking_budget or 0) | string }}{%- if tools %}', 1
)


@few(5)
@pytest.mark.parametrize(
    ("template", "fields", "told", "options"),
    [
        (EFFORT_TEMPLATE, {"reasoning_effort": "low"}, "effort:low", {}),
        (EFFORT_TEMPLATE, {}, "effort:any", {}),
        (EFFORT_TEMPLATE, {"reasoning_effort": "none"}, "effort:any", {"max_reasoning_tokens": 0}),
        (BY_OPTION, {"reasoning_effort": "none"}, "</think>", {}),
        (BY_OPTION, {"reasoning_effort": "high"}, "<|assistant|>\n", {}),
        (OPEN, {"reasoning_effort": "none"}, "<think>\n", {"max_reasoning_tokens": 0}),
        (WITHOUT, {"reasoning_effort": "none"}, "<|assistant|>\n", {}),
        (BUDGET_TEMPLATE, {"thinking_token_budget": 7}, "budget:7", {"max_reasoning_tokens": 7}),
    ],
)
def test_efforts_and_budgets(
    template: str, fields: dict[str, Any], told: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for endpoint in served(template, "7"):
        read = endpoint.service.prompts.of_ids

        tokenizer = endpoint.llm.tokenizer

        def of_ids(ids: list[int], at: str = "prompt", read: Any = read, tokenizer: Any = tokenizer) -> Any:
            seen.append(tokenizer.decode(ids))
            return read(ids, at)

        monkeypatch.setattr(endpoint.service.prompts, "of_ids", of_ids)
        answer = endpoint.post(CHAT, {"messages": ASKED, "max_tokens": 50, "response_format": NUMBER, **fields})
        assert answer.status_code == 200, answer.text
        assert told in seen[0] and answer.json()["choices"][0]["message"]["content"] == "7"
        if "max_reasoning_tokens" in options and template == OPEN:
            assert answer.json()["choices"][0]["message"]["reasoning_content"] == ""


@pytest.mark.parametrize(
    ("template", "path", "fields", "param"),
    [
        (WITHOUT, CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (WITHOUT, CHAT, {"thinking_token_budget": 3}, "thinking_token_budget"),
        (WITHOUT, RESPONSES, {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        (OPEN, CHAT, {"reasoning_effort": "most"}, "reasoning_effort"),
        (OPEN, CHAT, {"thinking_token_budget": -1}, "thinking_token_budget"),
    ],
)
def test_what_a_model_has_not_is_refused_by_name(template: str, path: str, fields: dict[str, Any], param: str) -> None:
    asked = {"messages": ASKED} if path == CHAT else {"input": "a"}
    for endpoint in served(template, "7"):
        answer = endpoint.post(path, {**asked, **fields})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, json.dumps(answer.json())


def test_completions_are_plain_texts(thinking: Endpoint) -> None:
    """No chat, no thought: what stands in the prompt is the client's."""
    found = thinking.post("/v1/completions", {"prompt": "<|assistant|>\n<think>\n", "max_tokens": 60}).json()
    assert found["choices"][0]["text"] == "It {\n is\n</think>\n\n7"
