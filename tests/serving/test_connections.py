"""Clients on real connections that ask for nothing, take nothing, or send little that makes much work."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import h11
import httpx
import pytest
from typer.testing import CliRunner
from uvicorn.server import ServerState

from decodekit.cli import app as command_line
from decodekit.llm import LLM
from decodekit.serving import server as server_module
from decodekit.serving.app import make_app
from decodekit.serving.connection import Connection, Requests
from decodekit.serving.limits import Limits
from decodekit.serving.server import Server, bound, hosts_of
from decodekit.serving.service import Service
from decodekit.testing.toy import ToyTokenizer, toy_llm
from tests.serving.test_ends import SlowToy
from tests.sizes import few

COMPLETIONS = "/v1/completions"
SMALL = Limits(max_new_tokens=5000, compile_workers=0, max_queue=4)


class Listening:
    """An endpoint that listens, in a thread of this process.

    Args:
        llm: is served.
        limits: of the endpoint.
        options: of `make_app`.
    """

    def __init__(self, llm: LLM, limits: Limits, **options: Any) -> None:
        self.service = Service(llm, "toy", limits, batch_size=2)
        self.socket, is_ready = bound("127.0.0.1", 0), threading.Event()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections have it, too
        app = make_app(self.service, hosts=hosts_of(self.socket), **options)
        self.server = Server(app, self.service, 0.0, is_ready.set)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self._thread.start()
        assert is_ready.wait(10)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    @property
    def connections(self) -> list[Connection]:
        return [*self.server.server_state.connections]  # type: ignore[list-item]

    def connect(self, data: bytes = b"") -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(30)
        made.connect(self.socket.getsockname())
        made.sendall(data)
        return made

    def close(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.service.close()
        self._thread.join(10)


@contextmanager
def listening(limits: Limits = SMALL, llm: LLM | None = None, **options: Any) -> Iterator[Listening]:
    made = Listening(llm or toy_llm(), limits, **options)
    try:
        yield made
    finally:
        made.close()


def answer_to(client: socket.socket) -> bytes:
    """What comes until the other side closes, or breaks off."""
    found = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while data := client.recv(65536):
            found += data
    return found


def until(holds: Callable[[], object]) -> None:
    for _ in range(4000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it never came")


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST", chunked: bool = False) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


HEALTH = request("/health", method="GET")


@few(1)
@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", HEALTH[:-2], HEALTH, HEALTH + b"GET"])
def test_who_asks_for_nothing_is_let_go(sent: bytes) -> None:
    """Nothing, half a line, a header without its end, and what was answered before."""
    with listening(Limits(max_new_tokens=9, compile_workers=0, header_s=0.5)) as one:
        with one.connect(sent) as client:
            answer = answer_to(client)
        assert answer.count(b"200 OK") == (sent[: len(HEALTH)] == HEALTH)
        until(lambda: not one.connections)


def test_a_body_behind_an_answer_is_not_waited_for() -> None:
    """The answer needs no body; what drips in behind it keeps nothing open."""
    with listening(Limits(max_new_tokens=9, compile_workers=0, header_s=0.5)) as one:
        client = one.connect(request("/health", b"", "Content-Length: 1000", method="GET"))
        until(lambda: one.connections)
        for _ in range(1000):
            with contextlib.suppress(OSError):
                client.sendall(b"x")
            if not one.connections:
                break
            time.sleep(0.02)
        client.close()
        until(lambda: not one.connections)


def test_many_connections_are_as_many_as_there_may_be() -> None:
    """Of those that ask for nothing the oldest go; who asks is answered, and is not sent away while it is."""
    limits = Limits(max_new_tokens=5000, compile_workers=0, max_connections=4)
    body = json.dumps({"prompt": "abc", "max_tokens": 5000, "stream": True}).encode()
    with listening(limits, LLM(SlowToy(), ToyTokenizer())) as one, contextlib.ExitStack() as held:
        running = held.enter_context(one.connect(request(COMPLETIONS, body)))
        until(lambda: one.service.engine.stats().running == 1)
        waiting = []
        for number in range(12):
            sent = b"POST /v1" if number % 2 else request(COMPLETIONS, b"", "Content-Length: 9")
            waiting.append(held.enter_context(one.connect(sent)))
            assert httpx.get(f"{one.url}/health").status_code == 200
        until(lambda: len(one.connections) <= limits.max_connections)
        assert answer_to(waiting[0]) == b""
        assert one.service.engine.stats().running == 1 and running.recv(12) == b"HTTP/1.1 200"


def test_nobody_is_sent_away_while_he_is_answered() -> None:
    limits = Limits(max_new_tokens=5000, compile_workers=0, max_connections=1)
    body = json.dumps({"prompt": "abc", "max_tokens": 5000, "stream": True}).encode()
    with listening(limits, LLM(SlowToy(), ToyTokenizer())) as one, one.connect(request(COMPLETIONS, body)):
        until(lambda: one.service.engine.stats().running == 1)
        with one.connect(HEALTH) as refused:
            assert answer_to(refused) == b""
        assert one.service.engine.stats().running == 1


@few(1)
@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/responses"])
def test_who_reads_nothing_is_let_go(path: str) -> None:
    """The texts end with the connection, long before the time of the request."""
    limits = Limits(max_new_tokens=50_000, compile_workers=0, send_s=0.5)
    fields: dict[str, Any] = {"prompt": "abc", "max_tokens": 50_000}
    if path == "/v1/responses":
        fields = {"input": "abc", "max_output_tokens": 50_000}
    asked = request(path, json.dumps({**fields, "stream": True}).encode())
    with listening(limits, LLM(SlowToy(), ToyTokenizer())) as one, one.connect(asked) as client:
        assert client.recv(12) == b"HTTP/1.1 200"
        until(lambda: not one.connections)
        until(lambda: one.service.engine.stats().running == 0 and one.service.num_requests == 0)
        assert one.service.engine.stats().finished["cancelled"] == 1


class Wire(asyncio.Transport):
    """A transport whose client has taken all but `num_unsent` bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_unsent, self.is_aborted = 0, False

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        pass

    def write(self, data: Any) -> None:
        pass


@pytest.mark.parametrize(("each_second", "is_let_go"), [(1000, False), (20, True), (0, True)])
def test_who_reads_slowly_is_not(each_second: int, is_let_go: bool) -> None:
    """An answer of 600 kB, of which the client takes so many bytes each second, and 600 s of it."""
    service = Service(toy_llm(), "toy", SMALL)
    wire, loop = Wire(), asyncio.new_event_loop()
    config = Server(make_app(service), service, 0.0, lambda: None).config
    config.load()
    one = Connection(limits=SMALL, config=config, server_state=ServerState(), app_state={}, _loop=loop)
    try:
        one.connection_made(wire)
        start = time.monotonic()
        wire.num_unsent = 600_000
        one.pause_writing()
        for second in range(600):
            one.check(start + second)
            wire.num_unsent -= each_second
            if wire.num_unsent <= 16_384 and one.flow.write_paused:
                one.resume_writing()
        assert wire.is_aborted == is_let_go
        one.check(start + 611)
        assert wire.is_aborted == (is_let_go or wire.num_unsent == 0)  # nothing to take, and nothing asked for
    finally:
        loop.close()
        service.close()


def test_a_body_in_many_pieces() -> None:
    """Pieces of a byte each are refused when there are many of them; few, or larger ones, are a body."""
    text = json.dumps({"prompt": "abc", "max_tokens": 1}).encode()
    spaces = b"1\r\n \r\n" * 200_000
    with listening() as one:
        with one.connect() as client:
            with contextlib.suppress(OSError):
                client.sendall(request(COMPLETIONS, spaces, chunked=True))
            assert answer_to(client)[:12] in (b"HTTP/1.1 400", b"")  # or reset, with much unread
        until(lambda: not one.connections)
        for size in (1, 700):
            padded = text.ljust(size * 900)
            pieces = [padded[start : start + size] for start in range(0, len(padded), size)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
            with one.connect(request(COMPLETIONS, body, "Connection: close", chunked=True)) as client:
                assert answer_to(client).startswith(b"HTTP/1.1 200")


def test_bodies_are_taken_in_larger_pieces_than_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece costs the same whatever its size; of a header no more is taken than there may be."""
    sizes: list[tuple[int, int]] = []
    receive = Connection.data_received

    def noted(connection: Connection, data: bytes) -> None:
        sizes.append((connection.transport.max_size, len(data)))  # type: ignore[attr-defined]
        receive(connection, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    body = json.dumps({"prompt": "abc", "max_tokens": 1}).encode().ljust(1 << 20)
    with listening(replace(SMALL, max_body_bytes=1 << 21)) as one, one.connect() as client:
        for _ in range(2):
            sizes.clear()
            client.sendall(request(COMPLETIONS, body))
            while not client.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                pass
            assert sizes[0][0] == 1 << 14 and {most for most, _ in sizes[1:]} == {1 << 16}
            assert sum(size for _, size in sizes) > len(body)


def test_the_work_of_pieces_is_counted() -> None:
    """So many events are made of a body at most, however small its pieces are."""
    reader = Requests()
    reader.receive_data(request(COMPLETIONS, b"1\r\n \r\n" * 50_000, chunked=True))
    events = (reader.next_event() for _ in range(1100))
    with pytest.raises(h11.RemoteProtocolError, match="too many pieces"):
        list(events)


@pytest.mark.parametrize("lines", [["a: b"] * 50_000, ["a: " + "b" * 100_000]])
def test_a_large_header_is_refused(lines: list[str]) -> None:
    with listening() as one:
        with one.connect() as client:
            with contextlib.suppress(OSError):
                client.sendall(request("/health", b"", *lines, method="GET"))
            assert b"200 OK" not in answer_to(client)
        assert httpx.get(f"{one.url}/health", headers=[(f"a{i}", "b") for i in range(300)]).status_code == 200


def test_requests_in_a_row() -> None:
    """A few that wait for the answer to the first have theirs; a flood, or one large header, ends the connection."""
    with listening(llm=LLM(SlowToy(), ToyTokenizer())) as one:
        body = json.dumps({"prompt": "abc", "max_tokens": 20}).encode()
        last = request("/health", b"", "Connection: close", method="GET")
        with one.connect(request(COMPLETIONS, body) + 20 * HEALTH + last) as client:
            assert answer_to(client).count(b"HTTP/1.1 200 OK") == 22
        endless = request(COMPLETIONS, json.dumps({"prompt": "abc", "max_tokens": 5000}).encode())
        for flood in (1000 * HEALTH, request("/health", b"", *["a: b"] * 5000, method="GET")):
            with one.connect() as client:
                with contextlib.suppress(OSError):
                    client.sendall(endless + flood)
                assert answer_to(client) == b""
            until(lambda: one.service.engine.stats().running == 0)


def test_no_request_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """What is no HTTP, also behind an answer: strangers write nothing into the log, and get no second answer."""
    caplog.set_level("ERROR")
    with listening(api_key="sesame") as one:
        for sent in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9\r\n\r\n", request(COMPLETIONS, b"zz\r\n", chunked=True),
                     request("/health", b"", "Upgrade: websocket", "Connection: Upgrade", "Connection: close",
                             method="GET")):  # fmt: skip
            with one.connect(sent) as client:
                answer_to(client)
        with one.connect(request(COMPLETIONS, b"1\r\nx\r\n", chunked=True)) as client:
            assert client.recv(12) == b"HTTP/1.1 401"
            client.sendall(b"no piece\r\n")
            assert b"HTTP/1.1" not in answer_to(client)
        until(lambda: not one.connections)
    assert not caplog.records


def test_connections_leave_descriptors_for_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there are few of them there are few connections; if they are used up all the same, one line says so."""
    num_open = 40
    monkeypatch.setattr(server_module.os, "listdir", lambda path: ["0"] * num_open)
    for most in (64, 256, 1024, 1 << 20, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, most=most: (most, most))
        num_connections, num_at_once = server_module._shares(1024)
        assert 1 <= num_connections <= 1024 and num_at_once >= 1
        assert most == resource.RLIM_INFINITY or num_open + num_connections + 6 * num_at_once <= most
    assert num_connections == 1024
    service = Service(toy_llm(), "toy", SMALL)
    try:
        server, loop = Server(make_app(service), service, 0.0, lambda: None), asyncio.new_event_loop()
        for _ in range(1000):
            server._failed(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "too many open files")})
        loop.close()
    finally:
        service.close()
    assert len(caplog.records) == 1 and "ulimit" in caplog.text


def test_protocols_are_named() -> None:
    """Nothing depends on what happens to be installed beside."""
    service = Service(toy_llm(), "toy", SMALL)
    try:
        config = Server(make_app(service), service, 0.0, lambda: None).config
        config.load()
        made: Any = config.http
        assert (config.loop, config.ws) == ("asyncio", "none") and made.func is Connection
    finally:
        service.close()


@pytest.mark.parametrize(("host", "is_told"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_endpoint_for_everybody_says_so(host: str, is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[Any] = []
    monkeypatch.setattr(server_module, "serve", lambda app, service, listening, *rest: service.close() or True)
    monkeypatch.setattr("decodekit.cli.jobs.extract.load_model", lambda *given: toy_llm())
    monkeypatch.setattr("decodekit.serving.requests.sandbox.Compiler.start", lambda compiler: None)
    monkeypatch.setattr("decodekit.serving.app.make_app", lambda service, **given: names.append(given["hosts"]))
    for key in (None, "sesame"):
        monkeypatch.delenv("DECODEKIT_API_KEY", raising=False)
        options = ["serve", "--port", "0", "--host", host, *(["--api-key", key] if key else [])]
        told = CliRunner().invoke(command_line, options)
        assert told.exit_code == 0, told.output
        assert ("anybody who reaches" in told.stderr) == (is_told and key is None)
    assert names == [None if is_told else {"localhost", "127.0.0.1", "[::1]"}] * 2
    listening = bound(host, 0)
    assert hosts_of(listening, ["Mine.example"]) == {"localhost", "127.0.0.1", "[::1]", host, "mine.example"}
    assert hosts_of(listening, ["*"]) is None
    listening.close()
