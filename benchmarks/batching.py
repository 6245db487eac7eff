"""Continuous batching beside static batches of our own and transformers' continuous batching, in one process on a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.batching [--requests 256] [--num-rows 32] [--repeats 3]

The requests have prompts of 8 to 64 random tokens and fixed output lengths from 8 to 256, shuffled. The model has
random weights, 4 million of them unless told otherwise, and no end of text, so that every text has its full length.

    continuous    `llm.engine`: all requests at once; a row that is done goes to the next request
    static        the same engine; a batch of `--num-rows` requests is submitted when the one before is done, and every
                  row goes on until the longest has ended, as in a batch of fixed shape; what is too much is cut off
    leaving       as static, but rows that are done leave the forward passes, as they do in `LLM.generate`
    transformers  the manager under `model.generate_batch`, with the same rows and an output length for each request

The runs alternate; a figure is the median over the repeats, a ratio the median of those of neighbouring runs. Greedy
tokens must be the same for all.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record

Work = list[tuple[list[int], int]]
"""Prompts with the number of tokens that are to follow each."""


class NoTokenizer:
    """Tokens without a text: every id is one character."""

    def __init__(self, size: int) -> None:
        self.n_vocab = size
        self.special_tokens_set: frozenset[str] = frozenset()

    def decode_single_token_bytes(self, token: int) -> bytes:
        """Two bytes for every token."""
        return chr(0x4E00 + token).encode()

    def encode(self, text: str, bos: bool = False, eos: bool = False) -> list[int]:
        """The ids of the characters."""
        return [ord(character) - 0x4E00 for character in text]


def random_model(hidden_size: int, num_layers: int, vocab_size: int) -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=hidden_size // 64,
        max_position_embeddings=1024,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(8)  # clear choices: no near ties
    model.generation_config.eos_token_id = None
    return model


def work_of(num_requests: int, vocab_size: int) -> Work:
    """Prompts of 8 to 64 tokens, output lengths evenly from 8 to 256, in a random order."""
    rng = random.Random(0)
    lengths = [8 + 248 * number // max(1, num_requests - 1) for number in range(num_requests)]
    rng.shuffle(lengths)
    return [([rng.randrange(vocab_size) for _ in range(rng.randint(8, 64))], length) for length in lengths]


def ours(llm: Any, work: Work, num_rows: int, *, size: int, is_fixed: bool = False) -> list[list[int]]:
    """Token ids through an engine; `size` requests at a time, with `is_fixed` all as long as the longest of them."""
    found: list[list[int]] = []
    with llm.engine(batch_size=num_rows, prefix_bytes=0) as engine:
        for first in range(0, len(work), size):
            batch = work[first : first + size]
            longest = max(length for _, length in batch)
            handles = [
                engine.submit(prompt, max_new_tokens=longest if is_fixed else length, on_error="raise")
                for prompt, length in batch
            ]
            found += [
                list(handle.result().token_ids)[:length] for handle, (_, length) in zip(handles, batch, strict=True)
            ]
    return found


def theirs(model: Any, work: Work, num_rows: int) -> tuple[float, list[list[int]]]:
    """Seconds from the first request to the last token, and the token ids, through transformers' continuous batching.

    What the manager does before it takes requests is not counted.
    """
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    generation = GenerationConfig(do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(max_requests_per_batch=num_rows)
    options: dict[str, Any] = {"generation_config": generation, "continuous_batching_config": batching}
    with model.continuous_batching_context_manager(**options, block=True, timeout=5) as manager:
        begin = time.perf_counter()
        names = [manager.add_request(prompt, max_new_tokens=length) for prompt, length in work]
        results: dict[str, list[int]] = {}
        while len(results) < len(work):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                results[result.request_id] = list(result.generated_tokens)
            elif result is None and not manager.is_running():
                raise SystemExit("transformers' continuous batching ended before its time")
        seconds = time.perf_counter() - begin
    return seconds, [results[name] for name in names]


def timed(run: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """Seconds, and the tokens."""
    begin = time.perf_counter()
    tokens = run()
    return time.perf_counter() - begin, tokens


def main() -> None:
    """Measure, print the table, write ``results/batching.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--num-rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--without-transformers", action="store_true")
    arguments = parser.parse_args()

    load_before = os.getloadavg()[0]
    model = random_model(arguments.hidden_size, arguments.layers, arguments.vocab_size)
    llm = dk.LLM(model, NoTokenizer(arguments.vocab_size))
    work = work_of(arguments.requests, arguments.vocab_size)
    num_rows = arguments.num_rows
    runs: dict[str, Callable[[], tuple[float, list[list[int]]]]] = {
        "continuous": lambda: timed(lambda: ours(llm, work, num_rows, size=len(work))),
        "static": lambda: timed(lambda: ours(llm, work, num_rows, size=num_rows, is_fixed=True)),
        "leaving": lambda: timed(lambda: ours(llm, work, num_rows, size=num_rows)),
    }
    if not arguments.without_transformers:
        runs["transformers"] = lambda: theirs(model, work, num_rows)
    ours(llm, work[: 2 * num_rows], num_rows, size=len(work))
    rates: dict[str, list[float]] = {name: [] for name in runs}
    expected: list[list[int]] = []
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            seconds, tokens = run()
            rate = sum(map(len, tokens)) / seconds
            rates[name].append(rate)
            expected = expected or tokens
            num_other = sum(one != other for one, other in zip(tokens, expected, strict=True))
            print(f"{name}: {rate:,.0f} tokens/s, {num_other} texts differ from the first run's", flush=True)
            if num_other:
                raise SystemExit("a speed of other text is not reported")
    rows: list[dict[str, object]] = []
    table = Table(title=f"{len(work)} requests of 8 to 256 tokens on {num_rows} rows")
    for heading in ("way", "tokens per second", "continuous / it"):
        table.add_column(heading, justify="right")
    for name, each in rates.items():
        ratios = [a / b for a, b in zip(rates["continuous"], each, strict=True)]
        row: dict[str, object] = {
            "way": name,
            "tokens_per_second": round(statistics.median(each), 1),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_min": round(min(ratios), 2),
            "ratio_max": round(max(ratios), 2),
        }
        rows.append(row)
        table.add_row(
            name, f"{row['tokens_per_second']:,}", f"{row['ratio']} ({row['ratio_min']} to {row['ratio_max']})"
        )
    Console().print(table)
    record.write(
        "batching",
        rows,
        **vars(arguments),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_threads=torch.get_num_threads(),
        load_average_before=round(load_before, 2),
    )


if __name__ == "__main__":
    main()
