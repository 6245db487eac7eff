"""Decoding on a device that does not wait for the host: a step starts before the host has seen the tokens of the last.

Two rows, the second under a constraint that refuses its token x3:

    device   step 3: takes a3 x3     step 4: reads a3 x3, takes a4 x4     step 5: reads a4, b2; takes a5 b3 (masked)
    host                             step 3 is there: a3 fits. May x3     step 4 is there: a4 fits; x4 came after x3
                                     come after b2? No: its row goes      and is dropped
                                     back to b2 and needs a mask

A token is taken on the device, which keeps it for the next step (`PagedRows.taken`), and nothing of the text comes from
the host: a step is one replay of a captured graph, and its inputs move on by themselves (`decode_step`).
Ends, stop strings and budgets are seen one step late, and what was taken behind an end is dropped.

A constraint costs no wait either: the token of the unmasked distribution is certified on the device (`asking`), and the
host asks the matcher about it while the next pass runs. Only a row whose token is refused, or is not certified, goes
back one step; it reads its last token again and is decided with its mask, which the device may have already
(`mask_pool`). A row whose mask or answer is late stays out of the steps until it is there; the others go on.

A draft depends on the text, so the host sees the tokens of a row before it proposes more. The draft goes up with the
inputs of the step, the device takes and matches all of its tokens, and one entry comes down. A row whose proposer was
silent runs ahead like the others, and is seen first again once its proposer has something to offer.

What fails in a row is its status: NaN or no finite logit where the device takes a token, or an exception of its
constraint or proposer. Then `decoding.loop.step` decides the row, and says what was wrong as it does everywhere.

Rows with a custom strategy, a guard, log-probabilities or a text that must close in time are decoded by
`decoding.loop.step`, over the same pages. The text of a row is the same on either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.decoding.draws.device_draws import DeviceDraw, Parameters
from decodekit.decoding.lazy_masks.mask_pool import MIN_PLACES, MaskPool, mask_key
from decodekit.decoding.lazy_masks.positions import Guess, Position
from decodekit.decoding.lazy_masks.probes import is_due, pause_after
from decodekit.decoding.lazy_masks.state_memory import StateMemory
from decodekit.decoding.loop.append import append_forced, append_token, forced_run
from decodekit.decoding.loop.device_step import DecodeStep, StepShape, draws_of
from decodekit.decoding.loop.faults import fault_of
from decodekit.decoding.loop.step import by_settings, propose
from decodekit.decoding.loop.text_row import TextRow
from decodekit.errors import is_out_of_memory
from decodekit.gpu.draw_settings import ASKED, DRAFT, FLAGS, INDEX, MASKS, NO_MASK, NUM_VALUES, packed
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.causal_lm import CausalLM
from decodekit.models.runners.captured import bucket
from decodekit.models.runners.paged import WIDTH_BUCKETS, PagedModel, Variant, row_bucket
from decodekit.speculation.verification import num_equal

TAKEN: Final = -1
"""Stands for the token that the device has taken."""
SEEN_FIRST: Final = 8
"""Where one row in so many could not be in the next step, the last one is seen before it starts."""
RAISED: Final = 3
"""The status of a row whose constraint or proposer raised; 1 and 2 are those of `gpu.sampler`."""
NUM_WARM_UPS: Final = 16
"""Most steps until one is captured and proven, or cannot be."""
NUM_BUFFERS: Final = 3
"""For what comes back: a step is taken in before the second one after it starts."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A row of a step that runs: it takes token `number` of a text, and those after it along a guess.

    Attributes:
        has_mask: whether all its positions have masks.
        end: tokens that the cache holds behind its pass.
    """

    sequence: TextRow
    row: int
    number: int
    given: list[int]
    has_mask: bool
    guess: Guess = Guess()
    masks: list[int] = field(default_factory=list)
    end: int = 0
    is_dropped: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether the text is where it was expected to be."""
        sequence = self.sequence
        is_here = sequence.row == self.row and len(sequence.token_ids) == self.number
        return not self.is_dropped and is_here and sequence.finish_reason is None

    @property
    def tokens(self) -> list[int]:
        """The tokens that the row reads."""
        return [*self.given, *self.guess.tokens]


@dataclass(slots=True, eq=False)
class _Text:
    """A row's state beside its sequence.

    Attributes:
        parameters: what its strategy is to the device; None if the device has no program for it.
        values: its numbers for the device, int32 [NUM_VALUES]; all 0 without a program.
        latest: the last step that was started with it, until its token is seen.
        parked: a step of which a question is not answered yet, with what comes of it from there on.
        wants_mask: whether its next token is decided with a mask.
        offer: what its proposer has offered for which length of the text; None if it was not asked.
        status: why the row could not take a token; 0 if it can. Then the host tells.
    """

    sequence: TextRow
    parameters: Parameters | None
    values: NDArray[np.int32]
    latest: _Entry | None = None
    parked: tuple[_Entry, list[DeviceDraw]] | None = None
    wants_mask: bool = False
    offer: tuple[int, Guess] | None = None
    status: int = 0

    @property
    def is_silent(self) -> bool:
        """Whether there is no draft for the row: it has no proposer, or one that offered nothing when asked last."""
        is_empty = self.offer is not None and not self.offer[1].tokens
        return self.sequence.settings.proposer is None or is_empty


@dataclass(slots=True, eq=False)
class _Flight:
    """A step that runs; `out` is on the host once the event has come."""

    entries: list[_Entry]
    out: Tensor
    event: torch.cuda.Event | None


class RunAhead:
    """Decodes rows of a paged cache a step ahead of the host.

    Args:
        lm: the model, as proposers see it.
        model: how it runs over pages.
        cache: its rows.
        isolates: whether an exception that a text raises when it takes a token ends that text alone.

    Attributes:
        cache: its rows.
        num_steps, num_uploads, num_downloads: steps that were started, copies to the device, and back.
        num_dropped: tokens that were taken and not used: behind an end, or behind a refusal.
    """

    def __init__(self, lm: CausalLM, model: PagedModel, cache: PagedCache, *, isolates: bool = False) -> None:
        self._lm, self._model, self.cache, self._isolates = lm, model, cache, isolates
        self.num_steps = self.num_uploads = self.num_downloads = self.num_dropped = 0
        self._flights: list[_Flight] = []
        self._texts: dict[int, _Text] = {}
        self._last: list[_Text] | None = None  # the rows of the last step, if the next one may go on from it
        self._known: StateMemory = model.steps_over(cache.rows).programs.setdefault(StateMemory, StateMemory())
        self._there: dict[int, list[Tensor]] = {}  # by columns, buffers for what comes back, used in turn
        self._cuts: dict[int, int] = {}  # by row, how many tokens the cache is to keep

    def split(self, sequences: Sequence[TextRow]) -> tuple[list[TextRow], list[TextRow]]:
        """The rows that are decoded here at this step, and the others."""
        ours, others = list[TextRow](), list[TextRow]()
        for sequence in sequences:
            text = self._text_of(sequence)
            is_ours = text.latest is not None or text.parked is not None or _is_plain(sequence, text)
            (ours if is_ours else others).append(sequence)
        return ours, others

    @torch.inference_mode()
    def step(self, sequences: Sequence[TextRow]) -> None:
        """Start the next step of rows, and take in the tokens of the one before; some rows finish by that.

        Args:
            sequences: unfinished ones that are decoded here (`split`); none takes in what still runs.
        """
        try:
            self._step(sequences)
        except BaseException:
            self.rewind()
            raise

    def _step(self, sequences: Sequence[TextRow]) -> None:
        texts = [self._text_of(sequence) for sequence in sequences]
        for text in texts:
            if text.parked is not None:
                (entry, draws), text.parked = text.parked, None
                self._follow(text, entry, draws, None)
        before, self._flights = self._flights, []
        if before and self._is_seen_first(texts):
            for flight in before:
                self._take_in(flight)
            before = []
        self._flights = self._launch(texts)
        for flight in before:
            self._take_in(flight)
        if before and not self._flights:  # every row had to be seen first
            self._flights = self._launch(texts)
        self._cut_rows()

    def leave(self, sequence: TextRow) -> None:
        """Drop what runs for a text that leaves its row."""
        text = self._texts.pop(id(sequence), None)
        if text is not None and text.sequence is sequence:
            self._drop(text, text.latest)

    def rewind(self) -> None:
        """Drop what runs: after a failure, all texts go on from what the host knows of them."""
        texts, cuts = self._texts, self._cuts
        self._flights, self._last, self._texts, self._cuts = [], None, {}, {}
        lengths = list(self.cache.row_lengths)
        for text in texts.values():
            sequence = text.sequence
            if sequence.row < 0 or sequence.finish_reason is not None or sequence.held is not None:
                continue
            sequence.is_waiting = False
            sequence.pending = sequence.pending or [(sequence.token_ids or sequence.request.prompt)[-1]]
            cuts[sequence.row] = sequence.num_read
        for row, length in cuts.items():
            lengths[row] = min(length, lengths[row])
        self.cache.truncate(lengths)

    def _text_of(self, sequence: TextRow) -> _Text:
        text = self._texts.get(id(sequence))
        if text is None or text.sequence is not sequence:
            if len(self._texts) > 4 * self.cache.num_rows:
                self._texts = {key: one for key, one in self._texts.items() if one.sequence.finish_reason is None}
            text = self._texts[id(sequence)] = _new_text(sequence)
        return text

    # Starting a step.

    def _is_seen_first(self, texts: list[_Text]) -> bool:
        """Whether the next step waits for what runs, because many rows could not be in it otherwise."""
        num_held = sum(text.latest is not None and self._must_see(text, text.latest) for text in texts)
        return num_held * SEEN_FIRST >= len(texts)

    def _launch(self, texts: list[_Text]) -> list[_Flight]:
        """Start the next step: one pass, or one for each variant of the modules that reads some of the rows."""
        self._cut_rows()
        going = [(text, entry) for text in texts if (entry := self._begin(text)) is not None]
        self._propose([text for text, entry in going if entry.given != [TAKEN]])
        for text, entry in going:
            if entry.given != [TAKEN]:
                entry.guess = self._draft_for(text, entry)
        flights = []
        with self._model.pass_lock():
            pool = self._pool()
            going = self._with_masks([one for one in going if not one[0].status], pool)
            if not going:
                self._last = None
            for variant, part in self._by_variant(going).items():
                entries = [entry for _, entry in part]
                step = self._fill([text for text, _ in part], entries, variant, pool)
                step(max(entry.end - len(entry.tokens) for entry in entries))
                self.num_steps += 1
                self.num_downloads += 1
                flights.append(_Flight(entries, *self._download(step.out)))
        for text, entry in going:
            text.latest = entry
            text.sequence.num_forwards += 1
            text.sequence.pending = []
        return flights

    def _by_variant(self, going: list[tuple[_Text, _Entry]]) -> dict[Variant, list[tuple[_Text, _Entry]]]:
        rows = [entry.row for _, entry in going]
        ends = [self.cache.row_lengths[entry.row] + len(entry.tokens) for _, entry in going]
        found: dict[Variant, list[tuple[_Text, _Entry]]] = {}
        for variant, one in zip(self._model.variants_of(self.cache, rows, ends), going, strict=True):
            found.setdefault(variant, []).append(one)
        return found

    def _download(self, out: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """A step's result on its way to the host, and the event of its arrival."""
        if not out.is_cuda:
            return out.clone(), None
        buffers = self._there.setdefault(out.shape[1], [])
        if not buffers or len(buffers[0]) < len(out):
            buffers[:] = [torch.zeros_like(out, device="cpu").pin_memory() for _ in range(NUM_BUFFERS)]
        buffers.append(buffers.pop(0))
        there = buffers[-1][: len(out)]
        there.copy_(out, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(out.device))  # which may not be the current device
        return there, event

    def _begin(self, text: _Text) -> _Entry | None:
        """A row's part in the next step; None if it has to wait for its last token, or its constraint."""
        sequence, latest = text.sequence, text.latest
        if sequence.finish_reason is not None or text.parked is not None:
            return None
        if latest is not None:
            if self._must_see(text, latest) or latest.number + 1 >= sequence.max_tokens:
                return None
            return _Entry(sequence, sequence.row, latest.number + 1, [TAKEN], False)
        if not _is_plain(sequence, text):
            return None
        has_mask = self._needs_mask(text)
        if has_mask and not self._is_prepared(text):
            return None
        return _Entry(sequence, sequence.row, len(sequence.token_ids), sequence.pending, has_mask)

    def _needs_mask(self, text: _Text) -> bool:
        """Whether the next token of a row is decided with its mask, and not asked about."""
        matcher = text.sequence.matcher
        if matcher is None:
            return False
        is_wanted = text.wants_mask or text.sequence.settings.masks == "always"
        return is_wanted or self._known.refuses(matcher) or not is_due(text.sequence)

    def _must_see(self, text: _Text, latest: _Entry) -> bool:
        """Whether a step behind one that runs would hardly be of use: then its token is seen first.

        It would not be where a draft or a mask comes next, or where the constraint has gone back or on by itself
        (forced tokens), or came to a state that refuses, when it was in the same state before.
        """
        if not text.is_silent:
            return True
        sequence = text.sequence
        if sequence.matcher is None:
            return False
        return latest.has_mask or sequence.pause_left > 0 or self._known.is_turning(sequence.matcher)

    def _is_prepared(self, text: _Text) -> bool:
        """Whether the mask of a row can be made at once; otherwise a slice of the work for it was done."""
        text.wants_mask = True
        sequence, is_there = text.sequence, True
        begin = time.perf_counter()
        if self.cache.num_rows > 1:
            is_there = bool(self._guarded(text, sequence.is_prepared))
        sequence.mask_s += time.perf_counter() - begin
        return is_there

    def _guarded(self, text: _Text, act: Callable[[], Any]) -> Any:
        """Let code of a request act; if it raises, that is the status of the row, and the outcome None."""
        try:
            return act()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            text.status, text.sequence.is_waiting = RAISED, False
            return None

    def _propose(self, texts: list[_Text]) -> None:
        """Ask the proposers of rows, all those of one together, unless what they offered last reaches on."""
        asked = [text for text in texts if text.sequence.settings.proposer is not None and _rest_of(text) is None]
        of = {id(text.sequence): text for text in asked}
        for some in by_settings([text.sequence for text in asked]):
            try:
                guesses = propose(some, self._lm, some[0].settings, None)
            except Exception as error:  # of the row of one of them
                if is_out_of_memory(error):
                    raise
                guesses = [self._guess_alone(of[id(sequence)]) for sequence in some]
            for sequence, guess in zip(some, guesses, strict=True):
                of[id(sequence)].offer = len(sequence.token_ids), guess

    def _guess_alone(self, text: _Text) -> Guess:
        sequence = text.sequence
        guesses = self._guarded(text, lambda: propose([sequence], self._lm, sequence.settings, None))
        return guesses[0] if guesses else Guess()

    def _draft_for(self, text: _Text, entry: _Entry) -> Guess:
        """The draft behind the pending tokens of a row: as much of the offer as a captured step has room for."""
        guess = _rest_of(text) or Guess()
        if self._model.capture is None:
            return guess
        return replace(guess, tokens=guess.tokens[: max(0, WIDTH_BUCKETS[-1] - len(entry.given))])

    def _with_masks(self, going: list[tuple[_Text, _Entry]], pool: MaskPool) -> list[tuple[_Text, _Entry]]:
        """The rows whose masks could be made; where one along a draft cannot, the draft ends."""
        pool.begin()
        masked = [(text, entry) for text, entry in going if entry.has_mask]
        for text, entry in masked:  # every row needs the mask of its first position
            self._add_mask(text, entry, pool)
        for text, entry in masked:
            if not text.status:
                self._add_masks_along(text, entry, pool)
        return [one for one in going if not one[0].status]

    def _add_mask(self, text: _Text, entry: _Entry, pool: MaskPool) -> bool:
        """Have the mask of where the constraint of a row stands; whether it is there."""
        sequence, matcher = text.sequence, text.sequence.matcher
        assert matcher is not None
        begin = time.perf_counter()
        place = self._guarded(text, lambda: pool.place(matcher))
        sequence.mask_s += time.perf_counter() - begin
        if place is None:
            return False
        sequence.num_masks += 1
        entry.masks.append(place)
        return True

    def _add_masks_along(self, text: _Text, entry: _Entry, pool: MaskPool) -> None:
        sequence, matcher, tokens = text.sequence, entry.sequence.matcher, entry.guess.tokens
        assert matcher is not None
        before, status = matcher.num_tokens, text.status
        try:
            for token in tokens:
                if not self._guarded(text, lambda token=token: matcher.accept(token)):  # type: ignore[misc]
                    break
                if self.cache.num_rows > 1 and not self._guarded(text, sequence.is_prepared):
                    break
                if not self._add_mask(text, entry, pool):
                    break
        finally:  # memory may have run out: the step is tried again
            matcher.rollback(matcher.num_tokens - before)
        sequence.is_waiting = False
        text.status = status  # what fails along a draft, the row meets when it comes there
        entry.guess = replace(entry.guess, tokens=tokens[: len(entry.masks) - 1])

    def _fill(self, texts: list[_Text], entries: list[_Entry], variant: Variant, pool: MaskPool) -> DecodeStep:
        """Bring the inputs of a step to the device, unless it can go on from the last one."""
        rows, every = [entry.row for entry in entries], [entry.tokens for entry in entries]
        counts = [len(tokens) for tokens in every]
        cache = self.cache
        cache.reach(counts, rows)
        starts = [cache.row_lengths[row] for row in rows]
        cache.commit(counts, rows)
        for entry, start, tokens in zip(entries, starts, every, strict=True):
            entry.end = start + len(tokens)
            if cache.remembers:
                cache.note(entry.row, start, [token for token in tokens if token != TAKEN])
        num_positions = 1 + max(len(entry.guess.tokens) for entry in entries)
        parameters = [text.parameters for text in texts if text.parameters is not None]
        step = self._step_for(len(texts), parameters, max(counts), num_positions, variant, pool)
        is_next = self._last == texts and step.last is self._last
        is_taken = all(tokens == [TAKEN] for tokens in every)
        if not (is_next and is_taken and not any(group.entries for group in cache.rows.groups)):
            self._upload(step, texts, entries, starts)
            num_before = pool.num_uploads
            pool.upload()
            self.num_uploads += 1 + pool.num_uploads - num_before
        has_masks = any(entry.has_mask for entry in entries)
        self._last = step.last = texts if max(counts) == 1 and not has_masks else None
        return step

    def _upload(self, step: DecodeStep, texts: list[_Text], entries: list[_Entry], starts: list[int]) -> None:
        shape, every = step.shape, [entry.tokens for entry in entries]
        counts = [len(tokens) for tokens in every]
        grid = np.zeros((len(entries), max(counts)), dtype=np.int32)
        for columns, tokens in zip(grid, every, strict=True):
            columns[: len(tokens)] = tokens
        firsts = np.array([len(entry.given) - 1 for entry in entries], dtype=np.int32)
        columns = np.minimum(firsts[:, None] + np.arange(shape.num_positions, dtype=np.int32), shape.width - 1)
        wanted = np.arange(len(entries), dtype=np.int32)[:, None] * shape.width + columns
        values = np.full((MASKS + shape.num_positions, len(entries)), NO_MASK, dtype=np.int32)
        values[:NUM_VALUES] = np.stack([text.values for text in texts], axis=1)
        values[INDEX] = [entry.number for entry in entries]
        values[DRAFT] = [len(entry.guess.tokens) for entry in entries]
        values[FLAGS] |= [ASKED * (entry.sequence.matcher is not None and not entry.has_mask) for entry in entries]
        for row, entry in enumerate(entries):
            values[MASKS : MASKS + len(entry.masks), row] = entry.masks
        places = [self.cache.places[entry.row] for entry in entries]
        step.state.fill(places, starts, counts, grid, wanted.ravel(), values)

    def _step_for(
        self,
        num_rows: int,
        known: Sequence[Parameters],
        width: int,
        num_positions: int,
        variant: Variant,
        pool: MaskPool,
    ) -> DecodeStep:
        """The program for so many rows, columns and positions, of which there is one for all caches of the model."""
        if self._model.capture is not None:
            num_rows, width = row_bucket(num_rows), bucket(width, WIDTH_BUCKETS) or width
            num_positions = width if num_positions > 1 else 1  # of few kinds, so that there are few captures
        # What is captured has both: rows without them are drawn as they are, and there are fewer captures.
        is_captured = self._model.capture is not None
        uses_top_k = is_captured or any(one.top_k > 0 for one in known)
        uses_top_p = is_captured or any(one.top_p < 1 for one in known)
        shape = StepShape(num_rows, width, num_positions, uses_top_k, uses_top_p, variant)
        programs = self._model.steps_over(self.cache.rows).programs
        key = shape, len(pool.masks)
        if key not in programs:
            programs[key] = DecodeStep(self._model, self.cache.rows, shape, pool)
        step: DecodeStep = programs[key]
        return step

    @torch.inference_mode()
    def warm_up(self, num_rows: int, width: int, is_draft: bool) -> bool:
        """Capture the step of so many rows, which are empty, and so many new tokens of each; whether it could be.

        Args:
            is_draft: whether all tokens but the first are a draft; else all are pending.
        """
        found = [self._warm_up(num_rows, width, is_draft, variant) for variant in self._model.variants_now]
        return all(found)

    def _warm_up(self, num_rows: int, width: int, is_draft: bool, variant: Variant) -> bool:
        cache, rows = self.cache, range(num_rows)
        parameters = [Parameters(is_greedy=True)] * num_rows
        grid = np.zeros((num_rows, width), dtype=np.int32)
        num_positions = width if is_draft else 1
        zeros = [0] * num_rows
        values = packed(parameters, zeros, zeros, zeros, num_positions)
        values[DRAFT] = num_positions - 1
        places = [cache.places[row] for row in rows]
        with self._model.pass_lock():
            step = self._step_for(num_rows, parameters, width, num_positions, variant, self._pool())
            step.last = None
            for number in range(NUM_WARM_UPS):
                cache.reach([width] * num_rows, rows)
                starts = [number * width] * num_rows
                wanted = (
                    np.arange(width * num_rows, dtype=np.int32).reshape(num_rows, width)[:, -num_positions:].ravel()
                )
                step.state.fill(places, starts, [width] * num_rows, grid, wanted, values)
                step(number * width)
                cache.commit([width] * num_rows, rows, grid.tolist() if cache.remembers else ())
                if step.is_settled:
                    break
        cache.reset(rows)
        self._last = None
        return step.is_captured

    def _pool(self) -> MaskPool:
        """The masks of all caches of the model that have no more rows than that."""
        num_places = MIN_PLACES
        while num_places < 2 * self.cache.num_rows:
            num_places *= 2
        programs = self._model.steps_over(self.cache.rows).programs
        key = MaskPool, num_places
        if key not in programs:
            programs[key] = MaskPool(num_places, -(-self._lm.vocab_size // 32), self.cache.rows.device)
        pool: MaskPool = programs[key]
        return pool

    # Taking in what a step has taken.

    def _take_in(self, flight: _Flight) -> None:
        if flight.event is not None:
            flight.event.synchronize()
        going_on = list[_Text]()
        for entry, row in zip(flight.entries, flight.out.tolist(), strict=False):
            text = self._texts.get(id(entry.sequence))
            later = None
            if text is not None and text.sequence is entry.sequence:
                later = text.latest if text.latest is not entry else None
                if later is None:
                    text.latest = None
            draws = draws_of(row)
            if text is None or not entry.is_wanted:
                self.num_dropped += len(draws)
                continue
            self._follow(text, entry, draws, later)
            if text.latest is not None:
                going_on.append(text)
        self._propose(going_on)  # a proposer that was silent may have something for what comes behind the next step

    def _follow(self, text: _Text, entry: _Entry, draws: list[DeviceDraw], later: _Entry | None) -> None:
        """Go on with what a step took for a row; what goes wrong in the text is an error of the text, or is raised."""
        try:
            self._decide(text, entry, draws, later)
        except Exception as error:
            if not self._isolates or is_out_of_memory(error):
                raise
            sequence = text.sequence
            sequence.finish("error", fault_of(error, "decoding", at=str(Position(sequence))))
            self._drop(text, later)
            self._cuts[sequence.row] = min(sequence.num_read, entry.end)

    def _decide(self, text: _Text, entry: _Entry, draws: list[DeviceDraw], later: _Entry | None) -> None:
        """Take tokens, as far as the constraint allows, or go back; `later` is the step that runs behind them."""
        sequence, settings = entry.sequence, entry.sequence.settings
        key = mask_key(sequence.matcher)
        allowed = True
        for place, draw in enumerate(draws):
            if settings.is_canonical and len(sequence.token_ids) > entry.number and forced_run(sequence, settings):
                break  # what follows here is not the target's to choose
            answer = self._allows(text, entry, draw)
            if answer is None:  # it is not there yet
                text.parked = entry, draws[place:]
                self._drop(text, later)
                self._cuts[sequence.row] = entry.end
                return
            allowed = answer
            if not allowed:
                self.num_dropped += len(draws) - place
                break
            sequence.pending.clear()  # what stands before the position has been read
            append_token(sequence, draw.token, settings, None)
            if sequence.finish_reason is not None:
                break
        sequence.num_slices = 0
        self._count(sequence, entry)
        if allowed:
            text.wants_mask = False
            if self.cache.remembers and later is not None:
                self.cache.note(sequence.row, entry.end, sequence.pending)
        elif not sequence.pending:
            sequence.pending = [(sequence.token_ids or sequence.request.prompt)[-1]]
        if allowed and later is not None:
            sequence.pending.clear()  # the step behind it reads the token
        if len(sequence.token_ids) > entry.number and sequence.finish_reason is None:
            append_forced(sequence, settings, None)
        is_seen = bool(sequence.pending) and later is None  # the token itself, which no step reads yet
        is_turned = not allowed or sequence.finish_reason is not None or len(sequence.pending) > is_seen
        self._known.note_turn(key, is_turned=is_turned, after=sequence.matcher)
        if is_turned:
            self._drop(text, later)  # what it takes is not wanted; what it reads is
        if later is None or is_turned:
            self._cuts[sequence.row] = sequence.num_read
        if sequence.first_token_at is None and sequence.token_ids:
            sequence.first_token_at = time.perf_counter()

    def _count(self, sequence: TextRow, entry: _Entry) -> None:
        """Note what became of a draft."""
        if entry.guess.tokens:
            num_kept = num_equal(entry.guess.tokens, sequence.token_ids[entry.number :])
            sequence.count_draft(len(entry.guess.tokens), num_kept, entry.guess.source)

    def _allows(self, text: _Text, entry: _Entry, draw: DeviceDraw) -> bool | None:
        """Whether a token is the one that the row takes; None if its constraint needs more time to say so."""
        sequence = entry.sequence
        if draw.status:
            text.status = draw.status
            return False
        if sequence.matcher is None or entry.has_mask:
            return True
        begin = time.perf_counter()
        is_allowed = self._guarded(text, lambda: self._is_answered(sequence, draw)) if draw.is_clear else False
        sequence.ask_s += time.perf_counter() - begin
        if sequence.is_waiting:
            return None
        pause_after(sequence, is_settled=bool(is_allowed))
        self._known.note_answer(sequence.matcher, is_allowed=bool(is_allowed))
        text.wants_mask = not is_allowed
        return bool(is_allowed)

    def _is_answered(self, sequence: TextRow, draw: DeviceDraw) -> bool:
        """Whether a constraint allows a token and what must be allowed besides; of no meaning if it waits."""
        assert sequence.matcher is not None
        for token in dict.fromkeys((draw.token, draw.given)):
            if self.cache.num_rows > 1 and not sequence.is_prepared(token):
                return False
            sequence.num_questions += 1
            if not sequence.matcher.validate([token]):
                return False
        return True

    def _drop(self, text: _Text, later: _Entry | None) -> None:
        if later is not None:
            later.is_dropped = True
            text.latest = None

    def _cut_rows(self) -> None:
        """Let the cache hold of some rows no more than their texts need."""
        if self._cuts:
            lengths = list(self.cache.row_lengths)
            for row, length in self._cuts.items():
                lengths[row] = min(length, lengths[row])
            self.cache.truncate(lengths)
            self._cuts = {}


def _is_plain(sequence: TextRow, text: _Text) -> bool:
    """Whether a row is decoded in a way that the device knows, and is where one token or a few are to be read."""
    settings = sequence.settings
    return (
        text.parameters is not None
        and not text.status
        and len(sequence.pending) <= WIDTH_BUCKETS[-1]
        and not sequence.has_guard
        and sequence.held is None
        and settings.num_alternatives is None
        and not settings.traces
        and not settings.must_close
        and not settings.stop_rules
        and settings.is_forced_unseen
    )


def _new_text(sequence: TextRow) -> _Text:
    """A new row's state; its settings are looked at once."""
    parameters, request = Parameters.of(sequence.settings), sequence.request
    if parameters is None:
        return _Text(sequence, None, np.zeros(NUM_VALUES, dtype=np.int32))
    values = packed([parameters], [request.seed], [request.sequence], [0], is_asked=False)
    return _Text(sequence, parameters, values[:NUM_VALUES, 0])


def _rest_of(text: _Text) -> Guess | None:
    """The rest of the last offer behind the text; None if the proposer is to be asked again."""
    if text.offer is None:
        return None
    length, guess = text.offer
    came = text.sequence.token_ids[length:]
    if not came:
        return guess
    is_on_its_way = len(came) < len(guess.tokens) and list(guess.tokens[: len(came)]) == came
    return replace(guess, tokens=guess.tokens[len(came) :]) if is_on_its_way else None
