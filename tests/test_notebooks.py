"""The notebooks run from top to bottom as scripts, each in a process of its own, and what they claim holds.

Their claims are `assert`s, so that a notebook that ran is one whose claims hold.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
NOTEBOOK = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def run(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook as a script in an empty folder, without a display."""
    environment = os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", str(path)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@NOTEBOOK
def test_it_runs_and_its_claims_hold(path: Path, tmp_path: Path) -> None:
    done = run(path, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not [*tmp_path.iterdir()], "it leaves files behind"


@NOTEBOOK
def test_it_is_a_notebook_that_claims_something(path: Path) -> None:
    cells = jupytext.read(path).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert sum(cell.cell_type == "code" for cell in cells) >= 5
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 5


def test_a_claim_that_does_not_hold_is_noticed(tmp_path: Path) -> None:
    notebook = tmp_path / "wrong.py"
    notebook.write_text("# %% [markdown]\n# # Wrong\n\n# %%\nassert 1 + 1 == 3\n")
    done = run(notebook, tmp_path)
    assert done.returncode != 0 and "AssertionError" in done.stderr
