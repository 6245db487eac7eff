"""One step of decoding: every sequence of a batch takes one token or more from one forward pass.

Every single text goes through `step`: the first token after a prompt and all later ones, free or constrained, greedy or
sampled, with drafts or without. Plain decoding is a draft of length 0.

Say the text is ``ab``, of which ``b`` is pending, the constraint allows ``[a-d]*e``, and a proposer offers ``cdx``:

    propose   cd           x is illegal and ends the draft
    forward   b c d        one pass, with logits after each: three positions
    fill      3 masks      of what may follow ab, abc, abcd
    choose    c e -        the target's own token at each position, by its mask and its noise
    verify    c = c, e     c is kept; e is taken where the draft has d, and the rest is not looked at
    crop      b c          the cache forgets d; e is pending

The contract: what makes a step take more tokens never changes them. The target takes its own token at every position of
a draft, from the prefix, with the mask and the noise of that position, and a draft token is kept only if it is the same
(`speculation.verification`). So the tokens of a row depend on that row alone: its logits, its prefix, its constraint,
its seed.

One thing is beyond this code: the logits themselves. A matrix product over five rows adds in another order than one
over a single row, so that the float32 logits of one position differ in their last bits with the number of tokens and
rows that are read with it. A token changes where two candidates lie closer than that. On 1,328 positions of the bundled
model, read one, four and sixteen at a time on a CPU, the largest difference was 4e-5 at logits of up to 33; no
likeliest token had another one within 0.1, so that no greedy token changed. A draw changes with odds of about the
difference itself. It is the same for the neighbours of a batch, and only a kernel that adds every row in one order
would end it, at the price of the speed that this is for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows
from dataclasses import replace
from enum import Enum
from itertools import accumulate, compress
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.engine.bitmask import forbid
from decodekit.errors import DeadEndError, DecodekitError
from decodekit.generation.append import append_forced, append_token, forced_run
from decodekit.generation.asking import UNDECIDED, ask
from decodekit.generation.backtracking import MAX_REDRAWS, checkpoint, destination, failure, give_up
from decodekit.generation.budget import can_stop_here, ends_in_time, keep_ending, must_close
from decodekit.generation.drawing import LikeTarget, Outputs, record
from decodekit.generation.masks import StepMasks
from decodekit.generation.padding import right_padded
from decodekit.generation.positions import Drawn, Guess, Position, positions_along
from decodekit.generation.rejection import drawn_tokens, may_test
from decodekit.generation.sequence import Sequence
from decodekit.generation.settings import Settings
from decodekit.generation.token_table import TokenTable
from decodekit.generation.waiting import put_off, reading, with_held
from decodekit.models.causal_lm import Cache, CausalLM, LogitsKind
from decodekit.models.contrast import uncontrasted
from decodekit.speculation.proposer import Context, asked
from decodekit.speculation.verification import coupled_match, num_equal


class Backtrack(NamedTuple):
    """The text goes back to its first `num_tokens` tokens."""

    num_tokens: int


class NoToken(Enum):
    """Why a position has no token: the text ends, or another one has to be drawn."""

    WHOLE = "the text is whole, and nothing may follow within its budget"
    REFUSED = "the guard refuses the text with it"
    TOO_LATE = "the constraint could not be satisfied within the budget"


Outcome: TypeAlias = int | Backtrack | NoToken | DecodekitError
"""What a position comes to: a token, a rollback, or the reason why there is neither."""


@torch.inference_mode()
def step(
    sequences: Rows[Sequence],
    model: CausalLM,
    cache: Cache,
    settings: Settings,
    masks: StepMasks,
    table: TokenTable | None,
) -> None:
    """Let the model read what is pending and take tokens of every sequence; some finish by that.

    Args:
        sequences: N unfinished sequences with their rows in `cache`, which holds what the model has read of them.
        masks: buffers for the constraints' bitmasks.
        table: the prefixes, kept if a processor of the pipeline looks back.
    """
    guesses, logits = read(sequences, model, cache, settings, table)  # [P, V], as the model gives them
    drafts = [list(guess.tokens) for guess in guesses]
    is_guessed = any(drafts)
    positions = positions_along(sequences, guesses)  # P = N + all draft tokens
    can_wait = cache.num_rows > 1
    outputs = Outputs(positions, logits, None, settings, table)
    choices = ask(outputs, guesses, can_wait) if settings.asks else [UNDECIDED] * len(positions)
    bitmask = masks.fill(sequences, drafts, choices, can_wait)  # [P, words] or None, on the CPU while a GPU computes
    outputs = replace(outputs, bitmask=bitmask)
    if any(sequence.is_waiting for sequence in sequences):
        is_going_on = [not sequence.is_waiting for sequence in sequences]
        drafts = list(compress(drafts, is_going_on))
        sequences, guesses, outputs, choices = put_off(sequences, guesses, outputs, choices)
        if not sequences:
            return
    target = outputs.choose_rest(choices)  # the target's own token at every position, or an error
    firsts = accumulate([len(guess.tokens) + 1 for guess in guesses], initial=0)  # the first position of every row
    taken, backtracks = [], []
    for sequence, guess, draft, first in zip(sequences, guesses, drafts, firsts, strict=False):
        tokens, backtrack = verify(sequence, guess, draft, first, target, outputs, masks, choices)
        taken.append((sequence, tokens, first))
        backtracks.append(backtrack)
    record(taken, outputs.logits, None if settings.asks else outputs.bitmask, settings)
    for sequence, backtrack in zip(sequences, backtracks, strict=True):
        if backtrack is not None:
            sequence.take_back(backtrack.num_tokens)
            if table is not None:
                table.truncate(sequence)
        elif sequence.finish_reason is None:
            append_forced(sequence, settings, table)
    if is_guessed or any(backtracks):
        crop(sequences, cache)


def read(
    sequences: Rows[Sequence], model: CausalLM, cache: Cache, settings: Settings, table: TokenTable | None
) -> tuple[list[Guess], Tensor]:
    """What is guessed behind each text, and the logits after each text and its guess [P, V].

    Rows that waited for their constraint have been read before, and give what they hold.
    """
    some = reading(sequences)
    guesses = propose(some, model, settings, table) if some else []
    drafts = [list(guess.tokens) for guess in guesses]
    logits = forward(some, model, cache, drafts=drafts) if some else None
    return with_held(sequences, guesses, logits)


def propose(sequences: Rows[Sequence], model: CausalLM, settings: Settings, table: TokenTable | None) -> list[Guess]:
    """What may follow each text: what is forced and was not taken unseen, else what the proposer offers.

    One token of the budget is left for the target's own, and nothing is guessed beyond an end of the text.
    """
    guesses = [Guess()] * len(sequences)
    if settings.proposer is None and (settings.is_forced_unseen or settings.fast_forward == "off"):
        return guesses
    limits = [sequence.max_tokens - len(sequence.token_ids) - 1 for sequence in sequences]
    if not settings.is_forced_unseen:
        for row, (sequence, limit) in enumerate(zip(sequences, limits, strict=True)):
            # What is certain needs no token of the target's own behind it.
            run = forced_run(sequence, settings)[: max(0, limit + settings.is_canonical)]
            if run:
                guesses[row] = Guess(run, len(run))
    rows = [row for row, limit in enumerate(limits) if limit > 0 and not guesses[row].tokens]
    if settings.proposer is None or not rows:
        return guesses
    target = LikeTarget(sequences, settings, table, uncontrasted(model))
    contexts = [
        Context(one.request.prompt, one.token_ids, one.matcher, settings.canonical, one.memory, target, row)
        for row in rows
        for one in [sequences[row]]
    ]
    drafts = asked(settings.proposer, contexts, [limits[row] for row in rows])
    for row, context, draft in zip(rows, contexts, drafts, strict=True):
        tokens = list(draft.tokens[: limits[row]])
        end = next((i for i, token in enumerate(tokens) if token in settings.vocabulary.eos_token_ids), len(tokens))
        tokens = tokens[: context.num_legal(tokens[:end])]
        drawn: tuple[Drawn, ...] = ()
        if may_test(sequences[row], settings):
            drawn = drawn_tokens(draft, len(tokens), settings.vocabulary.size)[: limits[row]]
        guesses[row] = Guess(tokens, 0, drawn, draft.source)
    return guesses


def forward(
    sequences: Rows[Sequence],
    model: CausalLM,
    cache: Cache,
    num_tokens: int | None = None,
    drafts: Rows[list[int]] | None = None,
) -> Tensor:
    """Let the model read the pending tokens, at most `num_tokens` of each row, and the drafts after them.

    Returns:
        Logits [N, V] after the last token that was read; with drafts [P, V], after the last pending token of a row and
        after every token of its draft, row by row.
    """
    reading = [sequence.pending[:num_tokens] for sequence in sequences]
    counts = [len(pending) for pending in reading]
    lengths = counts
    wanted: LogitsKind = "last"
    if drafts is not None and any(drafts):
        reading = [[*pending, *draft] for pending, draft in zip(reading, drafts, strict=True)]
        lengths, wanted = [len(pending) for pending in reading], [len(draft) + 1 for draft in drafts]
    rows = [sequence.row for sequence in sequences]
    in_order = rows == list(range(cache.num_rows))
    tokens = right_padded(reading, model.device)
    logits = model.forward(tokens, lengths, cache, None if in_order else rows, logits=wanted)
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.pending = sequence.pending[count:]
        sequence.num_forwards += 1
    return logits


def verify(
    sequence: Sequence,
    guess: Guess,
    draft: list[int],
    first: int,
    target: Rows[int | DecodekitError],
    outputs: Outputs,
    masks: StepMasks,
    choices: Rows[int | None],
) -> tuple[list[int], Backtrack | None]:
    """Take the target's tokens of one row as far as the draft agrees, and one more; the row may finish by any of them.

    The draft is shorter than the guess if the constraint failed on the way; `first` is the first position of the row.
    `choices` are what was known by position without a mask. What was taken comes back in order, with the rollback that
    follows, if any.
    """
    settings, sequence.num_slices = outputs.settings, 0
    own = target[first : first + len(draft) + 1]
    if settings.is_canonical:  # forced by their bytes: taken whatever the target would take
        own = [*draft[: guess.num_forced], *own[guess.num_forced :]]
    num_before, backtrack = len(sequence.token_ids), None
    for position, choice in enumerate(coupled_match(draft, own), first):
        if settings.is_canonical and position - first > guess.num_forced and forced_run(sequence, settings):
            break  # what follows here is not the target's to choose
        outcome = settle(sequence, choice, position, outputs, None if choices[position] is None else masks)
        if isinstance(outcome, Backtrack):
            backtrack = outcome
        elif isinstance(outcome, NoToken):
            sequence.finish("complete")
        elif isinstance(outcome, DecodekitError):
            sequence.finish("dead_end" if isinstance(outcome, DeadEndError) else "error", outcome)
        else:
            sequence.pending.clear()  # what stands before the position has been read, draft tokens too
            append_token(sequence, outcome, settings, outputs.table)
        if sequence.finish_reason is not None or outcome != choice:
            break
    sequence.forget_states()
    tokens = sequence.token_ids[num_before:]
    offered = draft
    if guess.drawn and len(tokens) > len(draft):  # the last position was reached, and what was drawn there tested
        offered = [one.token for one in guess.drawn[: len(tokens)]]
    if offered:
        num_kept = num_equal(tokens, offered)
        num_forced = min(num_kept, guess.num_forced)
        sequence.num_forced_tokens += num_forced
        num_drafted = max(len(offered), len(guess.tokens)) - guess.num_forced
        if num_drafted:
            sequence.count_draft(num_drafted, num_kept - num_forced, guess.source)
    if sequence.first_token_at is None and sequence.token_ids:
        sequence.first_token_at = time.perf_counter()
    return tokens, backtrack


def settle(
    sequence: Sequence, choice: int | DecodekitError, position: int, outputs: Outputs, masks: StepMasks | None
) -> Outcome:
    """The outcome of a position that the text has reached: what may not come is cleared and drawn again.

    `masks` makes the mask of the position where there is none yet, because the choice was known without it.
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
            masks.fill_here(sequence, words)
            masks = None
        if outcome is NoToken.TOO_LATE and not is_ending:
            num_left = sequence.max_tokens - len(sequence.token_ids) - 1
            keep_ending(sequence.matcher, sequence.plan, num_left, settings.left_out, words)
            is_ending = True
        forbid(words, choice)
        [choice] = replace(outputs.at([position]), positions=[Position(sequence)]).choose()
    return outcome


def judge(sequence: Sequence, choice: int | DecodekitError, settings: Settings) -> Outcome:
    """What becomes of a drawn token, or of a row without one."""
    if isinstance(choice, DecodekitError):
        if isinstance(choice, DeadEndError) and can_stop_here(sequence, settings):
            return NoToken.WHOLE
        is_empty = sequence.has_guard and isinstance(choice, DeadEndError) and sequence.error is None
        if not is_empty:
            return choice
        here = len(sequence.token_ids)
        return failure(sequence, settings.max_rollbacks, choice) or Backtrack(destination(sequence, here - 1))
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


def refused(sequence: Sequence, choice: int, refusal: Refusal, settings: Settings) -> Outcome:
    """Where a row goes on whose token a guard refuses."""
    assert sequence.matcher is not None
    last = len(sequence.token_ids)
    here = checkpoint(sequence.token_ids, refusal.keep, sequence.matcher.token_texts)
    if here < last or (refusal.is_early and last):
        error = failure(sequence, settings.max_rollbacks)
        if error is not None:
            return error
        here = destination(sequence, here)
        if here < last:
            return Backtrack(here)
        sequence.num_rollbacks += 1  # by no token
    banned = sequence.bans.setdefault(here, set())
    banned.add(choice)
    return give_up(sequence, refusal) if len(banned) > MAX_REDRAWS else NoToken.REFUSED


def crop(sequences: Rows[Sequence], cache: Cache) -> None:
    """Forget what the model has read beyond the texts: rejected drafts, and what was taken back."""
    lengths: list[int] = cache.lengths.tolist()
    for sequence in sequences:
        lengths[sequence.row] = sequence.length - len(sequence.pending)
    cache.truncate(lengths)
