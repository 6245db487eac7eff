"""An agent at the endpoint: three turns with calls and results, as clients hold them, in every way to write calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import openai
import pytest

from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.forms.message_form import REASONING_NAMES
from decodekit.chat.template_thought import thought_of
from decodekit.chat.tool_format import derive
from decodekit.constraints.tool_calls import ToolCall
from tests.chat.cases import THOUGHT, Call, Case, Form, Rendered, expected, form_of, render
from tests.chat.corpus import needs_corpus, template
from tests.chat.made_templates import MADE, tokenizer_of
from tests.serving.conftest import endpoint_of
from tests.serving.scripted import Script
from tests.serving.test_thoughts import talk
from tests.sizes import few

TOOLS: Final[Any] = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": {
        "type": "object", "properties": properties, "required": [*properties][:1], "additionalProperties": False,
    }, "strict": True}}
    for name, properties in (
        ("get_weather", {"city": {"type": "string"}, "days": {"type": "integer"}}),
        ("say", {"text": {"type": "string"}}),
    )
]  # fmt: skip
ASKED: Final[Any] = {"role": "user", "content": "What is the weather in Paris?"}
PARIS: Final = Call("get_weather", {"city": "Paris", "days": 3})
SAY: Final = Call("say", {"text": "é x\n<b>1 & 2</b> {y}"})
RESULTS: Final = ("Sunny, 21 degrees.", "It was said.")
TURNS: Final = (Case("", (PARIS, SAY)), Case("", (SAY,), "One moment."), Case("", (), "It is sunny in Paris."))
ORDINARY: Final = ("json in tags", "name, id, json", "typed elements", "channels", "json alone",
                   "numbered identifiers", "thought in the prompt", "thought of the model")  # fmt: skip
REAL: Final = (
    "ik/Apertus-8B-Instruct", "ik/ByteDance-Seed-OSS", "ik/GLM-4.6", "ik/GLM-5.2", "ik/GigaChat3.1-10B-A1.8B",
    "ik/Mistral-Small-3.2-24B-Instruct-2506", "ik/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "ik/Qwen-Qwen3-0.6B",
    "ik/Qwen3-Coder", "ik/Qwen3.5-4B", "ik/deepseek-ai-DeepSeek-V3.1", "ik/deepseek-ai-DeepSeek-V3.2",
    "ik/google-gemma-4-31B-it-interleaved", "ik/openai-gpt-oss-120b", "e2e/meta-llama_Llama-3.1-8B-Instruct",
    "e2e/mistralai_Mistral-Nemo-Instruct-2407", "e2e/openbmb_MiniCPM3-4B", "e2e/ai21labs_AI21-Jamba-Large-1.6",
    "ik/CohereForAI-c4ai-command-r7b-12-2024-tool_use",
)  # fmt: skip
"""One for each way to write calls in which the prompt of transformers is known: DeepSeek R1 loses text before calls
there, functionary and LFM 2.5 write a content that is absent otherwise than an empty one."""


class World:
    """An endpoint with a template, and what its model writes in each turn.

    Attributes:
        thought_name: what the template calls a thought.
        turns: thought and response of each turn, as far as the template has room for them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        form = form_of(tokenizer)
        assert isinstance(form, Form), form
        self.form, self.script = form, Script(tokenizer)
        self.thought = thought_of(tokenizer, TemplateArguments(tools=TOOLS))
        read = re.findall(r"\bmessage\.(\w+)", tokenizer.chat_template)
        self.thought_name = next((name for name in REASONING_NAMES if name in read), "reasoning_content")
        self.turns = [self._shown(case) for case in TURNS]
        self.endpoint = endpoint_of(self.script.llm)

    def _shown(self, case: Case) -> tuple[str, Case]:
        """A turn with what the template writes of it: several calls, text before them, a thought."""
        alone = Case("", case.calls)
        is_alone = bool(case.calls) and derive(self.tokenizer).is_alone
        options = [alone if is_alone else case, alone, Case("", case.calls[:1])]
        found = next(one for one in options if isinstance(expected(self.tokenizer, one, self.form), Rendered))
        alone_of = expected(self.tokenizer, found, self.form, thought=THOUGHT)
        may_think = isinstance(alone_of, Rendered) and self.thought is not None
        has_thought = may_think and self.thought.behind(alone_of.prompt[-200:]) is not None
        return THOUGHT if has_thought else "", found

    def talks(self) -> Talk:
        return Talk(self)


class Talk:
    """A conversation, as the template reads it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shown: list[Any] = [{**ASKED, "content": world.form.text(ASKED["content"])}]

    def write(self, thought: str, case: Case) -> None:
        """Let the model take the next turn, and the client give the results of its calls."""
        world, form = self._world, self._world.form
        prompt = render(world.tokenizer, self._shown, tools=form.tools(TOOLS), add_generation_prompt=True)
        calls = [ToolCall(one.name, one.arguments, form.call_id(one, at)) for at, one in enumerate(case.calls)]
        writes = derive(world.tokenizer).written(case.content, calls)
        if thought and world.thought is not None:
            begun = world.thought.behind(prompt[-200:])
            assert begun is not None, prompt[-200:]
            writes = f"{'' if begun.is_open else begun.begin}{thought}{begun.end}{writes}"
        world.script.behind(prompt, writes)
        self._shown.append(form.message(case) | ({world.thought_name: thought} if thought else {}))
        self._shown += [form.result(call, number, RESULTS[number]) for number, call in enumerate(case.calls)]

    def take(self, ids: list[str]) -> None:
        """Have the identifiers of the last calls that the client was told before the model had written its own."""
        if ids and not derive(self._world.tokenizer).is_id_first:
            calls, results = self._shown[-len(ids) - 1]["tool_calls"], self._shown[-len(ids) :]
            for call, result, id in zip(calls, results, ids, strict=True):
                call["id"] = result["tool_call_id"] = id


@pytest.fixture(scope="module", params=[
    name if name in ORDINARY else pytest.param(name, marks=pytest.mark.slow) for name in MADE
])  # fmt: skip
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    one = World(tokenizer_of(MADE[request.param].template))
    yield one
    one.endpoint.service.close()


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest) -> Iterator[World]:
    one = World(template(request.param).tokenizer())
    yield one
    one.endpoint.service.close()


async def choice_of(client: openai.AsyncOpenAI, is_streamed: bool, **fields: Any) -> Any:
    """The choice of an answer, as the client puts it together."""
    if not is_streamed:
        return (await client.chat.completions.create(model="toy", **fields)).choices[0]
    async with client.chat.completions.stream(model="toy", **fields) as stream:
        return (await stream.get_final_completion()).choices[0]


def three_turns(world: World, is_streamed: bool, as_dict: bool) -> None:
    """Each answer goes back as it came, with results; the model goes on only if the prompt is that of the template."""
    conversation = world.talks()

    async def act(client: openai.AsyncOpenAI) -> None:
        messages: list[Any] = [ASKED]
        for thought, case in world.turns:
            conversation.write(thought, case)
            choice = await choice_of(client, is_streamed, messages=messages, tools=TOOLS, temperature=0)
            message = choice.message
            calls = message.tool_calls or []
            assert world.script.missed == []
            assert ((message.content or "").strip(), thought_in(message)) == (case.content, thought)
            found = [(one.function.name, json.loads(one.function.arguments)) for one in calls]
            assert found == [(one.name, one.arguments) for one in case.calls]
            assert len({one.id for one in calls}) == len(calls) and all(one.type == "function" for one in calls)
            assert choice.finish_reason == ("tool_calls" if calls else "stop")
            messages.append(message.model_dump() if as_dict else message)
            if is_streamed:
                conversation.take([one.id for one in calls])
            for call, result in zip(calls, RESULTS, strict=False):
                content: Any = [{"type": "text", "text": result}] if as_dict else result
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    talk(world.endpoint, act)


def thought_in(message: Any) -> str:
    return (message.model_extra or {}).get("reasoning_content") or ""


@few(3)
@pytest.mark.parametrize(("is_streamed", "as_dict"), [(False, False), (True, True)])
def test_three_turns(world: World, is_streamed: bool, as_dict: bool) -> None:
    three_turns(world, is_streamed, as_dict)


@needs_corpus
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_three_turns_of_real_templates(real: World, is_streamed: bool) -> None:
    three_turns(real, is_streamed, as_dict=is_streamed)


@few(2)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_three_turns_of_responses(world: World, is_streamed: bool) -> None:
    conversation = world.talks()
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]

    async def act(client: openai.AsyncOpenAI) -> None:
        items: list[Any] = [ASKED]
        for thought, case in world.turns:
            conversation.write(thought, case)
            given: Any = {"model": "toy", "input": items, "tools": tools, "temperature": 0}
            if is_streamed:
                async with client.responses.stream(**given) as stream:
                    response: Any = await stream.get_final_response()
            else:
                response = await client.responses.create(**given)
            calls = [one for one in response.output if one.type == "function_call"]
            thoughts = [part.text for one in response.output if one.type == "reasoning" for part in one.content]
            assert world.script.missed == []
            assert (response.status, response.output_text.strip(), "".join(thoughts)) == (
                "completed", case.content, thought
            )  # fmt: skip
            assert [(one.name, json.loads(one.arguments)) for one in calls] == [
                (one.name, one.arguments) for one in case.calls
            ]
            items += response.output
            for call, result in zip(calls, RESULTS, strict=False):
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})

    talk(world.endpoint, act)
