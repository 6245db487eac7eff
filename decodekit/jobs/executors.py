"""The executors of a job: the protocol, and the one that decodes in this process, in batches that are refilled."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from decodekit.errors import DecodekitError

if TYPE_CHECKING:
    from decodekit.llm import LLM, Completion


@dataclass(frozen=True, slots=True)
class DocumentTask:
    """One document on its way to the model, as a text or messages, with a seed of its own."""

    id: str
    digest: str
    prompt: Any
    seed: int
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """The outcome of a task: a completion, which may carry an error, and the seconds from taking it up to its end."""

    task: DocumentTask
    completion: Completion
    seconds: float
    alternatives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def failed(task: DocumentTask, error: DecodekitError) -> Decoded:
    """The outcome of a task that has no text."""
    from decodekit.decoding.request.completion import Completion  # which loads torch
    from decodekit.decoding.request.stats import Stats

    return Decoded(task, Completion("", (), None, "error", error, None, Stats(0, 0, 0, None, 0.0)), 0.0)


class Executor(Protocol):
    """Gives an outcome for each document: by decoding it, or because another engine has."""

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """Take tasks lazily and yield each outcome as soon as it is known: every task once, in any order."""


@dataclass
class LocalExecutor:
    """Decodes in this process, by `options` of `LLM.as_completed`; `alternatives`: see `FieldAlternatives`.

    When the memory of the device runs out, documents wait for one another, and one that does not fit alone fails; see
    `decoding.loop.batch`.
    """

    llm: LLM
    batch_size: int | None
    options: Mapping[str, Any]
    alternatives: bool = False

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """As `Executor.run`."""
        in_flight: dict[int, tuple[DocumentTask, float]] = {}

        def taken() -> Iterator[DocumentTask]:
            for number, task in enumerate(tasks):
                in_flight[number] = (task, time.perf_counter())
                yield task

        for_prompts, for_seeds = itertools.tee(taken())  # whichever of the two is asked first takes the task
        prompts, seeds = (task.prompt for task in for_prompts), (task.seed for task in for_seeds)
        completions = self.llm.as_completed(prompts, seed=seeds, batch_size=self.batch_size, **self.options)
        found = None
        if self.alternatives:
            from decodekit.jobs.reports.alternatives import FieldAlternatives  # which most jobs do not need

            found = FieldAlternatives(self.llm, self.options)
        for number, completion in completions:
            task, started = in_flight.pop(number)
            seconds = time.perf_counter() - started
            yield Decoded(task, completion, seconds, {} if found is None else found.of(task.prompt, completion))
