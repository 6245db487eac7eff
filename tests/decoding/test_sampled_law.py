"""Texts sampled through the whole loop against their exact law, in a world of six letters.

The odds of `check_distribution` hold for other seeds; here the seeds are fixed, so a run gives the same figures every
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pytest
from torch import Tensor

from decodekit.constraints import Choices
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.sampling import sample
from decodekit.strategy import Sample
from tests.reference.law_of_sampling import law_of
from tests.sizes import few, sized
from tests.testing.distribution import check_distribution
from tests.testing.small_world import SmallWorld

WORLD = SmallWorld(6, 2)
TEXTS = ("ab", "ac", "ad", "ae", "bd", "be", "ca", "cb", "cf")  # "e", a likely token, is not allowed at first


CASES: list[tuple[Sample, Choices | None]] = [
    (Sample(), None),
    (Sample(temperature=0.6, top_k=4), None),
    (Sample(temperature=0.9, top_k=6, top_p=0.8, min_p=0.1), None),
    (Sample(top_p=0.7), None),
    (Sample(), Choices(TEXTS)),
    (Sample(temperature=1.2, top_k=3), Choices(TEXTS)),  # the mask must come before top-k
]


@few(1)
@sized("deviation", 0.15, slow=0.03)
@pytest.mark.parametrize(("strategy", "constraint"), CASES, ids=range(len(CASES)))
def test_texts_follow_the_exact_law(strategy: Sample, constraint: Choices | None, deviation: float) -> None:
    found = check_distribution(
        strategy, partial(law_of, strategy), constraint=constraint, world=WORLD, deviation=deviation, false_alarm=1e-4
    )
    assert found.num_texts == found.num_planned > 5 * len(found.law)
    assert len(found.law) >= 5


@dataclass(frozen=True)
class OneNoise(Sample):
    """Uses the noise of the first position everywhere."""

    def select(self, scores: object, keys: NoiseKeys, /) -> Tensor:
        return sample(scores, keys.seeds, keys.sequences, [0] * len(keys.seeds))  # type: ignore[arg-type]


@dataclass(frozen=True)
class OneSeed(Sample):
    """Forgets the seeds."""

    def select(self, scores: object, keys: NoiseKeys, /) -> Tensor:
        return sample(scores, [0] * len(keys.seeds), keys.sequences, keys.positions)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [OneNoise(), OneSeed()], ids=repr)
def test_wrong_noise_is_rejected(strategy: Sample) -> None:
    with pytest.raises(AssertionError, match="does not follow the law"):
        check_distribution(strategy, partial(law_of, strategy), world=WORLD)


@sized("temperature", 0.7, slow=0.9)
def test_another_temperature_is_rejected(temperature: float) -> None:
    with pytest.raises(AssertionError, match="does not follow the law"):
        check_distribution(
            Sample(temperature=temperature), partial(law_of, Sample()), world=WORLD, deviation=(1 - temperature) / 4
        )


def test_a_mask_after_top_k_is_rejected() -> None:
    """The law of a loop that truncates first: only what top-k leaves and the constraint allows."""
    strategy = Sample(temperature=1.2, top_k=3)
    free, masked = (WORLD.law(strategy, partial(law_of, strategy), constraint=one) for one in (None, Choices(TEXTS)))
    wrong = {text: p for text, p in free.items() if text in TEXTS}
    wrong = {text: p / sum(wrong.values()) for text, p in wrong.items()}
    assert len(wrong) > 1  # the wrong law is a law
    assert wrong.keys() != masked.keys()
    with pytest.raises(AssertionError, match="does not follow the law"):
        check_distribution(strategy, wrong, constraint=Choices(TEXTS), world=WORLD)


def test_samples_of_one_prompt_are_independent() -> None:
    """Equal seeds with other sample numbers: pairs of first tokens follow the product of the law with itself."""
    first = law_of(Sample(), WORLD.model.logits_after([0])).tolist()
    settings = Settings(WORLD.llm.vocabulary, Sample().pipeline, Sample().select, max_new_tokens=1)

    def pairs(seeds: Sequence[int]) -> list[tuple[int, ...]]:
        found = [[-1, -1] for _ in seeds]
        for number in (0, 1):
            requests = [Request([0], seed=seed, sequence=number) for seed in seeds]
            for update in decode_texts(WORLD.model, settings, 500, requests):
                if update.token_ids:
                    found[update.index][number] = update.token_ids[0]
        return [tuple(pair) for pair in found]

    law = {(a, b): p * q for a, p in enumerate(first) for b, q in enumerate(first)}
    check_distribution(pairs, law, deviation=0.15)
    with pytest.raises(AssertionError, match="does not follow the law"):  # the control: one sample twice
        check_distribution(lambda seeds: [(a, a) for a, _ in pairs(seeds)], law)


def test_equal_keys_give_equal_texts() -> None:
    """The law of reproducibility on the toy: admission order and batch size change nothing."""
    settings = Settings(WORLD.llm.vocabulary, Sample().pipeline, Sample().select, max_new_tokens=6)
    requests = [Request([i % 6], seed=i) for i in range(50)]

    def texts(num_rows: int, order: list[int]) -> dict[int, str]:
        done: dict[int, str] = dict.fromkeys(range(50), "")
        for update in decode_texts(WORLD.model, settings, num_rows, [requests[i] for i in order]):
            done[order[update.index]] += update.text
        return done

    expected = texts(1, list(range(50)))
    assert len(set(expected.values())) > 30
    for num_rows, order in [(7, list(range(50))), (50, list(range(50))), (5, list(range(50))[::-1])]:
        assert texts(num_rows, order) == expected
