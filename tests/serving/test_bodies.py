"""Bodies that make much work of little, are many, or never come whole: others are served meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from decodekit.errors import BodyLimitError, InvalidRequestError
from decodekit.llm import LLM
from decodekit.serving import app as app_module
from decodekit.serving.limits import Limits
from decodekit.serving.requests import bodies, structure
from decodekit.serving.requests.bodies import LARGE_BYTES, SHORT_BYTES, check_values, fields_of
from decodekit.serving.routes.chat import ChatBody
from decodekit.serving.routes.responses import ResponseBody
from decodekit.serving.routes.text_completions import CompletionBody
from decodekit.testing.toy import ToyTokenizer, toy_llm
from tests.serving.conftest import Endpoint, endpoint_of
from tests.serving.test_ends import Caller, SlowToy, until
from tests.sizes import few

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "abc"}]
MOST = Limits().max_values


def members(num: int, value: Any) -> dict[str, Any]:
    return {f"a{number}": value for number in range(num)}


# Bodies with `num` wrong items each.
WRONG: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "messages": (ChatBody, lambda num: {"messages": [1] * num}),
    "empty messages": (ChatBody, lambda num: {"messages": [{}] * num}),
    "parts": (ChatBody, lambda num: {"messages": [{"role": "user", "content": [1] * num}]}),
    "fields of a message": (ChatBody, lambda num: {"messages": [{"role": "user", "content": "a", **members(num, 1)}]}),
    "tools": (ChatBody, lambda num: {"messages": MESSAGES, "tools": [1] * num}),
    "unknown fields": (ChatBody, lambda num: members(num, 1)),
    "metadata": (ChatBody, lambda num: {"messages": MESSAGES, "metadata": members(num, 1)}),
    "stop": (CompletionBody, lambda num: {"prompt": "a", "stop": [1] * num}),
    "choices": (CompletionBody, lambda num: {"prompt": "a", "guided_choice": [1] * num}),
    "biases": (CompletionBody, lambda num: {"prompt": "a", "logit_bias": members(num, "x")}),
    "prompt": (CompletionBody, lambda num: {"prompt": [1, *["a"] * num]}),
    "prompts": (CompletionBody, lambda num: {"prompt": [["a"] * num] * 2}),
    "tags": (CompletionBody, lambda num: {"prompt": "a", "response_format": {"type": "structural_tag",
                                          "structures": [1] * num, "triggers": [1] * num}}),
    "input": (ResponseBody, lambda num: {"input": [1] * num}),
    "parts of input": (ResponseBody, lambda num: {"input": [{"role": "user", "content": [{}] * num}]}),
    "response tools": (ResponseBody, lambda num: {"input": "a", "tools": [{}] * num}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_items_cost_no_more_than_the_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In faults that are looked at, and in calls of Python that are made for them; both, not seconds, are counted."""
    kind, body_of = WRONG[name]
    num_faults: list[int] = []
    fault_of = bodies._fault
    monkeypatch.setattr(
        bodies, "_fault", lambda faults, given: num_faults.append(len(faults)) or fault_of(faults, given)
    )
    num_calls = []
    for num in (100, 2_000, 60_000):
        data = json.dumps(body_of(num)).encode()
        counts: Counter[str] = Counter()
        gc.disable()  # whoever listens to the collector is called by it
        sys.setprofile(lambda frame, event, argument, counts=counts: counts.update((event,)))
        try:
            fields_of(data, kind, 1 << 30)
        except InvalidRequestError as error:
            told = str(error)
        finally:
            sys.setprofile(None)
            gc.enable()
        num_calls.append(counts.total())
        assert len(told) < 2_000
    assert max(num_faults) <= 64 and max(num_calls) < 10_000
    assert num_calls[2] <= num_calls[1] + 200


def test_a_value_or_a_name_is_told_in_part(endpoint: Endpoint) -> None:
    """What a client gets back is small, and is found in time: a pattern over all of a message took its square."""
    kind = " found using x" * 100_000
    for body in ({"messages": [{"role": kind, "content": "a"}]}, {"messages": MESSAGES, "k" * 1_000_000: 1}):
        answer = endpoint.post(CHAT, body)
        assert answer.status_code == 400 and len(answer.content) < 2_000
    assert len(bodies._in_english(kind)) <= 400


@pytest.mark.parametrize("value", [b"[]", b"{}", b'{"a":1}', b"[[]]"])
def test_a_body_of_many_values_is_refused(value: bytes, endpoint: Endpoint) -> None:
    """In a text the same signs are no values, wherever it seems to end."""
    many = b",".join([value] * (MOST + 1))
    answer = endpoint.post(COMPLETIONS, b'{"prompt":"a","guided_json":{"a":[' + many + b"]}}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "body")
    with pytest.raises(BodyLimitError, match="more than 100,000 lists"):
        check_values(many, MOST)
    for start in ('\\"', 'a\\\\\\"', "\\\\n", "\\u005b\\"):
        text = json.dumps({"prompt": start + many.decode()}).encode()
        check_values(text, MOST)
        assert json.loads(text)["prompt"].endswith(value.decode())
        with pytest.raises(BodyLimitError):
            check_values(text[:-1] + b',"a":[' + many + b"]}", MOST)


@few(2)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1 << 16])
def test_values_are_counted_as_by_the_slow_twin(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the pieces that are looked at."""
    monkeypatch.setattr(bodies, "_LOOKED_AT_ONCE", size)
    draws, outcomes = random.Random(size), Counter[bool]()
    for _ in range(1000):
        data = bytes(draws.choice(b'\\"[{:ab') for _ in range(draws.randrange(14)))
        pieces = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        num_values = sum(map(b"".join(pieces[::2]).count, (b"[", b"{", b":")))
        for most in range(3):
            outcomes[num_values > most] += 1
            with pytest.raises(BodyLimitError) if num_values > most else nullcontext():
                check_values(data, most)
    assert min(outcomes.values()) > 500


def test_bodies_that_are_not_short_are_read_in_a_thread(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return fields_of(*given)

    monkeypatch.setattr(app_module, "fields_of", noted)
    for path, name in ((CHAT, "messages"), (COMPLETIONS, "prompt"), (RESPONSES, "input")):
        for size in (10, SHORT_BYTES):
            assert endpoint.post(path, {name: [None], "x": "a" * size}).status_code == 400
    assert threads == [True, False] * 3


def test_bodies_are_read_one_at_a_time(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads that read would have all turns at the interpreter but one."""
    num_together, most = 0, list[int]()

    def noted(*given: Any) -> Any:
        nonlocal num_together
        num_together += 1
        most.append(num_together)
        time.sleep(0.002)
        num_together -= 1
        return fields_of(*given)

    monkeypatch.setattr(app_module, "fields_of", noted)

    async def act() -> None:
        async with endpoint.client() as client:
            wrong = {"messages": [None], "x": "a" * LARGE_BYTES}
            answers = await asyncio.gather(*(client.post(CHAT, json=wrong) for _ in range(12)))
        assert {one.status_code for one in answers} == {400}

    asyncio.run(act())
    assert most == [1] * 12


def test_the_size_of_a_constraint_is_that_of_the_slow_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the slow twin counts it, which is asked for what the fast one does not write."""
    dumps, num_slow = json.dumps, 0

    def slow(*given: Any, **options: Any) -> str:
        nonlocal num_slow
        num_slow += 1
        return dumps(*given, **options)

    monkeypatch.setattr(json, "dumps", slow)
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    values: list[Any] = ['ä€𝐚\n"\\/\x7f', {"a b": [1, True, None, -7]}, {"enum": [f"{n}" for n in range(99)]}]
    for number, value in enumerate([*values, "\ud800", deep, {"\ud800": [1, 2], "a": 3}, ["\ud800", Path("a")]]):
        size = len(dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode(errors="surrogatepass"))
        asked = structure.Structure("json_schema", value, "guided_json")
        asked.check_size(size)
        with pytest.raises(BodyLimitError, match=f"{size:,} bytes as JSON"):
            asked.check_size(size - 1)
        assert num_slow == 2 * max(0, number + 1 - len(values))


def test_the_memory_of_bodies_under_way() -> None:
    """What large bodies take is bounded, and counts as long as their requests run; small ones go on meanwhile."""
    size = 4 * LARGE_BYTES
    large = {"prompt": "abc" + "d" * size, "max_tokens": 5000}
    limits = Limits(max_new_tokens=5000, compile_workers=0, max_bodies_bytes=5 * LARGE_BYTES)
    full = endpoint_of(LLM(SlowToy(), ToyTokenizer()), limits, batch_size=4)

    async def act() -> None:
        caller = Caller(full, large)
        await until(lambda: full.service.engine.stats().running == 1)
        async with full.client() as client:
            for content in (json.dumps(large).encode(), pieces(json.dumps(large).encode())):
                answer = await client.post(COMPLETIONS, content=content)
                assert (answer.status_code, answer.json()["error"]["code"]) == (429, "DK805")
                assert answer.headers["retry-after"] == "1"
            assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 200
            await caller.leave()
            assert (await client.post(COMPLETIONS, json={**large, "max_tokens": 2})).status_code == 200
            never = await client.post(COMPLETIONS, json={"prompt": "a" * 2 * size})
            assert (never.status_code, never.json()["error"]["code"]) == (413, "DK804")

    async def pieces(data: bytes) -> Any:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    try:
        asyncio.run(act())
    finally:
        full.service.close()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "guided_json": {"description": "d" * 3000}}, "guided_json"),
        (COMPLETIONS, {"prompt": "a", "guided_json": json.dumps({"description": "é" * 1500})}, "guided_json"),
        (COMPLETIONS, {"prompt": "a", "guided_regex": "a" * 3000}, "guided_regex"),
        (COMPLETIONS, {"prompt": "a", "guided_choice": ["a"] * 1000}, "guided_choice"),
        (COMPLETIONS, {"prompt": "a", "structured_outputs": {"grammar": "x" * 3000}}, "structured_outputs.grammar"),
        (CHAT, {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f",
                "description": "d" * 3000}}]}, "tools"),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "json_schema", "name": "x",
                     "schema": {"description": "d" * 3000}}}}, "text.format.schema"),
    ],
)  # fmt: skip
def test_the_size_of_a_constraint(path: str, fields: dict[str, Any], param: str) -> None:
    small = endpoint_of(toy_llm(), Limits(max_new_tokens=4, compile_workers=0, max_constraint_bytes=2000))
    try:
        answer = small.post(path, fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (413, param) and "--max-constraint-kb" in error["message"]
        assert (
            small.post(COMPLETIONS, {"prompt": "ab" * 2000, "guided_regex": "a+", "max_tokens": 1}).status_code == 200
        )
    finally:
        small.service.close()


def test_fields_that_change_nothing_are_small(endpoint: Endpoint) -> None:
    for fields in ({"user": "u" * 513}, {"safety_identifier": "u" * 513}, {"metadata": {"a": "b" * 513}},
                   {"metadata": {"a" * 65: "b"}}, {"metadata": members(17, "b")}):  # fmt: skip
        for path, body in ((CHAT, {"messages": MESSAGES}), (RESPONSES, {"input": "a"})):
            answer = endpoint.post(path, {**body, **fields})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].partition(".")[0] in fields
    whole = {"metadata": {"a" * 64: "b" * 512}, "user": "u" * 512}
    assert endpoint.post(RESPONSES, {"input": "a", "max_output_tokens": 1, **whole}).status_code == 200


@pytest.mark.parametrize("key", ["9" * 5000, "9" * 10, "-1", "²", "1_0", " 1", ""])
def test_a_bias_for_no_token(endpoint: Endpoint, key: str) -> None:
    answer = endpoint.post(COMPLETIONS, {"prompt": "a", "logit_bias": {key: 1}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")


class Late(Caller):
    """A client whose body never comes whole."""

    async def _receive(self) -> dict[str, Any]:
        if self._inbox:
            return {**self._inbox.pop(), "body": b"{", "more_body": True}
        return await super()._receive()


class Deaf(Caller):
    """A client that takes nothing of its answer."""

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        await self._left.wait()


@pytest.mark.parametrize("kind", [Late, Deaf])
@pytest.mark.parametrize("stream", [True, False])
def test_who_sends_or_reads_nothing_keeps_no_place(kind: type[Caller], stream: bool) -> None:
    """More of them than there are places, and one request beside."""
    few = endpoint_of(toy_llm(), Limits(max_new_tokens=4, compile_workers=0, max_queue=1), batch_size=1)

    async def act() -> None:
        callers = [Caller(few, {"prompt": "a"})]
        await callers[0].task
        for number in range(4):
            callers.append(kind(few, {"prompt": "ab", "max_tokens": 3, "stream": stream}))
            await until(lambda number=number: few.service.num_requests == number + 1)
            await until(lambda caller=callers[-1]: kind is Late or caller.sent)
            await until(lambda: few.service.engine.stats().running == 0)
        async with few.client() as client:
            assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 200
        for caller in callers[1:]:
            await caller.leave()

    try:
        asyncio.run(act())
    finally:
        few.service.close()


def test_no_queue() -> None:
    """An idle endpoint answers, one that writes refuses, and so does an engine for a text that would have to wait."""
    none = endpoint_of(LLM(SlowToy(), ToyTokenizer()), Limits(max_new_tokens=5000, compile_workers=0, max_queue=0),
                       batch_size=2)  # fmt: skip

    async def act() -> None:
        async with none.client() as client:
            for _ in range(3):
                assert (
                    await client.post(COMPLETIONS, json={"prompt": "a", "n": 2, "max_tokens": 1})
                ).status_code == 200
            callers = [Caller(none, {"prompt": "abc", "max_tokens": 5000}) for _ in range(2)]
            await until(lambda: none.service.engine.stats().running == 2)
            assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 429
            await callers[0].leave()
            await until(lambda: none.service.engine.stats().running == 1)
            assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 200
            await callers[1].leave()

    try:
        asyncio.run(act())
    finally:
        none.service.close()


ELSEWHERE = {"Origin": "https://evil.example", "Content-Type": "text/plain"}


def test_pages_and_names_of_others() -> None:
    """A page may call if it is asked for, or has been loaded from the endpoint itself, under one of its names."""
    local = endpoint_of(toy_llm(), cors=["https://page.example"], hosts={"endpoint", "localhost", "[::1]"})
    anyhow = endpoint_of(toy_llm(), cors=["*"])
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()

    def status(of: Endpoint, **headers: str) -> int:
        answer = of.post(COMPLETIONS, body, headers=headers)
        if answer.status_code == 403:
            error = answer.json()["error"]
            assert error["code"] == "DK803" and error["param"] in ("Host", "Origin")
        return answer.status_code

    try:
        assert status(local) == status(local, **{"Content-Type": "application/x-www-form-urlencoded"}) == 200  # curl
        for origin in ("https://page.example", "http://endpoint", "https://endpoint"):
            assert status(local, Origin=origin) == 200
        for origin in ("https://evil.example", "null", "", "https://page.example.evil.example", "http://endpoint:81"):
            assert status(local, Origin=origin) == 403
        assert (status(local, **ELSEWHERE), status(anyhow, Host="evil.example", **ELSEWHERE)) == (403, 200)
        for host in ("localhost", "LOCALHOST:8000", "[::1]", "[::1]:8000"):
            assert status(local, Host=host) == 200
        for host in (
            "rebound.evil.example",
            "rebound.evil.example:8000",
            "localhost.evil.example",
            "[::2]",
            "127.0.0.2",
        ):
            assert status(local, Host=host) == 403
        assert status(local, Host="evil.example", Origin="http://evil.example") == 403  # its own, by another's name
        assert local.request("GET", "/metrics", headers={"Host": "evil.example"}).status_code == 403
    finally:
        local.service.close()
        anyhow.service.close()


def test_no_address_is_made_of_what_a_client_sends(endpoint: Endpoint) -> None:
    for method, path in (("POST", COMPLETIONS + "/"), ("GET", "/health/"), ("GET", "/v1/models/"), ("POST", "//v1")):
        answer = endpoint.request(method, path, headers={"Host": "evil.example"})
        assert answer.status_code in (404, 405) and "evil.example" not in str(answer.headers) + answer.text
    assert "evil.example" not in endpoint.request("GET", "/openapi.json", headers={"Host": "evil.example"}).text
