"""Whether there are programs for a GPU, and what is said where there are none."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from decodekit.cli import doctor
from decodekit.gpu import triton_programs as programs


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    programs.missing.cache_clear()
    yield
    programs.missing.cache_clear()


def test_the_reason_is_told_by_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert programs.missing() == "triton is not installed: pip install triton"
    assert doctor._kernels()["triton"].startswith("triton is not installed: pip install triton; ")


def test_programs_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(programs.OFF, "off")
    assert programs.missing() == "switched off by DECODEKIT_KERNELS=off"


def test_a_gpu_without_what_starts_programs_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No compiler, no headers of Python, an old card: the twins run, and the doctor tells why."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    capability = [(9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability[0])
    compilers: list[str] = []
    monkeypatch.setattr(shutil, "which", lambda name: name if name in compilers else None)
    include = {"include": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: include)

    def missing() -> str | None:
        programs.missing.cache_clear()
        return programs.missing()

    assert missing() == "triton needs a C compiler: apt install gcc"
    assert doctor._kernels()["triton"].startswith("triton needs a C compiler")
    compilers.append("clang")
    assert missing() == f"triton needs {tmp_path}/Python.h: apt install python3-dev"
    (tmp_path / "Python.h").touch()
    assert missing() is None
    capability[0] = (7, 0)
    assert missing() == "triton knows GPUs of compute capability 7.5 and later, this one has 7.0"


def test_the_operations_need_no_triton() -> None:
    """In a process in which Triton cannot be imported, they are there and run on the host."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, decodekit.gpu.paged_attention, decodekit.gpu.draft_match\n"
        "from decodekit.gpu.draw_settings import packed\n"
        "values = torch.from_numpy(packed([(1.0, 0, 1.0, 0.0, True)], [0], [0], [0]))\n"
        "row = torch.tensor([[0.0, 2.0]])\n"
        "print(torch.ops.decodekit.sample_rows(row, values, None, 1, True)[0, 0].item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_what_programs_share_is_asked_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An RTX 4090; where there is no device, kernels are made as for an H100."""
    found = SimpleNamespace(multi_processor_count=128, shared_memory_per_block_optin=101_376, major=8, minor=9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    programs.card_of.cache_clear()
    assert programs.card_of(torch.device("cuda", 7)) == programs.Card(128, 101_376, (8, 9))
    programs.card_of.cache_clear()
    assert programs.card_of(torch.device("cpu")) == programs.H100 == programs.Card(132, 232_448, (9, 0))


def test_counters_on_a_host_are_zeros_of_their_own() -> None:
    one, other = (programs.counters(torch.device("cpu")) for _ in range(2))
    assert not one.any() and one.data_ptr() != other.data_ptr()
    assert len(one) == programs.NUM_COUNTERS


def test_counters_are_kept_once_for_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a capture makes die with its graph; the others, which are the control, stay for their stream."""
    zeros, device, stream = torch.zeros, torch.device("cuda", 0), SimpleNamespace(cuda_stream=1)
    is_capturing = False
    monkeypatch.setattr(programs, "_COUNTERS", {})
    monkeypatch.setattr(torch, "zeros", lambda *sizes, dtype, device: zeros(*sizes, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)

    def made() -> weakref.ref[torch.Tensor]:
        return weakref.ref(programs.counters(device))

    is_capturing = True
    assert made()() is None
    is_capturing = False
    first, second = made(), made()
    assert first() is second() is not None
    stream.cuda_stream = 2
    assert made()() is not first()
    assert len(programs._COUNTERS) == 2


def test_powers_of_two() -> None:
    assert [programs.next_power_of_2(number) for number in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_splits_fill_the_places_of_the_multiprocessors() -> None:
    splits_of = programs.splits_of
    assert [splits_of(number, 264, 264) for number in (8, 64, 128, 192, 264, 300)] == [33, 4, 2, 4, 1, 3]
    assert splits_of(4008, 264, 8) == 1 and splits_of(28, 264, 1) == 1
    assert all(1 <= splits_of(number, 264, most) <= most for number in (1, 3, 64, 100, 300) for most in (1, 2, 7, 16))
