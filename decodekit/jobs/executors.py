"""Where the documents of a job are decoded: here, in this process, in batches that are refilled as rows become free."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from decodekit.errors import DecodekitError, DecodingError

if TYPE_CHECKING:
    from decodekit.llm import LLM, Completion


@dataclass(frozen=True, slots=True)
class DocumentTask:
    """One document on its way to the model, as a text or messages, with a seed of its own."""

    id: str
    digest: str
    prompt: Any
    seed: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """What came back for a task: a completion, which may carry an error of its own, or the error that left none.

    Attributes:
        seconds: from taking the task up to its end.
    """

    task: DocumentTask
    completion: Completion | None
    error: DecodekitError | None
    seconds: float


class Executor(Protocol):
    """Gives an outcome for each document: by decoding it, or because another engine has."""

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """Take tasks lazily and yield each outcome as soon as it is known: every task once, in any order."""


@dataclass
class LocalExecutor:
    """Decodes in this process.

    When the memory of the device runs out, the documents in flight are taken up again with half the batch.

    Args:
        llm: the model.
        batch_size: documents decoded at a time; smaller than at first after memory ran out.
        options: for `LLM.as_completed`: constraint, strategy, max_new_tokens, ...
    """

    llm: LLM
    batch_size: int
    options: Mapping[str, Any]

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """Take tasks lazily and yield each outcome as soon as it is known: every task once, in any order."""
        waiting = iter(tasks)
        while True:
            in_flight: dict[int, tuple[DocumentTask, float]] = {}
            try:
                yield from self._run_batch(waiting, in_flight)
                return
            except Exception as error:
                from decodekit.generation.faults import is_out_of_memory  # by now the loop has loaded torch

                if not is_out_of_memory(error):
                    raise
            again = [task for task, _ in in_flight.values()]
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_available():
                with contextlib.suppress(RuntimeError):
                    torch.cuda.empty_cache()
            if self.batch_size == 1:
                fault = DecodingError(
                    "the device ran out of memory with this document alone.",
                    hint="a shorter document, a smaller max_new_tokens, or a smaller dtype.",
                    code="DK603",
                )
                yield Decoded(again[0], None, fault, time.perf_counter() - in_flight[min(in_flight)][1])
                again = again[1:]
            self.batch_size = max(1, self.batch_size // 2)
            waiting = itertools.chain(again, waiting)

    def _run_batch(
        self, tasks: Iterator[DocumentTask], in_flight: dict[int, tuple[DocumentTask, float]]
    ) -> Iterator[Decoded]:
        def taken() -> Iterator[DocumentTask]:
            for number, task in enumerate(tasks):
                in_flight[number] = (task, time.perf_counter())
                yield task

        for_prompts, for_seeds = itertools.tee(taken())  # whichever of the two is asked first takes the task
        prompts, seeds = (task.prompt for task in for_prompts), (task.seed for task in for_seeds)
        completions = self.llm.as_completed(prompts, seed=seeds, batch_size=self.batch_size, **self.options)
        for number, completion in completions:
            task, started = in_flight.pop(number)
            yield Decoded(task, completion, None, time.perf_counter() - started)


def automatic_batch_size(device_type: str) -> int:
    """The batch size for ``--batch-size auto``.

    On a CPU the cores are busy with few rows, and a small batch shows its first results sooner. An accelerator takes
    four times as many; if its memory does not, the batch is halved until it fits.
    """
    return 8 if device_type == "cpu" else 32
