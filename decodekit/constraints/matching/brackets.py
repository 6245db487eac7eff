"""The tokens that end a JSON string, array or object, found by its quotes and brackets alone.

Which tokens make a text whole is asked before every token under a guard. In general each token has to be followed to
its end, where an object with free keys leads to a state for every key; but an array or object is whole exactly where
its brackets are balanced, and a string at its second quote. So the tokens of a vocabulary are sorted once, by where
they start (outside or inside a string, behind its backslash) and by how many brackets they close.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from decodekit.vocabulary import Vocabulary

_OUTSIDE: Final = 0
_STRING: Final = 1
_ESCAPE: Final = 2


class Nesting(NamedTuple):
    """Where a JSON text has got to.

    Attributes:
        mode: outside or inside a string, or behind its backslash. `depth`: number of open brackets.
    """

    mode: int = _OUTSIDE
    depth: int = 0

    def after(self, data: bytes) -> Nesting:
        """The nesting after some more bytes of a JSON text."""
        mode, depth = self
        for byte in data:
            mode, change = _step(mode, byte)
            depth += change
        return Nesting(mode, depth)


def _step(mode: int, byte: int) -> tuple[int, int]:
    """The next mode, and by how much the depth changes."""
    if mode == _ESCAPE:
        return _STRING, 0
    if byte == 0x22:
        return (_STRING if mode == _OUTSIDE else _OUTSIDE), 0
    if mode == _STRING:
        return (_ESCAPE if byte == 0x5C else _STRING), 0
    return _OUTSIDE, (byte in b"[{") - (byte in b"]}")


class ClosingTokens:
    """The tokens of one vocabulary by the nesting at which they end a JSON array or object."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._by_nesting: dict[Nesting, list[int]] = {}
        for token, data in enumerate(vocabulary.token_bytes):
            if data and data[-1] in b'"]}':
                for mode in (_OUTSIDE, _STRING, _ESCAPE):
                    depth = _num_closed(data, mode)
                    if depth is not None:
                        self._by_nesting.setdefault(Nesting(mode, depth), []).append(token)

    def at(self, nesting: Nesting) -> list[int]:
        """The tokens whose last byte, and no earlier one, closes the outermost bracket, or a string outside of all."""
        return self._by_nesting.get(nesting, [])


def _num_closed(data: bytes, mode: int) -> int | None:
    """The depth at which `data` makes a value whole with its last byte, and with no earlier one; None if at none."""
    depth = 0
    depths = []
    modes = []
    for byte in data[:-1]:
        mode, change = _step(mode, byte)
        depth += change
        depths.append(depth)
        modes.append(mode)
    if data[-1:] == b'"':
        return 0 if mode == _STRING and _OUTSIDE not in modes else None
    is_inside = all(earlier >= depth for earlier in depths)  # else the outermost bracket was closed before
    return 1 - depth if mode == _OUTSIDE and depth <= 1 and is_inside else None


@lru_cache(maxsize=8)
def closing_tokens_of(vocabulary: Vocabulary) -> ClosingTokens:
    """The closing tokens of a vocabulary, sorted once."""
    return ClosingTokens(vocabulary)
