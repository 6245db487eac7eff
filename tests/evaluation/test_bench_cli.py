from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decodekit import plugins
from decodekit.cli import app
from decodekit.errors import PluginError

ROOT = Path(__file__).parents[2]
SCHEMA = {"type": "object", "properties": {"number": {"type": "string", "maxLength": 9}}, "required": ["number"]}


class Result:
    """What a command did."""

    def __init__(self, *arguments: str | Path) -> None:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "bills.jsonl"
    lines = [{"prompt": f"Invoice A-{n}, total 4.20 EUR.\n", "reference": {"number": f"A-{n}"}} for n in (17, 18)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_comparison_from_the_command_line(task: Path, tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text(json.dumps(SCHEMA))
    output = tmp_path / "out"
    options = ["--tasks", task, "--schema", schema, "--seeds", "4,5", "--max-new-tokens", "30", "-o", output]
    done = Result("bench", "--strategies", "greedy,sample:temperature=0.7,top_p=0.9", *options, "--repeats", "2")
    assert done.code == 0
    assert "bills: quality" in done.out and "sample:temperature=0.7,top_p=0.9" in done.out
    assert "bench.html" in done.err and "bench.html" not in done.out
    rows = [json.loads(line) for line in (output / "bench.jsonl").read_text().splitlines()]
    assert [(row["strategy"], row["seed"]) for row in rows] == [
        ("greedy", 4),
        ("sample:temperature=0.7,top_p=0.9", 4),
        ("greedy", 5),
        ("sample:temperature=0.7,top_p=0.9", 5),
    ]
    assert all(row["quality"]["valid"] == 1.0 and len(row["speed"]) == 2 for row in rows)
    assert (output / "bench.html").read_text().startswith("<!doctype html>")


def test_rows_as_json_and_errors_in_the_exit_code(task: Path, tmp_path: Path) -> None:
    options = ["--tasks", task, "--seeds", "0", "--max-new-tokens", "5", "--limit", "1", "-o", tmp_path, "--json"]
    done = Result("bench", "--strategies", "greedy,greedy+grammar", *options)
    assert done.code == 7
    rows = json.loads(done.out)
    assert [(row["strategy"], row["num_failed"], row["num_examples"]) for row in rows] == [
        ("greedy", 0, 1),
        ("greedy+grammar", 1, 1),
    ]
    assert "no effect without a constraint" in rows[1]["examples"][0]["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategies", "gredy"], "Did you mean 'greedy'"),
        (["--strategies", "greedy,sample:temprature=1"], "Did you mean 'temperature'"),
        (["--strategies", "greedy", "--tasks", "extracton"], "Did you mean 'extraction'"),
        (["--strategies", "greedy", "--seeds", "a,b"], "--seeds"),
        (["--strategies", "greedy", "--schema", "name"], "says by itself"),
        (["--strategies", "greedy", "--model", "no/such/folder"], "no such model folder"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = Result("bench", *arguments, "-o", tmp_path / "out")
    assert done.code == (4 if "--model" in arguments else 2)
    assert message in done.err
    assert done.out == "" and not (tmp_path / "out").exists()


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    done = Result("bench", "--strategies", "greedy", "--tasks", tmp_path / "empty.jsonl")
    assert done.code == 2 and "no examples" in done.err


def test_strategies_are_listed_with_their_options() -> None:
    done = Result("strategies")
    assert done.code == 0
    assert "sample: A token drawn" in done.out and "temperature=1.0" in done.out
    assert "Proposers, which draft tokens" in done.out and "prompt-lookup" in done.out
    listed = json.loads(Result("strategies", "--json").out)
    by_name = {one["name"]: one for one in listed["strategies"]}
    assert by_name["sample"]["options"]["temperature"]["default"] == "1.0"
    assert {"greedy", "sample", "beam", "mirostat"} <= by_name.keys()
    assert all(one["error"] is None for one in by_name.values())
    assert {"grammar", "suffix"} <= set(listed["proposers"])
    assert listed["proposers"]["draft-model"]["num_tokens"]["default"] == "4"
    assert listed["contrasts"].keys() == {"guidance", "dola", "amateur"}
    assert listed["contrasts"]["dola"]["relative_top"]["default"] == "0.1"


def test_a_broken_plug_in_is_listed_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def available(kind: str, built_in: object = ()) -> list[str]:
        return ["greedy", "shy"] if kind == "strategy" else ["suffix"]

    whole = plugins.find

    def find(kind: str, name: str, *rest: object, **options: object) -> object:
        if name == "shy":
            raise PluginError("strategy 'shy' cannot be loaded: ImportError: no")
        return whole(kind, name, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(plugins, "available", available)
    monkeypatch.setattr(plugins, "find", find)
    out = Result("strategies").out
    assert "cannot be loaded" in out and "greedy: The likeliest token" in out


def test_help_is_light() -> None:
    code = (
        "import sys\n"
        "from decodekit.cli import main\n"
        "sys.argv = ['decodekit', 'bench', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'numba', 'numpy'} & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "--strategies" in done.stdout
