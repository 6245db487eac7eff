"""A step on its way: its rows, and what is decided of each when its pass is over.

entry      the part of a row: text so far, tokens that are read, the draft behind them
flight     the rows of a pass that was started; it is over at once where the host takes the tokens
decided    the target's own tokens along the drafts of the rows; no text has changed yet
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from decodekit.decoding.lazy_masks.positions import NO_GUESS, Guess, Outcome
from decodekit.errors import DecodekitError

if TYPE_CHECKING:
    from decodekit.decoding.draws.token_table import TokenTable
    from decodekit.decoding.loop.text_row import TextRow

TAKEN: Final = -1
"""Stands for the token that a device has taken, and the host has not seen."""


@dataclass(slots=True, eq=False)
class Entry:
    """The part of a row in a step, which takes token `number` of its text, and those after it along a draft.

    Attributes:
        row: of the cache.
        given: the pending tokens that it reads.
        guess: what is guessed behind them.
        draft: as much of the guess as may be followed; less where the constraint failed on the way.
        end: tokens that the row of the cache holds behind the pass.
        later: the part in the next step, if that was started before this one is taken in.
        has_mask, masks: on a device, whether all positions have masks, and their places.
        is_open: whether it is still to be taken in.
        is_parked: whether it waits for its constraint with a part of what a device has taken.
    """

    sequence: TextRow
    row: int
    number: int
    given: list[int] = field(default_factory=list)
    guess: Guess = NO_GUESS
    draft: Sequence[int] = ()
    end: int = 0
    later: Entry | None = None
    has_mask: bool = False
    masks: list[int] = field(default_factory=list)
    is_open: bool = True
    is_parked: bool = False

    @property
    def tokens(self) -> list[int]:
        """The tokens that the row reads."""
        return [*self.given, *self.guess.tokens]

    @property
    def is_wanted(self) -> bool:
        """Whether the text is where it was expected to be."""
        sequence = self.sequence
        is_here = sequence.row == self.row and len(sequence.token_ids) == self.number
        return self.is_open and is_here and sequence.finish_reason is None

    @property
    def behind(self) -> Entry | None:
        """The part in the step that runs behind this one, and is wanted so far."""
        return self.later if self.later is not None and self.later.is_open else None


class Decided(ABC):
    """The decisions of a step for some of its rows, before a text changes.

    Attributes:
        entries: the rows.
        table: the prefixes, if a processor of theirs looks back.
    """

    entries: Sequence[Entry]
    table: TokenTable | None = None

    @abstractmethod
    def choices(self, number: int) -> Sequence[int | DecodekitError]:
        """The target's own tokens of a row: as far as they are those of its draft, and one more; or an error."""

    @abstractmethod
    def resolve(self, number: int, place: int, choice: int | DecodekitError) -> Outcome:
        """The outcome of a choice that the text has reached."""

    @abstractmethod
    def hold(self, number: int, place: int) -> None:
        """Keep the choice of a row that waits for its constraint."""

    @abstractmethod
    def record(self) -> None:
        """Note what is wanted of the tokens that were taken, before anything else comes to the texts."""

    @abstractmethod
    def close(self, number: int, *, is_token: bool, is_turned: bool) -> None:
        """Note what came of a row: whether a token, and whether a step that runs behind it is of no use."""
