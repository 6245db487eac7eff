"""What the way through `model.generate(custom_generate=dk.hf(...))` costs beside `LLM.generate`, for equal tokens.

    python -m benchmarks.custom_generate [--pairs 15] [--tokens 128]

The bundled model decodes the same prompts both ways, one call after the other in one process, the first of a pair by
turns. Seconds are CPU time, so that neighbours on the machine count little; with ``OMP_NUM_THREADS=1`` they are those
of one thread. A figure is the median over pairs of the seconds through `generate` over those of `LLM.generate`, with
the quartiles; the tokens of every pair are compared. Whole calls are timed: what `generate` prepares, the reading of
its call, and the tensors that are made of the tokens are among them. ``ms`` is the difference of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record

PROMPT: Final = "Invoice A-17 of 3 May 2024 from Miller & Sons. Two chairs at 40.20 EUR each, delivery 12.00 EUR."
ITEM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 8, "maxLength": 24}, "price": {"type": "number"}},
    "required": ["name", "price"],
}
SCHEMA: Final[dict[str, Any]] = {"type": "array", "items": ITEM, "minItems": 8}
CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {},
    "sample": {"strategy": dk.Sample(temperature=0.8, top_p=0.95, seed=1)},
    "greedy, JSON": {"constraint": SCHEMA},
}


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU time of a call, of all its threads, and what it gives."""
    start = time.process_time()
    made = call()
    return time.process_time() - start, made


def measured(llm: dk.LLM, rows: int, num_tokens: int, options: Mapping[str, Any], num_pairs: int) -> dict[str, Any]:
    """One case: quartiles of the ratios, and medians of the seconds.

    Raises:
        AssertionError: the two ways give other tokens.
    """
    ids = [llm.tokenizer(f"{PROMPT} No. {row}.")["input_ids"] for row in range(rows)]
    width = min(map(len, ids))
    prompts = torch.tensor([one[:width] for one in ids])
    model: Any = llm.model.model  # type: ignore[attr-defined]
    extra: dict[str, Any] = {} if options else {"min_tokens": num_tokens}
    decoding = dk.hf(tokenizer=llm.tokenizer, on_length="return", **extra, **options)

    def ours() -> Any:
        return llm.generate(
            prompts.tolist(), max_new_tokens=num_tokens, on_length="return", batch_size=rows, **extra, **options
        )

    def inside() -> Any:
        return model.generate(prompts, max_new_tokens=num_tokens, custom_generate=decoding)

    ratios, times = [], {"ours": list[float](), "inside": list[float]()}
    length = 0
    for pair in range(num_pairs + 2):
        order = [("ours", ours), ("inside", inside)]
        made: dict[str, tuple[float, Any]] = {
            name: seconds(call) for name, call in (order if pair % 2 else reversed(order))
        }
        length = sum(len(completion.token_ids) for completion in made["ours"][1])
        for row, completion in zip(made["inside"][1], made["ours"][1], strict=True):
            assert tuple(row[width : width + len(completion.token_ids)].tolist()) == completion.token_ids
        if pair >= 2:  # the first ones learn masks
            ratios.append(made["inside"][0] / made["ours"][0])
            for name in times:
                times[name].append(made[name][0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {
        "rows": rows,
        "tokens": length,
        "ratio": round(middle, 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
        "ms_of_llm_generate": round(1e3 * medians["ours"], 2),
        "ms_of_a_call_more": round(1e3 * (medians["inside"] - medians["ours"]), 2),
    }


def main() -> None:
    """Measure all cases, print them and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    llm = dk.LLM.load("tiny")
    table = Table("case", "rows", "tokens", "inside / LLM.generate", "quartiles", "ms more")
    kept = []
    for name, options in CASES.items():
        for rows in (1, 8):
            found = measured(llm, rows, arguments.tokens, options, arguments.pairs)
            kept.append({"case": name, **found})
            low, high = found["ratio_quartiles"]
            table.add_row(
                name, str(rows), str(found["tokens"]), f"{found['ratio']:.3f}", f"{low:.3f} to {high:.3f}",
                f"{found['ms_of_a_call_more']:.2f}",
            )  # fmt: skip
    Console().print(table)
    record.write(
        "custom_generate",
        kept,
        question="CPU seconds of model.generate(custom_generate=dk.hf()) over those of LLM.generate, equal tokens",
        pairs=arguments.pairs,
    )


if __name__ == "__main__":
    main()
