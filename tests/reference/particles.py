"""Slow twins of particles: every legal text with its probability, and a population over lists."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.reference.generation import Law
from tests.reference.sampling import gumbel, softmax, uniform

Text = tuple[int, ...]
Process = Callable[[list[float]], list[float]]
"""A row of logits as the pipeline leaves it, without a mask."""


def legal_texts(
    law: Law, prompt: Sequence[int], matcher: Any, process: Process, eos_token_ids: frozenset[int], text: Text = ()
) -> Iterator[tuple[Text, float]]:
    """Every text of a finite constraint with its probability under the processed law without a mask."""
    row = softmax(process([float(z) for z in law([*prompt, *text])]))
    for token, p in enumerate(row):
        if not matcher.validate([token]) or p == 0:
            continue
        after = matcher.fork()
        assert after.accept(token)
        if token in eos_token_ids or (after.is_accepting and not after.can_continue):
            yield (*text, token), p
        else:
            for longer, q in legal_texts(law, prompt, after, process, eos_token_ids, (*text, token)):
                yield longer, p * q


def orders(p: Sequence[float]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every order of draws without replacement with its probability (Plackett and Luce)."""
    for order in itertools.permutations(range(len(p))):
        chance, left = 1.0, 1.0
        for token in order:
            chance *= p[token] / left if left > 1e-12 else 1.0
            left -= p[token]
        yield order, chance


def rejection(p: Sequence[float], order: Sequence[int], legal: set[int]) -> tuple[int, float] | None:
    """The first legal token of an order, and p of it, with all that comes later if the next one is legal, too."""
    for place, token in enumerate(order):
        if token in legal:
            rest = sum(p[later] for later in order[place + 1 :])
            is_next_legal = place + 1 < len(order) and order[place + 1] in legal
            return token, p[token] + rest * is_next_legal
    return None


def population(
    law: Law,
    prompt: Sequence[int],
    matcher: Any,
    process: Process,
    eos_token_ids: frozenset[int],
    *,
    num_particles: int,
    method: str,
    resample: str,
    threshold: float,
    seed: int,
    max_tokens: int,
) -> tuple[list[Text], list[float], float, int]:
    """The texts of the particles with their weights, the estimate of Z, and how often particles were drawn anew.

    A particle that has died keeps its text and has the weight 0. Weights are those since particles were drawn anew.
    """
    texts: list[Text] = [()] * num_particles
    matchers = [matcher.fork() for _ in range(num_particles)]
    weights, is_over = [1.0] * num_particles, [False] * num_particles
    evidence, num_resamplings = 1.0, 0
    for position in range(max_tokens):
        for i in range(num_particles):
            if is_over[i]:
                continue
            row = process([float(z) for z in law([*prompt, *texts[i]])])
            p = softmax(row)
            legal = {token for token in range(len(row)) if matchers[i].validate([token]) and p[token] > 0}
            keys = [z + gumbel(seed, i, position, token) for token, z in enumerate(row)]
            order = sorted((t for t in range(len(row)) if p[t] > 0), key=lambda t: -keys[t])
            found = rejection(p, order, legal)
            if found is None:
                weights[i], is_over[i] = 0.0, True
                continue
            token, estimate = found
            weights[i] *= estimate if method == "awrs" else sum(p[t] for t in legal)
            assert matchers[i].accept(token)
            texts[i] = (*texts[i], token)
            is_whole = token in eos_token_ids or (matchers[i].is_accepting and not matchers[i].can_continue)
            is_over[i] = is_whole or position + 1 == max_tokens
            if is_over[i] and not is_whole:
                weights[i] = 0.0
        if all(is_over):
            break
        size = sum(weights) ** 2 / sum(w * w for w in weights)
        if size < threshold * num_particles * (1 - 2**-18):  # sizes that are equal but for rounding
            sources = drawn_anew(weights, seed, position + 1, resample)
            texts = [texts[source] for source in sources]
            matchers = [matchers[source].fork() for source in sources]
            is_over = [is_over[source] for source in sources]
            evidence *= sum(weights) / num_particles
            weights = [1.0] * num_particles
            num_resamplings += 1
    return texts, weights, evidence * sum(weights) / num_particles, num_resamplings


def drawn_anew(weights: Sequence[float], seed: int, position: int, resample: str) -> list[int]:
    """Which particle stands in each place after drawing anew; who is drawn at all keeps a place of its own."""
    n, total = len(weights), sum(weights)
    u = [uniform(seed, (4 << 60) + i, position, 0) for i in range(n)]
    points = {
        "systematic": [(i + u[0]) / n for i in range(n)],
        "stratified": [(i + u[i]) / n for i in range(n)],
        "multinomial": u,
    }[resample]
    drawn = []
    for point in points:
        sums = list(itertools.accumulate(weight / total for weight in weights))
        drawn.append(next(i for i, s in enumerate(sums) if s > point or s > 1 - 1e-12))
    places: list[int | None] = [i if i in drawn else None for i in range(n)]
    surplus = sorted(drawn)
    for i in set(drawn):
        surplus.remove(i)
    return [surplus.pop() if place is None else place for place in places]


def log(x: float) -> float:
    """The natural logarithm; -inf of 0."""
    return math.log(x) if x > 0 else -math.inf
