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
difference itself. It is the same for the neighbours of a batch. On a CPU there is no such difference between steps of
up to eight tokens: they are run by programs that add every row in one order (`models.programs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import compress
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.engine.bitmask import forbid
from decodekit.decoding.draws.rejection import drawn_tokens, may_test
from decodekit.decoding.draws.row_draws import LikeTarget, Outputs, record
from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.lazy_masks.deferral import can_take, hold, put_off, reading, with_held
from decodekit.decoding.lazy_masks.positions import Drawn, Guess, Position, first_positions, positions_along
from decodekit.decoding.lazy_masks.probes import UNDECIDED, ask
from decodekit.decoding.lazy_masks.rollback import MAX_REDRAWS, checkpoint, destination, failure, give_up
from decodekit.decoding.lazy_masks.row_masks import StepMasks
from decodekit.decoding.loop.append import append_forced, append_token, forced_run
from decodekit.decoding.loop.faults import fault_of
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.prefixes.padding import right_padded
from decodekit.decoding.request.budget import can_stop_here, ends_in_time, keep_ending, must_close
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.trace_recorder import trace
from decodekit.errors import DeadEndError, DecodekitError, is_out_of_memory
from decodekit.models.causal_lm import Cache, CausalLM, LogitsKind, host_lengths
from decodekit.models.wrappers.contrast_model import uncontrasted
from decodekit.speculation.proposer import Context, asked
from decodekit.speculation.verification import coupled_match, num_equal


class Backtrack(NamedTuple):
    """The text goes back to its first `num_tokens` tokens."""

    num_tokens: int


class NoToken(Enum):
    """The reasons why a position has no token: the text ends, or another one has to be drawn."""

    WHOLE = "the text is whole, and nothing may follow within its budget"
    REFUSED = "the guard refuses the text with it"
    TOO_LATE = "the constraint could not be satisfied within the budget"
    WAITS = "the question about another one needs more than a slice of work"


Outcome: TypeAlias = int | Backtrack | NoToken | DecodekitError
"""What a position comes to: a token, a rollback, or the reason why there is neither."""


@torch.inference_mode()
def step(
    sequences: Sequence[TextRow],
    model: CausalLM,
    cache: Cache,
    masks: Callable[[Settings], StepMasks],
    table: TokenTable | None,
    *,
    isolates: bool = False,
) -> None:
    """Let the model read what is pending and take tokens of every sequence; some finish by that.

    All rows are read in one pass. What follows is done for the rows of equal settings together.

    Args:
        sequences: N unfinished sequences with their rows in `cache`, which holds what the model has read of them.
        masks: gives the buffers for the constraints' bitmasks, by settings.
        table: the prefixes, kept if a processor of some pipeline looks back.
        isolates: whether an exception that the code of a row raises (a processor, a proposer, a constraint) ends that
            row alone, with an error; otherwise it leaves this function.
    """
    parts = [StepPart(rows, model, cache, masks, table, isolates) for rows in by_settings(sequences)]
    reading = [part.reading() for part in parts]
    read = [sequence for some, _ in reading for sequence in some]
    drafts = [list(guess.tokens) for _, guesses in reading for guess in guesses]
    logits = forward_sorted(read, model, cache, drafts) if read else None  # [P, V], as the model gives them
    first, surplus = 0, list[TextRow]()
    for part, (_, guesses) in zip(parts, reading, strict=True):
        num_positions = sum(len(guess.tokens) + 1 for guess in guesses)
        own = None if logits is None else logits[first : first + num_positions]
        first += num_positions
        surplus += part.take(*with_held(part.sequences, guesses, own))
    if surplus:
        crop(surplus, cache)


def by_settings(sequences: Sequence[TextRow]) -> list[list[TextRow]]:
    """The rows of settings that tokens are taken by in one way together, in order; see `Settings.kin`."""
    parts: dict[int, list[TextRow]] = {}
    for sequence in sequences:
        parts.setdefault(id(sequence.settings.kin), []).append(sequence)
    return [*parts.values()]


@dataclass(frozen=True, slots=True)
class StepPart:
    """The rows of a step that have the same settings; see `step` for the arguments."""

    sequences: list[TextRow]
    model: CausalLM
    cache: Cache
    masks: Callable[[Settings], StepMasks]
    every_table: TokenTable | None
    isolates: bool

    @property
    def settings(self) -> Settings:
        """Those of all rows."""
        return self.sequences[0].settings

    @property
    def table(self) -> TokenTable | None:
        """The prefixes, if a processor looks back."""
        return self.every_table if self.settings.pipeline.needs_history else None

    def reading(self) -> tuple[list[TextRow], list[Guess]]:
        """The rows that the model is to read, and what is guessed behind each.

        Rows that waited for their constraint have been read before, and give what they hold.
        """
        some = reading(self.sequences)
        if not some:
            return some, []
        try:
            return some, propose(some, self.model, self.settings, self.table)
        except Exception as error:  # of a proposer: the texts are the same without it
            if not self.isolates or is_out_of_memory(error):
                raise
        alone = [replace(self, sequences=[one]) for one in some]
        guesses = [part._guess_alone() for part in alone]
        return some, guesses

    def _guess_alone(self) -> Guess:
        [sequence] = self.sequences
        try:
            [guess] = propose([sequence], self.model, self.settings, self.table)
        except Exception as error:
            sequence.fault = fault_of(error, "proposer", at=str(Position(sequence)))
            return Guess()
        return guess

    def take(self, guesses: list[Guess], logits: Tensor) -> list[TextRow]:
        """Take tokens of every row by the logits [P, V]; the rows of which the cache holds more than their texts."""
        try:
            decided = self._decide(guesses, logits)
        except Exception as error:
            if not self.isolates or is_out_of_memory(error):
                raise
            if len(self.sequences) == 1:
                [sequence] = self.sequences
                sequence.finish("error", fault_of(error, "decoding", at=str(Position(sequence))))
                return []
            return self._take_alone(guesses, logits)
        return self._follow(decided)

    def _take_alone(self, guesses: list[Guess], logits: Tensor) -> list[TextRow]:
        """Row by row, so that a fault of one is not the others'. Nothing of a text has changed yet."""
        surplus, first = list[TextRow](), 0
        for sequence, guess in zip(self.sequences, guesses, strict=True):
            sequence.is_waiting = False
            num_positions = len(guess.tokens) + 1
            own = logits[first : first + num_positions]
            surplus += replace(self, sequences=[sequence]).take([guess], own)
            first += num_positions
        return surplus

    def _decide(self, guesses: list[Guess], logits: Tensor) -> Decided:
        """The target's own token at every position; the texts do not change."""
        sequences, settings = self.sequences, self.settings
        drafts = [list(guess.tokens) for guess in guesses]
        is_guessed = any(drafts)
        positions = positions_along(sequences, guesses)  # P = N + all draft tokens
        can_wait = self.cache.num_rows > 1 or self.isolates  # whoever is served waits for no constraint
        outputs = Outputs(positions, logits, None, settings, self.table)
        choices: list[int | None] = [UNDECIDED] * len(positions)
        if settings.asks:
            choices = ask(outputs, guesses, can_wait)
        # [P, words] or None, on the CPU while a GPU computes
        bitmask = self.masks(settings).fill(sequences, drafts, choices, can_wait)
        outputs = replace(outputs, bitmask=bitmask)
        if any(sequence.is_waiting for sequence in sequences):
            is_going_on = [not sequence.is_waiting for sequence in sequences]
            drafts = list(compress(drafts, is_going_on))
            sequences, guesses, outputs, choices = put_off(sequences, guesses, outputs, choices)
        # the target's own token at every position, or an error
        target = outputs.choose_rest(choices) if sequences else []
        decided = Decided(sequences, guesses, drafts, outputs, choices, target, is_guessed)
        return self._without_slow(decided) if self.isolates else decided

    def _without_slow(self, decided: Decided) -> Decided:
        """The same without the rows whose constraint needs more than a slice of work to take its token: they wait."""
        rows = zip(decided.sequences, decided.guesses, decided.drafts, first_positions(decided.guesses), strict=False)
        is_going_on = [
            bool(guess.drawn) or can_take(sequence, draft, decided.target[first : first + len(draft) + 1])
            for sequence, guess, draft, first in rows
        ]
        if all(is_going_on):
            return decided
        is_kept = [going for going, guess in zip(is_going_on, decided.guesses, strict=True) for _ in (*guess.tokens, 0)]
        sequences, guesses, outputs, choices = put_off(
            decided.sequences, decided.guesses, decided.outputs, decided.choices
        )
        drafts, target = list(compress(decided.drafts, is_going_on)), list(compress(decided.target, is_kept))
        return Decided(sequences, guesses, drafts, outputs, choices, target, decided.is_guessed)

    def _follow(self, decided: Decided) -> list[TextRow]:
        """Let the texts go on as decided; the rows of which the cache holds more than their texts."""
        sequences, outputs, settings, table = decided.sequences, decided.outputs, self.settings, self.table
        taken, backtracks = [], []
        for i, (sequence, first) in enumerate(zip(sequences, first_positions(decided.guesses), strict=False)):
            tokens, backtrack = list[int](), None
            try:
                tokens, backtrack = verify(
                    sequence, decided.guesses[i], decided.drafts[i], first, decided.target, outputs,
                    self.masks(settings), decided.choices, self.isolates,
                )  # fmt: skip
            except Exception as error:
                if not self.isolates or is_out_of_memory(error):
                    raise
                sequence.finish("error", fault_of(error, "decoding", at=str(Position(sequence))))
            if sequence.fault is not None and sequence.finish_reason is None:
                sequence.finish("error", sequence.fault)
            taken.append((sequence, tokens, first))
            backtracks.append(backtrack)
        record(taken, outputs.logits, None if settings.asks else outputs.bitmask, settings)
        if settings.traces:
            rows = zip(decided.guesses, decided.drafts, taken, strict=True)
            offers = [guess.offered(draft, tokens) for guess, draft, (_, tokens, _) in rows]
            trace(taken, outputs.logits, outputs.bitmask, settings, offers, decided.choices)
        for sequence, backtrack in zip(sequences, backtracks, strict=True):
            if backtrack is not None:
                sequence.take_back(backtrack.num_tokens)
                if table is not None:
                    table.truncate(sequence)
            elif sequence.finish_reason is None and sequence.held is None:
                append_forced(sequence, settings, table)
        return sequences if decided.is_guessed or any(backtracks) else []


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions of a step for rows of equal settings, before a text changes.

    Attributes:
        sequences, guesses: of the rows.
        drafts: what is followed of the guesses; shorter where the constraint failed on the way.
        outputs, choices, target: by position: what is known of it, what was known without a mask, and the target's own
            token.
        is_guessed: whether the model has read drafts.
    """

    sequences: list[TextRow]
    guesses: list[Guess]
    drafts: list[list[int]]
    outputs: Outputs
    choices: list[int | None]
    target: list[int | DecodekitError]
    is_guessed: bool


def propose(sequences: Sequence[TextRow], model: CausalLM, settings: Settings, table: TokenTable | None) -> list[Guess]:
    """A guess for each text: forced tokens that were not taken unseen, else the proposer's offer.

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
    sequences: Sequence[TextRow],
    model: CausalLM,
    cache: Cache,
    num_tokens: int | None = None,
    drafts: Sequence[list[int]] | None = None,
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
    tokens = right_padded(reading)
    logits = model.forward(tokens, lengths, cache, None if in_order else rows, logits=wanted)
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.pending = sequence.pending[count:]
        sequence.num_forwards += 1
    return logits


def forward_sorted(sequences: Sequence[TextRow], model: CausalLM, cache: Cache, drafts: Sequence[list[int]]) -> Tensor:
    """`forward` with the rows in the order of the cache, since neighbouring rows are read in place; [P, V] as given."""
    rows = [sequence.row for sequence in sequences]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    if order == list(range(len(rows))):
        return forward(sequences, model, cache, drafts=drafts)
    logits = forward([sequences[i] for i in order], model, cache, drafts=[drafts[i] for i in order])
    places = iter(torch.split(torch.arange(len(logits)), [len(drafts[i]) + 1 for i in order]))
    place_of = {i: next(places) for i in order}
    return logits[torch.cat([place_of[i] for i in range(len(rows))]).to(logits.device)]


def verify(
    sequence: TextRow,
    guess: Guess,
    draft: list[int],
    first: int,
    target: Sequence[int | DecodekitError],
    outputs: Outputs,
    masks: StepMasks,
    choices: Sequence[int | None],
    can_wait: bool = False,
) -> tuple[list[int], Backtrack | None]:
    """Take the target's tokens of one row as far as the draft agrees, and one more; the row may finish by any of them.

    The draft is shorter than the guess if the constraint failed on the way; `first` is the first position of the row.
    `choices` are what was known by position without a mask. `can_wait` says whether the row may hold a position where
    another token has to be drawn. What was taken comes back in order, with the rollback that follows, if any.
    """
    settings = outputs.settings
    own = target[first : first + len(draft) + 1]
    if settings.is_canonical:  # forced by their bytes: taken whatever the target would take
        own = [*draft[: guess.num_forced], *own[guess.num_forced :]]
    num_before, backtrack = len(sequence.token_ids), None
    for position, choice in enumerate(coupled_match(draft, own), first):
        if settings.is_canonical and position - first > guess.num_forced and forced_run(sequence, settings):
            break  # what follows here is not the target's to choose
        later_masks = None if choices[position] is None else masks
        outcome = settle(sequence, choice, position, outputs, later_masks, can_wait)
        if outcome is NoToken.WAITS:
            hold(sequence, position, outputs)
            break
        if isinstance(outcome, Backtrack):
            backtrack = outcome
        elif isinstance(outcome, NoToken):
            sequence.finish("complete")
        elif isinstance(outcome, DecodekitError):
            sequence.finish("dead_end" if isinstance(outcome, DeadEndError) else "error", outcome)
        else:
            sequence.pending.clear()  # what stands before the position has been read, draft tokens too
            sequence.num_slices = 0
            append_token(sequence, outcome, settings, outputs.table)
        if sequence.finish_reason is not None or outcome != choice:
            break
    sequence.forget_states()
    tokens = sequence.token_ids[num_before:]
    offered = guess.offered(draft, tokens).tokens
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


def crop(sequences: Sequence[TextRow], cache: Cache) -> None:
    """Forget what the model has read beyond the texts: rejected drafts, and what was taken back."""
    lengths = host_lengths(cache)
    for sequence in sequences:
        lengths[sequence.row] = sequence.num_read
    cache.truncate(lengths)
