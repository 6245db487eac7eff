"""Clients that leave, endpoints that are full, and the end: what ran is freed, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from torch import Tensor

from decodekit.constraints.tool_calls import tools
from decodekit.errors import NonFiniteLogitsError, ResourceLimitError
from decodekit.llm import LLM, Handle
from decodekit.serving.limits import Limits
from decodekit.serving.requests.sandbox import Compiler
from decodekit.serving.requests.structure import Structure
from decodekit.serving.routes.call_stream import CallSplitter
from decodekit.serving.server import Server, bound
from decodekit.testing.toy import ToyLM, ToyTokenizer
from tests.serving.conftest import LIMITS, Endpoint, endpoint_of, events_of
from tests.sizes import few

COMPLETIONS = "/v1/completions"


class SlowToy(ToyLM):
    """Counts its forward passes, each of which takes a moment."""

    def __init__(self) -> None:
        super().__init__()
        self._base[256] = -99.0  # texts do not end by themselves
        self.num_forwards = 0

    def forward(self, *given: Any, **options: Any) -> Tensor:
        self.num_forwards += 1
        time.sleep(0.002)
        return super().forward(*given, **options)


@pytest.fixture
def slow() -> Iterator[Endpoint]:
    made = endpoint_of(LLM(SlowToy(), ToyTokenizer()), Limits(max_new_tokens=5000, compile_workers=0, max_queue=2),
                       batch_size=2)  # fmt: skip
    yield made
    made.service.close()


class Caller:
    """A client without a network: it may leave at any time.

    Args:
        endpoint: is called.
        body: of the request.
    """

    def __init__(self, endpoint: Endpoint, body: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._endpoint, self._left = endpoint, asyncio.Event()
        self._inbox = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self.task = asyncio.create_task(self._call())

    async def _call(self) -> None:
        scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "raw_path": COMPLETIONS.encode(), "headers": [],
                 "query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("endpoint", 80),
                 "client": ("client", 1), "root_path": "", "asgi": {"version": "3.0"}}  # fmt: skip
        await self._endpoint.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._inbox:
            return self._inbox.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def leave(self) -> None:
        self._left.set()
        await self.task


async def until(holds: Callable[[], object]) -> None:
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


@few(1)
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"stream": True, "n": 2}])
def test_who_leaves_frees_the_rows_within_a_step(
    slow: Endpoint, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = slow.llm.model
    at_cancel: list[int] = []
    cancel = Handle.cancel

    def counted(handle: Handle) -> bool:
        if not handle.done:
            at_cancel.append(model.num_forwards)
        return cancel(handle)

    monkeypatch.setattr(Handle, "cancel", counted)

    async def act() -> None:
        caller = Caller(slow, {"prompt": "abc", "max_tokens": 5000, **fields})
        await until(lambda: slow.service.engine.stats().running == fields.get("n", 1) and model.num_forwards > 10)
        before = model.num_forwards
        await until(lambda: model.num_forwards > before + 5)  # the control: who stays is served
        assert not at_cancel
        await caller.leave()
        await until(lambda: slow.service.engine.stats().running == 0)
        assert len(at_cancel) == fields.get("n", 1)
        assert model.num_forwards - at_cancel[0] <= 2  # the step under way, and one that may have begun
        left = model.num_forwards
        await asyncio.sleep(0.05)
        assert model.num_forwards == left

    asyncio.run(act())
    figures = slow.figures()
    assert figures["decodekit_requests_cancelled_total"] == 1
    assert figures['decodekit_requests_total{route="/v1/completions",status="499"}'] == 1
    assert figures['decodekit_texts_finished_total{reason="cancelled"}'] == fields.get("n", 1)


def test_a_full_queue(slow: Endpoint) -> None:
    """Two texts run and two wait; the next are refused until one of them leaves."""

    async def act() -> None:
        body = {"prompt": "abc", "max_tokens": 5000}
        callers = [Caller(slow, body) for _ in range(2)]
        await until(lambda: slow.service.engine.stats().running == 2)
        callers += [Caller(slow, body) for _ in range(2)]
        await until(lambda: slow.service.engine.stats().waiting == 2)
        async with slow.client() as client:
            for _ in range(2):
                answer = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
                assert answer.json()["error"]["code"] in ("DK701", "DK805")
            assert (await client.get("/health")).status_code == 200
            for caller in callers[:3]:
                await caller.leave()
            await until(lambda: slow.service.engine.stats().running <= 1)
            assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 200
            many = await client.post(COMPLETIONS, json={"prompt": "a", "n": 5})
            assert (many.status_code, many.json()["error"]["param"]) == (400, "n")
            # Four texts are as many as there is room for, and one runs already: all of them, or none.
            whole = await client.post(COMPLETIONS, json={"prompt": ["a", "a"], "n": 2, "max_tokens": 2})
            assert whole.status_code in (200, 429)
        await callers[3].leave()
        await until(lambda: slow.service.engine.stats().running == 0)

    asyncio.run(act())


def test_the_time_of_a_request() -> None:
    limits = Limits(max_new_tokens=5000, compile_workers=0, timeout_s=0.05)
    short = endpoint_of(LLM(SlowToy(), ToyTokenizer()), limits)
    try:
        answer = short.post(COMPLETIONS, {"prompt": "a", "max_tokens": 5000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "DK712")
        last = events_of(short.post(COMPLETIONS, {"prompt": "a", "max_tokens": 5000, "stream": True}))[-1]
        assert last["error"]["code"] == "DK712"
        body = {"input": "a", "max_output_tokens": 5000, "stream": True}
        failed = events_of(short.post("/v1/responses", body))[-1]
        assert failed["type"] == "response.failed" and failed["response"]["error"]["code"] == "DK712"
    finally:
        short.service.close()


def test_an_endpoint_that_ends(slow: Endpoint) -> None:
    """New requests are refused, what is cut short ends with an error, and a stream says so."""

    async def act() -> None:
        callers = [Caller(slow, {"prompt": "abc", "max_tokens": 5000, "stream": stream}) for stream in (True, False)]
        await until(lambda: slow.service.engine.stats().running == 2)
        slow.service.is_draining = True
        async with slow.client() as client:
            refused = await client.post(COMPLETIONS, json={"prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "DK806")
            assert refused.headers["retry-after"] == "1"
            assert (await client.get("/health")).status_code == 503
        await asyncio.to_thread(slow.service.engine.close, drain=False)
        await asyncio.gather(*(caller.task for caller in callers))
        streamed = b"".join(one.get("body", b"") for one in callers[0].sent)
        assert b"DK806" in streamed and callers[0].sent[-1]["more_body"] is False
        assert callers[1].sent[0]["status"] == 503

    asyncio.run(act())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_cancelled_by_the_end(slow: Endpoint, stream: bool) -> None:
    """What the event loop cancels when it ends gets the error, or the end of its stream, and nobody a traceback."""

    async def act() -> None:
        caller = Caller(slow, {"prompt": "abc", "max_tokens": 5000, "stream": stream})
        await until(lambda: slow.service.engine.stats().running == 1 and (caller.sent or not stream))
        slow.service.is_draining = True
        caller.task.cancel()
        await caller.task
        assert caller.sent[0]["status"] == (200 if stream else 503)
        assert stream or b"DK806" in caller.sent[1]["body"]
        assert not caller.sent[-1].get("more_body")

    asyncio.run(act())


@few(1)
@pytest.mark.parametrize("stream", [False, True])
def test_a_second_signal(slow: Endpoint, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The first one says what is waited for; at the second one clients get the error in place of their texts."""
    is_ready, said = threading.Event(), list[str]()
    listening = bound("127.0.0.1", 0)
    server = Server(slow.app, slow.service, 60.0, is_ready.set, said.append)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert is_ready.wait(10)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}{COMPLETIONS}"
    body = {"prompt": "abc", "max_tokens": 5000, "stream": stream}
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(httpx.post, url, json=body, timeout=30)

        async def interrupt() -> None:
            await until(lambda: slow.service.engine.stats().running == 1)
            server.handle_exit(signal.SIGINT, None)
            await until(lambda: said)
            assert not answered.done()
            server.handle_exit(signal.SIGINT, None)

        asyncio.run(interrupt())
        answer = answered.result(30)
    thread.join(10)
    assert not thread.is_alive() and not caplog.records
    assert said == [
        "stopping: 1 request is finished off, for 60 s at most; Ctrl-C again ends it at once",
        "stopping at once: 1 request is ended by an error",
    ]
    assert answer.status_code == (200 if stream else 503)
    error = events_of(answer)[-1] if stream else answer.json()
    assert error["error"]["code"] == "DK806"


def test_a_failure_is_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the model, and one that nobody raises on purpose, of which nothing is told but its kind."""
    model = ToyLM()
    failing = endpoint_of(LLM(model, ToyTokenizer()))
    try:
        monkeypatch.setattr(model, "_base", model._base * float("nan"))
        answer = failing.post(COMPLETIONS, {"prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, NonFiniteLogitsError.code)
        assert answer.json()["error"]["type"] == "server_error"

        def fails(text: str) -> list[int]:
            raise RuntimeError("a secret path")

        monkeypatch.setattr(failing.service.prompts, "of_text", fails)
        answer = failing.post(COMPLETIONS, {"prompt": "a"})
        assert answer.status_code == 500 and "secret" not in answer.text and "RuntimeError" in answer.text
        assert failing.figures()['decodekit_requests_total{route="/v1/completions",status="500"}'] == 2
    finally:
        failing.service.close()


def test_a_text_that_the_guard_refuses(endpoint: Endpoint) -> None:
    """Nothing that the model would write fits: no failure of the server."""
    body = {"prompt": "abc", "guided_regex": "a+", "logit_bias": {"97": -100}, "max_tokens": 5, "temperature": 0}
    assert endpoint.post(COMPLETIONS, body).status_code == 200  # a bias forbids nothing
    repeats = {"type": "array", "items": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"],
               "additionalProperties": False}, "minItems": 2, "uniqueItems": True}  # fmt: skip
    answer = endpoint.post(COMPLETIONS, {"prompt": "abc", "guided_json": repeats, "max_tokens": 100, "seed": 0})
    assert (answer.status_code, answer.json()["error"]["code"]) in ((422, "DK604"), (400, "DK202"))


def test_figures(endpoint: Endpoint) -> None:
    before = endpoint.figures()
    answer = endpoint.post(COMPLETIONS, {"prompt": "abcd", "max_tokens": 7, "min_tokens": 7}).json()
    after = endpoint.figures()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("decodekit_prompt_tokens_total") == answer["usage"]["prompt_tokens"]
    assert grown("decodekit_generated_tokens_total") == answer["usage"]["completion_tokens"] == 7
    assert grown('decodekit_requests_total{route="/v1/completions",status="200"}') == 1
    assert grown("decodekit_time_to_first_token_seconds_count") == 1
    assert grown("decodekit_time_per_output_token_seconds_count") == 1
    assert after["decodekit_running"] == after["decodekit_waiting"] == 0


def test_constraints_are_read_in_processes_that_may_be_ended() -> None:
    """What is refused there has the error that it has here; what takes too long ends, and the next one is read."""
    compiler = Compiler(Limits(compile_s=20.0, compile_workers=1))
    try:
        compiler.check(Structure("regex", "[a-c]+", "guided_regex"))
        for kind, value in (("regex", "("), ("json_schema", {"type": "integer", "minimum": 3, "maximum": 1})):
            structure = Structure(kind, value, "field")  # type: ignore[arg-type]
            with pytest.raises(decodekit_error()) as there:
                compiler.check(structure)
            with pytest.raises(decodekit_error()) as here:
                Compiler(LIMITS).check(structure)
            assert str(there.value) == str(here.value) and type(there.value) is type(here.value)
            assert there.value.at == "field"
        object.__setattr__(compiler._limits, "compile_s", 0.0001)
        large = Structure("choice", [f"{i}" * 20 for i in range(20_000)], "guided_choice")
        with pytest.raises(ResourceLimitError, match=r"more than 0\.0001 s"):
            compiler.check(large)
        object.__setattr__(compiler._limits, "compile_s", 20.0)
        compiler.check(Structure("regex", "[a-d]+", "guided_regex"))
    finally:
        compiler.close()


def decodekit_error() -> type[Exception]:
    from decodekit.errors import DecodekitError

    return DecodekitError


def test_content_is_told_as_soon_as_it_is_certain() -> None:
    splitter = CallSplitter(tools([{"name": "now"}], "hermes"))
    told = [splitter.push(piece) for piece in ("I look", " it <t", "ool> up <tool_", "call>\n{", '"name"')]
    assert told == ["I look", " it ", "<tool> up ", "", ""]
    alone = CallSplitter(tools([{"name": "now"}], "llama3"))
    assert [alone.push(piece) for piece in (" ", "no", " call")] == ["", " no", " call"]
    brace = CallSplitter(tools([{"name": "now"}], "llama3"))
    assert [brace.push(piece) for piece in (" ", '{"name"', ": 1}")] == ["", "", ""]
