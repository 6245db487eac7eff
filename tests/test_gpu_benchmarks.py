"""The benchmarks for a GPU run from end to end, here on a CPU with a tiny model; their figures mean nothing then."""

from __future__ import annotations

import pytest

from benchmarks import gpu, gpu_first


@pytest.mark.slow
@pytest.mark.parametrize("part", gpu.PARTS)
def test_a_part_runs(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main([part, "--device", "cpu", "--shape", "tiny", "--rows", "1", "3"])
    shown = capsys.readouterr().out
    assert "copy, TB/s (again)" in shown and "written" not in shown


@pytest.mark.slow
def test_the_first_minutes_run(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_first.main(["--device", "cpu", "--shape", "tiny", "--context", "40", "--rows", "1", "2"])
    assert "step, pages, captured" in capsys.readouterr().out
