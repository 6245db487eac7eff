"""A CUDA graph's capture, simulated on a CPU: operations are recorded once and run again on the same tensors.

As with a graph, nothing of Python runs when it is replayed, every tensor stays where it was, and a number that came
from the host is what it was when the pass was recorded. What a capture forbids is refused: waiting for the device, and
making a tensor of numbers of the host, which would be an upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decodekit.models.tiers.captured import Run

WAITS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2", "bincount"}
UPLOADS = {"lift_fresh", "lift_fresh_copy", "lift"}


class CaptureError(Exception):
    """The pass does what a capture forbids."""


class Recorder(TorchDispatchMode):
    """Notes every operation with its operands and results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in WAITS | UPLOADS:
            raise CaptureError(f"{name} in a captured pass")
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, tree_leaves(out)))
        return out


class RecordedCapture:
    """Implements `captured.StepCapture`.

    Attributes:
        passes: how many were recorded.
        num_operations: of each.
    """

    def __init__(self) -> None:
        self.num_operations: list[int] = []

    def __call__(self, run: Run) -> Run:
        with Recorder() as recorder:
            result = run()
        operations = recorder.operations
        self.num_operations.append(len(operations))

        def replay() -> Tensor:
            for func, args, kwargs, kept in operations:
                for old, new in zip(kept, tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return result

        return replay
