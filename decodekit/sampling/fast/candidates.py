"""The few tokens that are left of a row after top-k or top-p, in descending order, on the host.

Truncation needs the order of the logits. Once the first one has found its survivors in order, every later truncation
is a cut in that order and every later temperature keeps it, so nothing is sorted again, and only survivors need noise.

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

from decodekit.sampling.margins import precise_type, reached

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_REMOVED = np.float32(-np.inf)

# How many of the likeliest tokens are searched for a nucleus, at most.
_NUCLEUS = 1024


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


def top_candidates(logits: Tensor, k: int) -> Candidates | None:
    """The k likeliest tokens of each row and ties with the last of them; None where that is half of a row or more."""
    limit = logits.shape[-1] // 2
    if k >= limit:
        return None
    values, ids = _top(logits, k + 1)
    threshold = values[:, k - 1 : k]
    is_tied = (values[:, k:] == threshold) & (threshold > -np.inf)
    if not is_tied.any():
        values, ids = values[:, :k], ids[:, :k]
    else:  # common where the model computes in bfloat16, whose numbers of one size are few
        counts = (logits >= torch.from_numpy(threshold).to(logits.device)).sum(dim=-1).numpy(force=True)
        width = int(counts[is_tied[:, 0]].max())
        if width >= limit:
            return None
        values, ids = _top(logits, width)
        values = np.where(values < threshold, _REMOVED, values)
    return Candidates(*in_order(values, ids), logits.shape[-1], logits.device)


def nucleus_candidates(logits: Tensor, p: float) -> Candidates | None:
    """The smallest set of likeliest tokens with mass >= p of each row; None where looking for it among a few is no use.

    Sorting 131,072 logits takes 12 to 18 ms a row, and the nucleus of a language model is nearly always among the first
    thousand tokens.
    """
    searched = min(_NUCLEUS, logits.shape[-1] // 4)
    if p == 1.0 or searched < 16:
        return None
    values, ids = in_order(*_top(logits, searched))
    every = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    total = every.sum(dim=-1, keepdim=True, dtype=precise_type(logits)).numpy(force=True)
    with np.errstate(invalid="ignore"):  # a row without tokens gives NaN, which removes nothing
        weights = np.exp(values - values[:, :1]).astype(np.float64)
        mass = weights.cumsum(axis=1)
        removed = mass - weights >= reached(p) * total
    sizes = np.count_nonzero(~removed, axis=1)
    least = np.take_along_axis(values, sizes[:, None] - 1, axis=1)
    if not (least > values[:, -1:]).all():  # the nucleus, or a tie with its last token, may go on beyond
        return None
    width = sizes.max()
    values = np.where(removed, _REMOVED, values)[:, :width]
    return Candidates(values, ids[:, :width], logits.shape[-1], logits.device)


def _top(logits: Tensor, k: int) -> tuple[Floats, Ids]:
    values, ids = torch.topk(logits, k, dim=-1, sorted=True)
    return values.numpy(force=True), ids.numpy(force=True)


def in_order(values: Floats, ids: Ids) -> tuple[Floats, Ids]:
    """Rows in descending order with equal finite values put into order of token id; `topk` leaves that open."""
    equal = values[:, 1:] == values[:, :-1]
    if not np.count_nonzero(equal) or not (equal & (values[:, 1:] > -np.inf)).any() or np.isnan(values[:, 0]).any():
        return values, ids  # NaN comes first, where it is found; a batch with NaN draws nothing
    by_id = ids.argsort(axis=1)
    values, ids = np.take_along_axis(values, by_id, axis=1), np.take_along_axis(ids, by_id, axis=1)
    by_value = (-values).argsort(axis=1, kind="stable")
    return np.take_along_axis(values, by_value, axis=1), np.take_along_axis(ids, by_value, axis=1)
