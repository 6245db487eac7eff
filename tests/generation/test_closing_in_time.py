"""Texts that close within their budget, from the least budget up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decodekit.constraints import Constraint, Guarded, JsonSchema, Regex, compile
from decodekit.errors import LengthError
from decodekit.generation.batch import Batch, Result
from decodekit.generation.sequence import Request
from decodekit.generation.step import Settings
from decodekit.strategy import Greedy, Sample, Strategy, can_redraw
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.vocabularies import adversarial_tokens, byte_vocabulary

VOCABULARY = byte_vocabulary([*adversarial_tokens(), b'"name"', b'{"name":"', b"aaaa"])
V = VOCABULARY.size
PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3},
            "tags": {"type": "array", "items": {"type": "string"}},
            "child": {"$ref": "#"},
        },
        "required": ["name", "tags"],
    }
)
STRATEGIES: list[Strategy] = [Greedy(), Sample(temperature=1.5), Sample(top_k=5, temperature=2.0)]


def run(constraint: Constraint, strategy: Strategy, max_new_tokens: int, num: int = 4, **options: Any) -> list[Result]:
    settings = Settings(
        VOCABULARY,
        strategy.pipeline,
        strategy.select,
        max_new_tokens,
        can_redraw=can_redraw(strategy),
        **({"must_close": True} | options),
    )
    grammar = compile(constraint, VOCABULARY)
    requests = [Request([65 + index], grammar.matcher(), seed=index) for index in range(num)]
    updates = Batch(ToyLM(hashed_law(V), V), settings, 3, requests).run()
    results = {update.index: update.result for update in updates if update.result is not None}
    return [results[index] for index in range(num)]


def text_of(result: Result) -> str:
    return VOCABULARY.decode(result.token_ids).decode()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("extra", [0, 1, 2, 5, 20])
def test_every_budget_from_the_least_one_up(strategy: Strategy, extra: int) -> None:
    budget = compile(PERSON, VOCABULARY).least_tokens() + extra
    for result in run(PERSON, strategy, budget):
        assert result.error is None and result.finish_reason in ("complete", "stop")
        assert len(result.token_ids) <= budget
        value = json.loads(text_of(result))
        assert len(value["name"]) >= 3 and isinstance(value["tags"], list)


def test_without_closing_they_are_cut() -> None:
    """Negative control."""
    budget = compile(PERSON, VOCABULARY).least_tokens() + 5
    reasons = {result.finish_reason for result in run(PERSON, Sample(temperature=1.5), budget, must_close=False)}
    assert "length" in reasons


def test_closing_changes_nothing_while_there_is_room() -> None:
    rule = Regex("[ab]{1,6}")
    closed, free = (run(rule, Sample(), 50, must_close=flag) for flag in (True, False))
    assert [r.token_ids for r in closed] == [r.token_ids for r in free]


def test_a_budget_below_the_least_one_is_an_error_that_says_it() -> None:
    least = compile(PERSON, VOCABULARY).least_tokens()
    for result in run(PERSON, Greedy(), least - 1):
        assert isinstance(result.error, LengthError) and f"has {least}" in str(result.error)
        assert result.token_ids == ()


def test_a_text_that_could_go_on_ends_with_the_budget() -> None:
    for result in run(Regex("(ab)+"), Sample(), 6):
        assert result.finish_reason in ("complete", "stop")
        assert text_of(result) == "ab" * (len(text_of(result)) // 2)


def test_texts_do_not_depend_on_their_neighbours() -> None:
    budget = compile(PERSON, VOCABULARY).least_tokens() + 4
    many = run(PERSON, Sample(temperature=1.5), budget, num=7)
    few = run(PERSON, Sample(temperature=1.5), budget, num=2)
    assert [result.token_ids for result in many[:2]] == [result.token_ids for result in few]


def test_with_a_guard_nothing_invalid_is_finished() -> None:
    rule = Guarded(Regex("[ab]{1,20}"), lambda text: text.count("a") == 2)
    results = run(rule, Sample(), 6, num=12)
    finished = [text_of(result) for result in results if result.finish_reason in ("complete", "stop")]
    assert len(finished) >= 6 and all(text.count("a") == 2 for text in finished)
    assert all(result.error is not None or text_of(result) in finished for result in results)
