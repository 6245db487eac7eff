"""How many fields a model reads exactly right.

    python -m training.evaluate tiny                            # 500 documents of each of the two held-out sets
    python -m training.evaluate tiny --documents 60 --examples
    python -m training.evaluate tiny --documents 60 --draft tiny-draft    # instead: how often a draft model agrees

Two sets, both with values that training never drew (`training.values.is_reserved`): wordings that training used, and
wordings written separately that it never used. Each is decoded greedily, without a constraint and under the JSON Schema
of its kind. A field is a top-level property; it is right if its parsed JSON value equals the expected one. Output that
is no JSON object, or lacks the field, has it wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.documents import make_document
from training.kinds import KINDS
from training.kinds.kind import EXAMPLES
from training.train import MODELS

MAX_NEW_TOKENS = 512


@dataclass(frozen=True)
class Task:
    """A document of a kind and the value that should be read from it."""

    kind: str
    text: str
    value: dict[str, Any]


@dataclass
class Score:
    """Counts over the documents seen so far."""

    num_documents: int = 0
    num_valid: int = 0
    num_perfect: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    def add(self, task: Task, output: str) -> list[str]:
        """Count one output; returns the names of the fields that are wrong."""
        try:
            parsed = json.loads(output)
        except json.JSONDecodeError:
            parsed = None
        self.num_documents += 1
        self.num_valid += jsonschema.Draft202012Validator(KINDS[task.kind].schema).is_valid(parsed)
        wrong = []
        for name, expected in task.value.items():
            key = f"{task.kind}.{name}"
            self.fields[key] += 1
            # bool is an int in Python: compare the JSON text of truth values.
            is_right = isinstance(parsed, dict) and name in parsed and same_value(parsed[name], expected)
            self.right[key] += is_right
            if not is_right:
                wrong.append(name)
        self.num_perfect += not wrong
        return wrong

    @property
    def field_rate(self) -> float:
        """The part of fields that are exactly right."""
        return self.right.total() / self.fields.total()

    @property
    def valid_rate(self) -> float:
        """The part of documents whose output the schema accepts."""
        return self.num_valid / self.num_documents

    @property
    def perfect_rate(self) -> float:
        """The part of documents with every field right."""
        return self.num_perfect / self.num_documents


def same_value(left: Any, right: Any) -> bool:
    """Equality of JSON values: 40.20 equals 40.2, true does not equal 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[key], right[key]) for key in left)
    return bool(left == right)


def held_out_tasks(num_documents: int, *, held_out_wordings: bool) -> list[Task]:
    """Documents with reserved values, the kinds in turn; the same ones in every process."""
    rng = random.Random(f"evaluation:{held_out_wordings}")
    kinds = list(KINDS.values())
    tasks = []
    for index in range(num_documents):
        document = make_document(
            kinds[index % len(kinds)], rng, held_out_wordings=held_out_wordings, reserved_values=True
        )
        tasks.append(Task(document.kind, document.text, document.value))
    return tasks


def example_tasks() -> list[Task]:
    """The documents of `examples/`."""
    tasks = []
    for kind in KINDS:
        for line in (EXAMPLES / kind / "expected.jsonl").read_text(encoding="utf-8").splitlines():
            expected = json.loads(line)
            text = (EXAMPLES / f"{expected['id']}.txt").read_text(encoding="utf-8").rstrip("\n")
            tasks.append(Task(kind, text, expected["value"]))
    return tasks


def prompt_of(task: Task) -> str:
    """The prompt format: the document and a line feed."""
    return task.text + "\n"


def decode_unconstrained(folder: Path, tasks: list[Task], batch_size: int = 32) -> list[str]:
    """Greedy output of transformers' `generate`, in the order of the tasks."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = [prompt_of(task) for task in tasks]
    # Batches of like length, for little padding.
    order = sorted(range(len(tasks)), key=lambda index: len(prompts[index]))
    outputs = [""] * len(tasks)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = tokenizer([prompts[i] for i in chosen], return_tensors="pt", padding=True, padding_side="left")
        with torch.inference_mode():
            generated = model.generate(**batch, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        new_tokens = generated[:, batch["input_ids"].shape[1] :]
        for index, text in zip(chosen, tokenizer.batch_decode(new_tokens, skip_special_tokens=True), strict=True):
            outputs[index] = text
    return outputs


def decode_constrained(folder: Path, tasks: list[Task], batch_size: int = 16) -> list[str]:
    """Greedy output of decodekit under the schema of each task's kind.

    A text that would not end by itself (a number whose digits repeat) is closed within the limit, as for a user who
    wants valid JSON from every document; its fields are judged like all others.
    """
    import decodekit as dk

    llm = dk.LLM.load(str(folder))
    outputs = [""] * len(tasks)
    for kind in KINDS.values():
        chosen = [index for index, task in enumerate(tasks) if task.kind == kind.name]
        chosen.sort(key=lambda index: len(tasks[index].text))
        for start in range(0, len(chosen), batch_size):
            part = chosen[start : start + batch_size]
            completions = llm.generate(
                [prompt_of(tasks[index]) for index in part],
                constraint=kind.schema,
                strategy=dk.Greedy(),
                max_new_tokens=MAX_NEW_TOKENS,
                on_length="close",
            )
            for index, completion in zip(part, completions, strict=True):
                outputs[index] = completion.text
    return outputs


@torch.inference_mode()
def draft_agreement(folder: Path, draft_folder: Path, tasks: list[Task]) -> float:
    """The part of positions of a greedy unconstrained output (EOS included) at which the draft's likeliest token is it.

    One forward of the draft reads prompt and output, so every position is judged behind the model's own tokens: it is
    the rate at which greedy verification would accept the first token of a draft.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    draft = AutoModelForCausalLM.from_pretrained(draft_folder).eval()
    num_same = num_positions = 0
    for task in tasks:
        prompt = tokenizer(prompt_of(task), return_tensors="pt").input_ids
        tokens = model.generate(prompt, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        start = prompt.shape[1]
        # The logits at a position are for the token after it.
        guesses = draft(tokens).logits[0, start - 1 : -1].argmax(-1)
        num_same += int((guesses == tokens[0, start:]).sum())
        num_positions += tokens.shape[1] - start
    return num_same / num_positions


def report(name: str, tasks: list[Task], outputs: Iterable[str], num_failures: int, seconds: float) -> Score:
    """Print one line of figures, the weakest fields, and some failures."""
    score = Score()
    shown = 0
    for task, output in zip(tasks, outputs, strict=True):
        wrong = score.add(task, output)
        if wrong and shown < num_failures:
            shown += 1
            print(f"--- wrong {wrong}\n{task.text}\n>>> {output}\n=== {json.dumps(task.value, ensure_ascii=False)}")
    print(
        f"{name}: fields right {score.field_rate:.4f}, documents all right {score.perfect_rate:.4f}, "
        f"schema-valid {score.valid_rate:.4f}, {score.num_documents} documents, {seconds:.0f} s",
        flush=True,
    )
    rates = sorted((score.right[key] / count, key) for key, count in score.fields.items())
    print("  weakest: " + ", ".join(f"{key} {rate:.2f}" for rate, key in rates[:12]), flush=True)
    return score


def folder_of(model: str) -> Path:
    """The folder of a bundled model, or of one's own."""
    return MODELS / model if (MODELS / model).is_dir() else Path(model)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model of decodekit/models, or a folder")
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--examples", action="store_true", help="evaluate on examples/ as well")
    parser.add_argument("--mode", choices=("unconstrained", "constrained", "both"), default="both")
    parser.add_argument("--failures", type=int, default=0, help="show so many wrong outputs")
    parser.add_argument("--draft", help="a model or folder: measure alone how often its likeliest token is the model's")
    arguments = parser.parse_args()
    folder = folder_of(arguments.model)
    sets = {
        "known wordings": held_out_tasks(arguments.documents, held_out_wordings=False),
        "unseen wordings": held_out_tasks(arguments.documents, held_out_wordings=True),
    }
    if arguments.examples:
        sets["examples"] = example_tasks()
    if arguments.draft is not None:
        for name, tasks in sets.items():
            rate = draft_agreement(folder, folder_of(arguments.draft), tasks)
            print(f"{arguments.draft} agrees, {name}: {rate:.4f} of positions, {len(tasks)} documents", flush=True)
        return
    decoders: dict[str, Callable[[Path, list[Task]], list[str]]] = {
        "unconstrained": decode_unconstrained,
        "constrained": decode_constrained,
    }
    for mode, decode in decoders.items():
        if arguments.mode not in (mode, "both"):
            continue
        for name, tasks in sets.items():
            started = time.monotonic()
            outputs = decode(folder, tasks)
            report(f"{mode}, {name}", tasks, outputs, arguments.failures, time.monotonic() - started)


if __name__ == "__main__":
    main()
