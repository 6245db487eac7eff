from __future__ import annotations

import errno
import json
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.errors import JobError, OutputError
from decodekit.records import ledger as module
from decodekit.records.ledger import Ledger, encode_line, read_rows, replace_file
from tests.jobs.conftest import SmallDisk

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_a_line_is_one_line_and_means_the_row(row: dict[str, object]) -> None:
    line = encode_line(row)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line) == row


def test_half_a_surrogate_pair_survives() -> None:
    assert json.loads(encode_line({"x": "a\ud800"})) == {"x": "a\ud800"}


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_line({"x": float("nan")})


def test_a_tail_torn_at_any_byte_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    rows = [{"id": "a", "v": "é\n"}, {"id": "b"}, {"id": "c", "v": [1, {"x": "}"}]}]
    data = b"".join(map(encode_line, rows))
    ends = [len(b"".join(map(encode_line, rows[:n]))) for n in range(4)]
    path = tmp_path / "l.jsonl"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        num_whole = sum(end <= size for end in ends) - 1
        assert list(read_rows(path)) == rows[:num_whole]
        log = Ledger(path)
        assert log.num_torn_bytes == size - ends[num_whole]
        log.append({"id": "new"})
        assert list(log.rows()) == [*rows[:num_whole], {"id": "new"}]
        log.close()


def test_a_tail_of_zeros_after_a_power_cut_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_bytes(encode_line({"id": 1}) + b"\0" * 4096)
    Ledger(path).close()
    assert path.read_bytes() == encode_line({"id": 1})


def test_a_bad_line_before_good_ones_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_bytes(encode_line({"id": 1}) + b"oops\n" + encode_line({"id": 2}))
    with pytest.raises(JobError) as caught:
        Ledger(path)
    assert caught.value.at == f"{path}:2"
    assert path.read_bytes().count(b"\n") == 3  # nothing was cut


def test_rewrite_replaces_and_appending_goes_on(tmp_path: Path) -> None:
    log = Ledger(tmp_path / "l.jsonl")
    for number in range(3):
        log.append({"n": number})
    log.rewrite([{"n": 7}])
    log.append({"n": 8})
    log.close()
    assert list(read_rows(tmp_path / "l.jsonl")) == [{"n": 7}, {"n": 8}]
    assert [path.name for path in tmp_path.iterdir()] == ["l.jsonl"]


@pytest.mark.parametrize("num_bytes_that_fit", [0, 1, 5, 11])
def test_a_full_disk_leaves_the_lines_before_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes_that_fit: int
) -> None:
    log = Ledger(tmp_path / "l.jsonl")
    log.append({"id": "first"})
    room = num_bytes_that_fit

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = min(room, len(data))
        room -= size
        return os.write(descriptor, data[:size])

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", write)
        with pytest.raises(OutputError) as caught:
            log.append({"id": "second"})
    assert "no space left" in str(caught.value)
    assert list(read_rows(log.path)) == [{"id": "first"}]
    log.append({"id": "third"})  # there is room again
    log.close()
    assert (tmp_path / "l.jsonl").read_bytes() == encode_line({"id": "first"}) + encode_line({"id": "third"})


def test_a_really_full_disk(small_disk: SmallDisk) -> None:
    path = small_disk.path / "l.jsonl"
    log = Ledger(path)
    num_rows = 0

    def fill() -> None:
        nonlocal num_rows
        while True:
            log.append({"n": num_rows, "text": "x" * 100})
            num_rows += 1

    with pytest.raises(OutputError):
        fill()
    log.close()
    assert [row["n"] for row in read_rows(path)] == list(range(num_rows))
    assert path.read_bytes().endswith(b"\n")
    with pytest.raises(OutputError):
        replace_file(path, [b"y" * 100_000])
    assert [row["n"] for row in read_rows(path)] == list(range(num_rows))
    assert [file.name for file in small_disk.path.iterdir()] == ["l.jsonl"]


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(OutputError) as caught:
        Ledger(Path("/proc/decodekit/l.jsonl"))
    assert caught.value.code == "DK503"
    assert caught.value.at == "/proc/decodekit/l.jsonl"


def test_a_slow_disk_is_synced_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_syncs = 0

    def slow_sync(descriptor: int) -> None:
        nonlocal num_syncs
        num_syncs += 1
        time.sleep(0.01)

    monkeypatch.setattr(module.os, "fsync", slow_sync)
    eager, lazy = (
        Ledger(tmp_path / "a.jsonl", sync_interval_s=0),
        Ledger(tmp_path / "b.jsonl", sync_interval_s=math.inf),
    )
    started = time.monotonic()
    while time.monotonic() < started + 0.5:
        eager.append({"n": 1})
        lazy.append({"n": 1})
    assert 1 <= num_syncs <= 3  # one part in 20 of half a second holds two of them
    lazy.close()
    assert 2 <= num_syncs <= 4  # what was appended is safe once it is closed
