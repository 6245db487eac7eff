from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.errors import DecodekitError, OptionError, UnknownNameError
from decodekit.evaluation.measures.accuracy import is_valid
from decodekit.evaluation.measures.measures import METRICS, fitting_metrics, metrics_of
from decodekit.evaluation.task import Example, Task, load_task, named_tasks, shipped_tasks

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", shipped_tasks())
def test_references_of_shipped_tasks_are_valid_under_their_constraints(name: str) -> None:
    task = load_task(name)
    assert task.description.endswith((".", "?"))
    assert len(task.examples) >= 8
    assert all(metric.name in METRICS for metric in metrics_of(task))
    for example in task.examples:
        constraint = task.constraint_of(example)
        assert (constraint is None) == (example.reference is None)
        if constraint is not None:
            assert is_valid(json.dumps(example.reference), constraint), example.id
        assert isinstance(example.prompt, str) and example.prompt.endswith("\n")


def test_extraction_holds_the_first_sample_documents_of_each_kind() -> None:
    for example in load_task("extraction").examples:
        text = (EXAMPLES / f"{example.id}.txt").read_text(encoding="utf-8")
        assert example.prompt == text.strip() + "\n"
        kind = example.id.partition("/")[0]
        lines = (EXAMPLES / kind / "expected.jsonl").read_text(encoding="utf-8").splitlines()
        values = {row["id"]: row["value"] for row in map(json.loads, lines)}
        assert example.reference == values[example.id]
        assert example.constraint == dk.JsonSchema(json.loads((EXAMPLES / kind / "schema.json").read_text()))


def test_extraction_free_differs_by_the_constraint_alone() -> None:
    bound, free = load_task("extraction"), load_task("extraction-free")
    assert bound.examples == free.examples
    assert (bound.is_constrained, free.is_constrained) == (True, False)


@pytest.mark.parametrize("name", ["copying", "summarising"])
def test_answers_repeat_their_prompts(name: str) -> None:
    """Names and numbers of the references stand in the prompts; dates, enums and booleans may be spelled otherwise."""
    for example in load_task(name).examples:
        texts = [value for value in example.reference.values() if isinstance(value, str) and not value[:4].isdigit()]
        found = [text for text in texts if str(text) in str(example.prompt)]
        assert len(found) >= len(texts) - 1, example.id


def test_a_file_of_examples(tmp_path: Path) -> None:
    (tmp_path / "a.schema.json").write_text(json.dumps(SCHEMA))
    path = write(
        tmp_path / "mine.jsonl",
        {"task": {"schema": "a.schema.json", "schemas": {"text": {"type": "string"}}, "max_new_tokens": 40}},
        {"id": "x", "prompt": "p", "reference": {"a": 1}},
        "",
        {"messages": [{"role": "user", "content": "hi"}], "schema": "text"},
        {"prompt": "q", "schema": SCHEMA},
    )
    task = load_task(path)
    assert (task.name, task.max_new_tokens, len(task.examples)) == ("mine", 40, 3)
    assert [example.id for example in task.examples] == ["x", "4", "5"]
    assert task.constraint_of(task.examples[0]) == dk.JsonSchema(SCHEMA) == task.constraint_of(task.examples[2])
    assert task.constraint_of(task.examples[1]) == dk.JsonSchema({"type": "string"})
    assert fitting_metrics(task) == ("field-f1", "exact-match", "valid")
    assert load_task(str(path)).first(1).examples == task.examples[:1]


def test_a_file_without_references_or_constraint(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "t.jsonl", {"prompt": "a"}))
    assert task.constraint is None
    assert "exact-match" not in fitting_metrics(task)
    assert load_task(tmp_path / "t.jsonl", dk.Regex("a+")).constraint == dk.Regex("a+")


@pytest.mark.parametrize(
    ("header", "constraint"), [({"regex": "a+"}, dk.Regex("a+")), ({"choices": ["x", "y"]}, dk.Choices(["x", "y"]))]
)
def test_constraints_of_other_kinds(tmp_path: Path, header: dict[str, Any], constraint: object) -> None:
    assert load_task(write(tmp_path / "t.jsonl", {"task": header}, {"prompt": "a"})).constraint == constraint


@pytest.mark.parametrize(
    ("lines", "place", "cause"),
    [
        ([], "t.jsonl", "no examples"),
        (["nope"], "line 1", "not JSON"),
        (["[1]"], "line 1", "not a JSON object"),
        ([{"prompt": "a"}, {"promt": "a"}], "line 2", "Did you mean 'prompt'?"),
        ([{"prompt": ""}], "line 1", "that is not empty"),
        ([{"reference": 1}], "line 1", 'either "prompt" or "messages"'),
        ([{"prompt": "a", "schema": "b"}], "line 1", "no schema 'b'"),
        ([{"task": {"regex": "a", "schema": {}}}, {"prompt": "a"}], "line 1", "cannot be combined"),
        ([{"task": {"max_tokens": 3}}, {"prompt": "a"}], "line 1", "Did you mean 'max_new_tokens'?"),
        ([{"task": {"max_new_tokens": 0}}, {"prompt": "a"}], "max_new_tokens", "an integer of at least 1"),
        ([{"id": "a", "prompt": "a"}, {"id": "a", "prompt": "b"}], "t.jsonl", "two examples 'a'"),
    ],
)
def test_faults_of_a_file_name_their_line(tmp_path: Path, lines: list[Any], place: str, cause: str) -> None:
    path = write(tmp_path / "t.jsonl", *lines)
    with pytest.raises(DecodekitError) as raised:
        load_task(path)
    assert place in str(raised.value.at)
    assert cause in str(raised.value)


def test_all_faults_of_a_file_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        load_task(write(tmp_path / "t.jsonl", "x", {"prompt": 3}, {"prompt": "a"}, {"foo": 1}))
    assert [str(fault.at).rpartition(" ")[2] for fault in raised.value.faults] == ["1", "2", "4"]


def test_unknown_tasks_and_a_schema_that_is_not_asked_for() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'extraction'"):
        load_task("extracton")
    with pytest.raises(OptionError, match="says by itself"):
        load_task("extraction", SCHEMA)
    with pytest.raises(UnknownNameError, match="no constraint 'a text'"):
        Task("t", (Example("a", "p"),), constraint="a text")
    with pytest.raises(OptionError, match="two tasks have the name 'extraction'"):
        named_tasks(["extraction", "extraction"])
    with pytest.raises(OptionError, match="no task"):
        named_tasks([])
    with pytest.raises(UnknownNameError, match="no metric 'f1'"):
        metrics_of(Task("t", (Example("a", "p"),), metrics=("f1",)))


def test_instructions_are_for_models_that_follow_them() -> None:
    task = Task("t", (Example("a", "document"),), constraint=SCHEMA, instruction="Follow {schema}")
    [example] = task.examples
    shown = f"Follow {json.dumps(SCHEMA, separators=(',', ':'))}\n\ndocument"
    assert task.prompt_of(example, is_bundled=True, has_chat_template=True) == "document"
    assert task.prompt_of(example, is_bundled=False, has_chat_template=False) == shown
    chat = task.prompt_of(example, is_bundled=False, has_chat_template=True)
    assert chat == [{"role": "user", "content": shown}]
