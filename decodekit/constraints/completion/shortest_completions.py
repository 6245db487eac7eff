"""Short completions of a text: a shortest one in bytes, divided into few tokens.

Example: after ``{"a":`` under ``{"properties": {"a": {"type": "integer"}}}`` the engine's state has one configuration:
the lexeme of an integer, read by the frame of the value, on a stack with the frame of the object. A completion is

    a shortest word of the lexeme     0        words of a regular language in the order of length
    a least word of what follows it   (none)   of the frames that the reader enters
    a least word of each frame below  }        kept by stack, so that it is found once

and the shortest over all configurations is ``0}``. Of equally short ones the first by its bytes is taken.

The least word of a frame is a least solution of equations between frames, found by a search in the order of length that
solves a called frame when it is met (D. Knuth, A generalization of Dijkstra's algorithm, 1977). Take a frame that reads
``[`` and then either reads ``]`` or calls an item. The heap begins with the frame itself (length 0). The word ``[`` of
its lexeme leads to what may follow, at length 1. There ``]`` waits for length 2, and the call waits behind everything
else of length 1; then a search of its own finds the least word of the item, ``0``, and the frame behind it goes on at
length 2. The end after ``]`` is met first: ``[]``. A frame that calls itself is left out while it is being solved, as a
shortest word never needs that call.

The division into the fewest tokens is that of `division`; a few variants of the text that tokens tend to suit better
are divided, too (blanks after commas and colons, other fillers).

Tokens may be left out: those that something outside of the constraint may forbid. Then the first step looks for a text
of bytes that are tokens still, and for any text only where there is none.

A completion always exists as it stands, and its number of tokens is an upper bound of the least one: there may be a
longer text with fewer tokens. Where texts are captured and each one leads elsewhere (numbers of which no two may be
equal), the ways are as many as the subsets of the texts. A search that has met `MAX_EXACT` of them goes on with one
text of each label, the shortest, and may then miss the shortest word by a few bytes. Everything here is a function of
the state alone, never of what was asked before.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple

from decodekit.constraints.engine.configurations import Configuration, State
from decodekit.constraints.engine.division import NONE, division_of
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.language.ir import ALL_BYTES
from decodekit.constraints.language.node import ByteMask, Node
from decodekit.constraints.language.shortest import Word, few_by_length, shortest_word, words_by_length
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.network import Call, Frame, Read, Return
from decodekit.errors import ResourceLimitError
from decodekit.vocabulary import Vocabulary

MAX_SEARCH: Final = 200_000
"""Bound on the nodes and frames that one question may look at."""
MAX_EXACT: Final = 500
"""Bound on what the search of one frame may look at, frames that it calls aside, as long as it tries all texts."""
MAX_LEXEMES: Final = 10_000
"""Lexemes whose words are kept, per grammar."""
NUM_ALIKE: Final = 4
"""Captured texts of one label that are tried: what follows them differs, but hardly ever in its length."""
MAX_REMEMBERED: Final = 20_000
"""States whose completions are remembered, per grammar."""

_CALLS_LAST: Final = 1 << 40
_ANSWER_BYTES: Final = 100  # of what is kept of a frame, a stack or a state, measured on the grammars of the library
_MARKS: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|([,:])')  # commas and colons outside of strings
_FILLERS: Final = (b" ", b"-", b"=", b"_", b"0", b".", b"*")


class Lexemes:
    """The shortest words of lexemes, of usable bytes, found once: most states of a text wait for the same few."""

    def __init__(self, usable: ByteMask = ALL_BYTES) -> None:
        self.usable = usable
        # By language and permitted labels: what was found so far, and the search for more.
        self._words: dict[tuple[Node, bytes | None], tuple[list[Sequence[Word]], Iterator[Sequence[Word]]]] = {}
        self._effort: Effort | None = None  # what counts the search that goes on

    def of(self, node: Node, permitted: bytes | None, effort: Effort) -> Iterator[Sequence[Word]]:
        """One word of each label by length, as `few_by_length` finds them; `effort` counts what was not known yet."""
        found = self._words.get((node, permitted))
        if found is None:
            if len(self._words) >= MAX_LEXEMES:
                self._words.clear()
            search: Iterator[Sequence[Word]] = few_by_length(node, 1, self._count, self.usable, permitted)
            found = self._words[node, permitted] = [], search
        layers, others = found
        for length in count():
            if length == len(layers):
                self._effort = effort
                layer = next(others, None)
                if layer is None:
                    return
                layers.append(layer)
            yield layers[length]

    def _count(self) -> None:
        assert self._effort is not None
        self._effort.step()


@dataclass(slots=True)
class Effort:
    """The steps of one question, or of a part of `whole`, so far; and the lexemes' words, known whatever is asked."""

    lexemes: Lexemes
    whole: Effort | None = None
    num_steps: int = 0

    def step(self) -> None:
        """Count one node or frame that is looked at; more than `MAX_SEARCH` are refused."""
        self.num_steps += 1
        if self.whole is not None:
            self.whole.step()
        if self.num_steps > MAX_SEARCH:
            raise ResourceLimitError(
                f"no shortest text was found within {MAX_SEARCH:,} steps",
                hint='smaller bounds on lengths and counts, or on_length="error"',
            )


@dataclass(slots=True)
class _Lexeme:
    """The words of a lexeme by their length, as an item of the search: those of each length when it is its turn."""

    frame: Frame
    words: Iterator[Sequence[Word]]
    captures: bool


def lexeme_words(
    frame: Frame, node: Node, permitted: bytes | None, text: bytes | None, num_alike: int, effort: Effort
) -> Iterator[Sequence[Word]]:
    """Words of a lexeme by their length, those that may lead elsewhere than shorter ones.

    `frame` reads it, and has read `text` of it if it is captured; `node` is left. There are `num_alike` captured words
    of a label, where each leads elsewhere.
    """
    if text is None:
        return effort.lexemes.of(node, permitted, effort)
    return _captured_words(frame, node, text, num_alike, effort)


def _captured_words(frame: Frame, node: Node, text: bytes, num_alike: int, effort: Effort) -> Iterator[Sequence[Word]]:
    """The same for a captured lexeme of which `text` was read, where what follows depends on the word.

    If the frame says what most words have in common, these are the listed ones and a shortest one that is not listed.
    """
    usable = effort.lexemes.usable
    first = shortest_word(node, effort.step, usable)
    fresh = None if first is None else frame.fresh(first[1])
    so_far = None if fresh is None else fresh.decode(text)
    if first is None or fresh is None or so_far is None:
        yield from few_by_length(node, num_alike, effort.step, usable)
        return
    listed: dict[int, list[Word]] = {}
    for known in fresh.listed:
        if known.startswith(so_far):
            word = fresh.spell(known[len(so_far) :]) + fresh.end
            listed.setdefault(len(word), []).append((word, first[1]))
    length = -1
    for length, layer in enumerate(words_by_length(node, effort.step, usable, again=True)):
        unlisted = (
            (word, first[1])
            for word, _ in layer
            if fresh.decode(text + word[: len(word) - len(fresh.end)]) not in fresh.listed
        )
        other = next(unlisted, None)
        yield listed.get(length, []) if other is None else [*listed.get(length, []), other]
        if other is not None:
            break
    yield from (listed.get(further, []) for further in range(length + 1, max(listed, default=0) + 1))


class _Outside(NamedTuple):
    """A word that leaves a stack: the one of the frame on top, and what leaves the frames below it."""

    word: bytes
    below: _Outside | None
    length: int

    def text(self) -> bytes:
        words = []
        outside: _Outside | None = self
        while outside is not None:
            words.append(outside.word)
            outside = outside.below
        return b"".join(words)


class Completions:
    """The short completions of the states of one recogniser over one vocabulary, some tokens left out.

    Where some are, `of_any_bytes` are the completions with all: what cannot be written in the bytes that are tokens
    still, may be in longer tokens.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        vocabulary: Vocabulary,
        left_out: frozenset[int] = NONE,
        of_any_bytes: Completions | None = None,
    ) -> None:
        self._recogniser = recogniser
        self._division = division_of(vocabulary, left_out)
        self._has_left_out = bool(left_out)
        self._frames: dict[Frame, bytes | None] = {}
        self._outsides: dict[int, _Outside | None] = {}
        self._lexemes = Lexemes(self._division.usable if left_out else ALL_BYTES)
        self._texts: Memo[State, bytes] = Memo(self._find_text, MAX_REMEMBERED)
        self._tokens: Memo[State, tuple[int, ...] | None] = Memo(self._fewest, MAX_REMEMBERED)
        self._of_any_bytes = of_any_bytes

    def text(self, state: State) -> bytes:
        """A shortest completion in bytes of `state`."""
        return self._texts[state]

    def _find_text(self, state: State) -> bytes:
        with self._recogniser.automaton.lock:
            try:
                return b"" if self._recogniser.states.is_accepting(state) else self._shortest(state)
            except ResourceLimitError:
                if self._of_any_bytes is None:
                    raise
                return self._of_any_bytes.text(state)

    def tokens(self, state: State) -> tuple[int, ...]:
        """A completion in few tokens, none of those that are left out."""
        found = self._tokens[state]
        if found is None:
            raise ResourceLimitError(
                "the vocabulary has no tokens for the shortest completion of the text"
                + (" without those that may be forbidden" if self._has_left_out else ""),
                at=f"{self.text(state)!r:.80}",
                hint="fewer forbidden tokens" if self._has_left_out else "a tokenizer that has every byte as a token",
            )
        return found

    def are_enough(self, num_tokens: int, state: State) -> bool:
        """Whether there is a completion as `tokens` finds it and has at most so many; far cheaper with room to spare.

        Most questions need no tokens: where every byte is one, a text of so few bytes is enough. Of the others most
        need no variants of the text, which have to be read.
        """
        text = self.text(state)
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
        with self._recogniser.automaton.lock:
            return self._least(frame, Effort(self._lexemes))

    @property
    def num_bytes(self) -> int:
        """About how much memory the answers take that are kept."""
        return _ANSWER_BYTES * (len(self._frames) + len(self._outsides) + len(self._texts) + len(self._tokens))

    # -- in bytes

    def _shortest(self, state: State) -> bytes:
        """A shortest completion; of equals the first by its bytes, as configurations have no order."""
        effort = Effort(self._lexemes)
        best: bytes | None = None
        for configuration in self._recogniser.states.configurations[state]:
            best = self._shorter(configuration, best, effort)
        if best is None:
            raise ResourceLimitError("no completion of the text was found")
        return best

    def _shorter(self, configuration: Configuration, best: bytes | None, effort: Effort) -> bytes | None:
        """The best of some completion and those of a configuration: a word of its lexeme, what follows, the stack."""
        lexical, number, stack, text = configuration
        outside = self._outside(stack, effort)
        if outside is None:
            return best
        recogniser = self._recogniser
        reader, node = recogniser.readers[number], recogniser.automaton.node(lexical)
        frame = recogniser.frames[reader.frame]
        for length, words in enumerate(lexeme_words(frame, node, reader.permitted, text, NUM_ALIKE, effort)):
            if best is not None and length + outside.length > len(best):
                break
            for word, label in words:
                for after in frame.after(label, b"" if text is None else text + word):
                    rest = self._least(after, effort)
                    if rest is None or (best is not None and length + len(rest) + outside.length > len(best)):
                        continue
                    whole = word + rest + outside.text()
                    if best is None or (len(whole), whole) < (len(best), best):
                        best = whole
        return best

    def _outside(self, stack: int, effort: Effort) -> _Outside | None:
        """A shortest word for all the frames of a stack; None if there is none."""
        stacks, known = self._recogniser.stacks, self._outsides
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
                word = self._least(self._recogniser.frames[int(stacks.frame[top])], effort) if top else b""
                if word is None or (top and below is None):
                    continue
                one = _Outside(word, below, len(word) + (0 if below is None else below.length))
                if best is None or one.length < best.length or (one.length == best.length and one.text() < best.text()):
                    best = one
            known[current] = best
        return known[stack]

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
        found, outermost, is_too_wide = self._search(frame, effort, active, NUM_ALIKE, MAX_EXACT)
        for num_alike in (1, NUM_ALIKE) if is_too_wide else ():
            found, cut, _ = self._search(frame, effort, active, num_alike)
            outermost = min(outermost, cut)
            if found is not None:
                break
        del active[frame]
        outermost = MAX_SEARCH if outermost >= depth else outermost
        if outermost == MAX_SEARCH:
            self._frames[frame] = found
        return found, outermost

    def _search(
        self, frame: Frame, whole: Effort, active: dict[Frame, int], num_alike: int, most_steps: int = MAX_SEARCH
    ) -> tuple[bytes | None, int, bool]:
        """As `_solve`, in the order of length; and whether it was given up as captured texts make too many ways.

        `num_alike` captured texts of a label are tried where each leads elsewhere, `most_steps` made where texts are
        captured, those of called frames aside.
        """
        effort = Effort(whole.lexemes, whole)
        order = count()
        # (length so far, tie, word so far, what comes: a frame, words of a Read, a Call, or None for the end)
        heap: list[tuple[int, int, bytes, Frame | _Lexeme | Call | None]] = [(0, next(order), b"", frame)]
        seen: set[Frame] = set()
        has_captures, outermost = False, MAX_SEARCH
        while heap:
            length, _, word, item = heapq.heappop(heap)
            effort.step()
            if has_captures and effort.num_steps > most_steps:
                return None, outermost, True
            if item is None:
                return word, outermost, False
            if isinstance(item, _Lexeme):
                words = next(item.words, None)
                if words is None:
                    continue
                for read, label in words:
                    for after in item.frame.after(label, read if item.captures else b""):
                        heapq.heappush(heap, (length, next(order), word + read, after.outward()))
                heapq.heappush(heap, (length + 1, next(order), word, item))
            elif isinstance(item, Call):
                callee = item.callee.outward()
                if callee in active:
                    outermost = min(outermost, active[callee])
                    continue
                inner, cut = self._solve(callee, whole, active)
                outermost = min(outermost, cut)
                if inner is not None:
                    heapq.heappush(heap, (length + len(inner), next(order), word + inner, item.then.outward()))
            elif item not in seen:
                seen.add(item)
                for move in item.moves():
                    if isinstance(move, Return):
                        heapq.heappush(heap, (length, next(order), word, None))
                    elif isinstance(move, Read):
                        reader = move.reader or item
                        has_captures |= move.capture
                        text = b"" if move.capture else None
                        words_ahead = lexeme_words(reader, move.node, None, text, num_alike, effort)
                        reading = _Lexeme(reader, words_ahead, move.capture)
                        heapq.heappush(heap, (length, next(order), word, reading))
                    else:
                        # After everything else of this length: a call may lead ever deeper, an end is an end.
                        heapq.heappush(heap, (length, _CALLS_LAST + next(order), word, move))
        return None, outermost, False

    # -- in tokens

    def _fewest(self, state: State) -> tuple[int, ...] | None:
        """A completion in few tokens; None if there is none among the variants of a shortest one in bytes."""
        division, text = self._division, self.text(state)
        counts = [(count, form) for form in dict.fromkeys(_variants(text)) if (count := division.num_tokens(form))]
        for _, form in sorted(counts, key=itemgetter(0)):  # of equals the first
            if form == text or self._completes(state, form):
                return division.tokens(form)
        return () if not text else None

    def _completes(self, state: State, text: bytes) -> bool:
        end = self._recogniser.read(state, text)
        return end is not None and self._recogniser.states.is_accepting(end)


def _variants(text: bytes) -> Iterator[bytes]:
    """The text, and others that may mean the same in fewer tokens; whether the constraint has them must be asked.

    Kept for texts with a least length: with Tekken a string of at least 3,000 characters needs 42 tokens as blanks and
    1,002 as the letter a. Without such strings variants hardly matter (1,598 tokens and 1,601 over 122 schemas).
    """
    yield text
    spaced = _MARKS.sub(lambda found: found[1] or found[2] + b" ", text)
    for form in dict.fromkeys((text, spaced)):
        if form != text:
            yield form
        if b"aaaa" in form:
            for filler in _FILLERS:
                yield re.sub(rb"a{4,}", lambda found, filler=filler: filler * len(found[0]), form)  # type: ignore[misc]
