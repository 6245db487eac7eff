"""An endpoint over the toy model, in this process, and ways to talk to it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from decodekit.llm import LLM
from decodekit.serving.app import make_app
from decodekit.serving.limits import Limits
from decodekit.serving.service import Service
from decodekit.testing.toy import toy_llm

LIMITS = Limits(max_new_tokens=200, compile_workers=0, timeout_s=60)


@pytest.fixture(autouse=True)
def _seeds_are_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a seed have others in one test, and the same in every run."""
    monkeypatch.setattr("decodekit.serving.requests.engine_requests.secrets.randbits", random.Random(0).getrandbits)


class Endpoint:
    """A service with its application, and a client for tests that do not look at asyncio."""

    def __init__(self, service: Service, app: FastAPI) -> None:
        self.service, self.app, self.llm = service, app, service.llm

    def client(self, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://endpoint", timeout=60, **options)

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.client() as client:
                if isinstance(body, bytes):
                    return await client.request(method, path, content=body, **options)
                return await client.request(method, path, json=body, **options)

        return asyncio.run(ask())

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.request("POST", path, body, **options)

    def figures(self) -> dict[str, float]:
        """`/metrics` by name with labels."""
        lines = self.request("GET", "/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


def events_of(answer: httpx.Response) -> list[Any]:
    """The data of server-sent events."""
    found = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in found]


def endpoint_of(llm: LLM, limits: Limits = LIMITS, **options: Any) -> Endpoint:
    of_app = {name: options.pop(name) for name in ("api_key", "cors", "hosts") if name in options}
    service = Service(llm, "toy", limits, **options)
    return Endpoint(service, make_app(service, **of_app))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    made = endpoint_of(toy_llm())
    yield made
    made.service.close()
