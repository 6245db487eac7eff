"""A job whose documents share their instructions: what is read of prompts, and documents per second, with and without.

    OMP_NUM_THREADS=1 python -m benchmarks.prefixes [--documents 200] [--shared 400] [--repeats 5] [--model tiny]

Every prompt has the same instructions before a document of its own. Both ways run the same code in one process, by
turns; without sharing, `MIN_SHARED` is set so high that nothing is worth it. The tokens that the model reads of prompts
are counted, the texts must be the same, and documents per second are medians over the repeats.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record
from benchmarks.loop import load_prompts
from decodekit.decoding.prefixes import shared_rows as sharing
from decodekit.decoding.request.prompt import encode

INSTRUCTIONS = "Write the fields of the document below as JSON, in the order in which they stand in it. "


def prompts_of(llm: Any, num_documents: int, num_shared: int) -> list[list[int]]:
    """Token ids: the same `num_shared` tokens of instructions, and then a document, numbered so that all differ."""
    sentence = encode(llm.tokenizer, INSTRUCTIONS, "instructions")
    instructions = (sentence * (num_shared // len(sentence) + 1))[:num_shared]
    texts = load_prompts(num_documents)
    documents = [f"{number}\n{texts[number % len(texts)]}" for number in range(num_documents)]
    return [[*instructions, *encode(llm.tokenizer, text, "document")] for text in documents]


@contextmanager
def min_shared(num_tokens: int) -> Iterator[None]:
    """So many tokens at least are shared."""
    before, sharing.MIN_SHARED = sharing.MIN_SHARED, num_tokens  # type: ignore[misc]
    try:
        yield
    finally:
        sharing.MIN_SHARED = before  # type: ignore[misc]


def decoded(llm: Any, prompts: Sequence[list[int]], max_new_tokens: int, batch_size: int) -> tuple[float, list[Any]]:
    """Seconds, and the completions."""
    begin = time.perf_counter()
    completions = llm.generate(prompts, max_new_tokens=max_new_tokens, batch_size=batch_size)
    return time.perf_counter() - begin, completions


def num_read(completions: Sequence[Any]) -> int:
    """Tokens of prompts that the model has read."""
    return sum(one.stats.num_prompt_tokens - one.stats.num_reused_tokens for one in completions)


def main() -> None:
    """Measure, print the table, write ``results/prefixes.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--shared", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    arguments = parser.parse_args()

    load_before = os.getloadavg()[0]
    llm = dk.LLM.load(arguments.model)
    prompts = prompts_of(llm, arguments.documents, arguments.shared)
    options = arguments.max_new_tokens, arguments.batch_size
    seconds: dict[str, list[float]] = {"alone": [], "shared": []}
    reads: dict[str, int] = {}
    num_different = 0
    decoded(llm, prompts[:32], *options)
    for _ in range(arguments.repeats):
        with min_shared(1 << 30):
            took, alone = decoded(llm, prompts, *options)
        seconds["alone"].append(took)
        took, shared = decoded(llm, prompts, *options)
        seconds["shared"].append(took)
        reads = {"alone": num_read(alone), "shared": num_read(shared)}
        num_different = sum(one.token_ids != other.token_ids for one, other in zip(alone, shared, strict=True))
    if num_different:
        raise SystemExit(f"{num_different} texts differ: a speed of other text is not reported")
    rate = {name: len(prompts) / statistics.median(times) for name, times in seconds.items()}
    ratios = sorted(a / b for a, b in zip(seconds["alone"], seconds["shared"], strict=True))
    row: dict[str, object] = {
        "prompt_tokens_read_alone": reads["alone"],
        "prompt_tokens_read_shared": reads["shared"],
        "share_read": round(reads["shared"] / reads["alone"], 3),
        "documents_per_second_alone": round(rate["alone"], 2),
        "documents_per_second_shared": round(rate["shared"], 2),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_min": round(ratios[0], 2),
        "ratio_max": round(ratios[-1], 2),
    }
    table = Table(title=f"{arguments.documents} documents that share {arguments.shared} tokens")
    for heading in row:
        table.add_column(heading.replace("_", " "), justify="right")
    table.add_row(*map(str, row.values()))
    Console().print(table)
    record.write(
        "prefixes",
        [row],
        **vars(arguments),
        mean_document_tokens=round(statistics.mean(map(len, prompts)) - arguments.shared, 1),
        strategy="greedy",
        num_threads=torch.get_num_threads(),
        load_average_before=round(load_before, 2),
    )


if __name__ == "__main__":
    main()
