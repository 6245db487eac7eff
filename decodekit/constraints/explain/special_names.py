"""The readings of a text with the names of special tokens: each name as the token, or as its characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.explain.explanation import Explanation, as_bytes, explain_end, explain_text
from decodekit.constraints.memory_account import on_shortage
from decodekit.constraints.network import Frame
from decodekit.constraints.special import SpecialName, is_text, spelling, written

_Marks: TypeAlias = tuple[tuple[int, int, bytes], ...]
"""The special tokens of a reading: where the name of each begins and ends in the text, and its spelling."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a text, as far as it goes.

    Attributes:
        text: the text in UTF-8.
        end: how many bytes of it are read.
        state: where that leads.
        marks: the special tokens on the way.
    """

    text: bytes
    end: int
    state: State
    marks: _Marks

    @property
    def is_whole(self) -> bool:
        """Whether all of the text is read."""
        return self.end == len(self.text)

    @property
    def path(self) -> bytes:
        """The bytes that the engine has read: special tokens in their spelling."""
        return self._path(self.end)

    def _path(self, end: int) -> bytes:
        pieces, position = [], 0
        for start, stop, spelled in self.marks:
            pieces += [self.text[position:start], spelled]
            position = stop
        return b"".join([*pieces, self.text[position:end]])

    def explain(self, recogniser: Recogniser) -> Explanation:
        """Whether the text is whole and may end; if not, what stands against it. Positions are in characters."""
        if self.is_whole:
            length = len(self.text.decode("utf-8", "surrogatepass"))
            return replace(explain_end(recogniser, self.path), position=length)
        known = self.marks[-1][1] if self.marks else 0  # characters are whole behind a name
        before, rest = (part.decode("utf-8", "surrogatepass") for part in (self.text[:known], self.text[known:]))
        found = explain_text(recogniser, self._path(known), rest)
        return replace(found, position=len(before) + found.position)


def read_whole(root: Frame, text: str, asked: Iterable[SpecialName] = ()) -> str:
    """The text itself, if it is one of a network's. Special tokens that it may have stand by name or as ``<[7]>``."""
    recogniser = _recogniser(root)
    reading = readings(recogniser, text, asked)[0]
    if not reading.is_whole:
        place = len(reading.text[: reading.end].decode("utf-8", errors="ignore"))
        line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
        raise ValueError(
            f"no text of the grammar goes on with {text[place]!r} at line {line}, column {column}, "
            f"behind {text[max(place - 40, 0) : place]!r}"
        )
    if not recogniser.states.is_accepting(reading.state):
        raise ValueError(f"no text of the grammar ends behind {text[-40:]!r}")
    return text


@lru_cache(maxsize=8)
def _recogniser(root: Frame) -> Recogniser:
    return Recogniser(root, shared_automaton())


on_shortage(_recogniser.cache_clear)


def readings(recogniser: Recogniser, text: str, asked: Iterable[SpecialName]) -> list[Reading]:
    """The ways to read a text that go furthest: one for each state that they lead to, those that may end first."""
    data = as_bytes(text)
    *_, (end, found) = positions(recogniser, data, 0, asked)
    return sorted(
        (Reading(data, end, *way) for way in found.items()),
        key=lambda one: not recogniser.states.is_accepting(one.state),
    )


def positions(
    recogniser: Recogniser, data: bytes, start: int, asked: Iterable[SpecialName]
) -> Iterator[tuple[int, dict[State, _Marks]]]:
    """The positions from `start` up to which a text can be read, ascending, with the states there.

    Of the ways to one state, the special tokens of the first are told.
    """
    forms = [(written(token).encode(), spelling(token)) for token in sorted(asked, key=str)]
    ahead: dict[int, dict[State, _Marks]] = {start: {recogniser.root: ()}}
    while ahead:
        position = min(ahead)  # at most one for each name, and the next byte
        here = ahead.pop(position)
        yield position, here
        following = data[position : position + 1]
        names = [form for form in forms if data.startswith(form[0], position)]
        for state, marks in here.items():
            if following and is_text(following):
                target = recogniser.step(state, following[0])
                if target is not None:
                    ahead.setdefault(position + 1, {}).setdefault(target, marks)
            for name, spelled in names:
                target, stop = recogniser.read(state, spelled), position + len(name)
                if target is not None:
                    ahead.setdefault(stop, {}).setdefault(target, (*marks, (position, stop, spelled)))
