"""A request on its way through an engine: its chunks as they come, its completion, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager

from decodekit.errors import DecodekitError, RequestInterruptedError
from decodekit.generation.completion import Chunk, Completion
from decodekit.generation.results import Update
from decodekit.generation.stats import Stats
from decodekit.llm.completions import completed, whole
from decodekit.llm.plan import Plan

_Listener = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Handle:
    """One request of an `Engine`. Threads and event loops may share it; every iteration begins with the first chunk.

        handle = engine.submit("Once")
        for chunk in handle: ...            # or: async for chunk in handle
        completion = handle.result()        # or: await handle

    Nothing is lost if nobody looks, and a request goes on without its handle. A task that awaits a handle and is
    cancelled leaves the request as it is; `cancel` ends it.

    Args:
        index: number of the request; errors name it.
        plan: of the request.
        cancel: lets the engine end it.
        check_process: raises in another process than the engine's.
    """

    def __init__(self, index: int, plan: Plan, cancel: Callable[[], bool], check_process: Callable[[], None]) -> None:
        self.index = index
        self._plan, self._cancel, self._check_process = plan, cancel, check_process
        self._changed = threading.Condition()
        self._chunks: list[Chunk] = []
        self._completion: Completion | None = None
        self._listeners: set[_Listener] = set()

    def __repr__(self) -> str:
        state = "running" if self._completion is None else self._completion.finish_reason
        return f"Handle({self.index}, {state}, {self.text[:40]!r})"

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        return self._completion is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(chunk.text for chunk in list(self._chunks))

    def cancel(self) -> bool:
        """End the request with a `RequestCancelledError`, after the step that is under way; False if it has ended."""
        return not self.done and self._cancel()

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the completion.

        Args:
            timeout: seconds to wait; the request goes on after them. None waits as long as it takes.

        Raises:
            TimeoutError: it took longer.
            DecodekitError: the error of the completion, with ``on_error="raise"``.
        """
        self._check_process()
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"request {self.index} is not done after {timeout} s")
        return self._outcome()

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks from the first on, as they come; as with `LLM.stream`, the last one has the completion."""
        self._check_process()
        place = 0
        while True:
            with self._changed:
                while len(self._chunks) == place and not self.done:
                    self._changed.wait()
                new = self._chunks[place:]
            yield from new
            place += len(new)
            if self.done and place == len(self._chunks):
                self._outcome()
                return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """The chunks from the first on, as they come, without blocking the event loop."""
        self._check_process()
        place = 0
        with self._listening() as changed:
            while True:
                changed.clear()
                new = self._chunks[place:]
                for chunk in new:
                    yield chunk
                place += len(new)
                if self.done and place == len(self._chunks):
                    self._outcome()
                    return
                if not new:
                    await changed.wait()

    def __await__(self) -> Generator[object, None, Completion]:
        """The completion."""
        return self._awaited().__await__()

    async def _awaited(self) -> Completion:
        self._check_process()
        with self._listening() as changed:
            while not self.done:
                changed.clear()
                if not self.done:
                    await changed.wait()
        return self._outcome()

    @contextmanager
    def _listening(self) -> Iterator[asyncio.Event]:
        """An event of the running event loop that is set whenever there is something new."""
        listener = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._listeners.add(listener)
        try:
            yield listener[1]
        finally:
            with self._changed:
                self._listeners.discard(listener)

    def _outcome(self) -> Completion:
        completion = self._completion
        assert completion is not None
        if completion.error is not None and self._plan.options.on_error == "raise":
            raise completion.error
        return completion

    def push(self, update: Update) -> None:
        """Take what is new of the request; called by the loop of the engine."""
        completion = None
        if update.result is not None:
            completion = completed(self._plan, self.index, self.text + update.text, update.result)
            if isinstance(completion.error, RequestInterruptedError):
                completion.error.text = completion.text
        if self._plan.choice is None:
            self._put(Chunk(self.index, update.text, update.token_ids, completion, update.logprobs))
        elif completion is not None:
            self._put(whole(self.index, completion))

    def end_with(self, error: DecodekitError) -> None:
        """End with an error that the scheduler knows nothing of."""
        if self.done:
            return
        tokens = tuple(token for chunk in self._chunks for token in chunk.token_ids)
        stats = Stats(0, len(tokens), 0, None, 0.0)
        self._put(Chunk(self.index, "", (), Completion(self.text, tokens, None, "error", error, None, stats)))

    def _put(self, chunk: Chunk) -> None:
        with self._changed:
            self._chunks.append(chunk)
            if chunk.completion is not None:
                self._completion = chunk.completion
            self._changed.notify_all()
            listeners = list(self._listeners)
        for event_loop, event in listeners:
            with contextlib.suppress(RuntimeError):  # that event loop is closed: nobody waits there any more
                event_loop.call_soon_threadsafe(event.set)
