"""A connection of a client, which ends when the client keeps it and does nothing with it.

    connected      header_s for the lines of a request, then     asks
    asks           body_s for its body (`bodies`), then          is answered
    is answered    send_s for taking something of it, then       connected, as before

uvicorn has a time for the pause between two requests alone. A client may also send little and make much work of it:
many lines of a header, or of a body many pieces of one byte each.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from time import monotonic
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from decodekit.serving.limits import Limits

_PIECE_BYTES: Final = 1 << 14  # of what is read at a time, so that no header can be larger
_BODY_PIECE_BYTES: Final = 1 << 16  # of a body: each piece costs the loop as much, whatever its size
_FREE_PIECES: Final = 1024
_LEAST_BYTES: Final = 256  # of the mean piece of a body, beyond these


class Requests(h11.Connection):
    """Requests as h11 reads them; a body in too many pieces is a fault of the client's."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _PIECE_BYTES)
        self._num_pieces = self._num_bytes = 0

    def next_event(self) -> Any:
        """The next event; each piece of a body is one."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_pieces = self._num_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
            self._num_bytes += len(event.data)
            if self._num_pieces > _FREE_PIECES + self._num_bytes // _LEAST_BYTES:
                raise h11.RemoteProtocolError("the body comes in too many pieces")
        return event


class Connection(H11Protocol):
    """One connection, with the limits of the endpoint and the options of uvicorn's connections."""

    transport: asyncio.Transport

    def __init__(self, *, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self.conn = Requests()
        self._limits = limits
        self._since = self._taken = monotonic()
        self._num_unsent = 0

    @property
    def _phase(self) -> int:
        """0: a request is waited for; 1: its body is; 2: it is answered."""
        if self.cycle is None or self.cycle.response_complete:
            return 0
        return 1 if self.cycle.more_body else 2

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; if there are too many, in place of those that have done nothing for the longest time."""
        super().connection_made(transport)
        self._read_at_a_time(_PIECE_BYTES)
        most = self._limits.max_connections
        if len(self.connections) <= most:
            return
        others = [one for one in self.connections if one is not self and isinstance(one, Connection)]
        waiting = [one for one in others if one._phase < 2]

        def use(one: Connection) -> tuple[int, bool, float]:
            return one._phase, one.transport.get_write_buffer_size() > 0, one._since

        # Several at once, so that a flood is not looked through for each of its connections.
        for one in nsmallest(1 + most // 32, waiting, key=use) or [self]:
            self.connections.discard(one)
            one.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        before, start = self.cycle, 0
        while start < len(data):
            if self.transport.is_closing():
                return
            end = start + (_BODY_PIECE_BYTES if self._phase == 1 else _PIECE_BYTES)
            super().data_received(data[start:end])
            start = end
            if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > _PIECE_BYTES:
                self.transport.abort()  # further requests, before the first is answered
        if self.cycle is not before:
            self._since = monotonic()
        self._read_at_a_time(_BODY_PIECE_BYTES if self._phase == 1 else _PIECE_BYTES)

    def _read_at_a_time(self, num_bytes: int) -> None:
        """So many at most, where asyncio's own transport reads, so that many that send much take turns."""
        if hasattr(self.transport, "max_size"):
            self.transport.max_size = num_bytes

    def on_response_complete(self) -> None:
        """Wait for the next request, which may be there."""
        self._since = monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        super().pause_writing()
        self._num_unsent, self._taken = self.transport.get_write_buffer_size(), monotonic()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request; behind an answer that has begun there is no other."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
            if self.cycle is not None:  # who reads this body writes no answer
                self.cycle.disconnected = True
                self.cycle.message_event.set()
        else:
            self.transport.abort()

    def check(self, now: float) -> None:
        """End the connection if its client has done nothing for too long; `now` is of `time.monotonic`."""
        limits, num_unsent = self._limits, self.transport.get_write_buffer_size()
        is_answered = self._phase == 0
        is_taken = not num_unsent or num_unsent <= self._num_unsent - _PIECE_BYTES
        if is_taken or not (is_answered or self.flow.write_paused):  # otherwise what is unsent may only grow less
            self._num_unsent, self._taken = num_unsent, now
        most = limits.header_s if is_answered and not num_unsent else limits.body_s + limits.timeout_s + limits.send_s
        if now - self._taken > limits.send_s or now - self._since > most:
            self.transport.abort()
