"""Products with the same input as one: queries, keys and values; a gate and what it gates.

    q = x Wq'   k = x Wk'   v = x Wv'         three kernels, each of which starts and ends by itself
    q k v = split(x [Wq Wk Wv]')              one

`lay_together` gives the weights of such layers one memory, each parameter a view of it: nothing is stored twice, and
names, saving and loading stay. It changes where the weights of a model lie, and so belongs to who has loaded it.
`merge_products` changes layers of a copy whose weights lie so: the first one that is called with an input multiplies
for all, the others take their part. Where a layer has got other weights since, each multiplies for itself.

Which layers share an input is seen in a pass (`SharedInputs`), not known by names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from decodekit.models.modules.few_row_layers import FewRowsLinear
from decodekit.products.few_rows import few_rows_linear


class SharedInputs:
    """The linear layers that are called with one tensor."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, ...]] = []  # names of layers of one module with the same input in a pass, in order
        self.reasons: list[str] = []  # why other such layers cannot become one

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """The time of a pass of a model."""
        seen: list[tuple[str, Tensor]] = []

        def note(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], Tensor):
                seen.append((name, inputs[0]))

        handles = [
            module.register_forward_pre_hook(partial(note, name))
            for name, module in model.named_modules()
            if isinstance(getattr(module, "in_features", None), int)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._group(model, seen)

    def _group(self, model: nn.Module, seen: list[tuple[str, Tensor]]) -> None:
        num_calls = Counter(name for name, _ in seen)
        uses = Counter(id(one) for module in model.modules() for one in module._parameters.values() if one is not None)
        groups: dict[tuple[str, int], list[str]] = {}
        for name, given in seen:
            groups.setdefault((name.rpartition(".")[0], id(given)), []).append(name)
        found: dict[str, None] = {}
        for names in groups.values():
            layers: list[Any] = [model.get_submodule(name) for name in names]
            if len(set(names)) < 2:
                continue
            reason = _unlike(layers)
            if any(num_calls[name] > 1 for name in names):
                reason = "run more than once in a pass"
            elif reason is None and any(uses[id(one)] > 1 for layer in layers for one in layer.parameters()):
                reason = "weights that other layers have, too"
            if reason is None:
                self.groups.append(tuple(names))
            else:
                found[f"{', '.join(dict.fromkeys(name.rpartition('.')[2] for name in names))}: {reason}"] = None
        self.reasons = list(found)


def _unlike(layers: list[Any]) -> str | None:
    """Why layers cannot be multiplied as one; None if they can."""
    strange = next((layer for layer in layers if type(layer) not in (nn.Linear, FewRowsLinear)), None)
    if strange is not None:
        return f"layers of the kind {type(strange).__name__}"  # quantised, or with an adapter
    if any("forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return "layers with a hook"
    if any(type(layer.weight) is not nn.Parameter or layer.weight.is_meta for layer in layers):
        return "weights of another kind than numbers"
    if len({(layer.weight.dtype, layer.weight.device, layer.in_features) for layer in layers}) > 1:
        return "weights of several types or devices"
    if len({layer.bias is None for layer in layers}) > 1:
        return "some have a bias"
    return None


@torch.no_grad()
def lay_together(model: nn.Module) -> list[str]:
    """Give the weights of layers with the same input one memory; why some could not have it.

    Nobody else may use the model yet: where its weights lie changes, nothing else.
    """
    shared = SharedInputs()
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=model.get_input_embeddings().weight.device)  # type: ignore[operator]
    try:
        with torch.inference_mode(), shared.watched(model):
            model(input_ids=tokens, use_cache=False)
    except Exception as problem:  # whatever a model raises that cannot be run so
        return [f"the model cannot be run on two tokens: {type(problem).__name__}: {problem}"]
    for names in shared.groups:
        layers: list[Any] = [model.get_submodule(name) for name in names]
        for kind in ("weight", "bias") if layers[0].bias is not None else ("weight",):
            parts = [getattr(layer, kind) for layer in layers]
            views = torch.split(torch.cat(parts), [len(part) for part in parts])
            for part, view in zip(parts, views, strict=True):
                part.data = view
    return shared.reasons


class _Product:
    """The shared part of layers that are multiplied as one; plain attributes, so that no state_dict has them."""

    def __init__(self, layers: list[MergedLinear], weight: Tensor, bias: Tensor | None) -> None:
        self.layers = layers  # in the order of their weights
        self._places = self._now()
        # Of all of them; parameters, whose shapes a compiler takes as they are.
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.held: tuple[Tensor, Tensor] | None = None
        """The last input and its product, until the last member has taken its part; a thread has both of one pass."""

    def _now(self) -> list[int]:
        return [one.data_ptr() for layer in self.layers for one in layer._parameters.values() if one is not None]

    @property
    def is_current(self) -> bool:
        """Whether the layers still have the weights that are multiplied; other ones, or moved ones, lie elsewhere."""
        return torch.compiler.is_compiling() or self._places == self._now()


class MergedLinear(nn.Linear):
    """A linear layer whose product is a part of one that others share."""

    product: _Product
    is_few: bool
    """Whether products of a few rows are those of `few_rows_linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., out_features] of [..., in_features]; a view of the product of all."""
        product, held = self.product, self.product.held
        if held is None or held[0] is not input:
            multiply = few_rows_linear if self.is_few else linear
            if not product.is_current:
                return multiply(input, self.weight, self.bias)
            held = (input, multiply(input, product.weight, product.bias))
        begin = 0
        for layer in product.layers:
            if layer is self:
                break
            begin = begin + layer.num_outs
        product.held = None if product.layers[-1] is self else held
        return held[1].narrow(-1, begin, self.num_outs)

    @property
    def num_outs(self) -> int:
        """Outputs; the shape of a parameter is a constant to a compiler."""
        return self.weight.shape[0]


def merge_products(model: nn.Module, shared: SharedInputs) -> list[str]:
    """Let layers of a copy of a model multiply as one where their weights lie together; why some do not.

    `shared` is of a pass of the copy, or of the model itself.
    """
    reasons = dict.fromkeys(shared.reasons)
    for names in shared.groups:
        layers: list[Any] = [model.get_submodule(name) for name in names]
        weight = _as_one([layer.weight for layer in layers])
        bias = None if layers[0].bias is None else _as_one([layer.bias for layer in layers])
        reason = None
        if weight is None or (bias is None) != (layers[0].bias is None):
            reason = "weights that do not lie together, as those of a model that `LLM.load` brings to CUDA do"
        elif weight.device.type == "cpu" and not _is_exact(layers, weight, bias):
            reason = "products of several layers that are not those of each, bit for bit"
        if reason is not None or weight is None:
            reasons[f"{', '.join(name.rpartition('.')[2] for name in names)}: {reason}"] = None
            continue
        product = _Product(layers, weight, bias)
        for layer in layers:
            layer.is_few = isinstance(layer, FewRowsLinear)
            layer.__class__, layer.product = MergedLinear, product
    return list(reasons)


def _as_one(parts: list[Any]) -> Tensor | None:
    """A view of tensors that lie behind each other in one memory, [N, ...]; None if they do not."""
    first, *others = parts
    end = first.storage_offset() + first.numel()
    for part in others:
        is_behind = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not is_behind or part.storage_offset() != end or not part.is_contiguous():
            return None
        end += part.numel()
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    return first.detach().as_strided(shape, first.stride()) if first.is_contiguous() else None


@torch.inference_mode()
def _is_exact(layers: list[Any], weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the parts of a product are the products of the parts, for one row and for several."""
    multiply = few_rows_linear if isinstance(layers[0], FewRowsLinear) else linear
    generator = torch.Generator().manual_seed(0)
    for num_rows in (1, 3, 8):
        x = torch.randn(num_rows, weight.shape[1], generator=generator).to(weight.dtype)
        whole = multiply(x, weight, bias)
        if not torch.equal(whole, torch.cat([multiply(x, layer.weight, layer.bias) for layer in layers], dim=-1)):
            return False
    return True
