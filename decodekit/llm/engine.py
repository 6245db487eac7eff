"""An engine: requests of any options, at any time, from any thread, in one loop that runs in a thread of its own.

    with llm.engine() as engine:
        first = engine.submit("Invoice A-17, total 40.20 EUR.", constraint=Invoice)
        other = engine.submit("Once", strategy="sample", temperature=0.8, seed=3, priority=1, timeout=30)
        for chunk in other:
            print(chunk.text, end="")
        print(first.result().value)

    async with llm.engine() as engine:
        completion = await engine.submit("Invoice A-17")

The loop is `decoding.loop.scheduler`: `submit` puts a request into its inbox, and every step of it hands chunks to the
handles. A slow consumer never blocks decoding.

An engine is closed when it is garbage-collected (its thread refers to the loop alone), and when the interpreter exits,
without waiting for a text.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from itertools import count
from typing import Any, Final, Literal, NamedTuple, TypeAlias, Unpack

from decodekit.constraints.matching.wrapped_matcher import BudgetedMatcher
from decodekit.constraints.work_budget import WorkBudget
from decodekit.decoding.loop.decoder import Decoder
from decodekit.decoding.loop.scheduler import ScheduledRequest, Scheduler, SchedulerStats
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.prefixes import row_memory as memory
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.prompt import Prompt
from decodekit.decoding.request.updates import Update
from decodekit.errors import (
    DecodekitError,
    EngineClosedError,
    OptionError,
    QueueFullError,
    RequestCancelledError,
    UselessOptionError,
    out_of_domain,
)
from decodekit.llm.handle import Handle
from decodekit.llm.plans.option_rules import deadline_after, timeout_fits
from decodekit.llm.plans.plan import Plan
from decodekit.llm.plans.prepared import PlansRequests, Preparing
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling.checks import at_least, is_count
from decodekit.strategy.options.generate_options import GenerateKeywords, GenerateOptions

ENGINE_OPTIONS: Final = ("batch_size", "max_waiting", "cache_tokens", "prefix_bytes")
"""Options of `LLM.engine`."""

EXIT_SECONDS: Final = 5.0
"""So long at most the interpreter waits for the step that an engine is in when it exits."""

OWNED_SHARE: Final = 4
"""The texts of one owner have this part of the rows at most while others wait."""

_CACHE_SHARE: Final = 2
EngineStats: TypeAlias = SchedulerStats


State: TypeAlias = Literal["open", "draining", "closed"]


class StepUnderWay(NamedTuple):
    """A step that has begun and not ended.

    Attributes:
        seconds: since it began.
        requests: the numbers of those that it may be about.
        thread: identifier of the thread that makes it.
    """

    seconds: float
    requests: list[int]
    thread: int | None


class EngineLoop:
    """The loop in the thread of an engine: an inbox of orders, and the scheduler.

    Args:
        scheduler: decodes.
        name: of the thread.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.stats = SchedulerStats()
        self.wake = threading.Condition()
        self.inbox: deque[Callable[[], list[Update]]] = deque()
        self.handles: dict[int, Handle] = {}
        self.state: State = "open"
        self.began: float | None = None
        """When the step under way began, a value of `time.monotonic`."""
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Run until `stop`."""
        self.thread.start()

    def post(self, act: Callable[[], list[Update]]) -> None:
        """Let the loop do something between two steps; the lock is held by the caller."""
        self.inbox.append(act)
        self.wake.notify()

    def stop(self, *, drain: bool) -> None:
        """Take nothing more, and end when all requests have, or at once."""
        with self.wake:
            if self.state != "closed":
                self.state = "draining" if drain else "closed"
            self.wake.notify()

    def end_all(self, why: BaseException | None = None) -> None:
        """End what has not ended with an error, from any thread; the loop takes nothing more.

        Args:
            why: what the loop failed of; None if it was closed.
        """
        with self.wake:
            self.state = "closed"
            self.inbox.clear()
            handles, self.handles = list(self.handles.values()), {}
        for handle in handles:
            cause = "the engine was closed before the text was done"
            if why is not None:
                cause = f"the engine failed: {type(why).__name__}: {str(why)[:200]}"
            fault = EngineClosedError(cause, at=f"request {handle.index}")
            fault.__cause__ = why
            handle.end_with(fault)

    def _run(self) -> None:
        try:
            while self._step():
                pass
            why: BaseException | None = None
        except BaseException as error:  # a failure of the loop must not leave anybody waiting
            self.error = why = error
        self.began = None
        self.end_all(why)
        try:
            self.stats = replace(self.scheduler.stats(), running=0, waiting=0, cached_tokens=0)
            self.scheduler.close()
        except Exception as error:  # after a failure; there is nobody left to be told
            self.error = self.error or error

    def _step(self) -> bool:
        """Do what there is to do; whether there is more to come."""
        with self.wake:
            while not self.inbox and self.scheduler.is_idle and self.state == "open":
                self.wake.wait()
            if self.state == "closed" or (self.state == "draining" and not self.inbox and self.scheduler.is_idle):
                return False
            acts, self.inbox = self.inbox, deque()
        self.began = time.monotonic()
        updates = [update for act in acts for update in act()]
        if not self.scheduler.is_idle:
            updates += self.scheduler.step()
        self.stats = self.scheduler.stats()
        for update in updates:
            handle = self.handles.get(update.index)
            if handle is not None:
                handle.push(update)
                if handle.done:
                    with self.wake:
                        self.handles.pop(update.index, None)
        self.began = None
        return True


def _stop_at_exit(loop: EngineLoop) -> None:
    if loop.thread.is_alive():  # and of this process: after a fork nobody is there to let go of the lock
        loop.stop(drain=False)
        if loop.thread is not threading.current_thread():
            loop.thread.join(EXIT_SECONDS)


class Engine:
    """Decodes requests of any options, which may be submitted at any time and from any thread. Made by `LLM.engine`.

    Every request has the text that `LLM.generate` gives for its prompt and options, whatever else is decoded. What
    several begin with (instructions, the past of a conversation, samples of a prompt) is read once. When memory runs
    out the youngest requests wait and are read again.

    An engine belongs to the process that made it: after a fork it must be made anew. It is a context manager, also of
    ``async with``; leaving it waits for all requests, or cancels them where an exception leaves it.

    Args:
        llm: model and tokenizer.
        batch_size: most rows that are decoded together; a search with several rows for a request has fewer requests at
            a time, in rows of its own. None for 32 on a CPU, and on a GPU for what its memory holds, at most 256.
        max_waiting: how many requests may wait beyond those that there are free rows for; None for any number.
        cache_tokens: most tokens of all requests that run; None for half of what memory holds.
        prefix_bytes: most bytes that are kept of what was read, for later requests; None for an eighth of the memory
            that is free, 0 for nothing.

    Raises:
        OptionError: a number is none.
    """

    def __init__(
        self,
        llm: PlansRequests,
        *,
        batch_size: int | None = None,
        max_waiting: int | None = None,
        cache_tokens: int | None = None,
        prefix_bytes: int | None = None,
    ) -> None:
        given = {"batch_size": batch_size, "max_waiting": max_waiting, "cache_tokens": cache_tokens}
        for name, value in (*given.items(), ("prefix_bytes", prefix_bytes)):
            least = 1 if name in ("batch_size", "cache_tokens") else 0
            at_least(least).or_none.require(name, value)
        self._llm = llm
        batch_size = memory.rows_that_fit(llm.model) if batch_size is None else batch_size
        self.batch_size, self._max_waiting = batch_size, max_waiting
        """Most rows that are decoded together."""
        self._pid = os.getpid()
        self._indices = count()
        self._preparing = Preparing(llm)
        self._reading = threading.Lock()
        if cache_tokens is None:
            cache_tokens = _tokens_that_fit(llm.model)
        scheduler = Scheduler(
            batch_size,
            cache_tokens=cache_tokens,
            prefix_bytes=prefix_bytes,
            keeps_texts=prefix_bytes != 0,
            max_owned=max(1, batch_size // OWNED_SHARE),
        )
        self._loop = EngineLoop(scheduler, f"decodekit-engine-{id(self):x}")
        self._finalizer = weakref.finalize(self, _stop_at_exit, self._loop)
        self._loop.start()

    def __repr__(self) -> str:
        stats = self._loop.stats
        return f"Engine({self._llm!r}, {self._loop.state}, {stats.running} running, {stats.waiting} waiting)"

    def __reduce__(self) -> Any:
        raise EngineClosedError(
            "an engine cannot be sent to another process", hint="an LLM can; make an engine of it there"
        )

    def submit(
        self,
        prompt: Prompt,
        *,
        priority: float = 0,
        timeout: float | None = None,
        sample: int = 0,
        owner: Hashable = None,
        salt: Hashable = None,
        **options: Unpack[GenerateKeywords],
    ) -> Handle:
        """Let a prompt be continued; the handle gives its chunks and its completion.

        A handle need not be kept: the request goes on without it, until it ends or the engine is closed.

        Args:
            prompt: one prompt, as `LLM.generate` takes it. An invalid one comes back as a completion with `error`.
            priority: of the requests that wait the one with the largest goes first; of equals the first.
            timeout: seconds after which the request ends with a `RequestTimeoutError`, waiting included.
            sample: which one of several samples of the prompt: sample i has the text that ``num_return_sequences``
                gives as the i-th, so samples may be requests that are streamed and cancelled each by itself.
            owner: of requests that belong together, such as the texts that one client asks for at once. Those of an
                owner have a quarter of the rows at most while others wait, and of equal priority its second goes behind
                the first of any other. None for a request of its own.
            salt: requests share what they begin with among those of the same salt alone, so that nobody can learn from
                the time or from `Stats.num_reused_tokens` what was asked under another one.
            options: those of `LLM.generate`, less `batch_size`.

        Raises:
            OptionError, UnknownNameError, ConstraintError: as `LLM.generate` raises them.
            QueueFullError: `max_waiting` requests wait already.
            EngineClosedError: the engine is closed, or belongs to another process.
        """
        started = time.monotonic()
        self._check_process()
        faults = [*timeout_fits(timeout)]
        if not isinstance(priority, int | float) or priority != priority:
            faults.append(out_of_domain("priority", "a number", priority))
        if not is_count(sample, 0):
            faults.append(out_of_domain("sample", at_least(0).text, sample))
        elif sample and ("num_return_sequences" in options or getattr(options.get("strategy"), "num_samples", 1) != 1):
            cause = f"sample={sample} of a request that has several samples by itself"
            faults.append(OptionError(cause, at="sample", hint="no num_return_sequences"))
        if "batch_size" in options:
            cause = "batch_size has no effect on a request: the rows are those of the engine"
            faults.append(UselessOptionError(cause, at="batch_size", hint="llm.engine(batch_size=...)"))
        if options.get("max_retries"):
            cause = "max_retries has no effect on a request: what is refused is the error of its completion"
            hint = "another request with the reason in its prompt, or LLM.generate and LLM.as_completed"
            faults.append(UselessOptionError(cause, at="max_retries", hint=hint))
        asked = GenerateOptions.of(**options)
        plan, decoder = self._preparing.plan(asked, faults)
        request = self._request(prompt, plan, asked.seed)  # type: ignore[arg-type]  # which is none of several now
        if isinstance(request, Request):
            matcher = None if request.matcher is None else BudgetedMatcher(request.matcher, WorkBudget())
            deadline = deadline_after(timeout, started)
            request = replace(request, matcher=matcher, sequence=sample, salt=salt, deadline=deadline)
        return self._enqueue(request, plan, decoder, priority, owner)

    def _enqueue(
        self, request: Request | DecodekitError, plan: Plan, decoder: Decoder[Any], priority: float, owner: Hashable
    ) -> Handle:
        loop = self._loop
        with loop.wake:
            if loop.state != "open":
                error = EngineClosedError("the engine is closed", hint="a new one: llm.engine()")
                error.__cause__ = loop.error
                raise error
            num_waiting = loop.scheduler.num_waiting + len(loop.inbox)
            num_free = max(0, self.batch_size - (len(loop.handles) - num_waiting))  # rows that some of them get at once
            if self._max_waiting is not None and num_waiting >= self._max_waiting + num_free:
                raise QueueFullError(
                    f"{num_waiting:,} requests wait, and max_waiting={self._max_waiting:,}",
                    hint="submit again later, or a larger max_waiting",
                )
            index = next(self._indices)
            thought = request.thought if isinstance(request, Request) else None
            handle = Handle(index, plan, thought, lambda: self._cancel(index), self._check_process)
            scheduled = ScheduledRequest(
                index, request, decoder, plan, plan.num_samples, priority=priority, owner=owner
            )
            loop.handles[index] = handle

            def add() -> list[Update]:
                loop.scheduler.add(scheduled)
                return []

            loop.post(add)
        return handle

    def _cancel(self, index: int) -> bool:
        """Let a request end; whether it was still going on."""
        loop = self._loop
        self._check_process()
        with loop.wake:
            if index not in loop.handles or loop.state == "closed":
                return False
            error = RequestCancelledError("the request was cancelled", at=f"request {index}")
            loop.post(lambda: loop.scheduler.cancel(index, error))
        return True

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineClosedError(
                f"the engine's thread runs in process {self._pid} and does not survive a fork",
                hint="make an engine in this process",
            )

    def _request(self, prompt: Prompt, plan: Plan, seed: int | None) -> Request | DecodekitError:
        """The request to continue; the error if it cannot be read."""
        try:
            with self._reading:  # tokenizers of transformers keep options in the tokenizer
                return self._llm.request(prompt, plan, seed)
        except Exception as error:  # of a tokenizer, say
            return fault_of(error, "reading the prompt", at="prompt")

    @property
    def is_open(self) -> bool:
        """Whether requests are taken: not after `close` or a failure of the engine itself, nor in another process."""
        return self._loop.state == "open" and os.getpid() == self._pid

    def stats(self) -> EngineStats:
        """The counts of the engine up to its last step."""
        return self._loop.stats

    def step_under_way(self) -> StepUnderWay | None:
        """The step that is being made now; None between steps."""
        loop, began = self._loop, self._loop.began
        if began is None:
            return None
        return StepUnderWay(time.monotonic() - began, loop.scheduler.in_rows(), loop.thread.ident)

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and end the thread. A second call waits for the first, or cuts it short.

        Args:
            drain: whether to wait for the requests; otherwise they end with an `EngineClosedError`.
            timeout: seconds to wait; the thread ends by itself later. Without `drain` the requests end then in any
                case, also where a step does not come to its end.

        Raises:
            TimeoutError: it took longer.
        """
        if os.getpid() != self._pid:
            return  # the thread is not in this process
        self._loop.stop(drain=drain)
        if self._loop.thread is threading.current_thread():
            return
        self._loop.thread.join(timeout)
        if self._loop.thread.is_alive():
            if not drain:
                self._loop.end_all()
            raise TimeoutError(f"the engine is not done after {timeout} s")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await asyncio.to_thread(self.close, drain=kind is None)


def _tokens_that_fit(model: CausalLM) -> int | None:
    """The number of tokens that a part of the free memory holds; None if that cannot be told."""
    each, free = memory.bytes_per_token(model), memory.free_for(model)
    return None if not each or free is None else max(1, free // _CACHE_SHARE // each)
