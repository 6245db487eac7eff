"""Functions that reshape logits: pure, from tensors to tensors, each over all rows at once.

``logits`` is float32 [N, V] and is never changed in place. A removed token is -inf; what is -inf stays -inf, what is
NaN stays NaN (so a fault of the model is seen where a token is selected), and no truncation removes a whole row. Where
a truncation compares what is equal but for rounding, the token stays: see `tolerances`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling.fast.large_vocabulary import MANY, divided, is_wide
from decodekit.sampling.fast.large_vocabulary import outside_nucleus as nucleus_of_wide_rows
from decodekit.sampling.processors.history import History
from decodekit.sampling.tolerances import lowest_kept, precise, reached, widened


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """softmax(z / T), T > 0: sharper below 1, flatter above (Ackley et al. 1985)."""
    if temperature == 1.0:
        return logits
    return divided(logits, temperature) if is_wide(logits) and logits.numel() >= MANY else logits / temperature


def apply_top_k(logits: Tensor, k: int, *, exact: bool = False) -> Tensor:
    """Keep the tokens at least as likely as the k-th one, k >= 1 (Fan et al. 2018).

    Ties with it are all kept, as in transformers and vLLM. With ``exact`` (llama.cpp, mlx-lm) k tokens are kept, of the
    ties those with the lowest ids; which of them is undefined in those libraries.
    """
    if k >= logits.shape[-1]:
        return logits
    threshold = torch.topk(logits, k, dim=-1, sorted=True).values[..., -1:]
    removed = logits < threshold
    if exact:
        is_tied = logits == threshold
        room = k - (logits > threshold).sum(dim=-1, keepdim=True)
        removed |= is_tied & (is_tied.cumsum(dim=-1) > room) & (threshold > -math.inf)
    return logits.masked_fill(removed, -math.inf)


def apply_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens with mass >= p, at least one; 0 < p <= 1 (Holtzman et al. 2020).

    Of equally likely tokens the one with the lower id comes first. (transformers sorts upwards with an unstable sort:
    which of them it keeps is undefined there; their number is the same.)
    """
    if p == 1.0:
        return logits
    if is_wide(logits) and (outside := nucleus_of_wide_rows(logits, p)) is not None:
        return logits.masked_fill(torch.from_numpy(outside), -math.inf)
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    removed = torch.empty_like(ids, dtype=torch.bool).scatter_(-1, ids, outside_nucleus(ordered, p))
    return logits.masked_fill(removed, -math.inf)


def outside_nucleus(ordered: Tensor, p: float) -> Tensor:
    """[N, K] bool: the tokens that top-p removes from rows of logits in descending order.

    A token goes when the tokens before it already have mass p. Both sides of the comparison are left unnormalised, so
    the answer does not depend on how many places of -inf follow.
    """
    weights = precise((ordered - ordered[..., :1]).exp())
    mass = weights.cumsum(dim=-1)
    # The first token has mass 0 before it, so it always stays. NaN compares false: a faulty row keeps all its places.
    return mass - weights >= reached(p) * mass[..., -1:]


def apply_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keep the tokens at least `min_p` times as likely as the likeliest one, 0 <= min_p <= 1 (Nguyen et al. 2024)."""
    if min_p == 0.0:
        return logits
    return logits.masked_fill(logits < lowest_kept(logits, widened(-math.log(min_p))), -math.inf)


def apply_repetition_penalty(logits: Tensor, history: History, penalty: float, window: int | None = None) -> Tensor:
    """z / penalty where z >= 0, z * penalty where z < 0, for each token of prompt or output (Keskar et al. 2019).

    The penalty is above 0. Of a window only so many of the last tokens count; None counts all.
    """
    if penalty == 1.0:
        return logits
    seen = _count(history, history.places(window, with_prompt=True), logits.shape[-1]) > 0
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, penalized, logits)


def apply_presence_penalty(logits: Tensor, history: History, penalty: float, places: Tensor | None = None) -> Tensor:
    """z - penalty for each token that the output has (OpenAI); the prompt does not count.

    Other `places` of the history, bool [N, S], may count instead of the output.
    """
    if penalty == 0.0:
        return logits
    return logits - penalty * (_count(history, places, logits.shape[-1]) > 0)


def apply_frequency_penalty(logits: Tensor, history: History, penalty: float, places: Tensor | None = None) -> Tensor:
    """z - penalty * (how often the output has the token) (OpenAI); the prompt does not count.

    Other `places` of the history, bool [N, S], may count instead of the output.
    """
    if penalty == 0.0:
        return logits
    return logits - penalty * _count(history, places, logits.shape[-1])


def _count(history: History, places: Tensor | None, vocab_size: int) -> Tensor:
    """[N, V] float32: how often each token occurs at places [N, S] of the history; None: in the output.

    Ids outside the row of logits (a prompt token that the model embeds but cannot emit) are not counted.
    """
    ids, places = history.token_ids, history.output_mask() if places is None else places
    weights = (places & (ids >= 0) & (ids < vocab_size)).to(torch.float32)
    counts = torch.zeros((ids.shape[0], vocab_size), dtype=torch.float32, device=ids.device)
    return counts.scatter_add_(1, ids.clamp(0, vocab_size - 1), weights)


def apply_logit_bias(logits: Tensor, token_ids: Sequence[int], biases: Sequence[float]) -> Tensor:
    """z + bias for each of the distinct `token_ids`, each of which has one; a bias of -inf bans the token (OpenAI).

    Raises:
        OptionError: a token id lies outside the row of logits.
    """
    check_within(token_ids, logits.shape[-1], "logit_bias")
    ids = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    values = torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    return logits.index_add(-1, ids, values.expand(*logits.shape[:-1], -1))


def check_within(ids: Sequence[int], vocab_size: int, name: str) -> None:
    """Raise an `OptionError` if a token id of the option `name` has no logit."""
    if ids and max(ids) >= vocab_size:
        raise OptionError(f"token id {max(ids)} is outside the {vocab_size} logits", at=name, hint="a smaller id")


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """Keep the tokens t whose bit ``t % 32`` of word ``t // 32`` is set in int32 [N, ceil(V / 32)], on their device.

    Raises:
        OptionError: the shapes do not belong together.
    """
    num_rows, vocab_size = logits.shape
    if bitmask.shape != (num_rows, (vocab_size + 31) // 32):
        raise OptionError(f"a bitmask of shape {tuple(bitmask.shape)} for logits of shape {tuple(logits.shape)}")
    unpack = _unpack_on_host if bitmask.device.type == "cpu" else _unpack_on_device
    return torch.where(unpack(bitmask, vocab_size), logits, -math.inf)


def _unpack_on_host(bitmask: Tensor, vocab_size: int) -> Tensor:
    """[N, V] bool by one pass of numpy instead of four of torch."""
    words = np.ascontiguousarray(bitmask.numpy()).astype("<i4", copy=False)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits).view(torch.bool)


def _unpack_on_device(bitmask: Tensor, vocab_size: int) -> Tensor:
    places = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    # [N, words, 1] >> [32]: the shift is arithmetic, the lowest bit is right all the same.
    return ((bitmask.unsqueeze(-1) >> places) & 1).flatten(1)[:, :vocab_size].to(torch.bool)
