"""The results of a job as a table beside `results.jsonl`: CSV or Parquet, a column for each property of the values.

CSV has the values as they are. Spreadsheets run what begins like a formula, so there is CSV for these, too: an
apostrophe stands before such a text, and a mark at the beginning says that it is UTF-8.

    {"id": "a", "value": {"name": "Ann", "tags": ["x"]}}   ->   id,name,tags
                                                                a,Ann,"[""x""]"

Objects and arrays stand as JSON. A value that is not an object has the column `value`; a property that is called `id`
has the column `value.id`. The properties of the schema are columns in its order, also those that no row has; what else
the rows have comes after them. Ids are integers where all of them are in the inputs. `results.jsonl` stays
what counts: a table is made of it, in one step, whenever a run ends.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

from decodekit.jobs.documents.files import needed
from decodekit.jobs.folder.file_names import TABLES
from decodekit.jobs.folder.job_folder import read_results
from decodekit.records.ledger import new_file, open_own, output_error, replace_file
from decodekit.records.strict_json import value_at

TableFormat: TypeAlias = Literal["csv", "excel", "parquet"]

_BATCH: Final = 1024  # rows that are in memory at a time
_SUBSCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else"})  # of the same value
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_INT64: Final = range(-(2**63), 2**63)


def write_tables(folder: Path, formats: Iterable[TableFormat], schema: Mapping[str, Any] | bool = True) -> list[Path]:
    """Write the results of a job as tables of these formats; the properties of its schema are columns even where no row
    has them."""
    paths = []
    for name in formats:
        paths.append(folder / TABLES[name])
        _WRITERS[name](paths[-1], _columns(_flat_rows(folder), schema), folder)
    return paths


def tables_of(folder: Path) -> list[TableFormat]:
    """The formats in which a job has a table already."""
    return [name for name in _WRITERS if (folder / TABLES[name]).exists()]


def _flat_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Each result as one value for each column; an absent property has none."""
    for row in read_results(folder):
        value = row["value"]
        cells = value if isinstance(value, dict) else {"value": value}
        named = {"value.id" if name == "id" else name: cell for name, cell in cells.items()}
        yield {"id": row.get("key", row["id"]), **named}


def properties_of(schema: Any) -> list[str]:
    """The names of the properties of a schema in its order, with those of the schemas that it is put together of.

    References are followed inside the schema, as far as they are JSON Pointers.
    """
    found: dict[str, None] = {}
    seen: set[int] = set()

    def visit(part: Any) -> None:
        if not isinstance(part, Mapping) or id(part) in seen:
            return
        seen.add(id(part))
        for keyword, value in part.items():
            if keyword == "properties" and isinstance(value, Mapping):
                found.update(dict.fromkeys(value))
            elif keyword in _SUBSCHEMAS:
                for one in value if isinstance(value, list) else [value]:
                    visit(one)
            elif keyword == "dependentSchemas" and isinstance(value, Mapping):
                for one in value.values():
                    visit(one)
            elif keyword == "$ref" and isinstance(value, str) and value.startswith("#"):
                visit(value_at(schema, unquote(value)))

    visit(schema)
    return list(found)


def _columns(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, Any] | bool) -> dict[str, str]:
    """The columns: those of the schema, then others in order of appearance, each with the one kind of its values.

    The kind is ``json`` where values have several, and ``null`` where there is none.
    """
    names = ["value.id" if name == "id" else name for name in properties_of(schema)]
    kinds = dict.fromkeys(["id", *names], "null")
    for row in rows:
        for name, value in row.items():
            both = {kinds.get(name, "null"), _kind_of(value)} - {"null"} or {"null"}
            kinds[name] = both.pop() if len(both) == 1 else "float" if both == {"int", "float"} else "json"
    if kinds["id"] == "json":  # integers beside texts
        kinds["id"] = "str"
    return kinds


def _kind_of(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if value in _INT64 else "json"
    kinds = {type(None): "null", bool: "bool", float: "float", str: "str"}
    return kinds.get(type(value), "json")


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_csv(
    path: Path, columns: Mapping[str, str], folder: Path, *, cell: Callable[[Any], str], mark: bytes = b""
) -> None:
    def lines() -> Iterator[bytes]:
        yield mark
        writer: Any = csv.writer(SimpleNamespace(write=str))  # a row is what `write` returns
        for cells in itertools.chain([list(columns)], (map(row.get, columns) for row in _flat_rows(folder))):
            yield writer.writerow(map(cell, cells)).encode("utf-8", errors="backslashreplace")

    replace_file(path, lines())


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else _as_json(value)


def _inert(value: Any) -> str:
    """A cell that no spreadsheet takes for a formula. A number is one, also with a minus."""
    text = _cell(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def _write_parquet(path: Path, columns: Mapping[str, str], folder: Path) -> None:
    pyarrow = needed("pyarrow", "tables", "a table in Parquet was asked for")
    parquet = needed("pyarrow.parquet", "tables", "a table in Parquet was asked for")
    types = {"int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_(), "null": pyarrow.string()}
    fields = [(name, types.get(kind, pyarrow.string())) for name, kind in columns.items()]
    schema = pyarrow.schema(fields or [("id", pyarrow.string())])
    try:
        made = open_own(new_file(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(made, "wb") as file, parquet.ParquetWriter(file, schema) as writer:
            rows = _flat_rows(folder)
            while batch := list(itertools.islice(rows, _BATCH)):
                data = {name: [_typed(row.get(name), kind) for row in batch] for name, kind in columns.items()}
                writer.write_table(pyarrow.table(data, schema=schema))
        new_file(path).replace(path)
    except OSError as error:
        new_file(path).unlink(missing_ok=True)
        raise output_error(path, error) from error


def _typed(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        value = _as_json(value)
    elif kind == "str":
        value = str(value)  # an id
    if isinstance(value, str):  # half of a surrogate pair has no UTF-8 form
        return value.encode("utf-8", errors="backslashreplace").decode()
    return float(value) if kind == "float" else value


_WRITERS: Final[Mapping[TableFormat, Callable[[Path, Mapping[str, str], Path], None]]] = {
    "csv": partial(_write_csv, cell=_cell),
    "excel": partial(_write_csv, cell=_inert, mark=b"\xef\xbb\xbf"),
    "parquet": _write_parquet,
}
