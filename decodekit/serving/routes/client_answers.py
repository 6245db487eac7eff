"""Answers that end with their client: whoever has gone is noticed at once, and what ran for it is cancelled."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from decodekit.errors import DecodekitError, EndpointError
from decodekit.llm import Completion
from decodekit.serving.requests.refusals import status_of

T = TypeVar("T")
LOGGER = logging.getLogger("decodekit.serving")
_DEPTH: Final = 5  # choices, one of them, its log-probabilities, a list of them, one of it
_ENTRY_CHARACTERS: Final = 64
_PIECE_BYTES: Final = 1 << 16


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of some work, which is cancelled when the client leaves; `ClientDisconnect` is raised then."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":  # the body has been read
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
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


def size_of(completion: Completion) -> int:
    """About how many characters a completion has in an answer."""
    each = sum(1 + len(one.alternatives) for one in completion.logprobs or ())
    return len(completion.text) + _ENTRY_CHARACTERS * each


def pieces_of(value: Any, depth: int = _DEPTH) -> list[bytes]:
    """A value as JSON, in pieces; none of them holds up the other threads for long, as `json.dumps` of a whole does."""
    pieces: list[bytes] = []
    if depth and isinstance(value, dict | list) and value:
        is_list = isinstance(value, list)
        for number, one in enumerate(value):
            mark = "," if number else "[" if is_list else "{"
            pieces.append((mark if is_list else f"{mark}{_dumps(one)}:").encode())
            pieces += pieces_of(one if is_list else value[one], depth - 1)
        pieces.append(b"]" if is_list else b"}")
    else:
        pieces.append(_dumps(value).encode())
    return _joined(pieces) if depth == _DEPTH else pieces


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _joined(pieces: list[bytes]) -> list[bytes]:
    """The same in pieces of `_PIECE_BYTES` or more."""
    joined, some, size = list[bytes](), list[bytes](), 0
    for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            joined.append(b"".join(some))
            some, size = [], 0
    return [*joined, b"".join(some)] if some else joined


class JsonPieces(Response):
    """An answer in JSON that is sent in the pieces of `pieces_of`."""

    media_type = "application/json"

    def __init__(self, pieces: list[bytes], headers: dict[str, str]) -> None:
        super().__init__(None, 200, {"Content-Length": str(sum(map(len, pieces))), **headers})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream(Response):
    """An answer as events, whose generator is closed when the client leaves.

    `failed` makes the last event where it raises, and `end` is called in the end, whatever happened.
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
