"""What the endpoint does not take is refused: status, code and the field."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import decodekit.errors
from decodekit.chat.conversation import TemplateArguments
from decodekit.errors import ChatTemplateError, InvalidRequestError, OptionError
from decodekit.llm import LLM
from decodekit.serving.limits import Limits
from decodekit.serving.requests.bodies import field_of
from decodekit.serving.requests.fields import SpokenMessage
from decodekit.serving.requests.prompt_reader import Prompts
from decodekit.serving.requests.refusals import ERROR_TABLE, body_of, status_of
from decodekit.testing.toy import toy_llm
from decodekit.vocabulary import Vocabulary
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import BOS, EOS, small_tokenizer
from tests.reference.vocabularies import mistral_data
from tests.serving.conftest import LIMITS, Endpoint, endpoint_of

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "abc"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
IMPOSSIBLE = {"type": "integer", "minimum": 5, "maximum": 3}
NEVER = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": IMPOSSIBLE}, "required": ["a"]}},
}
ELSEWHERE = {"$ref": "https://example.org/schema.json"}

# Fields of a chat, the field that the error names, and its code.
REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"unheard_of": 1}, "unheard_of", "DK801"),
    ({"best_of": 2}, "best_of", "DK801"),
    ({"messages": []}, "messages", "DK801"),
    ({"messages": "abc"}, "messages", "DK801"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "DK801"),
    ({"messages": [{"role": "boss", "content": "x"}]}, "messages.0", "DK801"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages.0.content.0.type", "DK801"),
    ({"messages": [{"role": "user", "content": ""}], "max_tokens": 1}, "", ""),  # a line end is a prompt
    ({"temperature": -1}, "temperature", "DK801"),
    ({"temperature": 1e-300}, "temperature", "DK801"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty", "DK801"),
    ({"temperature": "hot"}, "temperature", "DK801"),
    ({"top_p": 0}, "top_p", "DK801"),
    ({"n": 129}, "n", "DK801"),
    ({"n": 1.5}, "n", "DK801"),
    ({"seed": -1}, "seed", "DK801"),
    ({"seed": 1 << 63}, "seed", "DK801"),
    ({"max_tokens": 0}, "max_tokens", "DK801"),
    ({"max_tokens": 201}, "max_tokens", "DK801"),
    ({"max_completion_tokens": 201}, "max_completion_tokens", "DK801"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "DK801"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "DK801"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "DK801"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "DK801"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "DK305"),
    ({"stop": [""]}, "stop.0", "DK801"),
    ({"stop": ["a"], "guided_regex": "a+"}, "stop", "DK305"),
    ({"stop_token_ids": [99999]}, "stop_token_ids", "DK305"),
    ({"top_logprobs": 2}, "top_logprobs", "DK801"),
    ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids", "DK801"),
    ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options", "DK801"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "DK801"),
    ({"store": True}, "store", "DK801"),
    ({"modalities": ["audio"]}, "modalities.0", "DK801"),
    ({"functions": []}, "functions", "DK801"),
    ({"tools": []}, "tools", "DK801"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "DK801"),
    ({"tools": [TOOL, TOOL]}, "tools", "DK203"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "DK401"),
    ({"tools": [NEVER]}, "tools", "DK202"),
    ({"tools": [TOOL], "guided_regex": "a"}, "guided_regex", "DK801"),
    ({"tool_choice": "auto"}, "tool_choice", "DK801"),
    ({"parallel_tool_calls": True}, "parallel_tool_calls", "DK801"),
    ({"response_format": {"type": "xml"}}, "response_format", "DK801"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "DK801"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": IMPOSSIBLE}}},
     "response_format.json_schema.schema", "DK202"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "DK801"),
    ({"guided_json": {"type": "strin"}}, "guided_json", "DK203"),
    ({"guided_json": "{"}, "guided_json", "DK203"),
    ({"guided_json": ELSEWHERE}, "guided_json", "DK205"),
    ({"guided_regex": "("}, "guided_regex", "DK203"),
    ({"guided_regex": "(" * 500 + "a" + ")" * 500}, "guided_regex", "DK206"),
    ({"guided_choice": []}, "guided_choice", "DK801"),
    ({"guided_choice": [1]}, "guided_choice.0", "DK801"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar", "DK203"),
    ({"guided_grammar": "sql"}, "guided_grammar", "DK203"),  # never a name or a file
    ({"guided_grammar": str(Path(__file__))}, "guided_grammar", "DK203"),
    ({"structured_outputs": {}}, "structured_outputs", "DK801"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "DK801"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "DK801"),
    ({"on_length": "close"}, "on_length", "DK306"),
    ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "DK801"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
        "name": "f", "arguments": "{"}}]}]}, "messages.0.tool_calls.0.function.arguments", "DK801"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "DK801"),
    ({"messages": [{"role": "user", "content": "x", "phase": "later"}]}, "messages.0.phase", "DK801"),
    ({"tools": [{**TOOL, "caller": 0}]}, "tools.0.caller", "DK801"),
)  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED, ids=lambda one: str(one)[:48])
def test_a_field_is_refused_by_name(endpoint: Endpoint, fields: dict[str, Any], param: str, code: str) -> None:
    for stream in (False, True):  # a stream is refused before it begins
        given = {"messages": MESSAGES, "stream": stream, **fields}
        answer = endpoint.post(CHAT, given)
        if not code:
            assert answer.status_code == 200
            continue
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error
        assert error["type"] == "invalid_request_error" and error["message"].startswith(code)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"prompt": "\\ud800"}', "body"),
        (b"\xff\xfe", "body"),
        (b"[" * 100_000, "body"),
        (b"[]", "body"),
        (b'{"prompt": []}', "prompt"),
        (b'{"prompt": ""}', "prompt"),
        (b'{"prompt": [99999]}', "prompt"),
        (b'{"prompt": ["a", 3]}', "prompt"),
        (b'{"prompt": "a", "echo": true}', "echo"),
        (b'{"prompt": "a", "suffix": "b"}', "suffix"),
        (b'{"prompt": "a", "n": 100, "max_tokens": 1, "prompt": ["a", "b"]}', "n"),
    ],
)
def test_a_body_is_refused(endpoint: Endpoint, body: bytes, param: str) -> None:
    answer = endpoint.post(COMPLETIONS, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].partition(".")[0] == param, answer.text


def test_fields_of_responses(endpoint: Endpoint) -> None:
    for fields, param in (
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"include": ["x"]}, "include"),
        ({"input": [{"type": "computer_call"}]}, "input.0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": IMPOSSIBLE}}}, "text.format.schema"),
        ({"n": 2}, "n"),
        ({"input": [{"role": "user", "content": "x", "phase": "later"}]}, "input.0.phase"),
        ({"input": [CALL, {**CALL, "caller": {"type": "direct"}}]}, "input.1.caller"),
        ({"input": [CALL, {**CALL, "arguments": "{"}]}, "input.1.arguments"),
        ({"input": ""}, ""),  # a line end is a prompt
        (
            {
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {"minLength": 9, "type": "string"}}},
                "max_output_tokens": 3,
                "on_length": "close",
            },
            "max_output_tokens",
        ),
    ):
        answer = endpoint.post(RESPONSES, {"input": "abc", **fields})
        if not param:
            assert answer.status_code == 200
            continue
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_other_paths_models_and_methods(endpoint: Endpoint) -> None:
    for method, path, status in (
        ("GET", "/v1/unheard", 404),
        ("GET", CHAT, 405),
        ("GET", "/v1/models/other", 404),
        ("DELETE", "/v1/models", 405),
    ):
        answer = endpoint.request(method, path)
        assert answer.status_code == status and answer.json()["error"]["code"] == "DK802"
    answer = endpoint.post(CHAT, {"model": "other", "messages": MESSAGES})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


def test_the_size_of_a_body() -> None:
    small = endpoint_of(toy_llm(), Limits(max_body_bytes=200, compile_workers=0, body_s=0.05))
    try:
        body = {"prompt": "a" * 300}
        assert small.post(COMPLETIONS, body).json()["error"]["code"] == "DK804"

        async def pieces() -> Any:
            for _ in range(5):
                yield b"a" * 100

        async def slowly() -> Any:
            yield b"{"
            await asyncio.sleep(0.3)

        async def send(content: Any) -> Any:
            async with small.client() as client:
                return await client.post(COMPLETIONS, content=content)

        assert asyncio.run(send(pieces())).status_code == 413
        assert asyncio.run(send(slowly())).status_code == 408
    finally:
        small.service.close()


def test_a_prompt_longer_than_the_context() -> None:
    llm = toy_llm()
    llm.model.context_length = 20  # type: ignore[misc]
    small = endpoint_of(llm)
    try:
        answer = small.post(COMPLETIONS, {"prompt": [97] * 20})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "DK304")
        assert small.post(COMPLETIONS, {"prompt": [97] * 19}).json()["usage"]["completion_tokens"] == 1
        long, messages = "x" * 500, [{"role": "user", "content": "abc " * 12}]
        for path, body, param in (
            (COMPLETIONS, {"prompt": long}, "prompt"),
            (CHAT, {"messages": messages}, "messages"),
            (CHAT, {"messages": [{"role": "user", "content": long}]}, "messages"),
            (RESPONSES, {"input": messages}, "input"),
            (RESPONSES, {"input": long}, "input"),
        ):
            error = small.post(path, body).json()["error"]
            assert (error["code"], error["param"]) == ("DK304", param), error
    finally:
        small.service.close()


def test_the_key() -> None:
    guarded = endpoint_of(toy_llm(), api_key="sesame", cors=["https://page.example"])
    try:
        body = {"prompt": "a", "max_tokens": 1}
        assert guarded.post(COMPLETIONS, body, headers={"Authorization": "Bearer sesame"}).status_code == 200
        for headers in ({}, {"Authorization": "Bearer sesamf"}, {"Authorization": "Basic sesame"},
                        {"Authorization": "Bearer \xe9"}):  # fmt: skip
            answer = guarded.post(COMPLETIONS, body, headers={k: v.encode("latin-1") for k, v in headers.items()})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "DK803")
        for path in ("/metrics", "/v1/models", "/openapi.json"):
            assert guarded.request("GET", path).status_code == 401
        assert guarded.request("GET", "/health").status_code == 200
        index = guarded.request("GET", "/").json()
        assert index["key"] and not {"sesame", "toy"} & set(re.findall(r"\w+", str(index)))
        asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        allowed = guarded.request("OPTIONS", CHAT, headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        other = guarded.request("OPTIONS", CHAT, headers={**asked, "Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
    finally:
        guarded.service.close()


def test_every_error_has_a_status() -> None:
    """Errors of requests are 4xx, others 5xx; each status is described."""
    kinds = [one for one in vars(decodekit.errors).values() if isinstance(one, type)]
    statuses = {
        kind.__name__: status_of(kind("x")) for kind in kinds if issubclass(kind, decodekit.errors.DecodekitError)
    }
    assert set(statuses.values()) <= set(ERROR_TABLE)
    server = {name for name, status in statuses.items() if status == 500}
    assert {"NonFiniteLogitsError", "ProcessorError", "ProposerError", "DecodingError"} <= server
    assert not any(issubclass(getattr(decodekit.errors, name), decodekit.errors.ConstraintError) for name in server)
    assert body_of(OptionError("x", at="max_new_tokens"))["error"]["param"] == "max_tokens"


def test_the_name_of_a_field() -> None:
    given = {"stop": [1], "messages": [{"role": "user"}]}
    assert field_of(("stop", "list[str]", 0), given) == "stop.0"
    assert field_of(("messages", 0, "user", "content"), given) == "messages.0.content"
    assert field_of(("messages", 0, "user", "content", "str"), {"messages": [{"content": 3}]}) == "messages.0.content"


def test_the_chat_template() -> None:
    template = (
        "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments.a }}{% endfor %}{% endfor %}{{ mood }}|"
    )
    tokenizer = small_tokenizer()
    size = len(tokenizer)
    llm = LLM(ToyLM(hashed_law(size), size, frozenset({EOS})), tokenizer)
    told = Prompts(llm, template).of_chat([SpokenMessage(role="developer", content="th")], None, {"mood": "er"})
    assert told == [BOS, *tokenizer("system:ther|")["input_ids"]]
    for options in ({"other": 1}, {"tokenize": True}, {"chat_template": "x"}, {"messages": []}):
        with pytest.raises(InvalidRequestError, match="chat_template_kwargs"):
            Prompts(llm, template).of_chat([SpokenMessage(role="user", content="th")], None, options)
    refusing = Prompts(llm, "{{ raise_exception('no users') }}")
    with pytest.raises(ChatTemplateError, match="no users"):
        refusing.of_chat([SpokenMessage(role="user", content="th")], None, None)
    with pytest.raises(OptionError, match="takes no chat template"):
        Prompts(toy_llm(), template)


def test_a_tokenizer_of_mistral_common_writes_its_chats() -> None:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    theirs = MistralTokenizer.from_file(str(mistral_data("mistral_instruct_tokenizer_241114.model.v7")))
    vocabulary = Vocabulary.from_tokenizer(theirs)
    prompts = Prompts(LLM(ToyLM(hashed_law(vocabulary.size), vocabulary.size, vocabulary.eos_token_ids), theirs))
    told = prompts.of_chat([SpokenMessage(role="user", content="the")], [TOOL], None)
    assert prompts.has_template
    assert told == TemplateArguments([TOOL]).encode(theirs, [{"role": "user", "content": "the"}], "prompt")
    assert len(told) > len(prompts.of_chat([SpokenMessage(role="user", content="the")], None, None))
    with pytest.raises(InvalidRequestError, match="enable_thinking has no effect"):
        prompts.of_chat([SpokenMessage(role="user", content="the")], None, {"enable_thinking": True})


def test_tools_are_told_to_templates_that_read_them() -> None:
    tokenizer = small_tokenizer()
    size = len(tokenizer)
    llm = LLM(ToyLM(hashed_law(size), size, frozenset({EOS})), tokenizer)
    message = [SpokenMessage(role="user", content="th")]
    for template, is_told in (
        ("{{ messages[0].content }}{{ tools | length }}", True),
        ("{{ messages[0].content }}", False),
    ):
        told = Prompts(llm, template).of_chat(message, [TOOL], None)
        assert told == tokenizer("th1" if is_told else "th", add_special_tokens=False)["input_ids"]


def test_the_index_says_what_it_is(endpoint: Endpoint) -> None:
    """Every route that it names is there; a page of another origin may not read it."""
    answer = endpoint.request("GET", "/")
    index = answer.json()
    paths = json.loads(endpoint.request("GET", index["fields"]).text)["paths"]
    assert {f"{method.upper()} {path}" for path in paths for method in paths[path]} - set(index["routes"]) == set()
    assert all(index["routes"].values()) and "OpenAI" in index["about"] and "docs/serve.md" in index["docs"]
    assert not index["key"]
    assert endpoint.request("GET", "/", headers={"Origin": "https://page.example"}).status_code == 403
    assert endpoint.figures()['decodekit_requests_total{route="/",status="200"}'] >= 1


def test_limits_are_checked() -> None:
    with pytest.raises(OptionError, match="3 options"):
        Limits(max_new_tokens=0, timeout_s=0, tool_format="x")


def test_the_description(endpoint: Endpoint) -> None:
    """It has the fields that are taken, and no reference that leads nowhere."""
    text = endpoint.request("GET", "/openapi.json").text
    found = json.loads(text)
    schemas = found["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= set(schemas)
    assert schemas["ChatBody"]["additionalProperties"] is False
    assert {"messages", "guided_json", "structured_outputs", "tools"} <= set(schemas["ChatBody"]["properties"])
    assert set(found["paths"]) == {
        "/",
        CHAT,
        COMPLETIONS,
        RESPONSES,
        "/v1/systemone",
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/models/{name}",
    }
    assert {"200", "400", "429", "503"} <= set(found["paths"][CHAT]["post"]["responses"])
    posts = {path: one["post"] for path, one in found["paths"].items() if "post" in one}
    assert {path: post["requestBody"]["required"] for path, post in posts.items()} == dict.fromkeys(posts, True)
    told = {path: (post["operationId"], post["summary"]) for path, post in posts.items()}
    assert told[CHAT] == ("chat", "The next message of a conversation") and len(set(told.values())) == len(posts) > 3
    assert LIMITS.max_new_tokens == 200
