r"""A pattern held against one whole text by backtracking: what no automaton can do, such as back-references.

The reading of ECMA-262, section 22.2.2, as a machine. A worked example, ``^(a+)b\1$``:

    0 at the start?   1 the group begins   2 an a   3 back to 2, or on   4 the group ends   5 a b   6 the group again
    7 at the end?

A state is an instruction, a place of the text, and registers: what the groups hold to which a reference leads, where
one of them began, how many rounds a repetition has behind it. Where the machine has a choice it takes the first, and
comes back for the others if that fails. What follows depends on the state alone, so a choice that has failed once is
not tried again: ``^(a|a)*\1b$`` on forty ``a`` takes hundreds of steps, and not 2**40. Only references can still make
many states, by the texts that groups may hold; for these there is a limit, which is a count. A clock, as other engines
have it, would let the same text pass on one machine and fail on another. Nor do they read references as ECMA-262 does:
a group that holds nothing is found anywhere, and each round begins without any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeAlias

from decodekit.constraints.language.utf8 import EVERYTHING, Ranges
from decodekit.constraints.regex.tree import (
    Alternation,
    Assertion,
    Atomic,
    Capture,
    Chars,
    Concatenation,
    Lookahead,
    Lookbehind,
    Quantified,
    Reference,
    Tree,
    children,
    has_references,
    is_nullable,
    rebuilt,
    subtrees,
)
from decodekit.constraints.work_budget import Work
from decodekit.errors import ResourceLimitError

MAX_STEPS: Final = 200_000
"""Bound on the steps of one search, beside `STEPS_OF_A_CHARACTER`. A choice that is kept takes some 200 bytes."""
STEPS_OF_A_CHARACTER: Final = 4
"""So many more steps may be made for each character of the text."""
_PART: Final = 512
"""So many steps are made before the work can be left off."""
_COST: Final = 2
"""What a step counts as in `Work`."""
_START: Final = 8
"""What a search takes besides."""

_Registers: TypeAlias = "tuple[str | int | None, ...]"
_State: TypeAlias = tuple[int, int, _Registers]
"""Instruction, place, registers."""
_Way: TypeAlias = "tuple[int, _Registers] | None"
"""Where a way ends, and the registers there; None if there is no way."""


class _ReadChar(NamedTuple):
    """One character of a set, read forwards or backwards, which is progress for the repetitions around it."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]
    is_forward: bool
    progress: tuple[int, ...]
    then: int


class _Either(NamedTuple):
    first: int
    second: int

    def ways(self, registers: _Registers) -> list[tuple[int, _Registers]]:
        """The ways to go on, with the registers then."""
        return [(self.first, registers), (self.second, registers)]


class _BeginGroup(NamedTuple):
    """Some registers get the place."""

    registers: tuple[int, ...]
    then: int


class _EndGroup(NamedTuple):
    """A group holds what was read since its beginning."""

    begun: int
    group: int
    then: int


class _Rounds(NamedTuple):
    """A repetition between two rounds: one more, or on.

    Attributes:
        rounds: the register of the number of rounds, up to `least` + 1 where there is no bound above.
        progress: the register that tells whether the round has read anything; -1 if every round does.
    """

    rounds: int
    progress: int
    least: int
    most: int | None
    is_lazy: bool
    clears: tuple[int, ...]
    body: int
    then: int

    def ways(self, registers: _Registers) -> list[tuple[int, _Registers]]:
        """The ways to go on, with the registers then: one more round, the end."""
        number = registers[self.rounds] or 0
        assert isinstance(number, int)
        own = () if self.progress < 0 else (self.progress,)
        if own and number > self.least and not registers[self.progress]:
            return []
        ways: list[tuple[int, _Registers]] = []
        if self.most is None or number < self.most:
            more = min(number, self.least) + 1 if self.most is None else number + 1
            ways.append((self.body, _with(_with(registers, (*own, *self.clears), None), (self.rounds,), more)))
        if number >= self.least:
            ways.append((self.then, _with(registers, (self.rounds, *own), None)))
        return ways[::-1] if self.is_lazy else ways


class _ReadGroup(NamedTuple):
    """A back-reference: the text of a group once more. `groups`: the registers of the groups it may be."""

    groups: tuple[int, ...]
    fold: Callable[[Ranges], Ranges] | None
    is_forward: bool
    progress: tuple[int, ...]
    then: int


class _LookAround(NamedTuple):
    """The first way from `inner`, or that there is none."""

    inner: int
    is_negative: bool
    then: int


class _Assert(NamedTuple):
    assertion: Assertion
    then: int


_Instruction: TypeAlias = (
    _ReadChar | _Either | _BeginGroup | _EndGroup | _Rounds | _ReadGroup | _LookAround | _Assert | None
)
"""None is the end of a way."""


class PatternProgram:
    """The instructions of a pattern, made from the last one to the first."""

    def __init__(self, tree: Tree) -> None:
        self.code: list[_Instruction] = []
        self.num_registers = 0
        self._groups: dict[int, int] = {}  # the register of each group that a reference leads to
        references = [one for one in subtrees(tree) if isinstance(one, Reference)]
        for number in sorted({number for reference in references for number in reference.numbers}):
            self._groups[number] = self._register()
        self.start = self._read(tree, self._add(None), is_forward=True, progress=())

    def _register(self) -> int:
        self.num_registers += 1
        return self.num_registers - 1

    def _add(self, instruction: _Instruction) -> int:
        self.code.append(instruction)
        return len(self.code) - 1

    def _read(self, tree: Tree, then: int, *, is_forward: bool, progress: tuple[int, ...]) -> int:
        """The number of the instruction with which a tree begins that goes on with `then`."""
        read = partial(self._read, is_forward=is_forward, progress=progress)
        match tree:
            case Chars(ranges):
                lows, highs = tuple(low for low, _ in ranges), tuple(high for _, high in ranges)
                return self._add(_ReadChar(lows, highs, is_forward, progress, then))
            case Concatenation(items):
                for item in items[::-1] if is_forward else items:
                    then = read(item, then)
                return then
            case Alternation(options):
                entry = read(options[-1], then)
                for option in options[-2::-1]:
                    entry = self._add(_Either(read(option, then), entry))
                return entry
            case Quantified():
                return self._repeat(tree, then, is_forward=is_forward, progress=progress)
            case Capture(item, number):
                if number not in self._groups:
                    return read(item, then)
                begun = self._register()
                inner = read(item, self._add(_EndGroup(begun, self._groups[number], then)))
                return self._add(_BeginGroup((begun,), inner))
            case Reference(numbers, fold):
                groups = tuple(self._groups[number] for number in numbers)
                return self._add(_ReadGroup(groups, fold, is_forward, progress, then))
            case Lookahead(item, is_negative) | Lookbehind(item, is_negative):
                inner = self._read(item, self._add(None), is_forward=isinstance(tree, Lookahead), progress=())
                return self._add(_LookAround(inner, is_negative, then))
            case Assertion():
                return self._add(_Assert(tree, then))
            case Atomic():
                raise TypeError("ECMA-262 has no atomic groups")

    def _repeat(self, tree: Quantified, then: int, *, is_forward: bool, progress: tuple[int, ...]) -> int:
        """A round begins with its groups empty. Beyond the least number, one that reads nothing is none."""
        if tree.max == 0:
            return then
        clears = tuple(self._groups[number] for number in sorted(_numbers(tree.item)) if number in self._groups)
        if not is_nullable(tree.item) and (tree.min, tree.max) == (0, None) and not clears:
            head = self._add(None)
            body = self._read(tree.item, head, is_forward=is_forward, progress=progress)
            self.code[head] = _Either(then, body) if tree.is_lazy else _Either(body, then)
            return head
        rounds = self._register()
        own = self._register() if is_nullable(tree.item) else -1
        head = self._add(None)
        inner = progress if own < 0 else (*progress, own)
        body = self._read(tree.item, head, is_forward=is_forward, progress=inner)
        self.code[head] = _Rounds(rounds, own, tree.min, tree.max, tree.is_lazy, clears, body, then)
        return head


class PatternSearch:
    """The search for a pattern in one text.

    Attributes:
        num_steps: made so far.
    """

    def __init__(self, program: PatternProgram, text: str) -> None:
        self.num_steps = 0
        self._reported = 0
        self._limit = MAX_STEPS + STEPS_OF_A_CHARACTER * len(text)
        self._program = program
        self._text = text
        self._looked: dict[_State, _Way] = {}
        self._failed = set[_State]()  # choices inside of lookarounds

    def is_found(self) -> Work[bool]:
        """Whether the pattern matches somewhere.

        Raises:
            ResourceLimitError: it takes too many steps.
        """
        program = self._program
        first = program.code[program.start]
        is_at_start = isinstance(first, _Assert) and first.assertion.kind == "start"
        none: _Registers = (None,) * program.num_registers
        tried = set[_State]()  # no start is tried again from a choice that has failed
        is_found = False
        for place in range(1 if is_at_start else len(self._text) + 1):
            is_found = (yield from self._first(program.start, place, none, tried)) is not None
            if is_found:
                break
        yield (self.num_steps - self._reported) * _COST + _START
        return is_found

    def _first(self, at: int, place: int, registers: _Registers, tried: set[_State]) -> Work[_Way]:
        """The first way from a state to an end. `tried`: choices that lead to none, or are being tried."""
        code, text, size = self._program.code, self._text, len(self._text)
        stack: list[_State] = [(at, place, registers)]
        while stack:
            at, place, registers = stack.pop()
            while True:
                self.num_steps += 1
                if self.num_steps - self._reported >= _PART:
                    yield (self.num_steps - self._reported) * _COST
                    self._reported = self.num_steps
                    self._check()
                step = code[at]
                if isinstance(step, _ReadChar):
                    here = place if step.is_forward else place - 1
                    if not 0 <= here < size:
                        break
                    point = ord(text[here])
                    index = bisect_right(step.lows, point) - 1
                    if index < 0 or step.highs[index] < point:
                        break
                    place = place + 1 if step.is_forward else here
                    if step.progress:
                        registers = _with(registers, step.progress, 1)
                    at = step.then
                elif isinstance(step, _Either | _Rounds):
                    state = at, place, registers
                    if state in tried or state in self._failed:
                        break
                    tried.add(state)
                    ways = step.ways(registers)
                    if not ways:
                        break
                    stack += [(way, place, held) for way, held in ways[:0:-1]]
                    at, registers = ways[0]
                elif step is None:
                    return place, registers
                else:
                    if isinstance(step, _LookAround):
                        way = yield from self._look(step, place, registers)
                    else:
                        way = self._after(step, place, registers)
                    if way is None:
                        break
                    (place, registers), at = way, step.then
        return None

    def _after(self, step: _BeginGroup | _EndGroup | _ReadGroup | _Assert, place: int, registers: _Registers) -> _Way:
        """The way through an instruction that leaves no choice."""
        if isinstance(step, _BeginGroup):
            return place, _with(registers, step.registers, place)
        if isinstance(step, _EndGroup):
            begun = registers[step.begun]
            assert isinstance(begun, int)
            held = self._text[min(begun, place) : max(begun, place)]
            self.num_steps += len(held) // 64
            return place, _with(_with(registers, (step.begun,), None), (step.group,), held)
        if isinstance(step, _Assert):
            return (place, registers) if self._holds(step.assertion, place) else None
        end = self._again(step, place, registers)
        if end is not None and end != place and step.progress:
            registers = _with(registers, step.progress, 1)
        return None if end is None else (end, registers)

    def _check(self) -> None:
        if self.num_steps > self._limit:
            raise ResourceLimitError(
                f"more than {self._limit:,} steps are made to tell whether a pattern matches",
                hint='a pattern with fewer ways to fill its groups, or a "maxLength"',
            )

    def _look(self, step: _LookAround, place: int, registers: _Registers) -> Work[_Way]:
        """The way through a lookaround."""
        key = step.inner, place, registers
        if key not in self._looked:
            tried = set[_State]()
            self._looked[key] = yield from self._first(step.inner, place, registers, tried)
            if self._looked[key] is None:  # of a search that succeeds, some choices were only begun
                self._failed |= tried
        way = self._looked[key]
        if (way is None) != step.is_negative:
            return None
        return place, (registers if way is None else way[1])

    def _again(self, step: _ReadGroup, place: int, registers: _Registers) -> int | None:
        """Behind the text of a group once more, or of nothing if it holds none; None if something else is there."""
        held = next((registers[group] for group in step.groups if registers[group] is not None), "")
        assert isinstance(held, str)
        start = place if step.is_forward else place - len(held)
        self.num_steps += len(held) // 64
        if start < 0:
            return None
        there = self._text[start : start + len(held)]
        if there != held and not (step.fold is not None and self._is_folded(there, held, step.fold)):
            return None
        return start + len(held) if step.is_forward else start

    def _is_folded(self, one: str, other: str, fold: Callable[[Ranges], Ranges]) -> bool:
        if len(one) != len(other):
            return False
        for a, b in zip(one, other, strict=True):
            self.num_steps += 1
            if a != b and not any(low <= ord(b) <= high for low, high in fold(((ord(a), ord(a)),))):
                return False
        return True

    def _holds(self, tree: Assertion, place: int) -> bool:
        def is_among(at: int) -> bool:
            return 0 <= at < len(self._text) and any(low <= ord(self._text[at]) <= high for low, high in tree.chars)

        size = len(self._text)
        if tree.kind == "inside" and not size:
            return tree.holds_in_empty
        is_behind, is_ahead = is_among(place - 1), is_among(place)
        return {
            "start": place == 0,
            "end": place == size,
            "last line": place == size or (place == size - 1 and is_ahead),
            "line start": place == 0 or is_behind,
            "line end": place == size or is_ahead,
            "boundary": is_behind != is_ahead,
            "inside": is_behind == is_ahead,
        }[tree.kind]


def _with(registers: _Registers, numbers: tuple[int, ...], value: str | int | None) -> _Registers:
    """The registers with a value in some of them."""
    changed = list(registers)
    for number in numbers:
        changed[number] = value
    return tuple(changed)


@lru_cache(maxsize=4096)
def _numbers(tree: Tree) -> frozenset[int]:
    """The groups in a tree."""
    own = {tree.number} if isinstance(tree, Capture) else set()
    return frozenset(own).union(*map(_numbers, children(tree)))


_NOTHING: Final = Concatenation(())
_ANY_TEXT: Final = Quantified(Chars(EVERYTHING), 0, None)


def regular_superset(tree: Tree) -> Tree:
    """A pattern without groups, references and lookbehinds that matches wherever the given one does.

    A mask is made of it, and what it matches besides is left to the search. ``^(a+)b\\1$`` becomes ``^a+b(|a+)$``.

    What repeats a group may be any text that the group may hold, or nothing. A negative assertion with a reference
    inside goes: it could not be weakened otherwise.
    """
    groups = {one.number: one.item for one in subtrees(tree) if isinstance(one, Capture)}

    def weaker(tree: Tree) -> Tree:
        match tree:
            case Capture(item):
                return weaker(item)
            case Reference(numbers, fold):
                held = [groups[number] for number in numbers]
                if fold is not None or any(map(has_references, held)):
                    return _ANY_TEXT
                return Alternation((_NOTHING, *map(_plain, held)))
            case Lookbehind():
                return _NOTHING
            case Lookahead(item, True) if has_references(item):
                return _NOTHING
        return rebuilt(tree, weaker)

    return weaker(tree)


def _plain(tree: Tree) -> Tree:
    """The texts that a group may hold, whatever stands around them."""
    if isinstance(tree, Assertion | Lookahead | Lookbehind):
        return _NOTHING
    return _plain(tree.item) if isinstance(tree, Capture) else rebuilt(tree, _plain)
