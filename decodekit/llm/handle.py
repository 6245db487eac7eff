"""A request on its way through an engine: its chunks as they come, its completion, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager

from decodekit.chat.thought import Thought
from decodekit.decoding.request.completion import Chunk, Completion
from decodekit.decoding.request.stats import Stats
from decodekit.decoding.request.updates import Update
from decodekit.errors import DecodekitError
from decodekit.llm.completions import GrowingText, completed, whole
from decodekit.llm.plans.plan import Plan

_Listener = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Handle:
    """One request of an `Engine`. Threads and event loops may share it; every iteration begins with the first chunk.

        handle = engine.submit("Once")
        for chunk in handle: ...            # or: async for chunk in handle
        completion = handle.result()        # or: await handle

    Chunks are kept until they are read, and a request goes on without its handle. A task that awaits a handle and is
    cancelled leaves the request as it is; `cancel` ends it.

    The engine hands over the text. The completion is made of it where it is asked for first, once for all: the value of
    a constraint, and what a user's own type makes of it, hold up nobody else; and no event loop either, which leaves
    them to a thread.

    Args:
        index: number of the request; errors name it.
        plan: of the request.
        thought: with which its text may begin.
        cancel: lets the engine end it.
        check_process: raises in another process than the engine's.
    """

    def __init__(
        self,
        index: int,
        plan: Plan,
        thought: Thought | None,
        cancel: Callable[[], bool],
        check_process: Callable[[], None],
    ) -> None:
        self.index = index
        self._plan, self._cancel, self._check_process = plan, cancel, check_process
        self._changed = threading.Condition()
        self._chunks: list[Chunk] = []  # less the last one
        self._growing = GrowingText(plan, thought)
        self._end: Update | None = None  # of which the last one is made
        self._last: Chunk | None = None
        self._making = threading.Lock()
        self._listeners: set[_Listener] = set()

    def __repr__(self) -> str:
        state = _completion_of(self._made()).finish_reason if self.done else "running"
        return f"Handle({self.index}, {state}, {self.text[:40]!r})"

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        return self._end is not None or self._last is not None

    @property
    def text(self) -> str:
        """The text so far."""
        is_done = self.done
        return "".join(chunk.text for chunk in [*self._chunks, *([self._made()] if is_done else [])])

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
                yield self._made()
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
                    yield await self._made_aside()
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
        await self._made_aside()
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
        completion = _completion_of(self._made())
        if completion.error is not None and self._plan.options.on_error == "raise":
            raise completion.error
        return completion

    async def _made_aside(self) -> Chunk:
        """The last chunk, without holding up the event loop."""
        is_quick = self._plan.grammar is None and self._plan.choice is None
        return self._made() if self._last is not None or is_quick else await asyncio.to_thread(self._made)

    def _made(self) -> Chunk:
        """The last chunk of an ended request, which has its completion."""
        with self._making:
            if self._last is None:
                assert self._end is not None
                self._last, self._end = self._made_of(self._end), None
            return self._last

    def _made_of(self, update: Update) -> Chunk:
        assert update.result is not None
        text = self._growing.text + update.text
        completion = completed(self._plan, self.index, text, update.result, self._growing.thought)
        if self._plan.choice is not None:
            return whole(self._plan, self.index, completion)
        return self._growing.chunk(self.index, update, completion)

    def push(self, update: Update) -> None:
        """Take what is new of the request; called by the loop of the engine."""
        with self._changed:
            if self.done:
                return
            if update.result is not None:
                self._end = update
            elif self._plan.choice is None:
                self._chunks.append(self._growing.chunk(self.index, update, None))
            else:
                self._growing.text += update.text  # of which a strategy makes the last one, the only one
                return
            self._tell()

    def end_with(self, error: DecodekitError) -> None:
        """End with an error that the scheduler knows nothing of, if it has not ended; from any thread."""
        with self._changed:
            if not self.done:
                tokens = tuple(token for chunk in self._chunks for token in chunk.token_ids)
                text, stats = "".join(chunk.text for chunk in self._chunks), Stats(0, len(tokens), 0, None, 0.0)
                completion = Completion(text, tokens, None, "error", error, None, stats)
                self._last = self._growing.chunk(self.index, Update(self.index, "", ()), completion)
                self._tell()

    def _tell(self) -> None:
        self._changed.notify_all()
        for event_loop, event in self._listeners:
            with contextlib.suppress(RuntimeError):  # that event loop is closed: nobody waits there any more
                event_loop.call_soon_threadsafe(event.set)


def _completion_of(last: Chunk) -> Completion:
    assert last.completion is not None
    return last.completion
