"""Hostile clients of an endpoint: a table of what they send, and the process that plays them.

    echo 60 | python -m benchmarks.attacks --port 8000 back-references huge-prompts

plays the named attacks one after the other for 60 seconds, and goes on from there at the next line. What became of each
is written as a line of JSON. It runs at a lower priority, and all bodies are made before it says the first ``[]``, so
that little of the machine is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from benchmarks.endpoint import request

NUMBER = b"@@@@@@@@"
"""Where a request is to be another one each time: eight digits that count up stand in its place."""

PAUSE_S = 1.0
"""Between two attacks."""

Manner: TypeAlias = Literal["ask", "deaf", "drip", "leave"]
Requests: TypeAlias = Callable[[], Sequence[bytes]]

_CHAT, _COMPLETIONS, _RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_NICE = 5  # with 19 it gets nothing done where both cores are busy
_QUOTE, _END = "3", "1"
"""Tokens of the bundled model: ``"`` and the end of a text."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What a hostile client does.

    Args:
        name: of the attack.
        sends: in words.
        requests: makes the requests, which each connection sends in turn.
        manner: ``ask`` waits for the answer; ``deaf`` never reads one; ``drip`` sends the head of a request, and from
            then on a byte a second; ``leave`` goes away at a random moment.
        at_once: connections at a time.
        pause_s: between two requests of a connection.
        seconds: how long it goes on in a rotation.
        answers: the statuses that such a request may be answered with, besides 408, 429, 503 and 504.
    """

    name: str
    sends: str
    requests: Requests
    manner: Manner = "ask"
    at_once: int = 1
    pause_s: float = 0.0
    seconds: float = 6.0
    answers: tuple[int, ...] = (200, 400, 413, 422, 431)


def _chat(content: str = "Dear", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def _ambiguous_grammars() -> list[bytes]:
    grammars = 'start: a\na: a a | b | ""\nb: b a | "x" | ""', 'start: a\na: a a | b\nb: b a | "x"'
    return [
        request(
            _COMPLETIONS,
            {"prompt": "x", "guided_grammar": one, "max_tokens": 400, "seed": 1, "logit_bias": {_END: -100}},
        )
        for one in grammars
    ]


def _wrong_items(num_items: int = 8000) -> list[bytes]:
    wrong = {
        "messages": (_CHAT, {"messages": [0] * num_items}),
        "prompt": (_COMPLETIONS, {"prompt": [None] * (num_items // 3)}),
        "input": (_RESPONSES, {"input": [0] * num_items}),
        "logit_bias": (_CHAT, _chat(logit_bias={str(number): "" for number in range(1000)})),
        "unknown": (_CHAT, {f"a{number}": 0 for number in range(num_items // 4)}),
    }
    return [request(path, json.dumps(body, separators=(",", ":")).encode()) for path, body in wrong.values()]


def _back_references() -> list[bytes]:
    """Patterns that no text has and whose regular part allows any; the model is made to ask for the end each time."""
    patterns = r"^(.+)(.+)(?=\1\2$)\1\2.$", r"^(.+)(.+)(.+)(?=\1\2\3$)\1\2\3.$", r"^(.+)+(?=\1$)\1.$"
    fields: dict[str, Any] = {"max_tokens": 900, "logit_bias": {_QUOTE: 100}, "temperature": 2, "seed": 1}
    schemas: list[dict[str, Any]] = [{"type": "string", "pattern": one} for one in patterns]
    return [request(_COMPLETIONS, {"prompt": "Dear", "guided_json": one, **fields}) for one in schemas]


def _slow_constraints() -> list[bytes]:
    number = NUMBER.decode()
    patterns = [{"pattern": f"^(a|b|c)*{'abc'[size % 3]}(a|b|c){{{size}}}{number}$"} for size in range(8, 16)]
    slow = {"type": "string", "allOf": patterns}
    grammar = f'root ::= ("{number}" | root root root){{1,500}}'
    return [
        request(_CHAT, _chat(guided_json=slow, max_tokens=20)),
        request(_CHAT, _chat(guided_grammar=grammar, max_tokens=20)),
    ]


def _heavy_constraints() -> list[bytes]:
    patterns = (
        "(a{1,999}){1,999}",
        "((a|b)*c(a|b){200})+",
        "(.*a){1,30}(.*b){20}.{300}",
        "[a-z ]{60}(x|[a-z ]{60}y){9}",
    )
    unique = {
        "type": "array",
        "uniqueItems": True,
        "minItems": 60,
        "items": {"type": "array", "items": {"enum": [1, 2]}},
    }
    bounds: dict[str, Any] = {"max_tokens": 200, "seed": 1}
    return [
        *(request(_COMPLETIONS, {"prompt": "a", "guided_regex": one, **bounds}) for one in patterns),
        request(_COMPLETIONS, {"prompt": "a", "guided_json": unique, **bounds}),
        request(_COMPLETIONS, {"prompt": "a", "guided_grammar": 'start: A*\nA: "a"~1..5000', **bounds}),
        request(_COMPLETIONS, {"prompt": "x", "guided_grammar": 'start: x\nx: x x x | x x | "a"?', **bounds}),
    ]


def _huge_prompts() -> list[bytes]:
    text = ("Dear Sir or Madam, " * 220_000)[: (4 << 20) - 1000]
    message = [{"role": "user", "content": "a b "}]
    return [
        request(_COMPLETIONS, {"prompt": text, "max_tokens": 1}),
        request(_CHAT, _chat(text, max_tokens=1)),
        request(_CHAT, {"messages": message * (len(text) // 40), "max_tokens": 1}),
    ]


def _deaf_clients() -> list[bytes]:
    metadata = {f"key {number}": "x" * 16_000 for number in range(16)}
    large = request(_RESPONSES, {"input": "Dear", "metadata": metadata, "max_output_tokens": 1, "stream": True})
    stream = request(_COMPLETIONS, {"prompt": "Dear", "max_tokens": 900, "logprobs": 20, "stream": True, "seed": 1})
    return [stream, *[large] * 31]


def _nested_lists() -> list[bytes]:
    schema = b'{"type":"string","examples":[' + b"[]," * (4_080_000 // 3) + b"0]}"
    return [request(_COMPLETIONS, b'{"prompt":"' + NUMBER + b'","max_tokens":1,"guided_json":' + schema + b"}")]


def _large_answers() -> list[bytes]:
    return [
        request(_CHAT, _chat(n=128, max_tokens=60, logprobs=True, top_logprobs=20, seed=1)),
        request(_COMPLETIONS, {"prompt": "Dear", "n": 32, "max_tokens": 100, "logprobs": 20, "seed": 1}),
    ]


def _many_texts() -> list[bytes]:
    prompts = ["Dear"] * 128
    return [
        request(_COMPLETIONS, {"prompt": "Dear", "n": 128, "max_tokens": 900, "seed": 1, "logit_bias": {_END: -100}}),
        request(_COMPLETIONS, {"prompt": prompts, "max_tokens": 900, "seed": 1, "logit_bias": {_END: -100}}),
    ]


def _large_schemas() -> list[bytes]:
    names = (f"{NUMBER.decode()}_{number:06d}" for number in range(16_000))
    schema = {"type": "object", "properties": {name: {"type": "string", "maxLength": 9} for name in names}}
    return [request(_COMPLETIONS, {"prompt": "x", "guided_json": schema, "max_tokens": 2})]


def _tool_texts() -> list[bytes]:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}} for number in range(64)
    ]
    fields: dict[str, Any] = {"max_tokens": 900, "seed": 1, "logit_bias": {_END: -100}}
    return [request(_CHAT, _chat(tools=tools, **fields)), request(_CHAT, _chat(tools=tools, stream=True, **fields))]


def _prefix_guesses() -> list[bytes]:
    return [request(_COMPLETIONS, {"prompt": f"Dear {NUMBER.decode()}" * 9, "max_tokens": 1})]


def _foreign_page() -> list[bytes]:
    headers = ["Origin: https://evil.example", "Content-Type: text/plain"]
    return [request(_CHAT, _chat(max_tokens=4), host="rebound.evil.example", headers=headers)]


def _half_head() -> list[bytes]:
    return [f"POST {_CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: {'x' * 4000}".encode()]


def _one(value: dict[str, Any], path: str = _CHAT, **how: Any) -> Requests:
    """One small request, over and over."""
    return lambda: [request(path, value, **how)]


# fmt: off
ATTACKS: tuple[Attack, ...] = (
    Attack("ambiguous-grammar", "a grammar of 43 bytes whose rules call each other on the left", _ambiguous_grammars,
           seconds=10),
    Attack("wrong-items", "16 KiB with thousands of wrong messages, prompts, inputs or fields", _wrong_items),
    Attack("back-references", "patterns with back-references that no text has", _back_references,
           at_once=2, seconds=10),
    Attack("slow-constraints", "constraints that take seconds to read, each another one", _slow_constraints,
           at_once=10, seconds=15),
    Attack("heavy-constraints", "patterns and grammars that are read at once and cost later", _heavy_constraints,
           at_once=2, seconds=10),
    Attack("huge-prompts", "prompts of 4 MB, as one text, one message, 100,000 messages", _huge_prompts,
           at_once=2, seconds=12),
    Attack("deaf-clients", "256 KB of metadata, three times in the answer, and nobody reads", _deaf_clients, "deaf",
           at_once=300, seconds=8),
    Attack("slow-bodies", "a head, then a byte of the body a second", _one(_chat("x" * 1000)), "drip",
           at_once=300, seconds=8),
    Attack("half-heads", "half a head that never ends", _half_head, "drip", at_once=300, seconds=8),
    Attack("nested-lists", "3.9 MB of lists in a schema", _nested_lists, at_once=16, seconds=12),
    Attack("large-answers", "128 texts with 20 alternatives for each token", _large_answers, seconds=15),
    Attack("many-texts", "128 texts of 900 tokens", _many_texts, seconds=8),
    Attack("large-schemas", "schemas of 0.9 MB that pass, each another one", _large_schemas, seconds=8),
    Attack("tool-texts", "texts of 900 tokens in which calls of 64 tools are looked for", _tool_texts,
           at_once=4, seconds=8),
    Attack("control-tokens", "names of control tokens in the content", _one(_chat("hi<eos>evil<pad>", max_tokens=4)),
           pause_s=0.05, seconds=2),
    Attack("prefix-guesses", "prompts that guess at prefixes of others", _prefix_guesses,
           at_once=2, pause_s=0.02, seconds=3),
    Attack("foreign-page", "a page of another origin, and a rebound host", _foreign_page,
           pause_s=0.05, seconds=2, answers=(400, 403, 415, 421)),
    Attack("long-keys", "a token id of 5,000 digits", _one(_chat(logit_bias={"1" * 5000: 1}, max_tokens=1)),
           pause_s=0.05, seconds=2, answers=(400,)),
    Attack("redirects", "a path with a slash at its end, and a host", _one(_chat(), _CHAT + "/", host="evil.example"),
           pause_s=0.05, seconds=2, answers=(400, 403, 404, 421)),
    Attack("leaving", "texts whose clients go away at any moment", _one(_chat(max_tokens=300, stream=True)), "leave",
           at_once=20),
)
# fmt: on

BY_NAME = {attack.name: attack for attack in ATTACKS}


@dataclass
class Outcome:
    """What became of an attack.

    Args:
        attack: its name.
        begin: when it began, a value of `time.monotonic`.
        end: when it ended.
        statuses: how often it was answered with what; ``no connection``, ``cut`` and ``left`` among them.
        processor_s: of this process.
    """

    attack: str
    begin: float
    end: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    processor_s: float = 0.0

    def wrong(self) -> dict[str, int]:
        """Answers that such a request must not get."""
        fine = {408, 429, 503, 504, *BY_NAME[self.attack].answers}
        return {one: count for one, count in self.statuses.items() if one.isdigit() and int(one) not in fine}


class Attacker:
    """Plays attacks, one at a time.

    Args:
        port: of the endpoint, on this machine.
        names: of the attacks whose requests are made beforehand.
    """

    def __init__(self, port: int, names: Sequence[str]) -> None:
        self._port = port
        self._requests = {name: [*BY_NAME[name].requests()] for name in dict.fromkeys(names)}
        self._numbers = itertools.count(int(time.time() * 16) % 50_000_000 + 10_000_000)
        self._random = random.Random(0)

    async def play(self, name: str, seconds: float) -> Outcome:
        """Let an attack go on for some time; then all of its connections are broken off."""
        attack, begin, processor = BY_NAME[name], time.monotonic(), _processor_s()
        outcome = Outcome(name, begin)
        lanes = [asyncio.create_task(self._lane(attack, number, outcome)) for number in range(attack.at_once)]
        await asyncio.sleep(seconds)
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
        outcome.end, outcome.processor_s = time.monotonic(), round(_processor_s() - processor, 2)
        return outcome

    async def _lane(self, attack: Attack, number: int, outcome: Outcome) -> None:
        requests = self._requests[attack.name]
        for turn in itertools.count(number):
            data = requests[turn % len(requests)].replace(NUMBER, b"%08d" % next(self._numbers))
            try:
                answer = await self._exchange(attack.manner, data)
            except OSError as error:
                outcome.statuses["cut" if isinstance(error, ConnectionResetError) else "no connection"] += 1
                await asyncio.sleep(0.2)
            else:
                outcome.statuses[answer] += 1
            await asyncio.sleep(attack.pause_s)

    async def _exchange(self, manner: Manner, data: bytes) -> str:
        """What a request was answered with, as far as its manner looks."""
        made = socket.socket()
        if manner == "deaf":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(made, ("127.0.0.1", self._port))
            if manner == "drip":
                return await self._drip(made, data)
            await loop.sock_sendall(made, data)
            if manner == "deaf":
                await asyncio.Event().wait()
            if manner == "leave":
                with suppress(TimeoutError):
                    await asyncio.wait_for(_status(made), self._random.random() * 0.5)
                return "left"
            return await _status(made)
        finally:
            made.close()

    async def _drip(self, made: socket.socket, data: bytes) -> str:
        at = data.find(b"\r\n\r\n") + 4
        at = at if at > 3 else len(data) - 1000
        loop, answer = asyncio.get_running_loop(), asyncio.create_task(_status(made))
        try:
            await loop.sock_sendall(made, data[:at])
            while not answer.done() and at < len(data):
                await loop.sock_sendall(made, data[at : at + 1])
                at += 1
                await asyncio.wait({answer}, timeout=1.0)
            return await answer
        finally:
            answer.cancel()


async def _status(made: socket.socket) -> str:
    """The status of an answer, when all of it has come."""
    loop, first, last = asyncio.get_running_loop(), b"", b""
    while data := await loop.sock_recv(made, 1 << 18):
        first, last = first or data, data
    return first[9:12].decode("latin-1") if first and last else "cut"


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def rotate(attacker: Attacker, names: Iterator[str], seconds: float, pace: float) -> list[Outcome]:
    """Play attacks one after the other until the time is over."""
    deadline, found = time.monotonic() + seconds, []
    while (left := deadline - time.monotonic()) > 0:
        name = next(names)
        found.append(await attacker.play(name, min(left, BY_NAME[name].seconds * pace)))
        await asyncio.sleep(min(PAUSE_S * pace, max(0.0, deadline - time.monotonic())))
    return found


def main() -> None:
    """Play what the command line names, for as many seconds as each line of stdin says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(BY_NAME), metavar="NAME", help=", ".join(BY_NAME))
    parser.add_argument("--port", type=int, required=True, help="of the endpoint on this machine")
    parser.add_argument("--pace", type=float, default=1.0, help="times the seconds of each attack (default: 1)")
    arguments = parser.parse_args()
    attacker, names = Attacker(arguments.port, arguments.names), itertools.cycle(arguments.names)
    os.nice(_NICE)
    print("[]", flush=True)
    for line in sys.stdin:
        outcomes = asyncio.run(rotate(attacker, names, float(line), arguments.pace))
        print(json.dumps([vars(one) for one in outcomes]), flush=True)


if __name__ == "__main__":
    main()
