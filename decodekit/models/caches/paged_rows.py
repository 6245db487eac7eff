"""Rows made of pages: which pages of keys and values each row of a model's caches has, on the host and on the device.

Pages of 4 tokens; two rows that begin with the same five tokens:

    page        0            1            2            3
    tokens      The cat sat  on  the . .  on  a  . .   (free)
    owners      2            1            1            0

    table       row 0: 0 1        row 1: 0 2        row 2: (nothing)

Row 1 became row 0 by its table: page 0 has two owners. So had page 1, into which both would write; it was copied to
page 2 when row 1 wrote first. Taking tokens back drops pages at the end of a row. All layers of a *group* share the
pages of a row: those with one sliding window, so that pages are free again once the window has passed them.

The memory itself is a `gpu.pages.PageStore`: it grows by arenas and never moves, so that a captured graph stays
valid. What changes in a table is collected, and goes up with the inputs of the next pass.

Source: paged attention, Kwon et al. 2023, arXiv 2309.06180.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.gpu.pages import PAGE_SIZE, Offsets, PageLayout, PageStore, PlaneOf, Stored, layout_of
from decodekit.models.caches.kv_cache import LayerShape
from decodekit.models.caches.row_states import RowStates

ARENA_BYTES: Final = 1 << 28
"""An arena has at most about this many bytes."""
WINDOW_SLACK: Final = 4
"""So many pages behind a sliding window are kept: after a rejected draft nothing has to be read again."""


P = ParamSpec("P")
R = TypeVar("R")


def locked(method: Callable[P, R]) -> Callable[P, R]:
    """The method of something that has a `lock`, which is held meanwhile."""

    @functools.wraps(method)
    def held(*arguments: P.args, **options: P.kwargs) -> R:
        owner: Any = arguments[0]
        with owner.lock:
            return method(*arguments, **options)

    return held


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """A layer's shapes, and its sliding window or None."""

    shape: LayerShape
    window: int | None


class PagePlan(NamedTuple):
    """How the layers of a model share pages."""

    groups: list[tuple[int | None, PageLayout]]  # sliding window and page layout of each group
    places: dict[int, tuple[int, Offsets]]  # of each layer, the number of its group and where its planes are in a page

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token of a row that no window has passed."""
        return sum(layout.page_bytes // layout.page_size for _, layout in self.groups)

    @classmethod
    def of(cls, layers: Mapping[int, PagedLayer], page_size: int, stored: Stored) -> PagePlan:
        """One group for each sliding window."""
        plan = cls([], {})
        for window in dict.fromkeys(layer.window for layer in layers.values()):
            members = {index: layer.shape for index, layer in layers.items() if layer.window == window}
            planes = [
                PlaneOf(one.key.num_heads, one.key.head_dim, one.value.head_dim, one.key.dtype, stored)
                for one in members.values()
            ]
            layout = layout_of(planes, page_size)
            for index, offsets in zip(members, layout.offsets, strict=True):
                plan.places[index] = len(plan.groups), offsets
            plan.groups.append((window, layout))
        return plan


class PageGroup:
    """The pages of the layers that have one sliding window, by row.

    `window` has the tokens that a query of these layers sees, itself included; None for all. The table has `num_rows`
    rows of up to `num_slots` pages.
    """

    def __init__(
        self,
        window: int | None,
        layout: PageLayout,
        pages_per_arena: int,
        num_rows: int,
        num_slots: int,
        device: torch.device,
    ) -> None:
        self.window = window
        self.store = PageStore(layout, pages_per_arena, device)
        self.rows: list[list[int]] = [[] for _ in range(num_rows)]
        """The pages of each row by slot, on the host; -1 where the window has passed."""
        self.table = torch.zeros(num_rows, num_slots, dtype=torch.int32, device=device)  # behind `rows` by `entries`
        self.entries: dict[tuple[int, int], int] = {}  # (row, slot) -> page: each is written once

    def set(self, row: int, slot: int, page: int) -> None:
        """Write an entry of a table; the slot after the last one makes the row longer."""
        pages = self.rows[row]
        if slot == len(pages):
            pages.append(page)
        else:
            pages[slot] = page
        self.entries[row, slot] = page

    def reach(self, row: int, start: int, end: int) -> None:
        """Give a row pages of its own for the positions [start, end), where nothing follows `start` yet."""
        store, size, pages = self.store, self.store.layout.page_size, self.rows[row]
        slot = start // size
        if slot < len(pages) and store.num_owners(pages[slot]) > 1:
            [copy] = store.take(1)
            try:
                if start % size:
                    self.bytes_of(copy).copy_(self.bytes_of(pages[slot]))
            except BaseException:
                store.release([copy])
                raise
            store.release([pages[slot]])
            self.set(row, slot, copy)
        missing = -(-end // size) - len(pages)
        if missing > 0:
            for page in store.take(missing):
                self.set(row, len(pages), page)
        if self.window is not None:
            passed = min((start - self.window) // size - WINDOW_SLACK, len(pages))
            for slot in range(passed - 1, -1, -1):
                if pages[slot] < 0:
                    break
                store.release([pages[slot]])
                pages[slot] = -1  # the device's entry stays: no query looks there

    def cut(self, row: int, length: int) -> bool:
        """Drop the pages beyond a length; whether all that the next token sees is still there."""
        size, pages = self.store.layout.page_size, self.rows[row]
        kept = -(-length // size)
        self._release(pages[kept:])
        del pages[kept:]
        first = 0 if self.window is None else max(0, length + 1 - self.window) // size
        return -1 not in pages[first:]

    def become(self, row: int, pages: Sequence[int]) -> None:
        """Make these the pages of a row; they may be of another row, too."""
        pages = list(pages)
        self.store.share(page for page in pages if page >= 0)
        self._release(self.rows[row])
        self.rows[row] = pages
        self.entries |= {(row, slot): page for slot, page in enumerate(pages) if page >= 0}

    def _release(self, pages: Iterable[int]) -> None:
        self.store.release(page for page in pages if page >= 0)

    def bytes_of(self, page: int) -> Tensor:
        """The memory of a page, uint8 [page_bytes]."""
        arena, place = divmod(page, self.store.pages_per_arena)
        size = self.store.layout.page_bytes
        return self.store.arenas[arena][place * size : (place + 1) * size]

    def pending(self) -> NDArray[np.int32]:
        """The entries that the device's table lacks: rows, slots and pages, [3, E]."""
        return np.array([(row, slot, page) for (row, slot), page in self.entries.items()], dtype=np.int32).T

    def write(self, entries: NDArray[np.int32], uploaded: Tensor) -> None:
        """Write entries into the device's table, from the copy of them that is there, [3, E] of integers.

        They are pending until they are written: a copy that fails loses none.
        """
        rows, slots, pages = uploaded
        self.table.index_put_((rows.long(), slots.long()), pages.int())
        for row, slot, page in entries.T.tolist():
            if self.entries.get((row, slot)) == page:
                del self.entries[row, slot]


class PagedRows:
    """The rows of all caches of one model on one device, and their pages.

    There is one row more than `num_rows`, of which nothing is ever read. A row has up to `max_tokens`; the first arenas
    hold about `num_tokens`. `states` are templates of what a recurrent model keeps of a row beside, see `RowStates`.
    """

    def __init__(
        self,
        plan: PagePlan,
        num_rows: int,
        max_tokens: int,
        num_tokens: int,
        device: torch.device,
        stored: Stored = Stored.AS_GIVEN,
        states: Sequence[Tensor] = (),
    ) -> None:
        self.plan, self.num_rows, self.stored, self.device = plan, num_rows, stored, device
        self.lock = threading.RLock()
        """To be held while rows, pages or entries change: threads may share a model."""
        self.page_size = page_size = plan.groups[0][1].page_size if plan.groups else PAGE_SIZE
        self.num_slots = -(-max_tokens // page_size)
        self.groups: list[PageGroup] = []
        for window, layout in plan.groups:
            per_arena = max(8, min(-(-num_tokens // page_size), ARENA_BYTES // layout.page_bytes))
            self.groups.append(PageGroup(window, layout, per_arena, num_rows + 1, self.num_slots, device))
        self.taken = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        """The token that was taken last on the device, by row."""
        self.states = RowStates(states, num_rows + 1, device)
        self.programs: dict[Hashable, Any] = {}
        """Programs that are run and captured over these rows, by keys of those who run them; they live as long."""
        self._free_rows = list(range(num_rows))[::-1]
        self.returned: deque[list[int]] = deque()
        """Rows of caches that are gone: a collector may run at any moment, and only notes them here."""

    @property
    def scratch_row(self) -> int:
        """A row that holds nothing, for the unused rows of a captured step."""
        return self.num_rows

    @property
    def num_free_rows(self) -> int:
        """Rows that no cache has."""
        return len(self._free_rows)

    @property
    def num_free_bytes(self) -> int:
        """Memory of the pages of arenas that nobody has."""
        return sum(group.store.num_free * group.store.layout.page_bytes for group in self.groups)

    @property
    def num_pages_in_use(self) -> int:
        """Pages that a row or a kept prefix has."""
        return sum(group.store.num_pages - group.store.num_free for group in self.groups)

    @locked
    def take_rows(self, count: int) -> list[int]:
        """Empty rows for a cache.

        Raises:
            MemoryError: so many are not free.
        """
        self.collect()
        if count > len(self._free_rows):
            raise MemoryError(f"out of memory: {count} rows of a cache are wanted, {len(self._free_rows)} are free")
        return [self._free_rows.pop() for _ in range(count)]

    @locked
    def collect(self) -> None:
        """Take back the rows of caches that are gone."""
        while self.returned:
            self.give_rows(self.returned.popleft())

    @locked
    def give_rows(self, rows: Iterable[int]) -> None:
        """Take rows back from a cache, with their pages."""
        for row in rows:
            for group in self.groups:
                group.become(row, ())
            self._free_rows.append(row)

    @locked
    def upload(self) -> None:
        """Bring the tables of the device up to date, all at once; a step takes few entries along by itself."""
        for group in self.groups:
            if group.entries:
                entries = group.pending()
                group.write(entries, torch.from_numpy(entries.copy()).to(self.device))
