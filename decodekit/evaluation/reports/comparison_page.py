"""`bench.html`: one file without scripts that shows a comparison, quality beside speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape

from decodekit.evaluation.intervals import IntervalEstimate
from decodekit.evaluation.measures.measures import METRICS
from decodekit.evaluation.reports.comparison_tables import failures, grids, shown
from decodekit.evaluation.reports.summary import Results, Summary
from decodekit.evaluation.reports.svg_figures import Point, accepted_shares, pareto, point_list, saved
from decodekit.evaluation.task import Task
from decodekit.html_pages import figure_html, new_anchor, page_html, table_html

MAX_EXAMPLES = 5
"""How many examples of a task are shown with what each strategy wrote."""
MAX_PIECE = 1 << 18
"""Most characters of HTML in a notebook, which keeps all that was ever shown."""


def report_html(comparison: Results) -> str:
    """The page."""
    title = f"{len(comparison.strategies)} strategies on {comparison.settings['model']}"
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="soft">{escape(_about(comparison))}</p>']
    parts += [f'<p class="fault">{escape(line)}</p>' for line in failures(comparison)]
    parts += [f'<p class="soft">{escape(note)}</p>' for note in comparison.notes]
    for task in comparison.tasks:
        parts += [*_figures(comparison, task), _texts(comparison, task)]
    strategies = table_html((name, repr(value)) for name, value in comparison.strategies.items())
    facts = json.dumps({**comparison.settings, **comparison.provenance}, indent=2, ensure_ascii=False)
    parts.append(f"<details><summary><b>Settings</b></summary>{strategies}<pre>{escape(facts)}</pre></details>")
    return page_html(title, parts, "decodekit.evaluation")


def report_piece(comparison: Results) -> str:
    """Pictures and tables of the page for a notebook, without its texts; tasks beyond `MAX_PIECE` are counted."""
    parts = [f"<p>{escape(_about(comparison))}</p>"]
    parts += [f"<p>{escape(line[:500])}</p>" for line in (*failures(comparison), *comparison.notes)][:50]
    num_left = MAX_PIECE - sum(map(len, parts))
    anchor = new_anchor()
    for number, task in enumerate(comparison.tasks):
        piece = "".join(_figures(comparison, task, anchor))
        num_left -= len(piece)
        if num_left < 0:
            num_more = len(comparison.tasks) - number
            parts.append(f"<p>{num_more} more tasks: <code>comparison.to_html(path)</code></p>")
            break
        parts.append(piece)
    return f'<div style="max-width: 60rem">{"".join(parts)}</div>'


def points(comparison: Results, task: str) -> list[Point]:
    """The strategies of a task that have a quality and a time, in milliseconds per token."""
    metric = next(iter(comparison.metrics[task]), "")
    found = []
    for one in comparison.summaries_of(task):
        cost = one.speed.get("s_per_token")
        if metric in one.quality and cost is not None:
            low, high = (None if end is None else end * 1e3 for end in (cost.low, cost.high))
            scaled = IntervalEstimate(cost.value * 1e3, low, high, cost.num_samples)
            found.append(Point(one.strategy, scaled, one.quality[metric]))
    return found


def _figures(comparison: Results, task: Task, anchor: str = "") -> Iterator[str]:
    """The heading of a task, its pictures and its tables."""
    summaries = comparison.summaries_of(task.name)
    yield f"<h2>{escape(task.name)}</h2>"
    if task.description:
        yield f'<p class="soft">{escape(task.description)} {len(task.examples)} examples.</p>'
    pictures = list(_pictures(comparison, task.name, summaries, f"{anchor}t{comparison.tasks.index(task)}"))
    if pictures:
        yield f'<div class="pictures">{"".join(pictures)}</div>'
    yield from (figure_html(grid.title, table_html(grid.rows, grid.heading)) for grid in grids(comparison, task.name))
    names = [name for name in comparison.metrics[task.name] if any(name in one.over_examples for one in summaries)]
    if names:
        title = f"{task.name}: quality, mean ± 95 % interval over examples, each averaged over its seeds"
        rows = [(one.strategy, *(shown(one.over_examples.get(name)) for name in names)) for one in summaries]
        yield figure_html(title, table_html(rows, ("strategy", *names)))


def _pictures(comparison: Results, task: str, summaries: list[Summary], anchor: str) -> Iterator[str]:
    placed = points(comparison, task)
    if placed:
        metric = comparison.metrics[task][0]
        is_up = METRICS[metric].is_higher_better if metric in METRICS else True
        axes = {"cost": "ms per token", "quality": metric, "anchor": anchor}
        picture = pareto(placed, is_higher_better=is_up, **axes)
        names = point_list(placed, **axes)
        yield figure_html("Quality against time: 95 % intervals, the front dashed", picture + names)
    savings = [(one.strategy, share) for one in summaries if (share := one.forwards_saved) is not None]
    if savings:
        yield figure_html(f"Forward passes per token saved, beside {comparison.baseline}", saved(savings))
    for one in summaries:
        if one.acceptance:
            picture = accepted_shares(one.acceptance)
            yield figure_html(f"Drafts of {one.strategy}: accepted by position", picture)


def _texts(comparison: Results, task: Task) -> str:
    """The texts of the strategies for the first examples at the first seed."""
    blocks = []
    for number, example in enumerate(task.examples[:MAX_EXAMPLES]):
        lines = [f"<p>{escape(example.id)}</p><pre>{escape(_plain(example.prompt))}</pre>"]
        if example.reference is not None:
            lines.append(f"<p>reference</p><pre>{escape(_plain(example.reference))}</pre>")
        for name in comparison.strategies:
            outcome = comparison.rows_of(name, task.name)[0].outcomes[number]
            fault = f' <span class="fault">{escape(outcome.error.splitlines()[0])}</span>' if outcome.error else ""
            lines.append(f"<p>{escape(name)}{fault}</p><pre>{escape(outcome.text or '')}</pre>")
        blocks.append("".join(lines))
    shown_of = f"{len(blocks)} of {len(task.examples)}"
    seed = comparison.settings["seeds"][0]
    return f"<details><summary><b>Texts</b>, {shown_of} examples at seed {seed}</summary>{''.join(blocks)}</details>"


def _about(comparison: Results) -> str:
    facts, settings = comparison.provenance, comparison.settings
    machine = facts["machine"]
    parts = [
        f"{settings['model']}, {settings['dtype']} on {settings['device']}",
        f"{machine['gpu'] or machine['processor']}, {machine['num_threads']} threads",
        f"seeds {', '.join(map(str, settings['seeds']))}, repeats {settings['repeats']}, "
        f"batches of {settings['batch_size']}",
        f"decodekit {facts['decodekit']}" + (f", commit {facts['commit']}" if facts["commit"] else ""),
        str(facts["date"]),
    ]
    return "; ".join(parts)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
