"""Texts of the endpoint are those of `generate`, in the form that OpenAI's clients read."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import openai
import pydantic
import pytest

import decodekit as dk
from decodekit.constraints.tool_calls import FORMATS
from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.decoding.request.stats import Stats
from decodekit.llm import Completion
from decodekit.serving.requests.fields import SamplingFields
from decodekit.serving.routes.call_stream import CallSplitter
from decodekit.serving.routes.chat import ChatReply
from decodekit.serving.routes.responses import ResponseReply
from decodekit.serving.routes.text_completions import CompletionReply
from decodekit.serving.routes.token_logprobs import TokenWriter
from decodekit.testing.toy import toy_llm
from tests.serving.conftest import LIMITS, Endpoint, endpoint_of, events_of
from tests.sizes import few

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "abc, the abc"}]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SAMPLED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.01}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20,
                                                                     "min_p": 0.01}),
    ({"top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0}, {}),
    ({"frequency_penalty": 0.5, "presence_penalty": 0.2, "repetition_penalty": 1.2},
     {"frequency_penalty": 0.5, "presence_penalty": 0.2, "repetition_penalty": 1.2}),
    ({"logit_bias": {"97": 5, "98": -100}}, {"logit_bias": {97: 5.0, 98: -100.0}}),
    ({"stop": "a"}, {"stop": "a"}),
    ({"stop": ["the", "c"], "min_tokens": 4}, {"stop": ["the", "c"], "min_tokens": 4}),
    ({"stop_token_ids": [97, 98]}, {"stop_token_ids": [97, 98]}),
    ({"guided_json": SCHEMA}, {"constraint": SCHEMA}),
    ({"guided_json": json.dumps(SCHEMA)}, {"constraint": SCHEMA}),
    ({"guided_regex": "[a-d]{3,9}"}, {"constraint": dk.Regex("[a-d]{3,9}")}),
    ({"guided_choice": ["abab", "cdcd"]}, {"constraint": dk.Choices(["abab", "cdcd"])}),
    ({"guided_grammar": 'root ::= "a"+ "b"'}, {"constraint": dk.Grammar('root ::= "a"+ "b"\n')}),
    ({"structured_outputs": {"regex": "[a-d]{3,9}"}}, {"constraint": dk.Regex("[a-d]{3,9}")}),
    ({"structured_outputs": {"json": SCHEMA}}, {"constraint": SCHEMA}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
     {"constraint": SCHEMA}),
    ({"response_format": {"type": "json_object"}}, {"constraint": {"type": "object"}}),
    ({"response_format": {"type": "text"}}, {}),
    ({"guided_regex": "[a-d]{3,90}", "on_length": "close"}, {"constraint": dk.Regex("[a-d]{3,90}"),
                                                            "on_length": "close"}),
)  # fmt: skip


def test_every_field_of_sampling_is_tried_and_described() -> None:
    """What changes nothing aside; a new field needs its case here and its row in the page."""
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    unused = {"model", "stream", "user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"}
    names = SamplingFields.model_fields.keys() - unused
    assert {name for name in names if f"`{name}`" not in page} == set()
    assert names - {name for fields, _ in SAMPLED for name in fields} == {"seed"}  # which all of them have


def expected(endpoint: Endpoint, prompt: str, options: dict[str, Any]) -> dk.Completion:
    given = {"strategy": "sample", "seed": 7, "max_new_tokens": 24, "on_length": "return", **options}
    return endpoint.llm.generate(prompt, **given)


@few(8)
@pytest.mark.parametrize(("fields", "options"), SAMPLED, ids=lambda one: "-".join(one)[:40] or "plain")
def test_a_text_is_that_of_generate(endpoint: Endpoint, fields: dict[str, Any], options: dict[str, Any]) -> None:
    """In a whole answer and in a stream."""
    wanted = expected(endpoint, "abc, the abc\n", options)
    assert wanted.error is None
    body = {"messages": MESSAGES, "seed": 7, "max_tokens": 24, **fields}
    answer = endpoint.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    choice = ChatReply.model_validate(answer.json()).choices[0]
    reason = "length" if wanted.finish_reason == "length" else "stop"
    assert (choice.message.content, choice.finish_reason) == (wanted.text, reason)
    assert answer.headers["x-decodekit-seed"] == "7"
    usage = answer.json()["usage"]
    assert (usage["completion_tokens"], usage["prompt_tokens"]) == (
        len(wanted.token_ids),
        wanted.stats.num_prompt_tokens,
    )
    events = events_of(endpoint.post(CHAT, {**body, "stream": True}))
    assert events[-1] == "[DONE]"
    deltas = [one["choices"][0] for one in events[:-1]]
    assert "".join(one["delta"].get("content") or "" for one in deltas) == wanted.text
    assert deltas[-1]["finish_reason"] == reason


def test_temperature_0_is_greedy(endpoint: Endpoint) -> None:
    answer = endpoint.post(CHAT, {"messages": MESSAGES, "temperature": 0, "top_p": 0.5, "max_tokens": 20})
    wanted = endpoint.llm.generate("abc, the abc\n", max_new_tokens=20)
    assert answer.json()["choices"][0]["message"]["content"] == wanted.text


def test_without_a_seed_texts_differ_and_can_be_had_again(endpoint: Endpoint) -> None:
    body = {"prompt": "abc", "max_tokens": 30, "temperature": 1.5}
    first, second = endpoint.post(COMPLETIONS, body), endpoint.post(COMPLETIONS, body)
    texts = [one.json()["choices"][0]["text"] for one in (first, second)]
    assert texts[0] != texts[1]
    again = endpoint.post(COMPLETIONS, {**body, "seed": int(first.headers["x-decodekit-seed"])})
    assert again.json()["choices"][0]["text"] == texts[0]


def test_several_prompts_and_samples(endpoint: Endpoint) -> None:
    """Text i is sample i % n of prompt i // n, as `num_return_sequences` gives them; also where all are streamed."""
    body = {"prompt": [[258], [97, 98, 99, 100]], "n": 3, "seed": 5, "max_tokens": 12}
    wanted = []
    for prompt in ([258], [97, 98, 99, 100]):
        whole = endpoint.llm.generate(prompt, strategy="sample", seed=5, max_new_tokens=12, num_return_sequences=3)
        wanted += [whole.text, *(one.text for one in whole.others)]
    answer = CompletionReply.model_validate(endpoint.post(COMPLETIONS, body).json())
    assert [one.text for one in answer.choices] == wanted and len(set(wanted)) > 3
    assert [one.index for one in answer.choices] == [*range(6)]
    assert answer.usage.prompt_tokens == 1 + 4  # a prompt counts once
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(endpoint.post(COMPLETIONS, {**body, **options}))[:-1]
    texts = [""] * 6
    for one in events[:-1]:
        texts[one["choices"][0]["index"]] += one["choices"][0]["text"]
    assert texts == wanted
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == answer.usage.completion_tokens
    assert all(one["usage"] is None for one in events[:-1])


def test_logprobs(endpoint: Endpoint) -> None:
    wanted = expected(endpoint, "abc, the abc\n", {"logprobs": 3})
    assert wanted.logprobs is not None
    body = {"messages": MESSAGES, "seed": 7, "max_tokens": 24, "logprobs": True, "top_logprobs": 3}
    content = endpoint.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    ends = endpoint.llm.vocabulary.eos_token_ids
    entries = [one for one in wanted.logprobs if one.token_id not in ends]
    assert [one["logprob"] for one in content] == pytest.approx([one.logprob for one in entries], abs=1e-4)
    assert b"".join(bytes(one["bytes"]) for one in content).decode("utf-8", "replace") == wanted.text
    assert all(len(one["top_logprobs"]) == 3 for one in content)
    streamed = events_of(endpoint.post(CHAT, {**body, "stream": True}))[:-1]
    told = [one for event in streamed for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [one["token"] for one in told] == [one["token"] for one in content]
    legacy = endpoint.post(COMPLETIONS, {"prompt": "abc, the abc\n", "seed": 7, "max_tokens": 24, "logprobs": 3})
    found = legacy.json()["choices"][0]["logprobs"]
    assert found["tokens"] == [one["token"] for one in content]
    assert found["text_offset"][1] == len(found["tokens"][0])


def test_tokens_of_equal_texts() -> None:
    """In a dictionary by text the likeliest of them stands for all; by id, and in a list, none is lost."""
    vocabulary = dk.Vocabulary([b"\xc3", b"\xa9", b"a", b"a"], ())
    likeliest = ((1, -0.5), (3, -1.0), (0, -1.5), (2, -2.0))
    entries, writer = [TokenLogprob(0, -1.5, likeliest)], TokenWriter(vocabulary)
    assert writer.of_completion(entries, 4)["top_logprobs"] == [{"\ufffd": -0.5, "a": -1.0}]
    by_id = writer.of_completion(entries, 4, as_ids=True)
    assert by_id["top_logprobs"] == [{f"token_id:{token}": logprob for token, logprob in likeliest}]
    assert (by_id["tokens"], by_id["text_offset"]) == (["token_id:0"], [4])
    listed = writer.of_chat(entries)[0]["top_logprobs"]
    assert [(one["token"], one["logprob"]) for one in listed] == [
        ("\ufffd", -0.5), ("a", -1.0), ("\ufffd", -1.5), ("a", -2.0)
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_as_ids(endpoint: Endpoint, stream: bool) -> None:
    """As ids all are told, with the same offsets."""
    options = {"seed": 7, "max_tokens": 3, "stream": stream}
    body = {"prompt": "abc", "logprobs": 20}
    wanted = expected(endpoint, "abc", {"logprobs": 20, "max_new_tokens": 3}).logprobs
    assert wanted is not None

    def told(path: str, body: dict[str, Any], **fields: Any) -> list[Any]:
        answer = endpoint.post(path, {**options, **body, **fields})
        parts = events_of(answer)[:-1] if stream else [answer.json()]
        return [one["choices"][0]["logprobs"] for one in parts if one["choices"][0]["logprobs"]]

    texts, ids = told(COMPLETIONS, body), told(COMPLETIONS, body, return_tokens_as_token_ids=True)
    assert [offset for one in ids for offset in one["text_offset"]] == [
        offset for one in texts for offset in one["text_offset"]
    ]
    assert [token for one in ids for token in one["tokens"]] == [f"token_id:{one.token_id}" for one in wanted]
    listed = [top for one in ids for top in one["top_logprobs"]]
    for top, entry in zip(listed, wanted, strict=True):
        assert top == pytest.approx({f"token_id:{token}": logprob for token, logprob in entry.alternatives}, abs=1e-4)
    chat = {"messages": [{"role": "user", "content": "abc"}], "logprobs": True, "top_logprobs": 20}
    entries = [entry for one in told(CHAT, chat) for entry in one["content"]]
    assert all(
        len({tuple(other["bytes"] or [other["token"]]) for other in one["top_logprobs"]}) == 20 for one in entries
    )
    named = [entry for one in told(CHAT, chat, return_tokens_as_token_ids=True) for entry in one["content"]]
    assert [one["bytes"] for one in named] == [one["bytes"] for one in entries]
    assert all(other["token"].startswith("token_id:") for one in named for other in [one, *one["top_logprobs"]])


def accumulated(deltas: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The calls of a stream, as OpenAI's clients put them together."""
    calls: list[dict[str, str]] = []
    for delta in deltas:
        for one in delta.get("tool_calls", []):
            if one["index"] == len(calls):
                assert one["id"] and one["type"] == "function" and one["function"]["arguments"] == ""
                calls.append({"name": one["function"]["name"], "arguments": ""})
            else:
                assert set(one) == {"index", "function"} and set(one["function"]) == {"arguments"}
                assert one["index"] == len(calls) - 1 and one["function"]["arguments"]
                calls[-1]["arguments"] += one["function"]["arguments"]
    return calls


@pytest.mark.parametrize("choice", ["auto", "required", "none", {"type": "function", "function": {"name": "look_up"}}])
def test_tools(endpoint: Endpoint, choice: Any) -> None:
    body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "seed": 3, "max_tokens": 90}
    body |= {"on_length": "close", "parallel_tool_calls": False}
    found = endpoint.post(CHAT, body).json()["choices"][0]
    constraint = dk.tools([TOOL], "hermes", tool_choice=choice, parallel=None if choice == "none" else False)
    options = {"constraint": constraint, "seed": 3, "max_new_tokens": 90, "on_length": "close"}
    wanted = endpoint.llm.generate("abc, the abc\n", strategy="sample", **options).value
    assert (found["message"]["content"] or "") == wanted.content
    calls = found["message"].get("tool_calls", [])
    assert [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls] == [
        (one.name, one.arguments) for one in wanted.calls
    ]
    assert bool(calls) == (found["finish_reason"] == "tool_calls")
    assert bool(calls) or choice in ("auto", "none")
    events = events_of(endpoint.post(CHAT, {**body, "stream": True}))[:-1]
    deltas = [one["choices"][0]["delta"] for one in events]
    assert "".join(one.get("content") or "" for one in deltas) == wanted.content
    assert accumulated(deltas) == [one["function"] for one in calls]
    assert all(one["choices"][0]["finish_reason"] is None for one in events[:-1])
    assert events[-1]["choices"][0]["finish_reason"] == found["finish_reason"]


def test_calls_that_are_whole_before_a_cut(endpoint: Endpoint) -> None:
    """They are answered as calls with the reason "length"; the one that was broken off is begun in streams alone."""
    body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 110}
    body["logit_bias"] = {"256": -100}  # another call comes, and no end
    call, *others = endpoint.post(CHAT, body).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look_up" and json.loads(call["function"]["arguments"])["a"] in range(100)
    for max_tokens, num_calls in ((110, 1 + len(others)), (20, 0)):
        cut = {**body, "max_tokens": max_tokens}
        found = endpoint.post(CHAT, cut).json()["choices"][0]
        assert found["finish_reason"] == "length" and not found["message"]["content"]
        assert len(found["message"].get("tool_calls", [])) == num_calls
        events = events_of(endpoint.post(CHAT, {**cut, "stream": True}))[:-1]
        deltas = [one["choices"][0]["delta"] for one in events]
        assert not "".join(one.get("content") or "" for one in deltas)
        told = accumulated(deltas)
        assert told[:num_calls] == [one["function"] for one in found["message"].get("tool_calls", [])]
        assert len(told) <= num_calls + 1
        for one in told[num_calls:]:
            with pytest.raises(json.JSONDecodeError):
                json.loads(one["arguments"])
        assert events[-1]["choices"][0]["finish_reason"] == "length"
    asked = {"input": "abc, the abc", "tools": [{"type": "function", **TOOL["function"]}]}  # type: ignore[dict-item]
    asked |= {name: body[name] for name in ("tool_choice", "temperature", "logit_bias")}
    response = endpoint.post(RESPONSES, {**asked, "max_output_tokens": 110}).json()
    assert [one["type"] for one in response["output"]] == ["function_call"] * (1 + len(others))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


LOOK = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 999},
                   "kinds": {"type": "array", "items": {"enum": ["sun", "rain"]}, "maxItems": 3}},
    "required": ["city", "days", "kinds"],
    "additionalProperties": False,
}  # fmt: skip
LOOKS = [{"type": "function", "function": {"name": name, "parameters": LOOK}} for name in ("look", "look_up")]


@few(1)
@pytest.mark.parametrize("format", FORMATS)
def test_calls_are_streamed_in_pieces(format: str) -> None:
    """Of every format: together they are the call that is answered as a whole, read by hand and by OpenAI's helpers."""
    made = endpoint_of(toy_llm(), replace(LIMITS, tool_format=format))
    num_pieces = 0
    try:
        for seed in range(3):
            body = {"messages": MESSAGES, "tools": LOOKS, "tool_choice": "required", "seed": seed, "max_tokens": 200}
            body |= {"on_length": "close", "stream_options": {"include_usage": True}}
            whole = made.post(CHAT, {name: body[name] for name in body if name != "stream_options"}).json()
            calls = [one["function"] for one in whole["choices"][0]["message"]["tool_calls"]]
            *events, usage, done = events_of(made.post(CHAT, {**body, "stream": True}))
            deltas = [one["choices"][0]["delta"] for one in events]
            assert calls and accumulated(deltas) == calls
            assert events[-1]["choices"][0]["finish_reason"] == "tool_calls" and done == "[DONE]"
            for told in (usage["usage"], whole["usage"]):
                del told["prompt_tokens_details"]  # what is still there of the prompt
            assert usage["usage"] == whole["usage"]
            num_pieces += len(deltas) - len(calls)
            first = next(one["tool_calls"][0] for one in deltas if "tool_calls" in one)
            own = re.fullmatch(r"functions\.look(_up)?:\d+", first["id"]) if format == "kimi-k2" else None
            assert own or len(first["id"]) == (9 if format.startswith("mistral") else 29)

        async def talk() -> None:
            async with openai.AsyncOpenAI(
                api_key="none", base_url="http://endpoint/v1", http_client=made.client(), max_retries=0
            ) as client:
                strict = [{**one, "function": {**one["function"], "strict": True}} for one in LOOKS]
                given: Any = {"model": "toy", "messages": MESSAGES, "seed": 2, "max_tokens": 200, "tools": strict}
                given |= {"tool_choice": "required", "extra_body": {"on_length": "close"}}
                told: dict[int, str] = {}
                async with client.chat.completions.stream(**given) as stream:
                    async for event in stream:
                        if event.type == "tool_calls.function.arguments.delta":
                            told[event.index] = told.get(event.index, "") + event.arguments_delta
                    final = await stream.get_final_completion()
                found = [one.function for one in final.choices[0].message.tool_calls]
                assert [(one.name, one.arguments) for one in found] == [
                    (one["name"], one["arguments"]) for one in calls
                ]
                assert [*told.values()] == [one["arguments"] for one in calls]
                assert [one.parsed_arguments for one in found] == [json.loads(one["arguments"]) for one in calls]

        asyncio.run(talk())
    finally:
        made.service.close()
    assert num_pieces > 20


def test_calls_in_events_of_responses(endpoint: Endpoint) -> None:
    """One item after the other; OpenAI's client puts them together to the response that ends the stream."""

    async def talk(max_tokens: int, bias: Any) -> Any:
        async with openai.AsyncOpenAI(
            api_key="none", base_url="http://endpoint/v1", http_client=endpoint.client(), max_retries=0
        ) as client:
            tools: Any = [{**one, **one["function"], "strict": True} for one in LOOKS]  # type: ignore[dict-item]
            for one in tools:
                del one["function"]
            given: Any = {"model": "toy", "input": "abc, the abc", "tools": tools, "tool_choice": "required"}
            given |= {"max_output_tokens": max_tokens, "extra_body": {"seed": 4, **bias}}
            async with client.responses.stream(**given) as stream:
                return [event async for event in stream], await client.responses.create(**given)

    events, whole = asyncio.run(talk(200, {"on_length": "close"}))
    assert [one.sequence_number for one in events] == [*range(len(events))]
    *_, last = events
    assert last.type == "response.completed"
    wanted = [(one.name, one.arguments, "completed") for one in whole.output]
    assert [(one.name, one.arguments, one.status) for one in last.response.output] == wanted
    for place, (name, arguments, _) in enumerate(wanted):
        of_item = [one for one in events if getattr(one, "output_index", None) == place]
        added, *deltas, done, end = of_item
        assert (added.type, added.item.name, added.item.arguments) == ("response.output_item.added", name, "")
        assert {one.type for one in deltas} == {"response.function_call_arguments.delta"} and len(deltas) > 2
        assert "".join(one.delta for one in deltas) == arguments == done.arguments == end.item.arguments
        assert (done.type, end.type) == ("response.function_call_arguments.done", "response.output_item.done")
    events, whole = asyncio.run(talk(40, {"logit_bias": {"34": -100}}))  # a string that never ends
    assert whole.status == events[-1].response.status == "incomplete"
    assert [one.status for one in events[-1].response.output] == ["incomplete"]


def test_content_and_then_calls() -> None:
    """What a scripted text of the model says is told in this order, however it is cut."""
    constraint = dk.tools(LOOKS, "hermes")
    call = '<tool_call>\n{"name":"look","arguments":{"city":"Bern \\"","days":1,"kinds":["sun"]}}\n</tool_call>'
    text = f"I look <tool. {call}\n{call}"
    value = constraint.parse(text)
    ended = Completion(text, (), value, "stop", None, None, Stats(0, 0, 0, None, 0.0))
    for size in (1, 3, 7, 1000):
        splitter, content, deltas = CallSplitter(constraint), "", []
        for at in range(0, len(text), size):
            content += splitter.push(text[at : at + size])
            assert content == "I look <tool. "[: len(content)]
            deltas.append({"tool_calls": [one.delta for one in splitter.calls()]})
        outcome = splitter.end(ended)
        deltas.append({"tool_calls": [one.delta for one in splitter.calls(outcome)]})
        wanted = [{"name": one.name, "arguments": one.arguments} for one in outcome.calls]
        assert accumulated(deltas) == wanted and len(wanted) == 2 and content + outcome.rest == "I look <tool. "


def test_tools_or_a_schema(endpoint: Endpoint) -> None:
    """With both, a text is a call or JSON of the schema, and both come."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {"messages": MESSAGES, "tools": [TOOL], "response_format": form, "max_tokens": 90, "on_length": "close"}
    reasons = set()
    for seed in range(6):
        asked = {**body, "seed": seed, "logit_bias": {"60": 9}}
        found = endpoint.post(CHAT, asked).json()["choices"][0]
        reasons.add(found["finish_reason"])
        calls = found["message"].get("tool_calls")
        text = calls[0]["function"]["arguments"] if calls else found["message"]["content"]
        assert json.loads(text)["a"] in range(100)
        deltas = [one["choices"][0]["delta"] for one in events_of(endpoint.post(CHAT, {**asked, "stream": True}))[:-1]]
        assert accumulated(deltas) == [one["function"] for one in calls or ()]
        assert "".join(one.get("content") or "" for one in deltas) == (found["message"]["content"] or "")
    assert reasons == {"stop", "tool_calls"}
    refused = endpoint.post(CHAT, {**body, "tool_choice": "required"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "response_format.json_schema.schema"


def test_a_response(endpoint: Endpoint) -> None:
    """A response, its events, and a conversation with calls."""
    wanted = expected(endpoint, "say\nabc, the abc\n", {"constraint": SCHEMA})
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    body = {"input": "abc, the abc", "instructions": "say", "text": form, "seed": 7, "max_output_tokens": 24}
    found = ResponseReply.model_validate(endpoint.post(RESPONSES, body).json())
    assert found.status == "completed" and found.output[0].content[0].text == wanted.text
    events = events_of(endpoint.post(RESPONSES, {**body, "stream": True}))
    assert [one["sequence_number"] for one in events] == [*range(len(events))]
    assert "".join(one["delta"] for one in events if one["type"].endswith("text.delta")) == wanted.text
    kinds = list(dict.fromkeys(one["type"].removeprefix("response.") for one in events))
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == wanted.text
    cut = endpoint.post(RESPONSES, {**body, "max_output_tokens": 2}).json()
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    past = [
        {"role": "user", "content": [{"type": "input_text", "text": "abc"}]},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "the abc"},
    ]
    asked = {"input": past, "tools": [tool], "tool_choice": {"type": "function", "name": "look_up"}, "seed": 1}
    called = endpoint.post(RESPONSES, asked).json()
    assert [one["type"] for one in called["output"]] == ["function_call"]
    assert json.loads(called["output"][0]["arguments"])["a"] in range(100)
    streamed = events_of(endpoint.post(RESPONSES, {**asked, "stream": True}))
    assert streamed[-1]["response"]["output"][0]["arguments"] == called["output"][0]["arguments"]
    prompt = 'abc\n{"name": "look_up", "arguments": {"a": 1}}\nthe abc\n'
    assert called["usage"]["input_tokens"] == len(endpoint.llm.tokenizer.encode(prompt))


FREE = ("json", "parameters", "schema", "guided_json", "metadata", "chat_template_kwargs")
FIELDS: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": [*MESSAGES,
                         {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [
                             {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]},
                         {"role": "tool", "content": "b", "tool_call_id": "c"}],
            "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look_up"}}}),
    (CHAT, {"messages": MESSAGES, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "metadata": {"a": "b"}}),
    (COMPLETIONS, {"prompt": "abc", "structured_outputs": {"json": SCHEMA}, "stream_options": {}, "stream": True}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "abc"}]},
                           {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": "{}"},
                           {"type": "function_call_output", "call_id": "c", "output": "b"}],
                 "tools": [{"type": "function", **TOOL["function"]}],  # type: ignore[dict-item]
                 "tool_choice": {"type": "function", "name": "look_up"}, "reasoning": {}}),
    (RESPONSES, {"input": "abc", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
)  # fmt: skip


def with_nulls(value: Any) -> Any:
    """The same with a field more in every object that has fields, which is null."""
    if isinstance(value, list):
        return [with_nulls(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: one if name in FREE else with_nulls(one) for name, one in value.items()} | {"newer": None}


def without_ids(text: str) -> str:
    return re.sub(r'"(id|call_id|item_id)":"[^"]*"|"created(_at)?":\d+|"cached_tokens":\d+', "", text)


@pytest.mark.parametrize(("path", "body"), FIELDS, ids=lambda one: str(one)[:30])
def test_a_field_that_is_null_asks_for_nothing(endpoint: Endpoint, path: str, body: dict[str, Any]) -> None:
    body = {"seed": 3, "on_length": "close", "max_output_tokens" if path == RESPONSES else "max_tokens": 90, **body}
    plain, nulls = endpoint.post(path, body), endpoint.post(path, with_nulls(body))
    assert plain.status_code == nulls.status_code == 200, nulls.text
    assert without_ids(plain.text) == without_ids(nulls.text)
    assert endpoint.post(path, {**body, "newer": 0}).json()["error"]["param"] == "newer"


def test_null_in_a_schema_stays(endpoint: Endpoint) -> None:
    parameters = {"type": "object", "properties": {"a": {"const": None}}, "required": ["a"], "default": None}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters | {"additionalProperties": False}}}
    body = {"messages": MESSAGES, "tools": [tool], "tool_choice": "required", "max_tokens": 60, "on_length": "close"}
    found = endpoint.post(CHAT, with_nulls(body | {"parallel_tool_calls": False})).json()["choices"][0]
    assert json.loads(found["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": None}


def test_output_is_taken_back_as_dictionaries_and_as_objects(endpoint: Endpoint) -> None:
    """Of openai's client, with all that it adds: fields that are null, and what it has read in a text."""

    class Found(pydantic.BaseModel):
        a: Annotated[int, pydantic.Field(ge=0, le=99)]

    tool = openai.pydantic_function_tool(Found, name="look_up")
    close: Any = {"seed": 3, "on_length": "close"}
    asked: Any = {"role": "user", "content": "abc"}

    async def talk() -> None:
        async with openai.AsyncOpenAI(
            api_key="none", base_url="http://endpoint/v1", http_client=endpoint.client(), max_retries=0
        ) as client:
            flat: Any = {"type": "function", **tool["function"]}
            called = await client.responses.parse(
                model="toy", input="x", tools=[flat], tool_choice="required", max_output_tokens=90, extra_body=close
            )
            said = await client.responses.parse(
                model="toy", input="x", text_format=Found, max_output_tokens=90, extra_body=close
            )
            assert said.output_parsed is not None and called.output[0].type == "function_call"
            answer: Any = {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "b"}
            for output in (
                [one.model_dump() for one in (*called.output, *said.output)],
                [one.model_dump(mode="json") | {"async_": None} for one in (*called.output, *said.output)],
                [*called.output, *said.output],
            ):
                items: Any = [asked, *output[:1], answer, *output[1:]]
                tools: Any = [one.model_dump() for one in called.tools]
                again = await client.responses.create(model="toy", input=items, tools=tools, max_output_tokens=9)
                assert again.usage is not None and again.usage.input_tokens > 9
            whole = await client.chat.completions.parse(
                model="toy", messages=[asked], tools=[tool], tool_choice="required", max_tokens=90, extra_body=close
            )
            text = await client.chat.completions.parse(
                model="toy", messages=[asked], response_format=Found, max_tokens=90, extra_body=close
            )
            [call] = whole.choices[0].message.tool_calls or ()
            told: Any = {"role": "tool", "content": "b", "tool_call_id": call.id}
            for first, second in (
                (whole.choices[0].message, text.choices[0].message),
                (whole.choices[0].message.model_dump(), text.choices[0].message.model_dump()),
            ):
                messages: Any = [asked, first, told, second]
                await client.chat.completions.create(model="toy", messages=messages, max_tokens=9)

    asyncio.run(talk())


def test_prefixes_are_told(endpoint: Endpoint) -> None:
    body = {"prompt": "the abc, the cd, " * 12, "max_tokens": 2, "temperature": 0}
    before = endpoint.figures()["decodekit_prefix_tokens_reused_total"]
    usages = [endpoint.post(COMPLETIONS, body).json()["usage"] for _ in range(2)]
    cached = [one["prompt_tokens_details"]["cached_tokens"] for one in usages]
    assert cached[0] == 0 and usages[0]["prompt_tokens"] > cached[1] >= 32
    assert endpoint.figures()["decodekit_prefix_tokens_reused_total"] - before == sum(cached)


def test_openai_s_client(endpoint: Endpoint) -> None:
    """Its helpers read answers and streams, and raise its errors."""

    async def talk() -> None:
        async with openai.AsyncOpenAI(
            api_key="none", base_url="http://endpoint/v1", http_client=endpoint.client(), max_retries=0
        ) as client:
            assert [one.id async for one in client.models.list()] == ["toy"]
            form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
            given: Any = {"model": "toy", "messages": MESSAGES, "seed": 7}
            whole = await client.chat.completions.create(**given, response_format=form, max_tokens=24)
            content = whole.choices[0].message.content
            assert content is not None and json.loads(content)["a"] in range(100)
            text = ""
            stop: Any = {"stop": ["a"]}  # a text that is cut is an error of the client's
            async with client.chat.completions.stream(**given, **stop, max_tokens=200) as stream:
                async for event in stream:
                    text += event.delta if event.type == "content.delta" else ""
                final = await stream.get_final_completion()
            wanted = expected(endpoint, "abc, the abc\n", {**stop, "max_new_tokens": 200}).text
            assert final.choices[0].message.content == text == wanted
            strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
            tools: Any = {"tools": [strict], "tool_choice": "required", "extra_body": {"on_length": "close"}}
            async with client.chat.completions.stream(**given, max_tokens=90, **tools) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.tool_calls[0].function.name == "look_up"
            text_format: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
            response = await client.responses.create(model="toy", input="abc", text=text_format, max_output_tokens=24)
            assert json.loads(response.output_text)["a"] in range(100)
            async with client.responses.stream(model="toy", input="abc", max_output_tokens=9) as events:
                kinds = [event.type async for event in events]
                assert kinds[-1] in ("response.incomplete", "response.completed")
            with pytest.raises(openai.NotFoundError, match="DK802"):
                await client.chat.completions.create(**{**given, "model": "other"})
            with pytest.raises(openai.BadRequestError, match="DK801") as error:
                await client.chat.completions.create(**given, extra_body={"unheard_of": 1})
            assert error.value.param == "unheard_of" and error.value.code == "DK801"

    asyncio.run(talk())


def test_many_at_once(endpoint: Endpoint) -> None:
    """Every text beside others is what it is alone."""

    async def ask() -> list[httpx.Response]:
        async with endpoint.client() as client:
            bodies = [{"prompt": f"ab{i}", "seed": i, "max_tokens": 16, "stream": i % 2 == 0} for i in range(24)]
            return await asyncio.gather(*(client.post(COMPLETIONS, json=body) for body in bodies))

    for i, answer in enumerate(asyncio.run(ask())):
        wanted = endpoint.llm.generate(f"ab{i}", strategy="sample", seed=i, max_new_tokens=16).text
        if i % 2:
            assert answer.json()["choices"][0]["text"] == wanted
        else:
            assert "".join(one["choices"][0]["text"] for one in events_of(answer)[:-1]) == wanted
