"""Whether there are programs for a GPU, and what is said where there are none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from decodekit.cli import doctor
from decodekit.kernels import programs


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


def test_the_operations_need_no_triton() -> None:
    """In a process in which Triton cannot be imported, they are there and run on the host."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, decodekit.kernels.paged_attention, decodekit.kernels.verify\n"
        "from decodekit.kernels.sampler import rule_of\n"
        "key = torch.zeros(1, dtype=torch.int64)\n"
        "rule = rule_of([(1.0, 0, 1.0, 0.0, True)])\n"
        "row = torch.tensor([[0.0, 2.0]])\n"
        "print(torch.ops.decodekit.sample_rows(row, *rule, key, key, key, None, None, True, True, True)[0].item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_counters_on_a_host_are_zeros_of_their_own() -> None:
    one, other = (programs.counters(torch.device("cpu")) for _ in range(2))
    assert not one.any() and one.data_ptr() != other.data_ptr()
    assert len(one) == programs.NUM_COUNTERS


def test_powers_of_two() -> None:
    assert [programs.next_power_of_2(number) for number in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
