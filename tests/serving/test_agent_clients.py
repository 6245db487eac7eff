"""LangChain's and instructor's agents: their three turns are those of the endpoint, streamed and not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import instructor
import openai
import pydantic
import pytest

from tests.chat.made_templates import MADE, tokenizer_of
from tests.chat.thinking_model import FREE, llm_of
from tests.serving.conftest import Endpoint, endpoint_of
from tests.serving.test_agents import ASKED, RESULTS, TOOLS, World
from tests.sizes import few


class Look(pydantic.BaseModel):
    """Looks."""

    at: str
    days: int


WRITTEN = '{"at": "sea", "days": 3}'
CALL = f'<call>\n{{"name": "Look", "arguments": {WRITTEN}}}\n</call>'


@pytest.fixture(scope="module", params=["json in tags", "typed elements", "thought of the model"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    one = World(tokenizer_of(MADE[request.param].template))
    yield one
    one.endpoint.service.close()


@pytest.fixture(scope="module", params=["", "<think>\nhm\n</think>\n\n"])
def calling(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    made = endpoint_of(llm_of(FREE, request.param + CALL))
    yield made
    made.service.close()


@pytest.fixture(scope="module")
def writing() -> Iterator[Endpoint]:
    made = endpoint_of(llm_of(FREE, f"<think>\nhm\n</think>\n\n{WRITTEN}"))
    yield made
    made.service.close()


def langchain_of(endpoint: Endpoint, **options: Any) -> Any:
    name = "langchain_openai"
    module = pytest.importorskip(name, reason="needs langchain-openai (extra `slow`)")
    return module.ChatOpenAI(
        model="toy", api_key="none", base_url="http://endpoint/v1", http_async_client=endpoint.client(), max_retries=0,
        **options,
    )  # fmt: skip


async def langchain_answer(model: Any, messages: list[Any], is_streamed: bool) -> Any:
    if not is_streamed:
        return await model.ainvoke(messages)
    whole = None
    async for chunk in model.astream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


@pytest.mark.parametrize("is_streamed", [False, True])
def test_three_turns_of_langchain(world: World, is_streamed: bool) -> None:
    """It leaves thoughts out of what it gives back; calls and results are all there."""
    model = langchain_of(world.endpoint, temperature=0).bind_tools(TOOLS)
    from langchain_core.messages import ToolMessage

    conversation = world.talks()

    async def act() -> None:
        messages: list[Any] = [("user", ASKED["content"])]
        for _, case in world.turns:
            conversation.write("", case)
            answer = await langchain_answer(model, messages, is_streamed)
            assert world.script.missed == [] and answer.content == case.content
            assert [(one["name"], one["args"]) for one in answer.tool_calls] == [
                (one.name, one.arguments) for one in case.calls
            ]
            messages.append(answer)
            for call, result in zip(answer.tool_calls, RESULTS, strict=False):
                messages.append(ToolMessage(result, tool_call_id=call["id"]))

    asyncio.run(act())


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_structured_output_of_langchain(calling: Endpoint, writing: Endpoint, method: str) -> None:
    model = langchain_of(calling if method == "function_calling" else writing)
    structured = model.with_structured_output(Look, method=method)
    for _ in range(3):
        assert asyncio.run(structured.ainvoke("How much?")) == Look(at="sea", days=3)


@few(1)
@pytest.mark.parametrize(
    "mode", [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON]
)
def test_three_turns_of_instructor(calling: Endpoint, writing: Endpoint, mode: instructor.Mode) -> None:
    endpoint = calling if "tool" in mode.value else writing

    async def act() -> None:
        plain = openai.AsyncOpenAI(api_key="none", base_url="http://endpoint/v1", http_client=endpoint.client())
        client: Any = instructor.from_openai(plain, mode=mode)
        messages: list[Any] = []
        for _ in range(3):
            messages.append({"role": "user", "content": "How much?"})
            given: Any = {"model": "toy", "messages": messages, "response_model": Look, "max_retries": 0}
            found = await client.chat.completions.create(**given)
            assert isinstance(found, Look) and found.model_dump() == json.loads(WRITTEN)
            if endpoint is writing:  # a tool is called PartialLook there, of which the model knows nothing
                shown = [one.model_dump() async for one in client.chat.completions.create_partial(**given)]
                assert shown[-1] == json.loads(WRITTEN)
            messages.append({"role": "assistant", "content": found.model_dump_json()})

    asyncio.run(act())
