"""Selectors, which take a token from a processed row of logits."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.errors import DeadEndError, DecodingError, NonFiniteLogitsError
from decodekit.sampling.fast.candidates import Candidates
from decodekit.sampling.fast.large_vocabulary import is_wide, sample_wide
from decodekit.sampling.noise import Keys, gumbel, gumbel_at, host_keys


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row, int64 [N]; of equals the one with the lowest id.

    Args:
        logits: float32 [N, V].

    Raises:
        DeadEndError: a row has no token left; names the row.
        NonFiniteLogitsError: a row has NaN or +inf; names the row.
    """
    peaks, tokens = likeliest(logits)
    _raise_first(faults(peaks))
    return tokens


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row [N, V] and its token, the lowest id of equals; NaN where a row has NaN."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        peaks, tokens = logits.max(dim=-1)
        return peaks, tokens
    rows = logits.numpy(force=True)  # numpy takes a sixth of the time for 131,072 tokens
    ids = rows.argmax(axis=-1)
    return torch.from_numpy(rows[np.arange(len(rows)), ids]), torch.from_numpy(ids)


def sample(rows: Tensor | Candidates, seeds: Keys, sequences: Keys, positions: Keys) -> Tensor:
    """A token of each row, int64 [N], drawn from softmax(row) as argmax(row + Gumbel noise).

    The tokens are on the device of the rows; those of candidates, which are on the host, on the CPU.

    The token is a function of its row, seed, sequence and position alone.

    Args:
        rows: float32 [N, V], or candidates that stand for them.
        seeds, sequences, positions: int64 [N], tensors or host integers; see ``noise``.

    Raises:
        DeadEndError: a row has no token left; names the row.
        NonFiniteLogitsError: a row has NaN or +inf; names the row.
    """
    if isinstance(rows, Candidates):
        return torch.from_numpy(_sample_candidates(rows, host_keys(seeds, sequences, positions)))
    if is_wide(rows) and len(rows):
        tokens = sample_wide(rows, host_keys(seeds, sequences, positions))
        if tokens is not None:
            return torch.from_numpy(tokens)
    peaks = rows.amax(dim=-1, keepdim=True)
    _raise_first(faults(peaks[:, 0]))
    # Relative to the likeliest token the sum is exact to 1e-7 where it matters, even at a very low temperature.
    relative = rows - peaks
    return gumbel(seeds, sequences, positions, rows.shape[-1], rows.device).add_(relative).argmax(dim=-1)


def _sample_candidates(rows: Candidates, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    peaks = rows.logits[:, :1]
    _raise_first(faults(peaks[:, 0]))
    noisy = gumbel_at(keys[:, None], rows.token_ids)
    noisy += rows.logits - peaks
    # Equal sums (about one draw in 10^6) go to the lowest id, as `argmax` does in the order of ids.
    is_best = noisy == noisy.max(axis=1, keepdims=True)
    tokens: NDArray[np.int64] = np.where(is_best, rows.token_ids, rows.vocab_size).min(axis=1)
    return tokens


def is_faulty(rows: Tensor) -> Tensor:
    """The rows of logits [N, V] that have NaN or +inf, bool [N]."""
    return ~(rows < torch.inf).all(dim=-1)


def faults(peaks: Tensor | NDArray[np.float32]) -> dict[int, DecodingError]:
    """The rows from which no token can be taken, with the reason.

    Args:
        peaks: [N], the largest logit of each row.
    """
    found: dict[int, DecodingError] = {}
    for row, peak in enumerate(peaks.tolist()):
        if not math.isfinite(peak):
            if peak == -math.inf:
                found[row] = DeadEndError("no token is left to choose from", at=f"row {row} of the batch")
            else:
                found[row] = NonFiniteLogitsError(
                    f"the largest logit is {peak}", at=f"row {row} of the batch", hint="another dtype, such as float32"
                )
    return found


def _raise_first(found: dict[int, DecodingError]) -> None:
    for error in found.values():
        raise error
