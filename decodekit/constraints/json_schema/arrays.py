"""One array spec as a plan: which item may come next, and whether the array can still be finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from decodekit.constraints.json_schema.emptiness import Ask
from decodekit.constraints.json_schema.shape import ArraySpec, Goal, conjunction
from decodekit.errors import ResourceLimitError

MAX_CONTAINS: Final = 6
"""Bound on the `contains` conditions that meet in one array."""
MAX_SEARCH: Final = 20_000
"""Bound on the states that the question whether an array with `contains` can be finished may explore."""


@dataclass(frozen=True)
class ArrayState:
    """What has been read of an array: the number of items and, for each `contains`, how many of them counted.

    Both stop growing where more makes no difference.
    """

    num_items: int = 0
    counted: tuple[int, ...] = ()


class ArrayPlan:
    """How the arrays of one spec are written. An item counts for a `contains` or does not; both ways are tried."""

    def __init__(self, spec: ArraySpec) -> None:
        if len(spec.contains) > MAX_CONTAINS:
            raise ResourceLimitError(f"more than {MAX_CONTAINS} contains conditions meet in one array")
        self.spec = spec
        self.start = ArrayState(counted=(0,) * len(spec.contains))
        starts = [contains.start for contains in spec.contains]
        self._last = max(len(spec.prefix), spec.min_items, *starts) if starts else max(len(spec.prefix), spec.min_items)
        self._finishing: dict[ArrayState, bool] = {}

    def is_satisfiable(self, ask: Ask) -> bool:
        """Whether some array satisfies the spec, given the goals known to be inhabited."""
        spec = self.spec
        if spec.max_items is not None and spec.max_items < spec.min_items:
            return False
        if spec.contains:
            return self._search(self.start, ask)
        answers = [ask(goal) for goal in spec.prefix[: spec.min_items]]
        if spec.min_items > len(spec.prefix):
            answers.append(ask(spec.rest))
        return all(answers)

    def can_close(self, state: ArrayState) -> bool:
        """Whether the array may end here."""
        if state.num_items < self.spec.min_items:
            return False
        return all(count >= contains.min for count, contains in zip(state.counted, self.spec.contains, strict=True))

    def items(self, state: ArrayState, ask: Ask) -> Iterator[tuple[Goal, ArrayState]]:
        """What the next item may be, and the state after it, for every way on which the array can be finished."""
        for goal, after in self._ways(state):
            if ask(goal) and (not self.spec.contains or self._can_finish(after, ask)):
                yield goal, after

    def _ways(self, state: ArrayState) -> Iterator[tuple[Goal, ArrayState]]:
        spec, index = self.spec, state.num_items
        if spec.max_items is not None and index >= spec.max_items:
            return
        num_items = index + 1 if spec.max_items is not None else min(index + 1, self._last)
        base = spec.goal(index)
        # Those that still have to count, or must not count too often; the others make no difference any more.
        open_ones = [
            number
            for number, contains in enumerate(spec.contains)
            if index >= contains.start and (contains.max is not None or state.counted[number] < contains.min)
        ]
        for size in range(len(open_ones), -1, -1):
            for counting in combinations(open_ones, size):
                goals, counted = [base], list(state.counted)
                for number in open_ones:
                    contains = spec.contains[number]
                    if number in counting:
                        goals.append(contains.goal)
                        counted[number] += 1
                    elif contains.max is not None:
                        goals.append(contains.denied)
                within = all(
                    contains.max is None or count <= contains.max
                    for count, contains in zip(counted, spec.contains, strict=True)
                )
                if within:
                    yield conjunction(*goals), ArrayState(num_items, tuple(counted))

    def _can_finish(self, state: ArrayState, ask: Ask) -> bool:
        known = self._finishing.get(state)
        if known is None:
            known = self._finishing[state] = self._search(state, ask)
        return known

    def _search(self, start: ArrayState, ask: Ask) -> bool:
        """Whether a closing state can be reached; depth first, counting items first."""
        seen = {start}
        stack = [start]
        while stack:
            state = stack.pop()
            if self.can_close(state):
                return True
            following = [after for goal, after in self._ways(state) if after not in seen and ask(goal)]
            for after in reversed(following):
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
            if len(seen) > MAX_SEARCH:
                raise ResourceLimitError(
                    f"more than {MAX_SEARCH:,} states are needed to tell whether an array can be finished",
                    hint="smaller bounds beside contains",
                )
        return False
