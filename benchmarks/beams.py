"""Beam search beside transformers' `generate(num_beams=...)`: reading a long prompt, and each token after it.

    python -m benchmarks.beams [--beams 4] [--prompt 2048] [--tokens 48] [--repeats 7]

A Llama of 30 million random weights, in one process; both sides search the same prompt, and must find the same text.
Prefill is the time of a search for one token; a token costs the difference to a search for more, divided by their
number. Runs alternate; a figure is the median, a ratio the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from rich.console import Console
from rich.table import Table

from benchmarks import record
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.strategy import Beam
from decodekit.vocabulary import Vocabulary

VOCAB_SIZE = 16_000
END = VOCAB_SIZE - 1


def random_model() -> torch.nn.Module:
    """30 million weights: 8 layers, 8 query heads on 2 key heads, in float32."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=0,
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config).eval()
    return model


def seconds(run: Callable[[int], list[int]], num_tokens: int) -> float:
    """Wall time of a search for so many tokens."""
    begin = time.perf_counter()
    run(num_tokens)
    return time.perf_counter() - begin


def main() -> None:
    """Measure, print the table, write ``results/beams.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()

    load_before = os.getloadavg()[0]
    model = random_model()
    adapter = HuggingFaceLM(model)
    vocabulary = Vocabulary([bytes((i % 256,)) if i < END else None for i in range(VOCAB_SIZE)], [END])
    prompt = torch.randint(2, END, (1, arguments.prompt), generator=torch.Generator().manual_seed(1))
    beam = Beam(arguments.beams)

    def ours(num_tokens: int) -> list[int]:
        settings = Settings(vocabulary, beam.pipeline, beam.select, num_tokens)
        [update] = beam.decode(adapter, settings, 1, [Request(prompt[0].tolist())])
        assert update.result is not None
        return list(update.result.token_ids)

    def theirs(num_tokens: int) -> list[int]:
        out = model.generate(  # type: ignore[operator]
            prompt, attention_mask=torch.ones_like(prompt), num_beams=arguments.beams, max_new_tokens=num_tokens
        )
        return [int(token) for token in out[0, arguments.prompt :]]

    if ours(arguments.tokens) != theirs(arguments.tokens):
        raise SystemExit("the texts differ: a speed of wrong text is not reported")
    prefill: list[tuple[float, float]] = []
    token: list[tuple[float, float]] = []
    for _ in range(arguments.repeats):
        prefill.append((seconds(ours, 1), seconds(theirs, 1)))
        whole = seconds(ours, arguments.tokens), seconds(theirs, arguments.tokens)
        token.append(
            tuple((end - start) / (arguments.tokens - 1) for start, end in zip(prefill[-1], whole, strict=True))
        )
    table = Table(title=f"beam search with {arguments.beams} beams after {arguments.prompt:,} tokens, median ms")
    for heading in ("", "decodekit", "transformers", "ratio", "ratio, least to most"):
        table.add_column(heading, justify="right")
    rows: list[dict[str, object]] = []
    for name, pairs in (("prefill", prefill), ("token", token)):
        ratios = sorted(b / a for a, b in pairs)
        row = {
            "part": name,
            "decodekit_ms": round(statistics.median(a for a, _ in pairs) * 1e3, 2),
            "transformers_ms": round(statistics.median(b for _, b in pairs) * 1e3, 2),
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(ratio, 2) for ratio in ratios],
        }
        rows.append(row)
        cells = (row["decodekit_ms"], row["transformers_ms"], row["ratio"], f"{ratios[0]:.2f} to {ratios[-1]:.2f}")
        table.add_row(name, *map(str, cells))
    Console().print(table)
    record.write(
        "beams",
        rows,
        num_weights=sum(weight.numel() for weight in model.parameters()),
        num_beams=arguments.beams,
        num_prompt_tokens=arguments.prompt,
        num_tokens=arguments.tokens,
        num_repeats=arguments.repeats,
        num_threads=torch.get_num_threads(),
        load_average_before=round(load_before, 2),
    )


if __name__ == "__main__":
    main()
