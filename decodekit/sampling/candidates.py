"""The few tokens that are left of a row after top-k, in descending order.

Truncation needs the order of the logits. Once top-k has found its survivors in order, every later truncation is a cut
in that order and every later temperature keeps it, so nothing is sorted again, and only the survivors need noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Candidates:
    """N rows of K tokens; what is not listed is -inf.

    Args:
        logits: float32 [N, K], each row in descending order, equal finite values in ascending order of token id. A cut
            token is -inf, so cut tokens are the last ones.
        token_ids: int64 [N, K], distinct within a row.
        vocab_size: V, the width of a full row.
    """

    logits: Tensor
    token_ids: Tensor
    vocab_size: int

    def dense(self) -> Tensor:
        """The same rows as float32 [N, V]."""
        full = self.logits.new_full((self.logits.shape[0], self.vocab_size), -math.inf)
        return full.scatter_(-1, self.token_ids, self.logits)


def top_candidates(logits: Tensor, k: int) -> Candidates | None:
    """The k likeliest tokens of each row, or None where equal logits make them more than k or leave their order open.

    Looks at the values on the host: one synchronisation on a GPU.
    """
    vocab_size = logits.shape[-1]
    if k >= vocab_size:
        return None
    values, ids = torch.topk(logits, k + 1, dim=-1, sorted=True)
    # `topk` promises no order among equal values.
    return None if has_ties(values) else Candidates(values[:, :k], ids[:, :k], vocab_size)


def has_ties(ordered: Tensor) -> bool:
    """Whether a row in descending order [N, K] has equal finite values, whose order would then have to be settled."""
    host = ordered.cpu().numpy()
    equal = host[:, 1:] == host[:, :-1]
    return bool(np.count_nonzero(equal)) and bool((equal & (host[:, 1:] > -np.inf)).any())
