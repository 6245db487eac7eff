"""The options of `generate`: one list of names for the value, the keywords, the methods and the documentation."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_overloads

import numpy as np
import pytest

import decodekit as dk
from decodekit import llm
from decodekit.llm import front
from decodekit.strategy import GENERATION_OPTIONS, GenerateKeywords, GenerateOptions, all_option_names
from decodekit.strategy.options.generate_options import StrategyKeywords
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import small_tokenizer

METHODS = (dk.LLM.generate, dk.LLM.agenerate, dk.LLM.stream, dk.LLM.as_completed, front.generate)


def own_keys() -> list[str]:
    return [name for name in GenerateKeywords.__annotations__ if name not in StrategyKeywords.__annotations__]


def test_value_keywords_and_docs_have_the_same_names() -> None:
    names = [one.name for one in fields(GenerateOptions)]
    assert names == [*GENERATION_OPTIONS, "strategy_options"]
    assert own_keys() == list(GENERATION_OPTIONS)
    assert re.findall(r"^    (\w+): ", inspect.getdoc(GenerateOptions) or "", re.MULTILINE) == names
    told = re.findall(r"``(\w+)``", (inspect.getdoc(dk.LLM.generate) or "").split("options:")[1].split("Raises:")[0])
    assert told == list(GENERATION_OPTIONS)


def test_keywords_of_strategies_are_their_options() -> None:
    assert set(StrategyKeywords.__annotations__) == all_option_names() - set(GENERATION_OPTIONS)


@pytest.mark.parametrize("function", METHODS)
def test_every_method_has_these_keywords(function: Any) -> None:
    overloads = get_overloads(function)
    assert bool(overloads) == function.__name__.endswith("generate")
    for one in (function, *overloads):
        *_, rest = inspect.signature(one, eval_str=True).parameters.values()
        assert rest.kind is rest.VAR_KEYWORD and get_origin(rest.annotation) is Unpack
        [keywords] = get_args(rest.annotation)
        assert {*keywords.__annotations__} - {"progress", "timeout"} == {*GenerateKeywords.__annotations__}


def test_type_checkers_know_every_option(tmp_path: Path) -> None:
    """mypy accepts every keyword with its type, and refuses a slip and a wrong type, in every method."""
    from mypy import api

    names = [*GENERATION_OPTIONS, *sorted(set(StrategyKeywords.__annotations__))]
    given = ", ".join(f"{name}=any_" for name in names)
    calls = ("llm.generate(prompt, {})", "llm.stream(prompt, {})", "llm.as_completed([prompt], {})",
             "dk.generate(any_, any_, prompt, {})", "_ = llm.agenerate(prompt, timeout=3, {})")  # fmt: skip
    lines = ["from typing import Any", "import decodekit as dk", "any_: Any = None", 'prompt = "x"',
             "llm: dk.LLM = any_"]  # fmt: skip
    lines += [call.format(given) for call in calls]
    lines += ["text: str = llm.generate(prompt).text", "texts: list[dk.Completion] = dk.generate(any_, any_, [prompt])"]
    num_right = len(lines)
    lines += [call.format("max_new_token=3") for call in calls]
    lines += [call.format('batch_size="3"') for call in calls]
    source = tmp_path / "calls.py"
    source.write_text("\n".join(lines) + "\n")
    # Only the modules that declare the keywords are read: with torch and transformers it takes twenty times as long.
    package = Path(dk.__file__).parent
    declaring = ("__init__.py", "llm/__init__.py", "llm/front.py", "strategy/options/generate_options.py",
                 "sampling/options/option_fields.py")  # fmt: skip
    flags = ["--follow-imports=skip", "--ignore-missing-imports", f"--cache-dir={tmp_path}", "--config-file="]
    out, _, _ = api.run([*flags, str(source), *(str(package / name) for name in declaring)])
    wrong = {int(number) for number in re.findall(r"^\S*calls\.py:(\d+): error", out, re.MULTILINE)}
    assert wrong == set(range(num_right + 1, len(lines) + 1)), out


def test_keywords_and_value_are_each_other() -> None:
    options = GenerateOptions.of(strategy="sample", temperature=0.7, max_new_tokens=5)
    assert options == GenerateOptions("sample", max_new_tokens=5, strategy_options={"temperature": 0.7})
    assert GenerateOptions.of(**options.keywords()) == options
    assert GenerateOptions.of() == GenerateOptions() and GenerateOptions() is not GenerateOptions.of()
    one = dk.LLM(ToyLM(hashed_law(160), 160, frozenset({2})), small_tokenizer())
    texts = [one.generate("the", **replace(options, seed=seed).keywords()).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0] == one.generate("the", strategy="sample", temperature=0.7, max_new_tokens=5, seed=1).text


def test_numbers_become_plain() -> None:
    options = GenerateOptions(max_new_tokens=np.int64(3), seed=np.array([1, 2]), logprobs=np.bool_(True))  # type: ignore[arg-type]
    assert [type(one) for one in (options.max_new_tokens, options.logprobs)] == [int, bool] and options.seed == [1, 2]


def test_public() -> None:
    assert dk.GenerateOptions is llm.GenerateOptions is GenerateOptions
