"""Options that a strategy does not have: what is told instead works, and repeats nothing that was typed."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import decodekit as dk
from decodekit.errors import DecodekitError, OptionError, UselessOptionError
from decodekit.plugins import nearest, num_slips
from decodekit.strategy import GENERATION_OPTIONS, PROPOSERS, all_option_names, resolve_strategy, strategy_factory
from decodekit.strategy.options import remedies
from decodekit.strategy.options.known_options import answer, known_options
from tests.sizes import few

KNOWN_OPTIONS = known_options()


class Person(BaseModel):
    name: str


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "call", "parameters": SCHEMA}}
TAG = {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}
VALUES: dict[str, list[Any]] = {
    "do_sample": [True, False],
    "n": [3, 1],
    "prompt_lookup_num_tokens": [3],
    "num_return_sequences": [3, 1],
    "n_cmpl": [2],
    "best_of": [3, 1],
    "stop": ["x"],
    "stop_strings": ["x", ["x", "y"]],
    "stop_sequences": [["x"]],
    "stop_at": ["x"],
    "stopping_criteria": [len],
    "logits_processor": [dk.RepetitionPenalty(1.1)],
    "logits_processors": [dk.RepetitionPenalty(1.1)],
    "bad_words_ids": [[[5, 6]]],
    "suppress_tokens": [[5, 6]],
    "allowed_token_ids": [[5, 6]],
    "logits_bias": [{5: -1.0}],
    "guidance_scale": [2.0, 1.0],
    "cfg_scale": [1.5],
    "negative_prompt": ["a, b"],
    "negative_prompt_ids": [[3]],
    "dola_layers": ["high", [0, 2]],
    "watermarking_config": [{"greenlist_ratio": 0.5, "bias": 1.0}, {}],
    "assistant_early_exit": [2],
    "assistant_model": ["tiny-draft"],
    "speculative_model": ["tiny-draft"],
    "structured_outputs": [{"json": SCHEMA}],
    "guided_decoding": [{"json": SCHEMA}],
    "guided_json": [SCHEMA, Person],
    "guided_json_object": [True, False],
    "response_format": [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        {"type": "json_object"},
        Person,
    ],
    "structural_tag": [TAG],
    "output_type": [Person, SCHEMA, int],
    "format": [SCHEMA],
    "grammar": ['root ::= "a" | "b"'],
    "tools": [[TOOL]],
    "functions": [[TOOL]],
    "tool_choice": ["auto"],
    "function_call": ["none"],
    "dynatemp_range": [0.5, 0, 3],
    "mirostat": [0, 1, 2],
    "temp": [0.7],
    "typ_p": [0.9],
    "typical": [0.9],
    "repeat_penalty": [1.1],
    "mirostat_eta": [0.2],
    "mirostat_lr": [0.2],
    "eta": [0.2],
    "draft_model": ["tiny-draft"],
    "logit_bias": [{5: -1.0}],
    "sequence_bias": [{(5, 6): -1.0}],
    "bad_words": [[[5, 6]]],
    "allowed_tokens": [[5, 6]],
    "dry_breakers": [[[5]]],
    "dynamic_temperature": [(0.5, 1.5)],
    "contrast": [dk.Guidance(2.0)],
    "watermark": [dk.Watermark()],
    "p_less": [True],
    "speculate": ["suffix"],
    "processors": [dk.Temperature(0.7)],
    "order": ["hf"],
    "verify": ["rejection"],
    "strategy": ["mirostat"],
    "rank": ["mean_logprob"],
    "key": [str],
    "predicate": [bool],
    "method": ["awrs"],
    "resample": ["stratified"],
    "returns": ["best"],
    "early_stopping": [True, False],
    "num_beams": [3, 1],
    "num_particles": [4],
    "num_draft_tokens": [3],
    "top_k": [5],
    "version": [1],
    "tau": [3.0],
    "num_beam_groups": [2],
    "no_repeat_ngram_size": [3],
    "threshold": [0.4],
    "dry_base": [1.75],
    "smoothing_curve": [1.5],
    "beam_width": [3],
}
"""Values to try an option with."""
COUNTS = ("max", "min", "num", "n_", "draft", "dry_allowed", "dry_window", "penalty_window", "last_n", "context_size")


def values_of(name: str) -> list[Any]:
    if name in VALUES:
        return VALUES[name]
    if any(part in name for part in ("regex", "pattern")):
        return ["[0-9]+"]
    if any(part in name for part in ("schema", "format", "response_model")):
        return [SCHEMA]
    if "choice" in name:
        return [["a", "b"]]
    if any(part in name for part in ("grammar", "cfg")):
        return ['start: "a"']
    if name != "min_p" and (name.startswith(COUNTS) or name.endswith(COUNTS)):
        return [3]
    if any(part in name for part in ("logprobs", "n_probs", "top_n_tokens")):
        return [2, True]
    return [0.3, True, "text"] if name in KNOWN_OPTIONS else [0.3]


NAMES = ["greedy", "sample", "prompt-lookup", "suffix", "speculative", "mirostat", "beam", "contrastive", "best-of"]
CASES = [(name, value) for name in KNOWN_OPTIONS for value in [*values_of(name), None]]


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def refused(strategy: Any, options: dict[str, Any]) -> DecodekitError | None:
    try:
        resolve_strategy(strategy, options)
    except DecodekitError as error:
        return error
    return None


def read(hint: str) -> dict[str, Any]:
    """The keyword arguments that a hint writes."""
    found: dict[str, Any] = eval(f"dict({hint})", {"dk": dk, "Person": Person, "float": float})
    return found


@pytest.mark.slow
def test_every_option_of_other_libraries_has_an_answer_that_works(llm: dk.LLM) -> None:
    """What is to be written is written, and a text comes of it."""
    num_run = 0
    for name, value in CASES:
        for strategy in ("greedy", "sample"):
            error = refused(strategy, {name: value})
            if (strategy, name) == ("sample", "n"):  # taken as it is
                assert error is None or value is None
                continue
            assert isinstance(error, OptionError), (strategy, name)
            said = str(error)
            assert f"Did you mean {name!r}" not in said
            if error.hint is None:
                assert len(error.cause) > len(f"no option {name!r} ({KNOWN_OPTIONS[name].libraries}).") + 10, said
            elif error.hint.startswith("leaving"):
                assert error.hint == f"leaving {name} out"
            elif "..." not in error.hint:
                options = {"strategy": strategy, "max_new_tokens": 2, "on_length": "return", **read(error.hint)}
                assert name == "n" or name not in options, said
                if "num_return_sequences" not in options or strategy == "sample":
                    if value is True or value == "text":  # which the option may not take, whatever it is called
                        with contextlib.suppress(OptionError):
                            llm.generate("Invoice", **options)
                    else:
                        assert llm.generate("Invoice", **options).error is None, said
                        num_run += 1
    assert num_run > 150


@few(3, "suffix", "best-of")
@pytest.mark.parametrize("strategy", NAMES)
def test_no_advice_is_refused(strategy: str) -> None:
    """For every option of ours, with every strategy, in all the places where options are given."""
    kind = remedies.CLASSES.get(strategy)
    num_tried = 0
    for name in sorted(all_option_names() - {"speculate"}):
        for value in values_of(name):
            num_tried += is_taken(strategy, refused(strategy, {name: value}))
            if kind is not None:
                check_class(kind, construct(kind, name, value))
                is_taken(kind(), refused(kind(), {name: value}))
    assert num_tried > 10


def is_taken(strategy: Any, error: DecodekitError | None) -> bool:
    """Check that what an error says to write is taken; whether it says so."""
    if not isinstance(error, OptionError) or error.remedy is None or error.hint is None or "..." in error.hint:
        return False
    options = read(error.hint)
    chosen = options.pop("strategy", strategy)
    again = refused(chosen, {name: value for name, value in options.items() if name not in GENERATION_OPTIONS})
    assert again is None, f"{strategy}: {error}\n{again}"
    return True


def construct(kind: Callable[..., Any], name: str, value: Any) -> Any:
    try:
        return kind(**{name: value})
    except DecodekitError as error:
        return error


def check_class(kind: type[Any], error: object) -> None:
    if not isinstance(error, OptionError) or error.remedy is None or error.hint is None or "..." in error.hint:
        return
    for part in error.hint.split("; "):
        if part.startswith("leaving"):
            continue
        if part.startswith("generate(..., "):
            assert set(read(part.removeprefix("generate(..., ")[:-1])) <= set(GENERATION_OPTIONS)
        elif part.startswith("dk."):
            eval(part, {"dk": dk})
        elif part.startswith("strategy="):
            options = read(part)
            resolve_strategy(options.pop("strategy"), options)
        else:
            kind(**read(part))


def slips(name: str) -> Iterator[str]:
    """What a name becomes by one slip: a letter left out, doubled, replaced or exchanged with the next."""
    for place in range(len(name)):
        yield name[:place] + name[place + 1 :]
        yield name[:place] + name[place] + name[place:]
        yield name[:place] + "q" + name[place + 1 :]
        if place + 1 < len(name):
            yield name[:place] + name[place + 1] + name[place] + name[place + 2 :]


def check_slip(strategy: str, name: str, typed: str) -> None:
    ours, accepted = all_option_names(), set(inspect.signature(strategy_factory(strategy)).parameters)
    error = refused(strategy, {typed: 0.3})
    assert error is not None
    found = re.search(r"Did you mean '([^']*)'", error.cause)
    assert found, (typed, str(error))
    near = found[1]
    assert near != typed and num_slips(typed, near) == 1, (typed, near)
    if near in accepted or near in GENERATION_OPTIONS:
        is_second = near == "speculate" and strategy in PROPOSERS  # which is a proposer already
        assert error.hint and error.hint.startswith(f'strategy="greedy", {near}=' if is_second else f"{near}=")
    elif near in ours:
        assert "That is an option of" in error.cause and name not in accepted
    else:
        assert KNOWN_OPTIONS[near].libraries in error.cause and name not in accepted


def known_names() -> list[str]:
    """Names of which a slip leaves something."""
    return [name for name in sorted({*all_option_names(), *KNOWN_OPTIONS}) if len(name) > 2]


def wrong(name: str) -> list[str]:
    return sorted({*slips(name)} - all_option_names() - set(KNOWN_OPTIONS) - set(GENERATION_OPTIONS))


def test_a_slip_of_the_hand_is_answered_with_the_nearest_name() -> None:
    for number, name in enumerate(known_names()):
        every = wrong(name)
        check_slip(("greedy", "sample", "beam")[number % 3], name, every[7 * number % len(every)])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", NAMES)
def test_every_slip_of_the_hand(strategy: str) -> None:
    for name in known_names():
        for typed in wrong(name):
            check_slip(strategy, name, typed)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("", "", 0),
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("abc", "ab", 1),
        ("ab", "abc", 1),
        ("abc", "axc", 1),
        ("ca", "abc", 3),
    ],
)
def test_slips(one: str, other: str, distance: int) -> None:
    assert num_slips(one, other) == num_slips(other, one) == distance


def test_nearest_never_repeats_what_was_typed() -> None:
    assert nearest("num_beams", ["num_beams", "num_beam_groups"]) == "num_beam_groups"
    assert nearest("num_beams", ["num_beams"]) is None
    assert nearest("x", ["n"]) is None


@pytest.mark.parametrize(
    ("strategy", "options", "says"),
    [
        ("greedy", {"num_beams": 3}, ["is no option of strategy 'greedy'", 'try strategy="beam", num_beams=3']),
        ("greedy", {"do_sample": True}, ['try strategy="sample"']),
        ("greedy", {"max_length": 30}, ["transformers", "counts the tokens of the prompt", "try max_new_tokens=30"]),
        ("greedy", {"max_tokens": 5}, ["vLLM, OpenAI", "try max_new_tokens=5"]),
        ("greedy", {"n": 3}, ['try strategy="sample", num_return_sequences=3']),
        ("greedy", {"guided_json": SCHEMA}, ["vLLM", "try constraint={'type': 'object'"]),
        ("greedy", {"schema": Person}, ["try constraint=Person"]),
        ("greedy", {"regex": "[0-9]+"}, ["try constraint=dk.Regex('[0-9]+')"]),
        ("beam", {"top_k": 5}, ["may stand in processors=", 'try strategy="sample", top_k=5']),
        ("sample:tempreature=1", {}, ["Did you mean 'temperature'", "try sample:temperature=1"]),
        ("sample:num_beams=3", {}, ["try beam:num_beams=3"]),
        ("greedy:temperature=0.7", {}, ["try sample:temperature=0.7"]),
        ("prompt-lookup", {"temperature": 0.5}, ['strategy="sample"', "speculate='prompt-lookup'"]),
        (dk.Sample(), {"num_beams": 3}, ["is no option of Sample", "try strategy=dk.Beam(num_beams=3)"]),
        (dk.Sample(), {"max_tokens": 3}, ["try max_new_tokens=3"]),
        (dk.Temperature(0.5), {"num_beams": 3}, ['try strategy="beam", num_beams=3']),
        (dk.Temperature(0.5), {"top_k": 3}, ["is given beside processors"]),
        ("greedy", {"zzz": 3}, ["no option 'zzz'."]),
        ("greedy", {"num_samples": 3}, ["litgpt", 'try strategy="sample", num_return_sequences=3']),
        ("best-of:num_samples=4", {}, ["litgpt", "try best-of:n=4"]),
        ("best-of", {"num_return_sequences": 4}, ["try n=4"]),
        ("particles:num_particels=4", {}, ["Did you mean 'num_particles'", "try particles:num_particles=4"]),
    ],
)
def test_what_is_said(strategy: Any, options: dict[str, Any], says: list[str]) -> None:
    error = refused(strategy, options)
    assert error is not None
    assert all(one in str(error) for one in says), str(error)


@pytest.mark.parametrize(
    ("typed", "says"), [("rnag", "rang"), ("max_new_tokns", "max_new_tokens"), ("temperatur", "temperature")]
)
def test_options_of_a_plug_in_come_before_those_of_others(typed: str, says: str) -> None:
    """`rnag` is as near to `rng`, which Outlines has."""
    factories = {name: strategy_factory(name) for name in NAMES}
    error = remedies.unknown_option(typed, 3, remedies.Site("mine", ("rang", "speculate"), {}, factories, "text"))
    assert f"Did you mean {says!r}" in error.cause
    hints = {"rang": "mine:rang=3", "max_new_tokens": "max_new_tokens=3"}
    assert error.hint == hints.get(says, error.hint) and error.hint is not None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: dk.Sample(do_sample=True), "leaving do_sample out"),  # type: ignore[call-arg]
        (lambda: dk.Sample(num_beams=3), "dk.Beam(num_beams=3)"),  # type: ignore[call-arg]
        (lambda: dk.Sample(n=3), "num_return_sequences=3"),  # type: ignore[call-arg]
        (lambda: dk.Beam(max_tokens=3), "generate(..., max_new_tokens=3)"),  # type: ignore[call-arg]
        (lambda: dk.BestOf(temperature=0.3), "dk.BestOf(strategy=dk.Sample(temperature=0.3))"),  # type: ignore[call-arg]
        (lambda: dk.Greedy(temperature=0.3), "dk.Sample(temperature=0.3)"),  # type: ignore[call-arg]
        (lambda: dk.Mirostat(mirostat_tau=3), "tau=3"),  # type: ignore[call-arg]
        (lambda: dk.Sample(temperatur=0.3), "temperature=0.3"),  # type: ignore[call-arg]
    ],
)
def test_classes_of_strategies_answer_too(make: Callable[[], object], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert caught.value.hint == says


def test_faults_of_a_class_are_told_together() -> None:
    with pytest.raises(OptionError) as caught:
        dk.Sample(do_sample=True, top_k=-1, max_tokens=3)  # type: ignore[call-arg]
    assert [str(fault.at) for fault in caught.value.faults] == ["do_sample", "max_tokens", "top_k"]


def test_every_option_of_transformers_is_known() -> None:
    from transformers import GenerationConfig

    known = {*KNOWN_OPTIONS, *all_option_names(), *GENERATION_OPTIONS}
    assert {name for name in GenerationConfig().to_dict() if not name.startswith("_")} <= known


def test_no_name_is_both_ours_and_theirs() -> None:
    assert {*KNOWN_OPTIONS} & {*all_option_names(), *GENERATION_OPTIONS} == {"n", "do_sample"}


def test_notes_speak_of_what_there_is() -> None:
    """Names of code in the notes are those of something."""
    for name, value in CASES:
        found = answer(name, value)
        for written in re.findall(r"\b(?:dk|LLM|Completion)\.(\w+)", found.note if found else ""):
            fields = {*dir(dk), *dir(dk.LLM), *dk.Completion.__dataclass_fields__, "model"}
            assert written in fields, (name, written)


def test_a_value_that_changes_nothing_is_left_out() -> None:
    for name, value in [("num_beams", 1), ("do_sample", False), ("use_cache", True), ("n", 1), ("top_k", None)]:
        error = refused("greedy", {name: value})
        assert error is not None
        assert error.hint == f"leaving {name} out", str(error)


def test_options_that_greedy_decoding_makes_useless() -> None:
    error = refused("greedy", {"temperature": 0.7})
    assert isinstance(error, UselessOptionError)
    assert error.hint == 'strategy="sample", temperature=0.7'
