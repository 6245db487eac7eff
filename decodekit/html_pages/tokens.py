# ruff: noqa: D102  # `decoding.request.completion` says what the members of `TracedText` are
"""The token view: a text token by token, with how sure the model was and where each token came from.

A token is shaded by its probability and underlined by its source. Pointing at it, or moving to it by Tab, opens a card:

    ` 40`                      token 1,207
    p 0.920, entropy 0.41 nats
    A draft had it, and the model agreed.
    The mask allowed 14 tokens, 97.0% of the probability.
    ` 40` 0.920   ` 4` 0.030   ` the` 0.020, struck out: the constraint does not allow it

There are no scripts: cards are shown by ``:hover`` and ``:focus``.

Above the text of a beam search stands its tree as SVG: a column for each step, in it the continuations that were looked
at, best first. Lines lead from each continuation to those of it that a step looked at; those of returned texts are
thick. What was pruned is dashed and pale, what ended a text has a thick frame.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, Protocol

from decodekit.html_pages import new_anchor, page_html, sheet, shortened

if TYPE_CHECKING:
    from decodekit.decoding.request.token_traces import TokenOption, TokenTrace
    from decodekit.decoding.search.beam_tree import BeamNode, BeamTree

SOURCES: Final = {
    "model": ("the model", "The model took it by itself."),
    "forced": ("forced", "The constraint left no choice."),
    "draft accepted": ("draft accepted", "A draft had it, and the model agreed."),
    "draft rejected": ("draft rejected", "The model took it where a draft had another token."),
}
"""What is said of each source, in the legend and on a card."""


_CELL, _GAP, _ROW, _HEIGHT = 96, 34, 44, 34
FATES: Final = {"kept": "goes on", "ended": "a finished text among the best", "pruned": "pruned"}
"""What is said of each fate."""


class TracedText(Protocol):
    """A text with how its tokens were taken; `decoding.request.completion.Completion` is one."""

    @property
    def trace(self) -> Sequence[TokenTrace] | None: ...
    @property
    def tree(self) -> BeamTree | None: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def score(self) -> float | None: ...
    @property
    def stats(self) -> Any: ...


def token_page(texts: Sequence[TracedText], title: str = "Tokens") -> str:
    """A page of texts, the first of them the best; each must have a trace."""
    parts = [f"<h1>{escape(title)}</h1>"]
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            score = "" if text.score is None else f", score {text.score:.4g}"
            parts.append(f"<h2>Text {number} of {len(texts)}{score}</h2>")
        parts.append(_text_html(text, f"x{number}"))
    return page_html(title, parts, "decodekit.html_pages", "tokens.css")


def token_view(text: TracedText) -> str:
    """The same of one text as a piece of HTML with its style sheet, for a notebook."""
    return f"<style>\n{sheet('decodekit.html_pages', 'tokens.css')}</style>{_text_html(text, new_anchor())}"


def _text_html(text: TracedText, anchor: str) -> str:
    trace = text.trace or ()
    tokens = "".join(_token(token, f"{anchor}-{number}") for number, token in enumerate(trace))
    return (
        f'<section class="dk-tokens">{"" if text.tree is None else beam_figure(text.tree)}'
        f"{_facts(text, trace)}{_legend(trace)}"
        f'<div class="dk-text">{tokens or "<i>no tokens</i>"}</div></section>'
    )


def _facts(text: TracedText, trace: Sequence[TokenTrace]) -> str:
    stats = text.stats
    facts = [f"{len(trace):,} tokens", f"{stats.num_forwards:,} forward passes", f"ended by {text.finish_reason}"]
    known = [(token.taken.logprob, token.taken.text) for token in trace if token.taken.logprob is not None]
    if known:
        mean = math.fsum(logprob for logprob, _ in known) / len(known)
        of = "" if len(known) == len(trace) else f" of the {len(known):,} that the model was asked for"
        facts.append(f"perplexity {math.exp(min(-mean, 700)):,.3g}{of}")
        logprob, weakest = min(known)
        facts.append(f"least likely {_quoted(weakest)} at {_share(logprob)}")
    return f'<p class="dk-facts">{" · ".join(facts)}</p>'


def _legend(trace: Sequence[TokenTrace]) -> str:
    counts: Counter[str] = Counter(token.source for token in trace)
    items = [
        f'<li><span class="dk-key {_css(source)}">abc</span> {name} <b>{counts[source]:,}</b></li>'
        for source, (name, _) in SOURCES.items()
    ]
    shades = "".join(
        f'<span class="dk-key" style="--s:{_shade(math.log(share))}">{share:g}</span>' for share in (1, 0.5, 0.1, 0.01)
    )
    return f'<ul class="dk-legend">{"".join(items)}<li>probability {shades}</li></ul>'


def _token(token: TokenTrace, anchor: str) -> str:
    text = token.taken.text
    shown = escape(text).replace("\n", '<i class="dk-end">⏎</i>\n').replace("\t", '<i class="dk-end">⇥</i>\t')
    return (
        f'<span class="dk-token {_css(token.source)}" tabindex="0" aria-describedby="{anchor}" '
        f'style="--s:{_shade(token.taken.logprob)}">{shown}{_card(token, anchor)}</span>'
    )


def _card(token: TokenTrace, anchor: str) -> str:
    taken = token.taken
    lines = [
        f"<b>{_quoted(taken.text)}</b> token {taken.token_id:,}",
        f"p {_share(taken.logprob)}" + ("" if token.entropy is None else f", entropy {token.entropy:.3g} nats"),
        SOURCES[token.source][1],
    ]
    if token.refused is not None:
        lines.append(f"The draft had {_quoted(token.refused.text)}, p {_share(token.refused.logprob)}.")
    lines.append(_checked(token))
    note = ""
    if any(option.is_allowed is False for option in token.options):
        note = '<span class="dk-note">Struck out: the constraint does not allow it.</span>'
    rows = "".join(_option(option, option.token_id == taken.token_id) for option in token.options)
    told = "".join(f"<span>{line}</span>" for line in lines if line)
    return (
        f'<span class="dk-card" role="tooltip" id="{anchor}">{told}<span class="dk-options">{rows}{note}</span></span>'
    )


def _checked(token: TokenTrace) -> str:
    """The sentence about the constraint's check of a token."""
    if token.check == "free":
        return f"No constraint: any of {token.num_allowed:,} tokens."
    if token.check == "asked":
        return "One question to the constraint, no mask: what else was allowed is not known."
    if token.num_allowed is None or token.check is None:
        return ""
    told = f"The mask allowed {token.num_allowed:,} token{'s' if token.num_allowed != 1 else ''}"
    if token.mass is None:
        return f"{told}."
    share = f"{token.mass:.1%}" if token.mass >= 0.001 else f"{token.mass:.1e}"
    return f"{told}, {share} of the probability."


def _option(option: TokenOption, is_taken: bool) -> str:
    probability = 0.0 if option.logprob is None else math.exp(option.logprob)
    css = " ".join(name for name, holds in (("dk-taken", is_taken), ("dk-no", option.is_allowed is False)) if holds)
    return (
        f'<span class="dk-option {css}"><code>{_quoted(option.text)}</code>'
        f'<i style="--w:{probability:.4f}"></i><span>{_share(option.logprob)}</span></span>'
    )


def _share(logprob: float | None) -> str:
    if logprob is None:
        return "not asked"
    probability = math.exp(logprob)
    return f"{probability:.3f}" if probability >= 0.001 else f"{probability:.1e}" if probability else "0"


def _shade(logprob: float | None) -> str:
    """The strength of a token's shade, 0 to 1: none where it is certain, full from a probability of 1 % down."""
    return f"{min(1.0, logprob / math.log(0.01)):.2f}" if logprob is not None and logprob < 0 else "0"


def _visible(text: str) -> str:
    """A text as it can be told apart from another, spaces and line ends included."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")


def _quoted(text: str) -> str:
    return escape(_visible(text))


def _css(source: str) -> str:
    return "dk-" + source.replace(" ", "-")


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
    shown = escape(shortened(_visible(node.text), _CELL - 10))
    told = escape(f"{text}\nlog p {node.log_prob:.4g}, score {node.score:.4g}: {FATES[node.fate]}")
    figure = f"score {node.score:.3f}" if node.fate == "ended" else f"{node.log_prob:.3f}"
    return (
        f'<g class="dk-cell {css}"><rect x="{x}" y="{y}" width="{_CELL}" height="{_HEIGHT}" rx="5"/>'
        f'<text x="{x + 6}" y="{y + 14}">{shown}</text><text class="dk-small" x="{x + 6}" y="{y + 28}">'
        f"{figure}</text><title>{told}</title></g>"
    )
