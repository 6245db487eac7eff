"""Where in a JSON value a text breaks off."""

from __future__ import annotations

import json
import re

from decodekit.jobs.probabilities import escape_pointer

# A string with its end, a string without one, or a character that opens, closes or separates.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|"|[\[\]{},]', re.DOTALL)


def open_pointer(text: str) -> str | None:
    """The JSON Pointer of the innermost value that `text`, the beginning of a JSON text, leaves open.

    ``""`` is the whole value; a member whose name is not complete counts as its object. None if the text cannot be the
    beginning of a JSON text.
    """
    # One entry per open container: the number of the present item, or the present key (None before there is one).
    stack: list[int | str | None] = []
    try:
        for match in _TOKEN.finditer(text):
            token = match[0]
            if token == '"':
                break
            if token == "{":
                stack.append(None)
            elif token == "[":
                stack.append(0)
            elif token in "]}":
                stack.pop()
            elif token == ",":
                present = stack[-1]
                stack[-1] = present + 1 if isinstance(present, int) else None
            elif stack and stack[-1] is None:
                stack[-1] = json.loads(token)
    except (IndexError, ValueError):
        return None
    return "".join(f"/{escape_pointer(str(part))}" for part in stack if part is not None)
