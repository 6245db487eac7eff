"""Bodies that are almost right: none is a failure of the server, and who is refused is told the field."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections import Counter
from typing import Any

import httpx

from decodekit.serving.limits import Limits
from decodekit.serving.routes.chat import ChatBody
from decodekit.serving.routes.responses import ResponseBody
from decodekit.serving.routes.text_completions import CompletionBody
from decodekit.testing.toy import toy_llm
from tests.serving.conftest import endpoint_of
from tests.serving.test_routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES, SAMPLED, TOOL
from tests.sizes import sized

NAMES = ("9" * 5000, "\u0662", "\ud800", "", "a.b", "__class__", "-1", "1e3", "$ref", "type")
FIELDS = {CHAT: [*ChatBody.model_fields], COMPLETIONS: [*CompletionBody.model_fields],
          RESPONSES: [*ResponseBody.model_fields]}  # fmt: skip
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 1 << 62, 1 << 80, -0.0, 0.5, 1e-300, 1e300, "", "a", "\x00",
    "é\U0001f600", "a" * 500,
    "[a-z]+", "(", "none", "auto", "required", "json_schema", "text", "function", "root ::= \"a\"", "start: /a+/",
    [], {}, [[]],
    "9" * 5000, "\u0662", "\ud800", 10**400, 1e308, 5e-324, "(a+)+$", "\\1", "{{7*7}}", [[[[[]]]]], {"": {"": {"": 1}}},
    [0], ["a"], [None], {"a": 1}, {"type": "object"}, {"type": "integer"}, {"$ref": "#"}, {"type": "text"},
)  # fmt: skip


def bases() -> list[tuple[str, dict[str, Any]]]:
    """Bodies that are right."""
    found: list[tuple[str, dict[str, Any]]] = []
    for fields, _ in SAMPLED:
        found += [(CHAT, {"messages": MESSAGES, **fields}), (COMPLETIONS, {"prompt": "abc", **fields})]
    tools = {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}
    past = [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
             "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}]  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "integer"}}}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "abc"}]}]
    found += [
        (CHAT, {"messages": [*MESSAGES, *past], **tools, "logprobs": True, "top_logprobs": 2, "n": 2}),
        (COMPLETIONS, {"prompt": [[97, 98], [99]], "logprobs": 1, "stream_options": {"include_usage": True}}),
        (RESPONSES, {"input": items, "text": form, "instructions": "x", "max_output_tokens": 4}),
        (RESPONSES, {"input": "abc", "tools": [{"type": "function", **TOOL["function"]}]}),  # type: ignore[dict-item]
    ]
    return found


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key of it."""
    keys: Any = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = [(value, key) for key in keys]
    for key in keys:
        found += places(value[key])
    return found


def mutated(body: dict[str, Any], names: list[str], draws: random.Random) -> dict[str, Any]:
    """A body with a few parts replaced, renamed, dropped or added."""
    body = copy.deepcopy(body)
    for _ in range(draws.choice((1, 1, 2, 3))):
        kind = draws.randrange(5)
        where = places(body)
        if kind == 0 or not where:
            body[draws.choice([*names, "unheard_of"])] = copy.deepcopy(draws.choice(JUNK))
            continue
        container, key = draws.choice(where)
        if kind == 1:
            container.pop(key)
        elif kind == 4 and isinstance(container, dict):
            container[draws.choice(NAMES)] = container.pop(key)
        elif kind == 2:
            container[key] = copy.deepcopy(draws.choice(JUNK))
        else:
            other, from_key = draws.choice(where)
            container[key] = copy.deepcopy(other[from_key])
    body.setdefault("stream", draws.random() < 0.3)
    return body


@sized("num_bodies", 150, slow=int(os.environ.get("DECODEKIT_FUZZ_BODIES", "10000")))
def test_no_mutation_is_a_failure_of_the_server(num_bodies: int) -> None:
    limits = Limits(max_new_tokens=4, compile_workers=0, max_queue=2000)
    endpoint = endpoint_of(toy_llm(), limits)
    draws, right = random.Random(0), bases()
    statuses: Counter[int] = Counter()

    async def ask(client: httpx.AsyncClient) -> None:
        path, body = draws.choice(right)
        body = mutated(body, FIELDS[path], draws)
        answer = await client.post(path, content=json.dumps(body).encode())
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (answer.text, body)
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["code"].startswith("DK") and (error["param"] or answer.status_code != 400), (answer.text, body)
        elif "event-stream" in answer.headers["content-type"]:
            assert '"error":{' not in answer.text or "DK604" in answer.text, (answer.text, body)

    async def act() -> None:
        async with endpoint.client() as client:
            for _ in range(num_bodies // 10):
                await asyncio.gather(*(ask(client) for _ in range(10)))

    try:
        asyncio.run(act())
    finally:
        endpoint.service.close()
    print(f"\n{sum(statuses.values()):,} bodies: {dict(statuses)}")
    assert statuses[200] > num_bodies / 20 and statuses[400] > num_bodies / 20


def test_a_mutation_changes_the_body() -> None:
    draws = random.Random(1)
    _, body = bases()[0]
    made = [mutated(body, ["n"], draws) for _ in range(50)]
    assert sum(one != {**body, "stream": one.get("stream")} for one in made) > 40
    assert places(3) == [] and len(places({"a": [1, {"b": 2}]})) == 4
