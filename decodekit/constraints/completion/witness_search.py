"""The search of a shortest word of a frame, in the order of length, and what it may cost.

Example: a frame that reads ``[`` and then either reads ``]`` or calls an item. The heap begins with the frame itself
(length 0). The word ``[`` of its lexeme leads to what may follow, at length 1. There ``]`` waits for length 2, and the
call waits behind everything else of length 1; then a search of its own finds the least word of the item, ``0``, and the
frame behind it goes on at length 2. The end after ``]`` is met first: ``[]``. A frame that calls itself is left out
while it is being solved, as a shortest word never needs that call.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from decodekit.constraints.language.ir import ALL_BYTES
from decodekit.constraints.language.node import ByteMask, Node
from decodekit.constraints.language.shortest import Word, few_by_length, shortest_word, words_by_length
from decodekit.constraints.network import Call, Frame, Read, Return
from decodekit.errors import ResourceLimitError

MAX_SEARCH: Final = 200_000
"""Bound on the nodes and frames that one question may look at."""
MAX_EXACT: Final = 500
"""Bound on what the search of one frame may look at, frames that it calls aside, as long as it tries all texts."""
MAX_LEXEMES: Final = 10_000
"""Lexemes whose words are kept, per grammar."""
NUM_ALIKE: Final = 4
"""Captured texts of one label that are tried: what follows them differs, but hardly ever in its length."""

_CALLS_LAST: Final = 1 << 40


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


class WitnessSearch:
    """The search of a shortest word of one frame, in the order of length. See `Completions._solve`.

    Attributes:
        outermost: the depth of the outermost active frame that was left out, `MAX_SEARCH` for none.
        is_too_wide: whether a run was given up because captured texts make too many ways.
    """

    def __init__(
        self,
        solve: Callable[[Frame, Effort, dict[Frame, int]], tuple[bytes | None, int]],
        frame: Frame,
        effort: Effort,
        active: dict[Frame, int],
    ) -> None:
        self._solve, self._frame, self._whole, self._active = solve, frame, effort, active
        self.outermost = MAX_SEARCH
        self.is_too_wide = False

    def run(self, num_alike: int, most_steps: int = MAX_SEARCH) -> bytes | None:
        """A shortest word; None if there is none, or if it is too wide.

        `num_alike` captured texts of a label are tried where each leads elsewhere, `most_steps` made where texts are
        captured, those of called frames aside.
        """
        effort = Effort(self._whole.lexemes, self._whole)
        order = count()
        # (length so far, tie, word so far, what comes: a frame, words of a Read, a Call, or None for the end)
        heap: list[tuple[int, int, bytes, Frame | _Lexeme | Call | None]] = [(0, next(order), b"", self._frame)]
        seen: set[Frame] = set()
        has_captures = False
        while heap:
            length, _, word, item = heapq.heappop(heap)
            effort.step()
            if has_captures and effort.num_steps > most_steps:
                self.is_too_wide = True
                return None
            if item is None:
                return word
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
                if callee in self._active:
                    self.outermost = min(self.outermost, self._active[callee])
                    continue
                inner, cut = self._solve(callee, self._whole, self._active)
                self.outermost = min(self.outermost, cut)
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
        return None


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
