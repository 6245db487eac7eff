"""Tokens per second of the loop on a CPU: decodekit beside transformers, in one process, and llama.cpp, in turns.

    [DECODEKIT_RIVALS=FOLDER] python -m benchmarks.loop [--repeats 9] [--sizes 2 9 52 tiny | 1000]
        [--dtypes float32 bfloat16 int8] [--threads 1 2] [--batch 1 8] [--tokens 128] [--into FOLDER]

The sides, over one model with the same prompts and limits:

- ``decodekit``: `LLM.generate`;
- ``generate``: that of transformers, with its default cache;
- ``generate_batch``: its continuous batching, left out where it does not run;
- ``bare``: a loop of a few lines over the same modules, with argmax and nothing else: what the modules alone cost;
- ``llama.cpp``: greedy, in a process of its own (`benchmarks.rivals`), over GGUF of the same float32 weights in F32,
  BF16, F16 or Q8_0 (blocks of 32, the head among them), with its cache in F16, if the variable names an environment
  that has it.

Models are Llamas with random weights of about 2, 9 and 52 million parameters, and of 1,000 million if that is asked for
(the layers of Llama 3.2 1B, 32,000 tokens), without an end of text, so that every run has the same length; ``tiny`` is
the bundled model on sample documents. Strategies are greedy, and sampling behind four processors (temperature, top-k,
top-p, min-p). A run reads its prompts anew on every side: their time counts, and only new tokens are counted. Runs take
turns, so that whatever else the machine does falls on all sides: a figure is the median over the repeats, a ratio the
median of the ratios of neighbouring runs. On a machine that others use, ratios of processor time tell more than those
of seconds; with one thread (``OMP_NUM_THREADS=1``) they are what a quiet machine would show. Greedy runs in float32
must give the same tokens on all sides of this process, or the script fails: a speed of wrong text is not reported. In
shorter types sums that are added in another order come to other roundings, and llama.cpp has its own arithmetic, so the
share of equal tokens stands beside the figures: those before the first that differs in a text; for F32 once more with a
cache in F32, which is not timed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import logging
import operator
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record
from benchmarks.peers import VARIABLE, Worker, python_of
from benchmarks.rivals import LLAMA_CPP, MODEL

DOCUMENTS: Final = Path(__file__).parent.parent / "examples" / "documents.jsonl"
SAMPLING: Final[dict[str, Any]] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.05}
PROMPT_TOKENS: Final = 32
SIZES: Final[dict[str, dict[str, int]]] = {
    "2": {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6},
    "9": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8},
    "52": {"vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1600, "num_hidden_layers": 10},
    "1000": {
        "vocab_size": 32_000,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
    },
}
"""Millions of weights, and the shape of the model."""
DTYPES: Final = ("float32", "bfloat16", "float16", "int8")
"""Types of the weights: int8 is what torchao makes of the layers of a model in bfloat16."""
SIDES: Final = ("decodekit", "generate", "generate_batch", "bare", LLAMA_CPP)

Row = dict[str, object]
Run = Callable[[], list[list[int]]]
"""Decodes all prompts; the new tokens of each, without an end of text."""


def load_prompts(num_documents: int) -> list[str]:
    """The texts of the first documents of every kind, in the order of the file, each as the model's prompt."""
    with DOCUMENTS.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    step = max(1, len(texts) // num_documents)
    return [text.strip() + "\n" for text in texts[::step][:num_documents]]


@dataclass(frozen=True, slots=True)
class Setup:
    """A model, and what it is to continue."""

    name: str
    llm: dk.LLM
    module: Any
    prompts: list[list[int]]
    max_new_tokens: int
    num_parameters: int

    @property
    def eos(self) -> frozenset[int]:
        """Tokens that end a text."""
        return self.llm.vocabulary.eos_token_ids


def random_model(name: str, dtype: torch.dtype, num_prompts: int, max_new_tokens: int) -> Setup:
    """A Llama with random weights, and a tokenizer of as many made-up tokens."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = SIZES[name]
    num_heads = shape["hidden_size"] // 64
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"num_attention_heads": num_heads, "num_key_value_heads": num_heads, **shape},
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    module = AutoModelForCausalLM.from_config(config).to(torch.bfloat16 if dtype is torch.int8 else dtype).eval()
    if dtype is torch.int8:
        torchao = importlib.import_module("torchao.quantization")
        torchao.quantize_(module.model, torchao.Int8WeightOnlyConfig())  # the head has its weights from the embedding
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(256, shape["vocab_size"], (num_prompts, PROMPT_TOKENS), generator=generator).tolist()
    llm = dk.LLM(module, tokenizer_of(shape["vocab_size"]))
    num_parameters = sum(one.numel() for one in module.parameters())
    return Setup(f"{name}M", llm, module, prompts, max_new_tokens, num_parameters)


def tokenizer_of(size: int) -> Any:
    """A byte-level tokenizer of so many tokens: the bytes, and pairs and triples of letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"
    words = ("".join(word) for length in (2, 3) for word in itertools.product(letters, repeat=length))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: i for i, word in enumerate(itertools.islice(itertools.chain(alphabet, words), size))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def bundled(name: str, dtype: torch.dtype, num_prompts: int, max_new_tokens: int) -> Setup:
    """A model by its name, on sample documents."""
    llm = dk.LLM.load(name, dtype=dtype)
    module: Any = llm.model.model  # type: ignore[attr-defined]
    prompts = [llm.tokenizer.encode(text) for text in load_prompts(num_prompts)]
    return Setup(name, llm, module, prompts, max_new_tokens, sum(one.numel() for one in module.parameters()))


def run_decodekit(setup: Setup, strategy: Any, batch_size: int) -> list[list[int]]:
    """`LLM.generate`."""
    outputs = setup.llm.generate(
        setup.prompts, strategy=strategy, max_new_tokens=setup.max_new_tokens, batch_size=batch_size
    )
    for output in outputs:
        if output.error is not None:
            raise output.error
    return [[token for token in output.token_ids if token not in setup.eos] for output in outputs]


def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts [N, T] padded on the left, and their mask."""
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return tokens, mask


def run_generate(setup: Setup, options: dict[str, Any], batch_size: int) -> list[list[int]]:
    """`model.generate`: batches in order, padded on the left."""
    results: list[list[int]] = []
    for batch in _batched(setup.prompts, batch_size):
        tokens, mask = padded(batch)
        out = setup.module.generate(
            tokens, attention_mask=mask, max_new_tokens=setup.max_new_tokens, pad_token_id=0, **options
        )
        results += (_until(row, setup.eos) for row in out[:, tokens.shape[1] :].tolist())
    return results


def run_generate_batch(setup: Setup, options: dict[str, Any], batch_size: int) -> list[list[int]]:
    """`model.generate_batch`, the continuous batching of transformers."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    eos = sorted(setup.eos)
    config = GenerationConfig(max_new_tokens=setup.max_new_tokens, eos_token_id=eos or -1, pad_token_id=0, **options)
    longest = max(map(len, setup.prompts)) + setup.max_new_tokens
    # By itself it takes nearly all memory of the machine, which takes longer than the decoding.
    cache = ContinuousBatchingConfig(
        num_blocks=batch_size * (longest // 32 + 2), max_batch_tokens=max(256, batch_size), use_cuda_graph=False
    )
    out = setup.module.generate_batch(
        inputs=[list(row) for row in setup.prompts],
        generation_config=config,
        continuous_batching_config=cache,
        warmup=False,
    )
    results = [_until(list(one.generated_tokens), setup.eos) for one in out.values()]
    if not results or not all(results):
        raise RuntimeError("generate_batch gave nothing")
    return results


@torch.inference_mode()
def run_bare(setup: Setup, batch_size: int) -> list[list[int]]:
    """Greedy decoding in a few lines over the modules; a row of the batch runs on until all have ended."""
    from transformers import DynamicCache

    results: list[list[int]] = []
    for batch in _batched(setup.prompts, batch_size):
        tokens, mask = padded(batch)
        is_padded = not bool(mask.all())
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        cache = DynamicCache()
        rows: list[list[int]] = [[] for _ in batch]
        for _ in range(setup.max_new_tokens):
            extra = {"attention_mask": mask, "position_ids": positions} if is_padded else {}
            logits = setup.module(input_ids=tokens, past_key_values=cache, logits_to_keep=1, **extra).logits
            tokens = logits[:, -1].argmax(dim=-1, keepdim=True)
            for row, token in zip(rows, tokens[:, 0].tolist(), strict=True):
                row.append(token)
            if is_padded:
                mask = torch.cat([mask, torch.ones_like(tokens)], dim=1)
                positions = positions[:, -1:] + 1
            if setup.eos and all(setup.eos & {*row} for row in rows):
                break
        results += (_until(row, setup.eos) for row in rows)
    return results


@dataclass(slots=True)
class LlamaCpp:
    """A side in another process, and the processor time of its runs."""

    worker: Worker
    batch_size: int
    processor_seconds: float = 0.0

    def run(self, setup: Setup, cache: str = "F16") -> list[list[int]]:
        """Batches in order; keys and values in F16, the default of llama.cpp, or F32."""
        results: list[list[int]] = []
        asked = {"max_new_tokens": setup.max_new_tokens, "eos": sorted(setup.eos), "cache": cache}
        for batch in _batched(setup.prompts, self.batch_size):
            answer = self.worker.answer(prompts=batch, **asked)
            self.processor_seconds += answer["processor_seconds"]
            results += answer["tokens"]
        return results

    def spent(self) -> float:
        """Seconds of processor time of this process and of its runs: while one works, the other waits."""
        return time.process_time() + self.processor_seconds


@contextmanager
def llama_cpp(size: str, dtype: str, num_threads: int, batch_size: int, place: Path) -> Iterator[LlamaCpp | None]:
    """llama.cpp over a size's weights; None, and said, where it is absent or the weights are not at hand.

    Random weights are saved in a folder of `place`, with a GGUF file of each type beside them, for later calls.
    """
    rivals, absent = os.environ.get(VARIABLE), f"{VARIABLE} names no environment"
    if rivals and size in (*SIZES, "tiny"):
        folder = place / size if size in SIZES else MODEL
        if not folder.exists():
            random_model(size, torch.float32, 1, 1).module.save_pretrained(folder)
        options = "--model", f"{folder}", "--dtype", dtype, "--rows", f"{batch_size}"
        python = python_of(LLAMA_CPP, Path(rivals).absolute())
        with Worker(LLAMA_CPP, python, num_threads, *options) as worker:
            if worker.absent is None:
                yield LlamaCpp(worker, batch_size)
                return
            absent = f"{worker.absent} is absent"
    elif rivals:
        absent = f"{size} is of no known folder"
    Console(stderr=True).print(f"{LLAMA_CPP} is left out: {absent}", highlight=False, soft_wrap=True)
    yield None


def _batched(rows: Sequence[list[int]], size: int) -> list[Sequence[list[int]]]:
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def _until(row: Sequence[int], eos: frozenset[int]) -> list[int]:
    return list(itertools.takewhile(lambda token: token not in eos, row))


def timed(run: Run, processor_time: Callable[[], float]) -> tuple[float, float]:
    """Generated tokens (one more for the end of each text) per second, and per second of processor time."""
    wall, processor = time.perf_counter(), processor_time()
    tokens = run()
    wall, processor = time.perf_counter() - wall, processor_time() - processor
    num_tokens = sum(len(row) + 1 for row in tokens)
    return num_tokens / wall, num_tokens / processor


def equal_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Of all tokens of texts, those before the first of a text that differs."""
    num_equal = num_tokens = 0
    for one, other in zip(ours, theirs, strict=True):
        num_tokens += max(len(one), len(other))
        num_equal += sum(1 for _ in itertools.takewhile(bool, map(operator.eq, one, other)))
    return num_equal / num_tokens


def compare(sides: Mapping[str, Run], num_repeats: int, processor_time: Callable[[], float], *, is_exact: bool) -> Row:
    """Medians of each side, and ratios of the first to every other; all sides take turns, in changing order."""
    warm = {name: run() for name, run in sides.items()}
    first, *others = sides
    for name in others:
        if warm[name] != warm[first] and is_exact and name != LLAMA_CPP:
            raise SystemExit(f"greedy tokens of {first} differ from those of {name}")
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    order = list(sides)
    for turn in range(num_repeats):
        for name in order if turn % 2 == 0 else reversed(order):
            speeds[name].append(timed(sides[name], processor_time))
    row: Row = {name: round(statistics.median(wall for wall, _ in found), 1) for name, found in speeds.items()}
    row |= {
        f"tokens_as_{name}": round(equal_share(warm[first], warm[name]), 4)
        for name in ("bare", LLAMA_CPP)
        if name in warm
    }
    for name, (place, suffix) in itertools.product(others, enumerate(("", "_processor_time"))):
        pairs = zip(speeds[first], speeds[name], strict=True)
        ratios = sorted(ours[place] / theirs[place] for ours, theirs in pairs)
        row[f"ratio_{name}{suffix}"] = round(statistics.median(ratios), 3)
        ends = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        row[f"ratio_{name}{suffix}_p10_p90"] = [round(end, 3) for end in ends]
    return row


def sides_of(setup: Setup, strategy: str, batch_size: int, wanted: Collection[str]) -> dict[str, Run]:
    """Who decodes in this process; the first always does, and those that do not run here are left out."""
    options = {"do_sample": False} if strategy == "greedy" else {"do_sample": True, **SAMPLING}
    own = dk.Greedy() if strategy == "greedy" else dk.Sample(**SAMPLING, seed=1)
    sides: dict[str, Run] = {"decodekit": functools.partial(run_decodekit, setup, own, batch_size)}
    if "generate" in wanted:
        sides["generate"] = functools.partial(run_generate, setup, options, batch_size)
    if "bare" in wanted and strategy == "greedy":
        sides["bare"] = functools.partial(run_bare, setup, batch_size)
    if "generate_batch" not in wanted:
        return sides
    batched = functools.partial(run_generate_batch, setup, options, batch_size)
    try:
        batched()
    except Exception as problem:  # whatever it needs that is not here
        note = f"generate_batch does not run here: {type(problem).__name__}: {str(problem).splitlines()[0]:.100}"
        Console(stderr=True).print(note, highlight=False, soft_wrap=True)
    else:
        sides["generate_batch"] = batched
    return sides


def rows_of(
    arguments: argparse.Namespace, dtype: str, num_threads: int, size: str, batch_size: int, place: Path
) -> Iterator[Row]:
    """A row for each strategy; weights of other sides stand at a place."""
    torch.set_num_threads(num_threads)
    make = random_model if size in SIZES else bundled
    setup = make(size, getattr(torch, dtype), batch_size * arguments.prompts, arguments.tokens)
    wanted = {*arguments.sides}
    if (dtype, num_threads) != (arguments.dtypes[0], arguments.threads[0]):
        wanted.discard("generate_batch")
    has_rival = "greedy" in arguments.strategies and LLAMA_CPP in wanted
    with llama_cpp(size, dtype, num_threads, batch_size, place) if has_rival else nullcontext() as llama:
        for strategy in arguments.strategies:
            row: Row = {
                "model": setup.name,
                "num_parameters": setup.num_parameters,
                "dtype": dtype,
                "num_threads": num_threads,
                "strategy": strategy,
                "batch_size": batch_size,
            }
            sides = sides_of(setup, strategy, batch_size, wanted)
            spent = time.process_time
            if llama is not None and strategy == "greedy":
                sides[LLAMA_CPP] = functools.partial(llama.run, setup)
                spent = llama.spent
                row["versions"] = llama.worker.versions
                if dtype == "float32":
                    texts = sides["decodekit"](), llama.run(setup, "F32")
                    row[f"tokens_as_{LLAMA_CPP}_cache_F32"] = round(equal_share(*texts), 4)
            is_exact = strategy == "greedy" and dtype == "float32"
            yield row | compare(sides, arguments.repeats, spent, is_exact=is_exact)


def show(rows: Sequence[Row]) -> None:
    """A table of rows."""
    table = Table(title="tokens per second, median")
    ratios = "ratio_generate", "ratio_generate_processor_time", "ratio_bare", f"ratio_{LLAMA_CPP}"
    known = "model", "dtype", "num_threads", "strategy", "batch_size", *SIDES, *ratios, f"tokens_as_{LLAMA_CPP}"
    names = [name for name in known if any(name in row for row in rows)]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in names))
    Console(width=160).print(table)


def main() -> None:
    """Measure, print the table, write ``loop.json`` (or ``loop-1b.json``) into the folder of the records or another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--sizes", nargs="+", default=["2", "9", "52", "tiny"], metavar="SIZE")
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=DTYPES)
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--prompts", type=int, default=1, help="times the batch")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--strategies", nargs="+", default=["greedy", "sampled"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES, help="beside decodekit")
    parser.add_argument("--into", type=Path, help="the folder of the record (default: benchmarks/results)")
    parser.add_argument("--no-record", action="store_true")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    rows: list[Row] = []
    log = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="decodekit-loop-") as place:
        for world in itertools.product(arguments.dtypes, arguments.threads, arguments.sizes, arguments.batch):
            dtype, _, size, _ = world
            if dtype == "int8" and size not in SIZES:
                log.print(f"{size} is left out in int8: its weights are loaded as they are")
                continue
            for row in rows_of(arguments, *world, Path(place)):
                rows.append(row)
                log.print(json.dumps(row), highlight=False, soft_wrap=True)
                if not arguments.no_record:
                    keep(rows, arguments, load_before)
    show(rows)


def keep(rows: Sequence[Row], arguments: argparse.Namespace, load_before: float) -> None:
    """Write the whole record, after each row, so that a run that is stopped leaves the rows that it has."""
    record.write_into(
        arguments.into,
        "loop-1b" if arguments.sizes == ["1000"] else "loop",
        rows,
        num_repeats=arguments.repeats,
        max_new_tokens=arguments.tokens,
        sampling=SAMPLING,
        # Above 1 before the run, other work shares the caches; that costs the faster side more, and ratios are low.
        load_average_before=round(load_before, 2),
    )


if __name__ == "__main__":
    main()
