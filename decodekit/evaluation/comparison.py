"""What `compare` gives: its results with their summaries, as a table, as JSON lines and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodekit.evaluation.files import write_bytes
from decodekit.evaluation.report import report_html
from decodekit.evaluation.summary import Results
from decodekit.evaluation.tables import table
from decodekit.pages import page_bytes
from decodekit.records.ledger import encode_line


@dataclass(frozen=True)
class Comparison(Results):
    """What `compare` found; its fields are those of `summary.Results`."""

    def table(self) -> str:
        """Quality beside speed, as plain text: two tables for each task, and the notes."""
        return table(self)

    def __str__(self) -> str:
        return self.table()

    def to_jsonl(self, path: str | Path) -> None:
        """Write `records`, one on a line.

        Raises:
            OutputError: the file cannot be written.
        """
        write_bytes(Path(path), b"".join(map(encode_line, self.records())))

    def to_html(self, path: str | Path) -> None:
        """Write one page without scripts: tables, the front of quality against time, acceptance, passes saved.

        Raises:
            OutputError: the file cannot be written.
        """
        write_bytes(Path(path), page_bytes(report_html(self)))

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
        from decodekit.evaluation.plots import plot

        return plot(self, path)
