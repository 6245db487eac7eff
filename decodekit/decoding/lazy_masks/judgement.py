"""The judgement: what becomes of a token that the text has reached, by the guard of its constraint and by its budget.

choice      verdict
``3``       the guard refuses the text with it, all before it may stay: its bit is cleared, another one is drawn
``}``       refused, and less may stay: the text goes back (`lazy_masks.rollback`)
``,``       behind it the constraint cannot be satisfied within the budget: cleared, another one is drawn
none        the text may stop here and nothing fits: it is whole
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from decodekit.constraints.engine.bitmask import forbid
from decodekit.decoding.lazy_masks.positions import Backtrack, NoToken, Outcome, Position
from decodekit.decoding.lazy_masks.rollback import MAX_REDRAWS, checkpoint, destination, failure, give_up
from decodekit.decoding.request.budget import can_stop_here, ends_in_time, keep_ending, must_close
from decodekit.errors import DeadEndError, DecodekitError

if TYPE_CHECKING:
    from decodekit.constraints.constraint import Refusal
    from decodekit.decoding.draws.row_draws import Outputs
    from decodekit.decoding.lazy_masks.row_masks import StepMasks
    from decodekit.decoding.loop.text_row import TextRow
    from decodekit.decoding.request.settings import Settings


def resolve(
    sequence: TextRow,
    choice: int | DecodekitError,
    position: int,
    outputs: Outputs,
    masks: StepMasks | None,
    can_wait: bool = False,
) -> Outcome:
    """The outcome of a position that the text has reached: what may not come is cleared and drawn again.

    `masks` makes the mask of the position where there is none yet, because the choice was known without it. A row that
    `can_wait` does so where the mask, or the guard's answer about the next choice, needs more than a slice of work.
    """
    settings = outputs.settings
    if outputs.bitmask is None or not (sequence.has_guard or must_close(sequence, settings)):
        return choice
    sequence.refusal = sequence.position_refusals.get(len(sequence.token_ids), sequence.refusal)
    is_ending = settings.masks_ending
    while (outcome := judge(sequence, choice, settings)) in (NoToken.REFUSED, NoToken.TOO_LATE):
        assert isinstance(choice, int) and sequence.matcher is not None
        words = outputs.bitmask[position].numpy()
        if masks is not None:
            if can_wait and not sequence.is_prepared():
                return NoToken.WAITS
            masks.fill_here(sequence, words)
            masks = None
        if outcome is NoToken.TOO_LATE and not is_ending:
            num_left = sequence.max_tokens - len(sequence.token_ids) - 1
            keep_ending(sequence.matcher, sequence.plan, num_left, settings.left_out, words)
            is_ending = True
        forbid(words, choice)
        [choice] = replace(outputs.at([position]), positions=[Position(sequence)]).choose()
        if can_wait and isinstance(choice, int) and not sequence.is_prepared(choice):
            return NoToken.WAITS
    return outcome


def judge(sequence: TextRow, choice: int | DecodekitError, settings: Settings) -> Outcome:
    """The outcome of a drawn token, or of a row without one."""
    if isinstance(choice, DecodekitError):
        if isinstance(choice, DeadEndError) and can_stop_here(sequence, settings):
            return NoToken.WHOLE
        is_empty = sequence.has_guard and isinstance(choice, DeadEndError) and sequence.error is None
        if not is_empty:
            return choice
        here = len(sequence.token_ids)
        return failure(sequence, settings.max_rollbacks, choice) or Backtrack(destination(sequence, here - 1, here - 1))
    assert sequence.matcher is not None
    try:
        refusal = sequence.matcher.refusal(choice) if sequence.has_guard else None
        if refusal is None:
            is_late = must_close(sequence, settings) and not ends_in_time(sequence, choice, settings)
            return NoToken.TOO_LATE if is_late else choice
    except DecodekitError as error:  # the guard is a program of the user's, a constraint may outgrow its bounds
        return error
    sequence.refusal = refusal
    sequence.num_guard_refusals += 1
    return refused(sequence, choice, refusal, settings)


def refused(sequence: TextRow, choice: int, refusal: Refusal, settings: Settings) -> Outcome:
    """The outcome of a row whose token a guard refuses."""
    assert sequence.matcher is not None
    last = len(sequence.token_ids)
    here = checkpoint(sequence.token_ids, refusal.keep, sequence.matcher.token_texts)
    if here < last or (refusal.is_early and last):
        error = failure(sequence, settings.max_rollbacks)
        if error is not None:
            return error
        here = destination(sequence, here, last)
        if here < last:
            return Backtrack(here)
        sequence.num_rollbacks += 1  # by no token
    banned = sequence.bans.setdefault(here, set())
    banned.add(choice)
    return give_up(sequence, refusal) if len(banned) > MAX_REDRAWS else NoToken.REFUSED
