"""`strategy="speculative"`: what it stands for, and the text that it gives."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import decodekit as dk
from decodekit.errors import OptionError, UselessOptionError
from decodekit.speculation import Adaptive, DraftModel, Suffix
from decodekit.strategy import Greedy, Sample, resolve_strategy
from tests.sizes import few
from tests.speculation.test_extraction import documents, schema_of


@functools.cache
def llm() -> Any:
    return dk.LLM.load("tiny")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Greedy(speculate=Adaptive(Suffix()))),
        ({"num_draft_tokens": 3}, Greedy(speculate=Suffix(max_tokens=3))),
        ({"draft_model": "tiny-draft"}, Greedy(speculate=DraftModel("tiny-draft"))),
        (
            {"draft_model": "tiny-draft", "num_draft_tokens": 6, "repetition_penalty": 1.2},
            Greedy(speculate=DraftModel("tiny-draft", 6), repetition_penalty=1.2),
        ),
        (
            {"draft_model": "tiny-draft", "temperature": 0.7, "top_p": 0.9, "verify": "rejection"},
            Sample(0.7, top_p=0.9, speculate=DraftModel("tiny-draft"), verify="rejection"),
        ),
        ({"temperature": 1.0}, Sample(speculate=Adaptive(Suffix()))),
    ],
)
def test_what_it_stands_for(options: dict[str, Any], expected: Any) -> None:
    assert resolve_strategy("speculative", options) == expected


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"num_draft_tokens": 0}, OptionError, "num_draft_tokens must be None or an integer of at least 1, got 0"),
        ({"num_draft_tokens": 2.0, "draft_model": "tiny-draft"}, OptionError, "got 2.0"),
        ({"draft_model": 5}, OptionError, "the name of a model, got 5"),
        ({"top_p": 0.9}, UselessOptionError, "top_p=0.9 has no effect with greedy"),
        ({"verify": "rejection"}, UselessOptionError, "no effect with greedy"),
        ({"speculate": "suffix"}, OptionError, "has a proposer already"),
        ({"num_draft_token": 3}, OptionError, "Did you mean 'num_draft_tokens'"),
        ({"temperature": -1.0, "num_draft_tokens": 0}, OptionError, "num_draft_tokens must be"),
        ({"temperature": -1.0, "num_draft_tokens": 0}, OptionError, "temperature must be a finite number above 0"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        resolve_strategy("speculative", options)


@few(1)
@pytest.mark.parametrize("temperature", [None, 0.8])
def test_the_text_is_that_without_guesses(temperature: float | None) -> None:
    given: dict[str, Any] = {"constraint": schema_of("ticket"), "max_new_tokens": 120, "on_length": "return"}
    plain = dict(given) if temperature is None else {**given, "strategy": "sample"}
    sampled = {} if temperature is None else {"temperature": temperature, "seed": [1, 2]}
    expected = llm().generate(documents("ticket"), **plain, **sampled)
    for options in ({}, {"draft_model": dk.LLM.load("tiny-draft"), "num_draft_tokens": 4}):
        found = llm().generate(documents("ticket"), strategy="speculative", **given, **sampled, **options)
        for one, other in zip(found, expected, strict=True):
            assert one.token_ids == other.token_ids
            assert one.stats.num_forwards < other.stats.num_forwards
