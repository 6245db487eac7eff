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
    from rich.progress import Progress

_LINE_INTERVAL_S = 10.0
_NUM_SHOWN_FAILURES = 20


class JobProgress(Observer):
    """A bar with rate and remaining time on a terminal, elsewhere a line every ten seconds.

    Failures are told as they happen, up to a number; after that they are only counted. At the end nothing is left to
    say: the summary follows.
    """

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._num_documents = self._num_before = self._num_ended = self._num_failed = self._num_tokens = 0
        self._started = self._told_at = 0.0

    def start(self, num_documents: int, num_before: int) -> None:
        """Show the bar, or say how much there is to do; documents of earlier runs do not count for the rate."""
        self._num_documents, self._num_before = num_documents, num_before
        self._started = self._told_at = time.monotonic()
        if not sys.stderr.isatty():
            before = f", {num_before} of them from earlier runs" if num_before else ""
            print(f"{counted(num_documents, 'document')}{before}", file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bar.start()
        self._bar.add_task("documents", total=num_documents, completed=num_before, rate="")

    def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
        """Tell failures at once; move the bar, or tell progress from time to time."""
        self._num_ended += 1
        self._num_tokens += num_tokens
        if error is not None:
            self._num_failed += 1
            self._tell_failure(document_id, error)
        now = time.monotonic()
        seconds = max(now - self._started, 1e-9)
        rate = self._num_ended / seconds
        if self._bar is not None:
            told = f"{rate:.1f}/s, {self._num_tokens / seconds:,.0f} tokens/s"
            told += f", {self._num_failed} failed" if self._num_failed else ""
            self._bar.update(self._bar.task_ids[0], advance=1, rate=told)
        elif now - self._told_at >= _LINE_INTERVAL_S:
            self._told_at = now
            ended, documents = self._num_before + self._num_ended, counted(self._num_documents, "document")
            left = max(0, self._num_documents - ended)
            print(f"{ended}/{documents}, {rate:.1f}/s, {left / rate:.0f} s left", file=sys.stderr, flush=True)

    def _tell_failure(self, document_id: str, error: DecodekitError) -> None:
        if self._num_failed > _NUM_SHOWN_FAILURES:
            return
        line = f"failed {one_line(document_id)}: {error.code} {one_line(error.cause)}"
        if self._num_failed == _NUM_SHOWN_FAILURES:
            line += "\nfurther failures are in failed.jsonl"
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(line, markup=False, highlight=False)

    def finish(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()
