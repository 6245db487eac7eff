"""One object spec as a plan: its keys, which of them may come next, and whether the object can still be finished.

The keys of an object are of two kinds. *Declared* names are known: they have numbers, and a state remembers which are
gone. All other keys fall into *classes*, the regions between the patterns, and a state remembers the used ones by name.
A worked example, with order "declared":

    {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"],
     "patternProperties": {"^x": false}, "maxProperties": 2}

    names      a: 0, b: 1; required: 1
    classes    one: the keys that are neither a nor b and do not begin with x; any value
    {          ObjectState(seen=0b00, count=0)             a or b may follow; c may not, as b has to come first
    {"b": 1    ObjectState(seen=0b11, count=1)             it may end, or c may follow; a is too late
    {"b": 1, "c": 2    ObjectState(seen=0b11, count=2, used={"c"})   it has to end

A denied keyword leaves a *witness*: some property has a key of a language and a value that satisfies a goal. A state
lists the witnesses that are still owed, and a key may follow only if the others can still be met after it.

Source of the idea of an obligation set carried along: alternating automata (Chandra, Kozen, Stockmeyer 1981), here with
the conjunctions multiplied out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Final, Literal, TypeAlias

from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.character_search import SearchWork, is_empty, num_texts, texts
from decodekit.constraints.json_schema.strings.text import WordTable
from decodekit.constraints.json_schema.values.inhabited import Ask, have_representatives
from decodekit.constraints.json_schema.values.shape import FALSE, Goal, ObjectSpec, conjunction
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import kept
from decodekit.errors import ResourceLimitError

Order: TypeAlias = Literal["declared", "any"]
"""``"declared"``: declared names in their order, then other keys; ``"any"``: every order."""

MAX_CLASSES: Final = 32
"""Bound on the regions into which the patterns of an object divide its keys."""
MAX_WITNESSES: Final = 6
"""Bound on the obligations of one object, each from a denied `properties` keyword."""

_Choice: TypeAlias = int | frozenset[str]
"""The keys to choose from, or how many there are (up to a few)."""

SOME_KEY: Final = "\ud800"
"""Stands for a key that is not known yet, in the question whether the object can be finished after it."""
_MANY: Final = 1_000  # a class with so many keys is taken to be inexhaustible below that number
_SOME: Final = 64  # keys are counted up to here once; an object that has used as many counts what is left anew


@dataclass(frozen=True)
class KeyClass:
    """Keys that are not declared names and share a goal.

    Attributes:
        keys: their body language.
        goal: what the value has to satisfy.
        num_keys: how many there are, at most `_MANY`.
        is_open: whether they are all keys that are not declared names.
    """

    keys: Node
    goal: Goal
    num_keys: int
    is_open: bool = False


@dataclass(frozen=True)
class ObjectState:
    """The state of an object behind the members that were read.

    Attributes:
        seen: the declared names that are gone, as bits: those that were read and, with order "declared", those before.
        used: the other keys that were read.
        count: members so far, if the spec counts them, at most the number that matters.
        pending: numbers of the witnesses still owed.
        is_sorted: with order "any", whether what is left comes in one order all the same: required names, then other
            declared ones, of which those that were left out count as seen, then other keys. Whatever can follow in some
            order can follow in that one.
    """

    seen: int = 0
    used: frozenset[str] = frozenset()
    count: int = 0
    pending: tuple[int, ...] = ()
    is_sorted: bool = False


class ObjectPlan:
    """The transitions of the objects of one spec; `is_inhabited` gives final answers, `keys` can be written."""

    def __init__(
        self,
        spec: ObjectSpec,
        semantics: Semantics,
        order: Order,
        is_inhabited: Ask,
        keys: Node = text.BODY,
        share: int = 1,
    ) -> None:
        if len(spec.witnesses) > MAX_WITNESSES:
            error = ResourceLimitError(
                f"more than {MAX_WITNESSES} denied property keywords meet in one object", hint="fewer nested nots"
            )
            semantics.leave_goals(error, [witness.goal for witness in spec.witnesses[MAX_WITNESSES:]])
            spec = replace(spec, witnesses=spec.witnesses[:MAX_WITNESSES])
        self.spec = spec
        self.semantics = semantics
        self.is_inhabited = is_inhabited
        self._all_keys = keys
        self.in_order = order == "declared"
        self.names = spec.declared
        self.start = ObjectState(pending=tuple(range(len(spec.witnesses))))
        self.index = {name: number for number, name in enumerate(self.names)}
        self.required = sorted(self.index[name] for name in spec.required)
        self._required_mask = sum(1 << number for number in self.required)
        self._counts = spec.max_properties is not None or spec.min_properties > 0
        self._work = SearchWork(share)  # for all regions together: each would be a question of its own
        self._count_cap = max(spec.min_properties, (spec.max_properties or 0) + 1)

    # -- keys

    @kept
    def goal(self, index: int) -> Goal:
        """The goal of the value of a declared name, given its index; FALSE if no key of that name can be written."""
        name = self.names[index]
        keys = self._key_language
        allowed = text.is_text(name) and (keys is text.BODY or text.matches(keys, name))
        return self.spec.goal(name) if allowed else FALSE

    @cached_property
    def _key_language(self) -> Node:
        if not self.spec.names:
            return self._all_keys
        return text.meet(self.semantics.shape(self.spec.names).strings, self._all_keys)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the names that can be generated, ascending by name."""
        numbers = (number for number, name in enumerate(self.names) if text.is_text(name))
        return tuple(sorted(numbers, key=self.names.__getitem__))

    @cached_property
    def sorted_names(self) -> tuple[str, ...]:
        """These names: the words of a table of keys."""
        return tuple([self.names[number] for number in self.numbers])

    @cached_property
    def classes(self) -> tuple[KeyClass, ...]:
        """The regions of undeclared keys whose goal is not plainly false."""
        regions, told = self._regions()
        by_goal: dict[Goal, list[Node]] = {}
        for region, matched in regions:
            goals: list[Goal] = []
            for member in self.spec.parts:
                asked = [goal for node, goal in member.patterns if node in matched]
                is_additional = not asked and all(node in told for node, _ in member.patterns)
                goals += [member.additional] if is_additional else asked
            by_goal.setdefault(conjunction(*goals), []).append(region)
        by_goal.pop(FALSE, None)
        classes = []
        for goal, parts in by_goal.items():
            keys = self._key_language if len(parts) == len(regions) else ir.choice(*parts)
            is_open = keys is self._all_keys
            if self._declared is not ir.EMPTY:
                keys = text.without(keys, self._declared)
            num_keys = _MANY if is_open else self._num_keys(keys)
            if num_keys:
                classes.append(KeyClass(keys, goal, num_keys, is_open))
        return tuple(classes)

    @cached_property
    def _declared(self) -> Node:
        """The declared keys. Kept, because two tables are never equal, and a question about another one begins anew."""
        return WordTable(self.sorted_names).node()

    def _regions(self) -> tuple[list[tuple[Node, frozenset[Node]]], list[Node]]:
        """The keys by the patterns that they match, each region with these patterns; and the patterns that tell them.

        Patterns beyond a limit are left to the guard.
        """
        patterns = list(dict.fromkeys(node for part in self.spec.parts for node, _ in part.patterns))
        regions: list[tuple[Node, frozenset[Node]]] = [(self._key_language, frozenset())]
        for number, pattern in enumerate(patterns):
            try:
                regions = _divided(regions, pattern, patterns[:number], self._work)
            except ResourceLimitError as error:
                left = patterns[number:]
                asked = [goal for part in self.spec.parts for node, goal in part.patterns if node in left]
                self.semantics.leave_goals(error, asked)
                return regions, patterns[:number]
        return regions, patterns

    @kept
    def _num_keys(self, keys: Node) -> int:
        """The number of keys of a class, at most `_MANY`; kept, as the work for it is counted once."""
        return self._num_texts(keys, _MANY, self._work)

    def _num_texts(self, keys: Node, limit: int, work: SearchWork | None = None) -> int:
        """The number of some keys, at most `limit`, which also stands for a number that is hard to tell."""
        try:
            return num_texts(keys, limit, work)
        except ResourceLimitError as error:
            asked = [goal for part in self.spec.parts for _, goal in part.patterns]
            self.semantics.leave_goals(error, [self.spec.names, *asked])
            return limit

    @cached_property
    def other_goals(self) -> tuple[Goal, ...]:
        """The goal of each of `classes`."""
        if self._has_patterns:
            return tuple([region.goal for region in self.classes])
        # The undeclared keys are one class, and there are some: most objects never need to know their language.
        goal = conjunction(*(part.additional for part in self.spec.parts))
        return () if goal == FALSE else (goal,)

    @cached_property
    def _has_patterns(self) -> bool:
        """Whether undeclared keys are told apart."""
        return bool(self.spec.names) or any(part.patterns for part in self.spec.parts)

    @staticmethod
    def unused(keys: Node, used: frozenset[str]) -> Node:
        """The keys of a language that were not used yet."""
        return text.without(keys, text.words(sorted(used))) if used else keys

    # -- feasibility

    def is_satisfiable(self, ask: Ask) -> bool:
        """Whether some object satisfies the spec, given the goals known to be inhabited."""
        # Ask about all required values before looking at the answers, so that one pass finds all that is needed.
        answers = [ask(self.goal(index)) for index in self.required]
        return all(answers) and self.can_finish(self.start, ask)

    def _required_left(self, state: ObjectState) -> int:
        """The required names that are not there yet, as bits."""
        return self._required_mask & ~state.seen

    def _waits_for_required(self, state: ObjectState) -> bool:
        """Whether required names come before other keys, and some are left."""
        return (self.in_order or state.is_sorted) and self._required_left(state) > 0

    def reach(self, state: ObjectState) -> int:
        """The declared names that may be next by the order alone, as bits; all above them are set as well."""
        left = self._required_left(state)
        first = left & -left
        if first and state.is_sorted:
            return first
        return ~state.seen & (2 * first - 1 if first and self.in_order else -1)

    def _is_required(self, index: int) -> bool:
        return bool(self._required_mask >> index & 1)

    @cached_property
    def _optional_mask(self) -> int:
        """The declared names that are not required and whose value can be written, as bits."""
        numbers = range(len(self.names))
        return sum(1 << n for n in numbers if not self._is_required(n) and self.is_inhabited(self.goal(n)))

    @cached_property
    def _writable(self) -> int:
        """These, and the required ones, as far as they can be generated."""
        return (self._optional_mask | self._required_mask) & sum(1 << number for number in self.numbers)

    def can_finish(self, state: ObjectState, ask: Ask | None = None) -> bool:
        """Whether some members can follow so that the object is complete. The required values are inhabited.

        `ask`: the answers so far, while the goals that are inhabited are still being found out.
        """
        spec = self.spec
        if not self._counts and not state.pending:
            return True
        num_required = self._required_left(state).bit_count()
        most = None if spec.max_properties is None else spec.max_properties - state.count - num_required
        least = spec.min_properties - state.count - num_required
        if most is not None and (most < 0 or least > most):
            return False
        if least > 0 and not self._has_room(state, least, ask):
            return False
        # The numbers of members beyond the required ones with which all pending witnesses can be met.
        numbers = self._assigned(state, ask or self.is_inhabited, state.pending, {}, ())
        return not state.pending or any(most is None or num_extra <= most for num_extra in numbers)

    def _has_room(self, state: ObjectState, least: int, ask: Ask | None) -> bool:
        """Whether at least so many members that are not required can follow."""
        if ask is None:
            least -= (self._optional_mask & ~state.seen).bit_count()
        else:  # still being found out; the object has not begun
            least -= sum([ask(self.goal(n)) for n in range(len(self.names)) if not self._is_required(n)])
        if least <= 0:
            return True
        least += len(state.used)  # they all came from classes that are inhabited
        for region in self.classes:
            if (ask or self.is_inhabited)(region.goal):
                least -= self._num_texts(region.keys, least) if least > region.num_keys == _MANY else region.num_keys
                if least <= 0:
                    return True
        return False

    def _assigned(
        self,
        state: ObjectState,
        ask: Ask,
        pending: tuple[int, ...],
        goals: dict[int, Goal],
        choices: tuple[_Choice, ...],
    ) -> Iterator[int]:
        """The same, with what the witnesses before `pending` take: goals of declared names, and new keys."""
        if not pending:
            if _can_all_choose(choices):
                yield len(choices) + sum(not self._is_required(index) for index in goals)
            return
        witness, rest = pending[0], pending[1:]
        for index in self._bearers(witness):
            if not state.seen >> index & 1:
                goal = conjunction(goals.get(index, self.goal(index)), self.spec.witnesses[witness].goal)
                if ask(goal):
                    yield from self._assigned(state, ask, rest, {**goals, index: goal}, choices)
        # One new key for this witness alone or for some of the others too.
        for num_others in range(len(rest) + 1):
            for others in combinations(rest, num_others):
                left = tuple(number for number in rest if number not in others)
                for choice in self._new_keys((witness, *others), state, ask):
                    yield from self._assigned(state, ask, left, goals, (*choices, choice))

    @kept
    def _bearers(self, witness: int) -> tuple[int, ...]:
        """The declared names whose value could be a witness."""
        keys = self.spec.witnesses[witness].keys
        return tuple(index for index, name in enumerate(self.names) if text.matches(keys, name))

    def _new_keys(self, witnesses: tuple[int, ...], state: ObjectState, ask: Ask) -> Iterator[_Choice]:
        """For each class, the keys that are left with which one new member meets all these witnesses."""
        for number, region in enumerate(self.classes):
            if ask(self.joined(region.goal, witnesses)):
                num_keys = self._num_unused(number, witnesses, state.used, len(state.pending) + 1)
                num_lost = sum(self._may_be_lost(key, number, witnesses) for key in state.used)
                if num_keys > num_lost:
                    if num_lost or num_keys > len(state.pending):
                        yield num_keys - num_lost
                    else:
                        yield self._few_keys(number, witnesses, self._used_of(number, witnesses, state.used))

    @kept
    def _keys_of(self, number: int, witnesses: tuple[int, ...]) -> Node:
        """The keys of a class with which a member meets some witnesses."""
        return text.meet(self.classes[number].keys, *(self.spec.witnesses[witness].keys for witness in witnesses))

    def _num_unused(self, number: int, witnesses: tuple[int, ...], used: frozenset[str], limit: int) -> int:
        """The number of these keys that are unused, at most `limit`; counted anew only where `used` could matter."""
        if self._num_without(number, witnesses, frozenset(), _SOME) >= limit + len(used):
            return limit
        return self._num_without(number, witnesses, self._used_of(number, witnesses, used), limit)

    def _used_of(self, number: int, witnesses: tuple[int, ...], used: frozenset[str]) -> frozenset[str]:
        """The used keys that are among them; what stands for an unknown key is none."""
        keys = self._keys_of(number, witnesses)
        return frozenset(key for key in used if not key.startswith(SOME_KEY) and text.matches(keys, key))

    @kept
    def _num_without(self, number: int, witnesses: tuple[int, ...], used: frozenset[str], limit: int) -> int:
        """The number of these keys without the `used` ones, at most `limit`."""
        return self._num_texts(self.unused(self._keys_of(number, witnesses), used), limit)

    @kept
    def _few_keys(self, number: int, witnesses: tuple[int, ...], used: frozenset[str]) -> frozenset[str]:
        """Those beside some, where there are few."""
        few = texts(self.unused(self._keys_of(number, witnesses), used), MAX_WITNESSES)
        assert few is not None
        return frozenset(few)

    @staticmethod
    def _may_be_lost(key: str, number: int, witnesses: tuple[int, ...]) -> bool:
        """Whether a used key stands for an unknown one that may be of this class and among the keys of these witnesses.

        `_sparing` knows more of it: ``SOME_KEY + "class-witnesses"``.
        """
        if not key.startswith(SOME_KEY) or key == SOME_KEY:
            return key == SOME_KEY
        known, _, lost = key[1:].partition("-")
        return known == str(number) and all(str(witness) in lost for witness in witnesses)

    # -- steps

    def can_close(self, state: ObjectState) -> bool:
        """Whether the object may end here."""
        return not state.pending and state.count >= self.spec.min_properties and not self._required_left(state)

    def meeting(self, keys_of: int | str, state: ObjectState) -> Iterator[tuple[int, ...]]:
        """The sets of pending witnesses that a member with this key (by number or by name) may meet."""
        if not state.pending:
            yield ()
            return
        if isinstance(keys_of, int):
            able = [witness for witness in state.pending if keys_of in self._bearers(witness)]
        else:
            able = [w for w in state.pending if text.matches(self.spec.witnesses[w].keys, keys_of)]
        for size in range(len(able) + 1):
            yield from combinations(able, size)

    def joined(self, goal: Goal, witnesses: tuple[int, ...]) -> Goal:
        """A goal with those of some witnesses."""
        return conjunction(goal, *(self.spec.witnesses[number].goal for number in witnesses)) if witnesses else goal

    def after_declared(self, index: int, witnesses: tuple[int, ...], state: ObjectState) -> ObjectState:
        """The state after a member with a declared name."""
        seen = state.seen | 1 << index
        if self.in_order or (state.is_sorted and not self._is_required(index)):
            seen |= (1 << index) - 1
        return ObjectState(seen, state.used, self._counted(state), _less(state.pending, witnesses), state.is_sorted)

    def after_other(self, key: str, witnesses: tuple[int, ...], state: ObjectState) -> ObjectState:
        """The state after a member with another key."""
        seen = (1 << len(self.names)) - 1 if self.in_order or state.is_sorted else state.seen
        used = state.used | {key}
        return ObjectState(seen, used, self._counted(state), _less(state.pending, witnesses), state.is_sorted)

    def _counted(self, state: ObjectState) -> int:
        return min(state.count + 1, self._count_cap) if self._counts else 0

    def may_take(self, index: int, state: ObjectState) -> bool:
        """Whether a member with this declared name may be next."""
        return bool(self.reach(state) >> index & 1) and self._fits(index, state)

    def _fits(self, index: int, state: ObjectState) -> bool:
        return any(
            self.is_inhabited(self.joined(self.goal(index), witnesses))
            and self.can_finish(self.after_declared(index, witnesses, state))
            for witnesses in self.meeting(index, state)
        )

    def permitted(self, state: ObjectState) -> bytes:
        """The selection of `sorted_names` that may come next: one byte each, 1 if it may."""
        reach = self.reach(state)
        if not self._counts and not state.pending:
            reach &= self._writable
            return bytes([reach >> number & 1 for number in self.numbers])
        return bytes([bool(reach >> number & 1) and self._fits(number, state) for number in self.numbers])

    def is_free(self, state: ObjectState) -> bool:
        """Whether the next key may be any text but for finitely many, so that every beginning of a key is good."""
        if state.pending or not self._is_open or self._waits_for_required(state):
            return False
        return not self._counts or self.can_finish(self.after_other(SOME_KEY, (), state))

    def is_told(self, state: ObjectState, *, before_key: bool) -> bool:
        """Whether `moves` are the same whatever key `SOME_KEY` stands for.

        Which keys may come next depends on it, unless all may; whether one may, where few are left.
        """
        return self.is_free(state) or (
            not before_key and all(region.num_keys > len(state.used) for region in self.classes)
        )

    @cached_property
    def _is_open(self) -> bool:
        goals = self.other_goals
        if len(goals) != 1 or not self.is_inhabited(goals[0]):
            return False
        return not self._has_patterns or self.classes[0].is_open

    def has_next(self, state: ObjectState) -> bool:
        """Whether a member may follow."""
        if self.is_free(state):
            return True
        reach = self.reach(state) & self._writable
        if self._counts or state.pending:
            may_be_declared = any(self._fits(number, state) for number in self.numbers if reach >> number & 1)
        else:
            may_be_declared = reach != 0
        return may_be_declared or any(True for _ in self.others(state))

    def others(self, state: ObjectState) -> Iterator[tuple[tuple[int, tuple[int, ...]], Node]]:
        """((class, witnesses met), keys) for the undeclared keys that may be next."""
        if self._waits_for_required(state):
            return
        for number, region in enumerate(self.classes):
            for size in range(len(state.pending) + 1):
                for witnesses in combinations(state.pending, size):
                    if not self.is_inhabited(self.joined(region.goal, witnesses)):
                        continue
                    keys = self.unused(self._keys_of(number, witnesses), state.used)
                    if (witnesses or region.num_keys - len(state.used) < 1) and keys.is_empty:
                        continue
                    if self.can_finish(self.after_other(SOME_KEY, witnesses, state)):
                        yield (number, witnesses), keys
                    else:
                        parts = self._sparing(number, keys, witnesses, state)
                        yield from (((number, witnesses), part) for part in parts)

    def _sparing(self, number: int, keys: Node, met: tuple[int, ...], state: ObjectState) -> Iterator[Node]:
        """The `keys` of a class that leave enough for the other witnesses, where some have few to choose from.

        Split by the witnesses whose keys a key belongs to, also those with many: a key may meet both kinds at once.
        It is lost for these and for no other one.
        """
        others = _less(state.pending, met)
        if not any(self._has_few(witness, state) for witness in others):
            others = ()
        for size in range(len(others) + 1):
            for lost in combinations(others, size):
                part = keys
                for witness in others:
                    cut = text.meet if witness in lost else text.without
                    part = cut(part, self.spec.witnesses[witness].keys)
                after = self.after_other(f"{SOME_KEY}{number}-{''.join(map(str, lost))}", met, state)
                if not part.is_empty and self.can_finish(after):
                    yield part

    def _has_few(self, witness: int, state: ObjectState) -> bool:
        """Whether there are not more keys for a witness than could be lost."""
        many, used, num_keys = len(state.pending) + 2, state.used - {SOME_KEY}, 0
        for number, region in enumerate(self.classes):
            if self.is_inhabited(self.joined(region.goal, (witness,))):
                num_keys += self._num_unused(number, (witness,), used, many)
        return num_keys < many


def _divided(
    regions: list[tuple[Node, frozenset[Node]]], pattern: Node, earlier: Sequence[Node], work: SearchWork
) -> list[tuple[Node, frozenset[Node]]]:
    """Each region, with the patterns that its keys match, as what matches another pattern and what does not.

    Most patterns of one object are apart, as prefixes are. Two that are need not be held against one another in every
    region.

    Raises:
        ResourceLimitError: more than `MAX_CLASSES`, or too much work to tell whether one is empty.
    """
    apart = {other for other in earlier if _is_empty(text.meet(pattern, other), work)}
    found: list[tuple[Node, frozenset[Node]]] = []
    for region, matched in regions:
        if matched.isdisjoint(apart):
            both = ((text.meet(region, pattern), matched | {pattern}), (text.without(region, pattern), matched))
            found += [part for part in both if not _is_empty(part[0], work)]
        else:
            found.append((region, matched))
    if len(found) > MAX_CLASSES:
        raise ResourceLimitError(
            f"the patternProperties of one object divide its keys into more than {MAX_CLASSES} regions",
            hint="fewer overlapping patterns",
        )
    return found


def _is_empty(keys: Node, work: SearchWork) -> bool:
    """Whether there are no keys, told within some work."""
    if keys.can_be_empty and keys.known_emptiness() is None and (told := is_empty(keys, work)) is not None:
        keys.remember_emptiness(told)
    return keys.is_empty


def _can_all_choose(choices: tuple[_Choice, ...]) -> bool:
    """Whether each can have a key of its own; exact where the few keys are listed."""
    sizes = sorted(choice if isinstance(choice, int) else len(choice) for choice in choices)
    if all(size > rank for rank, size in enumerate(sizes)):  # with 1, 2, 3, … keys to choose from
        return True
    listed = [choice for choice in choices if not isinstance(choice, int)]
    is_exact = all(not isinstance(choice, int) or choice >= len(choices) for choice in choices)
    return is_exact and have_representatives([(keys, 1) for keys in listed])


def _less(pending: tuple[int, ...], met: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(number for number in pending if number not in met) if met else pending
