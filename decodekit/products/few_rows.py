"""A few rows times a weight matrix, at the speed of memory and in one order of addition.

A decoding step multiplies one row (or those of a small batch, or of a draft) with every weight of a model: it should
take as long as reading the weights. Libraries of linear algebra are made for large products.

    out[r, n] = bias[n] + sum over k of x[r, k] weight[n, k]

On a CPU a row is bit for bit the same whatever rows stand beside it, and whatever threads make it (`cpu_products`): up
to `PRODUCT_ROWS`, the products of a draft are those of its tokens one by one. What is larger or of another type is left
to torch, in float32 where the processor has no products of a type of two bytes (`widened_linear`).

On CUDA a product is that of `few_rows_kernel` where `MEASURED` says that it is quicker there than torch's, and torch's
elsewhere. Whoever captures steps has it measured (`measure`), since which one is quicker depends on the device and the
shape:

    ProductShape(cuda:0, bfloat16, 1 row, 4096 outputs, width 14336)     (31.0 us, 35.5 us)     here
    ProductShape(cuda:0, bfloat16, 8 rows, 128256 outputs, width 4096)   (266 us, 259 us)       torch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn.functional import linear

from decodekit.gpu.triton_programs import missing, next_power_of_2, on
from decodekit.products import cpu_team
from decodekit.products.cpu_products import KINDS, MAX_ROWS, PRODUCT_ROWS, WIDENED

ROWS: Final = (1, 2, 4, 8)
"""Numbers of rows for which products are measured on CUDA: captured steps have so many."""

_CLEARLY: Final = 0.97
"""The share of torch's time below which ours is chosen: of two equals the choice, and how sums round, would change."""
_PIECE: Final = 1 << 19  # weights that are widened at a time: 2 MiB of float32, which stay in the second or third cache


class ProductShape(NamedTuple):
    """A product on a device: of R rows [R, K] with weights [N, K]."""

    device: torch.device
    dtype: torch.dtype
    num_rows: int
    num_outs: int
    width: int


MEASURED: Final[dict[ProductShape, tuple[float, float]]] = {}
"""Seconds of a product here and by torch, as they were measured in this process."""


def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` [..., N] of x [..., K], weight [N, K], bias [N]; the operation in a recorded graph.

    On a CPU up to `PRODUCT_ROWS` rows of one type with the weights are multiplied here; anything else by torch. Of int8
    weights, for x of any type, result and bias are float32.
    """
    out: Tensor = torch.ops.decodekit.few_rows_linear(x, weight, bias)
    return out


def _on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    is_coded = weight.dtype is torch.int8
    result = torch.float32 if is_coded else x.dtype
    is_ours = (
        0 < x.numel() <= PRODUCT_ROWS.get(weight.dtype, 0) * weight.shape[1]
        and (is_coded or x.dtype is weight.dtype)
        and x.dtype in KINDS
        and x.is_contiguous()
        and weight.is_contiguous()
        and (bias is None or (bias.dtype is result and bias.is_contiguous()))
    )
    if is_ours:
        return cpu_team.multiply(x, weight, bias)
    is_widened = is_coded or (weight.dtype in WIDENED and x.dtype is weight.dtype)
    return widened_linear(x, weight, bias) if is_widened else linear(x, weight, bias)


def widened_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """The product [..., N] of many rows x [..., K] with weights of one or two bytes [N, K], on a CPU, added in float32.

    A piece of the weights at a time is widened and multiplied by torch. Where a processor has no products of bfloat16
    this is three to seven times as quick as torch's own (measured with AVX2: 28 to 66 GFLOP/s in place of 7 to 9).
    """
    (num_outs, width), wide = weight.shape, x.float()
    if out is None:
        out = x.new_empty(*x.shape[:-1], num_outs, dtype=torch.float32 if weight.dtype is torch.int8 else x.dtype)
    step = max(1, _PIECE // max(1, width))
    piece = torch.empty(min(step, num_outs), width)
    for start in range(0, num_outs, step):
        some = weight[start : start + step]
        added = None if bias is None else bias[start : start + step].float()
        out[..., start : start + step] = linear(wide, piece[: len(some)].copy_(some), added)
    return out


def is_quicker(shape: ProductShape) -> bool:
    """Whether a product on CUDA is made here."""
    ours, theirs = MEASURED.get(shape, (1.0, 0.0))
    return ours < _CLEARLY * theirs


def measure(weights: list[Tensor], seconds_of: Callable[[Callable[[], object]], float]) -> bool:
    """Have products measured, here and by torch, by a clock for captured functions; whether one is quicker here.

    The weights [N, K] are of one shape, type and device, of as many layers as there are: read in turn, as a step does,
    they do not stay in the cache of the device.
    """
    weight = weights[0]
    if weight.device.type != "cuda" or missing() is not None or weight.dtype not in KINDS or weight.shape[1] % 16:
        return False  # of another width than a multiple of 16 weights cannot be copied ahead
    from decodekit.gpu.kernels.few_rows_kernel import launched

    shapes = [ProductShape(weight.device, weight.dtype, num_rows, *weight.shape) for num_rows in ROWS]
    for shape in shapes:
        if shape in MEASURED:
            continue
        x = weight.new_ones(shape.num_rows, shape.width)

        def ours(x: Tensor = x) -> None:
            for one in weights:
                launched(x, one, None)

        def theirs(x: Tensor = x) -> None:
            for one in weights:
                linear(x, one)

        with on(weight.device):
            MEASURED[shape] = seconds_of(ours) / len(weights), seconds_of(theirs) / len(weights)
    return any(map(is_quicker, shapes))


def _on_cuda(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_outs, width = weight.shape
    num_rows = x.numel() // width
    shape = ProductShape(weight.device, weight.dtype, next_power_of_2(num_rows), num_outs, width)
    is_plain = x.dtype == weight.dtype and weight.is_contiguous()
    if not 0 < num_rows <= MAX_ROWS or not is_plain or not is_quicker(shape):
        return linear(x, weight, bias)
    from decodekit.gpu.kernels.few_rows_kernel import launched

    return launched(x, weight, bias)


_library: Final[Any] = torch.library.Library("decodekit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("few_rows_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("few_rows_linear", _on_cpu, "CPU")
# Dynamo would trace what a Python frame calls, and compile the program anew without knowing what 16 divides: slower.
_library.impl("few_rows_linear", _disable_dynamo(_on_cuda), "CUDA")
_library.impl("few_rows_linear", linear, "CompositeExplicitAutograd")
