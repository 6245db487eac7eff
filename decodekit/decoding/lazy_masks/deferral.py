"""Rows that wait for their constraint while the other rows of a batch go on.

A mask, or a question about a token, may need much that no text has needed before. In a batch it is made a slice at a
time (see `constraints.work_budget`), one slice in each step, and the row keeps what the model gave for it:

    step 1    A, B are read     A takes a token    B has not its mask yet: its logits are held
    step 2    A is read         A takes a token    B: one more slice
    step 3    A is read         A takes a token    B: the mask is there, a token is drawn from the held logits
    step 4    A, B are read     ...

The token is the one that would have been drawn at once: logits, noise and mask are those of the row alone. A batch of
one row does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from decodekit.decoding.draws.row_draws import Outputs
from decodekit.decoding.lazy_masks.positions import NO_GUESS, Guess, first_positions
from decodekit.decoding.loop.text_row import TextRow
from decodekit.errors import DecodekitError


@dataclass(frozen=True, slots=True)
class Held:
    """The state with which a deferred row goes on.

    Attributes:
        guess: what was read behind its text.
        logits: of its positions, [k + 1, V] behind k guessed tokens.
    """

    guess: Guess
    logits: Tensor


def with_held(
    sequences: Sequence[TextRow], guesses: Sequence[Guess], logits: Tensor | None
) -> tuple[list[Guess], Tensor]:
    """The guesses and logits of all rows, from those of the rows that were read and what the others hold."""
    if logits is not None and len(guesses) == len(sequences):
        return list(guesses), logits
    read = iter(guesses)
    every: list[Guess] = []
    parts: list[Tensor] = []
    first = 0
    for sequence in sequences:
        if sequence.held is None:
            assert logits is not None
            guess = next(read)
            part = logits[first : first + len(guess.tokens) + 1]
            first += len(part)
        else:
            held = cast("Held", sequence.held)
            guess, part = held.guess, held.logits
            sequence.held = None
        every.append(guess)
        parts.append(part)
    return every, torch.cat(parts)


def can_take(sequence: TextRow, draft: Sequence[int], target: Sequence[int | DecodekitError]) -> bool:
    """Whether a row may take the first token of its target that is not of its draft; if not, a slice was done for it.

    Args:
        sequence: of the row.
        draft: as far as it may be followed, k tokens.
        target: the target's own tokens at the k + 1 positions.
    """
    matcher = sequence.matcher if sequence.is_served else None
    number = next((place for place, (one, other) in enumerate(zip(draft, target, strict=False)) if one != other), -1)
    token = target[number]
    if matcher is None or not isinstance(token, int):
        return True
    begin = matcher.num_tokens
    try:
        return not all(map(matcher.accept, draft[: number % len(target)])) or sequence.is_prepared(token)
    except DecodekitError:  # the row meets it when it takes the token
        return True
    finally:
        matcher.rollback(matcher.num_tokens - begin)


def hold(sequence: TextRow, position: int, outputs: Outputs) -> None:
    """Let a row go on at one of its positions in the next step; its text reaches as far, and all of it was read."""
    sequence.pending.clear()
    sequence.held, sequence.is_waiting = Held(NO_GUESS, outputs.logits[position : position + 1].clone()), False


def defer(
    sequences: Sequence[TextRow], guesses: Sequence[Guess], outputs: Outputs, choices: Sequence[int | None]
) -> tuple[list[TextRow], list[Guess], Outputs, list[int | None]]:
    """The rows that go on, with their guesses, outputs and choices; the others hold what they have."""
    going_on: list[tuple[TextRow, Guess]] = []
    kept: list[int] = []
    for sequence, guess, first in zip(sequences, guesses, first_positions(guesses), strict=False):
        places = range(first, first + len(guess.tokens) + 1)
        if sequence.is_waiting:
            sequence.held = Held(guess, outputs.logits[places.start : places.stop].clone())
            sequence.is_waiting = False
        else:
            going_on.append((sequence, guess))
            kept += places
    some = outputs.at(kept) if kept else outputs
    return [one for one, _ in going_on], [guess for _, guess in going_on], some, [choices[place] for place in kept]
