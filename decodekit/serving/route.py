"""What a route has to know: how requests are read, and how answers and streams are written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar, Generic, TypeVar

from decodekit.errors import DecodekitError
from decodekit.serving.asked import Asked
from decodekit.serving.fields import SamplingFields
from decodekit.serving.refusals import body_of
from decodekit.serving.service import Running, Service
from decodekit.serving.tokens import as_event

B = TypeVar("B", bound=SamplingFields)


class Route(Generic[B]):
    """One of the routes that write text.

    Args:
        service: what all routes share.
    """

    path: ClassVar[str]
    body: type[B]
    reply_model: ClassVar[type[Any]]
    says: ClassVar[str]

    def __init__(self, service: Service) -> None:
        self.service = service

    def asked(self, body: B) -> Asked:
        """What a request asks for; a `DecodekitError` if that cannot be."""
        raise NotImplementedError

    async def reply(self, body: B, running: Running) -> dict[str, Any]:
        """The answer as a whole; raises the `DecodekitError` of a text that failed."""
        raise NotImplementedError

    def events(self, body: B, running: Running) -> AsyncGenerator[bytes]:
        """The answer as events; raises the `DecodekitError` of a text that failed."""
        raise NotImplementedError

    def failed(self, error: DecodekitError) -> bytes:
        """The last event of a stream that fails."""
        return as_event(body_of(error))
