"""Small inline SVG pictures for the report.

Colours and sizes stand in the elements, so that a picture survives where style sheets do not reach into SVG (printing,
mail); the page's style sheet overrides them for dark screens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from decodekit.pages import BAR, LINE, SOFT, label_width, round_step

_WIDTH, _HEIGHT, _BOTTOM = 420, 150, 22


def histogram(
    values: Sequence[float], *, unit: str, num_bins: int = 24, bounds: tuple[float, float] | None = None
) -> str:
    """An SVG histogram with the ends of the axis, the tallest bar and the median written on it.

    Args:
        values: what to count.
        unit: written after the numbers.
        num_bins: about how many bars.
        bounds: ends of the axis; by default those of the values.
    """
    if not values:
        return '<p class="none">nothing to show</p>'
    low, high = bounds or (min(values), max(values))
    edges = _edges(low, high, num_bins)
    counts = [0] * (len(edges) - 1)
    width = edges[1] - edges[0]
    for value in values:
        counts[min(int((value - edges[0]) / width), len(counts) - 1)] += 1
    tallest = max(counts)
    room = label_width(f"{tallest:,}") + 7
    bar_width = (_WIDTH - room - 6) / len(counts)
    bars = []
    for number, count in enumerate(counts):
        if count:
            height = count / tallest * (_HEIGHT - _BOTTOM - 14)
            left = room + number * bar_width
            label = f"{_plain(edges[number])} to {_plain(edges[number + 1])} {unit}: {count:,}"
            bars.append(
                f'<rect x="{left + 0.5:.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}" width="{max(bar_width - 1, 1):.1f}" '
                f'height="{height:.1f}" rx="1" fill="{BAR}"><title>{escape(label)}</title></rect>'
            )
    median = sorted(values)[len(values) // 2]
    x = room + (median - edges[0]) / (edges[-1] - edges[0]) * (_WIDTH - room - 6)
    base = _HEIGHT - _BOTTOM
    middle = f"median {_plain(median)} {unit}".rstrip()
    half = label_width(middle) / 2
    end = f"{_plain(edges[-1])} {unit}".rstrip()
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="histogram in {escape(unit)}">'
        f'<g font-size="11" fill="{SOFT}" text-anchor="end"><text x="{room - 5:.1f}" y="22">{tallest:,}</text>'
        f'<text x="{room - 5:.1f}" y="{base}">0</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 5}">{escape(end)}</text></g>'
        f'<line x1="{room:.1f}" y1="{base}" x2="{_WIDTH}" y2="{base}" stroke="{LINE}" class="axis"/>'
        f"{''.join(bars)}"
        f'<line x1="{x:.1f}" y1="10" x2="{x:.1f}" y2="{base}" stroke="{SOFT}" stroke-dasharray="3 3"/>'
        f'<text x="{min(max(x, half), _WIDTH - half):.1f}" y="9" font-size="11" fill="{SOFT}" text-anchor="middle">'
        f"{escape(middle)}</text>"
        f'<text x="{room:.1f}" y="{_HEIGHT - 5}" font-size="11" fill="{SOFT}">{_plain(edges[0])}</text>'
        "</svg>"
    )


def _edges(low: float, high: float, num_bins: int) -> list[float]:
    """Bin edges at round numbers: steps of 1, 2 or 5 times a power of ten."""
    size = max(abs(low), abs(high))
    span = high - low if high - low > size * 1e-9 else size
    if span < 1e-100:  # all zero, or as good as
        span = 1.0
    step = round_step(span / num_bins)
    step = max(step, 1.0) if isinstance(low, int) else step  # counts are whole
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return [number * step for number in range(first, last + 1)]


def bars(counts: Mapping[str, int]) -> str:
    """Horizontal bars with a label and a count each, as HTML; the longest is the largest."""
    largest = max(counts.values(), default=1)
    rows = [
        f'<tr><td>{escape(label)}</td><td class="bar"><i style="width:{count / largest * 100:.1f}%"></i></td>'
        f'<td class="number">{count:,}</td></tr>'
        for label, count in counts.items()
    ]
    return f'<table class="bars">{"".join(rows)}</table>' if rows else '<p class="none">no failures</p>'


def _plain(value: float) -> str:
    """A number without an exponent and without needless zeros."""
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
