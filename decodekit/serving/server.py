"""An endpoint that listens: uvicorn, and an end that lets texts be finished.

At SIGTERM or SIGINT the endpoint goes on listening, answers new requests with 503, and waits for those that run. Those
that have not ended after `grace_s` seconds, or at a second signal, end with an error that their clients get. A third
signal waits for no client.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from time import monotonic
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from decodekit.errors import OptionError
from decodekit.llm import LLM
from decodekit.serving.app import make_app
from decodekit.serving.connection import Connection
from decodekit.serving.limits import Limits
from decodekit.serving.routes.client_answers import LOGGER
from decodekit.serving.service import Service

_IN_LINE: Final = 512
"""Most clients that wait to be accepted, where the system has room for so many."""
_MOST_AT_ONCE: Final = 32
_SAID_EVERY_S: Final = 60.0
_SWITCH_S: Final = 0.0005
"""So soon, not after 5 ms, a thread that reads requests gives way to the one that decodes; hundreds of times a step."""
_LAST_ANSWERS_S: Final = 2.0
"""So long at most, behind the grace, clients have to take the errors of what was cut short."""


class Server(uvicorn.Server):
    """Serves until a signal, then ends as the module says; arguments are those of `serve`."""

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        grace_s: float,
        ready: Callable[[], None],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        max_connections, num_at_once = _shares(service.limits.max_connections)
        http = partial(Connection, limits=replace(service.limits, max_connections=max_connections))
        # Named one by one, so that nothing depends on what happens to be installed.
        protocols: Any = {"loop": "asyncio", "http": http, "ws": "none", "backlog": num_at_once}
        quiet: Any = {"lifespan": "off", "log_config": None, "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(app, **protocols, **quiet))
        self._service, self._grace_s, self._ready, self._say = service, grace_s, ready, say
        self._num_signals = 0
        self._said_until = 0.0
        self._is_hurried = False
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._failed)
        await super().startup(sockets=sockets)
        for one in sockets or ():
            one.listen(_IN_LINE)  # asyncio accepts as many in one turn as may wait
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Once a second, end the connections whose clients do nothing."""
        if counter % 10 == 0:
            now = monotonic()
            for one in [*self.server_state.connections]:
                if isinstance(one, Connection):
                    one.check(now)
        return await super().on_tick(counter)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell of a failure in the event loop. Of descriptors that are used up asyncio tells once for each client."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif monotonic() > self._said_until:
            self._said_until = monotonic() + _SAID_EVERY_S
            LOGGER.error("no descriptors are left for clients: a larger `ulimit -n`, or a smaller --max-connections")

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
        await asyncio.to_thread(self._service.end_texts)
        deadline = monotonic() + _LAST_ANSWERS_S
        while self._service.num_requests and monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.force_exit = self._service.num_requests > 0  # a client that does not take its answer
        self.should_exit = True


def _shares(wanted: int) -> tuple[int, int]:
    """Most connections, and most that are accepted at once, with descriptors left for whatever else needs them.

    A socket that is accepted becomes a connection, and one that ends is closed, a few turns of the event loop later.
    """
    try:
        import resource

        most, num_open = resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(os.listdir("/dev/fd"))
    except (ImportError, OSError):  # not on every system
        return wanted, _MOST_AT_ONCE
    num_left = 1 << 20 if most == resource.RLIM_INFINITY else max(16, most - num_open)
    num_at_once = min(_MOST_AT_ONCE, num_left // 16)
    return min(wanted, num_left - 6 * num_at_once), num_at_once


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
    app = make_app(service, hosts=hosts_of(listening))
    server = Server(app, service, 0.0, is_ready.set)
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
        cause, hint = f"cannot listen at {host}:{port}: {error}", "another --port, or 0 for any that is free"
        raise OptionError(cause, at="port", hint=hint) from error
    return made


def is_local(listening: socket.socket) -> bool:
    """Whether a socket is reached from this machine alone."""
    return ip_address(listening.getsockname()[0]).is_loopback


def hosts_of(listening: socket.socket, allowed: Collection[str] = ()) -> frozenset[str] | None:
    """The names by which clients may call a socket; None for any.

    A page that a browser has open may let its own name lead to this machine. What listens to this machine alone is
    therefore called by this machine's names, and by those that are `allowed`.
    """
    address = listening.getsockname()[0]
    if "*" in allowed or not (allowed or is_local(listening)):
        return None
    own = f"[{address}]" if ":" in address else address
    return frozenset({"localhost", "127.0.0.1", "[::1]", own, *map(str.lower, allowed)})


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
        app: of `make_app`.
        service: behind it.
        listening: of `bound`.
        grace_s: seconds for what runs when the signal comes.
        ready: called when requests are taken.
        say: called with a line for whoever has sent a signal.
    """
    sys.setswitchinterval(_SWITCH_S)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # what is no request is no line in the log, either
    server = Server(app, service, grace_s, ready, say)
    try:
        server.run(sockets=[listening])
    finally:
        is_well = service.is_draining or service.engine.is_open
        service.close()
        listening.close()
    return is_well
