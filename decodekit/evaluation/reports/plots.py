"""The front of quality against time as a picture for papers, by matplotlib (extra `plots`).

A panel for each task; the strategies stand in a list beside the panels, each with a colour and a mark, so that no name
stands on another one or on a point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decodekit.errors import OptionError, OutputError
from decodekit.evaluation.intervals import IntervalEstimate
from decodekit.evaluation.measures.measures import METRICS
from decodekit.evaluation.reports.comparison_page import points
from decodekit.evaluation.reports.summary import Results
from decodekit.evaluation.reports.svg_figures import Point, front

_MARKS = "osD^vP*X<>"


def require_matplotlib() -> None:
    """Raise the OptionError that names the extra unless matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        cause = "the package matplotlib is not installed"
        raise OptionError(cause, at="plot", hint="pip install 'decodekit[plots]'") from error


def plot(comparison: Results, path: str | Path | None = None) -> Any:
    """Quality against milliseconds per token, with intervals and the Pareto front dashed; see `Comparison.plot`."""
    require_matplotlib()
    from matplotlib.figure import Figure

    placed = {task.name: points(comparison, task.name) for task in comparison.tasks}
    placed = {task: found for task, found in placed.items() if found}
    if not placed:
        raise OptionError("no strategy has both a quality and a time, so there is nothing to draw", at="plot")
    numbers = {name: number for number, name in enumerate(comparison.strategies)}
    figure = Figure(figsize=(4.2 * len(placed) + 2.6, 3.6), layout="constrained")
    for axes, (task, found) in zip(figure.subplots(1, len(placed), squeeze=False)[0], placed.items(), strict=True):
        _panel(axes, task, found, comparison.metrics[task][0], numbers)
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False, fontsize="small")
    if path is not None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=200)
        except (OSError, ValueError) as error:  # ValueError: an ending that is no format
            raise OutputError(f"the picture cannot be written: {error}", at=str(path)) from error
    return figure


def _panel(axes: Any, task: str, found: list[Point], metric: str, numbers: dict[str, int]) -> None:
    is_higher_better = METRICS[metric].is_higher_better
    if is_higher_better is not None:
        best = front(found, is_higher_better)
        times, values = ([getattr(one, side).value for one in best] for side in ("cost", "quality"))
        axes.step(times, values, where="post", linestyle="--", color="0.6", zorder=1)
    for point in found:
        number = numbers[point.name]
        axes.errorbar(
            point.cost.value,
            point.quality.value,
            xerr=_arms(point.cost),
            yerr=_arms(point.quality),
            fmt=_MARKS[number % len(_MARKS)],
            color=f"C{number % 10}",
            capsize=2,
            label=point.name,
        )
    axes.set(title=task, xlabel="ms per token", ylabel=metric)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def _arms(estimate: IntervalEstimate) -> list[list[float]] | None:
    """The lengths of an error bar down and up, as matplotlib takes them; None without an interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return [[estimate.value - estimate.low], [estimate.high - estimate.value]]
