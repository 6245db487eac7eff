"""Rows over pages, in any state, for tests of attention; and attention over plain lists, token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from decodekit.gpu import paged_attention as op
from decodekit.gpu.pages import Offsets, PageStore, PlaneOf, Stored, layout_of


@dataclass
class World:
    """Rows that hold tokens, and new tokens for them."""

    starts: Sequence[int]
    counts: Sequence[int]
    num_heads: int = 2
    group: int = 2
    key_dim: int = 8
    value_dim: int = 8
    width: int = 1
    page_size: int = 4
    pages_per_arena: int = 5
    dtype: torch.dtype = torch.float32
    stored: Stored = Stored.AS_GIVEN
    scale: float = 0.3
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    seed: int = 0
    layer: int = 1
    device: str = "cpu"
    store: PageStore = field(init=False)
    table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self.generator = torch.Generator().manual_seed(draw.randrange(2**31))
        plane = PlaneOf(self.num_heads, self.key_dim, self.value_dim, self.dtype, self.stored)
        self.layout = layout_of([plane] * 3, self.page_size)
        self.store = PageStore(self.layout, self.pages_per_arena, self.device)
        needed = [-(-(start + count) // self.page_size) for start, count in zip(self.starts, self.counts, strict=True)]
        spare = self.store.take(sum(needed) + 3)
        for arena in self.store.arenas:
            arena.fill_(0xFF)  # NaN in every floating type
        draw.shuffle(spare)
        wide = max(*needed, 1) + draw.randrange(2)
        table = [[draw.choice((-1, 0, 7, 10**6)) for _ in range(wide)] for _ in needed]
        for row, count in enumerate(needed):
            gone = self._num_gone(row)
            for place in range(count):
                page = spare.pop()
                if place >= gone:
                    table[row][place] = page
        self.table = torch.tensor(table, dtype=torch.int32, device=self.device)
        self.sinks = self.drawn(self.num_heads * self.group) if self.has_sinks else None
        self.held = [(self.drawn(s, self.num_heads, self.key_dim), self.drawn(s, self.num_heads, self.value_dim))
                     for s in self.starts]  # fmt: skip
        # What the rows hold is written where their pages still are.
        for row, (keys, values) in enumerate(self.held):
            for token in range(self._num_gone(row) * self.page_size, self.starts[row]):
                page = int(self.table[row, token // self.page_size])
                self._put(page, token % self.page_size, keys[token], values[token])
        rows, heads = len(self.starts), self.num_heads
        self.query = self.drawn(rows, self.width, heads * self.group, self.key_dim)
        self.key = self.drawn(rows, self.width, heads, self.key_dim)
        self.value = self.drawn(rows, self.width, heads, self.value_dim)
        for row, count in enumerate(self.counts):  # padding may be anything
            for tensor in (self.query, self.key, self.value):
                tensor[row, count:] = torch.nan

    def _num_gone(self, row: int) -> int:
        """Pages that have left the window of a row: somebody else may have them."""
        return max(0, self.starts[row] - self.window + 1) // self.page_size if self.window else 0

    def drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype).to(self.device)

    @property
    def offsets(self) -> Offsets:
        return self.layout.offsets[self.layer]

    def _put(self, page: int, slot: int, key: Tensor, value: Tensor) -> None:
        arena = self.store.arenas[page // self.pages_per_arena]
        base = page % self.pages_per_arena * self.layout.page_bytes
        for new, begin, scale_begin in ((key, *self.offsets[::2]), (value, *self.offsets[1::2])):
            if self.stored is not Stored.AS_GIVEN:
                new, scales = op.quantised(new)
                put_bytes(arena, base + scale_begin + 4 * slot * len(scales), scales)
            put_bytes(arena, base + begin + slot * new.numel() * new.itemsize, new)

    def arguments(self) -> tuple[Any, ...]:
        """Of the operation."""
        on_device = {"dtype": torch.int32, "device": self.device}
        return (
            self.query, self.key, self.value, self.table, torch.tensor(self.starts, **on_device),
            torch.tensor(self.counts, **on_device), self.store.table, list(self.store.geometry), list(self.offsets),
            int(self.stored), self.scale, self.window, self.softcap, self.sinks,
        )  # fmt: skip

    def kept(self, new: Tensor) -> Tensor:
        """What is read of vectors that were written."""
        if self.stored is Stored.AS_GIVEN:
            return new.double()
        numbers, scales = op.quantised(new)
        return (numbers.float() * scales[..., None]).double()

    def expected(self) -> Tensor:
        """[B, T, Hq, Dv] in float64, one query after the other; 0 for padding."""
        rows, width = self.query.shape[:2]
        out = torch.zeros(rows, width, self.num_heads * self.group, self.value_dim, dtype=torch.float64)
        for row, (old_keys, old_values) in enumerate(self.held):
            count = self.counts[row]
            keys = self.kept(torch.cat([old_keys, self.key[row, :count]]))
            values = self.kept(torch.cat([old_values, self.value[row, :count]]))
            for token in range(count):
                end = self.starts[row] + token + 1
                begin = max(0, end - self.window) if self.window else 0
                for head in range(out.shape[2]):
                    of = head // self.group
                    scores = keys[begin:end, of] @ self.query[row, token, head].double() * self.scale
                    if self.softcap:
                        scores = self.softcap * (scores / self.softcap).tanh()
                    if self.sinks is not None:
                        scores = torch.cat([scores, self.sinks[head : head + 1].double()])
                    shares = scores.softmax(0)[: end - begin]
                    out[row, token, head] = (shares @ values[begin:end, of]).cpu()
        return out

    def written(self) -> Tensor:
        """The bytes of all arenas."""
        return torch.cat(self.store.arenas).cpu()


def put_bytes(arena: Tensor, begin: int, values: Tensor) -> None:
    """Write numbers into an arena."""
    data = values.contiguous().view(-1).view(torch.uint8)
    arena[begin : begin + len(data)] = data


def drawn_world(draw: random.Random, **fixed: Any) -> World:
    """A small world of any kind."""
    rows = draw.randint(1, 3)
    width = draw.choice((1, 1, 2, 3, 5))
    chosen: dict[str, Any] = {
        "starts": [draw.choice((0, 1, 3, 4, 5, 8, 13, 21)) for _ in range(rows)],
        "counts": [draw.randint(0, width) for _ in range(rows)],
        "width": width,
        "num_heads": draw.choice((1, 2, 3)),
        "group": draw.choice((1, 2, 3, 4, 7)),
        "key_dim": draw.choice((8, 16, 24)),
        "value_dim": draw.choice((8, 16, 40)),
        "page_size": draw.choice((1, 2, 4, 16)),
        "pages_per_arena": draw.choice((1, 3, 64)),
        "dtype": draw.choice((torch.float32, torch.bfloat16, torch.float16)),
        "stored": draw.choice((Stored.AS_GIVEN, Stored.INT8)),
        "window": draw.choice((0, 0, 1, 3, 6)),
        "softcap": draw.choice((0.0, 0.0, 2.0)),
        "has_sinks": draw.random() < 0.3,
        "seed": draw.randrange(2**31),
    }
    return World(**(chosen | fixed))
