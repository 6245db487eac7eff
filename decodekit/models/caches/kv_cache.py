"""The ragged KV cache: keys and values of sequences that advance independently.

    slots            0    1    2    3    4    5    scratch
    row 0, length 4  The  cat  sat  on   .    .    .
    row 1, length 2  Two  men  .    .    .    .    .

    One pass appends "the mat" to row 0 and "ate" to row 1, padded to two columns:
    row 0, length 6  The  cat  sat  on   the  mat  .
    row 1, length 3  Two  men  ate  .    .    .    pad      the padding has no slot of its own
    "mat" is refused: `truncate([5, 3])` lowers a number, and the next token of row 0 is written over it.

Layers whose keys and values have one shape share one tensor; where all layers are alike, its plane 2l holds the keys
and its plane 2l + 1 the values of layer l. On an accelerator a plane lies token-major in memory, `[rows, slots, heads,
head_dim]`; on a CPU head-major, where attention over short heads was seen to be up to three times as fast. All code
sees the view `[rows, heads, slots, head_dim]`. The last slot of a row is scratch: padding without room goes there.

Lengths live on the host, since the loop knows them; taking tokens back is lowering a number.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.products.cpu_products import KINDS
from decodekit.products.step_code import INT8, NUM_PLACES

MAX_KEPT: Final = 1 << 26
"""Numbers of the masks of blocks of queries that a pass keeps for its next layers; what is more is made by each."""


@dataclass(frozen=True, slots=True)
class PlaneShape:
    """The shape of a layer's keys, or of its values, per token."""

    num_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys and values of one layer; their head dimensions may differ."""

    key: PlaneShape
    value: PlaneShape

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> LayerShape:
        """Of keys and values [R, H, T, D]."""
        return cls(*(PlaneShape(one.shape[1], one.shape[3], one.dtype, one.device) for one in (keys, values)))


@dataclass(slots=True, eq=False)
class Step:
    """One forward pass as the cache sees it: which slots are written, which are read, and the masks of the reading.

    The masks depend on the sliding window of a layer only, so they are made once per pass and shared by the layers.
    """

    starts: list[int]  # length of each row before the pass
    row_ends: list[int]  # and after it
    num_new: int  # T, padding included
    positions: Tensor  # int64 [R or 1, T] positions of the new tokens
    row_slice: tuple[int, int] | None = None  # the cache rows as (first, count), if they are consecutive,
    row_index: Tensor | None = None  # or their indices, int64 [R]; neither: all rows
    write_rows: Tensor | None = None  # int64 [R, 1] and [R or 1, T]: where the new tokens go;
    write_slots: Tensor | None = None  # None: to the slots start .. start + T of every row
    is_strict: bool = False  # refuse arguments of attention whose meaning is unknown
    hidden: list[Tensor] | None = None  # collects the hidden states of the layers, if not None
    recording: Any = None  # writes attention down in place of running it; see `step_program.Writer`
    carried: Sequence[Tensor] = ()  # what came to the device with the rest, see `RaggedCache.begin`
    end: int = field(init=False)  # slots [0, end) are read
    is_fresh: bool = field(init=False)  # nothing stored before: the new keys are all keys
    is_uniform: bool = field(init=False)  # each query sees exactly the slots [0, end)
    _masks: dict[Hashable, tuple[int, int, Tensor]] = field(init=False, default_factory=dict)
    _num_kept: int = field(init=False, default=0)  # numbers of the masks of blocks
    _places: dict[torch.device, tuple[Tensor | None, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.end = max(self.row_ends)
        self.is_fresh = max(self.starts) == 0
        self.is_uniform = self.num_new == 1 and min(self.row_ends) == self.end

    def places_on(self, device: torch.device) -> tuple[Tensor | None, ...]:
        """`write_rows`, `write_slots` and `row_index` on the device of a layer, brought there once."""
        found = self._places.get(device)
        if found is None:
            given = self.write_rows, self.write_slots, self.row_index
            found = self._places[device] = tuple(None if one is None else one.to(device) for one in given)
        return found

    def mask(
        self,
        window: int | None,
        repeats: int,
        dtype: torch.dtype,
        device: torch.device,
        queries: tuple[int, int] | None = None,
    ) -> tuple[int, int, Tensor]:
        """The additive mask of layers with this sliding window, and the slots it speaks of.

        A query at position p sees slot s where `s <= p` and, with a window w, `s > p - w`.

        Args:
            window: tokens a query sees including itself, or None.
            repeats: how often the queries are repeated, for query heads that share one key head.
            queries: only those from the first up to, not including, the second of the T; all if None. Masks are kept
                for the next layer: of all queries, and of blocks up to `MAX_KEPT`.

        Returns:
            `(first, last, mask)` with mask [R or 1, 1, repeats * T, last - first], 0 where seen and -inf elsewhere.
        """
        key = (window, repeats, dtype, queries)
        if key in self._masks:
            return self._masks[key]
        begin, stop = queries or (0, self.num_new)
        first = 0 if window is None else max(0, min(self.starts) + begin - window + 1)
        last = min(self.end, max(self.starts) + stop)
        position = self.positions[:, None, begin:stop, None].to(device)  # [R or 1, 1, T, 1]
        # Padding stands at the last position of its row, which may lie before the window of a block of queries.
        first = min(first, min(self.row_ends) - 1)
        slot = torch.arange(first, last, device=device)
        hidden = slot > position
        if window is not None:
            hidden |= slot <= position - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        if repeats > 1:
            mask = mask.repeat(1, 1, repeats, 1)
        if queries is not None:
            if self._num_kept + mask.numel() > MAX_KEPT:
                return first, last, mask
            self._num_kept += mask.numel()
        self._masks[key] = (first, last, mask)
        return first, last, mask


class CopiedPrefix:
    """Keys and values of the first tokens of a row, copied; a `causal_lm.Prefix`.

    A row that began with a prefix keeps only what comes after it: say 400 tokens of instructions are kept, and a row
    that began with them is kept with 550. The second prefix holds 150 tokens and stands on the first.

    Args:
        planes: by layer, keys and values [heads, num_tokens - first, head_dim].
        base: what stands before them, of which the first `first` tokens count; None if `first` is 0.
    """

    def __init__(self, planes: dict[int, list[Tensor]], num_tokens: int, base: CopiedPrefix | None, first: int) -> None:
        self._planes, self._base, self._first = planes, base, first
        self._num_above = 0  # prefixes that stand on this one
        self.num_tokens = num_tokens
        self.num_bytes = sum(plane.nbytes for pair in planes.values() for plane in pair)
        self.is_released = False
        if base is not None:
            base._num_above += 1

    def release(self) -> None:
        """Give the memory back, once no prefix stands on this one; no row may begin with it any more."""
        self.is_released = True
        prefix: CopiedPrefix | None = self
        while prefix is not None and prefix.is_released and not prefix._num_above:
            base = prefix._base
            prefix._planes, prefix._base = {}, None
            if base is not None:
                base._num_above -= 1
            prefix = base

    def parts(self, num_tokens: int) -> list[tuple[int, int, dict[int, list[Tensor]]]]:
        """The slots from the first up to, not including, the second, with the planes that begin with them."""
        before = [] if self._base is None else self._base.parts(min(num_tokens, self._first))
        own = [(self._first, num_tokens, self._planes)] if num_tokens > self._first else []
        return [*before, *own]


class RowLengths:
    """The lengths of the rows of a cache, empty at first, which the host knows."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._lengths = [0] * num_rows
        self._device = device

    @property
    def num_rows(self) -> int:
        """How many sequences the cache holds."""
        return len(self._lengths)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """Tokens stored per row, as host integers."""
        return tuple(self._lengths)

    @property
    def lengths(self) -> Tensor:
        """Tokens stored per row, int64 [num_rows], on the model's device."""
        return torch.tensor(self._lengths, dtype=torch.int64, device=self._device)

    def ends(self, num_tokens: Sequence[int], rows: Sequence[int] | None) -> list[int]:
        """Lengths of the rows after `num_tokens` more."""
        starts = self._lengths if rows is None else [self._lengths[row] for row in rows]
        return [start + count for start, count in zip(starts, num_tokens, strict=True)]


class RaggedCache(RowLengths):
    """Keys and values of `num_rows` rows, each with its own length. Implements `causal_lm.Cache`.

    Args:
        layers: the shapes of each layer that stores keys and values, by layer index.
        capacity: tokens per row; `begin` grows the cache when a row needs more.
        device: where positions are made (the device of the embeddings).
    """

    def __init__(self, layers: dict[int, LayerShape], num_rows: int, capacity: int, device: torch.device) -> None:
        if num_rows < 1 or capacity < 1:
            raise ValueError(f"a cache needs at least one row and one slot, not {num_rows} x {capacity}")
        super().__init__(num_rows, device)
        self._layers = layers
        self.capacity = capacity
        self._written = [0] * num_rows  # slots that may hold something, padding and forgotten tokens included
        self._common: dict[tuple[int, int], int] = {}  # (row, row) -> first slots that both hold, of rows once copied
        self._begun: dict[int, tuple[CopiedPrefix, int]] = {}  # row -> the prefix whose first slots it still holds
        self._allocate()

    @staticmethod
    def planes_of(layer: LayerShape) -> tuple[PlaneShape, ...]:
        """The planes of a layer: keys and values."""
        return layer.key, layer.value

    @staticmethod
    def encoded(keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """The planes in which keys and values [R, H, T, D] are written."""
        return keys, values

    @staticmethod
    def decoded(planes: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and values of what was written, in the type that they had."""
        keys, values = planes
        return keys, values

    def _allocate(self) -> None:
        self._seen: NDArray[np.int64] | None = None  # the planes in numbers
        planes: dict[PlaneShape, list[tuple[int, int]]] = {}  # shape -> (layer, place) of its planes
        self._planes: dict[int, list[Tensor]] = {}  # layer -> planes, as `planes_of` says
        for index, layer in self._layers.items():
            shapes = self.planes_of(layer)
            self._planes[index] = [torch.empty(0)] * len(shapes)
            for place, shape in enumerate(shapes):
                planes.setdefault(shape, []).append((index, place))
        num_rows, capacity = self.num_rows, self.capacity
        for shape, members in planes.items():
            # Zeros, not empty: a masked slot has weight 0, and 0 * NaN would be NaN.
            if shape.device.type == "cpu":
                size = (len(members), num_rows, shape.num_heads, capacity + 1, shape.head_dim)
                storage = _zeros_of_host(size, shape.dtype)
            else:
                size = (len(members), num_rows, capacity + 1, shape.num_heads, shape.head_dim)
                storage = torch.zeros(size, dtype=shape.dtype, device=shape.device).transpose(2, 3)
            for plane, (index, place) in zip(storage, members, strict=True):
                self._planes[index][place] = plane  # [num_rows, heads, capacity + 1, head_dim]
        self._positions = torch.arange(capacity, device=self._device)

    @property
    def num_bytes(self) -> int:
        """Memory of the keys and values."""
        return sum(plane.nbytes for plane in self._all_planes)

    @property
    def bytes_per_token(self) -> int:
        """Memory of the keys and values of one token of a row."""
        return self.num_bytes // (self.num_rows * (self.capacity + 1))

    @property
    def _all_planes(self) -> list[Tensor]:
        return [plane for planes in self._planes.values() for plane in planes]

    def reserve(self, num_tokens: Sequence[int], rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """See that there are slots for new tokens [R]; the lengths of the rows now, and with them."""
        starts, ends = [self._lengths[row] for row in rows], self.ends(num_tokens, rows)
        width, end = max(num_tokens), max(ends)
        if end > self.capacity:
            self.grow(max(end, 2 * self.capacity))
        for row, start in zip(rows, starts, strict=True):
            self._written[row] = max(self._written[row], min(start + width, self.capacity))
        return starts, ends

    def begin(self, num_tokens: Sequence[int], rows: Sequence[int] | None, carried: Sequence[Tensor] = ()) -> Step:
        """Plan the writing and reading of one forward pass; grows the cache if a row would run out of slots.

        Args:
            num_tokens: [R] new tokens of each row, at least 1; the pass is max(num_tokens) wide.
            rows: [R] distinct cache rows, or None for all.
            carried: int64, what else the pass needs of the host. All goes to the device in one copy.

        Returns:
            The step; lengths change only when it is given to `commit`.
        """
        chosen = range(self.num_rows) if rows is None else rows
        starts, row_ends = self.reserve(num_tokens, chosen)
        width = max(num_tokens)
        # Rows that are consecutive are read without a copy.
        is_next = rows is None or all(row == rows[0] + i for i, row in enumerate(rows))
        row_slice = (rows[0], len(rows)) if rows is not None and is_next else None
        is_level = min(starts) == max(starts)
        given = list(carried)
        if not is_next or not is_level:
            given.append(torch.tensor(chosen)[:, None])
        if not is_level:
            last = np.array(row_ends)[:, None] - 1
            unclamped = np.array(starts)[:, None] + np.arange(width)
            clamped = np.minimum(unclamped, last)  # padding stays inside the context of its row
            # The scratch slot takes the padding of unequal rows.
            given += map(torch.from_numpy, (clamped, np.where(unclamped <= last, clamped, self.capacity)))
        found = uploaded(given, self._device)
        carried, found = found[: len(carried)], found[len(carried) :]
        write_rows = found[0] if found else None
        if is_level:
            # One row of positions, and a slice to write; padding lands in slots that are free anyway.
            positions = self._positions[starts[0] : starts[0] + width].unsqueeze(0)
            write_slots = None if is_next else positions
        else:
            positions, write_slots = found[1:]
        row_index = None if is_next or write_rows is None else write_rows[:, 0]
        return Step(starts, row_ends, width, positions, row_slice, row_index, write_rows, write_slots, carried=carried)

    def append(self, layer: int, keys: Tensor, values: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Store the new keys [R, Hkv, T, Dk] and values [R, Hkv, T, Dv] of a layer; all that its queries may read.

        That is the slots [0, step.end) of the rows (views of the cache where they are consecutive), or the given ones
        where nothing was stored before.
        """
        parts = zip(self._planes[layer], self.encoded(keys, values), strict=True)
        return self.decoded([_append(plane, new, step) for plane, new in parts], keys.dtype)

    def planes_now(self) -> NDArray[np.int64]:
        """The planes of all layers as `products.step_code` sees them, int64 [P, NUM_PLACES]."""
        if self._seen is None:
            kinds = {**KINDS, torch.int8: INT8}
            found = [
                (plane.data_ptr(), *plane.stride()[:3], kinds[plane.dtype], number + 2)  # scales come after both
                for number, plane in enumerate(self._all_planes)
            ]
            self._seen = np.array(found, np.int64).reshape(-1, NUM_PLACES)
        return self._seen

    def commit(self, row_ends: Sequence[int], rows: Sequence[int] | None) -> None:
        """Advance the lengths of the rows to where what was written ends."""
        for row, end in zip(range(self.num_rows) if rows is None else rows, row_ends, strict=True):
            self._lengths[row] = end

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Lower the lengths of the rows; see `causal_lm.Cache.truncate`."""
        self._lengths = shortened(self._lengths, row_lengths)
        for (row, other), num_slots in self._common.items():
            self._common[row, other] = min(num_slots, self._lengths[row], self._lengths[other])
        for row, (prefix, num_slots) in self._begun.items():
            self._begun[row] = prefix, min(num_slots, self._lengths[row])

    @torch.inference_mode()
    def reset(self, rows: Sequence[int]) -> None:
        """Empty these rows; see `causal_lm.Cache.reset`.

        What was written is zeroed: a sequence that ended in NaN would otherwise poison the next one in its row,
        because a masked value has weight 0 and 0 * NaN is NaN.
        """
        for row in rows:
            for plane in self._all_planes:
                plane[row, :, : self._written[row]].zero_()
            self._lengths[row] = self._written[row] = 0
        self._forget_origins(rows)

    def _forget_origins(self, rows: Sequence[int]) -> None:
        self._common = {pair: num_slots for pair, num_slots in self._common.items() if not {*pair} & {*rows}}
        for row in rows:
            self._begun.pop(row, None)

    @torch.inference_mode()
    def keep(self, row: int, num_tokens: int) -> CopiedPrefix:
        """A copy of the first tokens of a row; see `causal_lm.SharesPrefixes.keep`."""
        if not 0 < num_tokens <= self._lengths[row]:
            raise ValueError(f"row {row} holds {self._lengths[row]} tokens, of which {num_tokens} cannot be kept")
        base, first = self._begun.get(row, (None, 0))
        if base is None or base.is_released or not base.num_tokens == first < num_tokens:
            base, first = None, 0
        planes = {
            layer: [plane[row, :, first:num_tokens].clone() for plane in pair] for layer, pair in self._planes.items()
        }
        return CopiedPrefix(planes, num_tokens, base, first)

    @torch.inference_mode()
    def begin_with(self, row: int, prefix: CopiedPrefix, num_tokens: int) -> None:
        """Begin a row with the first tokens of a prefix; see `causal_lm.SharesPrefixes.begin_with`."""
        if prefix.is_released or not 0 < num_tokens <= prefix.num_tokens:
            raise ValueError(f"a row cannot begin with {num_tokens} of the {prefix.num_tokens} tokens of a prefix")
        if num_tokens > self.capacity:
            self.grow(max(num_tokens, 2 * self.capacity))
        for first, end, planes in prefix.parts(num_tokens):
            for layer, pair in self._planes.items():
                for plane, kept in zip(pair, planes[layer], strict=True):
                    plane[row, :, first:end].copy_(kept[:, : end - first])
        for plane in self._all_planes:
            plane[row, :, num_tokens : self._written[row]].zero_()  # as in `reset`: nothing of the old row
        self._lengths[row] = self._written[row] = num_tokens
        self._forget_origins([row])
        self._begun[row] = prefix, num_tokens

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; see `causal_lm.Cache.reorder`."""
        order = checked_order(rows, self.num_rows)
        if len(order) == self.num_rows:  # as beams do: most rows stay where they are
            self._copy_rows([(row, source) for row, source in enumerate(order) if row != source])
            return
        self._lengths = [self._lengths[row] for row in order]
        self._written = [self._written[row] for row in order]
        self._common = {}
        self._begun = {row: self._begun[source] for row, source in enumerate(order) if source in self._begun}
        self._move(order)

    @torch.inference_mode()
    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row; see `causal_lm.Cache.grow`."""
        if capacity > self.capacity:
            self.capacity = capacity
            self._move(range(self.num_rows))

    def _copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Make every first row of the pairs what the second was; the others are not touched.

        The slots that both rows hold already are not copied: hypotheses of one prompt differ after it.
        """
        if not pairs:
            return
        sources = {source for _, source in pairs}
        # Rows may change places: then they are read before one of them is written.
        is_exchange = any(target in sources for target, _ in pairs)
        parts = [
            (target, source, self._common.get((target, source), 0), self._written[source]) for target, source in pairs
        ]
        for plane in self._all_planes:
            copies = [plane[source, :, first:used] for _, source, first, used in parts]
            if is_exchange:
                copies = [copy.clone() for copy in copies]
            for copy, (target, _, first, used) in zip(copies, parts, strict=True):
                plane[target, :, first:used].copy_(copy)
                plane[target, :, used : self._written[target]].zero_()  # as in `reset`: nothing of the old row
        origin = {row: row for row in range(self.num_rows)} | dict(pairs)
        known, lengths, written = dict(self._common), list(self._lengths), list(self._written)
        begun = dict(self._begun)
        for target, source in pairs:
            self._begun.pop(target, None)
            if source in begun:
                self._begun[target] = begun[source]
            self._lengths[target], self._written[target] = lengths[source], written[source]
            for row, was in origin.items():
                if row != target:
                    num_slots = lengths[source] if was == source else known.get((source, was), 0)
                    self._common[target, row] = self._common[row, target] = num_slots

    def _move(self, order: Sequence[int]) -> None:
        """Make planes anew, of which row i has what row `order[i]` of the old ones had written, and touches no more."""
        old = self._all_planes
        self._allocate()
        for plane, source in zip(self._all_planes, old, strict=True):
            for row, (before, used) in enumerate(zip(order, self._written, strict=True)):
                plane[row, :, :used].copy_(source[before, :, :used])


def _zeros_of_host(size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is taken when it is first touched: a cache that grows for one row stops no other.

    They lie in small pages. numpy asks for those of 2 MiB, which hold the slots of many rows, so that the first tokens
    of each row took all of the cache: a quarter of a second for 190 MB.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}  # not Windows
    memory = mmap.mmap(-1, max(1, math.prod(size) * dtype.itemsize), **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without any
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[: math.prod(size) * dtype.itemsize].view(dtype).view(*size)


def _append(plane: Tensor, new: Tensor, step: Step) -> Tensor:
    # plane [num_rows, H, capacity + 1, D], new [R, H, T, D]
    mine = plane if step.row_slice is None else plane.narrow(0, *step.row_slice)
    rows, slots, row_index = step.places_on(plane.device)
    if rows is None or slots is None:
        mine.narrow(2, step.starts[0], step.num_new).copy_(new)
    else:
        plane.transpose(1, 2).index_put_((rows, slots), new.transpose(1, 2))
    if step.is_fresh:
        return new
    read = mine.narrow(2, 0, step.end)
    return read if row_index is None else read.index_select(0, row_index)


def uploaded(given: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of int64 on a device; those of the host go there in one copy, which the host does not wait for."""
    if device.type == "cpu" or not any(one.device.type == "cpu" for one in given):
        return [one.to(device) for one in given]
    of_host = [one for one in given if one.device.type == "cpu"]
    packed = torch.cat([one.flatten() for one in of_host]).to(device, non_blocking=True)
    parts = iter(torch.split(packed, [one.numel() for one in of_host]))
    return [next(parts).view(one.shape) if one.device.type == "cpu" else one.to(device) for one in given]


def shortened(lengths: Sequence[int], row_lengths: Sequence[int] | Tensor) -> list[int]:
    """The new lengths of a truncation; `ValueError` if they are too few or many, below 0, or above the present ones."""
    new: list[int] = row_lengths.tolist() if isinstance(row_lengths, Tensor) else [int(n) for n in row_lengths]
    if len(new) != len(lengths):
        raise ValueError(f"{len(new)} lengths given for a cache of {len(lengths)} rows")
    for row, (length, present) in enumerate(zip(new, lengths, strict=True)):
        if not 0 <= length <= present:
            raise ValueError(f"row {row} holds {present} tokens and cannot be truncated to {length}")
    return new


def checked_order(rows: Tensor, num_rows: int) -> list[int]:
    """An order of rows on the host; `ValueError` if it is empty, too long or names a row that does not exist."""
    order: list[int] = rows.tolist()
    if not 0 < len(order) <= num_rows or not all(0 <= row < num_rows for row in order):
        raise ValueError(f"{order} is no order of at most {num_rows} of the rows 0..{num_rows - 1}")
    return order
