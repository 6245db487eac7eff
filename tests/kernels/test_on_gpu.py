"""The comparisons of this folder on a CUDA device: the kernels as they are compiled there, against the twins."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from decodekit.kernels import paged_attention, programs
from decodekit.kernels.pages import Stored
from decodekit.kernels.sampler import Chosen, rule_of, sampled
from decodekit.kernels.verify import advanced
from tests.kernels.rows import drawn_rows
from tests.kernels.test_verify import world
from tests.kernels.worlds import World, drawn_world

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_near(made: World) -> None:
    """The kernel ran, its output is attention over lists, and it wrote what the twin writes."""
    assert programs.missing() is None
    arguments = made.arguments()
    before = [arena.clone() for arena in made.store.arenas]
    out = torch.ops.decodekit.paged_attention(*arguments)
    written = made.written()
    for arena, bytes_before in zip(made.store.arenas, before, strict=True):
        arena.copy_(bytes_before)
    twin = paged_attention._twin(*arguments)
    assert torch.equal(made.written(), written)
    for found in (out, twin):
        torch.testing.assert_close(found.cpu().double(), made.expected(), rtol=0, atol=TOLERANCE[made.dtype])


def test_attention_over_small_worlds() -> None:
    draw = random.Random(11)
    for _ in range(200):
        assert_near(drawn_world(draw, device="cuda"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("stored", Stored)
@pytest.mark.parametrize(("width", "group"), [(1, 4), (4, 7), (16, 8), (70, 4)])
def test_attention_over_long_rows(dtype: torch.dtype, stored: Stored, width: int, group: int) -> None:
    """Many splits, rows of very different lengths, a dead one, windows, softcaps and sinks."""
    starts = [0, 700, 33, 1500]
    counts = [width, 1, 0, width]
    for window, softcap, has_sinks in ((0, 0.0, False), (100, 30.0, True)):
        assert_near(
            World(
                starts, counts, num_heads=2, group=group, key_dim=128, value_dim=64, width=width, page_size=32,
                pages_per_arena=40, dtype=dtype, stored=stored, scale=0.09, window=window, softcap=softcap,
                has_sinks=has_sinks, device="cuda",
            )
        )  # fmt: skip


def test_a_captured_graph_serves_other_lengths_and_pages() -> None:
    first = World([600, 3], [1, 1], page_size=32, pages_per_arena=64, device="cuda")
    arguments = list(first.arguments())
    torch.ops.decodekit.paged_attention(*arguments)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.ops.decodekit.paged_attention(*arguments)
    table, starts = arguments[3], arguments[4]
    for held in ([600, 3], [200, 2], [64, 0]):
        starts.copy_(torch.tensor(held, dtype=torch.int32))
        graph.replay()
        torch.testing.assert_close(out, torch.ops.decodekit.paged_attention(*arguments), rtol=0, atol=1e-6)
    [moved] = first.store.take(1)
    before = out.clone()
    first.store.arenas[moved // 64].zero_()
    table[0, 0] = moved
    graph.replay()
    assert not torch.equal(out[0], before[0])
    counted = programs._COUNTERS.values()
    assert counted and not any(bool(one.any()) for one in counted)


def on_cuda(logits: Any, settings: Any, keys: Any, masks: Any, ids: Any, certifies: bool = True) -> Chosen:
    moved = [None if one is None else one.cuda() for one in (logits, *rule_of(settings), *keys, masks, ids)]
    return Chosen(*torch.ops.decodekit.sample_rows(*moved, True, True, certifies))


def test_sampler_takes_the_tokens_of_its_twin() -> None:
    draw = random.Random(12)
    for _ in range(400):
        batch = drawn_rows(draw)
        logits, settings, keys, masks, ids = batch
        expected = sampled(logits, rule_of(settings), *keys, masks, ids, certifies=True)
        for name, one, other in zip(Chosen._fields, on_cuda(*batch), expected, strict=True):
            assert one.tolist() == other.tolist(), (name, settings)


def test_sampler_on_wide_rows() -> None:
    draw = random.Random(13)
    for vocab_size in (32_000, 152_064, 262_144):
        batch = drawn_rows(draw, num_rows=8, vocab_size=vocab_size, are_sound=True)
        logits, settings, keys, masks, ids = batch
        expected = sampled(logits, rule_of(settings), *keys, masks, ids, certifies=True)
        assert on_cuda(*batch).tokens.tolist() == expected.tokens.tolist()


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_coupled_match_is_its_twin(width: int) -> None:
    inputs, _ = world(width)
    found = torch.ops.decodekit.advance(*(one.cuda() for one in inputs))
    for one, other in zip(found, advanced(*inputs), strict=True):
        assert one.tolist() == other.tolist()
