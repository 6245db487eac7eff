"""A pass that is captured once and replayed: its kernels start without Python, at fixed addresses.

    captured = CudaCapture(device)(run)     # runs it a few times, then records its kernels
    state.fill(...)                         # other rows, lengths, pages
    logits = captured()                     # the same memory every time

What `run` reads of the host while it is captured is baked in; so it must be a function of tensors at fixed addresses
(`step_state`). The tests capture by recording operations on a CPU, where a baked number shows.

A capture that fails is not harmless: some versions of PyTorch leave its memory pool "being recorded", and the random
generators of the device registered with its graph, so that later captures and draws in the same process raise
(pytorch#172390, #176752, #180395). So a run before a capture refuses what a capture would (`NoWaits`): most passes
that cannot be captured never open one. After one that fails all the same, pool, stream and generators are new.

That run is one of modules that are not compiled. `torch.compile` does not run under a mode that looks at operations: a
function that it meets there is never compiled again, and would be captured operator by operator.

Source: CUDA graphs, https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Run: TypeAlias = Callable[[], Tensor]
"""A pass; its inputs and outputs lie at fixed addresses."""

NUM_WARMUPS: Final = 2
"""Runs before the one that refuses waits: libraries choose kernels, compilers compile, workspaces are allocated."""

WAITS: Final = frozenset(
    {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}
    | {"unique_consecutive", "bincount", "grouped_mm_fallback"}
)
"""Operations that wait for the device: their value, or the shape of their result, goes to the host."""
UPLOADS: Final = frozenset({"lift_fresh", "lift_fresh_copy", "lift"})
"""Operations that make a tensor of numbers of the host."""
COPIES: Final = frozenset({"copy_", "_to_copy", "_copy_from"})


def grouped_products_wait(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `torch._grouped_mm` reads sizes on the host: but for bfloat16 from sm_90 on (pytorch#169970)."""
    return device.type != "cuda" or dtype is not torch.bfloat16 or torch.cuda.get_device_capability(device) < (9, 0)


class CaptureError(Exception):
    """The pass does what a capture forbids."""


class NoWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what a capture forbids: waiting for the device, and copies to or from the host's memory.

    On a CPU, which stands for a device in tests, a tensor made of numbers is an upload.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = device.type

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        given = {one.device.type for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        waits = name in WAITS or _asks_where(name, args)  # products in groups are one operation to a mode
        waits |= name == "_grouped_mm" and grouped_products_wait(args[0].dtype, args[0].device)
        if (self._kind in given and waits) or (self._kind == "cpu" and name in UPLOADS):
            raise CaptureError(f"{name} in a captured pass")
        out = func(*args, **(kwargs or {}))
        if name in COPIES:
            between = given | {one.device.type for one in tree_leaves(out) if isinstance(one, Tensor)}
            if len(between) > 1:
                raise CaptureError(f"{name} between the host and the device in a captured pass")
        return out


def _asks_where(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation looks for the places of a mask: how many there are goes to the host."""
    if name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return False
    is_mask = any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return is_mask and (name == "index" or args[2].numel() > 1)  # one value is filled in without asking


class PassLock:
    """One pass at a time over one memory: threads by a lock, streams of a device by an event.

    with lock():
        ...     # fill the inputs, run or replay

    A pass on another stream than the last one waits for that on the device: both write the same inputs, pages and
    memory of graphs. The host never waits for the device here.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.RLock()
        self._depth = 0
        self._done: Any = None
        self._last: Any = None  # the stream of the last pass

    def __reduce__(self) -> Any:
        return PassLock, (self._device,)  # of another process

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A pass; one inside of another is a part of it."""
        with self._lock:
            is_first = self._device.type == "cuda" and not self._depth
            stream = torch.cuda.current_stream(self._device) if is_first else None
            if stream is not None and self._done is not None and self._last != stream:
                stream.wait_event(self._done)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if stream is not None:
                    self._done = self._done or torch.cuda.Event()  # type: ignore[no-untyped-call]
                    self._done.record(stream)
                    self._last = stream


StepCapture: TypeAlias = Callable[[Run, Run | None], Run]
"""Makes a pass that is replayed of one that is run; the second is the same by modules that are not compiled, None if
the first is that.

The result of the pass is overwritten by the next replay. Raises an exception if it waits for the device, or does
something else that cannot be captured; then everything is as it was before.
"""


class CudaCapture:
    """Captures CUDA graphs that share one memory pool: they are replayed one after the other (`PassLock`).

    Runs before a capture and the capture itself are on one stream of its own: what is kept for a stream, workspaces of
    libraries and the counters of `gpu.triton_programs`, is made before the capture and lies outside of the graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: Any = None

    def __call__(self, run: Run, plain: Run | None = None) -> Run:
        """The same pass, captured; see `StepCapture`."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream = side = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(current)
            try:
                # Around the capture, too: one that fails leaves its stream the current one.
                with torch.cuda.stream(side):
                    for _ in range(NUM_WARMUPS):
                        run()
                    with NoWaits(self._device):  # behind a first run, which may make what is kept
                        (plain or run)()
                    graph, out = self._captured(run, side)
            finally:
                current.wait_stream(side)  # what ran there wrote into the state, which the caller puts right again

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    def _captured(self, run: Run, stream: Any) -> tuple[Any, Tensor]:
        """The graph of a pass that was run before, and where it writes its result."""
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                out = run()
        except BaseException:
            self._pool = self._stream = None  # earlier graphs keep the old pool as long as they live
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return graph, out


def bucket(number: int, buckets: tuple[int, ...]) -> int | None:
    """The least of ascending buckets that holds a number; None if none does."""
    return next((size for size in buckets if number <= size), None)
