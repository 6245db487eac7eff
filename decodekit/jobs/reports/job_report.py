"""`report.html`: one file without scripts that shows how a job, or several together, went."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from decodekit.jobs.reports.document_page import document_html
from decodekit.jobs.reports.job_figures import bars, histogram
from decodekit.jobs.reports.job_view import DocumentView, JobView, total_fields
from decodekit.pages import figure_html, page_bytes, page_html, table_html
from decodekit.records.ledger import replace_file

MAX_DOCUMENTS = 2000
NUM_LISTED = 10


def write_report(path: Path, views: Sequence[JobView], *, title: str, max_documents: int = MAX_DOCUMENTS) -> None:
    """Write the report of one or more jobs.

    Args:
        path: the HTML file, replaced in one step.
        views: the jobs, in order.
        title: the heading.
        max_documents: how many documents are shown with their text, failures first; the page says so when there are
            more. Counts and pictures are of all documents.

    Raises:
        OutputError: the file cannot be written.
    """
    replace_file(path, [page_bytes(report_html(views, title=title, max_documents=max_documents))])


def report_html(views: Sequence[JobView], *, title: str, max_documents: int = MAX_DOCUMENTS) -> str:
    """The report as HTML; see `write_report`."""
    documents = [document for view in views for document in view.documents]
    anchors = {id(document): f"d{number}" for number, document in enumerate(documents)}
    parts = [
        f"<h1>{escape(title)}</h1>",
        _tiles(views),
        _pictures(views, documents),
        _lists(documents, anchors),
        *(_settings(view) for view in views),
    ]
    num_left = max_documents
    for view in views:
        parts.append(_documents(view, anchors, num_left, is_titled=len(views) > 1))
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


def _lists(documents: Sequence[DocumentView], anchors: dict[int, str]) -> str:
    weak = [(document.weakest, document) for document in documents if document.weakest is not None]
    weak.sort(key=lambda pair: pair[0])
    slow = [(document.seconds, document) for document in documents if document.seconds is not None]
    slow.sort(key=lambda pair: -pair[0])
    tables = {
        "Weakest documents": [(one, f"p = {weakest[0]:.2g}", weakest[1]) for weakest, one in weak],
        "Slowest documents": [(one, f"{seconds:.2f} s", f"{one.num_tokens} tokens") for seconds, one in slow],
    }
    html = ""
    for caption, rows in tables.items():
        if rows:
            lines = "".join(
                f'<tr><td><a href="#{anchors[id(document)]}">{escape(document.id)}</a></td>'
                f'<td class="number">{escape(figure)}</td><td>{escape(note)}</td></tr>'
                for document, figure, note in rows[:NUM_LISTED]
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


def _documents(view: JobView, anchors: dict[int, str], max_documents: int, *, is_titled: bool) -> str:
    shown = view.documents[:max_documents]
    html = []
    if is_titled:
        html.append(f"<h2>{escape(view.title)}: {len(view.done):,} done, {len(view.failed):,} failed</h2>")
    if len(shown) < len(view.documents):
        html.append(
            f'<p class="none">{len(shown):,} of {len(view.documents):,} documents are shown with their text; '
            "<code>decodekit report DIR --documents N</code> shows more.</p>"
        )
    level = 3 if is_titled else 2
    for heading, is_failed in (("Failures", True), ("Documents", False)):
        group = [document for document in shown if document.is_failed == is_failed]
        if group:
            html.append(f"<h{level}>{heading}</h{level}>")
            html += [
                document_html(document, anchors[id(document)], is_open=number < 3)
                for number, document in enumerate(group)
            ]
    # Documents beyond the limit keep a line, so that every document is on the page and every link leads somewhere.
    rest = view.documents[max_documents:]
    if rest:
        lines = "".join(
            f'<tr id="{anchors[id(document)]}"><td>{escape(document.id)}</td>'
            f"<td>{escape(document.row.get('code') or document.row['finish_reason'])}</td></tr>"
            for document in rest
        )
        html.append(f"<details><summary><b>{len(rest):,} more</b></summary><table>{lines}</table></details>")
    return "\n".join(html)
