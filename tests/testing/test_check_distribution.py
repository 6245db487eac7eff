"""The odds that `check_distribution` states, over whole worlds of counts; samplers that are wrong, and the report."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.errors import OptionError
from decodekit.sampling import History, LogitsProcessor, Stage
from tests.sizes import sized
from tests.testing.distribution import (
    DistributionReport,
    check_distribution,
    log_evidence,
    texts_needed,
    total_variation,
)
from tests.testing.small_world import SmallWorld

LAWS = [(0.5, 0.3, 0.2), (0.98, 0.01, 0.01), (1 / 3, 1 / 3, 1 / 3), (0.6, 0.4, 0.0)]
DIE = dict.fromkeys(range(1, 7), 1 / 6)


def all_counts(num_texts: int, num_cells: int = 3) -> Iterator[tuple[int, ...]]:
    for bars in itertools.combinations(range(num_texts + num_cells - 1), num_cells - 1):
        ends = (-1, *bars, num_texts + num_cells - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


def odds(counts: Sequence[int], law: Sequence[float]) -> float:
    """The probability of the counts."""
    ways = math.factorial(sum(counts)) / math.prod(map(math.factorial, counts))
    return ways * math.prod(p**count for p, count in zip(law, counts, strict=True))


def cells(values: Sequence[float] | Sequence[int]) -> dict[int, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize("law", LAWS)
def test_evidence_is_a_martingale_that_begins_at_one(law: Sequence[float]) -> None:
    assert log_evidence({}, cells(law)) == 0
    for counts in itertools.chain.from_iterable(all_counts(n) for n in range(5)):
        if odds(counts, law) == 0:
            continue
        after = 0.0
        for cell, p in enumerate(law):
            counts_after = {**cells(counts), cell: counts[cell] + 1}
            after += p * math.exp(log_evidence(counts_after, cells(law))) if p else 0.0  # type: ignore[arg-type]
        assert after == pytest.approx(math.exp(log_evidence(cells(counts), cells(law))))  # type: ignore[arg-type]


def test_an_impossible_outcome_is_infinite_evidence() -> None:
    assert log_evidence({"c": 1}, {"a": 1.0}) == log_evidence({"a": 5, "b": 1}, {"a": 1.0, "b": 0.0}) == math.inf


@pytest.mark.parametrize("law", LAWS)
def test_the_stated_odds_hold_after_all_texts(law: Sequence[float]) -> None:
    """Every vector of counts, under the law and under every other one of a grid at least so far away."""
    false_alarm, deviation, power = 0.2, 0.5, 0.8
    needed = texts_needed(cells(law), deviation=deviation, power=power, false_alarm=false_alarm)

    def fails(counts: Sequence[int]) -> bool:
        given: dict[object, int] = dict(enumerate(counts))
        evidence = log_evidence(given, cells(law))
        return not DistributionReport(
            "", dict(enumerate(law)), given, needed, evidence, false_alarm, deviation, power
        ).is_right

    failing = [counts for counts in all_counts(needed) if fails(counts)]
    assert sum(odds(counts, law) for counts in failing) <= false_alarm
    others = [tuple(x / 20 for x in counts) for counts in all_counts(20)]
    others = [one for one in others if total_variation(dict(enumerate(one)), cells(law)) >= deviation]  # type: ignore[arg-type]
    assert others
    for other in others:
        assert sum(odds(counts, other) for counts in failing) >= power


def faces(most: int, seeds: Sequence[int]) -> list[int]:
    return [random.Random(f"{seed}").randint(1, most) for seed in seeds]


def test_a_die() -> None:
    found = check_distribution(lambda seeds: faces(6, seeds), DIE, name="a die")
    assert found.is_right and found.num_texts == found.num_planned
    assert found.total_variation <= found.limit < found.deviation
    assert str(found).startswith("a die follows the law")


def test_a_die_without_a_six_fails_early_and_the_report_says_where() -> None:
    with pytest.raises(AssertionError, match="a die does not follow") as raised:
        check_distribution(lambda seeds: faces(5, seeds), DIE, name="a die")
    lines = str(raised.value).splitlines()
    assert re.search(r" \d{2,3} texts of 3,215 planned", lines[0])
    assert lines[4].split()[0::2] == ["6", "0"]


def test_a_small_deviation_needs_more_texts_and_is_found_by_them() -> None:
    def one_loaded(seed: int) -> int:  # 0.04 more for the six
        return 6 if random.Random(f"{seed} six").random() < 0.048 else faces(6, [seed])[0]

    def loaded(seeds: Sequence[int]) -> list[int]:
        return [one_loaded(seed) for seed in seeds]

    assert check_distribution(loaded, DIE, deviation=0.3).num_texts < 500
    with pytest.raises(AssertionError, match="6  "):
        check_distribution(loaded, DIE, deviation=0.04)


@sized("num_runs", 60, slow=3000)
def test_right_samplers_fail_as_seldom_as_stated(num_runs: int) -> None:
    """At a false-alarm rate of 0.05, looked at after every round; binomial odds below 1e-6 of more than so many."""
    num_failed = 0
    for run in range(num_runs):
        try:
            check_distribution(lambda seeds: faces(6, seeds), DIE, deviation=0.3, false_alarm=0.05, seed=run << 20)
        except AssertionError:
            num_failed += 1
    assert num_failed <= 0.05 * num_runs + 5 * math.sqrt(0.05 * num_runs)


def nucleus(logits: Tensor, top_p: float, *, is_narrow: bool = False) -> Tensor:
    """The probabilities that top-p leaves; narrow: without the token that crosses the limit."""
    kept, mass = torch.zeros_like(logits), 0.0
    p = logits.softmax(dim=-1)
    for number, token in enumerate(p.argsort(descending=True).tolist()):
        mass += float(p[token])
        if mass < top_p or number == 0 or (not is_narrow and mass - float(p[token]) < top_p):
            kept[token] = p[token]
    return kept / kept.sum()


@dataclass(frozen=True, repr=False)
class NarrowTopP(LogitsProcessor):
    """Top-p with an off-by-one: the token that crosses the limit is gone."""

    top_p: float = 0.8
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        left = torch.stack([nucleus(row, self.top_p, is_narrow=True) for row in logits])
        return logits.masked_fill(left == 0, -math.inf)


def top_p(logits: Tensor) -> Tensor:
    return nucleus(logits, 0.8)


@pytest.mark.parametrize("constraint", [None, dk.Regex("[ab]{1,2}|c[ad]?")], ids=["free", "constrained"])
def test_top_p_follows_its_law_and_an_off_by_one_does_not(constraint: object) -> None:
    found = check_distribution(dk.Sample(top_p=0.8), top_p, constraint=constraint, deviation=0.2)
    assert len(found.law) > 3
    with pytest.raises(AssertionError, match="does not follow the law"):
        check_distribution(dk.Sample(processors=[NarrowTopP()]), top_p, constraint=constraint)


def test_the_law_of_a_pipeline_is_that_of_its_processors_one_by_one() -> None:
    strategy = dk.Sample(temperature=0.7, top_p=0.8, repetition_penalty=1.5, logit_bias={1: 1.0})
    found = check_distribution(strategy, constraint=dk.Regex("[abc]{2}"), deviation=0.2)
    assert found.law != SmallWorld().law(dk.Sample(temperature=0.7, top_p=0.8), constraint=dk.Regex("[abc]{2}"))
    assert SmallWorld().law(dk.Sample(top_p=0.8)) == pytest.approx(SmallWorld().law(dk.Sample(), top_p))


def test_the_law_of_a_world_has_every_text_once() -> None:
    world = SmallWorld(2, 2)
    law = world.law(dk.Sample())
    assert sorted(law) == ["", "a", "aa", "ab", "b", "ba", "bb"]
    assert math.fsum(law.values()) == pytest.approx(1)
    first = world.model.logits_after([0]).double().softmax(0)
    assert law[""] == pytest.approx(float(first[2]))
    then = world.model.logits_after([0, 0]).double().softmax(0)
    assert law["ab"] == pytest.approx(float(first[0] * then[1]))
    assert set(SmallWorld(3, 3).law(dk.Sample(), constraint=dk.Regex("ab?|cab"))) == {"a", "ab", "cab"}


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"law": {1: 0.5}}, "law"),
        ({"law": {1: 1.5, 2: -0.5}}, "law"),
        ({"law": {1: math.nan}}, "law"),
        ({"law": None}, "law"),
        ({"law": DIE, "deviation": 0}, "deviation"),
        ({"law": DIE, "power": 1}, "power"),
        ({"law": DIE, "false_alarm": "often"}, "false_alarm"),
        ({"law": DIE, "constraint": dk.Regex("a")}, "sampler"),
        ({"law": DIE, "sampler": lambda seeds: [1]}, "sampler"),
        ({"sampler": dk.Beam(2)}, "law"),
        ({"sampler": dk.Particles(4), "law": top_p}, "law"),
        ({"sampler": dk.Sample(), "law": lambda logits: logits}, "law"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, object], at: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_distribution(**{"sampler": lambda seeds: faces(6, seeds), **options})  # type: ignore[arg-type]
    assert raised.value.at == at


@pytest.mark.parametrize("options", [{"num_letters": 0}, {"num_letters": 27}, {"num_tokens": True}, {"num_tokens": 9}])
def test_a_world_that_is_too_large_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        SmallWorld(**options)
