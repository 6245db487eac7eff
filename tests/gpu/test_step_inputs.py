"""What a pass reads: the twin against lists, the kernel against its twin."""

from __future__ import annotations

import importlib.util
import random

import pytest
import torch
from torch import Tensor

from decodekit.gpu.step_inputs import StepInputs, inputs_of, step_inputs


def drawn(draw: random.Random, num_texts: int, width: int, slots: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Arguments of the operation: texts of some of eight rows, tokens that are given or taken, tables."""
    rows = draw.sample(range(8), num_texts)
    counts = [draw.randint(0, width) for _ in rows]
    given = [[draw.randrange(90) for _ in range(width)] for _ in rows]
    for line in given:
        if draw.random() < 0.4:
            line[:] = [-1] * width
    starts = [draw.randint(0, 70) for _ in rows]
    small = [torch.tensor(one, dtype=torch.int32) for one in (rows, starts, counts, given)]
    tables = [torch.randint(0, 99, (8, num_slots), dtype=torch.int32) for num_slots in slots]
    return [*small, torch.arange(100, 108)], tables


@pytest.mark.parametrize("width", [1, 3])
def test_the_twin_is_the_rule_over_lists(width: int) -> None:
    small, tables = drawn(random.Random(width), 5, width, (6, 3))
    found = StepInputs(*step_inputs(*small, tables))
    rows, starts, counts, given, taken = (one.tolist() for one in small)
    for text, row in enumerate(rows):
        expected = [taken[row] if token < 0 else token for token in given[text]]
        assert found.tokens[text].tolist() == expected
        last = max(counts[text], 1) - 1
        assert found.positions[text].tolist() == [starts[text] + min(place, last) for place in range(width)]
        assert [pages[text].tolist() for pages in found.pages] == [table[row].tolist() for table in tables]
    assert found.starts.tolist() == starts and found.counts.tolist() == counts
    assert found.starts.data_ptr() != small[1].data_ptr()


def test_the_operation_has_a_fake_and_a_schema() -> None:
    small, tables = drawn(random.Random(1), 2, 2, (5,))
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.decodekit.step_inputs.default, (*small, tables), test_utils=utilities)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")
@pytest.mark.parametrize("slots", [(5,), (40, 33), (33, 70, 5)])
def test_the_kernel_is_its_twin(slots: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.gpu.interpreting import interpreted, interpreter

    kernel, draw = interpreted("decodekit.gpu.kernels.step_inputs_kernel"), random.Random(9)
    monkeypatch.setattr(kernel, "_BLOCK", 32)
    with interpreter():
        for width in (1, 3, 4):
            small, tables = drawn(draw, draw.randint(1, 4), width, slots)
            expected, found = (inputs_of(*small, tables) for _ in range(2))
            for one in (*found[:4], *found.pages):
                one.fill_(-7)
            kernel.launched(*small, tables, out=found)
            for one, other in zip([*found[:4], *found.pages], [*expected[:4], *expected.pages], strict=True):
                assert torch.equal(one, other)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")
@pytest.mark.parametrize(("slots", "num_launches"), [((4096,), 1), ((4096, 4096), 1), ((64, 64, 64), 2)])
def test_it_is_one_launch_for_two_groups_and_compiles_for_an_h100(slots: tuple[int, ...], num_launches: int) -> None:
    from decodekit.gpu.kernels import step_inputs_kernel
    from tests.gpu.offline import compiled

    small, tables = drawn(random.Random(2), 2, 4, slots)
    chain = step_inputs_kernel.launches(*small, tables, inputs_of(*small, tables))
    assert len(chain) == num_launches
    for _, arguments, constants in chain:
        assert compiled(step_inputs_kernel.gather, arguments, constants, num_warps=4).spilled == 0
