"""The way out: short completions of a text, and how many tokens a text of the constraint has at least and at most.

A completion is found in two steps. First a shortest one in bytes: the least word of a frame is a least solution of
equations between frames, found by a search in the order of length that solves a called frame when it is met (D. Knuth,
A generalization of Dijkstra's algorithm, 1977). Then its division into the fewest tokens (see `division`), and that of
a few variants of it that tokens tend to suit better (blanks after commas and colons, other fillers).

Tokens may be left out: those that something outside of the constraint may forbid. Then the first step looks for a text
of bytes that are tokens still, and for any text only where there is none.

So a completion always exists as it stands, and its number of tokens is an upper bound of the least one: there may be a
longer text with fewer tokens. Where texts are captured and each one leads elsewhere (numbers of which no two may be
equal), the ways are as many as the subsets of the texts. A search that has met `MAX_EXACT` of them goes on with one
text of each label, the shortest, and may then miss the shortest word by a few bytes. Everything here is a function of
the state alone, never of what was asked before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Final, TypeAlias, TypeVar

from decodekit.constraints.completion.witness_search import (
    MAX_EXACT,
    MAX_SEARCH,
    NUM_ALIKE,
    Effort,
    Lexemes,
    Search,
    readings,
)
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.division import NONE, division_of
from decodekit.constraints.engine.recogniser import Unfolding
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.shortest import ANY_BYTE
from decodekit.constraints.network import Call, Frame, Read
from decodekit.errors import ResourceLimitError
from decodekit.vocabulary import Vocabulary

K = TypeVar("K")
T = TypeVar("T")

MAX_REMEMBERED: Final = 20_000
"""States whose completions are remembered, per grammar."""

_ANSWER_BYTES: Final = 100  # of what is kept of a frame, a stack or a state, measured on the grammars of the library
_THREADS_BYTES: Final = 500
_MARKS: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|([,:])')  # commas and colons outside of strings
_FILLERS: Final = (b" ", b"-", b"=", b"_", b"0", b".", b"*")


class Place:
    """A frame, and the place to go on with when it returns; interned by its `Completions`."""

    __slots__ = ("frame", "then")

    def __init__(self, frame: Frame, then: Place | None) -> None:
        self.frame, self.then = frame, then


Thread: TypeAlias = tuple[Node, Place, bytes | None]
"""What is left of a lexeme, where it is read, and the bytes read if they are captured: one way to read a text."""


class _Outside:
    """A word that leaves a stack: the one of the frame on top, and what leaves the frames below it."""

    __slots__ = ("below", "length", "word")

    def __init__(self, word: bytes, below: _Outside | None) -> None:
        self.word, self.below = word, below
        self.length: int = len(word) + (0 if below is None else below.length)

    def text(self) -> bytes:
        """The whole word."""
        words = []
        outside: _Outside | None = self
        while outside is not None:
            words.append(outside.word)
            outside = outside.below
        return b"".join(words)


class Completions:
    """The short completions of the states of one unfolding over one vocabulary.

    Args:
        root: the frame of a whole text.
        unfolding: the states.
        vocabulary: the tokens.
        left_out: tokens that no completion has.
        of_any_bytes: the completions with all tokens, where some are left out: what cannot be written in the bytes that
            are tokens still, may be in longer tokens.

    Attributes:
        root: the frame of a whole text.

    Raises (from any method):
        ResourceLimitError: the search exceeds `MAX_SEARCH`, or the vocabulary has no tokens for what was found.
    """

    def __init__(
        self,
        root: Frame,
        unfolding: Unfolding,
        vocabulary: Vocabulary,
        left_out: frozenset[int] = NONE,
        of_any_bytes: Completions | None = None,
    ) -> None:
        self._unfolding = unfolding
        self._division = division_of(vocabulary, left_out)
        self._has_left_out = bool(left_out)
        self._places: dict[tuple[Frame, Place | None], Place] = {}
        self._frames: dict[Frame, bytes | None] = {}
        self._threads: dict[State, tuple[Thread, ...]] = {}
        self._outsides: dict[int, _Outside | None] = {}
        self._lexemes = Lexemes(self._division.usable if left_out else ANY_BYTE)
        self._texts: dict[State, bytes] = {}
        self._tokens: dict[State, tuple[int, ...] | None] = {}
        self._of_any_bytes = of_any_bytes
        self.root = root

    def text(self, state: State, path: Callable[[], bytes]) -> bytes:
        """A shortest completion in bytes of `state`; `path` gives a text that leads there, and is rarely called."""
        known = self._texts.get(state)
        if known is None:
            with self._unfolding.automaton.lock:
                known = b"" if state.is_accepting else self._of_configurations(state)
                if known is None:
                    try:
                        known = self._least_text(self._threads_of(state, path()))
                    except ResourceLimitError:
                        if self._of_any_bytes is None:
                            raise
                        known = self._of_any_bytes.text(state, path)
                _remember(self._texts, state, known)
        return known

    def tokens(self, state: State, path: Callable[[], bytes]) -> tuple[int, ...]:
        """A completion in few tokens, none of those that are left out."""
        text = self.text(state, path)
        if state not in self._tokens:
            _remember(self._tokens, state, self._fewest(state, text))
        found = self._tokens[state]
        if found is None:
            raise ResourceLimitError(
                "the vocabulary has no tokens for the shortest completion of the text"
                + (" without those that may be forbidden" if self._has_left_out else ""),
                at=f"{text!r:.80}",
                hint="fewer forbidden tokens" if self._has_left_out else "a tokenizer that has every byte as a token",
            )
        return found

    def are_enough(self, num_tokens: int, state: State, path: Callable[[], bytes]) -> bool:
        """Whether there is a completion as `tokens` finds it and has at most so many; far cheaper with room to spare.

        Most questions need no tokens: where every byte is one, a text of so few bytes is enough. Of the others most
        need no variants of the text, which have to be read.
        """
        text = self.text(state, path)
        if len(text) <= num_tokens and self._division.has_all_bytes:
            return True
        if state in self._tokens:
            found = self._tokens[state]
            return found is not None and len(found) <= num_tokens
        return any(
            (count := self._division.num_tokens(form)) is not None
            and count <= num_tokens
            and (form == text or self._completes(state, form))
            for form in _variants(text)
        )

    def least(self, frame: Frame) -> bytes | None:
        """A shortest text of a frame; None if it has none."""
        with self._unfolding.automaton.lock:
            return self._least(frame, Effort(self._lexemes))

    @property
    def num_bytes(self) -> int:
        """About how much memory the answers take that are kept."""
        num_answers = len(self._frames) + len(self._outsides) + len(self._texts) + len(self._tokens)
        return _ANSWER_BYTES * num_answers + _THREADS_BYTES * (len(self._threads) + len(self._places))

    # -- in bytes, from the configurations of a state

    def _of_configurations(self, state: State) -> bytes | None:
        """A shortest completion from what the state is made of; None if its lexemes are not known by their languages.

        What is needed to leave a stack is found once for every stack, however many configurations and texts share it.
        """
        unfolding = self._unfolding
        nodes, readers = unfolding.automaton.nodes, unfolding.readers
        if any(nodes[lexical] is None or readers[reader].permitted for lexical, reader, *_ in state.configurations):
            return None
        effort = Effort(self._lexemes)
        return self._shortest(
            (
                (node, unfolding.frames[readers[reader].frame], text, self._outside(stack, effort))
                for lexical, reader, stack, text in state.configurations
                if (node := nodes[lexical]) is not None
            ),
            effort,
        )

    def _shortest(
        self, ways: Iterable[tuple[Node, Frame, bytes | None, _Outside | None]], effort: Effort
    ) -> bytes | None:
        """A shortest word of any of some ways: the lexeme that is read, its reader, what was read of it if it is
        captured, and what leaves the stack below; None if no way has one.
        """
        best: bytes | None = None
        for node, frame, text, outside in ways:
            if outside is None:
                continue
            for length, words in enumerate(readings(frame, node, text, NUM_ALIKE, effort)):
                if best is not None and length + outside.length > len(best):
                    break
                for word, label in words:
                    for after in frame.after(label, b"" if text is None else text + word):
                        rest = self._least(after, effort)
                        if rest is None or (best is not None and length + len(rest) + outside.length > len(best)):
                            continue
                        whole = word + rest + outside.text()
                        # Equals by their bytes: the order of the ways is not a property of the state.
                        if best is None or (len(whole), whole) < (len(best), best):
                            best = whole
        return best

    def _outside(self, stack: int, effort: Effort) -> _Outside | None:
        """A shortest word for all the frames of a stack; None if there is none."""
        stacks, known = self._unfolding.stacks, self._outsides
        agenda = [stack]  # no recursion: stacks may be deep
        while agenda:
            current = agenda[-1]
            if current in known:
                agenda.pop()
                continue
            tops = stacks.standing_for(current)
            waiting = [parent for top in tops if top and (parent := int(stacks.parent[top])) not in known]
            if waiting:
                agenda += waiting
                continue
            agenda.pop()
            effort.step()
            best: _Outside | None = None
            for top in tops:
                below = known[int(stacks.parent[top])] if top else None
                word = self._least(self._unfolding.frames[int(stacks.frame[top])], effort) if top else b""
                if word is None or (top and below is None):
                    continue
                one = _Outside(word, below)
                if best is None or one.length < best.length or (one.length == best.length and one.text() < best.text()):
                    best = one
            known[current] = best
        return known[stack]

    # -- in bytes, from the text that was read

    def _threads_of(self, state: State, path: bytes) -> tuple[Thread, ...]:
        """The ways to have read `path`, whose last part is remembered from the states on the way."""
        known = self._threads.get(state)
        if known is not None:
            return known
        # Reading the text again is linear, and what is known of the states on the way is not computed again.
        current: State | None = self._unfolding.root
        threads = self._threads.get(self._unfolding.root)
        if threads is None:
            threads = tuple(self._enter([self._place(self.root, None)]))
            _remember(self._threads, self._unfolding.root, threads)
        for byte in path:
            assert current is not None
            current = self._unfolding.step(current, byte)
            assert current is not None
            after = self._threads.get(current)
            if after is None:
                after = self._step(threads, byte)
                _remember(self._threads, current, after)
            threads = after
        return threads

    def _place(self, frame: Frame, then: Place | None) -> Place:
        key = (frame, then)
        place = self._places.get(key)
        if place is None:
            if len(self._places) > MAX_SEARCH:
                self._places.clear()
                self._threads.clear()
            place = self._places[key] = Place(frame, then)
        return place

    def _enter(self, agenda: list[Place]) -> dict[Thread, None]:
        """What may be read next after all moves that read nothing."""
        threads: dict[Thread, None] = {}
        seen: set[Place] = set()
        while agenda:
            place = agenda.pop()
            if place in seen:
                continue
            seen.add(place)
            if len(seen) > MAX_SEARCH // 10:
                raise ResourceLimitError("the constraint has too many alternatives at one place of the text")
            for move in place.frame.moves():
                if isinstance(move, Read):
                    reading = place if move.reader is None else self._place(move.reader, place.then)
                    if not move.node.is_empty:
                        threads[move.node, reading, b"" if move.capture else None] = None
                    for label in move.node.labels:
                        agenda += (self._place(after, place.then) for after in reading.frame.after(label, b""))
                elif isinstance(move, Call):
                    agenda.append(self._place(move.callee, self._place(move.then, place.then)))
                elif place.then is not None:
                    agenda.append(place.then)
        return threads

    def _step(self, threads: tuple[Thread, ...], byte: int) -> tuple[Thread, ...]:
        found: dict[Thread, None] = {}
        for node, place, text in threads:
            rest = node.derivative(byte)
            if rest.is_empty:
                continue
            now = None if text is None else text + bytes((byte,))
            if rest.transitions():
                found[rest, place, now] = None
            for label in rest.labels:
                after = place.frame.after(label, now or b"")
                found.update(self._enter([self._place(frame, place.then) for frame in after]))
        return tuple(found)

    def _least_text(self, threads: tuple[Thread, ...]) -> bytes:
        """A shortest word that leads from one of the threads to the end."""
        effort = Effort(self._lexemes)
        best = self._shortest(
            ((node, place.frame, text, self._unwind(place.then, effort)) for node, place, text in threads), effort
        )
        if best is None:
            raise ResourceLimitError("no completion of the text was found")
        return best

    def _unwind(self, place: Place | None, effort: Effort) -> _Outside | None:
        """A shortest word for all the frames that are to be returned to; None if there is none."""
        words = []
        while place is not None:
            word = self._least(place.frame, effort)
            if word is None:
                return None
            words.append(word)
            place = place.then
        return _Outside(b"".join(words), None)

    def _least(self, frame: Frame, effort: Effort) -> bytes | None:
        """A shortest word of a frame; None if there is none."""
        try:
            return self._solve(frame.outward(), effort, {})[0]
        except RecursionError:
            raise ResourceLimitError("the constraint is nested too deeply for a search of its shortest text") from None

    def _solve(self, frame: Frame, effort: Effort, active: dict[Frame, int]) -> tuple[bytes | None, int]:
        """A shortest word of a frame among those in which no `active` frame is called again.

        A shortest word of an active frame calls that frame nowhere inside, so leaving these calls out is right for it,
        and for everything that is asked on its behalf.

        Returns:
            The word, and the depth of the outermost active frame that was left out (a large number for none): what
            depends on such a frame is not remembered.
        """
        if frame in self._frames:
            return self._frames[frame], MAX_SEARCH
        depth = active[frame] = len(active)
        search = Search(self._solve, frame, effort, active)
        found = search.run(NUM_ALIKE, MAX_EXACT)
        if search.is_too_wide:
            found = search.run(1)
            if found is None:
                found = search.run(NUM_ALIKE)
        del active[frame]
        outermost = MAX_SEARCH if search.outermost >= depth else search.outermost
        if outermost == MAX_SEARCH:
            self._frames[frame] = found
        return found, outermost

    # -- in tokens

    def _fewest(self, state: State, text: bytes) -> tuple[int, ...] | None:
        """A completion in few tokens, given a shortest one in bytes; None if there is none among its variants."""
        division = self._division
        counts = [(count, form) for form in dict.fromkeys(_variants(text)) if (count := division.num_tokens(form))]
        for _, form in sorted(counts, key=itemgetter(0)):  # of equals the first
            if form == text or self._completes(state, form):
                return division.tokens(form)
        return () if not text else None

    def _completes(self, state: State, text: bytes) -> bool:
        end = self._unfolding.read(state, text)
        return end is not None and end.is_accepting


def _variants(text: bytes) -> Iterator[bytes]:
    """The text, and others that may mean the same in fewer tokens; whether the constraint has them must be asked."""
    yield text
    spaced = _MARKS.sub(lambda found: found[1] or found[2] + b" ", text)
    for form in dict.fromkeys((text, spaced)):
        if form != text:
            yield form
        if b"aaaa" in form:
            for filler in _FILLERS:
                yield re.sub(rb"a{4,}", lambda found, filler=filler: filler * len(found[0]), form)  # type: ignore[misc]


def _remember(memory: dict[K, T], key: K, value: T) -> None:
    if len(memory) >= MAX_REMEMBERED:
        memory.clear()
    memory[key] = value
