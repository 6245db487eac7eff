"""A lexer that takes the longest terminal at each place (maximal munch), as finite tables and as regular languages.

A lexeme is the longest one if no beginning of what follows makes a longer one. The words that would are its *shadow*:
of ``a``, where ``a``, ``b`` and ``abc`` are terminals, the shadow is ``bc``, of an identifier it is one more letter or
digit. So the text is read from left to right without looking ahead: whoever reads on carries the shadows of all lexemes
so far, each shortened by what was read since, and must never complete a word of any. A shadow that nothing can complete
any more is gone.

Terminals are numbered in the order of their ranks: where several have the same word, it is a lexeme of the first.

A lexer may have several automata, each of which reads some of the terminals by itself: Lark's dynamic lexer has one for
each terminal, and its basic lexer a single one, in which `FirstMatch` decides.

Source: A. Aho, M. Lam, R. Sethi, J. Ullman, Compilers (2nd edition, 2006), sections 3.5.3 and 3.8, for the definition.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final, TypeAlias, TypeVar

from decodekit.constraints.grammar.rules import reached
from decodekit.constraints.language import ir
from decodekit.constraints.language.ir import ALL_BYTES
from decodekit.constraints.language.ir import bytes_of as bits  # the members of any set that a number is
from decodekit.constraints.language.node import ByteMask, Node, Transitions
from decodekit.constraints.memory_account import Memo
from decodekit.errors import ResourceLimitError

T = TypeVar("T")
Rows: TypeAlias = tuple[tuple[ByteMask, int], ...]
"""Disjoint byte sets, each with the state behind it."""

MAX_STATES: Final = 20_000
"""Bound on the states of all terminals read together."""
MAX_SHADOWS: Final = 2_000
"""Bound on the sets of shadows."""
MAX_STEPS: Final = 300_000
"""Bound on the pairs of a state and a shadow that are looked at."""

_COMPLETE: Final = -1  # instead of a shadow: one of its words is complete
_NO_SHADOW: Final = 0


class Lexer:
    """The terminals of a grammar, read together. Compared by identity.

    Args:
        automata: what is read together: the union of some terminals, each of which labels the ends of its words with
            its rank. Ranks can be compared. A terminal in several automata has the same lexemes in all of them.
        unbounded: the ranks of terminals any of whose words is a lexeme, not only the longest.

    Attributes:
        ranks: those of the terminals, ascending; a terminal is a place in this list.
        ends: the ways in which lexemes may end: the terminal, and the shadow that follows. Grows.
        ends_from: the ends of the lexemes behind a start that keep out of a shadow, a set of bits by start and shadow.
        ends_behind: by shadow and terminal, the ends of its lexemes that keep out of the shadow.
        first_bytes: with which bytes the lexemes of a terminal may begin, by terminal.
        starts_of: the states before a lexeme of a terminal, by terminal: several where automata differ about it.
    """

    def __init__(self, *automata: Node, unbounded: Collection[Any] = ()) -> None:
        rows, labels, starts = _explore(automata)
        found: set[Any] = {label for some in labels for label in some}
        self.ranks: list[Any] = sorted(found)
        number = {rank: terminal for terminal, rank in enumerate(self.ranks)}
        self.rows = rows
        self._starts = starts
        self._unbounded = frozenset(number[rank] for rank in unbounded if rank in number)
        self._terminal = [min((number[label] for label in some), default=-1) for some in labels]
        self._shadow_of, self._shadow_rows = _shadows(rows, [terminal >= 0 for terminal in self._terminal])
        self._sets: list[frozenset[int]] = [frozenset()]
        self._set_numbers: dict[frozenset[int], int] = {frozenset(): _NO_SHADOW}
        self._rows_of: Memo[int, Rows] = Memo(self._find_rows)
        self.ends: list[tuple[int, int]] = []
        self._end_numbers: dict[tuple[int, int], int] = {}
        self._all_ends = self._find_ends()
        self.ends_from: Memo[tuple[int, int], int] = Memo(self._search_ends)
        self.ends_behind: Memo[int, dict[int, tuple[int, ...]]] = Memo(self._find_ends_behind)
        self._num_steps = 0
        self.first_bytes: list[ByteMask] = [0] * len(self.ranks)
        self.starts_of: list[list[int]] = [[] for _ in self.ranks]
        for start in dict.fromkeys(starts):
            for mask, target in rows[start]:
                for end in bits(self._all_ends[target]):
                    self.first_bytes[self.ends[end][0]] |= mask
            for terminal in {self.ends[end][0] for end in bits(self._all_ends[start])}:
                if not any(self._agree(terminal, start, other) for other in self.starts_of[terminal]):
                    self.starts_of[terminal].append(start)

    def is_unanimous(self, tried: Sequence[Collection[Any]]) -> bool:
        """Whether the lexemes of each terminal are the same in all automata that may read it.

        `tried` are the ranks of the terminals that each automaton may read, also those that it never finds.
        """
        return all(len(starts) <= 1 for starts in self.starts_of) and all(
            {self.ends[end][0] for end in bits(self._all_ends[start])}.issuperset(
                terminal for terminal, rank in enumerate(self.ranks) if rank in ranks
            )
            for start, ranks in zip(self._starts, tried, strict=True)
        )

    def _search_ends(self, root: tuple[int, int]) -> int:
        found = 0

        def following(place: tuple[int, int]) -> list[tuple[int, int]]:
            nonlocal found
            state, shadow = place
            if shadow == _NO_SHADOW:
                found |= self._all_ends[state]
                return []
            self._num_steps += 1
            if self._num_steps > MAX_STEPS:
                raise _too_many(f"{MAX_STEPS:,} steps")
            end = self.end(state, shadow)
            found |= 0 if end is None else 1 << end
            return [(target, left) for _, target, left in self.step(state, shadow)]

        reached([root], following)
        return found

    def _find_ends_behind(self, shadow: int) -> dict[int, tuple[int, ...]]:
        found = reduce(or_, (self.ends_from[start, shadow] for start in set(self._starts)), 0)
        by_terminal: dict[int, list[int]] = {}
        for end in bits(found):
            by_terminal.setdefault(self.ends[end][0], []).append(end)
        return {terminal: tuple(ends) for terminal, ends in by_terminal.items()}

    def touched(self, shadow: int) -> ByteMask:
        """The bytes with which a word of a shadow may begin."""
        return sum(mask for mask, _ in self._rows_of[shadow])  # rows are disjoint

    def end(self, state: int, shadow: int) -> int | None:
        """The number of a lexeme's end in a state, if any; `shadow` is the rest of the shadows of earlier ones."""
        terminal = self._terminal[state]
        if terminal < 0:
            return None
        behind = frozenset[int]() if terminal in self._unbounded else self._shadow_behind(state)
        end = (terminal, self._set(self._sets[shadow] | behind))
        number = self._end_numbers.setdefault(end, len(self.ends))
        if number == len(self.ends):
            self.ends.append(end)
        return number

    def step(self, state: int, shadow: int) -> Iterator[tuple[ByteMask, int, int]]:
        """Byte sets, each with the state behind it and what is left of the shadow, where none of its words is complete.

        The sets are disjoint, and their targets differ.
        """
        for mask, target in self.rows[state]:
            rest = mask
            for other, left in self._rows_of[shadow]:
                common = mask & other
                rest &= ~other
                if common and left != _COMPLETE:
                    yield common, target, left
            if rest:
                yield rest, target, _NO_SHADOW

    def may_end(self, state: int) -> int:
        """The ways in which lexemes may end from a state without a shadow, a set of bits."""
        return self._all_ends[state]

    def _find_ends(self) -> list[int]:
        """By state, the ways in which lexemes may end from there."""
        before, agenda = _before(self.rows), list(range(len(self.rows)))
        own = (self.end(state, _NO_SHADOW) for state in agenda)
        ends = [0 if end is None else 1 << end for end in own]
        while agenda:
            state = agenda.pop()
            for earlier in before[state]:
                if ends[state] & ~ends[earlier]:
                    ends[earlier] |= ends[state]
                    agenda.append(earlier)
        return ends

    def _agree(self, terminal: int, first: int, second: int) -> bool:
        """Whether a terminal has the same lexemes behind two states, with the same shadows."""
        ends = sum(1 << number for number, end in enumerate(self.ends) if end[0] == terminal)
        differ = False

        def following(pair: tuple[int, int]) -> list[tuple[int, int]]:
            """The pairs behind one, by the rows from which a lexeme of the terminal can be completed."""
            nonlocal differ
            one, other = ([row for row in self.rows[state] if self._all_ends[row[1]] & ends] for state in pair)
            here = {self.end(state, _NO_SHADOW) if self._terminal[state] == terminal else None for state in pair}
            differ |= len(here) > 1 or sum(mask for mask, _ in one) != sum(mask for mask, _ in other)  # disjoint
            return [] if differ else [(to, twin) for mask, to in one for common, twin in other if mask & common]

        reached([(first, second)], following)
        return not differ

    def _shadow_behind(self, state: int) -> frozenset[int]:
        shadow = self._shadow_of[state]
        return frozenset((shadow,)) if shadow else frozenset()

    def _set(self, shadows: frozenset[int]) -> int:
        number = self._set_numbers.setdefault(shadows, len(self._sets))
        if number == len(self._sets):
            self._sets.append(shadows)
            if number > MAX_SHADOWS:
                raise _too_many(f"{MAX_SHADOWS:,} ways in which earlier lexemes might have been longer")
        return number

    def _find_rows(self, shadow: int) -> Rows:
        """The sets of shadows that are left of one after a byte; after other bytes none is."""
        rows: dict[int, ByteMask] = {}
        for mask, left in _side_by_side(self._shadow_rows[one] for one in self._sets[shadow]):
            target = _COMPLETE if _COMPLETE in left else self._set(frozenset(left))
            rows[target] = rows.get(target, 0) | mask
        return tuple((mask, target) for target, mask in rows.items())


@dataclass(frozen=True, slots=True)
class Munch(Node):
    """The rest of a lexeme that keeps out of a shadow and ends in one of some ways, a set of bits.

    A word ends with the number of its end in `Lexer.ends` as its label.
    """

    lexer: Lexer
    state: int
    shadow: int
    permitted: int

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """The end, if it is permitted."""
        end = self.lexer.end(self.state, self.shadow)
        return () if end is None or not self.permitted >> end & 1 else (end,)

    def transitions(self) -> Transitions:
        """As in `Node`."""
        lexer, permitted = self.lexer, self.permitted
        return tuple(
            (mask, Munch(lexer, state, shadow, permitted))
            for mask, state, shadow in lexer.step(self.state, self.shadow)
            if lexer.may_end(state) & permitted or shadow != _NO_SHADOW
        )

    def _is_empty(self) -> bool:
        if self.shadow == _NO_SHADOW:
            return not self.lexer.may_end(self.state) & self.permitted
        return super(Munch, self)._is_empty()  # by name: a class with slots is made anew


@dataclass(frozen=True, slots=True)
class FirstMatch(Node):
    """The words of a scanner that tries terminals in an order and takes the longest word of the first that has any.

    After the terminals ``abc`` and ``a``, in this order, have read ``a``, what is left is ``bc`` of the first, and the
    end of the second. In the other order nothing of ``abc`` is left: ``a`` is found first, whatever follows.

    `parts` are what is left of the terminals that may still be found. One whose word has ended is the last one: those
    behind it are not asked any more (see `first_match`).
    """

    parts: tuple[Node, ...]

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """Those of the last part: only that may have ended."""
        return self.parts[-1].labels if self.parts else ()

    def transitions(self) -> Transitions:
        """As in `Node`."""
        rows = _side_by_side(part.transitions() for part in self.parts)
        return ir.merge([(mask, first_match(left)) for mask, left in rows])


def first_match(parts: Sequence[Node]) -> Node:
    """A `FirstMatch` without the parts behind the first one whose word has ended."""
    end = next((i + 1 for i, part in enumerate(parts) if part.labels), len(parts))
    return FirstMatch(tuple(parts[:end]))


def _side_by_side(tables: Iterable[Iterable[tuple[ByteMask, T]]]) -> list[tuple[ByteMask, tuple[T, ...]]]:
    """Disjoint byte sets, each with its targets in all tables that have one, in their order."""
    pieces: list[tuple[ByteMask, tuple[T, ...]]] = [(ALL_BYTES, ())]
    for table in tables:
        rows = list(table)
        split: list[tuple[ByteMask, tuple[T, ...]]] = []
        for mask, targets in pieces:
            rest = mask
            for other, target in rows:
                if mask & other:
                    split.append((mask & other, (*targets, target)))
                    rest &= ~other
            if rest:
                split.append((rest, targets))
        pieces = split
    return [(mask, targets) for mask, targets in pieces if targets]


def _before(rows: Sequence[Rows]) -> list[list[int]]:
    """By state, the states that lead to it."""
    before: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for _, target in row:
            before[target].append(state)
    return before


def _explore(roots: Sequence[Node]) -> tuple[list[Rows], list[tuple[Hashable, ...]], list[int]]:
    """All derivatives as numbered states, with their rows and labels; without those that lead to no word.

    And the numbers of the roots.
    """
    numbers = {node: number for number, node in enumerate(dict.fromkeys(roots))}
    nodes = list(numbers)
    rows: list[Rows] = []
    for node in nodes:  # grows while it is read
        row: list[tuple[ByteMask, int]] = []
        for mask, target in node.transitions():
            if target not in numbers:
                numbers[target] = len(nodes)
                nodes.append(target)
            row.append((mask, numbers[target]))
        rows.append(tuple(row))
        if len(nodes) > MAX_STATES:
            raise _too_many(f"{MAX_STATES:,} states of all terminals together")
    labels = [node.labels for node in nodes]
    alive = reached((state for state, some in enumerate(labels) if some), _before(rows).__getitem__)
    rows = [tuple((mask, target) for mask, target in row if target in alive) for row in rows]
    return rows, labels, [numbers[root] for root in roots]


def _shadows(rows: list[Rows], is_end: list[bool]) -> tuple[list[int], list[Rows]]:
    """The shadow of each state, and the rows of each shadow; equal shadows are one, 0 the shadow without words.

    Only the shortest words of a shadow matter, so a word leads to `_COMPLETE`. States are told apart by partition
    refinement: of a class that splits, the largest part keeps its number, and what leads to the others is looked at
    again. Source: J. Hopcroft, An n log n algorithm for minimizing states in a finite automaton (1971).
    """
    shadow_of = [0] * len(rows)
    members: list[set[int]] = [set(range(len(rows)))]
    before: list[set[int]] = [set() for _ in rows]
    for state, row in enumerate(rows):
        for _, target in row:
            if not is_end[target]:
                before[target].add(state)

    def signature(state: int) -> frozenset[tuple[int, ByteMask]]:
        found: dict[int, ByteMask] = {}
        for mask, target in rows[state]:
            left = _COMPLETE if is_end[target] else shadow_of[target]
            found[left] = found.get(left, 0) | mask
        return frozenset(found.items())

    dirty = set(members[0])
    while dirty:
        by_class: dict[int, list[int]] = {}
        for state in dirty:
            by_class.setdefault(shadow_of[state], []).append(state)
        dirty = set()
        partings: list[tuple[int, list[set[int]]]] = []  # all by the same numbers, before any of these change
        for number, states in by_class.items():
            parts: dict[frozenset[tuple[int, ByteMask]], set[int]] = {}
            for state in states:
                parts.setdefault(signature(state), set()).add(state)
            same = members[number].difference(states)  # as they were, so all alike
            if same:
                parts.setdefault(signature(next(iter(same))), set()).update(same)
            partings.append((number, sorted(parts.values(), key=len, reverse=True)))
        for number, (kept, *others) in partings:
            members[number] = kept
            for part in others:
                for state in part:
                    shadow_of[state] = len(members)
                    dirty |= before[state]
                members.append(part)
    # A state from which no word goes on has no row: its class becomes number 0.
    left = [signature(next(iter(some))) for some in members]
    order = [number for number, row in enumerate(left) if row]
    place = {_COMPLETE: _COMPLETE, **{number: i for i, number in enumerate(order, 1)}}
    shadow_rows: list[Rows] = [(), *(tuple((mask, place.get(t, 0)) for t, mask in left[number]) for number in order)]
    return [place.get(number, 0) for number in shadow_of], shadow_rows


def _too_many(what: str) -> ResourceLimitError:
    return ResourceLimitError(
        f"the terminals lead to more than {what} in a lexer that takes the longest",
        hint='simpler terminals, or Grammar(..., lexer="scannerless")',
    )
