"""Calls with a limit of time, and calls that are awaited: their texts are those of `generate`."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, Any

import pydantic
import pytest

import decodekit as dk
from decodekit.errors import DecodekitError, InvalidValueError, OptionError, RequestTimeoutError, UselessOptionError
from decodekit.llm import LLM, Engine, Handle
from decodekit.testing.toy import ToyLM, ToyTokenizer, toy_llm
from tests.sizes import few

PROMPT = "abc, the abc, the "
PROMPTS = [PROMPT, "the cd the cd", "a", 'ab"12"ab"12"', "cd"]
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"strategy": "sample", "temperature": 0.8, "seed": 3, "logprobs": 2},
    {"strategy": "sample", "seed": [5, 4, 3, 2, 1], "num_return_sequences": 3},
    {"strategy": dk.BestOf(n=3), "seed": 6},
    {"strategy": dk.Sample(seed=9, speculate=dk.PromptLookup())},
    {"strategy": "beam", "num_beams": 3},
    {"strategy": dk.Particles(4), "constraint": dk.Regex("[a-d]{3,9}"), "seed": 6},
    {"constraint": {"type": "object", "properties": {"a": {"type": "integer"}}}, "on_length": "close"},
)


class GatedLM(ToyLM):
    """The toy model, which waits in front of every pass until the gate is open, and counts the rows of each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.num_rows: list[int] = []
        self.passed: Callable[[], None] = lambda: None

    def forward(self, tokens: Any, num_tokens: Any, *rest: Any, **options: Any) -> Any:
        assert self.gate.wait(30)
        self.num_rows.append(len(num_tokens))
        self.passed()
        return super().forward(tokens, num_tokens, *rest, **options)


@pytest.fixture
def gated() -> GatedLM:
    return GatedLM()


@pytest.fixture
def timed(gated: GatedLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """An LLM whose passes take a second each, of a clock that nothing else moves."""
    now = [0.0]

    def passed() -> None:
        now[0] += 1

    gated.passed = passed
    gated.gate.set()
    for module in ("decoding.loop.scheduler", "llm.front", "llm.engine", "llm.awaited"):
        monkeypatch.setattr(f"decodekit.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    return LLM(gated, ToyTokenizer())


def comparable(completion: dk.Completion) -> Any:
    others = tuple((one.text, one.token_ids) for one in completion.others)
    logprobs = completion.logprobs and [(one.token_id, round(one.logprob, 4)) for one in completion.logprobs]
    return completion.text, completion.token_ids, completion.finish_reason, completion.value, others, logprobs


def is_late(completion: dk.Completion, index: int) -> bool:
    """Whether a text was ended by the clock; then it says so as a request of an engine does."""
    error = completion.error
    if not isinstance(error, RequestTimeoutError):
        return False
    assert (error.code, error.at, error.text) == ("DK712", f"prompt {index}", completion.text)
    assert completion.finish_reason == "error" and completion.value is None
    return True


@pytest.mark.parametrize("is_awaited", [False, True])
def test_what_is_not_done_in_time_ends_with_what_it_has(timed: LLM, is_awaited: bool) -> None:
    def call(prompts: Any, **options: Any) -> Any:
        return asyncio.run(timed.agenerate(prompts, **options)) if is_awaited else timed.generate(prompts, **options)

    options: dict[str, Any] = {"max_new_tokens": 30, "logit_bias": {256: -100.0}}
    whole = timed.generate(PROMPT, **options)
    assert len(whole.token_ids) == 30 and whole.error is None
    late = call(PROMPT, timeout=7.5, **options)
    assert (
        is_late(late, 0) and 3 < len(late.token_ids) < 12 and whole.token_ids[: len(late.token_ids)] == late.token_ids
    )
    for enough in (1000, 10**400, float("inf")):
        assert comparable(call(PROMPT, timeout=enough, **options)) == comparable(whole)
    with pytest.raises(RequestTimeoutError) as caught:
        call([PROMPT, "a"], timeout=7.5, on_error="raise", **options)
    assert caught.value.text
    for strategy in (dk.Beam(2), dk.BestOf(2), dk.Sample(num_return_sequences=2)):
        assert is_late(call(PROMPT, timeout=4.5, strategy=strategy, max_new_tokens=30), 0)
    for wrong in (0, -1, "1", True, float("nan")):
        with pytest.raises(OptionError) as fault:
            call(PROMPT, timeout=wrong, max_new_tokens=0)
        assert {one.at for one in fault.value.faults} == {"timeout", "max_new_tokens"}


def test_prompts_that_were_not_begun_in_time(timed: LLM) -> None:
    """Their order stays; what was done before is whole; each is read once or not at all."""
    options: dict[str, Any] = {"max_new_tokens": 4, "batch_size": 1, "logit_bias": {256: -100.0}}
    wanted = timed.generate(PROMPTS, **options)
    chunks = list(timed.stream(PROMPTS, timeout=10.5, **options))
    found = {chunk.index: chunk.completion for chunk in chunks if chunk.completion is not None}
    assert list(found) == [*range(5)]
    late = [is_late(found[index], index) for index in range(5)]
    assert late == sorted(late) and 0 < late.count(False) < 4
    for index, one in found.items():
        assert one.text == wanted[index].text[: len(one.text)] and (late[index] or one == wanted[index] or one.text)
        assert one.text == "".join(chunk.text for chunk in chunks if chunk.index == index)
    assert found[4].token_ids == () and found[4].error is not None


def test_a_search_of_its_own_has_no_limit_of_time() -> None:
    class Own(dk.Beam):
        decoder = None  # type: ignore[assignment]

        def __getattribute__(self, name: str) -> Any:
            if name == "decoder":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(OptionError, match="a way of its own, which has no limit of time"):
        toy_llm().generate("a", strategy=Own(2), timeout=3)


@few(2)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda one: "-".join(one) or "plain")
def test_awaited_texts_are_those_of_generate(options: dict[str, Any]) -> None:
    llm = toy_llm()
    options = {"max_new_tokens": 24, **options}
    wanted = llm.generate(PROMPTS, **options)
    single = options | ({"seed": 5} if isinstance(options.get("seed"), list) else {})

    async def ask() -> tuple[Any, ...]:
        return await asyncio.gather(llm.agenerate(PROMPTS, **options), llm.agenerate(PROMPT, **single))

    found, one = asyncio.run(ask())
    assert [comparable(each) for each in found] == [comparable(each) for each in wanted]
    assert comparable(one) == comparable(wanted[0])


def test_tries_are_those_of_generate() -> None:
    def even(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is not even")
        return n

    class Even(pydantic.BaseModel):
        n: Annotated[int, pydantic.AfterValidator(even)]

    llm = toy_llm()
    options: dict[str, Any] = {"constraint": Even, "strategy": "sample", "max_new_tokens": 40, "on_length": "close"}
    wanted = llm.generate(PROMPTS, max_retries=2, seed=range(5), **options)
    assert any(one.attempts for one in wanted) and any(isinstance(one.error, InvalidValueError) for one in wanted)
    found = asyncio.run(llm.agenerate(PROMPTS, max_retries=2, seed=range(5), **options))
    assert [(comparable(one), len(one.attempts), str(one.error)) for one in found] == [
        (comparable(one), len(one.attempts), str(one.error)) for one in wanted
    ]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


def test_calls_at_once_are_decoded_together(gated: GatedLM) -> None:
    """The model stands still until the event loop has handed over all of them: a call that held it up would hang."""
    llm = LLM(gated, ToyTokenizer())

    async def ask() -> None:
        tasks = [asyncio.create_task(llm.agenerate(prompt, max_new_tokens=12)) for prompt in PROMPTS]
        await until(lambda: llm._engine is not None and len(llm._engine._loop.handles) == 5)
        engine = llm._engine
        gated.gate.set()
        found = await asyncio.gather(*tasks)
        again = await llm.agenerate(PROMPTS, max_new_tokens=12)
        assert llm._engine is engine and [one.text for one in again] == [one.text for one in found]

    asyncio.run(ask())
    assert max(gated.num_rows) == 5


def test_a_task_that_is_cancelled_frees_its_rows(gated: GatedLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is decoded, and while it is on its way to the engine."""
    llm, is_free, submit, cancel = LLM(gated, ToyTokenizer()), threading.Event(), Engine.submit, Handle.cancel
    cancelled: set[Handle] = set()

    def slowly(self: Engine, prompt: Any, **options: Any) -> Any:
        assert prompt != "cd" or is_free.wait(30)
        return submit(self, prompt, **options)

    def noted(self: Handle) -> Any:
        cancelled.add(self)
        return cancel(self)

    monkeypatch.setattr(Engine, "submit", slowly)
    monkeypatch.setattr(Handle, "cancel", noted)

    async def ask() -> None:
        tasks = [asyncio.create_task(llm.agenerate(prompt, max_new_tokens=12)) for prompt in ("abc", "the", "cd")]
        await until(lambda: llm._engine is not None and len(llm._engine._loop.handles) == 2)
        engine = llm._engine
        assert engine is not None
        for task in tasks[1:]:
            task.cancel()
        done = await asyncio.gather(*tasks[1:], return_exceptions=True)
        assert [type(one) for one in done] == [asyncio.CancelledError] * 2
        is_free.set()
        await until(lambda: len(cancelled) == 2)  # before the gate opens, or a text may end by itself
        gated.gate.set()
        await until(lambda: engine.stats().finished.get("cancelled") == 2)
        assert (await tasks[0]).error is None
        await until(lambda: engine.stats().running == 0)  # a text is handed out before its row is counted off

    asyncio.run(ask())


def test_the_engine_belongs_to_its_llm() -> None:
    llm = toy_llm()
    asyncio.run(llm.agenerate("a", max_new_tokens=2))
    first = llm._engine
    assert first is not None
    for other in (copy.copy(llm), pickle.loads(pickle.dumps(llm))):
        assert other._engine is None
    first.close()
    assert asyncio.run(llm.agenerate("a", max_new_tokens=2)).error is None  # another event loop, another engine
    engine, thread = weakref.ref(llm._engine), llm._engine._loop.thread
    del llm, other
    assert engine() is None  # without the garbage collector
    thread.join(5)
    assert not thread.is_alive()


def test_after_a_fork_there_is_another_engine() -> None:
    llm = toy_llm()
    wanted = asyncio.run(llm.agenerate("abc", max_new_tokens=3)).text
    pid = os.fork()
    if pid == 0:  # no pytest in here
        try:
            is_same = asyncio.run(asyncio.wait_for(llm.agenerate("abc", max_new_tokens=3), 20)).text == wanted
            os._exit(7 if is_same else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_what_is_wrong_with_an_awaited_call() -> None:
    llm = toy_llm()
    for options, kind, at in (
        ({"max_new_tokens": 0, "temperatur": 1}, OptionError, None),
        ({"batch_size": 3}, UselessOptionError, "batch_size"),
        ({"seed": [1]}, OptionError, "seed"),
        ({"strategy": "unheard"}, DecodekitError, None),
    ):
        with pytest.raises(kind) as caught:
            asyncio.run(llm.agenerate(["a", "b"], **options))  # type: ignore[call-overload]
        assert at is None or caught.value.at == at
    with pytest.warns(UserWarning, match="2 equal prompts get 2 equal texts") as told:
        asyncio.run(llm.agenerate(["a", "a"], strategy="sample", max_new_tokens=2))
    assert told
    for name in ("chat", "achat"):
        with pytest.raises(AttributeError, match=r"generate\(messages\) and agenerate\(messages\)"):
            getattr(llm, name)
    with pytest.raises(AttributeError, match=r"an LLM has no 'other'$"):
        getattr(llm, "other")  # noqa: B009
