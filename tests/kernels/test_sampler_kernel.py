"""The kernels of the sampler: interpreted against their twin, and compiled for an H100 without one."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.kernels.sampler import Chosen, rule_of, sampled
from tests.kernels.rows import Setting, drawn_rows
from tests.sizes import sized

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton: pip install triton", allow_module_level=True)

from decodekit.kernels import sampler_kernel
from tests.kernels.interpreting import interpreted, interpreter
from tests.kernels.offline import MOST_SHARED, compiled


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Interpreted, with small blocks."""
    module = interpreted("decodekit.kernels.sampler_kernel")
    monkeypatch.setattr(module, "BLOCK", 32)
    with interpreter():
        yield module


def assert_same(
    kernel: Any, logits: Tensor, settings: list[Setting], keys: Tensor, masks: Tensor | None, ids: Tensor | None
) -> None:
    rule = rule_of(settings)
    expected = sampled(logits, rule, *keys, masks, ids, certifies=True)
    uses = any(one[1] for one in settings), any(one[2] < 1 for one in settings)
    found = Chosen(*kernel.launched(logits, *rule, *keys, masks, ids, *uses, True))
    for name, one, other in zip(Chosen._fields, found, expected, strict=True):
        assert one.tolist() == other.tolist(), (name, settings, logits.tolist())


@sized("num_batches", 5, slow=600)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_the_kernels_are_their_twin(kernel: Any, num_batches: int) -> None:
    draw = random.Random(10)
    for _ in range(num_batches):
        assert_same(kernel, *drawn_rows(draw, vocab_size=draw.choice((1, 2, 5, 31, 33, 64, 200))))


def test_a_small_world_through_the_kernels(kernel: Any) -> None:
    """All rows of two logits out of four numbers, each under all of some settings, in one call."""
    rows = list(itertools.product((0.0, 1.0, -math.inf, math.nan), repeat=2))
    settings = list(itertools.product((1.0, 0.5), (0, 1), (1.0, 0.6), (0.0, 0.5), (False,)))
    world = list(itertools.product(rows, settings))[::23]
    logits = torch.tensor([row for row, _ in world])
    keys = torch.stack([torch.arange(len(world)), torch.zeros(len(world)), torch.ones(len(world))]).long()
    assert_same(kernel, logits, [setting for _, setting in world], keys, None, None)


def test_a_noise_of_another_place_would_be_seen(kernel: Any) -> None:
    """A negative control."""
    logits, keys = torch.zeros(4, 64), torch.tensor([[1, 2, 3, 4], [0] * 4, [0] * 4])
    rule = rule_of([(1.0, 0, 1.0, 0.0, False)] * 4)
    expected = sampled(logits, rule, *keys)
    found = kernel.launched(logits, *rule, *(keys + 1), None, None, False, False, False)
    assert found[0].tolist() != expected.tokens.tolist()


def launches(uses_top_k: bool, uses_top_p: bool, certifies: bool, has_masks: bool = True) -> list[Any]:
    """Sixteen rows of 152,064 logits."""
    num_rows, vocab_size = 16, 152_064

    def made(*shape: int, kind: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    logits = made(num_rows, vocab_size, kind=torch.bfloat16)
    kinds = (torch.float32, torch.int32, torch.float64, torch.float64, torch.bool, *[torch.int64] * 3)
    rule = tuple(made(num_rows, kind=kind) for kind in kinds)
    out = tuple(made(num_rows, kind=kind) for kind in (torch.int64, torch.bool, torch.int64, torch.int32))
    masks = made(9, vocab_size // 32, kind=torch.int32) if has_masks else None
    ids = made(num_rows, kind=torch.int32) if has_masks else None
    return sampler_kernel.launches(logits, *rule, masks, ids, uses_top_k, uses_top_p, certifies, out)


def test_launches_are_as_many_as_the_module_says() -> None:
    assert [len(launches(*uses, True)) for uses in ((False, False), (True, False), (True, True))] == [2, 4, 6]
    assert len(launches(False, True, True)) == 5


@pytest.mark.parametrize(
    ("place", "uses"),
    [
        (1, (False, True, False)),
        *(pytest.param(place, (True, True, True), marks=pytest.mark.slow) for place in range(6)),
        *(pytest.param(place, (False, True, False), marks=pytest.mark.slow) for place in (0, 2, 3, 4)),
        *(pytest.param(place, (True, False, True), marks=pytest.mark.slow) for place in range(4)),
        *(pytest.param(place, (False, False, False, False), marks=pytest.mark.slow) for place in range(2)),
    ],
)
def test_they_compile_for_an_h100(place: int, uses: tuple[bool, ...]) -> None:
    kernel, _, arguments, constants = launches(*uses)[place]
    found = compiled(kernel, arguments, constants, **sampler_kernel._OPTIONS)
    assert found.spilled <= 16  # where ptxas makes room for one program more
    assert found.shared <= MOST_SHARED
    if kernel is sampler_kernel.bins_of:  # a weight is the same number everywhere
        assert "fma.rn.f32" not in found.ptx
        assert "div.full.f32" not in found.ptx and "div.rn.f32" in found.ptx
