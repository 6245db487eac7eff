"""The slow twins of compositions: all divisions of a text by trying them in order, and free text by looking at it."""

from __future__ import annotations

from collections.abc import Iterator

from decodekit.constraints.composition.split import Composed
from decodekit.constraints.grammar.rules import (
    Alternatives,
    Concatenated,
    Expression,
    Inline,
    Repeated,
    SpecialToken,
    Terminal,
)
from decodekit.constraints.language.ir import matches


def divisions(expression: Expression, text: str, start: int = 0) -> Iterator[tuple[int, object]]:
    """Every end of the expression from `start` with its value, the preferred division first; ends may come twice."""
    if isinstance(expression, Inline) and isinstance(expression.constraint, Composed):
        for end, parts in divisions(expression.constraint.expression(), text, start):
            yield end, expression.constraint.value(parts)
    elif isinstance(expression, Terminal | Inline):
        for end in range(start, len(text) + 1):
            part = text[start:end]
            if isinstance(expression, Terminal):
                if matches(expression.node, part.encode()):
                    yield end, part
                continue
            try:
                yield end, expression.constraint.parse(part)
            except ValueError:
                continue
    elif isinstance(expression, SpecialToken):
        if text.startswith(str(expression.token), start):
            yield start + len(str(expression.token)), str(expression.token)
    elif isinstance(expression, Concatenated):
        yield from _in_a_row(expression.items, text, start)
    elif isinstance(expression, Alternatives):
        for number, option in enumerate(expression.options):
            for end, value in divisions(option, text, start):
                yield end, (number, value)
    else:
        assert isinstance(expression, Repeated)
        yield from _rounds(expression, text, start, 0)


def _in_a_row(items: tuple[Expression, ...], text: str, start: int) -> Iterator[tuple[int, list[object]]]:
    if not items:
        yield start, []
        return
    for middle, first in divisions(items[0], text, start):
        for end, others in _in_a_row(items[1:], text, middle):
            yield end, [first, *others]


def _rounds(repeated: Repeated, text: str, start: int, count: int) -> Iterator[tuple[int, list[object]]]:
    if repeated.max is None or count < repeated.max:
        for middle, first in divisions(repeated.item, text, start):
            if middle == start and count >= repeated.min:
                continue  # a round that is not needed reads something
            for end, others in _rounds(repeated, text, middle, count + 1):
                yield end, [first, *others]
    if count >= repeated.min:
        yield start, []


def first_division(expression: Expression, text: str) -> list[object]:
    """The value of the first division of the whole text, in a list; an empty list if there is none."""
    return next(([value] for end, value in divisions(expression, text) if end == len(text)), [])


def is_free_text(text: str, excludes: list[str], not_ending: list[str], low: int, high: int | None) -> bool:
    """What `free_text` promises, of one text."""
    return (
        not any(word in text for word in excludes)
        and not any(text.endswith(word) for word in not_ending)
        and low <= len(text) <= (len(text) if high is None else high)
    )


def first_occurrence(text: str, words: list[str]) -> int | None:
    """Where the first word to be complete in a text is complete; None if none is."""
    return next((end for end in range(len(text) + 1) if any(text[:end].endswith(word) for word in words)), None)
