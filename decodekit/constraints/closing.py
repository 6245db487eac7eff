"""The way out: short completions of a text, and how many tokens a text of the constraint has at least and at most.

A completion is found in two steps. First a shortest one in bytes: the least word of a frame is a least solution of
equations between frames, found by a search in the order of length that solves a called frame when it is met (D. Knuth,
A generalization of Dijkstra's algorithm, 1977). Then its division into the fewest tokens, by dynamic programming over
the text, and over a few variants of it that tokens tend to suit better (blanks after commas and colons, other fillers).

So a completion always exists as it stands, and its number of tokens is an upper bound of the least one: there may be a
longer text with fewer tokens. Where texts are captured and each one leads elsewhere (numbers of which no two may be
equal), the ways are as many as the subsets of the texts. A search that has met `MAX_EXACT` of them goes on with one
text of each label, the shortest, and may then miss the shortest word by a few bytes. Everything here is a function of
the state alone, never of what was asked before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Final, TypeAlias, TypeVar

from decodekit.constraints.configurations import State
from decodekit.constraints.ir import Node
from decodekit.constraints.least_word import MAX_EXACT, MAX_SEARCH, NUM_ALIKE, Effort, Search, readings
from decodekit.constraints.network import Call, Frame, Read
from decodekit.constraints.special import is_text, spellings
from decodekit.constraints.unfolding import Unfolding
from decodekit.errors import ResourceLimitError
from decodekit.vocabulary import Vocabulary

T = TypeVar("T")

MAX_REMEMBERED: Final = 20_000
"""States whose completions are remembered, per grammar."""

_ANSWER_BYTES: Final = 100  # of what is kept of a frame, a stack or a state, measured on the grammars of the library
_THREADS_BYTES: Final = 500
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

    Attributes:
        root: the frame of a whole text.

    Raises (from any method):
        ResourceLimitError: the search exceeds `MAX_SEARCH`, or the vocabulary has no tokens for what was found.
    """

    def __init__(self, root: Frame, unfolding: Unfolding, vocabulary: Vocabulary) -> None:
        self._unfolding = unfolding
        self._vocabulary = vocabulary
        self._places: dict[tuple[Frame, Place | None], Place] = {}
        self._frames: dict[Frame, bytes | None] = {}
        self._threads: dict[State, tuple[Thread, ...]] = {}
        self._outsides: dict[int, _Outside | None] = {}
        self._texts: dict[State, bytes] = {}
        self._tokens: dict[State, tuple[int, ...]] = {}
        self.root = root

    def text(self, state: State, path: Callable[[], bytes]) -> bytes:
        """A shortest completion in bytes of `state`; `path` gives a text that leads there, and is rarely called."""
        known = self._texts.get(state)
        if known is None:
            known = b"" if state.is_accepting else self._of_configurations(state)
            if known is None:
                known = self._least_text(self._threads_of(state, path()))
            _remember(self._texts, state, known)
        return known

    def tokens(self, state: State, path: Callable[[], bytes]) -> tuple[int, ...]:
        """A completion in few tokens."""
        known = self._tokens.get(state)
        if known is None:
            known = self._fewest(state, self.text(state, path))
            _remember(self._tokens, state, known)
        return known

    def are_enough(self, num_tokens: int, state: State, path: Callable[[], bytes]) -> bool:
        """Whether `tokens` has at most so many; cheaper where every byte is a token and there are plenty."""
        text = self.text(state, path)
        if len(text) <= num_tokens and self._has_all_bytes:
            return True
        return len(text) <= num_tokens * self._longest_token * 4 and len(self.tokens(state, path)) <= num_tokens

    def least(self, frame: Frame) -> bytes | None:
        """A shortest text of a frame; None if it has none."""
        return self._least(frame, Effort())

    @property
    def num_bytes(self) -> int:
        """About how much memory the answers take that are kept."""
        num_answers = len(self._frames) + len(self._outsides) + len(self._texts) + len(self._tokens)
        return _ANSWER_BYTES * num_answers + _THREADS_BYTES * (len(self._threads) + len(self._places))

    @cached_property
    def _token_of(self) -> dict[bytes, int]:
        return _token_of(self._vocabulary)

    @cached_property
    def _longest_token(self) -> int:
        return max((len(data) for data in self._token_of), default=0)

    @cached_property
    def _has_all_bytes(self) -> bool:
        return all(bytes((byte,)) in self._token_of for byte in range(256) if is_text(bytes((byte,))))

    # -- in bytes, from the configurations of a state

    def _of_configurations(self, state: State) -> bytes | None:
        """A shortest completion from what the state is made of; None if its lexemes are not known by their languages.

        What is needed to leave a stack is found once for every stack, however many configurations and texts share it.
        """
        unfolding = self._unfolding
        nodes, readers = unfolding.automaton.nodes, unfolding.readers
        if any(nodes[lexical] is None or readers[reader].permitted for lexical, reader, *_ in state.configurations):
            return None
        effort = Effort()
        with unfolding.automaton.lock:
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
        effort = Effort()
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

    def _fewest(self, state: State, text: bytes) -> tuple[int, ...]:
        best = self._divide(text)
        for variant in dict.fromkeys(_variants(text)):
            if variant == text:
                continue
            end = self._unfolding.read(state, variant)
            if end is not None and end.is_accepting:
                tokens = self._divide(variant)
                if tokens is not None and (best is None or len(tokens) < len(best)):
                    best = tokens
        if best is None:
            raise ResourceLimitError(
                "the vocabulary has no tokens for the shortest completion of the text",
                at=f"{text!r:.80}",
                hint="a tokenizer that has every byte as a token",
            )
        return best

    def _divide(self, text: bytes) -> tuple[int, ...] | None:
        """The division of a text into the fewest tokens, the longest first among equals; None if there is none."""
        token_of, longest = self._token_of, self._longest_token
        fewest: list[int | None] = [None] * len(text) + [0]
        length_of = [0] * len(text)
        for start in range(len(text) - 1, -1, -1):
            for end in range(min(len(text), start + longest), start, -1):
                rest = fewest[end]
                known = fewest[start]
                if rest is not None and (known is None or rest + 1 < known) and text[start:end] in token_of:
                    fewest[start], length_of[start] = rest + 1, end - start
        if fewest[0] is None:
            return None
        tokens, position = [], 0
        while position < len(text):
            tokens.append(token_of[text[position : position + length_of[position]]])
            position += length_of[position]
        return tuple(tokens)


def _variants(text: bytes) -> Iterator[bytes]:
    """Texts that may mean the same in fewer tokens; whether the constraint has them must be asked."""
    spaced = re.sub(rb'("(?:[^"\\]|\\.)*")|([,:])', lambda found: found[1] or found[2] + b" ", text)
    for form in (text, spaced):
        yield form
        if b"aaaa" in form:
            for filler in _FILLERS:
                yield re.sub(rb"a{4,}", lambda found, filler=filler: filler * len(found[0]), form)  # type: ignore[misc]


def _remember(memory: dict[State, T], state: State, value: T) -> None:
    if len(memory) >= MAX_REMEMBERED:
        memory.clear()
    memory[state] = value


@lru_cache(maxsize=8)
def _token_of(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The first token of each byte string."""
    found: dict[bytes, int] = {}
    for token, data in enumerate(vocabulary.token_bytes):
        if data and is_text(data):  # what is no text is never allowed
            found.setdefault(data, token)
    for token, some in spellings(vocabulary).items():
        found.update((data, token) for data in some)
    return found
