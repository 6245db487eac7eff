"""Linear layers of a model that multiply a few rows at the speed of memory; see `products.few_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from decodekit.products.cpu_products import KINDS, PRODUCT_ROWS, WIDENED
from decodekit.products.few_rows import few_rows_linear, measure


class FewRowsLinear(nn.Linear):
    """`nn.Linear` with the product of `few_rows_linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., out_features] of [..., in_features]."""
        return few_rows_linear(input, self.weight, self.bias)


class Int8Linear(nn.Linear):
    """`nn.Linear` with weights as torchao holds them in int8: a number for each, and a scale for each output."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., out_features] of [..., in_features]; of many rows by torchao, if the processor has products for it."""
        if input.numel() > PRODUCT_ROWS[torch.int8] * self.in_features and input.dtype not in WIDENED:
            return super().forward(input)
        weight: Any = self.weight
        out: Tensor = few_rows_linear(input.contiguous(), weight.qdata) * weight.scale.view(-1)
        return (out if self.bias is None else out + self.bias).to(input.dtype)


def _is_int8(weight: Any) -> bool:
    """Whether a weight is torchao's `Int8Tensor` with a scale for each output, zero at zero, and x as it is."""
    if type(weight).__name__ != "Int8Tensor" or getattr(weight, "act_quant_kwargs", None) is not None:
        return False
    num_outs, width = weight.shape
    is_by_outputs = weight.block_size == [1, width] and weight.scale.shape == (num_outs, 1)
    has_offsets = weight.zero_point is not None and bool(weight.zero_point.any())
    has_more = getattr(weight, "act_pre_scale", None) is not None
    return is_by_outputs and weight.qdata.is_contiguous() and not has_offsets and not has_more


def with_few_rows(model: nn.Module) -> nn.Module:
    """The model, a copy, of which linear layers with float or int8 weights on a CPU have become those of this room."""
    for module in model.modules():
        if type(module) is nn.Linear and "forward" not in vars(module):
            weight = module.weight
            if weight.device.type != "cpu":
                continue
            if type(weight) is nn.Parameter and weight.dtype in KINDS:
                module.__class__ = FewRowsLinear
            elif _is_int8(weight):
                module.__class__ = Int8Linear
    return model


def quicker_here(layers: Iterable[Any], seconds_of: Callable[[Callable[[], object]], float] | None = None) -> list[Any]:
    """Those of some layers on CUDA whose products are quicker by `few_rows_linear`, for some number of rows.

    `seconds_of` measures a function; by default a captured graph of it is.
    """
    alike: dict[Any, list[Any]] = {}
    for layer in layers:
        weight = layer.weight
        if weight.device.type == "cuda" and type(weight) is nn.Parameter and weight.is_contiguous():
            alike.setdefault((weight.device, weight.dtype, weight.shape), []).append(layer)
    clock = seconds_of or _seconds_of_graph
    return [one for some in alike.values() if measure([one.weight for one in some], clock) for one in some]


def _seconds_of_graph(run: Callable[[], object]) -> float:
    """Seconds of what a function starts on the current device, replayed as a graph; the least of five trials."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        run()  # programs are compiled, libraries choose theirs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            run()
        found = list[float]()
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
    torch.cuda.current_stream().wait_stream(stream)
    return min(found)
