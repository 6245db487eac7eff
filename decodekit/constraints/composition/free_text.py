"""Free text that holds none of a few words: a language whose states are places in those words, and a count.

The places are those of A. Aho and M. Corasick, Efficient string matching (1975): after every character, the longest
ending of the text that begins a word. A text is in UTF-8, so a word is met on a character boundary only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from decodekit.constraints.language import utf8
from decodekit.constraints.language.ir import EPSILON, bytes_of
from decodekit.constraints.language.node import ByteMask, Node, Transitions
from decodekit.constraints.memory_account import Memo

_CHARACTER: Final = utf8.charset(utf8.EVERYTHING)
_FOUND: Final = -1  # where a word is complete, which no text may reach

_Row: TypeAlias = tuple[ByteMask, int, Node]


class _Places:
    """The places of a text in the words that it must not hold, or not end with; compared by identity.

    Attributes:
        may_end: by place, whether the text may end there.
        rows: by a place, the rest of a character and whether the text has to end after it: bytes that go on with the
            character, each with the place and the rest after them.
    """

    def __init__(self, excludes: Iterable[bytes], not_ending: Iterable[bytes]) -> None:
        children: list[dict[int, int]] = [{}]
        is_found, self.may_end = [False], [True]
        for word, is_excluded in [*((word, True) for word in excludes), *((word, False) for word in not_ending)]:
            place = 0
            for byte in word:
                if byte not in children[place]:
                    children[place][byte] = len(children)
                    children.append({})
                    is_found.append(False)
                    self.may_end.append(True)
                place = children[place][byte]
            if is_excluded:
                is_found[place] = True
            else:
                self.may_end[place] = False
        # next[place][byte], breadth first: without a child, as from the longest ending that is a place of its own.
        self._next: list[list[int]] = [[0] * 256 for _ in children]
        suffix = [0] * len(children)
        agenda = [0]
        for place in agenda:  # grows while it is read
            row = self._next[place]
            if place:
                row[:] = self._next[suffix[place]]
            for byte, child in children[place].items():
                suffix[child] = row[byte]
                is_found[child] |= is_found[suffix[child]]
                self.may_end[child] &= self.may_end[suffix[child]]
                row[byte] = child
                agenda.append(child)
        for row in self._next:
            row[:] = [_FOUND if is_found[place] else place for place in row]
        self.rows: Memo[tuple[int, Node, bool], tuple[_Row, ...]] = Memo(self._find_rows)

    def _find_rows(self, key: tuple[int, Node, bool]) -> tuple[_Row, ...]:
        place, rest, is_last = key
        masks: dict[tuple[int, Node], ByteMask] = {}
        for mask, after in rest.transitions():
            for byte in bytes_of(mask):
                target = self._next[place][byte]
                if target != _FOUND and self._is_alive(target, after, is_last):
                    masks[target, after] = masks.get((target, after), 0) | 1 << byte
        return tuple((mask, target, after) for (target, after), mask in masks.items())

    def _is_alive(self, place: int, rest: Node, is_last: bool) -> bool:
        if rest is EPSILON:
            # Where more characters may come, one that is in no word leads to where the text may end.
            return not is_last or self.may_end[place]
        return bool(self.rows[place, rest, is_last])


@dataclass(frozen=True, slots=True)
class FreeText(Node):
    """The free text behind one place: `rest` of the character that was begun, then `low` to `high` characters more."""

    can_be_empty = False
    is_labelled = False
    has_counts: bool = field()
    places: _Places
    place: int
    rest: Node
    low: int
    high: int | None

    @property
    def labels(self) -> tuple[None, ...]:
        """None if the text may end here."""
        return (None,) if self.rest is EPSILON and self.low == 0 and self.places.may_end[self.place] else ()

    def transitions(self) -> Transitions:
        """As in `Node`."""
        rest, low, high = self.rest, self.low, self.high
        if rest is EPSILON:
            if high == 0:
                return ()
            rest, low, high = _CHARACTER, max(low - 1, 0), None if high is None else high - 1
        rows = self.places.rows[self.place, rest, high == 0]
        return tuple((mask, _free_text(self.places, place, after, low, high)) for mask, place, after in rows)

    def saturated(self, limit: int) -> Node:
        """As in `Node`: `limit` bytes are that many characters at most."""
        high = None if self.high is None or self.high > limit else self.high
        return _free_text(self.places, self.place, self.rest, min(self.low, limit + 1), high)


def _free_text(places: _Places, place: int, rest: Node, low: int, high: int | None) -> Node:
    return FreeText(low > 0 or high is not None, places, place, rest, low, high)


@lru_cache(maxsize=256)
def _places(excludes: frozenset[str], not_ending: frozenset[str]) -> _Places:
    return _Places(sorted(word.encode() for word in excludes), sorted(word.encode() for word in not_ending))


def free_text(
    excludes: Iterable[str] = (), not_ending: Iterable[str] = (), low: int = 0, high: int | None = None
) -> Node:
    """Texts of `low` to `high` characters that hold none of `excludes` and end with none of `not_ending`.

    The words are not empty, and ``low <= high``. ``high=None`` has no bound.
    """
    return _free_text(_places(frozenset(excludes), frozenset(not_ending)), 0, EPSILON, low, high)


def endings_before(word: str, words: Sequence[str]) -> frozenset[str]:
    """The endings of a text without `words` that would let one of them be met before `word` behind the text is over.

    ``"ab"`` before ``"aba"``: in ``"ab" + "aba"`` the word is found after three characters. With the texts that end
    with none of these, the first that is found of `words` is the word behind the text, if it holds no other.
    """
    return frozenset(
        one[:cut]
        for one in words
        for cut in range(1, len(one))
        if len(one) - cut < len(word) and word.startswith(one[cut:])
    )
