"""A real process of `decodekit serve`, with the clients that people use: slow, and told with figures (``-s``)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import instructor
import openai
import pytest
from pydantic import BaseModel

import decodekit as dk

ROOT = Path(__file__).parents[2]
DOCUMENT = "Invoice A-17, total 40.20 EUR."
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string", "maxLength": 12}, "total": {"type": "number"}},
    "required": ["number", "total"],
    "additionalProperties": False,
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Served:
    """A process of `decodekit serve`."""

    def __init__(self, *options: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "decodekit.cli", "serve", "--port", "0", *options],
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self.process.stderr is not None
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"at (http://\S+)/v1", line):
                self.url = found[1]
                break
        else:
            raise AssertionError(self.said)
        threading.Thread(target=self._listen, daemon=True).start()  # so that a full pipe stops nothing

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def figure(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return 0.0 if found is None else float(found[1])

    def statuses(self) -> dict[str, float]:
        text = httpx.get(f"{self.url}/metrics").text
        found: dict[str, float] = {}
        for status, count in re.findall(r'^decodekit_requests_total\{.*status="(\d+)"\} (\S+)$', text, re.MULTILINE):
            found[status] = found.get(status, 0) + float(count)
        return found

    def megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


@contextmanager
def served(*options: str) -> Iterator[Served]:
    made = Served(*options)
    try:
        yield made
    finally:
        made.process.send_signal(signal.SIGTERM)
        try:
            made.process.wait(40)
        finally:
            made.process.kill()


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def cases(llm: dk.LLM) -> list[tuple[str, dict[str, Any], str]]:
    """Requests with the texts that `generate` has for them."""
    found: list[tuple[str, dict[str, Any], str]] = []
    for seed in range(12):
        prompt = f"Invoice B-{seed}, total {seed}.50 EUR, due 2024-0{1 + seed % 9}-11.\n"
        sampled = {"strategy": "sample", "seed": seed, "on_length": "return"}
        body = {"prompt": prompt, "seed": seed, "stream": True}
        text = llm.generate(prompt, max_new_tokens=60, temperature=0.9, **sampled).text
        found.append(("/v1/completions", {**body, "max_tokens": 60, "temperature": 0.9}, text))
        text = llm.generate(prompt, max_new_tokens=60, constraint=SCHEMA, top_p=0.95, **sampled).text
        found.append(("/v1/completions", {**body, "max_tokens": 60, "top_p": 0.95, "guided_json": SCHEMA}, text))
        text = llm.generate(prompt, max_new_tokens=40, constraint=dk.Regex("[A-Z][a-z]{2,30}"), **sampled).text
        chat = {"messages": [{"role": "user", "content": prompt[:-1]}], "seed": seed, "stream": True}
        guided = {"max_tokens": 40, "guided_regex": "[A-Z][a-z]{2,30}"}
        found.append(("/v1/chat/completions", {**chat, **guided}, text))
    return found


async def streamed(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[str, int]:
    """The text of a stream, and the number of its events; an error in it is raised."""
    text, number = "", 0
    async with session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            choice = event["choices"][0]
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            number += 1
    return text, number


def test_thirty_two_clients(llm: dk.LLM) -> None:
    """Every text is that of `generate`, for as long as it lasts, and memory does not grow."""
    seconds = float(os.environ.get("DECODEKIT_LOAD_SECONDS", "300"))
    work = cases(llm)
    counts = {"texts": 0, "events": 0}
    memory: list[float] = []

    async def client(session: aiohttp.ClientSession, url: str, number: int, until: float) -> None:
        draws = random.Random(number)
        while time.monotonic() < until:
            path, body, wanted = draws.choice(work)
            text, events = await streamed(session, url + path, body)
            assert text == wanted, (path, body)
            counts["texts"] += 1
            counts["events"] += events

    async def watch(one: Served, until: float) -> None:
        while time.monotonic() < until:
            memory.append(one.megabytes())
            await asyncio.sleep(seconds / 60)

    async def load(one: Served) -> None:
        until = time.monotonic() + seconds
        connector = aiohttp.TCPConnector(limit=64)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(120)) as session:
            clients = [client(session, one.url, number, until) for number in range(32)]
            await asyncio.gather(watch(one, until), *clients)

    with served() as one:
        asyncio.run(load(one))
        tokens, statuses = one.figure("decodekit_generated_tokens_total"), one.statuses()
        assert one.figure("decodekit_running") == one.figure("decodekit_waiting") == 0
    settled = memory[len(memory) // 3 :]
    print(f"\n{seconds:.0f} s: {counts}, {tokens / seconds:,.0f} tokens/s, {statuses}, RSS {memory[0]:.0f} MB first, "
          f"{settled[0]:.0f} after a third, {max(settled):.0f} at most, {memory[-1]:.0f} in the end")  # fmt: skip
    assert counts["texts"] > 64 and {name for name in statuses if name != "200"} == set()
    assert memory[-1] < 1.1 * settled[0] + 16


def test_no_body_is_a_failure_of_the_server() -> None:
    """Bodies by the description, and against it: never a 5xx, and answers are as described."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, which the extra `slow` brings")
    from hypothesis import HealthCheck, Phase, given, settings

    num_bodies = int(os.environ.get("DECODEKIT_FUZZ_BODIES", "10000"))
    found: dict[int, int] = {}
    with served("--max-new-tokens", "6", "--compile-seconds", "20", "--max-body-mb", "1") as one:
        schema = schemathesis.openapi.from_url(f"{one.url}/openapi.json")
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                strategy = schema[path]["POST"].as_strategy(generation_mode=mode)

                @settings(max_examples=-(-num_bodies // 6), deadline=None, database=None, derandomize=True,
                          phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
                @given(strategy)
                def ask(case: Any) -> None:
                    answer = case.call(timeout=60)
                    status = answer.status_code
                    found[status] = found.get(status, 0) + 1
                    assert status < 500, (answer.text, str(case.body))
                    case.operation.validate_response(answer)

                ask()
        assert httpx.get(f"{one.url}/health").status_code == 200
        print(f"\n{sum(found.values()):,} bodies: {found}, RSS {one.megabytes():.0f} MB")
        assert "Traceback" not in one.said
    assert sum(found.values()) >= num_bodies * 0.9 and found.get(400, 0) > 0


HOSTILE: tuple[dict[str, Any], ...] = (
    {"guided_regex": "(a{1,999}){1,999}"},
    {"guided_regex": "(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e)[a-z]{400}"},
    {"guided_regex": "((a|b)*c(a|b){200})+"},
    {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
    {"guided_regex": "(.*a){1,30}(.*b){20}.{300}"},
    {"guided_choice": ["x" * i for i in range(1, 1500)]},
    {"guided_json": {"enum": [f"{i}" * 50 for i in range(8_000)]}},
    {"guided_json": {"type": "object", "patternProperties": {
        f"^(a|b){{{i}}}.*c{i}$": {"pattern": f".*x{{{i}}}y"} for i in range(30)}}},
    {"guided_json": {"type": "string", "allOf": [{"pattern": f"^(.*{c}.{{20}})"} for c in "abcdefghijkl"]}},
    {"guided_json": {"type": "integer", "multipleOf": 10**300 + 7, "minimum": 10**400}},
    {"guided_json": {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(40)]}},
    {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]},
                                                    "b": {"$ref": "#/$defs/a"}}}},
    {"guided_json": {"type": "array", "uniqueItems": True, "items": {"enum": list(range(200))}, "minItems": 200}},
    {"guided_grammar": 'root ::= ("a" | root root root){1,500}'},
    {"guided_grammar": "start: (A|B)~1..5000\nA: /(a|b)*c.{200}/\nB: /(.*x){100}/"},
)  # fmt: skip


def test_hostile_constraints_while_others_stream(llm: dk.LLM) -> None:
    """Every one is answered, none by a 5xx, and eight streams go on with their own texts meanwhile."""
    work = cases(llm)
    answered: list[tuple[int, float, str]] = []
    gaps: list[float] = [0.0]
    events = [0]

    async def client(session: aiohttp.ClientSession, url: str, number: int, done: asyncio.Event) -> None:
        draws, last = random.Random(number), time.monotonic()
        while not done.is_set():
            path, body, wanted = draws.choice(work)
            assert (await streamed(session, url + path, body))[0] == wanted
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
            events[0] += 1

    async def act(url: str) -> None:
        done = asyncio.Event()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
            clients = [asyncio.create_task(client(session, url, number, done)) for number in range(8)]
            await asyncio.sleep(2)
            for fields in HOSTILE:
                started, before = time.monotonic(), events[0]
                body = {"prompt": "abc", "max_tokens": 24, **fields}
                async with session.post(f"{url}/v1/completions", json=body) as answer:
                    text = await answer.text()
                    answered.append((answer.status, time.monotonic() - started, text[:100]))
                took = time.monotonic() - started
                assert took < 10 or events[0] > before, (fields, took)
            done.set()
            await asyncio.gather(*clients)

    with served("--compile-seconds", "5", "--timeout", "60") as one:
        asyncio.run(act(one.url))
    for (status, took, text), fields in zip(answered, HOSTILE, strict=True):
        print(f"\n{status} {took:5.2f} s {str(fields)[:60]} {text if status != 200 else ''}", end="")
    print(f"\n{events[0]} streams beside, the longest took {max(gaps):.2f} s")
    assert all(status in (200, 400, 413, 422) for status, _, _ in answered) and events[0] > 8


class Invoice(BaseModel):
    number: str
    total: float


@pytest.mark.parametrize("mode", [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS])
def test_instructor(mode: instructor.Mode) -> None:
    with served("--api-key", "sesame") as one:
        plain = openai.OpenAI(base_url=f"{one.url}/v1", api_key="sesame", max_retries=0)
        client = instructor.from_openai(plain, mode=mode)
        given: Any = {
            "model": "tiny",
            "messages": [{"role": "user", "content": DOCUMENT}],
            "response_model": Invoice,
            "max_retries": 0,
            "temperature": 0,
            "max_tokens": 200,
            "extra_body": {"on_length": "close"},
        }
        found = client.chat.completions.create(**given)
        assert isinstance(found, Invoice)
        shown = [one.model_dump() for one in client.chat.completions.create_partial(**given)]
        assert shown[-1] == found.model_dump()
        numbers = [one["number"] for one in shown if one["number"]]
        assert len({*numbers}) > 2 and all(found.number.startswith(one) for one in numbers)  # it grows
        with pytest.raises(openai.AuthenticationError, match="DK803"):
            openai.OpenAI(base_url=f"{one.url}/v1", api_key="x", max_retries=0).models.list()


def test_openai_s_client_and_curl() -> None:
    """Streams over a network, and a client that is killed."""
    with served("--max-new-tokens", "1000") as one:
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="none", max_retries=0)
        parsed = client.chat.completions.parse(
            model="tiny", messages=[{"role": "user", "content": DOCUMENT}], response_format=Invoice, temperature=0
        )
        assert parsed.choices[0].message.parsed == Invoice(number="A-17", total=40.2)
        chunks = list(client.completions.create(model="tiny", prompt="Dear", max_tokens=20, stream=True))
        assert len(chunks) > 3
        response = client.responses.parse(model="tiny", input=DOCUMENT, text_format=Invoice, temperature=0)
        assert response.output_parsed == Invoice(number="A-17", total=40.2)
        body = json.dumps({"prompt": "Dear", "max_tokens": 1000, "stream": True, "logit_bias": {"0": -100, "1": -100,
                           "2": -100, "3": -100}, "min_tokens": 1000})  # fmt: skip
        curl = subprocess.Popen(["curl", "-sN", f"{one.url}/v1/completions", "-d", body], stdout=subprocess.PIPE)
        assert curl.stdout is not None and curl.stdout.readline().startswith(b"data: ")
        curl.kill()
        curl.wait()
        deadline = time.monotonic() + 20
        while one.figure("decodekit_running") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert one.figure("decodekit_requests_cancelled_total") == 1
        assert one.figure('decodekit_texts_finished_total{reason="cancelled"}') == 1


@pytest.mark.parametrize("grace", [60, 0])
def test_a_signal(grace: int) -> None:
    """What runs is finished within the grace, new requests get 503, and the exit code is 0."""
    with served("--grace", str(grace), "--max-new-tokens", "900") as one:
        body = {"prompt": "Dear", "max_tokens": 900, "min_tokens": 900, "stream": True, "seed": 1}
        with httpx.stream("POST", f"{one.url}/v1/completions", json=body, timeout=120) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            one.process.send_signal(signal.SIGTERM)
            if grace:
                deadline = time.monotonic() + 20
                status = 200
                while status == 200 and time.monotonic() < deadline:
                    status = httpx.get(f"{one.url}/health").status_code
                assert status == 503
                refused = httpx.post(f"{one.url}/v1/completions", json={"prompt": "a"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "DK806")
            rest = [line for line in lines if line]
        if grace:
            assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
        else:
            assert "DK806" in rest[-1]
        assert one.process.wait(30) == 0


def test_a_port_that_is_taken_and_a_model_that_is_not_there() -> None:
    command = [sys.executable, "-m", "decodekit.cli", "serve"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with served() as one:
        port = one.url.rpartition(":")[2]
        taken = subprocess.run([*command, "--port", port], capture_output=True, text=True, env=environment)
        assert taken.returncode == 2 and f"cannot listen at 127.0.0.1:{port}" in taken.stderr
    missing = subprocess.run(
        [*command, "--port", "0", "--model", "./none"], capture_output=True, text=True, env=environment
    )
    assert missing.returncode == 4
