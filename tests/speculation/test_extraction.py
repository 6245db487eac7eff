"""JSON under speculation on the bundled model: valid, the same text, and fewer forward passes."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import decodekit as dk
from decodekit.speculation import Adaptive, DraftModel, GrammarDraft, PromptLookup, Suffix, SuffixCorpus
from tests.sizes import few, thinned

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SPEEDS: dict[str, dict[str, Any]] = {
    "forced": {},
    "scaffolding": {"speculate": GrammarDraft()},
    "all": {"speculate": (GrammarDraft(max_tokens=4), PromptLookup(num_tokens=16))},
    "all, measured": {"speculate": (GrammarDraft(), PromptLookup()), "logprobs": True},
    "lookup, alone": {"speculate": "prompt-lookup", "batch_size": 1},
    "suffix": {"speculate": Suffix(corpus=SuffixCorpus()), "batch_size": 1},
    "draft model": {"speculate": (GrammarDraft(), DraftModel("tiny-draft", 6))},
    "adaptive": {"speculate": (Adaptive(GrammarDraft()), Adaptive(Suffix()), Adaptive(DraftModel("tiny-draft")))},
}


@functools.cache
def llm() -> Any:
    return dk.LLM.load("tiny")


@functools.cache
def documents(kind: str) -> list[str]:
    lines = (EXAMPLES / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    return [row["text"].strip() + "\n" for row in map(json.loads, lines) if row["kind"] == kind][:2]


def schema_of(kind: str) -> Any:
    return json.loads((EXAMPLES / kind / "schema.json").read_text(encoding="utf-8"))


@functools.cache
def plain(kind: str, temperature: float | None) -> list[Any]:
    return generate(kind, temperature, fast_forward="off")  # type: ignore[no-any-return]


def generate(kind: str, temperature: float | None, **options: Any) -> Any:
    strategy = {"strategy": "greedy"} if temperature is None else {"strategy": "sample", "temperature": temperature}
    seed = {} if temperature is None else {"seed": [3, 4]}
    given = {"constraint": schema_of(kind), "max_new_tokens": 160, "on_length": "return", **strategy, **seed, **options}
    return llm().generate(documents(kind), **given)


CASES = [(kind, temperature, speed) for kind, temperature in (("ticket", None), ("contact", 1.2)) for speed in SPEEDS]


@few(1)
@thinned("case", CASES, keep=[case for case in CASES if case[0] == "ticket" or case[2] in ("forced", "draft model")])
def test_the_same_text_from_fewer_passes(case: tuple[str, float | None, str]) -> None:
    kind, temperature, speed = case
    for one, other in zip(generate(kind, temperature, **SPEEDS[speed]), plain(kind, temperature), strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert one.stats.num_forwards < other.stats.num_forwards == len(other.token_ids)
        if one.finish_reason != "length":
            jsonschema.validate(one.value, schema_of(kind))
        if speed == "scaffolding" and temperature is None:
            assert one.stats.num_forwards <= 0.6 * len(one.token_ids)
            assert one.stats.draft_acceptance_rate > 0.9


@few(1)
@pytest.mark.parametrize("extra", [0, 2])
def test_texts_that_close_in_time(extra: int) -> None:
    """The budget ends inside drafts."""
    least = dk.compile(schema_of("ticket"), llm().vocabulary).least_tokens()
    given: dict[str, Any] = {"max_new_tokens": least + extra, "on_length": "close"}
    expected = generate("ticket", 1.2, fast_forward="off", **given)
    for speed in ("forced", "all"):
        for one, other in zip(generate("ticket", 1.2, **given, **SPEEDS[speed]), expected, strict=True):
            assert one.error is None and one.token_ids == other.token_ids
            jsonschema.validate(one.value, schema_of("ticket"))


def test_streams() -> None:
    """Chunks of several tokens, whose texts and tokens are those of the completion."""
    [expected, _] = plain("ticket", None)
    options = {"constraint": schema_of("ticket"), "max_new_tokens": 160, **SPEEDS["all"]}
    chunks = list(llm().stream(documents("ticket")[0], **options))
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == expected.token_ids
    assert any(len(chunk.token_ids) > 3 for chunk in chunks)
