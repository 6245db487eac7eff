"""The kernel of attention over pages: interpreted against its twin, and compiled for an H100 without one."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from decodekit.kernels import paged_attention
from decodekit.kernels.pages import Stored
from tests.kernels.worlds import World, drawn_world
from tests.sizes import sized, thinned

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton: pip install triton", allow_module_level=True)

from decodekit.kernels import attention_kernel, attention_launch
from tests.kernels.interpreting import interpreted, interpreter
from tests.kernels.offline import MOST_SHARED, compiled

TOLERANCE = {torch.float32: 2e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Interpreted, with small blocks, so that a few tokens make several parts; `attention_launch` as it starts that."""
    monkeypatch.setattr(attention_launch, "kernel", interpreted("decodekit.kernels.attention_kernel"))
    for name, value in {"_MOST_TOKENS": 16, "_LEAST": 1, "_LEAST_OF_MANY": 1}.items():
        monkeypatch.setattr(attention_launch, name, value)
    with interpreter():
        yield attention_launch


def assert_same(kernel: Any, world: World) -> int:
    """Output and bytes are those of the twin; in how many splits."""
    arguments = world.arguments()
    before = [arena.clone() for arena in world.store.arenas]
    expected = torch.ops.decodekit.paged_attention(*arguments)
    written = world.written()
    for arena, bytes_before in zip(world.store.arenas, before, strict=True):
        arena.copy_(bytes_before)
    out = kernel.launched(*arguments)
    assert torch.equal(world.written(), written)
    torch.testing.assert_close(out.float(), expected.float(), rtol=0, atol=TOLERANCE[world.dtype])
    num_parts: int = kernel.launch_of(*arguments, torch.empty_like(out)).grid[1] - len(world.starts) + 1
    return num_parts


@sized("num_worlds", 6, slow=400)
def test_the_kernel_is_its_twin(kernel: Any, num_worlds: int) -> None:
    draw = random.Random(4)
    most = 0
    for _ in range(num_worlds):
        starts = [draw.choice((0, 1, 15, 16, 17, 40, 70)) for _ in range(draw.randint(1, 3))]
        world = drawn_world(
            draw, starts=starts, counts=[draw.randint(0, 3) for _ in starts], width=3, num_heads=draw.choice((1, 2))
        )
        most = max(most, assert_same(kernel, world))
    assert most >= 4  # parts were merged


@thinned("stored", Stored, keep=[Stored.AS_GIVEN, Stored.INT8])
def test_a_prompt_in_blocks_of_queries(kernel: Any, stored: Stored) -> None:
    """More queries than one program has; a part of a prompt behind what the row holds, with a window in the second."""
    assert_same(kernel, World([0, 20], [50, 33], width=50, group=3, num_heads=1, page_size=16, stored=stored))
    assert_same(kernel, World([37, 3], [17, 40], width=40, group=2, num_heads=1, window=9, stored=stored))


def test_wide_heads(kernel: Any) -> None:
    """Latent attention over its latent, a key of 512 and 64 numbers; and keys of which the second part is padded."""
    latent: dict[str, Any] = {"num_heads": 1, "key_dim": 576, "value_dim": 512, "page_size": 16, "scale": 0.05}
    assert assert_same(kernel, World([70, 3], [1, 1], group=5, **latent)) >= 2
    assert_same(kernel, World([20, 0], [2, 3], width=3, group=8, dtype=torch.bfloat16, **latent))
    assert_same(kernel, World([40, 7], [1, 2], width=2, num_heads=2, group=1, key_dim=300, value_dim=320, window=9))
    assert_same(kernel, World([9], [2], width=2, num_heads=1, key_dim=288, value_dim=20, stored=Stored.INT8))


def test_a_key_of_two_parts_needs_both(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: without the numbers behind the first 512."""
    launch_of = kernel.launch_of

    def cut(*arguments: Any) -> Any:
        launch = launch_of(*arguments)
        assert (launch.constants["KEY_PAD"], launch.constants["KEY_REST"]) == (512, 64)
        return launch._replace(constants=launch.constants | {"KEY_REST": 0})

    monkeypatch.setattr(kernel, "launch_of", cut)
    with pytest.raises(AssertionError):
        assert_same(kernel, World([5], [1], num_heads=1, key_dim=576, value_dim=16))


def test_splits_count_back_to_zero(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.zeros(attention_launch.NUM_COUNTERS, dtype=torch.int32)
    monkeypatch.setattr(kernel, "counters", lambda device: shared)
    for _ in range(2):
        assert assert_same(kernel, World([70, 3], [1, 1], page_size=16)) >= 4
        assert not shared.any()


def test_a_part_that_is_left_out_would_be_seen(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: who comes last believes in one split more than there is."""
    launch_of = kernel.launch_of

    def off(*arguments: Any) -> Any:
        launch = launch_of(*arguments)
        launch.arguments[11][0] = 1  # one has come already
        return launch

    monkeypatch.setattr(kernel, "launch_of", off)
    with pytest.raises(AssertionError):
        assert_same(kernel, World([70], [1], num_heads=1, page_size=16))


def test_splits_fill_the_places_of_the_multiprocessors() -> None:
    splits = attention_launch._splits
    assert [splits(programs, 264, 1) for programs in (8, 64, 128, 192, 264, 300, 2048)] == [33, 4, 2, 4, 1, 3, 1]
    assert splits(192, 264, 512) == 1


def test_shapes_that_leave_the_registers_go_to_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paged_attention.supports(torch.bfloat16, 192, 128)
    assert paged_attention.supports(torch.float32, 256, 256)
    assert paged_attention.supports(torch.bfloat16, 576, 512)
    assert paged_attention.supports(torch.float32, 512, 512)
    assert not paged_attention.supports(torch.bfloat16, 640, 512)
    assert not paged_attention.supports(torch.bfloat16, 512, 576)
    assert not paged_attention.supports(torch.bfloat16, 512, 512, Stored.INT8)
    assert not paged_attention.supports(torch.float64, 64, 64)
    assert not paged_attention.supports(torch.float32, 64, 64, Stored.INT8)
    monkeypatch.setattr(paged_attention, "missing", lambda: "no triton")
    assert not paged_attention.supports(torch.bfloat16, 64, 64)


def launch(
    width: int = 1, group: int = 4, heads: int = 8, key_dim: int = 128, value_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16, stored: int = 0, window: int = 0, softcap: float = 0.0,
    has_sinks: bool = False,
) -> attention_launch.Launch:  # fmt: skip
    """Four rows of 2,048 tokens."""

    def made(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    query = made(4, width, heads * group, key_dim)
    key, value = made(4, width, heads, key_dim), made(4, width, heads, value_dim)
    numbers = made(4, kind=torch.int32)
    scales = (1 << 17, (1 << 17) + 4096) if stored else (-1, -1)
    return attention_launch.launch_of(
        query, key, value, made(4, 64, kind=torch.int32), numbers, numbers, made(1024, kind=torch.int64),
        (32, 64, 1 << 20), (0, 1 << 16, *scales), stored, 0.09, window, softcap,
        made(heads * group) if has_sinks else None, made(4, width, heads * group, value_dim),
    )  # fmt: skip


QUICK = [{}]
CASES = [
    {"stored": 1},
    {"key_dim": 64, "value_dim": 64, "group": 1}, {"group": 8}, {"group": 1}, {"key_dim": 64, "value_dim": 64},
    {"width": 4}, {"width": 16}, {"width": 16, "group": 8}, {"width": 512},
    {"width": 512, "key_dim": 64, "value_dim": 64},
    {"stored": 1, "width": 4}, {"stored": 1, "width": 512}, {"stored": 2}, {"stored": 2, "width": 512},
    {"window": 128}, {"softcap": 50.0}, {"has_sinks": True}, {"window": 128, "softcap": 50.0, "has_sinks": True},
    {"window": 128, "softcap": 50.0, "has_sinks": True, "width": 512}, {"key_dim": 192, "group": 1},
    {"key_dim": 192, "group": 1, "width": 512}, {"key_dim": 256, "value_dim": 256},
    {"key_dim": 256, "value_dim": 256, "width": 512}, {"key_dim": 80, "value_dim": 80}, {"dtype": torch.float16},
    {"dtype": torch.float32}, {"dtype": torch.float32, "width": 512}, {"group": 7, "width": 4},
    {"dtype": torch.float32, "key_dim": 256, "value_dim": 256, "width": 512},
    {"key_dim": 576, "value_dim": 512, "heads": 1, "group": 128},
    {"key_dim": 576, "value_dim": 512, "heads": 1, "group": 16, "width": 512},
    {"key_dim": 576, "value_dim": 512, "heads": 1, "group": 16, "dtype": torch.float32},
    {"key_dim": 512, "value_dim": 512, "window": 128, "softcap": 50.0, "has_sinks": True, "width": 512},
    {"key_dim": 512, "value_dim": 512, "dtype": torch.float32, "width": 512}, {"key_dim": 320, "value_dim": 320},
    {"key_dim": 192, "group": 1, "heads": 16, "width": 4},
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in CASES)], ids=lambda case: str(case)
)
def test_it_compiles_for_an_h100(case: dict[str, Any]) -> None:
    made = launch(**case)
    found = compiled(attention_kernel.attend, made.arguments, made.constants, made.num_warps, enable_fp_fusion=True)
    assert found.spilled == 0
    assert found.shared <= MOST_SHARED
    # Keys and values come in chunks of 16 bytes, on their way while others are multiplied.
    if case.get("dtype") is not torch.float32:
        assert "cp.async.cg" in found.ptx
    assert "ld.global.b16" not in found.ptx and "ld.global.b8" not in found.ptx
