"""Forward passes per token of constrained extraction, with forced tokens and drafts; the texts must stay the same.

    python -m benchmarks.forwards [--model tiny] [--draft-model tiny-draft] [--batch-size 8]

The sample documents go through the model, greedy, each under the schema of its kind. A pass counts for a row when the
row takes part in it, prefill included; passes of the draft model do not count. Nothing is timed, so the figures do not
depend on the machine. A corpus begins empty and grows with the documents that are done.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record
from decodekit.speculation import (
    Adaptive,
    DraftModel,
    EarlyExit,
    GrammarDraft,
    Joined,
    PromptLookup,
    Suffix,
    SuffixCorpus,
)

EXAMPLES = Path(__file__).parent.parent / "examples"
MAX_NEW_TOKENS = 320


def settings(draft_model: str) -> dict[str, dict[str, Any]]:
    """Options by their name in the table; a corpus belongs to one setting alone."""
    grammar, draft, early = GrammarDraft(), DraftModel(draft_model, num_tokens=8), EarlyExit(0.6)
    speculate: dict[str, Any] = {
        "GrammarDraft": grammar,
        "PromptLookup": PromptLookup(),
        "Suffix": Suffix(),
        "Suffix, corpus": Suffix(corpus=SuffixCorpus()),
        "DraftModel": draft,
        "GrammarDraft, PromptLookup": (grammar, PromptLookup()),
        "GrammarDraft, Suffix": (grammar, Suffix()),
        "GrammarDraft, Suffix, corpus": (grammar, Suffix(corpus=SuffixCorpus())),
        "GrammarDraft, DraftModel": (grammar, draft),
        "Suffix, corpus from 4 tokens on; DraftModel": (Suffix(min_match=4, corpus=SuffixCorpus()), draft),
        "each adaptive: GrammarDraft, Suffix": (Adaptive(grammar), Adaptive(Suffix())),
        "EarlyExit, 60 % of the layers": early,
        "joined: GrammarDraft, PromptLookup": Joined((grammar, PromptLookup())),
        "joined: GrammarDraft, adaptive PromptLookup": Joined((grammar, Adaptive(PromptLookup()))),
        "joined: GrammarDraft, DraftModel": Joined((grammar, draft)),
        "joined: GrammarDraft, EarlyExit": Joined((grammar, early)),
    }
    forced = {f"forced; {name}": {"speculate": value} for name, value in speculate.items()}
    return {"plain": {"fast_forward": "off"}, "forced": {}, **forced}


def documents() -> dict[str, list[str]]:
    """The prompts of the sample documents by their kind."""
    prompts: dict[str, list[str]] = defaultdict(list)
    for line in (EXAMPLES / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        prompts[document["kind"]].append(document["text"].strip() + "\n")
    return dict(prompts)


def run(llm: Any, prompts: dict[str, list[str]], batch_size: int, options: dict[str, Any]) -> list[Any]:
    """Completions of all documents."""
    completions: list[Any] = []
    for kind, texts in prompts.items():
        schema = json.loads((EXAMPLES / kind / "schema.json").read_text(encoding="utf-8"))
        completions += llm.generate(
            texts,
            constraint=schema,
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=batch_size,
            on_length="return",
            **options,
        )
    return completions


def summary(name: str, completions: list[Any]) -> dict[str, object]:
    """The figures of one setting, over all documents."""
    stats = [completion.stats for completion in completions]
    num_tokens = sum(one.num_generated_tokens for one in stats)
    num_drafts, num_offered = sum(one.num_drafts for one in stats), sum(one.num_draft_tokens for one in stats)
    num_accepted = sum(sum(one.acceptance_histogram) for one in stats)
    return {
        "setting": name,
        "num_tokens": num_tokens,
        "num_forwards": sum(one.num_forwards for one in stats),
        "forwards_per_token": round(sum(one.num_forwards for one in stats) / num_tokens, 3),
        "num_forced_tokens": sum(one.num_forced_tokens for one in stats),
        "draft_acceptance_rate": round(num_accepted / num_offered, 3) if num_offered else None,
        "mean_acceptance_length": round(1 + num_accepted / num_drafts, 2) if num_drafts else None,
    }


def main() -> None:
    """Count, print the table, write ``results/forwards.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--draft-model", default="tiny-draft")
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()

    llm = dk.LLM.load(arguments.model)
    prompts = documents()
    rows: list[dict[str, object]] = []
    expected: list[Any] = []
    for name, options in settings(arguments.draft_model).items():
        completions = run(llm, prompts, arguments.batch_size, options)
        texts = [completion.token_ids for completion in completions]
        if texts != (expected := expected or texts):
            raise SystemExit(f"{name}: a text differs from the plain one")
        rows.append(summary(name, completions))
    table = Table(title="forward passes per token")
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "), justify="left" if heading == "setting" else "right")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table)
    record.write(
        "forwards",
        rows,
        model=arguments.model,
        draft_model=arguments.draft_model,
        num_documents=sum(map(len, prompts.values())),
        batch_size=arguments.batch_size,
        max_new_tokens=MAX_NEW_TOKENS,
        strategy="greedy",
    )


if __name__ == "__main__":
    main()
