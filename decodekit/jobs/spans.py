"""Where the values of an output stand in the document it was read from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from decodekit.jobs.probabilities import escape_pointer


def scalars(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """The scalars of a JSON value with their JSON Pointers, in order."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from scalars(item, f"{pointer}/{escape_pointer(key)}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from scalars(item, f"{pointer}/{number}")
    else:
        yield pointer, value


def find_spans(text: str, value: Any) -> dict[str, tuple[int, int]]:
    """For each scalar of `value` that stands verbatim in `text`: its first place that no longer value has taken.

    Texts are found as words (not inside other words), first with their case and then without; numbers in the spellings
    ``40.2``, ``40.20``, ``1,040.20``. true, false and null are not looked for.

    Returns:
        (first character, one past the last) by JSON Pointer.
    """
    wanted = [(pointer, spellings) for pointer, scalar in scalars(value) if (spellings := _spellings(scalar))]
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


def _spellings(scalar: Any) -> list[str]:
    if isinstance(scalar, str):
        return [scalar] if scalar.strip() else []
    if isinstance(scalar, bool) or scalar is None:
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
