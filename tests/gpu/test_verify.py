"""Coupled match on tensors against the rule over lists, row by row; the kernel against its twin."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.gpu.draft_match import Advance, advanced, moved, take_tokens
from decodekit.gpu.draw_settings import DRAFT, INDEX, MASKS, packed
from decodekit.gpu.sampler import chosen
from decodekit.speculation.verification import coupled_match
from tests.sizes import few


def row_by_row(
    tokens: Sequence[int], draft: Sequence[int], status: Sequence[int], length: int
) -> tuple[int, int, int, int, list[int]]:
    """What comes of one row, token by token as `decoding.loop.step` takes them."""
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


def drawn_step(
    draw: random.Random, num_texts: int, width: int, columns: int, has_cuts: bool = False
) -> tuple[Any, ...]:
    """Arguments of `take_tokens`: texts with drafts that often agree, some of no new token, and faults."""
    vocab_size = 40
    settings = [(1.0, 0, 1.0, draw.choice((0.0, 0.1)), draw.random() < 0.4) for _ in range(num_texts)]
    if has_cuts:
        settings = [(one[0], draw.choice((0, 4)), draw.choice((1.0, 0.7)), *one[3:]) for one in settings]
    keys = [[draw.randrange(99) for _ in range(num_texts)] for _ in range(3)]
    values = torch.from_numpy(packed(settings, *keys, width, draw.random() < 0.5))
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    masks = torch.randint(-(2**31), 2**31, (3, 2), generator=generator).to(torch.int32)
    values[MASKS:] = torch.tensor([[draw.randint(-1, 2) for _ in range(num_texts)] for _ in range(width)])
    logits = torch.randn(num_texts * width, vocab_size, generator=generator)
    for row in range(num_texts * width):
        if draw.random() < 0.1:
            logits[row] = draw.choice((math.nan, -math.inf))
    counts, tokens = [], torch.randint(0, vocab_size, (num_texts, columns), generator=generator).to(torch.int32)
    own = chosen(logits, values, masks, width, has_cuts)[:, 0].view(num_texts, width)
    for text in range(num_texts):
        length = draw.randint(0, min(width, columns) - 1)
        pending = draw.choice((0, 1)) if not length else 1
        values[DRAFT, text] = length
        counts.append(length + pending)
        for place in range(length):
            if draw.random() < 0.8:
                tokens[text, pending + place] = own[text, place]
    rows = torch.tensor(draw.sample(range(num_texts + 2), num_texts), dtype=torch.int32)
    starts = torch.tensor([draw.randint(0, 50) for _ in range(num_texts)], dtype=torch.int32)
    taken = torch.arange(num_texts + 2)
    out = torch.zeros(num_texts, 3 * width + 1, dtype=torch.int32)
    return logits, values, masks, rows, starts, torch.tensor(counts, dtype=torch.int32), tokens, taken, out


def assert_same_step(act: Any, arguments: tuple[Any, ...], has_cuts: bool = False) -> None:
    """Everything that a step changes is what the twin makes of it."""
    ours, twins = (tuple(one.clone() for one in arguments) for _ in range(2))
    act(*ours)
    moved(*twins, has_cuts)
    for number, (one, other) in enumerate(zip(ours, twins, strict=True)):
        assert torch.equal(one.nan_to_num(), other.nan_to_num()), number


def test_a_step_draws_matches_and_moves_on() -> None:
    """The text of a step is what its drawn tokens are by the rule over lists."""
    draw = random.Random(5)
    num_kept = 0
    for _ in range(12):
        width = draw.choice((1, 2, 4))
        arguments = drawn_step(draw, 3, width, draw.choice((width, 8)))
        logits, values, masks, rows, starts, counts, tokens, taken, out = (one.clone() for one in arguments)
        take_tokens(logits, values, masks, rows, starts, counts, tokens, taken, out, False)
        found = chosen(logits, arguments[1], masks, width, False).view(3, width, 4)
        for text in range(3):
            length, count = int(arguments[1][DRAFT, text]), int(arguments[5][text])
            draft = arguments[6][text, count - length : count].tolist()
            own, _, _, states = found[text].T.tolist()
            held = int(arguments[4][text]) + count - length - 1
            came, last, end, fault, line = row_by_row(own, draft, states, held)
            num_kept += came > 1
            assert out[text].tolist() == [*line, *found[text, :, 1].tolist(), *found[text, :, 2].tolist(), fault]
            assert int(starts[text]) == (end if count else arguments[4][text])
            assert int(values[INDEX, text]) == int(arguments[1][INDEX, text]) + came
            assert not came or int(taken[rows[text]]) == last
        assert counts.tolist() == arguments[5].clamp(max=1).tolist() and tokens.unique().tolist() == [-1]
    assert num_kept > 5


def test_the_operation_has_a_fake_and_a_schema() -> None:
    arguments = (*drawn_step(random.Random(1), 2, 2, 2), False)
    torch.library.opcheck(
        torch.ops.decodekit.take_tokens.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


@few(1)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("width", [1, 3, 4])
def test_the_end_of_a_step_is_its_twin(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.gpu.interpreting import interpreted, interpreter

    kernel, draw = interpreted("decodekit.gpu.kernels.sampler_kernel"), random.Random(width)
    monkeypatch.setattr(kernel, "BLOCK", 32)

    def launched(logits: Tensor, values: Tensor, masks: Tensor, *step: Tensor) -> None:
        kernel.launched(logits, values, masks, width, has_cuts, step)

    with interpreter():
        for has_cuts in (False, True):
            assert_same_step(launched, drawn_step(draw, 3, width, draw.choice((width, 5)), has_cuts), has_cuts)


def test_a_draft_that_is_believed_would_be_seen() -> None:
    """A negative control: drafts of one token more than there are."""
    inputs, expected = world(3)
    longer = (*inputs[:2], (inputs[2] + 1).clamp(max=2), *inputs[3:])
    with pytest.raises(AssertionError):
        assert_as_expected(advanced(*longer), expected)
