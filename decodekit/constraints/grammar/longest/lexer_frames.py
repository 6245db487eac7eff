r"""Frames of a grammar whose texts are first divided by a lexer, which takes the longest terminal at each place.

**The language.** The terminals are those that the rules reached from the start name or spell, and the ignored ones. A
text is divided from the left: a lexeme is the longest beginning of the rest that is a word of some terminal, and it is
a lexeme of the terminal of the least rank that has that word (see `lark.terminals`). The lexer knows nothing of the
rules. Where no terminal has any beginning of the rest it is stuck, and the text is not in the language. The others are
those whose terminals, without the ignored ones, the rules derive. So ``start: A "ab"`` with ``A: /a+/`` has ``aab`` no
more: there is an ``A`` and then a ``b``, at which the lexer is stuck. An ignored terminal is ignored, also where a rule
names it.

Lark's basic lexer is not quite that. It tries its terminals in a fixed order, those of higher
priority first and then those that can match more characters, and takes the first that matches, which need not be the
longest: of ``A: /a+/`` and ``"ab"`` it takes of ``ab`` the ``a``, and with ``A.2: /ab/`` and ``B: /[ab]+/`` it takes of
``abb`` the ``ab``. Of one pattern it takes the match that `re` finds first, of ``/a|ab/`` never ``ab``; patterns see
what stands around them; and a string that ignores case comes before a pattern only where the pattern matches it as it
is written.

**The network.** A control state is a state of the rules over terminals (see `control`) with the shadow of the lexemes
so far (see `lexer`). A shadow lasts when a rule returns, but a frame that returns tells nothing: whoever calls another
has to guess which shadow that leaves, and the other is held to it. Guesses multiply where rules call each other in
chains, so a frame keeps the states behind such a chain itself, as a short stack, and calls where there is nothing to
guess: before a closing bracket every shadow is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, NamedTuple, TypeAlias

from decodekit.constraints.grammar.longest.control import ROOT, KnownStates
from decodekit.constraints.grammar.longest.lexer import Lexer, Munch
from decodekit.constraints.grammar.rules import Rules
from decodekit.constraints.language.ir import bytes_of as bits
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.network import END, RETURN, Call, Frame, Label, Move, Read
from decodekit.errors import ResourceLimitError, UnsatisfiableError

MAX_DEPTH: Final = 24
"""Bound on the states that a frame keeps itself; beyond them it calls and guesses."""
MAX_STACKS: Final = 20_000
"""Bound on the stacks to which one stack may lead before anything is read."""

Stack: TypeAlias = "tuple[int, ...]"
"""Control states, the one at hand first, then what is left behind it."""


def lexing_root(rules: Rules, lexer: Lexer | None = None) -> Frame:
    """The frame whose run is one text of the grammar.

    Args:
        rules: a grammar whose terminals, the ignored ones among them, label the ends of their words with their rank;
            ranks can be compared, and no two terminals have the same.
        lexer: another lexer for the same ranks than the one that takes the longest of all terminals.
    """
    network = Network(rules, lexer)
    outs = network.left_by((ROOT,), 0)
    if not outs:
        raise UnsatisfiableError(
            f"no text can be derived from the rule {rules.start!r} with this lexer",
            hint="the terminals that it needs next to each other are read as longer ones, or as others",
        )
    return network.frame((ROOT,), 0, outs)


class Opening(NamedTuple):
    """The moves of a stack before anything is read."""

    reads: dict[int, tuple[Stack, ...]]  # by terminal, the stacks behind it; ignored terminals are not among them
    ignoring: tuple[Stack, ...]  # of these one must go on behind an ignored terminal
    is_tail: bool  # nothing need follow there either, at the end of the text
    calls: tuple[tuple[int, Stack], ...]  # states that are run to their end first, each with the stack behind it
    is_end: bool  # nothing need follow


class Network:
    """The network of one grammar, shared by its frames: `openings` says how a stack may go on. Compared by identity."""

    def __init__(self, rules: Rules, lexer: Lexer | None = None) -> None:
        self.known = KnownStates(rules, lexer)
        self.lexer = self.known.lexer
        self.openings: Memo[tuple[Stack, int], Opening] = Memo(self._open)
        self._left_by: dict[tuple[Stack, int], int] = {}

    def left_by(self, stack: Stack, shadow: int) -> int:
        """The shadows that may be there when a stack is done, a set of bits; none if no text can be completed."""
        if not stack:
            return 1 << shadow
        key = (stack, shadow)
        if key not in self._left_by:
            lefts = bits(self.known.left_by(stack[0], shadow))
            self._left_by[key] = reduce(or_, (self.left_by(stack[1:], left) for left in lefts), 0)
        return self._left_by[key]

    def frame(self, stack: Stack, shadow: int, outs: int, opened: int | None = None) -> Frame:
        """A stack where some of the shadows that it may leave are wanted. A shadow that cannot matter is none."""
        if not stack:
            return END
        if shadow and not self._matters(stack, shadow):
            shadow = 0
        return Lexing(self, stack, shadow, outs & self.left_by(stack, shadow), opened)

    def _matters(self, stack: Stack, shadow: int) -> bool:
        for state in stack:
            if self.known.touches(state, shadow):
                return True
            if not self.known.is_nullable(state):
                return False
        return True

    def _open(self, place: tuple[Stack, int]) -> Opening:
        stack, shadow = place
        states, ignored = self.known.states, self.known.ignored
        reads: dict[int, dict[Stack, None]] = {}
        ignoring: dict[Stack, None] = {}
        calls: dict[tuple[int, Stack], None] = {}
        is_end = False
        agenda = [stack]
        seen = {stack}
        while agenda:
            current = agenda.pop()
            if not current:
                is_end = True
                continue
            here, rest = states[current[0]], current[1:]
            for terminal, afters in here.reads.items():
                if terminal not in ignored:
                    reads.setdefault(terminal, {}).update(dict.fromkeys(self._push(after, rest) for after in afters))
            if here.reads and ignored:
                ignoring[here.again, *rest] = None
            following = [rest] if here.is_end else []
            for callee, then in here.calls:
                behind = self._push(then, rest)
                if self._is_called(callee, behind, shadow):
                    calls[callee, behind] = None
                else:
                    following.append((callee, *behind))
            for other in following:
                if other not in seen:
                    seen.add(other)
                    agenda.append(other)
            if len(seen) > MAX_STACKS:
                raise ResourceLimitError(
                    f"the grammar has more than {MAX_STACKS:,} ways to go on at one place",
                    hint="rules that begin differently",
                )
        return Opening(
            reads={terminal: tuple(stacks) for terminal, stacks in reads.items()},
            ignoring=tuple(ignoring),
            is_tail=any(states[behind[0]].is_end for behind in ignoring),
            calls=tuple(calls),
            is_end=is_end,
        )

    def _push(self, state: int, rest: Stack) -> Stack:
        return rest if self.known.states[state].only_returns else (state, *rest)

    def _is_called(self, callee: int, behind: Stack, shadow: int) -> bool:
        """Whether a state is called rather than kept with what is behind it."""
        if not behind:
            return False
        if behind[0] in behind[1:] or len(behind) >= MAX_DEPTH:
            return True
        lefts = bits(self.known.left_by(callee, shadow))
        return not any(left and self._matters(behind, left) for left in lefts)

    def reads(self, opening: Opening, shadow: int, outs: int) -> list[tuple[int, int]]:
        """The lexemes that may come, as sets of ends, each with the state before it.

        Terminals that are one word are read together, as far as one automaton reads them. The others are read each by
        itself, so that what a vocabulary knows of them serves all states.
        """
        words: dict[int, int] = {}
        others: list[tuple[int, int]] = []
        for terminal, ends in self.lexer.ends_behind[shadow].items():
            stacks = opening.ignoring if terminal in self.known.ignored else opening.reads.get(terminal, ())
            permitted = 0
            for end in ends:
                left = self.lexer.ends[end][1]
                if any(self.left_by(behind, left) & outs for behind in stacks):
                    permitted |= 1 << end
            for start in self.lexer.starts_of[terminal]:
                found = permitted & self.lexer.ends_from[start, shadow]
                if found and terminal in self.known.words:
                    words[start] = words.get(start, 0) | found
                elif found:
                    others.append((start, found))
        return [*words.items(), *others]


@dataclass(frozen=True, slots=True)
class Lexing(Frame):
    """Control states, the shadow at hand, and the shadows that may be left (a set of bits).

    If `opened` is not None, ignored terminals were read where the shadow was `opened`: one of the terminals that could
    be read there has to come, without a call, or the end of the text.
    """

    network: Network
    stack: Stack
    shadow: int
    outs: int
    opened: int | None

    def moves(self) -> tuple[Move, ...]:
        """The lexemes and calls from which one of `outs` may be left; the end, if the shadow is one of them."""
        network, opening = self.network, self._opening()
        reads = network.reads(opening, self.shadow, self.outs)
        moves: list[Move] = [Read(Munch(network.lexer, start, self.shadow, ends)) for start, ends in reads]
        if self.opened is not None:
            return (*moves, RETURN) if opening.is_tail and self.outs >> self.shadow & 1 else tuple(moves)
        for callee, behind in opening.calls:
            wanted: dict[Frame, int] = {}  # by what follows, the shadows that the callee may leave
            for left in bits(network.left_by((callee,), self.shadow)):
                if network.left_by(behind, left) & self.outs:
                    following = network.frame(behind, left, self.outs)
                    wanted[following] = wanted.get(following, 0) | 1 << left
            for following, outs in wanted.items():
                moves.append(Call(network.frame((callee,), self.shadow, outs), following))
        if opening.is_end and self.outs >> self.shadow & 1:
            moves.append(RETURN)
        return tuple(moves)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The stacks behind the terminal that was read, with the shadow that it left."""
        assert isinstance(label, int)
        network = self.network
        terminal, left = network.lexer.ends[label]
        if terminal in network.known.ignored:
            opened = self.shadow if self.opened is None else self.opened
            return (network.frame(self.stack, left, self.outs, opened),)
        stacks = self._opening().reads[terminal]
        possible = (stack for stack in stacks if network.left_by(stack, left) & self.outs)
        return tuple(network.frame(stack, left, self.outs) for stack in possible)

    def _opening(self) -> Opening:
        return self.network.openings[self.stack, self.shadow if self.opened is None else self.opened]

    def title(self) -> str | None:
        """That of the innermost rule that has one."""
        titles = (self.network.known.states[state].title for state in self.stack)
        return next((title for title in titles if title is not None), None)

    def expected(self, move: Move) -> tuple[str, ...]:
        """The names of terminals; what is ignored has none."""
        if not isinstance(move, Read) or not isinstance(move.node, Munch):
            return ()
        names = self.network.known.names
        terminals = (self.network.lexer.ends[end][0] for end in bits(move.node.permitted))
        return tuple(dict.fromkeys(names[terminal] for terminal in terminals if terminal in names))
