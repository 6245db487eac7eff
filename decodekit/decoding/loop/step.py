"""One step of decoding: every sequence of a batch takes one token or more from one forward pass.

Every single text goes through `Texts.step`: the first token after a prompt and all later ones, free or
constrained, greedy or sampled, with drafts or without, on a CPU and on a GPU. Plain decoding is a draft of length 0.

Say the text is ``ab``, of which ``b`` is pending, the constraint allows ``[a-d]*e``, and a proposer offers ``cdx``:

    launch    propose   cd           x is illegal and ends the draft
              forward   b c d        one pass, with logits after each: three positions
    decide    fill      3 masks      of what may follow ab, abc, abcd
              choose    c e -        the target's own token at each position, by its mask and its noise
    take in   follow    c = c, e     c is kept; e is taken where the draft has d, and the rest is not looked at
              cut       b c          the cache forgets d; e is pending

A pass is launched and its tokens are taken in. Where the host takes them from logits (`host_pass`), that is the same
step. A GPU takes them by itself (`device_pass`), and the host sees them when the next pass runs already:

    GPU       pass 3: takes a3 x3     pass 4: reads a3 x3, takes a4 x4     pass 5: reads a4, b2; takes a5 b3 (masked)
    host                              pass 3 is there: a3 fits. May x3     pass 4 is there: a4 fits; x4 came after x3
                                      come after b2? No: its row goes      and is dropped
                                      back to b2 and needs a mask

What a GPU cannot decide (a user's Python, guards, log-probabilities) is a property of a row, whose tokens the host
takes, over the same cache. The text of a row is the same on either way.

Several samples of a prompt have a row each. Sample i has the text that it has when it is decoded alone with the number
i: its noise is keyed by that number, and nothing else of it knows of the others. They share the reading of the prompt,
as all requests do that begin with the same tokens (`decoding.prefixes.shared_rows`).

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
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from decodekit.decoding.lazy_masks.positions import Backtrack, NoToken, Outcome, Position
from decodekit.decoding.lazy_masks.row_masks import StepMasks
from decodekit.decoding.loop.append import append_forced, append_token, forced_run
from decodekit.decoding.loop.decoder import CacheRows, Decoder, Group
from decodekit.decoding.loop.device_pass import DeviceFlight, DevicePass
from decodekit.decoding.loop.flight import Decided, Entry
from decodekit.decoding.loop.host_pass import flights_over, forward, read_flights
from decodekit.decoding.loop.scheduler import run
from decodekit.decoding.loop.text_row import Request, TextRow
from decodekit.decoding.request.budget import check_budget
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Update
from decodekit.errors import DeadEndError, DecodekitError, is_out_of_memory
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.causal_lm import CausalLM
from decodekit.speculation.verification import num_equal

MAX_ROWS: Final = 64
"""Most rows of a cache for samples, unless there are more prompts than that: further samples wait for their turn."""

_MANY_SETTINGS: Final = 64


class Texts(Decoder[Group]):
    """Every text by itself, with settings of its own.

    An exception that the code of a row raises (a processor, a proposer, a constraint) ends that row alone. If the cache
    has pages, passes run ahead of the host.
    """

    def __init__(self, model: CausalLM) -> None:
        super().__init__(model)
        self._masks: dict[object, StepMasks] = {}  # by `Settings.batch_key`
        self._device: weakref.ref[DevicePass] | None = None  # of the rows: a decoder must not keep a cache

    def begin(self, sequence: TextRow) -> Group:
        """The text, with what is forced at its beginning."""
        begin_text(sequence, sequence.settings)
        return Group([sequence])

    def step(self, groups: Sequence[Group], rows: CacheRows) -> None:
        """One token or more for each text: what is pending is read, and tokens are taken; some texts finish by that."""
        here = [group.sequence for group in groups]
        device = self._device_over(rows)
        try:
            if device is not None:
                ahead, here = device.split(here)
                self._step_ahead(device, ahead, rows)
            flights = flights_over(here, self.model, rows.cache, rows.table, self._masks_for)
            read = [sequence for flight in flights for sequence in flight.reading]
            if read:
                drafts = [guess.tokens for flight in flights for guess in flight.guesses]
                read_flights(flights, forward(read, self.model, rows.cache, drafts=drafts))
            for flight in flights:
                for decided in flight.decide():
                    self._take(decided, rows)
            rows.cut()
        except BaseException:
            self._rewind(rows)
            raise

    def _device_over(self, rows: CacheRows) -> DevicePass | None:
        """The passes ahead of the host over a cache of pages; None over another cache."""
        if rows.device is None and isinstance(rows.cache, PagedCache):
            paged = getattr(self.model, "paged", None)
            if paged is not None:
                rows.device = DevicePass(self.model, paged, rows.cache)
                self._device = weakref.ref(rows.device)
        return rows.device if isinstance(rows.device, DevicePass) else None

    def _masks_for(self, settings: Settings) -> StepMasks:
        """The buffers for the masks of some settings."""
        masks = self._masks.get(settings.batch_key)
        if masks is None:
            if len(self._masks) >= _MANY_SETTINGS:
                self._masks.clear()
            left_out = settings.left_out if settings.masks_ending else None
            masks = StepMasks(settings.vocabulary.num_mask_words, settings.can_redraw, left_out)
            self._masks[settings.batch_key] = masks
        return masks

    def _step_ahead(self, device: DevicePass, sequences: Sequence[TextRow], rows: CacheRows) -> None:
        """Start the next pass of rows, and take in the one before; the other way round if few could be in it."""
        for decided in device.parked(sequences):
            self._take(decided, rows)
        before, device.flights = device.flights, ()
        if before and device.is_seen_first(sequences):
            self._see(device, before, rows)
            before = ()
        rows.cut()
        device.flights = device.launch(sequences)
        self._see(device, before, rows)
        if before and not device.flights:  # every row had to be seen first
            rows.cut()
            device.flights = device.launch(sequences)

    def _see(self, device: DevicePass, flights: Sequence[DeviceFlight], rows: CacheRows) -> None:
        for flight in flights:
            for decided in flight.decide():
                self._take(decided, rows)
            device.propose_behind(flight)

    def _take(self, decided: Decided, rows: CacheRows) -> None:
        """Let texts go on as decided."""
        outcomes = [self._follow(decided, number) for number in range(len(decided.entries))]
        decided.record()
        for number, outcome in enumerate(outcomes):
            self._go_on(decided, number, outcome, rows)

    def _follow(self, decided: Decided, number: int) -> Outcome | None:
        """Take the tokens of a row; the last outcome, None if there was none. What its code raises ends the row."""
        entry = decided.entries[number]
        sequence, outcome = entry.sequence, None
        try:
            outcome = follow(decided, number)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            sequence.finish("error", fault_of(error, "decoding", at=str(Position(sequence))))
        if sequence.fault is not None and sequence.finish_reason is None:
            sequence.finish("error", sequence.fault)
        return outcome

    def _go_on(self, decided: Decided, number: int, outcome: Outcome | None, rows: CacheRows) -> None:
        """Go back, or on with what is forced; and let the cache and what runs behind follow the text."""
        entry, table = decided.entries[number], decided.table
        sequence, behind = entry.sequence, entry.behind
        is_token = outcome is None or isinstance(outcome, int)
        if isinstance(outcome, Backtrack):
            sequence.roll_back(outcome.num_tokens)
            if table is not None:
                table.truncate(sequence)
        elif outcome is NoToken.AGAIN and not sequence.pending:
            sequence.pending = [(sequence.token_ids or sequence.request.prompt)[-1]]
        if is_token and behind is not None:
            assert isinstance(rows.device, DevicePass)
            rows.device.note_read(entry)
            sequence.pending.clear()  # the pass behind it reads the token
        is_going_on = sequence.finish_reason is None and len(sequence.token_ids) > entry.number
        if is_going_on and (is_token or outcome is NoToken.AGAIN):
            append_forced(sequence, sequence.settings, table)
        # The token itself is pending where no pass reads it yet.
        is_turned = not is_token or sequence.finish_reason is not None or len(sequence.pending) > (behind is None)
        decided.close(number, is_token=is_token, is_turned=is_turned)
        if behind is None or is_turned:
            num_held = entry.end
            if behind is not None:
                behind.is_open, num_held = False, behind.end  # what it takes is not wanted
            num_kept = entry.end if entry.is_parked else sequence.num_read
            if num_kept < num_held:
                rows.cuts[sequence.row] = num_kept

    def _rewind(self, rows: CacheRows) -> None:
        """Drop what runs: after a failure, all texts go on from what the host knows of them."""
        device = self._device_over(rows)
        for sequence in () if device is None else device.forget():
            if sequence.row < 0 or sequence.finish_reason is not None or sequence.held is not None:
                continue
            sequence.is_waiting = False
            sequence.pending = sequence.pending or [(sequence.token_ids or sequence.request.prompt)[-1]]
            rows.cuts[sequence.row] = sequence.num_read
        rows.cut()

    def recover(self, groups: Sequence[Group], rows: CacheRows) -> bool:
        """Read the last token again where no token was taken after it."""
        self._rewind(rows)
        for group in groups:
            sequence = group.sequence
            if sequence.held is not None or sequence.finish_reason is not None:
                continue
            if not sequence.pending and not group.withheld:
                sequence.pending = [(sequence.token_ids or sequence.request.prompt)[-1]]
            sequence.is_waiting = False
            rows.cuts[sequence.row] = group.num_cached
        rows.cut()
        return True

    def again(self, group: Group) -> Group:
        """The text goes on where it was."""
        device = None if self._device is None else self._device()
        if device is not None:
            device.leave(group.sequence)
        group.sequence.read_again()
        return Group(group.sequences)


def begin_text(sequence: TextRow, settings: Settings) -> None:
    """Take what is forced at the beginning of a text, maybe all; `LengthError` if no text of the constraint fits."""
    check_budget(sequence, settings)
    is_empty = sequence.finish_reason is not None
    if not is_empty:
        append_forced(sequence, settings, None)
    if sequence.finish_reason is not None and not is_empty:  # all of the text is forced
        sequence.first_token_at = time.perf_counter()


def follow(decided: Decided, number: int) -> Outcome | None:
    """Take the target's tokens of one row as far as the draft agrees, and one more; the row may finish by any of them.

    Returns:
        What its last position came to; None if the tokens that follow are forced.
    """
    entry = decided.entries[number]
    sequence, settings, outcome = entry.sequence, entry.sequence.settings, None
    for place, choice in enumerate(decided.choices(number)):
        num_taken = len(sequence.token_ids) - entry.number
        if settings.is_canonical and num_taken > entry.guess.num_forced and forced_run(sequence, settings):
            return _counted(entry, None)  # what follows here is not the target's to choose
        outcome = decided.resolve(number, place, choice)
        match outcome:
            case NoToken.WAITS:
                decided.hold(number, place)
            case NoToken.WHOLE:
                sequence.finish("complete")
            case DecodekitError():
                sequence.finish("dead_end" if isinstance(outcome, DeadEndError) else "error", outcome)
            case int():
                sequence.pending.clear()  # what stands before the position has been read, draft tokens too
                sequence.num_slices = 0
                append_token(sequence, outcome, settings, decided.table)
        if sequence.finish_reason is not None or outcome != choice:
            break
    return _counted(entry, outcome)


def _counted(entry: Entry, outcome: Outcome | None) -> Outcome | None:
    """The outcome; what was taken is counted, unless the rest of it waits."""
    sequence, guess = entry.sequence, entry.guess
    if entry.is_parked:
        return outcome
    sequence.forget_states()
    tokens = sequence.token_ids[entry.number :]
    offered = guess.offered(entry.draft, tokens).tokens if guess.tokens or guess.drawn else ()
    if offered:
        num_kept = num_equal(tokens, offered)
        num_forced = min(num_kept, guess.num_forced)
        sequence.num_forced_tokens += num_forced
        num_drafted = max(len(offered), len(guess.tokens)) - guess.num_forced
        if num_drafted:
            sequence.count_draft(num_drafted, num_kept - num_forced, guess.source)
    if sequence.first_token_at is None and sequence.token_ids:
        sequence.first_token_at = time.perf_counter()
    return outcome


def decode_texts(
    model: CausalLM,
    settings: Settings,
    num_prompts: int,
    requests: Iterable[Request | DecodekitError],
    num_samples: int = 1,
) -> Iterator[Update]:
    """Decode a stream of requests, `num_samples` texts of each.

    The text of the first sample is handed out as it grows. The last update of a request comes when all its samples have
    ended; its result is that of the first, with those of the others, in their order, in `Result.others`.

    Args:
        num_prompts: most prompts at a time.
        requests: what to continue, as for `scheduler.run`.
        num_samples: texts of each request, at least 1.
    """
    num_rows = max(num_prompts, min(num_prompts * num_samples, MAX_ROWS))
    return run(Texts(model), settings, num_rows, requests, num_samples)
