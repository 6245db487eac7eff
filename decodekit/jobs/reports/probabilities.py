"""The probability of each value of an output: that of the least probable of the tokens that spell it.

The probabilities are the model's own, before constraint, penalties and temperature. So a value that the constraint
pushed the model into has a low one, which is what one wants to see.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from decodekit.records.strict_json import pointer_of

if TYPE_CHECKING:
    from decodekit.llm import Completion
    from decodekit.vocabulary import Vocabulary

_WHITE_SPACE = " \t\r\n"
_decode_scalar = json.JSONDecoder().raw_decode


def value_spans(text: str) -> Iterator[tuple[str, int, int]]:
    """The scalars and empty containers of a JSON text, each as (JSON Pointer, first character, one past the last).

    The text must be JSON; `json.loads` has seen it before.
    """
    # An explicit stack, not recursion: json.loads accepts deeper values than Python frames allow.
    # Each open container: its pointer, and the number of the next item, or None for an object.
    stack: list[tuple[str, int | None]] = []
    position, pointer = 0, ""
    while True:
        position = _skip(text, position)
        opener = text[position]
        inside = _skip(text, position + 1) if opener in "{[" else 0
        if opener in "{[" and text[inside] not in "}]":
            stack.append((pointer, None if opener == "{" else 0))
            position = inside
        else:
            end = inside + 1 if opener in "{[" else _decode_scalar(text, position)[1]
            yield pointer, position, end
            position = _skip(text, end)
            while stack and text[position] in "}]":
                stack.pop()
                position = _skip(text, position + 1)
            if not stack:
                return
            position = _skip(text, position + 1)  # past the comma
        parent, number = stack[-1]
        if number is None:
            key, position = _decode_scalar(text, position)
            position = _skip(text, position) + 1  # past the colon
            pointer = parent + pointer_of([key])
        else:
            stack[-1] = (parent, number + 1)
            pointer = f"{parent}/{number}"


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITE_SPACE:
        position += 1
    return position


def value_probabilities(completion: Completion, vocabulary: Vocabulary, *, is_json: bool = True) -> dict[str, float]:
    """For each scalar of a JSON output, by JSON Pointer, the lowest probability among its tokens, to 4 digits.

    An output that is not JSON is one value. A token counts for a value when it holds at least one byte of it. Nothing
    is said about the empty text, and one whose bytes are not those of its tokens (cut at a stop string).
    """
    probabilities: list[float] = []  # of the token that each byte is in
    for entry in completion.logprobs or ():
        probabilities += [math.exp(entry.logprob)] * len(vocabulary.token_bytes[entry.token_id] or b"")
    text = completion.text
    if not text or len(probabilities) != len(text.encode()):
        return {}
    result: dict[str, float] = {}
    byte, character = 0, 0
    for pointer, start, end in value_spans(text) if is_json else [("", 0, len(text))]:
        first = byte + len(text[character:start].encode())
        byte, character = first + len(text[start:end].encode()), end
        result[pointer] = float(f"{min([1.0, *probabilities[first:byte]]):.4g}")
    return result
