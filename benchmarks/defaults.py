r"""What the defaults of `JsonSchema` are worth: white space ``"natural"`` and escapes ``"needed"`` beside ``"any"``.

    python -m benchmarks.defaults [--documents 10] [--texts 3] [--budget 512]

The ten schemas of `own_schemas`, which no training has seen. First the bundled model reads their documents, greedy: how
many texts end by themselves within the budget, and how many tokens they take. Then random models of four
architectures draw texts, which ``on_length="close"`` ends in time: every text must be whole and valid. With the
defaults no text may hold a run of blanks or an escape that JSON does not need, in whatever layout it is; with ``"any"``
the share of both is told.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record
from benchmarks.own_schemas import DOCUMENTS, SCHEMAS
from decodekit.constraints.author.filler import filler_of

WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "defaults": {},
    "any": {"whitespace": "any", "escapes": "any", "numbers": "any"},
}
INDENTS: Final = ("  ", "    ", "\t")
RANDOM_BUDGET: Final = 160  # tokens of a text of a random model

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,  # logits far from equal, or all of them would write the same texts
}


def layout_of(text: str) -> str | None:
    """How a JSON text is laid out: ``"compact"``, ``"spaced"``, an indentation; None for any other way.

    A text that two of them have is the first of these. In indented text a container may stand on one line.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) == text:
        return "compact"
    if _on_one_line(tokens) == text:
        return "spaced"
    return next((indent for indent in INDENTS if _indented(tokens, text, indent) == text), None)


def _on_one_line(tokens: Sequence[str]) -> str:
    return "".join(f"{token} " if token in (",", ":") else token for token in tokens)


def _indented(tokens: Sequence[str], text: str, indent: str) -> str:
    """The tokens in indented form, where a container has lines of its own if it begins with a line break in `text`."""
    written = ""
    depth, num_inside = 0, 0  # of containers with lines of their own, and of those on one line
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else ""
        if token in "]}" and num_inside == 0 and before not in ("[", "{"):
            depth -= 1
            written += f"\n{indent * depth}"
        elif token in "]}":
            num_inside -= num_inside > 0
        elif before in ("[", "{") and num_inside == 0:
            written += f"\n{indent * depth}"
        elif before == ",":
            written += f"\n{indent * depth}" if num_inside == 0 else " "
        elif before == ":":
            written += " "
        written += token
        is_empty = token in "[{" and tokens[number + 1 : number + 2] in (["]"], ["}"])
        if token in ("[", "{") and not is_empty:
            if num_inside or not text.startswith("\n", len(written)):
                num_inside += 1
            else:
                depth += 1
    return written


def is_valid(constraint: dk.JsonSchema, text: str) -> bool:
    """Whether a text parses without a key that stands twice and satisfies its schema or type."""
    import jsonschema

    try:
        constraint.parse(text)
    except ValueError:
        return False
    if constraint.python_type is not None:
        return True
    # Exact: 19.9 is a multiple of 0.01, which binary fractions do not know.
    schema, value = (json.loads(one, parse_float=Decimal) for one in (json.dumps(constraint.schema), text))
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def random_models(llm: dk.LLM) -> Iterator[tuple[str, dk.LLM]]:
    """Models of four architectures with random weights, which read and write the tokens of `llm`."""
    import transformers

    size = llm.vocabulary.size
    grouped = {**_SIZES, "num_key_value_heads": 2}
    configs: list[Any] = [
        transformers.LlamaConfig(vocab_size=size, **grouped),
        transformers.Qwen3Config(vocab_size=size, head_dim=8, **grouped),
        transformers.GPTNeoXConfig(vocab_size=size, **_SIZES),
        transformers.MambaConfig(
            vocab_size=size, hidden_size=32, num_hidden_layers=2, state_size=8, initializer_range=0.3
        ),
    ]
    for config in configs:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        yield type(model).__name__, dk.LLM(model, llm.tokenizer)


def of_documents(llm: dk.LLM, way: str, num_documents: int, budget: int) -> Iterator[dict[str, Any]]:
    """One row per schema: what the bundled model makes of its documents."""
    for name, schema in SCHEMAS.items():
        constraint = dk.JsonSchema(schema, **WAYS[way])
        begin = time.process_time()
        done = llm.generate(
            [f"{document}\n" for document in DOCUMENTS[name][:num_documents]],
            constraint=constraint,
            max_new_tokens=budget,
            on_length="return",
        )
        texts = [one.text for one in done if one.finish_reason != "length"]
        if not all(is_valid(constraint, text) for text in texts):
            raise SystemExit(f"{name}, {way}: not valid: {texts}")
        print(f"{name}, {way}", file=sys.stderr)
        yield {
            "model": "tiny",
            "schema": name,
            "way": way,
            **_told(done),
            "num_invalid": 0,
            "seconds": round(time.process_time() - begin, 2),
        }


def of_random(name: str, llm: dk.LLM, way: str, num_texts: int) -> dict[str, Any]:
    """One row for all schemas: what a random model writes."""
    done, num_invalid = [], 0
    begin = time.process_time()
    for schema in SCHEMAS.values():
        constraint = dk.JsonSchema(schema, **WAYS[way])
        found = llm.generate(
            ["Say: "] * num_texts,
            strategy="sample",
            constraint=constraint,
            seed=range(num_texts),
            max_new_tokens=RANDOM_BUDGET,
            on_length="close",
        )
        num_invalid += sum(one.error is not None or not is_valid(constraint, one.text) for one in found)
        done += found
    seconds = round(time.process_time() - begin, 2)
    return {"model": name, "schema": "all", "way": way, **_told(done), "num_invalid": num_invalid, "seconds": seconds}


def _told(done: Sequence[dk.Completion]) -> dict[str, Any]:
    filled = [filler_of(one.text) for one in done]
    characters = max(1, sum(len(one.text) for one in done))
    whole = [one.text for one in done if one.finish_reason != "length"]
    return {
        "num_texts": len(done),
        "num_finished": len(whole),
        "tokens": sum(len(one.token_ids) for one in done),
        "blanks": round(sum(one.blanks for one in filled) / characters, 4),
        "needless_escapes": round(sum(one.needless for one in filled) / characters, 4),
        "layouts": dict(Counter(repr(layout_of(text)) for text in whole)),
    }


def main() -> None:
    """Measure, print, write ``results/defaults.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10, help="documents of each schema")
    parser.add_argument("--texts", type=int, default=3, help="texts of each schema and random model")
    parser.add_argument("--budget", type=int, default=512, help="max_new_tokens for a document")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tiny = dk.LLM.load("tiny")
    rows = [row for way in WAYS for row in of_documents(tiny, way, arguments.documents, arguments.budget)]
    for name, llm in random_models(tiny):
        rows += [of_random(name, llm, way, arguments.texts) for way in WAYS]
    table = Table(title="Texts of ten schemas")
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading in ("model", "schema", "way", "layouts") else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=150).print(table)
    totals = {way: _total([row for row in rows if (row["model"], row["way"]) == ("tiny", way)]) for way in WAYS}
    for way, total in totals.items():
        print(f"tiny, {way}: {total['num_finished']} of {total['num_texts']} finished, {total['tokens']:,} tokens")
    record.write(
        "defaults",
        rows,
        question="texts finished, tokens, blanks and needless escapes with the defaults of JsonSchema and others",
        tiny=totals,
        budget=arguments.budget,
        budget_of_random_models=RANDOM_BUDGET,
    )
    mine = [row for row in rows if row["way"] == "defaults"]
    if any(row["needless_escapes"] or row["num_invalid"] or "None" in row["layouts"] for row in mine):
        raise SystemExit("with the defaults a text is not valid, in no layout, or has needless escapes")


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: sum(row[name] for row in rows) for name in ("num_texts", "num_finished", "tokens")}


if __name__ == "__main__":
    main()
