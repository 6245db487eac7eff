"""Captures on a CUDA that is not there: what cannot be captured opens none, and one that fails leaves all as it was."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from decodekit.models.runners import captured
from decodekit.models.runners.captured import CaptureError, CudaCapture, NoWaits, PassLock, grouped_products_wait
from decodekit.models.runners.ragged import RaggedModel, experts_wait
from decodekit.models.runners.step_state import StepState
from tests.models.architectures import COMMON, VOCAB_SIZE, build, tokens
from tests.models.recording import RecordedCapture

CPU = torch.device("cpu")


class FakeStream:
    """Notes the events that it waits for."""

    def __init__(self, *_: object) -> None:
        self.waited: list[Any] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.waited.append(other)

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


class FakeEvent:
    """Knows the stream behind which it was recorded last."""

    stream: Any = None

    def record(self, stream: FakeStream) -> None:
        self.stream = stream


class FakeGenerator:
    """The default generator of the device; a capture that fails leaves it unusable."""

    is_capturing = False

    def clone_state(self) -> FakeGenerator:
        return FakeGenerator()

    def graphsafe_set_state(self, state: FakeGenerator) -> None:
        self.is_capturing = state.is_capturing


class FakeCuda:
    """As much of `torch.cuda` as captures use, with the faults of PyTorch up to 2.11.

    Attributes:
        pools: that were used for captures; `broken` the ones that a failed capture left behind.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.stream = self.default = FakeStream()
        self.generator = FakeGenerator()
        self.pools: list[int] = []
        self.broken: set[int] = set()
        self.num_handles = 0
        self.num_replays = 0
        cuda: Any = torch.cuda
        for name, value in {
            "device": lambda *_: nullcontext(), "current_stream": lambda *_: self.stream, "Stream": FakeStream,
            "stream": self.on, "CUDAGraph": lambda: self, "graph": self.graph, "graph_pool_handle": self.handle,
            "Event": FakeEvent, "default_generators": [self.generator], "current_device": lambda: 0,
        }.items():  # fmt: skip
            patch.setattr(cuda, name, value, raising=False)

    def handle(self) -> int:
        self.num_handles += 1
        return self.num_handles

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def graph(self, graph: Any, pool: int, **_: Any) -> Iterator[None]:
        if pool in self.broken or self.generator.is_capturing:
            raise RuntimeError("already recording to mempool_id")
        self.pools.append(pool)
        self.generator.is_capturing = True
        self.broken.add(pool)
        yield
        self.generator.is_capturing = False  # only where the capture ends well
        self.broken.discard(pool)

    def replay(self) -> None:
        self.num_replays += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def fine() -> torch.Tensor:
    return torch.ones(2) + 1


def waits() -> torch.Tensor:
    return torch.ones(2) * int(torch.ones(1))


@pytest.mark.parametrize(
    "run",
    [waits, lambda: torch.ones(3).nonzero(), lambda: torch.tensor([1.0]), lambda: torch.ones(3)[torch.ones(3) > 0]],
)
def test_what_waits_opens_no_capture(cuda: FakeCuda, run: Any) -> None:
    capture = CudaCapture(CPU)
    with pytest.raises(CaptureError, match="in a captured pass"), torch.inference_mode():
        capture(run)
    assert not cuda.pools and cuda.stream is cuda.default
    assert torch.equal(capture(fine)(), fine()) and cuda.num_replays == 1


def test_without_the_run_that_refuses_a_wait_opens_one(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(captured, "NoWaits", lambda device: nullcontext())
    CudaCapture(CPU)(waits)
    assert cuda.pools == [1]


@pytest.mark.parametrize("is_given", [True, False])
def test_what_is_compiled_stays_compiled_behind_a_capture(cuda: FakeCuda, is_given: bool) -> None:
    """`torch.compile` gives a function up that it meets under a mode: without the plain pass it is (control)."""
    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *given: (calls.append(1), graph.forward(*given))[1]

    def plain() -> torch.Tensor:
        return numbers + 1

    numbers = torch.ones(2)
    torch._dynamo.reset()
    compiled = torch.compile(plain, backend=backend)
    with torch.inference_mode():
        CudaCapture(CPU)(compiled, plain if is_given else None)
        before = len(calls)
        assert before >= captured.NUM_WARMUPS
        compiled()
    assert len(calls) == before + is_given


def test_a_capture_that_fails_leaves_all_as_it_was(cuda: FakeCuda) -> None:
    """Pool, generator and stream; captures before and behind it are as without it."""
    capture, runs = CudaCapture(CPU), [0]
    first = capture(fine)

    def fails_at_last() -> torch.Tensor:
        runs[0] += 1
        if runs[0] > captured.NUM_WARMUPS + 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return fine()

    with pytest.raises(RuntimeError, match="not permitted"):
        capture(fails_at_last)
    assert cuda.stream is cuda.default and not cuda.generator.is_capturing
    second = capture(fine)
    assert cuda.pools == [1, 1, 2]
    assert torch.equal(first(), second())


class FakeGraph:
    """A graph that can be replayed, and seen by a weak reference."""

    def replay(self) -> None:
        pass


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_graph_dies_with_its_pass(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, is_kept: bool) -> None:
    """Nothing else holds it, nor what was captured; a pass that is kept is the control."""
    made = list[weakref.ref[Any]]()

    def new_graph() -> FakeGraph:
        graph = FakeGraph()
        made.append(weakref.ref(graph))
        return graph

    def run() -> torch.Tensor:
        return fine()

    made.append(weakref.ref(run))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
    capture = CudaCapture(CPU)
    replayed = capture(run)
    made.append(weakref.ref(replayed()))
    kept = replayed if is_kept else None
    del run, replayed
    gc.collect()
    assert [one() is not None for one in made] == [False, is_kept, is_kept]
    del kept
    gc.collect()
    assert all(one() is None for one in made) and capture._pool == 1


def test_a_scalar_of_the_host_is_no_wait_of_a_device() -> None:
    with NoWaits(torch.device("cuda")):
        assert float(torch.tensor(2.0)) == 2  # lies on the host: a model's own constant


def test_passes_on_other_streams_wait_for_one_another(cuda: FakeCuda) -> None:
    lock, first, second = PassLock(torch.device("cuda")), FakeStream(), FakeStream()
    for stream in (first, first, second, second, first):
        with cuda.on(stream), lock(), lock():
            pass
    assert [len(one.waited) for one in (first, second)] == [1, 1]
    [event] = second.waited
    assert isinstance(event, FakeEvent) and event.stream is first


def test_passes_of_threads_do_not_overlap() -> None:
    lock, order, inside = PassLock(CPU), list[str](), threading.Event()

    def other() -> None:
        inside.wait()
        with lock():
            order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    with lock():
        inside.set()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


def qwen3_moe() -> Any:
    config = transformers.Qwen3MoeConfig(
        **COMMON, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    )
    return transformers.Qwen3MoeForCausalLM(config).eval()


def llava_of_mixtral() -> Any:
    """Experts of a text model inside of another one, whose own configuration says nothing of them."""
    text = transformers.MixtralConfig(**COMMON, num_local_experts=4)
    vision = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=VOCAB_SIZE - 1)
    return transformers.LlavaForConditionalGeneration(config).eval()


EXPERTS: dict[str, Callable[[], Any]] = {
    "mixtral": lambda: build("mixtral"),
    "qwen3_moe": qwen3_moe,
    "llava": llava_of_mixtral,
}


def implementations(model: Any) -> set[str]:
    """How the layers of experts of a model are multiplied."""
    return {
        module.config._experts_implementation for module in model.modules() if type(module).__name__.endswith("Experts")
    }


def read_without_waits(model: RaggedModel) -> torch.Tensor:
    """Logits of a first pass over two rows, as the last run before a capture makes them."""
    assert model.paged is not None
    cache: Any = model.new_cache(2, 8)
    state = StepState(cache.rows, 2, 3)
    cache.reach([3, 3], None)
    state.fill(cache.places, [0, 0], [3, 3], np.array([tokens(0, 3), tokens(1, 3)], dtype=np.int32) % (VOCAB_SIZE - 1))
    with torch.inference_mode(), NoWaits(CPU):
        return model.paged.read(state)


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_of_captured_steps_do_not_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy multiplies its experts in one batch; the model itself stays, and logits are the same."""
    model = EXPERTS[name]()
    plain, ahead = (RaggedModel(model, use_pages=True, capture=one) for one in (None, RecordedCapture()))
    assert implementations(model) == implementations(plain.module) == {"grouped_mm"}
    assert implementations(ahead.module) == {"batched_mm"}
    with pytest.raises(CaptureError, match="_grouped_mm in a captured pass"):  # the control
        read_without_waits(plain)
    found = read_without_waits(ahead)
    monkeypatch.setattr(captured, "grouped_products_wait", lambda *_: False)
    expected = read_without_waits(plain)
    assert (found - expected).abs().max() < 1e-4 * expected.std()


def test_only_products_of_experts_that_wait_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not experts_wait(build("llama")) and experts_wait(build("mixtral", torch.bfloat16))
    for capability, dtype, waits in (
        ((9, 0), torch.bfloat16, False),
        ((9, 0), torch.float16, True),
        ((8, 0), torch.bfloat16, True),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert grouped_products_wait(dtype, torch.device("cuda")) == waits
