"""The measures of quality by name: which figure of an example or of all texts a table shows, and which way is better.

A measure speaks of one example (exact match) or of the texts of a run together (perplexity, self-BLEU). One that does
not apply, such as exact match without a reference, is None and left out. An answer that is missing because decoding
failed is wrong, not absent: it counts as 0 where there is something to be right about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Any, TypeAlias

from decodekit.decoding.request.prompt import Prompt
from decodekit.decoding.request.stats import Stats
from decodekit.errors import OptionError, UnknownNameError
from decodekit.evaluation.measures.accuracy import exact_match, field_f1, is_valid
from decodekit.evaluation.measures.judges import JudgeModel, has_mauve, mauve
from decodekit.evaluation.measures.repetition import Words, distinct, repetition, self_bleu, words_of
from decodekit.evaluation.task import Example, Task
from decodekit.plugins import did_you_mean


@dataclass(frozen=True, slots=True)
class JudgedText:
    """The text that is judged."""

    example: Example
    prompt: Prompt  # what the model read for the example
    constraint: Any  # what the text should be; None for free text
    text: str | None  # None if decoding failed without a text
    stats: Stats | None


OfExample: TypeAlias = Callable[[JudgedText], float | None]
OfTexts: TypeAlias = Callable[[Sequence[JudgedText], JudgeModel], float | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of quality."""

    name: str
    is_higher_better: bool | None  # None if neither way is better, as for variety
    of_example: OfExample | None = None  # from which the figure of a run is the mean
    of_texts: OfTexts | None = None  # of all answers of a run, where there is no figure of a single one


def fitting_metrics(task: Task) -> tuple[str, ...]:
    """The measures that a task without a list of its own is judged by."""
    references = [example.reference for example in task.examples if example.reference is not None]
    names = []
    if any(isinstance(reference, dict | list) for reference in references):
        names.append("field-f1")
    if references:
        names.append("exact-match")
    if any(task.constraint_of(example) is not None for example in task.examples):
        names.append("valid")
    if not references:
        names += ["perplexity", "distinct-2", "rep-2", "self-bleu"]
    return tuple(names)


def metrics_of(task: Task) -> list[Metric]:
    """The measures of a task in order, and those that come by themselves with strategies that record them."""
    names = task.metrics or fitting_metrics(task)
    for name in names:
        if name not in METRICS:
            cause = f"no metric {name!r}.{did_you_mean(name, METRICS)} There are: {', '.join(METRICS)}."
            raise UnknownNameError(cause, at=f"task {task.name!r}")
    return [METRICS[name] for name in dict.fromkeys((*names, *RECORDED))]


OwnMetric: TypeAlias = Callable[[str, Any], float | bool | None]
"""A function of a text and of the reference of its example (None without one): more is better; None leaves it out."""


def own_metrics(given: Mapping[str, OwnMetric] | Sequence[OwnMetric]) -> list[Metric]:
    """Functions as measures of every task, by the names of a mapping or their own."""
    named = given if isinstance(given, Mapping) else {getattr(one, "__name__", repr(one)): one for one in given}
    for name, function in named.items():
        if not callable(function):
            raise OptionError(f"metric {name!r} is a {type(function).__name__}, and no function", at="metrics")
        if name in METRICS:
            raise OptionError(f"{name!r} is the name of another metric", at="metrics", hint="a mapping of other names")
    return [Metric(name, True, partial(_own, name, function)) for name, function in named.items()]


def _own(name: str, function: OwnMetric, answer: JudgedText) -> float | None:
    if answer.text is None:
        return 0.0
    try:
        made = function(answer.text, answer.example.reference)
        return None if made is None else float(made)
    except Exception as error:  # a program of the user's, which raises what it likes
        cause = f"metric {name!r} raised {type(error).__name__}: {str(error)[:200]}"
        raise OptionError(cause, at=f"text {answer.text[:60]!r}") from error


def missing_packages(metrics: Sequence[Metric]) -> list[str]:
    """The words for measures that this installation cannot compute."""
    if has_mauve() or not any(metric.name == "mauve" for metric in metrics):
        return []
    return ["mauve is left out: the package mauve-text is not installed"]


def measure_run(
    metric: Metric, answers: Sequence[JudgedText], values: Sequence[float | None], judge: JudgeModel
) -> float | None:
    """The figure of a run: of its texts together, or the mean of the `values` of its examples."""
    if metric.of_texts is not None:
        return metric.of_texts([answer for answer in answers if answer.text is not None], judge)
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _beside(figure: Callable[[str, Any], float], kinds: type | UnionType, answer: JudgedText) -> float | None:
    """The figure of a text beside its reference, where that is of these kinds; 0 without a text."""
    if answer.example.reference is None or not isinstance(answer.example.reference, kinds):
        return None
    return 0.0 if answer.text is None else float(figure(answer.text, answer.example.reference))


def _valid(answer: JudgedText) -> float | None:
    if answer.constraint is None:
        return None
    return float(answer.text is not None and is_valid(answer.text, answer.constraint))


def _repetition(n: int, answer: JudgedText) -> float | None:
    return None if answer.text is None else repetition(words_of(answer.text), n)


def _log_z(answer: JudgedText) -> float | None:
    """The record of `Stats` for a text that was decoded under a mask; else there is nothing that Z could be of."""
    return None if answer.stats is None or answer.stats.mask_s is None else answer.stats.log_z


def _log_evidence(answer: JudgedText) -> float | None:
    particles = None if answer.stats is None else answer.stats.particles
    return None if particles is None else particles.log_evidence


def _of_words(
    figure: Callable[[Sequence[Words]], float | None], answers: Sequence[JudgedText], judge: JudgeModel
) -> float | None:
    return figure([words_of(answer.text or "") for answer in answers])


def _mauve(answers: Sequence[JudgedText], judge: JudgeModel) -> float | None:
    pairs = [(answer.text, answer.example.reference) for answer in answers if isinstance(answer.example.reference, str)]
    if not has_mauve() or len(pairs) < 2:
        return None
    return mauve([text or "" for text, _ in pairs], [reference for _, reference in pairs])


RECORDED = ("log-z", "log-evidence")
"""Measures that some strategies record while decoding: log Z of the masks along a text, and what particles estimate of
the logarithm of the probability that the constraint holds; see `decoding.request.stats`. A task that names log Z among
its metrics has it recorded by every strategy; that costs time, of all alike."""

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("exact-match", True, of_example=partial(_beside, exact_match, object)),
        Metric("field-f1", True, of_example=partial(_beside, field_f1, dict | list)),
        Metric("valid", True, of_example=_valid),
        Metric(
            "perplexity",
            False,
            of_texts=lambda answers, judge: judge.perplexity([(one.prompt, one.text or "") for one in answers]),
        ),
        *(Metric(f"distinct-{n}", True, of_texts=partial(_of_words, partial(distinct, n=n))) for n in (1, 2, 3)),
        *(Metric(f"rep-{n}", False, of_example=partial(_repetition, n)) for n in (1, 2, 3, 4)),
        Metric("self-bleu", False, of_texts=partial(_of_words, self_bleu)),
        Metric("mauve", True, of_texts=_mauve),
        Metric("log-z", None, of_example=_log_z),
        Metric("log-evidence", None, of_example=_log_evidence),
    )
}
"""Every measure by its name."""
