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
from decodekit.speculation.verification import coupled_match


def row_by_row(
    tokens: Sequence[int], draft: Sequence[int], status: Sequence[int], length: int
) -> tuple[int, int, int, int, list[int]]:
    """What comes of one row, token by token as `generation.step` takes them."""
    target = [token if state == 0 else "fault" for token, state in zip(tokens, status, strict=True)]
    taken: list[int] = []
    fault = 0
    for choice in coupled_match(list(draft), target[: len(draft) + 1]):
        if not isinstance(choice, int):
            fault = status[len(taken)]
            break
        taken.append(choice)
    out = taken + [-1] * (len(tokens) - len(taken))
    return len(taken), taken[-1] if taken else tokens[0], length + len(taken), fault, out


def all_rows(width: int, values: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    for tokens in itertools.product(values, repeat=width):
        for draft_length in range(width):
            for draft in itertools.product(values, repeat=draft_length):
                yield tokens, draft


def inputs_of(rows: list[tuple[Any, ...]], statuses: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    width = len(rows[0][0])
    drafts = [[*draft, *[1] * (width - 1 - len(draft))] for _, draft in rows]  # what is behind a draft is no draft
    return (
        torch.tensor([tokens for tokens, _ in rows]),
        torch.tensor(drafts, dtype=torch.int64).view(len(rows), width - 1),
        torch.tensor([len(draft) for _, draft in rows], dtype=torch.int32),
        torch.tensor(statuses, dtype=torch.int32),
        torch.full((len(rows),), 7, dtype=torch.int32),
    )


def world(width: int) -> tuple[tuple[Tensor, ...], list[tuple[Any, ...]]]:
    """Rows with what comes of them: all of a width, with a fault in some."""
    draw = random.Random(width)
    rows = list(all_rows(width, (0, 1, 2)))
    if len(rows) > 3000:
        rows = draw.sample(rows, 3000)
    statuses = [tuple(draw.choice((0, 0, 0, 0, 1, 2)) for _ in range(width)) for _ in rows]
    found = [row_by_row(*row, status, 7) for row, status in zip(rows, statuses, strict=True)]
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
        found = kernel.launched(*(one[some] for one in inputs))
    assert_as_expected(found, [expected[row] for row in some])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")
@pytest.mark.parametrize("width", [1, 5, 16])
def test_it_compiles_for_an_h100(width: int) -> None:
    from decodekit.kernels import verify_kernel
    from tests.kernels.offline import compiled

    inputs = inputs_of([((0,) * width, ())] * 4, [(0,) * width] * 4)
    _, arguments, constants, _ = verify_kernel.launch_of(*inputs)
    assert compiled(verify_kernel.match, arguments, constants, num_warps=1).spilled == 0


def test_a_draft_that_is_believed_would_be_seen() -> None:
    """A negative control: drafts of one token more than there are."""
    inputs, expected = world(3)
    longer = (*inputs[:2], (inputs[2] + 1).clamp(max=2), *inputs[3:])
    with pytest.raises(AssertionError):
        assert_as_expected(advanced(*longer), expected)
