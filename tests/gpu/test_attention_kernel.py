"""The kernel of attention over pages: interpreted against its twin, and compiled for an H100 without one."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_gate import units_apart
from decodekit.gpu import paged_attention
from decodekit.gpu.pages import Stored
from decodekit.gpu.triton_programs import Card
from tests.gpu.worlds import World, drawn_world
from tests.reference.attention_parts import blocks_of, shares
from tests.sizes import sized, thinned

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton: pip install triton", allow_module_level=True)

import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from decodekit.gpu import attention_launch
from tests.gpu.compile_set import buffers_of, compiled_case, faults_of
from tests.gpu.interpreting import interpreted, interpreter
from tests.gpu.offline import CARDS

_KERNEL: Any = interpreted("decodekit.gpu.kernels.attention_kernel")
MOST_UNITS = {torch.float32: 160, torch.float16: 4, torch.bfloat16: 3}  # the interpreter cuts numbers off
OTHER_TRITON = "DECODEKIT_OTHER_TRITON"
"""A folder made by `pip install --no-deps --target FOLDER triton==3.6.0`: the programs are compiled with it, too."""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Interpreted, with small blocks, so that a few tokens make several parts; `attention_launch` as it starts that."""
    monkeypatch.setattr(attention_launch, "kernel", _KERNEL)
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
    assert units_apart(out, expected) <= MOST_UNITS[world.dtype]
    num_parts: int = kernel.launch_of(*arguments, torch.empty_like(out)).grid[1] - len(world.starts) + 1
    return num_parts


@sized("num_worlds", 4, slow=400)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_long_row_among_short_ones_is_read_by_many(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 700, 10 and 3 tokens, on a card of two multiprocessors: 12 parts, and up to 10 of them of one row."""
    monkeypatch.setattr(attention_launch, "card_of", lambda device: Card(2, 227 << 10, (9, 0)))
    for starts in ([700, 10, 3], [3, 10, 700]):
        assert assert_same(kernel, World(starts, [1, 1, 1], num_heads=1, page_size=16)) == 12
    assert_same(kernel, World([400, 10, 400], [1, 0, 2], width=2, num_heads=1, page_size=16, window=200))


@sized("num_starts", 3, slow=7)
def test_every_small_batch_in_every_number_of_parts(
    kernel: Any, monkeypatch: pytest.MonkeyPatch, num_starts: int
) -> None:
    """Two rows of all lengths around blocks of 16, in up to 5 parts."""
    lengths = (0, 17, 70, 1, 15, 16, 40)[:num_starts]
    for num_parts in (2, 5) if num_starts == 3 else range(1, 6):
        monkeypatch.setattr(attention_launch, "parts_of", lambda *shapes, made=num_parts: (made, 1))
        for starts in itertools.combinations_with_replacement(lengths, 2):
            assert_same(kernel, World(starts, [1, 2], width=2, num_heads=1, page_size=16))


def test_a_grid_that_is_too_short_would_be_seen(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: as many programs as there are parts, and one less."""
    monkeypatch.setattr(attention_launch, "parts_of", lambda *shapes: (6, 1))
    world, other = (
        World([33, 16], [1, 1], num_heads=1, page_size=16, seed=seed) for seed in (0, 1)
    )  # 4 and 2 blocks, 6 parts of one: 6 of 7 programs
    launch_of = kernel.launch_of

    def shorter(by: int) -> Any:
        def cut(*arguments: Any) -> Any:
            launch = launch_of(*arguments)
            return launch._replace(grid=(launch.grid[0], launch.grid[1] - by))

        return cut

    monkeypatch.setattr(kernel, "launch_of", shorter(1))
    assert_same(kernel, world)
    monkeypatch.setattr(kernel, "launch_of", shorter(2))
    with pytest.raises(AssertionError):
        assert_same(kernel, other)


def _write_shares(
    out: Any, starts: Any, counts: Any, num_rows: Any, num_parts: Any, least: Any, window: Any, ROWS: tl.constexpr,
    N: tl.constexpr, MOST_PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """A program that writes down what it finds: row, first program of the row, blocks of a part."""
    row, first, each = _KERNEL._share(starts, counts, num_rows, num_parts, least, window, True, N, ROWS, MOST_PARTS)
    at = out + tl.program_id(1) * 3
    tl.store(at, row)
    tl.store(at + 1, first)
    tl.store(at + 2, each)


def shares_found(
    starts: list[int], counts: list[int], num_parts: int, least: int, window: int
) -> list[tuple[int, ...]]:
    """What each program finds, with two rows at once and blocks of 4 tokens."""
    out = torch.full((len(starts) + num_parts - 1, 3), -1, dtype=torch.int32)
    rows = [torch.tensor(one, dtype=torch.int32) for one in (starts, counts)]
    with interpreter():
        InterpretedFunction(_write_shares)[(1, len(out))](out, *rows, len(starts), num_parts, least, window, 2, 4, 16)
    return [tuple(one) for one in out.tolist()]


@pytest.mark.slow
@sized("num_batches", 12, slow=1000)
def test_shares_are_those_handed_out_one_by_one(num_batches: int) -> None:
    """Up to five rows, of which a program looks at two at once; blocks of 4 tokens, with and without a window."""
    draw = random.Random(5)
    most = 0
    for _ in range(num_batches):
        starts = [draw.choice((0, 1, 3, 4, 5, 9, 30, 70)) for _ in range(draw.randint(1, 5))]
        counts = [draw.choice((0, 1, 1, 2, 5)) for _ in starts]
        num_parts, least, window = draw.randint(1, 9), draw.choice((1, 2, 5)), draw.choice((100, 6, 1))
        found = shares_found(starts, counts, num_parts, least, window)
        blocks = [blocks_of(*row, window, 4) for row in zip(starts, counts, strict=True)]
        if num_parts == 1:  # every row is one part
            expected = [(row, range(count)) for row, count in enumerate(blocks)]
        else:
            expected = shares(blocks, num_parts, least, 16)
        assert len(expected) <= len(found)
        for program, (row, part) in enumerate(expected):
            own, first, each = found[program]
            assert own == row
            begin = (program - first) * each
            assert range(begin, min(begin + each, blocks[row])) == part
        if len(starts) > 1:
            assert all(row >= len(starts) for row, _, _ in found[len(expected) :])
        most = max(most, len(expected) - len(starts))
    assert most >= 2


def test_the_grid_suffices_for_every_batch() -> None:
    """The inequality of the module, over all batches of up to three rows of up to 8 blocks."""
    for num_rows in (1, 2, 3):
        for blocks in itertools.product(range(9), repeat=num_rows):
            for num_parts in range(2, 8):
                for least in (1, 3):
                    parts = shares(blocks, num_parts, least, 64)
                    assert len(parts) <= num_rows + num_parts - 1
                    assert [sum(len(part) for row, part in parts if row == one) for one in range(num_rows)] == [*blocks]


def test_rows_that_fill_the_card_have_programs_left_for_a_long_one() -> None:
    """Rows of 8 heads of keys on an H100; 1,563 blocks are 100,000 tokens."""
    parts_of, card = attention_launch.parts_of, CARDS[90]
    assert parts_of(1, 8, 1, 1563, card) == (33, 2)
    assert parts_of(8, 8, 1, 1563, card) == (32, 2)
    assert parts_of(33, 8, 1, 1563, card) == (33, 8)
    assert parts_of(256, 8, 1, 1563, card) == (132, 8)
    assert parts_of(2, 1024, 2048, 1563, card) == (1, 2)  # a prompt
    assert parts_of(1, 1, 1, 2, card) == (1, 2)  # a row of two blocks at most
    assert parts_of(4096, 32, 1, 1563, card) == (1, 2)  # more than there are counters
    blocks = [1563, *[2] * 255]
    assert max(len(part) for _, part in shares(blocks, 132, 8, 64)) == 25  # a row has 64 parts at most


KINDS = [(torch.bfloat16, 0), (torch.float32, 0), (torch.bfloat16, 1)]


@pytest.mark.parametrize("capability", CARDS)
def test_tiles_fit_every_card(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All widths of heads, groups and kinds that have a kernel: what is needed at most is what a program may have."""
    card = CARDS[capability]
    monkeypatch.setattr(attention_launch, "card_of", lambda device: card)
    for (dtype, stored), key_dim, value_dim in itertools.product(
        KINDS, (16, 64, 80, 128, 192, 256, 576), (64, 256, 512)
    ):
        kind = Stored(stored).dtype(dtype)
        for num_queries in (1, 2, 8, 17, 33, 64, 5000):
            tiles = attention_launch.tiles_of(num_queries, key_dim, value_dim, dtype, kind, card)
            needed = attention_launch.shared_bytes(tiles, key_dim, value_dim, dtype, kind)
            is_told = attention_launch.why_not_here(key_dim, value_dim, dtype, kind, torch.device("cpu")) is not None
            assert (needed <= card.shared_bytes) or is_told
            is_small = card.shared_bytes < 100 << 10
            assert not is_told or (is_small and dtype is torch.float32 and key_dim == 576)
            assert tiles.tokens >= 16 and tiles.queries >= 16 and tiles.stages >= 1


@pytest.mark.parametrize("num_queries", [4, 64])
def test_programs_of_float32_have_four_warps(num_queries: int) -> None:
    """With eight, Triton 3.6 spills 72 bytes of a prompt on an H100."""
    tiles = attention_launch.tiles_of(num_queries, 128, 128, torch.float32, torch.float32, CARDS[90])
    assert (tiles.tokens, tiles.num_warps) == (16, 4)


def test_a_prompt_has_the_tiles_of_any_longer_one() -> None:
    for (dtype, stored), dim, group in itertools.product(KINDS, (64, 128, 256, 512), (1, 2, 8)):
        kind = Stored(stored).dtype(dtype)
        short, long = (
            attention_launch.tiles_of(width * group, dim, dim, dtype, kind, CARDS[90])
            for width in (paged_attention.PROMPT_TOKENS, 4096)
        )
        assert short == long


def test_shapes_that_leave_the_registers_go_to_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    why = paged_attention.why_no_kernel
    for fits in ((192, 128), (576, 512), (512, 512), (256, 256)):
        assert why(torch.bfloat16, *fits) is None and why(torch.float32, *fits) is None
    assert why(torch.bfloat16, 640, 512) == "no kernel for keys of 640 and values of 512 numbers: 576 and 512 at most"
    assert why(torch.bfloat16, 512, 576) is not None
    eight_bits = "no kernel for keys of 512 and values of 512 numbers in eight bits: 256 and 256 at most"
    assert why(torch.bfloat16, 512, 512, Stored.INT8) == eight_bits
    assert why(torch.float64, 64, 64) == "no kernel for attention in float64"
    assert why(torch.float32, 64, 64, Stored.INT8) == "no kernel for float32 with keys and values in eight bits"
    monkeypatch.setattr(attention_launch, "card_of", lambda device: CARDS[89])
    assert why(torch.float32, 576, 512) == (
        "no kernel for keys of 576 and values of 512 numbers in float32 on a GPU with 99 KiB of shared memory for a "
        "program: 107 are needed"
    )
    assert why(torch.bfloat16, 576, 512) is None and why(torch.bfloat16, 256, 256) is None
    monkeypatch.setattr(attention_launch, "card_of", lambda device: CARDS[86])
    assert why(torch.bfloat16, 64, 64, Stored.INT8) is None
    monkeypatch.setattr(paged_attention, "missing", lambda: "no triton")
    assert why(torch.bfloat16, 64, 64) == "no triton"


def test_it_compiles_for_an_h100() -> None:
    made, found = compiled_case({}, 90)
    assert faults_of({}, 90, made, found) == []
    assert buffers_of(found) == [2, 2]


def test_faults_of_compiled_programs_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: a block more than the card has room for, which is also one more than there is."""
    made, found = compiled_case({}, 90)
    told = faults_of({}, 90, made._replace(constants=made.constants | {"STAGES": 3}), found)
    assert told == ["[2, 2] buffers for 3 stages"]
    one_by_one = found._replace(ptx="ld.global.b16", spilled=8, shared=300_000)
    assert len(faults_of({}, 90, made, one_by_one)) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("other", [False, True], ids=["triton", "other-triton"])
@pytest.mark.parametrize("capability", CARDS)
def test_every_kind_of_launch_compiles_for_every_card(capability: int, other: bool) -> None:
    folder = os.environ.get(OTHER_TRITON)
    if other and not folder:
        pytest.skip(f"needs {OTHER_TRITON}, a folder made by pip install --no-deps --target FOLDER triton==3.6.0")
    root = str(Path(__file__).parents[2])
    paths = [*([folder] if other and folder else []), root]
    command = [sys.executable, "-m", "tests.gpu.compile_set", str(capability)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert not done.returncode, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) > 40
    assert [line for line in lines if line["faults"]] == []
