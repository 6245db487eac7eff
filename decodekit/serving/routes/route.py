"""A route: how requests are read, and how answers and streams are written."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from decodekit.errors import DecodekitError
from decodekit.llm import Completion
from decodekit.serving.requests.engine_requests import Asked
from decodekit.serving.requests.fields import WireModel
from decodekit.serving.requests.refusals import LIMIT_FIELD, body_of
from decodekit.serving.routes.call_stream import CallPiece, CallSplitter, TextEnd
from decodekit.serving.routes.token_logprobs import TokenWriter, as_event
from decodekit.serving.service import Running, Service

B = TypeVar("B", bound=WireModel)


class Route(Generic[B]):
    """One of the routes that the model runs for. Those that stream have a field `stream`."""

    path: ClassVar[str]
    body: type[B]
    reply_model: ClassVar[type[Any]]
    says: ClassVar[str]
    limit_field: ClassVar[str] = LIMIT_FIELD

    def __init__(self, service: Service) -> None:
        self.service = service
        self.tokens = TokenWriter(service.llm.vocabulary)

    def head(self, prefix: str, kind: str) -> dict[str, Any]:
        """The first fields of an answer: a new id, its kind, the time and the model."""
        made = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time())}
        return {**made, "model": self.service.name}

    def asked(self, body: B) -> Asked:
        """The request, read; a `DecodekitError` if it asks for something that cannot be."""
        raise NotImplementedError

    def reply(self, body: B, running: Running, completions: Sequence[Completion]) -> dict[str, Any]:
        """The answer as a whole, of the completions of all texts; in any thread."""
        raise NotImplementedError

    async def outcome(self, splitter: CallSplitter, completion: Completion) -> tuple[TextEnd, list[CallPiece]]:
        """The end of a text, and the last pieces of its calls, without holding up the event loop."""

        def outcome() -> tuple[TextEnd, list[CallPiece]]:
            ended = splitter.end(completion)
            return ended, splitter.calls(ended)

        return await self.service.in_thread(outcome) if splitter.has_calls else outcome()

    def events(self, body: B, running: Running) -> AsyncGenerator[bytes]:
        """The answer as events; raises the `DecodekitError` of a text that failed."""
        raise NotImplementedError

    def failed(self, error: DecodekitError) -> bytes:
        """The last event of a stream that fails."""
        return as_event(body_of(error))
