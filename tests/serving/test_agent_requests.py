"""What agents ask of an endpoint besides: choices of tools, results, limits inside of calls and thoughts, odd tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.chat.made_templates import MADE
from tests.chat.thinking_model import BY_OPTION, FREE, OPEN, llm_of
from tests.serving.conftest import Endpoint, endpoint_of, events_of
from tests.serving.test_routes import accumulated
from tests.sizes import few, thinned

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASKED: Final[Any] = {"role": "user", "content": "How much?"}
LOOK: Final[Any] = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}  # fmt: skip
SAY: Final[Any] = {"type": "function", "function": {"name": "say"}}
TWO: Final = (
    '<call>\n{"name": "look", "arguments": {"at": "sea"}}\n</call>\n<call>\n{"name": "say", "arguments": {}}\n</call>'
)


def served(template: str, writes: str, **options: Any) -> Iterator[Endpoint]:
    made = endpoint_of(llm_of(template, writes), **options)
    yield made
    made.service.close()


@pytest.fixture(scope="module")
def calling() -> Iterator[Endpoint]:
    """A model that makes two calls."""
    yield from served(MADE["json in tags"].template, TWO)


@pytest.fixture(scope="module")
def thinking() -> Iterator[Endpoint]:
    """A model that thinks, and then makes two calls."""
    yield from served(FREE, f"<think>\nI look é\n</think>\n\n{TWO}")


def both(endpoint: Endpoint, body: dict[str, Any]) -> Any:
    """The choice of an answer, which is the same in a stream."""
    answer = endpoint.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    [whole] = answer.json()["choices"]
    events = [one["choices"][0] for one in events_of(endpoint.post(CHAT, {**body, "stream": True}))[:-1]]
    deltas = [one["delta"] for one in events]
    calls = [one["function"] for one in whole["message"].get("tool_calls", [])]
    assert "".join(one.get("content") or "" for one in deltas) == (whole["message"]["content"] or "")
    thought = "".join(one.get("reasoning_content") or "" for one in deltas)
    assert thought == whole["message"].get("reasoning_content", "")
    assert accumulated(deltas)[: len(calls)] == calls
    assert whole["finish_reason"] == "length" or len(accumulated(deltas)) == len(calls)
    assert events[-1]["finish_reason"] == whole["finish_reason"]
    return whole


@few(3)
@pytest.mark.parametrize(
    ("fields", "names", "reason"),
    [
        ({}, ["look", "say"], "tool_calls"),
        ({"tool_choice": "auto"}, ["look", "say"], "tool_calls"),
        ({"tool_choice": "required"}, ["look", "say"], "tool_calls"),
        ({"parallel_tool_calls": True}, ["look", "say"], "tool_calls"),
        ({"parallel_tool_calls": False}, ["look"], "tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, ["look"], "tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "say"}}}, ["say"], "tool_calls"),
        ({"tool_choice": "none"}, [], None),
    ],
)
def test_choices(calling: Endpoint, fields: dict[str, Any], names: list[str], reason: str | None) -> None:
    body = {"messages": [ASKED], "tools": [LOOK, SAY], "temperature": 0, "max_tokens": 90, **fields}
    found = both(calling, body)
    calls = found["message"].get("tool_calls", [])
    assert [one["function"]["name"] for one in calls] == names
    assert reason is None or found["finish_reason"] == reason
    for one in calls:
        wanted = {"at": "sea"} if one["function"]["name"] == "look" else {}
        if len(names) == 2:
            assert json.loads(one["function"]["arguments"]) == wanted


def test_an_unknown_tool_is_named(calling: Endpoint) -> None:
    choice = {"type": "function", "function": {"name": "lok"}}
    answer = calling.post(CHAT, {"messages": [ASKED], "tools": [LOOK, SAY], "tool_choice": choice})
    assert answer.status_code == 400 and "'lok'" in answer.text and "'look'" in answer.text
    assert answer.json()["error"]["param"] == "tool_choice"


def call(id: str, name: str = "say", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id: str, content: Any = "b") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def said(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [*calls], **fields}


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([said(call("a")), result("b")], "messages.2.tool_call_id", "no call is 'b'"),
        ([said(call("a")), result("a"), result("a")], "messages.3.tool_call_id", "'a' has a result already"),
        ([result("a")], "messages.1.tool_call_id", "no call is 'a'"),
        ([said(call("a"), call("a"))], "messages.1.tool_calls.1.id", "two calls without a result"),
        ([said(call("a", arguments="{"))], "messages.1.tool_calls.0.function.arguments", "no JSON"),
    ],
)
def test_results_without_a_call_are_told(calling: Endpoint, messages: list[Any], param: str, says: str) -> None:
    answer = calling.post(CHAT, {"messages": [ASKED, *messages], "tools": [SAY]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param and says in answer.text
    items: list[Any] = []
    for one in messages:
        if one["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": one["tool_call_id"], "output": "b"})
        for made in one.get("tool_calls", ()):
            items.append({"type": "function_call", "call_id": made["id"], **made["function"]})
    answer = calling.post(RESPONSES, {"input": [ASKED, *items], "tools": []})
    assert answer.status_code == 400 and says in answer.text and answer.json()["error"]["param"].startswith("input.")


def prompt_of(endpoint: Endpoint, path: str, body: dict[str, Any]) -> str:
    """What the model reads of a request."""
    seen, prompts = list[str](), endpoint.service.prompts
    read = prompts.of_ids

    def of_ids(ids: list[int], at: str = "prompt") -> list[int]:
        seen.append(endpoint.llm.tokenizer.decode(ids))
        return read(ids, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "of_ids", of_ids)
        answer = endpoint.post(path, body)
    assert answer.status_code == 200, answer.text
    return seen[0]


@pytest.mark.parametrize(
    "fields", [{}, {"content": None}, {"content": ""}, {"content": [{"type": "text", "text": ""}]}]
)
@pytest.mark.parametrize("told", ["SUN", [{"type": "text", "text": "S"}, {"type": "text", "text": "UN"}]])
def test_the_forms_of_messages_are_one(calling: Endpoint, fields: dict[str, Any], told: Any) -> None:
    """Whatever a client sends for no content and for a result, the model reads the same; identifiers may come again."""
    turn = [said(call("a"), call("b"), **fields), result("b", told), result("a", told)]
    body = {"messages": [ASKED, *turn, *turn], "tools": [SAY], "tool_choice": "none", "max_tokens": 1}
    written = prompt_of(calling, CHAT, body)
    assert written.count('"name": "say", "arguments": {}') == 4 and written.count("SUN") == 4
    assert "None" not in written and "null" not in written


def test_identifiers_of_an_answer_differ() -> None:
    """A model that writes one twice is understood: the second call gets another."""
    made = MADE["numbered identifiers"]
    one = "<|call|>functions.say:0<|with|>{}<|call_end|>"
    for endpoint in served(made.template, f"<|calls|>{one}{one}<|calls_end|>"):
        found = both(endpoint, {"messages": [ASKED], "tools": [SAY], "temperature": 0})["message"]
        first, second = (one["id"] for one in found["tool_calls"])
        assert first == "functions.say:0" and second.startswith("call_")
        turn = [found, result(first), result(second)]
        assert endpoint.post(CHAT, {"messages": [ASKED, *turn], "tools": [SAY], "max_tokens": 1}).status_code == 200


@pytest.mark.slow
def test_every_limit_of_a_text_with_thought_and_calls(thinking: Endpoint) -> None:
    """Wherever a text is cut, what is told is a beginning of the whole, and no call is told that is not whole."""
    body = {"messages": [ASKED], "tools": [LOOK, SAY], "temperature": 0}
    whole = both(thinking, {**body, "max_tokens": 150})
    wanted = [one["function"] for one in whole["message"]["tool_calls"]]
    assert len(wanted) == 2 and whole["message"]["reasoning_content"] == "I look é"
    num_calls = set()
    for limit in range(1, 150, 4):
        [found] = thinking.post(CHAT, {**body, "max_tokens": limit}).json()["choices"]
        message = found["message"]
        assert "I look é\n</think>".startswith(message.get("reasoning_content", ""))
        calls = [one["function"] for one in message.get("tool_calls", [])]
        assert calls == wanted[: len(calls)]
        assert any(
            mark.startswith(message["content"] or "") for mark in ("<think>", "<call>")
        )  # which it might have been
        num_calls.add(len(calls))
        assert found["finish_reason"] in ("length", "tool_calls")  # a text that is whole where it is cut is a whole one
    assert num_calls >= {0, 1}


@few(1)
@pytest.mark.parametrize("template", [OPEN, FREE])
def test_every_budget_of_a_thought(template: str) -> None:
    """Also one that ends inside of a character or of a mark: the calls behind it are whole."""
    begin = "" if template == OPEN else "<think>\n"
    for endpoint in served(template, f"{begin}é <th\n</think>\n\n{TWO}"):
        for budget in range(9):
            body = {"messages": [ASKED], "tools": [LOOK, SAY], "temperature": 0, "thinking_token_budget": budget}
            found = both(endpoint, {**body, "tool_choice": "required", "max_tokens": 150})["message"]
            assert [one["function"]["name"] for one in found["tool_calls"]] == ["look", "say"]
            assert "é <th".startswith(found.get("reasoning_content", "")) and not found["content"]


def test_every_effort() -> None:
    for endpoint in served(BY_OPTION, TWO):
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
            body = {"messages": [ASKED], "tools": [LOOK, SAY], "reasoning_effort": effort, "temperature": 0}
            assert len(both(endpoint, {**body, "max_tokens": 120})["message"]["tool_calls"]) == 2
            told = {"chat_template_kwargs": {"enable_thinking": False}}
            assert endpoint.post(CHAT, {**body, **told, "max_tokens": 3}).status_code == 200
            wrong = endpoint.post(CHAT, {**body, "chat_template_kwargs": {"enable_thinkin": False}})
            assert wrong.status_code == 400 and "enable_thinking" in wrong.text


def test_several_texts_with_calls(thinking: Endpoint) -> None:
    body = {"messages": [ASKED], "tools": [LOOK, SAY], "n": 3, "max_tokens": 150}
    choices = thinking.post(CHAT, body).json()["choices"]
    assert [one["index"] for one in choices] == [0, 1, 2]
    ids = [made["id"] for one in choices for made in one["message"]["tool_calls"]]
    assert len({*ids}) == 6
    events = events_of(thinking.post(CHAT, {**body, "stream": True}))[:-1]
    for choice in choices:
        own = [one["choices"][0] for one in events if one["choices"][0]["index"] == choice["index"]]
        told = [made["function"] for made in choice["message"]["tool_calls"]]
        assert accumulated([one["delta"] for one in own]) == told and own[-1]["finish_reason"] == "tool_calls"


@thinned("name", MADE, keep=["json in tags"])
def test_a_hundred_tools_with_odd_names(name: str) -> None:
    names = ["a.b-c_d", "x-1", "9", "a" * 64, *(f"tool-{number}.x" for number in range(96))]
    tools = [{**LOOK, "function": {**LOOK["function"], "name": one}} for one in names]
    tools[1] = {"type": "function", "function": {"name": "x-1"}}  # without parameters
    for endpoint in served(MADE[name].template, ""):
        for wanted in ("a.b-c_d", "x-1"):
            choice = {"type": "function", "function": {"name": wanted}}
            body = {"messages": [ASKED], "tools": tools, "tool_choice": choice, "max_tokens": 150, "seed": 1}
            found = both(endpoint, {**body, "on_length": "close"})["message"]["tool_calls"]
            assert [one["function"]["name"] for one in found] == [wanted]
            assert {*json.loads(found[0]["function"]["arguments"])} >= (set() if wanted == "x-1" else {"at"})


@pytest.mark.parametrize("name", ["zürich", "a b", "a:b", "", "a" * 65, "<call>"])
def test_names_that_are_refused(calling: Endpoint, name: str) -> None:
    tool = {"type": "function", "function": {"name": name}}
    answer = calling.post(CHAT, {"messages": [ASKED], "tools": [tool]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools.0.function.name"


def test_a_stop_string_beside_tools_is_refused_by_name(calling: Endpoint) -> None:
    for choice in ("auto", "required", "none"):
        body = {"messages": [ASKED], "tools": [LOOK], "tool_choice": choice, "stop": ["sea"]}
        answer = calling.post(CHAT, body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "stop"


def test_a_thought_alone_goes_back(thinking: Endpoint) -> None:
    """A response that was cut in its thought is told again as it was; the template says what of it is read."""
    items = [ASKED, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so far"}]}, ASKED]
    assert "so far" in prompt_of(thinking, RESPONSES, {"input": items, "max_output_tokens": 2})
