"""The picture of quality against time: its points, error bars and front are the figures of the comparison."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import decodekit as dk
from decodekit.errors import OptionError, OutputError
from decodekit.evaluation import Comparison, load_task
from decodekit.evaluation.reports.comparison_page import points
from decodekit.evaluation.reports.svg_figures import front


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    strategies = ["greedy", "greedy+grammar", "sample:temperature=3.0"]
    task = load_task("extraction").first(1)
    return dk.compare(dk.LLM.load("tiny"), strategies, task, seeds=(0, 1, 2), max_new_tokens=8)


@pytest.mark.slow
def test_points_bars_and_front(comparison: Comparison, tmp_path: Path) -> None:
    figure = comparison.plot(tmp_path / "new" / "front.png")
    assert (tmp_path / "new" / "front.png").read_bytes().startswith(b"\x89PNG")
    [axes] = figure.axes
    placed = points(comparison, "extraction")
    drawn = {bars.get_label(): bars for bars in axes.containers}
    assert list(drawn) == [point.name for point in placed] == list(comparison.strategies)
    for point in placed:
        mark, _, (across, up) = drawn[point.name].lines
        assert mark.get_xydata().tolist() == [[point.cost.value, point.quality.value]]
        [[[low, _], [high, _]]] = across.get_segments()
        assert (low, high) == pytest.approx((point.cost.low, point.cost.high))
        [[[_, low], [_, high]]] = up.get_segments()
        assert (low, high) == pytest.approx((point.quality.low, point.quality.high))
    best = [[one.cost.value, one.quality.value] for one in front(placed, True)]
    assert axes.lines[0].get_xydata().tolist() == best
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(comparison.strategies)


def test_what_cannot_be_drawn(comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError):
        comparison.plot(tmp_path / "front.nosuchformat")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match="matplotlib is not installed") as raised:
        comparison.plot()
    assert raised.value.hint == "pip install 'decodekit[plots]'"
