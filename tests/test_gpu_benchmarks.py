"""The benchmarks for a GPU: what they refuse, a model that prefers valid texts, and a rehearsal of every command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import decodekit as dk
from benchmarks import gpu, gpu_models, gpu_script
from decodekit.decoding.loop.batch import Batch

ROOT = Path(__file__).parents[1]
CPU = ["--device", "cpu", "--shape", "tiny", "--rows", "1", "3"]


def test_at_most_five_commands_run_every_part() -> None:
    assert len(gpu.COMMANDS) <= 5
    assert {part for parts in gpu.COMMANDS.values() for part in parts} == {*gpu.PARTS}


def test_no_figure_without_right_logits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "gate", lambda lm, model: 0.5)
    assert gpu.main(["decode", *CPU]) == 1
    shown = capsys.readouterr().out
    assert "logits differ by 5.0e-01" in shown and "tokens/s" not in shown
    monkeypatch.setattr(gpu, "gate", lambda lm, model: float("nan"))
    assert gpu.main(["rivals", *CPU]) == 1
    assert "tokens/s" not in capsys.readouterr().out


def test_no_figure_of_rows_that_were_preempted() -> None:
    class Bare(Batch[Any]):
        def __init__(self) -> None: ...

    plain = Batch.preempt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "preempt", lambda self, group, **options: None)
        with pytest.raises(gpu.RefusedError, match="1 texts left their rows"), gpu.without_preemption():
            Bare().preempt(None)
        with gpu.without_preemption():
            pass
    assert Batch.preempt is plain


def test_no_figure_beyond_what_memory_allows() -> None:
    assert gpu.share_of(200, 3.5, gpu.MOST_SHARE) == pytest.approx(0.7)
    assert gpu.share_of(2397, 3.9, None) > 9
    with pytest.raises(gpu.RefusedError, match=r"2397 steps a second are 9.35 of what memory allows"):
        gpu.share_of(2397, 3.9, gpu.MOST_SHARE)


def test_scripts_are_legal_but_where_they_are_meant_not_to_be() -> None:
    llm = dk.LLM.load("tiny")
    made = gpu_script.scripted_model(llm.tokenizer, 32, 60)
    model = made.build("tiny", torch.device("cpu"), torch.float32)
    scripted = dk.LLM(model, llm.tokenizer)
    given = made.prompts(8, 1536)
    assert [len(row) for row in given] == [*made.lengths]
    free, held = (
        scripted.generate(given, max_new_tokens=40, batch_size=8, **options)
        for options in ({}, {"constraint": dk.JsonSchema(gpu_script.SCHEMA)})
    )
    for length, one, other in zip(made.lengths, free, held, strict=True):
        wanted = made.script[:, length - 1 : length + 39]
        refused = (wanted[0] >= 0).nonzero().flatten().tolist()
        assert refused == [gpu_script.REFUSED_EVERY // 2 - 1]
        assert [*other.token_ids] == wanted[1].tolist()  # the constraint keeps the text on its script
        assert [*one.token_ids] == wanted[1].where(wanted[0] < 0, wanted[0]).tolist()
        assert other.text.startswith('{"id":"')
    assert len({one.text for one in held}) == 8


@pytest.mark.slow
@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_a_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([command, *CPU]) == 0
    shown = capsys.readouterr().out
    assert "copy, TB/s (again)" in shown and " 0 failed or refused" in shown and "written" not in shown


def test_what_is_brought_fits() -> None:
    """The tree with the kit, if there is one, and room for 40 MiB of it if there is none."""
    found = gpu_models.brought()
    most = gpu_models.MOST_BROUGHT if (ROOT / gpu_models.KIT).exists() else gpu_models.MOST_BROUGHT - (40 << 20)
    assert 1 << 20 < sum(found.values()) <= most, found


VERSIONS = {"torch": "2.11.0", "transformers": "5.17.0", "triton": "3.6.0"}
ABSENT = ("mistral_common", "pydantic", "jsonschema", "lark", "interegular", "hypothesis")


@pytest.fixture(scope="module")
def python_of_the_machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the versions of the GPU machine; without DECODEKIT_GPU_PYTHON it is made: 5 GB, minutes."""
    given = os.environ.get("DECODEKIT_GPU_PYTHON")
    if given is None:
        base = os.environ.get("DECODEKIT_PYTHON_3_12")
        if base is None:
            pytest.skip("needs DECODEKIT_GPU_PYTHON, or DECODEKIT_PYTHON_3_12 to make it with")
        folder = tmp_path_factory.mktemp("machine")
        subprocess.run([base, "-m", "venv", folder], check=True)
        given = str(folder / "bin" / "python")
        wanted = ["torch==2.11.0", "transformers==5.17.0", "numba", "typer", "rich", "pytest", "pytest-xdist"]
        subprocess.run([given, "-m", "pip", "install", "-q", *wanted], check=True)
        subprocess.run([given, "-m", "pip", "uninstall", "-q", "-y", *ABSENT], check=True)
    said = "import importlib.metadata as m, sys; print(sys.version_info[:2] == (3, 12), *map(m.version, sys.argv[1:]))"
    done = subprocess.run([given, "-c", said, *VERSIONS], capture_output=True, text=True, check=True)
    found = dict(zip(("3.12", *VERSIONS), done.stdout.split(), strict=True))
    assert found["3.12"] == "True", "DECODEKIT_GPU_PYTHON is another Python than 3.12"
    for name, version in VERSIONS.items():
        assert found[name].partition("+")[0] == version
    finds = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    there = subprocess.run([given, "-c", finds, *ABSENT], capture_output=True, text=True, check=True).stdout.strip()
    assert there == "[]", f"{there} are not on the machine"
    return given


@pytest.mark.slow
@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_a_rehearsal_with_the_versions_of_the_machine(command: str, python_of_the_machine: str) -> None:
    if not (ROOT / gpu_models.KIT / "packages").exists():
        pytest.skip("needs kit/: make gpu-kit")
    environment = {**os.environ, "PYTHONPATH": f"kit/packages{os.pathsep}."}
    run = [python_of_the_machine, "-m", "benchmarks.gpu", command, *CPU]
    done = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert '"torch": "2.11.0' in done.stdout and '"transformers": "5.17.0"' in done.stdout
