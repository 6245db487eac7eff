"""Gumbel noise as a pure function of (seed, sequence, position, token id); there is no generator and no state.

Adding it to logits and taking the argmax samples from their softmax (Gumbel 1954; Maddison et al. 2014). Because a
number is looked up and not drawn, a token does not depend on the other rows of the batch, on how many numbers were used
before, or on which other tokens are looked at.

Construction. With mix = the finalizer of SplitMix64 (Steele, Lea and Flood 2014; constants of Stafford's variant 13),
G = 0x9E3779B97F4A7C15, all modulo 2^64:

    key    = mix(mix(mix(seed + G) + (sequence + 1) G) + (position + 1) G)
    bits   = mix(key + (token + 1) G)                      # the tokens of a row are the SplitMix64 stream of its key
    u      = ((bits >> 12) + 1/2) 2^-52                    # 52 bits, strictly between 0 and 1, exact in float64
    gumbel = float32(-ln(-ln(u)))                          # between -3.6 and 36.8

The logarithms are taken in float64 and rounded once to float32: a float32 logarithm would lose the upper tail, where
unlikely tokens win (24 bits of u end at 16.6), and its last bit differs between CPU, CUDA and vector widths. After the
rounding the values agree but for about one in 10^8, by one unit in the last place.

Period and collisions. Within a row the 2^64 tokens have distinct bits. For one seed the sequences have distinct
intermediate keys, and for one sequence the positions distinct keys. Two rows share part of their noise, for other token
ids, only if their keys lie within V multiples of G: V 2^-63 per pair of rows, about 10^-14 for V = 131,072.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FACTOR1 = 0xBF58476D1CE4E5B9
_FACTOR2 = 0x94D049BB133111EB
_MASK64 = (1 << 64) - 1

# Rows up to which hashing the keys one by one in Python beats three times eleven small tensor operations.
_FEW_ROWS = 24

Keys = Tensor | Sequence[int]


def gumbel(
    seeds: Keys, sequences: Keys, positions: Keys, vocab_size: int, device: torch.device | None = None
) -> Tensor:
    """Standard Gumbel noise, float32 [N, vocab_size].

    Args:
        seeds: [N] int64, the seed of each row.
        sequences: [N] int64, the index of the sample among several of one prompt.
        positions: [N] int64, the index of the generated token in its sequence, 0 for the first.
        vocab_size: V.
        device: of the result; the default is that of the seeds.
    """
    keys = row_keys(seeds, sequences, positions, device)
    return gumbel_from_counters(keys.unsqueeze(-1) + _token_counters(vocab_size, keys.device))


def gumbel_at(keys: Tensor, token_ids: Tensor) -> Tensor:
    """The noise of given tokens only: float32 [N, K] for keys [N] of ``row_keys`` and token ids int64 [N, K]."""
    golden = _signed(_GOLDEN)
    return gumbel_from_counters(token_ids * golden + (keys + golden).unsqueeze(-1))


def row_keys(seeds: Keys, sequences: Keys, positions: Keys, device: torch.device | None = None) -> Tensor:
    """The key of each row, int64 [N]; host integers and tensors give the same keys."""
    on_host = not isinstance(seeds, Tensor) or seeds.device.type == "cpu"
    if on_host and len(seeds) <= _FEW_ROWS:
        host = [keys.tolist() if isinstance(keys, Tensor) else keys for keys in (seeds, sequences, positions)]
        values = [
            _signed(_mix_int(_sequence_key(seed, sequence) + (position + 1) * _GOLDEN))
            for seed, sequence, position in zip(*host, strict=True)
        ]
        return torch.tensor(values, dtype=torch.int64, device=device)
    keys = [
        k if isinstance(k, Tensor) else torch.tensor([_signed(i) for i in k]) for k in (seeds, sequences, positions)
    ]
    seed, sequence, position = (key.to(device=device or keys[0].device, dtype=torch.int64) for key in keys)
    golden = _signed(_GOLDEN)
    return mix(mix(mix(seed + golden) + (sequence + 1) * golden) + (position + 1) * golden)


def gumbel_from_counters(counters: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, of int64 counters of the same shape; distinct counters have independent noise."""
    if counters.device.type == "mps":  # has no float64
        return gumbel_from_counters(counters.cpu()).to(counters.device)
    bits = (mix(counters) >> 12) & ((1 << 52) - 1)
    uniforms = bits.to(torch.float64).add_(0.5).mul_(2.0**-52)
    return uniforms.log_().neg_().log_().neg_().to(torch.float32)


def mix(values: Tensor) -> Tensor:
    """SplitMix64's finalizer, a bijection of int64. Arithmetic shifts are masked to logical ones."""
    values = (values ^ ((values >> 30) & ((1 << 34) - 1))).mul_(_signed(_FACTOR1))
    values ^= (values >> 27).bitwise_and_((1 << 37) - 1)
    values *= _signed(_FACTOR2)
    values ^= (values >> 31).bitwise_and_((1 << 33) - 1)
    return values


def _mix_int(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> 30)) * _FACTOR1) & _MASK64
    value = ((value ^ (value >> 27)) * _FACTOR2) & _MASK64
    return value ^ (value >> 31)


@functools.lru_cache(maxsize=4096)  # constant during a request
def _sequence_key(seed: int, sequence: int) -> int:
    return _mix_int(_mix_int(seed + _GOLDEN) + (sequence + 1) * _GOLDEN)


@functools.lru_cache(maxsize=8)
def _token_counters(vocab_size: int, device: torch.device) -> Tensor:
    return (torch.arange(vocab_size, device=device) + 1) * _signed(_GOLDEN)


def _signed(value: int) -> int:
    """The int64 with the bits of ``value``."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value
