"""What keys and values in eight bits change: logits, likeliest tokens, perplexity, texts, memory and time.

    python -m benchmarks.quantised_cache [--model tiny] [--documents 24] [--repeats 3]

The texts are sample documents with the JSON that is expected of them. They are read with the plain cache and with the
int8 cache, and the logits in the JSON are compared place by place: root mean square of the difference over the
deviation of the plain logits, how often the likeliest token is the same, and the perplexity. Greedy texts are compared
as they come out, where one different token makes another text. The last figures say how far the logits of either cache
move when the same places are read one, four and sixteen tokens at a time, as batches and drafts do.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import decodekit as dk
from benchmarks import record
from decodekit.models.huggingface import HuggingFaceLM

EXAMPLES = Path(__file__).parent.parent / "examples"
MAX_NEW_TOKENS = 96


def examples_of(num_documents: int) -> list[tuple[str, str]]:
    """Documents of every kind, each as the model's prompt, and the JSON that is expected of it."""
    documents = [json.loads(line) for line in (EXAMPLES / "documents.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = {
        row["id"]: json.dumps(row["value"], ensure_ascii=False, separators=(",", ":"))
        for path in EXAMPLES.glob("*/expected.jsonl")
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    }
    known = [(one["text"].strip() + "\n", expected[one["id"]]) for one in documents if one["id"] in expected]
    return known[:: max(1, len(known) // num_documents)][:num_documents]


def read(lm: HuggingFaceLM, token_ids: Sequence[int], width: int | None = None) -> Tensor:
    """Logits [T, V] of a text that is read `width` tokens at a time; all at once if None."""
    cache = lm.new_cache(1, len(token_ids))
    row = torch.tensor([token_ids])
    pieces = torch.split(row, width or len(token_ids), dim=1)
    parts = [lm.forward(piece, [piece.shape[1]], cache, logits="all")[0] for piece in pieces]
    return torch.cat(parts)


def compared(
    plain: HuggingFaceLM, small: HuggingFaceLM, texts: Sequence[tuple[list[int], list[int]]]
) -> dict[str, float]:
    """Errors over all places of prompts' answers."""
    squares = same = places = 0.0
    surprise = {"plain": 0.0, "int8": 0.0}
    largest = 0.0
    for prompt, answer in texts:
        exact, near = (read(lm, [*prompt, *answer])[len(prompt) - 1 : -1] for lm in (plain, small))  # [T, V] each
        error = (near - exact).square().mean(dim=-1) / exact.var(dim=-1)
        squares, places = squares + float(error.sum()), places + len(error)
        largest = max(largest, float(error.max().sqrt()))
        same += float((near.argmax(dim=-1) == exact.argmax(dim=-1)).sum())
        for name, logits in (("plain", exact), ("int8", near)):
            surprise[name] -= float(logits.log_softmax(dim=-1).gather(1, torch.tensor(answer)[:, None]).sum())
    perplexities = {name: math.exp(total / places) for name, total in surprise.items()}
    return {
        "num_places": places,
        "logit_rms_relative_error": math.sqrt(squares / places),
        "logit_rms_relative_error_of_the_worst_place": largest,
        "likeliest_token_agrees": same / places,
        "perplexity_plain": perplexities["plain"],
        "perplexity_int8": perplexities["int8"],
        "perplexity_change": perplexities["int8"] / perplexities["plain"] - 1,
    }


def moved_by_width(lm: HuggingFaceLM, texts: Sequence[Sequence[int]]) -> float:
    """Largest difference of a logit between readings of one, four and sixteen tokens at a time."""
    largest = 0.0
    for token_ids in texts:
        one, four, sixteen = (read(lm, token_ids, width) for width in (1, 4, 16))
        largest = max(largest, float((four - one).abs().max()), float((sixteen - one).abs().max()))
    return largest


def main() -> None:
    """Measure, print, write ``results/quantised_cache.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    plain = dk.LLM.load(arguments.model)
    small = dk.LLM.load(arguments.model, cache_dtype="int8")
    examples = examples_of(arguments.documents)
    prompts = [prompt for prompt, _ in examples]
    outputs = {
        name: llm.generate(prompts, max_new_tokens=MAX_NEW_TOKENS, batch_size=8)
        for name, llm in (("plain", plain), ("int8", small))
    }
    encode = plain.tokenizer.encode
    texts = [(encode(prompt), encode(answer)) for prompt, answer in examples]
    assert isinstance(plain.model, HuggingFaceLM) and isinstance(small.model, HuggingFaceLM)
    row: dict[str, object] = {**compared(plain.model, small.model, texts)}
    row["greedy_texts_that_are_the_same"] = statistics.mean(
        one.token_ids == other.token_ids for one, other in zip(outputs["plain"], outputs["int8"], strict=True)
    )
    few = [prompt + answer for prompt, answer in texts[:: max(1, len(texts) // 4)]]
    row["largest_difference_by_width_plain"] = moved_by_width(plain.model, few)
    row["largest_difference_by_width_int8"] = moved_by_width(small.model, few)
    sizes = [dk.estimate(llm, 1, 512).kv_bytes_per_token for llm in (plain, small)]
    row["bytes_per_token_plain"], row["bytes_per_token_int8"] = sizes
    for batch_size in (1, 8):
        ratios = []
        for _ in range(arguments.repeats):
            seconds = []
            for llm in (plain, small):
                begin = time.perf_counter()
                llm.generate(prompts[:8], max_new_tokens=MAX_NEW_TOKENS, batch_size=batch_size)
                seconds.append(time.perf_counter() - begin)
            ratios.append(seconds[1] / seconds[0])
        row[f"time_beside_plain_batch_{batch_size}"] = statistics.median(ratios)
    for name, value in row.items():
        print(f"{name.replace('_', ' '):46} {value:.6g}")
    record.write(
        "quantised_cache",
        [row],
        model=arguments.model,
        num_documents=len(prompts),
        num_repeats=arguments.repeats,
        max_new_tokens=MAX_NEW_TOKENS,
    )


if __name__ == "__main__":
    main()
