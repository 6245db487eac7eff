"""The wheel and the source archive: what is in them, and that they work where nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import decodekit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[1]
INVOICE = "Invoice A-17, total 40.20 EUR."
SCHEMA = {"type": "object", "properties": {"number": {"type": "string"}}}


def call(*command: str | Path, cwd: Path) -> str:
    """The output of a command in a folder outside of the repository; its own decodekit is out of sight there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, made from what git knows of."""
    pytest.importorskip("build", reason="needs the extra `publish`")
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "copy"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    call(sys.executable, "-m", "build", "--outdir", folder, copy, cwd=folder)
    return folder


def tracked(*folders: str) -> set[str]:
    """The files that git knows of below some folders."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def test_the_wheel_has_every_file_of_the_package(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    there = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        f"decodekit/{name}" if name.startswith("grammars/") else name for name in tracked("decodekit", "grammars")
    }
    assert expected - there == set()
    assert there - expected == set()


def test_the_source_archive_has_every_file(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        there = {name.partition("/")[2] for name in opened.getnames()}
    assert {name for name in tracked() - there if not name.startswith((".ci/", ".git"))} == set()


@pytest.fixture(scope="module")
def python(built: Path) -> Path:
    """The Python of an empty environment into which the wheel was installed, with the tested versions."""
    folder = built / "environment"
    venv.create(folder, with_pip=True)
    own = folder / "bin" / "python"
    [wheel] = built.glob("*.whl")
    call(own, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=built)
    return own


def test_the_wheel_works_in_an_empty_environment(python: Path, tmp_path: Path) -> None:
    code = f"""
import json, decodekit as dk
out = dk.LLM.load("tiny").generate({INVOICE!r}, constraint={SCHEMA})
print(json.dumps([dk.__version__, dk.__file__, out.value, out.text]))
"""
    version, file, value, text = json.loads(call(python, "-c", code, cwd=tmp_path))
    assert version == decodekit.__version__
    assert Path(file).is_relative_to(python.parents[1])
    same = decodekit.LLM.load("tiny").generate(INVOICE, constraint=SCHEMA)
    assert (value, text) == (same.value, same.text)


def test_the_command_line_works_there(python: Path, tmp_path: Path) -> None:
    command = python.with_name("decodekit")
    assert "extract" in call(command, "--help", cwd=tmp_path)
    assert "torch" in call(command, "doctor", cwd=tmp_path)
    (tmp_path / "one.txt").write_text(INVOICE)
    call(
        command,
        "extract",
        "one.txt",
        "--schema",
        "number, total float",
        "--max-new-tokens",
        "60",
        "-o",
        "out",
        cwd=tmp_path,
    )
    [line] = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert set(json.loads(line)["value"]) == {"number", "total"}


def test_types_are_seen_by_its_users(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text("import decodekit as dk\nwrong: int = dk.Regex('a').pattern\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", str(python), "--no-incremental", str(script)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert 'has type "str", variable has type "int"' in done.stdout, done.stdout + done.stderr


def test_the_documentation_site_is_built_with_every_link(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra `docs`")
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    build = [sys.executable, "docs/site/build.py"]
    done = subprocess.run(build, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (copy / "build" / "site" / "index.html").is_file()
