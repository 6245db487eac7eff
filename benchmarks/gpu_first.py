"""The first two minutes on a GPU: what holds of what was designed without one.

    python -m benchmarks.gpu_first [--shape 8b] [--context 1024]

Four questions, each answered by a figure, before anything longer is measured:

- cuDNN: what attention costs when its shape changes at every step, by backend. A backend with plans per shape shows.
- kernels: how many a decoding step starts, run as it is and captured, and how many copies go up and down.
- graph: what a step costs over the modules as they are, captured, and captured with compiled layers.
- sampler: one draw beside transformers' processors.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import record
from benchmarks.gpu_models import (
    SHAPES,
    build,
    copy_bandwidth,
    gate,
    prompts,
    seconds_of,
    synchronise,
    table,
    weight_bytes,
)
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.tiers.captured import CudaCapture
from decodekit.models.tiers.ragged import RaggedModel

Row = dict[str, Any]


def attention_of_changing_shapes(device: torch.device, shape: str) -> list[Row]:
    """Milliseconds of 64 calls of one query over 1,000, 1,001, ... keys, by backend."""
    sizes = SHAPES[shape]
    query = torch.randn(1, sizes.heads, 1, sizes.head_dim, device=device, dtype=torch.bfloat16)
    keys = torch.randn(1, sizes.heads, 1100, sizes.head_dim, device=device, dtype=torch.bfloat16)
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    backends += [SDPBackend.CUDNN_ATTENTION] if device.type == "cuda" else []
    rows: list[Row] = []
    for backend in (None, *backends):
        chosen = [backend] if backend is not None else list(SDPBackend.__members__.values())[1:]

        def calls(chosen: list[Any] = chosen) -> None:
            with sdpa_kernel(chosen):
                for length in range(1000, 1064):
                    key = keys[:, :, :length]
                    scaled_dot_product_attention(query, key, key)

        try:
            first = seconds_of(calls, device, repeats=1, warmups=0)
            rows.append({"what": f"attention, {backend.name if backend else 'any'}", "first_ms": 1e3 * first,
                         "ms": 1e3 * seconds_of(calls, device, repeats=5)})  # fmt: skip
        except RuntimeError as error:
            rows.append({"what": f"attention, {backend}", "error": str(error).splitlines()[0][:80]})
    return rows


def kernels(lm: Any, device: torch.device, num_rows: int, context: int) -> Row:
    """Kernels and copies of one decoding step, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    cache = lm.new_cache(num_rows, context + 16)
    ids = torch.tensor(prompts(num_rows, 16, lm.vocab_size))
    lm.forward(ids, [16] * num_rows, cache)
    for _ in range(10):  # past the capture and its proofs
        lm.forward(ids[:, :1], [1] * num_rows, cache)
    synchronise(device)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities) as seen:
        lm.forward(ids[:, :1], [1] * num_rows, cache)
        synchronise(device)
    names = [event.name for event in seen.events() if event.device_type != torch._C._autograd.DeviceType.CPU]
    copies = {kind: sum(kind in name for name in names) for kind in ("HtoD", "DtoH")}
    launches = sum(event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")) for event in seen.events())
    return {"what": "kernels of a step", "rows": num_rows, "kernels": len(names), "launches": launches, **copies}


def step_ms(runner: RaggedModel, device: torch.device, num_rows: int, context: int) -> float:
    """Milliseconds of a decoding step behind a context, by events."""
    cache: Any = runner.new_cache(num_rows, context + 256)
    ids = torch.tensor(prompts(num_rows, context, runner.vocab_size))
    for begin in range(0, context, 512):
        chunk = ids[:, begin : begin + 512]
        runner.forward(chunk, [chunk.shape[1]] * num_rows, cache, None, "last")
    one = ids[:, :1].to(torch.int32)
    return 1e3 * seconds_of(lambda: runner.forward(one, [1] * num_rows, cache, None, "last"), device, 60, 16)


def main(argv: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    bandwidth = copy_bandwidth(device)
    rows: list[Row] = [{"what": "copy, TB/s", "TB/s": bandwidth / 1e12}]
    rows += attention_of_changing_shapes(device, args.shape)
    model = build(args.shape, device, dtype)
    lm = HuggingFaceLM(model, tier="paged")
    rows.append({"what": f"gate ({lm.tier})", "error": gate(lm, model)})
    rows += [kernels(lm, device, count, args.context) for count in args.rows]
    floor = 1e3 * weight_bytes(model) / bandwidth
    capture = CudaCapture(device) if device.type == "cuda" else None
    variants = {
        "rectangle": RaggedModel(model),
        "pages": RaggedModel(model, use_pages=True),
        "pages, captured": RaggedModel(model, use_pages=True, capture=capture),
    }
    if device.type == "cuda":
        variants["pages, captured, compiled"] = RaggedModel(
            model, use_pages=True, capture=CudaCapture(device), compiler="inductor"
        )
    for name, runner in variants.items():
        for count in args.rows:
            took = step_ms(runner, device, count, args.context)
            rows.append({"what": f"step, {name}", "rows": count, "ms": took, "share_of_weights_floor": floor / took})
    rows.append({"what": "copy, TB/s (again)", "TB/s": copy_bandwidth(device) / 1e12})
    table(f"{args.shape} on {device}", rows)
    deprioritised = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "")
    if device.type != "cuda":
        return
    record.write("gpu_first", rows, shape=args.shape, context=args.context, cudnn_deprioritised=deprioritised)


if __name__ == "__main__":
    main()
