"""The first minutes on a GPU: what holds of what was designed without one.

    python -m benchmarks.gpu_gate                            before anything else: are the kernels right?
    python -m benchmarks.gpu_first [--shape 8b] [--context 1024] [--parts gate kernels steps ...]

Each part is answered by figures that are printed as they come, and may fail without the others:

- gate: logits of decoding steps beside transformers' modules, and why a step was not captured;
- text: greedy and sampled texts of a small float32 model, beside the CPU's: they are equal;
- kernels: how many a decoding step starts, run as it is and captured, and how many copies go up and down;
- steps: what a step costs over the modules as they are, captured, and captured with compiled layers;
- cudnn: what attention costs when its shape changes at every step, by backend. A backend with plans per shape shows.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import record
from benchmarks.gpu_models import (
    SHAPES,
    Row,
    Rows,
    build,
    copy_bandwidth,
    environment,
    gate,
    guarded,
    prompts,
    seconds_of,
    synchronise,
    tokenizer,
    weight_bytes,
)
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.tiers.captured import CudaCapture
from decodekit.models.tiers.ragged import RaggedModel

PARTS = ("gate", "text", "kernels", "steps", "cudnn")


def attention_of_changing_shapes(rows: Rows, device: torch.device, shape: str) -> None:
    """Milliseconds of 64 calls of one query over 1,000, 1,001, ... keys, by backend."""
    sizes = SHAPES[shape]
    query = torch.randn(1, sizes.heads, 1, sizes.head_dim, device=device, dtype=torch.bfloat16)
    keys = torch.randn(1, sizes.heads, 1100, sizes.head_dim, device=device, dtype=torch.bfloat16)
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    backends += [SDPBackend.CUDNN_ATTENTION] if device.type == "cuda" else []
    for backend in (None, *backends):
        # None: whatever torch chooses by itself.
        chosen = sdpa_kernel(backend) if backend is not None else nullcontext()

        def calls() -> None:
            for length in range(1000, 1064):
                key = keys[:, :, :length]
                scaled_dot_product_attention(query, key, key)

        name = f"attention, {backend.name if backend is not None else 'any'}"
        with guarded(rows, name, device), chosen:
            first = seconds_of(calls, device, repeats=1, warmups=0)
            rows.append({"what": name, "first_ms": 1e3 * first, "ms": 1e3 * seconds_of(calls, device, repeats=5)})


def texts(device: torch.device) -> Row:
    """Texts of a small float32 model on the device and on the CPU: how many of 16 differ."""
    from decodekit import LLM

    found: dict[str, list[Any]] = {}
    for where in (torch.device("cpu"), device):
        model = build("tiny", torch.device("cpu"), torch.float32).to(where)
        lm = HuggingFaceLM(model, tier="paged" if where.type == "cuda" else None)
        llm = LLM(lm, tokenizer(None, "tiny"))
        given = prompts(8, 20, lm.vocab_size)
        done = [*llm.generate(given, max_new_tokens=40, batch_size=8)]
        options: dict[str, Any] = {"strategy": "sample", "temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 3}
        done += [*llm.generate(given, max_new_tokens=40, batch_size=8, **options)]
        found[where.type] = [one.token_ids for one in done]
    problems = [] if lm.paged is None else lm.paged.not_captured
    differ = [
        row for row, (one, other) in enumerate(zip(found["cpu"], found[device.type], strict=True)) if one != other
    ]
    return {"what": f"texts of float32, {lm.tier}", "differ": differ, "not_captured": problems}


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
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--into", type=Path, help="folder of the record")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows = Rows()
    rows.append(environment(device))
    bandwidth = copy_bandwidth(device)
    rows.append({"what": "copy, TB/s", "TB/s": bandwidth / 1e12})
    try:
        if "text" in args.parts:
            with guarded(rows, "texts", device):
                rows.append(texts(device))
        if {"gate", "kernels", "steps"} & {*args.parts}:
            with guarded(rows, "model", device):
                _of_model(rows, args, device, dtype, bandwidth)
        if "cudnn" in args.parts:
            attention_of_changing_shapes(rows, device, args.shape)
        rows.append({"what": "copy, TB/s (again)", "TB/s": copy_bandwidth(device) / 1e12})
    finally:
        if device.type == "cuda":
            deprioritised = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "")
            about: dict[str, Any] = {"shape": args.shape, "context": args.context}
            record.write_into(args.into, "gpu_first", rows, **about, cudnn_deprioritised=deprioritised)


def _of_model(rows: Rows, args: argparse.Namespace, device: torch.device, dtype: torch.dtype, bandwidth: float) -> None:
    """The parts that want the model."""
    model = build(args.shape, device, dtype)
    if "gate" in args.parts or "kernels" in args.parts:
        with guarded(rows, "gate", device):
            lm = HuggingFaceLM(model, tier="paged")
            error = gate(lm, model)
            assert lm.paged is not None
            replays = {"replays": lm.paged.num_replays, "not_captured": lm.paged.not_captured}
            rows.append({"what": f"gate ({lm.tier})", "error": error, **replays})
            for count in args.rows if "kernels" in args.parts else ():
                with guarded(rows, f"kernels of {count} rows", device):
                    rows.append(kernels(lm, device, count, args.context))
    if "steps" not in args.parts:
        return
    floor = 1e3 * weight_bytes(model) / bandwidth
    on_cuda = device.type == "cuda"
    variants: dict[str, dict[str, Any]] = {"pages": {}, "pages, captured": {"captures": True}}
    if on_cuda:
        variants["pages, captured, compiled"] = {"captures": True, "compiler": "inductor"}
    variants["rectangle"] = {"use_pages": False}
    for name, options in variants.items():
        with guarded(rows, f"step, {name}", device):
            capture = CudaCapture(device) if options.pop("captures", False) and on_cuda else None
            runner = RaggedModel(model, **({"use_pages": True, "capture": capture} | options))
            for count in args.rows:
                with guarded(rows, f"step, {name}, of {count} rows", device):
                    took = step_ms(runner, device, count, args.context)
                    row = {"what": f"step, {name}", "rows": count, "ms": took, "share_of_weights_floor": floor / took}
                    paged = runner.paged
                    if paged is not None:
                        row |= {"replays": paged.num_replays, "not_captured": paged.not_captured}
                    rows.append(row)


if __name__ == "__main__":
    main()
