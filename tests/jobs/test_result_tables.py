"""The table beside the results holds what they hold, in every format."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from decodekit.cli.parts import console
from decodekit.jobs.reports.result_tables import properties_of, tables_of, write_tables
from tests.commands import Result
from tests.jobs.fakes import FakeLLM, read_jsonl, write_jsonl

FIELDS = ("--schema", "first, words int, seed int")
VALUES: list[Any] = [
    {"id": 1, "name": 'Ann, "a"\nb', "tags": ["é", 1], "n": 1, "x": 1, "ok": True, "mixed": "a", "big": 2**70},
    {"name": None, "tags": [], "n": 2, "x": 0.5, "ok": None, "mixed": 3, "big": 1, "late": "\ud800"},
    [1, 2],
    "text",
    None,
]


def make_results(folder: Path, values: list[Any]) -> None:
    folder.mkdir(exist_ok=True)
    row = {"finish_reason": "stop", "num_generated_tokens": 1, "document": "0"}
    write_jsonl(folder / "results.jsonl", [{"id": f"d{n}", "value": value, **row} for n, value in enumerate(values)])


def test_what_a_table_holds(tmp_path: Path) -> None:
    make_results(tmp_path, VALUES)
    assert [path.name for path in write_tables(tmp_path, ["csv", "parquet"])] == ["results.csv", "results.parquet"]
    assert tables_of(tmp_path) == ["csv", "parquet"]
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "results.parquet").to_pylist()
    columns = ["id", "value.id", "name", "tags", "n", "x", "ok", "mixed", "big", "late", "value"]
    assert [list(row) for row in (rows[0], table[0])] == [columns, columns]
    assert rows[0] == {
        **dict.fromkeys(columns, ""),
        "id": "d0",
        "value.id": "1",
        "name": 'Ann, "a"\nb',
        "tags": '["é", 1]',
        "n": "1",
        "x": "1",
        "ok": "true",
        "mixed": "a",
        "big": str(2**70),
    }
    assert [row["value"] for row in rows] == ["", "", "[1, 2]", "text", ""]
    assert table[0] == {
        **dict.fromkeys(columns),
        "id": "d0",
        "value.id": 1,
        "name": 'Ann, "a"\nb',
        "tags": '["é", 1]',
        "n": 1,
        "x": 1.0,
        "ok": True,
        "mixed": '"a"',
        "big": str(2**70),
    }
    assert table[1]["x"] == 0.5 and table[1]["mixed"] == "3" and table[1]["late"] == "\\ud800"
    assert [row["value"] for row in table] == [None, None, "[1, 2]", '"text"', None]


def test_the_properties_of_the_schema_are_columns_in_its_order(tmp_path: Path) -> None:
    schema = {"properties": {"late": {"type": "string"}, "b": {}, "id": {}, "a": {}}}
    make_results(tmp_path, [{"a": 1, "more": 2, "b": 3}])
    write_tables(tmp_path, ["csv", "parquet"], schema)
    columns = ["id", "late", "b", "value.id", "a", "more"]
    assert (tmp_path / "results.csv").read_text().splitlines() == [",".join(columns), "d0,,3,,1,2"]
    assert pq.read_table(tmp_path / "results.parquet").column_names == columns
    make_results(tmp_path, [])
    write_tables(tmp_path, ["csv", "parquet"], schema)
    assert (tmp_path / "results.csv").read_text().splitlines() == [",".join(columns[:-1])]
    assert pq.read_table(tmp_path / "results.parquet").column_names == columns[:-1]


def test_the_properties_of_a_schema_that_is_put_together() -> None:
    inner = {"x": {"properties": {"c": {}, "a": {"properties": {"not of the value": {}}}}}, "y": {"$ref": "#"}}
    schema = {
        "$defs": inner,
        "properties": {"a": True},
        "allOf": [{"properties": {"b": {}}}, {"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}, {"$ref": "#/$defs/none"}],
        "if": {"properties": {"a": {}}},
        "then": {"properties": {"d": {}}},
        "anyOf": [{"$ref": "#/allOf/0"}, {"$ref": "other.json"}, {"properties": {"e": {}}}, True],
        "dependentSchemas": {"a": {"properties": {"f": {}}}},
    }
    assert properties_of(schema) == ["a", "b", "c", "d", "e", "f"]
    assert properties_of(True) == properties_of({"$ref": "#/0", "properties": 3}) == []


@pytest.mark.parametrize("number", [0, 1024, 1025])
def test_tables_of_any_length(tmp_path: Path, number: int) -> None:
    make_results(tmp_path, [{"n": n} for n in range(number)])
    write_tables(tmp_path, ["csv", "parquet"])
    table = pq.read_table(tmp_path / "results.parquet")
    assert table.num_rows == number
    assert [row["id"] for row in table.to_pylist()] == [row["id"] for row in read_jsonl(tmp_path / "results.jsonl")]
    assert (tmp_path / "results.csv").read_bytes().count(b"\n") == (number + 1 if number else 1)


def test_a_job_with_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> None:
    monkeypatch.chdir(tmp_path)
    documents = [{"id": "a", "text": "one two"}, {"id": "b", "text": "CUT"}]
    write_jsonl(tmp_path / "d.jsonl", documents)
    arguments = ("extract", "d.jsonl", "-o", "out", *FIELDS, "--output-format")
    done = Result(*arguments, "csv")
    assert done.code == console.SOME_FAILED and "results as a table: out/results.csv" in done.err
    (row,) = csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines())
    (result,) = read_jsonl(tmp_path / "out" / "results.jsonl")
    assert row == {"id": "a", **{name: str(value) for name, value in result["value"].items()}}
    documents[1]["text"] = "three"
    write_jsonl(tmp_path / "d.jsonl", documents)
    assert Result("retry", "out").code == console.DONE  # the table that the job has is kept up
    assert len((tmp_path / "out" / "results.csv").read_text().splitlines()) == 3
    assert Result(*arguments, "jsonl", "--fresh").code == console.DONE
    assert not (tmp_path / "out" / "results.csv").exists()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = Result(*arguments, "parquet")
    assert done.code == console.USAGE and "pip install 'decodekit[tables]'" in done.err
    assert json.loads(Result("status", "out", "--json").out)["done"] == 2


@pytest.mark.parametrize(
    ("ids", "kind", "cells"),
    [
        ([3, -4], "int64", [3, -4]),
        ([3, "b"], "string", ["3", "b"]),
        ([3, 2**70], "string", ["3", str(2**70)]),
        (["3", "4"], "string", ["3", "4"]),
    ],
)
def test_ids_in_a_table(tmp_path: Path, ids: list[Any], kind: str, cells: list[Any]) -> None:
    row = {"value": 1, "finish_reason": "stop", "num_generated_tokens": 1, "document": "0"}
    keys = [{"id": str(one), **({"key": one} if isinstance(one, int) else {}), **row} for one in ids]
    write_jsonl(tmp_path / "results.jsonl", keys)
    write_tables(tmp_path, ["csv", "excel", "parquet"])
    column = pq.read_table(tmp_path / "results.parquet").column("id")
    assert (str(column.type), column.to_pylist()) == (kind, cells)
    for name in ("results.csv", "results.excel.csv"):  # a negative number is no formula
        lines = (tmp_path / name).read_text(encoding="utf-8-sig").splitlines()[1:]
        assert [line.split(",")[0] for line in lines] == [str(one) for one in ids]
