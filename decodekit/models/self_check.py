"""Does a way of running a model give the model's own logits? Asked for every model when it is loaded.

Some architectures ignore the attention interface and return wrong logits in silence, others raise. So a handful of
tokens are run through ragged rows, a draft of unequal length and a rollback, and every logit is compared with plain
forward passes of the model, one row at a time and without a cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decodekit.models.causal_lm import LogitsKind
from decodekit.models.ragged import RaggedModel
from decodekit.models.rowwise import RowwiseModel
from decodekit.models.shared_copy import shared_copy

# Root mean square of the difference over the standard deviation of the reference. A wrong mask or position gives
# 0.05 and more; rounding gives about 1e-6, 1e-3 and 1e-2.
TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}

# Attributes of configurations and modules that limit how far back a token sees. The check sets them to a few tokens,
# because a window of thousands would otherwise never be reached.
_WINDOWS = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size", "local_attention")
_SMALL_WINDOW = 4


def small_windows(model: nn.Module) -> nn.Module | None:
    """A copy of the model with sliding windows of a few tokens; None if it has no window."""
    twin = shared_copy(model)
    found = False
    holders: dict[int, Any] = {}
    for module in twin.modules():
        holders[id(module)] = module
        config = getattr(module, "config", None)
        if config is not None:
            holders[id(config)] = config
            text = config.get_text_config() if hasattr(config, "get_text_config") else config
            holders[id(text)] = text
    for holder in holders.values():
        for name in _WINDOWS:
            width = holder.__dict__.get(name)
            if isinstance(width, int) and not isinstance(width, bool) and width > _SMALL_WINDOW:
                setattr(holder, name, _SMALL_WINDOW)
                found = True
    return twin if found else None


@torch.inference_mode()
def largest_error(runner: RaggedModel | RowwiseModel, model: nn.Module, context_length: int | None) -> float:
    """The largest root mean square error of a row of logits, in deviations of those of plain passes; it may be NaN."""
    longest = 12 if context_length is None else min(12, context_length)
    vocab_size: int = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[operator]
    rows = [_tokens(0, longest, vocab_size), _tokens(1, longest - 3, vocab_size)]
    cache: Any = runner.new_cache(3, 2)  # a row that is not used, and slots that do not suffice
    errors: list[float] = []

    def run(parts: list[list[int]], logits: LogitsKind) -> Tensor:
        tokens = pad_sequence([torch.tensor(part) for part in parts], batch_first=True).to(device)
        return runner.forward(tokens, [len(part) for part in parts], cache, [0, 2], logits)

    references = [_reference(model, row, device) for row in rows]
    first, second = rows
    cut = (longest - 4, longest - 7)
    # Prompts of unequal length, from a row of slots that is too short for them.
    out = run([first[: cut[0]], second[: cut[1]]], "last")
    errors += [_error(out[i], references[i][cut[i] - 1]) for i in range(2)]
    # A draft of four tokens beside a single one, every position compared.
    out = run([first[cut[0] :], second[cut[1] : cut[1] + 1]], "all")
    errors += [_error(out[0, t], references[0][cut[0] + t]) for t in range(4)]
    errors.append(_error(out[1, 0], references[1][cut[1]]))
    # Three tokens of the draft are rejected, and both rows go on with one token each.
    cache.truncate([longest - 3, 0, cut[1] + 1])
    other = _tokens(2, 1, vocab_size)
    out = run([other, second[cut[1] + 1 : cut[1] + 2]], "last")
    errors.append(_error(out[0], _reference(model, first[: longest - 3] + other, device)[-1]))
    errors.append(_error(out[1], references[1][cut[1] + 1]))
    return max(errors, key=lambda error: error if error == error else torch.inf)


def _tokens(row: int, count: int, vocab_size: int) -> list[int]:
    # Spread over the vocabulary and never twice the same in a row; low ids, often special, are avoided where possible.
    low = min(8, vocab_size // 2)
    return [low + (37 + 101 * row + 61 * i + i * i) % (vocab_size - low) for i in range(count)]


def _reference(model: nn.Module, tokens: Iterable[int], device: torch.device) -> Tensor:
    """float32 [T, V]: logits of one row in a plain forward pass."""
    out = model(input_ids=torch.tensor([list(tokens)], device=device), use_cache=False)
    logits: Tensor = out.logits[0].float()
    return logits


def _error(logits: Tensor, reference: Tensor) -> float:
    scale = reference.std().clamp_min(1e-12)
    return float((logits - reference).square().mean().sqrt() / scale)
