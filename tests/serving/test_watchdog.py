"""A step of the engine that does not come to its end: it is told, and nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from torch import Tensor

from decodekit.cli.parts.console import CRASH
from decodekit.errors import EngineClosedError
from decodekit.llm import LLM
from decodekit.serving import service as service_module
from decodekit.serving.limits import Limits
from decodekit.serving.server import Server, bound
from decodekit.testing.toy import ToyLM, ToyTokenizer
from tests.serving.conftest import Endpoint, endpoint_of
from tests.serving.test_ends import until
from tests.sizes import few

COMPLETIONS = "/v1/completions"


class Stuck(ToyLM):
    """A model of which a pass, once it is told so, does not come back until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.may_go_on, self.num_forwards = False, threading.Event(), 0

    def forward(self, *given: Any, **options: Any) -> Tensor:
        self.num_forwards += 1
        if self.holds:
            self.may_go_on.wait(60)
        return super().forward(*given, **options)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(service_module, "_LATE_S", 0.05)
    monkeypatch.setattr(service_module, "_CLOSE_S", 0.1)
    limits = Limits(max_new_tokens=5000, compile_workers=0, stall_s=0.2, timeout_s=60)
    made = endpoint_of(LLM(Stuck(), ToyTokenizer()), limits, batch_size=2)
    yield made
    model: Any = made.llm.model
    model.may_go_on.set()
    made.service.close()
    made.service.engine._loop.thread.join(20)


def test_a_step_that_does_not_end_is_told(stuck: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    model: Any = stuck.llm.model

    async def act() -> None:
        async with stuck.client() as client:
            assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 3})).status_code == 200
            assert (await client.get("/health")).status_code == 200
            model.holds = True
            asked = asyncio.ensure_future(client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 5}))
            await until(lambda: stuck.service.watchdog.is_stalled)
            health = await client.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "stalled"})
            await until(lambda: len(caplog.records) == 1)
            await asyncio.sleep(0.3)  # more than a look
            model.holds = False
            model.may_go_on.set()
            assert (await asked).status_code == 200
            assert (await client.get("/health")).status_code == 200
            await until(lambda: len(caplog.records) == 2)

    with caplog.at_level(logging.WARNING, "decodekit.serving"):
        asyncio.run(act())
    first, second = caplog.records
    assert "more than 0.2 s; requests in it: 1\n" in first.getMessage() and "may_go_on.wait" in first.getMessage()
    assert second.getMessage() == "the engine goes on"


@few(1)
@pytest.mark.parametrize("stream", [False, True])
def test_the_time_of_a_request_holds_beside_it(stuck: Endpoint, stream: bool) -> None:
    """The answer does not wait for the step; the rows are free after it."""
    model: Any = stuck.llm.model
    object.__setattr__(stuck.service.limits, "timeout_s", 0.3)
    model.holds = True
    answer = stuck.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 5000, "stream": stream})
    assert answer.status_code == (200 if stream else 504) and "DK712" in answer.text
    before = model.num_forwards
    model.holds = False
    model.may_go_on.set()

    async def idle() -> None:
        await until(lambda: stuck.service.engine.stats().running == 0 and not stuck.service.engine._loop.handles)

    asyncio.run(idle())
    assert model.num_forwards - before <= 1


@few(1)
@pytest.mark.parametrize("stream", [False, True])
def test_a_signal_ends_it_all_the_same(stuck: Endpoint, stream: bool) -> None:
    """Clients get their error when the grace is over, and the endpoint ends."""
    model: Any = stuck.llm.model
    is_ready = threading.Event()
    listening = bound("127.0.0.1", 0)
    server = Server(stuck.app, stuck.service, 0.2, is_ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert is_ready.wait(10)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}{COMPLETIONS}"
    model.holds = True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, url, json={"prompt": "a", "max_tokens": 9, "stream": stream}, timeout=60)

        async def interrupt() -> None:
            await until(lambda: model.num_forwards)
            server.handle_exit(signal.SIGTERM, None)

        asyncio.run(interrupt())
        answer = asked.result(30)
    thread.join(20)
    assert not thread.is_alive() and stuck.service.is_stuck and stuck.service.engine._loop.thread.is_alive()
    assert answer.status_code == (200 if stream else 503) and "DK806" in answer.text


def test_closing_does_not_wait_for_it() -> None:
    """Handles of the engine itself end, too, and what comes of the step later is nobody's."""
    model = Stuck()
    engine = LLM(model, ToyTokenizer()).engine()
    model.holds = True
    handle = engine.submit("abc", max_new_tokens=9)
    while not model.num_forwards:
        pass
    assert engine.step_under_way() is not None and engine.step_under_way().requests == [0]  # type: ignore[union-attr]
    with pytest.raises(TimeoutError):
        engine.close(timeout=0.05)
    assert not handle.done
    with pytest.raises(TimeoutError):
        engine.close(drain=False, timeout=0.05)
    assert isinstance(handle.result(5).error, EngineClosedError)
    model.may_go_on.set()
    engine.close()
    assert isinstance(handle.result().error, EngineClosedError) and engine.step_under_way() is None


HANGING = """
import sys
from decodekit.cli import extract
from decodekit.cli import main
from decodekit.llm import LLM
from decodekit.testing.toy import ToyLM, ToyTokenizer

class Hanging(ToyLM):
    def forward(self, *given, **options):
        print("hangs", file=sys.stderr, flush=True)
        threading.Event().wait()

import threading
extract.load_model = lambda *given: LLM(Hanging(), ToyTokenizer())
sys.argv = ["decodekit", "serve", "--port", "0", "--grace", "0.2"]
main()
"""


def test_the_process_ends() -> None:
    """Neither the thread of the engine nor what waits for threads at the exit keeps it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(service_module.__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", HANGING], stderr=subprocess.PIPE, env=environment, text=True)
    assert process.stderr is not None
    said = list[str]()
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"at (http://\S+)/v1", line):
                threading.Thread(target=_ask, args=(found[1],), daemon=True).start()
            if "hangs" in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == CRASH
        assert said[-1] == "the engine did not come back from its last step\n", said
    finally:
        process.kill()


def _ask(url: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url + COMPLETIONS, json={"prompt": "a", "max_tokens": 9}, timeout=60)
