"""Attention of a verify block under grouped-query attention: packed queries beside the usual masked call.

    python -m benchmarks.attention [--context 4096] [--repeats 30]

A verify block is k + 1 new tokens after a long context: too few queries to be causal from the start, so that it needs a
mask. transformers' own path repeats keys and values for the query heads of a group (`repeat_kv`) and hands the mask to
SDPA; SDPA's `enable_gqa` leaves the repeating to the kernel. decodekit packs the query heads of a group as further
queries of their key head, and copies nothing (`models.attention`). All three must give the same numbers. Their calls
alternate; a figure is the median time, a ratio the median of the ratios of neighbouring calls.

With few small heads there is little to copy, and what is left is the arithmetic that all ways share: 8 query heads of
64 numbers, 9 new tokens and 4,096 old ones are 75 million multiplications and additions: 0.8 ms at 90 GFLOP/s. Tried
for these and not faster: the context without a mask and the new tokens by themselves, joined by their log-sum-exp
(1.1 ms where packing takes 0.87), and scores and values by two plain batched products (0.79 ms; slower with larger
heads or fewer tokens).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import product

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import record
from decodekit.models.caches.kv_cache import LayerShape, PlaneShape, RaggedCache
from decodekit.models.runners.attention import ragged_attention

HEADS = ((32, 8, 128), (32, 4, 128), (14, 2, 64), (8, 2, 64))
"""Query heads, key heads and their dimension: as in Llama 3 8B, Qwen 3 30B, Qwen 2.5 0.5B, and a small one."""


def block(
    num_heads: int, num_key_heads: int, head_dim: int, context: int, num_new: int
) -> tuple[Tensor, Tensor, Tensor, Callable[[], Tensor]]:
    """Query [1, Hq, T, D], keys and values [1, Hkv, S, D] of a block behind a context, and our attention over them."""
    generator = torch.Generator().manual_seed(0)
    shape = PlaneShape(num_key_heads, head_dim, torch.float32, torch.device("cpu"))
    cache = RaggedCache({0: LayerShape(shape, shape)}, 1, context + num_new, torch.device("cpu"))
    for count in (context, num_new):
        step = cache.begin([count], None)
        new = torch.randn(2, 1, num_key_heads, count, head_dim, generator=generator)
        key, value = cache.append(0, new[0], new[1], step)
        if count == context:
            cache.commit(step.row_ends, None)
    query = torch.randn(1, num_heads, num_new, head_dim, generator=generator)
    module = torch.nn.Module()

    def ours() -> Tensor:
        out: Tensor = ragged_attention(module, query, key, value, None, decodekit_step=step)[0]
        return out

    return query, key, value, ours


def rivals(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The masked SDPA calls, each giving [1, T, Hq, D]."""
    num_new, end = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    seen = torch.arange(end) <= torch.arange(end - num_new, end)[:, None]  # [T, S]
    mask = torch.zeros(num_new, end).masked_fill_(~seen, -torch.inf)[None, None]

    def repeated() -> Tensor:
        keys, values = (
            plane[:, :, None].expand(-1, -1, group, -1, -1).reshape(1, -1, end, plane.shape[-1])
            for plane in (key, value)
        )
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(1, 2)

    def grouped() -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    return {"repeat_kv": repeated, "enable_gqa": grouped}


def alternating(calls: dict[str, Callable[[], Tensor]], num_repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, turn by turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(num_repeats + 3):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if turn >= 3:
                times[name].append(time.perf_counter() - begin)
    return times


def main() -> None:
    """Measure, print the table, write ``results/attention.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    table = Table(title=f"attention of a verify block after {arguments.context:,} tokens, median ms")
    for heading in ("heads", "new tokens", "packed", "repeat_kv", "enable_gqa", "repeat_kv / packed"):
        table.add_column(heading, justify="right")
    for (num_heads, num_key_heads, head_dim), num_new in product(HEADS, (2, 5, 9)):
        query, key, value, ours = block(num_heads, num_key_heads, head_dim, arguments.context, num_new)
        calls = {"packed": ours, **rivals(query, key, value)}
        expected = calls["repeat_kv"]()
        for name, call in calls.items():
            torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-5, msg=f"{name} gives other numbers")
        times = alternating(calls, arguments.repeats)
        ratio = statistics.median(a / b for a, b in zip(times["repeat_kv"], times["packed"], strict=True))
        medians = {name: round(statistics.median(seconds) * 1e3, 3) for name, seconds in times.items()}
        heads = f"{num_heads}/{num_key_heads} x {head_dim}"
        rows.append({"heads": heads, "num_new": num_new, "median_ms": medians, "ratio": round(ratio, 2)})
        table.add_row(heads, str(num_new), *(f"{ms:.3f}" for ms in medians.values()), f"{ratio:.2f}")
    Console().print(table)
    record.write(
        "attention",
        rows,
        context=arguments.context,
        num_repeats=arguments.repeats,
        num_threads=torch.get_num_threads(),
        dtype="float32",
    )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
