"""Slow twins of what contrasts laws: every pass anew, one row and one place at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def hidden_states(model: nn.Module, tokens: Sequence[int]) -> list[Tensor]:
    """[T, D] of the embeddings and after every layer, the last after the final norm."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    return [layer[0] for layer in out.hidden_states]


def exit_logits(model: nn.Module, tokens: Sequence[int], layer: int) -> Tensor:
    """float32 [T, V]: logits of the model whose layers from `layer` on hand on what they get."""
    twin: Any = copy.deepcopy(model)
    lists = [child for child in twin.modules() if isinstance(child, nn.ModuleList)]
    layers = max(lists, key=len)
    for late in layers[layer:]:
        late.register_forward_hook(_hand_on, with_kwargs=True)
    with torch.no_grad():
        logits: Tensor = twin(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    return logits


def _hand_on(module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    given = args[0] if args else kwargs["hidden_states"]
    return (given, *out[1:]) if isinstance(out, tuple) else given


def guided_row(conditional: Tensor, unconditional: Tensor, scale: float) -> list[float]:
    """Sanchez et al. 2023, equation 7, over logits [V] of one place."""
    c, u = _law(conditional), _law(unconditional)
    return [math.log(u[v]) + scale * (math.log(c[v]) - math.log(u[v])) for v in range(len(c))]


def _law(logits: Tensor) -> list[float]:
    return torch.softmax(logits.double(), dim=-1).tolist()  # type: ignore[no-any-return]
