"""Attention over pages: the twin against attention over plain lists."""

from __future__ import annotations

import random

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.gpu_gate import MOST_UNITS, units_apart
from decodekit.gpu import paged_attention as op
from decodekit.gpu.pages import Geometry, Offsets, PageError, Stored
from tests.gpu.worlds import World, drawn_world
from tests.sizes import sized


def assert_near(world: World, out: torch.Tensor) -> None:
    assert out.dtype == world.dtype
    assert units_apart(out.cpu(), world.expected()) <= MOST_UNITS[world.dtype]


@sized("num_worlds", 150, slow=3000)
def test_the_twin_is_attention_over_lists(num_worlds: int) -> None:
    draw = random.Random(1)
    for _ in range(num_worlds):
        world = drawn_world(draw)
        assert_near(world, torch.ops.decodekit.paged_attention(*world.arguments()))


@pytest.mark.parametrize("stored", Stored)
def test_what_is_written_is_read_later_and_nothing_else_is_touched(stored: Stored) -> None:
    world = World([5, 0, 8], [2, 0, 3], width=3, stored=stored)
    before = world.written()
    torch.ops.decodekit.paged_attention(*world.arguments())
    after = world.written()
    for row, count in enumerate(world.counts):  # what should be there, byte for byte
        for token in range(count):
            place = world.starts[row] + token
            page = int(world.table[row, place // world.page_size])
            world._put(page, place % world.page_size, world.key[row, token], world.value[row, token])
    assert torch.equal(after, world.written())
    assert not torch.equal(after, before)


def test_a_batch_of_dead_rows_writes_nothing() -> None:
    world = World([5, 0], [0, 0], width=2)
    before = world.written()
    out = torch.ops.decodekit.paged_attention(*world.arguments())
    assert torch.equal(world.written(), before)
    assert out.isfinite().all()


def test_lengths_pages_and_rows_may_move_behind_a_trace() -> None:
    """The program, not the operation alone: a baked number would show."""
    first, second = World([5, 0, 8], [2, 1, 3], width=3), World([1, 11, 2], [3, 0, 1], width=3, seed=5)
    pages = max(first.table.shape[1], second.table.shape[1])
    tables = [torch.nn.functional.pad(w.table, (0, pages - w.table.shape[1])) for w in (first, second)]
    arenas = [torch.cat(w.store.arenas) for w in (first, second)]
    geometry = Geometry(
        first.page_size, max(len(a) for a in arenas) // first.layout.page_bytes, first.layout.page_bytes
    )
    arenas = [torch.nn.functional.pad(a, (0, geometry[1] * geometry[2] - len(a))) for a in arenas]

    def run(*changing: torch.Tensor) -> torch.Tensor:
        *inputs, arena = changing
        return op.attended(*inputs, [arena], geometry, first.offsets, Stored.AS_GIVEN, 0.3, 0, 0.0, None)

    def changing(which: int) -> list[torch.Tensor]:
        world = (first, second)[which]
        query, key, value, _, starts, counts, *_ = world.arguments()
        return [query, key, value, tables[which], starts, counts, arenas[which].clone()]

    program = make_fx(run)(*changing(0))
    for which in (1, 0):
        assert_near((first, second)[which], program(*changing(which)))


def test_the_operation_may_be_traced() -> None:
    """A trace of it serves other lengths, and a store that has grown behind it."""
    first = World([5, 0, 8], [2, 1, 3], width=3)

    def run(query: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        _, key, value, _, _, _, *rest = first.arguments()
        return torch.ops.decodekit.paged_attention(query, key, value, table, starts, counts, *rest)

    query, _, _, table, starts, counts, *_ = first.arguments()
    program = torch.jit.trace(run, (query, table, starts, counts), check_trace=False)
    taken = first.store.take(first.store.num_free + 2)
    moved, other = table.clone(), torch.tensor([4, 0, 4], dtype=torch.int32)
    moved[:, 1] = torch.tensor(taken[-1], dtype=torch.int32)  # a page of the new arena, with what follows written anew
    for _ in range(2):
        out = program(query, moved, other, counts)
        torch.testing.assert_close(out, run(query, moved, other, counts))
        assert not torch.equal(out, run(query, table, starts, counts))


def test_it_compiles_into_one_graph() -> None:
    """Through the operation's fake, with other lengths behind it; `aot_eager` needs no compiler of C++."""
    world = World([5, 0, 8], [2, 1, 3], width=3)

    def layer(*arguments: object) -> torch.Tensor:
        return torch.ops.decodekit.paged_attention(*arguments) * 2

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_near(world, compiled(*world.arguments()) / 2)
    other = World([2, 9, 0], [1, 3, 2], width=3, seed=3)
    assert_near(other, compiled(*other.arguments()) / 2)


def test_the_fake_has_the_shape_and_type_of_the_output() -> None:
    world = World([3, 0], [1, 3], width=3, value_dim=16, dtype=torch.bfloat16)
    torch.library.opcheck(
        torch.ops.decodekit.paged_attention.default, world.arguments(), test_utils=("test_schema", "test_faketensor")
    )
    assert torch.ops.decodekit.paged_attention(*world.arguments()).is_contiguous()  # as the fake's is


def test_chunks_of_queries_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([5, 0], [6, 7], width=7, window=4)
    whole = torch.ops.decodekit.paged_attention(*world.arguments())
    monkeypatch.setattr(op, "_MOST_SCORES", 100)
    torch.testing.assert_close(torch.ops.decodekit.paged_attention(*world.arguments()), whole)


def test_differences_are_counted_in_units_of_the_last_place() -> None:
    """One unit is 2^-7 for 1 in bfloat16, and 2^-5 for 4; a number that is none is never near."""
    expected = torch.tensor([1.0, 4.0, 0.0, -0.25], dtype=torch.float64)
    near = torch.tensor([1.0 + 2**-7, 4.0 - 2**-6, 0.0, -0.25], dtype=torch.bfloat16)
    assert units_apart(near, expected) == 1.0
    assert units_apart(torch.tensor([1.0, 4.125, 0.0, -0.25], dtype=torch.bfloat16), expected) == 4.0
    assert units_apart(torch.tensor([1.0, 4.0, 2**-6, -0.25], dtype=torch.bfloat16), expected) == 2.0
    assert units_apart(torch.tensor([1.0, torch.nan, 0.0, -0.25], dtype=torch.bfloat16), expected) == float("inf")
    assert units_apart(torch.zeros(0), torch.zeros(0)) == 0.0


def test_a_fault_of_the_twin_would_be_seen() -> None:
    """A negative control: a window of one token more, and a key one slot away."""
    world = World([9], [1], window=4)
    arguments = list(world.arguments())
    arguments[11] = 5
    with pytest.raises(AssertionError):
        assert_near(world, torch.ops.decodekit.paged_attention(*arguments))
    arguments = list(world.arguments())
    arguments[4] = arguments[4] + 1
    with pytest.raises(AssertionError):
        assert_near(world, torch.ops.decodekit.paged_attention(*arguments))


def test_a_store_that_is_gone_is_named() -> None:
    world = World([1], [1])
    arguments = world.arguments()
    table = arguments[6].clone()
    table[0] = 10**9
    with pytest.raises(PageError, match="no store of pages has the number 1000000000"):
        torch.ops.decodekit.paged_attention(*arguments[:6], table, *arguments[7:])


def test_offsets_of_no_planes() -> None:
    assert Offsets(0, 64) == (0, 64, -1, -1)
