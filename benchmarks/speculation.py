"""What guessing ahead buys: tokens per second with and without, and beside transformers' assisted decoding.

    python -m benchmarks.speculation [--parts extraction assisted idle] [--repeats 7] [--documents 16]

``extraction``: the sample documents under the schema of their kind, plain decodekit, decodekit with proposers, and
transformers' `generate`, which has no constraint and so less to do; batch 1 and 8. All of ours give the same texts.

``assisted``: prompt lookup and a draft model here and there (`prompt_lookup_num_tokens`, `assistant_model`), free text,
greedy and sampled, batch 1, since theirs has no other. Greedy texts must be the same on both sides.

``idle``: a proposer with nothing to find (prompts of random tokens, so that texts repeat nothing) beside no proposer.

Runs alternate, so that whatever else the machine does falls on all; a figure is the median over the repeats, a ratio
the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record
from benchmarks.loop import SAMPLING, load_prompts

EXAMPLES = Path(__file__).parent.parent / "examples"
MAX_NEW_TOKENS = 160

Run = Callable[[], list[list[int]]]
"""Decodes all prompts; the token ids of each."""


def documents(num_documents: int) -> list[tuple[str, str]]:
    """Kind and prompt of sample documents, those of a kind together."""
    with (EXAMPLES / "documents.jsonl").open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    step = max(1, len(entries) // num_documents)
    chosen = [(entry["kind"], entry["text"].strip() + "\n") for entry in entries[::step][:num_documents]]
    return sorted(chosen, key=lambda one: one[0])


def extracted(llm: Any, entries: Sequence[tuple[str, str]], batch_size: int, **options: Any) -> list[list[int]]:
    """Texts under the schemas of the documents' kinds."""
    texts: list[list[int]] = []
    for kind, group in itertools.groupby(entries, key=lambda one: one[0]):
        schema = json.loads((EXAMPLES / kind / "schema.json").read_text(encoding="utf-8"))
        completions = llm.generate(
            [prompt for _, prompt in group],
            constraint=schema,
            max_new_tokens=320,
            batch_size=batch_size,
            on_length="return",
            **options,
        )
        texts += [list(completion.token_ids) for completion in completions]
    return texts


def free(llm: Any, prompts: Sequence[str], strategy: Any, batch_size: int = 1) -> list[list[int]]:
    """Texts without a constraint."""
    completions = llm.generate(list(prompts), strategy=strategy, max_new_tokens=MAX_NEW_TOKENS, batch_size=batch_size)
    return [list(completion.token_ids) for completion in completions]


def theirs(model: Any, tokenizer: Any, prompts: Sequence[str], batch_size: int = 1, **options: Any) -> list[list[int]]:
    """The same through `model.generate`, padded on the left; tokens up to the first end-of-sequence token."""
    eos = set(torch.tensor(model.generation_config.eos_token_id).reshape(-1).tolist())
    texts: list[list[int]] = []
    for start in range(0, len(prompts), batch_size):
        batch = tokenizer(list(prompts[start : start + batch_size]), return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        out = model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, **options)
        for row in out[:, batch["input_ids"].shape[1] :].tolist():
            end = next((i + 1 for i, token in enumerate(row) if token in eos), len(row))
            texts.append(row[:end])
    return texts


def alternating(runs: Mapping[str, Run], num_repeats: int) -> dict[str, list[float]]:
    """Tokens per second of every run, turn by turn, after one turn that warms up."""
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(num_repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            texts = run()
            seconds = time.perf_counter() - begin
            if turn:
                speeds[name].append(sum(map(len, texts)) / seconds)
    return speeds


def row(part: str, setting: str, name: str, speeds: Mapping[str, list[float]], bases: Sequence[str]) -> dict[str, Any]:
    """The figures of one run beside those that it is compared with."""
    ratios = {
        base: round(statistics.median(a / b for a, b in zip(speeds[name], speeds[base], strict=True)), 3)
        for base in bases
        if base != name
    }
    return {
        "part": part,
        "setting": setting,
        "run": name,
        "tokens_per_second": round(statistics.median(speeds[name]), 1),
        "ratio_to": ratios,
    }


class Benchmark:
    """The model, its draft, the same weights in transformers, and what is wanted."""

    def __init__(self, model: str, draft: str, num_documents: int, num_repeats: int) -> None:
        from decodekit.models.loading import load

        self.llm, self.draft = dk.LLM.load(model), dk.LLM.load(draft)
        reference, self.tokenizer = load(model)
        self.model = reference.model
        self.assistant = load(draft)[0].model
        self.tokenizer.padding_side = "left"
        self.entries = documents(num_documents)
        self.prompts = load_prompts(num_documents)
        self.num_repeats = num_repeats

    def extraction(self) -> list[dict[str, Any]]:
        """Constrained extraction."""
        rows = []
        for batch_size in (1, 8):
            options: dict[str, dict[str, Any]] = {
                "plain": {},
                "GrammarDraft, Suffix": {"speculate": ("grammar", "suffix")},
                "GrammarDraft, PromptLookup": {"speculate": ("grammar", "prompt-lookup")},
                "GrammarDraft, DraftModel": {"speculate": (dk.GrammarDraft(), dk.DraftModel(self.draft, num_tokens=8))},
            }
            runs: dict[str, Run] = {
                name: functools.partial(extracted, self.llm, self.entries, batch_size, **given)
                for name, given in options.items()
            }
            expected = runs["plain"]()
            for name, run in runs.items():
                require_same(run(), expected, name)
            prompts = [prompt for _, prompt in self.entries]
            runs["transformers, without constraint"] = functools.partial(
                theirs, self.model, self.tokenizer, prompts, batch_size, do_sample=False
            )
            speeds = alternating(runs, self.num_repeats)
            bases = ("plain", "transformers, without constraint")
            rows += [row("extraction", f"batch {batch_size}", name, speeds, bases) for name in runs]
        return rows

    def assisted(self) -> list[dict[str, Any]]:
        """Beside transformers' assisted decoding."""
        rows = []
        for (law, sampling), (proposer, speculate, options) in itertools.product(
            (("greedy", None), ("sampled", SAMPLING)),
            (
                ("prompt lookup", dk.PromptLookup(), {"prompt_lookup_num_tokens": 10}),
                ("draft model", dk.DraftModel(self.draft), {"assistant_model": self.assistant}),
            ),
        ):
            strategy = (
                dk.Greedy(speculate=speculate)
                if sampling is None
                else dk.Sample(**sampling, seed=1, speculate=speculate)
            )
            given = {"do_sample": False} if sampling is None else {"do_sample": True, **sampling}
            runs: dict[str, Run] = {
                "decodekit": functools.partial(free, self.llm, self.prompts, strategy),
                "transformers": functools.partial(theirs, self.model, self.tokenizer, self.prompts, **given, **options),
            }
            if sampling is None:
                require_same(runs["decodekit"](), runs["transformers"](), proposer)
            speeds = alternating(runs, self.num_repeats)
            rows += [row("assisted", f"{proposer}, {law}", name, speeds, ("transformers",)) for name in runs]
        return rows

    def idle(self) -> list[dict[str, Any]]:
        """A proposer that finds nothing, beside none."""
        generator = random.Random(0)
        special = {token for token, data in enumerate(self.llm.vocabulary.token_bytes) if not data}
        words = [token for token in range(self.llm.vocabulary.size) if token not in special]
        prompts = [self.tokenizer.decode(generator.sample(words, 64)) for _ in range(len(self.prompts))]
        rows = []
        for name in ("prompt-lookup", "suffix"):
            # Hot sampling keeps the text from repeating itself.
            runs: dict[str, Run] = {
                "off": functools.partial(free, self.llm, prompts, dk.Sample(temperature=3.0, seed=1)),
                "on": functools.partial(free, self.llm, prompts, dk.Sample(temperature=3.0, seed=1, speculate=name)),
            }
            require_same(runs["on"](), runs["off"](), name)
            speeds = alternating(runs, 3 * self.num_repeats)
            rows.append(row("idle", name, "on", speeds, ("off",)))
        return rows


def require_same(texts: list[list[int]], expected: list[list[int]], name: str) -> None:
    """A speed of other texts is not reported."""
    if texts != expected:
        raise SystemExit(f"{name}: a text differs")


def main() -> None:
    """Measure, print the table, write ``results/speculation.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["extraction", "assisted", "idle"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--draft-model", default="tiny-draft")
    arguments = parser.parse_args()

    load_before = os.getloadavg()[0]
    benchmark = Benchmark(arguments.model, arguments.draft_model, arguments.documents, arguments.repeats)
    rows = [one for part in arguments.parts for one in getattr(benchmark, part)()]
    table = Table(title="tokens per second, median")
    for heading in ("part", "setting", "run", "tokens/s", "ratio to"):
        table.add_column(heading)
    for one in rows:
        ratios = ", ".join(f"{base}: {ratio}" for base, ratio in one["ratio_to"].items())
        table.add_row(one["part"], one["setting"], one["run"], str(one["tokens_per_second"]), ratios)
    Console().print(table)
    record.write(
        "speculation",
        rows,
        model=arguments.model,
        draft_model=arguments.draft_model,
        num_documents=arguments.documents,
        num_repeats=arguments.repeats,
        max_new_tokens=MAX_NEW_TOKENS,
        sampling=SAMPLING,
        num_threads=torch.get_num_threads(),
        load_average_before=round(load_before, 2),
    )


if __name__ == "__main__":
    main()
