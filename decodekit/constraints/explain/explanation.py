"""Explanations of refused texts, in words: how far a text goes, what may come there, and what stands against it.

    >>> print(matcher.explain("}"))
    refused at '}': the object still needs "name" (required); expected '"'

A refusal is read from the network: the lexemes that could go on, the frames that offered them, and what these frames
say of themselves (`Frame.expected`, `Frame.objection`). Where there are too many ways to have read the text, the
engine's own state has to do, and its lexical languages are all that is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.explain.trace import Origin, Trace
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.phrases import expectations, listed, printable, show
from decodekit.constraints.network import Read
from decodekit.constraints.special import is_text
from decodekit.errors import ResourceLimitError

_MAX_OBJECTIONS: Final = 3
_MANY: Final = 4  # a lexeme that may go on in more ways is told by what it is


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a text or a token may come next, and why not.

    Attributes:
        is_allowed: whether it may.
        text: the same in a sentence, with the reason.
        position: how much of it can be read: characters of a str, bytes of bytes or of a token.
        expected: what may come there instead, in words; empty where all of it can be read.
    """

    is_allowed: bool
    text: str
    position: int
    expected: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


def explain_text(recogniser: Recogniser, before: bytes, asked: str | bytes) -> Explanation:
    """Whether a text, `before` so far, may go on with `asked`, as far as the language says."""
    data = as_bytes(asked)
    state, count = _read(recogniser, before), 0
    for byte in data:
        following = recogniser.step(state, byte) if is_text(bytes((byte,))) else None
        if following is None:
            break
        state, count = following, count + 1
    if count == len(data):
        end = ": the text may end there" if recogniser.states.is_accepting(state) else ""
        return Explanation(True, f"allowed{end}", _position(asked, count))
    known = _Told.of(state, recogniser, before + data[:count])
    objections = known.objections(before + data, len(before) + count)
    if not known.expected:
        objections = objections or ["the text is complete, nothing may follow"]
    return known.refusal(f"refused at {_where(asked, data, count)}", objections, _position(asked, count))


def explain_end(recogniser: Recogniser, text: bytes) -> Explanation:
    """Whether the text may end, as far as the language says."""
    state = _read(recogniser, text)
    if recogniser.states.is_accepting(state):
        return Explanation(True, "allowed: the text may end here", 0)
    known = _Told.of(state, recogniser, text)
    return known.refusal("the text cannot end here", known.objections(text, len(text)))


def explain_special(recogniser: Recogniser, before: bytes, spellings: Sequence[bytes]) -> Explanation:
    """Whether a special token may come next, given the bytes with which the engine reads it."""
    state = _read(recogniser, before)
    if any(recogniser.read(state, spelling) is not None for spelling in spellings):
        return Explanation(True, "allowed", 0)
    name = spellings[-1][1:-1].decode(errors="replace") if spellings else "the token"
    beginning = f"refused: {name} is no text, nor a special token that may come here"
    return _Told.of(state, recogniser, before).refusal(beginning, [])


def explain_refusal(refusal: Refusal, position: int) -> Explanation:
    """The explanation of a guard's refusal of a whole text."""
    said = f"the text cannot end so: {refusal.message} (at {refusal.at or 'the whole value'})"
    return Explanation(False, said, position)


def as_bytes(asked: str | bytes) -> bytes:
    """The UTF-8 of a text that is asked about; a lone surrogate becomes bytes that no text has."""
    return asked.encode("utf-8", "surrogatepass") if isinstance(asked, str) else asked


def _read(recogniser: Recogniser, text: bytes) -> State:
    state = recogniser.read(recogniser.root, text)
    assert state is not None, "the text so far is alive"
    return state


def _position(asked: str | bytes, count: int) -> int:
    """A number of bytes in the units of what was asked; a character is read when all its bytes are."""
    if isinstance(asked, bytes):
        return count
    return len(asked.encode("utf-8", "surrogatepass")[:count].decode("utf-8", "ignore"))


def _where(asked: str | bytes, data: bytes, count: int) -> str:
    """The first thing that is refused, and where it is if not at the beginning."""
    position = _position(asked, count)
    refused = show(as_bytes(asked[position]) if isinstance(asked, str) else _character(data, count))
    unit = "character" if isinstance(asked, str) else "byte"
    return f"{refused}, {unit} {position + 1} of {len(asked)}" if len(asked) > 1 else refused


def _character(data: bytes, at: int) -> bytes:
    """The character of which a byte is one; the byte alone if the bytes around it are not text."""
    for start in range(at, max(at - 4, -1), -1):
        for stop in range(at + 1, min(at + 5, len(data) + 1)):
            try:
                if len(data[start:stop].decode()) == 1:
                    return data[start:stop]
            except UnicodeDecodeError:
                continue
    return data[at : at + 1]


@dataclass(frozen=True, slots=True)
class _Told:
    """The place where a text stops: what may come, in words, and the lexemes that may go on or have ended there."""

    expected: tuple[str, ...]
    origins: tuple[Origin, ...]

    @classmethod
    def of(cls, state: State, recogniser: Recogniser, text: bytes) -> _Told:
        try:
            trace = Trace(recogniser.root_frame)
            if trace.read(text) == len(text):
                origins = [*(thread.origin for thread in trace.threads), *trace.ended]
                return cls(_expected(trace, text), tuple(dict.fromkeys(origins)))
        except (ResourceLimitError, RecursionError):
            pass
        # The lexical languages of the engine's state, those that are parts of a block of many aside.
        configurations = recogniser.states.configurations[state]
        nodes = {recogniser.automaton.nodes[lexical] for lexical, *_ in configurations}
        return cls(expectations([node for node in nodes if node is not None]), ())

    def refusal(self, beginning: str, objections: list[str], position: int = 0) -> Explanation:
        parts = objections[:_MAX_OBJECTIONS]
        if not all(any(words in objection for objection in parts) for words in self.expected):
            parts.append(f"expected {listed(self.expected)}")
        said = f"{beginning}: {'; '.join(parts)}" if parts else beginning
        return Explanation(False, said, position, self.expected)

    def objections(self, text: bytes, stop: int) -> list[str]:
        """The objections of the frames at the place against the text, the innermost first."""
        found: dict[str, None] = {}
        for origin in self.origins:
            said = (frame.objection(text, origin.start, stop) for frame, _ in reversed(origin.path))
            objection = next((one for one in said if one is not None), None)
            if objection is not None:
                found[objection] = None
        return list(found)


def _expected(trace: Trace, text: bytes) -> tuple[str, ...]:
    """Descriptions of what may come next, the names of things before their first characters."""
    named: dict[str, None] = {}
    plain: list[Node] = []
    for thread in trace.threads:
        names = _names(thread.origin)
        if not names:
            plain.append(thread.node)
            continue
        is_begun = bool(text[thread.origin.start :].strip())
        follow = expectations([thread.node]) if is_begun else ()
        if is_begun and len(follow) > _MANY:
            named[f"the rest of {listed(names)}"] = None
        else:
            named.update(dict.fromkeys(follow if is_begun else names))
    if named:  # beside it, white space is no news
        return (*named, *(words for words in expectations(plain) if words != "white space"))
    return expectations(plain)


def _names(origin: Origin) -> tuple[str, ...]:
    """The names of a lexeme: its own, or those that the innermost frame has for it."""
    for frame, move in reversed(origin.path):
        names = (move.name,) if isinstance(move, Read) and move.name is not None else frame.expected(move)
        if names:
            names = tuple(map(printable, names))
            title = next((title for frame, _ in reversed(origin.path) if (title := frame.title()) is not None), None)
            return names if title is None else tuple(f"{name} ({title})" for name in names)
    return ()
