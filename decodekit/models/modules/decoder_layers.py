"""The layers of a model of transformers, and copies of the model whose layers are compiled.

A layer is compiled once for all layers of its kind: what differs between them, weights and the place of their keys and
values, is an input. What is fused is what stands around its matrix products: norms, rotary embeddings, activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import nn

from decodekit.errors import ModelError
from decodekit.models.modules.few_row_layers import FewRowsLinear, quicker_here
from decodekit.models.modules.merged_products import MergedLinear, SharedInputs, merge_products
from decodekit.models.modules.shared_copy import recomputes_frequencies, shared_copy

_MOST_COMPILED: Final = 64
"""Kinds of a layer's calls that are compiled: one row or several, one column or several, for each kind of layer."""


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The layers of a model of transformers: the outermost list of as many modules as its configuration says.

    Raises:
        ModelError: there is no such list, or more than one.
    """
    count: int = model.config.get_text_config().num_hidden_layers  # type: ignore[operator, union-attr]
    found = list(_outermost(model.get_decoder() if hasattr(model, "get_decoder") else model, count))  # type: ignore[operator]
    if len(found) != 1:
        raise ModelError(
            f"{type(model).__name__} has {len(found) or 'no'} lists of {count} layers, and one is needed",
            hint="a strategy that does not read layers",
        )
    return found[0]


def _outermost(module: nn.Module, count: int) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            yield child
        else:
            yield from _outermost(child, count)


def compiled_copy(
    model: nn.Module, backend: str | Callable[..., Any] = "inductor", shared: SharedInputs | None = None
) -> tuple[nn.Module, list[str]]:
    """A copy of a model, with the same weights, whose decoder layers are compiled when they are first run.

    So are the modules beside them, such as the last norm and the rotary embeddings. Its passes belong inside of
    `while_compiling`, as long as they may meet a new kind of call. Layers that share an input become one where they
    can; why some do not, or why products of a few rows are not measured, is returned beside it.

    Raises:
        ModelError: the layers of the architecture cannot be told apart.
    """
    twin = shared_copy(model)
    not_merged = [] if shared is None else merge_products(twin, shared)
    try:
        _with_quick_products(twin)
    except Exception as problem:  # a program that this device cannot run: torch's products go on
        not_merged.append(f"products of a few rows are torch's: {type(problem).__name__}: {problem}")
    layers = decoder_layers(twin)
    for module in (*layers, *_beside(twin, layers)):
        module.forward = torch.compile(module.forward, dynamic=True, backend=backend)
    return twin, not_merged


def _with_quick_products(model: nn.Module) -> None:
    """Let linear layers of a copy on CUDA multiply a few rows by a program of our own, where that is quicker."""
    plain = [one for one in model.modules() if type(one) is nn.Linear and "forward" not in vars(one)]
    merged = {id(one.product): one.product for one in model.modules() if isinstance(one, MergedLinear)}
    for layer in quicker_here([*plain, *merged.values()]):
        if isinstance(layer, nn.Linear):
            layer.__class__ = FewRowsLinear
        else:
            for member in layer.layers:
                member.is_few = True


def _beside(model: nn.Module, layers: nn.ModuleList) -> Iterator[nn.Module]:
    """The modules beside the list of layers that are several kernels: the last norm, rotary embeddings."""
    [owner] = [module for module in model.modules() if any(child is layers for child in module.children())]
    for module in owner.children():
        is_one = isinstance(module, nn.Embedding | nn.Linear | nn.Dropout) or any(True for _ in module.children())
        if module is not layers and not is_one and not recomputes_frequencies(module):
            yield module


@contextmanager
def while_compiling() -> Iterator[None]:
    """Let numbers that differ from layer to layer, and from step to step, be inputs of what is compiled."""
    import torch._dynamo.config
    import torch.fx.experimental._config

    with ExitStack() as stack:
        patched: Any = torch._dynamo.config.patch
        stack.enter_context(patched(allow_unspec_int_on_nn_module=True, recompile_limit=_MOST_COMPILED))
        patched = torch.fx.experimental._config.patch  # type: ignore[attr-defined]
        stack.enter_context(patched(use_duck_shape=False))
        yield
