"""What takes long holds up nobody but who asked for it: new constraints, long prompts, large answers, many texts."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

import decodekit as dk
from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.errors import ServerBusyError
from decodekit.llm import LLM
from decodekit.models import encoding
from decodekit.serving.limits import Limits
from decodekit.serving.requests.fair_turns import Client, Turns, client_of
from decodekit.serving.requests.prompt_reader import Prompts
from decodekit.serving.requests.structure import Structure
from decodekit.serving.routes import client_answers as answers
from decodekit.serving.routes.chat import ChatRoute
from decodekit.serving.routes.responses import ResponsesRoute
from decodekit.serving.routes.text_completions import CompletionsRoute
from decodekit.serving.service import LONG, Constraints
from decodekit.testing.toy import ToyTokenizer, toy_llm
from tests.serving.conftest import Endpoint, endpoint_of
from tests.serving.test_ends import SlowToy, until
from tests.sizes import few

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ONE, OTHER, THIRD = (Client("", name) for name in "123")


class Blocked:
    """Work that ends when it is told to; says in which order it began.

    Args:
        act: what is done in the end.
    """

    def __init__(self, act: Callable[..., Any] = lambda *_: None) -> None:
        self.act, self.began, self.may_end = act, list[Any](), threading.Event()

    def __call__(self, *given: Any) -> Any:
        self.began.append(given)
        assert self.may_end.wait(30)
        return self.act(*given)


def of(endpoint: Endpoint, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(endpoint.app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://endpoint", timeout=60)


def test_turns_are_fair() -> None:
    """Three places, of which a client has two; then who has fewer, then who waits longest."""
    order, gate = list[str](), threading.Event()

    def work(name: str) -> Callable[[], str]:
        def act() -> str:
            order.append(name)
            assert gate.wait(10)
            return name

        return act

    async def act() -> None:
        turns = Turns("turns", 3, 4)
        asked = [asyncio.create_task(turns.run(ONE, work(f"a{i}"))) for i in range(4)]
        await until(lambda: len(order) == 2)
        with pytest.raises(ServerBusyError, match="4 long prompts"):
            await turns.run(ONE, work("a4"))
        asked += [asyncio.create_task(turns.run(OTHER, work("b0")))]
        await until(lambda: len(order) == 3)
        asked += [asyncio.create_task(turns.run(who, work(name))) for who, name in ((OTHER, "b1"), (THIRD, "c0"))]
        leaving = asyncio.create_task(turns.run(THIRD, work("left")))
        await asyncio.sleep(0.01)
        assert order == ["a0", "a1", "b0"] and turns.num_of(THIRD) == 2
        leaving.cancel()
        asked[0].cancel()  # what has begun keeps its place
        await asyncio.sleep(0.01)
        assert turns.num_of(THIRD) == 1 and turns.num_of(ONE) == 4 and len(order) == 3
        gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError) and found[1:] == ["a1", "a2", "a3", "b0", "b1", "c0"]
        assert order.index("c0") < order.index("a2") < order.index("a3") and "left" not in order
        await until(lambda: not turns.num_of(ONE))
        turns.close()

    asyncio.run(act())


def test_clients() -> None:
    """A network of IPv6 is one client, and an address by itself is the same in either form."""
    found = [client_of({"client": (host, 5)}) for host in ("1.2.3.4", "::ffff:1.2.3.4", "2001:db8::1", "2001:db8::ff")]
    assert found[0] == found[1] == Client("", "1.2.3.4") and found[2] == found[3] != found[0]
    assert client_of({"client": None, "decodekit.key": "k"}) == Client("k", "")


@pytest.fixture
def patient() -> Iterator[Endpoint]:
    limits = Limits(max_new_tokens=50, compile_workers=2, max_readings=3, timeout_s=30)
    made = endpoint_of(toy_llm(), limits)
    yield made
    made.service.close()


def test_known_constraints_wait_for_nobody(patient: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside constraints that are read for ever: known ones, and new ones of others; the time of a request holds."""
    compiler = patient.service.compiler
    reading = Blocked()
    monkeypatch.setattr(
        compiler, "_ask", lambda structure: reading(structure.value) if "x" in structure.value else None
    )

    async def act() -> None:
        async with of(patient, "1") as one, of(patient, "2") as other:

            def ask(client: httpx.AsyncClient, pattern: str) -> Awaitable[httpx.Response]:
                return client.post(COMPLETIONS, json={"prompt": "a", "guided_regex": pattern, "max_tokens": 4})

            assert (await ask(one, "a")).status_code == 200
            hostile = [asyncio.ensure_future(ask(one, f"x{i}")) for i in range(3)]
            await until(lambda: reading.began)
            assert (await ask(one, "x3")).status_code == 429
            same = [asyncio.ensure_future(ask(one, "x1")) for _ in range(5)]  # is read once for all
            for client in (one, other):
                assert (await ask(client, "a")).status_code == 200
            assert (await ask(other, "b")).status_code == 200
            assert [value for (value,) in reading.began] == ["x0"]
            object.__setattr__(patient.service.limits, "timeout_s", 0.2)
            late = await ask(other, "x9")
            assert (late.status_code, late.json()["error"]["code"]) == (504, "DK712")
            object.__setattr__(patient.service.limits, "timeout_s", 30)
            hostile[2].cancel()
            await asyncio.sleep(0.01)
            reading.may_end.set()
            found = await asyncio.gather(*hostile[:2], *same)
            assert [answer.status_code for answer in found] == [200] * 7
            assert sorted(value for (value,) in reading.began) == ["x0", "x1", "x9"]

    asyncio.run(act())


def test_long_prompts_hold_up_nobody(patient: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    of_ids = Prompts.of_ids
    long = Blocked(of_ids)
    monkeypatch.setattr(Prompts, "of_ids", lambda self, ids, *at: (long if len(ids) > LONG else of_ids)(self, ids, *at))

    async def act() -> None:
        async with of(patient, "1") as one, of(patient, "2") as other:
            asked = [asyncio.ensure_future(one.post(COMPLETIONS, json={"prompt": "a" * 40_000})) for _ in range(3)]
            await until(lambda: long.began)
            for client in (one, other):
                assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 2})).status_code == 200
            chat = {"messages": [{"role": "user", "content": "a" * 40_000}]}
            assert (await one.post(CHAT, json=chat)).status_code == 429
            assert len(long.began) == 1  # of a client one at a time, since there are two places
            long.may_end.set()
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 3

    asyncio.run(act())


@pytest.fixture(scope="module")
def tiny() -> Iterator[Endpoint]:
    made = endpoint_of(dk.LLM.load("tiny"))
    yield made
    made.service.close()


@pytest.mark.parametrize(("path", "body"), [
    (COMPLETIONS, lambda text: {"prompt": text}),
    (COMPLETIONS, lambda text: {"prompt": ["a", text]}),
    (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
    ("/v1/responses", lambda text: {"input": text}),
])  # fmt: skip
def test_what_cannot_fit_is_not_divided(
    tiny: Endpoint, monkeypatch: pytest.MonkeyPatch, path: str, body: Callable[[str], Any]
) -> None:
    divided = list[int]()
    divide = encoding.encode_text

    def counted(tokenizer: Any, text: str, *given: Any, **options: Any) -> list[int]:
        divided.append(len(text))
        return divide(tokenizer, text, *given, **options)

    monkeypatch.setattr("decodekit.serving.requests.prompt_reader.encode_text", counted)
    monkeypatch.setattr("decodekit.chat.conversation.encode_text", counted)
    answer = tiny.post(path, body("word and " * 200_000))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "DK304") and sum(divided) < 10
    answer = tiny.post(path, body("word and " * 1_200))  # which is told by its tokens, as it was before
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "DK304") and sum(divided) > 10_000


def test_the_lock_of_a_tokenizer_is_for_those_that_change(tiny: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, backend = tiny.service.prompts, tiny.llm.tokenizer.backend_tokenizer
    with prompts._lock:
        assert prompts.of_text("abc")
    backend.enable_truncation(2)
    try:
        assert len(prompts.of_text("some words more")) > 2
        assert backend.truncation is None
    finally:
        backend.no_truncation()


def test_log_probabilities_of_an_answer(tiny: Endpoint) -> None:
    """Texts, tokens and alternatives together; a client that gives no limit gets as many tokens as there may be."""
    limits = tiny.service.limits
    object.__setattr__(limits, "max_entries", 60)
    try:
        body = {"prompt": "Dear", "temperature": 0, "min_tokens": 5}
        answer = tiny.post(COMPLETIONS, {**body, "logprobs": 4, "n": 2, "max_tokens": 7})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens"
        assert "2 texts of 7 tokens" in answer.text and "more than 60" in answer.text
        assert tiny.post(COMPLETIONS, {**body, "logprobs": 4, "n": 2, "max_tokens": 6}).status_code == 200
        chat = {
            "messages": [{"role": "user", "content": "Dear"}],
            "logprobs": True,
            "top_logprobs": 5,
            "temperature": 0,
        }
        found = tiny.post(CHAT, {**chat, "min_tokens": 10}).json()["choices"][0]
        assert found["finish_reason"] == "length" and len(found["logprobs"]["content"]) == 10
        answer = tiny.post(COMPLETIONS, {"prompt": ["a"] * 20, "n": 2, "logprobs": 4, "max_tokens": 1})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens"
    finally:
        object.__setattr__(limits, "max_entries", 1 << 18)
    many = tiny.post(COMPLETIONS, {"prompt": "a", "n": 33, "max_tokens": 1})
    assert (many.status_code, many.json()["error"]["param"]) == (400, "n") and "32 texts" in many.text


def test_answers_are_made_aside_and_in_pieces(tiny: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the thread of the event loop, and no piece holds up the others for long."""
    threads, dumped = set[str](), list[int]()
    for route in (ChatRoute, CompletionsRoute, ResponsesRoute):
        reply = route.reply

        def noted(*given: Any, reply: Any = reply) -> Any:
            threads.add(threading.current_thread().name)
            return reply(*given)

        monkeypatch.setattr(route, "reply", noted)
    dumps = answers._dumps

    def counted(value: Any) -> str:
        text = dumps(value)
        dumped.append(len(text))
        return text

    monkeypatch.setattr(answers, "_dumps", counted)
    body = {"prompt": "Dear", "n": 4, "max_tokens": 100, "min_tokens": 100, "logprobs": 20}
    answer = tiny.post(COMPLETIONS, body)
    assert answer.status_code == 200 and len(answer.content) > 100_000 and max(dumped) < 3_000
    assert all(name.startswith("decodekit-long") for name in threads)
    assert answer.headers["content-length"] == str(len(answer.content))
    whole = json.dumps(answer.json(), ensure_ascii=False, separators=(",", ":"))
    assert answer.content == whole.encode() and answer.headers["content-type"] == "application/json"


@few(3)
@pytest.mark.parametrize(
    "value", [{}, [], {"a": []}, {"é": [1, {"b": [[], {}, [[[[{"c": "\u2028"}]]]]]}]}, 1.5, None, "x"]
)
def test_pieces_are_the_whole(value: Any) -> None:
    whole = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert b"".join(answers.pieces_of(value)) == whole
    many = {"data": [value] * 20_000}
    pieces = answers.pieces_of(many)
    assert b"".join(pieces) == json.dumps(many, ensure_ascii=False, separators=(",", ":")).encode()
    assert max(map(len, pieces)) < 70_000


def test_the_first_text_of_anybody_comes_first() -> None:
    """A request of many texts has all rows while it is alone, and one that comes gets one of them at once."""
    slow = endpoint_of(LLM(SlowToy(), ToyTokenizer()), Limits(max_new_tokens=100_000, compile_workers=0), batch_size=4)
    try:
        model: Any = slow.llm.model

        async def act() -> None:
            many = {"prompt": "abc", "max_tokens": 100_000, "stream": True, "n": 4, "seed": 1}
            async with slow.client() as one, slow.client() as other:
                texts = asyncio.ensure_future(one.post(COMPLETIONS, json=many))
                await until(lambda: slow.service.engine.stats().running == 4 and model.num_forwards > 20)
                before = model.num_forwards
                answer = await other.post(COMPLETIONS, json={"prompt": "b", "max_tokens": 3})
                assert answer.status_code == 200 and model.num_forwards - before < 500
                assert slow.service.engine.stats().preemptions >= 1
                texts.cancel()
                await until(lambda: slow.service.engine.stats().running == 0)

        asyncio.run(act())
    finally:
        slow.service.close()


@pytest.mark.slow
def test_the_texts_of_many_are_their_own() -> None:
    """Texts that left their rows for others go on as if they had not."""
    slow = endpoint_of(LLM(SlowToy(), ToyTokenizer()), Limits(max_new_tokens=100, compile_workers=0), batch_size=4)
    try:
        body: dict[str, Any] = {"prompt": ["abc", "abc, the"], "max_tokens": 60, "n": 4, "seed": 1}

        async def act() -> list[httpx.Response]:
            async with slow.client() as client:
                first = asyncio.ensure_future(client.post(COMPLETIONS, json=body))
                await until(lambda: slow.service.engine.stats().running == 4)
                asked = [client.post(COMPLETIONS, json={**body, "seed": 2})]
                for seed in range(9):
                    one = {"prompt": "abc", "max_tokens": 9, "seed": seed}
                    asked.append(client.post(COMPLETIONS, json=one))
                return await asyncio.gather(first, *asked)

        found = asyncio.run(act())
        assert slow.service.engine.stats().preemptions > 0
        for answer in found:
            seed = int(answer.headers["x-decodekit-seed"])
            choices = [choice["text"] for choice in answer.json()["choices"]]
            alone: list[str] = []
            for prompt in body["prompt"] if len(choices) > 1 else ["abc"]:
                options: dict[str, Any] = {"max_new_tokens": 60 if len(choices) > 1 else 9, "seed": seed}
                several = slow.llm.generate(prompt, strategy="sample", num_return_sequences=4, **options)
                alone += [several.text, *(one.text for one in several.others)][: 4 if len(choices) > 1 else 1]
            assert choices == alone
    finally:
        slow.service.close()


@pytest.mark.parametrize(
    ("shares", "cached"), [("all", (True, True)), ("client", (True, False)), ("none", (False, False))]
)
def test_who_shares_prefixes(shares: Any, cached: tuple[bool, bool]) -> None:
    """Of a prompt that one address has sent, the answer to another one tells nothing."""
    limits = Limits(max_new_tokens=20, compile_workers=0, shared_prefixes=shares)
    made = endpoint_of(toy_llm(), limits)

    async def act() -> list[bool]:
        found = []
        body = {"prompt": "abc, the abc, the " * 8, "max_tokens": 2}
        for address in ("1", "1", "2"):
            async with of(made, address) as client:
                usage = (await client.post(COMPLETIONS, json=body)).json()["usage"]
                found.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
        return found

    try:
        assert asyncio.run(act()) == [False, *cached]
    finally:
        made.service.close()


def test_prefixes_of_a_key_are_shared() -> None:
    made = endpoint_of(toy_llm(), Limits(max_new_tokens=20, compile_workers=0), api_key="sesame")

    async def act() -> list[int]:
        found = []
        for address in ("1", "2"):
            async with of(made, address) as client:
                body = {"prompt": "abc, the abc, the " * 8, "max_tokens": 2}
                answer = await client.post(COMPLETIONS, json=body, headers={"Authorization": "Bearer sesame"})
                found.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        return found

    try:
        assert [number > 0 for number in asyncio.run(act())] == [False, True]
    finally:
        made.service.close()


def test_constraints_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodekit.serving.service.memory_limit", lambda: 100)
    held = Constraints()
    held.hold("large", 500)
    held.hold("large", 500)
    with pytest.raises(ServerBusyError):
        held.hold("other", 1)
    held.release("large")
    held.release("large")
    for key in "ab":
        held.hold(key, 50)
    assert held.num_bytes == 100
    with pytest.raises(ServerBusyError):
        held.hold("c", 1)
    held.release("a")
    held.release("b")
    assert held.num_bytes == 0 and not held._held


def test_constraints_of_requests_that_have_ended_do_not_count(patient: Endpoint) -> None:
    patient.service.compiler.check(Structure("regex", "[ab]+", "guided_regex"))
    for _ in range(3):
        assert patient.post(COMPLETIONS, {"prompt": "a", "guided_regex": "[ab]+", "max_tokens": 4}).status_code == 200
    assert patient.service.constraints.num_bytes == 0 and not patient.service.constraints._held


def test_size_of_an_answer() -> None:
    completion = toy_llm().generate("abc", max_new_tokens=5, logprobs=3)
    assert isinstance((completion.logprobs or ())[0], TokenLogprob)
    assert answers.size_of(completion) >= len(completion.text) + 5 * 4 * 30
