from __future__ import annotations

import io
from pathlib import Path

import pytest

from decodekit.errors import DecodekitError, DocumentError, JobError
from decodekit.jobs.documents.documents import (
    document_seed,
    read_stdin,
    scan,
    select,
    shard_of,
    stdin_input,
    text_digest,
)
from decodekit.jobs.documents.inputs import Input
from tests.jobs.fakes import write_jsonl


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffBetrag 4 €\n".encode())
    (entry,) = scan([Input("a.txt", folder=str(tmp_path))]).entries
    assert (entry.id, entry.read()) == ("a.txt", "Betrag 4 €\n")
    assert text_digest(entry.read()) == entry.digest


def test_a_folder_stands_for_the_text_files_in_it(tmp_path: Path) -> None:
    for name in (
        "b.txt",
        "a.md",
        "sub/c.txt",
        ".hidden.txt",
        ".git/d.txt",
        "schema.json",
        "o/i.txt",
        "o/job.json",
        "o/report.html",
        "o/input-00000000.txt",
    ):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    found = scan([Input("docs/", folder=str(tmp_path))])
    assert [entry.id for entry in found.entries] == ["docs/a.md", "docs/b.txt", "docs/o/i.txt", "docs/sub/c.txt"]
    assert found.skipped == ["docs/schema.json"] and found.hidden == ["docs/.git/d.txt", "docs/.hidden.txt"]


def test_lines_are_documents_and_are_read_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": "a", "text": "one \xe2\x80\xa8 two"}\r\n\r\n'
        b'{"id": 7, "text": "three", "n": 1}\n{"id":"c","text":"end"}'
    )
    entries = scan([Input(str(path))]).entries
    assert [(e.id, e.read()) for e in entries] == [("a", "one \u2028 two"), ("7", "three"), ("c", "end")]
    assert entries[1].place == f"{path}:3"


def test_lines_without_ids_are_known_by_their_place(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d.jsonl", [{"text": "one"}, {"text": "two"}])
    entries = scan([Input("d.jsonl", folder=str(tmp_path))]).entries
    assert [entry.id for entry in entries] == ["d.jsonl:1", "d.jsonl:2"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'{"id": "x", "text": "a', "not JSON"),
        (b'["x"]', "not a JSON object but an array"),
        (b'{"id": "x", "text": "\xff"}', "not UTF-8: byte 0xff at offset 21"),
        (b'{"id": "x", "text": "  \\n"}', "empty"),
        (b'{"id": "x", "text": null}', "is null, not a text"),
        (b'{"id": "x"}', "has no field 'text'"),
        (b'{"id": true, "text": "a"}', "is a boolean; an id is"),
        (b'{"id": "", "text": "a"}', "an id is a text"),
        (b'{"id": "x", "text": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_a_fault_of_its_own(tmp_path: Path, line: bytes, cause: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"id": "ok", "text": "fine"}\n' + line + b"\n")
    good, bad = scan([Input(str(path))]).entries
    assert good.read() == "fine"
    assert bad.fault is not None
    assert cause in bad.fault.cause
    assert bad.fault.at == f"{path}:2"
    with pytest.raises(DocumentError):
        bad.read()


@pytest.mark.parametrize(("data", "cause"), [(b"", "empty"), (b" \n", "empty"), (b"caf\xe9", "not UTF-8: byte 0xe9")])
def test_a_bad_file_is_a_fault_of_its_own(tmp_path: Path, data: bytes, cause: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    (entry,) = scan([Input(str(tmp_path / "a.txt"))]).entries
    assert entry.fault is not None
    assert cause in entry.fault.cause


def test_a_file_that_vanishes_after_the_scan_is_a_document_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x")
    (entry,) = scan([Input(str(path))]).entries
    path.unlink()
    with pytest.raises(DocumentError, match="No such file"):
        entry.read()


def refusal(*inputs: Input) -> DecodekitError:
    with pytest.raises(DecodekitError) as caught:
        scan(inputs)
    return caught.value


def test_a_repeated_id_names_both_lines(tmp_path: Path) -> None:
    rows = [{"id": f"a-{n}", "text": "x"} for n in range(88)]
    rows[87]["id"] = "a-11"
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    error = refusal(Input(str(path)))
    assert isinstance(error, DocumentError) and error.code == "DK502"
    assert error.cause == f"{path}: line 88 repeats id 'a-11' of line 12."
    other = write_jsonl(tmp_path / "e.jsonl", [{"id": "a-3", "text": "x"}])
    write_jsonl(path, rows[:20])
    assert refusal(Input(str(path)), Input(str(other))).cause == f"{other}:1 repeats id 'a-3' of {path}:4."
    assert len(scan([Input(str(path)), Input(str(other))], is_lookup=True).entries) == 21


def test_a_file_named_twice_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    source = Input("a.txt", folder=str(tmp_path))
    found = scan([source, source])
    assert ([entry.id for entry in found.entries], found.repeated) == (["a.txt"], ["a.txt"])


def test_a_field_that_no_line_has_is_a_wrong_name(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "d.jsonl", [{"key": 1, "body": "x"}]))
    assert "no field 'text'" not in str(refusal(Input(path)))
    error = refusal(Input(path))
    assert "the field 'text'" in error.cause and "body, key" in str(error)
    error = refusal(Input(path, id_field="nr", text_field="body"))
    assert "the field 'nr'" in error.cause and "id_field" in str(error)
    assert [entry.id for entry in scan([Input(path, "key", "body")]).entries] == ["1"]


def test_inputs_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    assert isinstance(refusal(Input("nowhere", folder=str(tmp_path))), JobError)
    assert "holds no document" in refusal(Input(".", folder=str(tmp_path))).cause


def test_stdin_is_lines_or_one_text_by_its_first_line(tmp_path: Path) -> None:
    lines = stdin_input(b'\n{"id": "a", "text": "x"}\n', tmp_path, Input("")).location
    assert lines.suffix == ".jsonl"
    text = stdin_input(b"Invoice 7\n{}\n", tmp_path, Input("")).location
    assert text.suffix == ".txt"
    (entry,) = scan([Input(text.name, folder=str(tmp_path), name="stdin")]).entries
    assert (entry.id, entry.read()) == ("stdin", "Invoice 7\n{}\n")
    with pytest.raises(JobError, match="standard input is empty"):
        read_stdin(io.BytesIO(b" \n"), Input(""))


def test_shards_partition_the_documents_exactly(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": f"doc-{n}", "text": "x"} for n in range(1000)])
    entries = scan([Input(str(path))]).entries
    for total in (1, 2, 3, 7):
        parts = [{entry.id for entry in select(entries, (number, total), None)} for number in range(1, total + 1)]
        assert sum(map(len, parts)) == 1000
        assert set().union(*parts) == {entry.id for entry in entries}
        # Binomial(1000, 1/n): six standard deviations, 1e-8 to fail if ids were drawn at random; they are fixed here.
        assert all(abs(len(part) - 1000 / total) < 6 * (1000 / total) ** 0.5 for part in parts)
    assert [entry.id for entry in select(entries, None, 3)] == ["doc-0", "doc-1", "doc-2"]
    more = [shard_of(f"doc-{n}", 7) for n in range(1000)]
    assert more == [shard_of(f"doc-{n}", 7) for n in range(2000)][:1000]  # added documents move no other


def test_seeds_depend_on_the_seed_and_the_id_alone() -> None:
    seeds = {document_seed(seed, f"doc-{n}") for seed in range(3) for n in range(1000)}
    assert len(seeds) == 3000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert document_seed(0, "doc-1") == 8961436203066795069  # for ever: results of old jobs depend on it
