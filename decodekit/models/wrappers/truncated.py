"""The first layers of a model with its final norm and its head: a smaller model that shares all of its weights.

What a middle layer knows of the next token shows when the norm and the head read it as if it were the last layer's
(early exit; Elhoushi et al. 2024, LayerSkip; Zhang et al. 2023, Draft & Verify, leave out layers in the middle). Models
that were not trained for it say less in this way, but something.

Nothing here knows an architecture. Whether what was cut out computes the right thing is decided by a check: the logits
must be those of the whole model, run as its authors wrote it, whose last layer hands on what the n-th layer gave.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from decodekit.errors import ModelError
from decodekit.models.causal_lm import CausalLM
from decodekit.models.checks.model_notes import notes_of
from decodekit.models.checks.self_check import small_windows
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.modules.decoder_layers import decoder_layers
from decodekit.models.modules.shared_copy import shared_copy
from decodekit.models.programs.proof import relative_error, tolerance_of

_NUM_TOKENS: Final = 12


def num_layers(model: CausalLM) -> int:
    """How many layers a model has.

    Raises:
        ModelError: it is not a model of transformers, or has no one list of as many layers as its configuration says.
    """
    return len(decoder_layers(_module(model)))


def first_layers(model: CausalLM, num_kept: int) -> HuggingFaceLM:
    """The first `num_kept` layers of a model, then its norm and its head.

    They are made and checked once for each number, and again after the model has changed; see `model_notes`.

    Args:
        model: a `HuggingFaceLM`; it is not changed, and the weights are its own.
        num_kept: at least 1 and below `num_layers`.

    Raises:
        ModelError: as `num_layers`; or what was cut out gives other logits than these layers in the model.
    """
    notes = notes_of(_module(model))
    with notes.lock:
        known: HuggingFaceLM | None = notes.get(("first layers", num_kept))
        return known or notes.keep(("first layers", num_kept), _cut(model, num_kept))


def _cut(model: CausalLM, num_kept: int) -> HuggingFaceLM:
    module = _module(model)
    place = f"the first {num_kept} layers of {model.name}"
    tolerance = tolerance_of(module.dtype)  # type: ignore[arg-type]
    num_tokens = min(_NUM_TOKENS, model.context_length or _NUM_TOKENS)
    for whole in (module, small_windows(module)):  # with windows so small that they are reached, too
        if whole is None:
            continue
        try:
            error = _error(whole, _truncated(whole, num_kept), num_kept, num_tokens)
        except ModelError:
            raise
        except Exception as problem:  # whatever the model raises when it is run with fewer layers
            raise ModelError(
                f"the model cannot be run with fewer layers: {type(problem).__name__}: {problem}", at=place
            ) from problem
        if not error <= tolerance:
            raise ModelError(
                f"cut out, they give other logits than in the model, by {error:.2g} of their spread",
                at=place,
                hint="another draft: the layers of this architecture depend on more than the layer before",
            )
    return HuggingFaceLM(_truncated(module, num_kept))


def _module(model: CausalLM) -> nn.Module:
    if not isinstance(model, HuggingFaceLM):
        raise ModelError(
            f"{type(model).__name__} is not a model of transformers, whose layers are known", at=model.name
        )
    return model.model


def _truncated(module: nn.Module, num_kept: int) -> nn.Module:
    """A copy of the model that shares its weights, without the later layers and their entries in the configuration."""
    twin = shared_copy(module)
    layers = decoder_layers(twin)
    num_before = len(layers)
    del layers[num_kept:]
    given: list[Any] = [getattr(part, "config", None) for part in twin.modules()]
    configs = [config.get_text_config() for config in given if hasattr(config, "get_text_config")]
    for config in {id(config): config for config in configs}.values():
        if getattr(config, "num_hidden_layers", None) == num_before:
            for option, value in list(vars(config).items()):
                is_per_layer = isinstance(value, list | tuple) and len(value) == num_before
                if is_per_layer and not option.endswith(("token_id", "token_ids", "architectures")):
                    setattr(config, option, value[:num_kept])
            config.num_hidden_layers = num_kept
    return twin


@torch.inference_mode()
def _error(module: nn.Module, part: nn.Module, num_kept: int, num_tokens: int) -> float:
    """The relative error of the logits of the first layers to those of the whole model that ends with them."""
    embedding: Tensor = module.get_input_embeddings().weight  # type: ignore[operator]
    low = min(8, embedding.shape[0] // 2)  # low ids are often special
    tokens = (low + (torch.arange(num_tokens) * 61 + 37) % (embedding.shape[0] - low))[None].to(embedding.device)
    whole = shared_copy(module)
    layers = decoder_layers(whole)
    given: list[Any] = []
    layers[num_kept - 1].register_forward_hook(lambda layer, inputs, output: given.append(_kept(output)))
    layers[-1].register_forward_hook(lambda layer, inputs, output: given[0])
    expected, logits = (one(input_ids=tokens, use_cache=False).logits for one in (whole, part))
    return float(relative_error(logits, expected))


def _kept(output: Any) -> Any:
    """A copy that later layers do not write into."""
    if isinstance(output, Tensor):
        return output.clone()
    return tuple(map(_kept, output)) if isinstance(output, tuple) else output
