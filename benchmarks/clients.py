"""Ordinary clients of an endpoint: what they ask, how long they wait for each chunk, and whether the text is right.

Every request has a seed, so its text is known: it is asked once, alone, before anything else, and must be the same ever
after. Times are kept as (begin, end), values of `time.monotonic`; a wait that goes on counts with what it has taken.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from benchmarks.endpoint import request

Kind: TypeAlias = Literal["gap", "first", "whole", "health", "own"]
Span: TypeAlias = tuple[float, float]

KINDS: dict[Kind, str] = {
    "gap": "gap between chunks",
    "first": "first token of a stream",
    "whole": "answer of one token",
    "health": "/health",
    "own": "lateness of the clients' own clock",
}
"""What is timed. The last says how much of the others is the machine's, not the endpoint's."""

HEALTH_S = 0.1
_OWN_S = 0.005
_LATE_S = 0.02
_SILENT_S = 120.0
_SAID = re.compile(rb'"(?:text|content|delta|arguments)": ?"[^"]')
_TEXT_KEYS = ("text", "content", "delta", "arguments", "finish_reason")


@dataclass(frozen=True, slots=True)
class Client:
    """A client that asks again and again.

    Args:
        name: of the client.
        requests: asked in turn.
        pause_s: between an answer and the next request.
        copies: so many of them.
        is_timed: whether the time of a whole answer counts; of streams, gaps and first tokens always do.
    """

    name: str
    requests: tuple[bytes, ...]
    pause_s: float
    copies: int = 1
    is_timed: bool = False


_INVOICE = {
    "type": "object",
    "properties": {
        "number": {"type": "string", "maxLength": 12},
        "total": {"type": "number", "minimum": 0},
        "lines": {"type": "array", "maxItems": 4, "items": {"type": "string", "maxLength": 20}},
    },
    "required": ["number", "total", "lines"],
    "additionalProperties": False,
}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "maxLength": 20}},
                "required": [key],
            },
        },
    }
    for name, key in (("look_up", "number"), ("send", "address"))
]


def _document(seed: int) -> str:
    return f"Invoice B-{seed}, total {seed}.50 EUR, due 2024-0{1 + seed % 9}-11."


def _completion(seed: int, **fields: Any) -> bytes:
    return request("/v1/completions", {"prompt": _document(seed), "seed": seed, "temperature": 0.9, **fields})


def _chat(seed: int, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": _document(seed)}]
    return request("/v1/chat/completions", {"messages": messages, "seed": seed, **fields})


def _response(seed: int, **fields: Any) -> bytes:
    return request("/v1/responses", {"input": _document(seed), "seed": seed, **fields})


def ordinary(num_rows: int) -> tuple[Client, ...]:
    """The clients of a soak; their batches take half of the endpoint's rows."""
    schema = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": _INVOICE}}
    on_end: dict[str, Any] = {"logit_bias": {"1": -100}}  # texts of the same length, so that streams go on
    streams = tuple(_completion(seed, max_tokens=150, stream=True, **on_end) for seed in range(4))
    schemas = (
        _chat(11, response_format=schema, max_tokens=120, stream=True),
        _completion(12, guided_json=_INVOICE, max_tokens=120, stream=True),
        _chat(13, guided_regex="[A-Z][a-z]{2,30}", max_tokens=40),
        _completion(14, guided_choice=["paid", "due", "late"], max_tokens=9),
    )
    tools = (
        _chat(21, tools=_TOOLS, tool_choice="required", max_tokens=100, stream=True),
        _chat(22, tools=_TOOLS, tool_choice="auto", max_tokens=100),
    )
    prompts = [_document(seed) for seed in range(num_rows // 2)]
    batches = (
        request("/v1/completions", {"prompt": prompts, "seed": 31, "max_tokens": 60, **on_end}),
        _chat(32, n=num_rows // 2, max_tokens=60, **on_end),
    )
    text = {"format": {"type": "json_schema", "name": "invoice", "schema": _INVOICE}}
    responses = (
        _response(41, text=text, max_output_tokens=120, stream=True),
        _response(42, max_output_tokens=60, stream=True),
    )
    return (
        Client("streams", streams, 0.1, copies=2),
        Client("schemas", schemas, 0.3),
        Client("tools", tools, 0.5),
        Client("batches", batches, 0.3),
        Client("short", tuple(_completion(seed, max_tokens=1) for seed in range(51, 55)), 0.2, is_timed=True),
        Client("responses", responses, 0.5),
    )


def probes() -> tuple[Client, ...]:
    """One stream, one client that wants a token, one with a schema that the endpoint knows."""
    stream = tuple(_completion(seed, max_tokens=150, stream=True, logit_bias={"1": -100}) for seed in range(4))
    known = _completion(61, guided_json=_INVOICE, max_tokens=1)
    return (
        Client("streams", stream, 0.0),
        Client("short", (_completion(51, max_tokens=1),), 0.1, is_timed=True),
        Client("known schema", (known,), 0.1, is_timed=True),
    )


class Clients:
    """Lets clients ask, and keeps times and faults.

    Args:
        port: of the endpoint, on this machine.
        clients: who asks.

    Attributes:
        faults: when, whose, what: a status, ``other text``, ``cut off``, ``error in the stream``, ``no connection``,
            ``silent``.
        num_answers: whole and right, by client.
    """

    def __init__(self, port: int, clients: Sequence[Client]) -> None:
        self._port, self._clients = port, clients
        self._spans: defaultdict[tuple[Kind, str], list[Span]] = defaultdict(list)
        self._waits: dict[object, tuple[Kind, str, float]] = {}
        self._known: dict[bytes, dict[str, str]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.faults: list[tuple[float, str, str]] = []
        self.num_answers: Counter[str] = Counter()

    async def learn(self) -> None:
        """Ask every request once, one after the other: their texts are the right ones from now on.

        Raises:
            SystemExit: one is not answered.
        """
        for client in self._clients:
            for data in client.requests:
                answer = await self._ask(client, data, is_kept=False)
                if isinstance(answer, str):
                    raise SystemExit(f"a request of {client.name} is answered with {answer}\n{data.decode()}")
                self._known[data] = answer

    def start(self) -> None:
        """Let all of them ask from now on."""
        loops = [self._loop(client, copy) for client in self._clients for copy in range(client.copies)]
        self._tasks += map(asyncio.ensure_future, (*loops, self._health(), self._own()))

    async def end(self) -> None:
        """Let them go, in the middle of whatever they do."""
        for kind, name, begin in self._waits.values():
            self.keep(kind, name, (begin, time.monotonic()))
        self._waits.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spans(self, kind: Kind, name: str | None = None) -> list[Span]:
        """What was timed, of one client or of all, waits that go on among them.

        Each is shorter by what this process was late meanwhile: where the machine is busy, that is not the endpoint's.
        """
        now = time.monotonic()
        found = [one for key, spans in self._spans.items() if key[0] == kind for one in spans if name in (None, key[1])]
        found += ((since, now) for of, whose, since in self._waits.values() if of == kind and name in (None, whose))
        if kind == "own":
            return found
        late = [one for one in self._spans["own", "own"] if one[1] - one[0] > _LATE_S]
        ends = [end for _, end in late]
        return [(begin, end - _overlap((begin, end), late, bisect(ends, begin))) for begin, end in found]

    def waiting(self, seconds: float) -> list[str]:
        """Who waits for longer than that, and goes on waiting."""
        now = time.monotonic()
        return [name for _, name, since in self._waits.values() if now - since > seconds]

    async def _loop(self, client: Client, copy: int) -> None:
        for turn in itertools.count(copy):
            data = client.requests[turn % len(client.requests)]
            answer = await self._ask(client, data)
            if not isinstance(answer, str):
                answer = "" if answer == self._known[data] else "other text"
            if answer:
                self.faults.append((time.monotonic(), client.name, answer))
                await asyncio.sleep(1.0)  # as `Retry-After` has it
            else:
                self.num_answers[client.name] += 1
            await asyncio.sleep(client.pause_s)

    async def _ask(self, client: Client, data: bytes, is_kept: bool = True) -> dict[str, str] | str:
        """What an answer says, or what is wrong with it."""
        is_stream = b'"stream": true' in data
        kind: Kind | None = "first" if is_stream else "whole" if client.is_timed else None
        try:
            async with asyncio.timeout(_SILENT_S):
                with self._wait(kind if is_kept else None, client.name) as wait:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    try:
                        writer.write(data)
                        received = bytearray()
                        while piece := await reader.read(1 << 16):
                            received += piece
                            if is_stream and received.startswith(b"HTTP/1.1 200"):
                                wait.chunk(piece, received)
                    finally:
                        writer.transport.abort()
        except TimeoutError:
            return "silent"
        except OSError:
            return "no connection"
        return read_answer(bytes(received))

    @contextmanager
    def _wait(self, kind: Kind | None, name: str) -> Iterator[_Wait]:
        wait = _Wait(self, kind, name)
        try:
            yield wait
        except asyncio.CancelledError:
            self._waits.pop(wait, None)
            raise
        except BaseException:
            wait.over()
            raise
        else:
            wait.over()

    def keep(self, kind: Kind, name: str, span: Span) -> None:
        """Note how long somebody has waited."""
        self._spans[kind, name].append(span)

    def waits(self, wait: object, kind: Kind, name: str, begin: float) -> None:
        """Note that somebody waits from now on."""
        self._waits[wait] = kind, name, begin

    def came(self, wait: object, now: float) -> None:
        """Note that what was waited for has come."""
        if wait in self._waits:
            kind, name, begin = self._waits.pop(wait)
            self.keep(kind, name, (begin, now))

    async def _health(self) -> None:
        health = request("/health", method="GET")
        while True:
            begin = time.monotonic()
            with suppress(OSError), self._wait("health", "health"):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(health)
                    answer = await reader.read(-1)
                finally:
                    writer.transport.abort()
                status = answer[9:12].decode("latin-1")
                if status != "200":
                    self.faults.append((time.monotonic(), "health", status or "cut off"))
            await asyncio.sleep(max(0.01, begin + HEALTH_S - time.monotonic()))

    async def _own(self) -> None:
        while True:
            begin = time.monotonic()
            await asyncio.sleep(_OWN_S)
            self.keep("own", "own", (begin + _OWN_S, time.monotonic()))


class _Wait:
    """What one exchange waits for: the first token, then each chunk; or the whole answer."""

    def __init__(self, clients: Clients, kind: Kind | None, name: str) -> None:
        self._clients, self._kind, self._name = clients, kind, name
        if kind is not None:
            clients.waits(self, kind, name, time.monotonic())

    def chunk(self, piece: bytes, received: bytearray) -> None:
        """Something of a stream has come; it counts from the first token on."""
        if self._kind is None or b"data: " not in piece:
            return
        if self._kind == "first" and not _SAID.search(received):
            return
        now, self._kind = time.monotonic(), "gap"
        self._clients.came(self, now)
        if b"data: [DONE]" not in piece and b"event: response.completed" not in piece:
            self._clients.waits(self, "gap", self._name, now)

    def over(self) -> None:
        """The answer is there, or there will be none."""
        self._clients.came(self, time.monotonic())


def _overlap(span: Span, others: Sequence[Span], at: int) -> float:
    """Seconds that a span shares with others, which are sorted, from the one at a place on."""
    shared = 0.0
    while at < len(others) and others[at][0] < span[1]:
        shared += min(span[1], others[at][1]) - max(span[0], others[at][0])
        at += 1
    return shared


def read_answer(data: bytes) -> dict[str, str] | str:
    """The texts of an answer by their keys, in the order in which they came; or what is wrong with it."""
    head, _, body = data.partition(b"\r\n\r\n")
    if head[9:12] != b"200":
        return head[9:12].decode("latin-1") or "cut off"
    if b"transfer-encoding: chunked" in head.lower():
        whole = _without_chunks(body)
        if whole is None:
            return "cut off"
        lines = (line[6:] for line in whole.decode().splitlines() if line.startswith("data: "))
        values = [json.loads(line) for line in lines if line != "[DONE]"]
        if any("error" in one and one["error"] for one in values):
            return "error in the stream"
    else:
        try:
            values = [json.loads(body)]
        except ValueError:
            return "cut off"
    said: defaultdict[str, str] = defaultdict(str)
    for value in values:
        _collect(value, said)
    return dict(said)


def _without_chunks(body: bytes) -> bytes | None:
    """A body without the sizes of its chunks; None if the last is missing."""
    found, at = bytearray(), 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end], 16)
        if size == 0:
            return bytes(found)
        found += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    return None


def _collect(value: Any, said: defaultdict[str, str]) -> None:
    if isinstance(value, dict):
        for key, one in value.items():
            if key in _TEXT_KEYS and isinstance(one, str):
                said[key] += one
            else:
                _collect(one, said)
    elif isinstance(value, list):
        for one in value:
            _collect(one, said)
