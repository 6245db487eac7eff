"""Coupled match on tensors against the rule over lists, row by row; the kernel against its twin."""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.kernels.verify import Advance, advanced
from decodekit.speculation.verification import coupled_match, num_equal

END = 2
IS_END = torch.tensor([False, False, True, False])


def row_by_row(
    tokens: Sequence[int], draft: Sequence[int], status: Sequence[int], pending: int, length: int, room: int
) -> tuple[int, int, int, int, int, list[int]]:
    """What comes out of one row, token by token as `generation.step` takes them."""
    target = [token if state == 0 else "fault" for token, state in zip(tokens, status, strict=True)]
    taken: list[int] = []
    left = room
    for choice in coupled_match(list(draft), target[: len(draft) + 1]):
        if left == 0:
            break
        if not isinstance(choice, int):
            left = 0
            break
        taken.append(choice)
        left = 0 if choice == END else left - 1
    accepted = num_equal(draft, taken)
    out = taken + [-1] * (len(tokens) - len(taken))
    return accepted, len(taken), taken[-1] if taken else pending, length + len(taken), left, out


def all_rows(width: int, values: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    for tokens in itertools.product(values, repeat=width):
        for draft_length in range(width):
            for draft in itertools.product(values, repeat=draft_length):
                for room in range(width + 2):
                    yield tokens, draft, room


def inputs_of(rows: list[tuple[Any, ...]], statuses: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    width = len(rows[0][0])
    ones = torch.ones(len(rows), dtype=torch.int32)
    drafts = [[*draft, *[1] * (width - 1 - len(draft))] for _, draft, _ in rows]  # what is behind a draft is no draft
    return (
        torch.tensor([tokens for tokens, _, _ in rows]),
        torch.tensor(drafts, dtype=torch.int64).view(len(rows), width - 1),
        torch.tensor([len(draft) for _, draft, _ in rows], dtype=torch.int32),
        torch.tensor(statuses, dtype=torch.int32),
        ones.long() * 3,
        ones * 7,
        torch.tensor([room for _, _, room in rows], dtype=torch.int32),
        IS_END,
    )


def world(width: int) -> tuple[tuple[Tensor, ...], list[tuple[Any, ...]]]:
    """Rows with what comes of them: all of a width, with a fault in some."""
    draw = random.Random(width)
    rows = list(all_rows(width, (0, 1, END)))
    if len(rows) > 3000:
        rows = draw.sample(rows, 3000)
    statuses = [tuple(draw.choice((0, 0, 0, 0, 1, 2)) for _ in range(width)) for _ in rows]
    found = [
        row_by_row(tokens, draft, status, 3, 7, room)
        for (tokens, draft, room), status in zip(rows, statuses, strict=True)
    ]
    return inputs_of(rows, statuses), found


def assert_as_expected(found: Sequence[Tensor], expected: list[tuple[Any, ...]]) -> None:
    for name, tensor, values in zip(Advance._fields, found, zip(*expected, strict=True), strict=True):
        assert tensor.tolist() == list(values), name


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_the_twin_is_the_rule_over_lists(width: int) -> None:
    inputs, expected = world(width)
    assert_as_expected(advanced(*inputs), expected)
    assert_as_expected(torch.ops.decodekit.advance(*inputs), expected)


def test_the_operation_has_a_fake_and_a_schema() -> None:
    inputs, _ = world(2)
    torch.library.opcheck(torch.ops.decodekit.advance.default, inputs, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")
@pytest.mark.parametrize("width", [1, 3, 5])
def test_the_kernel_is_its_twin(width: int) -> None:
    from tests.kernels.interpreting import interpreted, interpreter

    inputs, expected = world(width)
    some = random.Random(3).sample(range(len(expected)), min(60, len(expected)))
    kernel = interpreted("decodekit.kernels.verify_kernel")
    with interpreter():
        found = kernel.launched(*(one[some] for one in inputs[:-1]), IS_END)
    assert_as_expected(found, [expected[row] for row in some])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")
@pytest.mark.parametrize("width", [1, 5, 16])
def test_it_compiles_for_an_h100(width: int) -> None:
    from decodekit.kernels import verify_kernel
    from tests.kernels.offline import compiled

    inputs = inputs_of([((0,) * width, (), 1)] * 4, [(0,) * width] * 4)
    _, arguments, constants, _ = verify_kernel.launch_of(*inputs)
    assert compiled(verify_kernel.match, arguments, constants, num_warps=1).spilled == 0


def test_a_draft_that_is_believed_would_be_seen() -> None:
    """A negative control: drafts of one token more than there are."""
    inputs, expected = world(3)
    longer = (*inputs[:2], (inputs[2] + 1).clamp(max=2), *inputs[3:])
    with pytest.raises(AssertionError):
        assert_as_expected(advanced(*longer), expected)
