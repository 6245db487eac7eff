"""Instructions come to what the operations of torch come to that they were written down for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from decodekit.models.programs.replay import StepFrame
from decodekit.models.programs.step_program import NotWritableError, StepProgram, Writer
from decodekit.products.step_code import Op

# The distance of two neighbouring numbers around 1; an instruction rounds once, where torch does.
UNITS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
NOWHERE = [np.zeros(shape, np.int64) for shape in ((1,), (1, 1), (1, 1), (0, 6))]

A, B = (3, 5, 32), (5, 32)

_Function = Callable[..., Any]
EXACT: dict[str, _Function] = {
    "add": lambda a, b: a + b,
    "add with a factor": lambda a, b: torch.add(a, b, alpha=2),
    "subtract": lambda a, b: a - b,
    "from a number": lambda a, b: 2.0 - a,
    "multiply": lambda a, b: a * b,
    "by a number": lambda a, b: a * 0.5,
    "divide": lambda a, b: a / b,
    "maximum": lambda a, b: torch.maximum(a, b),
    "minimum": lambda a, b: torch.minimum(a, b),
    "negative": lambda a, b: -a,
    "size": lambda a, b: a.abs(),
    "rectified": lambda a, b: functional.relu(a),
    "bounds": lambda a, b: a.clamp(-0.5, 0.25),
    "lower bound": lambda a, b: a.clamp_min(0.1),
    "upper bound": lambda a, b: a.clamp_max(0.1),
    "square": lambda a, b: a.pow(2),
    "copy": lambda a, b: a.transpose(0, 2).contiguous(),
    "in place": lambda a, b: a.clone().mul_(b).add_(1.0),
    "halves": lambda a, b: torch.cat([-a[..., 16:], a[..., :16]], dim=-1),
    "one of a dimension": lambda a, b: a[:, 1:2] * b[0],
    "written into zeros": lambda a, b: torch.zeros(3, 5, 32, dtype=a.dtype).copy_(a),
    "largest": lambda a, b: a.amax(-1, keepdim=True),
    "called": lambda a, b: torch.flip(a, (0,)) * 2,
    "called in place": lambda a, b: a.clone().sin_().clamp_min_(0.0) * 1.0,
}
ROUNDED: dict[str, tuple[_Function, float]] = {  # and how many units they may be apart
    "inverse root": (lambda a, b: (a.abs() + 0.1).rsqrt(), 2),
    "exponential": (lambda a, b: a.exp(), 4),
    "sigmoid": (lambda a, b: a.sigmoid(), 4),
    "silu": (lambda a, b: functional.silu(a), 4),
    "tanh": (lambda a, b: a.tanh(), 4),
    "cube": (lambda a, b: a.pow(3), 2),
    "root": (lambda a, b: a.abs().sqrt(), 1),
    "gelu": (lambda a, b: functional.gelu(a), 16),
    "gelu by tanh": (lambda a, b: functional.gelu(a, approximate="tanh"), 64),
    "cosine": (lambda a, b: a.cos(), 4),
    "sine": (lambda a, b: a.sin(), 4),
    "inverse root as a power": (lambda a, b: (a.abs() + 0.1).pow(-0.5), 4),
    "mean": (lambda a, b: a.mean(-1, keepdim=True), 8),
    "sum": (lambda a, b: a.sum(-1), 64),
    "softmax": (lambda a, b: a.softmax(-1), 8),
    "norm": (lambda a, b: functional.layer_norm(a, (32,), b[0], b[1], 1e-5), 32),
}


def written(function: _Function, inputs: list[Tensor]) -> StepProgram:
    with torch.inference_mode(False), torch.no_grad():
        writer = Writer(nn.Module(), {}, inputs)
        with writer:
            found = function(*inputs)
            return writer.program([found])


def given(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in (A, B)]


@pytest.mark.parametrize(("name", "dtype"), list(itertools.product(EXACT, [*UNITS, torch.float64])))
def test_exact_operations(name: str, dtype: torch.dtype) -> None:
    """Bit for bit; float64 has no instruction, and is called."""
    inputs = given(dtype)
    program = written(EXACT[name], [one.clone() for one in inputs])
    frame = StepFrame(program)
    for factor in (1, -3):
        inputs = [one * factor for one in inputs]
        [found] = frame.run([one.clone() for one in inputs], *NOWHERE)
        assert torch.equal(found, EXACT[name](*inputs))
    is_called = "called" in name or "zeros" in name or dtype is torch.float64
    assert bool(program.calls) == is_called


@pytest.mark.parametrize(("name", "dtype"), list(itertools.product(ROUNDED, UNITS)))
def test_rounded_operations(name: str, dtype: torch.dtype) -> None:
    function, units = ROUNDED[name]
    inputs = given(dtype)
    program = written(function, [one.clone() for one in inputs])
    assert not program.calls
    [found] = StepFrame(program).run(inputs, *NOWHERE)
    expected = function(*(one.double() for one in inputs))
    error = (found.double() - expected).abs() / expected.abs().clamp_min(0.05)
    assert float(error.max()) < units * UNITS[dtype] + (UNITS[dtype] if dtype is not torch.float32 else 0)


def test_exponentials_of_all_sizes() -> None:
    """From what is nothing to what is too large, and what is no number."""
    x = torch.cat([torch.linspace(-110, 95, 40_001), torch.tensor([-math.inf, math.inf, math.nan, 0.0, -0.0])])
    [found] = StepFrame(written(torch.exp, [x])).run([x], *NOWHERE)
    expected = x.double().exp()
    is_usual = (x > -87) & (x < 88)
    error = ((found.double() - expected) / expected)[is_usual].abs()
    assert float(error.max()) < 2.5 * UNITS[torch.float32]
    assert float(found[x < -87].max()) < 2e-38 and bool((found[x > 89] == math.inf).all())
    assert found[-5:].tolist()[:2] == [0.0, math.inf] and found[-3].isnan() and found[-2:].tolist() == [1.0, 1.0]


def test_results_share_their_memory() -> None:
    """A chain of a hundred results takes the memory of three."""

    def chain(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(100):
            a = a * b + 1.0
        return a * 1.0

    inputs = given(torch.float32)
    program = written(chain, inputs)
    assert program.arena_bytes <= 3 * inputs[0].numel() * 4
    [found] = StepFrame(program).run(inputs, *NOWHERE)
    assert torch.equal(found, chain(*inputs))


def test_what_no_result_needs_is_left_out() -> None:
    def wasteful(a: Tensor, b: Tensor) -> Tensor:
        _ = (a * b).exp().sum(-1)
        return a + 1.0

    assert [Op(op) for op in written(wasteful, given(torch.float32)).codes[:, 0]] == [Op.ADD]


@pytest.mark.parametrize(
    "function", [lambda a, b: a * float(a.sum()), lambda a, b: a[a > 0], lambda a, b: a if bool((a > 0).all()) else b]
)
def test_values_are_not_to_be_had(function: _Function) -> None:
    with pytest.raises(NotWritableError, match="value of a tensor"):
        written(function, given(torch.float32))


def test_weights_are_not_written() -> None:
    layer = nn.Linear(32, 4)
    with torch.no_grad():
        writer = Writer(layer, {}, given(torch.float32))
        with writer, pytest.raises(NotWritableError, match="weights"):
            layer.weight.add_(1.0)


def test_an_input_that_is_written_comes_back() -> None:
    """As a state that is shifted in place does."""

    def shifted(a: Tensor, b: Tensor) -> Tensor:
        a[1:].copy_(a[:-1].clone())
        a[0].copy_(b)
        return a

    inputs = given(torch.float32)
    program = written(shifted, [one.clone() for one in inputs])
    [found] = StepFrame(program).run([one.clone() for one in inputs], *NOWHERE)
    assert torch.equal(found, shifted(*(one.clone() for one in inputs)))
