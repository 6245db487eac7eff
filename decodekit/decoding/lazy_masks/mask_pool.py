"""Masks of constraints on the device, each brought there once: a row selects one by its number.

    step 7    row 0 is before a key        its mask is new: place 0, one upload         mask_ids  0
              row 1 is before a comma      new, too: place 1, with the same upload                1
    step 8    row 0 is before a comma      state known, no mask is made or sent                   1
              row 1 takes a free token     no mask                                               -1

A state of a constraint has one mask, so the state stands for it. A constraint that does not tell its state is known by
the words of its masks. Where the pool is full, the mask goes that was used longest ago; never one of the step that is
being made.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from decodekit.constraints.matching.matcher import GrammarMatcher, Matcher
from decodekit.constraints.matching.wrapped_matcher import BudgetedMatcher

MIN_PLACES: Final = 1024
"""Masks of a pool, at least: 20 MB for a vocabulary of 152k tokens."""


class MaskPool:
    """Masks at fixed places of one tensor.

    Args:
        num_places: n, how many; a step of more rows than that does not fit.
        num_words: of a mask.
        device: where they are.

    Attributes:
        masks: int32 [n, words] on the device; its address never changes.
        num_sent, num_uploads: masks that were brought there, and by how many copies.
    """

    def __init__(self, num_places: int, num_words: int, device: torch.device) -> None:
        self.masks = torch.zeros(num_places, num_words, dtype=torch.int32, device=device)
        self.num_sent = self.num_uploads = 0
        self._places: OrderedDict[Hashable, int] = OrderedDict()  # the one that was used longest ago first
        self._used: dict[Hashable, int] = {}  # by key, the step that used it last
        self._new: dict[int, NDArray[np.int32]] = {}
        self._step = 0

    def begin(self) -> None:
        """A step begins: the places of the one before may be given to others, once the device has read them."""
        self._step += 1

    def place(self, matcher: Matcher) -> int | None:
        """The place of the mask of where a matcher stands, made if it is not there; None if this step uses all.

        Raises:
            DecodekitError: of a constraint that fails.
        """
        key = mask_key(matcher)
        if key not in self._places:
            words = np.zeros((1, self.masks.shape[1]), dtype=np.int32)
            matcher.fill_bitmask(words)
            key = words.tobytes() if key is None else key
        if key not in self._places:
            place = self._free_place()
            if place is None:
                return None
            self._places[key] = place
            self._new[place] = words[0]
        self._places.move_to_end(key)
        self._used[key] = self._step
        return self._places[key]

    def _free_place(self) -> int | None:
        if len(self._places) < len(self.masks):
            return len(self._places)
        oldest = next(iter(self._places))
        if self._used[oldest] == self._step:
            return None
        del self._used[oldest]
        return self._places.pop(oldest)

    def upload(self) -> None:
        """Bring the new masks to the device in one copy, if there are any; the host does not wait."""
        if not self._new:
            return
        column = np.array(list(self._new), dtype=np.int32)[:, None]
        packed = torch.from_numpy(np.hstack([column, np.stack(list(self._new.values()))]))
        packed = packed.pin_memory() if self.masks.is_cuda else packed
        there = packed.to(self.masks.device, non_blocking=True)
        self.masks.index_copy_(0, there[:, 0].long(), there[:, 1:])
        self.num_sent += len(self._new)
        self.num_uploads += 1
        self._new = {}


def mask_key(matcher: Matcher | None) -> Hashable:
    """The key of a matcher's mask: its state; None if it does not tell it.

    A recogniser that is gone is equal to no other: states are numbered anew by the one that has its address.
    """
    if isinstance(matcher, BudgetedMatcher):
        matcher = matcher.inner
    return (weakref.ref(matcher.recogniser), matcher.state) if isinstance(matcher, GrammarMatcher) else None
