"""A CUDA graph's capture, simulated on a CPU: operations are recorded once and run again on the same tensors.

As with a graph, nothing of Python runs when it is replayed, every tensor stays where it was, and a number that came
from the host is what it was when the pass was recorded. What a capture forbids is refused: waiting for the device, and
making a tensor of numbers of the host, which would be an upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from decodekit.models.runners.captured import NoWaits, Run


class Recorder(NoWaits):
    """Notes every operation with its operands and results."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.operations: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
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

    def __call__(self, run: Run, plain: Run | None = None) -> Run:
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
