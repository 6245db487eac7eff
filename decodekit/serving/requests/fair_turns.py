"""Turns at slow work, fair between clients.

    places 2    at work     A1          one client has one place less than there are, if there are several
                waiting     A2 A3 B1    ->  B1 goes next, and then A2

A client is an API key and an address (`client_of`). Whoever leaves while it waits leaves the line; work that has begun
goes on in its thread, and has its place until it is done.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, TypeVar

from starlette.types import Scope

from decodekit.errors import ServerBusyError

T = TypeVar("T")


class Client(NamedTuple):
    """The sender of a request, as far as an endpoint can tell."""

    key: str = ""  # digest of the API key
    address: str = ""  # of the connection; of IPv6 the network, for a client has as many addresses as it wants


def client_of(scope: Scope) -> Client:
    """The client of a request that has passed the gate."""
    host = (scope.get("client") or ("",))[0]
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if isinstance(address, ipaddress.IPv6Address):
            mapped = address.ipv4_mapped
            host = str(mapped or ipaddress.ip_network((address, 64), strict=False))
    return Client(scope.get("decodekit.key", ""), host)


class Turns:
    """A few threads, and who comes next. One event loop at a time uses it.

    `num_places` work together, and of a client `max_each` are at work or wait.
    """

    def __init__(self, name: str, num_places: int, max_each: int) -> None:
        self._pool = ThreadPoolExecutor(num_places, name)
        self._num_places, self._max_each = num_places, max_each
        self._at_work: Counter[Client] = Counter()
        self._waiting: OrderedDict[Client, deque[asyncio.Future[None]]]  # who had a turn last comes last
        self._waiting = OrderedDict()

    def num_of(self, client: Client) -> int:
        """The number of requests of a client that are at work or wait."""
        return self._at_work[client] + len(self._waiting.get(client, ()))

    async def run(self, client: Client, work: Callable[[], T]) -> T:
        """Do some work when it is the turn of the client; `ServerBusyError` where too much of it is under way."""
        if self.num_of(client) >= self._max_each:
            cause = f"{self._max_each:,} long prompts or new constraints of this client are under way"
            raise ServerBusyError(cause, hint="again in a moment")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._next()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it came just now
                self._done(client)
            else:
                self._leave(client, turn)
            raise

        def done(_: Future[T]) -> None:
            try:
                loop.call_soon_threadsafe(self._done, client)
            except RuntimeError:  # the event loop has ended
                self._done(client)

        future = self._pool.submit(work)
        future.add_done_callback(done)
        waited = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waited)
        finally:
            waited.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody may be left to look

    def _next(self) -> None:
        """Give the free places to those that wait: to clients with the fewest first, then to who waits longest."""
        most = max(1, self._num_places - 1)
        while sum(self._at_work.values()) < self._num_places:
            client = min(self._waiting, key=lambda one: self._at_work[one], default=None)
            if client is None or self._at_work[client] >= most:
                return
            turn = self._waiting[client][0]
            self._leave(client, turn)
            if client in self._waiting:
                self._waiting.move_to_end(client)
            if not turn.done():
                self._at_work[client] += 1
                turn.set_result(None)

    def _leave(self, client: Client, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(client, deque())
        with suppress(ValueError):
            turns.remove(turn)
        if not turns:
            self._waiting.pop(client, None)

    def _done(self, client: Client) -> None:
        self._at_work[client] -= 1
        if not self._at_work[client]:
            del self._at_work[client]
        self._next()

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
