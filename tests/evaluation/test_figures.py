from __future__ import annotations

from itertools import pairwise
from xml.dom import minidom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodekit.evaluation.intervals import IntervalEstimate
from decodekit.evaluation.reports.svg_figures import Point, accepted_shares, front, pareto, saved
from decodekit.html_pages import label_width, shortened
from tests.pictures import cut_labels, font, width_of


def point(name: str, cost: float, quality: float, spread: float | None = None) -> Point:
    def estimate(value: float) -> IntervalEstimate:
        return IntervalEstimate(
            value, None if spread is None else value - spread, None if spread is None else value + spread, 3
        )

    return Point(name, estimate(cost), estimate(quality))


def test_the_front_by_hand() -> None:
    points = [point("slow, good", 9, 0.9), point("beaten", 8, 0.5), point("fast", 1, 0.6), point("middle", 5, 0.7)]
    assert [one.name for one in front(points, True)] == ["fast", "middle", "slow, good"]
    assert [one.name for one in front(points, False)] == ["fast", "beaten"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_who_is_not_on_the_front_is_beaten_by_somebody_who_is(values: list[tuple[int, int]]) -> None:
    points = [point(str(number), cost, quality) for number, (cost, quality) in enumerate(values)]
    best = front(points, True)
    places = [(one.cost.value, one.quality.value) for one in best]
    assert best
    for cost, quality in values:
        if (cost, quality) in places:
            assert not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in values)
        else:
            assert any(c <= cost and q >= quality for c, q in places)


def test_a_picture_has_a_point_for_each_with_its_error_bars() -> None:
    points = [point("a & b", 1.0, 0.5, 0.1), point("c", 2.0, 0.7, 0.1), point("alone", 3.0, 0.1)]
    picture = pareto(points, cost="ms", quality="f1", is_higher_better=True)
    root = minidom.parseString(picture).documentElement
    assert root is not None
    drawn = root.getElementsByTagName("g")
    groups = [group for group in drawn if group.getAttribute("class") == "point"]
    spreads = [group for group in drawn if group.getAttribute("class") == "spread"]
    assert [len(group.getElementsByTagName("line")) for group in spreads] == [6, 6, 0]  # a bar and two caps each way
    assert [group.getElementsByTagName("text")[0].firstChild.data for group in groups] == ["1", "2", "3"]  # type: ignore[union-attr]
    [line] = root.getElementsByTagName("polyline")
    corners = [tuple(map(float, corner.split(","))) for corner in line.getAttribute("points").split()]
    assert len(corners) == 2 + 2 * 2  # the bottom, two points with a step to each, the right end
    circles = [circle for group in groups for circle in group.getElementsByTagName("circle")]
    across = [float(circle.getAttribute("cx")) for circle in circles]
    up = [float(circle.getAttribute("cy")) for circle in circles]
    assert across == sorted(across)
    assert set(zip(across[:2], up[:2], strict=True)) <= set(corners)
    assert up[2] > up[0] > up[1]  # the better, the higher on the page
    assert all(0 < x < 560 for x in across) and all(0 < y < 320 for y in up)


def test_numbers_of_near_points_stand_above_each_other() -> None:
    picture = pareto([point(str(i), 1.0, 0.5) for i in range(4)], cost="ms", quality="f1", is_higher_better=True)
    root = minidom.parseString(picture).documentElement
    assert root is not None
    groups = [group for group in root.getElementsByTagName("g") if group.getAttribute("class") == "point"]
    heights = sorted(float(group.getElementsByTagName("text")[0].getAttribute("y")) for group in groups)
    assert [round(high - low) for low, high in pairwise(heights)] == [12, 12, 12]


def test_times_below_zero_are_not_drawn() -> None:
    picture = pareto([point("a", 1.0, 0.5, 3.0)], cost="ms", quality="f1", is_higher_better=True)
    root = minidom.parseString(picture).documentElement
    assert root is not None
    (own,) = [group for group in root.getElementsByTagName("g") if group.getAttribute("class") == "spread"]
    axes = [line for line in root.getElementsByTagName("line") if line.getAttribute("class") == "axis"]
    starts = [{float(line.getAttribute("x1")) for line in lines} for lines in (own.getElementsByTagName("line"), axes)]
    assert min(starts[0]) == min(starts[1])


@pytest.mark.parametrize("values", [[(0.0, 0.0)], [(1.0, 1.0), (1.0, 1.0)], [(1e-9, 1e9)], [(5.0, -2.0), (0.1, 3.0)]])
def test_pictures_of_strange_values(values: list[tuple[float, float]]) -> None:
    points = [point("x", cost, quality, 0.5) for cost, quality in values]
    picture = pareto(points, cost="ms", quality="f1", is_higher_better=None)
    minidom.parseString(picture)
    assert "nan" not in picture and "inf" not in picture and "polyline" not in picture
    assert "nothing to show" in pareto([], cost="ms", quality="f1", is_higher_better=True)


def test_bars_are_as_long_as_their_shares() -> None:
    root = minidom.parseString(accepted_shares([1.0, 0.5, 0.0])).documentElement
    assert root is not None
    heights = [float(bar.getAttribute("height")) for bar in root.getElementsByTagName("rect")]
    assert heights[1] == pytest.approx(heights[0] / 2) and heights[2] == 0
    root = minidom.parseString(saved([("a", 0.5), ("b<", 0.25), ("worse", -0.1)])).documentElement
    assert root is not None
    bars = root.getElementsByTagName("rect")
    widths = [float(bar.getAttribute("width")) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2) and widths[2] == pytest.approx(widths[0] / 5, abs=0.2)
    assert float(bars[2].getAttribute("x")) + widths[2] == pytest.approx(float(bars[0].getAttribute("x")), abs=0.2)
    minidom.parseString(saved([("nothing", 0.0)]))


# --- labels are whole -------------------------------------------------------------------------------------------------

NAMES = [
    "greedy",
    "a" * 60,
    "W" * 40,
    "sample:temperature=0.7,top_p=0.95+grammar+prompt-lookup",
    "贪婪解码" * 12,
    "i" * 90,
]


def test_labels_are_no_wider_than_said() -> None:
    measured = font()
    texts = [
        *NAMES,
        "100 %",
        "-1,234,567.891 tokens",
        "Total (EUR) @ 50%",
        "ÄÖÜ ß № ∑ Ж",
        "".join(map(chr, range(33, 383))),
    ]
    for text in [*texts, *texts[-1]]:
        assert width_of(text, measured) <= label_width(text) <= 2 * width_of(text, measured) + 11, text
        for width in (30.0, 120.0, 240.0):
            kept = shortened(text, width)
            assert label_width(kept) <= width and (kept == text or kept.endswith("…"))
            assert kept.rstrip("…") == text[: len(kept.rstrip("…"))]


@pytest.mark.parametrize("size", [1, 3, 9, 10, 11, 40, 100])
def test_labels_of_shares_are_whole(size: int) -> None:
    picture = accepted_shares([1.0] * size)
    assert ">100 %<" in picture and cut_labels(picture) == []
    assert cut_labels(picture.replace('x="', 'x="-')) != []  # a label beyond the edge is noticed
    assert any("'100 %'" in label for label in cut_labels(picture.replace('viewBox="0 ', 'viewBox="8 ')))


@pytest.mark.parametrize("share", [1.0, 0.0, 0.123, -0.5, -12.0, -1234.5])
def test_labels_of_what_is_saved_are_whole(share: float) -> None:
    assert cut_labels(saved([(name, value) for name in NAMES for value in (share, 0.5)])) == []


@pytest.mark.parametrize("cost", [1e-9, 0.001, 12.5, 1234.5, 1e7, 1e12])
@pytest.mark.parametrize("quality", [0.0, 1e-6, 0.5, 99.9, -12345.6, 1e8])
def test_labels_of_quality_against_time_are_whole(cost: float, quality: float) -> None:
    together = [point(str(n), cost, quality) for n in range(25)]  # 25 numbers above each other
    apart = [point(str(n), cost * (n + 1) / 12, quality * (n + 1), abs(quality) / 3) for n in range(12)]
    for points in (together, apart, together[:1]):
        assert cut_labels(pareto(points, cost="ms per token", quality="exact-match", is_higher_better=True)) == []
