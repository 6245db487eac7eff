"""Decoding on a device that does not wait for the host: a step starts before the host has seen the tokens of the last.

Two rows, the second under a constraint that refuses its token x3:

    device   step 3: takes a3 x3     step 4: reads a3 x3, takes a4 x4     step 5: reads a4, b2; takes a5 b3 (masked)
    host                             step 3 is there: a3 fits. May x3     step 4 is there: a4 fits; x4 came after x3
                                     come after b2? No: its row goes      and is dropped
                                     back to b2 and needs a mask

A token is taken on the device, which keeps it for the next step (`PagedRows.taken`), and nothing of the text comes from
the host: a step is one replay of a captured graph, and its inputs move on by themselves (`StepState.advance`).
Ends, stop strings and budgets are seen one step late, and what was taken behind an end is dropped.

A constraint costs no wait either: the token of the unmasked distribution is certified on the device (`asking`), and the
host asks the matcher about it while the next pass runs. Only a row whose token is refused, or is not certified, goes
back one step; it reads its last token again and is decided with its mask.

Rows whose strategy is somebody's Python, with drafts, guards, log-probabilities, are decoded by `generation.step`, over
the same pages. The text of a row is the same on either way.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.errors import DecodekitError
from decodekit.generation.append import append_forced, append_token
from decodekit.generation.asking import is_due, pause_after
from decodekit.generation.device_draws import (
    INDEX,
    MASK,
    NO_MASK,
    NUM_VALUES,
    DeviceDraw,
    Parameters,
    draw_rows,
    packed,
)
from decodekit.generation.sequence import Sequence
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.tiers.captured import Run, bucket
from decodekit.models.tiers.paged import CAPTURE_AFTER, ROW_BUCKETS, WIDTH_BUCKETS, PagedModel
from decodekit.models.tiers.step_state import StepState

MAX_STATES: Final = 4096
"""States of constraints of which it is remembered what a step behind them was good for."""
TAKEN: Final = -1
"""Stands for the token that the device has taken."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A row of a step that runs: it takes token `number` of a text."""

    sequence: Sequence
    row: int
    number: int
    has_mask: bool
    is_dropped: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether the text is where it was expected to be."""
        sequence = self.sequence
        is_here = sequence.row == self.row and len(sequence.token_ids) == self.number
        return not self.is_dropped and is_here and sequence.finish_reason is None


@dataclass(slots=True, eq=False)
class _Text:
    """What is known of a row beside its sequence.

    Attributes:
        parameters: what its strategy is to the device; None if the device has no program for it.
        values: its numbers for the device, int32 [NUM_VALUES]; all 0 without a program.
        latest: the last step that was started with it, until its token is seen.
        parked: a token whose question is not answered yet.
        wants_mask: whether its next token is decided with a mask.
        is_failed: whether the device could not take a token; the host tells why.
    """

    sequence: Sequence
    parameters: Parameters | None
    values: NDArray[np.int32]
    latest: _Entry | None = None
    parked: tuple[_Entry, DeviceDraw] | None = None
    wants_mask: bool = False
    is_failed: bool = False


@dataclass(slots=True, eq=False)
class _Flight:
    """A step that runs; `out` [B, 4] is on the host once the event has come."""

    entries: list[_Entry]
    out: Tensor
    event: torch.cuda.Event | None


class DecodeStep:
    """Reads rows, takes a token of each and moves on: one pass, captured where that is worth it.

    Args:
        model: the model over pages.
        state: its inputs.
        num_words: of a mask.
        uses_top_k, uses_top_p: whether a row may have one.
    """

    def __init__(
        self, model: PagedModel, state: StepState, num_words: int, *, uses_top_k: bool, uses_top_p: bool
    ) -> None:
        self._model, self.state = model, state
        self._uses = uses_top_k, uses_top_p
        device = state.starts.device
        self.masks = torch.zeros(state.num_rows, num_words, dtype=torch.int32, device=device)
        self.out = torch.zeros(state.num_rows, 4, dtype=torch.int64, device=device)
        self.last: object = None
        """Who has started it last, and with which rows."""
        self._num_runs = 0
        self._run: Run | None = None

    def run(self) -> Tensor:
        """Token, what must be allowed besides, whether it is certified, and status of each row: int64 [B, 4]."""
        state, values = self.state, self.state.values
        logits = self._model.read_compiled(state)[: state.num_rows]
        tokens, given, are_clear, status = draw_rows(logits, values, self.masks, *self._uses)
        state.table_rows.taken.index_put_((state.rows.long(),), tokens)
        self.out.copy_(torch.stack([tokens, given, are_clear, status], dim=1))
        state.advance()
        values[INDEX].add_(1)
        return self.out

    def __call__(self) -> None:
        """`run`, captured after a few times."""
        self._num_runs += 1
        if self._run is None and self._model.capture is not None and self._num_runs > CAPTURE_AFTER:
            try:
                self._run = self._model.captured(self.state, self.run)
            except Exception:  # what a model does that cannot be captured: its modules go on running it
                self._run = self.run
        (self._run or self.run)()

    def upload_masks(self, masks: Rows[NDArray[np.int32]]) -> None:
        """Bring the masks of a step to the device, in the order in which its rows have them."""
        if masks:
            words = torch.from_numpy(np.stack(masks))
            words = words.pin_memory() if self.masks.is_cuda else words
            self.masks[: len(masks)].copy_(words, non_blocking=True)


class RunAhead:
    """Decodes rows of a paged cache a step ahead of the host.

    Args:
        model: the model over pages.
        cache: its rows.
        num_words: of a mask.

    Attributes:
        cache: its rows.
        num_steps, num_uploads: steps that were started, and those that needed something of the host.
        num_dropped: tokens that were taken and not used: behind an end, or behind a refusal.
    """

    def __init__(self, model: PagedModel, cache: PagedCache, num_words: int) -> None:
        self._model, self.cache, self._num_words = model, cache, num_words
        self.num_steps = self.num_uploads = self.num_dropped = 0
        self._flight: _Flight | None = None
        self._texts: dict[int, _Text] = {}
        self._last: list[_Text] | None = None  # the rows of the last step, if the next one may go on from it
        self._turns: dict[Hashable, bool] = {}  # by state of a constraint: whether a step behind it was of no use
        self._there: list[Tensor] = []  # buffers for what comes back, used in turn

    def split(self, sequences: Rows[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """The rows that are decoded here at this step, and the others."""
        ours, others = list[Sequence](), list[Sequence]()
        for sequence in sequences:
            text = self._text_of(sequence)
            is_ours = text.latest is not None or text.parked is not None or _is_plain(sequence, text)
            (ours if is_ours else others).append(sequence)
        return ours, others

    @torch.inference_mode()
    def step(self, sequences: Rows[Sequence]) -> None:
        """Start the next step of rows, and take in the tokens of the one before; some rows finish by that.

        Args:
            sequences: unfinished ones that are decoded here (`split`); none takes in what still runs.
        """
        texts = [self._text_of(sequence) for sequence in sequences]
        for text in texts:
            if text.parked is not None:
                entry, taken = text.parked
                text.parked = None
                self._decide(text, entry, taken, None)
        before, self._flight = self._flight, self._launch(texts)
        if before is not None:
            self._take_in(before)
        if self._flight is None:  # every row had to be seen first
            self._flight = self._launch(texts)

    def leave(self, sequence: Sequence) -> None:
        """Drop what runs for a text that leaves its row."""
        text = self._texts.pop(id(sequence), None)
        if text is not None and text.sequence is sequence:
            self._drop(text, text.latest)

    def forget(self) -> None:
        """Drop what runs: after a failure, texts go on from what the host knows of them."""
        self._flight, self._last, self._texts = None, None, {}

    def _text_of(self, sequence: Sequence) -> _Text:
        text = self._texts.get(id(sequence))
        if text is None or text.sequence is not sequence:
            if len(self._texts) > 4 * self.cache.num_rows:
                self._texts = {key: one for key, one in self._texts.items() if one.sequence.finish_reason is None}
            text = self._texts[id(sequence)] = _new_text(sequence)
        return text

    # Starting a step.

    def _launch(self, texts: list[_Text]) -> _Flight | None:
        going: list[tuple[_Text, _Entry, list[int]]] = []
        masks: list[NDArray[np.int32]] = []
        for text in texts:
            begun = self._begin(text, masks)
            if begun is not None:
                going.append((text, *begun))
        if not going:
            self._last = None
            return None
        entries = [entry for _, entry, _ in going]
        with self._model.steps_over(self.cache.rows).lock:
            step = self._fill([text for text, _, _ in going], entries, [given for _, _, given in going], masks)
            step()
            flight = _Flight(entries, *self._download(step.out))
        self.num_steps += 1
        for text, entry, _ in going:
            text.latest = entry
            text.sequence.num_forwards += 1
        return flight

    def _download(self, out: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """What a step gives, on its way to the host, and when it is there."""
        if not out.is_cuda:
            return out.clone(), None
        if not self._there or len(self._there[0]) < len(out):
            # A step is taken in before the second one after it starts.
            self._there = [torch.zeros_like(out, device="cpu").pin_memory() for _ in range(3)]
        self._there.append(self._there.pop(0))
        there = self._there[-1][: len(out)]
        there.copy_(out, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return there, event

    def _begin(self, text: _Text, masks: list[NDArray[np.int32]]) -> tuple[_Entry, list[int]] | None:
        """What a row does in the next step, and the tokens that it reads; None if it has to wait for its last token."""
        sequence, latest = text.sequence, text.latest
        if sequence.finish_reason is not None or text.parked is not None:
            return None
        if latest is not None:
            if self._must_see(sequence, latest) or latest.number + 1 >= sequence.max_tokens:
                return None
            return _Entry(sequence, sequence.row, latest.number + 1, False), [TAKEN]
        if not _is_plain(sequence, text):
            return None
        has_mask = sequence.matcher is not None and (text.wants_mask or not is_due(sequence))
        if has_mask and not self._add_mask(text, masks):
            return None
        given, sequence.pending = sequence.pending, []
        return _Entry(sequence, sequence.row, len(sequence.token_ids), has_mask), given

    def _must_see(self, sequence: Sequence, latest: _Entry) -> bool:
        """Whether a step behind one that runs would hardly be of use: then its token is seen first.

        It would not be where a mask is needed next, or where the constraint has gone back or on by itself (forced
        tokens) when it was in the same state before.
        """
        if sequence.matcher is None:
            return False
        return latest.has_mask or sequence.pause_left > 0 or self._turns.get(_state_of(sequence), False)

    def _add_mask(self, text: _Text, masks: list[NDArray[np.int32]]) -> bool:
        """Make the mask of a row; whether it is there."""
        sequence = text.sequence
        assert sequence.matcher is not None
        text.wants_mask = True
        begin = time.perf_counter()
        try:
            if self.cache.num_rows > 1 and not sequence.is_prepared():
                return False
            words = np.zeros((1, self._num_words), dtype=np.int32)
            sequence.matcher.fill_bitmask(words)
        except DecodekitError:
            text.is_failed = True
            return False
        sequence.mask_s += time.perf_counter() - begin
        sequence.num_masks += 1
        masks.append(words[0])
        return True

    def _fill(
        self, texts: list[_Text], entries: list[_Entry], given: list[list[int]], masks: list[NDArray[np.int32]]
    ) -> DecodeStep:
        """Bring the inputs of a step to the device, unless it can go on from the last one; start it."""
        rows, counts = [entry.row for entry in entries], [len(tokens) for tokens in given]
        cache, width = self.cache, max(counts)
        cache.reach(counts, rows)
        starts = [cache.row_lengths[row] for row in rows]
        cache.commit(counts, rows)
        if cache.remembers:
            for row, start, tokens in zip(rows, starts, given, strict=True):
                cache.note(row, start, [token for token in tokens if token != TAKEN])
        step = self._step_for(texts, width)
        is_next = self._last == texts and step.last is self._last
        is_taken = all(tokens == [TAKEN] for tokens in given)
        if not (is_next and is_taken and not any(group.entries for group in cache.rows.groups)):
            self.num_uploads += 1
            grid = np.zeros((len(rows), width), dtype=np.int32)
            for columns, tokens in zip(grid, given, strict=True):
                columns[: len(tokens)] = tokens
            places = np.arange(len(rows), dtype=np.int32) * step.state.width + np.array(counts, dtype=np.int32) - 1
            values = np.stack([text.values for text in texts], axis=1)
            values[INDEX] = [entry.number for entry in entries]
            numbers = iter(range(len(masks)))
            values[MASK] = [next(numbers) if entry.has_mask else NO_MASK for entry in entries]
            step.state.fill([cache.places[row] for row in rows], starts, counts, grid, places, values)
            step.upload_masks(masks)
        self._last = step.last = texts if width == 1 and not masks else None
        return step

    def _step_for(self, texts: list[_Text], width: int) -> DecodeStep:
        """The program for so many rows and columns, of which there is one for all caches of the model."""
        num_rows, uses_top_k, uses_top_p = len(texts), False, False
        for text in texts:
            if text.parameters is not None:
                uses_top_k, uses_top_p = (
                    uses_top_k or text.parameters.top_k > 0,
                    uses_top_p or text.parameters.top_p < 1,
                )
        if self._model.capture is not None:
            num_rows, width = bucket(num_rows, ROW_BUCKETS) or num_rows, bucket(width, WIDTH_BUCKETS) or width
        programs = self._model.steps_over(self.cache.rows).programs
        key = DecodeStep, num_rows, width, uses_top_k, uses_top_p
        if key not in programs:
            state = StepState(self.cache.rows, num_rows, width, NUM_VALUES)
            programs[key] = DecodeStep(
                self._model, state, self._num_words, uses_top_k=uses_top_k, uses_top_p=uses_top_p
            )
        step: DecodeStep = programs[key]
        return step

    # Taking in what a step has taken.

    def _take_in(self, flight: _Flight) -> None:
        if flight.event is not None:
            flight.event.synchronize()
        for entry, row in zip(flight.entries, flight.out.tolist(), strict=False):
            text = self._texts.get(id(entry.sequence))
            later = None
            if text is not None and text.sequence is entry.sequence:
                later = text.latest if text.latest is not entry else None
                if later is None:
                    text.latest = None
            if text is None or not entry.is_wanted:
                self.num_dropped += 1
            else:
                self._decide(text, entry, DeviceDraw(*row), later)

    def _decide(self, text: _Text, entry: _Entry, taken: DeviceDraw, later: _Entry | None) -> None:
        """Go on with a token, or go back to decide the position anew; `later` is the step that runs behind it."""
        sequence = entry.sequence
        state = _state_of(sequence)
        allowed = self._allows(text, entry, taken)
        if allowed is None:  # the answer is not there yet
            text.parked = entry, taken
            self._drop(text, later)
            self._cut(sequence, sequence.length)
            return
        if not allowed:
            self._note_turn(state, True)
            self.num_dropped += 1
            self._drop(text, later)
            sequence.pending = [(sequence.token_ids or sequence.request.prompt)[-1]]
            self._cut(sequence, sequence.length - 1)
            return
        text.wants_mask = False
        if self.cache.remembers and later is not None:
            self.cache.note(sequence.row, sequence.length, [taken.token])
        append_token(sequence, taken.token, sequence.settings, None)
        if later is not None:
            sequence.pending.clear()  # the step behind it reads the token
        if sequence.finish_reason is None:
            append_forced(sequence, sequence.settings, None)
        is_seen = bool(sequence.pending) and later is None  # the token itself, which no step reads yet
        is_turned = sequence.finish_reason is not None or len(sequence.pending) > is_seen
        self._note_turn(state, is_turned)
        if is_turned:
            self._drop(text, later)  # what it takes is not wanted; what it reads is
        if sequence.first_token_at is None:
            sequence.first_token_at = time.perf_counter()

    def _allows(self, text: _Text, entry: _Entry, taken: DeviceDraw) -> bool | None:
        """Whether a token is the one that the row takes; None if its constraint needs more time to say so."""
        sequence, matcher = entry.sequence, entry.sequence.matcher
        if taken.status:
            text.is_failed = True
            return False
        if matcher is None or entry.has_mask:
            return True
        begin, is_allowed = time.perf_counter(), bool(taken.is_clear)
        try:
            for token in dict.fromkeys((taken.token, taken.given)) if is_allowed else ():
                if self.cache.num_rows > 1 and not sequence.is_prepared(token):
                    return None
                sequence.num_questions += 1
                if not matcher.validate([token]):
                    is_allowed = False
                    break
        except DecodekitError:
            text.is_failed, is_allowed = True, False
        pause_after(sequence, is_settled=is_allowed)
        text.wants_mask = not is_allowed
        sequence.ask_s += time.perf_counter() - begin
        return is_allowed

    def _note_turn(self, state: Hashable, is_turned: bool) -> None:
        if state is not None:
            if len(self._turns) >= MAX_STATES:
                self._turns.clear()
            self._turns[state] = is_turned

    def _drop(self, text: _Text, later: _Entry | None) -> None:
        if later is not None:
            later.is_dropped = True
            text.latest = None

    def _cut(self, sequence: Sequence, length: int) -> None:
        """Let the cache hold so many tokens of a row."""
        lengths = list(self.cache.row_lengths)
        lengths[sequence.row] = min(length, lengths[sequence.row])
        self.cache.truncate(lengths)


def _state_of(sequence: Sequence) -> Hashable:
    """Where a constraint is, if it can say so; None without one."""
    state = getattr(sequence.matcher, "state", None)
    return None if state is None else (id(getattr(sequence.matcher, "recogniser", None)), state)


def _is_plain(sequence: Sequence, text: _Text) -> bool:
    """Whether a row is decoded in a way that the device knows, and is where one token or a few are to be read."""
    settings = sequence.settings
    return (
        text.parameters is not None
        and not text.is_failed
        and len(sequence.pending) <= WIDTH_BUCKETS[-1]
        and not sequence.has_guard
        and sequence.held is None
        and settings.proposer is None
        and settings.num_alternatives is None
        and not settings.must_close
        and not settings.stop_rules
        and not settings.is_canonical
        and settings.is_forced_unseen
        and settings.masks == "asked"
    )


def _new_text(sequence: Sequence) -> _Text:
    """What is known of a row at first; its settings are looked at once."""
    parameters, request = Parameters.of(sequence.settings), sequence.request
    if parameters is None:
        return _Text(sequence, None, np.zeros(NUM_VALUES, dtype=np.int32))
    return _Text(sequence, parameters, packed([parameters], [request.seed], [request.sequence], [0])[:, 0])
