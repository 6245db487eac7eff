"""Rows of unequal length in one forward pass: which go together, and how they are padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def similar_lengths(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices in groups of similar length, each at most `max_tokens` with its padding; shorter groups first.

    An index whose length exceeds `max_tokens` by itself is alone in its group.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and lengths[index] * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def right_padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids of unequal rows as int64 [N, T], padded on the right with 0."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64, device=device)
