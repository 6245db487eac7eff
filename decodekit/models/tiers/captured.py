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
    """Captures CUDA graphs that share one memory pool: they are replayed one after the other.

    Runs before a capture and the capture itself are on one stream of its own: what is kept for a stream, workspaces of
    libraries and the counters of `kernels.programs`, is made before the capture and lies outside of the graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: Any = None

    def __call__(self, run: Run) -> Run:
        """See `StepCapture`."""
        with torch.cuda.device(self._device):
            self._stream = side = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            current = torch.cuda.current_stream()
            graph = torch.cuda.CUDAGraph()
            side.wait_stream(current)
            try:
                # Around the capture, too: one that fails leaves its stream the current one.
                with torch.cuda.stream(side):
                    for _ in range(NUM_WARMUPS):
                        run()
                    with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
                        out = run()
            finally:
                current.wait_stream(side)  # what ran there wrote into the state, which the caller puts right again
            self._pool = self._pool or graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


def bucket(number: int, buckets: tuple[int, ...]) -> int | None:
    """The least of ascending buckets that holds a number; None if none does."""
    return next((size for size in buckets if number <= size), None)
