"""Options on the command line: unknown ones are answered, and errors name them as they were typed."""

from __future__ import annotations

import inspect
import json
import shlex

import pytest
from typer.testing import CliRunner

from decodekit.cli import app
from decodekit.cli import generate_command as generate
from decodekit.cli.jobs import extract
from decodekit.cli.parts import as_typed
from decodekit.errors import OptionError
from decodekit.jobs.job_schema import load_schema
from decodekit.strategy import all_option_names, resolve_strategy
from decodekit.strategy.options.known_options import known_options
from tests.test_known_options import values_of

KNOWN_OPTIONS = known_options()

TEXTS = {"contrast": "dola", "watermark": "true", "processors": "none", "sequence_bias": "[[[5, 6], -1.0]]"}
NAMELESS = {"processors", "logits_processor", "logits_processors", "key", "predicate"}  # values of Python alone
"""Values of Python as one types them."""
COMMANDS = {"generate": [*inspect.signature(generate.generate).parameters]}
COMMANDS["extract"] = [*inspect.signature(extract.extract).parameters]


def run(line: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, shlex.split(line))
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("generate hi --num-beams 3", ["no option --num-beams.", "try --strategy beam:num_beams=3"]),
        ("generate hi --max-tokens 5", ["(vLLM, OpenAI", "try --max-new-tokens 5"]),
        ("generate hi --max-tokens=5", ["try --max-new-tokens 5"]),
        ("generate hi --max-new-token 5", ["Did you mean --max-new-tokens?"]),
        ("generate hi --top-a 0.2 --strategy sample:top_p=0.5", ["try --strategy sample:top_p=0.5,top_a=0.2"]),
        ("generate hi --guided-regex '[0-9]+'", ["try --regex '[0-9]+'"]),
        ("generate hi --zzz 3", ["no option --zzz.", "--help"]),
        (
            "generate hi --temperature 0.3",
            ["--temperature 0.3 has no effect", "at  --temperature", "try --strategy sample"],
        ),
        (
            "generate hi --strategy sample --temperature -1 --top-p 2",
            ["2 options", "--temperature must be", "--top-p must be", "at  --top-p"],
        ),
        ("generate hi --strategy sample:temperature=-1", ["DK305 temperature must be", "at  temperature"]),
        ("generate hi --strategy mirostat:tau=-1", ["DK305 tau must be", "at  tau"]),
        ("generate hi --strategy sample:num_beams=3", ["is no option of strategy 'sample'", "try beam:num_beams=3"]),
        ("generate hi --max-rollbacks 3", ["--max-rollbacks 3 has no effect", "at  --max-rollbacks"]),
        ("extract x.txt -o y --schema name --max-tokens 4", ["try --max-new-tokens 4"]),
        ("extract x.txt -o y --schema name --stop a", ["no option --stop of this command"]),
        ("status --jsn .", ["Did you mean --json?"]),
        ("bench --strategies greedy --num-beams 3", ["try --strategies beam:num_beams=3"]),
        ("schema check --modle tiny x", ["Did you mean --model?"]),
    ],
)
def test_what_is_said(line: str, says: list[str]) -> None:
    code, err = run(line)
    assert code == 2
    assert all(one in err for one in says), err
    assert "Traceback" not in err and "No such option" not in err


@pytest.mark.parametrize("command", ["generate", "extract"])
def test_every_answer_can_be_typed(command: str) -> None:
    """What is told in place of an option is made of options that the command has, with values that are taken."""
    names = COMMANDS[command]
    num_tried = 0
    for number, name in enumerate(sorted({*KNOWN_OPTIONS, *all_option_names()} - {*names, *NAMELESS})):
        value = TEXTS.get(name, values_of(name)[0])
        word = value if isinstance(value, str) else json.dumps(value, default=str)
        strategy = ("greedy", "sample", "beam")[number % 3]
        option = as_typed.dashed(name)
        error = as_typed.unknown(option, [command, "--strategy", strategy, option, word], names, command)
        assert f"Did you mean {option}?" not in str(error)
        if error.hint is None or not error.hint.startswith("--") or "..." in error.hint or "in Python" in error.hint:
            continue
        words = shlex.split(error.hint)
        num_tried += 1
        for typed, given in zip(words[::2], words[1::2], strict=True):
            assert typed.removeprefix("--").replace("-", "_") in names, str(error)
            if typed == "--strategy":
                resolve_strategy(given, {})
            elif typed == "--schema" and given.startswith("{"):
                load_schema(given)
    assert num_tried > 50


def test_faults_are_written_as_they_are_typed() -> None:
    error = OptionError("top_p=2 is wrong", at="top_p", hint='strategy="sample", or max_new_tokens=5 or more')
    names = ["top_p", "strategy", "max_new_tokens"]
    assert as_typed.told(error, names, {"top_p": 2}) == (
        'DK305 --top-p 2 is wrong\n  at  --top-p\n  try --strategy "sample", or --max-new-tokens 5 or more'
    )
    assert as_typed.told(error, names, {}).startswith("DK305 top_p=2 is wrong\n  at  top_p")
    names = ["fresh", "num_workers", "id_field", "schema"]
    error = OptionError("schema=x", at="num_workers", hint="fresh=True, id_field, or num_workers=2")
    assert as_typed.told(error, names, {"num_workers": 3}) == (
        "DK305 schema=x\n  at  --workers\n  try --fresh, --id-field, or --workers 2"
    )
