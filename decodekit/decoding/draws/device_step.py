"""A decoding step on the device: it reads rows and their drafts, takes a token at each position, matches and moves on.

Two rows, of which the first has a draft of two tokens, in a step of T = 4 columns and W = 3 positions:

    tokens      812   5  44   .  |  97   .   .   .      pending token and draft
    positions     0   1   2      |   0                  logits are wanted after these
    taken         5  44   7      |  31   .   .          the target's own, by the noise and the mask of each position
    out           5  44   7      |  31  -1  -1          all of the draft is kept (`gpu.draft_match`)
    lengths     starts + 3       |  starts + 1          the next pass reads 7 and 31, which are kept on the device

Up go the inputs of the pass with what each row is drawn by, in one copy (`StepState.fill`); nothing at all where the
same rows go on without drafts. Down comes `out`, with what a constraint is to be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from decodekit.decoding.draws.device_draws import DeviceDraw
from decodekit.decoding.lazy_masks.mask_pool import MaskPool
from decodekit.errors import is_out_of_memory
from decodekit.gpu.draft_match import take_tokens
from decodekit.gpu.draw_settings import MASKS
from decodekit.models.caches.paged_rows import PagedRows
from decodekit.models.runners.captured import Run
from decodekit.models.runners.paged import CAPTURE_AFTER, MODULES, TRY_AGAIN_AFTER, PagedModel, Variant, new_proof
from decodekit.models.runners.step_state import StepState


class StepShape(NamedTuple):
    """The shape of a step.

    Args:
        num_rows: B.
        width: T, columns of tokens.
        num_positions: W, at which tokens are taken; 1 without drafts.
        has_cut: whether a row may have top-k or top-p.
        variant: which modules read its rows.
    """

    num_rows: int
    width: int
    num_positions: int
    has_cut: bool
    variant: Variant = MODULES


class DecodeStep:
    """Reads rows, takes tokens of each and moves on: one pass, captured where that is worth it.

    Args:
        model: the model over pages.
        rows: its tables.
        shape: what it is for.
        pool: the masks.

    Attributes:
        state: its inputs; `values` int32 [MASKS + W, B] are those of `draw_settings.packed`.
        out: int32 [B, 3 W + 1]: tokens that come, -1 behind them; what must be allowed besides; whether they are
            certified; status.
    """

    def __init__(self, model: PagedModel, rows: PagedRows, shape: StepShape, pool: MaskPool) -> None:
        self._model, self.shape, self._masks = model, shape, pool.masks
        num_places = shape.num_rows * shape.num_positions
        self.state = StepState(rows, shape.num_rows, shape.width, MASKS + shape.num_positions, num_places)
        columns = 3 * shape.num_positions + 1
        self.out = torch.zeros(shape.num_rows, columns, dtype=torch.int32, device=rows.device)
        self.last: object = None
        """Who has started it last, and with which rows."""
        self._num_runs = 0
        self._read: Run | None = None  # captured, until it is proven or refused
        self._proof = new_proof()
        self._is_refused = model.capture is None
        self._run: Run | None = None

    @property
    def is_captured(self) -> bool:
        """Whether all of it is replayed."""
        return self._run is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is captured, or will not be."""
        return self.is_captured or self._is_refused

    def run(self, variant: Variant | None = None) -> Tensor:
        """`out` of a pass, by default by the modules of `shape`."""
        return self._choose(self._logits(0, variant))

    def _logits(self, num_seen: int, variant: Variant | None = None) -> Tensor:
        return self._model.read(self.state, num_seen, variant or self.shape.variant)

    def _choose(self, logits: Tensor) -> Tensor:
        """`out` of logits [>= B * W, V]; the inputs move on."""
        state, shape = self.state, self.shape
        take_tokens(
            logits[: shape.num_rows * shape.num_positions], state.values, self._masks,
            state.rows, state.starts, state.counts, state.given, state.table_rows.taken, self.out,
            shape.has_cut,
        )  # fmt: skip
        return self.out

    def __call__(self, num_seen: int) -> None:
        """A step; captured after a few times.

        What a model bakes in shows in its logits, not in the tokens that are taken. So its reading alone is captured
        first and compared with the modules; once that is proven, all of the step is captured.

        Args:
            num_seen: tokens of the longest row before the step.
        """
        self._num_runs += 1
        self._model.note_step()
        if self._run is None and not self._is_refused and self._num_runs > CAPTURE_AFTER:
            if self._proof.is_proven:
                self._read, self._run = None, self._captured(self.run)
            elif self._read is None:
                self._read = self._captured(partial(self._logits, 0))
        if self._run is not None:
            self._run()
        elif self._read is None:
            self._choose(self._logits(num_seen))
        else:
            self._prove(self._read, num_seen)

    def _prove(self, read: Run, num_seen: int) -> None:
        """A step with the logits of the modules, to which those of the captured reading are compared."""

        def replayed() -> Tensor:
            return read().clone()  # its memory is that of the next replay

        self._choose(self._proof.output(replayed, lambda: self._logits(num_seen), num_seen))
        if self._proof.is_refused:
            self._read, self._is_refused = None, True

    def _captured(self, run: Callable[[Variant], Tensor]) -> Run | None:
        """The pass captured; None if it cannot be, and then the modules go on."""
        try:
            return self._model.captured(self.state, run, self.shape.variant)
        except Exception as error:  # whatever a model does that cannot be captured
            if is_out_of_memory(error):
                self._num_runs = -TRY_AGAIN_AFTER
                return None
            self._is_refused = True
            self._model.not_captured.append(f"a decoding step of {self.state.num_rows} rows: {error!r}")
            return None


def draws_of(row: Sequence[int]) -> list[DeviceDraw]:
    """The draws in a row of `DecodeStep.out`: its tokens, then the position that has none, if it stopped there."""
    width = len(row) // 3
    draws = [
        DeviceDraw(token, row[width + place], row[2 * width + place], 0)
        for place, token in enumerate(row[:width])
        if token >= 0
    ]
    return [*draws, DeviceDraw(0, 0, 0, row[-1])] if row[-1] else draws
