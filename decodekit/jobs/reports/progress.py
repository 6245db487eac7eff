"""The progress of a run on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from decodekit.errors import DecodekitError
from decodekit.jobs.documents.documents import counted
from decodekit.jobs.job_runner import Observer
from decodekit.terminal import one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_INTERVAL_S = 10.0
_NUM_SHOWN_FAILURES = 20


def make_observer() -> Observer:
    """The observer for this stderr."""
    return Bar() if sys.stderr.isatty() else Lines()


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Counting(Observer):
    """Counts what has ended. Failures are told as they happen, up to a number; after that they are only counted."""

    def __init__(self) -> None:
        self._num_ended = self._num_failed = 0

    def _ended(self, document_id: str, error: DecodekitError | None) -> str | None:
        """The line that tells a failure."""
        self._num_ended += 1
        if error is None:
            return None
        self._num_failed += 1
        more = "\nfurther failures are in failed.jsonl" if self._num_failed == _NUM_SHOWN_FAILURES else ""
        line = f"failed {one_line(document_id)}: {error.code} {one_line(error.cause)}{more}"
        return line if self._num_failed <= _NUM_SHOWN_FAILURES else None


class Bar(_Counting):
    """A progress bar with rate and remaining time."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = 0.0
        self._num_tokens = 0

    def start(self, num_documents: int, num_before: int) -> None:
        """Show the bar; documents of earlier runs count as done and not for the rate."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._started = time.monotonic()
        self._progress.start()
        self._task = self._progress.add_task("documents", total=num_documents, completed=num_before, rate="")

    def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
        """Move the bar; print a failure above it."""
        assert self._progress is not None
        assert self._task is not None
        line = self._ended(document_id, error)
        self._num_tokens += num_tokens
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = f"{self._num_ended / seconds:.1f}/s, {self._num_tokens / seconds:,.0f} tokens/s"
        if line:
            self._progress.console.print(line, markup=False, highlight=False)
        if self._num_failed:
            rate += f", {self._num_failed} failed"
        self._progress.update(self._task, advance=1, rate=rate)

    def finish(self) -> None:
        """Leave the bar as it stands."""
        if self._progress is not None:
            self._progress.stop()


class Lines(_Counting):
    """A line every ten seconds, and one per failure. At the end nothing is left to say: the summary follows."""

    def __init__(self) -> None:
        super().__init__()
        self._num_documents = self._num_before = 0
        self._started = self._told_at = 0.0

    def start(self, num_documents: int, num_before: int) -> None:
        """Say how much there is to do."""
        self._num_documents, self._num_before = num_documents, num_before
        self._started = self._told_at = time.monotonic()
        before = f", {num_before} of them from earlier runs" if num_before else ""
        _note(f"{counted(num_documents, 'document')}{before}")

    def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
        """Tell failures at once and progress from time to time."""
        if line := self._ended(document_id, error):
            _note(line)
        now = time.monotonic()
        if now - self._told_at >= _LINE_INTERVAL_S:
            self._told_at = now
            rate = self._num_ended / (now - self._started)
            ended = self._num_before + self._num_ended
            left = max(0, self._num_documents - ended)
            _note(f"{ended}/{counted(self._num_documents, 'document')}, {rate:.1f}/s, {left / rate:.0f} s left")
