"""Mirostat in the loop: mu before a token is a function of the tokens before it, and is kept and forgotten with them.

A sequence keeps mu by position. A draft is truncated place by place, each with the mu that the draft token before it
leaves; what is taken at a place leaves the mu of its own token. So a rejected draft leaves nothing behind, and a text
that is taken back finds the mu that it had. A token that a constraint forces has probability 1 under the mask and the
surprise 0, whether the model was asked or not: a position without a mu is such a token.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from decodekit.errors import DecodingError
from decodekit.generation.rejection import verified
from decodekit.generation.settings import NoiseKeys, Selector
from decodekit.sampling import Mirostat

if TYPE_CHECKING:
    from decodekit.generation.drawing import Place


def take_along(
    mirostat: Mirostat, select: Selector, places: Rows[Place], rows: Tensor, keys: NoiseKeys
) -> list[int | DecodingError]:
    """One token per place, or the error of the place; the sequences keep the mu after each.

    Args:
        mirostat: truncates.
        select: takes a token of what is left.
        places: the places of a text one after the other, along its draft; places with a forced token may be missing.
        rows: float32 [P, V], processed and masked.
        keys: of the noise, one for each place.
    """
    mus, kept = truncate_along(mirostat, places, rows)
    choices = verified(_select(select, kept, keys), places, kept, keys)
    tokens = [choice if isinstance(choice, int) else 0 for choice in choices]
    after = mirostat.advance(mus, rows, kept, torch.tensor(tokens, device=rows.device)).tolist()
    for place, choice, mu in zip(places, choices, after, strict=True):
        if isinstance(choice, int):
            place.sequence.states[place.position + 1] = mu
    return choices


def truncate_along(mirostat: Mirostat, places: Rows[Place], rows: Tensor) -> tuple[Tensor, Tensor]:
    """mu before each place, float32 [P], and the truncated rows, float32 [P, V]."""
    mus, kept = rows.new_empty(len(places)), torch.empty_like(rows)
    reached: dict[int, tuple[int, float]] = {}  # by text: the last position whose mu is known, and that mu
    for group in _in_turn(places):
        texts = [id(places[i].sequence) for i in group]
        before = []
        for i, text in zip(group, texts, strict=True):
            known = reached.get(text) or _last_known(mirostat, places[i])
            before.append(_after_forced(mirostat, known[1], places[i].position - known[0]))
        index = torch.tensor(group, device=rows.device)
        mu, here = rows.new_tensor(before), rows[index]
        mus[index], kept[index] = mu, mirostat.process(here, mu)
        drafted = [_next_of_draft(places, i) for i in group]
        if any(token is not None for token in drafted):
            tokens = torch.tensor([token or 0 for token in drafted], device=rows.device)
            after = mirostat.advance(mu, here, kept[index], tokens).tolist()
            for i, text, value in zip(group, texts, after, strict=True):
                reached[text] = places[i].position + 1, value
    return mus, kept


def _in_turn(places: Rows[Place]) -> list[list[int]]:
    """The first places of all texts, then the second ones, and so on: each needs the one before."""
    groups: list[list[int]] = []
    count = 0
    for i, place in enumerate(places):
        count = count + 1 if i and places[i - 1].sequence is place.sequence else 0
        groups[count:] = groups[count:] or [[]]
        groups[count].append(i)
    return groups


def _next_of_draft(places: Rows[Place], i: int) -> int | None:
    """The draft token at a place; None at the last place of its text."""
    if i + 1 == len(places) or places[i + 1].sequence is not places[i].sequence:
        return None
    return places[i + 1].draft[len(places[i].draft)]


def _last_known(mirostat: Mirostat, place: Place) -> tuple[int, float]:
    states = place.sequence.states
    position = max((position for position in states if position <= place.position), default=0)
    return position, states.get(position, float(mirostat.start(1)))


def _after_forced(mirostat: Mirostat, mu: float, num_tokens: int) -> float:
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
    return [
        choice
        for i in range(len(rows))
        for choice in _select(
            select, rows[i : i + 1], NoiseKeys([keys.seeds[i]], [keys.sequences[i]], [keys.positions[i]])
        )
    ]
