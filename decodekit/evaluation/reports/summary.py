"""One strategy on one task over all seeds and repeats: figures with intervals, beside a baseline.

What varies with what: a text depends on seed and example, so quality has an interval over seeds and one over examples,
and repeats add nothing to either. Times depend on the machine too, so theirs are over seeds and repeats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from decodekit.errors import OptionError
from decodekit.evaluation.intervals import IntervalEstimate, mean_interval, median_ratio, paired_difference
from decodekit.evaluation.measures.measures import METRICS, RECORDED
from decodekit.evaluation.measures.speed import Speed
from decodekit.evaluation.result_rows import Row, pooled, record_of
from decodekit.evaluation.task import Task

SPEED_FIGURES = tuple(field.name for field in fields(Speed) if field.name != "acceptance")


@dataclass(frozen=True, slots=True)
class SameText:
    """Whether a strategy writes what another one writes that differs from it by speed options alone."""

    strategy: str  # the other one
    num_same: int  # examples at seeds with the same tokens
    num_texts: int  # of how many that both decoded


@dataclass(frozen=True, slots=True)
class Summary:
    """One strategy on one task.

    Args:
        strategy, task: which.
        num_texts: examples times seeds.
        num_failed: of them, those with an error.
        errors: how often each, by its first line.
        quality: by metric, over seeds.
        over_examples: by metric, over examples (each averaged over its seeds); those of texts together are left out.
        difference: by metric, to the baseline: over pairs of example and seed where examples have figures, else over
            seeds; empty for the baseline.
        speed: by figure of `Speed`, over seeds and repeats.
        times_faster: median time per token of the baseline over that of the strategy; None for the baseline.
        acceptance: share of the drafts of which position i was accepted, over seeds.
        forwards_saved: share of the baseline's forward passes per token that the strategy does without; None for it.
        same_text: None if no other strategy differs by speed options alone.
    """

    strategy: str
    task: str
    num_texts: int
    num_failed: int
    errors: Mapping[str, int]
    quality: Mapping[str, IntervalEstimate]
    over_examples: Mapping[str, IntervalEstimate]
    difference: Mapping[str, IntervalEstimate]
    speed: Mapping[str, IntervalEstimate]
    times_faster: IntervalEstimate | None
    acceptance: tuple[float, ...]
    forwards_saved: float | None
    same_text: SameText | None


def summarise(results: Results, strategy: str, task: str) -> Summary:
    """The figures of one strategy on one task."""
    rows, base = results.rows_of(strategy, task), results.rows_of(results.baseline, task)
    is_baseline = strategy == results.baseline
    metrics = results.metrics[task]
    outcomes = pooled(rows)
    speeds, passes = _speeds(rows), "forwards_per_token"
    own, others = plain_mean(_figures(speeds, passes)), plain_mean(_figures(_speeds(base), passes))
    histograms = [speed.acceptance for speed in speeds if speed.mean_acceptance_length is not None]
    return Summary(
        strategy=strategy,
        task=task,
        num_texts=len(outcomes),
        num_failed=sum(row.num_failed for row in rows),
        errors=Counter(outcome.error.splitlines()[0] for outcome in outcomes if outcome.error),
        quality=_known(
            (name, mean_interval([row.quality[name] for row in rows if name in row.quality], _least(name)))
            for name in metrics
        ),
        over_examples=_known((name, mean_interval(_of_examples(rows, name), _least(name))) for name in metrics),
        difference={} if is_baseline else _known((name, _difference(rows, base, name)) for name in metrics),
        speed=_known((name, mean_interval(_figures(speeds, name), least=0.0)) for name in SPEED_FIGURES),
        times_faster=None if is_baseline else _times_faster(rows, base),
        acceptance=tuple(sum(each) / len(histograms) for each in zip_longest(*histograms, fillvalue=0.0)),
        forwards_saved=None if is_baseline or own is None or others is None else 1 - own / others,
        same_text=_same_text(results, strategy, rows, task),
    )


@dataclass(frozen=True)
class Results:
    """The rows of a comparison, and what a reader must know of them.

    Args:
        rows: by task, then strategy, then seed, in the order they were given.
        strategies: what each name stands for.
        tasks: the tasks.
        metrics: names of the measures of each task that gave a figure, the most important first.
        baseline: name of the strategy that others are compared with.
        settings: model, judge, seeds, repeats, batch size.
        provenance: machine, versions, commit, date.
        notes: what a reader should know: measures that were left out, intervals that are missing, texts that differ
            from repeat to repeat.
    """

    rows: tuple[Row, ...]
    strategies: Mapping[str, Any]
    tasks: tuple[Task, ...]
    metrics: Mapping[str, tuple[str, ...]]
    baseline: str
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def rows_of(self, strategy: str, task: str) -> tuple[Row, ...]:
        """The rows of one strategy on one task, seed by seed.

        Raises:
            OptionError: there are none.
        """
        found = tuple(row for row in self.rows if (row.strategy, row.task) == (strategy, task))
        if not found:
            raise OptionError(f"there are no rows of strategy {strategy!r} on task {task!r}", at="comparison")
        return found

    def records(self) -> list[dict[str, Any]]:
        """The rows as JSON values, each with all that is needed to read it alone."""
        return [
            record_of(row, self.strategies[row.strategy], self.baseline, {**self.settings, **self.provenance})
            for row in self.rows
        ]

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        """Every strategy on every task, over all seeds and repeats."""
        return tuple(summarise(self, strategy, task.name) for task in self.tasks for strategy in self.strategies)

    def summaries_of(self, task: str) -> list[Summary]:
        """Every strategy on one task."""
        return [one for one in self.summaries if one.task == task]

    def summary(self, strategy: str, task: str) -> Summary:
        """One strategy on one task.

        Raises:
            OptionError: it is not part of the comparison.
        """
        self.rows_of(strategy, task)
        return next(one for one in self.summaries_of(task) if one.strategy == strategy)


def without_speed_options(strategy: Any) -> Any:
    """The part of a strategy that decides its text, for comparison: the strategy without a proposer.

    None if that cannot be told, or if drafts are verified so that they have a say in the text.
    """
    if not is_dataclass(strategy) or isinstance(strategy, type) or getattr(strategy, "verify", "coupled") != "coupled":
        return None
    if "speculate" not in {field.name for field in fields(strategy)}:
        return strategy
    return replace(strategy, speculate=None)


def _same_text(results: Results, strategy: str, rows: Sequence[Row], task: str) -> SameText | None:
    """Beside the first strategy that draws from the same distribution; one without a proposer goes first."""
    own = without_speed_options(results.strategies[strategy])
    if own is None:
        return None
    twins = [name for name, value in results.strategies.items() if without_speed_options(value) == own]
    twins.sort(key=lambda name: getattr(results.strategies[name], "speculate", None) is not None)
    if twins[0] == strategy:
        return None
    pairs = zip(pooled(rows), pooled(results.rows_of(twins[0], task)), strict=True)
    same = [
        one.repeats[0].token_ids == other.repeats[0].token_ids
        for one, other in pairs
        if None not in (one.text, other.text)
    ]
    return SameText(twins[0], sum(same), len(same)) if same else None


def _of_examples(rows: Sequence[Row], metric: str) -> list[float]:
    values: dict[str, list[float]] = {}
    for (example, _), value in _by_pair(rows, metric).items():
        values.setdefault(example, []).append(value)
    return [sum(one) / len(one) for one in values.values()]


def _difference(rows: Sequence[Row], base: Sequence[Row], metric: str) -> IntervalEstimate | None:
    ours, theirs = _by_pair(rows, metric), _by_pair(base, metric)
    if ours or theirs:
        return paired_difference(ours, theirs)
    own, other = ({row.seed: row.quality[metric] for row in side if metric in row.quality} for side in (rows, base))
    return mean_interval([own[seed] - other[seed] for seed in own if seed in other])


def _by_pair(rows: Sequence[Row], metric: str) -> dict[tuple[str, int], float]:
    return {
        (outcome.example, row.seed): outcome.quality[metric]
        for row in rows
        for outcome in row.outcomes
        if metric in outcome.quality
    }


def _times_faster(rows: Sequence[Row], base: Sequence[Row]) -> IntervalEstimate | None:
    """Pairs are an example at a seed and repeat, measured by both."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for one, other in zip(pooled(rows), pooled(base), strict=True):
        for own, baseline in zip(one.repeats, other.repeats, strict=True):
            if own.s_per_token is not None and baseline.s_per_token is not None:
                ours.setdefault(one.example, []).append(own.s_per_token)
                theirs.setdefault(one.example, []).append(baseline.s_per_token)
    return median_ratio(theirs, ours)


def _speeds(rows: Sequence[Row]) -> list[Speed]:
    return [speed for row in rows for speed in row.speeds]


def _figures(speeds: Sequence[Speed], name: str) -> list[float]:
    return [float(value) for speed in speeds if (value := getattr(speed, name)) is not None]


def plain_mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there, added one after the other; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _least(metric: str) -> float:
    """The least value that a metric can have: shares, scores and perplexities are not below 0, logarithms are."""
    return 0.0 if metric in METRICS and metric not in RECORDED else -math.inf


def _known(pairs: Iterator[tuple[str, IntervalEstimate | None]]) -> dict[str, IntervalEstimate]:
    return {name: estimate for name, estimate in pairs if estimate is not None}
