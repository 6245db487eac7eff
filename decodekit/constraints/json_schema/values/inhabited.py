"""Emptiness of goals: a least fixpoint over the goals that depend on each other.

A goal is inhabited if its shape has a scalar, or an object or array whose required parts are inhabited. Recursive
schemas make goals depend on themselves; a value is finite, so the least solution is the right one. Goals are explored
when they are asked for, in loops, and what is found is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias, TypeVar
from weakref import WeakMethod

from decodekit.constraints.json_schema.values.shape import FALSE, TRUE, Goal
from decodekit.constraints.work_budget import Unfinished
from decodekit.errors import ResourceLimitError

Leave: TypeAlias = Callable[[ResourceLimitError], None]
"""A handler of a limit that was met; it raises the error if nothing else takes care of it."""
Ask: TypeAlias = Callable[[Goal], bool]
"""Whether a goal is known to be inhabited by now. Grows from False to True only."""

_Value = TypeVar("_Value", bound=Hashable)

MAX_GOALS: Final = 200_000
"""Bound on the goals that one question may explore."""


class Emptiness:
    """The inhabited goals of one schema.

    Args:
        evaluate: ``evaluate(goal, ask)``: whether the goal is inhabited if those are that `ask` says are; monotone. A
            method, held weakly: whose it is keeps this, and is kept by who asks.
        leave: asked where a question leads too far. If it returns, the goal is taken to be inhabited.
    """

    def __init__(self, evaluate: Callable[[Goal, Ask], bool], leave: Leave) -> None:
        self._evaluate = WeakMethod(evaluate)
        self._leave = leave
        self._known: dict[Goal, bool] = {TRUE: True, FALSE: False}

    @property
    def num_known(self) -> int:
        """Of how many goals the answer is known."""
        return len(self._known)

    def is_inhabited(self, goal: Goal) -> bool:
        """Whether some value satisfies the goal.

        Raises:
            ResourceLimitError: the question led to more than `MAX_GOALS` goals, and `leave` raised that.
        """
        if goal not in self._known:
            try:
                self._solve(goal)
            except ResourceLimitError as error:
                self._leave(error)
                self._known[goal] = True
        return self._known[goal]

    def _solve(self, question: Goal) -> None:
        evaluate = self._evaluate()
        assert evaluate is not None, "whose goals these are lives as long as it is asked"
        found: dict[Goal, bool] = {question: False}  # a lower bound of the solution
        asked_by: dict[Goal, set[Goal]] = {question: set()}
        fresh, again = [question], deque[Goal]()
        waiting: set[Goal] = set()

        while fresh or again:
            goal = fresh.pop() if fresh else again.popleft()
            waiting.discard(goal)
            if found[goal]:
                continue

            def ask(other: Goal, goal: Goal = goal) -> bool:
                known = self._known.get(other)
                if known is not None:
                    return known
                if other not in found:
                    if len(found) >= MAX_GOALS:
                        raise ResourceLimitError(
                            f"more than {MAX_GOALS:,} combinations of sub-schemas decide whether a value fits"
                        )
                    found[other] = False
                    asked_by[other] = set()
                    fresh.append(other)
                asked_by[other].add(goal)
                return found[other]

            try:
                is_found = evaluate(goal, ask)
            except Unfinished:
                self._keep_inhabited(found)
                raise
            if is_found:
                found[goal] = True
                if goal == question:
                    break
                for other in asked_by[goal]:
                    if not found[other] and other not in waiting:
                        waiting.add(other)
                        again.append(other)
        if found[question]:  # the rest is only known where it is True
            self._keep_inhabited(found)
        else:
            self._known.update(found)

    def _keep_inhabited(self, found: dict[Goal, bool]) -> None:
        self._known.update((goal, True) for goal, is_inhabited in found.items() if is_inhabited)


def have_representatives(choices: Sequence[tuple[frozenset[_Value], int]]) -> bool:
    """Whether the sets have distinct representatives, so many values of each: augmenting paths (Kuhn 1955)."""
    places = [values for values, count in choices for _ in range(count)]
    giver: dict[_Value, int] = {}
    given: dict[int, _Value] = {}
    for place in range(len(places)):
        came_by: dict[_Value, int] = {}  # value -> the place that asks for it
        agenda = [place]
        free: _Value | None = None
        while agenda and free is None:
            asking = agenda.pop()
            for value in places[asking] - came_by.keys():
                came_by[value] = asking
                if value in giver:
                    agenda.append(giver[value])
                else:
                    free = value
        if free is None:
            return False
        while free is not None:  # each place on the way gives what it had to the one before
            asking = giver[free] = came_by[free]
            given[asking], free = free, given.get(asking)
    return True
