"""A structural copy of a model that shares its weights: other modules and another configuration, the same tensors.

decodekit runs a model with its own attention function. Setting that on the user's model would change what the
model's own `generate` does, and switching it back and forth would not survive threads. The copy costs a few
kilobytes per module and no weight. The dictionaries of parameters and buffers themselves are shared, so that
`model.to(...)`, loading other weights and training steps reach the copy too.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from torch import Tensor, nn

_MAX_DEPTH: Final = 3


def shared_copy(model: nn.Module, attention: str | None = None) -> nn.Module:
    """Copy the modules and configurations of `model`, not its tensors; in evaluation mode.

    `model` is not changed by anything done to the copy's modules or configuration. `attention` is the name of the
    attention implementation of the copy; None keeps the model's own.

    Raises:
        Exception: whatever copying raises for a module that cannot be copied.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        if not recomputes_frequencies(module):
            memo[id(module._parameters)] = module._parameters
            memo[id(module._buffers)] = module._buffers
        for value in module.__dict__.values():
            _share_tensors(value, memo)
    for tensor in (*model.parameters(), *model.buffers()):
        memo.setdefault(id(tensor), tensor)
    for module in model.modules():
        if recomputes_frequencies(module):
            # Its buffers are rewritten during the forward pass, so the copy has its own.
            for buffer in module.buffers(recurse=False):
                memo[id(buffer)] = buffer.clone()
    twin: nn.Module = copy.deepcopy(model, memo)
    for module in twin.modules() if attention is not None else ():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = attention
    for module in twin.modules():
        # RWKV divides weights, which are shared, when it first runs in evaluation mode, and multiplies what comes out.
        if getattr(module, "layers_are_rescaled", None) is False:
            module.config.rescale_every = 0  # type: ignore[union-attr]
    return twin.eval()


def rope_types(config: Any) -> dict[str, dict[str, Any]]:
    """The rotary embeddings that a configuration asks for: their kind -> their parameters."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    return {kind["rope_type"]: kind for kind in kinds if "rope_type" in kind}


def context_length_of(config: Any) -> int | None:
    """The most tokens of a row, by its configuration; None where the architecture sets no limit."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
    given = (getattr(config, name, None) for name in names)
    limit = next((value for value in given if isinstance(value, int) and value > 0), None)
    dynamic = next((p for kind, p in rope_types(config).items() if "dynamic" in kind), None)
    if dynamic is not None and limit is not None:
        # Beyond the trained length, dynamic NTK scaling makes every row depend on the longest one seen before.
        limit = min(limit, dynamic.get("original_max_position_embeddings") or limit)
    return limit


def recomputes_frequencies(module: nn.Module) -> bool:
    """Whether a module of rotary embeddings rewrites its buffers during the forward pass."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, str):
        kinds = {"": kinds}
    return isinstance(kinds, dict) and any("dynamic" in kind or kind == "longrope" for kind in kinds.values())


def with_longrope(model: nn.Module, is_long: bool) -> nn.Module:
    """A copy of a model whose rotary embeddings keep the short frequencies of LongRoPE, or the long ones.

    The model itself takes the long ones for a whole batch when one row gets long. A copy does not depend on that, so
    its passes can be captured, and run in several threads.

    Raises:
        AttributeError, KeyError, TypeError: this version of transformers keeps its frequencies in another way.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    twin = shared_copy(model)
    module: Any
    for module in twin.modules():
        if getattr(module, "rope_type", None) != "longrope":
            continue
        limit = module.config.rope_parameters["original_max_position_embeddings"]
        found, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, module.inv_freq.device, seq_len=limit + is_long)
        module.inv_freq.copy_(found)
        module.rope_type = "default"
    if any(recomputes_frequencies(module) for module in twin.modules()):
        raise TypeError("rotary embeddings of several kinds")
    return twin


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The tensors that a quantised one is made of; of any other the tensor itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [one for part in parts if isinstance(part, Tensor) for one in parts_of(part)]


def addresses_of(tensor: Tensor) -> tuple[int, ...]:
    """Where a tensor lies in memory; a quantised one that is made of others lies where they lie."""
    if hasattr(tensor, "__tensor_flatten__"):
        return tuple(address for part in parts_of(tensor) for address in addresses_of(part))
    try:
        return (tensor.data_ptr(),)
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
        return (id(tensor),)


class WeightPlaces:
    """Where the parameters and buffers of a module lie: what was recorded or captured reads them there."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._note()

    def _note(self) -> None:
        holders: list[Any] = [held for part in self._module.modules() for held in (part._parameters, part._buffers)]
        self._tensors = [(held, name) for held in holders for name, tensor in held.items() if tensor is not None]
        self._places = self._now()

    def _now(self) -> list[object]:  # asked at every step, so that most tensors are asked without a call of Python
        each = [tensor for held, name in self._tensors if (tensor := held[name]) is not None]
        try:
            return [one.data_ptr() if type(one) in (nn.Parameter, Tensor) else addresses_of(one) for one in each]
        except (RuntimeError, NotImplementedError):  # one without memory of its own
            return [*map(addresses_of, each)]

    def have_changed(self) -> bool:
        """Whether tensors were moved or replaced since this was asked last. Numbers written in place are not seen."""
        if self._places == self._now():
            return False
        self._note()
        return True


def is_spread(model: nn.Module) -> bool:
    """Whether the tensors of a model lie on several devices or in several processes, or are moved when needed."""
    tensors = [*model.parameters(), *model.buffers()]
    devices, mapped = {one.device for one in tensors}, {*(getattr(model, "hf_device_map", None) or {}).values()}
    # What writes a step down may not see a `DTensor`: an error would leave torch's masks of the ids behind.
    return max(len(devices), len(mapped)) > 1 or any(hasattr(one, "device_mesh") for one in tensors)


def _share_tensors(value: object, memo: dict[int, Any], depth: int = 0) -> None:
    """Tensors that a module keeps as plain attributes, or in objects there (quantisation states), are shared too."""
    if isinstance(value, Tensor):
        memo[id(value)] = value
    elif depth > _MAX_DEPTH or isinstance(value, (nn.Module, type, str, int, float)):
        return
    if hasattr(value, "__dict__") and not isinstance(value, (dict, list, tuple)):
        value = {} if callable(value) or hasattr(value, "to_dict") else vars(value)
    if isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            _share_tensors(item, memo, depth + 1)
