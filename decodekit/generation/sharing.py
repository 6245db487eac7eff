"""Prompts that several rows of a cache begin with: each is read once, and its keys and values are copied.

Shared is all of a prompt but its last token, which every sample reads for itself: so it has logits of its own, and from
there on is a row like any other. A copy holds what the row would have read, so that no text depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows

import torch

from decodekit.generation.sequence import Request, Sequence
from decodekit.models.causal_lm import Cache
from decodekit.models.contrast import KnowsPrompts


class SharedPrompts:
    """What the rows of one cache begin with.

    Samples of one request hold one and the same prompt object; that is how they know each other.

    Args:
        can_rollback: whether a row can be cut to its prompt. With recurrent state it cannot: then samples share what
            is read for those that begin together, and later ones read the prompt again.
    """

    def __init__(self, can_rollback: bool) -> None:
        self._can_rollback = can_rollback
        self._prompts: dict[int, Rows[int]] = {}  # by row; of a row that is free, too

    def take_row(self, free: list[int], prompt: Rows[int]) -> int:
        """Take a row off the free ones; if there is one that begins with the prompt, that one."""
        known = (place for place, row in enumerate(free) if self._prompts.get(row) is prompt)
        return free.pop(next(known, -1))

    def begin(self, sequences: Rows[Sequence], cache: Cache) -> list[Sequence]:
        """Give new sequences what the cache has of their prompts; empty the rows of the others.

        Those that must read their prompt come back: the first of each prompt that no row has.
        """
        sources = {id(prompt): row for row, prompt in self._prompts.items()} if self._can_rollback else {}
        known = [sequence for sequence in sequences if id(sequence.request.prompt) in sources]
        unknown = [sequence for sequence in sequences if id(sequence.request.prompt) not in sources]
        # Copies first, for a row that is about to be emptied may be the source of one.
        elsewhere = [one for one in known if self._prompts.get(one.row) is not one.request.prompt]
        copy_rows(cache, [(sources[id(one.request.prompt)], one.row) for one in elsewhere])
        begin_rows(cache, {sequence.row: sequence.request for sequence in unknown})
        if known:
            lengths: list[int] = cache.lengths.tolist()
            for sequence in known:
                lengths[sequence.row] = len(sequence.request.prompt) - 1
            cache.truncate(lengths)
        for sequence in sequences:
            self._prompts[sequence.row] = sequence.request.prompt
        first = {id(sequence.request.prompt): sequence for sequence in reversed(unknown)}
        return [one for one in reversed(first.values()) if len(one.request.prompt) > 1]

    def spread(self, readers: Iterable[Sequence], sequences: Rows[Sequence], cache: Cache) -> None:
        """Copy what was read of prompts to the other sequences that begin with them."""
        rows = {id(sequence.request.prompt): sequence.row for sequence in readers}
        pairs = [(rows.get(id(one.request.prompt), one.row), one.row) for one in sequences]
        copy_rows(cache, pairs)


def copy_rows(cache: Cache, pairs: Iterable[tuple[int, int]]) -> None:
    """Make the second row of each pair what the first was; all are read before one is written."""
    order = list(range(cache.num_rows))
    for source, row in pairs:
        order[row] = source
    if order != list(range(len(order))):
        cache.reorder(torch.tensor(order))


def begin_rows(cache: Cache, requests: Mapping[int, Request]) -> None:
    """Empty rows of a cache for the requests that begin there, by row; it learns their prompts if it asks for them."""
    cache.reset(list(requests))
    if isinstance(cache, KnowsPrompts):
        for row, request in requests.items():
            cache.set_prompt(row, request.prompt, request.negative_prompt)
