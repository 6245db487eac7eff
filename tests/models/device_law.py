"""The law of pages: what lies on the device is what the host believes, wherever nothing is on its way.

After every pass of a model over pages, in all tests (`watch`):

    pages       a page has an owner for each row that has it, and is free if and only if it has none
    tables      an entry is the page of the host, or is pending
    inputs      those of a step a device ahead are what an upload would bring, also where there was none
    tokens      one that the device went on with is the one that the text has there
    masks       at the place of a position is the mask of the constraint there

On a CPU the device's memory can be looked at at any time; nothing is counted as a transfer by it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from decodekit.decoding.draws.device_step import MASKS
from decodekit.decoding.lazy_masks.mask_pool import MaskPool
from decodekit.decoding.loop.device_pass import DeviceDecided, DevicePass
from decodekit.decoding.loop.flight import TAKEN
from decodekit.gpu.draw_settings import ASKED, FLAGS, INDEX, NO_MASK
from decodekit.gpu.step_inputs import inputs_of
from decodekit.models.caches.paged_rows import PagedRows
from decodekit.models.runners.paged import PagedModel


class DeviceLawError(BaseException):
    """The device holds something else than the host believes: no error of a row, which would end that row alone."""


@contextmanager
def unseen() -> Iterator[None]:
    """Operations in here are seen by no mode."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode())
        yield


def wrong_entries(rows: PagedRows) -> list[tuple[int, int]]:
    """Rows and slots whose page on the device is not the one on the host, though nothing is pending."""
    found = []
    with unseen():
        for group in rows.groups:
            table = group.table.numpy()
            for row, pages in enumerate(group.rows):
                for slot, page in enumerate(pages):
                    known = group.entries.get((row, slot), int(table[row, slot]))
                    if page >= 0 and known != page:
                        found.append((row, slot))
    return found


def check_rows(rows: PagedRows) -> None:
    """Pages and tables."""
    if wrong := wrong_entries(rows):
        raise DeviceLawError(f"rows and slots with another page on the device: {wrong}")
    for group in rows.groups:
        store, held = group.store, Counter(page for pages in group.rows for page in pages if page >= 0)
        owned = [store.num_owners(page) for page in range(store.num_pages)]
        if any(owned[page] < number for page, number in held.items()):
            raise DeviceLawError("a row has a page of which it is no owner")
        if sorted(store._free) != [page for page, number in enumerate(owned) if not number]:
            raise DeviceLawError("a page without an owner is not free, or the other way round")
        with unseen():
            addresses = store.table[1 : len(store.arenas) + 1].tolist()
            if addresses != [arena.data_ptr() for arena in store.arenas]:
                raise DeviceLawError("an arena lies elsewhere")


class LoopLaw:
    """What is known of the steps that are a device ahead."""

    def __init__(self) -> None:
        self._masks: dict[tuple[int, int], Any] = {}  # by pool and place
        self._read: dict[int, tuple[Any, int]] = {}  # by entry, the token that the device went on with
        self._failed: dict[int, Any] = {}  # entries of which the device took no token; the host does not know it yet

    def note_mask(self, pool: MaskPool, place: int | None, matcher: Any) -> None:
        """The mask that belongs at a place from now on."""
        if place is not None:
            words = np.zeros((1, pool.masks.shape[1]), dtype=np.int32)
            matcher.fill_bitmask(words)
            self._masks[id(pool), place] = words[0]

    def note_failures(self, flights: Any) -> None:
        """The rows that have no token: what runs behind them is dropped, wherever it is read."""
        for flight in flights:
            with unseen():
                every = flight.out.tolist()
            for entry, columns in zip(flight.entries, every, strict=False):
                if columns[-1]:
                    self._failed[id(entry)] = entry

    def check_step(self, ahead: DevicePass, step: Any, texts: list[Any], entries: list[Any]) -> None:
        """The inputs of a step that is about to start."""
        state, pool = step.state, ahead._pool()
        with unseen():
            read_by = inputs_of(state.rows, state.starts, state.counts, state.given, state.table_rows.taken, [])
            rows, starts, counts, values, tokens = (
                one.numpy() for one in (state.rows, state.starts, state.counts, state.values, read_by.tokens)
            )
            for place, (text, entry) in enumerate(zip(texts, entries, strict=True)):
                if text.running is not None and self._failed.get(id(text.running)) is text.running:
                    continue
                count, there = len(entry.tokens), values[:, place].tolist()
                drawn_by = text.values.copy()
                drawn_by[INDEX] = entry.number
                drawn_by[FLAGS] |= ASKED * (entry.sequence.matcher is not None and not entry.has_mask)
                masks = [*entry.masks, *[NO_MASK] * (len(there) - MASKS - len(entry.masks))]
                expected = [ahead.cache.places[entry.row], entry.end - count, count]
                expected += [*drawn_by.tolist(), len(entry.guess.tokens), *masks]
                found = [int(one[place]) for one in (rows, starts, counts)]
                found += there
                if found != expected:
                    raise DeviceLawError(f"the inputs of a row are {found}, and should be {expected}")
                read = tokens[place, :count].tolist()
                if any(host not in (TAKEN, token) for token, host in zip(read, entry.tokens, strict=True)):
                    raise DeviceLawError(f"the device reads {read}, and should read {entry.tokens}")
                if entry.tokens == [TAKEN]:
                    self._read[id(entry)] = entry, read[0]
                for number in entry.masks:
                    if not np.array_equal(pool.masks[number].numpy(), self._masks[id(pool), number]):
                        raise DeviceLawError(f"the mask {number} on the device is another one")
            if any(rows[len(entries) :] != step.state.table_rows.scratch_row) or counts[len(entries) :].any():
                raise DeviceLawError("a row that holds nothing is read")

    def check_token(self, entry: Any) -> None:
        """The token behind which a step took its own is the one of the text."""
        known, token = self._read.pop(id(entry), (None, 0))
        if known is entry and entry.sequence.token_ids[entry.number - 1] != token:
            raise DeviceLawError(f"the device went on with {token}, the text with {entry.sequence.token_ids}")


def watch(patch: pytest.MonkeyPatch) -> None:
    """Have the law looked at after every pass over pages; only where they lie in the memory of the host."""
    law = LoopLaw()

    def behind(owner: Any, name: str, check: Callable[..., None]) -> None:
        call = getattr(owner, name)

        @functools.wraps(call)
        def checked(self: Any, *arguments: Any, **options: Any) -> Any:
            out = call(self, *arguments, **options)
            check(self, out, *arguments)
            return out

        patch.setattr(owner, name, checked)

    def on_host(rows: PagedRows) -> bool:
        return rows.device.type == "cpu"

    behind(
        PagedModel,
        "forward",
        lambda self, out, tokens, num_tokens, cache, *_: on_host(cache.rows) and check_rows(cache.rows),
    )

    def launched(self: DevicePass, out: Any, texts: Any) -> None:
        if on_host(self.cache.rows):
            check_rows(self.cache.rows)
            law.note_failures(out)

    behind(DevicePass, "launch", launched)
    behind(
        DevicePass,
        "_fill",
        lambda self, out, texts, entries, *_: on_host(self.cache.rows) and law.check_step(self, out, texts, entries),
    )
    behind(MaskPool, "place", lambda self, out, matcher: self.masks.is_cpu and law.note_mask(self, out, matcher))
    choices = DeviceDecided.choices

    @functools.wraps(choices)
    def followed(self: DeviceDecided, number: int) -> Any:
        law.check_token(self.entry)
        return choices(self, number)

    patch.setattr(DeviceDecided, "choices", followed)
