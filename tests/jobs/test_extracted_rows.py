"""`dk.extract`: documents of every form in, rows out in their order; the same job as on the command line."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import BaseModel

import decodekit as dk
from decodekit import errors
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import (
    DecodekitError,
    DocumentError,
    JobError,
    JobSettingsError,
    LengthError,
    OptionError,
    ResourceLimitError,
    UnsupportedSchemaError,
    error_of,
)
from decodekit.jobs.documents.documents import document_seed
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.job_runner import Observer
from decodekit.jobs.job_schema import reload_schema
from tests.commands import Result
from tests.jobs.fakes import SCHEMA, FakeLLM, expected_value, read_jsonl, write_jsonl

TEXTS = ["one two", "", "a CUT b", "three", "a WRONG b"]
CODES = [None, "DK502", "DK101", None, "DK504"]


def extract(documents: Any, llm: FakeLLM | None = None, **options: Any) -> list[dk.ExtractedRow]:
    return dk.extract(documents, SCHEMA, llm or FakeLLM(), **{"prompt": "{text}"} | options)  # type: ignore[arg-type]


def test_rows_are_in_order_and_a_bad_document_is_a_row_with_an_error() -> None:
    rows = extract(TEXTS)
    assert [row.id for row in rows] == ["0", "1", "2", "3", "4"]
    assert [None if row.error is None else row.error.code for row in rows] == CODES
    assert [type(row.error) for row in rows][1:3] == [DocumentError, LengthError]
    assert rows[2].text and rows[2].finish_reason == "length"
    for row, text in zip(rows, TEXTS, strict=True):
        right = None if row.error else expected_value(text, document_seed(0, row.id))
        assert row.value == right


ROWS = [{"id": "a", "text": "one"}, {"id": 7, "text": "two three"}, {"id": "c", "text": "four"}]


def forms(folder: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets", reason="needs datasets, which the extra `slow` brings")
    strings = [{**row, "id": str(row["id"])} for row in ROWS]
    (folder / "texts").mkdir()
    for row in ROWS:
        (folder / "texts" / f"{row['id']}.txt").write_text(str(row["text"]))
    path = write_jsonl(folder / "d.jsonl", ROWS)
    return {
        "rows": ROWS,
        "a generator": (row for row in ROWS),
        "a data set": datasets.Dataset.from_list(strings),
        "a stream": datasets.Dataset.from_list(strings).to_iterable_dataset(),
        "a DataFrame": pd.DataFrame(strings),
        "numbers of numpy": pd.DataFrame([{"id": 7, "text": "two three"}]),
        "a table of Arrow": pa.Table.from_pylist(strings),
        "a file": path,
        "inputs": [Input(str(path))],
        "files": [folder / "texts" / f"{row['id']}.txt" for row in ROWS],
        "a folder": folder / "texts",
    }


def test_documents_of_every_form(tmp_path: Path) -> None:
    for about, documents in forms(tmp_path).items():
        firsts = sorted(row.value["first"] for row in extract(documents))
        assert firsts == (["two"] if about == "numbers of numpy" else ["four", "one", "two"]), about
    renamed = [{"key": row["id"], "body": row["text"]} for row in ROWS]
    assert [row.id for row in extract(renamed, id_field="key", text_field="body")] == ["a", 7, "c"]
    assert [row.id for row in extract([{"text": "one"}, "two"])] == ["0", "1"]


@pytest.mark.parametrize(
    ("documents", "kind", "said"),
    [
        ("a text", OptionError, "is one text"),
        ({"train": ROWS}, OptionError, "one dictionary, of train"),
        (7, OptionError, "must be an iterable of texts, got 7"),
        ([Path("a.txt"), "text"], OptionError, "files and texts together"),
        ([], JobError, "no documents"),
        ([{"body": "x"}], DocumentError, "no row of the documents has the field 'text'"),
        ([{"id": 1, "text": "x"}, {"id": 1, "text": "y"}], DocumentError, "repeats id '1'"),
        (Path("nowhere.txt"), JobError, "no file or folder"),
    ],
)
def test_what_is_no_document_is_refused(documents: Any, kind: type[DecodekitError], said: str) -> None:
    with pytest.raises(kind, match=said):
        extract(documents)
    with pytest.raises(OptionError, match="strategy must be a text"):
        extract(["x"], strategy=dk.Greedy())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "a"), ("seed", -1), ("limit", -1), ("limit", 0), ("shard", (3, 2)), ("shard", (0, 2)),
        ("shard", "1/2"), ("max_failures", 0), ("executor", "dask"), ("num_workers", 0), ("num_workers", 2),
        ("alternatives", "no"), ("raw", "no"), ("fresh", 1), ("force", None), ("prompt", "no {field}"),
        ("prompt", "@x"), ("chat_template_kwargs", 7), ("max_document_mb", -1), ("max_document_mb", float("inf")),
        ("max_new_tokens", 0),
    ],
)  # fmt: skip
def test_wrong_options_are_named_as_in_python(name: str, value: Any) -> None:
    """Before a document is decoded, and none of them loses one: `limit=-1` would leave out the last."""
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(OptionError) as raised:
        extract(["one", "two"], **wrong)
    assert raised.value.at == name and "--" not in str(raised.value)


def test_items_that_are_no_texts_fail_alone() -> None:
    rows = extract(["one", None, 5, b"bytes", {"text": 1.5}, {"id": None, "text": "x"}, {"other": 1}])
    assert [row.error is None for row in rows] == [True] + [False] * 6
    assert {row.error.code for row in rows if row.error} == {"DK502"}


def test_an_empty_cell_is_null() -> None:
    """As in a list of rows; by itself a table of pandas has NaN there, which is no JSON."""
    empty = [None, float("nan"), pd.NA, pd.NaT, np.float32("nan")]
    rows = extract(pd.DataFrame({"id": ["a", *map(str, range(5))], "text": pd.Series(["one", *empty], dtype=object)}))
    assert rows[0].error is None
    assert [row.error and row.error.cause for row in rows[1:]] == ["field 'text' is null, not a text."] * 5
    (row,) = extract(pd.DataFrame({"text": pd.Series([np.ones(2)], dtype=object)}))
    assert row.error is not None and row.error.cause == "field 'text' is an object, not a text."


def test_a_budget_below_the_smallest_text_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    llm = FakeLLM()
    refusal = "max_new_tokens=30 is too few for any text of the schema: it needs 31"
    with pytest.raises(OptionError, match=refusal) as raised:
        extract(["one"], llm, max_new_tokens=30, folder=tmp_path / "out")
    assert (raised.value.at, raised.value.hint) == ("max_new_tokens", "max_new_tokens=31 or more")
    assert not llm.seen and not (tmp_path / "out").exists()
    assert len(extract(["one"], llm, max_new_tokens=31)) == 1
    assert len(extract(["one"], llm, max_new_tokens=30, on_length="return")) == 1  # a text that is cut was asked for


@pytest.mark.parametrize("kind", [ResourceLimitError, UnsupportedSchemaError])
def test_a_smallest_text_that_is_not_known_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: type[DecodekitError]
) -> None:
    """It was not found within bounds, or the masks are those of another engine, which knows none."""

    def unknown(grammar: CompiledGrammar) -> int:
        raise kind("not known")

    monkeypatch.setattr(CompiledGrammar, "least_tokens", unknown)
    assert extract(["one"], max_new_tokens=1)[0].error is None


@pytest.mark.parametrize("on_length", ["error", "return"])
def test_a_constraint_is_prepared_before_a_document_is_taken(monkeypatch: pytest.MonkeyPatch, on_length: str) -> None:
    """So its seconds, many where no kernel is kept yet, are not in the time of the first document."""
    prepared: list[int] = []
    least = CompiledGrammar.least_tokens
    monkeypatch.setattr(
        CompiledGrammar, "least_tokens", lambda grammar: prepared.append(len(llm.seen)) or least(grammar)
    )
    llm = FakeLLM()
    extract(["one"], llm, on_length=on_length)
    assert (prepared, len(llm.seen)) == ([0], 1)


def test_a_folder_makes_it_resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Observer):
        def advance(self, document_id: str, error: DecodekitError | None, num_tokens: int) -> None:
            if document_id == "20":
                raise KeyboardInterrupt

    texts = [f"text {number}" for number in range(50)]
    with pytest.raises(KeyboardInterrupt):
        extract(texts, folder=tmp_path / "out", progress=Killed())
    num_before = len(read_jsonl(tmp_path / "out" / "results.jsonl"))
    assert 0 < num_before < 50
    llm = FakeLLM()
    rows = extract(iter(texts), llm, folder=tmp_path / "out")
    assert len(llm.seen) == 50 - num_before
    assert [(row.id, row.value) for row in rows] == [(row.id, row.value) for row in extract(texts)]
    with pytest.raises(JobSettingsError):
        extract(texts, folder=tmp_path / "out", seed=1)
    llm = FakeLLM()
    texts[3] = "another text"
    assert extract(texts, llm, folder=tmp_path / "out")[3].value["first"] == "another"
    assert len(llm.seen) == 1
    (tmp_path / "out").rename(tmp_path / "moved")  # the texts are in the folder, and go with it
    assert Result("report", tmp_path / "moved").code == 0
    assert "no longer where" not in (tmp_path / "moved" / "report.html").read_text()


def test_parts_and_limits(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(30)]
    parts = [extract(texts, shard=(number, 3)) for number in (1, 2, 3)]
    whole = extract(texts)
    assert sorted(int(row.id) for part in parts for row in part) == list(range(30))
    assert {row.id: row.value for part in parts for row in part} == {row.id: row.value for row in whole}
    assert [row.id for row in extract(texts, limit=2)] == ["0", "1"]
    rows = extract(["a CUT b"] * 20, max_failures=2, batch_size=1)
    assert rows[0].error is not None and rows[0].error.code == "DK101"
    assert rows[-1].error is not None and "not reached" in rows[-1].error.cause


class Shape(BaseModel):
    first: str
    words: int
    seed: int


def test_a_type_as_schema_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dk.extract(["one two", "CUT"], Shape, FakeLLM(), prompt="{text}", folder=tmp_path / "out")  # type: ignore[arg-type]
    assert rows[0].value["words"] == 2
    monkeypatch.setattr("decodekit.cli.jobs.extract.load_model", lambda *_: FakeLLM())
    done = Result("retry", tmp_path / "out")
    assert "1 failed" in done.err, done.err


SCRIPT = """
import decodekit as dk

def few(value):
    return value["words"] < 3

CHECKED = dk.Guarded({schema}, few)
print("the script runs")
"""


def test_a_constraint_without_a_name_cannot_be_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM
) -> None:
    """Until the same constraint is given by a name."""
    script, out = tmp_path / "checks.py", tmp_path / "out"
    script.write_text(SCRIPT.format(schema=SCHEMA))
    made = runpy.run_path(str(script))["CHECKED"]
    texts = ["one", "one two three"]
    assert [row.error is None for row in dk.extract(texts, made, llm, prompt="{text}", folder=out)] == [True, False]  # type: ignore[arg-type]
    for command in ("retry", "export"):
        refused = Result(command, out)
        assert refused.code == 2 and "--schema" not in refused.err
        assert "has no name by which it could be loaded again: Guarded(constraint=" in refused.err
        assert "at  schema_source in job.json" in refused.err and "module.py:CHECKED" in refused.err
    dk.extract(texts, f"{script}:CHECKED", llm, prompt="{text}", folder=out)  # type: ignore[arg-type]
    done = Result("retry", out)
    assert done.code == 7 and "0 done and 1 failed" in done.err
    assert f"loading {script}:CHECKED: its module is run\nthe script runs\n" in done.err and not done.out
    script.write_text("")
    gone = Result("retry", out)
    assert gone.code == 2 and f"{script}:CHECKED, cannot be loaded again: no name 'CHECKED'" in gone.err
    assert 'if __name__ == "__main__":' in gone.err


def test_a_type_of_a_session_cannot_be_loaded_again() -> None:
    """A name alone is what a type of a notebook has; it is no line of fields."""
    with pytest.raises(JobError, match="no name by which it could be loaded again: Shape"):
        reload_schema("Shape", SCHEMA, {}, {"code": "0"})


def test_an_error_is_read_back() -> None:
    row = {"error": "LengthError", "message": "m", "at": None, "hint": "h", "code": "DK101"}
    assert isinstance(error_of(row), LengthError) and str(error_of(row)) == "DK101 m\n  try h"
    for name in ("NoSuchError", "collecting", "__doc__"):
        assert type(error_of({**row, "error": name})) is DecodekitError
        assert type(error_of({**row, "error": name}, JobError)) is JobError
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, DecodekitError):
            error = kind("m", at="a", hint="h", code="DK999")
            assert type(error_of(error.to_dict())) is kind and error_of(error.to_dict()).to_dict() == error.to_dict()


def test_memory_holds_one_document_at_a_time_on_the_way_in(tmp_path: Path) -> None:
    """A generator is written down as it goes; no list of its texts is made."""
    alive: list[int] = []

    class Text(str):
        def __del__(self) -> None:
            alive.pop()

    def texts() -> Iterator[str]:
        for number in range(100):
            assert len(alive) <= 2
            alive.append(number)
            yield Text(f"text {number}")

    assert len(extract(texts())) == 100


def test_ids_that_are_integers_stay_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"nr": [3, 10**4, -5, 4], "text": ["one", "two three", "", "CUT"], "more": list("abcd")})
    forms = {"rows": frame.to_dict("records"), "frame": frame}
    frame.to_parquet(tmp_path / "d.parquet")
    frame.fillna("").to_csv(tmp_path / "d.csv", index=False)
    frame.to_json(tmp_path / "d.jsonl", orient="records", lines=True)
    forms |= {name: Path(f"d.{name}") for name in ("parquet", "csv", "jsonl")}
    for name, documents in forms.items():
        rows = extract(documents, id_field="nr", folder=f"out-{name}")
        assert [row.id for row in rows] == [3, 10000, -5, 4], name
        table = dk.to_pandas(rows)
        merged = table.merge(frame, left_on="id", right_on="nr")
        assert list(merged["more"]) == list("abcd") and list(table["error"].isna()) == [True, True, False, False]
        assert sorted(row["id"] for row in read_jsonl(tmp_path / f"out-{name}" / "results.jsonl")) == ["10000", "3"]
        again = extract(documents, FakeLLM(), id_field="nr", folder=f"out-{name}")  # ids are what they were
        assert [row.value for row in again] == [row.value for row in rows]
    assert extract([{"id": "3", "text": "one"}])[0].id == "3"
    (tmp_path / "e.csv").write_text("nr,text\n3,one\n07,two\n")
    assert [row.id for row in extract(Path("e.csv"), id_field="nr")] == ["3", "07"]  # no column of integers


def test_the_text_of_a_row_that_is_done_is_its_json() -> None:
    rows = extract(TEXTS)
    for row in rows:
        assert json.loads(row.text) == row.value if row.error is None else row.text in ("", row.text[:9], row.text)
    assert rows[0].text and rows[1].text == ""
    assert extract(["é x"])[0].text.startswith('{"first": "é"')
    assert dk.extract(["yes or no"], dk.Choices(["yes", "no"]), "tiny")[0].text in ("yes", "no")
