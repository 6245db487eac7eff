"""Special tokens inside a constraint: spelled with bytes that no text has.

The engine reads bytes. A special token has none, so it is given a spelling that cannot be met in UTF-8: its name
between two bytes 0xFF, or its id between two bytes 0xFE. A constraint that wants the token reads its spelling; the
vocabulary's trie holds the spellings beside the texts of the other tokens, so masks need to know nothing of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from decodekit.vocabulary import Vocabulary

_BY_NAME: Final = b"\xff"
_BY_ID: Final = b"\xfe"


def spelling(token: str | int) -> bytes:
    """The bytes that stand for a special token, given by its name or its id."""
    if isinstance(token, int):
        return _BY_ID + str(token).encode() + _BY_ID
    return _BY_NAME + token.encode() + _BY_NAME


def is_text(data: bytes) -> bool:
    """Whether bytes can be part of a text in UTF-8, as those of a spelling cannot."""
    return data.isascii() or (_BY_NAME not in data and _BY_ID not in data)


@lru_cache(maxsize=8)
def spellings(vocabulary: Vocabulary) -> dict[int, tuple[bytes, ...]]:
    """All spellings of each special token that has a name and no bytes, those that end a text excepted."""
    found: dict[int, tuple[bytes, ...]] = {}
    for name, token in vocabulary.special_tokens.items():
        if vocabulary.token_bytes[token] is None and token not in vocabulary.eos_token_ids:
            found[token] = (*found.get(token, (spelling(token),)), spelling(name))
    return found


def without_spellings(path: bytes) -> bytes:
    """The text of what was read: without the special tokens."""
    if is_text(path):
        return path
    text, place = bytearray(), 0
    while place < len(path):
        mark = path[place : place + 1]
        if mark in (_BY_NAME, _BY_ID):
            place = path.index(mark, place + 1) + 1
        else:
            text += mark
            place += 1
    return bytes(text)
