"""What it costs to end in time: ``on_length="close"`` beside ``on_length="return"``, cold, on a vocabulary of 131k.

    python -m benchmarks.closing [--budgets 32 64 128 256] [--strategies greedy sample] [--repeats 3]

Tekken, a random model of Qwen3's shape (so that nearly every token is a surprise, and texts run into their limit), and
the ten schemas of `own_schemas`. Every text is decoded with fresh grammars, automata and walks of tokens, as the first
one of a process would be; compiled code and sorted tokens are there from an earlier process, as after a first use. Runs
of both ways alternate; times are CPU times, and a ratio is that of their medians. Budgets below the least number of
tokens of a schema are left out: there is nothing to compare.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record
from benchmarks.masks import TEKKEN, make_tokenizer
from benchmarks.own_schemas import SCHEMAS
from decodekit.constraints import as_constraint, compile
from decodekit.constraints.memory_account import memory_limit, set_memory_limit

WAYS = ("return", "close")
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "initializer_range": 0.05,
}


def load() -> dk.LLM:
    """A random model with Tekken."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="decodekit-closing-") as name:
        make_tokenizer(Path(name))
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(vocab_size=len(tokenizer), **SHAPE)
    return dk.LLM(transformers.Qwen3ForCausalLM(config).eval(), tokenizer)


def forget() -> None:
    """Let go of everything that a grammar has learned."""
    limit = memory_limit()
    set_memory_limit(1)
    set_memory_limit(limit)
    gc.collect()


def decoded(llm: dk.LLM, schema: Any, **options: Any) -> tuple[float, dk.Completion]:
    """CPU seconds of a text, and the text."""
    forget()
    begin = time.process_time()
    completion = llm.generate("Say: ", constraint=schema, **options)
    return time.process_time() - begin, completion


def rows(llm: dk.LLM, budgets: list[int], strategies: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """One row per schema, budget and strategy."""
    for name, schema in SCHEMAS.items():
        least = compile(as_constraint(schema), llm.vocabulary).least_tokens()
        for budget in (one for one in budgets if one >= least):
            for strategy in strategies:
                times: dict[str, list[float]] = {way: [] for way in WAYS}
                for seed in range(repeats):
                    for way in WAYS:
                        options = {"strategy": strategy, "seed": seed, "max_new_tokens": budget, "on_length": way}
                        seconds, completion = decoded(llm, schema, **options)
                        times[way].append(seconds)
                        if way == "close" and (completion.error or completion.value is None):
                            raise SystemExit(f"{name}, {budget} tokens: not closed: {completion}")
                medians = {way: statistics.median(found) for way, found in times.items()}
                yield {
                    "schema": name,
                    "least_tokens": least,
                    "max_new_tokens": budget,
                    "strategy": strategy,
                    "return_s": round(medians["return"], 4),
                    "close_s": round(medians["close"], 4),
                    "ratio": round(medians["close"] / medians["return"], 3),
                }


def main() -> None:
    """Measure, print, write ``results/closing.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=int, nargs="+", default=[32, 64, 128, 256], help="max_new_tokens")
    parser.add_argument(
        "--strategies", nargs="+", default=["greedy", "sample", "sample:top_p=0.9"], help="as LLM takes them"
    )
    parser.add_argument("--repeats", type=int, default=3, help="texts per figure, each with a seed of its own")
    arguments = parser.parse_args()
    average = os.getloadavg()[0]
    torch.set_num_threads(1)
    llm = load()
    decoded(llm, next(iter(SCHEMAS.values())), max_new_tokens=128, on_length="close")  # compiled code is loaded
    found = list(rows(llm, arguments.budgets, arguments.strategies, arguments.repeats))
    table = Table(title="CPU seconds of a text, cold")
    for heading in ("schema", "least", "budget", "strategy", "return", "close", "ratio"):
        table.add_column(heading, justify="left" if heading in ("schema", "strategy") else "right")
    for row in found:
        table.add_row(*map(str, row.values()))
    Console(width=120).print(table)
    worst = max(found, key=lambda row: row["ratio"])
    total = sum(row["close_s"] for row in found) / sum(row["return_s"] for row in found)
    print(f"all texts: {total:.2f} times as long; the worst row: {worst['ratio']} ({worst['schema']})")
    record.write(
        "closing",
        found,
        question='CPU seconds of on_length="close" beside "return", cold',
        tokenizer=f"mistral_common {TEKKEN}",
        model={"architecture": "Qwen3ForCausalLM", "weights": "random", "vocab_size": llm.vocabulary.size, **SHAPE},
        ratio_of_all=round(total, 3),
        worst_ratio=worst["ratio"],
        repeats=arguments.repeats,
        load_average=round(average, 2),
    )


if __name__ == "__main__":
    main()
