"""Several samples through the front door: all of them, the best, the answer of most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

import decodekit as dk
from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.decoding.request.completion import Completion
from decodekit.decoding.request.stats import Stats
from decodekit.decoding.search.best_of import best_of, canonical, majority
from decodekit.errors import LengthError, OptionError, UselessOptionError
from decodekit.llm import LLM
from decodekit.strategy import resolve_strategy

PROMPTS = ["Invoice A-17, total 40.20 EUR.", "Paid: 7"]
WARM = dk.Sample(temperature=2.5, seed=3)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM.load("tiny")


def completion(text: str, logprobs: tuple[float, ...] = (), value: Any = None, error: Any = None) -> Completion:
    entries = tuple(TokenLogprob(i, logprob) for i, logprob in enumerate(logprobs))
    tokens = tuple(range(len(logprobs)))
    return Completion(text, tokens, value, "stop", error, entries, Stats(1, len(tokens), 1, None, 0.0))


def every(found: Completion) -> list[Completion]:
    return [found, *found.others]


def scores(found: Completion) -> list[tuple[str, float | None]]:
    return [(one.text, one.score) for one in every(found)]


A, B, C = completion("a", (-1.0, -1.0)), completion("b", (-1.5,)), completion("c", (-0.5, -0.6, -0.7))
FAILED = completion("f", (-0.1,), error=LengthError("cut"))


def test_ranks_by_hand() -> None:
    """Sums are -2, -1.5, -1.8; means -1, -1.5, -0.6."""
    samples = [FAILED, A, B, C]
    assert [text for text, _ in scores(best_of(samples, "logprob"))] == ["b", "c", "a", "f"]
    assert [text for text, _ in scores(best_of(samples, "mean_logprob"))] == ["c", "a", "b", "f"]
    by_function = best_of(samples, lambda sample: -ord(sample.text))
    assert scores(by_function) == [("a", -97.0), ("b", -98.0), ("c", -99.0), ("f", None)]
    assert scores(best_of([B, A, C], lambda sample: 1)) == [("b", 1.0), ("a", 1.0), ("c", 1.0)]
    assert scores(best_of([FAILED, FAILED], "logprob")) == [("f", None)] * 2


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (lambda sample: sample.value["total"], "rank failed for 'a': TypeError"),
        (lambda sample: "good", "rank gave 'good' for 'a', which is no number"),
        (lambda sample: math.nan, "rank gave nan"),
    ],
)
def test_a_rank_that_fails_is_the_error_of_the_prompt(rank: Callable[[Completion], Any], message: str) -> None:
    found = best_of([A, B], rank)
    assert isinstance(found.error, OptionError) and message in str(found.error)


def test_votes_by_hand() -> None:
    """Two for 1, written in two ways; two for 2, less likely together; one for 3; one that failed."""
    one, uno = completion("1", (-1.0,), 1), completion("1.0", (-1.0,), 1.0)
    two, due = completion("2", (-0.1,), 2), completion("2 ", (-3.0,), 2)
    three = completion("3", (-0.1,), 3)
    found = majority([two, three, one, FAILED, due, uno], None)
    assert scores(found) == [("1", 2 / 6), ("2", 2 / 6), ("3", 1 / 6), ("f", 0.0)]
    assert scores(majority([three, one, due], None))[0] == ("3", 1 / 3)
    assert scores(majority([FAILED, FAILED], None)) == [("f", 0.0)] * 2
    # equal votes and log-probabilities: the answer that came first
    assert scores(majority([completion("x"), completion("y"), completion("Y "), completion("X")], None)) == [
        ("x", 0.5),
        ("y", 0.5),
    ]
    by_key = majority([one, two, three], lambda sample: None if sample.text == "3" else sample.value % 1)
    assert scores(by_key) == [("1", 2 / 3), ("3", 0.0)]
    assert "no hash" in str(majority([one, two], lambda sample: [sample.text]).error)  # type: ignore[arg-type, return-value]
    assert "key failed" in str(majority([one, two], lambda sample: 1 // 0).error)


class Item(BaseModel):
    name: str
    price: float


@dataclass
class Point:
    x: int
    y: list[int]


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, "null", False),
        ("a", b"a", True),
        ("A", "a", False),
        ({"a": 1, "b": [1, 2]}, {"b": [1.0, 2], "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1, 2], [2, 1], False),
        ([1, 2], (1, 2), True),
        ([1], {"0": 1}, False),
        (Item(name="x", price=1), {"price": 1, "name": "x"}, True),
        (Point(1, [2]), Point(1, [2]), True),
        (Point(1, [2]), Point(1, [3]), False),
    ],
)
def test_what_is_one_answer(first: object, second: object, is_equal: bool) -> None:
    assert (canonical(first) == canonical(second)) is (is_equal and not isinstance(second, bytes))


def test_num_return_sequences(llm: LLM) -> None:
    """Sample i is the sample of seed and number; the first one is what a single sample is."""
    found = llm.generate(PROMPTS, strategy=dk.Sample(temperature=2.5, seed=3, num_return_sequences=4), max_new_tokens=9)
    single = llm.generate(PROMPTS, strategy=WARM, max_new_tokens=9)
    assert [one.text for one in found] == [one.text for one in single]
    assert all(len({sample.token_ids for sample in every(one)}) == 4 for one in found)
    fewer = llm.generate(PROMPTS, strategy="sample", temperature=2.5, seed=3, num_return_sequences=2, max_new_tokens=9)
    assert [[sample.text for sample in every(one)[:2]] for one in found] == [
        [sample.text for sample in every(one)] for one in fewer
    ]
    for guesses in ("prompt-lookup", dk.DraftModel("tiny-draft")):
        drafting = dk.Sample(temperature=2.5, seed=3, num_return_sequences=4, speculate=guesses)
        guessed = llm.generate(PROMPTS, strategy=drafting, max_new_tokens=9)
        assert [[s.text for s in every(one)] for one in guessed] == [[s.text for s in every(one)] for one in found]


def test_streams(llm: LLM) -> None:
    """Of samples the first streams; of a choice among them nothing does before the end."""
    chunks = list(llm.stream(PROMPTS[0], strategy=dk.Sample(seed=1, num_return_sequences=3), max_new_tokens=8))
    last = chunks[-1].completion
    assert len(chunks) > 2 and last is not None and len(last.others) == 2
    assert "".join(chunk.text for chunk in chunks) == last.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == last.token_ids
    chunks = list(llm.stream(PROMPTS, strategy=dk.BestOf(3, WARM), max_new_tokens=8))
    assert sorted(chunk.index for chunk in chunks) == [0, 1]
    assert all(chunk.completion is not None and chunk.text == chunk.completion.text for chunk in chunks)


@pytest.mark.parametrize("rank", ["logprob", "mean_logprob", len])
def test_best_of_ranks_the_samples_of_the_strategy(llm: LLM, rank: Any) -> None:
    given = len if rank is len else rank
    rank_of = (lambda sample: len(sample.text)) if rank is len else given
    samples = llm.generate(
        PROMPTS, strategy=dk.Sample(temperature=2.5, seed=3, num_return_sequences=5), max_new_tokens=9, logprobs=True
    )
    best = llm.generate(PROMPTS, strategy=dk.BestOf(5, WARM, rank=rank_of), max_new_tokens=9)

    def score(sample: Completion) -> float:
        if rank is len:
            return len(sample.text)
        assert sample.logprobs is not None
        total = sum(entry.logprob for entry in sample.logprobs)
        return total if rank == "logprob" else total / len(sample.token_ids)

    for found, one in zip(best, samples, strict=True):
        expected = sorted(every(one), key=score, reverse=True)
        assert [sample.text for sample in every(found)] == [sample.text for sample in expected]
        assert [sample.score for sample in every(found)] == pytest.approx(
            [score(sample) for sample in expected], rel=1e-4
        )
        assert all(sample.logprobs is None for sample in every(found))  # nobody asked for them


def test_a_judge_ranks_by_perplexity(llm: LLM) -> None:
    judge = LLM.load("tiny-draft")
    found = llm.generate(PROMPTS[0], strategy=dk.BestOf(4, WARM, rank=judge), max_new_tokens=9)
    perplexities = [judge.score(sample.text).perplexity for sample in every(found)]
    assert perplexities == sorted(perplexities) and len(set(perplexities)) > 1
    assert [sample.score for sample in every(found)] == pytest.approx([-one for one in perplexities])


def test_samples_that_were_cut_rank_last(llm: LLM) -> None:
    """Under a constraint a cut text is an error, also where it is the likeliest."""
    strategy = dk.BestOf(12, dk.Sample(temperature=2.5, seed=1))
    found = llm.generate(PROMPTS[1], constraint=dk.Choices(["yes", "no", "maybe"]), strategy=strategy, max_new_tokens=3)
    have_failed = [sample.error is not None for sample in every(found)]
    assert have_failed == sorted(have_failed) and len(set(have_failed)) == 2
    assert [sample.score is None for sample in every(found)] == have_failed


def test_self_consistency_counts_values(llm: LLM) -> None:
    strategy = dk.Sample(temperature=3.0, seed=2, num_return_sequences=12)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    samples = every(llm.generate(PROMPTS[1], constraint=schema, strategy=strategy))
    found = llm.generate(PROMPTS[1], constraint=schema, strategy="self-consistency", n=12, temperature=3.0, seed=2)
    counts = {n: sum(sample.value == {"n": n} for sample in samples) for n in (1, 2)}
    assert sum(counts.values()) == 12 and 12 not in counts.values()
    assert found.score == max(counts.values()) / 12
    assert counts[found.value["n"]] == max(counts.values())
    assert [other.value["n"] for other in found.others] == [3 - found.value["n"]]


def test_names_and_faults() -> None:
    assert resolve_strategy("best-of", {"n": 3, "temperature": 0.7}) == dk.BestOf(3, dk.Sample(0.7))
    assert resolve_strategy("best-of", {}) == dk.BestOf()
    assert resolve_strategy("self-consistency", {"top_p": 0.9}) == dk.SelfConsistency(strategy=dk.Sample(top_p=0.9))
    with pytest.raises(OptionError, match="3 options cannot be used") as caught:
        resolve_strategy("best-of", {"n": 1, "temperature": -1, "num_return_sequences": 2})
    assert [fault.at for fault in caught.value.faults] == ["num_return_sequences", "temperature", "n"]
    with pytest.raises(UselessOptionError, match="all samples of greedy decoding are the same"):
        dk.BestOf(3, dk.Greedy())
    for several in (dk.Beam(2), dk.BestOf(2), dk.SelfConsistency(2)):
        with pytest.raises(OptionError, match="has several texts of its own"):
            dk.SelfConsistency(3, several)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="num_return_sequences=2 is given beside n=3"):
        dk.BestOf(3, dk.Sample(num_return_sequences=2))
    with pytest.raises(OptionError, match="rank must be"):
        dk.BestOf(3, rank="perplexity")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="key must be None or a function"):
        dk.SelfConsistency(3, key=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="num_return_sequences must be"):
        dk.Sample(num_return_sequences=0)
    with pytest.raises(OptionError, match="no effect with greedy"):
        resolve_strategy("greedy", {"num_return_sequences": 2})


def test_seed_beside_a_strategy_that_has_one(llm: LLM) -> None:
    with pytest.raises(OptionError, match="which has one"):
        llm.generate("x", strategy=dk.BestOf(2, dk.Sample(seed=1)), seed=2)
