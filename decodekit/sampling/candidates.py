"""The few tokens that are left of a row after top-k, in descending order, on the host.

Truncation needs the order of the logits. Once top-k has found its survivors in order, every later truncation is a cut
in that order and every later temperature keeps it, so nothing is sorted again, and only the survivors need noise.

The survivors are numpy arrays whatever device the logits are on: the token is wanted on the host in the end, and on
fifty numbers a call of numpy costs half of one of torch (a draw with temperature, top-k, top-p and min-p among 1,500
tokens took 65 us with it and 130 us without, where transformers' processors and `multinomial` took 130 to 145 us).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class Candidates:
    """N rows of K tokens; what is not listed is -inf.

    Args:
        logits: float32 [N, K], each row in descending order, equal finite values in ascending order of token id. A cut
            token is -inf, so cut tokens are the last ones.
        token_ids: int64 [N, K], distinct within a row.
        vocab_size: V, the width of a full row.
        device: where the full rows were.
    """

    logits: Floats
    token_ids: NDArray[np.int64]
    vocab_size: int
    device: torch.device

    def dense(self) -> Tensor:
        """The same rows as float32 [N, V] on their device."""
        full = torch.full((len(self.logits), self.vocab_size), -math.inf)
        full.scatter_(1, torch.from_numpy(self.token_ids), torch.from_numpy(self.logits))
        return full.to(self.device)


def top_candidates(logits: Tensor, k: int) -> Candidates | None:
    """The k likeliest tokens of each row, or None where equal logits make them more than k or leave their order open.

    Args:
        logits: float32 [N, V].
        k: less than V.
    """
    values, ids = torch.topk(logits, k + 1, dim=-1, sorted=True)
    ordered: Floats = values.numpy(force=True)
    if has_ties(ordered):  # `topk` promises no order among equal values
        return None
    return Candidates(ordered[:, :k], ids.numpy(force=True)[:, :k], logits.shape[-1], logits.device)


def has_ties(ordered: Floats) -> bool:
    """Whether a row in descending order [N, K] has equal finite values, whose order would then have to be settled."""
    equal = ordered[:, 1:] == ordered[:, :-1]
    return bool(np.count_nonzero(equal)) and bool((equal & (ordered[:, 1:] > -np.inf)).any())
