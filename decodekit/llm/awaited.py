"""Texts that are awaited: requests of an engine that all calls of an `LLM` share.

    first, second = await asyncio.gather(llm.agenerate("Once"), llm.agenerate("Twice"))

A thread checks the options, compiles the constraint and divides the prompt; the engine's thread decodes what all calls
ask for, together; and the task waits. Where the task is cancelled the request is, too, and its rows are free one step
later: also if it was still on its way to the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from decodekit.decoding.request.completion import Completion
from decodekit.errors import DecodekitError
from decodekit.llm.engine import Engine
from decodekit.llm.handle import Handle
from decodekit.llm.retries import Attempt, is_refused, options_again, rename

_LEAST_SECONDS = 1e-3


async def awaited(
    engine: Callable[[], Engine],
    attempts: Iterable[Attempt],
    options: Mapping[str, Any],
    deadline: float | None,
    tokenizer: Any,
) -> list[Completion]:
    """The completions of prompts; each is tried again as often as the options say.

    Args:
        engine: gives the engine; called in a thread.
        attempts: the first one of each prompt.
        options: of `LLM.generate`, as they were given.
        deadline: when they end at the latest, a value of `time.monotonic`; None without.
        tokenizer: of the model.

    Raises:
        DecodekitError: the engine does not take a request; or the error of a completion, with ``on_error="raise"``.
    """
    tasks = [asyncio.ensure_future(_awaited(engine, one, options, deadline, tokenizer)) for one in attempts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _awaited(
    engine: Callable[[], Engine], one: Attempt, options: Mapping[str, Any], deadline: float | None, tokenizer: Any
) -> Completion:
    """The completion of a prompt, after all its attempts."""
    options = dict(options)
    max_retries, on_error = options.pop("max_retries", 0), options.pop("on_error", "return")
    while True:
        handle = await _submitted(engine, one, options, deadline)
        try:
            completion = await handle
        finally:
            handle.cancel()  # one that has ended stays as it is
        rename(completion, handle.index, one.index)
        if not is_refused(completion) or len(one.before) == max_retries:
            break
        one = await asyncio.to_thread(one.again, completion, tokenizer)
    if completion.error is not None and on_error == "raise":
        raise completion.error
    return one.finished(completion)


async def _submitted(
    engine: Callable[[], Engine], one: Attempt, options: Mapping[str, Any], deadline: float | None
) -> Handle:
    """The handle of an attempt; of a task that is cancelled before, the request is cancelled when it comes."""
    if isinstance(one.seed, DecodekitError):
        raise one.seed
    own: dict[str, Any] = {**options, "timeout": None}
    if own.get("seed") is not None:
        own["seed"] = one.seed
    if one.before and own.get("chat_template_kwargs"):
        own["chat_template_kwargs"] = options_again(own["chat_template_kwargs"])

    def submit() -> Handle:
        if deadline is not None:
            own["timeout"] = max(_LEAST_SECONDS, deadline - time.monotonic())
        return engine().submit(one.prompt, **own)

    submitted = asyncio.ensure_future(asyncio.to_thread(submit))
    try:
        return await asyncio.shield(submitted)
    except asyncio.CancelledError:
        submitted.add_done_callback(_let_go)
        raise


def _let_go(submitted: asyncio.Future[Handle]) -> None:
    """Cancel the request of a task that has gone."""
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()
