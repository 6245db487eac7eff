"""DoLa: the distribution of the last layer against that of an earlier one, which knows less of the world.

Chuang et al. 2023, "DoLa: Decoding by Contrasting Layers Improves Factuality in Large Language Models". At each place
by itself, the candidate layer is taken whose distribution is farthest from that of the last layer.

The paper applies the output projection to a layer as it is, and so do its authors' code and transformers 4
(`final_norm=False`). Here the final norm comes first, as it does after the last layer and as it would if the model
ended there. Without it, the mere scale of the hidden states makes an early distribution nearly flat, or nearly certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.models.causal_lm import Cache, LogitsKind, Rows, wanted_counts
from decodekit.models.layers import EarlyExits
from decodekit.models.wrappers.contrast_model import ContrastLM, layered

Layers: TypeAlias = Literal["low", "high"] | Sequence[int]
"""Candidate layers: the lower or the upper half, or their numbers; 0 is the embeddings."""


def candidate_layers(layers: Layers, num_layers: int, is_tied: bool) -> list[int]:
    """The numbers of the candidate layers, in order.

    "low" and "high" are the even layers of the lower and the upper half, of models of more than 40 layers the first and
    the last 20 (as in the paper, and in transformers 4). With tied embeddings "low" begins with layer 2: the output
    projection of an embedding is its own token.

    Raises:
        OptionError: a number that is none of 0 .. num_layers - 1, or none at all.
    """
    if layers == "high":
        return list(range(num_layers - 20 if num_layers > 40 else num_layers // 2, num_layers, 2))
    if layers == "low":
        first = min(2, num_layers - 1) if is_tied else 0
        return list(range(first, 20 if num_layers > 40 else num_layers // 2, 2)) or [first]
    numbers = sorted(set(layers))
    if not numbers or not 0 <= numbers[0] <= numbers[-1] < num_layers:
        raise OptionError(
            f"layers={list(layers)!r} are not layers before the last one, which are 0 to {num_layers - 1}", at="layers"
        )
    return numbers


class DoLaLM(ContrastLM):
    """The distribution of the last layer against that of an earlier one; see `contrast.layered`.

    Raises:
        OptionError: the model has no such layer.
        ModelError: its layers cannot be read.
    """

    def __init__(self, model: EarlyExits, layers: Layers, relative_top: float = 0.1, final_norm: bool = True) -> None:
        super().__init__(model)
        model.check_layers()
        self._exits = model
        self.layers = candidate_layers(layers, model.num_layers, model.is_tied)
        self.relative_top = relative_top
        self.final_norm = final_norm

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """Append tokens and return logits of the contrast; see `causal_lm.CausalLM.forward`."""
        final, hidden = self._exits.forward_hidden(tokens, num_tokens, cache, rows, logits=logits, layers=self.layers)
        if logits == "all":  # of one width with the logits, padding too
            return self._contrasted(final.flatten(0, 1), [layer.flatten(0, 1) for layer in hidden]).view_as(final)
        counts = zip(num_tokens, wanted_counts(logits, num_tokens), strict=True)
        places = torch.tensor([[row, n - m + i] for row, (n, m) in enumerate(counts) for i in range(m)])
        rows_of, columns = places.to(hidden[0].device).unbind(dim=1)
        return self._contrasted(final, [layer[rows_of.to(layer.device), columns.to(layer.device)] for layer in hidden])

    def _contrasted(self, final: Tensor, hidden: Sequence[Tensor]) -> Tensor:
        """Logits [P, V] of final ones [P, V] and hidden states [P, D] of the candidates, one in memory at a time."""
        early = (self._exits.exit_logits(layer, final_norm=self.final_norm).to(final.device) for layer in hidden)
        return layered(final, early, self.relative_top)
