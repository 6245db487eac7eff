"""The recogniser: lazy subset construction over the recursive transition network of a constraint.

Example: ``{"type": "array", "items": {"type": "integer"}}``, compact, after ``[1``. A configuration is a lexeme that is
being read, the frame that reads it, and the stack of frames to return to. The state is the set of three of them:

    lexeme        reader   stack
    more digits   value    array, behind an item
    ","           array    array, behind an item
    "]"           array    (empty)

The byte ``]`` kills the first two. The third ends its lexeme there, so the *epsilon closure* follows all moves that
read nothing: the array frame returns, the stack is empty, the text may end. After ``,`` it would enter the frame of an
item and begin its lexeme. What follows a lexeme is the same on every stack, so it is found once per reader and label
set (`Closure`) and put on the stacks that are there.

Equal sets have the same number (`States`), so a state is a value: a matcher that keeps one can come back to it.
Configurations that differ in their stacks alone are bundled (a node of a graph-structured stack). The few bytes of one
token are read here in Python, which measured faster than compiled code that comes back for every new row; whole tries
are run by `Runner`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from decodekit.constraints.engine.automaton import DEAD, Automaton, Int32Array, UInt8Array, array_bytes, with_room
from decodekit.constraints.engine.configurations import (
    CUT,
    Closure,
    Configuration,
    Entry,
    Reader,
    Rows,
    StackCut,
    Stacks,
    State,
    States,
    row_key,
)
from decodekit.constraints.language.shortest import is_permitted
from decodekit.constraints.memory_account import Account, Memo
from decodekit.constraints.network import Call, End, Frame, Fresh, Move, Read, Return
from decodekit.constraints.work_budget import charge, check, spend
from decodekit.errors import ResourceLimitError

MAX_CONFIGURATIONS: Final = 20_000
"""Bound on the alternatives that one state may hold, and on the frames that one step may enter."""
_MANY_STACKS: Final = 4  # so many on which the same is read are bundled
_FEW_BYTES: Final = 64  # so many are tried one by one
_FEW_TRIED: Final = 4  # so many where two are looked for
_STATE_BYTES: Final = 1300  # measured with tracemalloc on 60 schemas of a corpus (fitted, correlation 0.96)
_ANSWER_BYTES: Final = 500  # of what is kept of a stack or a state, measured on the grammars of the library


class Recogniser:
    """The states of a constraint that were reached so far; grows only. Thread-safe.

    Attributes:
        root_frame: the frame of a whole text.
        states: the states that were reached so far.
        root: the state before a text.
        account: the memory that it takes, as far as somebody has measured it.
        ended: the state after an end-of-sequence token: nothing follows.
        rows: what follows the lexemes that were left so far.
        stacks: the stacks that were reached so far.
        captures: by reader, whether the bytes are captured, uint8.
        permitted: by reader, where its selection of labels begins in `num_permitted`, -1 if it has none, int32.
        num_permitted: running counts of permitted labels, int32: of labels low to before high, a selection that begins
            at b permits ``num_permitted[b + high] - num_permitted[b + low]``.

    Raises (from any method):
        ResourceLimitError: too many alternatives at once, or left recursion without end.
    """

    def __init__(self, root: Frame, automaton: Automaton) -> None:
        self.automaton = automaton
        self.root_frame = root
        self.frames: list[Frame] = []
        self.readers: list[Reader] = []
        self._moves: Memo[int, tuple[Move, ...]] = Memo(self._find_moves)  # by frame
        self.rows = Rows()
        self.stacks = Stacks()
        self.captures: UInt8Array = np.zeros(256, np.uint8)
        self.permitted: Int32Array = np.full(256, -1, np.int32)
        self.num_permitted: Int32Array = np.zeros(256, np.int32)
        self._num_counts = 0
        self._selections: Memo[bytes, int] = Memo(self._begin_selection)
        self._frame_numbers: dict[Frame, int] = {}
        self._reader_numbers: Memo[Reader, int] = Memo(self._add_reader)
        self.states = States()
        self.account = Account()
        self._followed: Memo[tuple[int, ...], Closure] = Memo(self._epsilon_closure)  # by frames
        self._left: dict[int, Closure] = {}
        self._fresh: dict[int, tuple[Fresh, Closure] | None] = {}
        self._returned: dict[int, tuple[tuple[Configuration, ...], bool]] = {}
        self._following_bytes: dict[State, bytes] = {}
        self.ended = self.states.add((), False)
        with automaton.lock:
            first = self._intern(self.resolve(self.enter(self._frame(root)), 0))
            self.root = self.states.add((), False) if first is None else first

    @property
    def num_states(self) -> int:
        """Number of states reached."""
        return len(self.states) - 1  # without the one after the end

    @property
    def num_bytes(self) -> int:
        """About how much memory states, arrays and stacks take, and the answers that are kept beside them."""
        answers = _ANSWER_BYTES * (len(self._returned) + len(self._following_bytes))
        return sum(map(array_bytes, (self, self.rows, self.stacks))) + self.num_states * _STATE_BYTES + answers

    def step(self, state: State, byte: int) -> State | None:
        """The state after one more byte, or None if no text continues so."""
        edges, edge = self.states.edges, state << 8 | byte
        try:
            return edges[edge]
        except KeyError:
            with self.automaton.lock:
                entry = self.advance(self.states.configurations[state], byte)
                target = edges[edge] = self._intern(entry)
            return target

    def read(self, state: State, data: bytes) -> State | None:
        """The state after all bytes of `data`, or None."""
        edges, current = self.states.edges, state
        for byte in data:
            try:
                target = edges[current << 8 | byte]
            except KeyError:
                target = self.step(current, byte)
            if target is None:
                return None
            current = target
        return current

    def join(self, states: Iterable[State | None]) -> State | None:
        """The state of all ways of several states, None among them aside; None if there is none."""
        given = [state for state in states if state is not None]
        if len(given) <= 1:
            return given[0] if given else None
        with self.automaton.lock:
            known = self.states
            configurations = frozenset(one for state in given for one in known.configurations[state])
            return self._intern((configurations, any(map(known.is_accepting, given))))

    def saturated(self, state: State, limit: int) -> State:
        """A state that behaves as `state` for the next `limit` bytes: one for all lengths that are out of sight."""
        automaton, configurations = self.automaton, self.states.configurations[state]
        if automaton.counted.isdisjoint([one[0] for one in configurations]):
            return state
        far = frozenset((automaton.saturated(one[0], limit), *one[1:]) for one in configurations)
        found = self._intern((far, self.states.is_accepting(state)))
        return state if found is None else found

    def is_selected(self, lexical: int, permitted: bytes | None) -> bool:
        """Whether some word from a lexical state ends with a permitted label."""
        if permitted is None:
            return True
        low, high = int(self.automaton.low[lexical]), int(self.automaton.high[lexical])
        return low < 0 or 1 in permitted[low:high]

    def leave(self, reader: int, label_set: int, text: bytes | None = None) -> Closure:
        """The `Closure` of a lexeme that ends with any label of a set; `text` if the reader captures."""
        if text is not None:
            return self._leave(reader, label_set, text)
        key = row_key(reader, label_set)
        closure = self._left.get(key)
        if closure is None:
            closure = self._left[key] = self._leave(reader, label_set, b"")
        return closure

    def enter(self, frame: int) -> Closure:
        """The `Closure` of the entry of a frame."""
        return self._followed[(frame,)]

    def resolve(self, closure: Closure, stack: int) -> Entry:
        """The configurations of a `Closure` on a stack, and whether the text may end there."""
        configurations = self._started(closure, stack)
        if not closure.is_returning:
            return frozenset(configurations), False
        below, is_accepting = self._returning(stack)
        return frozenset(configurations.union(below)), is_accepting

    def _started(self, closure: Closure, stack: int) -> set[Configuration]:
        """The lexemes that begin on a stack."""
        configurations: set[Configuration] = set()
        for lexical, reader, frames in closure.starts:
            inner = stack
            for frame in frames:
                inner = self.stacks.push(inner, frame)
            configurations.add((lexical, reader, inner, b"" if self.captures[reader] else None))
        return configurations

    def _returning(self, stack: int) -> tuple[tuple[Configuration, ...], bool]:
        """The configurations after the frame above a stack returns; kept, so chains of returns are followed once."""
        known = self._returned.get(stack)
        if known is not None:
            return known
        stacks = self.stacks
        agenda = [stack]  # each is done when what lies below it is: no recursion, stacks may be deep
        while agenda:
            check()
            stack = agenda[-1]
            configurations: set[Configuration] = set()
            is_accepting = False
            waiting: list[int] = []
            for top in stacks.standing_for(stack):
                if top == 0:
                    is_accepting = True
                    continue
                if stacks.frame[top] == CUT:
                    raise StackCut
                parent = int(stacks.parent[top])
                closure = self.enter(int(stacks.frame[top]))
                if closure.is_returning:
                    below = self._returned.get(parent)
                    if below is None:
                        waiting.append(parent)
                        continue
                    configurations.update(below[0])
                    is_accepting |= below[1]
                configurations |= self._started(closure, parent)
            if waiting:
                agenda += waiting
                continue
            agenda.pop()
            found = self._bundle(frozenset(configurations), 2)  # always, so that levels differ by one frame
            if len(found) > MAX_CONFIGURATIONS:
                raise too_many()
            charge(len(configurations))
            self._returned[stack] = tuple(found), is_accepting
        return self._returned[stack]

    def fresh(self, reader: int, label_set: int) -> tuple[Fresh, Closure] | None:
        """The `Closure` of most captured texts, with its `Fresh`; None if the frame has none."""
        key = row_key(reader, label_set)
        if key not in self._fresh:
            frame, labels = self.frames[self.readers[reader].frame], self.automaton.label_sets[label_set]
            common = frame.fresh(labels[0]) if len(labels) == 1 else None
            self._fresh[key] = (
                None if common is None else (common, self._followed[tuple(map(self._frame, common.frames))])
            )
        return self._fresh[key]

    def first_bytes(self, configurations: Iterable[Configuration]) -> UInt8Array:
        """The bytes that may follow in any of the configurations, selections aside, uint8 [256] of 0 and 1."""
        first = np.zeros(256, np.uint8)
        for lexical, *_ in configurations:
            first |= self.automaton.first_bytes(lexical)
        return first

    def following_bytes(self, state: State) -> bytes:
        """The bytes that may follow a state, ascending.

        Above 64 candidates this over-approximates; callers only test for a single forced byte.
        """
        following = self._following_bytes.get(state)
        if following is None:
            with self.automaton.lock:
                following = bytes(np.flatnonzero(self.first_bytes(self.states.configurations[state])).tolist())
            if len(following) <= _FEW_BYTES:
                following = bytes(byte for byte in following if self.step(state, byte) is not None)
            self._following_bytes[state] = following
        return following

    def branches(self, state: State, among: UInt8Array) -> bool:
        """Whether at least two bytes may follow a state, of those flagged in `among`, uint8 [256] of 0 and 1.

        Mostly told by a single lexeme that goes on with two bytes, so that no state behind them is made. Where more
        than 64 bytes are candidates and no lexeme tells, the answer is no.
        """
        with self.automaton.lock:
            for lexical, reader, *_ in self.states.configurations[state]:
                if self.readers[reader].permitted is None and self._goes_on_with_two(lexical, among):
                    return True
        following = self.following_bytes(state)
        return len(following) <= _FEW_BYTES and int(among[list(following)].sum()) >= 2

    def _goes_on_with_two(self, lexical: int, among: UInt8Array) -> bool:
        """Whether a lexeme goes on, without an end, after two of the bytes; those that were met before are tried."""
        automaton = self.automaton
        candidates = np.flatnonzero(automaton.possible_bytes(lexical) & among)
        if len(candidates) < 2:
            return False
        known = np.argsort(automaton.known_bytes(lexical)[candidates] == 0, kind="stable")[:_FEW_TRIED]
        found = 0
        for byte in candidates[known].tolist():
            target = automaton.step(lexical, byte)
            found += target != DEAD and not automaton.is_final(target)
            if found == 2:
                return True
        return False

    def advance(self, configurations: Iterable[Configuration], byte: int) -> Entry:
        """The configurations after one more byte in any of some. The automaton's lock is held."""
        check()
        reached: set[Configuration] = set()
        is_accepting = False
        automaton = self.automaton
        num_read = 0
        for lexical, reader, stack, text in configurations:
            num_read += 1
            target = automaton.step(lexical, byte)
            if target == DEAD or not self.is_selected(target, self.readers[reader].permitted):
                continue
            text_now = None if text is None else text + bytes((byte,))
            if not automaton.is_final(target):
                reached.add((target, reader, stack, text_now))
            ending = int(automaton.endings[target])
            if ending:
                entered, ends = self.resolve(self.leave(reader, ending, text_now), stack)
                reached |= entered
                is_accepting |= ends
        charge(2 * num_read + len(reached))
        return frozenset(reached), is_accepting

    def _leave(self, reader: int, label_set: int, text: bytes) -> Closure:
        where = self.readers[reader]
        frame = self.frames[where.frame]
        frames: list[int] = []
        for label in self.automaton.label_sets[label_set]:
            if is_permitted(label, where.permitted):
                frames += map(self._frame, frame.after(label, text))
        return self._followed[tuple(frames)]

    def _intern(self, entry: Entry) -> State | None:
        configurations, is_accepting = entry
        if not configurations and not is_accepting:
            return None
        key: tuple[Configuration | bool, ...] = (is_accepting, *sorted(configurations))
        state = self.states.number_of.get(key)
        if state is not None:
            return state
        if len(configurations) > MAX_CONFIGURATIONS:
            raise too_many()
        if len(configurations) >= _MANY_STACKS:
            bundled = self._bundle(configurations, _MANY_STACKS)
            state = self._intern((bundled, is_accepting)) if len(bundled) < len(configurations) else None
        if state is None:
            state = self.states.add(configurations, is_accepting)
        self.states.number_of[key] = state
        return state

    def _bundle(self, configurations: frozenset[Configuration], least: int) -> frozenset[Configuration]:
        """The same with one configuration for all that differ in their stacks alone, if they are `least` or more."""
        groups: dict[tuple[int, int, bytes | None], list[int]] = {}
        for lexical, reader, stack, text in configurations:
            groups.setdefault((lexical, reader, text), []).append(stack)
        return frozenset(
            (lexical, reader, number, text)
            for (lexical, reader, text), stacks in groups.items()
            for number in (stacks if len(stacks) < least else [self.stacks.bundle(stacks)])
        )

    def _frame(self, frame: Frame) -> int:
        number = self._frame_numbers.get(frame)
        if number is None:
            number = self._frame_numbers[frame] = len(self.frames)
            self.frames.append(frame)
            self.rows.put_entry(number, -1)
        return number

    def _add_reader(self, reader: Reader) -> int:
        number = len(self.readers)
        self.readers.append(reader)
        self.captures = with_room(self.captures, number + 1)
        self.permitted = with_room(self.permitted, number + 1, -1)
        self.captures[number] = reader.captures
        if reader.permitted is not None:
            self.permitted[number] = self._selections[reader.permitted]
        return number

    def _begin_selection(self, permitted: bytes) -> int:
        """The index at which the running counts of a selection begin."""
        begin = self._num_counts
        self._num_counts += len(permitted) + 1
        self.num_permitted = with_room(self.num_permitted, self._num_counts)
        counts = np.cumsum(np.frombuffer(permitted, np.uint8), dtype=np.int32)
        self.num_permitted[begin] = 0
        self.num_permitted[begin + 1 : self._num_counts] = counts
        return begin

    def _epsilon_closure(self, frames: tuple[int, ...]) -> Closure:
        """The `Closure` of the entry of any of some frames: all moves that read nothing are followed."""
        agenda: list[tuple[int, tuple[int, ...]]] = [(frame, ()) for frame in frames]
        entered = set(agenda)
        starts: dict[tuple[int, int, tuple[int, ...]], None] = {}
        is_returning = False
        while agenda:
            frame, pushed = agenda.pop()
            following: list[tuple[int, tuple[int, ...]]] = []
            for move in self._moves[frame]:
                if isinstance(move, Read):
                    following += ((number, pushed) for number in self._begin(frame, move, pushed, starts))
                elif isinstance(move, Call):
                    # What only returns need not be returned to: right recursion keeps a flat stack.
                    inner = pushed if isinstance(move.then, End) else (*pushed, self._frame(move.then))
                    following.append((self._frame(move.callee), inner))
                elif isinstance(move, Return):
                    if pushed:
                        following.append((pushed[-1], pushed[:-1]))
                    else:
                        is_returning = True
            for item in following:
                if item not in entered:
                    entered.add(item)
                    agenda.append(item)
            if len(entered) > MAX_CONFIGURATIONS:
                raise too_many()
        charge(len(entered))
        return Closure(tuple(starts), is_returning)

    def _find_moves(self, frame: int) -> tuple[Move, ...]:
        spend()
        return self.frames[frame].moves()

    def _begin(
        self, frame: int, move: Read, pushed: tuple[int, ...], starts: dict[tuple[int, int, tuple[int, ...]], None]
    ) -> list[int]:
        """Begin a lexeme; returns the frames that follow if it may be empty."""
        automaton = self.automaton
        lexical = automaton.state(move.node if move.within is None else move.within.node)
        permitted = None if move.within is None else move.within.permitted
        if move.reader is not None:
            frame = self._frame(move.reader)
        if lexical == DEAD or not self.is_selected(lexical, permitted):
            return []
        if not automaton.is_final(lexical):
            starts[lexical, self._reader_numbers[Reader(frame, move.capture, permitted)], pushed] = None
        return [
            self._frame(after)
            for label in automaton.label_sets[automaton.endings[lexical]]
            if is_permitted(label, permitted)
            for after in self.frames[frame].after(label, b"")
        ]


def too_many() -> ResourceLimitError:
    """The error of a constraint with too many alternatives."""
    return ResourceLimitError(
        f"the constraint has more than {MAX_CONFIGURATIONS:,} alternatives at one place of the text",
        hint="make alternatives begin differently, and remove rules that begin with themselves",
    )
