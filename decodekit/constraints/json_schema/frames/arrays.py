"""One array spec as a plan: which item may come next, and whether the array can still be finished.

Under `uniqueItems` a state remembers the scalars that were read, by value, and finite sets of them are counted.
Objects and arrays are not compared here: where two items can be objects, or two of them arrays, that is left to the
guard of the schema (see `schema_guard`), and so is the denial of `uniqueItems`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.text import WordTable
from decodekit.constraints.json_schema.values import scalars
from decodekit.constraints.json_schema.values.inhabited import Ask, have_representatives
from decodekit.constraints.json_schema.values.scalars import Scalar
from decodekit.constraints.json_schema.values.shape import TRUE, ArraySpec, Goal, conjunction
from decodekit.constraints.json_schema.values.short_numbers import Numbers
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import kept
from decodekit.errors import ResourceLimitError

MAX_CONTAINS: Final = 6
"""Bound on the `contains` conditions that meet in one array."""
MAX_SEARCH: Final = 20_000
"""Bound on the states that the question whether an array with `contains` can be finished may explore."""


MAX_LISTED: Final = 64
"""The values of an item that are looked at one by one before those that other items need."""

SOME_TEXT: Final[Scalar] = ("string", "\ud800")
"""Stands for a string that is not known yet."""


@dataclass(frozen=True)
class ArrayState:
    """The state of an array behind the items that were read.

    Attributes:
        num_items, counted: the number of items and, for each `contains`, how many of them counted. Both stop growing
            where more makes no difference.
        used: the scalars that no later item may equal.
        is_owing: whether two equal items are still to come, or of two the second, which equals `twin`.
    """

    num_items: int = 0
    counted: tuple[int, ...] = ()
    used: frozenset[Scalar] = frozenset()
    is_owing: bool = False
    twin: Scalar | None = None


@dataclass(frozen=True)
class NextItem:
    """A set of values that the next item may have, with the state behind it.

    Attributes:
        goal: what it satisfies. `after`: the state after it.
        scalars: only these texts; None for every value of the goal.
        is_remembered: the scalar becomes part of the state (`ArrayPlan.remember`).
        texts: beside `scalars`, the strings of which each that is not used may come.
        listed: beside `scalars`, the strings of a list from behind their first quote on, each with its place as the
            label, and which of them are left.
    """

    goal: Goal
    after: ArrayState
    scalars: Node | None = None
    is_remembered: bool = False
    texts: Node = ir.EMPTY
    listed: tuple[WordTable, bytes] | None = None


def is_by_value(spec: ArraySpec, semantics: Semantics) -> bool:
    """Whether the items of an array that can be equal are scalars."""
    num_rest = 2 if spec.max_items is None else min(2, max(0, spec.max_items - len(spec.prefix)))
    goals = [*spec.prefix[: spec.max_items], *[spec.rest] * num_rest]
    shapes = [semantics.shape(goal) for goal in goals]
    return sum(bool(shape.objects) for shape in shapes) <= 1 and sum(bool(shape.arrays) for shape in shapes) <= 1


class ArrayPlan:
    """The transitions of the arrays of one spec. An item counts for a `contains` or does not; both ways are tried."""

    def __init__(self, spec: ArraySpec, semantics: Semantics, form: Numbers = "any", is_lossy: bool = False) -> None:
        if len(spec.contains) > MAX_CONTAINS:
            error = ResourceLimitError(f"more than {MAX_CONTAINS} contains conditions meet in one array")
            semantics.leave_goals(error, [contains.goal for contains in spec.contains[MAX_CONTAINS:]])
            spec = replace(spec, contains=spec.contains[:MAX_CONTAINS])
        self.spec = spec
        self.semantics, self._form, self._is_lossy = semantics, form, is_lossy
        is_repeating = spec.is_repeating and is_by_value(spec, semantics)
        self.start = ArrayState(counted=(0,) * len(spec.contains), is_owing=is_repeating)
        self._last = max(len(spec.prefix), spec.min_items, *(contains.start for contains in spec.contains))
        self._domains: dict[Goal, tuple[int, frozenset[Scalar] | None]] = {}
        self._is_vast = False  # a search from the start met its bound

    def is_satisfiable(self, ask: Ask) -> bool:
        """Whether some array satisfies the spec, given the goals known to be inhabited."""
        spec = self.spec
        if spec.max_items is not None and spec.max_items < spec.min_items:
            return False
        if spec.is_unique and spec.is_repeating:
            return False
        if spec.is_unique or self.start.is_owing:
            return self._can_finish(self.start, ask)
        if spec.contains:
            return self._search(self.start, ask)
        answers = [ask(spec.goal(index)) for index in range(min(spec.min_items, len(spec.prefix) + 1))]
        return all(answers)

    def can_close(self, state: ArrayState) -> bool:
        """Whether the array may end here."""
        if state.num_items < self.spec.min_items or state.is_owing:
            return False
        return all(count >= contains.min for count, contains in zip(state.counted, self.spec.contains, strict=True))

    def items(self, state: ArrayState, ask: Ask) -> Iterable[NextItem]:
        """The choices for the next item after which the array can still be closed. `ask` gives final answers."""
        return self._told_items(state, ask) if state.is_owing or self.spec.is_unique else self._plain_items(state, ask)

    @kept
    def _told_items(self, state: ArrayState, ask: Ask) -> tuple[NextItem, ...]:
        return tuple(self._owed_items(state, ask) if state.is_owing else self._unique_items(state, ask))

    def _plain_items(self, state: ArrayState, ask: Ask) -> Iterator[NextItem]:
        for goal, after in self._ways(state):
            if ask(goal) and (not self.spec.contains or self._can_finish(after, ask)):
                yield NextItem(goal, after)

    @staticmethod
    def remember(state: ArrayState, scalar: Scalar) -> ArrayState:
        """The state after an item that is remembered."""
        if state.is_owing:
            return replace(state, twin=scalar)
        return replace(state, used=state.used | {scalar})

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
                    yield conjunction(*goals), replace(state, num_items=num_items, counted=tuple(counted))

    # -- whether the array can be finished

    def _can_finish(self, state: ArrayState, ask: Ask) -> bool:
        if self.spec.is_unique:
            return self._can_fill(state, ask)
        if state.is_owing:
            return self._can_pair(state, ask)
        return self.can_close(state) or self._can_reach_end(state, ask)

    @kept
    def _can_reach_end(self, state: ArrayState, ask: Ask) -> bool:
        """As `_search`; `ask` gives final answers, for it is kept with them."""
        return self._search(state, ask)

    def _search(self, start: ArrayState, ask: Ask) -> bool:
        """Whether an end is found; the items taken from few values are different there, if all have to be."""
        if not self._is_vast:
            try:
                if self.spec.is_unique:
                    return self._find_different(start, ask)
                return any(self.can_close(state) for state in self._reachable(start, ask))
            except ResourceLimitError as error:
                self._leave(error)
                self._is_vast = start == self.start
        return self._has_room(start)

    def _leave(self, error: ResourceLimitError) -> None:
        """Leave to the guard that an array may have no end: what is counted in it stays exact."""
        self.semantics.leave_goals(error, [contains.goal for contains in self.spec.contains])

    def _has_room(self, state: ArrayState) -> bool:
        """Whether as many items may follow as each `contains` still needs."""
        if self.spec.max_items is None:
            return True
        room = self.spec.max_items - state.num_items
        return all(room >= one.min - n for n, one in zip(state.counted, self.spec.contains, strict=True))

    def _reachable(self, start: ArrayState, ask: Ask) -> Iterator[ArrayState]:
        """The states that inhabited items lead to; depth first, counting items first."""
        seen = {start}
        stack = [start]
        while stack:
            state = stack.pop()
            yield state
            for after in [after for goal, after in self._ways(state) if after not in seen and ask(goal)][::-1]:
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
            if len(seen) > MAX_SEARCH:
                raise _too_many_states()

    # -- all items different

    def _unique_items(self, state: ArrayState, ask: Ask) -> Iterator[NextItem]:
        for goal, after in self._ways(state):
            if not ask(goal) or not self._can_fill(after, ask):
                continue
            shape = self.semantics.shape(goal)
            if shape.objects or shape.arrays:  # different from all other items, or the guard says that it is not
                compound = self.semantics.compound(goal)
                if ask(compound):
                    yield NextItem(compound, after)
            # A scalar that later items need is not taken here, all others are as good as each other.
            own = self._domain(goal, MAX_LISTED, ask)
            needed = {
                scalar
                for scalar in self._scarce(after, ask)
                if (own is None or scalar in own)
                and not self._can_fill(replace(after, used=after.used | {scalar}), ask)
            }
            # Where every beginning of a string can be completed in any number of ways, now and later, which string it
            # was is asked at its end (see `ArrayFrame`): no beginning is left with those that are used.
            is_rest = not self.spec.contains and state.num_items >= len(self.spec.prefix)
            texts = shape.strings if is_rest and self._is_endless(shape.strings) else ir.EMPTY
            listed = self._listed(shape.strings, after.used | needed)
            if texts is not ir.EMPTY or listed is not None:
                shape = replace(shape, strings=ir.EMPTY)
            node = scalars.language(shape, without=after.used | needed, form=self._form)
            if texts is not ir.EMPTY or not node.is_empty or (listed is not None and 1 in listed[1]):
                is_last = self.spec.max_items is not None and after.num_items >= self.spec.max_items
                yield NextItem(goal, after, node, is_remembered=not is_last, texts=texts, listed=listed)

    def _is_endless(self, strings: Node) -> bool:
        is_endless = not self._is_lossy and ir.bytes_of_loop(strings) is not None and not strings.is_empty
        return is_endless or strings is text.BODY

    def _listed(self, strings: Node, taken: frozenset[Scalar]) -> tuple[WordTable, bytes] | None:
        """A list of strings as one table for all states, and which of them are not taken; None if it is not a list."""
        table = self._table(strings)
        return None if table is None else (table, bytes([("string", word) not in taken for word in table.words]))

    @kept
    def _table(self, strings: Node) -> WordTable | None:
        words = text.word_list(strings)
        return None if words is None else WordTable(words, text.closed, are_labelled=True)

    def _num_missing(self, state: ArrayState) -> int:
        """The most items that an array without superfluous ones still has."""
        if self.can_close(state):
            return 0
        missing = [max(0, c.min - count) for count, c in zip(state.counted, self.spec.contains, strict=True)]
        return max(0, self._last - state.num_items) + sum(missing)

    def _can_fill(self, state: ArrayState, ask: Ask) -> bool:
        """Whether different items can follow so that the array is complete."""
        return self.can_close(state) or (self._search if self.spec.contains else self._are_enough)(state, ask)

    def _missing(self, state: ArrayState) -> dict[Goal, int]:
        """The goals of the items up to the least number of them, each with how often it occurs."""
        spec = self.spec
        goals = Counter(spec.prefix[state.num_items : spec.min_items])
        num_rest = spec.min_items - max(state.num_items, len(spec.prefix))
        if num_rest > 0:
            goals[spec.rest] += num_rest
        return goals

    def _are_enough(self, state: ArrayState, ask: Ask) -> bool:
        goals = self._missing(state)
        num_missing = sum(goals.values())
        choices = []
        for goal, count in goals.items():
            if not ask(goal):
                return False
            if num_missing == 1 and not state.used:
                continue
            left = self._left(goal, num_missing, state.used, ask)
            if left is not None:
                if len(left) < count:
                    return False
                choices.append((left, count))
        return len(choices) < 2 or have_representatives(choices)

    def _left(self, goal: Goal, num_needed: int, used: frozenset[Scalar], ask: Ask) -> frozenset[Scalar] | None:
        """The values of a goal that are not used; None if they are at least `num_needed` (objects count as many)."""
        domain = self._domain(goal, num_needed + len(used), ask)
        return None if domain is None or len(left := domain - used) >= num_needed else left

    def _domain(self, goal: Goal, limit: int, ask: Ask) -> frozenset[Scalar] | None:
        """The values of a goal if they are at most `limit` scalars, else None."""
        shape = self.semantics.shape(goal)
        if (shape.objects or shape.arrays) and ask(self.semantics.compound(goal)):
            return None
        known = self._domains.get(goal)
        if known is None or (known[0] < limit and known[1] is None):
            limit_asked = max(16, 2 * limit)
            known = self._domains[goal] = limit_asked, scalars.members(shape, limit_asked)
        domain = known[1]
        return domain if domain is not None and len(domain) <= limit else None

    def _scarce(self, state: ArrayState, ask: Ask) -> set[Scalar]:
        """The scalars that may be needed for items after `state`."""
        if self.can_close(state):
            return set()
        num_needed = self._num_missing(state) + 1
        goals = self._goals_from(state) if self.spec.contains else self._missing(state)
        return {scalar for goal in goals for scalar in self._left(goal, num_needed, state.used, ask) or ()}

    def _goals_from(self, state: ArrayState) -> set[Goal]:
        """The goals that later items may have, with every choice of what they count for."""
        indices = range(state.num_items, max(len(self.spec.prefix), state.num_items) + 1)
        goals = {self.spec.goal(index) for index in indices}
        for contains in self.spec.contains:
            goals |= {conjunction(goal, other) for goal in goals for other in (contains.goal, contains.denied)}
        return goals

    def _find_different(self, start: ArrayState, ask: Ask) -> bool:
        """The search where the items taken from few values have to be different, breadth first."""
        num_missing = self._num_missing(start)
        left: dict[Goal, frozenset[Scalar] | None] = {}
        frontier: list[tuple[ArrayState, tuple[Goal, ...]]] = [(start, ())]
        seen = set(frontier)
        for _ in range(num_missing):
            following = []
            for state, few in frontier:
                for goal, after in self._ways(state):
                    if not ask(goal):
                        continue
                    if goal not in left:
                        left[goal] = self._left(goal, num_missing, start.used, ask)
                    taken = few if left[goal] is None else tuple(sorted((*few, goal), key=sorted))
                    if (after, taken) in seen:
                        continue
                    seen.add((after, taken))
                    if len(seen) > MAX_SEARCH:
                        raise _too_many_states()
                    choices = [(values, n) for g, n in Counter(taken).items() if (values := left[g]) is not None]
                    if have_representatives(choices):
                        if self.can_close(after):
                            return True
                        following.append((after, taken))
            frontier = following
        return False

    # -- two equal items

    def _owed_items(self, state: ArrayState, ask: Ask) -> Iterator[NextItem]:
        """The item is one of the two, or it is not; both ways are tried."""
        for goal, after in self._ways(state):
            if not ask(goal):
                continue
            if self._can_pair(after, ask):
                yield NextItem(goal, after)
            if state.twin is None:
                later = [conjunction(goal, other) for other in self._later(after, ask)]
                shapes = map(self.semantics.shape, later)
                node = ir.choice(*(scalars.language(shape, form=self._form) for shape in shapes))
                if not node.is_empty:
                    yield NextItem(goal, after, node, is_remembered=True)
            elif scalars.belongs(state.twin, self.semantics.shape(goal)):
                done = replace(after, is_owing=False, twin=None)
                if self._search(done, ask):
                    yield NextItem(goal, done, scalars.language_of(state.twin, self._form))

    def _can_pair(self, state: ArrayState, ask: Ask) -> bool:
        """Whether the array can be finished with what it owes of two equal items."""
        if state.twin is not None:
            return any(scalars.belongs(state.twin, self.semantics.shape(goal)) for goal in self._later(state, ask))
        try:
            return any(
                ask(conjunction(goal, other))
                for reached in self._reachable(state, ask)
                for goal, after in self._ways(reached)
                if ask(goal)
                for other in self._later(after, ask)
            )
        except ResourceLimitError as error:
            self._leave(error)
            return True

    def _later(self, state: ArrayState, ask: Ask) -> Iterable[Goal]:
        """The goals of the items that may come later, as far as the array can be finished after them."""
        found: dict[Goal, None] = {}
        try:
            for reached in self._reachable(state, ask):
                for goal, after in self._ways(reached):
                    if goal not in found and ask(goal) and self._search(replace(after, is_owing=False, twin=None), ask):
                        found[goal] = None
        except ResourceLimitError as error:
            self._leave(error)
            return (TRUE,)  # perhaps any value
        return found


def _too_many_states() -> ResourceLimitError:
    return ResourceLimitError(
        f"more than {MAX_SEARCH:,} states are needed to tell whether an array can be finished",
        hint="smaller bounds beside contains",
    )
