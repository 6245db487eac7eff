"""Whether a sampler follows its law: as many texts as the stated odds need, fewer where it is plainly wrong.

The law is known, for the world is small. A die that never shows six, tested for deviations from 0.1 on:

    texts     1      2      3      4      5      6     evidence against the law
    32        5      5      8      5      9      0     1.3 to 1
    96       15     20     17     27     17      0     5,142 to 1
    224      36     50     40     55     43      0     9 10^12 to 1: it fails here, and nothing more is drawn

Two statistics, both with odds that hold for any number of texts and any law; no cell needs five expected texts, so none
are joined, and nothing is asymptotic.

Evidence. With counts n after N texts under the law p, the evidence is the probability of the texts under a mixture of
other laws q over their probability under p: q ~ Dirichlet(c p), half of whose mass lies near p for a large c and
anywhere for a small one, c from a few powers of two. If p is the law, the evidence is a martingale that begins at 1, so
that it ever reaches L has odds of at most 1 / L (Ville's inequality; Robbins 1970). So it may be looked at after each
round. A text that the law excludes makes it infinite.

Distance. D = 1/2 sum |n_i / N - p_i|, the total variation, after

    N = ((s + a + b) / d)^2,  s = 1/2 sum sqrt(p_i (1 - p_i)),  a = sqrt(ln(2 / alpha) / 2),  b = sqrt(ln(1 / beta) / 2)

texts, and the sampler fails if D > (s + a) / sqrt(N). Under p the mean of D is at most s / sqrt(N), and one text moves
D by at most 1 / N, so that it fails with odds of at most alpha / 2 (McDiarmid 1989). Under a law q with a total
variation of at least d to p there is a set of texts that is more likely under q by d; its share, and so D, stays below
the limit with odds of at most beta (Hoeffding 1963).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from decodekit.errors import DecodekitError, OptionError, raise_faults
from decodekit.strategy import Strategy
from tests.testing.small_world import NextToken, SmallWorld

Sampler: TypeAlias = Callable[[Sequence[int]], Sequence[Hashable]]
"""Draws one outcome for each seed."""

FIRST_ROUND: Final = 32
LARGEST_ROUND: Final = 2048
CONCENTRATIONS: Final = tuple(2.0**power for power in range(0, 15, 2))
NUM_SHOWN: Final = 6


@dataclass(frozen=True)
class DistributionReport:
    """The result of a test of a distribution; as text, its meaning.

    Args:
        name: of the sampler.
        law: the probability of each outcome.
        counts: how often each came.
        num_planned: so many texts are drawn where the evidence does not end the test before.
        log_evidence: natural logarithm of the evidence against the law; +inf after an impossible outcome.
        false_alarm: the odds at most that a right sampler fails.
        deviation: total variation from which on a wrong sampler fails,
        power: with these odds at least.
    """

    name: str
    law: Mapping[Hashable, float] = field(repr=False)
    counts: Mapping[Hashable, int] = field(repr=False)
    num_planned: int
    log_evidence: float
    false_alarm: float
    deviation: float
    power: float

    @property
    def num_texts(self) -> int:
        """The number that was drawn."""
        return sum(self.counts.values())

    @property
    def total_variation(self) -> float:
        """Half the sum of the differences between shares and probabilities, from 0 to 1."""
        return total_variation(self.counts, self.law)

    @property
    def limit(self) -> float:
        """The total variation from which on the sampler fails, once all planned texts are drawn."""
        return (_spread(self.law) + _slack(self.false_alarm / 2)) / math.sqrt(self.num_planned)

    @property
    def p_value(self) -> float:
        """The odds at most of as much evidence under the law, at whatever time one looks."""
        return min(1.0, math.exp(-self.log_evidence))

    @property
    def is_refuted(self) -> bool:
        """Whether the evidence alone is enough."""
        return self.log_evidence >= math.log(2 / self.false_alarm)

    @property
    def is_right(self) -> bool:
        """Whether the sampler passes."""
        is_far = self.num_texts >= self.num_planned and self.total_variation > self.limit
        return not self.is_refuted and not is_far

    def __str__(self) -> str:
        verdict = "follows the law" if self.is_right else "does not follow the law"
        size = f"{self.num_texts:,} texts of {self.num_planned:,} planned, {len(self.law):,} outcomes"
        distance = f"total variation {self.total_variation:.4f}, at most {self.limit:.4f} after all"
        lines = [
            f"{self.name} {verdict}: {size}",
            f"  {distance}; p <= {self.p_value:.2g}",
            f"  a right sampler fails with odds of at most {self.false_alarm:g}; "
            f"one at a total variation of {self.deviation:g} fails with odds of at least {self.power:g}",
        ]
        if not self.is_right:
            lines += [f"  {'outcome':20} {'expected':>10} {'found':>7}", *map(self._line, self.worst())]
        return "\n".join(lines)

    def worst(self, num: int = NUM_SHOWN) -> list[Hashable]:
        """The outcomes whose counts are farthest from what the law expects, in its standard errors."""
        return sorted({**self.law, **self.counts}, key=lambda one: -self._distance(one))[:num]

    def _distance(self, outcome: Hashable) -> float:
        p, found = self.law.get(outcome, 0.0), self.counts.get(outcome, 0)
        expected, variance = p * self.num_texts, p * (1 - p) * self.num_texts
        return abs(found - expected) / math.sqrt(variance) if variance > 0 else math.inf if found != expected else 0.0

    def _line(self, outcome: Hashable) -> str:
        expected = self.law.get(outcome, 0.0) * self.num_texts
        told = "impossible" if expected == 0 else f"{expected:.1f}"
        return f"  {outcome!r:20.40} {told:>10} {self.counts.get(outcome, 0):>7}"


def check_distribution(
    sampler: Strategy | Sampler,
    law: Mapping[Any, float] | NextToken | None = None,
    *,
    constraint: object = None,
    world: SmallWorld | None = None,
    deviation: float = 0.1,
    power: float = 0.999,
    false_alarm: float = 1e-6,
    seed: int = 0,
    name: str | None = None,
) -> DistributionReport:
    """A sampler, or a strategy, draws from the law that it should draw from.

    A strategy writes texts of a small world, through the whole loop; its law there is computed text by text. The seeds
    are ``seed``, ``seed + 1``, …, so that the same call draws the same texts and finds the same.

    Args:
        sampler: a strategy, or a function from seeds to as many outcomes (texts, numbers, tuples: what has a hash).
        law: the probability of every outcome; or, for a strategy, a function from the logits of a place (float64 [V],
            -inf where the constraint forbids) to the probabilities of the next token (float64 [V]), written so that it
            is obviously right. None is what the strategy's own pipeline leaves, one token at a time: then the loop and
            the selector are tested, the processors are not.
        constraint: of the texts of a strategy.
        world: where a strategy writes; by default a model of four letters, and texts of two tokens.
        deviation: total variation d to the law, from 0 to 1. A sampler at least so far away fails with odds of at least
            `power`. The number of texts is proportional to 1 / d².
        power: see there.
        false_alarm: a right sampler fails with odds of at most this.
        seed: the first one.
        name: of the sampler in the report.

    Returns:
        What was found; ``print`` shows it.

    Raises:
        AssertionError: the sampler does not follow the law; with the report, the outcomes that differ most in it.
        OptionError: options that cannot be used, or a law that is none.
    """
    _refuse_odds(deviation=deviation, power=power, false_alarm=false_alarm)
    if isinstance(sampler, Strategy):
        world = SmallWorld() if world is None else world
        if not isinstance(law, Mapping):
            law = world.law(sampler, law, constraint=constraint)
        draw: Sampler = world.sampler(sampler, constraint=constraint)
    else:
        if world is not None or constraint is not None:
            raise OptionError("a world and a constraint are those of a strategy", at="sampler")
        draw = sampler
    if not isinstance(law, Mapping):
        raise OptionError(f"law={law!r:.60} is no mapping from outcomes to probabilities", at="law", hint="{'a': 1.0}")
    _refuse_law(law)
    told = name if name is not None else getattr(sampler, "__name__", None) or repr(sampler)
    found = _drawn(draw, law, told, deviation, power, false_alarm, seed)
    if not found.is_right:
        raise AssertionError(str(found))
    return found


def texts_needed(law: Mapping[Any, float], *, deviation: float, power: float, false_alarm: float) -> int:
    """The number of texts that tell a law at a total variation of `deviation` from this one; see the module."""
    total = _spread(law) + _slack(false_alarm / 2) + _slack(1 - power)
    return math.ceil((total / deviation) ** 2)


def log_evidence(counts: Mapping[Any, int], law: Mapping[Any, float]) -> float:
    """Natural logarithm of the evidence of counts against a law; 0 without any, +inf with an impossible outcome."""
    known = [(count, law.get(outcome, 0.0)) for outcome, count in counts.items() if count]
    if any(p <= 0 for _, p in known):
        return math.inf
    num_texts = sum(count for count, _ in known)
    likelihood = math.fsum(count * math.log(p) for count, p in known)
    logs = []
    for c in CONCENTRATIONS:  # log of the Dirichlet-multinomial probability of the texts in their order
        cells = math.fsum(math.lgamma(c * p + count) - math.lgamma(c * p) for count, p in known)
        logs.append(cells + math.lgamma(c) - math.lgamma(c + num_texts) - likelihood)
    most = max(logs)
    return most + math.log(math.fsum(math.exp(one - most) for one in logs) / len(logs))


def total_variation(counts: Mapping[Any, int], law: Mapping[Any, float]) -> float:
    """Half the sum of the differences between the shares of outcomes and their probabilities."""
    num_texts = max(1, sum(counts.values()))
    return 0.5 * math.fsum(abs(counts.get(one, 0) / num_texts - law.get(one, 0.0)) for one in {**law, **counts})


def _drawn(
    draw: Sampler, law: Mapping[Any, float], name: str, deviation: float, power: float, false_alarm: float, seed: int
) -> DistributionReport:
    """Rounds of growing size, until the evidence is enough or all planned texts are drawn."""
    num_planned = texts_needed(law, deviation=deviation, power=power, false_alarm=false_alarm)
    counts: Counter[Hashable] = Counter()
    num_drawn, size = 0, FIRST_ROUND
    while True:
        seeds = range(seed + num_drawn, seed + min(num_planned, num_drawn + size))
        outcomes = list(draw(seeds))
        if len(outcomes) != len(seeds):
            raise OptionError(f"the sampler gave {len(outcomes)} outcomes for {len(seeds)} seeds", at="sampler")
        counts.update(outcomes)
        num_drawn, size = num_drawn + len(seeds), min(2 * size, LARGEST_ROUND)
        evidence = log_evidence(counts, law)
        report = DistributionReport(name, law, counts, num_planned, evidence, false_alarm, deviation, power)
        if report.is_refuted or num_drawn == num_planned:
            return report


def _spread(law: Mapping[Any, float]) -> float:
    """Half the sum of the standard deviations of single outcomes: sqrt(N) times the mean of D, at most."""
    return 0.5 * math.fsum(math.sqrt(max(0.0, p * (1 - p))) for p in law.values())


def _slack(odds: float) -> float:
    """sqrt(N) times what an average of N is exceeded by with these odds at most."""
    return math.sqrt(math.log(1 / odds) / 2)


def _refuse_odds(**given: object) -> None:
    faults: list[DecodekitError] = [
        OptionError(f"{name}={value!r:.60} is not a number between 0 and 1", at=name)
        for name, value in given.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1
    ]
    raise_faults(faults)


def _refuse_law(law: Mapping[Any, float]) -> None:
    """Raise `OptionError` unless these are probabilities; a sum within one part in a million of 1 is one."""
    wrong = [one for one, p in law.items() if not (isinstance(p, int | float) and 0 <= p <= 1 + 1e-6)]
    if wrong:
        raise OptionError(f"the probability of {wrong[0]!r:.60} is {law[wrong[0]]!r:.60}", at="law")
    total = math.fsum(law.values())
    if abs(total - 1) > 1e-6:
        raise OptionError(
            f"the probabilities sum to {total:.9g}, not to 1", at="law", hint="every outcome, by its text"
        )
