"""Texts of a constraint without a model: whether a text is one, a shortest one, random ones.

A random text is a walk through the network of the constraint. At every choice (to end a list or to go on, this
alternative or that) each way has a weight by what it costs: 1 for the cheapest, and for one whose shortest text is d
bytes longer ``sqrt(1 + s / 16) * exp(min(d, 4) / 4 * (1 - d / s))``, where s bytes are left of the size when all that
the text still needs is taken off. So longer ways are liked while there is room, and pulled back ever harder as the end
nears; where no room is left the shortest way out is taken, so recursion ends. The size of each text is drawn from an
exponential distribution with the mean that was asked for, so that short and long texts both occur.

Characters of a set are drawn with letters and digits first; other alphabets, escapes and white space are rare.

Special tokens stand in a text by name, as in that of a completion (see the module `special`). A name in a text that is
given may be the token or its characters; it is read as whichever leads on.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice
from typing import Final, TypeVar

from decodekit.constraints.completion.shortest_completions import Completions
from decodekit.constraints.constraint import Constraint, Refusal
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.explain.explanation import Explanation, as_bytes, explain_refusal
from decodekit.constraints.explain.special_names import readings
from decodekit.constraints.explain.trace import Trace
from decodekit.constraints.language.ir import bytes_of, mask_of
from decodekit.constraints.language.node import ByteMask, Node
from decodekit.constraints.language.shortest import shortest_word
from decodekit.constraints.matching.compiler import check_satisfiable
from decodekit.constraints.memory_account import on_shortage
from decodekit.constraints.network import Call, Frame, Label, Move, Read, Return
from decodekit.constraints.request_formats import as_constraint
from decodekit.constraints.special import with_names
from decodekit.errors import ConstraintError, GuardError, OptionError
from decodekit.vocabulary import Vocabulary

T = TypeVar("T")

DEFAULT_SIZE: Final = 100
MAX_TRIES: Final = 100
"""So many texts in a row may be refused by the guard of a constraint, or be no UTF-8."""

_END_OF_TEXT: Final = 256
_MAX_DEAD_ENDS: Final = 20
_LIKED: Final = 4  # bytes: a way that costs more than so many is not liked more
_LONG: Final = 16  # bytes: with so much room longer ways are liked better
_END: Final = 3.0  # weight of the end of a lexeme beside those of its characters
_ONE_STEP: Final = 0.1  # bytes of the size that a move without a character takes
_TYPICAL_LEXEME: Final = 8  # bytes


def explain(constraint: object, text: str) -> Explanation:
    """Whether a text is one of a constraint, and if it is none, where it stops being the beginning of one and why.

    Args:
        constraint: what `as_constraint` takes as one.
        text: the whole text. `Explanation.position` is its length if it is whole, or the beginning of a longer one.

    Raises:
        ConstraintError: the constraint is malformed or not satisfiable.
    """
    rule = as_constraint(constraint)
    recogniser, _ = _engine(rule)
    found = readings(recogniser, text, rule.special_tokens())[0].explain(recogniser)
    refusal = _refusal(rule, as_bytes(text)) if found.is_allowed else None
    return found if refusal is None else explain_refusal(refusal, len(text))


def complete(constraint: object, prefix: str = "") -> str:
    """A shortest text of a constraint, in bytes, that begins with `prefix`; special tokens count by their spelling.

    With a guard (`Guarded`, `uniqueItems` of objects) the shortest text may be one that it refuses; then the result is
    the shortest of some random ones.

    Raises:
        OptionError: no text begins so; with what was expected.
        GuardError: the guard refused every text that was tried.
        ConstraintError: the constraint is malformed or not satisfiable, or no text was found within bounds.
    """
    rule = as_constraint(constraint)
    recogniser, completions = _engine(rule)
    ways = readings(recogniser, prefix, rule.special_tokens())
    if not ways[0].is_whole:
        raise OptionError(f"no text begins so: {ways[0].explain(recogniser)}", at="prefix")
    whole, path = min(((way.path + completions.text(way.state), way.path) for way in ways), key=lambda way: len(way[0]))
    text = with_names(whole)
    refusal = _refusal(rule, text)
    if refusal is not None:
        found = list(filter(None, _random(rule, random.Random(0), len(path) + DEFAULT_SIZE, path)))
        if not found:
            raise _refused(refusal)
        text = min(found, key=lambda member: (len(member), member))
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise _no_text() from None


def sample_text(constraint: object, *, seed: int = 0, size: int = DEFAULT_SIZE) -> str:
    """A random text of a constraint; see the module `members` for the distribution.

    Args:
        constraint: what `as_constraint` takes as one.
        seed: the same seed, the same text (with the same version of decodekit).
        size: the mean of the lengths, in bytes, at which a text is brought to its end. Where little is to choose, texts
            are shorter, and what has to be written makes them longer.

    Raises:
        OptionError: `size` is negative.
        GuardError: the guard refused `MAX_TRIES` texts in a row.
        ConstraintError: the constraint is malformed or not satisfiable, its texts are not UTF-8, or no shortest text of
            some part was found within bounds.
    """
    return next(sample_texts(constraint, seed=seed, size=size))


def sample_texts(constraint: object, *, seed: int = 0, size: int = DEFAULT_SIZE) -> Iterator[str]:
    """Random texts of a constraint without end, as `sample_text` makes one; the first is that of `sample_text`."""
    if size < 0:
        raise OptionError(f"a size of {size} bytes", at="size", hint="0 for short texts")
    rule = as_constraint(constraint)
    _engine(rule)  # raises what is wrong with it
    rng = random.Random(seed)
    while True:
        found = next(_random(rule, rng, size, b""), None)
        if found is None:
            refusal = _refusal(rule, with_names(next(_walks(rule, rng, size, b""))))
            raise _refused(refusal) if refusal else _no_text()
        yield found.decode()


def _random(rule: Constraint, rng: random.Random, size: int, prefix: bytes) -> Iterator[bytes]:
    """The texts out of `MAX_TRIES` random ones that the guard does not refuse and that are UTF-8."""
    for path in islice(_walks(rule, rng, size, prefix), MAX_TRIES):
        text = with_names(path)
        with suppress(UnicodeDecodeError):
            text.decode()
            if _refusal(rule, text) is None:
                yield text


def _walks(rule: Constraint, rng: random.Random, size: int, prefix: bytes) -> Iterator[bytes]:
    recogniser, completions = _engine(rule)
    for attempt in count():  # what a guard refused may be too small
        room = len(prefix) + rng.expovariate(1) * size + attempt
        yield _Walk(completions, rng, room).text(recogniser.root_frame, prefix)


@lru_cache(maxsize=8)
def _engine(rule: Constraint) -> tuple[Recogniser, Completions]:
    """The recogniser of a constraint and its completions in bytes; special tokens need not be in a vocabulary."""
    recogniser = Recogniser(rule.root(), shared_automaton())
    check_satisfiable(rule, recogniser)
    return recogniser, Completions(recogniser, byte_vocabulary())


on_shortage(_engine.cache_clear)


def _refusal(rule: Constraint, text: bytes) -> Refusal | None:
    guard = rule.guard()
    return None if guard is None else guard.refuses(text)


def _refused(refusal: Refusal) -> GuardError:
    return GuardError(f"the guard refused {MAX_TRIES} texts; the last: {refusal.message}", at=refusal.at)


def _no_text() -> ConstraintError:
    return ConstraintError("what the constraint has is no UTF-8: bytes that are no characters")


@lru_cache(maxsize=1)
def byte_vocabulary() -> Vocabulary:
    """A vocabulary in which token b is the byte b, and 256 the end of the text."""
    return Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [_END_OF_TEXT])


@dataclass(frozen=True, slots=True)
class _Only(Frame):
    """A frame with but one of its moves; what is read is read as by the frame itself."""

    move: Move

    def moves(self) -> tuple[Move, ...]:
        return (self.move,)


class _Walk:
    """One random text."""

    def __init__(self, completions: Completions, rng: random.Random, size: float) -> None:
        self._completions = completions
        self._rng = rng
        self._room = size  # in bytes
        self._text = bytearray()
        self._stack: list[tuple[Frame, int]] = []  # frames to return to, with the bytes that each needs at least

    def text(self, root: Frame, prefix: bytes) -> bytes:
        """A text that begins with `prefix`, which some text does."""
        frame: Frame | None = root
        if prefix:
            frame = self._go_on(Trace(root), prefix)
        while frame is not None:
            if self._room <= 0:
                self._text += self._least(frame)
                frame = self._return()
                continue
            moves = frame.moves()
            is_open = len(moves) > 1
            move = self._choose([(move, self._cost(frame, move)) for move in moves]) if is_open else moves[0]
            self._room -= _ONE_STEP
            if isinstance(move, Return):
                frame = self._return()
            elif isinstance(move, Call):
                self._push(move.then)
                frame = move.callee
            else:
                frame = self._read(move.reader or frame, move, move.node, b"")
        return bytes(self._text)

    def _go_on(self, trace: Trace, prefix: bytes) -> Frame | None:
        """Read a beginning, and the rest of the lexeme that it ends in."""
        trace.read(prefix)
        self._text += prefix
        self._room -= len(prefix)
        thread = self._rng.choice([*trace.threads, *([None] if trace.is_accepting else [])])
        if thread is None:
            return None
        below = []
        place = self._rng.choice(thread.stack.thens)
        while place is not None:
            below.append(place.frame)
            place = self._rng.choice(place.thens)
        for frame in reversed(below):
            self._push(frame)
        rest = Read(thread.node, capture=thread.text is not None, reader=thread.stack.frame)
        return self._read(thread.stack.frame, rest, thread.node, thread.text or b"")

    # -- moves

    def _least(self, frame: Frame) -> bytes:
        word = self._completions.least(frame)
        if word is None:
            raise ConstraintError("no end of the text was found", at=f"{bytes(self._text)[-80:]!r}")
        return word

    def _cost(self, frame: Frame, move: Move) -> int | None:
        """The bytes that a frame needs at least with this move; None if it leads nowhere."""
        if isinstance(move, Return):
            return 0
        if isinstance(move, Read) and move.reader is None:
            move = replace(move, reader=frame)
        return self._needed(_Only(move))

    def _needed(self, frame: Frame) -> int | None:
        """The bytes that a frame needs at least; None if it has no text."""
        word = self._completions.least(frame)
        return None if word is None else len(word)

    def _push(self, frame: Frame) -> None:
        needed = len(self._least(frame))
        self._stack.append((frame, needed))
        self._room -= needed

    def _return(self) -> Frame | None:
        if not self._stack:
            return None
        frame, needed = self._stack.pop()
        self._room += needed
        return frame

    def _choose(self, ways: Sequence[tuple[T, int | None]]) -> T:
        """One of the ways, by its cost."""
        alive = [(way, cost) for way, cost in ways if cost is not None]
        if len(alive) == 1:
            return alive[0][0]
        if not alive:
            raise ConstraintError("no end of the text was found", at=f"{bytes(self._text)[-80:]!r}")
        cheapest = min(cost for _, cost in alive)
        weights = [_weight(cost - cheapest, self._room) for _, cost in alive]
        return self._rng.choices([way for way, _ in alive], weights)[0]

    # -- lexemes

    def _read(self, reader: Frame, move: Read, node: Node, text: bytes) -> Frame | None:
        """Read a lexeme from `node` on, of which `text` was captured; the frame to go on with."""
        for _ in range(_MAX_DEAD_ENDS):
            word, label = self._word(node, is_last=not self._stack)
            ways = [(frame, self._needed(frame)) for frame in reader.after(label, text + word if move.capture else b"")]
            if any(cost is not None for _, cost in ways):
                self._append(word)
                return self._choose(ways)
        # The shortest way through the lexeme and all that follows in its frame.
        reader = _Resumed(reader, text) if text else reader
        self._append(self._least(_Only(replace(move, node=node, reader=reader))))
        return self._return()

    def _append(self, word: bytes) -> None:
        self._text += word
        self._room -= len(word)

    def _word(self, node: Node, *, is_last: bool) -> tuple[bytes, Label]:
        """A random word of a language with the label of its end."""
        word = bytearray()
        while True:
            edges = [(mask, target) for mask, target in node.transitions() if not target.is_empty]
            labels = node.labels
            if not edges:
                return bytes(word), self._rng.choice(labels)
            room = self._room - len(word)
            if room <= 0:
                shortest = shortest_word(node)
                assert shortest is not None  # the language is not empty
                return bytes(word) + shortest[0], shortest[1]
            weights = [_weight_of(mask) for mask, _ in edges]
            if labels:
                # The last lexeme is all that can make a text longer, unless it is white space.
                is_text = is_last and sum(weights) > 1
                end = sum(weights) * _TYPICAL_LEXEME / (_TYPICAL_LEXEME + room) if is_text else _END
                if self._rng.random() * (sum(weights) + end) < end:
                    return bytes(word), self._rng.choice(labels)
            mask, node = self._rng.choices(edges, weights)[0]
            letters, likings = _letters(mask)
            word += bytes(self._rng.choices(letters, likings))


@dataclass(frozen=True, slots=True)
class _Resumed(Frame):
    """A reader of a captured lexeme of which `text` was read before."""

    reader: Frame
    text: bytes

    def moves(self) -> tuple[Move, ...]:
        return ()

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return self.reader.after(label, self.text + text)


def _weight(extra: int, room: float) -> float:
    """The weight of a way that needs so many bytes more than the cheapest."""
    if extra <= 0:
        return 1.0
    if room <= 0:  # a word took more than there was
        return 0.0
    return math.sqrt(1 + room / _LONG) * math.exp(min(extra, _LIKED) / 4 * max(1 - extra / room, -100.0))


_BLANKS: Final = mask_of(b" \t\r\n")
_RARE: Final = {mask_of(b"eE"): 0.3, mask_of(b"\\"): 0.03}  # an exponent, an escape
_LETTERS: Final = frozenset((string.ascii_letters + string.digits).encode())


@lru_cache(maxsize=4096)
def _weight_of(mask: ByteMask) -> float:
    """The weight of a set of bytes beside others: what leads into a string or bracket counts as several."""
    if mask in _RARE:
        return _RARE[mask]
    if not mask & ~_BLANKS:
        return 0.1 if mask & 1 << 0x20 else 0.01
    amount = sum(3 if byte in b'"{[(' else 1 if 0x20 <= byte < 0x7F else 0.01 if byte >= 0xC0 else 0.05
                 for byte in bytes_of(mask))  # fmt: skip
    return math.log2(1 + amount)


@lru_cache(maxsize=4096)
def _letters(mask: ByteMask) -> tuple[list[int], list[float]]:
    """The bytes of a set, each with how much it is liked."""
    letters = bytes_of(mask)
    return letters, [8 if b in _LETTERS else 3 if b == 0x20 else 1 if 0x20 < b < 0x7F else 0.1 for b in letters]
