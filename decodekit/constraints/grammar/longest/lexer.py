"""A lexer that takes the longest terminal at each place (maximal munch), as finite tables and as regular languages.

A lexeme is the longest one if no beginning of what follows makes a longer one. The words that would are its *shadow*:
of ``a``, where ``a``, ``b`` and ``abc`` are terminals, the shadow is ``bc``, of an identifier it is one more letter or
digit. So the text is read from left to right without looking ahead: whoever reads on carries the shadows of all lexemes
so far, each shortened by what was read since, and must never complete a word of any. A shadow that nothing can complete
any more is gone.

Terminals are numbered in the order of their ranks: where several have the same word, it is a lexeme of the first.

Source: A. Aho, M. Lam, R. Sethi, J. Ullman, Compilers (2nd edition, 2006), sections 3.5.3 and 3.8, for the definition.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from decodekit.constraints.language import ir
from decodekit.constraints.language.ir import ALL_BYTES
from decodekit.constraints.language.node import ByteMask, Node, Transitions
from decodekit.errors import ResourceLimitError

MAX_STATES: Final = 20_000
"""Bound on the states of all terminals read together."""
MAX_SHADOWS: Final = 2_000
"""Bound on the sets of shadows."""
MAX_STEPS: Final = 300_000
"""Bound on the pairs of a state and a shadow that are looked at."""

_COMPLETE: Final = -1  # instead of a shadow: one of its words is complete
_START: Final = 0  # the state of the automaton before a lexeme
_NO_SHADOW: Final = 0


class Lexer:
    """The terminals of a grammar, read together. Compared by identity.

    Args:
        terminals: the union of all, each of which labels the ends of its words with its rank; ranks can be compared.

    Attributes:
        ranks: those of the terminals, ascending; a terminal is a place in this list.
        ends: the ways in which lexemes may end: the terminal, and the shadow that follows. Grows.
        first_bytes: with which bytes the lexemes of a terminal may begin, by terminal.

    Raises:
        ResourceLimitError: the terminals have more than `MAX_STATES` states together.
    """

    def __init__(self, terminals: Node) -> None:
        rows, labels = _explore(terminals)
        found: set[Any] = {label for some in labels for label in some}
        self.ranks: list[Any] = sorted(found)
        number = {rank: terminal for terminal, rank in enumerate(self.ranks)}
        self.rows = rows
        self._terminal = [min((number[label] for label in some), default=-1) for some in labels]
        self._shadow_of, self._shadow_rows = _shadows(rows, [terminal >= 0 for terminal in self._terminal])
        self._sets: list[frozenset[int]] = [frozenset()]
        self._set_numbers: dict[frozenset[int], int] = {frozenset(): _NO_SHADOW}
        self._set_rows: dict[int, tuple[tuple[ByteMask, int], ...]] = {}
        self.ends: list[tuple[int, int]] = []
        self._end_numbers: dict[tuple[int, int], int] = {}
        self._all_ends = self._find_ends()
        self._ends_behind: dict[int, dict[int, tuple[int, ...]]] = {}
        self._num_steps = 0
        self.first_bytes: list[ByteMask] = [0] * len(self.ranks)
        for mask, target in rows[_START]:
            for end in bits(self._all_ends[target]):
                self.first_bytes[self.ends[end][0]] |= mask

    def ends_behind(self, shadow: int) -> dict[int, tuple[int, ...]]:
        """By terminal, the ends of its lexemes that keep out of a shadow.

        Raises:
            ResourceLimitError: there are more than `MAX_SHADOWS` shadows, or `MAX_STEPS` steps to them.
        """
        known = self._ends_behind.get(shadow)
        if known is None:
            found = 0
            seen = {(_START, shadow)}
            agenda = [(_START, shadow)]
            while agenda:
                state, beside = agenda.pop()
                if beside == _NO_SHADOW:
                    found |= self._all_ends[state]
                    continue
                end = self.end(state, beside)
                if end is not None:
                    found |= 1 << end
                for _, target, left in self.step(state, beside):
                    if (target, left) not in seen:
                        seen.add((target, left))
                        agenda.append((target, left))
                self._num_steps += 1
                if self._num_steps > MAX_STEPS:
                    raise _too_many(f"{MAX_STEPS:,} steps")
            by_terminal: dict[int, list[int]] = {}
            for end in bits(found):
                by_terminal.setdefault(self.ends[end][0], []).append(end)
            known = self._ends_behind[shadow] = {terminal: tuple(ends) for terminal, ends in by_terminal.items()}
        return known

    def word(self, shadow: int, ends: int) -> Node:
        """The lexemes that keep out of a shadow and end in one of some ways, a set of bits. Labels are the ends."""
        return Munch(self, _START, shadow, ends)

    def touched(self, shadow: int) -> ByteMask:
        """The bytes with which a word of a shadow may begin."""
        touched = 0
        for mask, _ in self._rows_of(shadow):
            touched |= mask
        return touched

    def end(self, state: int, shadow: int) -> int | None:
        """How a lexeme ends in a state, if it does; `shadow` is what is left of the shadows of earlier ones."""
        terminal = self._terminal[state]
        if terminal < 0:
            return None
        end = (terminal, self._set(self._sets[shadow] | self._shadow_behind(state)))
        number = self._end_numbers.get(end)
        if number is None:
            number = self._end_numbers[end] = len(self.ends)
            self.ends.append(end)
        return number

    def step(self, state: int, shadow: int) -> Iterator[tuple[ByteMask, int, int]]:
        """Byte sets, each with the state behind it and what is left of the shadow, where none of its words is complete.

        The sets are disjoint, and their targets differ.
        """
        shaded = self._rows_of(shadow)
        for mask, target in self.rows[state]:
            rest = mask
            for other, left in shaded:
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
        ends = [0] * len(self.rows)
        before: list[list[int]] = [[] for _ in self.rows]
        for state, row in enumerate(self.rows):
            for _, target in row:
                before[target].append(state)
            end = self.end(state, _NO_SHADOW)
            ends[state] = 0 if end is None else 1 << end
        agenda = list(range(len(self.rows)))
        while agenda:
            state = agenda.pop()
            for earlier in before[state]:
                if ends[state] & ~ends[earlier]:
                    ends[earlier] |= ends[state]
                    agenda.append(earlier)
        return ends

    def _shadow_behind(self, state: int) -> frozenset[int]:
        shadow = self._shadow_of[state]
        return frozenset((shadow,)) if shadow else frozenset()

    def _set(self, shadows: frozenset[int]) -> int:
        number = self._set_numbers.get(shadows)
        if number is None:
            number = self._set_numbers[shadows] = len(self._sets)
            self._sets.append(shadows)
            if number > MAX_SHADOWS:
                raise _too_many(f"{MAX_SHADOWS:,} ways in which earlier lexemes might have been longer")
        return number

    def _rows_of(self, shadow: int) -> tuple[tuple[ByteMask, int], ...]:
        """What is left of a set of shadows after a byte; after other bytes nothing is."""
        known = self._set_rows.get(shadow)
        if known is None:
            pieces: list[tuple[ByteMask, frozenset[int]]] = [(ALL_BYTES, frozenset())]
            for one in self._sets[shadow]:
                split: list[tuple[ByteMask, frozenset[int]]] = []
                for mask, left in pieces:
                    rest = mask
                    for other, target in self._shadow_rows[one]:
                        if mask & other:
                            split.append((mask & other, left | {target}))
                            rest &= ~other
                    if rest:
                        split.append((rest, left))
                pieces = split
            rows: dict[int, ByteMask] = {}
            for mask, left in pieces:
                if left:
                    target = _COMPLETE if _COMPLETE in left else self._set(left)
                    rows[target] = rows.get(target, 0) | mask
            known = self._set_rows[shadow] = tuple((mask, target) for target, mask in rows.items())
        return known


@dataclass(frozen=True, slots=True)
class Munch(Node):
    """What may be left of a lexeme. A word ends with the number of its end in `Lexer.ends` as its label."""

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


def _explore(root: Node) -> tuple[list[tuple[tuple[ByteMask, int], ...]], list[tuple[Hashable, ...]]]:
    """All derivatives as numbered states, with their rows and labels; without those that lead to no word."""
    numbers: dict[Node, int] = {root: 0}
    nodes = [root]
    rows: list[list[tuple[ByteMask, int]]] = []
    for node in nodes:  # grows while it is read
        row: list[tuple[ByteMask, int]] = []
        for mask, target in node.transitions():
            if target not in numbers:
                numbers[target] = len(nodes)
                nodes.append(target)
            row.append((mask, numbers[target]))
        rows.append(row)
        if len(nodes) > MAX_STATES:
            raise _too_many(f"{MAX_STATES:,} states of all terminals together")
    labels = [node.labels for node in nodes]
    before: list[list[int]] = [[] for _ in nodes]
    for state, row in enumerate(rows):
        for _, successor in row:
            before[successor].append(state)
    agenda = [state for state, some in enumerate(labels) if some]
    is_alive = [bool(some) for some in labels]
    while agenda:
        for earlier in before[agenda.pop()]:
            if not is_alive[earlier]:
                is_alive[earlier] = True
                agenda.append(earlier)
    return [tuple((mask, target) for mask, target in row if is_alive[target]) for row in rows], labels


def _shadows(
    rows: list[tuple[tuple[ByteMask, int], ...]], is_end: list[bool]
) -> tuple[list[int], list[tuple[tuple[ByteMask, int], ...]]]:
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
    order = sorted(range(len(members)), key=lambda number: bool(signature(next(iter(members[number])))))
    if order and signature(next(iter(members[order[0]]))):
        order.insert(0, -2)  # there is none
    place = {number: i for i, number in enumerate(order)}
    shadow_rows: list[tuple[tuple[ByteMask, int], ...]] = [()]
    for number in order[1:]:
        left = signature(next(iter(members[number])))
        shadow_rows.append(tuple((mask, t if t == _COMPLETE else place[t]) for t, mask in left))
    return [place[number] for number in shadow_of], shadow_rows


def bits(number: int) -> list[int]:
    """The members of a set that is given by the bits of a number."""
    return ir.bytes_of(number)


def _too_many(what: str) -> ResourceLimitError:
    return ResourceLimitError(
        f'the terminals lead to more than {what} with lexer="longest"', hint='simpler terminals, or lexer="scannerless"'
    )
