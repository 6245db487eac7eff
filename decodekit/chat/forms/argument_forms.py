r"""The forms of the arguments of calls: as JSON, or one by one as elements.

{"k": "v", "l": [1]}  stands in the text                            JSON, with these separators
<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n      elements; with two arguments it shows what
<arg_key>l</arg_key>\n<arg_value>w</arg_value>\n</tool_call>        stands between them, and without any, what stays
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from decodekit.chat.forms.prompt_outline import shared_begin, shared_end
from decodekit.chat.forms.renderings import KEYS, VALUES, Renderings, call_of, whole_places
from decodekit.constraints.json_schema.notation import Values
from decodekit.constraints.tool_calls.format import Arguments, ElementArguments, JsonArguments

SEVERAL: Final = {KEYS[0]: VALUES[0], KEYS[1]: [1, {"k": "é"}], KEYS[2]: True}
TEXTS: Final = ("'a\"b'c", "a'b", 'a"b', "a\\b", "a\nb\tc", "é\u20ac", "<b>&", "", "true", "12", "a b")
OTHERS: Final = (True, False, None, 0, -12, 1.5, 2.0, 12345678901)
NESTED: Final[tuple[Any, ...]] = (
    [],
    {},
    ["x", None],
    [1, "a'b", None, True, [2.5]],
    {"k": 'a"b', "l": {"m": [False]}, "é": "é"},
)
_NUMBERS: Final = (7130451, 7130452)
_MANY_DIVISIONS: Final = 4


def argument_forms(renderings: Renderings) -> Iterator[Arguments]:
    """The forms that arguments may have, the likeliest first."""
    written = renderings.called(SEVERAL) or renderings.response("", (call_of(0, SEVERAL), call_of(1))) or ""
    is_sorted = _sorts(renderings)
    for is_quoted, is_ascii, item, key in itertools.product((False, True), (False, True), (", ", ","), (": ", ":")):
        form = JsonArguments(Values(item=item, key=key, is_ascii=is_ascii, is_sorted=is_sorted), is_quoted)
        if form.written(SEVERAL) in written:
            yield form
    yield from _elements(renderings)


def _sorts(renderings: Renderings) -> bool:
    """Whether the keys of arguments are sorted, whatever their order was."""
    written = renderings.called({KEYS[1]: VALUES[1], KEYS[0]: VALUES[0]})
    return -1 < written.find(KEYS[0]) < written.find(KEYS[1])


class _Around(NamedTuple):
    """The texts before the first key, between key and value, between value and key, and behind the last value."""

    before: str
    middle: str
    between: str
    behind: str


def _around(renderings: Renderings, values: Sequence[Any]) -> _Around | None:
    one, two = (renderings.called(dict(zip(KEYS[:count], values, strict=False))) for count in (1, 2))
    words = [re.escape(str(word)) for pair in zip(KEYS, values, strict=False) for word in pair]
    single = re.search("(.*?)".join(words[:2]), one, re.DOTALL)
    pair = re.search("(.*?)".join(words[:4]), two, re.DOTALL)
    if single is None or pair is None:
        return None
    return _Around(one[: single.start()], pair[1], pair[2], one[single.end() :])


def _elements(renderings: Renderings) -> Iterator[ElementArguments]:
    texts, numbers = _around(renderings, VALUES), _around(renderings, _NUMBERS)
    if texts is None:
        return
    quote, middle_of_others = "", None
    if numbers is not None and texts.middle != numbers.middle:
        quote = texts.middle.removeprefix(numbers.middle) if texts.middle.startswith(numbers.middle) else ""
        if quote and texts.behind == quote + numbers.behind:
            texts = numbers
        else:
            quote, middle_of_others = "", numbers.middle
    none = renderings.response("", (call_of(0, {}),))
    for num_begin, num_end in _divisions(texts, none):
        before, middle, between, behind = texts
        head, tail = before[: len(before) - num_begin], behind[num_end:]
        separator = between[num_end : len(between) - num_begin]
        form = ElementArguments(
            before[len(head) :], middle, behind[:num_end], separator, middle_of_others=middle_of_others
        )
        yield replace(form, values=_values(renderings, form, head, tail, quote))


def _divisions(around: _Around, none: str | None) -> list[tuple[int, int]]:
    """The numbers of characters before a key, and behind a value, that are of the element; the likeliest first.

    before = head + begin, behind = end + tail, between = end + separator + begin; without arguments, head + tail, maybe
    with fewer blanks.
    """
    before, _, between, behind = around
    found = []
    begins, ends = len(shared_end((before, between))), len(shared_begin((between, behind)))
    for num_begin, num_end in itertools.product(range(begins + 1), range(ends + 1)):
        head, tail, rest = before[: len(before) - num_begin], behind[num_end:], len(between) - num_begin
        is_same = none is None or none == head + tail
        if num_end > rest or not (is_same or "".join(str(none).split()) == "".join((head + tail).split())):
            continue
        cuts = ((before, len(head)), (between, rest), (between, num_end), (behind, num_end))
        num_divided = sum(len({*whole_places(*cut)}) > 1 for cut in cuts)
        has_blanks = before[len(head) :][:1].isspace()
        found.append((not is_same, num_divided, has_blanks, rest - num_end, -num_begin, num_begin, num_end))
    return [one[-2:] for one in sorted(found)[:_MANY_DIVISIONS]]


def _values(renderings: Renderings, form: ElementArguments, head: str, tail: str, quote: str) -> Values:
    """The form of values: that of most arguments of all types."""
    shown: list[tuple[Any, str]] = []
    for value in (*TEXTS, *OTHERS, *NESTED):
        written = renderings.called({KEYS[0]: value})
        middle = form.middle if isinstance(value, str) or form.middle_of_others is None else form.middle_of_others
        begin, end = f"{head}{form.begin}{KEYS[0]}{middle}", form.end + tail
        if written.startswith(begin) and written[len(begin) :].endswith(end):
            shown.append((value, written[len(begin) : len(written) - len(end)]))
    spellings = {"": ("raw",), '"': ("json", "python"), "'": ("python",)}.get(quote, (quote,))
    nulls = (None, "json", "python")
    choices = itertools.product(
        spellings, ("json", "python"), ("json", "python", "own"), (", ", ","), (": ", ":"), (False, True), nulls
    )
    found = max(
        (Values(*choice) for choice in choices),  # type: ignore[arg-type]
        key=lambda values: (sum(_is_written(values, *one) for one in shown), values.null is None),
    )
    return replace(found, is_sorted=_sorts(renderings))


def _is_written(values: Values, value: Any, text: str) -> bool:
    try:
        return values.written(value) == text
    except ValueError:  # the text holds the mark around it
        return False
