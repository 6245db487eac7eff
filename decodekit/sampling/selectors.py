"""Which token is taken from a processed row of logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decodekit.errors import DeadEndError, DecodingError, NonFiniteLogitsError
from decodekit.sampling.candidates import Candidates
from decodekit.sampling.noise import Keys, gumbel, gumbel_at, row_keys


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row, int64 [N]; of equals the one with the lowest id.

    Args:
        logits: float32 [N, V].

    Raises:
        DeadEndError: a row has no token left; names the row.
        NonFiniteLogitsError: a row has NaN or +inf; names the row.
    """
    peaks, tokens = logits.max(dim=-1)
    _raise_first(faults(peaks))
    return tokens


def sample(rows: Tensor | Candidates, seeds: Keys, sequences: Keys, positions: Keys) -> Tensor:
    """A token of each row, int64 [N], drawn from softmax(row) as argmax(row + Gumbel noise).

    The token is a function of its row, seed, sequence and position alone.

    Args:
        rows: float32 [N, V], or candidates that stand for them.
        seeds, sequences, positions: int64 [N], tensors or host integers; see ``noise``.

    Raises:
        DeadEndError: a row has no token left; names the row.
        NonFiniteLogitsError: a row has NaN or +inf; names the row.
    """
    if isinstance(rows, Candidates):
        logits = rows.logits
        peaks = logits[:, :1]
        noise = gumbel_at(row_keys(seeds, sequences, positions, logits.device), rows.token_ids)
    else:
        logits = rows
        peaks = logits.amax(dim=-1, keepdim=True)
        noise = gumbel(seeds, sequences, positions, logits.shape[-1], logits.device)
    _raise_first(faults(peaks.squeeze(-1)))
    # Relative to the likeliest token the sum is exact to 1e-7 where it matters, even at a very low temperature.
    noisy = noise.add_(logits - peaks)
    if isinstance(rows, Candidates):
        # Equal sums (about one draw in 10^6) go to the lowest id, as `argmax` does in the order of ids.
        is_best = noisy == noisy.amax(dim=-1, keepdim=True)
        return torch.where(is_best, rows.token_ids, rows.vocab_size).amin(dim=-1)
    return noisy.argmax(dim=-1)


def faults(peaks: Tensor) -> dict[int, DecodingError]:
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
