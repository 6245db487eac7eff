"""The tokens that complete a JSON value, found by its quotes and brackets alone.

Which tokens make a text whole is asked before every token under a guard. In general each token has to be followed to
its end, where an object with free keys leads to a state for every key; but an array or object is whole exactly where
its brackets are balanced, and a string at its second quote. So the tokens of a vocabulary are sorted once, by where
they start (outside or inside a string, behind its backslash) and by how many brackets they close. That tells, too,
which tokens complete a value inside of a text (see `Watch`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from decodekit.constraints.constraint import ESCAPE, OUTSIDE, STRING, UNQUOTED, Watch
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.memory_account import Memo
from decodekit.vocabulary import Vocabulary


class Nesting(NamedTuple):
    """The nesting at a place of a JSON text: outside, inside a string or behind its backslash; the open brackets."""

    mode: int = OUTSIDE
    depth: int = 0

    def after(self, data: bytes) -> Nesting:
        """The nesting after some more bytes of a JSON text."""
        mode, depth = self
        for byte in data:
            mode, change = _step(mode, byte)
            depth += change
        return Nesting(mode, depth)

    @property
    def end(self) -> Watch:
        """The tokens that make a text whole that is an array, an object or a string: what they complete."""
        if self.depth:
            return Watch(self.mode, num_closed=self.depth)
        return Watch(self.mode, num_before=0) if self.mode == OUTSIDE else Watch(self.mode, is_scalar=True)


def _step(mode: int, byte: int) -> tuple[int, int]:
    """The next mode, and by how much the depth changes."""
    if mode == ESCAPE:
        return STRING, 0
    if byte == 0x22:
        return (STRING if mode == OUTSIDE else OUTSIDE), 0
    if mode == STRING:
        return (ESCAPE if byte == 0x5C else STRING), 0
    return OUTSIDE, (byte in b"[{") - (byte in b"]}")


_OUTSIDE_STRINGS: Final = b" \t\r\n,:[]{}0123456789eE+.truefalsn-"
_BETWEEN: Final = rb'(?:[ \t\r\n,:\[\]{}0-9eE+.truefalsn-]|"(?:[^"\\]|\\.)*(?:"|\\?$))*'
_REST: Final = rb'(?:[^"\\]|\\.)*"'  # of a string
_PIECES: Final = {
    OUTSIDE: re.compile(_BETWEEN, re.DOTALL),
    STRING: re.compile(_REST + _BETWEEN, re.DOTALL),
    ESCAPE: re.compile(b"." + _REST + _BETWEEN, re.DOTALL),
}
"""What a token that completes something in a JSON text looks like, by where it begins."""
MAX_WATCHED: Final = 256
"""So many sets of tokens are kept for a vocabulary."""


class Completed(NamedTuple):
    """The JSON values that a token completes: up to which byte, and of which kinds.

    Attributes:
        num_bytes: up to the end of the last thing that it completes; 0 if it completes nothing.
        is_scalar: whether it may end a string, number or word that was begun before.
        num_closed: how many brackets it closes that were opened before.
        is_own: whether it may complete something that it begins itself; `is_inner`: inside of brackets that it opens.
    """

    num_bytes: int
    is_scalar: bool
    num_closed: int
    is_own: bool
    is_inner: bool


def completed(data: bytes, mode: int) -> Completed:
    """The JSON values that a piece of a text completes, begun in a mode; too many for some that cannot be a piece."""
    is_scalar = is_own = is_inner = is_plain = False
    is_begun = mode != OUTSIDE  # the string was begun before
    num_opened = num_closed = last = 0

    def ends(number: int) -> None:
        """Something ends that the token began."""
        nonlocal is_own, is_inner, last
        is_own, is_inner, last = is_own or num_opened == 0, is_inner or num_opened > 0, number

    for number, byte in enumerate(data, 1):
        was, (mode, change) = mode, _step(mode, byte)
        if was != OUTSIDE:
            if mode == OUTSIDE and is_begun:
                is_scalar, is_begun, last = True, False, number
            elif mode == OUTSIDE:
                ends(number)
            continue
        if byte in UNQUOTED:  # of a number or word, which may have begun before; a word may end here
            is_plain = True
            if byte in b"el":
                is_scalar = True
                ends(number)
            continue
        if is_plain:
            ends(number)
        if is_plain or number == 1:
            is_scalar, is_plain, last = True, False, number
        num_opened += change
        if num_opened < 0:
            num_opened, num_closed, last = 0, num_closed + 1, number
        elif change < 0:
            ends(number)
    return Completed(last, is_scalar, num_closed, is_own, is_inner)


_Asked: TypeAlias = tuple[list[int], list[bytes], npt.NDArray[np.int64], Int32Array]
"""Tokens that complete something that is judged, their bytes up to its end, and their words and bits in a mask."""


class CompletingTokens:
    """The tokens of one vocabulary that complete something in a JSON text, by the mode in which they begin."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        asked = [
            (token, data)
            for token, data in enumerate(vocabulary.token_bytes)
            if data and (b'"' in data or not data.translate(None, _OUTSIDE_STRINGS))  # the others complete nothing
        ]
        # The tokens that complete something where they begin in a mode, with what, and the bytes up to its end.
        self._by_mode = {
            mode: [
                (token, data[: what.num_bytes], what)
                for token, data in asked
                if piece.fullmatch(data) and (what := completed(data, mode)).num_bytes
            ]
            for mode, piece in _PIECES.items()
        }
        self._watched: Memo[Watch, _Asked] = Memo(self._of, MAX_WATCHED)

    def at(self, watch: Watch, allowed: Int32Array) -> dict[bytes, list[int]]:
        """The tokens of a mask, int32 [words], that may complete what is judged, by their bytes up to its end."""
        tokens, beginnings, words, bits = self._watched[watch]
        found: dict[bytes, list[int]] = {}
        for number in (allowed[words] & bits).nonzero()[0].tolist():
            found.setdefault(beginnings[number], []).append(tokens[number])
        return found

    def _of(self, watch: Watch) -> _Asked:
        tokens = [
            (token, beginning)
            for token, beginning, what in self._by_mode[watch.mode]
            if (watch.is_scalar and what.is_scalar)
            or 0 <= watch.num_closed <= what.num_closed
            or (what.is_own and 0 <= watch.num_before <= what.num_closed)
            or (what.is_inner and 0 <= watch.num_around <= what.num_closed)
        ]
        numbers = np.array([token for token, _ in tokens], dtype=np.int64)
        bits = (1 << (numbers & 31)).astype(np.uint32).view(np.int32)
        return [token for token, _ in tokens], [beginning for _, beginning in tokens], numbers >> 5, bits


@lru_cache(maxsize=8)
def completing_tokens_of(vocabulary: Vocabulary) -> CompletingTokens:
    """The completing tokens of a vocabulary, sorted once."""
    return CompletingTokens(vocabulary)
