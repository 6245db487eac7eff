"""Pages of keys and values: where the bytes of a page lie, which pages are free, and how an operation finds them.

A page holds `page_size` consecutive tokens of one row for every layer of a group. Two layers with one head of 4
numbers, bfloat16, pages of 8 tokens:

    planes = layout_of([PlaneOf(1, 4, 4, torch.bfloat16)] * 2, page_size=8)
    byte of a page      0      64      128      192      256 = planes.page_bytes
                        | keys | values | keys | values |
                          layer 0         layer 1
    planes.offsets      ((0, 64, -1, -1), (128, 192, -1, -1))

    store = PageStore(planes, pages_per_arena=4, device="cpu")
    row = store.take(2)                 # [0, 1]: positions 0..7 and 8..15 of a row
    store.share(row[:1])                # a second row has the same first 8 tokens
    store.release(row)                  # page 1 is free again, page 0 still belongs to the second row
    store.take(5)                       # [1, 2, 3, 4, 5]: an arena of 4 more pages was added

A plane is token-major, `[page_size, heads, dim]`. Page p is page `p % pages_per_arena` of arena `p // pages_per_arena`.
Arenas are never moved. An operation is given `store.table`, int64 `[1 + MAX_ARENAS]` on the device: the number of the
store in `STORES`, then the addresses of its arenas. A kernel takes the addresses, and a twin in torch looks the tensors
up by the number; so neither has an arena among its inputs, and arenas may be added behind a captured graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from decodekit.errors import DecodekitError

PAGE_SIZE: Final = 32
MAX_ARENAS: Final = 1023
ALIGNMENT: Final = 16  # bytes: the widest load of one thread


class PageError(DecodekitError):
    """Pages cannot be laid out or handed out as asked."""

    code = "DK308"


class Stored(IntEnum):
    """How a plane keeps its numbers."""

    AS_GIVEN = 0
    INT8 = 1
    """round(x / scale), scale = amax / 127 of each token and head."""

    def dtype(self, given: torch.dtype) -> torch.dtype:
        """The type of a plane's numbers."""
        return torch.int8 if self is Stored.INT8 else given


STORES: WeakValueDictionary[int, PageStore] = WeakValueDictionary()
"""The stores that are in use, by number."""

_NUMBERS = itertools.count(1)


def store_of(table: Tensor) -> PageStore:
    """The store whose table this is; waits for the device of the table.

    Raises:
        PageError: there is no such store any more.
    """
    number = int(table[0])
    try:
        return STORES[number]
    except KeyError:
        raise PageError(
            f"no store of pages has the number {number}", at="the first entry of `arenas`", hint="keep the cache alive"
        ) from None


class PlaneOf(NamedTuple):
    """Keys and values of one layer."""

    num_heads: int  # of keys and values
    key_dim: int  # numbers of one key
    value_dim: int  # and of one value
    dtype: torch.dtype  # of keys and values as the layer makes them
    stored: Stored = Stored.AS_GIVEN  # how they are kept


class Offsets(NamedTuple):
    """Where the planes of one layer begin, in bytes from the begin of a page; -1: there is no such plane."""

    key: int
    value: int
    key_scale: int = -1
    value_scale: int = -1


class Geometry(NamedTuple):
    """Tokens of a page, pages of an arena, bytes of a page."""

    page_size: int
    pages_per_arena: int
    page_bytes: int


@dataclass(frozen=True)
class PageLayout:
    """Where everything lies in a page."""

    page_size: int  # tokens of a page
    page_bytes: int  # a multiple of `ALIGNMENT`
    offsets: tuple[Offsets, ...]  # of each layer


def layout_of(layers: Sequence[PlaneOf], page_size: int = PAGE_SIZE) -> PageLayout:
    """Lay out the planes of layers one behind the other, each from a multiple of `ALIGNMENT` on.

    Raises:
        PageError: the size of a page is not a power of two.
    """
    if page_size < 1 or page_size & (page_size - 1):
        raise PageError(f"a page of {page_size} tokens", hint="a power of two, such as 32")
    end = 0

    def place(num_bytes: int) -> int:
        nonlocal end
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + num_bytes
        return begin

    offsets = []
    for layer in layers:
        tokens = page_size * layer.num_heads
        width = layer.stored.dtype(layer.dtype).itemsize
        planes = [place(tokens * layer.key_dim * width), place(tokens * layer.value_dim * width)]
        if layer.stored is not Stored.AS_GIVEN:
            planes += [place(4 * tokens), place(4 * tokens)]
        offsets.append(Offsets(*planes))
    return PageLayout(page_size, -(-end // ALIGNMENT) * ALIGNMENT, tuple(offsets))


class PageStore:
    """Arenas of pages of one layout: a free list, a count of owners for each page, and more arenas where room runs out.

    Attributes:
        table: int64 [1 + MAX_ARENAS] on the device, what an operation over these pages is given.
        arenas: uint8 [pages_per_arena * page_bytes] each; new memory holds anything, NaN too.
    """

    def __init__(self, layout: PageLayout, pages_per_arena: int, device: torch.device | str) -> None:
        if pages_per_arena < 1:
            raise PageError(f"arenas of {pages_per_arena} pages")
        self.layout, self.pages_per_arena = layout, pages_per_arena
        self.geometry = Geometry(layout.page_size, pages_per_arena, layout.page_bytes)
        self.arenas: list[Tensor] = []
        self._owners: list[int] = []  # of each page; 0: it is free
        self._free: list[int] = []  # the next one to be taken is the last
        self.table = torch.zeros(1 + MAX_ARENAS, dtype=torch.int64, device=device)
        self.table[0] = number = next(_NUMBERS)
        STORES[number] = self

    @property
    def num_pages(self) -> int:
        """Free or not."""
        return len(self._owners)

    @property
    def num_free(self) -> int:
        """Pages that can be taken without a further arena."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pages that nobody has, each with one owner; adds arenas where they do not suffice.

        Raises:
            PageError: the arenas are as many as they may be; nothing is taken then.
        """
        missing = count - len(self._free)
        num_arenas = max(0, -(-missing // self.pages_per_arena))
        if len(self.arenas) + num_arenas > MAX_ARENAS:
            raise PageError(
                f"{count} pages are wanted and {self.num_free} are free",
                at=f"{len(self.arenas)} arenas of {self.pages_per_arena} pages, which may be {MAX_ARENAS}",
                hint="fewer or shorter rows, or larger arenas",
            )
        for _ in range(num_arenas):
            self._add_arena()
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._owners[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more owner of each of these pages."""
        for page in self._owned(pages):
            self._owners[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One owner less of each of these pages; the ones without an owner are free."""
        for page in self._owned(pages):
            self._owners[page] -= 1
            if not self._owners[page]:
                self._free.append(page)

    def num_owners(self, page: int) -> int:
        """0: the page is free."""
        return self._owners[page]

    def _owned(self, pages: Iterable[int]) -> Iterable[int]:
        for page in pages:
            if not (0 <= page < len(self._owners) and self._owners[page]):
                raise PageError(f"page {page} has no owner", at="`share` or `release`", hint="it was released already")
            yield page

    def _add_arena(self) -> None:
        arena = torch.empty(self.pages_per_arena * self.layout.page_bytes, dtype=torch.uint8, device=self.table.device)
        self.table[len(self.arenas) + 1] = arena.data_ptr()  # first: if it fails, the arena is none of ours
        self.arenas.append(arena)
        first = len(self._owners)
        self._owners += [0] * self.pages_per_arena
        # Behind the ones that are free already: an arena that nobody used is left alone as long as possible.
        self._free[:0] = range(first + self.pages_per_arena - 1, first - 1, -1)
