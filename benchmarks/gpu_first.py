"""What holds of a model's steps on a GPU of what was designed without one: texts, kernels, attention of torch.

- texts: greedy and sampled texts of a small float32 model, beside the CPU's: they are equal but for near ties;
- kernels: how many a decoding step starts, and how many copies go up and down;
- attention: what torch's own costs when its shape changes at every step, by backend. A backend with plans per shape
  shows.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_models import SHAPES, Row, Rows, build, guarded, prompts, seconds_of, synchronise, tokenizer
from decodekit.models.huggingface import HuggingFaceLM


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
    what = f"texts of float32, {lm.tier}"
    return {"what": what, "is_right": not differ, "differ": differ, "not_captured": problems}


def kernels(lm: Any, device: torch.device, num_rows: int, context: int) -> Row:
    """Kernels and copies of one decoding step, by the profiler; those that take longest by name."""
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
    on_device = [event for event in seen.events() if event.device_type != torch._C._autograd.DeviceType.CPU]
    names = [event.name for event in on_device]
    took: dict[str, list[float]] = {}
    for event in on_device:
        number, microseconds = took.get(event.name, (0, 0.0))
        took[event.name] = [number + 1, round(microseconds + event.time_range.elapsed_us(), 1)]
    longest = {name[:100]: took[name] for name in sorted(took, key=lambda one: -took[one][1])[:16]}
    copies = {kind: sum(kind in name for name in names) for kind in ("HtoD", "DtoH")}
    launches = sum(event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")) for event in seen.events())
    return {
        "what": "kernels of a step",
        "rows": num_rows,
        "kernels": len(names),
        "launches": launches,
        **copies,
        "longest": longest,
    }
