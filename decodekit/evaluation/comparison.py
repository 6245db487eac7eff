"""The result of `compare`, with its summaries: as a table, as JSON lines and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodekit.evaluation.reports.comparison_page import report_html, report_piece
from decodekit.evaluation.reports.comparison_tables import table
from decodekit.evaluation.reports.summary import Results, plain_mean
from decodekit.html_pages import page_bytes
from decodekit.records.ledger import encode_line, write_file


@dataclass(frozen=True)
class Comparison(Results):
    """The result of `compare`; its fields are those of `summary.Results`."""

    def table(self) -> str:
        """Quality beside speed, as plain text: two tables for each task, and the notes."""
        return table(self)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The page that a notebook shows: pictures and tables of `to_html`, without the texts."""
        return report_piece(self)

    def table_rows(self) -> list[dict[str, Any]]:
        """A row for each text, for `to_pandas`.

        Columns: ``task``, ``strategy``, ``seed`` (of the comparison), ``example``, ``prompt``, ``example_seed`` (of the
        text's own noise), ``text``, ``finish_reason``, ``error``, ``num_tokens``, ``logprob`` (where it was recorded),
        ``s_per_token`` and ``ttft_s`` (means over the repeats), and the metrics.
        """
        prompts = {(task.name, one.id): one.prompt for task in self.tasks for one in task.examples}
        return [
            {
                "task": row.task,
                "strategy": row.strategy,
                "seed": row.seed,
                "example": one.example,
                "prompt": prompts[row.task, one.example],
                "example_seed": one.seed,
                "text": one.text,
                "finish_reason": one.repeats[0].finish_reason,
                "error": one.error,
                "num_tokens": len(one.repeats[0].token_ids),
                "logprob": one.repeats[0].logprob,
                "s_per_token": plain_mean(repeat.s_per_token for repeat in one.repeats),
                "ttft_s": plain_mean(repeat.stats.ttft_s for repeat in one.repeats if repeat.stats is not None),
                **one.quality,
            }
            for row in self.rows
            for one in row.outcomes
        ]

    def to_jsonl(self, path: str | Path) -> None:
        """Write `records`, one on a line.

        Raises:
            OutputError: the file cannot be written.
        """
        write_file(Path(path), b"".join(map(encode_line, self.records())))

    def to_html(self, path: str | Path) -> None:
        """Write one page without scripts: tables, the front of quality against time, acceptance, passes saved.

        Raises:
            OutputError: the file cannot be written.
        """
        write_file(Path(path), page_bytes(report_html(self)))

    def plot(self, path: str | Path | None = None) -> Any:
        """Quality against time with error bars and the Pareto front, by matplotlib (extra `plots`); see `plots.plot`.

        Args:
            path: where the picture goes, as png, pdf or svg; None only draws it.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            OptionError: matplotlib is not installed, or there is nothing to draw.
            OutputError: the file cannot be written.
        """
        from decodekit.evaluation.reports.plots import plot

        return plot(self, path)
