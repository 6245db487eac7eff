"""The clients of a soak: what is a right answer, what is a wait, and what the report makes of it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attacks import ATTACKS, BY_NAME, NUMBER, Attacker, Outcome
from benchmarks.clients import Client, Clients, ordinary, probes, read_answer
from benchmarks.endpoint import REPOSITORY, Usage, request
from benchmarks.soak_report import Found, Phase, attacks_of, lines_of, phases_of, rows_of


def test_attacks_are_well_formed() -> None:
    assert len(BY_NAME) == len(ATTACKS)
    for attack in ATTACKS:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", attack.name) and attack.sends, attack
        assert attack.at_once >= 1 and attack.seconds > 0 and attack.pause_s >= 0, attack
        made = attack.requests()
        assert made, attack.name
        for data in made:
            head, end, body = data.replace(NUMBER, b"%08d" % 7).partition(b"\r\n\r\n")
            assert head.startswith((b"POST /", b"GET /")), attack.name
            if end:
                assert b"Content-Length: %d" % len(body) in head.split(b"\r\n"), attack.name
                assert len(body) <= 4 << 20, attack.name  # more is refused before it is read
                assert len(body) > 1 << 17 or isinstance(json.loads(body), dict), attack.name
            else:
                assert attack.manner == "drip", attack.name


def test_ordinary_requests_have_seeds() -> None:
    for client in (*ordinary(32), *probes()):
        for data in client.requests:
            assert isinstance(json.loads(data.partition(b"\r\n\r\n")[2])["seed"], int)


def stream_of(*events: Any, is_whole: bool = True) -> bytes:
    lines = [f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n".encode() for one in events]
    chunks = [b"%x\r\n%b\r\n" % (len(line), line) for line in lines]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(chunks) + (b"0\r\n\r\n" if is_whole else b"")


def text_event(text: str) -> dict[str, Any]:
    return {"id": "cmpl-1", "choices": [{"text": text, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (stream_of(text_event("a"), text_event("b"), "[DONE]"), {"text": "ab"}),
        (stream_of(text_event("a"), is_whole=False), "cut off"),
        (stream_of(text_event("a"), {"error": {"code": "DK805"}}), "error in the stream"),
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}", "429"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{"', "cut off"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(text_event("ab")).encode(), {"text": "ab"}),
        (b"", "cut off"),
    ],
)
def test_what_an_answer_says(data: bytes, answer: dict[str, str] | str) -> None:
    assert read_answer(data) == answer


@asynccontextmanager
async def fake_endpoint(answer: Callable[[], Iterator[bytes | float]]) -> AsyncIterator[int]:
    """A port where every request that is posted gets the pieces of an answer, with the seconds between them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        for piece in answer() if head.startswith(b"POST") else [b"HTTP/1.1 200 OK\r\n\r\n{}"]:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                writer.write(piece)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


ASKS = Client("streams", (request("/v1/completions", {"prompt": "a", "seed": 1, "stream": True}),), 0.0)


def test_another_text_is_a_fault_and_a_pause_is_a_gap() -> None:
    texts = ["right", "right", "wrong"]

    def answer() -> Iterator[bytes | float]:
        data = stream_of(text_event(texts.pop(0) if texts else "right"), text_event("end"), "[DONE]")
        at = data.index(b"data: ", data.index(b"data: ") + 1) - 4  # before the second event
        yield data[:at]
        yield 0.2
        yield data[at:]

    async def run() -> Clients:
        async with fake_endpoint(answer) as port:
            clients = Clients(port, [ASKS])
            await clients.learn()
            clients.start()
            while not clients.faults:
                await asyncio.sleep(0.01)
            await clients.end()
            return clients

    clients = asyncio.run(run())
    assert [(whose, what) for _, whose, what in clients.faults] == [("streams", "other text")]
    assert clients.num_answers == {"streams": 1}
    assert len(clients.spans("first")) == 2  # not the one that was asked to learn
    # What this process was late is not the endpoint's; the pause is longer in any case.
    assert len(clients.spans("gap")) == 2 and all(end > begin for begin, end in clients.spans("gap"))


def test_what_is_refused_to_a_hostile_client_is_counted() -> None:
    statuses = [b"200", b"500", b"400"]

    def answer() -> Iterator[bytes | float]:
        yield b"HTTP/1.1 %b X\r\n\r\n{}" % (statuses.pop(0) if statuses else b"400")

    async def run() -> Outcome:
        async with fake_endpoint(answer) as port:
            return await Attacker(port, ["control-tokens"]).play("control-tokens", 1.0)

    outcome = asyncio.run(run())
    assert outcome.statuses["500"] == outcome.statuses["200"] == 1
    assert outcome.wrong() == {"500": 1}
    assert Outcome("foreign-page", 0.0, 1.0, Counter({"200": 2, "403": 9})).wrong() == {"200": 2}


def found_of(
    gap_ms: float, *, memory_mib: float = 100.0, kept_mib: float = 0.0, fault: str = "429", status: str = "400"
) -> Found:
    """Five phases of ten seconds, with a gap of 10 ms without attacks, and of `gap_ms` beside them."""
    clients = Clients(1, [])
    phases = [
        Phase(bool(number % 2), 10.0 * number, 10.0 * number + 10, kept_mib if number == 4 else 0.0)
        for number in range(5)
    ]
    for phase in phases:
        seconds = gap_ms / 1000 if phase.is_attacked else 0.01
        for kind in ("gap", "first", "whole", "health"):
            clients.keep(kind, "one", (phase.begin + 5, phase.begin + 5 + seconds))
    clients.faults.append((15.0, "one", fault))
    usages = [Usage(float(at), memory_mib if at > 40 else 100.0, 9, 2, 1.0, 0.0, 0) for at in range(50)]
    outcome = Outcome("many-texts", 11.0, 19.0, Counter({status: 1}))
    return Found(clients, phases, [outcome], usages)


def failing(found: Found) -> list[str]:
    return [str(line["wanted"]).partition(":")[0] for line in lines_of(found, is_alive=True) if not line["holds"]]


def test_a_report_says_what_does_not_hold() -> None:
    assert failing(found_of(15)) == []
    assert failing(found_of(300)) == [
        "p99 of gap between chunks",
        "largest gap",
        "p99 of first token of a stream",
        "/health beside attacks",
    ]
    assert failing(found_of(15, memory_mib=120)) == ["memory beside what is kept"]
    assert failing(found_of(15, memory_mib=120, kept_mib=15)) == []
    assert failing(found_of(15, fault="other text")) == ["faults of ordinary clients"]
    assert failing(found_of(15, status="500")) == ["hostile requests"]
    assert not all(line["holds"] for line in lines_of(found_of(15), is_alive=False))


def test_a_report_has_figures_by_phase_and_by_attack() -> None:
    found = found_of(300)
    found.outcomes.append(Outcome("leaving", 19.5, 20.0))
    found.clients.keep("gap", "one", (18.0, 21.0))  # of the attack that it began in
    found.clients.keep("gap", "one", (19.49, 19.99))
    rows = {(row["of"], row["attacks"]): row for row in rows_of(found)}
    assert rows["/health", True]["max"] == 300 and rows["/health", False]["max"] == 10
    assert rows["/health", True]["p99_by_pair"] == [(10, 300), (10, 300)]
    largest = {row["attack"]: row["largest_gap_ms"] for row in attacks_of(found)}
    assert largest == {"many-texts": 3000, "leaving": 500}
    assert [row["memory_mib"] for row in phases_of(found)] == [100] * 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_soak_runs_to_its_end(tmp_path: Path) -> None:
    options = ["--minutes", "0.2", "--phase", "4", "--pace", "0.04", "--into", str(tmp_path)]
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *options], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr  # what holds is not asked on a busy machine
    recorded = json.loads((tmp_path / "soak.json").read_text())
    assert recorded["machine"] and recorded["commit"] and time.monotonic() - begin > 12
    assert [one["attacks"] for one in recorded["phases"]] == [False, True, False]
    assert {one["attack"] for one in recorded["attacks"]} <= set(BY_NAME) and len(recorded["attacks"]) > 3
    assert recorded["num_right_answers"] and not [what for what in recorded["faults"] if "other text" in what]
    assert all(row["num"] for row in recorded["rows"] if row["of"] == "/health")
    assert recorded["usage"][0]["memory_mib"] > 100
