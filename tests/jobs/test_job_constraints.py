"""Constraints beyond a JSON Schema in a job: guards, patterns, choices, compositions; what is recorded of them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import decodekit as dk
from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from decodekit.constraints.fingerprint import code_digest, described
from decodekit.errors import ConstraintError, InvalidOutputError, JobError, NameNotFoundError
from decodekit.jobs.document_prompt import choose_prompt
from decodekit.jobs.extraction import ExtractionOptions, with_guesses
from decodekit.jobs.folder.job_folder import JobSettings
from decodekit.jobs.job_schema import load_schema, reload_schema, schema_of
from decodekit.jobs.validation import OutputValidator
from tests.commands import Result
from tests.jobs.fakes import BYTES, FakeLLM, make_settings, read_jsonl, run_job, write_jsonl
from tests.sizes import few

MODULE = """
from __future__ import annotations
import decodekit as dk
from pydantic import BaseModel

LIMIT = 3

class Form(BaseModel):
    first: str
    words: int
    seed: int

def few(count):
    return count < LIMIT

def short(form):
    return few(form.words) or "too many words"

CHECKED = dk.Guarded(Form, short)
TWICE = dk.Guarded(dk.Guarded({"type": "object"}, lambda value: "first" in value), lambda value: value["words"] < 3)
PLAIN = dk.JsonSchema({"type": "integer"}, format="assert")
PHONE = dk.Regex("[0-9]{3}")
ANSWER = dk.Choices(["yes", "no"])
PAIR = dk.Concat(dk.Regex("[a-z]+"), " of ", dk.JsonSchema({"type": "integer"}))
DATE = dk.Grammar("date")
SCHEMA = {"type": "null"}
TAGS = {"tools": [{"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}]}
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.py"
    path.write_text(MODULE)
    return path


# --- what a name may stand for ----------------------------------------------------------------------------------------


def test_any_constraint_of_a_module_is_a_schema(module: Path) -> None:
    """(whether it is JSON, whether it goes beyond its schema, a text, its value as it is recorded)"""
    expected: dict[str, tuple[bool, bool, str, Any]] = {
        "Form": (True, False, '{"first":"a","words":9,"seed":1}', {"first": "a", "words": 9, "seed": 1}),
        "CHECKED": (True, True, '{"first":"a","words":1,"seed":1}', {"first": "a", "words": 1, "seed": 1}),
        "TWICE": (True, True, '{"first":"a","words":1}', {"first": "a", "words": 1}),
        "PLAIN": (True, False, "7", 7),
        "PHONE": (False, True, "555", "555"),
        "ANSWER": (False, True, "yes", "yes"),
        "PAIR": (False, True, "three of 4", ["three", 4]),
        "DATE": (False, True, "2024-02-29", "2024-02-29"),
        "SCHEMA": (True, False, "null", None),
        "TAGS": (False, True, "Hello", {"content": "Hello", "calls": []}),
    }
    for name, (is_json, is_beyond, text, value) in expected.items():
        shape = load_schema(f"{module}:{name}")
        assert (shape.is_json, bool(shape.beyond)) == (is_json, is_beyond), name
        _, _, validator = ExtractionOptions(shape).check()
        assert validator.value(text) == value, name
        again = reload_schema(shape.source, shape.schema, *json.loads(json.dumps([shape.beyond, shape.reading])))
        assert again.reading == shape.reading
        assert again.beyond == shape.beyond and again.schema == shape.schema, name
    with pytest.raises(NameNotFoundError, match="ANSWER, CHECKED, DATE, Form, PAIR, PHONE"):
        load_schema(f"{module}:Fom")


def test_what_a_guard_or_a_pattern_refuses_is_no_output(module: Path) -> None:
    refused = {
        "CHECKED": '{"first":"a","words":7,"seed":1}',
        "TWICE": '{"words":1}',
        "PHONE": "55",
        "ANSWER": "maybe",
        "PAIR": "three of four",
        "DATE": "2023-02-29",
    }
    for name, text in refused.items():
        _, _, validator = ExtractionOptions(load_schema(f"{module}:{name}")).check()
        with pytest.raises(InvalidOutputError):
            validator.value(text)
    assert OutputValidator(True).value('{"first":"a","words":7,"seed":1}')  # without the guard it would pass


def test_a_value_that_json_does_not_have_is_refused_by_its_type() -> None:
    for value in (object(), float("nan"), {1: object()}):
        odd: Any = SimpleNamespace(parse={"x": value}.__getitem__)
        with pytest.raises(InvalidOutputError, match=f"a {type(value).__name__}, cannot be written as JSON"):
            OutputValidator(True, odd, is_json=False).value("x")


def test_a_guard_that_fails_is_told(module: Path) -> None:
    guarded = dk.Guarded({"type": "integer"}, lambda value: value["x"])
    with pytest.raises(ConstraintError, match="raised TypeError"):
        OutputValidator({"type": "integer"}, guarded).value("1")


# --- what is recorded -------------------------------------------------------------------------------------------------


def test_a_guard_is_known_by_its_program(module: Path) -> None:
    source = f"{module}:CHECKED"
    before = load_schema(source)

    def changed(old: str, new: str) -> bool:
        module.write_text(MODULE.replace(old, new))
        try:
            return load_schema(source).beyond != before.beyond
        finally:
            module.write_text(MODULE)

    assert changed('"too many words"', '"words"')
    assert changed("count < LIMIT", "count <= LIMIT")  # a function that the guard calls
    assert changed("LIMIT = 3", "LIMIT = 4")  # a value that this one reads
    assert changed("Guarded(Form, short)", "Guarded(Form, few)")
    assert changed("words: int\n", "words: int = 3\n")
    # What neither the guard nor its schema is made of leaves it as it is: comments, lines, other names.
    assert not changed("def few(count):\n", "\n# small\ndef few(count):  # small\n    # small\n")
    assert not changed("[0-9]{3}", "[0-9]{4}")
    assert reload_schema(source, before.schema, before.beyond, before.reading).beyond == before.beyond
    module.write_text(MODULE.replace("LIMIT = 3", "LIMIT = 4"))
    with pytest.raises(JobError, match="has changed since the job was made"):
        reload_schema(source, before.schema, before.beyond, before.reading)


def test_programs_without_source_and_of_several_kinds() -> None:
    import functools

    def made(text: str) -> Any:
        space: dict[str, Any] = {}
        exec(text, space)
        return space["f"]

    assert code_digest(made("f = lambda value: value > 3")) == code_digest(made("f = lambda value: value > 3"))
    assert code_digest(made("f = lambda value: value > 3")) != code_digest(made("f = lambda value: value > 4"))
    assert code_digest(made("f = lambda value: value > 3")) != code_digest(made("f = lambda value: value < 3"))

    def above(limit: int) -> Any:
        return lambda value: value > limit

    assert code_digest(above(3)) == code_digest(above(3)) != code_digest(above(4))
    assert code_digest(functools.partial(above, 3)) != code_digest(functools.partial(above, 4))
    assert code_digest(max) != code_digest(min)
    for value in (dk.Regex("a"), dk.Concat("a", dk.Regex("b")), dk.Grammar("date"), dk.Choices(["a"])):
        assert json.loads(json.dumps(described(value))) == described(value)
    assert described(1.5) == 1.5 and described(math.inf) == "inf"
    assert described(dk.Regex("a")) == described(dk.Regex("a")) != described(dk.Regex("b"))
    assert described(dk.JsonSchema({})) != described(dk.JsonSchema({}, whitespace="compact"))
    assert " at 0x" not in json.dumps(described(dk.Guarded({}, functools.partial(above, 3))))


def test_jobs_without_a_constraint_of_their_own_keep_their_fingerprint() -> None:
    """Of a folder that was made before jobs had constraints: it is the same job."""
    data = asdict(make_settings())
    del data["constraint"]
    assert JobSettings.from_json(data) == make_settings()
    assert make_settings().fingerprint == "2e415472"
    assert make_settings(constraint={"Regex": {}}).fingerprint != make_settings().fingerprint


# --- whole jobs -------------------------------------------------------------------------------------------------------


def test_a_job_with_a_guard(tmp_path: Path, llm: FakeLLM, module: Path) -> None:
    """The stand-in for a model knows of no guard, so that the last word shows: what it refuses has failed."""
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "one"}, {"id": "b", "text": "one two three four"}])
    out = tmp_path / "out"
    command = ("extract", path, "-o", out, "--schema", f"{module}:CHECKED")
    done = Result(*command, "--max-rollbacks", "5")
    assert done.code == console.SOME_FAILED
    assert [row["id"] for row in read_jsonl(out / "results.jsonl")] == ["a"]
    (failed,) = read_jsonl(out / "failed.jsonl")
    assert (failed["id"], failed["code"]) == ("b", "DK504") and "too many words" in failed["message"]
    settings = json.loads((out / "job.json").read_text())["settings"]
    assert settings["constraint"]["Guarded"]["function"]["function"] == "short"
    assert settings["strategy"] == {"name": "greedy", "max_rollbacks": 5}
    assert "resuming" in Result(*command, "--max-rollbacks", "5").err
    assert Result("retry", out).code == console.SOME_FAILED
    refused = Result(*command, "--max-rollbacks", "6")
    assert refused.code == console.USAGE and "strategy was" in refused.err
    module.write_text(MODULE.replace("LIMIT = 3", "LIMIT = 9"))
    refused = Result(*command, "--max-rollbacks", "5")
    assert refused.code == console.USAGE and "DK501" in refused.err and "constraint was" in refused.err
    refused = Result("retry", out)
    assert refused.code == console.USAGE and "has changed since the job was made" in refused.err
    assert Result(*command, "--max-rollbacks", "5", "--force").code == console.SOME_FAILED
    assert Result("retry", out).code == console.DONE


def test_options_without_effect_or_sense_are_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(extract_module, "load_model", never)
    (tmp_path / "a.txt").write_text("one")
    command = ("extract", tmp_path / "a.txt", "-o", tmp_path / "out", "--schema", "first")
    for options, said in [
        (("--prompt", "Read it"), "the template has no {text}"),
        (("--workers", "2"), "--workers 2 has no effect without Ray"),
        (("--max-rollbacks", "5"), "has no effect: only a constraint with a guard"),
        (("--strategy", "beam", "--speculate", "grammar"), "beam search cannot speculate"),
        (("--strategy", "contrastive", "--speculate", "prompt-lookup"), "contrastive search cannot speculate"),
        (("--strategy", "particles", "--speculate", "suffix"), "particles cannot speculate"),
        (("--strategy", "beam+suffix"), "beam search cannot speculate"),
        (("--strategy", "contrastive", "--on-length", "close"), "and contrastive search cannot be combined"),
        (("--strategy", "particles", "--fast-forward", "canonical"), "and particles cannot be combined"),
    ]:
        done = Result(*command, *options)
        assert done.code == console.USAGE and said in done.err, done.err
        assert not (tmp_path / "out").exists()


def test_who_guesses_beside_a_search() -> None:
    """Nobody, unless somebody was named, which is refused above."""
    for strategy in (dk.Beam(2), dk.ContrastiveSearch(), dk.Particles(4)):
        assert with_guesses(strategy, "exact") is strategy


@few(1)
@pytest.mark.parametrize("strategy", ["beam:num_beams=2", "contrastive:top_k=2", "particles:num_particles=2"])
def test_searches_extract_with_the_bundled_model(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "a.txt").write_text("Paid.")
    out = tmp_path / "out"
    done = Result("extract", tmp_path / "a.txt", "-o", out, "--schema", "paid bool", "--strategy", strategy)
    assert done.code == console.DONE, done.err
    (row,) = read_jsonl(out / "results.jsonl")
    assert isinstance(row["value"]["paid"], bool)


def test_a_guard_and_a_pattern_with_the_bundled_model(tmp_path: Path, module: Path) -> None:
    (tmp_path / "a.txt").write_text("Call 555.")
    module.write_text(
        "import decodekit as dk\n"
        "ODD = dk.Guarded({'type': 'integer', 'minimum': 0, 'maximum': 9}, lambda value: value % 2 == 1)\n"
        "PHONE = dk.Regex('[0-9]{3}')\n"
    )
    for name, options in (("ODD", ("--max-rollbacks", "9")), ("PHONE", ())):
        out = tmp_path / name
        done = Result("extract", tmp_path / "a.txt", "-o", out, "--schema", f"{module}:{name}", *options)
        assert done.code == console.DONE, done.err
    assert read_jsonl(tmp_path / "ODD" / "results.jsonl")[0]["value"] % 2 == 1
    (row,) = read_jsonl(tmp_path / "PHONE" / "results.jsonl")
    assert len(row["value"]) == 3 and row["value"].isdigit()
    (metrics,) = read_jsonl(tmp_path / "PHONE" / "metrics.jsonl")
    assert set(metrics["probabilities"]) == {""}
    assert row["value"] in (tmp_path / "PHONE" / "report.html").read_text()


def test_a_text_that_was_cut_and_is_kept_has_no_probabilities(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "a CUT b"}, {"id": "b", "text": "fine"}])
    run_job(tmp_path / "out", [path], FakeLLM(), settings=make_settings(on_length="return"), vocabulary=BYTES)
    metrics = {row["id"]: row for row in read_jsonl(tmp_path / "out" / "metrics.jsonl")}
    assert "probabilities" not in metrics["a"] and metrics["b"]["probabilities"]


def test_other_models_are_told_the_form() -> None:
    prompt = choose_prompt(None, "m", schema_of(dk.Choices(["yes", "no"])), is_chat=False).fill("Paid?")
    assert isinstance(prompt, str)
    assert '"yes","no"' in prompt and "JSON" not in prompt and prompt.endswith("Answer:\n")


def test_grammar_check_takes_a_constraint_of_a_module(module: Path) -> None:
    done = Result("grammar", "check", f"{module}:PHONE", "555", "55")
    assert done.code == console.SOME_FAILED and "accepted  '555'" in done.out and "cannot end here" in done.out
    assert Result("grammar", "check", f"{module}:PAIR", "one of 3").code == console.DONE
    assert Result("grammar", "check", f"{module}:PHON", "5").code == console.SCHEMA_REFUSED


def test_schema_check_names_the_guard(module: Path) -> None:
    done = Result("schema", "check", f"{module}:CHECKED")
    assert done.code == 0 and "short: asked about the whole value" in done.out
    assert "properties/words  mask type" in done.out
