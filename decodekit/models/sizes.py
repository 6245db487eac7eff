"""The size of a model: bytes of weights, bytes of cache by layer, kernels; read from its modules, without a run.

A configuration is enough: the modules are built on the device ``meta``, where tensors have shapes and no numbers, and
a pass over a few tokens shows what every layer stores and which kernels it starts. Nothing here knows an
architecture, so that a new one is counted, too. A Llama with two key heads of eight float32 numbers stores

    2 heads * 8 numbers * 4 bytes, for keys and for values: 128 bytes of a token in each layer
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from decodekit.errors import ModelError
from decodekit.models.caches.kv_cache import LayerShape, RaggedCache
from decodekit.models.caches.paged_rows import WINDOW_SLACK, PagePlan
from decodekit.models.caches.quantised_planes import QuantisedCache
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners.paged_step import LayerProbe
from decodekit.models.runners.ragged import RaggedModel
from decodekit.models.runners.recurrent import RecurrentModel
from decodekit.models.runners.rowwise import new_state

_PROBE_TOKENS: Final = 2
_CHOSEN: Final = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")


@dataclass(frozen=True, slots=True)
class LayerStore:
    """The storage of one layer for one row."""

    bytes_per_token: int  # keys and values of a token
    state_bytes: int = 0  # recurrent state, whatever the length of the row
    most_tokens: int | None = None  # no more tokens than these are kept (a sliding window); None: all

    def num_bytes(self, num_tokens: int) -> int:
        """Bytes of a row of so many tokens."""
        kept = num_tokens if self.most_tokens is None else min(num_tokens, self.most_tokens)
        return kept * self.bytes_per_token + self.state_bytes


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """The storage of a model's caches."""

    layers: tuple[LayerStore, ...]
    """By layer, in order; layers that share the keys and values of another one are not among them."""
    tier: str  # the way of running the model that keeps them; see `huggingface.Tier`
    spare_slots: int  # tokens that a row has room for beyond its capacity
    seen: tuple[LayerStore, ...]
    """The layers as they would be if no token was kept that lies outside of the layer's window."""
    page_size: int = 1  # tokens that are allocated at a time

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, as long as no window is full."""
        return sum(layer.bytes_per_token for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Recurrent state of a row."""
        return sum(layer.state_bytes for layer in self.layers)

    def num_bytes(self, num_rows: int, num_tokens: int) -> int:
        """Bytes of a cache of so many rows with so many tokens each."""
        num_slots = -(-num_tokens // self.page_size) * self.page_size + self.spare_slots
        return num_rows * sum(layer.num_bytes(num_slots) for layer in self.layers)

    def bytes_seen(self, num_rows: int, num_tokens: int) -> int:
        """Bytes that a step reads behind so many tokens: those that its queries see."""
        return num_rows * sum(layer.num_bytes(num_tokens) for layer in self.seen)


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer: `num_bytes` of weights, of which a token uses `num_chosen` of `num_experts`."""

    num_bytes: int
    num_experts: int
    num_chosen: int

    def expected_bytes(self, num_tokens: int) -> float:
        """Bytes of the experts that so many tokens read, if each chooses evenly: n experts, k of them for a token.

        An expert is left out by a token with probability 1 - k/n, by all T of them with (1 - k/n) ** T.
        """
        return self.num_bytes * (1 - (1 - self.num_chosen / self.num_experts) ** num_tokens)


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Weights of a model as they lie in memory; matrices that are tied count once."""

    num_parameters: int  # numbers, before quantisation
    num_bytes: int  # all of them, buffers too
    looked_up: int  # bytes of the tables of which a token reads one row
    experts: tuple[Experts, ...]  # by layer; they are part of `num_bytes`
    widest: int  # the most outputs of a matrix, the output projection left out

    def read_by(self, num_tokens: int) -> float:
        """Bytes that a forward pass over so many tokens has to read: all but tables, and the experts chosen."""
        unread = sum(layer.num_bytes - layer.expected_bytes(num_tokens) for layer in self.experts)
        return self.num_bytes - self.looked_up - unread


class Kernels(NamedTuple):
    """Kernels of a pass over one token, by what the modules call; `products` and `attention` are not among `small`."""

    small: int  # all others that compute: sums, norms, rotary embeddings, activations, changes of type
    products: int  # matrix products
    inputs: int  # distinct tensors that products read: those of one tensor can be one product of merged weights
    attention: int  # layers' attention
    stretches: int  # runs of small kernels between two products; a compiler makes one or two kernels of each


# --- modules without numbers ----------------------------------------------------------------------------------------


def on_meta(config: Any, kind: type[Any] | None = None, dtype: torch.dtype | None = None) -> nn.Module:
    """The modules of a configuration on the device ``meta``; weights are not quantised there.

    By default the class is the one that `AutoModelForCausalLM` takes, and the type of the weights that of the
    configuration, or float32.

    Raises:
        ModelError: there is no causal language model of this configuration.
    """
    from transformers import AutoModelForCausalLM

    plain = copy.deepcopy(config)
    if getattr(plain, "quantization_config", None) is not None:
        del plain.quantization_config
    given = dtype or getattr(plain, "dtype", None) or getattr(plain.get_text_config(), "dtype", None)
    if isinstance(given, str):
        given = getattr(torch, given.removeprefix("torch."), None)
    try:
        with torch.device("meta"):
            make = AutoModelForCausalLM.from_config if kind is None else kind._from_config
            model: nn.Module = make(plain, dtype=given or torch.float32).eval()
    except Exception as problem:  # whatever the modules of an architecture raise
        raise ModelError(
            f"no causal language model can be built of this {type(config).__name__}: {_first_line(problem)}",
            hint="a configuration of a model that AutoModelForCausalLM knows",
        ) from problem
    # Other ways of running experts look at their choice, which has no numbers here.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")  # type: ignore[operator]
    return model


def _first_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).strip()}".split("\n", 1)[0][:200]


# --- the cache ------------------------------------------------------------------------------------------------------


def cache_sizes(lm: HuggingFaceLM) -> CacheSizes:
    """The storage of a loaded model's caches, in the tier that runs it.

    Raises:
        ModelError: what the model keeps between passes cannot be seen.
    """
    runner = lm.runner
    if isinstance(runner, RecurrentModel):
        return _with_states(runner, lm.model.config)
    if isinstance(runner, RaggedModel) and runner.paged is not None:
        return _pages(runner.paged.plan)
    if isinstance(runner, RaggedModel):
        kind = RaggedCache if lm.cache_dtype is None else QuantisedCache
        return _rectangle(runner.layers, lm.model.config, kind)
    if runner.state is None:
        return CacheSizes((), lm.tier.name, 0, ())
    return _rows(on_meta(lm.model.config, type(lm.model), lm.dtype), runner.state)


def cache_sizes_on_meta(model: nn.Module) -> CacheSizes:
    """The storage of the caches of a model without numbers, in the first tier whose modules run.

    Which tier passes the self-check is known when the weights are; a model that is refused by it then keeps one token
    of each row less, or no more than its windows.
    """
    refused: list[str] = []
    attempts: list[tuple[str, Callable[[], CacheSizes]]] = [
        ("ragged", lambda: _rectangle(RaggedModel(model).layers, model.config)),
        ("masked", lambda: _rectangle(RaggedModel(model, own_attention=True).layers, model.config)),
        ("recurrent", lambda: _with_states(RecurrentModel(model, in_chunks=False), model.config)),
        ("rowwise", lambda: _rows(model, "full")),
        ("rowwise", lambda: _rows(model, "own")),
    ]
    for name, attempt in attempts:
        try:
            return attempt()
        except Exception as problem:  # whatever the modules of an architecture raise
            refused.append(f"{name}: {_first_line(problem)}")
    raise ModelError(
        f"what {type(model).__name__} keeps between passes cannot be seen without its weights",
        at="; ".join(refused),
        hint="load the model, and estimate it then",
    )


def _rectangle(layers: Mapping[int, LayerShape], config: Any, kind: type[RaggedCache] = RaggedCache) -> CacheSizes:
    """Of the rectangular cache, which keeps all tokens of every layer and has a slot for padding in each row."""
    stores = [
        LayerStore(sum(one.num_heads * one.head_dim * one.dtype.itemsize for one in kind.planes_of(layer)))
        for layer in layers.values()
    ]
    return CacheSizes(tuple(stores), "ragged", 1, _seen(layers, stores, config))


def _with_states(runner: RecurrentModel, config: Any) -> CacheSizes:
    """Of the cache, rectangular or of pages, with the recurrent state of each row beside it."""
    num_bytes = sum(state.nbytes for state in runner.states)
    plain = _rectangle(runner.layers, config) if runner.paged is None else _pages(runner.paged.plan)
    # The first draft makes a second state of each row, to which it can go back.
    layers = *plain.layers, LayerStore(0, 2 * num_bytes)
    return replace(plain, layers=layers, tier="recurrent", seen=(*plain.seen, LayerStore(0, num_bytes)))


def _pages(plan: PagePlan) -> CacheSizes:
    """Of the paged cache: whole pages, of which a window gives back those that it has passed, but for a few."""
    groups = [(window, layout.page_bytes // layout.page_size, layout.page_size) for window, layout in plan.groups]
    kept = [
        LayerStore(size, 0, None if window is None else window + (WINDOW_SLACK + 2) * tokens)
        for window, size, tokens in groups
    ]
    seen = [LayerStore(size, 0, window) for window, size, _ in groups]
    return CacheSizes(tuple(kept), "paged", 0, tuple(seen), groups[0][2] if groups else 1)


def _rows(model: nn.Module, state: str) -> CacheSizes:
    """Of the caches of transformers, one a row."""
    stores = []
    for layer in _passed(model, _PROBE_TOKENS, state).layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        per_token = sum(one.nbytes // one.shape[-2] for one in (keys, values) if one is not None and one.numel())
        beside = [value for name, value in vars(layer).items() if name not in ("keys", "values") and name[0] != "_"]
        width = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
        # A window of w tokens has the query itself, whose keys come with the pass.
        most = None if width is None else int(width) - 1
        stores.append(LayerStore(per_token, sum(tensor.nbytes for tensor in _tensors(beside)), most))
    return CacheSizes(tuple(stores), "rowwise", 0, _seen(range(len(stores)), stores, model.config))


def _seen(indices: Iterable[int], stores: Sequence[LayerStore], config: Any) -> tuple[LayerStore, ...]:
    """The storage of layers, of the tokens that a later query sees; sliding windows and chunks have the query, too.

    Source: `transformers.DynamicCache`, which reads ``layer_types``, ``sliding_window`` and ``attention_chunk_size``.
    """
    from transformers import DynamicCache

    layers = DynamicCache(config=config.get_text_config()).layers
    widths = {i: int(one.sliding_window) for i, one in enumerate(layers) if getattr(one, "is_sliding", False)}
    return tuple(replace(one, most_tokens=widths.get(i)) for i, one in zip(indices, stores, strict=True))


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]


@torch.no_grad()
def _passed(model: nn.Module, num_tokens: int, state: str) -> Any:
    """A pass of a row through the model with a cache as `rowwise.RowwiseModel` makes it, which comes back."""
    parameters, past = inspect.signature(type(model).forward).parameters, new_state(model, state)
    arguments = {"cache_params" if "cache_params" in parameters else "past_key_values": past}
    if "logits_to_keep" in parameters:
        arguments["logits_to_keep"] = 1
    tokens = torch.zeros(1, num_tokens, dtype=torch.int64, device="meta")
    model(input_ids=tokens, use_cache=True, **arguments)
    return past


# --- weights --------------------------------------------------------------------------------------------------------


def weight_sizes(model: nn.Module, bytes_of: Callable[[str, Tensor], float] | None = None) -> WeightSizes:
    """The weights of a model, loaded or on the device ``meta``, as they lie in memory, quantised ones as such.

    `bytes_of` says the bytes of a weight by its name; by default those that its tensor has.
    """
    measure = bytes_of or (lambda _, tensor: num_bytes(tensor))
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    output = getattr(head, "weight", None)
    embeddings = (module.weight for module in model.modules() if isinstance(module, nn.Embedding))
    tables = {id(weight) for weight in embeddings if weight is not output}
    chosen = _num_chosen(model)
    total = looked_up = count = 0.0
    widest = 1
    experts: dict[str, tuple[float, frozenset[str], int]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        size = measure(name, tensor)
        total += size
        count += _num_elements(tensor) if isinstance(tensor, nn.Parameter) else 0
        if id(tensor) in tables:
            looked_up += size
        elif tensor.ndim >= 2 and tensor is not output:
            widest = max(widest, *tensor.shape[-2:])
        layer, number, num_stacked = _expert_of(name, tensor)
        if layer is not None:
            before, numbers, _ = experts.get(layer, (0.0, frozenset(), 0))
            experts[layer] = before + size, numbers | {number}, num_stacked
    groups = []
    for size, numbers, num_stacked in experts.values():
        num_experts = num_stacked or len(numbers)
        groups.append(Experts(round(size), num_experts, min(chosen or num_experts, num_experts)))
    return WeightSizes(round(count), round(total), round(looked_up), tuple(groups), widest)


def num_bytes(tensor: Tensor) -> int:
    """Bytes of a weight, with the scales that a quantised one carries."""
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None:
        return sum(num_bytes(getattr(tensor, name)) for name in inner()[0])
    state = getattr(tensor, "quant_state", None)  # of bitsandbytes
    return tensor.nbytes + sum(num_bytes(one) for one in _tensors([*vars(state).values()] if state else []))


def _num_elements(tensor: Tensor) -> int:
    state = getattr(tensor, "quant_state", None)
    return int(torch.Size(state.shape).numel()) if state is not None else tensor.numel()


def _expert_of(name: str, tensor: Tensor) -> tuple[str | None, str, int]:
    """The layer of experts that a weight belongs to, or None; which one it is of; how many are stacked in it, or 0."""
    before, found, behind = f".{name}.".partition(".experts.")
    number = behind.partition(".")[0]
    if not found or not (number.isdigit() or tensor.ndim >= 2):
        return None, "", 0
    return before[1:], number, 0 if number.isdigit() else tensor.shape[0]


def _num_chosen(model: nn.Module) -> int | None:
    config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    found = (getattr(config, name, None) for name in _CHOSEN)
    return next((int(value) for value in found if isinstance(value, int) and value > 0), None)


def quantised_bytes(config: Any, model: nn.Module) -> Callable[[str, Tensor], float] | None:
    """Bytes of the weights of a quantised checkpoint by their names, as its configuration says; None if it is not one.

    Linear layers but the output projection, or with MXFP4 the experts, count with their bits and the scales of their
    groups. What a method keeps beside them is not known, so this is within a few percent.

    Raises:
        ModelError: the method is not known.
    """
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    said: dict[str, Any] = given if isinstance(given, dict) else given.to_dict()
    method = str(said.get("quant_method", "")).split(".")[-1].lower()
    bits = said.get("bits") or (4 if said.get("load_in_4bit") else 8 if said.get("load_in_8bit") else None)
    if bits is None:
        bits = {"fp8": 8, "fbgemm_fp8": 8, "finegrained_fp8": 8, "mxfp4": 4}.get(method)
    if not isinstance(bits, int) or not 1 <= bits <= 16:
        raise ModelError(
            f"how many bits the quantisation {method or said!r:.60} stores is not known",
            at="quantization_config",
            hint="load the model, and estimate it then",
        )
    is_experts = method == "mxfp4"
    group, scale = (32, 1.0) if is_experts else (int(said.get("group_size") or 128), 4.0)
    per_number = bits / 8 + (scale / group if bits < 8 and group > 0 else 0.0)
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    skipped = {id(getattr(head, "weight", None))}
    kept = [str(name) for name in said.get("modules_to_not_convert") or ()]
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)} - skipped

    def bytes_of(name: str, tensor: Tensor) -> float:
        is_expert = "experts" in name.split(".") and tensor.ndim == 3
        is_stored = is_expert if is_experts else id(tensor) in linear or is_expert
        if is_stored and not any(re.search(rf"(^|\.){re.escape(one)}(\.|$)", name) for one in kept):
            return tensor.numel() * per_number
        return float(tensor.nbytes)

    return bytes_of


# --- kernels --------------------------------------------------------------------------------------------------------


_PRODUCTS: Final = ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "grouped_mm", "_grouped_mm")


class _Calls(TorchFunctionMode):
    """The functions that compute something during a pass, in order; views and what returns its input do not."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Tensor | None]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        storages = {one.untyped_storage()._cdata for one in given}
        made = [one.untyped_storage()._cdata for one in tree_leaves(out) if isinstance(one, Tensor)]
        if made and not storages.issuperset(made):
            self.made.append((getattr(func, "__name__", ""), given[0] if given else None))
        return out


def kernels(model: nn.Module) -> Kernels:
    """The kernels of a model on the device ``meta``, as its modules call functions in a pass over pages, or without.

    Raises:
        ModelError: the modules cannot be run without numbers.
    """
    with torch.inference_mode():
        try:
            runner = RaggedModel(model, use_pages=True)
            probe = LayerProbe(torch.arange(1, device="meta")[None])
            with _Calls() as calls:
                runner.run(torch.zeros(1, 1, dtype=torch.int64, device="meta"), probe, probe, None)
            attention = "new_zeros"  # stands in for attention over pages
        except Exception:  # whatever an architecture raises: another tier runs it
            attention = "scaled_dot_product_attention"
            try:
                with _Calls() as calls:
                    _passed(model, 1, "own")
            except Exception as problem:
                raise ModelError(
                    f"the kernels of {type(model).__name__} cannot be counted: {_first_line(problem)}",
                    hint="load the model, and estimate it then",
                ) from problem
    names = [name for name, _ in calls.made]
    read = [given for name, given in calls.made if name in _PRODUCTS]
    kinds = ["product" if name in _PRODUCTS else attention if name == attention else "small" for name in names]
    stretches = sum(kind == "small" != before for before, kind in zip(["", *kinds], kinds, strict=False))
    small = kinds.count("small")
    return Kernels(small, len(read), len({id(one) for one in read}), kinds.count(attention), stretches)


def expected_experts(layers: Iterable[Experts], num_tokens: int) -> float:
    """Distinct experts of a layer that so many tokens choose, on the average of the layers."""
    each = [one.expected_bytes(num_tokens) / one.num_bytes * one.num_experts for one in layers if one.num_bytes]
    return sum(each) / len(each) if each else 0.0
