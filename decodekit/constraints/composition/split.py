"""The division of a whole text into the parts of an expression, and the values of the parts.

A text may divide in several ways. The one that counts is the first in this order, from the first choice on: of
alternatives the earlier one; of repetitions another round rather than none; of a part, be it free text or another
constraint, the shortest that lets the rest of the text fit. A composition that is a part chooses as it would alone.

The division is found by a depth-first search in that order, which never comes twice to the same position with the same
things still to be matched: its time is that of the positions times the places in the expression. A part ends only where
the next byte may begin what comes after it, so that free text is not tried to end at each of its characters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from decodekit.constraints.constraint import Constraint, Guard, Refusal, WorkingGuard, judging_of
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.explain.special_names import positions
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import (
    Alternatives,
    Concatenated,
    Expression,
    Inline,
    Repeated,
    Rules,
    SpecialToken,
    Terminal,
    special_tokens_of,
    walk,
)
from decodekit.constraints.memory_account import on_shortage
from decodekit.constraints.network import Frame, Lexeme
from decodekit.constraints.special import written
from decodekit.constraints.work_budget import Work, done

MAX_STATES: Final = 4_000
"""A part whose states are more than these starts anew with the next text."""
_PART: Final = 512
"""So many steps are made, or bytes read, before a division can be left off."""
_COST: Final = 8
"""The steps of a place that is tried."""


class Composed(Constraint):
    """A constraint made of parts. Subclasses say how, and what the values of the parts are together.

    A text may divide into the parts in several ways; which one counts is said above. A special token stands in a text
    by its name.
    """

    __slots__ = ()

    @abstractmethod
    def expression(self) -> Expression:
        """The parts, without rules."""

    @abstractmethod
    def value(self, parts: object) -> object:
        """The value of a text, from what `Split.value` gives for the expression."""

    def root(self) -> Frame:
        """The frame of a whole text.

        Raises:
            ConstraintError: what a part raises, or no text fits.
        """
        return root_frame(Rules({"text": self.expression()}, "text"))

    def parse(self, text: str) -> object:
        """The value of a whole text.

        Raises:
            ValueError: the text does not divide into the parts, or a part has no value.
        """
        split = Split(self.expression(), text.encode("utf-8", errors="surrogatepass"))
        if not split.is_whole:
            fits = split.data[: split.reached].decode("utf-8", errors="replace")
            raise ValueError(f"{text!r:.200} is no text of {self!r:.200}; it goes along up to {fits[-60:]!r}")
        return self.value(split.value())

    def _constraints(self) -> list[Constraint]:
        return [item.constraint for item in walk(self.expression()) if isinstance(item, Inline)]

    @property
    def num_bytes(self) -> int:
        """Those of the parts."""
        return sum(part.num_bytes for part in self._constraints())

    def special_tokens(self) -> frozenset[str | int]:
        """Those of the parts."""
        return special_tokens_of(self.expression())

    def guard(self) -> Guard | None:
        """The guards of the parts, each for its part of the text; None if no part has one."""
        return PartsGuard(self) if any(part.guard() is not None for part in self._constraints()) else None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part that is not divided further, at ``data[start:end]``."""

    item: Expression
    start: int
    end: int


class Close(NamedTuple):
    """The marks in a trace that are made of the values before them."""

    kind: str
    number: int = 0
    part: Composed | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Behind `count` rounds of a repetition; `is_empty` says that nothing was read since the last of them began."""

    repeated: Repeated
    count: int
    is_empty: bool


class FirstBytes(NamedTuple):
    """With what something may begin: a bit for each byte, and whether it may be empty; of either maybe more."""

    first: int
    may_be_empty: bool

    def then(self, other: FirstBytes) -> FirstBytes:
        """The same with something behind it, where this may be empty."""
        return FirstBytes(self.first | other.first, other.may_be_empty)


@dataclass(slots=True, eq=False)
class Todo:
    """The items that are still to be matched: a linked list, one object for equal content.

    Attributes:
        owner: the expression that a mark stands for, by which marks are told apart.
        after_reading: the same once something was read; None until it is asked for.
    """

    item: Expression | Close | Round
    then: Todo | None
    owner: Expression | None
    after_reading: Todo | None = None


_Trace: TypeAlias = "tuple[_Trace, Leaf | Close] | None"


class Split:
    """The division of one text.

    Args:
        expression: the parts. Rules are not followed: the expression of a composition has none.
        data: the text in UTF-8.
        is_guarded: whether parts that a guard refuses do not count.

    A division takes time that may grow with the square of the text: `dividing` is the same as work that can be left
    off.

    Attributes:
        is_whole: whether the text divides at all.
        reached: how many bytes go along with some division.
    """

    def __init__(
        self, expression: Expression, data: bytes, is_guarded: bool = True, *, is_searched: bool = True
    ) -> None:
        self.data = data
        self.reached = 0
        self._is_guarded = is_guarded
        self._todos: dict[tuple[object, ...], Todo] = {}
        self._expressions: dict[int, Expression] = {}  # of constraints with parts, by id
        self._readers: dict[int, tuple[Recogniser, frozenset[str | int]]] = {}  # with special tokens; of leaves, by id
        self._ends: dict[tuple[int, int], list[int]] = {}
        self._begins: dict[int, FirstBytes] = {}  # by id of the todo
        self._trace: _Trace = None
        self._num_steps = 0
        self.is_whole = is_searched and done(self._search(expression))

    @classmethod
    def dividing(cls, expression: Expression, data: bytes, is_guarded: bool = True) -> Work[Split]:
        """The division of a text."""
        split = cls(expression, data, is_guarded, is_searched=False)
        split.is_whole = yield from split._search(expression)
        return split

    def leaves(self) -> list[Leaf]:
        """The parts that are not divided further, in order."""
        return [event for event in self._events() if isinstance(event, Leaf)]

    def value(self) -> object:
        """The value of the whole text, made of those of its parts.

        Of a terminal and of a special token that is its text; of a constraint its value; of a sequence a list; of
        alternatives the number of the chosen one and its value; of a repetition a list.
        """
        values: list[object] = []
        begins: list[int] = []
        for event in self._events():
            if isinstance(event, Leaf):
                values.append(self._value_of(event))
            elif event.kind == "rounds begin":
                begins.append(len(values))
            elif event.kind == "chosen":
                values.append((event.number, values.pop()))
            elif event.kind == "part":
                assert event.part is not None
                values.append(event.part.value(values.pop()))
            else:
                begin = begins.pop() if event.kind == "rounds end" else len(values) - event.number
                values[begin:] = [values[begin:]]
        (value,) = values
        return value

    def _value_of(self, leaf: Leaf) -> object:
        if isinstance(leaf.item, SpecialToken):
            return written(leaf.item.token)
        text = self.data[leaf.start : leaf.end].decode()
        return leaf.item.constraint.parse(text) if isinstance(leaf.item, Inline) else text

    def _events(self) -> list[Leaf | Close]:
        events: list[Leaf | Close] = []
        trace = self._trace
        while trace is not None:
            trace, event = trace
            events.append(event)
        return events[::-1]

    def _search(self, expression: Expression) -> Work[bool]:
        agenda: list[tuple[int, Todo | None, _Trace]] = [(0, self._before(expression, None), None)]
        seen: set[tuple[int, int]] = set()
        while agenda:
            position, todo, trace = agenda.pop()
            if (position, id(todo)) in seen:
                continue
            seen.add((position, id(todo)))
            self._num_steps += _COST
            if self._num_steps >= _PART:
                yield self._num_steps
                self._num_steps = 0
            if todo is None:
                if position == len(self.data):
                    self._trace = trace
                    return True
                continue
            item, then = todo.item, todo.then
            if isinstance(item, Close):
                agenda.append((position, then, (trace, item)))
            elif (ways := self._ways(item, then)) is not None:
                begun = (trace, Close("rounds begin")) if isinstance(item, Repeated) else trace
                agenda += ((position, after, begun) for after in ways)
            else:
                assert not isinstance(item, Round)
                ends = yield from self._ends_of(item, position)
                self._num_steps += _COST * len(ends)
                read, (first, may_end) = self._after_reading(then), self._begin_of_todo(then)
                for end in reversed(ends):
                    if first >> self.data[end] & 1 if end < len(self.data) else may_end:
                        agenda.append((end, then if end == position else read, (trace, Leaf(item, position, end))))
        return False

    def _ways(self, item: Expression | Round, then: Todo | None) -> Sequence[Todo | None] | None:
        """The ways to go on with an item, the last to be tried first; None for a part that is not divided further."""
        if isinstance(item, Concatenated):
            then = self._marked(Close("sequence", len(item.items)), then, item)
            for part in reversed(item.items):
                then = self._before(part, then)
            return [then]
        if isinstance(item, Alternatives):
            afters = [self._marked(Close("chosen", number), then, item) for number in range(len(item.options))]
            return [self._before(*way) for way in zip(item.options, afters, strict=True)][::-1]
        if isinstance(item, Repeated):
            return [self._before(Round(item, 0, False), then)]
        if isinstance(item, Round):
            return self._rounds(item, then)
        within = self._within(item)
        if within is None:
            return None
        return [self._before(self._expression_of(within), self._before(Close("part", 0, within), then, item))]

    def _marked(self, mark: Close, then: Todo | None, owner: Expression) -> Todo | None:
        """The rest with a mark in front."""
        return self._before(mark, then, owner)

    def _within(self, item: Expression | Close | Round) -> Composed | None:
        """The constraint that an item is, if it has parts."""
        return item.constraint if isinstance(item, Inline) and isinstance(item.constraint, Composed) else None

    def _begin_of_todo(self, todo: Todo | None) -> FirstBytes:
        """With what all that is still to be matched may begin, or more."""
        passed: list[Todo] = []
        found = FirstBytes(0, True)
        while todo is not None and found.may_be_empty:
            known = self._begins.get(id(todo))
            if known is not None:
                found = found.then(known)
                break
            passed.append(todo)
            found = found.then(self._begin_of(todo.item))
            todo = todo.then
        if passed:
            self._begins[id(passed[0])] = found
        return found

    def _begin_of(self, item: Expression | Close | Round) -> FirstBytes:
        if isinstance(item, Close):
            return FirstBytes(0, True)
        if isinstance(item, Repeated | Round):
            return FirstBytes(self._begin_of((item if isinstance(item, Repeated) else item.repeated).item).first, True)
        if isinstance(item, Concatenated):
            found = FirstBytes(0, True)
            for part in item.items:
                found = found.then(self._begin_of(part)) if found.may_be_empty else found
            return found
        if isinstance(item, Alternatives):
            found = FirstBytes(0, False)
            for option in map(self._begin_of, item.options):
                found = FirstBytes(found.first | option.first, found.may_be_empty or option.may_be_empty)
            return found
        within = self._within(item)
        if within is not None:
            return self._begin_of(self._expression_of(within))
        if isinstance(item, SpecialToken):
            return FirstBytes(1 << written(item.token).encode()[0], False)
        recogniser, asked = self._reader_of(item)
        if asked:
            return FirstBytes((1 << 256) - 1, True)
        first = sum(1 << byte for byte in recogniser.following_bytes(recogniser.root))
        return FirstBytes(first, recogniser.states.is_accepting(recogniser.root))

    def _expression_of(self, constraint: Composed) -> Expression:
        """Its expression, the same object each time."""
        if id(constraint) not in self._expressions:
            self._expressions[id(constraint)] = constraint.expression()
        return self._expressions[id(constraint)]

    def _rounds(self, item: Round, then: Todo | None) -> list[Todo]:
        """The ways to go on with a repetition, the last to be tried first."""
        repeated, count = item.repeated, item.count
        if item.is_empty and count > repeated.min:
            return []  # a round that reads nothing is no round
        ways = []
        if count >= repeated.min:
            ways.append(self._before(Close("rounds end"), then, repeated))
        if repeated.max is None or count < repeated.max:
            # Without a bound above, it does not matter how many more than `min` there were.
            more = min(count, repeated.min) + 1 if repeated.max is None else count + 1
            ways.append(self._before(repeated.item, self._before(Round(repeated, more, True), then)))
        return ways

    def _before(self, item: Expression | Close | Round, then: Todo | None, owner: Expression | None = None) -> Todo:
        """The rest with `item` in front. Of marks and rounds, those of the same expression are the same."""
        if isinstance(item, Close):
            key: tuple[object, ...] = (item.kind, item.number, id(owner), id(then))
        elif isinstance(item, Round):
            key = (item.count, item.is_empty, id(item.repeated), id(then), "round")
        else:
            key = (id(item), id(then))
        if key not in self._todos:
            self._todos[key] = Todo(item, then, owner)
        return self._todos[key]

    def _after_reading(self, todo: Todo | None) -> Todo | None:
        """The rest with no round that has not read anything."""
        if todo is None:
            return None
        if todo.after_reading is None:
            item, then = todo.item, self._after_reading(todo.then)
            if isinstance(item, Round) and item.is_empty:
                item = Round(item.repeated, item.count, False)
            todo.after_reading = self._before(item, then, todo.owner)
        return todo.after_reading

    def _ends_of(self, item: Expression, start: int) -> Work[list[int]]:
        """The places where a part that begins at `start` may end, ascending."""
        if isinstance(item, SpecialToken):
            name = written(item.token).encode()
            ends = [start + len(name)] if self.data.startswith(name, start) else []
            self.reached = max(self.reached, start, *ends)
            return ends
        key = (id(item), start)
        known = self._ends.get(key)
        if known is None:
            recogniser, asked = self._reader_of(item)
            if asked:
                found = []
                for place in positions(recogniser, self.data, start, asked):
                    found.append(place)
                    if len(found) % _PART == 0:
                        yield _PART * _COST
                known = [position for position, states in found if any(map(recogniser.states.is_accepting, states))]
                reached = found[-1][0]
            else:
                known, reached = yield from _ends(recogniser, self.data, start)
            self.reached = max(self.reached, reached)
            guard = item.constraint.guard() if self._is_guarded and isinstance(item, Inline) else None
            if guard is not None:
                ends, known = known, []
                for end in ends:
                    if (yield from judging_of(guard, self.data[start:end])) is None:
                        known.append(end)
            self._ends[key] = known
        return known

    def _reader_of(self, item: Expression) -> tuple[Recogniser, frozenset[str | int]]:
        if id(item) not in self._readers:
            assert isinstance(item, Terminal | Inline), f"a {type(item).__name__} is no part of a composition"
            self._readers[id(item)] = _recogniser(item), special_tokens_of(item)
        return self._readers[id(item)]


@dataclass(frozen=True, slots=True)
class PartsGuard(WorkingGuard):
    """Refuses a text of which every division has a part that its guard refuses.

    The reason is that of the division that comes first.
    """

    constraint: Composed

    def judging(self, text: bytes) -> Work[Refusal | None]:
        """As in `WorkingGuard`."""
        expression = self.constraint.expression()
        if (yield from Split.dividing(expression, text)).is_whole:
            return None
        split = yield from Split.dividing(expression, text, is_guarded=False)
        for leaf in split.leaves():
            guard = leaf.item.constraint.guard() if isinstance(leaf.item, Inline) else None
            refusal = None if guard is None else (yield from judging_of(guard, text[leaf.start : leaf.end]))
            if refusal is not None:
                return Refusal(leaf.start + refusal.keep, refusal.at, refusal.message)
        return Refusal(len(text), "the whole text", "it does not divide into the parts of the constraint")


def _ends(recogniser: Recogniser, data: bytes, start: int) -> Work[tuple[list[int], int]]:
    """The places where a text of a part that begins at `start` may end, ascending, and the place it reads up to."""
    state: State | None = recogniser.root
    ends = []
    for position in range(start, len(data) + 1):
        assert state is not None
        if (position - start) % _PART == _PART - 1:
            yield _PART
        if recogniser.states.is_accepting(state):
            ends.append(position)
        if position == len(data):
            break
        state = recogniser.step(state, data[position])
        if state is None:
            return ends, position
    return ends, len(data)


def _recogniser(item: Terminal | Inline) -> Recogniser:
    """The states of a part that is not divided further, kept between texts while they are few."""
    recogniser = _kept(item)
    if recogniser.num_states > MAX_STATES:
        _kept.cache_clear()
        recogniser = _kept(item)
    recogniser.account.set(recogniser.num_bytes)
    return recogniser


@lru_cache(maxsize=128)
def _kept(item: Terminal | Inline) -> Recogniser:
    root = Lexeme(item.node) if isinstance(item, Terminal) else item.constraint.root()
    return Recogniser(root, shared_automaton())


on_shortage(_kept.cache_clear)
