"""The engine of an endpoint: requests go in, the chunks of their texts come out; whoever leaves frees the rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Final, TypeVar

from decodekit.constraints.constraint import Constraint
from decodekit.errors import DecodekitError, EngineClosedError, InvalidRequestError, NotServedError, ShutdownError
from decodekit.llm import LLM, Chunk, Completion, Engine, Handle
from decodekit.serving.asked import Asked
from decodekit.serving.compiler import Compiler
from decodekit.serving.limits import MAX_TEXTS, Limits
from decodekit.serving.metrics import Metrics
from decodekit.serving.prompts import Prompts

_THREADS: Final = 4
T = TypeVar("T")


class Service:
    """What the routes of an endpoint share.

    Args:
        llm: model and tokenizer.
        name: of the model, as clients call it.
        limits: of the endpoint.
        batch_size: rows of the engine.
        speculate: proposers of drafts for all texts; they change no text.
        template: a chat template in place of the tokenizer's own.

    Raises:
        OptionError: what cannot be used.
    """

    def __init__(
        self,
        llm: LLM,
        name: str,
        limits: Limits,
        *,
        batch_size: int = 32,
        speculate: tuple[str, ...] = (),
        template: str | None = None,
    ) -> None:
        self.llm, self.name, self.limits = llm, name, limits
        self.prompts = Prompts(llm, template)
        self.engine: Engine = llm.engine(batch_size=batch_size, max_waiting=limits.max_queue)
        self.compiler = Compiler(limits)
        self.metrics = Metrics(self.engine.stats)
        self.most_texts = min(MAX_TEXTS, limits.max_queue + batch_size)
        self.most_requests = limits.max_queue + batch_size
        self.num_requests = 0
        self.is_draining = False
        self._speculate = speculate
        self._pool = ThreadPoolExecutor(_THREADS, "decodekit-serve")
        self._compile_pool = ThreadPoolExecutor(max(1, limits.compile_workers), "decodekit-compile")

    def check_open(self) -> None:
        """Raise the `ShutdownError` of an endpoint that takes nothing more."""
        if self.is_draining:
            raise ShutdownError("the endpoint is shutting down", hint="again in a moment, or another endpoint")

    def check_model(self, name: str | None) -> None:
        """Raise the `NotServedError` of another model than the one that is served."""
        if name is not None and name != self.name:
            raise NotServedError(f"there is no model {name!r:.80}", at="model", hint=f"{self.name!r}")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do some work without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def begin(self, asked: Asked) -> Running:
        """Begin the texts of a request. Whoever has them cancels them in the end.

        Raises:
            DecodekitError: the request cannot be read, or there is no room for it.
        """
        running = Running(self, asked)
        try:
            prompts = await self.in_thread(asked.read)
            if len(prompts) * asked.num_samples > self.most_texts:
                cause = f"{len(prompts)} prompts with n={asked.num_samples}: more than {self.most_texts} texts at once"
                raise InvalidRequestError(cause, at="n")
            if asked.structure is not None:
                loop, structure = asyncio.get_running_loop(), asked.structure
                await loop.run_in_executor(self._compile_pool, self.compiler.check, structure)
            await self.in_thread(lambda: running.submit(self.engine, prompts, self._speculate))
        except BaseException:  # the client may have left
            running.cancel()
            raise
        return running

    def close(self, *, drain: bool = False) -> None:
        """End the engine, with the texts or at once, and all threads and processes."""
        self.is_draining = True
        self.engine.close(drain=drain)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._compile_pool.shutdown(wait=False, cancel_futures=True)
        self.compiler.close()


class Running:
    """The texts of one request. Text i is sample i % n of prompt i // n.

    Args:
        service: counts them.
        asked: what was asked for.

    Attributes:
        constraint: of each text, once they were handed over; None for none.
    """

    def __init__(self, service: Service, asked: Asked) -> None:
        self._service, self.asked = service, asked
        self.handles: list[Handle] = []
        self.constraint: Constraint | None = None
        self.num_prompt_tokens = 0
        self._lock = threading.Lock()
        self._is_cancelled = False

    def submit(self, engine: Engine, prompts: list[list[int]], speculate: tuple[str, ...]) -> None:
        """Hand everything over, or nothing.

        Raises:
            DecodekitError: a text cannot be begun.
        """
        asked = self.asked
        options = dict(asked.options)
        if asked.structure is not None:
            options["constraint"] = self.constraint = asked.structure.constraint()
        else:
            speculate = tuple(filter(None, map(_without_grammar, speculate)))
        if speculate:
            options["speculate"] = list(speculate)
        if options["strategy"] != "greedy":
            options["seed"] = asked.seed
        left = max(0.001, self._service.limits.timeout_s - (monotonic() - asked.arrived))
        for prompt in prompts:
            for sample in range(asked.num_samples):
                handle = engine.submit(prompt, timeout=left, sample=sample, **options)
                with self._lock:
                    self.handles.append(handle)
                    if self._is_cancelled:
                        handle.cancel()
        self.num_prompt_tokens = sum(map(len, prompts))
        self._service.metrics.prompt_tokens.inc(self.num_prompt_tokens)

    def cancel(self) -> None:
        """End the texts that have not ended."""
        with self._lock:
            self._is_cancelled = True
            for handle in self.handles:
                handle.cancel()

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk]]:
        """The chunks of all texts as they come, with the numbers of the texts.

        Raises:
            DecodekitError: the error of a text that failed.
        """
        if len(self.handles) == 1:
            async for chunk in self.handles[0]:
                yield 0, self._counted(chunk)
            return
        arrived: asyncio.Queue[tuple[int, Chunk]] = asyncio.Queue(2 * len(self.handles))

        async def follow(number: int, handle: Handle) -> None:
            async for chunk in handle:
                await arrived.put((number, chunk))

        tasks = [asyncio.create_task(follow(*one)) for one in enumerate(self.handles)]
        try:
            num_running = len(tasks)
            while num_running:
                number, chunk = await arrived.get()
                num_running -= chunk.completion is not None
                yield number, self._counted(chunk)
        finally:
            for task in tasks:
                task.cancel()

    async def completions(self) -> list[Completion]:
        """The completions of all texts.

        Raises:
            DecodekitError: the error of a text that failed.
        """
        found = {number: chunk.completion async for number, chunk in self.chunks() if chunk.completion is not None}
        return [found[number] for number in range(len(self.handles))]

    def _counted(self, chunk: Chunk) -> Chunk:
        metrics, completion = self._service.metrics, chunk.completion
        metrics.generated_tokens.inc(len(chunk.token_ids))
        if completion is not None:
            stats = completion.stats
            waited = monotonic() - self.asked.arrived
            if stats.ttft_s is not None:
                metrics.ttft.observe(max(0.0, waited - (stats.duration_s - stats.ttft_s)))
            if stats.tpot_s is not None:
                metrics.tpot.observe(max(0.0, stats.tpot_s))
            if completion.error is not None:
                raise self._fault(completion.error)
        return chunk

    def _fault(self, error: DecodekitError) -> DecodekitError:
        if isinstance(error, EngineClosedError) and self._service.is_draining:
            return ended()
        return error

    def usage(self, completions: list[Completion]) -> dict[str, Any]:
        """`usage` of ended texts: a prompt counts once, however many texts it has."""
        each = self.asked.num_samples
        num_prompt = sum(one.stats.num_prompt_tokens for one in completions[::each])
        num_new = sum(one.stats.num_generated_tokens for one in completions)
        num_cached = sum(one.stats.num_reused_tokens for one in completions[::each])
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_new,
            "total_tokens": num_prompt + num_new,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }


def ended() -> ShutdownError:
    """The error of a request that the end of the endpoint cuts short."""
    return ShutdownError("the endpoint was shut down before the text was done", hint="again in a moment")


def _without_grammar(proposer: str) -> str:
    """A proposer for texts without a constraint, ``prompt-lookup`` for ``grammar+prompt-lookup``; maybe none."""
    return "+".join(one for one in proposer.split("+") if one.partition(":")[0] != "grammar")
