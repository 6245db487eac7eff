"""What keys and values in eight bits change: logits, likeliest tokens, perplexity, texts, memory and time.

    python -m benchmarks.quantised_cache [--model tiny] [--documents 48] [--repeats 5]

The texts are sample documents with the model's own greedy continuation. Every token of them is read with the plain
cache and with the int8 cache, and the logits are compared place by place: root mean square of the difference over the
deviation of the plain logits, how often the likeliest token is the same, and the perplexity. Greedy texts are compared
as they come out, where one different token makes another text. The last figures say how far a batch moves the logits
with either cache: the same places read one, four and sixteen tokens at a time.
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

DOCUMENTS = Path(__file__).parent.parent / "examples" / "documents.jsonl"
MAX_NEW_TOKENS = 96


def prompts_of(num_documents: int) -> list[str]:
    """Texts of documents of every kind, each as the model's prompt."""
    with DOCUMENTS.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    return [text.strip() + "\n" for text in texts[:: max(1, len(texts) // num_documents)][:num_documents]]


def read(lm: HuggingFaceLM, token_ids: Sequence[int], width: int | None = None) -> Tensor:
    """Logits [T, V] of a text that is read `width` tokens at a time; all at once if None."""
    cache = lm.new_cache(1, len(token_ids))
    row = torch.tensor([token_ids])
    parts = [
        lm.forward(part, [part.shape[1]], cache, logits="all")[0] for part in row.split(width or len(token_ids), dim=1)
    ]
    return torch.cat(parts)


def compared(plain: HuggingFaceLM, small: HuggingFaceLM, texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Errors over all places of all texts."""
    squares = same = places = 0.0
    surprise = {"plain": 0.0, "int8": 0.0}
    largest = 0.0
    for token_ids in texts:
        exact, near = read(plain, token_ids), read(small, token_ids)
        error = (near - exact).square().mean(dim=-1) / exact.var(dim=-1)
        squares, places = squares + float(error.sum()), places + len(error)
        largest = max(largest, float(error.max().sqrt()))
        same += float((near.argmax(dim=-1) == exact.argmax(dim=-1)).sum())
        following = torch.tensor(token_ids[1:])[:, None]
        for name, logits in (("plain", exact), ("int8", near)):
            surprise[name] -= float(logits[:-1].log_softmax(dim=-1).gather(1, following).sum())
    num_predicted = places - len(texts)
    perplexities = {name: math.exp(total / num_predicted) for name, total in surprise.items()}
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
    parser.add_argument("--documents", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    plain = dk.LLM.load(arguments.model)
    small = dk.LLM.load(arguments.model, cache_dtype="int8")
    prompts = prompts_of(arguments.documents)
    outputs = {
        name: llm.generate(prompts, max_new_tokens=MAX_NEW_TOKENS, batch_size=8)
        for name, llm in (("plain", plain), ("int8", small))
    }
    texts = [
        [*llm_ids, *done.token_ids]
        for llm_ids, done in zip((plain.tokenizer.encode(text) for text in prompts), outputs["plain"], strict=True)
    ]
    assert isinstance(plain.model, HuggingFaceLM) and isinstance(small.model, HuggingFaceLM)
    row: dict[str, object] = {**compared(plain.model, small.model, texts)}
    row["greedy_texts_that_are_the_same"] = statistics.mean(
        one.token_ids == other.token_ids for one, other in zip(outputs["plain"], outputs["int8"], strict=True)
    )
    few = texts[:: max(1, len(texts) // 12)]
    row["largest_difference_by_width_plain"] = moved_by_width(plain.model, few)
    row["largest_difference_by_width_int8"] = moved_by_width(small.model, few)
    sizes = [dk.estimate(llm, 1, 512, bandwidth=1e9, flops=1e9).kv_bytes_per_token for llm in (plain, small)]
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
