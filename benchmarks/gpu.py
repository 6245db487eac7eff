"""The loop on a GPU beside transformers' `generate`: five commands, each in less than nine minutes.

    python3 -m benchmarks.gpu gate                                  # kernels, texts, captured steps; then the tests
    python3 -m benchmarks.gpu decode --shape 8b --rows 1 8 64 256   # tokens per second; steps of several tokens
    python3 -m benchmarks.gpu rivals --shape 8b                     # generate with both caches, and a bare loop
    python3 -m benchmarks.gpu constrained --shape 1b --rows 1 64    # beside free text; the sampler beside transformers'
    python3 -m benchmarks.gpu serve --shape 1b                      # an engine beside static batches; first tokens

A command begins with a numeric check against transformers' modules, and ends with the copy bandwidth measured again;
each row is a JSON object in `results/gpu-<command>-<shape>.json`. A figure is refused, and the exit code is 1, where
the check fails, a text had to leave its row for want of memory, or the difference of two times is lost in their spread.
A share is of the least time: weights, keys and values read once at the measured copy bandwidth. `predicted_ms` is what
`decodekit.costs` says of the same step.

`--device cpu --shape tiny` runs the same code anywhere, and writes nothing. Modules: `gpu_gate` has the shapes of the
kernels, `gpu_first` what is asked of a model's steps, `gpu_models` models and clocks, `gpu_script` a model that prefers
valid texts.
"""

from __future__ import annotations

import argparse
import gc
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks import gpu_first, gpu_gate, record
from benchmarks.gpu_models import (
    BOUNDS,
    SHAPES,
    RefusedError,
    Row,
    Rows,
    build,
    copy_bandwidth,
    environment,
    gate,
    guarded,
    prompts,
    replayed,
    seconds_of,
    synchronise,
    tokenizer,
    wall_seconds,
    weight_bytes,
)
from benchmarks.gpu_script import REFUSED_EVERY, SCHEMA, scripted_model
from decodekit import LLM, JsonSchema
from decodekit.costs import estimate
from decodekit.costs.step_time import device_speed
from decodekit.decoding.loop.batch import Batch
from decodekit.decoding.prefixes.row_memory import bytes_per_token
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.products.few_rows import MEASURED

CONTEXT: Final = 1024
MOST_SHARE: Final = 1.05
"""Of the least time: a step that takes less was not measured alone."""


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

    def load(self, compile_layers: bool = False, make: Callable[..., Any] = build) -> HuggingFaceLM:
        """A model over pages, checked; what was loaded before is given up, with its pages and graphs.

        Raises:
            RefusedError: its logits are not those of its modules: no figure of it is of worth.
        """
        self.model = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.model = make(self.args.shape, self.device, self.dtype)
        on_cuda = self.device.type == "cuda"
        lm = HuggingFaceLM(self.model, tier="paged" if on_cuda else None, compile_layers=compile_layers and on_cuda)
        if compile_layers and lm.paged is not None:
            start = time.perf_counter()
            is_compiled, paged = lm.paged.compile_layers(), lm.paged
            row: Row = {"what": "layers compiled", "is_right": is_compiled, "s": time.perf_counter() - start}
            row |= {"not_compiled": paged.not_compiled, "not_merged": paged.not_merged}
            self.rows.append(row | {"products": products()})
        error, bound = gate(lm, self.model), BOUNDS[self.dtype]
        self.rows.append({"what": f"gate: {lm.tier}", "value": error, "bound": bound, **self.replays_of(lm)})
        if not error <= bound:
            raise RefusedError(f"logits differ by {error:.1e} from those of the modules, more than {bound:.0e}")
        return lm

    def llm(self, compile_layers: bool = False, make: Callable[..., Any] = build) -> LLM:
        """The same with Tekken."""
        words = tokenizer(self.args.tokenizer, self.args.shape)  # before a model is built in vain
        return LLM(self.load(compile_layers, make), words)

    def predicted_ms(self, count: int, context: int, compile_layers: bool, drafts: int = 0) -> Row:
        """What is predicted of a step, for a GPU whose constants are known."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        if device_speed(name) is None:
            return {}
        config = self.model.config
        found = estimate(
            config, count, context, dtype=self.dtype, device=name, drafts=drafts, compile_layers=compile_layers
        )
        return {"predicted_ms": 1e3 * (found.seconds_per_step or 0.0)}

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

    def run(self) -> bool:
        """Measure; what was found is written, whatever fails. Whether nothing failed or was refused."""
        command = self.args.command
        try:
            for part in COMMANDS.get(command, (command,)):
                with self.guarded(part):
                    PARTS[part](self)
            self.rows.append({"what": "copy, TB/s (again)", "value": copy_bandwidth(self.device) / 1e12})
        finally:
            if self.device.type == "cuda":
                about = torch.cuda.get_device_properties(self.device)
                memory: dict[str, Any] = {"device": about.name, "memory": about.total_memory}
                name = f"gpu-{command}-{self.args.shape}"
                record.write_into(self.args.into, name, self.rows, context=self.context, **memory)
        wrong = [row["what"] for row in self.rows if "error_type" in row or row.get("is_right") is False]
        print(f"{len(self.rows) - len(wrong)} rows, {len(wrong)} failed or refused: {'; '.join(wrong)}")
        return not wrong


def products() -> list[Row]:
    """Products of few rows as they were measured before layers were compiled: TB/s of weights, here and by torch."""
    found = []
    for shape, seconds in MEASURED.items():
        size = shape.num_outs * shape.width * shape.dtype.itemsize
        ours, theirs = (round(size / one / 1e12, 2) for one in seconds)
        found.append({"rows": shape.num_rows, "weights": [shape.num_outs, shape.width], "ours": ours, "torch": theirs})
    return found


@contextmanager
def without_preemption() -> Iterator[None]:
    """A measurement whose rows all stay in the batch.

    Raises:
        RefusedError: some had to leave it for want of memory, and were read again.
    """
    plain, seen = Batch.preempt, 0

    def counted(*args: Any, **options: Any) -> None:
        nonlocal seen
        seen += 1
        plain(*args, **options)

    Batch.preempt = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Batch.preempt = plain  # type: ignore[method-assign]
    if seen:
        raise RefusedError(f"{seen} texts left their rows for want of memory: fewer rows, or a shorter context")


def tokens_per_second(generate: Callable[[int], object], device: torch.device, num_rows: int, length: int) -> float:
    """Tokens per second of decoding, the prompt left out: from texts of `length` and of a quarter of it.

    Raises:
        RefusedError: the longer texts took no longer: prompts and chance are all that was measured.
    """
    repeats = 3 if num_rows <= 8 else 1  # of hundreds of rows the prompts alone take ten seconds
    with without_preemption():
        short = wall_seconds(lambda: generate(length // 4), device, repeats)
        long = wall_seconds(lambda: generate(length), device, repeats)
    if not long > short and device.type == "cuda":
        raise RefusedError(f"{length} tokens took {long:.3f} s, a quarter of them {short:.3f} s")
    return num_rows * (length - length // 4) / max(1e-9, long - short)


def share_of(rate: float, floor_ms: float, most: float | None) -> float:
    """Share of the least time of a step, at so many steps a second.

    Raises:
        RefusedError: it is more than `most`: something else took time in the texts that were subtracted.
    """
    share = floor_ms * rate / 1e3
    if most is not None and share > most:
        raise RefusedError(f"{rate:.0f} steps a second are {share:.2f} of what memory allows")
    return share


def kernels(part: Part) -> None:
    """Every kernel beside its twin; texts of float32 beside a CPU's; what a step of the model starts."""
    for cases in gpu_gate.PARTS.values() if part.device.type == "cuda" else ():
        cases(part.rows, part.device)
    with part.guarded("texts"):
        part.rows.append(gpu_first.texts(part.device))
    for compiles in (False, True) if part.device.type == "cuda" else (False,):
        with part.guarded(f"kernels of a step, compile_layers={compiles}"):
            lm = part.load(compiles)
            for count in part.args.rows:
                found = gpu_first.kernels(lm, part.device, count, part.context)
                part.rows.append({**found, "compile_layers": compiles})
    if part.device.type == "cuda":
        gpu_first.attention_of_changing_shapes(part.rows, part.device, part.args.shape)


def tests(part: Part) -> None:
    """The tests that want a GPU, in processes beside this one."""
    part.model = None
    gc.collect()
    mark = "gpu" if part.device.type == "cuda" else "not gpu and not slow"
    files = ["tests/gpu/test_on_gpu.py" if part.device.type == "cuda" else "tests/gpu/test_pages.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", mark, *(["-n", "8"] if mark == "gpu" else []), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-8000:], done.stderr[-2000:])
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-200:]]
    part.rows.append({"what": "tests", "is_right": done.returncode == 0, "said": last[0]})


def decode(part: Part) -> None:
    """Tokens per second of our loop, greedy and sampled, with layers as they are and compiled."""
    strategies: dict[str, dict[str, Any]] = {
        "greedy": {},
        "sampled": {"strategy": "sample", "temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.05},
    }
    length = 16 if part.args.shape == "tiny" else 128
    for compiles in (True, False) if part.device.type == "cuda" else (False,):
        with part.guarded(f"compile_layers={compiles}"):
            llm = part.llm(compiles)
            lm: Any = llm.model
            for count in part.args.rows:
                given = prompts(count, part.context, llm.model.vocab_size)
                middle = part.context + length // 2
                llm.warm_up(batch_size=count, drafts=False)  # no capture in the middle of a measured text
                floor = part.floor_ms(lm, count, middle)
                for spelled, options in strategies.items():

                    def generate(
                        num: int, llm: LLM = llm, given: Any = given, count: int = count, options: Any = options
                    ) -> object:
                        return llm.generate(given, max_new_tokens=num, batch_size=count, **options)

                    what = f"{spelled}, compile_layers={compiles}"
                    with part.guarded(f"{what}, {count} rows"):
                        rate = tokens_per_second(generate, part.device, count, length)
                        share = share_of(rate / count, floor, MOST_SHARE if part.device.type == "cuda" else None)
                        row = {"what": what, "rows": count, "tokens/s": rate, "ms": 1e3 * count / rate}
                        row |= part.predicted_ms(count, middle, compiles)
                        part.rows.append({**row, "share": share, **part.replays_of(lm)})


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

    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + 4 * length)  # three runs
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
    """JSON Schema with recursion and formats beside free text, on a model that prefers valid texts.

    The preference is refused once in `REFUSED_EVERY` tokens; there the constraint takes a mask.
    """
    length = 24 if part.args.shape == "tiny" else 160
    text_model = scripted_model(tokenizer(part.args.tokenizer, part.args.shape), part.context, length + 32)
    llm = part.llm(part.device.type == "cuda", text_model.build)
    constraint = JsonSchema(SCHEMA)
    options: dict[str, Any] = {"strategy": "sample", "temperature": 0.8, "top_k": 50, "seed": 1}
    for count in part.args.rows:
        with part.guarded(f"constrained, {count} rows"):
            given = text_model.prompts(count, llm.model.vocab_size)
            took: dict[str, float] = {}
            for name, extra in (("free", {}), ("constrained", {"constraint": constraint})):

                def generate(extra: Any = extra, given: Any = given, count: int = count) -> list[Any]:
                    done: Any = llm.generate(given, max_new_tokens=length, batch_size=count, **options, **extra)
                    return [*done]

                with without_preemption():
                    cold = time.perf_counter()
                    done = generate()
                    synchronise(part.device)
                    cold = time.perf_counter() - cold
                    took[name] = wall_seconds(generate, part.device)
                kinds = ("masks", "questions")
                counts = {kind: sum(getattr(one.stats, f"num_{kind}") for one in done) for kind in kinds}
                num_tokens = sum(len(one.token_ids) for one in done)
                if num_tokens < 0.9 * count * length:
                    raise RefusedError(
                        f"{num_tokens} tokens of {count * length}: texts ended early, rates are not alike"
                    )
                if extra and counts["masks"] > 4 * num_tokens / REFUSED_EVERY + 2 * count:
                    raise RefusedError(
                        f"{counts['masks']} masks for {num_tokens} tokens: the model does not prefer valid texts"
                    )
                row = {"what": name, "rows": count, "ms per token": 1e3 * took[name] / length, "cold_s": cold}
                part.rows.append({**row, "tokens/s": num_tokens / took[name], **counts})
            slower = took["constrained"] / took["free"] - 1
            part.rows.append({"what": "constrained against free", "rows": count, "slower": slower})


def sampler(part: Part) -> None:
    """One draw of 152k logits with four processors, beside transformers'; on a GPU both as replays of a graph."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    from decodekit.gpu.draw_settings import packed
    from decodekit.gpu.sampler import sample_rows

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
                return sample_rows(logits, values, None, 1, True)

            mine, other = (seconds_of(replayed(run, part.device), part.device) for run in (ours, theirs))
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
                row = {"what": f"step of {width}", "rows": count, "ms": 1e3 * took, "in steps of one": took / base}
                part.rows.append(row | part.predicted_ms(count, part.context, False, width - 1))


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
    llm.generate(given[:size], max_new_tokens=64 if size == 128 else 8, batch_size=size)  # compiled, captured, warm

    def in_batches() -> None:
        for begin in range(0, number, size):
            batch = slice(begin, begin + size)
            llm.generate(given[batch], max_new_tokens=max(lengths[batch]), batch_size=size)

    with without_preemption():
        static = once(in_batches)
    with llm.engine(batch_size=size) as engine, without_preemption():

        def submitted(count: int) -> None:
            handles = [
                engine.submit(prompt, max_new_tokens=n) for prompt, n in zip(given[:count], lengths, strict=False)
            ]
            for handle in handles:
                handle.result()

        submitted(size)
        took = once(lambda: submitted(number))
    part.rows.append({"what": "job", "prompts": number, "s": took, "static_s": static, "ratio": static / took})


def once(run: Callable[[], object]) -> float:
    """Seconds of one call that ends with the host knowing its result."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


PARTS: Final[dict[str, Callable[[Part], None]]] = {
    one.__name__: one for one in (kernels, tests, decode, rivals, constrained, sampler, verify, first, job)
}
COMMANDS: Final = {
    "gate": ("kernels", "tests"),
    "decode": ("decode", "verify"),
    "rivals": ("rivals",),
    "constrained": ("constrained", "sampler"),
    "serve": ("job", "first"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, *(name for name in PARTS if name not in COMMANDS)])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--tokenizer", type=Path, help="folder of Tekken; by default kit/tekken")
    parser.add_argument("--into", type=Path, help="folder of the record")
    return 0 if Part(parser.parse_args(argv)).run() else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a run that is cut off writes what it has
    sys.exit(main())
