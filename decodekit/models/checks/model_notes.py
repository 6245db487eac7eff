"""Notes of a model, kept as long as the model lives, and valid while the model is as it was.

    notes = notes_of(model)  # of the model as it is now
    with notes.lock:
        runner = notes.get("runner") or notes.keep("runner", make(model))

Nothing is written on the model, and nothing that is kept holds it: where a value would, it is not kept.

*As it was* is what `state_of` sees: the tree of modules with their classes and `forward` functions, the configurations
(attention implementation and windows among them), the plain attributes and hooks of every module (how adapters are
switched on, off and over; how layers are quantised), and of every weight and buffer its shape, type, device, address
and version. So weights that are loaded, replaced, moved or trained count as a change, because a check on other weights
says little: those of a new model may be zero where a fault would show. Not seen are writes past PyTorch's version
counter (``weight.data.add_(1)``) and functions that are replaced in other modules of Python. Left out on purpose are
``training``, since copies are always in evaluation mode, and the generation configuration.

It costs some ten microseconds per module, once per cache: less than half of a decoding step of the smallest models.
"""

from __future__ import annotations

import gc
import operator
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from decodekit.models.modules.shared_copy import addresses_of, recomputes_frequencies

T = TypeVar("T")

_PLAIN = frozenset({str, int, float, complex, bool, bytes, type(None), torch.dtype, torch.device, torch.Size})
_LISTS = frozenset({list, tuple})
_DICTS = frozenset({dict, OrderedDict})
_OF_EVERY_MODULE = frozenset({*nn.Module().__dict__, "generation_config", "warnings_issued"})
_MAX_DEPTH = 6


class ModelNotes:
    """The notes of a model in one state."""

    def __init__(self, model: nn.Module, state: ModelState) -> None:
        self.state = state
        self.lock = threading.RLock()
        """To be held by who learns something, so that two threads do not learn it twice."""
        self._model = weakref.ref(model)
        self._kept: dict[Hashable, Any] = {}

    def get(self, name: Hashable) -> Any:
        """The note of this name; None if there is none."""
        return self._kept.get(name)

    def keep(self, name: Hashable, value: T) -> T:
        """Keep a value, unless it holds the model (through a hook, say) and would keep it alive; give it back."""
        model = self._model()
        if model is not None and not _holds(value, model):
            self._kept[name] = value
        return value


_notes: weakref.WeakKeyDictionary[nn.Module, ModelNotes] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def notes_of(model: nn.Module) -> ModelNotes:
    """The notes of a model in its present state; empty ones if it has changed."""
    state = state_of(model)
    with _lock:
        notes = _notes.get(model)
        if notes is None or notes.state != state:
            notes = _notes[model] = ModelNotes(model, state)
        return notes


class ModelState:
    """The parts of a model that decide how it can be run; see `state_of`. Objects are compared by identity, and not
    held. It is read at every call, so that reading does little for what most modules have."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.objects: list[weakref.ref[Any]] = []
        self.kinds: dict[Any, None] = {}
        """The classes of modules, until they are read."""
        self._configs: set[int] = set()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelState):
            return NotImplemented
        # An object has one plain weak reference, which outlives it here: another object cannot be taken for it.
        return (
            self.values == other.values
            and len(self.objects) == len(other.objects)
            and all(map(operator.is_, self.objects, other.objects))
        )

    __hash__ = None  # type: ignore[assignment]

    def read_module(self, module: nn.Module) -> None:
        """The module itself, without the modules below it."""
        values, attributes = self.values, module.__dict__
        self.objects.append(weakref.ref(module))
        self.kinds[type(module)] = None
        values.append(id(type(module)))
        if "rope_type" in attributes and recomputes_frequencies(module):
            return  # the model's own passes rewrite what it holds, and copies have their own
        for holder in (module._parameters, module._buffers):  # which `shared_copy` shares
            values.append(id(holder))
            for name, tensor in holder.items():
                values.append(name)
                if tensor is not None:
                    self.read_tensor(tensor)
        values += module._modules
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            values.append(len(hooks))
            if hooks:
                self.read(hooks, 0)
        for name in [name for name in attributes if name not in _OF_EVERY_MODULE]:
            each = attributes[name]
            values.append(name)
            if type(each) in _PLAIN:
                values.append(each)
            elif id(each) not in self._configs:
                self.read(each, 0)

    def read_tensor(self, tensor: Tensor) -> None:
        """All but the numbers."""
        version = -1 if tensor.is_inference() else tensor._version
        self.values += (id(type(tensor)), tensor.shape, tensor.dtype, tensor.device, addresses_of(tensor), version)

    def read(self, value: Any, depth: int) -> None:
        """Anything that a module has as an attribute."""
        kind = type(value)
        if kind in _PLAIN:
            self.values.append(value)
        elif isinstance(value, Tensor):
            self.read_tensor(value)
        elif kind in _DICTS and depth < _MAX_DEPTH:
            self.values.append(len(value))
            for key, each in value.items():
                self.read(key, depth + 1)
                self.read(each, depth + 1)
        elif kind in _LISTS and depth < _MAX_DEPTH:
            self.values.append(len(value))
            for each in value:
                self.read(each, depth + 1)
        elif hasattr(value, "to_dict") and hasattr(value, "__dict__") and not isinstance(value, nn.Module):
            self.read_config(value, depth)
        else:
            self.read_object(value)

    def read_config(self, config: Any, depth: int) -> None:
        """The values of a configuration; once, however many modules have it."""
        self.read_object(config)
        if id(config) in self._configs or depth >= _MAX_DEPTH:
            return
        self._configs.add(id(config))
        for name, value in vars(config).items():
            self.values.append(name)
            self.read(value, depth + 1)

    def read_object(self, value: Any) -> None:
        """Which object it is."""
        if isinstance(value, (set, frozenset)):
            self.values.append(sorted(map(repr, value)))
            return
        try:
            self.objects.append(weakref.ref(value))
        except TypeError:
            self.values.append(id(value))


def state_of(model: nn.Module) -> ModelState:
    """The present state of a model; see the head of this file."""
    state = ModelState()
    waiting, seen = [model], {id(model)}
    while waiting:
        module = waiting.pop()
        state.read_module(module)
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    for kind in state.kinds:
        state.read_object(kind)
        state.read_object(kind.forward)
    state.kinds.clear()  # a state holds nothing of the model
    return state


def _holds(value: object, model: nn.Module) -> bool:
    """Whether a strong reference leads from a value to a module of the model."""
    wanted = {id(module) for module in model.modules()}
    seen: set[int] = set()
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in wanted:
            return True
        if id(one) in seen or isinstance(one, (type, types.ModuleType, types.CodeType, str, bytes, int, float)):
            continue
        seen.add(id(one))
        waiting += _referents(one)
    return False


def _referents(one: Any) -> Iterable[Any]:
    """The objects that an object holds; of a function without the module that it was written in."""
    if isinstance(one, types.FunctionType):
        parts = (one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__)
        return [part for part in parts if part]
    if isinstance(one, Tensor):
        hooks = (one.__dict__, one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None))
        return [part for part in hooks if part]
    return gc.get_referents(one)
