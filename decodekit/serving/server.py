"""An endpoint that listens: uvicorn, and an end that lets texts be finished.

At SIGTERM or SIGINT the endpoint goes on listening, answers new requests with 503, and waits for those that run. Those
that have not ended after `grace_s` seconds, or at a second signal, end with an error that their clients get. A third
signal waits for no client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from decodekit.errors import OptionError
from decodekit.llm import LLM
from decodekit.serving.app import make_app
from decodekit.serving.limits import Limits
from decodekit.serving.service import Service

_LAST_ANSWERS_S: Final = 2.0
"""So long at most, behind the grace, clients have to take the errors of what was cut short."""


class Server(uvicorn.Server):
    """Serves until a signal, then ends as the module says.

    Args:
        app: of `make_app`.
        service: behind it.
        grace_s: seconds for what runs.
        ready: called when requests are taken.
        say: called with a line for whoever has sent a signal.
    """

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        grace_s: float,
        ready: Callable[[], None],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False))
        self._service, self._grace_s, self._ready, self._say = service, grace_s, ready, say
        self._num_signals = 0
        self._is_hurried = False
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets=sockets)
        self._loop = asyncio.get_running_loop()
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let it end in an orderly way; the second time without waiting for texts, the third time for nobody."""
        self._num_signals += 1
        if self._loop is None or self._num_signals > 2:
            self.should_exit = self.force_exit = True
        elif self._num_signals == 2:
            self._loop.call_soon_threadsafe(self._hurry)
        else:
            self._service.is_draining = True
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        num_requests = self._service.num_requests
        if not num_requests:
            self._say("stopping: no request runs")
        elif self._grace_s > 0:
            given = f"{_told(num_requests)} finished off, for {self._grace_s:g} s at most"
            self._say(f"stopping: {given}; Ctrl-C again ends {'it' if num_requests == 1 else 'them'} at once")
        else:
            self._say(f"stopping: {_told(num_requests)} ended by an error")
        self._ending = asyncio.get_running_loop().create_task(self._drain())

    def _hurry(self) -> None:
        if self._service.num_requests and not self._is_hurried:
            self._say(f"stopping at once: {_told(self._service.num_requests)} ended by an error")
        self._is_hurried = True

    async def _drain(self) -> None:
        deadline = monotonic() + self._grace_s
        while self._service.num_requests and monotonic() < deadline and not self._is_hurried:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(self._service.engine.close, drain=False)
        deadline = monotonic() + _LAST_ANSWERS_S
        while self._service.num_requests and monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.force_exit = self._service.num_requests > 0  # a client that does not take its answer
        self.should_exit = True


def _told(num_requests: int) -> str:
    return "1 request is" if num_requests == 1 else f"{num_requests:,} requests are"


@contextmanager
def background(llm: LLM, name: str = "model", **options: Any) -> Iterator[str]:
    """An endpoint in a thread of this process, for tests and notebooks; its URL, with ``/v1`` at the end.

        with background(dk.LLM.load("tiny"), "tiny") as url:
            client = openai.OpenAI(base_url=url, api_key="none")

    Args:
        llm: model and tokenizer.
        name: of the model, for clients.
        options: of `Service`, and `limits`.
    """
    service = Service(llm, name, options.pop("limits", Limits()), **options)
    listening, is_ready = bound("127.0.0.1", 0), threading.Event()
    server = Server(make_app(service), service, 0.0, is_ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        while not is_ready.wait(0.1) and thread.is_alive():
            pass
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        service.close()
        thread.join(_LAST_ANSWERS_S)
        listening.close()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens, so that a port that is taken is known before a model is loaded.

    Raises:
        OptionError: there is no such address, or it is taken.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except (OSError, OverflowError) as error:
        raise OptionError(
            f"cannot listen at {host}:{port}: {error}", at="port", hint="another --port, or 0 for any that is free"
        ) from error
    return made


def serve(
    app: FastAPI,
    service: Service,
    listening: socket.socket,
    grace_s: float,
    ready: Callable[[], None],
    say: Callable[[str], None],
) -> bool:
    """Serve until a signal; whether the engine was well to the end.

    Args:
        app, service: see `Server`.
        listening: of `bound`.
        grace_s: seconds for what runs when the signal comes.
        ready: called when requests are taken.
        say: called with a line for whoever has sent a signal.
    """
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = Server(app, service, grace_s, ready, say)
    try:
        server.run(sockets=[listening])
    finally:
        is_well = service.is_draining or service.engine.is_open
        service.close()
        listening.close()
    return is_well
