"""The few tokens that are left of a row after top-k or top-p, in descending order, on the host.

Truncation needs the order of the logits. Once the first one has found its survivors in order, every later truncation
is a cut in that order and every later temperature keeps it, so nothing is sorted again, and only survivors need noise.

The survivors are numpy arrays whatever device the logits are on: the token is wanted on the host in the end, and on
fifty numbers a call of numpy costs half of one of torch (a draw with temperature, top-k, top-p and min-p among 1,536
tokens took 138 us with survivors and 287 us with whole rows).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


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
    token_ids: Ids
    vocab_size: int
    device: torch.device

    def dense(self) -> Tensor:
        """The same rows as float32 [N, V] on their device."""
        full = torch.full((len(self.logits), self.vocab_size), -math.inf)
        full.scatter_(1, torch.from_numpy(self.token_ids), torch.from_numpy(self.logits))
        return full.to(self.device)


def in_order(values: Floats, ids: Ids) -> tuple[Floats, Ids]:
    """Rows in descending order with equal finite values put into order of token id; `topk` leaves that open."""
    equal = values[:, 1:] == values[:, :-1]
    if not np.count_nonzero(equal) or not (equal & (values[:, 1:] > -np.inf)).any() or np.isnan(values[:, 0]).any():
        return values, ids  # NaN comes first, where it is found; a batch with NaN draws nothing
    by_id = ids.argsort(axis=1)
    values, ids = np.take_along_axis(values, by_id, axis=1), np.take_along_axis(ids, by_id, axis=1)
    by_value = (-values).argsort(axis=1, kind="stable")
    return np.take_along_axis(values, by_value, axis=1), np.take_along_axis(ids, by_value, axis=1)
