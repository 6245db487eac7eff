"""The engine of an endpoint: requests go in, the chunks of their texts come out; whoever leaves frees the rows.

What takes long is done where nobody waits for it but who asked for it, and others of the same kind in turn:

    bodies      of more than some kilobytes, from bytes to fields: one at a time, with rests for those who decode
    threads     for what is short: prompts of up to `LONG` characters, the handing over to the engine
    long        prompts that are longer, answers that are larger
    reading     constraints that nobody has asked for before, in processes (`compiler`)
    making      constraints for the engine, among them those that are known
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from decodekit.chat.tools import format_of
from decodekit.constraints import priority as turns
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.memory_account import DEFAULT_LIMIT, memory_limit
from decodekit.constraints.tool_calls import AUTO, FORMATS, ToolFormat
from decodekit.errors import (
    ChatTemplateError,
    DecodekitError,
    EngineClosedError,
    InvalidRequestError,
    NotServedError,
    RequestTimeoutError,
    ServerBusyError,
    ShutdownError,
)
from decodekit.llm import LLM, Chunk, Completion, Engine, Handle
from decodekit.serving.limits import MAX_TEXTS, Limits, SharedPrefixes
from decodekit.serving.prometheus import Metrics
from decodekit.serving.requests.engine_requests import Asked
from decodekit.serving.requests.fair_turns import Client, Turns
from decodekit.serving.requests.prompt_reader import Prompts
from decodekit.serving.requests.sandbox import Compiler
from decodekit.serving.requests.structure import Structure

LOGGER = logging.getLogger("decodekit.serving")
LONG: Final = 1 << 15
"""Characters of a prompt, or of an answer, about which others do not wait."""

_THREADS: Final = 4
_LONG_THREADS: Final = 2
_MAKING_THREADS: Final = 3
_CLOSE_S: Final = 2.0
"""So long the end waits for the step under way."""
_LATE_S: Final = 1.0
"""So long after its time a request ends by itself, where the engine does not end it."""
_MOST_NAMED: Final = 16  # of the requests in a step that does not end
_LOOKS: Final = 4  # while a step becomes too long
T = TypeVar("T")


class Service:
    """The state that the routes of an endpoint share.

    Args:
        llm, limits: of the endpoint.
        name: of the model, as clients call it.
        batch_size: rows of the engine; by default those of `LLM.engine`.
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
        batch_size: int | None = None,
        speculate: tuple[str, ...] = (),
        template: str | None = None,
    ) -> None:
        self.llm, self.name, self.limits = llm, name, limits
        self.prompts = Prompts(llm, template)
        kept = 0 if limits.shared_prefixes == "none" else None
        self.engine: Engine = llm.engine(batch_size=batch_size, max_waiting=limits.max_queue, prefix_bytes=kept)
        self.watchdog = Watchdog(self.engine, limits.stall_s)
        self.compiler = Compiler(limits)
        self.metrics = Metrics(self.engine.stats)
        self.most_samples = self.engine.batch_size
        self.most_requests = limits.max_queue + self.engine.batch_size
        self.most_texts = min(MAX_TEXTS, self.most_requests)
        self.num_requests = 0
        self.is_draining = False
        self.is_stuck = False
        """Whether the engine did not come back from its last step when it was closed."""
        self._speculate = speculate
        self._pool = ThreadPoolExecutor(_THREADS, "decodekit-serve")
        self._bodies = Turns("decodekit-read", 1, limits.max_connections)
        self._long = Turns("decodekit-long", _LONG_THREADS, limits.max_readings)
        self._reading = Turns("decodekit-compile", max(1, limits.compile_workers), limits.max_readings)
        self._making = Turns("decodekit-make", _MAKING_THREADS, self.most_requests)
        self._readings: dict[Hashable, tuple[asyncio.Task[None], list[None]]] = {}
        self.constraints = Constraints()
        self._tool_format: ToolFormat | ChatTemplateError
        try:
            is_told = limits.tool_format == AUTO.name
            self._tool_format = format_of(llm.tokenizer, template) if is_told else FORMATS[limits.tool_format]
        except ChatTemplateError as error:  # of no use to those who call no tools
            self._tool_format = error

    @property
    def tool_format(self) -> dict[str, Any]:
        """The format in which tools are called, as a value of JSON.

        Raises:
            ChatTemplateError: the chat template does not tell.
        """
        if isinstance(self._tool_format, ChatTemplateError):
            raise self._tool_format
        return self._tool_format.to_dict()

    def check_model(self, name: str | None) -> None:
        """Raise the `NotServedError` of another model than the one that is served."""
        if name is not None and name != self.name:
            raise NotServedError(f"there is no model {name!r:.80}", at="model", hint=f"{self.name!r}")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do some short work without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def read(self, client: Client, work: Callable[[], T]) -> T:
        """Read a body that is not short, when it is the turn of the client."""
        return await self._bodies.run(client, partial(turns.uncut, work))

    async def aside(self, client: Client, num_characters: int, work: Callable[[], T]) -> T:
        """The same for work about so many characters; where these are many, when it is the turn of the client."""
        return await (self.in_thread(work) if num_characters <= LONG else self._long.run(client, work))

    async def begin(self, asked: Asked, client: Client = Client()) -> Running:
        """Begin the texts of a request. Whoever has them cancels them in the end.

        Raises:
            DecodekitError: the request cannot be read, or there is no room for it, or its time is over.
        """
        running = Running(self, asked, client)
        try:
            async with asyncio.timeout(running.seconds_left):
                prompts = await self._prompts(asked, client)
                submit = partial(running.submit, prompts, self._speculate)
                if asked.structure is None:
                    await self.in_thread(submit)
                else:
                    if not self.compiler.is_known(asked.structure):
                        await self._read(asked.structure, client)
                    await self._making.run(client, submit)
            running.watch()
        except TimeoutError:
            running.cancel()
            raise overdue() from None
        except BaseException:  # the client may have left
            running.cancel()
            raise
        return running

    async def _prompts(self, asked: Asked, client: Client) -> list[list[int]]:
        """The tokens of the prompts, of which there are not too many."""
        if asked.num_samples > self.most_samples:
            cause = f"n={asked.num_samples} is more than the {self.most_samples} texts that are written together"
            raise InvalidRequestError(cause, at="n")
        prompts = await self.aside(client, asked.num_characters, asked.read)
        num_texts = len(prompts) * asked.num_samples
        if num_texts > self.most_texts:
            cause = f"{len(prompts)} prompts with n={asked.num_samples}: more than {self.most_texts} texts at once"
            raise InvalidRequestError(cause, at="n")
        asked.check_entries(num_texts, self.limits.max_entries)
        return prompts

    async def _read(self, structure: Structure, client: Client) -> None:
        """Let a new constraint be read, once for all requests of a client that wait for it."""
        key = client, structure.key, structure.field
        if key not in self._readings:
            task = asyncio.create_task(self._reading.run(client, partial(self.compiler.check, structure)))
            self._readings[key] = task, []

            def done(task: asyncio.Task[None]) -> None:
                del self._readings[key]
                if not task.cancelled():
                    task.exception()  # nobody may be left to look at it

            task.add_done_callback(done)
        task, waiting = self._readings[key]
        waiting.append(None)
        try:
            await asyncio.shield(task)
        finally:
            waiting.pop()
            if not waiting:
                task.cancel()

    def close(self, *, drain: bool = False) -> None:
        """End the engine, with the texts or at once, and all threads and processes.

        At once means after the step under way, or without waiting for it any longer than a moment.
        """
        self.is_draining = True
        self.watchdog.close()
        if not self.is_stuck:
            self.end_texts(drain=drain)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for line in (self._bodies, self._long, self._reading, self._making):
            line.close()
        self.compiler.close()

    def end_texts(self, *, drain: bool = False) -> None:
        """End the engine, with the texts or at once."""
        try:
            self.engine.close(drain=drain, timeout=None if drain else _CLOSE_S)
        except TimeoutError:
            self.is_stuck = True


class Constraints:
    """The constraints of requests under way, each counted once: what they take together is bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, list[int]] = {}  # how many requests, and its bytes
        self.num_bytes = 0

    def hold(self, key: str, num_bytes: int) -> None:
        """Count a request with a constraint; one is taken in any case, others while there is memory for them."""
        most = memory_limit() or DEFAULT_LIMIT
        with self._lock:
            held = self._held.setdefault(key, [0, num_bytes])
            if not held[0]:
                if self.num_bytes and self.num_bytes + num_bytes > most:
                    del self._held[key]
                    cause = "the constraints of requests under way take the memory that there is for them"
                    raise ServerBusyError(cause, hint="again in a moment")
                self.num_bytes += num_bytes
            held[0] += 1

    def release(self, key: str) -> None:
        """A request that was counted has ended."""
        with self._lock:
            held = self._held[key]
            held[0] -= 1
            if not held[0]:
                self.num_bytes -= held[1]
                del self._held[key]


class Running:
    """The texts of one request. Text i is sample i % n of prompt i // n; `constraint` is that of each."""

    def __init__(self, service: Service, asked: Asked, client: Client) -> None:
        self._service, self.asked, self.client = service, asked, client
        self.handles: list[Handle] = []
        self._ended: dict[int, Completion] = {}
        self.constraint: Constraint | None = None
        self.num_prompt_tokens = 0
        self._lock = threading.Lock()
        self._is_cancelled = self._is_counted = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds_left(self) -> float:
        """Of the time of the request."""
        return max(0.001, self._service.limits.timeout_s - (monotonic() - self.asked.arrived))

    def submit(self, prompts: list[list[int]], speculate: tuple[str, ...]) -> None:
        """Hand everything over, or nothing."""
        asked, service = self.asked, self._service
        options = dict(asked.options)
        if asked.structure is not None:
            options["constraint"] = self.constraint = asked.structure.constraint()
            with self._lock:
                if self._is_cancelled:
                    return
                service.constraints.hold(asked.structure.key, self.constraint.num_bytes)
                self._is_counted = True
        else:  # proposers without a grammar, `prompt-lookup` for `grammar+prompt-lookup`; maybe none
            each_part = ([one for one in name.split("+") if one.partition(":")[0] != "grammar"] for name in speculate)
            speculate = tuple("+".join(parts) for parts in each_part if parts)
        if asked.questions:
            speculate = ()
        elif options["strategy"] != "greedy":
            options["seed"] = asked.seed
        if speculate:
            options["speculate"] = list(speculate)
        owner = None if len(prompts) * asked.num_samples == 1 else object()
        sharing: dict[SharedPrefixes, object] = {
            "all": None, "client": self.client.key or self.client.address, "none": object()
        }  # fmt: skip
        # Requests of equal salts share what they begin with.
        options |= {"timeout": self.seconds_left, "owner": owner, "salt": sharing[service.limits.shared_prefixes]}
        each = [question.options for question in asked.questions] or [{}] * len(prompts)
        for prompt, own in zip(prompts, each, strict=True):
            for sample in range(asked.num_samples):
                handle = service.engine.submit(prompt, sample=sample, **options, **own)
                with self._lock:
                    self.handles.append(handle)
                    if self._is_cancelled:
                        handle.cancel()
        self.num_prompt_tokens = sum(map(len, prompts))
        service.metrics.prompt_tokens.inc(self.num_prompt_tokens)

    def watch(self) -> None:
        """End the texts after their time also if the engine does not come back from a step."""
        seconds = self.seconds_left + _LATE_S
        self._timer = asyncio.get_running_loop().call_later(seconds, self.cancel, overdue())

    def cancel(self, error: DecodekitError | None = None) -> None:
        """End the texts that have not ended, after the step under way; at once if an error is given for them."""
        with self._lock:
            self._is_cancelled = True
            for handle in self.handles:
                handle.cancel()
                if error is not None:
                    handle.end_with(error)
            if self._is_counted and self.asked.structure is not None:
                self._service.constraints.release(self.asked.structure.key)
                self._is_counted = False
        if self._timer is not None:
            self._timer.cancel()

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk]]:
        """The chunks of all texts as they come, with the numbers of the texts; raises the error of one that failed."""
        if len(self.handles) == 1:
            async for chunk in self.handles[0]:
                yield 0, self._counted(0, chunk)
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
                yield number, self._counted(number, chunk)
        finally:
            for task in tasks:
                task.cancel()

    async def completions(self) -> list[Completion]:
        """The completions of all texts; raises the error of one that failed."""
        async for _ in self.chunks():
            pass
        return self._completions()

    def _completions(self) -> list[Completion]:
        return [self._ended[number] for number in range(len(self.handles))]

    def _counted(self, number: int, chunk: Chunk) -> Chunk:
        metrics, completion = self._service.metrics, chunk.completion
        metrics.generated_tokens.inc(len(chunk.token_ids))
        if completion is not None:
            self._ended[number], stats = completion, completion.stats
            waited = monotonic() - self.asked.arrived
            if stats.ttft_s is not None:
                metrics.ttft.observe(max(0.0, waited - (stats.duration_s - stats.ttft_s)))
            if stats.tpot_s is not None:
                metrics.tpot.observe(max(0.0, stats.tpot_s))
            if isinstance(completion.error, EngineClosedError) and self._service.is_draining:
                raise ended()
            if completion.error is not None:
                raise completion.error
        return chunk

    def usage(self) -> dict[str, Any]:
        """`usage` of the texts, which have ended: a prompt counts once, however many texts it has."""
        every = [one.stats for one in self._completions()]
        of_prompts = every[:: self.asked.num_samples]
        num_prompt = sum(one.num_prompt_tokens for one in of_prompts)
        num_new = sum(one.num_generated_tokens for one in every)
        num_thought = sum(one.num_reasoning_tokens for one in every)
        num_cached = sum(one.num_reused_tokens for one in of_prompts)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_new,
            "total_tokens": num_prompt + num_new,
            "prompt_tokens_details": {"cached_tokens": num_cached},
            "completion_tokens_details": {"reasoning_tokens": num_thought},
        }


def ended() -> ShutdownError:
    """The error of a request that the end of the endpoint cuts short."""
    return ShutdownError("the endpoint was shut down before the text was done", hint="again in a moment")


def overdue() -> RequestTimeoutError:
    """The error of a request whose time is over."""
    return RequestTimeoutError("the time of the request is over", hint="a smaller request, or a larger --timeout")


class Watchdog:
    """Looks at the step under way, in a thread of its own; after `stall_s` seconds it is too long.

    A step that does not come to its end is told once, with the requests that it may be about.
    """

    def __init__(self, engine: Engine, stall_s: float) -> None:
        self._engine, self._stall_s = engine, stall_s
        self._ends = threading.Event()
        threading.Thread(target=self._run, name="decodekit-watchdog", daemon=True).start()

    @property
    def is_stalled(self) -> bool:
        """Whether the step under way takes too long."""
        return self._long_step() is not None

    def close(self) -> None:
        """Watch no longer."""
        self._ends.set()

    def _long_step(self) -> Any:
        step = self._engine.step_under_way()
        return step if step is not None and step.seconds > self._stall_s else None

    def _run(self) -> None:
        was_stalled = False
        while not self._ends.wait(min(1.0, self._stall_s / _LOOKS)):
            step = self._long_step()
            if step is not None and not was_stalled:
                named = ", ".join(map(str, step.requests[:_MOST_NAMED])) or "none that has a row"
                more = f" and {len(step.requests) - _MOST_NAMED} more" if len(step.requests) > _MOST_NAMED else ""
                frame = sys._current_frames().get(step.thread or 0)
                where = "" if frame is None else "".join(traceback.format_stack(frame))
                says = "a step of the engine takes more than %g s; requests in it: %s%s\n%s"
                LOGGER.error(says, self._stall_s, named, more, where)
            elif was_stalled and step is None:
                LOGGER.warning("the engine goes on")
            was_stalled = step is not None
