"""Time of one draw: decodekit's sampler beside transformers' processors with `softmax` and `multinomial`.

    python -m benchmarks.sampler [--repeats 15]

Rows are like those of a language model: logits with a Zipf-like tail. Both sides start from the same float32 logits and
end with a token per row; their runs alternate, so that whatever else the machine does falls on both. Before anything is
timed, the laws of both sides must have the same tokens and agree to 1e-6, or the script fails. A figure is the median
over the repeats; the ratio is the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import record
from decodekit.sampling import MinP, Pipeline, Temperature, TopK, TopP, sample

SHAPES = ((32_000, 1), (131_072, 1), (131_072, 64))
SETTINGS: dict[str, Pipeline] = {
    "temperature, top-k, top-p, min-p": Temperature(0.8) | TopK(50) | TopP(0.95) | MinP(0.05),
    "temperature, top-p, min-p": Temperature(0.8) | TopP(0.95) | MinP(0.05),
    "temperature, top-p": Temperature(0.8) | TopP(0.95),
    "temperature": Pipeline([Temperature(0.8)]),
}


def logits_like_a_models(vocab_size: int, num_rows: int, seed: int = 0) -> Tensor:
    """float32 [num_rows, vocab_size]: token ids at random places of a law p ~ rank^-1.3, with noise."""
    generator = torch.Generator().manual_seed(seed)
    tail = -1.3 * torch.arange(1, vocab_size + 1).log()
    noise = torch.randn(num_rows, vocab_size, generator=generator)
    rows = tail + noise
    return torch.stack([row[torch.randperm(vocab_size, generator=generator)] for row in rows])


def transformers_processors(pipeline: Pipeline) -> Any:
    """The same settings as transformers' list of processors."""
    import transformers as hf

    made = hf.LogitsProcessorList()
    for processor in pipeline:
        if isinstance(processor, Temperature):
            made.append(hf.TemperatureLogitsWarper(processor.temperature))
        elif isinstance(processor, TopK):
            made.append(hf.TopKLogitsWarper(processor.k))
        elif isinstance(processor, TopP):
            made.append(hf.TopPLogitsWarper(processor.p))
        elif isinstance(processor, MinP):
            made.append(hf.MinPLogitsWarper(processor.min_p))
    return made


def disagreement(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of two laws; 1 if they have other tokens."""
    return 1.0 if ((ours > 0) != (theirs > 0)).any() else float((ours - theirs).abs().max())


def timed(run: Callable[[], object], num_calls: int) -> float:
    """Microseconds per call."""
    start = time.perf_counter()
    for _ in range(num_calls):
        run()
    return (time.perf_counter() - start) / num_calls * 1e6


def compare(ours: Callable[[], object], theirs: Callable[[], object], num_repeats: int) -> dict[str, float]:
    """Time pairs of runs after one that warms up; a run of ours has enough calls to be as long as one of theirs."""
    ours()
    num_calls = max(1, min(50, round(timed(theirs, 1) / max(timed(ours, 1), 1))))
    pairs = [(timed(ours, num_calls), timed(theirs, 1)) for _ in range(num_repeats)]
    ratios = sorted(b / a for a, b in pairs)
    return {
        "decodekit_us": round(statistics.median(a for a, _ in pairs), 1),
        "transformers_us": round(statistics.median(b for _, b in pairs), 1),
        "ratio": round(statistics.median(ratios), 1),
        "ratio_p10": round(ratios[len(ratios) // 10], 1),
        "ratio_p90": round(ratios[-1 - len(ratios) // 10], 1),
    }


def main() -> None:
    """Measure, print the table, write ``results/sampler.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--note", default=None, help="kept with the record, such as that the machine was shared")
    arguments = parser.parse_args()

    load_before = os.getloadavg()[0]
    rows: list[dict[str, object]] = []
    table = Table(title="microseconds for one draw of each row, median")
    for heading in ("settings", "vocabulary", "batch", "decodekit", "transformers", "ratio", "ratio, 10th to 90th"):
        table.add_column(heading, justify="right")
    for (name, pipeline), (vocab_size, batch_size) in itertools.product(SETTINGS.items(), SHAPES):
        logits = logits_like_a_models(vocab_size, batch_size)
        processors = transformers_processors(pipeline)
        prompt = torch.zeros(batch_size, 1, dtype=torch.int64)
        seeds, sequences = [0] * batch_size, list(range(batch_size))
        positions = itertools.count()

        def ours(
            pipeline: Pipeline = pipeline, logits: Tensor = logits, seeds: list[int] = seeds,
            sequences: list[int] = sequences, positions: Any = positions,
        ) -> Tensor:  # fmt: skip
            return sample(pipeline.narrow(logits), seeds, sequences, [next(positions)] * len(seeds))

        def theirs(processors: Any = processors, prompt: Tensor = prompt, logits: Tensor = logits) -> Tensor:
            return torch.multinomial(torch.softmax(processors(prompt, logits), dim=-1), num_samples=1)

        worst = disagreement(pipeline(logits).softmax(dim=-1), processors(prompt, logits).softmax(dim=-1))
        if worst > 1e-6:
            raise SystemExit(f"{name}: the laws differ by {worst}: a speed of another law is not reported")
        row: dict[str, object] = {"settings": name, "vocab_size": vocab_size, "batch_size": batch_size}
        row |= compare(ours, theirs, arguments.repeats if batch_size == 1 else max(3, arguments.repeats // 3))
        row["largest_difference_of_laws"] = worst
        rows.append(row)
        cells = [f"{row['decodekit_us']:,}", f"{row['transformers_us']:,}", f"{row['ratio']}"]
        table.add_row(name, f"{vocab_size:,}", str(batch_size), *cells, f"{row['ratio_p10']} to {row['ratio_p90']}")
    Console(width=140).print(table)
    record.write(
        "sampler",
        rows,
        num_repeats=arguments.repeats,
        num_threads=torch.get_num_threads(),
        # Other work on the machine shares its caches and cores; that costs the shorter side more, and ratios are low.
        load_average_before=round(load_before, 2),
        note=arguments.note,
    )


if __name__ == "__main__":
    main()
