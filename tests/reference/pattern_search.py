"""The slow twin of `regex.pattern_search`: every way through a text, one after the other, and nothing remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from decodekit.constraints.regex.tree import (
    Alternation,
    Assertion,
    Atomic,
    Capture,
    Chars,
    Concatenation,
    Lookahead,
    Lookbehind,
    Quantified,
    Reference,
    Tree,
    children,
)

_Groups: TypeAlias = tuple[tuple[int, int] | None, ...]
_Way: TypeAlias = tuple[int, _Groups]
"""A place of the text, and where each group begins and ends."""


def is_found(tree: Tree, num_groups: int, text: str) -> bool:
    """Whether the pattern matches somewhere in a text."""
    return count(tree, num_groups, text)[0]


def count(tree: Tree, num_groups: int, text: str) -> tuple[bool, int]:
    """Whether it matches, and how many ways were tried."""
    match = _Match(text)
    none: _Groups = (None,) * num_groups
    ways = (True for start in range(len(text) + 1) for _ in match.ways(tree, (start, none), is_forward=True))
    return any(ways), match.num_steps


@dataclass(slots=True)
class _Match:
    """The ways through one text."""

    text: str
    num_steps: int = 0

    def ways(self, tree: Tree, way: _Way, *, is_forward: bool) -> Iterator[_Way]:
        """The ways from a place through a tree; to the left inside of a lookbehind."""
        self.num_steps += 1
        place, groups = way
        match tree:
            case Chars(ranges):
                at = place if is_forward else place - 1
                if 0 <= at < len(self.text) and any(low <= ord(self.text[at]) <= high for low, high in ranges):
                    yield at + is_forward, groups
            case Concatenation(items):
                yield from self._sequence(items if is_forward else items[::-1], way, is_forward)
            case Alternation(options):
                for option in options:
                    yield from self.ways(option, way, is_forward=is_forward)
            case Quantified():
                yield from self._rounds(tree, way, is_forward)
            case Capture(item, number):
                for end, found in self.ways(item, way, is_forward=is_forward):
                    yield end, (*found[:number], (min(place, end), max(place, end)), *found[number + 1 :])
            case Reference():
                yield from self._repeated(tree, way, is_forward)
            case Lookahead(item, is_negative) | Lookbehind(item, is_negative):
                found_way = next(self.ways(item, way, is_forward=isinstance(tree, Lookahead)), None)
                if (found_way is None) == is_negative:
                    yield place, groups if found_way is None else found_way[1]
            case Atomic(item):
                yield from self._first(self.ways(item, way, is_forward=is_forward))
            case Assertion():
                if self._holds(tree, place):
                    yield way

    @staticmethod
    def _first(ways: Iterator[_Way]) -> Iterator[_Way]:
        way = next(ways, None)
        if way is not None:
            yield way

    def _sequence(self, items: tuple[Tree, ...], way: _Way, is_forward: bool) -> Iterator[_Way]:
        if not items:
            yield way
            return
        stack = [self.ways(items[0], way, is_forward=is_forward)]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
            elif len(stack) == len(items):
                yield found
            else:
                stack.append(self.ways(items[len(stack)], found, is_forward=is_forward))

    def _rounds(self, tree: Quantified, way: _Way, is_forward: bool) -> Iterator[_Way]:
        """Rounds as far as they go, then one less and so on; the other way round if lazy.

        A round begins with its groups empty. Beyond the least number, one that reads nothing is none.
        """
        inner = _numbers(tree.item)

        def rounds(after: _Way) -> Iterator[_Way]:
            place, groups = after
            cleared = tuple(None if number in inner else held for number, held in enumerate(groups))
            return self.ways(tree.item, (place, cleared), is_forward=is_forward)

        if tree.is_lazy or tree.min == 0 == tree.max:
            yield from self._lazily(tree, way, rounds)
            return
        ways, stack = [way], [rounds(way)]
        while stack:
            may_go_on = tree.max is None or len(stack) <= tree.max
            found = next(stack[-1], None) if may_go_on else None
            if found is not None:
                if len(stack) <= tree.min or found[0] != ways[-1][0]:
                    ways.append(found)
                    stack.append(rounds(found))
                continue
            stack.pop()
            last = ways.pop()
            if len(stack) >= tree.min:
                yield last

    @staticmethod
    def _lazily(tree: Quantified, way: _Way, rounds: Callable[[_Way], Iterator[_Way]]) -> Iterator[_Way]:
        if tree.min == 0:
            yield way
        if tree.max == 0:
            return
        ways, stack = [way], [rounds(way)]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                ways.pop()
            elif len(stack) <= tree.min or found[0] != ways[-1][0]:
                if len(stack) >= tree.min:
                    yield found
                if tree.max is None or len(stack) < tree.max:
                    ways.append(found)
                    stack.append(rounds(found))

    def _repeated(self, tree: Reference, way: _Way, is_forward: bool) -> Iterator[_Way]:
        """The text of a group once more; nothing if the group holds none."""
        place, groups = way
        held = next((groups[number] for number in tree.numbers if groups[number] is not None), None)
        text = "" if held is None else self.text[held[0] : held[1]]
        start = place if is_forward else place - len(text)
        if start >= 0 and self._is_same(self.text[start : start + len(text)], text, tree):
            yield (start + len(text) if is_forward else start), groups

    @staticmethod
    def _is_same(one: str, other: str, tree: Reference) -> bool:
        if tree.fold is None or one == other:
            return one == other
        return len(one) == len(other) and all(
            a == b or any(low <= ord(b) <= high for low, high in tree.fold(((ord(a), ord(a)),)))
            for a, b in zip(one, other, strict=True)
        )

    def _holds(self, tree: Assertion, place: int) -> bool:
        def is_among(at: int) -> bool:
            return 0 <= at < len(self.text) and any(low <= ord(self.text[at]) <= high for low, high in tree.chars)

        size = len(self.text)
        if tree.kind in ("start", "end"):
            return place == (0 if tree.kind == "start" else size)
        if tree.kind == "last line":
            return place == size or (place == size - 1 and is_among(place))
        if tree.kind == "line start":
            return place == 0 or is_among(place - 1)
        if tree.kind == "line end":
            return place == size or is_among(place)
        if not size and tree.kind == "inside":
            return tree.holds_in_empty
        return (is_among(place - 1) != is_among(place)) == (tree.kind == "boundary")


@lru_cache(maxsize=4096)
def _numbers(tree: Tree) -> frozenset[int]:
    """The groups in a tree."""
    own = {tree.number} if isinstance(tree, Capture) else set()
    return frozenset(own).union(*map(_numbers, children(tree)))
