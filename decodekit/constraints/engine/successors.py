"""The state after a token, and those after every token of a vocabulary, all at once, one byte at a time.

A mask says which tokens are allowed; where they lead is asked rarely (by a guard in the mask, by a search for short
completions), so it is computed when asked for: tokens that are in the same state and read the same byte are one step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.special import is_text, spellings
from decodekit.vocabulary import Vocabulary

Indices: TypeAlias = npt.NDArray[np.int64]


class TokenBytes:
    """The bytes of all tokens that have some, one after the other.

    Attributes:
        tokens: their ids. `starts`, `lengths`: where their bytes are in `data`.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        entries = [(token, data) for token, data in enumerate(vocabulary.token_bytes) if data]
        self.tokens: Indices = np.array([token for token, _ in entries], np.int64)
        self.lengths: Indices = np.array([len(data) for _, data in entries], np.int64)
        self.starts: Indices = np.cumsum(self.lengths) - self.lengths
        self.data: Indices = np.frombuffer(b"".join(data for _, data in entries), np.uint8).astype(np.int64)
        self.longest = int(self.lengths.max(initial=0))

    def after(self, recogniser: Recogniser, state: State) -> tuple[Indices, Indices, list[State]]:
        """The tokens that `state` allows, those of the end of a text aside, and where each leads.

        Returns:
            ids, for each the number of its state, and the states by number; ids in no particular order.
        """
        states: list[State] = [state]
        number_of: dict[State, int] = {state: 0}
        alive: Indices = np.arange(len(self.tokens))
        numbers: Indices = np.zeros(len(alive), np.int64)
        found: list[Indices] = [np.zeros(0, np.int64)]
        targets: list[Indices] = [np.zeros(0, np.int64)]
        level = 0
        while len(alive):
            keys = numbers * 256 + self.data[self.starts[alive] + level]
            is_used = np.zeros(256 * len(states), np.bool_)
            is_used[keys] = True
            row: Indices = np.full(256 * len(states), -1, np.int64)
            for key in np.flatnonzero(is_used).tolist():
                target = recogniser.step(states[key >> 8], key & 255)
                if target is not None:
                    row[key] = number_of.setdefault(target, len(states))
                    if row[key] == len(states):
                        states.append(target)
            numbers = row[keys]
            alive, numbers = alive[numbers >= 0], numbers[numbers >= 0]
            level += 1
            is_whole = self.lengths[alive] == level
            found.append(self.tokens[alive[is_whole]])
            targets.append(numbers[is_whole])
            alive, numbers = alive[~is_whole], numbers[~is_whole]
        return np.concatenate(found), np.concatenate(targets), states


def successor(recogniser: Recogniser, vocabulary: Vocabulary, state: State, token: int) -> State | None:
    """The state after one more token, or None if it is not allowed."""
    if not 0 <= token < len(vocabulary.token_bytes):
        return None
    data = vocabulary.token_bytes[token]
    if data is not None:
        return recogniser.read(state, data) if is_text(data) else None
    if token in vocabulary.eos_token_ids:
        return recogniser.ended if recogniser.states.is_accepting(state) else None
    return recogniser.join([recogniser.read(state, data) for data in spellings(vocabulary).get(token, ())])


def read_as(recogniser: Recogniser, vocabulary: Vocabulary, state: State, token: int) -> bytes:
    """The bytes with which the engine reads an allowed token after `state`; none for the end of the text."""
    data = vocabulary.token_bytes[token]
    if data is None:
        ways = spellings(vocabulary).get(token, ())
        data = next((way for way in ways if recogniser.read(state, way) is not None), b"")
    return data


@lru_cache(maxsize=8)
def token_bytes_of(vocabulary: Vocabulary) -> TokenBytes:
    """The bytes of the tokens of a vocabulary, laid out once."""
    return TokenBytes(vocabulary)
