"""The gate that every request passes: its origin, its key, the counts, and the end of the endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Collection
from contextlib import suppress
from time import monotonic
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decodekit.errors import AccessError, DecodekitError, ShutdownError
from decodekit.serving.requests.bodies import Bodies
from decodekit.serving.requests.refusals import CLIENT_CLOSED, refused
from decodekit.serving.service import Service, ended

OPEN_PATHS: Final = frozenset(("/", "/health"))
"""Paths that need no key: they say nothing of the model, nor of who asks what."""
_LAST_WORD_S: Final = 0.5
"""So long at most a client may take for the answer to a request that is cancelled."""
_READING: Final = frozenset(("/", "/health", "/metrics", "/v1/models", "/openapi.json"))
_WRITING: Final = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/systemone"))


class Gate:
    """Refuses requests without the key, and those of pages from other origins; counts all requests.

    Before `app`; what `make_app` says of the key, the origins and the hosts holds.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        bodies: Bodies,
        api_key: str | None,
        origins: Collection[str],
        hosts: Collection[str] | None,
    ) -> None:
        self._app, self._service, self._bodies = app, service, bodies
        self._origins, self._hosts = origins, hosts
        self._key = None if api_key is None else _digest(api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = monotonic(), CLIENT_CLOSED
        path = scope["path"]
        is_writing = path in _WRITING and scope["method"] == "POST"

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        service = self._service
        service.num_requests += is_writing
        try:
            fault = self._fault(scope, is_writing)
            if fault is not None:
                await refused(fault, service.limits.retry_s)(scope, receive, counted)
            else:
                await self._app(scope, receive, counted)
        except asyncio.CancelledError:
            if not service.is_draining:
                raise
            # The endpoint ends while this request still runs, and nobody is there to whom the cancellation is news.
            await _end_at_once(status, service, scope, receive, counted)
        finally:
            service.num_requests -= is_writing
            self._bodies.end(scope)
            if scope.get("decodekit.client_closed"):
                status = CLIENT_CLOSED
            route = path if path in _READING | _WRITING else "other"
            service.metrics.requests.labels(route, str(status)).inc()
            service.metrics.seconds.labels(route).observe(monotonic() - started)
            if is_writing and status == CLIENT_CLOSED:
                service.metrics.cancelled.inc()

    def _fault(self, scope: Scope, is_writing: bool) -> DecodekitError | None:
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}  # the first one counts
        # Browsers send the origin of the page that calls, and the name by which it found the endpoint.
        host, origin = headers.get(b"host", "").lower(), headers.get(b"origin")
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if name and self._hosts is not None and name not in self._hosts:
            return AccessError(f"the host {name!r:.80} is not this endpoint's", at="Host", hint="--allowed-host")
        is_own = origin in (None, f"http://{host}", f"https://{host}")
        if not is_own and origin not in self._origins and "*" not in self._origins:
            return AccessError(f"pages of {origin!r:.80} may not call", at="Origin", hint="--cors")
        if scope["path"] not in OPEN_PATHS and self._key is not None and scope["method"] != "OPTIONS":
            kind, _, key = headers.get(b"authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(_digest(key.strip()), self._key):
                return AccessError("the key is missing or wrong", at="Authorization", hint="Authorization: Bearer KEY")
            scope["decodekit.key"] = self._key.hex()  # see `client_of`
        if is_writing and self._service.is_draining:
            return ShutdownError("the endpoint is shutting down", hint="again in a moment, or another endpoint")
        return None


async def _end_at_once(status: int, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """The answer to a request that is cancelled because the endpoint ends; the end of one that has begun."""
    with suppress(Exception):  # the client may have gone, or take nothing
        async with asyncio.timeout(_LAST_WORD_S):
            if status == CLIENT_CLOSED:
                await refused(ended(), service.limits.retry_s)(scope, receive, send)
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def _digest(key: str) -> bytes:
    """Of equal length for all keys, so that the time of a comparison says nothing."""
    return hashlib.sha256(key.encode()).digest()
