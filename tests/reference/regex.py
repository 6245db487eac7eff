"""The slow twin of patterns: where each part of one may end in a text, tried place by place.

Patterns are trees here and no strings, so nothing is parsed. Without groups that are remembered the order of the ways
does not matter, and a round that reads nothing leads nowhere new: the set of places says all (ECMA-262, 22.2.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Char:
    """One character, by how it is written and which characters of the alphabet it is."""

    text: str
    members: str


@dataclass(frozen=True, slots=True)
class Place:
    r"""An assertion about a place: ``^``, ``$``, ``\b``, ``\B``, or nothing at all."""

    text: str


@dataclass(frozen=True, slots=True)
class Join:
    """Two parts, one after the other, or, with ``|``, either."""

    first: Tree
    second: Tree
    is_either: bool


@dataclass(frozen=True, slots=True)
class Quantifier:
    """How often, and how that is written."""

    text: str
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Rounds:
    """A part several times."""

    body: Tree
    quantifier: Quantifier


@dataclass(frozen=True, slots=True)
class Look:
    """A part that follows, ``(?=``, or does not, ``(?!``, and is not read."""

    body: Tree
    is_negative: bool


@dataclass(frozen=True, slots=True)
class Atomic:
    """A part of which the first way counts, for `re`; here nothing says what it means."""

    body: Tree


Tree: TypeAlias = Char | Place | Join | Rounds | Look | Atomic


def written(tree: Tree) -> str:
    """The tree as a pattern."""
    if isinstance(tree, Char | Place):
        return tree.text
    if isinstance(tree, Join):
        if tree.is_either:
            return f"{written(tree.first)}|{written(tree.second)}"
        return "".join(
            f"(?:{written(part)})" if isinstance(part, Join) and part.is_either else written(part)
            for part in (tree.first, tree.second)
        )
    if isinstance(tree, Rounds):
        body = written(tree.body)
        return f"{body if isinstance(tree.body, Char) and len(body) == 1 else f'(?:{body})'}{tree.quantifier.text}"
    if isinstance(tree, Atomic):
        return f"(?>{written(tree.body)})"
    return f"(?{'!' if tree.is_negative else '='}{written(tree.body)})"


Ends: TypeAlias = npt.NDArray[np.uint8]
"""For each place of all texts, where a part that starts there may end: bit k for k characters further."""

_BETWEEN: Final = "\0"


class Places:
    """Where trees may end in each of some texts, which are short.

    Args:
        texts: of at most seven characters, none of which is U+0000.
        word: the characters of words.
    """

    def __init__(self, texts: Sequence[str], word: str = "") -> None:
        assert all(len(text) <= 7 for text in texts)
        self.all = _BETWEEN.join(texts)
        self.word = word
        self.starts = [0, *itertools.accumulate(len(text) + 1 for text in texts)][:-1]
        self.lengths = np.array([len(text) for text in texts])
        self.ends = cache(self._ends)

    def _ends(self, tree: Tree) -> Ends:
        if isinstance(tree, Char):
            return np.array([2 * (char in tree.members) for char in (*self.all, _BETWEEN)], np.uint8)
        if isinstance(tree, Place):
            return np.array([self._holds(tree.text, place) for place in range(len(self.all) + 1)], np.uint8)
        if isinstance(tree, Look):
            return ((self.ends(tree.body) != 0) != tree.is_negative).astype(np.uint8)
        if isinstance(tree, Join):
            first, second = self.ends(tree.first), self.ends(tree.second)
            return first | second if tree.is_either else _follow(first, second)
        if isinstance(tree, Atomic):
            raise ValueError("the order of the ways matters here")
        body, low, high = self.ends(tree.body), tree.quantifier.low, tree.quantifier.high
        rounds, found = np.ones_like(body), np.zeros_like(body)
        # Of further rounds without a bound each reads a character, or it leads nowhere new.
        for count in range(low + 8 if high is None else high + 1):
            if count >= low:
                found |= rounds
            rounds = _follow(rounds, body)
        return found

    def _holds(self, kind: str, place: int) -> bool:
        before, after = self.all[:place][-1:] or _BETWEEN, self.all[place : place + 1] or _BETWEEN
        if kind in ("(?:)", "^", "$"):
            return kind == "(?:)" or (before if kind == "^" else after) == _BETWEEN
        return ((before in self.word) != (after in self.word)) == (kind == r"\b")

    def whole(self, tree: Tree) -> int:
        """The texts that the tree matches from start to end: a bit for each."""
        return _number(self.ends(tree)[self.starts] >> self.lengths & 1)

    def found(self, tree: Tree) -> int:
        """The texts in which the tree matches somewhere: a bit for each."""
        return _number(np.logical_or.reduceat(self.ends(tree) != 0, self.starts))


def _follow(first: Ends, second: Ends) -> Ends:
    """Ends of two parts, one after the other."""
    ends = np.zeros_like(first)
    for length in range(6):
        moved = np.zeros_like(second)
        moved[: len(second) - length] = second[length:] << length
        ends |= np.where(first >> length & 1, moved, 0)
    return ends


def _number(bits: npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(bits.astype(np.bool_), bitorder="little").tobytes(), "little")


@dataclass(frozen=True)
class World:
    """What patterns are made of.

    Attributes:
        alphabet: the letters of the texts.
        leaves: the smallest patterns.
        quantifiers: how often a part may stand.
        has_lookahead, has_atomic: whether there are such groups.
    """

    alphabet: str
    leaves: tuple[Tree, ...]
    quantifiers: tuple[Quantifier, ...]
    has_lookahead: bool = False
    has_atomic: bool = False

    def trees(self, size: int) -> Iterator[Tree]:
        """All trees with at most this number of operators."""
        levels: list[list[Tree]] = [list(self.leaves)]
        yield from self.leaves
        for _ in range(size):
            levels.append(list(self._next(levels)))
            yield from levels[-1]

    def _next(self, levels: list[list[Tree]]) -> Iterator[Tree]:
        """Those with one operator more."""
        for tree in levels[-1]:
            yield from (Rounds(tree, quantifier) for quantifier in self.quantifiers)
            if self.has_lookahead:
                yield from (Look(tree, is_negative) for is_negative in (False, True))
            if self.has_atomic:
                yield Atomic(tree)
        for number, level in enumerate(levels):
            for first, second in itertools.product(level, levels[len(levels) - 1 - number]):
                yield from (Join(first, second, is_either) for is_either in (False, True))
