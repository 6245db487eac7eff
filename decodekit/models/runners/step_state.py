"""The inputs of one pass over pages, as tensors: its rows, their lengths, their new tokens, and where their pages are.

A step of two rows, one with a draft of two tokens, in a state of B = 4 rows and T = 4 columns, of 6 tables' rows:

    rows     3  0  6  6          row 6 holds nothing: it fills what a captured step does not use
    starts  17  9  0  0          tokens that the rows hold already
    counts   3  1  0  0          their new tokens
    tokens  812  5 44  .  |  97  .  .  .  | ...
    entries  (3, 0, 21)          slot 0 of row 3 has the page 21, which the table on the device does not know yet

All of it goes up in one copy of one array, and the entries go into the tables at once: they may be of rows that this
pass does not read, and a pass that is replayed without an upload must not write them again. Nothing else of a step
comes from the host: a pass is a function of these tensors, of the tables and of the pages, so that it can be captured
once as a CUDA graph and replayed for other rows, lengths and pages. A CPU calls the same function, with exactly as many
rows and columns as there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.gpu.step_inputs import StepInputs, step_inputs
from decodekit.models.caches.paged_rows import PagedRows, locked

NUM_BUFFERS: Final = 4
"""Copies on their way to the device at a time; the host waits for the oldest before it fills its buffer again."""


class StepState:
    """The inputs of a pass of B = `num_rows` rows and T = `width` columns at fixed addresses.

    Args:
        rows: the tables that it reads.
        num_values: further numbers of each row that the step hands on, for whoever takes tokens.
        num_wanted: W, how many logits are wanted at most; None: of all tokens.

    Attributes:
        rows, starts, counts: int32 [B] on the device.
        given: int32 [B, T], tokens; -1 where the device has taken the token of the row.
        wanted: int64 [W], the places of the pass [B * T] whose logits are wanted, in order.
        values: int32 [num_values, B].
    """

    def __init__(
        self, rows: PagedRows, num_rows: int, width: int, num_values: int = 0, num_wanted: int | None = None
    ) -> None:
        self.table_rows, self.num_rows, self.width, self.lock = rows, num_rows, width, rows.lock
        num_groups, places = len(rows.groups), num_rows * width
        num_wanted = places if num_wanted is None else num_wanted
        # A row enters a new page every 32 tokens; where more rows do so at once, `PagedRows.upload` is asked.
        self.max_entries = num_rows + width
        sizes = [*[num_rows] * 3, places, num_wanted, num_values * num_rows, *[3 * self.max_entries] * num_groups]
        ends = np.cumsum(sizes).tolist()
        self._spans = list(zip([0, *ends[:-1]], ends, strict=True))
        device = rows.device
        self._packed = torch.zeros(ends[-1], dtype=torch.int32, device=device)
        is_pinned = device.type == "cuda"
        self._buffers = [
            torch.zeros(ends[-1], dtype=torch.int32, pin_memory=is_pinned)
            for _ in range(NUM_BUFFERS if is_pinned else 1)
        ]
        self._copied: list[torch.cuda.Event | None] = [None] * len(self._buffers)
        self._next = 0
        self.rows, self.starts, self.counts, given, self._wanted, values, *self._entries = (
            self._packed[first:end] for first, end in self._spans
        )
        self.given, self.values = given.view(num_rows, width), values.view(num_values, num_rows)

    @locked
    def fill(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        tokens: NDArray[np.int32],
        wanted: NDArray[np.int32] | None = None,
        values: NDArray[np.int32] | None = None,
    ) -> None:
        """Bring the inputs of a pass to the device, with what the tables there lack; the host does not wait.

        Args:
            rows: of the tables, at most B; the rest are rows that hold nothing.
            starts, counts: of each.
            tokens: [R, T'], T' at most T.
            wanted: places r * T + t of the logits that are wanted; None: of all tokens.
            values: [num_values, R]; those of rows that hold nothing are 0.
        """
        store, (num_rows, width) = self.table_rows, (self.num_rows, self.width)
        if any(len(group.entries) > self.max_entries for group in store.groups):
            store.upload()
        place = self._next
        buffer, copied = self._buffers[place], self._copied[place]
        self._next = (place + 1) % len(self._buffers)
        if copied is not None:
            copied.synchronize()
        given: NDArray[np.int32] = buffer.numpy()
        parts = [given[first:end] for first, end in self._spans]
        for part, column, rest in zip(parts, (rows, starts, counts), (store.scratch_row, 0, 0), strict=False):
            part[: len(rows)], part[len(rows) :] = column, rest
        grid = parts[3].reshape(num_rows, width)
        grid[...] = 0
        grid[: tokens.shape[0], : tokens.shape[1]] = tokens
        if wanted is None:
            parts[4][:] = np.arange(num_rows * width, dtype=np.int32)
        else:
            parts[4][: len(wanted)], parts[4][len(wanted) :] = wanted, 0
        if values is not None:
            columns = parts[5].reshape(self.values.shape)
            columns[:, : len(rows)], columns[:, len(rows) :] = values, 0
        pending = [group.pending() if group.entries else None for group in store.groups]
        for entries, part in zip(pending, parts[6:], strict=True):
            if entries is not None:
                part.reshape(3, self.max_entries)[:, : entries.shape[1]] = entries
        self._packed.copy_(buffer, non_blocking=True)
        if self._packed.is_cuda:
            self._copied[place] = event = copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._packed.device))
        for group, entries, uploaded in zip(store.groups, pending, self._entries, strict=True):
            if entries is not None:
                group.write(entries, uploaded.view(3, self.max_entries)[:, : entries.shape[1]])

    def inputs(self) -> StepInputs:
        """The inputs of the modules and their attention."""
        tables = [group.table for group in self.table_rows.groups]
        return StepInputs(*step_inputs(self.rows, self.starts, self.counts, self.given, self.table_rows.taken, tables))

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Hold nothing for a while: passes that are run to be captured read and write no row."""
        kept = self._packed.clone()
        self._packed.zero_()
        self.rows.fill_(self.table_rows.scratch_row)
        try:
            yield
        finally:
            self._packed.copy_(kept)

    @property
    def wanted(self) -> Tensor:
        """int64 [W]."""
        return self._wanted.long()
