"""Calibration by hand, beside a grid of temperatures, and on a labelled file."""

from __future__ import annotations

import json
import math
import random
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.decoding.request.stats import Stats
from decodekit.errors import OptionError
from decodekit.evaluation.measures.calibration import MOST_EXTREME, calibrate, calibration_of, fitted_temperature
from decodekit.llm.decisions import Decision
from decodekit.testing.toy import toy_llm
from tests.sizes import few

STATS = Stats(1, 0, 1, None, 0.0)


def decision(*probabilities: float) -> Decision:
    by_choice = dict(enumerate(probabilities))
    logprobs = {choice: math.log(p) if p else -math.inf for choice, p in by_choice.items()}
    return Decision(max(by_choice, key=by_choice.__getitem__), by_choice, logprobs, False, STATS)


def loss(decisions: list[Decision], labels: list[int], temperature: float) -> float:
    return -math.fsum(
        math.log(one.at_temperature(temperature).probabilities[label])
        for one, label in zip(decisions, labels, strict=True)
    )


def test_by_hand() -> None:
    """Four decisions with 0.8, three of them right, and two with 0.6, one right: the errors are 0.05 and 0.1."""
    decisions = [decision(0.8, 0.2)] * 4 + [decision(0.4, 0.6)] * 2
    found = calibration_of(decisions, [0, 0, 0, 1, 1, 0], num_bins=5).before
    assert [one.num_decisions for one in found.bins] == [0, 0, 2, 4, 0]
    assert found.bins[3].confidence == pytest.approx(0.8) and found.bins[3].accuracy == pytest.approx(0.75)
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.expected_error == pytest.approx((4 * 0.05 + 2 * 0.1) / 6)
    assert found.log_loss == pytest.approx(-(3 * math.log(0.8) + math.log(0.2) + math.log(0.6) + math.log(0.4)) / 6)


@few(1)
@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 2.5])
def test_the_fitted_temperature_is_the_likeliest_of_a_grid(true_temperature: float) -> None:
    rng = random.Random(3)
    decisions, labels = [], []
    for _ in range(400):
        weights = [math.exp(rng.gauss(0, 2)) for _ in range(rng.choice((2, 4)))]
        decisions.append(decision(*(weight / sum(weights) for weight in weights)))
        law = decisions[-1].at_temperature(true_temperature).probabilities
        labels.append(rng.choices([*law], [*law.values()])[0])
    found = fitted_temperature([one.logprobs for one in decisions], labels)
    losses = {step: loss(decisions, labels, found * 1.02**step) for step in range(-20, 21)}
    assert min(losses, key=losses.__getitem__) == 0
    assert found == pytest.approx(true_temperature, rel=0.25)
    calibrated = calibration_of(decisions, labels)
    assert calibrated.after.log_loss <= calibrated.before.log_loss
    if true_temperature != 1.0:
        assert calibrated.after.expected_error < calibrated.before.expected_error


def test_labels_without_a_temperature_get_the_most_extreme() -> None:
    always = [decision(0.7, 0.3, 0.0)] * 3
    assert fitted_temperature([one.logprobs for one in always], [0] * 3) == pytest.approx(1 / MOST_EXTREME)
    assert fitted_temperature([one.logprobs for one in always], [1] * 3) == pytest.approx(MOST_EXTREME)


@pytest.mark.parametrize(
    ("decisions", "labels", "says"),
    [([], [], "0 decisions"), ([decision(1.0)], [], "0 labels"), ([decision(1.0, 0.0)], [1], "cannot come"),
     ([decision(1.0)], ["x"], "no choice"), ([decision(1.0)], [[0]], "no choice")],
)  # fmt: skip
def test_what_cannot_be_calibrated(decisions: Any, labels: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        calibration_of(decisions, labels)


class Answer(Enum):
    YES = "yes"
    NO = "no"


def test_a_labelled_file(tmp_path: Path) -> None:
    llm, path = toy_llm(), tmp_path / "questions.jsonl"
    prompts = [f"abc {number}" for number in range(30)]
    rng = random.Random(1)
    lines = [{"prompt": prompt, "reference": rng.choice(["yes", "no"])} for prompt in prompts]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = calibrate(llm, path, Answer)
    assert [one.value for one in found.labels] == [line["reference"] for line in lines]
    scaled = llm.decide(prompts, Answer, temperature=found.temperature)
    mean = -math.fsum(one.logprobs[label] for one, label in zip(scaled, found.labels, strict=True)) / 30
    assert mean == pytest.approx(found.after.log_loss)
    html = found.to_html()
    assert html.count("<circle") == sum(
        bool(one.num_decisions) for each in (found.before, found.after) for one in each.bins
    )
    assert f"{found.before.expected_error:.4f}" in html
    task = [json.dumps({"task": {"name": "q", "choices": ["yes", "no"]}}), *map(json.dumps, lines)]
    path.write_text("\n".join(task))
    assert calibrate(llm, path).labels == tuple(line["reference"] for line in lines)
    with pytest.raises(OptionError, match=r"none of the choices"):
        calibrate(llm, path, ["yes", "maybe"])
    with pytest.raises(OptionError, match="temperature has no effect"):
        calibrate(llm, path, Answer, temperature=2.0)
    assert dk.calibrate is calibrate
