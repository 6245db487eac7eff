"""The loop on a GPU beside transformers' `generate`, part by part, each in less than nine minutes.

    python -m benchmarks.gpu decode --shape 8b --rows 1 8 64 256
    python -m benchmarks.gpu rivals --shape 8b              # generate with both caches, and a bare loop
    python -m benchmarks.gpu constrained --shape 1b --rows 1 64
    python -m benchmarks.gpu sampler                        # beside transformers' processors
    python -m benchmarks.gpu verify --shape 8b              # what a step of 4 and of 8 tokens costs
    python -m benchmarks.gpu first --shape 8b               # time to first token, prompts of 2k and 8k
    python -m benchmarks.gpu job --shape 1b                 # prompts that share instructions, beside static batches

A part begins with a numeric check against transformers' modules, and ends with the copy bandwidth measured again; each
row is a JSON object in `results/gpu-<part>-<shape>.json`. A share is of the floor: weights and keys and values read
once at the measured copy bandwidth.

`--device cpu --shape tiny` runs the same code anywhere, and writes nothing.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

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
    wall_seconds,
    weight_bytes,
)
from decodekit import LLM, JsonSchema
from decodekit.generation.memory import bytes_per_token
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.tiers.captured import CudaCapture
from decodekit.models.tiers.ragged import RaggedModel

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "mail": {"type": "string", "format": "email"},
        "tree": {"$ref": "#/$defs/node"},
    },
    "required": ["id", "at", "mail", "tree"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "weight": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 4},
            },
            "required": ["name", "weight", "children"],
        }
    },
}
"""Recursion and formats."""

CONTEXT: Final = 1024


class Part:
    """One run: its device and model, and the rows that it writes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.context = 32 if args.shape == "tiny" else CONTEXT
        self.bandwidth = copy_bandwidth(self.device)
        self.rows = Rows()
        self.rows.append(environment(self.device))
        self.rows.append({"what": "copy, TB/s", "value": self.bandwidth / 1e12})
        self.model: Any = None

    def load(self) -> HuggingFaceLM:
        """The model over pages, checked."""
        self.model = build(self.args.shape, self.device, self.dtype)
        lm = HuggingFaceLM(self.model, tier="paged" if self.device.type == "cuda" else None)
        self.rows.append({"what": f"gate: {lm.tier}", "value": gate(lm, self.model), **self.replays_of(lm)})
        return lm

    def llm(self) -> LLM:
        """The same with Tekken."""
        return LLM(self.load(), tokenizer(self.args.tokenizer, self.args.shape))

    @staticmethod
    def replays_of(lm: HuggingFaceLM) -> Row:
        """How many passes were replayed, and why others were not."""
        paged = lm.paged
        return {} if paged is None else {"replays": paged.num_replays, "not_captured": list(paged.not_captured)}

    def guarded(self, what: str) -> AbstractContextManager[None]:
        """A measurement that may fail without the others; see `gpu_models.guarded`."""
        return guarded(self.rows, what, self.device)

    def floor_ms(self, lm: HuggingFaceLM, num_rows: int, context: int) -> float:
        """Least time of a decoding step: weights and cache read once."""
        return 1e3 * (weight_bytes(self.model) + num_rows * context * bytes_per_token(lm)) / self.bandwidth

    def run(self) -> None:
        """Measure; what was found is written, whatever fails."""
        try:
            with self.guarded(self.args.part):
                PARTS[self.args.part](self)
            self.rows.append({"what": "copy, TB/s (again)", "value": copy_bandwidth(self.device) / 1e12})
        finally:
            if self.device.type == "cuda":
                name = f"gpu-{self.args.part}-{self.args.shape}"
                about = torch.cuda.get_device_properties(self.device)
                memory: dict[str, Any] = {"device": about.name, "memory": about.total_memory}
                record.write_into(self.args.into, name, self.rows, context=self.context, **memory)


def tokens_per_second(generate: Callable[[int], object], device: torch.device, num_rows: int, length: int) -> float:
    """Tokens per second of decoding, the prompt left out: from texts of `length` and of a quarter of it."""
    repeats = 3 if num_rows <= 8 else 1  # of hundreds of rows the prompts alone take ten seconds
    short = wall_seconds(lambda: generate(length // 4), device, repeats)
    long = wall_seconds(lambda: generate(length), device, repeats)
    return num_rows * (length - length // 4) / max(1e-9, long - short)


def decode(part: Part) -> None:
    """Tokens per second of our loop, greedy and sampled, with layers as they are and compiled."""
    llm = part.llm()
    lm: Any = llm.model
    runners: dict[str, Any] = {"captured": lm._runner}
    if part.device.type == "cuda":
        runners["captured, compiled"] = RaggedModel(
            part.model, use_pages=True, capture=CudaCapture(part.device), compiler="inductor"
        )
    strategies: dict[str, dict[str, Any]] = {
        "greedy": {},
        "sampled": {"strategy": "sample", "temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.05},
    }
    length = 16 if part.args.shape == "tiny" else 128
    for name, runner in runners.items():
        lm._runner = runner
        for count in part.args.rows:
            given = prompts(count, part.context, lm.vocab_size)
            floor = part.floor_ms(lm, count, part.context + length // 2)
            for spelled, options in strategies.items():

                def generate(num: int, given: Any = given, count: int = count, options: Any = options) -> object:
                    return llm.generate(given, max_new_tokens=num, batch_size=count, **options)

                what = f"{name}, {spelled}"
                with part.guarded(f"{what}, {count} rows"):
                    rate = tokens_per_second(generate, part.device, count, length)
                    row = {"what": what, "rows": count, "tokens/s": rate, "ms per step": 1e3 * count / rate}
                    part.rows.append({**row, "share of floor": floor * rate / count / 1e3, **part.replays_of(lm)})


def rivals(part: Part) -> None:
    """transformers' `generate` with a dynamic cache, with a static one and compiled, and a bare compiled loop."""
    lm = part.load()
    model, device = part.model, part.device
    length = 16 if part.args.shape == "tiny" else 128

    def of_transformers(ids: Tensor, **options: Any) -> Callable[[int], object]:
        def generate(num: int) -> object:
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num,
                min_new_tokens=num,
                do_sample=False,
                **options,
            )

        return generate

    for count in part.args.rows:
        ids = torch.tensor(prompts(count, part.context, lm.vocab_size), device=device)
        rates: dict[str, Callable[[], float]] = {}
        rates["generate, dynamic cache"] = partial(tokens_per_second, of_transformers(ids), device, count, length)
        if device.type == "cuda":
            static = of_transformers(ids, cache_implementation="static")
            rates["bare loop, static cache, compiled"] = partial(_bare_loop, model, ids, length)
            rates["generate, static cache, compiled"] = partial(tokens_per_second, static, device, count, length)
        for what, rate in rates.items():
            with part.guarded(f"{what}, {count} rows"):
                part.rows.append({"what": what, "rows": count, "tokens/s": rate()})


def _bare_loop(model: Any, ids: Tensor, length: int) -> float:
    """Tokens per second of the least loop: one compiled, captured forward pass and an argmax."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + 2 * length)
    with torch.inference_mode():
        model(input_ids=ids, past_key_values=cache, use_cache=True)

    def one(token: Tensor, position: Tensor) -> Tensor:
        logits = model(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True).logits
        return logits[:, -1:].argmax(dim=-1)  # type: ignore[no-any-return]

    compiled = torch.compile(one, mode="reduce-overhead", fullgraph=True)
    token, start = ids[:, -1:].clone(), ids.shape[1]
    positions = [torch.full_like(token, start + step) for step in range(length + 8)]

    def run() -> None:
        current = token
        for position in positions[:length]:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            current = compiled(current.clone(), position)

    with torch.inference_mode():
        return ids.shape[0] * length / wall_seconds(run, ids.device, repeats=2)


def constrained(part: Part) -> None:
    """JSON Schema with recursion and formats beside free text, milliseconds per token and row."""
    llm = part.llm()
    length = 24 if part.args.shape == "tiny" else 160
    constraint = JsonSchema(SCHEMA)
    options: dict[str, Any] = {"strategy": "sample", "temperature": 0.8, "top_k": 50, "seed": 1}
    for count in part.args.rows:
        with part.guarded(f"constrained, {count} rows"):
            given = prompts(count, part.context, llm.model.vocab_size)
            for name, extra in (("free", {}), ("constrained", {"constraint": constraint})):

                def generate(extra: Any = extra, given: Any = given, count: int = count) -> list[Any]:
                    done: Any = llm.generate(given, max_new_tokens=length, batch_size=count, **options, **extra)
                    return [*done]

                first = time.perf_counter()
                done = generate()
                synchronise(part.device)
                first = time.perf_counter() - first
                took = wall_seconds(generate, part.device)
                num_tokens = sum(len(one.token_ids) for one in done)
                num_forwards = max(one.stats.num_forwards for one in done)
                counts = {
                    kind: sum(getattr(one.stats, f"num_{kind}") for one in done) for kind in ("masks", "questions")
                }
                row = {
                    "what": name,
                    "rows": count,
                    "ms per pass": 1e3 * took / num_forwards,
                    "tokens/s": num_tokens / took,
                }
                part.rows.append({**row, "cold_s": first, **counts})


def sampler(part: Part) -> None:
    """One draw of 152k logits with four processors, beside transformers'."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    from decodekit.kernels.draw_settings import packed
    from decodekit.kernels.sampler import sample_rows

    warpers = LogitsProcessorList(
        [TemperatureLogitsWarper(0.8), TopKLogitsWarper(50), TopPLogitsWarper(0.95), MinPLogitsWarper(0.05)]
    )
    width = 4096 if part.args.shape == "tiny" else 152_064
    for count in (1, 8, 64, 256):
        with part.guarded(f"draw, {count} rows"):
            logits = 3 * torch.randn(count, width, device=part.device)
            ids = torch.zeros(count, 1, dtype=torch.int64, device=part.device)

            def theirs(ids: Tensor = ids, logits: Tensor = logits) -> object:
                return torch.multinomial(warpers(ids, logits).softmax(dim=-1), 1)

            settings, own = [(0.8, 50, 0.95, 0.05, False)] * count, range(count)
            drawn_by = packed(settings, own, own, own, is_asked=False)
            values = torch.from_numpy(drawn_by).to(part.device)

            def ours(logits: Tensor = logits, values: Tensor = values) -> object:
                return sample_rows(logits, values, None, 1, True, True)

            mine, other = (seconds_of(run, part.device) for run in (ours, theirs))
            part.rows.append(
                {"what": "draw", "rows": count, "us": 1e6 * mine, "theirs_us": 1e6 * other, "ratio": other / mine}
            )


def verify(part: Part) -> None:
    """What a step of T tokens of a row costs, in steps of one."""
    lm = part.load()
    for count in part.args.rows:
        with part.guarded(f"verify, {count} rows"):
            cache = lm.new_cache(count, part.context + 64)
            ids = torch.tensor(prompts(count, part.context, lm.vocab_size))
            for begin in range(0, part.context, 512):
                chunk = ids[:, begin : begin + 512]
                lm.forward(chunk, [chunk.shape[1]] * count, cache)
            base = 0.0
            for width in (1, 4, 8, 16):
                new = ids[:, :width].contiguous()

                def step(width: int = width, new: Tensor = new, count: int = count, cache: Any = cache) -> None:
                    lm.forward(new, [width] * count, cache, logits=[width] * count)
                    cache.truncate([part.context] * count)

                took = seconds_of(step, part.device, 30, 16)
                base = base or took
                part.rows.append(
                    {"what": f"step of {width}", "rows": count, "ms": 1e3 * took, "in steps of one": took / base}
                )


def first(part: Part) -> None:
    """Time to the first token of a prompt, cold in its pages."""
    llm = part.llm()
    for length in (64, 128) if part.args.shape == "tiny" else (2048, 8192):
        given = prompts(1, length, llm.model.vocab_size)
        count = iter(range(10_000))

        def one(given: Any = given, count: Any = count) -> object:
            prompt = [100 + next(count), *given[0][1:]]  # no other prompt begins like it
            return llm.generate([prompt], max_new_tokens=1)

        part.rows.append({"what": f"first token of {length}", "ms": 1e3 * wall_seconds(one, part.device, repeats=7)})


def job(part: Part) -> None:
    """Prompts that share instructions, with texts of 8 to 512 tokens, beside static batches of our own."""
    llm = part.llm()
    draw = random.Random(0)
    number, shared, longest = (12, 16, 32) if part.args.shape == "tiny" else (1000, 600, 512)
    common = prompts(1, shared, llm.model.vocab_size)[0]
    tails = prompts(number, 40, llm.model.vocab_size)
    given = [[*common, *tail] for tail in tails]
    lengths = [draw.randint(8, longest) for _ in given]
    size = 8 if part.args.shape == "tiny" else 128
    start = time.perf_counter()
    for begin in range(0, number, size):
        batch = slice(begin, begin + size)
        llm.generate(given[batch], max_new_tokens=max(lengths[batch]), batch_size=size)
    static = time.perf_counter() - start
    with llm.engine() as engine:
        start = time.perf_counter()
        handles = [engine.submit(prompt, max_new_tokens=num) for prompt, num in zip(given, lengths, strict=True)]
        for handle in handles:
            handle.result()
        took = time.perf_counter() - start
    part.rows.append({"what": "job", "prompts": number, "s": took, "static_s": static, "ratio": static / took})


PARTS: Final[dict[str, Callable[[Part], None]]] = {
    one.__name__: one for one in (decode, rivals, constrained, sampler, verify, first, job)
}


def main(argv: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--tokenizer", type=Path, help="folder of Tekken; without it, it is made")
    parser.add_argument("--into", type=Path, help="folder of the record")
    Part(parser.parse_args(argv)).run()


if __name__ == "__main__":
    main()
