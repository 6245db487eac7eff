"""The control states of a grammar over terminals, and which shadows may be there when one of them returns.

The rules over terminals, one letter each, are a network of frames already (see `rule_frames`); its frames are numbered
here, as *states*. A state with the shadow at hand (see `lexer`) knows which shadows it may leave behind when it
returns: the least solution of equations that go through reads, calls and returns. So nothing is begun that cannot be
completed.

Source: Y. Bar-Hillel, M. Perles, E. Shamir, On formal properties of simple phrase structure grammars (1961): the
intersection of a context-free language with a regular one, which is here that of lexemes in good order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, Generic, TypeAlias, TypeVar

from decodekit.constraints.grammar.longest.lexer import Lexer
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import NO_TEXT, Expression, Inline, Rules, SpecialToken, Terminal, mapped, walk
from decodekit.constraints.language import ir
from decodekit.constraints.language.ir import bytes_of as bits
from decodekit.constraints.language.node import ByteMask, Node
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.network import Call, Frame, Label, Read
from decodekit.errors import ResourceLimitError, UnsupportedSchemaError

MAX_PLACES: Final = 100_000
"""Bound on the states of the rules, and on the states with their shadows."""
MAX_STEPS: Final = 1_000_000
"""Bound on the steps to what is known of states."""
_MAX_TERMINALS: Final = 1 << 16  # a letter is two bytes

ROOT: Final = 0
"""The state in which a text begins."""
TAIL: Final = 1
"""The state behind the rules: what is ignored."""

Start: TypeAlias = "tuple[int, int]"
"""A state, with the shadow at hand."""
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class ControlState:
    """A control state of the rules over terminals."""

    reads: dict[int, tuple[int, ...]]  # the states behind each terminal that may come
    calls: tuple[tuple[int, int], ...]  # states that are run to their end first, each with the one behind it
    is_end: bool  # it may return
    again: int  # the state behind an ignored terminal, which reads what this one does, and neither calls nor returns
    title: str | None = None  # in messages

    @property
    def only_returns(self) -> bool:
        """Whether nothing may happen here."""
        return self.is_end and not self.reads and not self.calls


class KnownStates:
    """The states of a grammar with what is known of them. Compared by identity; for arguments see `lexing_root`.

    Attributes:
        words: the terminals that are one word each.
        names: what messages call the other terminals than the ignored ones.
    """

    def __init__(self, rules: Rules, lexer: Lexer | None = None) -> None:
        ignored = ir.EMPTY if rules.ignore is None else rules.ignore
        terminals = {terminal.node: terminal for rule in rules.rules.values() for terminal in _terminals(rule)}
        self.lexer = Lexer(ir.choice(*terminals, ignored)) if lexer is None else lexer
        if len(self.lexer.ranks) > _MAX_TERMINALS:
            raise ResourceLimitError(f"the grammar has more than {_MAX_TERMINALS:,} terminals")
        numbers = {rank: terminal for terminal, rank in enumerate(self.lexer.ranks)}
        self.ignored = frozenset(numbers[rank] for rank in _ranks(ignored) if rank in numbers)
        self.names: dict[int, str] = {}
        self.words: set[int] = set()
        letters: dict[Node, Expression] = {}
        for node, terminal in terminals.items():
            number = next((numbers[rank] for rank in _ranks(node) if rank in numbers), None)
            if number is None or number in self.ignored:
                letters[node] = NO_TEXT
            else:
                self.names[number] = name = terminal.name or repr(node)
                letters[node] = Terminal(ir.literal(number.to_bytes(2, "big")), name)
                if _is_one_word(node):
                    self.words.add(number)

        def spelled(item: Expression) -> Expression:
            return letters[item.node] if isinstance(item, Terminal) else item

        rules = Rules({name: mapped(rule, spelled) for name, rule in rules.rules.items()}, rules.start)
        self.states = ControlStates(root_frame(rules), self.ignored)
        self._beginnings = _Least(self._may_begin)
        self._first_bytes: Memo[int, ByteMask] = Memo(self._find_first_bytes)
        self._left_by = _Least(self._may_leave)

    def left_by(self, state: int, shadow: int) -> int:
        """The shadows that may be there when a state returns, a set of bits; none if no text can be completed."""
        return self._left_by[self._start(state, shadow)]

    def touches(self, state: int, shadow: int) -> bool:
        """Whether a lexeme that may come next in a state can begin with a word of a shadow, as far as bytes tell."""
        return bool(self.lexer.touched(shadow) & self._first_bytes[state])

    def _find_first_bytes(self, state: int) -> ByteMask:
        return reduce(or_, (self.lexer.first_bytes[terminal] for terminal in bits(self._beginnings[state] >> 1)), 0)

    def is_nullable(self, state: int) -> bool:
        """Whether a state may return before it has read anything."""
        return bool(self._beginnings[state] & 1)

    def _start(self, state: int, shadow: int) -> Start:
        """A state with its shadow, which is none if it cannot matter."""
        is_idle = shadow and not self.is_nullable(state) and not self.touches(state, shadow)
        return state, 0 if is_idle else shadow

    def _may_begin(self, state: int, known: Callable[[int], int]) -> int:
        """The terminals with which a state may begin, as bits from 1 on; bit 0 if it may return at once."""
        here = self.states[state]
        found = int(here.is_end)
        for terminal in here.reads:
            found |= 2 << terminal
        for callee, then in here.calls:
            begins = known(callee)
            found |= begins & ~1
            if begins & 1:
                found |= known(then)
        return found

    def _may_leave(self, start: Start, known: Callable[[Start], int]) -> int:
        state, shadow = start
        here = self.states[state]
        found = int(here.is_end) << shadow
        ends_behind = self.lexer.ends_behind[shadow]
        for terminal, afters in here.reads.items():
            for end in ends_behind.get(terminal, ()):
                left = self.lexer.ends[end][1]
                for after in afters:
                    found |= known(self._start(after, left))
        for callee, then in here.calls:
            for left in bits(known(self._start(callee, shadow))):
                found |= known(self._start(then, left))
        return found


class ControlStates(Memo[int, ControlState]):
    """The states of the network of `start`, by number.

    Ignored terminals may come before each other terminal, and behind all. There is one way alone to read one: where the
    terminal behind it is read, or in `TAIL`.
    """

    def __init__(self, start: Frame, ignored: frozenset[int]) -> None:
        super().__init__(self._state)
        self.ignored = ignored
        self._numbers: dict[tuple[Frame, bool], int] = {}
        self._frames: list[tuple[Frame, bool]] = []  # the state of each is its number and 2
        self[ROOT] = ControlState({}, ((self._number(start), TAIL),), False, ROOT)
        self[TAIL] = ControlState(dict.fromkeys(ignored, (TAIL,)), (), True, TAIL)

    def _state(self, number: int) -> ControlState:
        frame, must_read = self._frames[number - 2]
        reads: dict[int, dict[int, None]] = {}
        calls: list[tuple[int, int]] = []
        is_end = False
        for move in frame.moves():
            if isinstance(move, Read):
                for letter, label in _letters(move.node):
                    afters = (move.reader or frame).after(label, b"")
                    reads.setdefault(letter, {}).update(dict.fromkeys(map(self._number, afters)))
            elif must_read:
                continue
            elif isinstance(move, Call):
                calls.append((self._number(move.callee), self._number(move.then)))
            else:
                is_end = True
        again = number
        if reads and self.ignored:
            again = self._number(frame, must_read or bool(calls) or is_end)
            reads.update((terminal, {again: None}) for terminal in self.ignored)
        behind = {letter: tuple(afters) for letter, afters in reads.items()}
        return ControlState(behind, tuple(calls), is_end, again, frame.title())

    def _number(self, frame: Frame, must_read: bool = False) -> int:
        key = (frame, must_read)
        number = self._numbers.setdefault(key, len(self._frames) + 2)
        if number == len(self._frames) + 2:
            self._frames.append(key)
            if number > MAX_PLACES:
                raise _too_many()
        return number


def _letters(node: Node) -> Iterator[tuple[int, Label]]:
    """The words of a language of letters, each with its labels."""
    for mask, rest in node.transitions():
        for other, end in rest.transitions():
            for high in ir.bytes_of(mask):
                for low in ir.bytes_of(other):
                    for label in end.labels:
                        yield high << 8 | low, label


class _Least(Generic[_Key]):
    """The least sets of bits that a function makes of each other, found as they are asked for."""

    def __init__(self, evaluate: Callable[[_Key, Callable[[_Key], int]], int]) -> None:
        self._evaluate = evaluate
        self._values: dict[_Key, int] = {}
        self._num_steps = 0

    def __getitem__(self, key: _Key) -> int:
        if key not in self._values:
            self._solve(key)
        return self._values[key]

    def _solve(self, root: _Key) -> None:
        """Find a set and all that it depends on; what was found before stays as it is."""
        values = self._values
        users: dict[_Key, set[_Key]] = {}
        agenda = [root]
        waiting = {root}
        values[root] = 0
        while agenda:
            key = agenda.pop()
            waiting.discard(key)

            def known(other: _Key, key: _Key = key) -> int:
                self._num_steps += 1
                users.setdefault(other, set()).add(key)
                if other not in values:
                    values[other] = 0
                    agenda.append(other)
                    waiting.add(other)
                return values[other]

            found = self._evaluate(key, known)
            if found != values[key]:
                values[key] = found
                for user in users.get(key, ()):
                    if user not in waiting:
                        waiting.add(user)
                        agenda.append(user)
            if len(values) > MAX_PLACES or self._num_steps > MAX_STEPS:
                raise _too_many()


def _terminals(expression: Expression) -> Iterator[Terminal]:
    for item in walk(expression):
        if isinstance(item, Terminal):
            yield item
        elif isinstance(item, SpecialToken | Inline):
            raise UnsupportedSchemaError(
                f'a {type(item).__name__} among the rules is not supported with lexer="longest"',
                hint='lexer="scannerless"',
            )


def _ranks(node: Node) -> Iterator[Label]:
    """The labels of the words of a language, those of short words first."""
    seen = {node}
    agenda = [node]
    told: set[Label] = set()
    for current in agenda:  # grows while it is read
        for label in current.labels:
            if label not in told:
                told.add(label)
                yield label
        for _, target in current.transitions():
            if target not in seen:
                seen.add(target)
                agenda.append(target)


def _is_one_word(node: Node) -> bool:
    """Whether a language has one word alone, as far as that is plain to see."""
    while not node.labels:
        row = node.transitions()
        if len(row) != 1 or row[0][0].bit_count() != 1:
            return False
        node = row[0][1]
    return not node.transitions()


def _too_many() -> ResourceLimitError:
    return ResourceLimitError(
        "there are too many ways in which lexemes of these rules may follow each other", hint='lexer="scannerless"'
    )
