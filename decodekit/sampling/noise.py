"""Gumbel noise as a pure function of (seed, sequence, position, token id); there is no generator and no state.

Adding it to logits and taking the argmax samples from their softmax (Gumbel 1954; Maddison et al. 2014). Seed 7,
sequence 0, four tokens:

    token                    0      1      2      3
    logits                2.00   1.00   0.50  -1.00      softmax 0.61  0.22  0.14  0.03
    noise of position 0  -0.57  -0.46   3.06  -0.30
    sum                   1.43   0.54   3.56  -1.30      token 2 is taken
    noise of position 2   0.67  -0.06   0.14   1.27
    sum                   2.67   0.94   0.64   0.27      token 0 is taken

Over 20,000 positions the four tokens come with the shares 0.61, 0.23, 0.13 and 0.03. The noise of a position can be
looked up again at any time. So a token does not depend on the other rows of the batch, on how many numbers were used
before, or on which other tokens are looked at; a draft model that looks up the same noise mostly takes the same token.

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

Streams. A place has further numbers, independent of its Gumbel noise, where a draft is drawn and tested, and where
particles are resampled: those of the sequence stream 2^60 + sequence. Sequences are below 2^60, so all of them are
distinct sequences of the seed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FACTOR1 = 0xBF58476D1CE4E5B9
FACTOR2 = 0x94D049BB133111EB
SIGNED_GOLDEN, _FACTOR1, _FACTOR2 = (value - (1 << 64) for value in (GOLDEN, FACTOR1, FACTOR2))  # the same bits, int64
_MASK64 = (1 << 64) - 1

Keys = Tensor | Sequence[int]
Words = NDArray[np.uint64]
Floats = NDArray[np.float32]


class Stream(IntEnum):
    """The purpose of a number; see the module."""

    TARGET = 0
    """The token of the place."""
    DRAFT = 1
    """The token that a draft guesses there, if it is drawn apart from the target's."""
    TEST = 2
    """Whether that one is kept."""
    RESIDUAL = 3
    """What replaces it."""
    RESAMPLING = 4
    """Which particles are kept when particles are resampled."""
    CHOICE = 5
    """Which particle is handed out."""

    def of(self, sequences: Sequence[int]) -> list[int]:
        """The sequences as keys of this stream."""
        return [sequence + (self << 60) for sequence in sequences]


def gumbel(
    seeds: Keys, sequences: Keys, positions: Keys, vocab_size: int, device: torch.device | str | None = None
) -> Tensor:
    """Standard Gumbel noise of every token, float32 [N, vocab_size], on the device of the seeds if none is named.

    Args:
        seeds: [N] int64 (host integers of any size count modulo 2^64), the seed of each row.
        sequences: [N] int64, the index of the sample among several of one prompt.
        positions: [N] int64, the index of the generated token in its sequence, 0 for the first.
    """
    if device is None:
        device = seeds.device if isinstance(seeds, Tensor) else "cpu"
    device = torch.device(device)
    if device.type in _HOST:
        keys = host_keys(seeds, sequences, positions)
        return torch.from_numpy(_host_gumbel(keys[:, None] + _host_counters(vocab_size))).to(device)
    return _device_gumbel(device_keys(seeds, sequences, positions, device) + _device_counters(vocab_size, device))


def gumbel_at(keys: Words, token_ids: NDArray[np.int64]) -> Floats:
    """The same noise of given tokens only, float32, for ``host_keys`` of the rows that broadcast with them."""
    return _host_gumbel(keys + (token_ids.view(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def uniforms(seeds: Keys, sequences: Keys, positions: Keys) -> NDArray[np.float64]:
    """One number of each row, float64 [N], uniform and strictly between 0 and 1: the u of token 0."""
    bits = mix_uint64(host_keys(seeds, sequences, positions) + np.uint64(GOLDEN)) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def host_keys(seeds: Keys, sequences: Keys, positions: Keys) -> Words:
    """The key of each row, uint64 [N]."""
    # Python integers: a batch has few rows, and three times eight array operations cost more.
    seeds, sequences, positions = (k.tolist() if isinstance(k, Tensor) else k for k in (seeds, sequences, positions))
    return np.array(
        [
            _mix_int(_sequence_key(seed, sequence) + (position + 1) * GOLDEN)
            for seed, sequence, position in zip(seeds, sequences, positions, strict=True)
        ],
        dtype=np.uint64,
    )


def device_keys(seeds: Keys, sequences: Keys, positions: Keys, device: torch.device) -> Tensor:
    """The keys of ``host_keys`` as int64 [N, 1] on the device; where all are on it, the host does not wait for it."""
    if not all(isinstance(keys, Tensor) for keys in (seeds, sequences, positions)):
        return torch.from_numpy(host_keys(seeds, sequences, positions).view(np.int64)).to(device).unsqueeze(-1)
    seed, sequence, position = (
        torch.as_tensor(keys, dtype=torch.int64, device=device) for keys in (seeds, sequences, positions)
    )
    key = mix_int64(mix_int64(seed + SIGNED_GOLDEN) + (sequence + 1) * SIGNED_GOLDEN)
    return mix_int64(key + (position + 1) * SIGNED_GOLDEN).unsqueeze(-1)


# On the CPU this is numpy, whose uint64 has logical shifts and whose calls cost half of torch's (a draw among 50 tokens
# 20 us instead of 45); elsewhere int64 tensors. mps has no float64, so its noise is made on the CPU too.
_HOST = ("cpu", "mps")


def _host_gumbel(counters: Words) -> Floats:
    return _gumbel_of_bits(mix_uint64(counters) >> np.uint64(12))


def _gumbel_of_bits(bits: Words) -> Floats:
    """Gumbel noise of words of 52 random bits."""
    values = bits.astype(np.float64)
    values += 0.5
    values *= 2.0**-52
    for _ in range(2):
        np.log(values, out=values)
        np.negative(values, out=values)
    return values.astype(np.float32)


def _device_gumbel(counters: Tensor) -> Tensor:
    bits = (mix_int64(counters) >> 12) & ((1 << 52) - 1)
    return bits.to(torch.float64).add_(0.5).mul_(2.0**-52).log_().neg_().log_().neg_().to(torch.float32)


def mix_uint64(values: Words) -> Words:
    """SplitMix64's finalizer, a bijection of 64-bit words; overwrites its argument."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(FACTOR1)
    values ^= values >> np.uint64(27)
    values *= np.uint64(FACTOR2)
    values ^= values >> np.uint64(31)
    return values


def mix_int64(values: Tensor) -> Tensor:
    """The same on int64 tensors, whose arithmetic shifts are masked to logical ones; overwrites its argument."""
    values ^= (values >> 30).bitwise_and_((1 << 34) - 1)
    values *= _FACTOR1
    values ^= (values >> 27).bitwise_and_((1 << 37) - 1)
    values *= _FACTOR2
    values ^= (values >> 31).bitwise_and_((1 << 33) - 1)
    return values


def _mix_int(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> 30)) * FACTOR1) & _MASK64
    value = ((value ^ (value >> 27)) * FACTOR2) & _MASK64
    return value ^ (value >> 31)


@functools.lru_cache(maxsize=4096)  # constant during a request
def _sequence_key(seed: int, sequence: int) -> int:
    return _mix_int(_mix_int(seed + GOLDEN) + (sequence + 1) * GOLDEN)


@functools.lru_cache(maxsize=8)
def _host_counters(vocab_size: int) -> Words:
    return np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(GOLDEN)


@functools.lru_cache(maxsize=8)
def _device_counters(vocab_size: int, device: torch.device) -> Tensor:
    return torch.arange(1, vocab_size + 1, device=device) * SIGNED_GOLDEN
