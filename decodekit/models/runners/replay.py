"""Decoding steps on a CPU without Python: a step is recorded as a TorchScript graph and replayed from then on.

A step of a small model is mostly the Python of its modules: for the bundled model half of the time at batch 1. The
graph calls the same kernels in the same order, so its logits are bit for bit those of the modules; that is proven first
(`proof`), and a recording whose code looked at the value of a tensor, or at the number of slots, is never used.

A recording holds for one number of rows and of new tokens in each, with or without a mask. The slots that are written
and read are its inputs, so that lengths and capacity may change. A step of a few tokens (a draft, forced tokens) is
recorded, too: run by its modules it would cost twice what a recorded step of one token costs, and drafts would not pay.
This is for a CPU what a captured CUDA graph is for a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.utils._python_dispatch import TorchDispatchMode

from decodekit.models.caches.kv_cache import LayerShape, PlaneShape, RaggedCache, Step
from decodekit.models.modules.shared_copy import WeightPlaces, shared_copy
from decodekit.models.runners import attention
from decodekit.models.runners.proof import Proof

RECORD_AFTER: Final = 48
"""Steps of one kind before it is recorded: recording costs about as much as 100 steps save."""
MAX_WIDTH: Final = 16
"""Most new tokens of a row in a step that is recorded; in longer ones arithmetic is most of the time."""

_DUMMY_SLOTS: Final = 8

_MANY_SLOTS: Final = 1 << 14
"""Slots of a second recording where a model compares shapes: with as many it has to come to the same operations."""

Run = Callable[[nn.Module, Tensor, Step, Any, Sequence[Tensor]], list[Tensor]]
"""Logits of `module(tokens [R, T], step, store)`, and the states that it leaves, if it begins with some."""

READS: Final = frozenset({"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2"})
"""Operations that give Python the value of a tensor, or a shape that follows from it."""


@dataclass(slots=True)
class _Recording:
    """The state of one kind of step: seen, recorded or refused."""

    num_seen: int = 0
    graph: Callable[..., list[Tensor]] | None = None
    proof: Proof = field(default_factory=lambda: Proof(_DUMMY_SLOTS))


class Replays:
    """The recorded decoding steps of one model. Threads may share it.

    Args:
        module: the model with decodekit's attention function, on a CPU.
        runs: how the module is called, by the name of what is wanted.
        windows: every sliding window that a layer uses.
    """

    def __init__(
        self, module: nn.Module, runs: dict[str, Run], layers: dict[int, LayerShape], windows: frozenset[int]
    ) -> None:
        self._module = module
        self._runs = runs
        self._layers = layers
        self._windows = windows
        self._recordings: dict[Hashable, _Recording] = {}
        self._places = WeightPlaces(module)

    def step(
        self,
        tokens: Tensor,
        step: Step,
        cache: RaggedCache,
        wanted: str,
        eager: Callable[[], list[Tensor]],
        states: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        """Logits of one decoding step, and states: replayed where the recording is proven, else from `eager`.

        Args:
            tokens: int64 [R, T] with T up to `MAX_WIDTH`.
            step: not the first one of its rows.
            eager: makes the wanted run with the modules; float32. Running a step twice writes the same keys and values
                twice.
            states: that the step begins with, [R, ...]; it may write into them.
        """
        # Scattered rows are copied after the write; a masked window moves its slice with the lengths.
        if step.row_index is not None or (self._windows and not step.is_uniform):
            return eager()
        crossed = tuple(window for window in self._windows if step.end > window)
        key = (type(cache), wanted, step.num_rows, step.num_new, step.is_uniform, step.positions.shape[0], crossed)
        recording = self._recordings.setdefault(key, _Recording())
        if recording.proof.is_refused:
            return eager()
        if recording.graph is None:
            recording.num_seen += 1
            if recording.num_seen < RECORD_AFTER:
                return eager()
            try:
                recording.graph = self._record(step, wanted, type(cache), states)
            except Exception:  # whatever a model does that cannot be recorded; then its modules go on running it
                recording.proof.is_refused = True
                return eager()
        if self._places.have_changed():  # the graph has the old ones
            self._recordings = {}
            return eager()
        graph, arguments = recording.graph, self._arguments(tokens, step, cache)
        if recording.proof.is_proven:
            return graph(*arguments, *states)
        copies = [state.clone() for state in states]  # the modules begin with the states, too
        return recording.proof.output(lambda: graph(*arguments, *copies), eager, step.end)

    def num_replayable(self) -> int:
        """How many kinds of steps are recorded and proven."""
        return sum(recording.proof.is_proven for recording in list(self._recordings.values()))

    def _arguments(self, tokens: Tensor, step: Step, cache: RaggedCache) -> tuple[Tensor, ...]:
        rows, slots, planes, reads = cache.slots_of(step)
        return (tokens, step.positions, rows, slots, self._mask(step), *planes, *reads)

    def _mask(self, step: Step) -> Tensor:
        """The mask of a step [R or 1, 1, T, S]; empty if the step needs none."""
        if step.is_uniform or not self._layers:
            return torch.empty(0)
        dtype = next(iter(self._layers.values())).key.dtype
        return step.mask(None, 1, dtype, torch.device("cpu"))[2]

    def _record(
        self, step: Step, wanted: str, kind: type[RaggedCache], states: Sequence[Tensor] = ()
    ) -> Callable[..., list[Tensor]]:
        """Trace a step like this one over a few dummy slots.

        Raises:
            RuntimeError: the model looks at the value of a tensor, or does something else for more slots.
        """
        module = _without_gradients(self._module)
        shapes = {layer: kind.planes_of(shape) for layer, shape in self._layers.items()}
        num_planes = {layer: len(planes) for layer, planes in shapes.items()}
        num_tensors = 2 * sum(num_planes.values())

        def run(
            tokens: Tensor, positions: Tensor, rows: Tensor, slots: Tensor, mask: Tensor, *rest: Tensor
        ) -> tuple[Tensor, ...]:
            store = _Slots(kind, num_planes, (rows, slots), rest[:num_tensors])
            like = Step(step.starts, step.row_ends, step.num_new, None, None, rows, slots, positions)
            like.is_fresh = False
            if not step.is_uniform:
                like.given_mask = mask
            return tuple(self._runs[wanted](module, tokens, like, store, rest[num_tensors:]))

        planes = [plane for of_layer in shapes.values() for plane in of_layer]
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with _NoReads():
                run(*self._dummies(step, planes, _DUMMY_SLOTS, states))
            graph = _traced(run, self._dummies(step, planes, _DUMMY_SLOTS, states))
            own = attention.__file__
            # The attention function asks for numbers of heads, which are constants of the model.
            others = [one for one in seen if issubclass(one.category, TracerWarning) and one.filename != own]
            if others:
                # Shapes, since no value was read: those of a model are constants, but the number of slots is none.
                longer = _traced(run, self._dummies(step, planes, _MANY_SLOTS, states))
                if _operations(longer) != _operations(graph):
                    told = others[0]
                    raise RuntimeError(f"{told.filename}:{told.lineno}: {told.message}")
        return lambda *arguments: list(graph(*arguments))

    def _dummies(
        self, step: Step, planes: Sequence[PlaneShape], num_slots: int, states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Arguments for a recording, which reads so many slots and writes to the last of `_DUMMY_SLOTS`."""
        num_rows, num_new, num_positions = step.num_rows, step.num_new, step.positions.shape[0]
        written = [
            torch.zeros(num_rows, one.num_heads, _DUMMY_SLOTS + 1, one.head_dim, dtype=one.dtype) for one in planes
        ]
        reads = [plane.narrow(2, 0, _DUMMY_SLOTS) for plane in written]
        if num_slots != _DUMMY_SLOTS:  # without memory
            reads = [plane[:, :, :1].expand(-1, -1, num_slots, -1) for plane in written]
        mask = torch.empty(0)
        if not step.is_uniform and self._layers:
            dtype = next(iter(self._layers.values())).key.dtype
            mask = torch.zeros(num_positions, 1, num_new, num_slots, dtype=dtype)
        last = torch.full((num_positions, num_new), _DUMMY_SLOTS - 1)
        tokens, rows = torch.zeros(num_rows, num_new, dtype=torch.int64), torch.arange(num_rows)[:, None]
        copies = [state.clone() for state in states]
        return [tokens, last, rows, last.clone(), mask, *written, *reads, *copies]


def _traced(run: Callable[..., tuple[Tensor, ...]], arguments: Sequence[Tensor]) -> Any:
    return torch.jit.trace(run, tuple(arguments), check_trace=False)  # type: ignore[no-untyped-call]


def _operations(graph: Any) -> str:
    """The operations of a recording, less the shapes that it was recorded with."""
    bare = graph.graph.copy()
    torch._C._jit_pass_erase_shape_information(bare)
    return str(bare)


class _NoReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses to hand values of tensors to Python."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.partition("::")[2] in READS:
            raise RuntimeError(f"the model looks at the value of a tensor: {func}")
        return func(*args, **(kwargs or {}))


class _Slots:
    """The cache as a recorded step sees it: writes to planes and reads views of them, all inputs of the graph."""

    def __init__(
        self,
        kind: type[RaggedCache],
        num_planes: Mapping[int, int],
        index: tuple[Tensor, Tensor],
        kv: Sequence[Tensor],
    ) -> None:
        self._kind = kind
        ends = list(accumulate(num_planes.values()))
        self._slices = {layer: slice(end - num_planes[layer], end) for layer, end in zip(num_planes, ends, strict=True)}
        self._index, self._planes, self._views = index, kv[: len(kv) // 2], kv[len(kv) // 2 :]

    def append(self, layer: int, keys: Tensor, values: Tensor, step: Step | None) -> tuple[Tensor, Tensor]:
        own = self._slices[layer]
        for plane, new in zip(self._planes[own], self._kind.encoded(keys, values), strict=True):
            plane.transpose(1, 2).index_put_(self._index, new.transpose(1, 2))
        return self._kind.decoded(self._views[own], keys.dtype)


def _without_gradients(module: nn.Module) -> nn.Module:
    """A structural copy over the same storage whose parameters need no gradient: a graph may hold only such."""
    twin = shared_copy(module)
    for part in twin.modules():
        part._parameters = {
            name: None if weight is None else nn.Parameter(weight.detach(), requires_grad=False)
            for name, weight in part._parameters.items()
        }
    return twin
