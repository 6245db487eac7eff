"""What decides a job's results is part of its fingerprint; all else that can be given is known to change none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main

import decodekit as dk
from decodekit.cli import app
from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from decodekit.jobs.extraction import Extraction, ExtractionOptions
from decodekit.jobs.folder.job_folder import JobSettings
from decodekit.jobs.job_schema import load_schema
from decodekit.records.fingerprints import tokenizer_fingerprint
from decodekit.strategy.strategy_programs import programs_of
from tests.commands import Result
from tests.jobs.fakes import SCHEMA, FakeLLM, make_settings, write_jsonl
from tests.sizes import few

MODULE = """
from __future__ import annotations
import decodekit as dk
from pydantic import BaseModel, field_validator
import checks

LEAST = 2

class Form(BaseModel):
    first: str

    @field_validator("first")
    @classmethod
    def is_long(cls, value: str) -> str:
        assert len(value) >= LEAST and checks.is_clean(value)
        return value

POINT = dk.JsonSchema({"$ref": "https://example.org/p"}, registry={"https://example.org/p": {"type": "integer"}})
CHECKED = dk.Guarded(Form, lambda form: form.first != "x")
"""
CHECKS = "def is_clean(value):\n    return '!' not in value\n"

# What a command has besides, and one more option, which decides the results.
DECIDING: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--schema": ((), ("--schema", "name, total float")),
    "--whitespace": ((), ("--whitespace", "compact")),
    "--escapes": ((), ("--escapes", "any")),
    "--numbers": ((), ("--numbers", "any")),
    "--format": ((), ("--format", "annotate")),
    "--order": ((), ("--order", "any")),
    "--model": ((), ("--model", "other")),
    "--dtype": ((), ("--dtype", "bfloat16")),
    "--prompt": ((), ("--prompt", "Read {text}")),
    "--raw": (("--prompt", "Read {text}"), ("--raw",)),
    "--strategy": ((), ("--strategy", "sample")),
    "--temperature": (("--strategy", "sample"), ("--temperature", "0.5")),
    "--top-k": (("--strategy", "sample"), ("--top-k", "5")),
    "--top-p": (("--strategy", "sample"), ("--top-p", "0.5")),
    "--min-p": (("--strategy", "sample"), ("--min-p", "0.1")),
    "--repetition-penalty": ((), ("--repetition-penalty", "1.2")),
    "--presence-penalty": ((), ("--presence-penalty", "0.5")),
    "--frequency-penalty": ((), ("--frequency-penalty", "0.5")),
    "--seed": ((), ("--seed", "5")),
    "--fast-forward": ((), ("--fast-forward", "canonical")),
    "--max-new-tokens": ((), ("--max-new-tokens", "77")),
    "--on-length": ((), ("--on-length", "close")),
    "--max-rollbacks": (("--schema", "CHECKED"), ("--max-rollbacks", "3")),
    "--max-retries": ((), ("--max-retries", "2")),
    "--chat-template-kwargs": (("--prompt", "Read {text}"), ("--chat-template-kwargs", '{"a": 1}')),
}
NOT_DECIDING = {
    "inputs": "which documents are done; each row has the digest of its own",
    "--id-field": "which documents are done, under which name",
    "--text-field": "which text is a document; a changed one is done again",
    "--include": "which documents are done",
    "--exclude": "which documents are done",
    "--encoding": "which text a document has; a changed one is done again",
    "--limit": "which documents are done",
    "--alternatives": "figures beside the results, of a further reading",
    "--shard": "which documents are done",
    "--max-failures": "when the job stops",
    "--max-document-mb": "which documents fail, and the digest of each says what it is",
    "--batch-size": "how fast: a row does not depend on its neighbours",
    "--executor": "where: the workers' weights are those of the driver",
    "--workers": "where",
    "--output-format": "a table beside the results",
    "--device-map": "where: the number type is a setting, devices differ at near ties alone",
    "--speculate": "how fast: guesses never change a text; with verify=rejection they are part of the strategy",
    "--output": "the folder itself",
    "-o": "the folder itself",
    "--fresh": "the folder begins anew",
    "--force": "rows of several settings, each with the name of its own",
}
SAME: dict[str, tuple[str, ...]] = {
    "--id-field": ("--id-field", "name"),
    "--text-field": ("--text-field", "words"),
    "--include": ("--include", "*.log"),
    "--exclude": ("--exclude", "*.txt"),
    "--encoding": ("--encoding", "auto:cp1252"),
    "--limit": ("--limit", "1"),
    "--alternatives": ("--alternatives",),
    "--shard": ("--shard", "1/3"),
    "--max-failures": ("--max-failures", "1"),
    "--max-document-mb": ("--max-document-mb", "1"),
    "--batch-size": ("--batch-size", "2"),
    "--device-map": ("--device-map", "cpu"),
    "--speculate": ("--speculate", "suffix"),
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a schema, a module, documents, and a model that is never asked for a text."""
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "shapes.py").write_text(MODULE)
    (tmp_path / "checks.py").write_text(CHECKS)
    rows = [{"id": "a", "name": "b", "text": "one two", "words": "three"}]
    write_jsonl(tmp_path / "d.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(extract_module, "load_model", fake)
    monkeypatch.setattr(extract_module, "run", lambda *args, **options: console.DONE)
    yield tmp_path
    import sys

    sys.modules.pop("checks", None)


def fake(name: str, dtype: str, device_map: str | None) -> FakeLLM:
    llm = FakeLLM()
    llm.model.name, llm.model.dtype = name, f"torch.{dtype}"
    llm.tokenizer = SimpleNamespace(chat_template="{{ messages }}")
    return llm


def extract(*options: str) -> Any:
    options = tuple("shapes.py:CHECKED" if option == "CHECKED" else option for option in options)
    given = () if "--schema" in options else ("--schema", "schema.json")
    return Result("extract", "d.jsonl", "-o", "out", *given, *options)


def test_every_option_decides_the_fingerprint_or_is_known_to_change_no_result() -> None:
    command: Any = typer.main.get_command(app)
    options = {name for parameter in command.commands["extract"].params for name in parameter.opts}
    assert options == DECIDING.keys() | NOT_DECIDING.keys()
    assert DECIDING.keys().isdisjoint(NOT_DECIDING)


@few(7, "--chat-template-kwargs")
@pytest.mark.parametrize("option", DECIDING)
def test_what_decides_the_results_is_refused_in_the_same_folder(option: str, work: Path) -> None:
    before, other = DECIDING[option]
    assert extract(*before).code == 0
    assert extract(*before).code == 0  # resumes
    refused = extract(*before, *other)
    assert (refused.code, "DK501" in refused.err) == (console.USAGE, True), refused.err
    assert extract(*before, *other, "--force").code == 0  # by name
    shutil.rmtree(work / "out")
    assert extract(*before, *other).code == 0


@pytest.mark.parametrize("option", SAME)
def test_what_decides_no_result_goes_on_in_the_same_folder(option: str, work: Path) -> None:
    assert extract().code == 0
    done = extract(*SAME[option])
    assert done.code == 0, done.err


def test_the_difference_is_told_by_name(work: Path) -> None:
    extract()
    told = extract("--whitespace", "2", "--order", "any").err
    assert "reading.whitespace was 'natural', now 2" in told and "reading.order was 'declared', now 'any'" in told


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("shapes.py", "len(value) >= LEAST", "len(value) > LEAST"),  # a validator
        ("shapes.py", "LEAST = 2", "LEAST = 3"),  # what it reads
        ("shapes.py", "first: str\n", "first: str\n    last: str = ''\n"),  # the schema
        ("checks.py", "'!'", "'?'"),  # a module beside it
    ],
)
def test_an_edited_class_is_another_job(
    file: str, old: str, new: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # bytecode looks current within a second and a size
    schema = ("--schema", "shapes.py:Form")
    assert extract(*schema).code == 0
    path = work / file
    path.write_text("# a comment\n" + path.read_text())
    assert extract(*schema).code == 0
    path.write_text(path.read_text().replace(old, new))
    sys.modules.pop("checks", None)
    refused = extract(*schema)
    assert (refused.code, "DK501" in refused.err) == (console.USAGE, True), refused.err
    assert extract(*schema, "--fresh").code == 0


def test_options_in_a_module_and_documents_of_references_decide(work: Path) -> None:
    path = work / "shapes.py"
    schema = ("--schema", "shapes.py:POINT")
    assert extract(*schema).code == 0
    for old, new in (('"type": "integer"', '"type": "number"'), ("registry=", "whitespace=4, registry=")):
        path.write_text(MODULE.replace(old, new))
        refused = extract(*schema)
        assert (refused.code, "DK501" in refused.err) == (console.USAGE, True), refused.err


def test_tokenizer_and_chat_template_decide(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(**tokenizer: Any) -> JobSettings:
        llm: Any = fake("m", "float32", None)
        llm.tokenizer = SimpleNamespace(**({"chat_template": "{{ messages }}"} | tokenizer))
        options = ExtractionOptions(load_schema("name"), model="m", prompt="Read {text}")
        return Extraction(llm, options).settings

    def backend(text: str) -> Any:
        return SimpleNamespace(to_str=lambda: text)

    found = [
        settings(),
        settings(chat_template="{{ messages | tojson }}"),
        settings(backend_tokenizer=backend("a")),
        settings(backend_tokenizer=backend("b")),
    ]
    assert len({one.fingerprint for one in found}) == len(found)
    assert "chat_template was" in found[0].differences(found[1])[0]


def test_a_tokenizer_is_known_by_how_it_divides() -> None:
    class Divides:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [len(text) // self.size]}

    llm: Any = FakeLLM()
    llm.tokenizer = Divides(1)
    first = tokenizer_fingerprint(llm)
    llm.tokenizer = Divides(2)
    assert tokenizer_fingerprint(llm) != first


def test_further_models_and_programs_of_a_strategy_decide_where_the_law_depends_on_them() -> None:
    class Model:
        def __init__(self, name: str) -> None:
            self.name, self.can_rollback, self.vocab_size = name, True, 8

        def new_cache(self, *args: Any) -> None: ...

        def forward(self, *args: Any) -> None: ...

    for name in ("one", "two"):
        assert list(programs_of(dk.Greedy(contrast=dk.Amateur(Model(name))))) == [f"model {name}"]
        draft = dk.DraftModel(Model(name))
        assert programs_of(dk.Sample(speculate=draft)) == {}
        assert list(programs_of(dk.Sample(speculate=draft, verify="rejection"))) == [f"model {name}"]
    one, two = (programs_of(dk.Greedy(contrast=dk.Amateur(Model(name)))) for name in ("one", "two"))
    assert one.popitem()[1] != two.popitem()[1]
    assert programs_of(dk.Sample(top_k=5, min_p=0.1)) == {}

    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Shy(dk.Temperature):
        pass

    assert [name.rpartition(".")[2] for name in programs_of(Shy(0.5) | dk.TopK(3))] == ["Shy"]


def test_jobs_of_earlier_versions_can_be_read() -> None:
    settings = make_settings()
    old = {name: value for name, value in asdict(settings).items() if name not in settings._LATER}
    assert JobSettings.from_json(old) == settings and JobSettings.from_json(old).fingerprint == settings.fingerprint
