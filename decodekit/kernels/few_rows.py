"""A few rows times a weight matrix on a CPU, at the speed of memory and in one order of addition.

A decoding step multiplies one row (or those of a small batch, or of a draft) with every weight of a model: it should
take as long as reading the weights. Libraries of linear algebra are made for large products. Reading 512 x 32,000
weights on one core of an AMD EPYC takes 2.6 ms as a sum, 2.8 ms here and 6.2 ms by MKL, which goes through several
rows of weights at once and loses what the processor fetches ahead; with four rows 4.5 beside 14.6 ms.

    out[r, n] = bias[n] + sum over k of x[r, k] weight[n, k]          n outside, r inside, k innermost

Every dot product runs the same machine code, so that a row is bit for bit the same whatever rows stand beside it: up to
`MAX_ROWS`, the products of a draft are those of its tokens one by one. What is larger, of another type, or run by
several threads, is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor
from torch.nn.functional import linear

from decodekit.first_use import AnnouncedCache

MAX_ROWS: Final = 8
"""Most rows: with more, arithmetic takes longer than reading the weights."""


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function, compiled on its first call and kept on disk where one can write; sums may be taken in any order.

    The order is then that of the machine code: the same at every call.
    """
    dispatcher: Any
    try:
        dispatcher = numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})(function)
        dispatcher._cache = AnnouncedCache(dispatcher._cache)
    except RuntimeError:  # no folder can be written: each process compiles for itself
        dispatcher = numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})(function)
        dispatcher._cache = AnnouncedCache(None)
    kernel: Callable[..., None] = dispatcher
    return kernel


@intrinsic  # type: ignore[untyped-decorator]
def _floats_at(typing: Any, address: Any) -> Any:
    """Numbers in memory, by their address: an array made of a tensor costs more than a small product."""
    kind = types.CPointer(types.float32)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64), code


@_compiled
def _multiply(x: int, weight: int, bias: int, out: int, num_rows: int, num_outs: int, width: int) -> None:
    """Products of rows [R, K] with weights [N, K], and a bias [N] unless its address is 0, into [R, N]."""
    rows: Any = _floats_at(x)
    weights: Any = _floats_at(weight)
    biases: Any = _floats_at(bias)
    outs: Any = _floats_at(out)
    zero = numba.float32(0.0)
    for n in range(num_outs):
        first = zero if bias == 0 else biases[n]
        for r in range(num_rows):
            total = zero
            for k in range(width):
                total += weights[n * width + k] * rows[r * width + k]
            outs[r * num_outs + n] = total + first


def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` [..., N] of x [..., K], weight [N, K], bias [N]; the operation in a recorded graph.

    On a CPU, of float32 and with one thread, up to `MAX_ROWS` rows are multiplied here; anything else by torch.
    """
    out: Tensor = torch.ops.decodekit.few_rows_linear(x, weight, bias)
    return out


def _on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_outs, width = weight.shape
    size = x.numel()
    is_ours = (
        0 < size <= MAX_ROWS * width
        and torch.get_num_threads() == 1
        and x.dtype is weight.dtype is torch.float32
        and x.is_contiguous()
        and weight.is_contiguous()
        and (bias is None or (bias.dtype is torch.float32 and bias.is_contiguous()))
    )
    if not is_ours:
        return linear(x, weight, bias)
    out = x.new_empty((*x.shape[:-1], num_outs))
    _multiply(
        x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
        size // width, num_outs, width,
    )  # fmt: skip
    return out


_library: Final[Any] = torch.library.Library("decodekit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("few_rows_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("few_rows_linear", _on_cpu, "CPU")
_library.impl("few_rows_linear", linear, "CompositeExplicitAutograd")
