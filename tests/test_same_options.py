"""Options that stand in several interfaces: what one has and another has not is named here, with its reason."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

import decodekit as dk
from decodekit.cli import app
from decodekit.errors import OptionError, UselessOptionError
from decodekit.jobs.extraction import ExtractionKeywords, ExtractionOptions
from decodekit.serving.routes.chat import ChatBody
from decodekit.serving.routes.responses import ResponseBody
from decodekit.serving.routes.text_completions import CompletionBody
from decodekit.strategy import GenerateKeywords
from tests.jobs.fakes import SCHEMA, FakeLLM

RENAMED: Final = {"inputs": "documents", "output": "folder", "workers": "num_workers"}
"""Names of the command `extract`, and those of `dk.extract`."""
OF_A_SCHEMA: Final = "of the schema: dk.JsonSchema(schema, whitespace=...)"
OF_A_STRATEGY: Final = 'in the text of the strategy: "sample:temperature=0.7"'
OF_AN_INPUT: Final = "of an Input: jobs.documents.inputs"
COMMAND_ALONE: Final = {
    **dict.fromkeys(("whitespace", "escapes", "numbers", "format", "order"), OF_A_SCHEMA),
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p"), OF_A_STRATEGY),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), OF_A_STRATEGY),
    **dict.fromkeys(("include", "exclude", "encoding"), OF_AN_INPUT),
    "dtype": "of a model that is loaded: LLM.load(name, dtype=...), which workers of Ray follow",
    "output_format": "dk.to_pandas(rows), which writes tables of every kind",
}
FUNCTION_ALONE: Final = {"progress": "the command always tells how far it is"}

FIELDS: Final = {
    "n": "num_return_sequences",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_output_tokens": "max_new_tokens",
    "top_logprobs": "logprobs",
    "thinking_token_budget": "max_reasoning_tokens",
    "reasoning_effort": "reasoning",
    **dict.fromkeys(("response_format", "text", "structured_outputs"), "constraint"),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), "constraint"),
}
"""Names of fields of the endpoint, and those of `LLM.generate`."""
FIELDS_ALONE: Final = {
    **dict.fromkeys(("messages", "prompt", "input", "instructions"), "the prompts, which are no option"),
    **dict.fromkeys(("stream", "stream_options"), "LLM.stream"),
    **dict.fromkeys(("model", "store", "background", "previous_response_id"), "of an endpoint"),
    **dict.fromkeys(("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"), "changes nothing"),
    **dict.fromkeys(("echo", "suffix", "best_of", "modalities", "truncation", "include"), "no value asks for anything"),
    **dict.fromkeys(("tool_choice", "parallel_tool_calls"), "of dk.tools, a constraint"),
    **dict.fromkeys(("include_reasoning", "return_tokens_as_token_ids"), "the form of an answer"),
}
NO_FIELD: Final = "neither OpenAI nor vLLM has such a field"
OF_VLLM: Final = "vLLM has a field for it (bad_words, allowed_token_ids, include_stop_str_in_output); not here"
KEYWORDS_ALONE: Final = {
    "strategy": "sample, or greedy by temperature=0",
    **dict.fromkeys(("processors", "order", "contrast"), "objects of Python, and other distributions"),
    **dict.fromkeys(("speculate", "batch_size"), "of `decodekit serve`, for all requests"),
    **dict.fromkeys(("verify", "draft_model", "num_draft_tokens", "fast_forward", "masks"), "how fast; texts stay"),
    **dict.fromkeys(("tau", "eta", "version"), "of Mirostat"),
    **dict.fromkeys(("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty"), "of searches"),
    **dict.fromkeys(("early_stopping", "do_sample", "penalty_alpha", "num_particles", "method"), "of searches"),
    **dict.fromkeys(("n", "rank", "key", "resample", "threshold", "returns", "predicate"), "of searches"),
    **dict.fromkeys(("typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "top_a", "top_h"), NO_FIELD),
    **dict.fromkeys(("p_less", "xtc_probability", "xtc_threshold", "dynamic_temperature"), NO_FIELD),
    **dict.fromkeys(("smoothing_factor", "smoothing_curve", "penalty_window", "watermark"), NO_FIELD),
    **dict.fromkeys(("sequence_bias", "no_repeat_ngram_size", "dry_multiplier", "dry_base"), NO_FIELD),
    **dict.fromkeys(("dry_allowed_length", "dry_breakers", "dry_window", "trace"), NO_FIELD),
    **dict.fromkeys(("bad_words", "allowed_tokens", "include_stop"), OF_VLLM),
    **dict.fromkeys(("on_error", "max_retries"), "an error is the answer, and a client asks again itself"),
    "max_rollbacks": "a bound of work, which is the endpoint's",
    "enable_thinking": "reasoning_effort, or chat_template_kwargs",
    "split_special_tokens": "those of messages are text, those of a prompt are not",
}
"""Options of `generate` that no field asks for; `n` of a search is another option than the field of that name."""


def options_of_the_command() -> dict[str, Any]:
    """The options of `decodekit extract` and their defaults, by the names that `dk.extract` has for them."""
    commands: Any = typer.main.get_command(app)
    listed = [one for one in commands.commands["extract"].params if one.name != "help"]
    return {RENAMED.get(one.name, one.name): None if one.required else one.default for one in listed}


def keywords_of_extract() -> dict[str, Any]:
    """The keywords of `dk.extract` and their defaults."""
    own = {one.name: one.default for one in fields(ExtractionOptions)}
    parameters = [one for one in inspect.signature(dk.extract).parameters.values() if one.kind is not one.VAR_KEYWORD]
    named = {one.name: None if one.default is one.empty else one.default for one in parameters}
    return named | {name: own[name] for name in ExtractionKeywords.__annotations__}


def test_the_command_and_the_function_have_the_same_options() -> None:
    command, function = options_of_the_command(), keywords_of_extract()
    assert command.keys() - function.keys() == COMMAND_ALONE.keys()
    assert function.keys() - command.keys() == FUNCTION_ALONE.keys()
    same = {name: command[name] for name in command.keys() & function.keys()}
    assert same == {name: function[name] for name in same} | {"batch_size": "auto"}  # None in Python


def test_what_both_can_say_is_what_an_extraction_has() -> None:
    """`raw` is its `is_raw`; the options of a strategy stand in the text of the strategy."""
    own = {one.name: None if one.default is MISSING else one.default for one in fields(ExtractionOptions)}
    function = keywords_of_extract()
    assert own.pop("is_raw") is function["raw"] and own.pop("strategy_options") is None
    assert own == {name: function[name] for name in own}


def test_the_endpoint_has_the_options_of_generate_or_it_is_known_why_not() -> None:
    named = {name for body in (ChatBody, CompletionBody, ResponseBody) for name in body.model_fields}
    keywords, same = GenerateKeywords.__annotations__.keys(), {FIELDS.get(name, name) for name in named}
    assert same - keywords == FIELDS_ALONE.keys()
    assert keywords - same == KEYWORDS_ALONE.keys()
    assert FIELDS.keys() <= named and {*FIELDS.values()} <= keywords


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_retrys", "max_retries"),
        ("text_feild", "text_field"),
        ("is_raw", "raw"),
        ("seeds", "seed"),
        ("options", ""),
    ],
)
def test_a_keyword_that_there_is_not_is_refused(name: str, meant: str) -> None:
    """With the one that was meant."""
    told = f" Did you mean '{meant}'?" if meant else ""
    with pytest.raises(
        TypeError, match=re.escape(f"extract() got an unexpected keyword argument {name!r}.{told}") + "$"
    ):
        dk.extract(["one"], SCHEMA, FakeLLM(), **{name: 1})  # type: ignore[arg-type, call-arg, misc]


def test_help_tells_the_defaults() -> None:
    own = {one.name: one.default for one in fields(ExtractionOptions)}
    assert dk.extract.__doc__ is not None
    told = dict(re.findall(r"``(\w+)``\s+\(([^;)]+)", dk.extract.__doc__))
    assert told == {name: repr(own[name]) for name in ExtractionKeywords.__annotations__}


class Unwritten:
    """A value that JSON cannot say."""


@pytest.mark.parametrize("wrong", [[], 3, {1: 2}, {"a": (1, 2)}, {"a": float("nan")}, {"a": Unwritten()}])
def test_variables_that_a_job_cannot_write_down_are_refused(wrong: Any, tmp_path: Path) -> None:
    """Before the model is asked; as a mapping that JSON gives back otherwise the job would be another one tomorrow."""
    with pytest.raises(OptionError, match="chat_template_kwargs must be None or a mapping of names to values of JSON"):
        dk.extract(["one"], SCHEMA, FakeLLM(), chat_template_kwargs=wrong, folder=tmp_path / "out")  # type: ignore
    assert not (tmp_path / "out").exists()


def test_a_device_map_is_of_a_model_that_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(name: str, **options: Any) -> FakeLLM:
        loaded.append((name, options))
        return FakeLLM()

    monkeypatch.setattr(dk.LLM, "load", load)
    assert dk.extract(["one"], SCHEMA, "m", prompt="{text}", device_map="auto")[0].error is None
    assert loaded == [("m", {"device_map": "auto"})]
    with pytest.raises(UselessOptionError, match="device_map='auto' has no effect on a model that is loaded"):
        dk.extract(["one"], SCHEMA, FakeLLM(), device_map="auto")  # type: ignore[arg-type]
