"""`report.html`: one file without scripts that shows how a job, or several together, went."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from decodekit.html_pages import (
    BAR,
    LINE,
    SOFT,
    figure_html,
    label_width,
    page_bytes,
    page_html,
    round_step,
    table_html,
)
from decodekit.jobs.reports.document_page import document_html
from decodekit.jobs.reports.job_view import DocumentView, JobView, total_fields
from decodekit.records.ledger import replace_file

MAX_DOCUMENTS = 2000
NUM_LISTED = 10
_WIDTH, _HEIGHT, _BOTTOM = 420, 150, 22
_NUM_BINS = 24  # about so many bars

_Named: TypeAlias = tuple[str, DocumentView]  # a document with its anchor; it may stand on the page twice


def write_report(path: Path, views: Sequence[JobView], *, title: str, max_documents: int = MAX_DOCUMENTS) -> None:
    """Write the report of one or more jobs, in one step.

    At most `max_documents` are shown with their text, failures first; the page says so when there are more. Counts and
    pictures are of all documents.
    """
    replace_file(path, [page_bytes(report_html(views, title=title, max_documents=max_documents))])


def report_html(views: Sequence[JobView], *, title: str, max_documents: int = MAX_DOCUMENTS) -> str:
    """The report as HTML; see `write_report`."""
    documents = [document for view in views for document in view.documents]
    named = [(f"d{number}", document) for number, document in enumerate(documents)]
    parts = [
        f"<h1>{escape(title)}</h1>",
        _tiles(views),
        _pictures(views, documents),
        _lists(named),
        *(_settings(view) for view in views),
    ]
    num_left, rest = max_documents, iter(named)
    for view in views:
        own = [*islice(rest, len(view.documents))]
        parts.append(_documents(view, own, num_left, is_titled=len(views) > 1))
        num_left = max(0, num_left - len(view.documents))
    return page_html(title, parts, "decodekit.jobs")


def _tiles(views: Sequence[JobView]) -> str:
    num_done = sum(len(view.done) for view in views)
    num_failed = sum(len(view.failed) for view in views)
    seconds = sum(view.working_seconds for view in views)
    num_tokens = sum(view.num_tokens for view in views)
    tiles = [("done", f"{num_done:,}", ""), ("failed", f"{num_failed:,}", "fault" if num_failed else "")]
    num_cut = sum(view.num_cut for view in views)
    if num_cut:
        tiles.append(("cut at the limit", f"{num_cut:,}", "fault"))
    left = [view.num_left for view in views if view.num_left]
    if left:
        tiles.append(("left to do", f"{sum(left):,}", "fault"))
    if seconds:
        tiles.append(("done or failed per second", f"{(num_done + num_failed) / seconds:,.2f}", ""))
        tiles.append(("tokens per second", f"{num_tokens / seconds:,.0f}", ""))
    fields = total_fields(views)
    if fields is not None and fields[1]:
        tiles.append((f"of {fields[1]:,} fields right", f"{fields[0] / fields[1]:.1%}", ""))
    return (
        '<div class="tiles">'
        + "".join(f'<div><b class="{css}">{value}</b>{label}</div>' for label, value, css in tiles)
        + "</div>"
    )


def _pictures(views: Sequence[JobView], documents: Sequence[DocumentView]) -> str:
    failures: Counter[str] = sum((view.failures for view in views), Counter())
    pictures = [
        ("Failures by reason", bars(dict(failures.most_common()))),
        ("Length of the outputs", histogram([document.num_tokens for document in documents], unit="tokens")),
    ]
    seconds = [document.seconds for document in documents if document.seconds is not None]
    if seconds:
        pictures.append(("Time per document", histogram(seconds, unit="s")))
    weakest = [document.weakest[0] for document in documents if document.weakest is not None]
    if weakest:
        pictures.append(("Probability of the weakest value", histogram(weakest, unit="", bounds=(0.0, 1.0))))
    return '<div class="pictures">' + "".join(figure_html(caption, picture) for caption, picture in pictures) + "</div>"


def _lists(named: Sequence[_Named]) -> str:
    weak = [(one.weakest, anchor, one) for anchor, one in named if one.weakest is not None]
    weak.sort(key=lambda row: row[0])
    slow = [(one.seconds, anchor, one) for anchor, one in named if one.seconds is not None]
    slow.sort(key=lambda row: -row[0])
    tables = {
        "Weakest documents": [(at, one, f"p = {weakest[0]:.2g}", weakest[1]) for weakest, at, one in weak],
        "Slowest documents": [(at, one, f"{seconds:.2f} s", f"{one.num_tokens} tokens") for seconds, at, one in slow],
    }
    html = ""
    for caption, rows in tables.items():
        if rows:
            lines = "".join(
                f'<tr><td><a href="#{anchor}">{escape(document.id)}</a></td>'
                f'<td class="number">{escape(figure)}</td><td>{escape(note)}</td></tr>'
                for anchor, document, figure, note in rows[:NUM_LISTED]
            )
            html += figure_html(caption, f"<table>{lines}</table>")
    return f'<div class="pictures">{html}</div>' if html else ""


def _settings(view: JobView) -> str:
    settings = view.job.settings
    schema = json.dumps(settings.schema, indent=2, ensure_ascii=False)
    rows = [
        ("model", settings.model),
        ("strategy", settings.strategy_text),
        ("number type", settings.dtype),
        ("max_new_tokens", f"{settings.max_new_tokens} (at the limit: {settings.on_length})"),
        ("seed", str(settings.seed)),
        ("fingerprint", settings.fingerprint),
        ("decodekit", settings.version),
    ]
    earlier = ", ".join(view.job.earlier)
    if earlier:
        rows.append(("some rows were made with", earlier))
    return (
        f"<details><summary><b>Settings</b> <span>{escape(view.title)}</span></summary>"
        f'<div class="pair"><div>{table_html(rows)}<p>prompt</p><pre>{escape(settings.prompt)}</pre></div>'
        f"<div><p>schema {escape(settings.schema_source)}</p><pre>{escape(schema)}</pre></div></div></details>"
    )


def _documents(view: JobView, named: Sequence[_Named], max_documents: int, *, is_titled: bool) -> str:
    shown, rest = named[:max_documents], named[max_documents:]
    html = []
    if is_titled:
        html.append(f"<h2>{escape(view.title)}: {len(view.done):,} done, {len(view.failed):,} failed</h2>")
    if rest:
        html.append(
            f'<p class="none">{len(shown):,} of {len(named):,} documents are shown with their text; '
            "<code>decodekit report DIR --documents N</code> shows more.</p>"
        )
    level = 3 if is_titled else 2
    for heading, is_failed in (("Failures", True), ("Documents", False)):
        group = [(anchor, document) for anchor, document in shown if document.is_failed == is_failed]
        if group:
            html.append(f"<h{level}>{heading}</h{level}>")
            html += [document_html(one, anchor, is_open=number < 3) for number, (anchor, one) in enumerate(group)]
    # Documents beyond the limit keep a line, so that every document is on the page and every link leads somewhere.
    if rest:
        lines = "".join(
            f'<tr id="{anchor}"><td>{escape(document.id)}</td>'
            f"<td>{escape(document.row.get('code') or document.row['finish_reason'])}</td></tr>"
            for anchor, document in rest
        )
        html.append(f"<details><summary><b>{len(rest):,} more</b></summary><table>{lines}</table></details>")
    return "\n".join(html)


def histogram(values: Sequence[float], *, unit: str, bounds: tuple[float, float] | None = None) -> str:
    """An SVG histogram with the ends of the axis (by default those of the values), the tallest bar and the median
    written on it."""
    if not values:
        return '<p class="none">nothing to show</p>'
    low, high = bounds or (min(values), max(values))
    edges = _edges(low, high)
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


def _edges(low: float, high: float) -> list[float]:
    """Bin edges at round numbers: steps of 1, 2 or 5 times a power of ten."""
    size = max(abs(low), abs(high))
    span = high - low if high - low > size * 1e-9 else size
    if span < 1e-100:  # all zero, or as good as
        span = 1.0
    step = round_step(span / _NUM_BINS)
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
