"""Slow twins of the models room: obviously right, one row and one query at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def plain_logits(model: nn.Module, tokens: Sequence[int]) -> Tensor:
    """float32 [T, V]: the model's own forward pass over one row, without a cache."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
    logits: Tensor = out.logits[0].float()
    return logits


def exit_logits(model: nn.Module, tokens: Sequence[int], num_layers: int) -> Tensor:
    """float32 [T, V]: norm and head of the model over the hidden states after its first `num_layers` layers."""
    decoder = model.get_decoder()  # type: ignore[operator]
    decoder = model.model if decoder is model else decoder  # Llama 4
    names = ("norm", "ln_f", "norm_f", "final_layer_norm", "final_layernorm", "embedding_norm")
    [norm] = [getattr(decoder, name) for name in names if hasattr(decoder, name)]
    with torch.no_grad():
        out = decoder(input_ids=torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
        logits: Tensor = model.get_output_embeddings()(norm(out.hidden_states[num_layers]))[0].float()  # type: ignore[operator]
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Sequence[int],
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of one row, query by query: [T, Hq, Dv].

    Args:
        query: [Hq, T, D], the query t standing at `positions[t]`.
        key: [Hkv, S, D], the key s standing at position s.
        value: [Hkv, S, Dv].
        positions: [T].
        scaling: factor of the scores.
        window: how many positions a query sees, itself included.
        softcap: bound of the scores.
        sinks: [Hq] scores without a value.
    """
    group = query.shape[0] // key.shape[0]
    out = torch.zeros(query.shape[1], query.shape[0], value.shape[-1])
    for t, position in enumerate(positions):
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(query.shape[0]):
            scores = [float(query[head, t] @ key[head // group, s]) * scaling for s in range(first, position + 1)]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            rest = [] if sinks is None else [float(sinks[head])]
            weights = torch.softmax(torch.tensor(scores + rest), dim=0)
            for s, weight in zip(range(first, position + 1), weights, strict=False):
                out[t, head] += weight * value[head // group, s]
    return out


class ListCache:
    """A ragged cache as lists: rows -> tokens -> whatever a token stores."""

    def __init__(self, num_rows: int) -> None:
        self.rows: list[list[Tensor]] = [[] for _ in range(num_rows)]

    def append(self, row: int, stored: Sequence[Tensor]) -> None:
        self.rows[row] += list(stored)

    def truncate(self, lengths: Sequence[int]) -> None:
        self.rows = [row[:length] for row, length in zip(self.rows, lengths, strict=True)]

    def reset(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.rows[row] = []

    def reorder(self, rows: Sequence[int]) -> None:
        self.rows = [list(self.rows[row]) for row in rows]
