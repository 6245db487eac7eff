"""Texts that close within their budget, from the least budget up."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from decodekit.constraints import Constraint, Guarded, JsonSchema, Regex, compile
from decodekit.constraints.completion.shortest_completions import Completions
from decodekit.constraints.engine.bitmask import bitmask_from_ids
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.decoding.draws.row_draws import Outputs
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.errors import LengthError
from decodekit.sampling import AllowedTokens, BadWords, LogitBias, LogitsProcessor, MinTokens, Pipeline, SequenceBias
from decodekit.strategy import Greedy, Sample, Strategy, can_redraw, lead_of
from decodekit.vocabulary import Vocabulary
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.vocabularies import adversarial_tokens, byte_vocabulary, tekken_vocabulary
from tests.sizes import few

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
# A letter that may not come is an escape here.
WIDE = JsonSchema(PERSON.schema, whitespace="any", escapes="any")
STRATEGIES: list[Strategy] = [Greedy(), Sample(temperature=1.5), Sample(top_k=5, temperature=2.0)]


def run(
    constraint: Constraint,
    strategy: Strategy,
    max_new_tokens: int,
    num: int = 4,
    vocabulary: Vocabulary = VOCABULARY,
    biases: tuple[LogitsProcessor, ...] = (),
    **options: Any,
) -> list[Result]:
    settings = Settings(
        vocabulary,
        Pipeline((*biases, *strategy.pipeline)),
        strategy.select,
        max_new_tokens,
        **({"must_close": True, "can_redraw": can_redraw(strategy), "lead": lead_of(strategy)} | options),
    )
    grammar = compile(constraint, vocabulary)
    requests = [Request([65 + index], grammar.matcher(), seed=index) for index in range(num)]
    size = vocabulary.size
    updates = decode_texts(ToyLM(hashed_law(size), size), settings, 3, requests)
    results = {update.index: update.result for update in updates if update.result is not None}
    return [results[index] for index in range(num)]


def text_of(result: Result) -> str:
    return VOCABULARY.decode(result.token_ids).decode()


@few(7)
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


class SlowEnding:
    """The slow twin of `fill_ending`: every token by itself."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self.matcher = matcher

    def fill(self, out: Any, num_tokens: int, left_out: frozenset[int] = frozenset()) -> None:
        out[:] = bitmask_from_ids([t for t in range(V) if self.matcher.can_end_within(num_tokens, t, left_out)], V)


@few(1)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_texts_are_those_of_the_slow_twin(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = [compile(PERSON, VOCABULARY).least_tokens() + extra for extra in (1, 6, 14)]
    fast = [[result.token_ids for result in run(PERSON, strategy, budget)] for budget in budgets]
    monkeypatch.setattr(GrammarMatcher, "fill_ending", lambda self, *asked: SlowEnding(self).fill(*asked))
    assert fast == [[result.token_ids for result in run(PERSON, strategy, budget)] for budget in budgets]


def test_negative_control_a_mask_that_misses_a_token_gives_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = compile(PERSON, VOCABULARY).least_tokens() + 6
    fast = [result.token_ids for result in run(PERSON, Sample(temperature=1.5), budget, num=8)]

    def without_half(self: GrammarMatcher, out: Any, num_tokens: int, left_out: frozenset[int] = frozenset()) -> None:
        SlowEnding(self).fill(out, num_tokens, left_out)
        out &= bitmask_from_ids(range(0, V, 2), V)

    monkeypatch.setattr(GrammarMatcher, "fill_ending", without_half)
    results = run(PERSON, Sample(temperature=1.5), budget, num=8)
    assert all(result.error is None for result in results)  # the plan is always among the tokens
    assert fast != [result.token_ids for result in results]


@few(1)
@pytest.mark.parametrize("strategy", [Greedy(), Sample(temperature=1.5)], ids=repr)
def test_masks_before_the_draw_and_after_a_refusal_give_one_text(strategy: Strategy) -> None:
    for extra in (0, 3, 9):
        budget = compile(PERSON, VOCABULARY).least_tokens() + extra
        texts = [
            [result.token_ids for result in run(PERSON, strategy, budget, **options)]
            for options in ({}, {"can_redraw": False}, {"num_alternatives": 0}, {"fast_forward": "off"})
        ]
        assert texts == [texts[0]] * 4


def test_a_truncation_sees_only_tokens_that_come_in_time() -> None:
    """Of the two likeliest tokens that end in time one is drawn, and not a less likely one for each that does not."""
    rule, law = Regex("[a-d]{1,8}x|[e-h]{2}"), hashed_law(V)
    strategy = Sample(top_k=2)
    in_time = [token for token in range(V) if compile(rule, VOCABULARY).matcher().can_end_within(1, token)]
    for prompt, result in enumerate(run(rule, strategy, 2, num=8), 65):
        assert result.error is None and len(result.token_ids) == 2
        logits = law([prompt])
        assert result.token_ids[0] in sorted(in_time, key=lambda token: -float(logits[token]))[:2]


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """A list whose only entry is the number of calls from now on."""
    calls, original = [0], getattr(owner, name)

    def counted(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        return original(*given, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_a_large_vocabulary_costs_few_draws_and_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tekken, a model that says anything: 34,934 draws in 42 steps before there were classes of tokens."""
    vocabulary = tekken_vocabulary()
    budget = compile(PERSON, vocabulary).least_tokens() + 8
    draws = count_calls(monkeypatch, Outputs, "choose")
    masks = count_calls(monkeypatch, GrammarMatcher, "fill_ending")
    questions = count_calls(monkeypatch, Completions, "are_enough")
    [result] = run(PERSON, Sample(temperature=1.5), budget, num=1, vocabulary=vocabulary)
    num_steps = len(result.token_ids)
    assert result.error is None and 0 < masks[0] <= num_steps
    assert draws[0] <= 2 * num_steps + 2  # one draw, and one more where the first comes too late
    assert questions[0] <= 100 * num_steps


def token_of(text: str) -> int:
    return VOCABULARY.token_bytes.index(text.encode())


BANS: dict[str, LogitsProcessor] = {
    "quotes and a letter": LogitBias({token_of('"'): -math.inf, token_of("a"): -math.inf}),
    "every token with an a": LogitBias(
        {t: -math.inf for t, data in enumerate(VOCABULARY.token_bytes) if data and b"a" in data}
    ),
    "bytes alone": AllowedTokens(t for t in range(V) if t < 257),
    "words": BadWords([[token_of("]"), token_of("}")], [token_of('"'), token_of(":")], [token_of("{")]]),
    "sequences": SequenceBias({(token_of('"'), token_of(",")): -math.inf, (token_of("z"),): 3.0}),
    "no end": LogitBias({256: -math.inf}),
    "a least number": MinTokens(12, (256,)),
}


@few(2)
@pytest.mark.parametrize("name", BANS)
def test_texts_close_without_forbidden_tokens(name: str) -> None:
    without_a = Regex('\\{"(n|name)":"[b-z]{2,9}"(,"tags":\\[\\])?\\}')
    rule = {"every token with an a": without_a, "quotes and a letter": WIDE}.get(name, PERSON)
    bias = BANS[name]
    left_out = frozenset(bias.may_forbid(V) or ())
    least = compile(rule, VOCABULARY).least_tokens(left_out)
    for extra in (0, 2, 9):
        for strategy in STRATEGIES:
            for result in run(rule, strategy, least + extra, biases=(bias,)):
                assert result.error is None and result.finish_reason in ("complete", "stop"), (strategy, extra)
                assert len(result.token_ids) <= least + extra
                assert json.loads(text_of(result))
                if isinstance(bias, LogitBias | AllowedTokens):
                    assert not left_out & set(result.token_ids)


def test_negative_control_relying_on_forbidden_tokens_ends_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    bias = BANS["quotes and a letter"]
    budget = compile(WIDE, VOCABULARY).least_tokens(frozenset(bias.may_forbid(V) or ())) + 2
    monkeypatch.setattr(LogitBias, "may_forbid", lambda self, vocab_size: ())
    results = run(WIDE, Sample(temperature=1.5), budget, num=8, biases=(bias,))
    assert any(result.error is not None for result in results)


def test_a_whole_text_that_nothing_may_follow_in_time_ends() -> None:
    """The end of the text is forbidden, and one more repetition has no room."""
    for budget in (3, 4, 5):
        for result in run(Regex("(abc)+"), Sample(), budget, biases=(LogitBias({256: -math.inf}),)):
            assert result.error is None and result.finish_reason == "complete"
            assert text_of(result) in ("abc", "abcabc", "abcabcabc")
