"""The mu of Mirostat along a text: a function of the tokens before, kept and forgotten with them.

A sequence keeps mu by position. A draft is truncated position by position, each with the mu that the draft token before
it leaves; what is taken at a position leaves the mu of its own token. Say tau is 3, eta 0.1 and mu 6 before position 4:

    position 4  mu 6.0   the draft has c, of 5 bits: mu would be 5.8 at position 5, which is truncated with it
                         the target takes e, of 1 bit: 6.2 is kept for position 5, and the draft is over

So a rejected draft leaves nothing behind, and a text that is taken back finds the mu that it had. A token that a
constraint forces has probability 1 under the mask and the surprise 0, whether the model was asked or not: a position
without a mu is such a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decodekit.decoding.draws.rejection import verified
from decodekit.decoding.lazy_masks.positions import Position
from decodekit.decoding.request.settings import NoiseKeys, Selector
from decodekit.errors import DecodingError
from decodekit.sampling import MirostatTruncation


def take_along(
    mirostat: MirostatTruncation, select: Selector, positions: Sequence[Position], rows: Tensor, keys: NoiseKeys
) -> list[int | DecodingError]:
    """One token per position, or the error of the position; the sequences keep the mu after each.

    The positions of a text stand one after the other, along its draft; those with a forced token may be missing.
    """
    mus, kept = truncate_along(mirostat, positions, rows)
    choices = verified(_select(select, kept, keys), positions, kept, keys)
    tokens = [choice if isinstance(choice, int) else 0 for choice in choices]
    after = mirostat.advance(mus, rows, kept, torch.tensor(tokens, device=rows.device)).tolist()
    for position, choice, mu in zip(positions, choices, after, strict=True):
        if isinstance(choice, int):
            position.sequence.states[position.number + 1] = mu
    return choices


def truncate_along(mirostat: MirostatTruncation, positions: Sequence[Position], rows: Tensor) -> tuple[Tensor, Tensor]:
    """mu before each position, float32 [P], and the truncated rows, float32 [P, V]."""
    mus, kept = rows.new_empty(len(positions)), torch.empty_like(rows)
    reached: dict[int, tuple[int, float]] = {}  # by text: the last position whose mu is known, and that mu
    for group in _in_turn(positions):
        before = []
        for i in group:
            number, value = reached.get(id(positions[i].sequence)) or _last_known(mirostat, positions[i])
            before.append(_after_forced(mirostat, value, positions[i].number - number))
        index = torch.tensor(group, device=rows.device)
        mu, here = rows.new_tensor(before), rows[index]
        mus[index], kept[index] = mu, mirostat.process(here, mu)
        drafted = [_next_of_draft(positions, i) for i in group]
        if any(token is not None for token in drafted):
            tokens = torch.tensor([token or 0 for token in drafted], device=rows.device)
            after = mirostat.advance(mu, here, kept[index], tokens).tolist()
            for i, value in zip(group, after, strict=True):
                reached[id(positions[i].sequence)] = positions[i].number + 1, value
    return mus, kept


def _in_turn(positions: Sequence[Position]) -> list[list[int]]:
    """The first positions of all texts, then the second ones, and so on: each needs the one before."""
    groups: list[list[int]] = []
    count = 0
    for i, position in enumerate(positions):
        count = count + 1 if i and positions[i - 1].sequence is position.sequence else 0
        groups[count:] = groups[count:] or [[]]
        groups[count].append(i)
    return groups


def _next_of_draft(positions: Sequence[Position], i: int) -> int | None:
    """The draft token at a position; None at the last position of its text."""
    if i + 1 == len(positions) or positions[i + 1].sequence is not positions[i].sequence:
        return None
    return positions[i + 1].draft[len(positions[i].draft)]


def _last_known(mirostat: MirostatTruncation, position: Position) -> tuple[int, float]:
    states = position.sequence.states
    latest = max((number for number in states if number <= position.number), default=0)
    return latest, states.get(latest, float(mirostat.start(1)))


def _after_forced(mirostat: MirostatTruncation, mu: float, num_tokens: int) -> float:
    """mu after tokens without any surprise, in the float32 arithmetic of rows that are drawn."""
    value, surprise = torch.tensor(mu), torch.tensor(0.0)
    for _ in range(num_tokens):
        value = mirostat.moved(value, surprise)
    return float(value)


def _select(select: Selector, rows: Tensor, keys: NoiseKeys) -> list[int | DecodingError]:
    try:
        return [*select(rows, keys).tolist()]
    except DecodingError as error:
        if len(rows) == 1:
            return [error]
    return [choice for i in range(len(rows)) for choice in _select(select, rows[i : i + 1], keys.of([i]))]
