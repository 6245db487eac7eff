"""The engine: every request has the text that it has alone, whatever comes, goes and fails beside it."""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.constraints.matching import compiler
from decodekit.constraints.matching.wrapped_matcher import BudgetedMatcher
from decodekit.constraints.work_budget import WorkBudget
from decodekit.decoding.loop import batch as batch_module
from decodekit.decoding.loop.scheduler import ScheduledRequest, Scheduler
from decodekit.decoding.loop.step import Texts
from decodekit.decoding.prefixes import shared_rows as sharing
from decodekit.errors import (
    CacheFullError,
    DecodekitError,
    DecodingError,
    EngineClosedError,
    NonFiniteLogitsError,
    OptionError,
    ProcessorError,
    QueueFullError,
    RequestCancelledError,
    RequestTimeoutError,
    ResourceLimitError,
    UselessOptionError,
)
from decodekit.llm import LLM, Engine, GenerateOptions, Handle
from decodekit.llm import engine as engine_module
from decodekit.sampling import History, LogitsProcessor, Stage
from decodekit.testing.toy import ToyLM, ToyTokenizer, toy_llm
from tests.sharing_toy import SharingCache, SharingLM
from tests.sizes import sized

PROMPTS = ("abc, the abc, the ", '{"ab": 12} cd', "the cd the cd", "a", 'ab"12"ab"12"', "the abc, the abc, " * 4)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"strategy": "sample", "temperature": 0.8, "seed": 3},
    {"strategy": "sample", "top_k": 5, "seed": 4, "repetition_penalty": 1.2},
    {"constraint": dk.Regex("[a-d]{3,9}(, [a-d]{2})?"), "strategy": "sample", "seed": 1},
    {"stop": ["the"], "strategy": "sample", "seed": 8},
    {"logprobs": 2},
    {"strategy": "sample", "num_return_sequences": 3, "seed": 2},
    {"strategy": dk.Greedy(speculate=dk.PromptLookup())},
    {"strategy": dk.Mirostat(), "seed": 5},
    {"strategy": dk.BestOf(n=3), "seed": 6},
    {"strategy": dk.SelfConsistency(n=3), "seed": 7},
)
SEARCHES: tuple[dict[str, Any], ...] = (
    {"strategy": "beam", "num_beams": 3},
    {"strategy": dk.ContrastiveSearch(3, 0.6)},
    {"strategy": dk.Particles(4), "constraint": dk.Regex("[a-d]{3,9}"), "seed": 6},
    {"strategy": dk.Sample(contrast=dk.Guidance(1.5, "abc")), "seed": 7},
)


def comparable(completion: Any) -> Any:
    """What must be the same in any company."""
    others = tuple((one.text, one.token_ids) for one in completion.others)
    logprobs = completion.logprobs and [(one.token_id, round(one.logprob, 4)) for one in completion.logprobs]
    return completion.text, completion.token_ids, completion.finish_reason, completion.value, others, logprobs


@pytest.fixture(scope="module")
def llm() -> LLM:
    return toy_llm()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while any(one.name.startswith("decodekit-engine") for one in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread is left behind"
        time.sleep(0.01)


def test_any_options_in_one_batch(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request beside all others, with prompts that share tokens, as `generate` has it alone."""
    monkeypatch.setattr(sharing, "MIN_SHARED", 3)
    work = [(prompt, options) for prompt in PROMPTS[:4] for options in (*OPTIONS, *SEARCHES)]
    random.Random(0).shuffle(work)
    with llm.engine(batch_size=6) as engine:
        handles = [engine.submit(prompt, max_new_tokens=9, **options) for prompt, options in work]
        found = [handle.result(60) for handle in handles]
    assert engine.stats().tokens_reused > 0
    monkeypatch.setattr(sharing, "MIN_SHARED", 1 << 30)
    for (prompt, options), completion in zip(work, found, strict=True):
        assert comparable(completion) == comparable(llm.generate(prompt, max_new_tokens=9, **options)), options


def test_rows_of_a_model_are_read_together(llm: LLM) -> None:
    """One pass a step for requests of any options, and one choice for those that differ in their limits alone."""
    model, num_rows = ToyLM(), list[int]()
    forward = model.forward

    def counted(tokens: Tensor, num_tokens: Any, *rest: Any, **options: Any) -> Tensor:
        num_rows.append(len(num_tokens))
        return forward(tokens, num_tokens, *rest, **options)

    model.forward = counted  # type: ignore[method-assign]
    scheduler, decoder = Scheduler(8), Texts(model)
    plans = [llm.plan(GenerateOptions.of(max_new_tokens=8, logprobs=i % 2), []) for i in range(8)]
    for i, plan in enumerate(plans):
        scheduler.add(ScheduledRequest(i, llm.request("abc"[i % 3], plan), decoder, plan))
    while not scheduler.is_idle:
        scheduler.step()
    assert num_rows[:7] == [8] * 7 and len(num_rows) == 8
    limits = [replace(plans[0], max_new_tokens=n) for n in (3, 5)]
    assert limits[0].batch_key is limits[1].batch_key is not plans[1].batch_key


def test_texts_stay_in_their_rows(llm: LLM) -> None:
    """What a cache holds of a text is not moved when others have ended."""
    model, last_rows = ToyLM(), list[Any]()
    forward = model.forward

    def noted(tokens: Tensor, num_tokens: Any, cache: Any, rows: Any = None, **options: Any) -> Tensor:
        last_rows.append([*range(len(num_tokens))] if rows is None else [*rows])
        return forward(tokens, num_tokens, cache, rows, **options)

    model.forward = noted  # type: ignore[method-assign, assignment]
    scheduler, decoder = Scheduler(4), Texts(model)
    for i, limit in enumerate((2, 9, 3, 9)):
        plan = llm.plan(GenerateOptions.of(max_new_tokens=limit), [])
        scheduler.add(ScheduledRequest(i, llm.request("abca"[i], plan), decoder, plan))
    while not scheduler.is_idle:
        scheduler.step()
    assert last_rows[0] == [0, 1, 2, 3]
    assert last_rows[-1] == [1, 3]


def test_streams_and_results(llm: LLM) -> None:
    with llm.engine() as engine:
        handle = engine.submit(PROMPTS[0], max_new_tokens=12)
        chunks = list(handle)
        assert "".join(chunk.text for chunk in chunks) == handle.result().text == handle.text
        assert sum((chunk.token_ids for chunk in chunks), ()) == handle.result().token_ids
        assert [chunk.completion for chunk in chunks[:-1]] == [None] * (len(chunks) - 1) and len(chunks) > 3
        assert list(handle) == chunks and handle.done and handle.index == 0
        assert handle.cancel() is False


def test_asyncio_of_several_event_loops(llm: LLM) -> None:
    expected = [llm.generate(prompt, max_new_tokens=8).text for prompt in PROMPTS]

    async def ask(engine: Engine) -> list[str]:
        handles = [engine.submit(prompt, max_new_tokens=8) for prompt in PROMPTS]
        whole = [one.text for one in await asyncio.gather(*handles)]
        assert ["".join([chunk.text async for chunk in handle]) for handle in handles] == whole
        return whole

    async def main() -> list[str]:
        async with llm.engine() as engine:
            other = asyncio.to_thread(asyncio.run, ask(engine))
            assert await ask(engine) == await other == expected
            waiting = asyncio.ensure_future(_result(engine.submit("a", strategy="sample", max_new_tokens=5000)))
            await asyncio.sleep(0.02)
            waiting.cancel()  # the task, not the request
            long = engine.submit("b", strategy="sample", max_new_tokens=100_000)
            stream = long.__aiter__()
            await stream.__anext__()
            assert long.cancel()
            assert isinstance((await long).error, RequestCancelledError)
        return expected

    assert asyncio.run(main()) == expected


async def _result(handle: Any) -> Any:
    return await handle


def slow_llm(seconds: float = 0.002) -> LLM:
    """A toy whose passes take their time."""
    model = ToyLM()
    forward = model.forward

    def slowly(*args: Any, **options: Any) -> Tensor:
        time.sleep(seconds)
        return forward(*args, **options)

    model.forward = slowly  # type: ignore[method-assign]
    return LLM(model, ToyTokenizer())


ENDLESS: dict[str, Any] = {"strategy": dk.Greedy(logit_bias={256: -math.inf}), "max_new_tokens": 100_000}


def test_timeouts_and_cancelling_keep_the_text_so_far() -> None:
    llm = slow_llm()
    with llm.engine(batch_size=2) as engine:
        late = engine.submit("abc", timeout=1, **ENDLESS)
        cancelled = engine.submit("abc", **ENDLESS)
        waiting = engine.submit("abc", timeout=0.05, max_new_tokens=3)
        assert isinstance(waiting.result(10).error, RequestTimeoutError) and waiting.result().text == ""
        for _ in zip(range(3), cancelled, strict=False):
            pass
        with pytest.raises(TimeoutError):
            cancelled.result(0.01)
        assert cancelled.cancel()
        errors = [handle.result(10).error for handle in (late, cancelled)]
        assert [type(error) for error in errors] == [RequestTimeoutError, RequestCancelledError]
        for handle, error in zip((late, cancelled), errors, strict=True):
            text = handle.result().text
            assert error.text == text and len(text) > 2  # type: ignore[union-attr]
            assert pickle.loads(pickle.dumps(error)).text == text
            assert llm.generate("abc", **{**ENDLESS, "max_new_tokens": len(handle.result().token_ids)}).text == text
        raising = engine.submit("abc", timeout=0.03, on_error="raise", **ENDLESS)
        with pytest.raises(RequestTimeoutError):
            raising.result(10)
    assert engine.stats().finished == {"timeout": 3, "cancelled": 1}


def test_priorities_and_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[int]()
    push = Handle.push

    def noted(handle: Handle, update: Any) -> None:
        push(handle, update)
        ended.extend([handle.index] * handle.done)

    monkeypatch.setattr(Handle, "push", noted)
    with slow_llm().engine(batch_size=1, max_waiting=3) as engine:
        first = engine.submit("abc", **ENDLESS)
        next(iter(first))
        handles = {name: engine.submit("a", priority=p, max_new_tokens=2) for name, p in (("x", 0), ("y", 2), ("z", 0))}
        with pytest.raises(QueueFullError, match="max_waiting=3"):
            engine.submit("a")
        first.cancel()
        for handle in handles.values():
            handle.result(10)
        assert ended[1:] == [handles[name].index for name in "yxz"] and engine.stats().finished["cancelled"] == 1


def test_what_is_wrong_with_a_request(llm: LLM) -> None:
    with llm.engine() as engine:
        for wrong, kind in (
            ({"max_new_tokens": 0}, OptionError),
            ({"batch_size": 3}, UselessOptionError),
            ({"timeout": 0}, OptionError),
            ({"priority": math.nan}, OptionError),
            ({"seed": [1, 2]}, OptionError),
            ({"seed": -1}, OptionError),
            ({"strategy": "no such strategy"}, DecodekitError),
        ):
            with pytest.raises(kind):
                engine.submit("a", **wrong)
        engine.submit("a", seed=1).result(10)
        with pytest.raises(OptionError):
            engine.submit("a", seed=-1)
        unreadable: Any = 7
        assert isinstance(engine.submit(unreadable).result(10).error, OptionError)
    with pytest.raises(OptionError, match="rows: no option"):
        llm.engine(rows=3)
    with pytest.raises(OptionError, match="batch_size"):
        llm.engine(batch_size=0)


@dataclass(frozen=True, repr=False)
class Raises(LogitsProcessor):
    """Raises, or makes NaN, from a position on."""

    how: str
    position: int = 2
    stage: ClassVar[Stage] = Stage.BIAS
    needs_history: ClassVar[bool] = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        assert history is not None
        if int((history.lengths - history.prompt_lengths).max()) < self.position:
            return logits
        if self.how == "NaN":
            return torch.full_like(logits, math.nan)
        raise ZeroDivisionError("a processor of the user's")


class NaNLM(ToyLM):
    """A model that gives NaN after a prompt that begins with "N"."""

    def logits_after(self, prefix: Any) -> Tensor:
        logits = super().logits_after(prefix)
        return logits * math.nan if prefix[0] == ord("N") and len(prefix) > 4 else logits


def test_a_fault_of_a_request_is_its_own() -> None:
    llm = LLM(NaNLM(), ToyTokenizer())
    expected = [
        llm.generate(prompt, max_new_tokens=9, **options) for prompt, options in zip(PROMPTS, OPTIONS, strict=False)
    ]
    with llm.engine() as engine:
        good = [
            engine.submit(prompt, max_new_tokens=9, **options)
            for prompt, options in zip(PROMPTS, OPTIONS, strict=False)
        ]
        raising = engine.submit("abc", strategy=dk.Sample(processors=Raises("raise")))
        nan = engine.submit("abc", strategy=dk.Greedy(processors=Raises("NaN")))
        models = engine.submit("NNN", max_new_tokens=9)
        beams = engine.submit("abc", strategy=dk.Beam(2, processors=Raises("raise")))
        proposer = engine.submit("abc", strategy=dk.Greedy(speculate=Bad()))  # type: ignore[arg-type]
        errors = [handle.result(20).error for handle in (raising, nan, models, beams, proposer)]
        found = [handle.result(20) for handle in good]
    assert "ZeroDivisionError" in str(errors[0]) and isinstance(errors[0].__cause__, ZeroDivisionError)  # type: ignore[union-attr]
    assert isinstance(errors[1], ProcessorError) and isinstance(errors[2], NonFiniteLogitsError)
    assert "ZeroDivisionError" in str(errors[3]) and "KeyError" in str(errors[4])
    assert [comparable(one) for one in found] == [comparable(one) for one in expected]
    assert len(raising.result().token_ids) == 2


class Bad:
    def propose(self, contexts: Any, limits: Any) -> Any:
        raise KeyError("a proposer of the user's")


def test_a_failure_of_the_loop_ends_all(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = slow_llm().engine()
    handles = [engine.submit("abc", **ENDLESS) for _ in range(3)]
    next(iter(handles[0]))

    def broken() -> Any:
        raise AssertionError("a bug")

    engine._loop.scheduler._expire = broken  # type: ignore[method-assign]
    for handle in handles:
        error = handle.result(10).error
        assert isinstance(error, EngineClosedError) and "a bug" in str(error)
    engine._loop.thread.join(10)
    with pytest.raises(EngineClosedError):
        engine.submit("abc")
    engine.close()


def test_closing(llm: LLM) -> None:
    engine = slow_llm().engine(batch_size=2)
    handles = [engine.submit("abc", max_new_tokens=5) for _ in range(4)]
    engine.close()
    assert all(handle.done and handle.result().error is None for handle in handles)
    with pytest.raises(EngineClosedError):
        engine.submit("abc")
    engine = slow_llm().engine(batch_size=2)
    handles = [engine.submit("abc", **ENDLESS) for _ in range(4)]
    next(iter(handles[0]))
    engine.close(drain=False)
    assert all(isinstance(handle.result(1).error, EngineClosedError) for handle in handles)
    assert len(handles[0].text) > 0
    engine = slow_llm().engine()
    handle = engine.submit("abc", **ENDLESS)
    engine.__exit__(ZeroDivisionError, None, None)  # what leaves the block does not wait for the texts
    assert isinstance(handle.result(1).error, EngineClosedError)


def test_an_engine_that_nobody_holds_is_closed(llm: LLM) -> None:
    engine = llm.engine()
    engine.submit("abc", max_new_tokens=3).result(10)
    gone, thread = weakref.ref(engine), engine._loop.thread
    del engine
    gc.collect()
    thread.join(5)
    assert gone() is None and not thread.is_alive()


def test_other_processes(llm: LLM) -> None:
    with llm.engine() as engine:
        handle = engine.submit("abc", max_new_tokens=3)
        handle.result(10)
        pid = os.fork()
        if pid == 0:  # no pytest in here
            try:
                engine.submit("abc")
            except EngineClosedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        with pytest.raises(EngineClosedError, match="another process"):
            pickle.dumps(engine)
    assert multiprocessing.active_children() == []


def test_an_open_engine_does_not_block_the_exit() -> None:
    code = (
        "import math, decodekit as dk; from decodekit.testing.toy import toy_llm; e = toy_llm().engine();"
        "h = e.submit('abc', strategy=dk.Greedy(logit_bias={256: -math.inf}), max_new_tokens=10**6);"
        "next(iter(h)); print('out')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "out\n" and done.returncode == 0, done.stderr


def test_a_conversation_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn finds prompt and text of the one before, also when its row was used in between."""
    monkeypatch.setattr(sharing, "MIN_SHARED", 4)
    llm = LLM(SharingLM(), ToyTokenizer())
    with llm.engine(batch_size=1) as engine:
        past = "the abc, the abc, the cd the cd"
        for turn in range(3):
            completion = engine.submit(past, max_new_tokens=6).result(10)
            if turn:
                assert completion.stats.num_reused_tokens >= completion.stats.num_prompt_tokens - 8
            past += completion.text + ", ab"
            engine.submit('{"12": 12}', max_new_tokens=2).result(10)
        assert engine.stats().prefix_bytes > 0
    with llm.engine(batch_size=1, prefix_bytes=0) as engine:
        engine.submit(past, max_new_tokens=6).result(10)
        engine.submit('{"12": 12}', max_new_tokens=2).result(10)
        assert engine.submit(past, max_new_tokens=6).result(10).stats.num_reused_tokens == 0


def test_a_budget_of_tokens(llm: LLM) -> None:
    """More than fits waits, what outgrows it is read again, and what never fits fails alone."""
    with llm.engine(cache_tokens=110) as engine:
        handles = [engine.submit("abc", seed=i, **{**ENDLESS, "max_new_tokens": 70}) for i in range(3)]
        large = engine.submit("abcdefgh" * 30, max_new_tokens=4)
        found = [handle.result(20) for handle in handles]
        assert isinstance(large.result(20).error, CacheFullError)
    alone = llm.generate("abc", **{**ENDLESS, "max_new_tokens": 70})
    assert [one.text for one in found] == [alone.text] * 3
    with llm.engine(cache_tokens=140) as engine:
        handles = [engine.submit("abc", **{**ENDLESS, "max_new_tokens": n}) for n in (100, 101)]
        texts = [handle.result(20).text for handle in handles]
        assert engine.stats().preemptions > 0
    assert texts == [llm.generate("abc", **{**ENDLESS, "max_new_tokens": n}).text for n in (100, 101)]


class Full(ToyLM):
    """A model whose cache has room for so many tokens in all rows together."""

    room = 40

    def forward(self, tokens: Tensor, num_tokens: Any, cache: Any, rows: Any = None, **options: Any) -> Tensor:
        if sum(map(len, cache.tokens)) + sum(num_tokens) > self.room:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(tokens, num_tokens, cache, rows, **options)


@pytest.mark.parametrize("options", [{}, *OPTIONS[1:4], OPTIONS[7], *SEARCHES[:3]], ids=str)
def test_memory_that_runs_out(options: dict[str, Any]) -> None:
    """The youngest make room, and all texts are those of a model with room; alone, a request too large fails."""
    work = [(prompt, 4 + 2 * number) for number, prompt in enumerate(PROMPTS[:5])]
    alone = [toy_llm().generate(prompt, max_new_tokens=n, **options) for prompt, n in work]
    llm = LLM(Full(), ToyTokenizer())
    Full.room = 40 if options not in SEARCHES else 120
    with llm.engine(batch_size=5 if options not in SEARCHES else 12) as engine:
        handles = [engine.submit(prompt, max_new_tokens=n, **options) for prompt, n in work]
        large = engine.submit("abcdefgh" * 40, max_new_tokens=4, **options)
        found = [handle.result(30) for handle in handles]
        assert isinstance(large.result(30).error, CacheFullError)
    assert [comparable(one) for one in found] == [comparable(one) for one in alone]


def test_short_texts_that_have_ended_leave_their_memory() -> None:
    """They are too short to be kept for others, and a text that has come to be alone needs what they hold."""
    llm = LLM(Full(), ToyTokenizer())
    Full.room = 40
    with llm.engine(batch_size=4) as engine:
        long = engine.submit("a", max_new_tokens=30, seed=0)
        short = [engine.submit(prompt, max_new_tokens=2) for prompt in ("abcdefghij", "bcdefghijk", "cdefghijkl")]
        assert [one.result(30).error for one in short] == [None] * 3
        assert comparable(long.result(30)) == comparable(toy_llm().generate("a", max_new_tokens=30, seed=0))


# --- anything at any time --------------------------------------------------------------------------------------------


class Faulty(SharingLM):
    """A toy whose passes run out of memory, raise or give NaN at random; and that knows its caches, which share."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng, self.odds = rng, 0.0
        self.made: list[SharingCache] = []

    def new_cache(self, num_rows: int, capacity: int) -> SharingCache:
        self.made.append(super().new_cache(num_rows, capacity))
        return self.made[-1]

    def forward(self, tokens: Tensor, num_tokens: Any, cache: Any, rows: Any = None, **options: Any) -> Tensor:
        if len(num_tokens) > 1 and self.rng.random() < self.odds:
            raise self.rng.choice([RuntimeError("out of memory"), MemoryError(), ValueError("an odd fault")])
        return super().forward(tokens, num_tokens, cache, rows, **options)


@sized("num_events", 400, slow=10_000)
def test_whatever_happens_nothing_is_left_behind(num_events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random submissions, cancellations, time-outs, faults and closings; the survivors' texts are those alone."""
    monkeypatch.setattr(sharing, "MIN_SHARED", 4)
    monkeypatch.setattr(batch_module, "PREFILL_TOKENS", 16)
    rng = random.Random(11)
    known: dict[Any, Any] = {}
    calm = toy_llm()
    model = Faulty(random.Random(5))
    llm = LLM(model, ToyTokenizer())
    engines: list[Engine] = []
    handles: list[tuple[Any, str, int, Any]] = []
    engine = llm.engine(batch_size=4, cache_tokens=300, prefix_bytes=200)
    for _ in range(num_events):
        event = rng.random()
        if event < 0.6:
            number = rng.randrange(len(OPTIONS) + len(SEARCHES))
            prompt = rng.choice(PROMPTS) + rng.choice(("", "ab", "the cd"))
            timeout = rng.choice((None, None, None, 0.001, 0.02))
            options = (*OPTIONS, *SEARCHES)[number]
            length = rng.randint(1, 7)
            handle = engine.submit(prompt, timeout=timeout, priority=rng.randrange(3), max_new_tokens=length, **options)
            handles.append((handle, prompt, number, length))
        elif event < 0.75 and handles:
            rng.choice(handles[-12:])[0].cancel()
        elif event < 0.85:
            engine.submit("abc", strategy=dk.Greedy(processors=Raises(rng.choice(("raise", "NaN")))), max_new_tokens=5)
        elif event < 0.95:
            model.odds = rng.choice((0.0, 0.0, 0.05))
        elif event < 0.96:
            engine.close(drain=rng.random() < 0.5)
            engines.append(engine)
            engine = llm.engine(batch_size=rng.randint(1, 5), cache_tokens=300, prefix_bytes=rng.choice((0, 200, 5000)))
        elif handles:
            handles[-1][0].result(60)
    engine.close()
    engines.append(engine)
    num_whole = 0
    for handle, prompt, number, length in handles:
        completion = handle.result(1)
        errors = [one.error for one in (completion, *completion.others)]  # samples that had ended keep their texts
        if any(isinstance(one, EngineClosedError | RequestCancelledError | RequestTimeoutError) for one in errors):
            continue
        if number >= len(OPTIONS) and isinstance(completion.error, DecodingError):
            continue  # a fault of a pass over several rows can be its own, for it has several
        key = prompt, number, length
        if key not in known:
            options = (*OPTIONS, *SEARCHES)[number]
            known[key] = comparable(calm.generate(prompt, max_new_tokens=length, **options))
        assert comparable(completion) == known[key], key
        num_whole += 1
    assert num_whole > num_events / 6
    for one in engines:
        scheduler = one._loop.scheduler
        assert not one._loop.thread.is_alive() and one._loop.error is None, one._loop.error
        assert (
            not scheduler._batches and not scheduler._requests and not scheduler._request_of and not one._loop.handles
        )
    assert all(not cache.prefixes for cache in model.made), "a prefix was not released"


def test_generate_after_an_interrupt(llm: LLM) -> None:
    """A generator that is closed half-way, and Ctrl-C in a pass, leave a model that decodes as before."""
    before = llm.generate(list(PROMPTS), max_new_tokens=6)
    stream = llm.stream(list(PROMPTS), max_new_tokens=6)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    model: Any = llm.model
    model.forward, forward = _interrupted, model.forward
    with pytest.raises(KeyboardInterrupt):
        llm.generate(list(PROMPTS), max_new_tokens=6)
    model.forward = forward
    assert [one.text for one in llm.generate(list(PROMPTS), max_new_tokens=6)] == [one.text for one in before]


def _interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_samples_are_requests_of_their_own(llm: LLM) -> None:
    """Sample i alone has the text of the i-th of several; the control: they differ."""
    options: dict[str, Any] = {"strategy": "sample", "temperature": 1.2, "seed": 5, "max_new_tokens": 12}
    whole = llm.generate("abc, ", num_return_sequences=4, **options)
    with llm.engine(batch_size=3) as engine:
        found = [engine.submit("abc, ", sample=i, **options).result(60).text for i in range(4)]
        with pytest.raises(OptionError, match="sample must be"):
            engine.submit("abc, ", sample=-1)
        with pytest.raises(OptionError, match="several samples by itself"):
            engine.submit("abc, ", sample=1, num_return_sequences=2, **options)
    assert found == [whole.text, *(one.text for one in whole.others)]
    assert len(set(found)) > 1


def test_chunks_have_the_logprobs_of_their_tokens(llm: LLM) -> None:
    with llm.engine() as engine:
        handle = engine.submit("abc, ", logprobs=2, max_new_tokens=10)
        chunks = list(handle)
    told = [one for chunk in chunks for one in chunk.logprobs]
    assert all([one.token_id for one in chunk.logprobs] == [*chunk.token_ids] for chunk in chunks)
    assert len(chunks) > 2 and tuple(told) == handle.result().logprobs
    streamed = [one for chunk in llm.stream("abc, ", logprobs=2, max_new_tokens=10) for one in chunk.logprobs]
    assert [one.token_id for one in streamed] == [one.token_id for one in told]
    assert not any(chunk.logprobs for chunk in llm.stream("abc, ", max_new_tokens=3))


class _Heavy:
    """A type of a user's own that takes its time: its validator waits until it may go on."""

    may_go_on = threading.Event()
    threads: ClassVar[list[str]] = []

    @classmethod
    def validate(cls, value: Any) -> Any:
        cls.threads.append(threading.current_thread().name)
        assert cls.may_go_on.wait(30)
        return value


def test_values_are_made_where_they_are_asked_for(llm: LLM) -> None:
    """A type that takes long holds up neither the engine nor an event loop, and is made once."""
    from pydantic import AfterValidator

    kind = Annotated[Literal["abc", "abd"], AfterValidator(_Heavy.validate)]
    _Heavy.may_go_on.clear()
    _Heavy.threads.clear()

    async def main() -> None:
        async with llm.engine() as engine:
            heavy = engine.submit("abc", constraint=kind, max_new_tokens=20)
            last = [asyncio.create_task(_last(heavy)) for _ in range(2)]
            while not _Heavy.threads:
                await asyncio.sleep(0.005)
            for _ in range(3):
                assert len((await engine.submit("abc", max_new_tokens=4)).token_ids) == 4
            assert heavy.done and engine.stats().running == 0 and not last[0].done()
            _Heavy.may_go_on.set()
            chunks = await asyncio.gather(*last)
            assert chunks[0] is chunks[1] and chunks[0].completion is heavy.result()
            assert heavy.result().value in ("abc", "abd") and heavy.text == '"' + heavy.result().value + '"'

    asyncio.run(main())
    assert len(_Heavy.threads) == 1 and not _Heavy.threads[0].startswith("decodekit-engine")


async def _last(handle: Handle) -> Any:
    return [chunk async for chunk in handle][-1]


def test_a_value_that_nobody_asks_for_is_not_made(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()
    rule = dk.Regex("[ab]{3}")
    parse = dk.Regex.parse

    def noted(rule: dk.Regex, text: str) -> str:
        made.append(text)
        return parse(rule, text)

    monkeypatch.setattr(dk.Regex, "parse", noted)
    with llm.engine() as engine:
        handle = engine.submit("abc", constraint=rule)
        engine.submit("abc", constraint=rule)
        assert handle.result().value == handle.text
    assert made == [handle.text]


def test_what_making_a_completion_raises_is_its_error(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("no value")

    monkeypatch.setattr("decodekit.llm.completions._completion", fails)
    with llm.engine() as engine:
        handle = engine.submit("abc", max_new_tokens=5)
        chunks = list(handle)
        completion = handle.result()
    assert completion.finish_reason == "error" and "RuntimeError: no value" in str(completion.error)
    assert completion.text == "".join(chunk.text for chunk in chunks) == handle.text != ""
    assert completion.token_ids == sum((chunk.token_ids for chunk in chunks), ()) and len(completion.token_ids) == 5


def test_owners_share_the_rows() -> None:
    """A quarter of the rows for an owner while others wait, all of them otherwise; priorities count before."""
    llm = slow_llm()
    with llm.engine(batch_size=8) as engine:
        many = [engine.submit("abc", owner="a", **ENDLESS) for _ in range(12)]
        until(lambda: engine.stats().running == 8)
        assert engine.stats().preemptions == 0
        single = engine.submit("b", max_new_tokens=3)
        assert len(single.result(30).token_ids) == 3 and engine.stats().preemptions == 1
        others = [engine.submit("c", owner="b", **ENDLESS) for _ in range(5)]
        until(lambda: sum(bool(handle.text) for handle in others) == 2)
        assert sum(bool(handle.text) for handle in many) == 8  # six of which have rows
        low = engine.submit("d", priority=-1, max_new_tokens=3)
        with pytest.raises(TimeoutError):
            low.result(0.1)
        for handle in (*many, *others):
            handle.cancel()
        assert len(low.result(30).token_ids) == 3
        texts = [handle.result().text for handle in many]
        whole = llm.generate("abc", **{**ENDLESS, "max_new_tokens": max(map(len, texts)) + 1}).text
        assert all(whole.startswith(text) for text in texts) and not engine._loop.scheduler._owners


def test_the_first_of_an_owner_goes_before_the_second_of_another() -> None:
    with slow_llm().engine(batch_size=1) as engine:
        first = engine.submit("abc", **ENDLESS)
        next(iter(first))
        ended = list[str]()
        handles = {f"a{i}": engine.submit("a", owner="a", max_new_tokens=2) for i in range(3)}
        handles |= {"b0": engine.submit("a", owner="b", max_new_tokens=2), "c": engine.submit("a", max_new_tokens=2)}
        handles["b1"] = engine.submit("a", owner="b", max_new_tokens=2)
        numbers = {handle.index: name for name, handle in handles.items()}
        hand_out = Handle.push

        def noted(handle: Handle, update: Any) -> None:
            hand_out(handle, update)
            if handle.done and handle.index in numbers:
                ended.append(numbers[handle.index])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Handle, "push", noted)
            first.cancel()
            for handle in handles.values():
                handle.result(30)
    assert ended == ["a0", "b0", "c", "a1", "b1", "a2"]


def test_salts_share_nothing(llm: LLM) -> None:
    """Neither with rows that read now, nor with rows that were left, nor with what is kept; the texts are the same."""
    prompt = "abc, the " * 30
    with llm.engine(batch_size=3) as engine:
        for _ in range(2):
            handles = [engine.submit(prompt, max_new_tokens=3, salt=salt) for salt in ("one", "two", None)]
            found = [handle.result() for handle in handles]
            assert len({one.text for one in found}) == 1
        assert all(one.stats.num_reused_tokens > 0 for one in found)
        assert engine.submit(prompt, salt="three", max_new_tokens=1).result().stats.num_reused_tokens == 0
    with llm.engine(batch_size=3) as engine:  # the control: without salts two of three begin with what the first reads
        handles = [engine.submit(prompt, max_new_tokens=3, salt=salt) for salt in ("one", "two", "one")]
        assert [handle.result().stats.num_reused_tokens > 0 for handle in handles] == [False, False, True]


def test_plans_of_large_constraints_are_let_go(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many constraints texts had, the memory of those that are kept has a bound."""
    monkeypatch.setattr("decodekit.llm.plans.prepared.MOST_BYTES", 200_000)
    grammars = list[weakref.ref[Any]]()
    with llm.engine() as engine:
        for number in range(30):
            schema = {"type": "object", "properties": {f"{number}-{i}": {"type": "integer"} for i in range(80)}}
            options: Any = {"constraint": schema, "max_new_tokens": 4, "on_length": "return"}
            assert engine.submit("abc", **options).result().text
            plan, _ = engine._preparing.plan(GenerateOptions.of(**options), [])
            assert plan.grammar is not None
            grammars.append(weakref.ref(plan.grammar))
            num_bytes = plan.grammar.constraint.num_bytes
        prepared = engine._preparing._plans
        assert prepared.num_bytes <= 200_000 and len(prepared) == 200_000 // num_bytes == len(
            engine._preparing._batch_keys
        )
        del plan
        compiler._grammars.clear()
        gc.collect()
        assert 0 < sum(one() is not None for one in grammars) <= len(prepared) < 10


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_constraint_that_takes_too_much_work_ends_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    word = "b" * batch_size  # a grammar that nobody has met
    ambiguous = dk.Grammar(f'start: a\na: a a | b | ""\nb: b a | "a" | "{word}" | ""\n')
    options: Any = {"constraint": dk.Regex("[a-d]{3,9}"), "strategy": "sample", "seed": 3, "max_new_tokens": 12}
    alone = [llm.generate(prompt, **options) for prompt in PROMPTS]

    monkeypatch.setattr(engine_module, "WorkBudget", lambda: WorkBudget(300, 300))
    with llm.engine(batch_size=batch_size) as engine:
        hostile = engine.submit("a", constraint=ambiguous, max_new_tokens=200)
        handles = [engine.submit(prompt, **options) for prompt in PROMPTS]
        assert [comparable(handle.result()) for handle in handles] == [comparable(one) for one in alone]
        error = hostile.result().error
    assert isinstance(error, ResourceLimitError) and "too much work" in str(error)
    monkeypatch.undo()
    with llm.engine() as engine:  # control: with the budget of everybody it goes on
        again = engine.submit("a", constraint=ambiguous, max_new_tokens=200).result()
    assert not isinstance(again.error, ResourceLimitError)


def test_a_canonical_run_that_takes_too_much_work_ends_its_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the run the text would be another one; an exact run changes nothing."""
    options: Any = {"constraint": dk.Regex("(ab|ac)(forced|forces)[a-d]{2}"), "max_new_tokens": 12}
    alone = llm.generate("a", **options)

    def overspent(*_: object) -> bytes:
        raise ResourceLimitError("the constraint takes too much work for one token")

    monkeypatch.setattr(BudgetedMatcher, "forced_text", overspent)
    monkeypatch.setattr(BudgetedMatcher, "forced_tokens", overspent)
    with llm.engine() as engine:
        exact = engine.submit("a", **options).result()
        canonical = engine.submit("a", fast_forward="canonical", **options).result()
    assert comparable(exact) == comparable(alone)
    assert canonical.finish_reason == "error" and isinstance(canonical.error, ResourceLimitError)
