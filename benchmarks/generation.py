"""Tokens per second of decodekit and of transformers' `generate`, on the bundled model, in one process.

    python -m benchmarks.generation [--repeats 9] [--documents 16] [--model tiny]

For each setting (greedy, sampled; batch 1, batch 8) both sides get the same prompts and limits; their runs alternate,
so that whatever else the machine does falls on both. A figure is the median over the repeats; the ratio is the median
of the ratios of neighbouring runs. Greedy runs must give the same tokens on both sides, or the script fails. It takes
minutes: stderr has a line for each setting that is done, and on a terminal a bar.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import decodekit as dk
from benchmarks import record

DOCUMENTS = Path(__file__).parent.parent / "examples" / "documents.jsonl"
MAX_NEW_TOKENS = 160
SAMPLING: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.05}


def load_prompts(num_documents: int) -> list[str]:
    """The texts of the first documents of every kind, in the order of the file, each as the model's prompt."""
    with DOCUMENTS.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    step = max(1, len(texts) // num_documents)
    return [text.strip() + "\n" for text in texts[::step][:num_documents]]


def run_decodekit(llm: Any, prompts: Sequence[str], strategy: Any, batch_size: int) -> list[list[int]]:
    """Token ids of each completion, EOS not included."""
    outputs = llm.generate(list(prompts), strategy=strategy, max_new_tokens=MAX_NEW_TOKENS, batch_size=batch_size)
    for output in outputs:
        if output.error is not None:
            raise output.error
    return [[t for t in output.token_ids if t not in llm.vocabulary.eos_token_ids] for output in outputs]


def run_transformers(
    model: Any, tokenizer: Any, prompts: Sequence[str], options: dict[str, Any], batch_size: int
) -> list[list[int]]:
    """The same through `model.generate`: batches in order, padded on the left."""
    results: list[list[int]] = []
    eos = set(torch.tensor(model.generation_config.eos_token_id).reshape(-1).tolist())
    for start in range(0, len(prompts), batch_size):
        batch = tokenizer(list(prompts[start : start + batch_size]), return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        out = model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, **options)
        for row in out[:, batch["input_ids"].shape[1] :].tolist():
            end = next((i for i, token in enumerate(row) if token in eos), len(row))
            results.append(row[:end])
    return results


def timed(run: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """Generated tokens per second (EOS counted once per text), and the tokens."""
    start = time.perf_counter()
    tokens = run()
    seconds = time.perf_counter() - start
    return sum(len(row) + 1 for row in tokens) / seconds, tokens


def compare(
    ours: Callable[[], list[list[int]]],
    theirs: Callable[[], list[list[int]]],
    num_repeats: int,
    *,
    is_exact: bool,
    advance: Callable[[], None],
) -> dict[str, object]:
    """Time pairs of runs after one that warms up, whose tokens must be the same on both sides if `is_exact`."""
    if ours() != theirs() and is_exact:
        raise SystemExit("greedy tokens differ from transformers': a speed of wrong text is not reported")
    advance()
    pairs = []
    for _ in range(num_repeats):
        pairs.append((timed(ours)[0], timed(theirs)[0]))
        advance()
    ratios = sorted(a / b for a, b in pairs)
    return {
        "decodekit_tokens_per_second": round(statistics.median(a for a, _ in pairs), 1),
        "transformers_tokens_per_second": round(statistics.median(b for _, b in pairs), 1),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_p10": round(ratios[len(ratios) // 10], 2),
        "ratio_p90": round(ratios[-1 - len(ratios) // 10], 2),
    }


def main() -> None:
    """Measure, print the table, write ``results/generation.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--model", default="tiny")
    arguments = parser.parse_args()

    from decodekit.models.loading import load

    load_before = os.getloadavg()[0]
    llm = dk.LLM.load(arguments.model)
    reference, tokenizer = load(arguments.model)
    model = reference.model
    tokenizer.padding_side = "left"
    prompts = load_prompts(arguments.documents)

    settings: list[tuple[str, Any, dict[str, Any]]] = [
        ("greedy", dk.Greedy(), {"do_sample": False}),
        ("sampled", dk.Sample(**SAMPLING, seed=1), {"do_sample": True, **SAMPLING}),
    ]
    rows: list[dict[str, object]] = []
    table = Table(title="tokens per second, median")
    for heading in ("strategy", "batch", "decodekit", "transformers", "ratio", "ratio, 10th to 90th"):
        table.add_column(heading, justify="right")
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=1,  # the less it draws, the less it takes of what is measured
    )
    with bar:
        for (name, strategy, options), batch_size in itertools.product(settings, (1, 8)):
            task = bar.add_task(f"{name}, batch {batch_size}: pairs of runs", total=arguments.repeats + 1)
            row: dict[str, object] = {"strategy": name, "batch_size": batch_size}
            row |= compare(
                functools.partial(run_decodekit, llm, prompts, strategy, batch_size),
                functools.partial(run_transformers, model, tokenizer, prompts, options, batch_size),
                arguments.repeats,
                is_exact=name == "greedy",
                advance=functools.partial(bar.advance, task),
            )
            bar.remove_task(task)
            rows.append(row)
            cells = [
                f"{row['decodekit_tokens_per_second']:,}",
                f"{row['transformers_tokens_per_second']:,}",
                f"{row['ratio']}",
                f"{row['ratio_p10']} to {row['ratio_p90']}",
            ]
            table.add_row(name, str(batch_size), *cells)
            line = "{}, batch {}: decodekit {} tokens/s, transformers {}, ratio {} ({})"
            bar.console.print(line.format(name, batch_size, *cells), highlight=False, soft_wrap=True)
    Console().print(table)
    record.write(
        "generation",
        rows,
        model=arguments.model,
        num_documents=len(prompts),
        num_repeats=arguments.repeats,
        max_new_tokens=MAX_NEW_TOKENS,
        sampling=SAMPLING,
        num_threads=torch.get_num_threads(),
        # Above 1 before the run, other work shares the caches; that costs the faster side more, and ratios are low.
        load_average_before=round(load_before, 2),
    )


if __name__ == "__main__":
    main()
