"""A pass whose tokens the host takes: from logits, with the masks, questions and guards of constraints.

What can be done for many rows at once is done for the rows of equal settings together: proposals, one matrix of masks,
one call of the pipeline. Rows whose constraint needs more than a slice of work wait (`decoding.lazy_masks.deferral`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import torch
from torch import Tensor

from decodekit.decoding.draws.guesses import guesses_of
from decodekit.decoding.draws.row_draws import Outputs, record
from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.lazy_masks.deferral import can_take, defer, hold, with_held
from decodekit.decoding.lazy_masks.judgement import resolve
from decodekit.decoding.lazy_masks.positions import NO_GUESS, Guess, Outcome, Position, first_positions, positions_along
from decodekit.decoding.lazy_masks.probes import UNDECIDED, ask
from decodekit.decoding.lazy_masks.row_masks import StepMasks
from decodekit.decoding.loop.flight import Decided, Entry
from decodekit.decoding.loop.text_row import TextRow, by_settings
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.trace_recorder import trace
from decodekit.errors import DecodekitError, is_out_of_memory
from decodekit.models.causal_lm import Cache, CausalLM, LogitsKind
from decodekit.speculation.verification import coupled_match


def flights_over(
    sequences: Sequence[TextRow],
    model: CausalLM,
    cache: Cache,
    table: TokenTable | None,
    masks: Callable[[Settings], StepMasks],
) -> list[HostFlight]:
    """The flights of a pass over rows, those of equal settings together; what the model is to read is guessed.

    Rows that waited for their constraint have been read before, and give what they hold.
    """
    # Where rows are served, others may come while one is slow.
    can_wait = cache.num_rows > 1 or any(sequence.is_served for sequence in sequences)
    flights = list[HostFlight]()
    for rows in by_settings(sequences):
        settings = rows[0].settings
        own = table if settings.pipeline.needs_history else None
        is_free = all(sequence.matcher is None for sequence in rows)
        reading = [sequence for sequence in rows if sequence.held is None]
        guesses = [NO_GUESS] * len(reading) if settings.is_plain else guesses_of(reading, model, settings, own)
        flights.append(HostFlight(rows, reading, guesses, None if is_free else masks(settings), own, can_wait))
    return flights


@dataclass(slots=True)
class HostFlight:
    """The rows of a pass that have the same settings.

    Attributes:
        sequences: all rows, with those that hold what was read before.
        reading: those that the model reads.
        guesses: what is read behind them.
        masks: buffers; None if all texts are free.
        table: the prefixes, if a processor looks back.
        can_wait: whether a row may wait for its constraint.
        logits: of the rows that were read, [P, V]; None before, and if all hold theirs.
    """

    sequences: list[TextRow]
    reading: list[TextRow]
    guesses: list[Guess]
    masks: StepMasks | None
    table: TokenTable | None
    can_wait: bool
    logits: Tensor | None = None

    def decide(self) -> list[HostDecided]:
        """The target's own token at every position; the texts do not change. A row that waits is in none."""
        guesses, logits = with_held(self.sequences, self.guesses, self.logits)
        return self._decided(self.sequences, guesses, logits)

    def _decided(self, sequences: list[TextRow], guesses: list[Guess], logits: Tensor) -> list[HostDecided]:
        try:
            return [self._decide(sequences, guesses, logits)]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if len(sequences) == 1:
                [sequence] = sequences
                sequence.finish("error", fault_of(error, "decoding", at=str(Position(sequence))))
                return []
        found: list[HostDecided] = []
        for sequence, guess, first in zip(sequences, guesses, first_positions(guesses), strict=False):
            sequence.is_waiting = False  # row by row, so that a fault of one is not the others'
            found += self._decided([sequence], [guess], logits[first : first + len(guess.tokens) + 1])
        return found

    def _decide(self, sequences: list[TextRow], guesses: list[Guess], logits: Tensor) -> HostDecided:
        settings = sequences[0].settings
        drafts = [list(guess.tokens) for guess in guesses]
        positions = positions_along(sequences, guesses)  # P = N + all draft tokens
        outputs = Outputs(positions, logits, None, settings, self.table)
        choices: list[int | None] = [UNDECIDED] * len(positions)
        if self.masks is not None:  # [P, words], on the CPU while a GPU computes
            choices = ask(outputs, guesses, self.can_wait) if settings.asks else choices
            outputs = replace(outputs, bitmask=self.masks.fill(sequences, drafts, choices, self.can_wait))
        if any(sequence.is_waiting for sequence in sequences):
            drafts = [draft for draft, sequence in zip(drafts, sequences, strict=True) if not sequence.is_waiting]
            sequences, guesses, outputs, choices = defer(sequences, guesses, outputs, choices)
        # the target's own token at every position, or an error
        target = outputs.choose_rest(choices) if sequences else []
        decided = HostDecided(sequences, guesses, drafts, outputs, choices, target, self.masks)
        is_served = self.masks is not None and any(sequence.is_served for sequence in sequences)
        return decided.without_slow() if is_served else decided


@dataclass(slots=True)
class HostDecided(Decided):
    """The decisions for rows of equal settings.

    Attributes:
        sequences, guesses: of the rows.
        drafts: what is followed of the guesses; shorter where the constraint failed on the way.
        outputs, known, target: by position: what is known of it, what was known without a mask, and the target's own
            token.
        masks: make the mask of a position later.
    """

    sequences: list[TextRow]
    guesses: list[Guess]
    drafts: list[list[int]]
    outputs: Outputs
    known: list[int | None]
    target: list[int | DecodekitError]
    masks: StepMasks | None
    entries: list[Entry] = field(init=False)
    table: TokenTable | None = field(init=False)
    firsts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.table, self.firsts = self.outputs.table, [*first_positions(self.guesses)]
        rows = zip(self.sequences, self.guesses, self.drafts, strict=True)
        self.entries = [
            Entry(one, one.row, len(one.token_ids), [], guess, draft, one.num_read + len(guess.tokens))
            for one, guess, draft in rows
        ]

    def without_slow(self) -> HostDecided:
        """The same without the rows whose constraint needs more than a slice of work to take its token: they wait."""
        rows = zip(self.sequences, self.guesses, self.drafts, self.firsts, strict=False)
        is_going_on = [
            bool(guess.drawn) or can_take(sequence, draft, self.target[first : first + len(draft) + 1])
            for sequence, guess, draft, first in rows
        ]
        if all(is_going_on):
            return self
        is_kept = [going for going, guess in zip(is_going_on, self.guesses, strict=True) for _ in (*guess.tokens, 0)]
        sequences, guesses, outputs, known = defer(self.sequences, self.guesses, self.outputs, self.known)
        drafts, target = list(compress(self.drafts, is_going_on)), list(compress(self.target, is_kept))
        return HostDecided(sequences, guesses, drafts, outputs, known, target, self.masks)

    def choices(self, number: int) -> Sequence[int | DecodekitError]:
        """Along the draft, what the target takes itself; what is forced by its bytes comes whatever it would take."""
        first, draft = self.firsts[number], self.drafts[number]
        own: Sequence[int | DecodekitError] = self.target[first : first + len(draft) + 1]
        if self.outputs.settings.is_canonical:
            num_forced = self.guesses[number].num_forced
            own = [*draft[:num_forced], *own[num_forced:]]
        return coupled_match(draft, own)

    def resolve(self, number: int, place: int, choice: int | DecodekitError) -> Outcome:
        """By the guard, and the budget; another token is drawn from the same logits where one is refused."""
        sequence, position = self.sequences[number], self.firsts[number] + place
        later_masks = None if self.known[position] is None else self.masks
        return resolve(sequence, choice, position, self.outputs, later_masks, sequence.is_served)

    def hold(self, number: int, place: int) -> None:
        """Keep the logits of the position for the next step."""
        hold(self.sequences[number], self.firsts[number] + place, self.outputs)

    def close(self, number: int, *, is_token: bool, is_turned: bool) -> None:
        """Nothing: no step runs behind."""

    def record(self) -> None:
        """Log-probabilities and traces."""
        settings, outputs = self.outputs.settings, self.outputs
        if settings.num_alternatives is None and not settings.traces:
            return
        taken = [
            (entry.sequence, entry.sequence.token_ids[entry.number :], first)
            for entry, first in zip(self.entries, self.firsts, strict=False)
        ]
        record(taken, outputs.logits, None if settings.asks else outputs.bitmask, settings)
        if settings.traces:
            rows = zip(self.guesses, self.drafts, taken, strict=True)
            offers = [guess.offered(draft, tokens) for guess, draft, (_, tokens, _) in rows]
            trace(taken, outputs.logits, outputs.bitmask, settings, offers, self.known)


def read_flights(flights: Sequence[HostFlight], logits: Tensor) -> None:
    """Give flights the logits [P, V] of what was read for them, flight by flight."""
    first = 0
    for flight in flights:
        num_positions = sum(len(guess.tokens) + 1 for guess in flight.guesses)
        flight.logits = logits[first : first + num_positions]
        first += num_positions


def forward(
    sequences: Sequence[TextRow],
    model: CausalLM,
    cache: Cache,
    num_tokens: int | None = None,
    drafts: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """Let the model read the pending tokens, at most `num_tokens` of each row, and the drafts after them.

    Returns:
        Logits [N, V] after the last token that was read; with drafts [P, V], after the last pending token of a row and
        after every token of its draft, row by row.
    """
    rows = [sequence.row for sequence in sequences]
    if drafts is not None and rows != sorted(rows):  # neighbouring rows are read in place
        order = sorted(range(len(rows)), key=rows.__getitem__)
        logits = forward([sequences[i] for i in order], model, cache, drafts=[drafts[i] for i in order])
        places = iter(torch.split(torch.arange(len(logits)), [len(drafts[i]) + 1 for i in order]))
        place_of = {i: next(places) for i in order}
        return logits[torch.cat([place_of[i] for i in range(len(rows))]).to(logits.device)]
    reading = [sequence.pending[:num_tokens] for sequence in sequences]
    counts = [len(pending) for pending in reading]
    lengths = counts
    wanted: LogitsKind = "last"
    if drafts is not None and any(drafts):
        reading = [[*pending, *draft] for pending, draft in zip(reading, drafts, strict=True)]
        lengths, wanted = [len(pending) for pending in reading], [len(draft) + 1 for draft in drafts]
    in_order = rows == list(range(cache.num_rows))
    logits = model.forward(right_padded(reading), lengths, cache, None if in_order else rows, logits=wanted)
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.pending = sequence.pending[count:]
        sequence.num_forwards += 1
    return logits


def right_padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Token ids of unequal rows on the host, int64 [N, T], padded on the right with 0."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)
