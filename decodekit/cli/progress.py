"""How a run is shown on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from decodekit.cli.console import note
from decodekit.errors import DecodekitError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from decodekit.jobs.runner import Observer

_LINE_INTERVAL_S = 10.0
_NUM_SHOWN_FAILURES = 20


def make_observer() -> Observer:
    """The observer for this stderr."""
    return Bar() if sys.stderr.isatty() else Lines()


class _Failures:
    """Failures are told as they happen, up to a number; after that they are only counted."""

    def __init__(self) -> None:
        self.num_failed = 0

    def describe(self, document_id: str, error: DecodekitError) -> str | None:
        self.num_failed += 1
        if self.num_failed > _NUM_SHOWN_FAILURES:
            return None
        more = ", further failures are in failed.jsonl" if self.num_failed == _NUM_SHOWN_FAILURES else ""
        return f"failed {document_id}: {error.code} {error.cause}{more}"


class Bar:
    """A progress bar with rate and remaining time."""

    def __init__(self) -> None:
        self._failures = _Failures()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = 0.0
        self._num_tokens = 0
        self._num_ended = 0

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
        self._num_ended += 1
        self._num_tokens += num_tokens
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = f"{self._num_ended / seconds:.1f}/s, {self._num_tokens / seconds:,.0f} tokens/s"
        if error is not None and (line := self._failures.describe(document_id, error)):
            self._progress.console.print(line, markup=False, highlight=False)
        if self._failures.num_failed:
            rate += f", {self._failures.num_failed} failed"
        self._progress.update(self._task, advance=1, rate=rate)

    def finish(self) -> None:
        """Leave the bar as it stands."""
        if self._progress is not None:
            self._progress.stop()


class Lines:
    """A line every ten seconds, and one per failure."""

    def __init__(self) -> None:
        self._failures = _Failures()
        self._num_documents = self._num_ended = self._num_before = 0
        self._started = self._told_at = 0.0

    def start(self, num_documents: int, num_before: int) -> None:
        """Say how much there is to do."""
        self._num_documents, self._num_before = num_documents, num_before
        self._started = self._told_at = time.monotonic()
        before = f", {num_before} of them from earlier runs" if num_before else ""
        note(f"{num_documents} documents{before}")

    def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
        """Tell failures at once and progress from time to time."""
        self._num_ended += 1
        if error is not None and (line := self._failures.describe(document_id, error)):
            note(line)
        now = time.monotonic()
        if now - self._told_at >= _LINE_INTERVAL_S:
            self._told_at = now
            rate = self._num_ended / (now - self._started)
            ended = self._num_before + self._num_ended
            left = max(0, self._num_documents - ended)
            note(f"{ended}/{self._num_documents} documents, {rate:.1f}/s, {left / rate:.0f} s left")

    def finish(self) -> None:
        """Nothing is left to say: the summary follows."""
