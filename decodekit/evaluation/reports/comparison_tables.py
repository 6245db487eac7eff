"""A comparison as tables: the cells, for the terminal and for the page alike, and the plain text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from decodekit.evaluation.intervals import IntervalEstimate
from decodekit.evaluation.reports.summary import Results, Summary


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: names of columns, the first one that of the rows, and cells, empty where there is nothing to say."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grids(comparison: Results, task: str) -> Iterator[Grid]:
    """The tables of one task: quality, times, and what the times come from. Columns without a figure are left out."""
    summaries = comparison.summaries_of(task)
    metrics, base = comparison.metrics[task], comparison.baseline
    yield _grid(
        f"{task}: quality, mean ± 95 % interval over {len(comparison.settings['seeds'])} seeds",
        [
            {
                "strategy": one.strategy,
                "failed": f"{one.num_failed}/{one.num_texts}",
                **{name: shown(one.quality.get(name)) for name in metrics},
                **{f"{name} - {base}": _signed(one.difference.get(name)) for name in metrics[:1]},
                "same text as": _same_text(one),
            }
            for one in summaries
        ],
    )
    yield _grid(
        f"{task}: time",
        [
            {
                "strategy": one.strategy,
                "ms/token": shown(one.speed.get("s_per_token"), 1e3, 2),
                f"times faster than {base}": shown(one.times_faster, 1, 2),
                "TTFT ms": shown(one.speed.get("ttft_s"), 1e3, 2),
                "TPOT ms": shown(one.speed.get("tpot_s"), 1e3, 2),
                **{column: _value(one, name, 1e3, 2) for column, name in _LATENCIES.items()},
            }
            for one in summaries
        ],
    )
    yield _grid(
        f"{task}: rates and costs",
        [
            {
                "strategy": one.strategy,
                "prefill tokens/s": _value(one, "prefill_tokens_per_s", 1, 0),
                "decode tokens/s": _value(one, "decode_tokens_per_s", 1, 0),
                "output tokens/s": _value(one, "output_tokens_per_s", 1, 0),
                "requests/s": _value(one, "requests_per_s", 1, 2),
                "forwards/token": _value(one, "forwards_per_token", 1, 3),
                "forwards saved": "" if one.forwards_saved is None else f"{one.forwards_saved:.1%}",
                "acceptance length": _value(one, "mean_acceptance_length", 1, 2),
                "mask µs/token": _value(one, "mask_s_per_token", 1e6, 1),
                "KV MiB": _value(one, "kv_bytes", 2**-20, 2),
                "CPU cores": _value(one, "cpu_cores", 1, 2),
                "GPU busy %": _value(one, "gpu_utilisation", 100, 0),
            }
            for one in summaries
        ],
    )


_LATENCIES = {
    "p50": "token_p50_s", "p95": "token_p95_s", "p99": "token_p99_s",
    "ITL ms": "itl_mean_s", "ITL p50": "itl_p50_s", "p95 ": "itl_p95_s", "p99 ": "itl_p99_s",
}  # fmt: skip


def shown(estimate: IntervalEstimate | None, scale: float = 1.0, digits: int = 3) -> str:
    """A figure with its interval; nothing where there is none."""
    return "" if estimate is None else estimate.text(scale, digits)


def _same_text(summary: Summary) -> str:
    """``greedy: 36/36``, or nothing if no other strategy should write the same."""
    same = summary.same_text
    return "" if same is None else f"{same.strategy}: {same.num_same}/{same.num_texts}"


def failures(comparison: Results) -> Iterator[str]:
    """The errors of each strategy and task, the most frequent first."""
    for one in comparison.summaries:
        for error, count in sorted(one.errors.items(), key=lambda item: -item[1]):
            yield f"{one.task}, {one.strategy}: {count} times {error}"


def table(comparison: Results) -> str:
    """All tables, the errors and the notes, as plain text."""
    tables = ["\n".join(_lines(grid)) + "\n" for task in comparison.tasks for grid in grids(comparison, task.name)]
    lines = [f"failed: {line}" for line in failures(comparison)] + [f"note: {note}" for note in comparison.notes]
    return "\n".join([*tables, *lines]).strip("\n") + "\n"


def _lines(grid: Grid) -> Iterator[str]:
    """A table as wide as its cells, whatever the terminal; the rule is ASCII, so tools that count bytes keep it."""
    heading = tuple(name.strip() for name in grid.heading)
    widths = [max(map(len, column)) for column in zip(heading, *grid.rows, strict=True)]
    yield f"{grid.title}\n"
    for number, row in enumerate((heading, *grid.rows)):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield ("  " + "   ".join(cells)).rstrip()
        if not number:
            yield "  " + "-" * (sum(widths) + 3 * len(widths) - 3)


def _grid(title: str, rows: list[dict[str, str]]) -> Grid:
    """The table of rows of cells by the names of their columns."""
    kept = [name for name in rows[0] if any(row[name] for row in rows)]
    return Grid(title, tuple(kept), tuple(tuple(row[name] for name in kept) for row in rows))


def _value(summary: Summary, name: str, scale: float, digits: int) -> str:
    """The figure without its interval."""
    estimate = summary.speed.get(name)
    return "" if estimate is None else f"{estimate.value * scale:,.{digits}f}"


def _signed(estimate: IntervalEstimate | None) -> str:
    if estimate is None:
        return ""
    return estimate.text() if estimate.value < 0 else f"+{estimate.text()}"
