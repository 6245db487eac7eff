"""Tokens sampled through the whole loop against their exact law, V = 8, N = 5,000; in the slow run N = 30,000.

The seeds are fixed, so a run gives the same figure every time; under the right law a figure below 1e-4 would have been
drawn with odds of 1 in 10,000 per case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from decodekit.constraints import Choices, compile
from decodekit.generation import samples
from decodekit.generation.sequence import Request
from decodekit.generation.settings import NoiseKeys, Settings
from decodekit.sampling import sample
from decodekit.strategy import Sample, Strategy, lead_of
from decodekit.vocabulary import Vocabulary
from tests.reference.generation import TableLM
from tests.sizes import sized

V = 8
SOME, MANY = 5_000, 30_000
THRESHOLD = 1e-4
START = 7
TABLE = torch.randn(V, V, generator=torch.Generator().manual_seed(5)) * 1.5
VOCABULARY = Vocabulary([bytes([c]) for c in b"abcdefgh"], ())
# "h" and "a", likely tokens at the start and after "c", are not allowed.
TEXTS = ["cb", "cd", "cg", "gd", "ga", "ge", "eb", "ec"]


def law(strategy: Sample, last: int, allowed: list[int] | None) -> np.ndarray:
    """The probabilities of the next token, step by step in float64: mask, temperature, top-k, top-p, min-p."""
    z = [float(x) for x in TABLE[last]]
    kept = set(range(V) if allowed is None else allowed)
    z = [x / strategy.temperature for x in z]
    if strategy.top_k is not None:
        kept = set(sorted(kept, key=lambda t: -z[t])[: strategy.top_k])

    def normalised() -> dict[int, float]:
        total = sum(math.exp(z[t]) for t in kept)
        return {t: math.exp(z[t]) / total for t in kept}

    if strategy.top_p is not None:
        mass, nucleus = 0.0, set()
        for token, p in sorted(normalised().items(), key=lambda item: -item[1]):
            if mass < strategy.top_p:
                nucleus.add(token)
            mass += p
        kept = nucleus
    if strategy.min_p is not None:
        p = normalised()
        kept = {t for t in kept if p[t] >= strategy.min_p * max(p.values())}
    return np.array([normalised().get(t, 0.0) for t in range(V)])


def joint_law(strategy: Sample, texts: list[str] | None) -> np.ndarray:
    """The probabilities of the first two tokens, [V, V]."""
    pairs = None if texts is None else [("abcdefgh".index(t[0]), "abcdefgh".index(t[1])) for t in texts]
    first = law(strategy, START, None if pairs is None else sorted({a for a, _ in pairs}))
    second = [
        law(strategy, a, None if pairs is None else [y for x, y in pairs if x == a]) if first[a] > 0 else np.zeros(V)
        for a in range(V)
    ]
    return first[:, None] * np.stack(second)


def counts(strategy: Strategy, texts: list[str] | None, num_samples: int) -> np.ndarray:
    """How often each pair of tokens came, [V, V]."""
    grammar = None if texts is None else compile(Choices(texts), VOCABULARY)
    settings = Settings(VOCABULARY, strategy.pipeline, strategy.select, max_new_tokens=2, lead=lead_of(strategy))
    requests = (Request([START], None if grammar is None else grammar.matcher(), seed=i) for i in range(num_samples))
    found = np.zeros((V, V))
    for update in samples.decode(TableLM(TABLE), settings, 2000, requests):
        if update.result is not None:
            found[update.result.token_ids] += 1
    assert found.sum() == num_samples
    return found


def p_value(found: np.ndarray, expected: np.ndarray) -> float:
    """χ² of the pairs; 0 if an impossible one came. Cells with fewer than five expected are joined."""
    if found[expected == 0].any():
        return 0.0
    num_samples = found.sum()
    small = (expected * num_samples < 5) & (expected > 0)
    f = [*found[(expected > 0) & ~small], *([found[small].sum()] if small.any() else [])]
    e = [*expected[(expected > 0) & ~small], *([expected[small].sum()] if small.any() else [])]
    return float(chisquare(f, np.array(e) * num_samples).pvalue)


CASES: list[tuple[Sample, list[str] | None]] = [
    (Sample(), None),
    (Sample(temperature=0.6, top_k=4), None),
    (Sample(temperature=0.9, top_k=6, top_p=0.8, min_p=0.1), None),
    (Sample(top_p=0.7), None),
    (Sample(), TEXTS),
    (Sample(temperature=1.2, top_k=3), TEXTS),  # the mask must come before top-k
]


@sized("num_samples", SOME, slow=MANY)
@pytest.mark.parametrize(("strategy", "texts"), CASES, ids=range(len(CASES)))
def test_pairs_follow_the_exact_law(strategy: Sample, texts: list[str] | None, num_samples: int) -> None:
    assert p_value(counts(strategy, texts, num_samples), joint_law(strategy, texts)) > THRESHOLD


@dataclass(frozen=True)
class OneNoise(Sample):
    """Uses the noise of the first position everywhere."""

    def select(self, scores: object, keys: NoiseKeys, /) -> torch.Tensor:
        return sample(scores, keys.seeds, keys.sequences, [0] * len(keys.seeds))  # type: ignore[arg-type]


@dataclass(frozen=True)
class OneSeed(Sample):
    """Forgets the seeds."""

    def select(self, scores: object, keys: NoiseKeys, /) -> torch.Tensor:
        return sample(scores, [0] * len(keys.seeds), keys.sequences, keys.positions)  # type: ignore[arg-type]


def another_temperature(temperature: float = 0.88, num_samples: int = SOME) -> float:
    return p_value(counts(Sample(temperature=temperature), None, num_samples), joint_law(Sample(), None))


def reused_noise() -> float:
    return p_value(counts(OneNoise(), None, 3000), joint_law(Sample(), None))


def forgotten_seeds() -> float:
    return p_value(counts(OneSeed(), None, 3000), joint_law(Sample(), None))


def mask_after_top_k() -> float:
    """The law of a loop that truncates first: only what top-k leaves and the constraint allows."""
    strategy = Sample(temperature=1.2, top_k=3)
    expected = joint_law(strategy, None)
    allowed = np.zeros((V, V))
    for text in TEXTS:
        allowed["abcdefgh".index(text[0]), "abcdefgh".index(text[1])] = 1
    expected = expected * allowed
    assert (expected > 0).sum() > 1  # the wrong law is a law
    return p_value(counts(strategy, TEXTS, 3000), expected / expected.sum())


@pytest.mark.parametrize("control", [another_temperature, reused_noise, forgotten_seeds, mask_after_top_k])
def test_a_wrong_law_is_rejected(control: Callable[[], float]) -> None:
    assert control() < THRESHOLD


@pytest.mark.slow
def test_many_samples_tell_temperatures_apart_that_are_close() -> None:
    assert another_temperature(0.95, MANY) < THRESHOLD


def test_samples_of_one_prompt_are_independent() -> None:
    """Equal seeds with other sample numbers: pairs of first tokens follow the product of the law with itself."""
    settings = Settings(VOCABULARY, Sample().pipeline, Sample().select, max_new_tokens=1)
    num_samples = 10_000
    tokens = np.zeros((num_samples, 2), dtype=int)
    for number in (0, 1):
        requests = [Request([START], seed=i, sequence=number) for i in range(num_samples)]
        for update in samples.decode(TableLM(TABLE), settings, 2000, requests):
            tokens[update.index, number] = update.token_ids[0]
    found = np.zeros((V, V))
    np.add.at(found, (tokens[:, 0], tokens[:, 1]), 1)
    first = law(Sample(), START, None)
    assert p_value(found, first[:, None] * first) > THRESHOLD


def test_equal_keys_give_equal_texts() -> None:
    """The law of reproducibility on the toy: admission order and batch size change nothing."""
    settings = Settings(VOCABULARY, Sample().pipeline, Sample().select, max_new_tokens=6)
    requests = [Request([i % V], seed=i) for i in range(50)]

    def texts(num_rows: int, order: list[int]) -> dict[int, str]:
        done: dict[int, str] = dict.fromkeys(range(50), "")
        for update in samples.decode(TableLM(TABLE), settings, num_rows, [requests[i] for i in order]):
            done[order[update.index]] += update.text
        return done

    expected = texts(1, list(range(50)))
    assert len(set(expected.values())) > 40
    for num_rows, order in [(7, list(range(50))), (50, list(range(50))), (5, list(range(50))[::-1])]:
        assert texts(num_rows, order) == expected
