"""Positions: where a token is wanted, after a text and along the draft behind it.

The text ``ab`` with the draft ``cd`` has three positions in a step. The model reads ``b`` (pending) and ``cd`` in one
pass, and the target takes its own token at each:

    position  draft before it  logits after  the target's token there
    2         ()               b             is c: kept
    3         (c,)             c             is e, not d: e is taken, and the step is over
    4         (c, d)           d             is not looked at

The prefix, the mask, and the noise of a position are functions of the text, the draft and the index alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from torch import Tensor

from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.request.settings import NoiseKeys
from decodekit.errors import DecodekitError


class Drawn(NamedTuple):
    """A token of a draft, and q, the distribution that it was drawn from, [V]."""

    token: int
    distribution: Tensor


@dataclass(frozen=True, slots=True)
class Guess:
    """A guess of the tokens behind the text of a row.

    Args:
        tokens: in order, all legal; empty for plain decoding.
        num_forced: how many of the first ones are forced; the others come from a proposer.
        drawn: if they are to be tested, the same tokens, and perhaps one more; see `decoding.draws.rejection`.
        source: which of several proposers offers them.
    """

    tokens: Sequence[int] = ()
    num_forced: int = 0
    drawn: tuple[Drawn, ...] = ()
    source: str = ""

    def offered(self, draft: Sequence[int], taken: Sequence[int]) -> Guess:
        """The offers for the tokens that were taken, if only the first tokens `draft` of the guess were followed.

        Where the last position was reached, and what was drawn there was tested, these are the drawn tokens.
        """
        if self.drawn and len(taken) > len(draft):
            draft = [one.token for one in self.drawn[: len(taken)]]
        return replace(self, tokens=draft)


NO_GUESS: Final = Guess()
"""Plain decoding."""


class Position(NamedTuple):
    """The position of a token: after the text of a sequence and some tokens of a draft.

    `drawn` is the token that the draft has there, if it is to be tested; see `decoding.draws.rejection`.
    """

    sequence: TextRow
    draft: Sequence[int] = ()
    drawn: Drawn | None = None

    @property
    def number(self) -> int:
        """Index of the wanted token among the generated ones."""
        return len(self.sequence.token_ids) + len(self.draft)

    def __str__(self) -> str:
        return f"prompt {self.sequence.index}, step {self.number}"


class Backtrack(NamedTuple):
    """The text goes back to its first `num_tokens` tokens."""

    num_tokens: int


class NoToken(Enum):
    """The reasons why a position has no token: the text ends, or another one has to be drawn, here or later."""

    WHOLE = "the text is whole, and nothing may follow within its budget"
    REFUSED = "the guard refuses the text with it"
    TOO_LATE = "the constraint could not be satisfied within the budget"
    WAITS = "the question about another one needs more than a slice of work"
    AGAIN = "a device took it, and has to take it with the mask of the position, or to leave it to the host"


Outcome: TypeAlias = int | Backtrack | NoToken | DecodekitError
"""What a position comes to: a token, a rollback, or the reason why there is neither."""


def first_positions(guesses: Sequence[Guess]) -> Iterator[int]:
    """The number of the first position of each row among those of all rows; then how many there are."""
    return accumulate((len(guess.tokens) + 1 for guess in guesses), initial=0)


def positions_along(sequences: Sequence[TextRow], guesses: Sequence[Guess]) -> list[Position]:
    """The positions after the first 0, 1, ..., k tokens of each guess, row by row."""
    return [
        Position(sequence, guess.tokens[:num_tokens], *guess.drawn[num_tokens : num_tokens + 1])
        for sequence, guess in zip(sequences, guesses, strict=True)
        for num_tokens in range(len(guess.tokens) + 1)
    ]


def noise_keys(positions: Sequence[Position]) -> NoiseKeys:
    """Seed, sequence and absolute position of every position."""
    requests = [position.sequence.request for position in positions]
    return NoiseKeys(
        [request.seed for request in requests],
        [request.sequence for request in requests],
        [position.number for position in positions],
    )
