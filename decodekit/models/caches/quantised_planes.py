"""Keys and values in eight bits: the rectangular cache with a scale for every token and head.

The key of one token in one head, four numbers, is stored as

    0.50  -1.27   0.02   0.88      float32, 16 bytes
      50   -127      2     88      int8, 4 bytes, and the scale 1.27 / 127 = 0.01, 4 bytes

and read as scale times code. A number is wrong by at most half a scale: 0.4 % of the largest of its token and head.
With heads of 64 numbers the cache takes 68 bytes where float32 takes 256, and bfloat16 128.

This changes logits, and so texts: it is a setting, not a speed option. Within it the laws hold as they do without: a
token's code is a function of its own key, whatever stands beside it, and the pass that writes a token reads it as every
later one does, so that it does not matter in which pieces a text was read. Rounding makes one limit coarser: logits of
another batch size differ in their last bits, and a key within these bits of a boundary gets the neighbouring code.

Source: per-token quantisation of the cache as in FlexGen (Sheng et al. 2023) and KVQuant (Hooper et al. 2024), here
symmetric and without outliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from decodekit.models.caches.kv_cache import LayerShape, PlaneShape, RaggedCache

_LARGEST: Final = 127


class QuantisedCache(RaggedCache):
    """A `RaggedCache` whose planes are int8 codes, with float32 scales in planes of one number a head."""

    @staticmethod
    def planes_of(layer: LayerShape) -> tuple[PlaneShape, ...]:
        """Codes of the keys and the values, and the scales of both."""
        codes = [replace(shape, dtype=torch.int8) for shape in (layer.key, layer.value)]
        scales = [replace(shape, head_dim=1, dtype=torch.float32) for shape in (layer.key, layer.value)]
        return (*codes, *scales)

    @staticmethod
    def encoded(keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """Codes and scales of keys and values [R, H, T, D]."""
        key_codes, key_scales = quantised(keys)
        value_codes, value_scales = quantised(values)
        return key_codes, value_codes, key_scales, value_scales

    @staticmethod
    def decoded(planes: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and values of their codes and scales: also those of the pass that wrote them, if it reads them."""
        key_codes, value_codes, key_scales, value_scales = planes
        return restored(key_codes, key_scales, dtype), restored(value_codes, value_scales, dtype)


def quantised(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 [..., D] and scales float32 [..., 1] of numbers [..., D]: the largest of each row is 127 or -127.

    Rows of zeros have the scale 0. NaN and infinity in a row become NaN throughout it, so that they are not hidden.
    """
    wide = numbers.float()
    scales = wide.abs().amax(dim=-1, keepdim=True) / _LARGEST
    ratios = wide / torch.where(scales > 0, scales, 1.0)
    return ratios.nan_to_num(0.0).round_().to(torch.int8), scales


def restored(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers [..., D] of codes [..., D] and scales [..., 1]."""
    return (codes * scales).to(dtype)
