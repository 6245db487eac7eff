"""At which lengths a path leads from a node of a graph to an end, for all nodes at once.

A text of 10 to 90 characters that meets nine patterns is a path of so many edges through the product of their
automata. Searched from its start, every length is another search; counted from the ends, one pass serves all states:

    graph   a -> b, b -> a, b -> end
    level 0   {end}          nodes with a path of no edge to an end
    level 1   {b}            of one edge: what leads to level 0
    level 2   {a}
    level 3   {b}            the same as level 1, so from here on the levels go round

So b has paths of 1, 3, 5, … edges and a of 2, 4, 6, …, and a question for any length is a look at a level.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

MAX_LEVELS: Final = 500
"""Levels that are made until they go round; graphs whose levels do not are left to others."""

_Vertex = TypeVar("_Vertex", bound=Hashable)


class PathLengths(Generic[_Vertex]):
    """The lengths of all paths that lead to an end.

    Args:
        following: all vertices of the graph, each with those that an edge leads to.
        ends: vertices where a path may end.
    """

    def __init__(self, following: Mapping[_Vertex, Collection[_Vertex]], ends: Collection[_Vertex]) -> None:
        self._number_of = {vertex: number for number, vertex in enumerate(following)}
        self._before: list[list[int]] = [[] for _ in following]
        for vertex, targets in following.items():
            for target in targets:
                self._before[self._number_of[target]].append(self._number_of[vertex])
        self._next_level = {self._number_of[vertex] for vertex in ends}
        # Level k has one byte per vertex, 1 if it has a path of k edges: nothing that the garbage collector visits.
        self._levels: list[bytes] = []
        self._numbers: dict[bytes, int] = {}  # of the levels
        self._first_repeated: int | None = None  # the levels go round from this one on

    def has_path(self, vertex: _Vertex, least: int, most: int | None) -> bool | None:
        """Whether a path of `least` to `most` edges leads from a vertex to an end; None if too many levels tell."""
        number = self._number_of[vertex]
        length = least
        while most is None or length <= most:
            while self._first_repeated is None and length >= len(self._levels):
                if len(self._levels) >= MAX_LEVELS:
                    return None
                self._add_level()
            at, start = length, self._first_repeated
            if start is not None and length >= len(self._levels):
                period = len(self._levels) - start
                if length >= max(least, len(self._levels)) + period:
                    return False  # once around
                at = start + (length - start) % period
            if self._levels[at][number]:
                return True
            length += 1
        return False

    def _add_level(self) -> None:
        flags = bytearray(len(self._before))
        for number in self._next_level:
            flags[number] = 1
        level = bytes(flags)
        repeated = self._numbers.setdefault(level, len(self._levels))
        if repeated < len(self._levels):
            self._first_repeated = repeated
            return
        self._levels.append(level)
        self._next_level = set().union(*(self._before[number] for number in self._next_level))
