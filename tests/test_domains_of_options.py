"""Every option of `generate` refuses a value in one form: "<option> must be <domain>, got <value>"."""

from __future__ import annotations

import inspect
import math
from typing import Any, Final

import pytest

import decodekit as dk
from decodekit.errors import DecodekitError
from decodekit.sampling.checks import Domain, at_least, one_of
from decodekit.strategy import GENERATION_OPTIONS, GenerateKeywords, strategy_factory
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import small_tokenizer

STRATEGIES: Final = (
    "sample", "mirostat", "beam", "contrastive", "best-of", "self-consistency", "particles", "speculative",
)  # fmt: skip
OUTSIDE: Final[dict[str, Any]] = {
    "strategy": 3,
    "max_new_tokens": 0,
    "stop": [""],
    "stop_token_ids": [-1],
    "include_stop": 2,
    "seed": -1,
    "logprobs": -1,
    "trace": 2,
    "on_length": "never",
    "on_error": "stop",
    "max_rollbacks": -1,
    "max_retries": -1,
    "fast_forward": "on",
    "masks": "never",
    "batch_size": 0,
    "enable_thinking": 2,
    "chat_template_kwargs": {1: 2},
    "split_special_tokens": 2,
    "reasoning": "never",
    "max_reasoning_tokens": -1,
    "repetition_penalty": 0,
    "presence_penalty": 3,
    "frequency_penalty": -3,
    "penalty_window": 0,
    "logit_bias": {},
    "sequence_bias": {},
    "no_repeat_ngram_size": 0,
    "bad_words": [],
    "allowed_tokens": [],
    "min_tokens": 0,
    "dry_multiplier": -1,
    "dry_base": 0.5,
    "dry_allowed_length": 0,
    "dry_breakers": [[]],
    "dry_window": 0,
    "temperature": 0,
    "top_k": 0,
    "top_p": 0,
    "min_p": 2,
    "typical_p": 0,
    "epsilon_cutoff": 1,
    "eta_cutoff": 1,
    "top_n_sigma": 0,
    "top_a": 2,
    "top_h": 2,
    "p_less": 2,
    "xtc_probability": 2,
    "xtc_threshold": 0.6,
    "dynamic_temperature": (2, 1),
    "smoothing_factor": 0,
    "smoothing_curve": 4,
    "watermark": 2,
    "processors": [3],
    "order": "ollama",
    "contrast": 2,
    "num_return_sequences": 0,
    "speculate": 2,
    "verify": "twice",
    "draft_model": 2,
    "num_draft_tokens": 0,
    "tau": 0,
    "eta": 0,
    "version": 3,
    "num_beams": 1,
    "num_beam_groups": 0,
    "diversity_penalty": -1,
    "length_penalty": math.inf,
    "early_stopping": "always",
    "do_sample": 2,
    "penalty_alpha": 2,
    "n": 1,
    "rank": "best",
    "key": 2,
    "num_particles": 1,
    "method": "is",
    "resample": "never",
    "threshold": 2,
    "returns": "all",
    "predicate": 2,
}
"""A value of each option that is out of its domain."""
READ_ELSEWHERE: Final = {"constraint", "tools"}
"""Options that the front ends of constraints read: their errors say what is no schema, type or tool, and where."""
REFINED: Final[dict[str, dict[str, Any]]] = {
    "penalty_window": {"repetition_penalty": 1.1},
    **{f"dry_{one}": {"dry_multiplier": 0.8} for one in ("base", "allowed_length", "breakers", "window")},
    "xtc_threshold": {"xtc_probability": 0.5},
    "smoothing_curve": {"smoothing_factor": 0.2},
    "order": {"temperature": 0.7},
}
"""What must stand beside an option, so that it has an effect."""


class Unfit:
    """A value of no option's type."""

    def __repr__(self) -> str:
        return "Unfit()"


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM(ToyLM(hashed_law(160), 160, frozenset({2})), small_tokenizer())


def strategy_of(option: str) -> dict[str, Any]:
    """The first built-in strategy with the option; nothing for an option of `generate` itself."""
    if option in GENERATION_OPTIONS:
        return {}
    having = (one for one in STRATEGIES if option in inspect.signature(strategy_factory(one)).parameters)
    return {"strategy": next(having), **REFINED.get(option, {})}


def causes(llm: dk.LLM, option: str, value: object) -> list[str]:
    """What is said of an option with a value."""
    options: dict[str, Any] = {"max_new_tokens": 1, **strategy_of(option), option: value}
    with pytest.raises(DecodekitError) as caught:
        llm.generate([{"role": "user", "content": "the"}] if option == "enable_thinking" else "the", **options)
    faults = getattr(caught.value, "faults", ()) or (caught.value,)
    return [fault.cause for fault in faults if fault.at == option]


def test_the_world_is_whole() -> None:
    assert {*OUTSIDE} == {*GenerateKeywords.__annotations__} - READ_ELSEWHERE


@pytest.mark.parametrize("option", OUTSIDE)
def test_refusals_have_one_form(llm: dk.LLM, option: str) -> None:
    outside = OUTSIDE[option]
    shown = {"processors": 3, "dry_breakers": [], "allowed_tokens": ()}.get(option, outside)
    for value, said in ((Unfit(), "Unfit()"), (outside, repr(shown))):
        [cause, *others] = causes(llm, option, value)
        begin, _, end = cause.rpartition(", got ")
        assert begin.startswith(f"{option} must be ") and end == said, cause
        assert all("has no effect" in other for other in others), others


def test_the_test_can_fail(llm: dk.LLM) -> None:
    with pytest.raises(pytest.fail.Exception):
        causes(llm, "max_new_tokens", 1)


def test_a_domain_says_what_it_holds() -> None:
    domain = at_least(2).or_none
    assert domain.text == "None or an integer of at least 2"
    assert [domain.has(value) for value in (None, 2, 1, True, 2.0)] == [True, True, False, False, False]
    assert one_of("a", "b", "c").text == '"a", "b" or "c"' and not one_of("a", "b").has(["a"])
    fault = Domain("a tree", lambda value: value == "oak").hinting("an oak").fault("plant", "rose")
    assert fault is not None and fault.cause == "plant must be a tree, got 'rose'"
    assert (fault.at, fault.hint) == ("plant", "an oak")
