"""Answers that end with their client: whoever has gone is noticed at once, and what ran for it is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from decodekit.errors import DecodekitError, EndpointError
from decodekit.serving.refusals import status_of

T = TypeVar("T")
LOGGER = logging.getLogger("decodekit.serving")


async def gone(receive: Receive) -> None:
    """Return when the client has gone; its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of some work, which is cancelled when the client leaves.

    Raises:
        ClientDisconnect: it has left.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await one


def told(error: Exception) -> DecodekitError:
    """An exception as the error that is answered; one that nobody raises on purpose is logged."""
    if isinstance(error, DecodekitError):
        if status_of(error) == 500:
            LOGGER.error("a request failed: %s", error, exc_info=error.__cause__)
        return error
    LOGGER.error("a request failed", exc_info=error)
    return EndpointError(f"the endpoint failed: {type(error).__name__}", hint="its log")


class EventStream(Response):
    """An answer as events.

    Args:
        events: gives them; it is closed when the client leaves.
        failed: the last event, where `events` raises.
        end: called in the end, whatever happened.
        headers: of the answer.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        failed: Callable[[DecodekitError], bytes],
        end: Callable[[], None],
        headers: dict[str, str],
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        self._events, self._failed, self._end = events, failed, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        headers = [one for one in self.raw_headers if one[0] != b"content-length"]

        async def work() -> None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
            try:
                async for event in self._events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except OSError as error:
                raise ClientDisconnect from error
            except Exception as error:
                await send({"type": "http.response.body", "body": self._failed(told(error)), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await unless_gone(work(), receive)
        except (ClientDisconnect, OSError):
            scope["decodekit.client_closed"] = True
        finally:
            self._end()
            await self._events.aclose()
