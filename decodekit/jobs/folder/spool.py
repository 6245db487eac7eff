"""Inputs of a job that are not files, saved in its folder: standard input, and documents of a program."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

from decodekit.errors import JobError
from decodekit.jobs.documents.documents import scan
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.documents.refused_formats import is_json_lines, refusal_of_bytes
from decodekit.records.ledger import encode_line, replace_file

STDIN_ID: Final = "stdin"


def read_stdin(stream: BinaryIO, read_as: Input) -> bytes:
    """Standard input as it came, after a look at it: whether it holds documents, without faults in names of fields.
    Raises JobError as `scan` does, and for what is neither text nor JSON lines."""
    data = stream.read()
    if not data.strip():
        raise JobError("standard input is empty.", hint="pipe a text or JSON lines into the command.")
    with TemporaryDirectory() as folder:
        source = stdin_input(data, Path(folder), read_as)
        if not is_json_lines(data):
            refusal = refusal_of_bytes(data, "standard input", source.fields, file="/dev/stdin")
            if refusal is not None:
                raise refusal
        scan([source])
    return data


def spool(data: bytes, folder: Path) -> Path:
    """Save standard input in a job folder, so that `retry` and `report` find the documents again: as JSON lines when
    its first line that is not blank is a JSON object, else as one text, with the id ``stdin``."""
    name = f"input-{hashlib.sha256(data).hexdigest()[:8]}" + (".jsonl" if is_json_lines(data) else ".txt")
    replace_file(folder / name, [data])
    return folder / name


def spool_rows(rows: Iterable[Mapping[str, object]], folder: Path) -> Path:
    """Save rows of a program in a job folder as JSON lines, as `spool` does; they are taken one by one."""
    digest, made = hashlib.sha256(), folder / "input-rows.jsonl"

    def lines() -> Iterator[bytes]:
        for row in rows:
            line = encode_line(row)
            digest.update(line)
            yield line

    replace_file(made, lines())
    path = folder / f"input-{digest.hexdigest()[:8]}.jsonl"
    made.replace(path)
    return path


def stdin_input(data: bytes, folder: Path, read_as: Input) -> Input:
    """Standard input, saved in the job folder, as an input with the options of another one."""
    path = spool(data, folder)
    return replace(read_as, path=path.name, folder=str(folder.resolve()), name=STDIN_ID, include=(), exclude=())
