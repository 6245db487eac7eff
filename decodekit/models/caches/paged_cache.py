"""The paged KV cache: rows of a model's pages, with the laws of `causal_lm.Cache`.

    cache = PagedCache(rows, 2)         # two rows; a page is taken when a token needs it
    cache.reach([40, 3], None)          # pages for 40 tokens of row 0 and 3 of row 1
    cache.commit([40, 3], None)
    cache.truncate([33, 3])             # row 0 keeps two pages of 32
    cache.reorder(torch.tensor([0, 0])) # row 1 becomes row 0: its table is copied, no key or value

Lengths live on the host, since the loop knows them. Where a sliding window has passed, pages are given back; a row that
is cut back so far that its next token would look there is *lost*: it remembers its tokens, and the model reads them
again (`tokens_to_read`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from decodekit.models.caches.kv_cache import RowLengths, checked_order, shortened
from decodekit.models.caches.paged_rows import PagedRows, locked


@dataclass(eq=False)
class PagedPrefix:
    """The first tokens of a row, kept beyond it: its pages, of which the last may be filled in part."""

    rows: PagedRows
    num_tokens: int  # how many
    pages: list[list[int]]  # of each group
    token_ids: list[int] = field(default_factory=list)  # what they are, where a window asks for it; else empty
    is_released: bool = field(default=False, init=False)

    @property
    def num_bytes(self) -> int:
        """Memory that the prefix keeps from being free, if nobody else has its pages."""
        return sum(
            len(pages) * group.store.layout.page_bytes
            for group, pages in zip(self.rows.groups, self.pages, strict=True)
        )

    @property
    def lock(self) -> threading.RLock:
        """That of the rows."""
        return self.rows.lock

    @locked
    def release(self) -> None:
        """Give the pages back; a second time does nothing."""
        if not self.is_released:
            self.is_released = True
            for group, pages in zip(self.rows.groups, self.pages, strict=True):
                group.store.release(pages)


class PagedCache(RowLengths):
    """Keys and values of `num_rows` rows, each with its own length. Implements `causal_lm.Cache`.

    They are some of the `rows` of all caches of the model, and given back when the cache is collected.
    """

    copies_scattered_rows: Final = False
    """Any rows are read where they are."""

    def __init__(self, rows: PagedRows, num_rows: int) -> None:
        if num_rows < 1:
            raise ValueError(f"a cache needs at least one row, not {num_rows}")
        super().__init__(num_rows, rows.device)
        self.rows, self.lock = rows, rows.lock
        self.places = rows.take_rows(num_rows)  # row of the cache -> row of the tables
        self.remembers = any(group.window is not None for group in rows.groups)
        """Whether `commit` wants the tokens: of rows with windows."""
        self._tokens: list[list[int]] = [[] for _ in range(num_rows)]  # of rows with windows
        self._lost = [False] * num_rows
        self._is_compiled: list[bool | None] = [None] * num_rows  # see `is_read_compiled`
        weakref.finalize(self, rows.returned.append, self.places)

    @property
    def capacity(self) -> int:
        """How many tokens a row can hold."""
        return self.rows.num_slots * self.rows.page_size

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token of a row that no window has passed."""
        return self.rows.plan.bytes_per_token

    @property
    def num_bytes(self) -> int:
        """Memory of the pages of these rows; shared pages count for each."""
        return sum(
            sum(page >= 0 for place in self.places for page in group.rows[place]) * group.store.layout.page_bytes
            for group in self.rows.groups
        )

    @locked
    def tokens_to_read(self, rows: Sequence[int]) -> dict[int, list[int]]:
        """The lost ones of these rows, with the tokens that the model has to read again; they are empty now."""
        lost = {row: self._tokens[row][: self._lengths[row]] for row in rows if self._lost[row]}
        kept = list(self._is_compiled)  # the text goes on
        self.reset(list(lost))
        self._is_compiled = kept
        return lost

    @locked
    def reach(self, num_tokens: Sequence[int], rows: Sequence[int] | None) -> None:
        """Have pages for so many more tokens of each row; lengths stay.

        Raises:
            ValueError: a row would not fit the tables.
            MemoryError, RuntimeError: there is no memory for them; nothing is lost.
        """
        self.rows.collect()
        for row, count in zip(range(self.num_rows) if rows is None else rows, num_tokens, strict=True):
            start = self._lengths[row]
            if start + count > self.capacity:
                raise ValueError(f"row {row} would hold {start + count} tokens, the tables end at {self.capacity}")
            for group in self.rows.groups:
                group.reach(self.places[row], start, start + count)

    def commit(
        self, num_tokens: Sequence[int], rows: Sequence[int] | None, tokens: Sequence[Sequence[int]] = ()
    ) -> None:
        """Advance the lengths of the rows by what was read, and remember the tokens of rows with windows."""
        for i, row in enumerate(range(self.num_rows) if rows is None else rows):
            if self.remembers and tokens:
                self._tokens[row][self._lengths[row] :] = tokens[i][: num_tokens[i]]
            self._lengths[row] += num_tokens[i]

    def note(self, row: int, position: int, tokens: Sequence[int]) -> None:
        """Remember the tokens of a row from a position on, where `commit` was not told of them."""
        self._tokens[row][position:] = tokens

    def is_read_compiled(self, row: int, now: bool) -> bool:
        """Whether compiled layers read a row: as it was `now` when the row was read first, until its text leaves."""
        known = self._is_compiled[row]
        if known is None:
            known = self._is_compiled[row] = now
        return known

    @locked
    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Lower the lengths of the rows; see `causal_lm.Cache.truncate`."""
        new = shortened(self._lengths, row_lengths)
        for row, (old, length) in enumerate(zip(self._lengths, new, strict=True)):
            if length < old:
                are_whole = [group.cut(self.places[row], length) for group in self.rows.groups]  # every one is cut
                self._lost[row] |= not all(are_whole) and length > 0
        self._lengths = new

    @locked
    def reset(self, rows: Sequence[int]) -> None:
        """Empty these rows; see `causal_lm.Cache.reset`."""
        for row in rows:
            for group in self.rows.groups:
                group.become(self.places[row], ())
            self._lengths[row], self._tokens[row], self._lost[row] = 0, [], False
            self._is_compiled[row] = None

    @locked
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; see `causal_lm.Cache.reorder`."""
        order = checked_order(rows, self.num_rows)
        for group in self.rows.groups:
            old = [list(group.rows[place]) for place in self.places]
            held = [page for pages in old for page in pages if page >= 0]
            group.store.share(held)  # rows may change places
            for row, source in enumerate(order):
                if row != source:
                    group.become(self.places[row], old[source])
            group.store.release(held)
        self._lengths = [self._lengths[row] for row in order]
        self._tokens = [list(self._tokens[row]) for row in order]
        self._lost = [self._lost[row] for row in order]
        self._is_compiled = [self._is_compiled[row] for row in order]
        dropped = self.places[len(order) :]
        del self.places[len(order) :]  # in place: the finaliser has this list
        self.rows.give_rows(dropped)

    def grow(self, capacity: int) -> None:
        """Pages come when they are needed; see `causal_lm.Cache.grow`."""

    @locked
    def keep(self, row: int, num_tokens: int) -> PagedPrefix:
        """The first tokens of a row; its pages belong to both from now on, and nothing is copied.

        A prefix of no tokens where a sliding window has passed the first of them.

        Raises:
            ValueError: the row holds fewer.
        """
        if num_tokens > self._lengths[row]:
            raise ValueError(f"{num_tokens} tokens of row {row}, which holds {self._lengths[row]}")
        num_pages = -(-num_tokens // self.rows.page_size)
        pages = [group.rows[self.places[row]][:num_pages] for group in self.rows.groups]
        if self._lost[row] or any(-1 in own for own in pages):
            num_tokens, pages = 0, [[] for _ in pages]
        for group, own in zip(self.rows.groups, pages, strict=True):
            group.store.share(own)
        return PagedPrefix(self.rows, num_tokens, pages, self._tokens[row][:num_tokens])

    @locked
    def begin_with(self, row: int, prefix: PagedPrefix, num_tokens: int) -> None:
        """Let a row begin with the first tokens of a prefix; nothing is copied until it writes into a shared page.

        Raises:
            ValueError: the prefix holds fewer, was released, or is of another cache.
        """
        if num_tokens > prefix.num_tokens or prefix.is_released or prefix.rows is not self.rows:
            what = "that was released" if prefix.is_released else f"of {prefix.num_tokens}"
            raise ValueError(f"{num_tokens} tokens of a prefix {what}")
        count = -(-num_tokens // self.rows.page_size)
        for group, pages in zip(self.rows.groups, prefix.pages, strict=True):
            group.become(self.places[row], pages[:count])
        self._lengths[row], self._tokens[row] = num_tokens, prefix.token_ids[:num_tokens]
        self._lost[row], self._is_compiled[row] = False, None
