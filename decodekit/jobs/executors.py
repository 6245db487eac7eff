"""Where the documents of a job are decoded: here, in this process, in batches that are refilled as rows become free."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from decodekit.errors import DecodekitError, DecodingError
from decodekit.jobs.documents import Document

if TYPE_CHECKING:
    from decodekit.llm import Completion, GenerateKeywords

DEFAULT_BATCH_SIZE = {"cpu": 8}
ACCELERATOR_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class DocumentTask:
    """One document on its way to the model.

    Attributes:
        document: the document.
        prompt: what the model reads: a text, or messages.
        seed: of this document alone.
    """

    document: Document
    prompt: Any
    seed: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """What came back for a task: a completion, or the error that left none.

    Attributes:
        task: the task.
        completion: None if there is none.
        error: None if there is a completion (which may carry an error of its own).
        seconds: from taking the task up to its end.
    """

    task: DocumentTask
    completion: Completion | None
    error: DecodekitError | None
    seconds: float


class Executor(Protocol):
    """Runs tasks. Every task taken from the iterable comes back exactly once, in any order."""

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """Take tasks lazily and yield each outcome as soon as it is known."""
        ...


class CompletesPrompts(Protocol):
    """The part of `decodekit.LLM` that a job needs."""

    def as_completed(
        self, prompts: Iterable[Any], **options: Unpack[GenerateKeywords]
    ) -> Iterator[tuple[int, Completion]]:
        """Complete prompts, taken lazily; (number of the prompt, completion) in order of completion."""
        ...


class LocalExecutor:
    """Decodes in this process.

    When the memory of the device runs out, the documents in flight are taken up again with half the batch.

    Args:
        llm: a `decodekit.LLM`.
        batch_size: documents decoded at a time.
        options: for `LLM.as_completed`: constraint, strategy, max_new_tokens, ...

    Attributes:
        batch_size: the present one; smaller than at first after memory ran out.
    """

    def __init__(self, llm: CompletesPrompts, *, batch_size: int, options: Mapping[str, Any]) -> None:
        self._llm = llm
        self._options = dict(options)
        self.batch_size = batch_size

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """Decode all tasks; see `Executor.run`."""
        waiting = iter(tasks)
        while True:
            in_flight: dict[int, tuple[DocumentTask, float]] = {}
            try:
                yield from self._run_batch(waiting, in_flight)
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            again = [task for task, _ in in_flight.values()]
            _release_memory()
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
        completions = self._llm.as_completed(prompts, seed=seeds, batch_size=self.batch_size, **self._options)
        for number, completion in completions:
            task, started = in_flight.pop(number)
            yield Decoded(task, completion, None, time.perf_counter() - started)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device, or the host, has no memory left."""
    # By name: `torch.OutOfMemoryError` without loading torch here. The CPU allocator raises a bare RuntimeError.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _release_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def automatic_batch_size(device_type: str) -> int:
    """The batch size for ``--batch-size auto``.

    On a CPU the cores are busy with few rows, and a small batch shows its first results sooner. An accelerator takes
    four times as many; if its memory does not, the batch is halved until it fits.
    """
    return DEFAULT_BATCH_SIZE.get(device_type, ACCELERATOR_BATCH_SIZE)
