from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs.fakes import FakeLLM, answering_at_once


@dataclass
class SmallDisk:
    """A file system of its own in memory."""

    path: Path

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """64 KiB of disk, where the tests may mount a file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    except OSError:
        pytest.skip("no mount command")
    if mount.returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    return answering_at_once(monkeypatch)
