"""A pass that is captured once and replayed: its kernels start without Python, at fixed addresses.

    captured = CudaCapture()(run)       # runs it a few times, then records its kernels
    state.fill(...)                     # other rows, lengths, pages
    logits = captured()                 # the same memory every time

What `run` reads of the host while it is captured is baked in; so it must be a function of tensors at fixed addresses
(`step_state`). The tests capture by recording operations on a CPU, where a baked number shows.

Source: CUDA graphs, https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor

Run: TypeAlias = Callable[[], Tensor]
"""A pass; its inputs and outputs lie at fixed addresses."""

NUM_WARMUPS: Final = 3
"""Runs before the capture: libraries choose kernels, compilers compile, workspaces are allocated."""


class StepCapture(Protocol):
    """Makes a pass that is replayed of one that is run."""

    def __call__(self, run: Run) -> Run:
        """The same pass, captured; its result is overwritten by the next replay.

        Raises:
            Exception: the pass waits for the device, or does something else that cannot be captured.
        """


class CudaCapture:
    """Captures CUDA graphs that share one memory pool: they are replayed one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, run: Run) -> Run:
        """See `StepCapture`."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(NUM_WARMUPS):
                    run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                out = run()
            self._pool = self._pool or graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


def bucket(number: int, buckets: tuple[int, ...]) -> int | None:
    """The least of ascending buckets that holds a number; None if none does."""
    return next((size for size in buckets if number <= size), None)
