"""Inline SVG pictures of a comparison: the front of quality against time, acceptance of drafts, passes saved.

Colours and sizes stand in the elements, so that a picture survives where style sheets do not reach into SVG; the page's
style sheet overrides them for dark screens. Points carry numbers, which a list beside the picture explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from decodekit.evaluation.intervals import IntervalEstimate
from decodekit.html_pages import BAR, FAULT, INK, LABEL_SIZE, LINE, SOFT, label_width, round_step, shortened

_WIDTH, _HEIGHT = 560, 320
_TOP, _BOTTOM = 14, 42
CAP = 4
"""Half the length of the lines that end an error bar."""


@dataclass(frozen=True, slots=True)
class Point:
    """A strategy in the picture of quality against time: how good its texts are, and how long a token takes."""

    name: str
    cost: IntervalEstimate
    quality: IntervalEstimate

    def told(self, cost: str, quality: str) -> str:
        """Its figures, under the names of the axes."""
        return f"{quality} {self.quality.text()}, {cost} {self.cost.text()}"


def front(points: Sequence[Point], is_higher_better: bool) -> list[Point]:
    """The Pareto front by cost: points that no other one beats, as fast and as good and better in one of the two."""
    sign = 1 if is_higher_better else -1

    def beats(one: Point, other: Point) -> bool:
        faster, better = other.cost.value - one.cost.value, sign * (one.quality.value - other.quality.value)
        return faster >= 0 and better >= 0 and (faster > 0 or better > 0)

    best = [point for point in points if not any(beats(other, point) for other in points)]
    return sorted(best, key=lambda point: point.cost.value)


def point_list(points: Sequence[Point], *, cost: str, quality: str, anchor: str) -> str:
    """The legend of `pareto` as HTML: what each number stands for, with its figures; a link to its point."""
    items = [
        f'<li><a id="{anchor}n{number}" href="#{anchor}p{number}">{escape(point.name)}</a>'
        f"<br>{escape(point.told(cost, quality))}</li>"
        for number, point in enumerate(points, 1)
    ]
    return f"<ol>{''.join(items)}</ol>"


def pareto(points: Sequence[Point], *, cost: str, quality: str, is_higher_better: bool | None, anchor: str = "") -> str:
    """Quality against cost, the names of the axes, as SVG, with error bars and, if one way is better, the front.

    Points have numbers from 1 on; `anchor` begins their names as ends of links, as in `point_list`.
    """
    if not points:
        return '<p class="none">nothing to show</p>'
    times = [max(0.0, end) for point in points for end in _ends(point.cost)]
    up = _Axis.over([end for point in points for end in _ends(point.quality)], _HEIGHT - _BOTTOM, _TOP)
    left = 24 + max(label_width(_marked(mark)) for mark in up.marks)
    across = _Axis.over([0.0, *times], left, _WIDTH)
    right = max(label_width(_marked(across.marks[-1])) / 2, 8 + label_width(str(len(points))))
    across = replace(across, end=_WIDTH - right)
    parts = [_frame(across, up, cost, quality)]
    if is_higher_better is not None:
        stairs = _stairs(front(points, is_higher_better), across, up, is_higher_better)
        parts.append(f'<polyline class="front" points="{stairs}" fill="none" stroke="{BAR}" stroke-dasharray="5 4"/>')
    parts += [_error_bars(point, across, up) for point in points]
    places = [(across.at(point.cost.value), up.at(point.quality.value)) for point in points]
    lifts = _lifts(places)
    for number, (point, (x, y), lift) in enumerate(zip(points, places, lifts, strict=True), 1):
        told = f"{point.name}: {point.told(cost, quality)}"
        parts.append(
            f'<a id="{anchor}p{number}" href="#{anchor}n{number}">'
            f'<g class="point"><circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{BAR}"><title>{escape(told)}</title>'
            f'</circle><text x="{x + 6:.1f}" y="{y - _above(lift):.1f}" font-size="11" fill="{INK}">{number}</text></g>'
            "</a>"
        )
    label = f"{quality} against {cost}"
    highest = min(y - _above(lift) - LABEL_SIZE for (_, y), lift in zip(places, lifts, strict=True))
    top = min(0, math.floor(highest))  # many points in one place have their numbers above each other
    box = f"0 {top} {_WIDTH} {_HEIGHT - top}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def accepted_shares(values: Sequence[float]) -> str:
    """The shares of drafts accepted by position, counted from 1, as upright bars; at least one."""
    width, height, base = 420, 150, 128
    left = round(label_width("100 %")) + 7
    bar = min(40.0, (width - left - 6) / len(values))
    parts = [
        f'<rect x="{left + number * bar + 1:.1f}" y="{base - value * (base - 14):.1f}" '
        f'width="{max(bar - 2, 1):.1f}" height="{value * (base - 14):.1f}" rx="1" fill="{BAR}">'
        f"<title>position {number + 1}: {value:.1%}</title></rect>"
        for number, value in enumerate(values)
    ]
    every = max(1, math.ceil((label_width(str(len(values))) + 4) / bar))
    marks = [
        f'<text x="{left + (number + 0.5) * bar:.1f}" y="{base + 14}" text-anchor="middle">{number + 1}</text>'
        for number in range(0, len(values), every)
    ]
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="accepted by position">'
        f'<g font-size="11" fill="{SOFT}"><text x="{left - 5}" y="22" text-anchor="end">100 %</text>'
        f'<text x="{left - 5}" y="{base}" text-anchor="end">0</text>{"".join(marks)}</g>'
        f'<line x1="{left}" y1="{base}" x2="{width}" y2="{base}" stroke="{LINE}" class="axis"/>{"".join(parts)}</svg>'
    )


def saved(rows: Sequence[tuple[str, float]]) -> str:
    """Shares saved, by name, as bars from a middle line: to the right what was saved, to the left what came on top."""
    width, line, widest = 560, 26, 240
    left = 10 + min(widest, max(label_width(name) for name, _ in rows))
    most = max(0.05, *(abs(share) for _, share in rows))
    least = min(0.0, *(share for _, share in rows))
    scale = (width - left - 7 - max(label_width(f"{share:.1%}") for _, share in rows)) / (most - least)
    middle = left - least * scale
    parts = []
    for number, (name, share) in enumerate(rows):
        top = number * line + 4
        start, length = (middle, share * scale) if share >= 0 else (middle + share * scale, -share * scale)
        fill = BAR if share >= 0 else FAULT
        parts.append(
            f'<text x="{left - 8:.1f}" y="{top + 13}" text-anchor="end">{escape(shortened(name, widest))}'
            f"<title>{escape(name)}</title></text>"
            f'<rect x="{start:.1f}" y="{top}" width="{max(length, 1):.1f}" height="18" rx="1" fill="{fill}"/>'
            f'<text x="{max(start + length, middle) + 5:.1f}" y="{top + 13}">{share:.1%}</text>'
        )
    height = len(rows) * line + 4
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="forward passes saved">'
        f'<line x1="{middle:.1f}" y1="0" x2="{middle:.1f}" y2="{height}" stroke="{LINE}" class="axis"/>'
        f'<g font-size="11" fill="{SOFT}">{"".join(parts)}</g></svg>'
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A scale from values to places, with round numbers marked."""

    marks: tuple[float, ...]  # round values, the first and last ones being the ends of the scale
    begin: float  # where these ends are
    end: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float) -> _Axis:
        low, high = min(values), max(values)
        if high - low < 1e-9 * max(abs(high), abs(low), 1e-9):
            low, high = low - 0.05 * max(abs(low), 1.0), high + 0.05 * max(abs(high), 1.0)
        step = round_step((high - low) / 6)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(tuple(number * step for number in range(first, last + 1)), begin, end)

    def at(self, value: float) -> float:
        share = (value - self.marks[0]) / (self.marks[-1] - self.marks[0])
        return self.begin + share * (self.end - self.begin)


def _frame(across: _Axis, up: _Axis, cost: str, quality: str) -> str:
    base = _HEIGHT - _BOTTOM
    lines = [
        f'<line x1="{across.begin:.1f}" y1="{up.at(mark):.1f}" x2="{across.end:.1f}" y2="{up.at(mark):.1f}" '
        f'stroke="{LINE}" class="axis"/>'
        f'<text x="{across.begin - 6:.1f}" y="{up.at(mark) + 4:.1f}" text-anchor="end">{_marked(mark)}</text>'
        for mark in up.marks
    ]
    lines += [
        f'<text x="{across.at(mark):.1f}" y="{base + 15}" text-anchor="middle">{_marked(mark)}</text>'
        for mark in across.marks
    ]
    middle = (_TOP + base) / 2
    return (
        f'<g font-size="11" fill="{SOFT}">{"".join(lines)}'
        f'<text x="{(across.begin + across.end) / 2:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(cost)}</text>'
        f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{escape(quality)}</text>'
        "</g>"
    )


def _stairs(best: Sequence[Point], across: _Axis, up: _Axis, is_higher_better: bool) -> str:
    """The best at every time, as the corners of stairs: from the worst quality at the fastest to the right end."""
    x, y = across.at(best[0].cost.value), up.begin if is_higher_better else up.end
    corners = [(x, y)]
    for point in best:
        x, y = across.at(point.cost.value), up.at(point.quality.value)
        corners += [(x, corners[-1][1]), (x, y)]
    corners.append((across.end, y))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _error_bars(point: Point, across: _Axis, up: _Axis) -> str:
    """The intervals of a point, drawn below all points; times below zero are not drawn."""
    x, y = across.at(point.cost.value), up.at(point.quality.value)
    lines: list[tuple[float, float, float, float]] = []
    if point.cost.low is not None and point.cost.high is not None:
        low, high = across.at(max(point.cost.low, 0.0)), across.at(point.cost.high)
        lines += [(low, y, high, y), *((end, y - CAP, end, y + CAP) for end in (low, high))]
    if point.quality.low is not None and point.quality.high is not None:
        low, high = up.at(point.quality.low), up.at(point.quality.high)
        lines += [(x, low, x, high), *((x - CAP, end, x + CAP, end) for end in (low, high))]
    bars = "".join(
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{SOFT}"/>' for x1, y1, x2, y2 in lines
    )
    return f'<g class="spread">{bars}</g>'


def _above(lift: int) -> int:
    """The height of a number above its point."""
    return 6 + 12 * lift


def _lifts(places: Sequence[tuple[float, float]]) -> list[int]:
    """The lines to lift the number of each point by, so that the numbers of near points stand above each other."""
    taken: list[tuple[float, float]] = []
    lifts = [0] * len(places)
    for index in sorted(range(len(places)), key=lambda number: places[number]):
        x, y = places[index]
        while any(abs(x - left) < 15 and abs(y - 12 * lifts[index] - top) < 12 for left, top in taken):
            lifts[index] += 1
        taken.append((x, y - 12 * lifts[index]))
    return lifts


def _ends(estimate: IntervalEstimate) -> list[float]:
    """The figure and the ends of its interval."""
    return [end for end in (estimate.value, estimate.low, estimate.high) if end is not None]


def _marked(mark: float) -> str:
    """The label of a mark on an axis."""
    return f"{mark:,.6g}"
