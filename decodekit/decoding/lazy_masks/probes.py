"""Asking: a token that is certified needs one question to its constraint, and no mask.

The model prefers ``"`` after ``{``, and the constraint is a JSON object:

    leader      "        the largest logit with its noise of all 131,072 tokens, certified (see `sampling.certificates`)
    question    may " come after { ?   yes: it is what would be drawn under the mask; 2 us in place of 100
    refused     say it prefers [ instead: it is left out, and the next leader is asked about
    undecided   after `MAX_QUESTIONS` refusals, or without a certificate, the position gets its mask

The token is the same in every case, so that this is a matter of speed alone. Positions along a draft are asked about as
far as their tokens are those of the draft; what stands behind a token that differs is not looked at.

A row whose questions settle nothing is left alone for 1, 3, 7, ... steps, until a question settles one again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from decodekit.decoding.draws.device_draws import device_draws
from decodekit.decoding.lazy_masks.positions import Guess, noise_keys
from decodekit.errors import DecodekitError

if TYPE_CHECKING:
    from torch import Tensor

    from decodekit.decoding.draws.row_draws import Outputs
    from decodekit.decoding.loop.text_row import TextRow

MAX_QUESTIONS: Final = 3
"""So many tokens of a position are asked about before its mask is made."""
MAX_PAUSE: Final = 31
"""So many steps at most a row goes on with masks before it is asked about again."""

UNDECIDED: Final = None
"""Stands for the token of a position that needs a mask, or has no constraint."""
UNREACHED: Final = -1
"""Stands for the token of a position behind one whose token is not the draft's."""


def ask(outputs: Outputs, guesses: Sequence[Guess], can_wait: bool = False) -> list[int | None]:
    """The token of every position as far as questions tell it: a token, `UNDECIDED`, or `UNREACHED`.

    Args:
        outputs: of the positions of all rows, in order; the bitmask is not looked at.
        guesses: of the rows.
        can_wait: whether a row may wait for the answer; what is said of its positions then means nothing.
    """
    found: list[int | None] = [UNDECIDED] * len(outputs.positions)
    rows = list(_due_rows(outputs, guesses))
    asked = [place for _, _, places in rows for place in places]
    if not asked:
        return found
    leaders = _leaders_at(asked, outputs)
    for sequence, guess, places in rows:
        begin = time.perf_counter()
        _ask_along(sequence, guess, places, leaders, outputs, found, can_wait)
        if not sequence.is_waiting:
            pause_after(sequence, is_settled=found[places[0]] is not UNDECIDED)
        sequence.ask_s += time.perf_counter() - begin
    return found


def _leaders_at(asked: Sequence[int], outputs: Outputs) -> dict[int, tuple[int, int] | None]:
    """The leaders of positions. Where most positions are asked about, to look at all costs less than to copy some."""
    if 2 * len(asked) >= len(outputs.positions):
        return dict(enumerate(leaders_of(outputs)))
    return dict(zip(asked, leaders_of(outputs.at(asked)), strict=True))


def _due_rows(outputs: Outputs, guesses: Sequence[Guess]) -> Iterator[tuple[TextRow, Guess, range]]:
    """The rows that are asked about, with their positions; a pause of the others is a step shorter."""
    first = 0
    for guess in guesses:
        sequence = outputs.positions[first].sequence
        places = range(first, first + len(guess.tokens) + 1)
        if sequence.matcher is not None and is_due(sequence):
            yield sequence, guess, places
        first = places.stop


def is_due(sequence: TextRow) -> bool:
    """Whether a row is asked about at this step; otherwise its pause gets a step shorter."""
    if sequence.pause_left == 0:
        return True
    sequence.pause_left -= 1
    return False


def pause_after(sequence: TextRow, *, is_settled: bool) -> None:
    """Note whether the questions of a step settled something: if not, the row is left alone for a while."""
    sequence.pause = 0 if is_settled else min(2 * sequence.pause + 1, MAX_PAUSE)
    sequence.pause_left = sequence.pause


def _ask_along(
    sequence: TextRow,
    guess: Guess,
    places: range,
    leaders: dict[int, tuple[int, int] | None],
    outputs: Outputs,
    found: list[int | None],
    can_wait: bool,
) -> None:
    """Ask about one row, as far as its draft may be followed; into `found`."""
    matcher, draft = sequence.matcher, guess.tokens
    assert matcher is not None
    begin = matcher.num_tokens
    try:
        for number, place in enumerate(places):
            if number < guess.num_forced and (outputs.settings.is_canonical or not outputs.settings.can_ban):
                found[place] = draft[number]  # whatever the target prefers
            elif number >= len(guess.drawn):  # no drawn token of a draft has to be tested
                found[place] = _asked(sequence, place, leaders[place], outputs, can_wait)
            if number == len(draft) or sequence.is_waiting:
                break
            if found[place] is not UNDECIDED and found[place] != draft[number]:
                found[place + 1 : places.stop] = [UNREACHED] * (places.stop - place - 1)
                break
            if not matcher.accept(draft[number]):
                break
    except DecodekitError:  # of a constraint that fails: the row meets it by itself, with its mask
        pass
    finally:  # memory may have run out: the step is tried again
        matcher.rollback(matcher.num_tokens - begin)


def _asked(
    sequence: TextRow, place: int, leader: tuple[int, int] | None, outputs: Outputs, can_wait: bool
) -> int | None:
    """The token of a position before which its matcher stands, if a few questions tell it."""
    matcher = sequence.matcher
    assert matcher is not None
    logits: Tensor | None = None
    for number in range(1, MAX_QUESTIONS + 1):
        if leader is None or not sequence.banned.isdisjoint(leader):
            return UNDECIDED
        token, given = leader
        refused = None
        for one in dict.fromkeys(leader):
            if can_wait and not sequence.is_prepared(one):
                return UNDECIDED
            sequence.num_questions += 1
            if not matcher.validate([one]):
                refused = one
                break
        if refused is None:
            return token if given == token or _may_be_given(sequence, place, given, outputs) else UNDECIDED
        if sequence.has_guard or number == MAX_QUESTIONS or outputs.logits.device.type != "cpu":
            return UNDECIDED  # a guard may take more back than a token; an accelerator makes masks of many rows at once
        if logits is None:
            logits = outputs.logits[place : place + 1].clone()
        logits[0, refused] = -torch.inf
        [leader] = leaders_of(replace(outputs, positions=[outputs.positions[place]], logits=logits))
    return UNDECIDED


def _may_be_given(sequence: TextRow, place: int, given: int, outputs: Outputs) -> bool:
    """Whether a token that is allowed is in the mask, too, where those go that come too late (`masks_ending`).

    Of the token that is taken nobody asks that here: it is judged, and drawn again, when the text has reached it.
    """
    settings, matcher = outputs.settings, sequence.matcher
    assert matcher is not None
    num_left = sequence.max_tokens - outputs.positions[place].number - 1
    return not settings.masks_ending or matcher.can_end_within(num_left, given, settings.left_out)


def leaders_of(outputs: Outputs) -> list[tuple[int, int] | None]:
    """The certified leaders of positions, each with the token that is given; None where there is none."""
    settings, keys = outputs.settings, noise_keys(outputs.positions)
    taken = device_draws(outputs.logits, settings, keys, is_asked=True)
    if taken is not None:
        return [(one.token, one.given) if one.is_certified else None for one in taken]
    lead = settings.lead
    assert lead is not None
    try:
        found = settings.pipeline.leaders(
            outputs.logits, outputs.history(), lambda rows, floor: lead(rows, *keys, floor)
        )
    except DecodekitError:  # of a processor: the mask's way tells of which row
        return [None] * len(outputs.positions)
    pairs = zip(found.tokens.tolist(), found.given.tolist(), strict=True)
    return [
        pair if is_certified else None for pair, is_certified in zip(pairs, found.are_certified.tolist(), strict=True)
    ]
