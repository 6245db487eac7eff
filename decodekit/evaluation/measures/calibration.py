"""Calibration of decisions: whether what is said to be 80 % sure is right four times out of five.

    found = calibrate(llm, "questions.jsonl", bool)       # labelled: {"prompt": "...", "reference": true}
    found.before.expected_error, found.after.expected_error
    llm.decide(prompts, bool, temperature=found.temperature)

The temperature T makes the labels as likely as it can: of all T it has the least mean of -log p(label), where p is the
decisions' p^(1/T), divided by its sum (Guo et al. 2017, "On calibration of modern neural networks"). In 1/T the mean is
convex, so where its slope is 0 there is one minimum, which bisection finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from decodekit.errors import OptionError
from decodekit.evaluation.task import Task, load_task
from decodekit.html_pages import BAR, LINE, SOFT, figure_html, page_html, table_html
from decodekit.llm.decisions import DecideKeywords, Decision
from decodekit.sampling.checks import COUNT

if TYPE_CHECKING:
    from decodekit.llm import LLM

MOST_EXTREME: Final = 100.0
"""Temperatures are looked for from one over this to this: labels that are always, or never, the likeliest have none."""

_STEPS: Final = 60
_SIZE, _EDGE = 240, 34


@dataclass(frozen=True, slots=True)
class Bin:
    """Decisions whose likeliest choice is about equally likely.

    Attributes:
        low, high: ends of the interval of probabilities; the high one belongs to it.
        num_decisions: in it.
        confidence: mean probability of the likeliest choice; 0 of none.
        accuracy: share of them that is right; 0 of none.
    """

    low: float
    high: float
    num_decisions: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """The reliability of probabilities: how they and the truth go together.

    Attributes:
        bins: of equal width, from 0 to 1.
        accuracy: share of decisions whose likeliest choice is right.
        expected_error: expected calibration error, the mean of abs(accuracy - confidence) of the bins by their sizes.
        log_loss: mean of -log p(label), in nats.
    """

    bins: tuple[Bin, ...]
    accuracy: float
    expected_error: float
    log_loss: float

    def to_svg(self) -> str:
        """The reliability diagram: accuracy against confidence, each point as large as its bin."""
        most = max((one.num_decisions for one in self.bins), default=0)

        def at(share: float) -> float:
            return _EDGE + share * (_SIZE - _EDGE - 8)

        points = "".join(
            f'<circle cx="{at(one.confidence):.1f}" cy="{_SIZE - at(one.accuracy):.1f}" '
            f'r="{2 + 6 * math.sqrt(one.num_decisions / most):.1f}" fill="{BAR}" fill-opacity="0.7"><title>'
            f"{one.low:.2g} to {one.high:.2g}: {one.num_decisions:,} decisions, confidence {one.confidence:.3f}, "
            f"accuracy {one.accuracy:.3f}</title></circle>"
            for one in self.bins
            if one.num_decisions
        )
        ends = f'x1="{at(0):.1f}" y1="{_SIZE - at(0):.1f}"'
        return (
            f'<svg viewBox="0 0 {_SIZE} {_SIZE}" width="{_SIZE}" role="img" aria-label="reliability diagram">'
            f'<g stroke="{LINE}"><line {ends} x2="{at(1):.1f}" y2="{_SIZE - at(0):.1f}"/>'
            f'<line {ends} x2="{at(0):.1f}" y2="{_SIZE - at(1):.1f}"/>'
            f'<line {ends} x2="{at(1):.1f}" y2="{_SIZE - at(1):.1f}" stroke-dasharray="4 3"/></g>'
            f'<g font-size="11" fill="{SOFT}"><text x="{at(0):.1f}" y="{_SIZE - 6}">confidence, 0 to 1</text>'
            f'<text x="12" y="{_SIZE - at(0):.1f}" transform="rotate(-90 12 {_SIZE - at(0):.1f})">accuracy, 0 to 1'
            f"</text></g>{points}</svg>"
        )


@dataclass(frozen=True)
class Calibration:
    """The calibration of decisions by their labels.

    Attributes:
        temperature: that makes the labels likeliest, for ``llm.decide(..., temperature=...)``.
        before, after: without and with it.
        decisions: without it.
        labels: what is right, as keys of the decisions.
    """

    temperature: float
    before: Reliability
    after: Reliability
    decisions: tuple[Decision, ...]
    labels: tuple[Any, ...]

    def __repr__(self) -> str:
        return (
            f"Calibration({len(self.labels):,} decisions, temperature={self.temperature:.4g}, expected error "
            f"{self.before.expected_error:.4f} -> {self.after.expected_error:.4f})"
        )

    def to_html(self) -> str:
        """A page with both diagrams and their figures: one file, without scripts."""
        return page_html("Calibration", ["<h1>Calibration</h1>", self._repr_html_()], "decodekit.evaluation")

    def _repr_html_(self) -> str:
        fields = {"accuracy": "accuracy", "expected calibration error": "expected_error", "-log p(label)": "log_loss"}
        rows = [
            [name, f"{getattr(self.before, field):.4f}", f"{getattr(self.after, field):.4f}"]
            for name, field in fields.items()
        ]
        heading = ("", "as they are", f"at temperature {self.temperature:.3g}")
        pictures = figure_html(heading[1], self.before.to_svg()) + figure_html(heading[2], self.after.to_svg())
        return f"<div>{pictures}</div>{table_html(rows, heading)}"


def calibrate(
    llm: LLM, task: str | Path | Task, choices: Any = None, *, num_bins: int = 10, **options: Unpack[DecideKeywords]
) -> Calibration:
    """Decide on the examples of a task, and compare with their references.

    Args:
        llm: decides.
        task: as `load_task` takes it: a JSONL file with a prompt and a reference on each line.
        choices: as `LLM.decide` takes them; left out, the ``choices`` of the task. A reference is a choice, or the
            value of an Enum's member.
        num_bins: of the diagrams.
        options: of `LLM.decide`, without temperature and threshold.

    Raises:
        OptionError: an example has no reference among the choices; or one of the options.
        DecodekitError: as `load_task` and `LLM.decide` raise it.
    """
    found = load_task(task)
    for name in ("temperature", "threshold"):
        if name in options:
            raise OptionError(f"{name} has no effect on a calibration", at=name, hint=f"llm.decide(..., {name}=...)")
    chosen = found.constraint if choices is None else choices
    prompts: Any = [example.prompt for example in found.examples]
    decisions: list[Decision] = llm.decide(prompts, chosen, **options)
    values = {_plain(value): value for value in decisions[0].probabilities}
    labels = []
    for example in found.examples:
        reference = example.reference
        is_one = isinstance(reference, str | int | float | None) and reference in values
        if not is_one or isinstance(reference, bool) != isinstance(_plain(values[reference]), bool):
            cause = f"the reference {reference!r:.60} is none of the choices"
            raise OptionError(cause, at=f"example {example.id}", hint=", ".join(map(repr, [*values][:8])))
        labels.append(values[reference])
    return calibration_of(decisions, labels, num_bins=num_bins)


def calibration_of(decisions: Sequence[Decision], labels: Sequence[Any], *, num_bins: int = 10) -> Calibration:
    """Compare decisions with what is right, the labels.

    They are made without a temperature, or with the one that the new one is to be multiplied with.
    """
    COUNT.require("num_bins", num_bins)
    if not decisions or len(decisions) != len(labels):
        cause = f"{len(decisions):,} decisions and {len(labels):,} labels"
        raise OptionError(cause, at="labels", hint="at least one decision, and a label for each")
    for number, (decision, label) in enumerate(zip(decisions, labels, strict=True)):
        if label not in [*decision.logprobs] or decision.logprobs[label] == -math.inf:
            cause = f"the label {label!r:.60} is no choice of the decision, or one that cannot come"
            raise OptionError(cause, at=f"decision {number}", hint=", ".join(map(repr, [*decision.logprobs][:8])))
    temperature = fitted_temperature([decision.logprobs for decision in decisions], labels)
    scaled = [decision.at_temperature(temperature) for decision in decisions]
    before, after = (reliability(some, labels, num_bins) for some in (decisions, scaled))
    return Calibration(temperature, before, after, tuple(decisions), tuple(labels))


def fitted_temperature(logprobs: Sequence[Mapping[Any, float]], labels: Sequence[Any]) -> float:
    """The temperature with the least mean of -log p(label), within `MOST_EXTREME`."""
    low, high = -math.log(MOST_EXTREME), math.log(MOST_EXTREME)  # of log(1 / T)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _slope(logprobs, labels, math.exp(middle)) > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def _slope(logprobs: Sequence[Mapping[Any, float]], labels: Sequence[Any], inverse: float) -> float:
    """The derivative by 1/T of the sum of -log p(label): mean scores under p^(1/T), less those of the labels."""
    total = 0.0
    for scores, label in zip(logprobs, labels, strict=True):
        finite = [score for score in scores.values() if score > -math.inf]
        most = max(finite)
        weights = [math.exp((score - most) * inverse) for score in finite]
        mean = math.fsum(w * score for w, score in zip(weights, finite, strict=True)) / math.fsum(weights)
        total += mean - scores[label]
    return total


def reliability(decisions: Sequence[Decision], labels: Sequence[Any], num_bins: int = 10) -> Reliability:
    """Accuracy and confidence of decisions, whether they abstain or not, in bins of equal width."""
    members: list[list[tuple[float, bool]]] = [[] for _ in range(num_bins)]
    for decision, label in zip(decisions, labels, strict=True):
        best = max(decision.probabilities, key=lambda value: decision.logprobs[value])
        p = decision.probabilities[best]
        members[min(num_bins - 1, max(0, math.ceil(p * num_bins) - 1))].append((p, best == label))
    bins = []
    for number, each in enumerate(members):
        confidence = math.fsum(p for p, _ in each) / max(1, len(each))
        accuracy = sum(is_right for _, is_right in each) / max(1, len(each))
        bins.append(Bin(number / num_bins, (number + 1) / num_bins, len(each), confidence, accuracy))
    num = len(decisions)
    return Reliability(
        tuple(bins),
        math.fsum(one.accuracy * one.num_decisions for one in bins) / num,
        math.fsum(abs(one.accuracy - one.confidence) * one.num_decisions for one in bins) / num,
        -math.fsum(decision.logprobs[label] for decision, label in zip(decisions, labels, strict=True)) / num,
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
