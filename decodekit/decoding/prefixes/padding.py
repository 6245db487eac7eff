"""Rows of unequal length in one forward pass: which go together, and how they are padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

FREE_PADDING = 32
"""So many tokens of padding are always worth a pass less."""


def similar_lengths(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices in groups of similar length, shorter ones first.

    A group has at most `max_tokens` with its padding, and at most a quarter of padding beside its tokens, or
    `FREE_PADDING`: padding costs as much as tokens where arithmetic is the limit (a CPU, long prompts), another pass
    costs more than a little padding where it is not. An index whose length exceeds `max_tokens` is alone.
    """
    group: list[int] = []
    num_tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = lengths[index] * (len(group) + 1)
        padding = padded - num_tokens - lengths[index]
        if group and (padded > max_tokens or padding > max(FREE_PADDING, (num_tokens + lengths[index]) // 4)):
            yield group
            group, num_tokens = [], 0
        group.append(index)
        num_tokens += lengths[index]
    if group:
        yield group


def right_padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Token ids of unequal rows on the host, int64 [N, T], padded on the right with 0."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)
