"""Tasks of lm-eval, answered by our model as lm-eval's own `hf` model answers them; tasks of our own, made for this."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import decodekit as dk
from decodekit.errors import OptionError, OutputError, UnknownNameError
from decodekit.evaluation import harness
from tests.commands import Result

TASKS = Path(__file__).parent / "harness_tasks"
NAMES = ["bills", "kinds", "prose"]
TEXTS = ["", "a", "Invoice A-17, total 40.20 EUR. ", "€ and é ", "x" * 30, "the cat sat on the mat. " * 12]
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TASKS.parents[2])  # the tasks name their data from there
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[dk.LLM, Any]:
    """A random model with a context of 64 tokens: ours, and lm-eval's."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    hf = pytest.importorskip("lm_eval.models.huggingface", reason="needs lm-eval (extra eval)")
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(Path(dk.__file__).parent / "models" / "tiny")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        initializer_range=0.4,
    )
    model = LlamaForCausalLM(config).eval()
    theirs = hf.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3, device="cpu", max_length=64)
    return dk.LLM(model, tokenizer), theirs


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=one, task_name="ours") for one in arguments]


def ours(llm: dk.LLM, **options: Any) -> Any:
    from decodekit.evaluation.harness_model import HarnessModel

    return HarnessModel(llm, **options)


@slow
def test_log_likelihoods_are_those_of_the_hf_model(pair: tuple[dk.LLM, Any]) -> None:
    llm, theirs = pair
    asked = requests(*((context, text) for context in TEXTS for text in [" yes", "no", "a b c d e f"]))
    found, expected = ours(llm).loglikelihood(asked), theirs.loglikelihood(asked)
    assert [one for one, _ in found] == pytest.approx([one for one, _ in expected], rel=1e-4)
    assert [one for _, one in found] == [one for _, one in expected]
    # What greedy decoding writes is greedy.
    greedy = ours(llm).generate_until(requests(*((text, {"max_gen_toks": 3}) for text in ("a", "bill"))))
    again = requests(*((text, more) for text, more in zip(("a", "bill"), greedy, strict=True) if more))
    assert [one for _, one in ours(llm).loglikelihood(again)] == [one for _, one in theirs.loglikelihood(again)]


@slow
def test_rolling_log_likelihoods_are_those_of_the_hf_model(pair: tuple[dk.LLM, Any]) -> None:
    llm, theirs = pair
    asked = requests(*((text,) for text in TEXTS[1:]))
    assert ours(llm).loglikelihood_rolling(asked) == pytest.approx(theirs.loglikelihood_rolling(asked), rel=1e-4)


@slow
def test_greedy_texts_are_those_of_the_hf_model(pair: tuple[dk.LLM, Any]) -> None:
    llm, theirs = pair
    plain, short = {"max_gen_toks": 20, "until": []}, {"max_gen_toks": 8, "until": ["e", "\n"], "do_sample": False}
    asked = requests(*((text, options) for text in TEXTS[1:] for options in (plain, short)))
    model = ours(llm)
    found = model.generate_until(asked)
    assert model.num_shortened == 2 and model.errors == []
    assert found == theirs.generate_until([SimpleNamespace(args=(c, dict(o))) for c, o in (r.args for r in asked)])
    assert len(set(found)) > 4
    for speculate in ("prompt-lookup", "suffix"):
        assert ours(llm, options={"speculate": speculate}).generate_until(asked) == found


@slow
def test_a_strategy_goes_before_what_a_task_asks_for(pair: tuple[dk.LLM, Any]) -> None:
    llm, _ = pair
    asked = requests(*(("a", {"max_gen_toks": 9, "do_sample": True, "temperature": 0.9}) for _ in range(3)))
    sampled = ours(llm).generate_until(asked)
    assert len(set(sampled)) == 3  # each request has noise of its own
    assert ours(llm).generate_until(asked) == sampled != ours(llm, seed=1).generate_until(asked)
    assert len(set(ours(llm, strategy="greedy").generate_until(asked))) == 1
    cut = requests(("a", {"until": ["5", "7", "9"]}), ("a", {"until": []}))
    short, whole = ours(llm, max_new_tokens=9, options={"constraint": dk.Regex("[0-9]{3}57")}).generate_until(cut)
    assert len(whole) == 5 and whole.startswith(short) and not set(short) & set("579") and len(short) < 4
    digits = ours(llm, max_new_tokens=4, options={"constraint": dk.Regex("[0-9]{3}")}).generate_until(asked)
    assert all(text.isdigit() and len(text) == 3 for text in digits)


@slow
def test_tasks_give_the_figures_of_the_hf_model(pair: tuple[dk.LLM, Any], tmp_path: Path) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    llm, theirs = pair
    found = harness.evaluate_tasks(llm, NAMES, include_path=TASKS)
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    expected = lm_eval.simple_evaluate(theirs, tasks=NAMES, task_manager=manager, bootstrap_iters=1000)
    for task in NAMES:
        for name, value in expected["results"][task].items():
            if isinstance(value, float):
                assert found.results["results"][task][name] == pytest.approx(value, rel=1e-4), (task, name)
    assert found.num_shortened == 0 and found.errors == ()
    found.write(tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert kept["results"]["kinds"]["acc,none"] == found.results["results"]["kinds"]["acc,none"]
    lines = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines] == [name for name in NAMES for _ in range(4)]
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        found.write(tmp_path / "file")


@slow
def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval (extra eval)")
    options = ["--include-path", TASKS, "-o", tmp_path, "--limit", "2", "--max-new-tokens", "8"]
    done = Result("eval", "--tasks", "bills,kinds", "--strategy", "sample:temperature=0.5", "--seed", "3", *options)
    assert done.code == 0
    assert "bills" in done.out and "exact_match" in done.out and "results.json" in done.err
    again = Result("eval", "--tasks", "bills", "--regex", "[A-Z]-[0-9]+", *options, "--json")
    assert again.code == 0
    record = json.loads(again.out)
    assert record["config"]["model"] == "tiny" and record["config"]["seed"] == 0
    answers = [json.loads(line)["resps"][0][0] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(answers) == 2 and all(answer[0].isupper() and answer[1] == "-" for answer in answers)
    wrong = Result("eval", "--tasks", "bils", "--include-path", TASKS)
    assert wrong.code == 2 and "Did you mean 'bills'" in wrong.err


@slow
def test_an_unknown_task_is_named() -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval (extra eval)")
    with pytest.raises(UnknownNameError, match="no task 'kindz'"):
        harness.evaluate_tasks(dk.testing.toy_llm(), ["bills", "kindz"], include_path=TASKS)


def test_lm_eval_prints_neither_bars_nor_what_git_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tqdm.auto import tqdm

    def commit() -> None:  # as lm-eval asks
        subprocess.run(["git", "describe", "--always"], check=False)

    package, evaluator = ModuleType("lm_eval"), ModuleType("lm_eval.evaluator")
    package.evaluator, evaluator.get_git_commit_hash = evaluator, commit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lm_eval", package)
    monkeypatch.setitem(sys.modules, "lm_eval.evaluator", evaluator)
    monkeypatch.chdir(tmp_path)
    for is_quiet in (True, False):
        with harness._quiet() if is_quiet else nullcontext():
            evaluator.get_git_commit_hash()
            list(tqdm(range(3)))
            assert [*tqdm(range(2), desc="ours", disable=False)] == [0, 1]
        said = capfd.readouterr().err
        assert ("3/3" in said, "git repository" in said, "ours" in said) == (not is_quiet, not is_quiet, True)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="lm-eval is not installed") as raised:
        harness.evaluate_tasks(dk.testing.toy_llm(), "bills")
    assert raised.value.hint == "pip install 'decodekit[eval]'"
    done = Result("eval", "--tasks", "bills")
    assert done.code == 2 and "decodekit[eval]" in done.err


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"tasks": []}, "tasks"),
        ({"tasks": [3]}, "tasks"),
        ({"include_path": "no such folder"}, "include_path"),
        ({"limit": 0}, "limit"),
        ({"batch_size": True}, "batch_size"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "require_harness", lambda: None)
    with pytest.raises(OptionError) as raised:
        harness.evaluate_tasks(dk.testing.toy_llm(), **{"tasks": ["bills"], **options})
    assert raised.value.at == at
