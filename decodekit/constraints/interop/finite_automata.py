"""Finite automata over characters, as those of `interegular` and `greenery` are.

    even = interegular.parse_pattern("(aa)*").to_fsm()
    dk.generate("...", constraint=even)

A state is a `Node`, whose bytes are those of the characters in UTF-8: as many nodes as the automaton has states, and a
few for the inner bytes of characters. Nothing is eliminated, so nothing grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.rules import reached
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node, Transitions
from decodekit.constraints.language.utf8 import Ranges
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.network import Frame, Lexeme
from decodekit.errors import InvalidConstraintError, UnsatisfiableError

if TYPE_CHECKING:
    import interegular

Row: TypeAlias = tuple[tuple[Ranges, int], ...]
"""Disjoint sets of characters, each with the state behind it."""

_BYTES_PER_ROW: Final = 2_000


@dataclass(frozen=True, slots=True)
class FiniteAutomaton(Constraint):
    """The texts that an automaton accepts. The value of a text is the text.

    Attributes:
        rows: by state; 0 is the first state. Every state leads to an accepting one.
        finals: the accepting states.
    """

    rows: tuple[Row, ...]
    finals: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """About how much memory the states take."""
        return _BYTES_PER_ROW * sum(1 + len(row) for row in self.rows)

    def root(self) -> Frame:
        """One lexeme."""
        return Lexeme(AutomatonState(_table(self), 0))

    def parse(self, text: str) -> str:
        """The text itself.

        Raises:
            ValueError: the automaton does not accept it.
        """
        if not ir.matches(AutomatonState(_table(self), 0), text.encode("utf-8", errors="surrogatepass")):
            raise ValueError(f"the automaton does not accept {text!r:.200}")
        return text


class ByteRows:
    """The rows of an automaton over bytes. Compared by identity."""

    def __init__(self, automaton: FiniteAutomaton) -> None:
        self.finals = frozenset(automaton.finals)
        self._characters = automaton.rows
        self.rows: Memo[int, Transitions] = Memo(self._row)

    def _row(self, state: int) -> Transitions:
        """The byte sets that may come in a state, each with what is left behind it."""
        ways = [
            (mask, ir.concat(rest, AutomatonState(self, target)))
            for ranges, target in self._characters[state]
            for mask, rest in utf8.charset(ranges).transitions()
        ]
        return ir.merge(ways)


@lru_cache(maxsize=64)
def _table(automaton: FiniteAutomaton) -> ByteRows:
    return ByteRows(automaton)


@dataclass(frozen=True, slots=True)
class AutomatonState(Node):
    """The texts that an automaton accepts from a state on."""

    table: ByteRows
    state: int

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """As in `Node`; without labels."""
        return (None,) if self.state in self.table.finals else ()

    def transitions(self) -> Transitions:
        """As in `Node`."""
        return self.table.rows[self.state]

    def _is_empty(self) -> bool:
        return False  # every state leads to an accepting one


def constraint_of(value: interegular.FSM | Any) -> FiniteAutomaton:
    """The texts that an `interegular.FSM` accepts, or that a parsed `interegular.Pattern` matches."""
    from interegular.fsm import anything_else

    fsm = value.to_fsm() if hasattr(value, "to_fsm") else value
    points: dict[object, list[tuple[int, int]]] = {}
    for symbol, key in fsm.alphabet.items():
        if symbol is not anything_else:
            if not isinstance(symbol, str) or len(symbol) != 1:
                raise InvalidConstraintError(
                    f"the automaton reads the symbol {symbol!r:.60}, which is no character",
                    hint="an alphabet of single characters and anything_else",
                )
            points.setdefault(key, []).append((ord(symbol), ord(symbol)))
    named = utf8.normalise(itertools.chain.from_iterable(points.values()))
    ranges = {key: utf8.normalise(some) for key, some in points.items()}
    if anything_else in fsm.alphabet:
        key = fsm.alphabet[anything_else]
        ranges[key] = utf8.normalise((*ranges.get(key, ()), *utf8.invert(named)))
    return _trimmed(fsm, {key: found for key, some in ranges.items() if (found := utf8.intersect(some, utf8.SCALARS))})


def _trimmed(fsm: interegular.FSM, ranges: Mapping[object, Ranges]) -> FiniteAutomaton:
    """The states that lie between the first one and an accepting one, in the order in which they are met."""
    before: dict[object, list[object]] = {}
    for state, targets in fsm.map.items():
        for target in targets.values():
            before.setdefault(target, []).append(state)
    alive = reached(fsm.finals, lambda state: before.get(state, ()))
    if fsm.initial not in alive:
        raise UnsatisfiableError("the automaton accepts nothing", hint="an accepting state that can be reached")
    order = {fsm.initial: 0}
    rows: list[Row] = []
    for state in (agenda := [fsm.initial]):  # grows while it is read
        row: dict[int, list[tuple[int, int]]] = {}
        for key, target in fsm.map.get(state, {}).items():
            if target in alive and key in ranges:
                if target not in order:
                    order[target] = len(order)
                    agenda.append(target)
                row.setdefault(order[target], []).extend(ranges[key])
        rows.append(tuple((utf8.normalise(some), target) for target, some in row.items()))
    return FiniteAutomaton(tuple(rows), tuple(sorted(order[state] for state in fsm.finals if state in order)))
