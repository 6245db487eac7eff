"""The tree of a beam search as SVG: a column for each step, in it the continuations that were looked at, best first.

Lines lead from each continuation to those of it that a step looked at; those of returned texts are thick. What was
pruned is dashed and pale, what ended a text has a thick frame.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from decodekit.html_pages import shortened

if TYPE_CHECKING:
    from decodekit.decoding.search.beam_tree import BeamNode, BeamTree

_CELL, _GAP, _ROW, _HEIGHT = 96, 34, 44, 34
FATES: Final = {"kept": "goes on", "ended": "a finished text among the best", "pruned": "pruned"}
"""What is said of each fate."""


def beam_figure(tree: BeamTree) -> str:
    """The tree as HTML with its legend."""
    nodes = tree.nodes
    if not nodes:
        return '<p class="dk-facts">The search looked at nothing.</p>'
    best = {node for end in tree.returned for node in tree.path(end)}
    rows: dict[int, int] = {}  # of each step, how many nodes there are so far
    places = []
    for node in nodes:
        row = rows.get(node.step, 0)
        rows[node.step] = row + 1
        places.append((node.step * (_CELL + _GAP) + 4, row * _ROW + 4))
    lines, cells = [], []
    for number, (node, (x, y)) in enumerate(zip(nodes, places, strict=True)):
        css = f"dk-{node.fate}" + (" dk-best" if number in best else "")
        if node.parent is not None:
            left, top = places[node.parent]
            middle, bend = _HEIGHT / 2, _GAP / 2
            start, end = left + _CELL, x
            path = f"M{start} {top + middle}C{start + bend} {top + middle} {end - bend} {y + middle} {end} {y + middle}"
            lines.append(f'<path class="{css}" d="{path}"/>')
        cells.append(_cell(node, x, y, css, "".join(nodes[one].text for one in tree.path(number))))
    width, height = max(x for x, _ in places) + _CELL + 4, max(rows.values()) * _ROW
    legend = "".join(f'<li><i class="dk-fate dk-{fate}"></i> {name}</li>' for fate, name in FATES.items())
    caption = "Beams: a column a step, best first; the log-probability of each text, of finished ones the score"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    label = f'role="img" aria-label="tree of {len(nodes)} continuations"'
    return (
        f'<figure class="dk-beams"><figcaption>{caption}</figcaption><ul class="dk-legend">{legend}'
        '<li><i class="dk-fate dk-kept dk-best"></i> of a returned text</li></ul>'
        f'<div class="dk-wide" tabindex="0"><svg {size} {label}>{"".join(lines)}{"".join(cells)}</svg></div></figure>'
    )


def _cell(node: BeamNode, x: int, y: int, css: str, text: str) -> str:
    shown = escape(shortened(node.text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣"), _CELL - 10))
    told = escape(f"{text}\nlog p {node.log_prob:.4g}, score {node.score:.4g}: {FATES[node.fate]}")
    figure = f"score {node.score:.3f}" if node.fate == "ended" else f"{node.log_prob:.3f}"
    return (
        f'<g class="dk-cell {css}"><rect x="{x}" y="{y}" width="{_CELL}" height="{_HEIGHT}" rx="5"/>'
        f'<text x="{x + 6}" y="{y + 14}">{shown}</text><text class="dk-small" x="{x + 6}" y="{y + 28}">'
        f"{figure}</text><title>{told}</title></g>"
    )
