"""The likeliest mistakes of users, each made as a user makes it, and the code that names it.

`ROWS` are the codes of the table in the contract on errors; the last test holds that each is provoked here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.cli.parts import console
from decodekit.testing.toy import ToyTokenizer
from tests.commands import Result
from tests.jobs.fakes import answering_at_once, read_jsonl, write_jsonl
from tests.jobs.test_runner import Narrow
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import EOS, small_tokenizer

ROWS = [
    "DK101",
    "DK201",
    "DK202",
    "DK204",
    "DK301",
    "DK302",
    "DK303",
    "DK304",
    "DK305",
    "DK306",
    "DK401",
    "DK501",
    "DK502",
    "DK601",
    "DK602",
    "DK603",
]
V = 160
INVOICE = "Invoice A-17, total 40.20 EUR."


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(INVOICE)
    return tmp_path


def extract(*options: object) -> Any:
    return Result("extract", "a.txt", "-o", "out", *options)


def error_of(llm: dk.LLM, prompt: Any, **options: Any) -> dk.DecodekitError:
    """The error of a call, raised or of its completion; both are the same with ``on_error="raise"``."""
    with pytest.raises(dk.DecodekitError) as raised:
        llm.generate(prompt, on_error="raise", **options)
    return raised.value


def says(error: object, code: str, *words: str) -> None:
    text = str(error)
    assert text.startswith(code), text
    assert all(word in text for word in words), text


def test_a_text_cut_at_the_limit(work: Path, llm: dk.LLM) -> None:
    refused = extract("--schema", "number, total float", "--max-new-tokens", "3")
    assert refused.code == console.USAGE
    told = refused.err.partition("\n")[2]  # after the line about loading
    says(told, "DK305", "--max-new-tokens 3 is too few for any text of the schema: it needs 14", "14 or more")
    assert not (work / "out").exists()
    done = extract("--schema", "number, total float", "--max-new-tokens", "15")
    [row] = read_jsonl(work / "out" / "failed.jsonl")
    assert done.code == console.SOME_FAILED
    assert row["code"] == "DK101" and row["at"].startswith("inside") and "max_new_tokens" in row["hint"]
    error = error_of(llm, INVOICE, constraint={"type": "string"}, max_new_tokens=2)
    says(error, "DK101", "max_new_tokens=2", "on_length")


@pytest.mark.parametrize(
    ("schema", "code", "words"),
    [
        ('{"properties": {"a": {"pattern": "\\\\p{Nope}"}}}', "DK201", ("#/properties/a/pattern",)),
        ('{"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}', "DK202", ()),
        ('{"type": "integer", "minimum": 5, "maximum": 3}', "DK202", ("minimum 5", "maximum 3")),
        ("invoice_forms.py:Invioce", "DK204", ("'Invioce'", "Invoice, Item")),
        ("nowhere.json", "DK204", ("nowhere.json",)),
    ],
)
def test_schemas(work: Path, schema: str, code: str, words: tuple[str, ...]) -> None:
    (work / "invoice_forms.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Item:\n    a: str\n\n"
        "@dataclass\nclass Invoice:\n    a: str\n"
    )
    done = extract("--schema", schema)
    assert done.code == console.SCHEMA_REFUSED
    says(done.err, code, *words)


def test_a_tokenizer_of_another_model(llm: dk.LLM) -> None:
    with pytest.raises(dk.DecodekitError) as raised:
        dk.LLM(ToyLM(hashed_law(40), 40), llm.tokenizer)
    says(raised.value, "DK301", "40")


def test_prompts_that_the_model_cannot_read(llm: dk.LLM) -> None:
    says(error_of(llm, [{"role": "user", "content": "x"}]), "DK302", "chat template")
    says(error_of(llm, "a " * 2_000), "DK304", "4,000 tokens", "1,024")
    done = Result("generate", "a " * 2_000)
    assert done.code == console.SOME_FAILED and "DK304" in done.err


def test_a_draft_of_another_family(llm: dk.LLM) -> None:
    other = dk.LLM(ToyLM(hashed_law(V), V, frozenset({EOS})), small_tokenizer())
    says(error_of(llm, "x", strategy="sample", speculate=dk.DraftModel(other)), "DK303", "draft model")


def test_options(work: Path, llm: dk.LLM) -> None:
    says(error_of(llm, "x", strategy="beam", num_beams=4, draft_model="tiny-draft"), "DK305", "draft_model")
    says(error_of(llm, "x", strategy="beam", num_beams=4, speculate="suffix"), "DK305", "speculate")
    says(error_of(llm, "x", temperature=0.7), "DK306", "temperature=0.7 has no effect with greedy decoding")
    says(error_of(llm, "x", strategy="specualtive"), "DK401", "Did you mean 'speculative'?", "greedy")
    for options, code in ((("--temperature", "0.7"), "DK306"), (("--strategy", "specualtive"), "DK401")):
        for command in (("generate", "x"), ("extract", "a.txt", "-o", "out", "--schema", "a")):
            done = Result(*command, *options)
            assert (done.code, done.err[:5]) == (console.USAGE, code)


def test_jobs(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering_at_once(monkeypatch)
    assert extract("--schema", "first, words int, seed int").code in (console.DONE, console.SOME_FAILED)
    done = extract("--schema", "first")
    assert done.code == console.USAGE
    says(done.err, "DK501", "--fresh", "--force")
    write_jsonl(work / "d.jsonl", [{"id": "a-1", "text": "x"}, {"id": "b", "text": "y"}, {"id": "a-1", "text": "z"}])
    done = Result("extract", "d.jsonl", "-o", "new", "--schema", "a")
    assert done.code == console.USAGE
    says(done.err, "DK502", "line 3 repeats id 'a-1' of line 1")
    done = Result("extract", "d.jsonl", "-o", "new", "--schema", "a", "--text-field", "body")
    assert done.code == console.USAGE and done.err.startswith("DK502") and "body" in done.err


def test_no_token_is_allowed(llm: dk.LLM) -> None:
    letters = llm.tokenizer("abc", add_special_tokens=False)["input_ids"]
    error = error_of(llm, "x", constraint=dk.Regex("[0-9]+"), allowed_tokens=letters)
    says(error, "DK601", "every token that is allowed")


def test_logits_that_are_no_numbers() -> None:
    def law(prefix: Sequence[int]) -> Tensor:
        return torch.full((V,), float("nan"))

    broken = dk.LLM(ToyLM(law, V, frozenset({EOS})), small_tokenizer())
    says(error_of(broken, "the"), "DK602", "prompt 0")


def test_memory_that_a_document_alone_exceeds() -> None:
    broken = dk.LLM(Narrow(num_tokens=400), ToyTokenizer())
    done = broken.generate(["HUGE" * 200, "fine"], max_new_tokens=8, on_error="return")
    assert done[0].error is not None and done[1].error is None
    says(done[0].error, "DK603", "memory")


def test_every_row_of_the_table_is_provoked() -> None:
    tests = [value for name, value in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    here = "".join(inspect.getsource(one) for one in tests)
    marked = repr([mark.args for one in tests for mark in getattr(one, "pytestmark", [])])
    assert set(ROWS) <= set(re.findall(r"DK\d{3}", here + marked))
