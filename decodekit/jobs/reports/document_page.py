"""One document of the report as HTML: its text with the values marked, beside the JSON that was read from it.

A value and the place where it stands are links to each other. The one that a link leads to is outlined (``:target``):
a click, or Tab and Enter, shows the other side without a script. The third value of document d0 is ``d0v2``, its place
in the text ``d0t2``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from decodekit.errors import DocumentError
from decodekit.jobs.reports.job_view import DocumentView
from decodekit.records.strict_json import leaves, pointer_of

NUM_COLORS = 8
_MOST_SHOWN = 8  # values of a field that another one was written for
WEAK = 0.5  # a value with a token less likely than this is underlined


def document_html(document: DocumentView, anchor: str, *, is_open: bool = False) -> str:
    """A ``<details>`` element: a summary line, then text and JSON side by side, or where it failed and its raw text."""
    try:
        return _document_html(document, anchor, is_open=is_open)
    except RecursionError:
        return (
            f'<details id="{anchor}"><summary><b>{escape(document.id)}</b> <span>nested too deeply to be shown</span>'
            "</summary></details>"
        )


def _document_html(document: DocumentView, anchor: str, *, is_open: bool) -> str:
    text, missing, row = "", "", document.row
    try:
        text = document.text()
    except DocumentError as error:
        is_told = document.is_failed and error.cause == row["message"]  # it has no text, and failed for it
        missing = f'<p class="none">{"no text" if is_told else escape(error.cause)}</p>'
    if document.is_failed:
        right = f'<p class="at">at {escape(row["at"])}</p>' if row["at"] else ""
        right += f'<p class="at">try {escape(row["hint"])}</p>' if row["hint"] else ""
        if row["text"]:
            right += f'<p class="at">the output as far as it came:</p><pre>{escape(row["text"])}</pre>'
        attempts = f" · {row['attempts']} attempts" if row["attempts"] > 1 else ""
        left = missing or _text_html(text, {}, {}, anchor)
        note = f'<span class="fault">{escape(row["code"])}</span> {escape(row["message"])}{attempts}'
    else:
        colors = _colors(row["value"])
        spans = find_spans(text, row["value"])
        partial = f'<p class="fault">cut at the limit</p><pre>{escape(row["text"])}</pre>' if "text" in row else ""
        left = missing or _text_html(text, spans, colors, anchor, is_linked=not partial)
        ends = {} if missing or partial else {pointer: f"{anchor}v{n}" for n, pointer in enumerate(spans)}
        right = partial or f"<pre>{_value_html(document, ends, colors)}</pre>"
        note = _note(document)
    return (
        f'<details id="{anchor}"{" open" if is_open else ""}><summary><b>{escape(document.id)}</b> <span>{note}</span>'
        f'</summary><div class="pair"><div>{left}</div><div>{right}</div></div></details>'
    )


def _note(document: DocumentView) -> str:
    parts = [f"{document.num_tokens} tokens"]
    if document.seconds is not None:
        parts.append(f"{document.seconds:.2f} s")
    if document.weakest is not None:
        probability, pointer = document.weakest
        parts.append(f"weakest {escape(pointer) or 'value'} p = {probability:.2g}")
    fields = document.fields()
    if fields is not None:
        right, total = fields
        css = "" if right == total else ' class="fault"'
        parts.append(f"<span{css}>{right} of {total} fields right</span>")
    return " · ".join(parts)


def _colors(value: Any) -> dict[str, int]:
    """A colour number for each member of an object; what stands inside a member has the member's colour."""
    if not isinstance(value, dict):
        return {}
    return {pointer_of([key]): number % NUM_COLORS for number, key in enumerate(value)}


def _color(pointer: str, colors: Mapping[str, int]) -> int:
    return colors.get("/" + pointer.split("/")[1], 0) if pointer else 0


def _text_html(
    text: str, spans: Mapping[str, tuple[int, int]], colors: Mapping[str, int], anchor: str, *, is_linked: bool = True
) -> str:
    parts: list[str] = []
    position = 0
    numbers = {pointer: number for number, pointer in enumerate(spans)}
    for pointer, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        parts.append(escape(text[position:start]))
        mark = f'<mark class="c{_color(pointer, colors)}" title="{escape(pointer) or "value"}">'
        marked = escape(text[start:end])
        if is_linked:
            marked = f'<a id="{anchor}t{numbers[pointer]}" href="#{anchor}v{numbers[pointer]}">{marked}</a>'
        parts.append(f"{mark}{marked}</mark>")
        position = end
    parts.append(escape(text[position:]))
    return f'<pre class="text">{"".join(parts)}</pre>'


def _value_html(document: DocumentView, ends: Mapping[str, str], colors: Mapping[str, int]) -> str:
    """Indented JSON; a value that stands in the text (`ends` are their anchors) has the colour it has there, and every
    value its probability."""
    probabilities, alternatives, wrong = document.probabilities, document.alternatives, document.wrong()

    def expected(pointer: str) -> str:
        return f' <span class="fault">≠ {_json(wrong[pointer])}</span>' if pointer in wrong else ""

    def render(item: Any, pointer: str, indent: str) -> str:
        deeper = indent + "  "
        if isinstance(item, dict) and item:
            members = [
                f"{deeper}{_json(key)}: {render(member, child := pointer + pointer_of([key]), deeper)}{expected(child)}"
                for key, member in item.items()
            ]
            return "{\n" + ",\n".join(members) + f"\n{indent}}}"
        if isinstance(item, list) and item:
            members = [f"{deeper}{render(member, f'{pointer}/{n}', deeper)}" for n, member in enumerate(item)]
            return "[\n" + ",\n".join(members) + f"\n{indent}]"
        classes = [f"c{_color(pointer, colors)}"] if pointer in ends else []
        title, weak = pointer or "value", ""
        probability = probabilities.get(pointer)
        if probability is not None:
            title += f", p = {probability:.4g}"
        if probability is not None and probability < WEAK:
            classes.append("weak")
            weak = f"<sub>{probability:.2g}</sub>"
        if pointer in alternatives:
            likeliest = sorted(alternatives[pointer].items(), key=lambda one: -one[1])[:_MOST_SHOWN]
            title += "; " + ", ".join(f"{one} {share:.2g}" for one, share in likeliest)
        css = f' class="{" ".join(classes)}"' if classes else ""
        shown = _json(item)
        if pointer in ends:
            place = ends[pointer].replace("v", "t")  # in the text: of the value ``d0v2`` it is ``d0t2``
            shown = f'<a id="{ends[pointer]}" href="#{place}">{shown}</a>'
        return f'<span{css} title="{escape(title)}">{shown}</span>{weak}'

    return render(document.row["value"], "", "") + expected("")


def _json(value: Any) -> str:
    return escape(json.dumps(value, ensure_ascii=False), quote=False)


def find_spans(text: str, value: Any) -> dict[str, tuple[int, int]]:
    """The first place of each scalar of `value` that stands verbatim in `text` and that no longer value has taken, as
    (first character, one past the last) by JSON Pointer.

    Texts are found as words (not inside other words), first with their case and then without; numbers in the spellings
    ``40.2``, ``40.20``, ``1,040.20``. true, false and null are not looked for.
    """
    wanted = [(pointer_of(path), spellings) for path, leaf in leaves(value) if (spellings := _spellings(*leaf))]
    wanted.sort(key=lambda item: -max(map(len, item[1])))
    taken = bytearray(len(text))
    spans: dict[str, tuple[int, int]] = {}
    for pointer, spellings in wanted:
        for start, end in _places(text, spellings):
            if not any(taken[start:end]):
                taken[start:end] = b"\x01" * (end - start)
                spans[pointer] = (start, end)
                break
    return spans


def _spellings(kind: str, scalar: Any) -> list[str]:
    """The spellings that a leaf of a JSON value may have in a text."""
    if kind == "str":
        return [scalar] if scalar.strip() else []
    if kind != "number":
        return []
    spellings = [f"{scalar:,.2f}", f"{scalar:.2f}", f"{scalar:,}", repr(scalar)]
    if scalar == int(scalar):
        spellings += [f"{int(scalar):,}", str(int(scalar))]
    return list(dict.fromkeys(spellings))


def _places(text: str, spellings: list[str]) -> Iterator[tuple[int, int]]:
    pattern = "|".join(re.escape(spelling) for spelling in spellings)
    for flags in (re.NOFLAG, re.IGNORECASE):
        for match in re.finditer(rf"(?<!\w)(?:{pattern})(?!\w|[.,]\d)", text, flags):
            yield match.span()
