"""Rows of logits with settings, for tests of the sampler: random ones, and ones that are hard to get right."""

from __future__ import annotations

import math
import random
from typing import TypeAlias

import torch
from torch import Tensor

from decodekit.gpu import draw_settings

Setting: TypeAlias = tuple[float, int, float, float, bool]
"""Temperature, top-k or 0, top-p, min-p, whether it is greedy."""


def setting_of(draw: random.Random, vocab_size: int) -> Setting:
    """Of one row."""
    return (
        draw.choice((1.0, 1.0, 0.8, 0.3, 1.7, 0.01)),
        draw.choice((0, 0, 1, 2, 5, min(50, vocab_size), vocab_size, vocab_size + 3)),
        draw.choice((1.0, 1.0, 0.95, 0.9, 0.5, 0.3, 1e-3)),
        draw.choice((0.0, 0.0, 0.05, 0.3, 1.0)),
        draw.random() < 0.15,
    )


def row_of(draw: random.Random, vocab_size: int, generator: torch.Generator, are_sound: bool) -> Tensor:
    """Logits, float32 [V], of one of many kinds."""
    row = torch.randn(vocab_size, generator=generator)
    kinds = ["plain", "steep", "flat", "equal", "few", "banned", "zeros", "coarse", "one"]
    if not are_sound:
        kinds += ["nan", "inf", "none", "huge", "tiny"]
    kind = draw.choice(kinds)
    if kind == "steep":
        row = row * 12
    elif kind == "flat":
        row = row * 1e-3
    elif kind == "equal":
        row = torch.full_like(row, draw.choice((0.0, -3.5, 7.25)))
    elif kind == "few":  # many ties
        row = (row * 2).round()
    elif kind == "banned":
        row[torch.rand(vocab_size, generator=generator) < 0.7] = -math.inf
        row[draw.randrange(vocab_size)] = 0.5
    elif kind == "zeros":
        row = torch.where(row > 0, 0.0, -0.0)
    elif kind == "coarse":
        row = (row * 4).bfloat16().float()
    elif kind == "one":
        row = torch.full_like(row, -math.inf)
        row[draw.randrange(vocab_size)] = 2.0
    elif kind in ("nan", "inf"):
        row[draw.randrange(vocab_size)] = math.nan if kind == "nan" else math.inf
    elif kind == "none":
        row = torch.full_like(row, -math.inf)
    elif kind in ("huge", "tiny"):
        row = row * (1e38 if kind == "huge" else 1e-38)
    return row


def drawn_rows(
    draw: random.Random,
    *,
    num_rows: int | None = None,
    vocab_size: int | None = None,
    has_masks: bool | None = None,
    are_sound: bool = False,
) -> tuple[Tensor, list[Setting], Tensor, Tensor | None, Tensor | None]:
    """Logits [N, V], settings, keys int64 [3, N], masks and the mask of each row."""
    num_rows = draw.randint(1, 4) if num_rows is None else num_rows
    vocab_size = draw.choice((1, 2, 3, 5, 31, 33, 64, 200, 1500, 4099)) if vocab_size is None else vocab_size
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    logits = torch.stack([row_of(draw, vocab_size, generator, are_sound) for _ in range(num_rows)])
    if draw.random() < 0.3:
        logits = logits.to(draw.choice((torch.bfloat16, torch.float16)))
        if are_sound:
            logits = logits.clamp(max=6e4)
    settings = [setting_of(draw, vocab_size) for _ in range(num_rows)]
    keys = torch.tensor([[draw.randrange(2**40), draw.randrange(9), draw.randrange(999)] for _ in range(num_rows)]).T
    masks = ids = None
    if draw.random() < 0.4 if has_masks is None else has_masks:
        shape = (3, (vocab_size + 31) // 32)
        masks = torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)
        ids = torch.tensor([draw.randint(-1, 2) for _ in range(num_rows)], dtype=torch.int32)
    return logits, settings, keys, masks, ids


def values_of(settings: list[Setting], keys: Tensor, ids: Tensor | None, is_asked: bool = True) -> Tensor:
    """The numbers of rows as they go up."""
    values = draw_settings.packed(settings, *keys.tolist(), is_asked=is_asked)
    if ids is not None:
        values[draw_settings.MASKS] = ids
    return torch.from_numpy(values)
