"""Where the values of an output stand in the document it was read from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from decodekit.records.strict_json import leaves, pointer_of


def find_spans(text: str, value: Any) -> dict[str, tuple[int, int]]:
    """For each scalar of `value` that stands verbatim in `text`: its first place that no longer value has taken.

    Texts are found as words (not inside other words), first with their case and then without; numbers in the spellings
    ``40.2``, ``40.20``, ``1,040.20``. true, false and null are not looked for.

    Returns:
        (first character, one past the last) by JSON Pointer.
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
    """How a leaf of a JSON value may be written in a text."""
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
