"""A pass whose tokens a device takes by itself, so that it does not wait for the host.

Rows that a device decodes are started a step ahead: it keeps what it has taken for the next pass (`PagedRows.taken`),
and nothing of the text comes from the host. A pass is one replay of a captured graph, and its inputs move on by
themselves (`decoding.draws.device_step`). Ends, stop strings and budgets are seen one step late, and what was taken
behind an end is dropped.

A constraint costs no wait either: the token of the unmasked distribution is certified on the device (`asking`), and the
host asks the matcher about it while the next pass runs. Only a row whose token is refused, or is not certified, goes
back one step; it reads its last token again and is decided with its mask, which the device may have already
(`mask_pool`). A row whose mask or answer is late stays out of the passes until it is there; the others go on.

A draft depends on the text, so the host sees the tokens of a row before it proposes more. The draft goes up with the
inputs of the pass, the device takes and matches all of its tokens, and one entry comes down. A row whose proposer was
silent runs ahead like the others, and is seen first again once its proposer has something to offer.

What fails in a row is its status: NaN or no finite logit where the device takes a token, or an exception of its
constraint. Then the host decides the row, and says what was wrong as it does everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.decoding.draws.device_draws import DeviceDraw, Parameters
from decodekit.decoding.draws.device_step import DecodeStep, StepShape, draws_of
from decodekit.decoding.draws.guesses import guesses_of
from decodekit.decoding.lazy_masks.mask_pool import MIN_PLACES, MaskPool, mask_key
from decodekit.decoding.lazy_masks.positions import NO_GUESS, Guess, NoToken, Outcome
from decodekit.decoding.lazy_masks.probes import is_due, pause_after
from decodekit.decoding.lazy_masks.state_memory import StateMemory
from decodekit.decoding.loop.flight import TAKEN, Decided, Entry
from decodekit.decoding.loop.text_row import TextRow, by_settings
from decodekit.decoding.prefixes.row_memory import ROW_TOKENS, new_cache, rows_that_fit
from decodekit.errors import DecodekitError, is_out_of_memory
from decodekit.gpu.draw_settings import ASKED, DRAFT, FLAGS, INDEX, MASKS, NO_MASK, NUM_VALUES, packed
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.causal_lm import CausalLM
from decodekit.models.runners.captured import bucket
from decodekit.models.runners.paged import WIDTH_BUCKETS, PagedModel, Variant, row_bucket

SEEN_FIRST: Final = 8
"""Where one row in so many could not be in the next step, the last one is seen before it starts."""
RAISED: Final = 3
"""The status of a row whose constraint raised; 1 and 2 are those of `gpu.sampler`."""
NUM_WARM_UPS: Final = 16
"""Most steps until one is captured and proven, or cannot be."""
NUM_BUFFERS: Final = 3
"""For what comes back: a step is taken in before the second one after it starts."""


@dataclass(slots=True, eq=False)
class DeviceText:
    """The state of a text beside its row.

    Attributes:
        parameters: what its strategy is to the device; None if the device has no program for it.
        values: its numbers for the device, int32 [NUM_VALUES]; all 0 without a program.
        latest: its part in the pass that was started last.
        parked: decisions of which a question is not answered yet.
        wants_mask: whether its next token is decided with a mask.
        offer: what its proposer has offered for which length of the text; None if it was not asked.
        status: why the row could not take a token; 0 if it can. Then the host tells.
    """

    sequence: TextRow
    parameters: Parameters | None
    values: NDArray[np.int32]
    latest: Entry | None = None
    parked: DeviceDecided | None = None
    wants_mask: bool = False
    offer: tuple[int, Guess] | None = None
    status: int = 0

    @property
    def running(self) -> Entry | None:
        """Its part in a pass that is not seen yet."""
        return self.latest if self.latest is not None and self.latest.is_open else None

    @property
    def is_silent(self) -> bool:
        """Whether there is no draft for the row: it has no proposer, or one that offered nothing when asked last."""
        is_empty = self.offer is not None and not self.offer[1].tokens
        return self.sequence.settings.proposer is None or is_empty

    def guarded(self, act: Callable[[], Any]) -> Any:
        """Let code of the request act; if it raises, that is the status of the row, and the outcome None."""
        try:
            return act()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.status, self.sequence.is_waiting = RAISED, False
            return None


@dataclass(slots=True, eq=False)
class DeviceFlight:
    """A pass that runs; `out` is on the host once the event has come."""

    device: DevicePass
    entries: list[Entry]
    out: Tensor
    event: torch.cuda.Event | None

    def decide(self) -> list[DeviceDecided]:
        """Row by row, for a text may go on with what is known of its constraint by then; rows that have left aside."""
        if self.event is not None:
            self.event.synchronize()
        found = []
        for entry, columns in zip(self.entries, self.out.tolist(), strict=False):
            draws, is_wanted = draws_of(columns), entry.is_wanted
            entry.is_open = False
            text = self.device.text_of(entry.sequence) if is_wanted else None
            if text is None:
                self.device.num_dropped += len(draws)
            else:
                found.append(DeviceDecided(self.device, text, entry, draws))
        return found


class DeviceDecided(Decided):
    """The tokens that a device has taken for a row."""

    def __init__(self, device: DevicePass, text: DeviceText, entry: Entry, draws: list[DeviceDraw]) -> None:
        self.device, self.text, self.entry, self.draws = device, text, entry, draws
        self.entries = [entry]
        self._key: Hashable = None

    def choices(self, number: int) -> list[int]:
        """The tokens that the device has matched with the draft."""
        self._key = mask_key(self.text.sequence.matcher)
        return [draw.token for draw in self.draws]

    def resolve(self, number: int, place: int, choice: int | DecodekitError) -> Outcome:
        """The token, if its constraint allows it; else it is taken again."""
        draw, text = self.draws[place], self.text
        is_allowed = self.device.allows(text, self.entry, draw)
        if is_allowed is None:
            return NoToken.WAITS
        if is_allowed:
            return draw.token
        self.device.num_dropped += len(self.draws) - place
        text.sequence.num_slices = 0
        return NoToken.AGAIN

    def hold(self, number: int, place: int) -> None:
        """Keep this and what follows until the answer is there."""
        self.entry.is_parked, self.draws = True, self.draws[place:]
        self.text.parked = self

    def record(self) -> None:
        """Nothing: rows of which more is wanted than tokens are decoded by the host."""

    def close(self, number: int, *, is_token: bool, is_turned: bool) -> None:
        """Remember what came of the state of its constraint."""
        if self.entry.is_parked:
            return
        if is_token:
            self.text.wants_mask = False
        self.device.known.note_turn(self._key, is_turned=is_turned, after=self.text.sequence.matcher)


class DevicePass:
    """Starts passes over the rows of a paged cache whose tokens the device takes.

    Args:
        lm: the model, as proposers see it.
        model: how it runs over pages.
        cache: its rows.

    Attributes:
        cache: its rows.
        flights: passes that run, whose tokens the host has not seen.
        known: what came of states of constraints.
        num_steps, num_uploads, num_downloads: passes that were started, copies to the device, and back.
        num_dropped: tokens that were taken and not used: behind an end, or behind a refusal.
    """

    def __init__(self, lm: CausalLM, model: PagedModel, cache: PagedCache) -> None:
        self._lm, self._model, self.cache = lm, model, cache
        self.flights: Sequence[DeviceFlight] = ()
        self.num_steps = self.num_uploads = self.num_downloads = self.num_dropped = 0
        self.known: StateMemory = model.steps_over(cache.rows).programs.setdefault(StateMemory, StateMemory())
        self._texts: dict[int, DeviceText] = {}  # by the identity of the sequence
        self._last: list[DeviceText] | None = None  # the rows of the last pass, if the next one may go on from it
        self._there: dict[int, list[Tensor]] = {}  # by columns, buffers for what comes back, used in turn

    def split(self, sequences: Sequence[TextRow]) -> tuple[list[TextRow], list[TextRow]]:
        """The rows whose next tokens the device takes, and the others."""
        ours, others = list[TextRow](), list[TextRow]()
        for sequence in sequences:
            text = self._text_of(sequence)
            is_ours = text.running is not None or text.parked is not None or _is_plain(text)
            (ours if is_ours else others).append(sequence)
        return ours, others

    def text_of(self, sequence: TextRow) -> DeviceText | None:
        """The state of a row; None if it has left."""
        text = self._texts.get(id(sequence))
        return text if text is not None and text.sequence is sequence else None

    def _text_of(self, sequence: TextRow) -> DeviceText:
        text = self.text_of(sequence)
        if text is None:
            if len(self._texts) > 4 * self.cache.num_rows:
                self._texts = {key: one for key, one in self._texts.items() if one.sequence.finish_reason is None}
            text = self._texts[id(sequence)] = _new_text(sequence)
        return text

    def leave(self, sequence: TextRow) -> None:
        """Drop what runs for a text that leaves its row."""
        text = self.text_of(sequence)
        if text is not None:
            del self._texts[id(sequence)]
            if text.running is not None:
                text.running.is_open = False

    def forget(self) -> list[TextRow]:
        """Drop what is known of rows and of passes that run; the texts of the rows."""
        sequences = [text.sequence for text in self._texts.values()]
        self._texts, self._last, self.flights = {}, None, ()
        return sequences

    def parked(self, sequences: Sequence[TextRow]) -> Iterator[DeviceDecided]:
        """The tokens that waited for the constraints of rows, to be taken in now."""
        for text in map(self._text_of, sequences):
            if text.parked is not None:
                decided, text.parked = text.parked, None
                decided.entry.is_parked = False
                yield decided

    # Starting a pass.

    def is_seen_first(self, sequences: Sequence[TextRow]) -> bool:
        """Whether the next pass waits for what runs, because many rows could not be in it otherwise."""
        texts = [self._text_of(sequence) for sequence in sequences]
        num_held = sum(text.running is not None and self._must_see(text, text.running) for text in texts)
        return num_held * SEEN_FIRST >= len(texts)

    def launch(self, sequences: Sequence[TextRow]) -> list[DeviceFlight]:
        """Start the next pass, or one for each variant of the modules that reads some of the rows."""
        texts = [self._text_of(sequence) for sequence in sequences]
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
                flights.append(DeviceFlight(self, entries, *self._download(step.out)))
        for text, entry in going:
            if text.running is not None:
                text.running.later = entry
            text.latest, entry.draft = entry, entry.guess.tokens
            text.sequence.num_forwards += 1
            text.sequence.pending = []
        return flights

    def _by_variant(self, going: list[tuple[DeviceText, Entry]]) -> dict[Variant, list[tuple[DeviceText, Entry]]]:
        rows = [entry.row for _, entry in going]
        ends = [self.cache.row_lengths[entry.row] + len(entry.tokens) for _, entry in going]
        found: dict[Variant, list[tuple[DeviceText, Entry]]] = {}
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

    def _begin(self, text: DeviceText) -> Entry | None:
        """A row's part in the next step; None if it has to wait for its last token, or its constraint."""
        sequence, latest = text.sequence, text.running
        if sequence.finish_reason is not None or text.parked is not None:
            return None
        if latest is not None:
            if self._must_see(text, latest) or latest.number + 1 >= sequence.max_tokens:
                return None
            return Entry(sequence, sequence.row, latest.number + 1, [TAKEN])
        if not _is_plain(text):
            return None
        has_mask = self._needs_mask(text)
        if has_mask and not self._is_prepared(text):
            return None
        return Entry(sequence, sequence.row, len(sequence.token_ids), sequence.pending, has_mask=has_mask)

    def _needs_mask(self, text: DeviceText) -> bool:
        """Whether the next token of a row is decided with its mask, and not asked about."""
        matcher = text.sequence.matcher
        if matcher is None:
            return False
        is_wanted = text.wants_mask or text.sequence.settings.masks == "always"
        return is_wanted or self.known.refuses(matcher) or not is_due(text.sequence)

    def _must_see(self, text: DeviceText, latest: Entry) -> bool:
        """Whether a step behind one that runs would hardly be of use: then its token is seen first.

        It would not be where a draft or a mask comes next, or where the constraint has gone back or on by itself
        (forced tokens), or came to a state that refuses, when it was in the same state before.
        """
        if not text.is_silent:
            return True
        sequence = text.sequence
        if sequence.matcher is None:
            return False
        return latest.has_mask or sequence.pause_left > 0 or self.known.is_turning(sequence.matcher)

    def _is_prepared(self, text: DeviceText) -> bool:
        """Whether the mask of a row can be made at once; otherwise a slice of the work for it was done."""
        text.wants_mask = True
        sequence, is_there = text.sequence, True
        begin = time.perf_counter()
        if self.cache.num_rows > 1:
            is_there = bool(text.guarded(sequence.is_prepared))
        sequence.mask_s += time.perf_counter() - begin
        return is_there

    def _propose(self, texts: list[DeviceText]) -> None:
        """Ask the proposers of rows, all those of one together, unless what they offered last reaches on."""
        asked = [text for text in texts if text.sequence.settings.proposer is not None and _rest_of(text) is None]
        of = {id(text.sequence): text for text in asked}
        for some in by_settings([text.sequence for text in asked]):
            guesses = guesses_of(some, self._lm, some[0].settings, None)
            for sequence, guess in zip(some, guesses, strict=True):
                of[id(sequence)].offer = len(sequence.token_ids), guess

    def _draft_for(self, text: DeviceText, entry: Entry) -> Guess:
        """The draft behind the pending tokens of a row: as much of the offer as a captured step has room for."""
        guess = _rest_of(text) or NO_GUESS
        if self._model.capture is None:
            return guess
        return replace(guess, tokens=guess.tokens[: max(0, WIDTH_BUCKETS[-1] - len(entry.given))])

    def _with_masks(self, going: list[tuple[DeviceText, Entry]], pool: MaskPool) -> list[tuple[DeviceText, Entry]]:
        """The rows whose masks could be made; where one along a draft cannot, the draft ends."""
        pool.begin()
        masked = [(text, entry) for text, entry in going if entry.has_mask]
        for text, entry in masked:  # every row needs the mask of its first position
            self._add_mask(text, entry, pool)
        for text, entry in masked:
            if not text.status:
                self._add_masks_along(text, entry, pool)
        return [one for one in going if not one[0].status]

    def _add_mask(self, text: DeviceText, entry: Entry, pool: MaskPool) -> bool:
        """Have the mask of where the constraint of a row stands; whether it is there."""
        sequence, matcher = text.sequence, text.sequence.matcher
        assert matcher is not None
        begin = time.perf_counter()
        place = text.guarded(lambda: pool.place(matcher))
        sequence.mask_s += time.perf_counter() - begin
        if place is None:
            return False
        sequence.num_masks += 1
        entry.masks.append(place)
        return True

    def _add_masks_along(self, text: DeviceText, entry: Entry, pool: MaskPool) -> None:
        sequence, matcher, tokens = text.sequence, entry.sequence.matcher, entry.guess.tokens
        assert matcher is not None
        before, status = matcher.num_tokens, text.status
        try:
            for token in tokens:
                if not text.guarded(lambda token=token: matcher.accept(token)):  # type: ignore[misc]
                    break
                if self.cache.num_rows > 1 and not text.guarded(sequence.is_prepared):
                    break
                if not self._add_mask(text, entry, pool):
                    break
        finally:  # memory may have run out: the step is tried again
            matcher.rollback(matcher.num_tokens - before)
        sequence.is_waiting = False
        text.status = status  # what fails along a draft, the row meets when it comes there
        entry.guess = replace(entry.guess, tokens=tokens[: len(entry.masks) - 1])

    def _fill(self, texts: list[DeviceText], entries: list[Entry], variant: Variant, pool: MaskPool) -> DecodeStep:
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

    def _upload(self, step: DecodeStep, texts: list[DeviceText], entries: list[Entry], starts: list[int]) -> None:
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
        # What is captured may have cuts: rows without one are drawn as they are, and there are fewer captures.
        has_cut = self._model.capture is not None or any(one.top_k > 0 or one.top_p < 1 for one in known)
        shape = StepShape(num_rows, width, num_positions, has_cut, variant)
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
        wanted = np.arange(width * num_rows, dtype=np.int32).reshape(num_rows, width)[:, -num_positions:]
        with self._model.pass_lock():
            step = self._step_for(num_rows, parameters, width, num_positions, variant, self._pool())
            step.last = None
            for number in range(NUM_WARM_UPS):
                cache.reach([width] * num_rows, rows)
                starts = [number * width] * num_rows
                step.state.fill(places, starts, [width] * num_rows, grid, wanted.ravel(), values)
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

    # Taking in what a pass has taken.

    def propose_behind(self, flight: DeviceFlight) -> None:
        """Ask proposers that were silent: they may have something for what comes behind the pass that runs."""
        texts = (self.text_of(entry.sequence) for entry in flight.entries)
        self._propose([text for text in texts if text is not None and text.running is not None])

    def note_read(self, entry: Entry) -> None:
        """Note, for prefixes of later texts, what a pass has read that began before the host saw it."""
        if self.cache.remembers:
            self.cache.note(entry.row, entry.end, entry.sequence.pending)

    def allows(self, text: DeviceText, entry: Entry, draw: DeviceDraw) -> bool | None:
        """Whether a token is the one that the row takes; None if its constraint needs more time to say so."""
        sequence = entry.sequence
        if draw.status:
            text.status = draw.status
            return False
        if sequence.matcher is None or entry.has_mask:
            return True
        begin = time.perf_counter()
        is_allowed = text.guarded(lambda: self._is_answered(sequence, draw)) if draw.is_certified else False
        sequence.ask_s += time.perf_counter() - begin
        if sequence.is_waiting:
            return None
        pause_after(sequence, is_settled=bool(is_allowed))
        self.known.note_answer(sequence.matcher, is_allowed=bool(is_allowed))
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


def _is_plain(text: DeviceText) -> bool:
    """Whether a row is decoded in a way that the device knows, and is where one token or a few are to be read."""
    sequence, settings = text.sequence, text.sequence.settings
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


def _new_text(sequence: TextRow) -> DeviceText:
    """A new row's state; its settings are looked at once."""
    parameters, request = Parameters.of(sequence.settings), sequence.request
    if parameters is None:
        return DeviceText(sequence, None, np.zeros(NUM_VALUES, dtype=np.int32))
    values = packed([parameters], [request.seed], [request.sequence], [0], is_asked=False)
    return DeviceText(sequence, parameters, values[:NUM_VALUES, 0])


def _rest_of(text: DeviceText) -> Guess | None:
    """The rest of the last offer behind the text; None if the proposer is to be asked again."""
    if text.offer is None:
        return None
    length, guess = text.offer
    came = text.sequence.token_ids[length:]
    if not came:
        return guess
    is_on_its_way = len(came) < len(guess.tokens) and list(guess.tokens[: len(came)]) == came
    return replace(guess, tokens=guess.tokens[len(came) :]) if is_on_its_way else None


def warm_up(model: CausalLM, num_rows: int | None, *, drafts: bool) -> int:
    """Compile layers and capture the steps of up to so many rows before texts need them; how many were captured.

    The largest come first. They are the steps of rows that run ahead of the host, and those of all others.

    Args:
        num_rows: None for those of an engine.
        drafts: whether steps with drafts are captured, too.

    Raises:
        TooManyRowsError: there is no memory for so many rows.
    """
    paged: PagedModel | None = getattr(model, "paged", None)
    if paged is None or paged.capture is None:
        return 0
    paged.compile_layers()
    num_rows = num_rows or rows_that_fit(model)
    kinds = [(width, is_draft) for is_draft in (False, True)[: 1 + drafts] for width in WIDTH_BUCKETS[is_draft:]]
    cache = new_cache(model, num_rows, ROW_TOKENS, f"batch_size={num_rows}")
    sizes = sorted({row_bucket(number) for number in range(1, num_rows + 1)}, reverse=True)
    counts, num_captured = [min(size, num_rows) for size in sizes], 0
    if isinstance(cache, PagedCache):
        device = DevicePass(model, paged, cache)
        num_captured = sum(device.warm_up(count, *kind) for kind in kinds for count in counts)
    pages: PagedCache = cache if isinstance(cache, PagedCache) else cache.kv  # type: ignore[attr-defined]
    return num_captured + sum(paged.warm_up(pages, count, width) for width in paged.widths for count in counts)
